"""Beam search equals its definition, written without batch, cache or early stop, and Hugging Face's."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MarianMTModel

from regard.decoding.beam import FLOOR, Beam, length_penalty, whole
from regard.decoding.edits import edit, log_soft_max
from regard.decoding.module import Generative, Module
from regard.decoding.protocol import Bare, Floats, Hypothesis, Request, SearchConfig
from regard.models.transformer import Transformer, TransformerConfig
from tests.decoding.toys import BOS, EOS, Markov, asking, drive, random_markov, roomy, search
from tests.models.test_transformer import marian

LENGTHS = (3, 9, 1, 6, 4, 7)


# The definition

Scores = Callable[[Sequence[int]], Floats]  # what is written, without BOS -> logits of the next token (V,)


def definition(scores: Scores, request: Request, config: SearchConfig, eos: int) -> list[Hypothesis]:
    """Beam search in lists: one sentence, everything read again at each step, no early stop but those asked for."""
    W, limit, prefix = config.beam // config.groups, request.room, request.prefix
    groups: list[list[tuple[float, list[int], list[float]]]] = [[(0.0, [], [])] for _ in range(config.groups)]
    finished: list[list[Hypothesis]] = [[] for _ in groups]
    ended = 0
    for length in range(1, limit + 1):
        norm = length_penalty(length, config.alpha, config.penalty)
        said, before, groups = Counter[int](), groups, []
        for beginnings, kept in zip(before, finished, strict=True):
            candidates = []
            for p, y, parts in beginnings:
                log_p = log_soft_max(scores(y)[None])
                own = log_p[0].copy()
                if length <= len(prefix):
                    token = prefix[length - 1]
                    gains = {token: max(float(log_p[0, token]), FLOOR)}
                else:
                    edit(log_p, [y], [request], config, eos)
                    gains = {int(t): float(log_p[0, t]) for t in np.argsort(-log_p[0], kind="stable")}
                for t, gain in gains.items():
                    if gain > -math.inf:
                        candidates.append((p + gain, [*y, t], [*parts, max(float(own[t]), FLOOR)]))
            candidates.sort(key=lambda c: -c[0] + config.diversity * said[c[1][-1]])  # stable
            for p, y, parts in candidates[:W]:
                if y[-1] == eos or length == limit:
                    ended += 1
                    if W > 1 or not kept:
                        kept.append(Hypothesis(y[: len(y) - (y[-1] == eos)], p / norm, math.fsum(parts), parts))
            kept.sort(key=lambda h: -h.score)
            del kept[config.best if config.groups == 1 else W :]
            groups.append([c for c in candidates if c[1][-1] != eos][:W])
            said.update(c[1][-1] for c in groups[-1])
        if config.patience is not None and ended >= config.patience * config.beam:
            break
        if not any(groups) or (config.beam == 1 and finished[0]):
            break
    if not any(finished):  # nothing may follow: what was there
        norm = length_penalty(max(1, length - 1), config.alpha, config.penalty)
        finished = [[Hypothesis(y, p / norm, math.fsum(parts), parts) for p, y, parts in group] for group in before]
    distinct: dict[tuple[int, ...], Hypothesis] = {}
    for h in sorted(itertools.chain(*finished), key=lambda h: -h.score):
        distinct.setdefault(tuple(h.tokens), h)
    return list(distinct.values())[: config.best]


def same(ours: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-5) -> None:
    assert [h.tokens for h in ours] == [h.tokens for h in expected]
    for a, b in zip(ours, expected, strict=True):
        assert a.score == pytest.approx(b.score, abs=tolerance)
        assert a.log_probability == pytest.approx(b.log_probability, abs=tolerance)
        assert a.token_scores == pytest.approx(b.token_scores, abs=tolerance)
        assert sum(a.token_scores) == pytest.approx(a.log_probability, abs=1e-9)


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


def sentences(seed: int, vocabulary: int = 13) -> list[list[int]]:
    """Sentences of several lengths."""
    random = np.random.default_rng(seed)
    return [random.integers(3, vocabulary, n).tolist() for n in LENGTHS]


def find(
    model: Generative, sources: list[list[int]], eos: int, kind: type[SearchConfig] = SearchConfig, **changes: Any
) -> list[list[Hypothesis]]:
    requests = [asking(source) for source in sources]
    return search(Module(model), requests, kind(**changes), eos)


def an_end(model: Generative, source: list[int]) -> int:
    """A token to count as </s>, which an untrained model never learnt to say: one that it says fourth or later."""
    ((one,),) = find(model, [source], -1, beam=1, extra=30)
    return next(token for token in one.tokens[3:] if token > BOS)


def reading(model: Transformer, source: list[int]) -> Scores:
    """The model's scores for one sentence, read from the beginning for each token."""

    @torch.inference_mode()
    def scores(y: Sequence[int]) -> Floats:
        return model(torch.tensor([source]), torch.tensor([[BOS, *y]]))[0, -1].float().numpy()

    return scores


