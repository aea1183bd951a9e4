"""The C engine hears what the PyTorch model hears, and reads what is long as what is short, to the same bits in any
company."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.core.generation import Begun
from regard.core.quantised import quantise
from regard.models.speech import Listener
from regard.native import Listened, Native, NativeReader, UnsupportedError
from tests.native.test_native import build_model, truth
from tests.native.test_reader import build_model as build_encoder
from tests.native.test_reader import truth as truth_of_text
from tests.speech import WORDS, model

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

FIRST, TOKENS = [len(WORDS) + 5, 7], [len(WORDS) + 1, 40, 41, 260, 44]
LONG = {"places": 450, "max_length": 60}


def frames(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


@torch.inference_mode()
def expected(listener: Any, sound: NDArray[np.float32], first: list[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The encoder's output, and logits of each next token."""
    memory = listener.encode(torch.from_numpy(sound)[None].to(next(listener.parameters()).dtype))
    logits = listener.decode(torch.tensor([[*first, *TOKENS]]), memory)[0, len(first) :]
    return memory.states[0].float().numpy(), logits.float().numpy()


def said(native: Native, heard: Listened, first: list[int], rows: int = 1) -> NDArray[np.float32]:
    """Logits of each next token, of the first of some rows."""
    search = native.rows()
    search.start([Begun(heard, first)])
    search.reorder(np.zeros(rows, np.int64))
    return np.stack([search.step(np.full(rows, token))[0] for token in TOKENS])


@pytest.mark.parametrize("changes", [{}, LONG, LONG | {"d_model": 48, "heads": 3, "d_k": 20, "d_v": 33}])
@pytest.mark.parametrize("count", [None, 7, 1])
def test_it_hears_what_pytorch_hears(changes: dict[str, Any], count: int | None) -> None:
    listener = model(**changes)
    sound = frames(count or 2 * listener.config.places)
    native = Native(listener)
    heard = native.hear(sound)
    states, logits = expected(listener, sound, FIRST)
    assert heard.states.shape == states.shape
    np.testing.assert_allclose(heard.states, states, atol=2e-5)
    np.testing.assert_allclose(said(native, heard, FIRST), logits, atol=2e-4)


@pytest.mark.parametrize(("weights", "apart"), [("int8", 0.15), ("bf16", 0.1)])
def test_smaller_weights_hear_nearly_the_same(weights: str, apart: float) -> None:
    plain = model(**LONG)
    other: Any = quantise(model(**LONG)) if weights == "int8" else model(**LONG).bfloat16()
    assert isinstance(other, Listener)
    sound, native = frames(900), Native(other)
    heard = native.hear(sound)
    got, truly = said(native, heard, []), expected(other, sound, [])[1]
    assert np.abs(got - expected(plain, sound, [])[1]).mean() > 0
    assert np.abs(got - truly).mean() < apart


@pytest.mark.parametrize("int8", [False, True])
def test_threads_and_company_change_no_bit(int8: bool) -> None:
    listener: Any = quantise(model(**LONG)) if int8 else model(**LONG)
    one = Native(listener)
    heard = one.hear(frames(900))
    alone = said(one, heard, FIRST)
    for threads in (2, 3):
        several = one.with_threads(threads)
        again = several.hear(frames(900))
        np.testing.assert_array_equal(again.states, heard.states)
        np.testing.assert_array_equal(said(several, again, FIRST, rows=5), alone)


def test_a_model_that_hears_otherwise_is_left_to_pytorch() -> None:
    for changes in ({"lookahead": 2}, {"cross_normaliser": "monotonic"}):
        with pytest.raises(UnsupportedError):
            Native(model(**changes))


def test_what_is_no_sound_is_refused() -> None:
    native = Native(model())
    for wrong in (frames(201), frames(0), frames(8)[:, :15], frames(8).astype(np.float64)):
        with pytest.raises(ValueError, match="sound is numbers"):
            native.hear(wrong)
    with pytest.raises(ValueError, match="heard"):
        native.rows().start([[3, 4]])
    with pytest.raises(ValueError, match="heard"):  # by another model
        native.rows().start([Begun(Native(model(d_model=64)).hear(frames(8)))])
    with pytest.raises(ValueError, match="reads words"):
        Native(build_model()).hear(frames(8))


@pytest.mark.parametrize("kind", [{}, {"kv_heads": 2, "norm": "pre"}, {"d_model": 36, "heads": 3, "d_k": 7, "d_v": 5}])
def test_a_long_source_is_read_as_a_short_one(kind: dict[str, Any]) -> None:
    plain = build_model(**kind)
    draw = np.random.default_rng(3)
    sources = [draw.integers(4, 90, n).tolist() for n in (700, 20, 255, 256)]
    shares: list[NDArray[np.float32]] = []
    for threads in (1, 2):
        rows = Native(plain, threads=threads).rows()
        rows.start(sources)
        for token in (5, 6, 7):
            logits = rows.step(np.full(len(sources), token))
        shares.append(logits)
        for source, got in zip(sources, logits, strict=True):
            np.testing.assert_allclose(got, truth(plain, source, [5, 6, 7]), atol=1e-4)
    np.testing.assert_array_equal(*shares)
    for source, got in zip(sources, shares[0], strict=True):
        rows = Native(plain).rows()
        rows.start([source])
        np.testing.assert_array_equal([rows.step(np.array([token]))[0] for token in (5, 6, 7)][-1], got)


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_long_text_is_read_as_a_short_one(positions: str) -> None:
    encoder = build_encoder(max_length=450, positions=positions)
    texts = [np.random.default_rng(2).integers(0, 133, n).tolist() for n in (400, 9, 300)]
    one, two = (NativeReader(encoder, threads=n).features(texts) for n in (1, 2))
    for text, a, b in zip(texts, one, two, strict=True):
        np.testing.assert_allclose(a, truth_of_text(encoder, text, None, "features"), atol=2e-5)
        np.testing.assert_array_equal(a, b)
