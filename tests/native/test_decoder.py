"""A decoder alone in the C engine: what PyTorch says, and to each row the same bits in any company."""

import copy
import random
import shutil

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.adaptation.prune import prune
from regard.core.positions import Rotary
from regard.core.quantised import quantise
from regard.decoding import pool
from regard.decoding.module import Module
from regard.decoding.protocol import Request, SamplingConfig, SearchConfig
from regard.models.decoder import Decoder, DecoderConfig, gpt_tiny, llama_tiny
from regard.native import Native, UnsupportedError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

V, EOS = 133, 2
KINDS: dict[str, DecoderConfig] = {
    "gpt": gpt_tiny(V),
    "llama": llama_tiny(V, kv_heads=2),
    "relu": gpt_tiny(V, feed_forward="relu", positions="sinusoidal", tie="none"),
    "gelu": gpt_tiny(V, feed_forward="gelu", positions="none", norm_kind="rms"),
    "silu": gpt_tiny(V, feed_forward="silu", bias=False),
    "glu": gpt_tiny(V, feed_forward="glu", kv_heads=1),
    "geglu": llama_tiny(V, feed_forward="geglu", tie="none", bias=True),
    "odd": llama_tiny(V, feed_forward="geglu_tanh", d_model=36, heads=3, d_k=10, d_ff=50, layers=2),
    "qwen2": llama_tiny(V, kv_heads=2, qkv_bias=True, tie="none"),
    "gemma": llama_tiny(V, norm_kind="rms_offset", feed_forward="geglu_tanh", d_k=20, d_v=20, scale_embedding=True),
}
GREEDY, BEAM = SearchConfig(beam=1), SearchConfig(beam=4, best=2)
DRAWN = SearchConfig(best=3, sampling=SamplingConfig(top_k=20))
SEARCHES = {"greedy": GREEDY, "beam": BEAM, "drawn": DRAWN}


def build(kind: str, *, bits: int | None = None, **changes: object) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(KINDS[kind].but(**changes)).eval()
    with torch.no_grad():
        for p in model.parameters():  # of a size that tells right from wrong
            p.add_(0.05 * torch.randn_like(p))
        model.decoder.norm.weight.mul_(2.0)  # surer of itself than chance makes it
    if bits:
        quantise(model, bits)
    return model


def prompts(count: int, seed: int = 1, longest: int = 40) -> list[list[int]]:
    """Some have no token at all: then the first step reads the whole prompt."""
    draw = np.random.default_rng(seed)
    lengths = [0, 1, *draw.integers(0, longest, count - 2)][:count]
    return [draw.integers(3, V, length).tolist() for length in lengths]


