"""Encoders of videos: which tubelets attend to which, where and when they are, and what stands for the whole."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from regard.core.outputs import HeadConfig
from regard.core.stems import tubes
from regard.inspection.taps import edit, record
from regard.models import storage
from regard.models.family import build, configure, family_of, presets
from regard.models.video import WAYS, Video, VideoConfig, vivit_tiny
from regard.models.vision import Vision, VisionConfig

SMALL = {"size": 16, "channels": 3, "frames": 4, "tubelet": 1, "layers": 2, "d_model": 24, "d_ff": 32, "heads": 3}
CUT = {"convolutions": 0, "patch": 8}


def videos(frames: int = 4, size: int = 16, count: int = 2) -> torch.Tensor:
    return torch.randn(count, frames, 3, size, size, generator=torch.Generator().manual_seed(0))


def model(way: str, **changes: object) -> Video:
    """One of which every parameter counts: what rests at first is awake."""
    torch.manual_seed(0)
    made = Video(vivit_tiny(**SMALL, **CUT, space_time=way).but(**changes), HeadConfig("classes", 5))
    for tensor in made.parameters():
        tensor.data.add_(0.1 * torch.randn_like(tensor))
    return made.eval()


@pytest.mark.parametrize("name", [name for name in presets() if family_of(name) == "video"])
def test_every_preset_sees_videos_of_its_size(name: str) -> None:
    made = build(configure(name).but(**SMALL, patch=4), HeadConfig("classes", 5))
    assert made(videos()).shape == (2, 5)


def test_a_tubelet_is_a_patch_in_three_dimensions() -> None:
    made = model("joint", tubelet=2, positions="none")
    weight = made.stem.project.weight.unflatten(1, (3, 2))  # (d_model, C, tubelet, 8, 8)
    x = F.conv3d(videos().transpose(1, 2), weight, made.stem.project.bias, stride=(2, 8, 8))  # (B, d_model, T, h, w)
    seen = made.stem(tubes(videos(), 2))
    torch.testing.assert_close(seen[:, 1:], x.flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_factorised_model_sees_each_time_by_itself() -> None:
    made, x = model("factorised", tubelet=2), videos()
    times = []
    for t in range(2):  # each frame of a tubelet beside the other, colour by colour
        picture = torch.stack([x[:, 2 * t + i, c] for c in range(3) for i in range(2)], 1)
        times.append(made.encoder(made.stem(picture))[:, 0])
    stem = made.time_stem
    read = torch.stack([stem.tokens[0].expand(2, -1), *times], 1) + stem.positions.table
    torch.testing.assert_close(made.features(x), made.time_encoder(read), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_divided_attention_is_over_the_same_place_and_then_over_the_same_time() -> None:
    """Who sees whom, by what a change of one patch reaches within the first layer."""
    made = model("divided", layers=1, frames=3)
    clip, n = videos(3), 4
    with record(made, "*", what="weights") as seen:
        made(clip)
    shapes = {name: tuple(weights.shape) for name, weights in seen.weights.items()}
    assert shapes == {
        "encoder.layers.0.time": (2 * n, 3, 3, 3),  # (B · N, H, T, T)
        "encoder.layers.0.self_attention": (2 * 3, 3, 1 + n, 1 + n),  # (B · T, H, tokens + N, tokens + N)
    }
    other = clip.clone()
    other[:, 0, :, :8, :8] += 1.0  # the first patch of the first time
    changed = (made.features(other) - made.features(clip)).abs().amax(2) > 1e-6
    assert changed.all()  # over its place to all times, and there to all patches
    silent = {"encoder.layers.0.time": dict.fromkeys(range(3), 0.0)}
    with edit(made, silent):
        changed = (made.features(other) - made.features(clip)).abs().amax(2) > 1e-6
    assert changed[0].tolist() == [True] + [True] * n + [False] * 2 * n  # the token, and its own time


@torch.inference_mode()
def test_at_first_a_divided_model_is_one_of_pictures() -> None:
    """Attention over time adds nothing until it learns to: of a video that stands still, each time is the picture."""
    torch.manual_seed(0)
    config = vivit_tiny(**SMALL, **CUT)
    fresh = Video(config, HeadConfig("vector")).eval()
    fresh.stem.times.table.zero_()
    shared = {name: getattr(config, name) for name in VisionConfig.__dataclass_fields__}
    still = Vision(VisionConfig(**shared), HeadConfig("vector")).eval()
    still.load_state_dict({name: x for name, x in fresh.state_dict().items() if ".time" not in name})
    picture = videos()[:, :1]
    expected = still(picture[:, 0])
    torch.testing.assert_close(fresh(picture.expand(-1, 4, -1, -1, -1)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_video_may_have_more_frames_and_a_larger_size(way: str) -> None:
    made = model(way)
    assert made(videos(6, 24)).shape == (2, 5)
    alone = torch.cat([made(clip[None]) for clip in videos()])
    torch.testing.assert_close(made(videos()), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_order_in_time_matters(way: str) -> None:
    made = model(way)
    assert (made(videos()) - made(videos().flip(1))).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"space_time": "both"}, "space_time = 'both'"),
        ({"frames": 5, "tubelet": 2}, "frames = 5: they must be a multiple of tubelet = 2"),
        ({"own_positions": True, "space_time": "factorised"}, "own_positions are learned ones"),
        ({"time_layers": 0}, "time_layers = 0: it must be at least 1"),
        ({"patch": 64}, "patch = 64: it must be at most size = 16"),
    ],
)
def test_what_cannot_be_built_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VideoConfig(**SMALL | CUT | wrong)  # type: ignore[arg-type]


def test_what_cannot_be_seen_is_refused() -> None:
    for wrong in (torch.zeros(1, 3, 16, 16), videos(3), videos().byte()):
        with pytest.raises(ValueError, match="a video is numbers"):
            model("joint", tubelet=2)(wrong)
    own = model("joint", own_positions=True)
    assert own(videos()).shape == (2, 5)
    for wrong in (videos(2), videos(1, 32)):  # the latter has as many tubelets, elsewhere
        with pytest.raises(ValueError, match="this model has positions of 4 x 4"):
            own(wrong)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_stored_and_learns_over_recomputed_layers(way: str, tmp_path: Path) -> None:
    from regard.core.blocks import layers_of
    from regard.core.recompute import recompute

    made = model(way)
    storage.save(made, tmp_path)
    assert torch.equal(storage.load(tmp_path)(videos()), made(videos()))
    gradients = []
    for again in (False, True):
        if again:
            recompute(layers_of(made))
        made.train().zero_grad()
        made(videos()).square().sum().backward()
        gradients.append([x.grad.clone() for x in made.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
