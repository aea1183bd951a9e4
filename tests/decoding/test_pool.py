"""Sentences come and go, and neither company nor threads change what is found."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decoding.protocol import Bare, Floats, Hypothesis, Ints, Request, SamplingConfig, SearchConfig
from tests.decoding.toys import Markov, MarkovRows, asking, random_markov, search, stream


def requests(seed: int, count: int, vocabulary: int = 8) -> list[Request]:
    """Sentences of many lengths; some have prefixes, or words that are forbidden."""
    random = np.random.default_rng(seed)
    return [
        asking(
            [int(random.integers(3))] * int(random.integers(1, 9)),
            prefix=tuple(random.integers(3, vocabulary, random.choice([0, 0, 3])).tolist()),
            forbidden=((4,),) if random.random() < 0.2 else (),
            seed=i,
        )
        for i in range(count)
    ]


CONFIGS: dict[str, SearchConfig] = {
    "beam": SearchConfig(best=3),
    "greedy": SearchConfig(beam=1),
    "bare": Bare(beam=1),
    "diverse": SearchConfig(beam=6, groups=3, best=6),
    "patient": SearchConfig(patience=1.0, penalty="mean", alpha=1.0, best=4),
    "blocked": SearchConfig(block=2, shortest=3),
    "never empty": SearchConfig(best=3, shortest=1),
    "sampled": SearchConfig(best=3, sampling=SamplingConfig(temperature=0.7)),
}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(0, 12),
    st.sampled_from(sorted(CONFIGS)),
    st.booleans(),
    st.fixed_dictionaries({"rows": st.integers(1, 30), "tokens": st.integers(1, 60), "workers": st.integers(1, 3)}),
)
def test_neither_company_nor_order_nor_threads_change_anything(
    seed: int, count: int, name: str, ragged: bool, limits: dict[str, int]
) -> None:
    model, config = random_markov(seed % 7, ragged=ragged), replace(CONFIGS[name], extra=5)
    asked = requests(seed, count)
    alone = [search(model, [one], config)[0] for one in asked]
    model.steps.clear()
    assert key(search(model, asked, config, **limits)) == key(alone)
    assert max(model.steps, default=0) <= max(limits["rows"], 1 if config.sampling else config.beam)
    order = np.random.default_rng(seed).permutation(count).tolist()
    shuffled = search(model, [asked[i] for i in order], config, **limits)
    assert key(shuffled) == key([alone[i] for i in order])


class After:
    """Refuses 5 after 4, and 6 as a beginning; it sleeps until one of them is chosen, or is always awake."""

    def __init__(self, sleeps: bool) -> None:
        self.wakes = np.isin(np.arange(8), [4, 5, 6]) if sleeps else None

    def refused(self, written: Any) -> list[int]:
        return [5] if written and written[-1] == 4 else [] if written else [6]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(set(CONFIGS))), st.integers(1, 3))
def test_a_refusal_may_sleep_until_it_matters(seed: int, name: str, workers: int) -> None:
    model, config = random_markov(seed % 7), replace(CONFIGS[name], extra=5)
    asked = [replace(request, prefix=()) for request in requests(seed, 6)]
    awake, asleep = ([replace(one, refusal=After(sleeps)) for one in asked] for sleeps in (False, True))
    found = search(model, awake, config, workers=workers)
    if name == "bare":  # a greedy search without scores has some where everything is looked at
        said = [[h.tokens for h in row] for row in search(model, asleep, config, workers=workers)]
        assert said == [[h.tokens for h in row] for row in found]
    else:
        assert key(search(model, asleep, config, workers=workers)) == key(found)
    if config.sampling is None:
        for request, row in zip(asleep, found, strict=True):
            assert [token for piece in stream(model, request, config) for token in piece] == row[0].tokens


def key(found: list[list[Hypothesis]]) -> str:
    return repr(found)  # in which NaN equals NaN


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(set(CONFIGS) - {"sampled"})))
def test_a_stream_is_the_best_output_in_pieces(seed: int, name: str) -> None:
    model, config = random_markov(seed % 7), replace(CONFIGS[name], extra=9)
    for request in requests(seed, 3):
        pieces = list(stream(model, request, config))
        assert all(pieces)
        assert [token for piece in pieces for token in piece] == search(model, [request], config)[0][0].tokens


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(CONFIGS)), st.integers(1, 3))
def test_what_ends_an_output_changes_nothing_before_it(seed: int, name: str, workers: int) -> None:
    model, config = random_markov(seed % 7), replace(CONFIGS[name], extra=9)
    whole = [replace(request, prefix=(), required=()) for request in requests(seed, 6)]
    ended = [replace(request, ends=lambda written: 4 in written) for request in whole]
    cut = search(model, ended, config, rows=5, workers=workers)
    assert key(cut) == key([search(model, [request], config)[0] for request in ended])
    for full, found in zip(search(model, whole, config), cut, strict=True):
        if config.sampling is None and config.best > 1:  # they are compared as wholes
            assert key([full]) == key([found])
            continue
        for a, b in zip(full, found, strict=True):
            first = a.tokens.index(4) + 1 if 4 in a.tokens else len(a.tokens)
            assert b.tokens == a.tokens[: max(first, len(b.tokens))]
            assert b.token_scores == a.token_scores[: len(b.token_scores)]
            if config.sampling is not None or config.beam == 1:
                assert len(b.tokens) == first


def test_greedy_search_streams_token_by_token_and_a_beam_as_soon_as_it_is_sure() -> None:
    sure = np.full((1, 5, 5), -9.0, np.float32)
    for a, b in ((1, 3), (3, 4), (4, 0), (0, 2)):
        sure[0, a, b] = 0.0
    for beam in (1, 4):
        model, said = Markov(sure), list[tuple[int, int]]()
        for piece in stream(model, asking([0], prefix=(3,)), SearchConfig(beam=beam)):
            said += [(token, len(model.steps)) for token in piece]
        assert [token for token, _ in said] == [3, 4, 0]
        assert said[0] == (3, 1)  # a prefix is certain
    model = Markov(sure)
    greedy = stream(model, asking([0]), SearchConfig(beam=1))
    assert [(piece, len(model.steps)) for piece in greedy] == [([3], 1), ([4], 2), ([0], 3)]


# Who is at work


class Watched(Markov):
    """It remembers how many sentences each start had, and how many rows were at work."""

    def __init__(self, tables: Floats, *, ragged: bool) -> None:
        super().__init__(tables, ragged=ragged)
        self.starts: list[tuple[int, int]] = []

    def rows(self) -> MarkovRows:
        starts = self.starts

        class Rows(MarkovRows):
            def start(self, sources: Any) -> None:
                starts.append((len(sources), len(self.sentence)))
                super().start(sources)

        return Rows(self)


def clock() -> Floats:
    """Sentence i writes 3 again and again, and is cut at its limit."""
    tables = np.full((1, 4, 4), -50.0, np.float32)
    tables[:, :, 3] = 0.0
    return tables


def test_places_are_filled_again_at_once_or_when_half_are_free() -> None:
    asked = [asking([0] * n) for n in (1, 2, 3, 4, 5, 6, 7, 8)]  # each takes as many steps
    ragged, padded = Watched(clock(), ragged=True), Watched(clock(), ragged=False)
    for model in (ragged, padded):
        found = search(model, asked, SearchConfig(beam=1, extra=0), rows=4)
        assert [len(one.tokens) for (one,) in found] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert ragged.starts == [(4, 0), (1, 3), (1, 3), (1, 3), (1, 3)]  # the longest first
    assert padded.starts == [(4, 0), (2, 2), (2, 2)]


def test_sentences_share_the_tokens_there_are_and_one_may_have_them_all() -> None:
    model = Watched(clock(), ragged=True)
    asked = [asking([0] * n) for n in (9, 4, 3, 2)]
    search(model, asked, SearchConfig(beam=1, extra=0), tokens=7)
    assert model.starts == [(1, 0), (2, 0), (1, 1)]  # 9; 4 and 3; 2, when 3 is done


def test_workers_share_the_sentences() -> None:
    meeting, names = threading.Barrier(2, timeout=30), set[str]()

    class Met(Markov):
        def rows(self) -> MarkovRows:
            meeting.wait()  # both are at work
            names.add(threading.current_thread().name)
            return super().rows()

    found = search(Met(clock()), [asking([0] * n) for n in range(1, 30)], SearchConfig(), workers=2)
    assert all(found)
    assert len(names) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_stops_all_and_is_raised(workers: int) -> None:
    class Broken(Markov):
        def rows(self) -> MarkovRows:
            return BrokenRows(self)

    class BrokenRows(MarkovRows):
        def step(self, tokens: Ints) -> Floats:
            if len(self.model.steps) == 40:
                raise ValueError("the disk is full")
            return super().step(tokens)

    model = Broken(clock())
    with pytest.raises(ValueError, match="the disk is full"):
        search(model, [asking([0] * 20)] * 200, SearchConfig(), rows=8, workers=workers)
    assert len(model.steps) < 200  # of the thousands there would have been


def test_many_draws_take_no_more_rows_than_there_are_and_a_far_limit_no_memory() -> None:
    model, config = random_markov(1), SearchConfig(best=50, extra=10**9, sampling=SamplingConfig())
    asked = [asking([0, 2], seed=7), asking([1, 2], seed=8)]
    expected = search(model, asked, config, rows=100)
    for rows in (1, 7, 49):
        model.steps.clear()
        assert search(model, asked, config, rows=rows) == expected
        assert max(model.steps) <= rows


# Refusals


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asking([]), "sentence 1: it is empty"),
        (asking([0] * 41), "sentence 1: it has 41 tokens, the model reads 40 at most: split it"),
        (asking([0], prefix=(3,) * 12), "sentence 1: its prefix has 12 tokens, its output may have 11"),
        (asking([0], prefix=(3, 2)), "sentence 1: its prefix contains the end token 2"),
        (asking([0], prefix=(3, 8)), r"sentence 1: token 8 \(prefix\) is none of the model's: they are 0 to 7"),
        (asking([0], required=((3,), (-1,))), r"sentence 1: token -1 \(required\)"),
        (asking([0], forbidden=((3,), ())), "sentence 1: a forbidden phrase is empty"),
        (asking([0], forbidden=((99, 3),)), r"sentence 1: token 99 \(forbidden\)"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_before_anything_is(request_: Request, message: str) -> None:
    model = random_markov(0)
    model.longest = 40
    with pytest.raises(ValueError, match=message):
        search(model, [asking([0]), request_], SearchConfig(extra=10))
    with pytest.raises(ValueError, match=message.replace("sentence 1", "sentence 0")):
        list(stream(model, request_, SearchConfig(extra=10)))
    assert model.steps == []


def test_contradictions_and_nothing_at_all() -> None:
    model = random_markov(0)
    with pytest.raises(ValueError, match="shortest = 9: its output has at most 8 tokens: lower it"):
        search(model, [asking([0, 2])], SearchConfig(shortest=9, extra=6))
    ((cut,),) = search(model, [asking([0, 2])], SearchConfig(shortest=8, extra=6))
    assert len(cut.tokens) == 8
    for name in ("rows", "tokens", "workers"):
        with pytest.raises(ValueError, match=f"{name} = 0: it must be at least 1"):
            search(model, [], SearchConfig(), **{name: 0})
    with pytest.raises(ValueError, match="required phrases, which need a beam search"):
        search(model, [asking([0], required=((3,),))], SearchConfig(sampling=SamplingConfig()))
    assert search(model, [], SearchConfig(), workers=2) == []
