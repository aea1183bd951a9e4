"""The C engine says what the PyTorch model says, and to each row the same bits in any company."""

import copy
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.adaptation.prune import prune
from regard.core.layers import FeedForward
from regard.core.quantised import quantise
from regard.decoding.protocol import SamplingConfig, SearchConfig, best_of
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import Native, UnavailableError
from tests.decoding.toys import asking, search

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
pytestmark = needs_compiler

V = 133
KINDS = {
    "post": {},
    "pre": {"norm": "pre"},
    "gelu": {"feed_forward": "gelu"},
    "swiglu": {"feed_forward": "swiglu", "norm_kind": "rms"},
    "learned": {"feed_forward": "glu", "positions": "learned", "tie": "none", "bias": False},
    "grouped": {"kv_heads": 2},
    "marian": {"feed_forward": "silu", "output_bias": True},
    "bart": {"feed_forward": "gelu", "embedding_norm": True, "output_bias": True, "positions": "learned"},
    "odd": {"d_model": 36, "heads": 3, "d_k": 7, "d_v": 5, "d_ff": 50, "positions": "none"},
    "scaled": {"scale": 0.3, "scale_embedding": False, "tie": "target", "source_vocabulary": 90},
}


def build_model(seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    config = TransformerConfig.tiny(V, encoder_layers=2, decoder_layers=2).but(**changes)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
    return model


def sentences(count: int, seed: int = 1, longest: int = 40) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(4, 90, draw.integers(1, longest)).tolist() for _ in range(count)]


