"""Beam search equals its definition, written without batch, cache or early stop, and Hugging Face's at alpha 0."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from regard.decoding.beam import Hypothesis, beam, length_penalty
from regard.decoding.greedy import EncoderDecoder, greedy
from regard.models.transformer import Memory, Transformer, TransformerConfig

PAD, BOS = 0, 1
MAXIMUM = 12


def search(model: EncoderDecoder, source: Tensor, eos: int, **changes: Any) -> list[list[Hypothesis]]:
    return beam(model, source, **{"bos": BOS, "eos": eos, "pad": PAD, "maximum": MAXIMUM} | changes)


# The definition

Scores = Callable[[list[list[int]]], Tensor]  # beginnings without BOS, all of one length -> logits of the next (n, V)


def definition(scores: Scores, eos: int, *, width: int, alpha: float, maximum: int = MAXIMUM) -> list[Hypothesis]:
    """Beam search in lists: one sentence, everything read again at each step, and no early stop but the greedy one."""
    beginnings: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for length in range(1, maximum + 1):
        logits = scores([y for _, y in beginnings])
        gains = (logits - logits.logsumexp(1, keepdim=True)).tolist()
        candidates = [
            (p + gain, [*y, token])
            for (p, y), row in zip(beginnings, gains, strict=True)
            for token, gain in enumerate(row)
            if gain > -math.inf
        ]
        candidates.sort(key=lambda c: -c[0])  # stable
        for p, y in candidates[:width]:
            if y[-1] == eos or length == maximum:
                finished.append(Hypothesis(y[:-1] if y[-1] == eos else y, p / ((5 + length) / 6) ** alpha, p))
        finished = sorted(finished, key=lambda h: -h.score)[:width]
        beginnings = [c for c in candidates if c[1][-1] != eos][:width]
        if not beginnings or (width == 1 and finished):
            break
    return finished


def reading(model: Transformer, source: Tensor) -> Scores:
    """The model's scores for one sentence (S,)."""

    @torch.inference_mode()
    def scores(beginnings: list[list[int]]) -> Tensor:
        target = torch.tensor([[BOS, *y] for y in beginnings])
        return model(source.expand(len(target), -1), target)[:, -1]

    return scores


def same(ours: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-10) -> None:
    assert [h.tokens for h in ours] == [h.tokens for h in expected]
    assert [h.score for h in ours] == pytest.approx([h.score for h in expected], abs=tolerance)
    assert [h.log_probability for h in ours] == pytest.approx([h.log_probability for h in expected], abs=tolerance)


# Models


def build(seed: int, *, dtype: torch.dtype = torch.float64, vocabulary: int = 13, **changes: Any) -> Transformer:
    """A small model whose next token hangs on all that it reads, and on the position most."""
    torch.manual_seed(seed)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2, "tie": "none"}
    model = Transformer(TransformerConfig(vocabulary, **shape | {"positions": "learned"} | changes)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "positions" in name:
                p.normal_(std=2.0)
        model.output.weight *= 3.0
    return model.to(dtype)


def sentences(seed: int, vocabulary: int = 13) -> tuple[list[Tensor], Tensor]:
    """Sentences of several lengths, one by one and as a padded batch."""
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, vocabulary, (n,), generator=g) for n in (3, 9, 1, 6, 4, 7)]
    return rows, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def an_end(model: EncoderDecoder, source: Tensor) -> int:
    """A token to count as </s>, which an untrained model never learnt to say: one that it says fourth or later."""
    said = greedy(model, source[:1], bos=BOS, eos=-1, pad=PAD, maximum=40)[0]
    return next(token for token in said[3:].tolist() if token > BOS)


class History:
    """A cache that remembers the tokens."""

    tokens: Tensor | None = None

    def extend(self, new: Tensor) -> Tensor:
        self.tokens = new if self.tokens is None else torch.cat([self.tokens, new], 1)
        return self.tokens

    def reorder(self, index: Tensor) -> None:
        assert self.tokens is not None
        self.tokens = self.tokens[index]


