"""The C engine reads texts as the PyTorch encoder does, and gives each the same bits in any company."""

import copy
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.core.outputs import HeadConfig
from regard.core.quantised import quantise
from regard.models.decoder import Decoder, gpt_tiny
from regard.models.encoder import Encoder, EncoderConfig
from regard.native import NativeReader, UnavailableError, reader

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

V = 133
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"segments": 1, "norm_eps": 1e-5, "pad": 1},
    "distilbert": {"segments": None},
    "albert": {"d_embedding": 20, "shared": True, "layers": 4, "feed_forward": "gelu_tanh"},
    "pre": {"norm": "pre", "feed_forward": "relu"},
    "bare": {"embedding_norm": False, "bias": False, "feed_forward": "silu", "scale": 0.3},
    "sinusoidal": {"positions": "sinusoidal", "d_embedding": 20, "norm_kind": "rms"},
    "rope": {"positions": "rope", "feed_forward": "swiglu", "norm_kind": "rms", "norm": "pre"},
    "odd": {"d_model": 36, "heads": 3, "d_k": 7, "d_v": 5, "d_ff": 50, "positions": "none", "feed_forward": "geglu"},
    "grouped": {"kv_heads": 1},
}
VECTOR = HeadConfig("vector", pool="mean", normalise=True)
HEADS = {
    "tokens": HeadConfig(hidden="gelu", relation=2),
    "classes": HeadConfig("classes", 5, hidden="tanh", dropout=0.1),
    "one": HeadConfig("classes", 1, pool="last", normalise=True, bias=False),
    "tags": HeadConfig("tags", 40),
    "spans": HeadConfig("spans"),
    "mean": VECTOR,
    "first": HeadConfig("vector", hidden="gelu_tanh"),
    "max": HeadConfig("vector", pool="max"),
}


