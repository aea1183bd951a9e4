"""Rows of a PyTorch model, however they are started, stepped and reordered, say what the model says of each alone."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.core.generation import EncoderDecoder
from regard.decoding.module import Module
from regard.decoding.protocol import DAMAGED, SearchConfig, best_of
from regard.models.transformer import Memory, Transformer, TransformerConfig
from tests.decoding.toys import asking, search

V = 11


def build(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 8, "d_ff": 12, "heads": 2}
    model = Transformer(TransformerConfig(V, **shape | changes)).eval()
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return model


class Fixed(EncoderDecoder):
    """A model whose logits are what it is told."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.config = logits, TransformerConfig(logits.shape[1])

    def encode(self, source: Tensor) -> Memory:
        return Memory(source)

    def new_cache(self) -> None:
        return None

    def decode(self, target: Tensor, memory: Memory, cache: None) -> Tensor:
        return self.logits[: len(target), None].clone()


# Moves: new sentences, and for each sentence at work which of its rows it has next. Prefixes make them uneven.
moves = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**31), st.booleans()), min_size=1, max_size=7)


VARIANTS: list[dict[str, Any]] = [{}, {"feed_forward": "convolution"}, {"positions": "alibi", "norm": "pre"}]


@settings(max_examples=25, deadline=None)
@given(moves, st.booleans(), st.sampled_from(VARIANTS))
def test_whatever_happens_to_rows_each_is_the_model_alone(
    story: list[tuple[int, int, bool]], bitwise: bool, changes: dict[str, Any]
) -> None:
    model = build(**changes)
    rows = Module(model, bitwise=bitwise).rows()
    at_work: list[list[tuple[list[int], list[int]]]] = []  # for each sentence its rows: source, and what was read
    for new, seed, even in story:
        random = np.random.default_rng(seed)
        sources = [random.integers(1, V, random.integers(1, 6)).tolist() for _ in range(new)]
        if sources:
            rows.start(sources)
            at_work += [[(source, [])] for source in sources]
        if not at_work:
            continue
        flat = [row for sentence in at_work for row in sentence]
        newest = random.integers(1, V, len(flat))
        for (_, read), token in zip(flat, newest.tolist(), strict=True):
            read.append(token)
        logits = rows.step(newest)
        assert logits.dtype == np.float32
        with torch.inference_mode():
            expected = [model(torch.tensor([source]), torch.tensor([read]))[0, -1].tolist() for source, read in flat]
        np.testing.assert_allclose(logits, expected, atol=2e-5)
        index, later, first, K = list[int](), [], 0, int(random.integers(1, 4))
        for sentence in at_work:
            count = 0 if random.random() < 0.2 else K if even else int(random.integers(0, 4))
            chosen = random.integers(0, len(sentence), count).tolist()
            index += [first + i for i in chosen]
            first += len(sentence)
            if chosen:
                later.append([(sentence[i][0], [*sentence[i][1]]) for i in chosen])
        rows.reorder(np.array(index, np.int64))
        at_work = later


def test_a_memory_is_copied_for_no_row_of_an_even_beam() -> None:
    rows = Module(build()).rows()
    rows.start([[1, 2, 3], [4, 5]])
    rows.step(np.array([1, 1]))
    (group,) = rows._groups
    keys, memory = [layer.cross_attention.keys for layer in group.state.cache], group.state.memory
    rows.reorder(np.array([0, 0, 0, 1, 1, 1]))
    rows.step(np.arange(1, 7))
    rows.reorder(np.array([2, 0, 1, 5, 5, 3]))
    assert all(layer.cross_attention.keys is old for layer, old in zip(group.state.cache, keys, strict=True))
    assert group.state.memory is memory
    past = group.state.cache[0].self_attention.keys
    rows.reorder(np.arange(6))
    assert group.state.cache[0].self_attention.keys is past  # nor is anything, where nothing changes
    rows.reorder(np.array([3, 4, 5]))
    assert len(group.state.memory.states) == len(group.state.cache[0].cross_attention.keys) == 1
    rows.reorder(np.array([], np.int64))
    assert rows._groups == []


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5, 9, 40, 50])
def test_the_best_are_those_of_the_slow_truth(n: int, normalise: bool) -> None:
    g = torch.Generator().manual_seed(n)
    for logits in (torch.randint(-3, 3, (30, 40), generator=g).float(), torch.randn(30, 40, generator=g)):
        logits[torch.rand(30, 40, generator=g) < 0.2] = -torch.inf
        module = Module(Fixed(logits))
        rows = module.rows()
        rows.start([[1]] * 30)
        best = rows.best(np.ones(30, np.int64), n, normalise=normalise)
        expected = best_of(rows.step(np.ones(30, np.int64)), n, normalise=normalise)
        assert best.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(best.scores, expected.scores, atol=1e-6)