class Table:
    """A model that looks up its logits by sentence and last token: tables (sentences, V, V)."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.rows = tables, []  # how many rows each step read

    def encode(self, source: Tensor) -> Memory:
        return Memory(source)

    def new_cache(self) -> History:
        return History()

    def decode(self, target: Tensor, memory: Memory, cache: History) -> Tensor:
        self.rows.append(len(target))
        last = cache.extend(target)[:, -1]
        return self.tables[memory.states[:, 0], last][:, None]


# Tests


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seeds", [range(3, 5), pytest.param(range(5, 15), marks=pytest.mark.slow)])
def test_equals_the_definition(seeds: range, width: int, alpha: float) -> None:
    lengths, limits = [], [2, 12, 7, 1, 9, 12]
    for seed in seeds:
        model, (rows, source) = build(seed), sentences(seed)
        eos = an_end(model, source)
        found = search(model, source, eos, width=width, alpha=alpha, maximum=torch.tensor(limits), best=width)
        for ours, row, limit in zip(found, rows, limits, strict=True):
            same(ours, definition(reading(model, row), eos, width=width, alpha=alpha, maximum=limit))
            lengths += [(len(h.tokens), limit) for h in ours]
    assert any(length == limit for length, limit in lengths)  # some are cut,
    assert len({length for length, limit in lengths if 0 < length < limit}) > 2  # and others end of themselves


@pytest.mark.parametrize("changes", [{"feed_forward": "convolution"}, {"positions": "rope", "kv_heads": 1}])
def test_whatever_the_cache_remembers_follows_its_hypothesis(changes: dict[str, Any]) -> None:
    model, (rows, source) = build(1, vocabulary=20, **changes), sentences(1, 20)
    eos = an_end(model, source)
    for ours, row in zip(search(model, source, eos, best=4), rows, strict=True):
        same(ours, definition(reading(model, row), eos, width=4, alpha=0.6))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(alpha: float) -> None:
    model, source, maximum, eos = build(5, vocabulary=5), torch.tensor([[3, 4, 3]]), 4, 4
    everything, words = [], [token for token in range(5) if token != eos]
    for n in range(maximum + 1):
        ys = [list(y) for y in itertools.product(words, repeat=n)]
        labels = torch.tensor([[*y, eos][:maximum] for y in ys])
        target = torch.cat([torch.full((len(ys), 1), BOS), labels[:, :-1]], 1)
        with torch.inference_mode():
            log_p = model(source.expand(len(ys), -1), target).log_softmax(-1).gather(2, labels[:, :, None])
        for y, p in zip(ys, log_p.sum((1, 2)).tolist(), strict=True):
            everything.append(Hypothesis(y, p / length_penalty(labels.shape[1], alpha), p))
    everything.sort(key=lambda h: -h.score)
    (found,) = search(model, source, eos, width=320, alpha=alpha, maximum=maximum, best=320)
    same(found, everything[:320])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_width_1_is_greedy_search(alpha: float) -> None:
    for seed in range(5):
        model, (_, source) = build(seed, dtype=torch.float32), sentences(seed)
        eos = an_end(model, source)
        said = greedy(model, source, bos=BOS, eos=eos, pad=PAD, maximum=MAXIMUM).tolist()
        for row, (one,) in zip(said, search(model, source, eos, width=1, alpha=alpha), strict=True):
            assert one.tokens == (row[: row.index(eos)] if eos in row else row)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_company_and_padding_change_nothing(dtype: torch.dtype) -> None:
    for seed in range(3):
        model, (rows, source) = build(seed, dtype=dtype), sentences(seed)
        eos = an_end(model, source)
        limits = torch.tensor([2, 12, 7, 1, 9, 12])
        together = search(model, torch.nn.functional.pad(source, (0, 3)), eos, maximum=limits, best=4)
        order = [4, 1, 5, 0, 3, 2]
        shuffled = search(model, source[order], eos, maximum=limits[order], best=4)
        for i, row in enumerate(rows):
            (lonely,) = search(model, row[None], eos, maximum=int(limits[i]), best=4)
            for others in (together[i], shuffled[order.index(i)]):
                same(others, lonely, 1e-12 if dtype == torch.float64 else 1e-4)


def test_fewer_asked_for_are_the_first_of_more() -> None:
    model, (_, source) = build(3), sentences(3)
    eos = an_end(model, source)
    four = search(model, source, eos, best=4)
    for best in (1, 2, 3):
        assert search(model, source, eos, best=best) == [each[:best] for each in four]


# By hand


def table(*rows: list[float]) -> Tensor:
    """Logits (1, V, V) from probabilities of the next token after each token."""
    return torch.tensor([rows], dtype=torch.float64).log()


EITHER = table(  # 0 </s>, 1 BOS, 2 a, 3 b
    [1.0, 0.0, 0.0, 0.0],
    [0.45, 0.0, 0.55, 0.0],
    [0.2, 0.0, 0.0, 0.8],
    [1.0, 0.0, 0.0, 0.0],
)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.0, [([], 0.45, 1.0), ([2, 3], 0.44, 1.0)]),
        (1.0, [([2, 3], 0.44, 8 / 6), ([], 0.45, 1.0)]),  # three tokens with </s>: lp = (5 + 3) / 6
    ],
)
def test_the_length_penalty_lets_a_longer_one_overtake(
    alpha: float, expected: list[tuple[list[int], float, float]]
) -> None:
    (found,) = search(Table(EITHER), torch.tensor([[0]]), 0, width=2, alpha=alpha, best=2)
    same(found, [Hypothesis(y, math.log(p) / lp, math.log(p)) for y, p, lp in expected])


def test_what_the_model_forbids_is_never_said_and_fewer_may_exist() -> None:
    (found,) = search(Table(EITHER), torch.tensor([[0]]), 0, width=4, alpha=0.0, best=4)
    assert [h.tokens for h in found] == [[], [2, 3], [2]]  # there is no fourth
    (cut,) = search(Table(EITHER), torch.tensor([[0]]), 0, width=4, alpha=0.0, best=4, maximum=1)
    assert [(h.tokens, round(math.exp(h.log_probability), 9)) for h in cut] == [([2], 0.55), ([], 0.45)]


def test_ties_go_to_the_better_beginning_and_the_lower_id() -> None:
    (found,) = search(Table(torch.zeros(1, 50, 50)), torch.tensor([[0]]), 3, width=3, maximum=2, best=3)
    assert [h.tokens for h in found] == [[0, 0], [0, 1], [0, 2]]
    (found,) = search(Table(torch.zeros(1, 50, 50)), torch.tensor([[0]]), 1, width=3, maximum=2, best=3, alpha=0.0)
    assert [h.tokens for h in found] == [[], [0, 0], [0]]
    assert [h.log_probability for h in found] == pytest.approx([-math.log(50)] + [-2 * math.log(50)] * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_full_of_ties_follow_the_definition(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    tables = torch.randint(-2, 2, (6, 40, 40), generator=g).to(dtype)
    tables[:, :, 7] += 2.0  # the end
    exact = tables.to(torch.promote_types(dtype, torch.float32))
    for width, alpha in itertools.product((1, 2, 4), (0.0, 0.6)):
        found = search(Table(tables), torch.arange(6)[:, None], 7, width=width, alpha=alpha, best=width)
        for i, ours in enumerate(found):

            def scores(beginnings: list[list[int]], i: int = i) -> Tensor:
                return exact[i, [[BOS, *y][-1] for y in beginnings]]

            same(ours, definition(scores, 7, width=width, alpha=alpha))


# Work


def test_a_sentence_leaves_when_nothing_can_beat_what_it_has() -> None:
    sure = table([1.0, 0.0, 0.0], [0.98, 0.01, 0.01], [0.98, 0.01, 0.01])  # </s> at once
    slow = table([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.01, 0.0, 0.99])
    model = Table(torch.cat([sure, slow, sure]))
    found = search(model, torch.arange(3)[:, None], 0, width=2, alpha=0.6, maximum=20)
    assert model.rows == [3] + [2] * 19  # one beginning for each of three, then two beginnings of the slow one
    assert [len(h.tokens) for (h,) in found] == [0, 20, 0]


def test_an_open_hypothesis_holds_its_sentence_while_it_may_win() -> None:
    # The second best has log P = log 0.49, and loses nothing any more: at 20 tokens log 0.49 / lp(20) is far above
    # log 0.51, and it ends there, cut.
    model = Table(table([1.0, 0.0, 0.0], [0.51, 0.0, 0.49], [0.0, 0.0, 1.0]))
    ((first,),) = search(model, torch.tensor([[0]]), 0, width=2, alpha=0.6, maximum=20)
    assert len(model.rows) == 20
    assert first.score == pytest.approx(math.log(0.49) / length_penalty(20, 0.6))
    ((first,),) = search(model, torch.tensor([[0]]), 0, width=2, alpha=0.0, maximum=20)
    assert first.tokens == []
    assert len(model.rows) == 20 + 1  # without a penalty it cannot win: at an end at once


# Hugging Face


class Marian:
    """Hugging Face's model behind our protocol."""

    def __init__(self, model: MarianMTModel) -> None:
        self.model = model

    def encode(self, source: Tensor) -> Memory:
        mask = source != PAD
        return Memory(self.model.get_encoder()(source, attention_mask=mask).last_hidden_state, mask)

    def new_cache(self) -> History:
        return History()

    def decode(self, target: Tensor, memory: Memory, cache: History) -> Tensor:
        said = cache.extend(target)
        result = self.model(
            encoder_outputs=(memory.states,), attention_mask=memory.mask, decoder_input_ids=said, use_cache=False
        )
        return result.logits