def truth(model: Decoder, tokens: list[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return model(torch.tensor([tokens]))[0, -1].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_says_what_pytorch_says(kind: str) -> None:
    model, draw = build(kind), np.random.default_rng(2)
    rows, (a, b, c, d) = Native(copy.deepcopy(model)).rows(), prompts(4)
    texts = [list(a), list(b)]
    rows.start(texts)
    for t in range(8):
        if t == 3:  # others come later
            rows.start([c, d])
            texts += [list(c), list(d)]
        if (order := {4: [0, 0, 1, 2, 2, 3], 6: [5, 0, 1]}.get(t)) is not None:
            rows.reorder(np.array(order))
            texts = [list(texts[i]) for i in order]
        tokens = draw.integers(3, V, len(texts))
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
        logits = rows.step(tokens)
        np.testing.assert_allclose(logits, np.stack([truth(model, text) for text in texts]), atol=3e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["gpt", "llama", "odd"])
def test_whole_numbers_are_the_same_in_c(kind: str, bits: int) -> None:
    model, plain = build(kind, bits=bits), build(kind)
    rows, text = Native(model).rows(), prompts(3)[2]
    rows.start([text[:-1]])
    logits = rows.step(np.array(text[-1:]))[0]
    # A number at the edge of two whole ones may fall to either side, by the last bit of what came before it.
    np.testing.assert_allclose(logits, truth(model, text), atol=0.05)
    assert 1e-3 < np.abs(logits - truth(plain, text)).max() < {8: 0.3, 4: 2.0}[bits]


@pytest.mark.parametrize("kind", ["gpt", "llama", "odd", "gemma"])
def test_weights_in_16_bits_are_those_numbers_and_nothing_else_is_rounded(kind: str) -> None:
    """The bits of the same numbers in fp32, for one row, two, and tiles of many; of half the memory."""
    half = build(kind).bfloat16()
    whole = copy.deepcopy(half).float()
    engines, draw = (Native(half), Native(whole)), np.random.default_rng(5)
    for count in (1, 2, 3, 17):
        texts, tokens = prompts(count + 2)[2:], draw.integers(3, V, count)
        said = []
        for engine in engines:
            rows = engine.rows()
            rows.start(texts)
            said.append(np.stack([rows.step(tokens) for _ in range(3)]))
        assert np.array_equal(*said)
    laid = [sum(x.nbytes for x in engine._kept if isinstance(x, np.ndarray)) for engine in engines]
    assert laid[0] < 0.6 * laid[1]


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_long_prompt_is_read_at_once_as_token_by_token(kind: str, bits: int | None) -> None:
    model, text = build(kind, bits=bits), np.random.default_rng(3).integers(3, V, 900).tolist()
    engine = Native(model)
    for length in (1, 300, 900):  # which is more than is read together
        rows, steps = engine.rows(), engine.rows()
        rows.start([text[: length - 1]])
        at_once = rows.step(np.array(text[length - 1 : length]))
        steps.start([[]])
        for token in text[:length]:
            logits = steps.step(np.array([token]))
        assert np.array_equal(at_once, logits)
        np.testing.assert_allclose(at_once[0], truth(model, text[:length]), atol=0.1 if bits else 5e-5)
    assert rows.keys.shape[1] <= 2 * 900


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_row_gets_the_same_bits_in_any_company(kind: str, bits: int | None) -> None:
    engine, texts, draw = Native(build(kind, bits=bits)), prompts(30, longest=80), np.random.default_rng(0)
    texts[5] = draw.integers(3, V, 300).tolist()
    tokens = draw.integers(3, V, (6, len(texts)))

    def run(order: list[int], threads: int = 1) -> list[NDArray[np.float32]]:
        rows = engine.with_threads(threads).rows()
        rows.start([texts[i] for i in order])
        return [rows.step(tokens[t, order]) for t in range(6)]

    everyone = list(range(len(texts)))
    together = run(everyone)
    for order, threads in (([0], 1), ([5], 1), ([5], 3), ([29, 0], 1), (everyone[::-1], 1), (everyone, 3)):
        for step, other in zip(together, run(order, threads), strict=True):
            assert np.array_equal(other, step[order])


def requests(count: int, longest: int = 40) -> list[Request]:
    draw = random.Random(5)
    return [
        Request(source, first=draw.randrange(3, V), room=12, seed=i)
        for i, source in enumerate(prompts(count, longest=longest))
    ]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_company_changes_no_output(kind: str, bits: int | None, search: str) -> None:
    engine, asked, config = Native(build(kind, bits=bits)), requests(60), SEARCHES[search]
    alone = [pool.search(engine, [request], config, EOS)[0] for request in asked]
    for rows, workers in ((7, 1), (64, 3)):
        assert pool.search(engine, asked, config, EOS, rows=rows, workers=workers) == alone
    order = random.Random(1).sample(range(len(asked)), len(asked))
    shuffled = pool.search(engine.with_threads(2), [asked[i] for i in order], config, EOS)
    assert shuffled == [alone[i] for i in order]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_pytorch_finds_the_same(kind: str, bits: int | None, search: str) -> None:
    model, config = build(kind, bits=bits), SEARCHES[search]
    asked = [*requests(20), Request(prompts(20)[9] * 12, first=5, room=12)]
    ours, theirs = (pool.search(each, asked, config, EOS) for each in (Native(model), Module(model)))
    pairs = [pair for both in zip(ours, theirs, strict=True) for pair in zip(*both, strict=True)]
    same = [(a.score, b.score) for a, b in pairs if a.tokens == b.tokens]
    # Whole numbers that fall to the other side may turn a choice: with them, not every output need be the same.
    assert len(same) >= (0.75 if bits else 1) * len(pairs)
    np.testing.assert_allclose(*zip(*same, strict=True), atol=0.1 if bits else 1e-4)


def test_a_stream_says_what_the_search_says() -> None:
    engine = Native(build("llama"))
    for request in requests(6):
        said = [token for tokens in pool.stream(engine, request, GREEDY, EOS) for token in tokens]
        assert said == pool.search(engine, [request], GREEDY, EOS)[0][0].tokens


def test_a_prompt_and_its_output_share_the_positions_of_a_table() -> None:
    engine = Native(build("gpt", max_length=20))
    assert engine.room([5] * 15) == 5
    with pytest.raises(ValueError, match="it has 21 tokens, the model has 20 places: shorten it"):
        engine.room([5] * 20)
    rows = engine.rows()
    with pytest.raises(ValueError, match="21 tokens: the model has positions for 20"):
        rows.start([[5] * 21])
    rows.start([[5] * 18, []])
    rows.step(np.array([5, 5]))
    rows.step(np.array([5, 5]))
    with pytest.raises(ValueError, match="21 tokens"):
        rows.step(np.array([5, 5]))
    rows.reorder(np.array([1]))
    assert len(rows.step(np.array([5]))) == 1


@pytest.mark.parametrize("change", [{"rope_base": 500_000.0}, {"rope_scaling": "llama3:8,1,4,16"}])
def test_a_rotation_has_the_speeds_of_its_module(change: dict[str, object]) -> None:
    model, far, text = build("llama"), build("llama", **change), prompts(3)[2]
    rows = Native(far).rows()
    rows.start([text[:-1]])
    logits = rows.step(np.array(text[-1:]))[0]
    np.testing.assert_allclose(logits, truth(far, text), atol=3e-5)
    assert np.abs(logits - truth(model, text)).max() > 1e-2


def test_cells_of_those_who_left_are_used_again() -> None:
    rows = Native(build("gpt")).rows()
    for _ in range(20):
        rows.start(prompts(16))
        for _ in range(10):
            rows.step(np.full(len(rows.lengths), 5))
        rows.reorder(np.zeros(0, np.int64))
    assert rows.keys.shape[1] <= 1024
    assert len(rows.memory) == 16


def test_attentions_may_have_lost_heads() -> None:
    first, second = ("decoder.layers.0.self_attention", "decoder.layers.1.self_attention")
    model, text = prune(build("gpt"), {first: {0, 1, 2, 3}, second: {2}}), prompts(3)[2]
    rows = Native(model).rows()
    rows.start([text[:-1]])
    np.testing.assert_allclose(rows.step(np.array(text[-1:]))[0], truth(model, text), atol=3e-5)


@pytest.mark.parametrize("source", [[[5, 6]], [5.0], [-1], [V], [2**32 + 5], [2**70]])
def test_a_source_is_a_list_of_tokens_that_there_are(source: list[int]) -> None:
    rows = Native(build("gpt")).rows()
    rows.start([[5, 6]])
    with pytest.raises(ValueError, match=r"a source is a list of token ids|token ids lie in 0..132"):
        rows.start([[7], source])
    assert len(rows.step(np.array([1]))) == 1  # as if it had not been asked


def test_what_it_cannot_do_it_says() -> None:
    for positions in ("alibi", "t5", "shaw"):
        with pytest.raises(UnsupportedError, match="positions"):
            Native(build("gpt", positions=positions))
    model = build("llama")
    model.decoder.layers[1].self_attention.sublayer.positions = Rotary(8, base=7.0)
    with pytest.raises(UnsupportedError, match="its queries and keys are normalised"):
        Native(Decoder(llama_tiny(V, qk_norm=True)))
    with pytest.raises(UnsupportedError, match="differ in their positions"):
        Native(model)
    model = build("gpt")
    del model.stem
    with pytest.raises(UnsupportedError, match="a Decoder has no stem"):
        Native(model)


@pytest.mark.parametrize("kind", ["gpt", "llama", "gemma"])
def test_rows_that_share_a_beginning_go_on_as_if_each_had_read_it(kind: str) -> None:
    engine, texts = Native(build(kind)), [[5], [6, 7, 8], [], [9] * 70]
    shared = list(range(3, 40))
    rows, alone = engine.rows(), engine.rows()
    rows.start([shared])
    rows.reorder(np.zeros(4, np.int64))
    rows.extend(texts)
    alone.start([[*shared, *text] for text in texts])
    newest = np.array([11, 12, 13, 14])
    assert np.array_equal(rows.step(newest), alone.step(newest))
    assert len(rows.owner) - len(rows.free) == len(shared) + sum(map(len, texts)) + 4  # kept once
    with pytest.raises(ValueError, match="does the tokenizer belong to this model"):
        rows.extend([[V], [], [], []])