@pytest.mark.parametrize("n", [1, 4, 40])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("normalise", [True, False])
def test_scores_that_are_no_numbers_are_refused(value: float, n: int, normalise: bool) -> None:
    logits = torch.zeros(3, 40)
    logits[1, 7] = value
    rows = Module(Fixed(logits)).rows()
    rows.start([[1]] * 3)
    with pytest.raises(ValueError, match=DAMAGED[:30]):
        rows.best(np.ones(3, np.int64), n, normalise=normalise)


def test_bitwise_every_bit_hangs_on_the_sentence_alone() -> None:
    module = Module(build(d_model=64, d_ff=128), bitwise=True)
    random = np.random.default_rng(0)
    sources = [random.integers(1, V, n).tolist() for n in (9, 3, 14, 1, 5, 5, 7)]
    together = module.rows()
    together.start(sources[:4])
    together.start(sources[4:])
    alone = [module.rows() for _ in sources]
    for rows, source in zip(alone, sources, strict=True):
        rows.start([source])
    for step in range(4):
        K = 3 if step else 1
        tokens = random.integers(1, V, (len(sources), K))
        all_at_once = together.step(tokens.ravel()).reshape(len(sources), K, V)
        index = random.integers(0, K, (len(sources), 3))
        together.reorder((index + K * np.arange(len(sources))[:, None]).ravel())
        for one, rows, newest, chosen in zip(all_at_once, alone, tokens, index, strict=True):
            np.testing.assert_array_equal(rows.step(newest), one)
            rows.reorder(chosen)


def test_it_knows_the_model_and_refuses_what_does_not_fit() -> None:
    assert Module(build()).room([1] * 99) is None
    learned = Module(build(positions="learned", max_length=33))
    assert (learned.room([1]), learned.vocabulary, learned.ragged) == (33, V, False)
    apart = Module(build(tie="target", source_vocabulary=20)).rows()
    apart.start([[19]])
    assert apart.step(np.array([1])).shape == (1, V)
    with pytest.raises(ValueError, match="the ids 3 to 20, the model reads 0 to 19"):
        apart.start([[5], [20, 3]])
    with pytest.raises(ValueError, match=r"in training mode.* model\.eval\(\)"):
        Module(build().train())


@pytest.mark.parametrize("repetition", [1.0, 1.2])  # the best of each row alone, or all scores
def test_bitwise_scores_hang_neither_on_company_nor_on_threads(repetition: float) -> None:
    model, seen = build(d_model=32, d_ff=64), set[int]()
    model.encoder.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    model.decoder.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    random, before = np.random.default_rng(0), torch.get_num_threads()
    requests = [asking([*random.integers(3, V, n).tolist(), 2]) for n in (3, 9, 1, 12, 5, 7)]
    config, module = SearchConfig(beam=3, best=3, extra=8, repetition=repetition), Module(model, bitwise=True)
    torch.set_num_threads(2)
    try:
        found = [
            search(module, requests, config, rows=rows, workers=workers) for workers in (1, 2, 3) for rows in (3, 100)
        ]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(each == found[0] for each in found)
    assert seen == {1}


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("bitwise", [False, True])
def test_many_tokens_at_once_are_one_after_the_other(changes: dict[str, Any], bitwise: bool) -> None:
    module = Module(build(**changes), bitwise=bitwise)
    sources, of, texts = [[5, 6, 2], [7, 2]], [0, 0, 1, 1, 1, 1], [[1, 4], [1, 4, 5], [1], [9], [], [3, 3, 3]]
    rows = module.rows()
    rows.start(sources)
    rows.reorder(np.array(of))
    rows.extend(texts)
    first = rows.step(np.full(6, 8))
    rows.reorder(np.array([1, 3, 5]))
    rows.extend([[4], [4, 4], []])
    second = rows.step(np.full(3, 8))
    for n, (i, text) in enumerate(zip(of, texts, strict=True)):
        alone = module.rows()
        alone.start([sources[i]])
        said = [alone.step(np.array([token]))[0] for token in [*text, 8]]
        np.testing.assert_allclose(first[n], said[-1], rtol=1e-5, atol=1e-5)
        if n % 2:
            said = [alone.step(np.array([token]))[0] for token in [*[[4], [4, 4], []][n // 2], 8]]
            np.testing.assert_allclose(second[n // 2], said[-1], rtol=1e-5, atol=1e-5)