def truth(model: Transformer, source: list[int], prefix: list[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return model(torch.tensor([source]), torch.tensor([prefix]))[0, -1].numpy()


def play(engine: Native, model: Transformer | None = None) -> list[NDArray[np.float32]]:
    """Start, step and reorder rows in many ways; the logits of each step, compared with the model's if there is one."""
    draw, (a, b, c, d) = np.random.default_rng(2), sentences(4)
    rows, texts, prefixes, seen = engine.rows(), [a, b], [[], []], []
    rows.start(texts)
    for t in range(8):
        if t == 3:  # others come later
            rows.start([c, d])
            texts, prefixes = [*texts, c, d], [*prefixes, [], []]
        if (order := {4: [0, 0, 1, 2, 2, 3], 6: [5, 0, 1]}.get(t)) is not None:
            rows.reorder(np.array(order))
            texts, prefixes = [texts[i] for i in order], [list(prefixes[i]) for i in order]
        tokens = draw.integers(4, V, len(texts))
        for prefix, token in zip(prefixes, tokens.tolist(), strict=True):
            prefix.append(token)
        logits = rows.step(tokens)
        seen.append(logits)
        if model is not None:
            expected = np.stack([truth(model, *row) for row in zip(texts, prefixes, strict=True)])
            np.testing.assert_allclose(logits, expected, atol=2e-5)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_says_what_pytorch_says(kind: str) -> None:
    model = build_model(**KINDS[kind])
    play(Native(model), model)


ENCODER, DECODER = "encoder.layers.1.self_attention", "decoder.layers.0.self_attention"
CROSS = "decoder.layers.0.cross_attention"
PRUNED = {
    "some": {ENCODER: (0, 1), DECODER: (2,), "decoder.layers.1.cross_attention": (1,)},
    "all-of-some": {ENCODER: (0, 1, 2), DECODER: (0, 1, 2), CROSS: (0, 1, 2), "encoder.layers.0.self_attention": (0,)},
}


@pytest.mark.parametrize("heads", PRUNED)
@pytest.mark.parametrize("kind", ["pre", "learned", "odd", "grouped"])
def test_attentions_may_have_lost_heads(kind: str, heads: str) -> None:
    model = build_model(**KINDS[kind])
    gone = {name: set(numbers) | ({3} if kind != "odd" else set()) for name, numbers in PRUNED[heads].items()}
    smaller = prune(model, gone)
    play(Native(smaller), smaller)
    bf16 = prune(copy.deepcopy(model).bfloat16(), gone)
    play(Native(bf16), bf16.float())
    int8 = quantise(smaller)
    assert isinstance(int8, Transformer)
    rows, source, prefix = Native(int8).rows(), sentences(1)[0], [5, 6, 7]
    rows.start([source])
    for token in prefix:
        logits = rows.step(np.array([token]))
    np.testing.assert_allclose(logits[0], truth(int8, source, prefix), atol=0.05)


@pytest.mark.parametrize("kind", ["pre", "learned", "odd"])
def test_int8_multiplies_the_same_whole_numbers(kind: str) -> None:
    model = quantise(build_model(**KINDS[kind]))
    assert isinstance(model, Transformer)
    # A number at the edge of two whole ones may fall to either side, by the last bit of what came before it.
    ours = np.concatenate(play(Native(model)))
    theirs = np.concatenate(play(Native(build_model(**KINDS[kind]))))
    rows, source, prefix = Native(model).rows(), sentences(1)[0], [5, 6, 7]
    rows.start([source])
    for token in prefix:
        logits = rows.step(np.array([token]))
    np.testing.assert_allclose(logits[0], truth(model, source, prefix), atol=0.05)
    assert 0 < np.abs(ours - theirs).max() < 0.5


@pytest.mark.parametrize("int8", [False, True])
def test_a_row_gets_the_same_bits_in_any_company(int8: bool) -> None:
    model = build_model(norm="pre")
    engine, texts, draw = Native(quantise(model) if int8 else model), sentences(30), np.random.default_rng(0)
    tokens = draw.integers(4, V, (6, len(texts)))

    def run(order: list[int], threads: int = 1) -> list[NDArray[np.float32]]:
        rows = engine.with_threads(threads).rows()
        rows.start([texts[i] for i in order])
        return [rows.step(tokens[t, order]) for t in range(6)]

    together = run(list(range(len(texts))))
    for order in ([3], [29, 0], list(range(29, -1, -1)), list(range(5, 18))):
        for step, alone in zip(together, run(order), strict=True):
            assert np.array_equal(alone, step[order])
    for step, shared in zip(together, run(list(range(len(texts))), threads=3), strict=True):
        assert np.array_equal(step, shared)


@pytest.mark.parametrize("normalise", [True, False])
def test_best_is_the_best_of_the_logits(normalise: bool) -> None:
    model = build_model(norm="pre")
    with torch.no_grad():
        model.output.weight[50:60] = model.output.weight[40:50]  # equals: the lower id comes first
    engine, texts = Native(model), sentences(60)
    a, b = engine.rows(), engine.rows()
    a.start(texts), b.start(texts)
    tokens = np.full(60, 1)
    for n in (1, 2, 8, V, 1000):
        found, expected = a.best(tokens, n, normalise=normalise), best_of(b.step(tokens), n, normalise=normalise)
        assert np.array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, atol=2e-6)
        tokens = expected.tokens[:, 0]


class Lists:
    """Each sentence may use tokens that its own differ from by a multiple of five."""

    def of(self, source: list[int]) -> NDArray[np.int64]:
        return np.arange(sum(source) % 5, V, 5)


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8"])
def test_a_shortlist_is_a_mask_and_depends_on_no_other_sentence(weights: str) -> None:
    model = build_model(norm="pre")
    model = {"fp32": lambda m: m, "bf16": lambda m: m.bfloat16(), "int8": quantise}[weights](model)
    engine, whole, texts = Native(model, shortlists=Lists()), Native(model), sentences(12)
    rows, plain = engine.rows(), whole.rows()
    rows.start(texts), plain.start(texts)
    tokens = np.arange(12) + 4
    found, logits = rows.best(tokens, 3), plain.step(tokens)
    for i, text in enumerate(texts):
        hidden = np.setdiff1d(np.arange(V), Lists().of(text))
        logits[i, hidden] = -np.inf
    expected = best_of(logits, 3)
    assert np.array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    again, stepped = rows.best(tokens, 3), plain.step(tokens)
    rows.reorder(np.array([7]))
    alone = engine.rows()
    alone.start([texts[7]])
    for _ in range(2):
        last = alone.best(tokens[7:8], 3)
    assert np.array_equal(last.scores[0], again.scores[7])
    assert np.array_equal(last.tokens[0], again.tokens[7])
    assert stepped.shape == (12, V)
    assert np.isinf(rows.step(tokens[7:8])).sum() == V - len(Lists().of(texts[7]))


def test_a_long_output_outgrows_every_first_guess() -> None:
    model = build_model()
    rows = Native(model).rows()
    source = sentences(1, longest=300)[0] * 10
    rows.start([source[:300]])
    prefix: list[int] = []
    for t in range(300):
        prefix.append(4 + t % 100)
        logits = rows.step(np.array(prefix[-1:]))
    np.testing.assert_allclose(logits[0], truth(model, source[:300], prefix), atol=2e-5)


def test_cells_of_those_who_left_are_used_again() -> None:
    rows = Native(build_model()).rows()
    for _ in range(20):
        rows.start(sentences(16))
        for _ in range(10):
            rows.step(np.full(len(rows.lengths), 5))
        rows.reorder(np.zeros(0, np.int64))
    assert rows.keys.shape[1] <= 512
    assert len(rows.memory) == 16


@pytest.mark.parametrize(
    ("int8", "part"), [(False, "output.weight"), (True, "decoder.layers.0.feed_forward.norm.bias")]
)
def test_damaged_weights_are_told(int8: bool, part: str) -> None:
    model = build_model(norm="pre")
    with torch.no_grad():
        model.get_parameter(part)[7] = torch.nan
    model = quantise(model) if int8 else model
    for step in ("step", "best"):
        rows = Native(model).rows()
        rows.start(sentences(2))
        with pytest.raises(ValueError, match="damaged or diverged"):
            getattr(rows, step)(np.array([1, 1]), *([2] if step == "best" else []))


@pytest.mark.parametrize("at", [3, 48, 49])
def test_damage_inside_a_row_is_told_in_int8_too(at: int) -> None:
    model = build_model(**KINDS["odd"])  # 50 inner numbers: three vectors and two
    with torch.no_grad():
        model.get_parameter("decoder.layers.0.feed_forward.sublayer.inner.bias")[at] = torch.nan
    rows = Native(quantise(model)).rows()
    rows.start(sentences(1))
    with pytest.raises(ValueError, match="damaged or diverged"):
        rows.step(np.array([1]))


def test_position_tables_grow_once_for_all_and_never_shrink() -> None:
    engine = Native(build_model())
    for _ in range(3):
        engine.with_threads(2).rows().start([[5] * 1000])
        kept = len(engine._kept)
    assert len(engine._kept) == kept
    engine.reach(300)
    assert len(engine._kept) == kept
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(engine.reach, range(2000, 9000, 50)))
    assert len(engine._kept[-1]) == engine._reach.value >= 8950