# The same as by definition


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("seeds", [range(3, 4), pytest.param(range(5, 15), marks=pytest.mark.slow)])
def test_equals_the_definition(seeds: range, width: int, alpha: float) -> None:
    lengths = []
    for seed in seeds:
        model, rows = build(seed), sentences(seed)
        eos = an_end(model, rows[0])
        config = SearchConfig(beam=width, best=width, alpha=alpha, extra=2)
        for ours, row in zip(find(model, rows, eos, **vars(config)), rows, strict=True):
            same(ours, definition(reading(model, row), *roomy([asking(row)], config), config, eos))
            lengths += [(len(h.tokens), len(row) + 2) for h in ours]
    assert 0 < sum(length == limit for length, limit in lengths) < len(lengths)  # some are cut, others end


@pytest.mark.parametrize("changes", [{"feed_forward": "convolution"}, {"positions": "rope", "kv_heads": 1}])
def test_whatever_the_cache_remembers_follows_its_hypothesis(changes: dict[str, Any]) -> None:
    model, rows = build(1, vocabulary=20, **changes), sentences(1, 20)
    eos, config = an_end(model, rows[0]), SearchConfig(best=4, extra=5)
    for ours, row in zip(find(model, rows, eos, **vars(config)), rows, strict=True):
        same(ours, definition(reading(model, row), *roomy([asking(row)], config), config, eos))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Markov, list[Request], SearchConfig]:
    """A table full of ties, with words that may never follow, and sentences that ask for many things."""
    V, seed = draw(st.integers(3, 9)), draw(st.integers(0, 2**31))
    random = np.random.default_rng(seed)
    tables = random.integers(-2, 3, (4, V, V)).astype(np.float32)
    tables[random.random((4, V, V)) < draw(st.sampled_from([0.0, 0.3]))] = -np.inf
    tables[:, :, EOS] += 1.0
    tables[:, :, 0] = 0.0  # something may always follow
    words = st.integers(0, V - 1).filter(lambda token: token != EOS)
    phrases = st.lists(words, max_size=3).map(tuple)
    plain = draw(st.booleans())
    requests = [
        asking(
            [draw(st.integers(0, 3))] * draw(st.integers(1, 5)),
            prefix=() if plain else draw(phrases),
            forbidden=() if plain else tuple(draw(st.lists(phrases.filter(bool), max_size=2))),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    groups, W = draw(st.sampled_from([(1, 1), (1, 2), (1, 4), (1, 5), (2, 1), (2, 2), (3, 2)]))
    config = SearchConfig(
        beam=groups * W,
        groups=groups,
        best=draw(st.integers(1, groups * W)),
        alpha=draw(st.sampled_from([0.0, 0.6, 1.5])),
        penalty=draw(st.sampled_from(["paper", "mean"])),
        patience=draw(st.sampled_from([None, 0.3, 1.0, 2.0])),
        diversity=draw(st.sampled_from([0.0, 0.5, 3.0])),
        extra=draw(st.integers(3, 6)),
        shortest=draw(st.sampled_from([0, 1, 3])),
        block=0 if plain else draw(st.sampled_from([0, 1, 2])),
        repetition=1.0 if plain else draw(st.sampled_from([1.0, 1.5])),
    )
    return Markov(tables, ragged=draw(st.booleans())), requests, config


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 9))
def test_whatever_is_asked_for_it_equals_the_definition(
    problem: tuple[Markov, list[Request], SearchConfig], ahead: int
) -> None:
    model, requests, config = problem
    found = drive(Beam, config, model, requests, ahead=ahead)
    for ours, request in zip(found, requests, strict=True):

        def scores(y: Sequence[int], sentence: int = request.source[0]) -> Floats:
            return model.tables[sentence, [BOS, *y][-1]]

        same(ours, definition(scores, *roomy([request], config), config, EOS), 1e-9)
        assert all(tuple(h.tokens[: len(request.prefix)]) == request.prefix for h in ours)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("penalty", ["paper", "mean"])
