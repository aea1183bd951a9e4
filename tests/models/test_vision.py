"""Encoders of pictures: what they see, of which size, and what stands for it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from regard.core.outputs import HeadConfig, weighed
from regard.core.positions import Positions, stretched
from regard.core.stems import Convolutions, Patches
from regard.inspection.taps import record
from regard.models import storage
from regard.models.family import build, configure, family_of, presets
from regard.models.vision import Vision, VisionConfig, cct_2, vit_tiny

SMALL = {"size": 16, "layers": 2, "d_model": 24, "d_ff": 32, "heads": 3}


def pictures(size: int = 16, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [name for name in presets() if family_of(name) == "vision"])
def test_every_preset_sees_pictures_of_its_size(name: str) -> None:
    model = build(configure(name).but(**SMALL | {"patch": 4}), HeadConfig("classes", 5))
    assert model(pictures()).shape == (2, 5)


def test_sizes_are_those_of_the_papers() -> None:
    count = {name: sum(p.numel() for p in build(configure(name)).parameters()) for name in ("vit-tiny", "cct-2")}
    assert count == {"vit-tiny": 5_524_416, "cct-2": 283_072}


def test_patches_are_read_line_by_line() -> None:
    """Whoever shuffles patches in the picture shuffles vectors, and nothing else."""
    torch.manual_seed(0)
    project = nn.Conv2d(3, 8, 4, 4)
    stem, x = Patches(project, Positions(), d_model=8, grid=(2, 2), tokens=1), pictures(8, 1)
    seen = stem(x)
    turned = torch.cat([x[:, :, 4:], x[:, :, :4]], 2)  # the lower half above
    assert torch.equal(stem(turned)[:, 1:], seen[:, [3, 4, 1, 2]])
    flat = x[0, :, :4, 4:].flatten() @ project.weight.flatten(1).T + project.bias  # the patch at the right of the first
    torch.testing.assert_close(seen[0, 2], flat)


def test_positions_of_another_size_are_stretched_and_those_of_tokens_stay() -> None:
    table = torch.randn(2 + 9, 4)
    assert torch.equal(stretched(table, 2, (3, 3), (3, 3))[:2], table[:2])
    torch.testing.assert_close(stretched(table, 2, (3, 3), (3, 3)), table)
    flat = torch.cat([table[:2], torch.ones(9, 4)])
    torch.testing.assert_close(stretched(flat, 2, (3, 3), (5, 4)), torch.cat([table[:2], torch.ones(20, 4)]))
    model = Vision(vit_tiny(**SMALL, patch=4)).eval()
    assert model.features(pictures(24)).shape == (2, 1 + 36, 24)


def test_sinusoidal_positions_reach_any_size() -> None:
    model = Vision(cct_2(**SMALL, positions="sinusoidal"), HeadConfig("classes", 3, pool="attention"))
    assert model(pictures(40)).shape == (2, 3)


def test_each_convolution_halves_the_sides() -> None:
    stem = Convolutions(3, 12, 2, 3)
    assert stem(pictures(17)).shape == (2, 12, 5, 5)
    assert VisionConfig(size=17, convolutions=2).side == 5


def test_weights_of_pooling_are_a_soft_max_over_what_is_kept() -> None:
    x, keep = torch.randn(2, 4, 3), torch.tensor([[True, True, False, False], [True] * 4])
    score = torch.randn(2, 4, 1)
    found = weighed(x, keep, score)
    torch.testing.assert_close(found[0], (score[0, :2].softmax(0) * x[0, :2]).sum(0))
    torch.testing.assert_close(weighed(x, None, torch.zeros(2, 4, 1)), x.mean(1))


def test_two_tokens_have_classes_each() -> None:
    model = Vision(configure("deit-tiny").but(**SMALL, patch=4), HeadConfig("classes", 5, pool="both")).eval()
    x = model.features(pictures())
    head = model.output
    torch.testing.assert_close(model(pictures()), (head.outer(x[:, 0]) + head.other(x[:, 1])) / 2)
    with pytest.raises(ValueError, match="reads two tokens, the model has 1"):
        Vision(vit_tiny(), HeadConfig("classes", 5, pool="both"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patch": 64}, "patch = 64: it must be at most size = 16"),
        ({"kernel": 4}, "kernel = 4: it must be odd"),
        ({"tokens": -1}, "tokens = -1: it must be at least 0"),
        ({"self_attention": "linformer:8"}, "linformer:8"),
    ],
)
def test_what_cannot_be_built_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionConfig(**SMALL | wrong)  # type: ignore[arg-type]


def test_pixels_that_are_none_are_refused() -> None:
    model = Vision(vit_tiny(**SMALL, patch=4))
    for wrong in (torch.zeros(3, 16, 16), torch.zeros(1, 3, 16, 16, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="pixels are numbers"):
            model(wrong)


def test_heads_look_at_patches_and_are_seen(tmp_path: Path) -> None:
    model = build(vit_tiny(**SMALL, patch=4), HeadConfig("classes", 4)).eval()
    with record(model, "encoder.layers.1.self_attention", what="weights") as seen:
        model(pictures())
    (weights,) = seen.weights.values()
    assert weights.shape == (2, 3, 17, 17)
    storage.save(model, tmp_path)
    assert torch.equal(storage.load(tmp_path)(pictures()), model(pictures()))