@pytest.mark.parametrize("width", [2, 5])
@torch.no_grad()
def test_equals_hugging_face_without_a_length_penalty(width: int) -> None:
    shape = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    config = MarianConfig(
        vocab_size=17,
        d_model=16,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        init_std=1.0,
        pad_token_id=PAD,
        decoder_start_token_id=BOS,
        max_position_embeddings=64,
        **shape,
    )
    lengths = set()
    for seed in (1, 4):
        torch.manual_seed(seed)
        theirs, (_, source) = MarianMTModel(config).eval(), sentences(seed, 17)
        theirs.get_decoder().embed_positions.weight.mul_(5.0)
        eos = an_end(Marian(theirs), source)
        result = theirs.generate(
            source,
            attention_mask=(source != PAD).long(),
            num_beams=width,
            num_return_sequences=width,
            length_penalty=0.0,
            early_stopping="never",
            max_new_tokens=MAXIMUM,
            eos_token_id=eos,
            forced_eos_token_id=None,
            bad_words_ids=None,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        expected = iter(zip(result.sequences[:, 1:].tolist(), result.sequences_scores.tolist(), strict=True))
        for ours in search(Marian(theirs), source, eos, width=width, alpha=0.0, best=width):
            for one, (said, score) in zip(ours, itertools.islice(expected, width), strict=True):
                assert [*one.tokens, eos][:MAXIMUM] == said[: len(one.tokens) + 1][:MAXIMUM]
                assert one.score == one.log_probability == pytest.approx(score, abs=1e-4)
                lengths.add(len(one.tokens))
    assert len(lengths) > 3


# Refusals


def test_half_precision_and_an_empty_batch_are_served() -> None:
    model = build(0, dtype=torch.bfloat16)
    assert all(math.isfinite(h.score) for (h,) in search(model, torch.tensor([[3, 4], [5, 0]]), 2))
    assert search(model, torch.empty(0, 3, dtype=torch.long), 2) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width = 0: a beam has at least 1"),
        ({"best": 5}, "best = 5: a beam of width 4 yields 1 to 4"),
        ({"best": 0}, "best = 0"),
        ({"alpha": -0.1}, "alpha = -0.1"),
        ({"alpha": math.nan}, "alpha = nan"),
        ({"maximum": 0}, "maximum = 0: it must be at least 1"),
        ({"maximum": torch.tensor([3, 0])}, "maximum = 0"),
        ({"maximum": torch.tensor([3, 4, 5])}, r"maximum \(3,\) must be .* each of the 2 sentences"),
    ],
)
def test_an_impossible_search_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(Table(EITHER), torch.tensor([[0], [0]]), 0, **changes)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(value: float) -> None:
    broken = torch.zeros(1, 9, 9)
    broken[0, 5, 5] = value
    broken[0, :, 5] += 5.0
    with pytest.raises(ValueError, match="the model's scores are not numbers"):
        search(Table(broken), torch.tensor([[0]]), 2)