def test_a_wide_beam_finds_the_best_of_all_sequences(alpha: float, penalty: str) -> None:
    model, source, maximum, eos = build(5, vocabulary=5), [3, 4, 3], 4, 4
    everything, words = [], [token for token in range(5) if token != eos]
    for n in range(maximum + 1):
        ys = [list(y) for y in itertools.product(words, repeat=n)]
        labels = torch.tensor([[*y, eos][:maximum] for y in ys])
        target = torch.cat([torch.full((len(ys), 1), BOS), labels[:, :-1]], 1)
        with torch.inference_mode():
            log_p = model(torch.tensor([source]), target).log_softmax(-1).gather(2, labels[:, :, None])[:, :, 0]
        norm = length_penalty(labels.shape[1], alpha, penalty)
        everything += [Hypothesis(y, sum(p) / norm, sum(p), p) for y, p in zip(ys, log_p.tolist(), strict=True)]
    everything.sort(key=lambda h: -h.score)
    (found,) = find(model, [source], eos, beam=320, best=320, alpha=alpha, penalty=penalty, extra=1)
    same(found, everything[:320])
    assert len({tuple(h.tokens) for h in found}) == 320


@pytest.mark.parametrize("kind", [SearchConfig, Bare])
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_beam_1_is_greedy_search(alpha: float, kind: type[SearchConfig]) -> None:
    ended = 0
    for seed in range(4):
        model, rows = build(seed), sentences(seed)
        eos = an_end(model, rows[0])
        for row, (one,) in zip(rows, find(model, rows, eos, kind, beam=1, alpha=alpha, extra=4), strict=True):
            read, said = reading(model, row), list[int]()
            while len(said) < len(row) + 4 and eos not in said:
                said.append(int(read(said).argmax()))
            assert one.tokens == [token for token in said if token != eos]
            ended += eos in said
            assert math.isnan(one.score) == math.isnan(one.log_probability) == (not kind.scores)
            assert len(one.token_scores) == (len(said) if kind.scores else 0)
    assert 0 < ended < 4 * len(LENGTHS)


def test_company_and_padding_change_nothing() -> None:
    for seed in range(2):
        model, rows = build(seed, dtype=torch.float32), sentences(seed)
        eos = an_end(model, rows[0])
        together, backwards = find(model, rows, eos, best=4), find(model, rows[::-1], eos, best=4)
        for row, *ours in zip(rows, together, backwards[::-1], strict=True):
            (lonely,) = find(model, [row], eos, best=4)
            for others in ours:
                same(others, lonely, 1e-4)


def test_fewer_asked_for_are_the_first_of_more() -> None:
    model, rows = build(3), sentences(3)
    eos = an_end(model, rows[0])
    for groups in (1, 2):
        four = find(model, rows, eos, best=4, groups=groups)
        for best in (1, 2, 3):
            for few, more in zip(find(model, rows, eos, best=best, groups=groups), four, strict=True):
                same(few, more[:best], 1e-6)


# By hand


def table(*rows: list[float]) -> Floats:
    """Logits (1, V, V) from probabilities of the next token after each token."""
    with np.errstate(divide="ignore"):
        return np.log(np.array([rows], np.float32))


def by_table(tables: Floats, eos: int, *, sources: Sequence[Sequence[int]] = ((0,),), **changes: Any) -> Any:
    model = Markov(tables)
    requests = [asking(source) for source in sources]
    return search(model, requests, SearchConfig(**changes), eos), model.steps


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
    (found,), _ = by_table(EITHER, 0, beam=2, alpha=alpha, best=2)
    assert [h.tokens for h in found] == [y for y, _, _ in expected]
    assert [h.log_probability for h in found] == pytest.approx([math.log(p) for _, p, _ in expected], abs=1e-6)
    assert [h.score for h in found] == pytest.approx([math.log(p) / lp for _, p, lp in expected], abs=1e-6)


def test_what_the_model_forbids_is_never_said_and_fewer_may_exist() -> None:
    (found,), _ = by_table(EITHER, 0, beam=4, alpha=0.0, best=4)
    assert [h.tokens for h in found] == [[], [2, 3], [2]]  # there is no fourth
    (cut,), _ = by_table(EITHER, 0, beam=4, alpha=0.0, best=4, extra=0)
    assert [(h.tokens, round(math.exp(h.log_probability), 6)) for h in cut] == [([2], 0.55), ([], 0.45)]


def test_ties_go_to_the_better_beginning_and_the_lower_id() -> None:
    zeros = np.zeros((1, 50, 50), np.float32)
    (found,), _ = by_table(zeros, 3, beam=3, extra=1, best=3)
    assert [h.tokens for h in found] == [[0, 0], [0, 1], [0, 2]]
    (found,), _ = by_table(zeros, 1, beam=3, extra=1, best=3, alpha=0.0)
    assert [h.tokens for h in found] == [[], [0, 0], [0]]
    assert [h.log_probability for h in found] == pytest.approx([-math.log(50)] + [-2 * math.log(50)] * 2)


