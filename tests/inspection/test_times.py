"""What the heads of a model of videos look at: maps of parts laid out over all places, as plain loops lay them out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.core.outputs import HeadConfig
from regard.data.batching import Batch
from regard.inspection.axes import grids
from regard.inspection.importance import head_importance
from regard.inspection.measures import NONE, Tokens, measure
from regard.inspection.taps import attentions, record
from regard.inspection.times import over_all, said
from regard.models import storage
from regard.models.video import Video, VideoConfig, vivit_tiny

SMALL = {
    "layers": 1,
    "time_layers": 1,
    "d_model": 16,
    "d_ff": 16,
    "heads": 2,
    "size": 16,
    "convolutions": 2,
    "frames": 6,
}
WAYS = [(way, tokens) for way in ("joint", "divided", "factorised") for tokens in (0, 1)]


def model_of(way: str, tokens: int) -> Video:
    torch.manual_seed(0)
    pool = "first" if tokens else "mean"
    model = Video(vivit_tiny(**SMALL, space_time=way, tokens=tokens), HeadConfig("classes", 3, pool=pool)).eval()
    for p in model.parameters():
        p.data.add_(torch.randn_like(p))  # what rests at first moves, too
    return model


def laid_out(c: VideoConfig, name: str, maps: torch.Tensor) -> torch.Tensor:
    """The slow truth, of one video."""
    k, T, N = c.tokens, c.times, c.side**2
    place = [(t, n) for t in range(T) for n in range(N)]
    found = torch.zeros(maps.shape[1], k + T * N, k + T * N)
    for i in range(k + T * N):
        for j in range(k + T * N):
            t, n = place[i - k] if i >= k else (-1, -1)
            u, m = place[j - k] if j >= k else (-1, -1)
            if name.startswith("time_encoder"):
                found[:, i, j] = maps[0, :, i if i < k else k + t, j if j < k else k + u] / (1 if j < k else N)
            elif ".time" in name:
                found[:, i, j] = maps[n, :, t, u] if i >= k and j >= k and n == m else 0.0
            elif i >= k and j >= k:
                found[:, i, j] = maps[t, :, k + n, k + m] if t == u else 0.0
            elif i >= k:
                found[:, i, j] = maps[t, :, k + n, j]
            elif j >= k:
                found[:, i, j] = maps[u, :, i, k + m] / T
            else:
                found[:, i, j] = maps[:, :, i, j].mean(0)
    return found


@pytest.mark.parametrize(("way", "tokens"), WAYS)
def test_maps_lie_over_all_places(way: str, tokens: int) -> None:
    model = model_of(way, tokens)
    x = torch.randn(2, 6, 1, 16, 16)
    with record(model) as both:
        model(x)
    with record(model) as second, torch.inference_mode():
        model(x[1:])
    assert len(both) == {"joint": 1, "divided": 2, "factorised": 2}[way]
    for name in attentions(model):
        found = over_all(model, name, both[name].detach())
        alone = second[name] if way == "joint" else laid_out(model.config, name, second[name])[None]
        torch.testing.assert_close(found[1], alone[0], atol=1e-5, rtol=1e-5)
        rows = found.sum(-1)[..., tokens if ".time" in name else 0 :]  # tokens take no part in what is over time
        torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.parametrize(("way", "tokens"), WAYS)
def test_what_heads_say_and_how_they_are_missed(way: str, tokens: int) -> None:
    model = model_of(way, tokens)
    c, x = model.config, torch.randn(2, 6, 1, 16, 16)
    k, T, N = c.tokens, c.times, c.side**2
    with record(model, what="outputs") as both:
        model(x)
    for name in attentions(model):
        found, made = said(model, name, both.outputs[name].detach()), both.outputs[name].detach()
        assert found.shape[:3] == (2, 2, k + T * N)
        for t in range(T if way != "joint" else 0):
            for n in range(N):
                of_time = made[N + n, :, t] if ".time" in name else made[T + t, :, k + n] if len(made) > 2 else None
                expected = made[1, :, k + t] if name.startswith("time_encoder") else of_time
                torch.testing.assert_close(found[1, :, k + t * N + n], expected)

    def losses(batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            model(**batch.inputs), torch.zeros(len(batch["pixels"])).long(), reduction="none"
        )

    together = head_importance(model, [Batch({"pixels": x}, 2)], pad=0, losses=losses, normalise=False)
    alone = [
        head_importance(model, [Batch({"pixels": x[i : i + 1]}, 1)], pad=0, losses=losses, normalise=False)
        for i in (0, 1)
    ]
    for name, all_heads in together.items():
        torch.testing.assert_close(all_heads, (alone[0][name] + alone[1][name]) / 2)
    known = measure(model, [Batch({"pixels": x}, 2)], Tokens(NONE, NONE, NONE, grids=grids(model)))
    assert len(known) == 2 * len(attentions(model))


@pytest.mark.parametrize(("way", "tokens"), WAYS)
@pytest.mark.parametrize("view", ["weights", "norm", "rollout"])
def test_a_video_is_drawn_as_its_frames(way: str, tokens: int, view: str, tmp_path: Path) -> None:
    model = model_of(way, tokens)
    told = {"name": "recognise", "labels": ["a", "b", "c"], "pool": model.head.pool}
    told["sight"] = {"size": 16, "channels": 1, "frames": 6}
    storage.save(model, tmp_path, storage.Purpose(told, {}))
    viewer = regard.load(tmp_path)
    video = np.random.default_rng(0).integers(0, 255, (6, 16, 16), np.uint8)
    for each in viewer.attention(video, view=view):
        places = tokens + 3 * 16
        assert each.weights.shape[1:] == (places, places) == (len(each.queries), len(each.keys))
        assert each.picture is not None
        assert each.picture.pixels.shape == (48, 16, 1)
        np.testing.assert_array_equal(each.picture.pixels[16:32, :, 0], video[2])
        assert each.picture.shares.shape == (places,)
        assert each.over().shape[1:] == (12, 4)
        torch.testing.assert_close(each.picture.shares.sum(), torch.tensor(1.0))
