"""Outputs contain what is required, whatever else is asked; without anything required it is plain beam search."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.decoding.beam import Beam, length_penalty
from regard.decoding.constrained import FLOOR, Beginning, Candidate, Constrained, Goal, Lacking, check, share
from regard.decoding.protocol import Hypothesis, Request, SearchConfig
from tests.decoding.toys import EOS, Markov, asking, drive, random_markov, roomy, search, stream

V = 11  # 3 to 7 occur in phrases, 8 to 10 do not


def constrained(
    model: Markov, requests: Sequence[Request], *, ahead: int = 99, longest: int | None = None, **changes: Any
) -> list[list[Hypothesis]]:
    config = SearchConfig(**{"extra": 10} | changes)
    return drive(Constrained, config, model, requests, ahead=ahead, longest=longest)


def places(tokens: Sequence[int], phrase: Sequence[int]) -> list[int]:
    return [i for i in range(len(tokens)) if tuple(tokens[i : i + len(phrase)]) == tuple(phrase)]


def satisfied(tokens: Sequence[int], phrases: Sequence[tuple[int, ...]], *, ordered: bool) -> bool:
    if not ordered:
        return all(len(places(tokens, phrase)) >= list(phrases).count(phrase) for phrase in phrases)
    reached = 0
    for phrase in phrases:
        start = next((i for i in places(tokens, phrase) if i >= reached), None)
        if start is None:
            return False
        reached = start + len(phrase)
    return True


# Always


phrase = st.lists(st.integers(3, 7), min_size=1, max_size=4).map(tuple)
phrases = st.lists(phrase, min_size=1, max_size=4).map(tuple)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 50),
    sharpness=st.sampled_from([0.5, 3.0, 10.0]),
    required=phrases,
    forbidden=st.lists(phrase.filter(lambda p: len(p) > 1), max_size=3).map(tuple),
    prefix=st.lists(st.integers(3, 8), max_size=3).map(tuple),
    longer=st.integers(0, 6),
    config=st.fixed_dictionaries(
        {"beam": st.sampled_from([1, 2, 4, 7]), "ordered": st.booleans()},
        optional={
            "block": st.integers(1, 3),
            "shortest": st.integers(0, 9),
            "repetition": st.sampled_from([1.0, 1.5]),
            "alpha": st.sampled_from([0.0, 1.0]),
            "penalty": st.just("mean"),
            "patience": st.sampled_from([0.5, 1.0]),
        },
    ),
    all_of_them=st.booleans(),
)
def test_required_phrases_are_there_and_forbidden_ones_are_not(
    seed: int,
    sharpness: float,
    required: tuple[tuple[int, ...], ...],
    forbidden: tuple[tuple[int, ...], ...],
    prefix: tuple[int, ...],
    longer: int,
    config: dict[str, Any],
    all_of_them: bool,
) -> None:
    limit = len(prefix) + sum(map(len, required)) + longer
    request = asking([0, EOS], prefix=prefix, required=required, forbidden=forbidden)
    changes = config | {"extra": limit - 2, "best": config["beam"] if all_of_them else 1}
    assume(limit >= max(2, config.get("shortest", 0)))
    try:
        check(replace(request, room=limit), SearchConfig(**changes), EOS)
    except ValueError:
        texts = (prefix, *required)
        at_odds = any(places(text, other) for text in texts for other in forbidden)
        assert at_odds or (forbidden and longer <= len(required))
        return
    (found,) = constrained(random_markov(seed, V, 1, sharpness=sharpness), [request], **changes)
    assert 1 <= len(found) <= changes["best"]
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert len({tuple(h.tokens) for h in found}) == len(found)
    for h in found:
        assert satisfied(h.tokens, required, ordered=config["ordered"])
        assert not any(places(h.tokens, other) for other in forbidden)
        assert tuple(h.tokens[: len(prefix)]) == prefix
        assert len(h.tokens) <= limit
        assert len(h.token_scores) == min(len(h.tokens) + 1, limit)
        assert len(h.tokens) >= config.get("shortest", 0)
        assert h.log_probability == pytest.approx(sum(h.token_scores))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), required=phrases, beam=st.sampled_from([1, 4]), ordered=st.booleans())
def test_scores_are_the_models(seed: int, required: tuple[tuple[int, ...], ...], beam: int, ordered: bool) -> None:
    model = random_markov(seed, V, 1)
    limit = 22
    (found,) = constrained(
        model, [asking([0, EOS], required=required)], beam=beam, best=beam, extra=limit - 2, ordered=ordered
    )
    for h in found:
        ended = [*h.tokens, EOS][:limit]
        assert h.token_scores == pytest.approx(model.log_probabilities(0, ended), abs=1e-5)
        assert h.score == pytest.approx(h.log_probability / length_penalty(len(ended), 0.6))
    (worse,) = constrained(model, [asking([0, EOS], required=required)], extra=limit - 2, repetition=1.5)
    for h in worse:
        assert h.token_scores == pytest.approx(model.log_probabilities(0, [*h.tokens, EOS][:limit]), abs=1e-5)
        assert h.log_probability == pytest.approx(sum(h.token_scores))


# Like beam search


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beam": 1},
        {"beam": 5, "best": 5, "alpha": 0.0},
        {"penalty": "mean", "alpha": 1.0, "best": 3},
        {"patience": 1.0, "best": 2},
        {"patience": 0.5},
        {"block": 2, "shortest": 4, "repetition": 1.2, "best": 4},
        {"extra": 0, "best": 4},
    ],
)
def test_with_nothing_required_it_is_beam_search(changes: dict[str, Any]) -> None:
    for seed in range(6):
        model = random_markov(seed, 30, 3, sharpness=1.5)
        requests = [
            asking([0, *[4] * seed, EOS]),
            asking([1, EOS], prefix=(5, 6)),
            asking([2, 3, EOS], forbidden=((7,), (8, 9))),
        ]
        config = SearchConfig(**{"extra": 10} | changes)
        plain = drive(Beam, config, model, requests, longest=12)
        assert drive(Constrained, config, model, requests, longest=12) == plain


def everything(model: Markov, limit: int, alpha: float) -> list[Hypothesis]:
    """All outputs there are, the best first."""
    words, found = range(3, model.vocabulary), []
    for n in range(limit + 1):
        for y in itertools.product(words, repeat=n):
            scores = model.log_probabilities(0, [*y, EOS][:limit])
            p = math.fsum(scores)
            found.append(Hypothesis(list(y), p / length_penalty(len(scores), alpha), p, scores))
    return sorted(found, key=lambda h: -h.score)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize(
    ("required", "ordered"),
    [(((3, 4),), False), (((3, 4), (4, 5)), True), (((4, 4), (4, 4)), True), (((5,), (3,), (5,)), False)],
)
def test_a_wide_beam_finds_the_best_of_all_that_contain_them(
    required: tuple[tuple[int, ...], ...], ordered: bool, alpha: float
) -> None:
    for seed in range(3):
        model, request = random_markov(seed, 6, 1), asking([0, EOS], required=required)
        right = [h for h in everything(model, 5, alpha) if satisfied(h.tokens, required, ordered=ordered)][:10]
        changes: dict[str, Any] = {"beam": 400, "best": len(right), "extra": 3, "alpha": alpha, "ordered": ordered}
        (found,) = constrained(model, [request], **changes)
        assert len({tuple(h.tokens) for h in found}) == len(right)
        assert all(satisfied(h.tokens, required, ordered=ordered) for h in found)
        assert [h.score for h in found] == pytest.approx([h.score for h in right], abs=1e-5)


@pytest.mark.parametrize("required", [((3, 4), (4, 5)), ((4, 4), (4, 4)), ((3, 4, 3), (4, 3))])
def test_phrases_may_overlap(required: tuple[tuple[int, ...], ...]) -> None:
    # Room is counted for one phrase after the other, so the longest outputs with an overlap are out of reach.
    lengths = set()
    for seed in range(8):
        model, request = random_markov(seed, 6, 1), asking([0, EOS], required=required)
        right = [h for h in everything(model, 6, 0.0) if satisfied(h.tokens, required, ordered=False)]
        best = next(h for h in right if len(h.tokens) <= 6 - 2)
        ((found,),) = constrained(model, [request], beam=400, extra=4, alpha=0.0)
        assert best.score - 1e-5 <= found.score <= right[0].score + 1e-5
        lengths.add(len(found.tokens))
    assert 3 in lengths


def test_a_beam_of_four_beats_saying_the_phrases_at_the_ends() -> None:
    """Over many models: against greedy outputs with the phrase put before, and after them."""
    wins = 0
    for seed in range(30):
        model = random_markov(seed, V, 1)
        request = asking([0, EOS], required=((3, 4),))
        ((plain,),) = drive(Beam, SearchConfig(beam=1, extra=6), model, [asking([0, EOS])])
        ((found,),) = constrained(model, [request], beam=4, extra=10, alpha=1.0, penalty="mean")
        naive = []
        for y in ([3, 4, *plain.tokens], [*plain.tokens, 3, 4]):
            scores = model.log_probabilities(0, [*y, EOS])
            naive.append(math.fsum(scores) / len(scores))
        wins += found.score >= max(naive) - 1e-6
    assert wins == 30


# Company


@pytest.mark.parametrize("ordered", [False, True])
def test_company_order_and_refill_change_nothing(ordered: bool) -> None:
    model = random_markov(0, V)
    needs = [((3, 4), (5,)), ((6, 7, 6),), ((3,),), ()]
    requests = [asking([i % 3, *[5] * (i % 5), EOS], prefix=(4, 3)[: i % 3], required=needs[i % 4]) for i in range(12)]
    together = constrained(model, requests, best=2, ordered=ordered)
    assert together == constrained(model, requests, ahead=2, best=2, ordered=ordered)
    assert together == constrained(model, requests[::-1], ahead=5, best=2, ordered=ordered)[::-1]
    assert together == [constrained(model, [request], best=2, ordered=ordered)[0] for request in requests]
    config = SearchConfig(extra=10, best=2, ordered=ordered)
    assert together == search(model, requests, config, rows=10, workers=2)


def test_streaming_says_the_same() -> None:
    model = random_markov(1, V)
    config = SearchConfig(extra=10)
    request = asking([0, EOS], prefix=(8, 9), required=((3, 4), (5,)))
    pieces = list(stream(model, request, config))
    ((found,),) = search(model, [request], config)
    assert list(itertools.chain(*pieces)) == found.tokens
    assert pieces[:2] == [[8], [9]]


# Details


def test_progress_falls_back_as_far_as_it_must() -> None:
    goal = Goal(asking([EOS], required=((5, 6, 5, 7), (6, 5, 5))), SearchConfig())
    steps = [(5,), (5, 6), (5, 6, 5), (5, 6), (5, 6, 5), (5,), (5,)]
    lacking = goal.start
    for token, begun in zip([5, 6, 5, 6, 5, 5, 5], steps, strict=True):
        lacking = goal.after(lacking, [token])
        assert lacking.begun == begun
    assert lacking.phrases == ((5, 6, 5, 7),)  # 6 5 5 was written on the way
    assert goal.after(lacking, [8]) == Lacking(((5, 6, 5, 7),))
    assert goal.after(lacking, [6, 5, 7]) == Lacking(())


def test_in_order_the_next_begins_after_the_last() -> None:
    for ordered, left in ((True, ((4, 5),)), (False, ())):
        goal = Goal(asking([EOS], required=((3, 4), (4, 5))), SearchConfig(ordered=ordered))
        assert goal.after(goal.start, [3, 4, 5]).phrases == left
        assert goal.after(goal.start, [3, 4, 4, 5]).phrases == ()


def test_banks_take_turns() -> None:
    nothing = Beginning([], [], 0.0, Lacking(()))
    lacks = {n: Lacking(((3,) * n,) if n else ()) for n in (0, 1, 2, 3)}
    given = [Candidate(0, nothing, i, 0.0, -float(i), lacks[n]) for i, n in enumerate((3, 3, 3, 2, 1, 3, 1, 0))]

    def chosen(width: int) -> list[int]:
        return [candidate.token for candidate in share(given, width)]

    assert chosen(1) == [7]  # the one that lacks nothing
    assert chosen(2) == [0, 7]
    assert chosen(3) == [0, 3, 7]  # then the banks of the better candidates
    assert chosen(4) == [0, 3, 4, 7]
    assert chosen(6) == [0, 1, 3, 4, 6, 7]
    assert chosen(99) == list(range(8))
    assert share([], 4) == []


def test_what_the_model_holds_impossible_is_said_if_it_must_be() -> None:
    model = random_markov(0, V, 1)
    model.tables[:, :, 5] = -np.inf
    ((found,),) = constrained(model, [asking([0, EOS], required=((4, 5),))], extra=4)
    assert places(found.tokens, (4, 5))
    assert found.token_scores[found.tokens.index(5)] == FLOOR


def test_a_required_phrase_outranks_blocked_repetition() -> None:
    model = random_markov(0, V, 1)
    ((found,),) = constrained(model, [asking([0, EOS], required=((4, 5, 4, 5), (6,), (6,)))], block=1)
    assert satisfied(found.tokens, ((4, 5, 4, 5), (6,), (6,)), ordered=False)
    others = [token for token in found.tokens if token not in (4, 5, 6)]
    assert len(others) == len(set(others))


def test_phrases_that_must_not_meet_are_kept_apart() -> None:
    request = asking([0, EOS], required=((3, 4), (5, 6)), forbidden=((4, 5), (6, 3)))
    with pytest.raises(ValueError, match=r"\(3, 4\), \(5, 6\) do not fit into 4 tokens without"):
        search(random_markov(0, V, 1), [request], SearchConfig(extra=2))
    for seed in range(5):
        ((found,),) = constrained(random_markov(seed, V, 1), [request], extra=3)
        assert len(found.tokens) == 5
        assert {*found.tokens[:2]} in ({3, 4}, {5, 6})
        assert {*found.tokens[3:]} in ({3, 4}, {5, 6})


def test_where_everything_is_forbidden_it_ends_as_it_is_or_says_why_it_cannot() -> None:
    model = random_markov(0, 6, 1)
    request = asking([0, EOS], prefix=(3,), required=((3,),), forbidden=((3, 3), (4,), (5,)))
    ((found,),) = constrained(model, [request], shortest=3)
    assert found.tokens == [3]
    stuck = asking([0, EOS], required=((3,), (3,)), forbidden=((3, 3), (4,), (5,)))
    with pytest.raises(ValueError, match=r"no output was found that contains \(3,\), \(3,\)"):
        constrained(model, [stuck])


@pytest.mark.parametrize(
    ("asked", "changes", "message"),
    [
        ({"required": ((3,), ())}, {}, "a required phrase is empty"),
        ({"required": ((3, EOS),)}, {}, r"phrase \(3, 2\) holds the end, 2"),
        ({"required": ((3, 4, 5),), "forbidden": ((7,), (4, 5))}, {}, r"\(3, 4, 5\) contains \(4, 5\), which is forb"),
        ({"required": ((3,),), "prefix": (4, 5), "forbidden": ((5,),)}, {}, r"prefix \(4, 5\) contains \(5,\)"),
        (
            {"required": ((3, 4), (5, 6, 7))},
            {"extra": 2},
            r"\(3, 4\), \(5, 6, 7\) need 5 tokens, .* at most 4 has room",
        ),
        ({"required": ((3, 4),), "prefix": (4, 5, 3, 3)}, {"extra": 2}, r"\(3, 4\) need 1 tokens, .* room for 0"),
        ({"required": ((3, 4),)}, {"groups": 2}, r"groups = 2: .* phrases such as \(3, 4\)"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    request, config = asking([0, EOS], **asked), SearchConfig(**changes)
    with pytest.raises(ValueError, match=message):
        check(*roomy([request], config), config, EOS)


def test_phrases_that_are_hopelessly_entangled_are_refused_at_once() -> None:
    ids = range(10, 40)
    required, forbidden = tuple((i,) for i in ids), tuple((a, b) for a in ids for b in ids if a != b)
    with pytest.raises(ValueError, match="do not fit"):
        check(asking([2], room=58, required=required, forbidden=forbidden), SearchConfig(), EOS)
