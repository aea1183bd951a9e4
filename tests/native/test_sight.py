"""The C engine sees pictures, reads and describes as PyTorch does, in models of pictures, of pairs and of captions, and
gives each the same bits in any company."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch

from regard.core.outputs import HeadConfig
from regard.core.quantised import quantise
from regard.decoding import pool
from regard.decoding.module import Module
from regard.decoding.protocol import Request, SearchConfig
from regard.models.captioner import Captioner, caption_tiny, vit_gpt2
from regard.models.pair import Pair, clip_base
from regard.models.vision import Vision, VisionConfig, cct_2, deit_tiny, vit_tiny
from regard.native import Native, NativeReader
from regard.tasks.match import Tower

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

SEEN: dict[str, tuple[VisionConfig, str]] = {
    "vit": (vit_tiny(size=48, layers=2), "first"),
    "deit": (deit_tiny(size=32, patch=8, layers=2), "both"),
    "cct": (cct_2(size=16, positions="sinusoidal"), "attention"),
    "post": (vit_tiny(size=32, patch=8, layers=2, norm="post", tokens=0), "mean"),
}


def drawn(model: torch.nn.Module) -> Any:
    """With weights that tell one answer from another."""
    torch.manual_seed(0)
    for p in model.parameters():
        p.data.normal_(std=0.1) if p.dim() > 1 else p.data.add_(0.1 * torch.randn_like(p))
    return model.eval()


@pytest.mark.parametrize("name", SEEN)
@torch.no_grad()
def test_pictures_are_seen_as_by_pytorch_alone_and_in_company(name: str) -> None:
    config, by = SEEN[name]
    model = drawn(Vision(config, HeadConfig("classes", 7, pool=by)))
    pixels = torch.randn(5, 3, config.size, config.size)
    found = NativeReader(model, threads=2).looked(pixels)
    read = 1 if by == "first" else None  # then the last layer makes no other place
    expected = model.features(pixels)[:, :read].numpy()
    assert np.abs(np.stack(found) - expected).max() < 1e-4 * np.abs(expected).max()
    alone = NativeReader(model)
    for i, each in enumerate(found):
        assert np.array_equal(alone.looked(pixels[i : i + 1])[0], each)
    larger = torch.randn(1, 3, 2 * config.size, config.size)  # positions are stretched
    stretched = model.features(larger)[0, :read]
    assert torch.allclose(torch.from_numpy(alone.looked(larger)[0]), stretched, atol=1e-3, rtol=1e-3)
    shared = NativeReader(model, threads=2)  # who halve its heads, where those are few
    assert np.array_equal(shared.looked(larger)[0], alone.looked(larger)[0])


@torch.no_grad()
def test_a_picture_in_int8_is_seen_as_by_pytorch_in_int8() -> None:
    model = drawn(Vision(vit_tiny(size=32, patch=8, layers=2), HeadConfig("classes", 7)))
    quantise(model)
    pixels = torch.randn(2, 3, 32, 32)
    found, expected = np.stack(NativeReader(model).looked(pixels)), model.features(pixels)[:, :1].numpy()
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


@torch.no_grad()
def test_both_towers_of_a_pair_are_those_of_pytorch() -> None:
    sizes = {"layers": 2, "d_model": 32, "d_ff": 64, "heads": 4, "d_vector": 24, "size": 32, "patch": 8}
    sees = {"picture_layers": 2, "picture_d_model": 48, "picture_d_ff": 96, "picture_heads": 3}
    pair = drawn(Pair(clip_base(60, **sizes, **sees)))
    pixels, texts = torch.randn(3, 3, 32, 32), [[5, 9, 3], [*range(3, 40)], [7]]
    reads, sight = NativeReader(Tower(pair, sees=False), threads=2), Tower(pair, sees=True)
    seen = [sight.output(torch.from_numpy(each)[None])[0] for each in NativeReader(sight).looked(pixels)]
    assert torch.allclose(torch.stack(seen), torch.nn.functional.normalize(pair.seen(pixels), dim=-1), atol=1e-5)
    for text, found in zip(texts, reads.outputs(texts), strict=True):
        expected = torch.nn.functional.normalize(pair.read(torch.tensor([text]))[0], dim=-1)
        assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)
        assert np.array_equal(reads.outputs([text])[0], found)


CAPTIONERS = {
    "convolutions": caption_tiny(40, size=32, encoder_layers=2, decoder_layers=2, max_length=32),
    "vit-gpt2": vit_gpt2(40, size=32, patch=8, encoder_layers=2, decoder_layers=2, d_model=48, d_ff=96, heads=3),
    "gates": caption_tiny(40, size=32, encoder_layers=1, feed_forward="swiglu", encoder_feed_forward="gelu_quick"),
}


@pytest.mark.parametrize("name", CAPTIONERS)
@torch.no_grad()
def test_captions_are_those_of_pytorch(name: str) -> None:
    model = drawn(Captioner(CAPTIONERS[name]))
    asks = [Request(each, 1) for each in torch.randn(3, 3, 32, 32)]
    search = SearchConfig(beam=3, best=2, limit=12)
    expected = pool.search(Module(model), asks, search, 2, rows=64)
    found = pool.search(Native(model), asks, search, 2, rows=64)
    for some, others in zip(found, expected, strict=True):
        assert [each.tokens for each in some] == [each.tokens for each in others]
        assert np.allclose([each.score for each in some], [each.score for each in others], atol=1e-4)
    alone = pool.search(Native(model, threads=2), asks[1:2], search, 2, rows=64)[0]
    assert [(each.tokens, each.score) for each in alone] == [(each.tokens, each.score) for each in found[1]]