def build_model(head: HeadConfig = VECTOR, seed: int = 0, **changes: Any) -> Encoder:
    torch.manual_seed(seed)
    config = EncoderConfig(V, layers=2, d_model=48, d_ff=80, heads=3, max_length=70).but(**changes)
    model = Encoder(config, head).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def sentences(count: int, longest: int = 60) -> tuple[list[list[int]], list[list[int]]]:
    """Texts, one of each length at first, and the texts of a pair that their tokens are in."""
    draw = np.random.default_rng(1)
    texts = [draw.integers(0, V, 1 + i if i < 20 else draw.integers(1, longest)).tolist() for i in range(count)]
    return texts, [[int(i > len(text) // 2) for i in range(len(text))] for text in texts]


@torch.inference_mode()
def truth(model: Encoder, text: list[int], segments: list[int] | None, what: str) -> NDArray[np.float32]:
    tokens = torch.tensor([text])
    told = None if segments is None else torch.tensor([segments])
    said = (model if what == "outputs" else model.features)(tokens, told, torch.ones_like(tokens, dtype=torch.bool))
    return said[0].numpy()


def check(model: Encoder, atol: float) -> float:
    """The engine says what the model says; what they differ by, in the middle."""
    texts, segments = sentences(30)
    native, told = NativeReader(model), segments if model.config.segments == 2 else None
    apart = []
    for what in ("features", "outputs"):
        for i, said in enumerate(getattr(native, what)(texts, told)):
            expected = truth(model, texts[i], told and told[i], what)
            assert said.shape == expected.shape
            np.testing.assert_allclose(said, expected, atol=atol)
            apart.append(np.abs(said - expected).max())
    return float(np.median(apart))


@pytest.mark.parametrize("kind", KINDS)
def test_says_what_pytorch_says(kind: str) -> None:
    check(build_model(**KINDS[kind]), 1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_says_what_it_says_in_pytorch(head: str) -> None:
    check(build_model(HEADS[head], d_embedding=20), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_int8_multiplies_the_same_whole_numbers(kind: str) -> None:
    model = build_model(**KINDS[kind])
    plain = NativeReader(model).features(sentences(30)[0])
    int8 = quantise(model)
    assert isinstance(int8, Encoder)
    # A number at the edge of two whole ones may fall to either side, by the last bit of what came before it.
    check(int8, 0.1)
    eight = NativeReader(int8).features(sentences(30)[0])
    assert 0 < np.median([np.abs(a - b).max() for a, b in zip(plain, eight, strict=True)]) < 0.3


@pytest.mark.parametrize("head", HEADS)
def test_every_head_multiplies_the_same_whole_numbers(head: str) -> None:
    model = quantise(build_model(HEADS[head], layers=1))
    assert isinstance(model, Encoder)
    assert check(model, 0.1) < 1e-5


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("head", ["tokens", "classes", "mean"])
def test_a_text_gets_the_same_bits_in_any_company(int8: bool, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(HEADS[head])
    model = quantise(model) if int8 else model  # type: ignore[assignment]
    texts, segments = sentences(60)
    together = NativeReader(model).outputs(texts, segments)
    for part, threads in ((384, 1), (384, 2), (40, 1), (40, 3), (1, 2)):
        monkeypatch.setattr(reader, "TOGETHER", part)
        monkeypatch.setattr(reader, "ALONE", min(part, 30))
        native = NativeReader(model, threads=threads)
        for order in (range(60), [3], [59], [29, 0], range(59, -1, -1), range(5, 18), [7, 7, 7]):
            said = native.outputs([texts[i] for i in order], [segments[i] for i in order])
            for i, row in zip(order, said, strict=True):
                assert np.array_equal(row, together[i])


def test_threads_share_what_is_long() -> None:
    model = build_model(max_length=700, d_model=96, heads=6, d_ff=256)
    text = np.random.default_rng(0).integers(0, V, 700).tolist()
    (alone,) = NativeReader(model).features([text])
    for threads in (2, 3):
        native = NativeReader(model, threads=threads)
        assert np.array_equal(native.features([text])[0], alone)
        assert np.array_equal(native.features([text[:9], text, text[:30]])[1], alone)
    np.testing.assert_allclose(alone, truth(model, text, None, "features"), atol=1e-5)


def test_without_segments_all_is_the_first_and_a_model_without_them_minds_none() -> None:
    model, (texts, segments) = build_model(), sentences(5)
    native = NativeReader(model)
    zeros = [[0] * len(text) for text in texts]
    for a, b in zip(native.features(texts), native.features(texts, zeros), strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(native.features(texts)[4], native.features(texts, segments)[4])
    none = NativeReader(build_model(segments=None))
    assert np.array_equal(none.features(texts)[4], none.features(texts, segments)[4])


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu", "silu"])
def test_activations_are_exact_near_and_far(kind: str) -> None:
    model = build_model(feed_forward=kind, embedding_norm=False, norm="pre")
    network: Any = model.encoder.layers[0].feed_forward.sublayer  # type: ignore[union-attr]
    with torch.no_grad():
        network.inner.weight.mul_(20)  # about from -100 to 100
        network.outer.weight.mul_(0.05)
    check(model, 2e-5)


def test_a_layer_that_is_gone_through_often_is_held_once() -> None:
    few, many = (len(NativeReader(build_model(shared=True, layers=layers))._kept) for layers in (1, 9))
    assert few == many < len(NativeReader(build_model(layers=9))._kept)


def test_several_may_read_at_once() -> None:
    texts, segments = sentences(40)
    native = NativeReader(build_model(), threads=2)
    expected = native.outputs(texts, segments)

    def read(i: int) -> bool:
        some = slice(i, i + 1 + i % 7)
        said = native.outputs(texts[some], segments[some])
        return all(np.array_equal(a, b) for a, b in zip(said, expected[some], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, list(range(30)) * 5))
    assert len(native._desks) <= 5


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_memory_is_flat_over_a_thousand_calls() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    native, (texts, segments) = NativeReader(build_model(HEADS["tokens"]), threads=2), sentences(12)
    for call in range(1_100):
        if call == 100:
            before = resident()
        native.outputs(texts[: 1 + call % 12], segments[: 1 + call % 12])
    assert resident() - before < 2**23  # of 50 MB that they have said


def test_nothing_to_read_is_nothing() -> None:
    assert NativeReader(build_model()).outputs([]) == []


@pytest.mark.parametrize("text", [[], [[5, 6]], [5.0], [-1], [V], [2**32 + 5], [2**70], [5] * 71])
def test_a_text_is_a_list_of_tokens_that_there_are(text: Any) -> None:
    native = NativeReader(build_model())
    with pytest.raises(
        ValueError, match=r"a text is a list of one token id or more|token ids lie in 0..132|has positions for 70"
    ):
        native.outputs([[5, 6], text])


@pytest.mark.parametrize("segments", [[[0, 2]], [[0, -1]], [[0]], [[0, 0, 0]], [[0.0, 1.0]], []])
def test_a_token_is_in_a_text_of_the_pair(segments: Any) -> None:
    with pytest.raises(ValueError, match=r"has as many segments|segments lie in 0..1"):
        NativeReader(build_model()).outputs([[5, 6]], segments)


def test_damaged_weights_show() -> None:
    for part in ("encoder.layers.1.feed_forward.norm.bias", "encoder.layers.0.self_attention.sublayer.output.weight"):
        for pool in ("mean", "max"):
            model = build_model(HeadConfig("vector", pool=pool))
            with torch.no_grad():
                model.get_parameter(part)[7] = torch.nan
            for each in (model, quantise(copy.deepcopy(model))):
                assert np.isnan(NativeReader(each).outputs(sentences(3)[0])[2]).any()


def test_what_it_cannot_do_it_says() -> None:
    for positions in ("alibi", "t5", "shaw"):
        with pytest.raises(UnavailableError, match="positions"):
            NativeReader(build_model(positions=positions))
    with pytest.raises(UnavailableError, match="ConvolutionFeedForward"):
        NativeReader(build_model(feed_forward="convolution"))
    with pytest.raises(UnavailableError, match="a Decoder has no encoder"):
        NativeReader(Decoder(gpt_tiny(V)))
    model = build_model()
    model.output = torch.nn.Identity()
    with pytest.raises(UnavailableError, match="a Identity as its head"):
        NativeReader(model)
    model = build_model(d_embedding=20)
    model.stem.widen = torch.nn.Linear(20, 47)
    with pytest.raises(UnavailableError, match="shape"):
        NativeReader(model)


def test_weights_are_copied() -> None:
    model, (texts, _) = build_model(), sentences(3)
    native, before = NativeReader(model), copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for text, said in zip(texts, native.features(texts), strict=True):
        np.testing.assert_allclose(said, truth(before, text, None, "features"), atol=1e-5)