def test_no_sequence_outgrows_a_table_of_learned_positions() -> None:
    engine = Native(build_model(positions="learned", max_length=20))
    rows = engine.rows()
    with pytest.raises(ValueError, match="21 tokens: the model has positions for 20"):
        rows.start([[5] * 21])
    rows = engine.rows()
    rows.start([[5] * 20])
    for _ in range(20):
        rows.step(np.array([5]))
    with pytest.raises(ValueError, match="21 tokens"):
        rows.step(np.array([5]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_waits_for_no_thread_that_it_has_not() -> None:
    rows = Native(build_model()).with_threads(3).rows()
    rows.start(sentences(2))
    if not (child := os.fork()):
        del rows
        os._exit(0)
    for _ in range(200):
        if os.waitpid(child, os.WNOHANG) == (child, 0):
            return
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("it waits")


def test_a_prefix_outside_the_shortlist_has_a_score() -> None:
    engine, request = Native(build_model(), shortlists=Lists()), asking([5, 5, 2], prefix=(100,))
    for config in (SearchConfig(extra=3), SearchConfig(extra=3, sampling=SamplingConfig())):
        assert 100 not in Lists().of([5, 5, 2])
        ((output,),) = search(engine, [request], config)
        assert output.tokens[0] == 100
        assert output.token_scores[0] == -100.0


@pytest.mark.parametrize("source", [[], [[5, 6]], [5.0], [-1], [V], [2**32 + 5], [2**70], np.array([2**32 + 5])])
def test_a_source_is_a_list_of_tokens_that_there_are(source: list[int]) -> None:
    rows = Native(build_model()).rows()
    rows.start([[5, 6]])
    with pytest.raises(ValueError, match=r"a source is a list of one token id or more|token ids lie in 0..132"):
        rows.start([[7], source])
    assert len(rows.step(np.array([1]))) == 1  # as if it had not been asked


@pytest.mark.parametrize("tokens", [[1], [[1, 2]], [[1], [2]], [1, -1], [1, V], [1, 2**40]])
def test_a_step_has_a_token_that_there_is_for_each_row(tokens: list[int]) -> None:
    rows = Native(build_model()).rows()
    rows.start(sentences(2))
    with pytest.raises(ValueError, match=r"shape .* for 2 rows|token ids lie in 0..132"):
        rows.best(np.array(tokens), 3)
    with pytest.raises(ValueError, match="one list of numbers"):
        rows.reorder(np.array([[0, 1]]))
    with pytest.raises(IndexError):
        rows.reorder(np.array([0, 2]))


@pytest.mark.parametrize("n", [0, -1])
def test_one_continuation_at_least_is_asked_for(n: int) -> None:
    rows = Native(build_model()).rows()
    rows.start(sentences(2))
    with pytest.raises(ValueError, match=f"n = {n}: ask for one"):
        rows.best(np.array([1, 1]), n)


class Fixed:
    """The same list for every sentence."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def of(self, source: list[int]) -> NDArray[np.int64]:
        return np.array(self.ids, np.int64)


@pytest.mark.parametrize(
    ("ids", "message"), [([], "a shortlist is a list of one token id"), ([5, V], "lie in 0..132"), ([-1, 5], "got -1")]
)
def test_a_shortlist_has_tokens_that_there_are(ids: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Native(build_model(), shortlists=Fixed(ids)).rows().start(sentences(2))


def test_a_shortlist_may_have_fewer_tokens_than_are_asked_for() -> None:
    rows = Native(build_model(), shortlists=Fixed([7])).rows()
    rows.start(sentences(3))
    assert rows.best(np.array([1, 1, 1]), 4).tokens.tolist() == [[7]] * 3


def test_damaged_weights_are_told_with_a_shortlist() -> None:
    model = build_model(output_bias=True)
    with torch.no_grad():
        model.output.bias[5] = torch.nan
    rows = Native(model, shortlists=Lists()).rows()
    rows.start([[5, 5]])
    with pytest.raises(ValueError, match="damaged or diverged"):
        rows.best(np.array([1]), 3)


@pytest.mark.parametrize("part", ["inner", "output", "norm", "positions", "gain"])
def test_a_part_of_another_width_is_not_taken(part: str) -> None:
    model = build_model(positions="learned")
    layer, d = model.decoder.layers[0], model.config.d_model
    match part:
        case "inner":
            layer.feed_forward.sublayer.inner = torch.nn.Linear(d, 32)
        case "output":
            model.output = torch.nn.Linear(d - 16, V)
        case "norm":
            layer.feed_forward.norm = torch.nn.LayerNorm(d - 16)
        case "positions":
            model.source_embedding.positions.table = torch.nn.Parameter(torch.zeros(9, d - 16))
        case "gain":
            layer.feed_forward.norm = torch.nn.LayerNorm(d, elementwise_affine=False)
    with pytest.raises(UnavailableError, match=r"shape|without a gain"):
        Native(model)


@pytest.mark.parametrize("positions", ["rope", "alibi", "t5", "shaw"])
def test_what_it_cannot_do_it_says(positions: str) -> None:
    with pytest.raises(UnavailableError, match="positions"):
        Native(build_model(positions=positions))
    with pytest.raises(UnavailableError, match="ConvolutionFeedForward"):
        Native(build_model(feed_forward="convolution"))
    with pytest.raises(UnavailableError, match="what its output layer reads is scaled"):
        Native(build_model(scale_output=True))


def test_layers_that_differ_are_not_taken_for_alike() -> None:
    model = build_model()
    model.encoder.layers[0].feed_forward.sublayer = FeedForward(model.config.d_model, 512, "gelu")
    model.decoder.layers[0].feed_forward.norm.eps = 0.1
    play(Native(model), model)
    model.encoder.layers[0].feed_forward.place = "pre"
    with pytest.raises(UnavailableError, match="differ in place"):
        Native(model)


def test_weights_are_copied() -> None:
    model = build_model()
    engine, before = Native(model), copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    play(engine, before)
