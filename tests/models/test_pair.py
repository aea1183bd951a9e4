"""Two towers: what one sees and the other reads is compared."""

from pathlib import Path

import pytest
import torch

from regard.models import storage
from regard.models.family import build, configure
from regard.models.pair import PairConfig, clip_tiny

SMALL = {"size": 16, "patch": 4, "layers": 2, "d_model": 24, "d_ff": 32, "heads": 3, "d_vector": 12}
SMALL |= {"picture_layers": 1, "picture_d_model": 16, "picture_d_ff": 20, "picture_heads": 2}
TOKENS = torch.randint(3, 50, (4, 9), generator=torch.Generator().manual_seed(1))


def pictures(size: int = 16, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_sizes_are_those_of_the_paper() -> None:
    assert sum(p.numel() for p in build(configure("clip-base")).parameters()) == 151_277_313


@torch.inference_mode()
def test_the_last_place_stands_for_a_text_and_padding_changes_nothing() -> None:
    model = build(clip_tiny(50, **SMALL)).eval()
    keep = torch.arange(9) < torch.tensor([9, 5, 2, 1])[:, None]
    read = model.read(TOKENS, keep)
    for row, length, vector in zip(TOKENS, keep.sum(1).tolist(), read, strict=True):
        torch.testing.assert_close(model.read(row[None, :length])[0], vector, atol=1e-6, rtol=1e-5)
    cosines = torch.nn.functional.cosine_similarity(model.seen(pictures())[:, None], read[None], dim=-1)
    torch.testing.assert_close(model(pictures(), TOKENS, keep), cosines / 0.07, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_places_of_a_word_are_the_nearest_patches_by_the_ways_of_token_and_text() -> None:
    model, pixels = build(clip_tiny(50, **SMALL)).eval(), pictures(count=1)
    found = model.places(pixels, TOKENS[:1])
    assert found.shape == (1, 9, 1 + model.config.side**2)
    assert not found[..., 0].any()  # the token before the patches is none
    states = model.picture_encoder(model.picture_stem(pixels))[0]
    for t in (0, 4, 8):  # a word is read with those before it, and as a whole text would be
        said = model.read(TOKENS[:1, : t + 1])[0]
        alike = [torch.cosine_similarity(model.picture_output(state), said, dim=0) for state in states[1:]]
        torch.testing.assert_close(found[0, t, 1:], (torch.stack(alike) / 0.07).softmax(0), atol=1e-5, rtol=1e-4)


def test_it_comes_back_from_disk_and_sees_other_sizes(tmp_path: Path) -> None:
    for changes in ({"convolutions": 0}, {"convolutions": 2, "positions": "sinusoidal"}):
        model = build(clip_tiny(50, **SMALL | changes)).eval()
        storage.save(model, tmp_path)
        again = storage.load(tmp_path)
        assert torch.equal(again(pictures(24), TOKENS), model(pictures(24), TOKENS))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patch": 64}, "patch = 64: it must be at most size = 16"),
        ({"picture_heads": 3}, "16"),
        ({"self_attention": "linformer:8"}, "linformer:8"),
    ],
)
def test_what_cannot_be_built_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairConfig(50, **SMALL | wrong)  # type: ignore[arg-type]