def test_a_prefix_is_said_first_and_counts() -> None:
    model = Markov(EITHER)
    (found,) = search(model, [asking([0], prefix=(2,))], SearchConfig(best=2), 0)
    assert [h.tokens for h in found] == [[2, 3], [2]]
    assert found[0].token_scores == pytest.approx([math.log(0.55), math.log(0.8), 0.0], abs=1e-6)
    assert model.steps[:2] == [1, 1]  # one row as long as all beginnings are one
    ((odd,),) = search(model, [asking([0], prefix=(3, 3))], SearchConfig(), 0)
    assert odd.tokens == [3, 3]  # whatever the model thinks of it
    ((cut,),) = search(model, [asking([0], prefix=(2, 3))], SearchConfig(extra=1), 0)
    assert cut.tokens == [2, 3]


def test_a_sentence_that_may_neither_end_nor_go_on_keeps_what_it_has() -> None:
    request = asking([0], forbidden=((0,), (3, 2), (3, 3)))
    config = SearchConfig(beam=3, best=3, shortest=4)
    ((found,),) = search(Markov(EITHER), [request], config, 0)
    assert found.tokens == [2, 3]  # then only </s> could follow
    assert found.log_probability == pytest.approx(math.log(0.55 * 0.8), abs=1e-6)


@pytest.mark.parametrize("kind", [SearchConfig, Bare])
@pytest.mark.parametrize("shortest", [0, 1, 2])
def test_an_end_that_comes_too_soon_needs_no_more_than_one_candidate_more(
    shortest: int, kind: type[SearchConfig]
) -> None:
    silent = table(*[[0.7, 0.0, 0.2, 0.1]] * 4)  # 0 is </s>
    config = kind(beam=1, shortest=shortest)
    assert not whole(config, asking([0]))
    for ahead in (1, 9):  # alone, and beside others that are older
        found = drive(Beam, config, Markov(silent), [asking([0])] * 3, eos=0, ahead=ahead)
        assert [one.tokens for (one,) in found] == [[2] * shortest] * 3
        for (one,) in found:
            assert not kind.scores or one.log_probability == pytest.approx(
                math.log(0.2) * shortest + math.log(0.7), abs=1e-6
            )


@pytest.mark.parametrize("changes", [{"block": 2}, {"repetition": 0.9}])
def test_other_wishes_need_all_scores(changes: dict[str, Any]) -> None:
    assert whole(SearchConfig(**changes), asking([5]))


def test_groups_that_must_differ_do() -> None:
    alike = table([0.0] * 4, [0.0, 0.0, 0.6, 0.4], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    (found,), _ = by_table(alike, 0, beam=2, groups=2, best=2, diversity=0.3)
    assert [h.tokens for h in found] == [[2]]  # log 0.6 - 0.3 > log 0.4: both say the same, which counts once
    (found,), _ = by_table(alike, 0, beam=2, groups=2, best=2, diversity=0.5)
    assert [h.tokens for h in found] == [[2], [3]]
    assert [h.log_probability for h in found] == pytest.approx([math.log(0.6), math.log(0.4)], abs=1e-6)


@pytest.mark.parametrize("W", [1, 2])
def test_the_first_of_diverse_groups_is_plain_beam_search(W: int) -> None:
    model, rows = build(2), sentences(2)
    eos = an_end(model, rows[0])
    plain = find(model, rows, eos, beam=W, best=W)
    for few, more in zip(plain, find(model, rows, eos, beam=3 * W, groups=3, best=3 * W), strict=True):
        assert {tuple(h.tokens) for h in few} <= {tuple(h.tokens) for h in more}
        assert [h.score for h in more] == sorted((h.score for h in more), reverse=True)


# Work


def test_a_sentence_leaves_when_nothing_can_beat_what_it_has() -> None:
    sure = table([1.0, 0.0, 0.0], [0.98, 0.01, 0.01], [0.98, 0.01, 0.01])  # </s> at once
    slow = table([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.01, 0.0, 0.99])
    tables, sources = np.concatenate([sure, slow, sure]), [[0], [1], [2]]
    found, steps = by_table(tables, 0, sources=sources, beam=2, extra=19)
    assert steps == [3] + [2] * 19  # one beginning for each of three, then two beginnings of the slow one
    assert [len(h.tokens) for (h,) in found] == [0, 20, 0]


def test_an_open_hypothesis_holds_its_sentence_while_it_may_win() -> None:
    # The second best has log P = log 0.49, and loses nothing any more: at 20 tokens log 0.49 / lp(20) is far above
    # log 0.51, and it ends there, cut.
    tables = table([1.0, 0.0, 0.0], [0.51, 0.0, 0.49], [0.0, 0.0, 1.0])
    ((first,),), steps = by_table(tables, 0, beam=2, alpha=0.6, extra=19)
    assert len(steps) == 20
    assert first.score == pytest.approx(math.log(0.49) / length_penalty(20, 0.6), abs=1e-6)
    for impatient in ({"alpha": 0.0}, {"patience": 0.5}):
        ((first,),), steps = by_table(tables, 0, beam=2, extra=19, **impatient)
        assert first.tokens == []
        assert len(steps) == 1  # without a penalty it cannot win, and with little patience it may not


def test_the_past_is_forgotten_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = random_markov(0), SearchConfig(best=4, extra=8)
    requests = [asking([i % 3] * 4) for i in range(20)]
    expected = drive(Beam, config, model, requests, ahead=2)
    monkeypatch.setattr("regard.decoding.beam.PAST", 3)
    start, fleets = len(model.steps), list[Beam]()

    def kept(config: SearchConfig, eos: int) -> Beam:
        fleets.append(Beam(config, eos))
        return fleets[0]

    assert drive(kept, config, model, requests, ahead=2) == expected
    assert len(fleets[0]._past) <= 12 < 30 < len(model.steps) - start


# Hugging Face


@pytest.mark.parametrize("changes", [{"beam": 1}, {"beam": 4, "best": 4}, {"beam": 5, "best": 2, "patience": 1.0}])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 0.6])
@torch.no_grad()
def test_equals_hugging_face_on_the_same_weights(changes: dict[str, Any], alpha: float) -> None:
    lengths, maximum = set(), 12
    for seed in (1, 4):
        ours, theirs = restless(seed)
        rows = np.random.default_rng(seed).integers(3, 17, (5, 6)).tolist()  # they know one limit for all
        said = [one.tokens for (one,) in find(ours, rows, -1, beam=1, extra=6)]
        eos = max(range(2, 17), key=lambda token: len({y.index(token) for y in said if token in y}))
        config = SearchConfig(**{"alpha": alpha, "penalty": "mean", "extra": maximum - 6} | changes)
        result = theirs.generate(
            torch.tensor(rows),
            attention_mask=torch.ones(len(rows), 6, dtype=torch.long),
            num_beams=config.beam,
            num_return_sequences=config.best,
            length_penalty=alpha,
            early_stopping="never" if config.patience is None else True,
            max_new_tokens=maximum,
            decoder_start_token_id=BOS,
            eos_token_id=eos,
            forced_eos_token_id=None,
            bad_words_ids=None,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        expected = iter(result.sequences[:, 1:].tolist())
        scores = itertools.repeat(None) if config.beam == 1 else iter(result.sequences_scores.tolist())
        for found in find(ours, rows, eos, **vars(config)):
            for one, said, score in zip(found, expected, scores):  # noqa: B905  endless
                assert [*one.tokens, eos][:maximum] == said[: len(one.tokens) + 1][:maximum]
                assert score is None or one.score == pytest.approx(score, abs=1e-4)
                lengths.add(len(one.tokens))
    assert len(lengths) > 2


def restless(seed: int) -> tuple[Transformer, MarianMTModel]:
    """A model that says something else at each position, and Marian with its weights."""
    torch.manual_seed(seed)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "heads": 2}
    ours = Transformer(TransformerConfig(17, positions="learned", max_length=64, **shape)).eval()
    ours.output.weight *= 2.0
    theirs = marian(ours)
    for mine, other in (
        (ours.source_embedding, theirs.get_encoder()),
        (ours.target_embedding, theirs.get_decoder()),
    ):
        other.embed_positions.weight.copy_(mine.positions.table.normal_(std=4.0))
    return ours, theirs


# Refusals


def test_half_precision_is_served_and_nothing_gives_nothing() -> None:
    model = build(0, dtype=torch.bfloat16)
    assert all(math.isfinite(h.score) for (h,) in find(model, [[3, 4], [5]], 2))
    assert find(model, [], 2) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("changes", [{}, {"beam": 1}, {"beam": 1, "kind": Bare}, {"block": 2}, {"groups": 2}])
def test_scores_that_are_no_numbers_are_refused(value: float, changes: dict[str, Any]) -> None:
    model = build(0)
    with torch.no_grad():
        model.output.weight[5] = value
    with pytest.raises(ValueError, match="the model's scores are not numbers"):
        find(model, sentences(0), 2, **changes)
