"""Shortlists hold what Model 1, written out in plain Python, holds for likely; and whatever is wrong is said."""

from collections import defaultdict
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save

from regard.data import lexicon
from regard.data.arrays import Table, pairs_of
from regard.data.lexicon import Shortlist, _model_1, _Table, _Text, coverage, learn_shortlist
from regard.data.vocabulary import Marks

V, SPECIALS = 60, 4
MARKS = Marks(pad=0, bos=1, eos=2, unk=3)
Pairs = list[tuple[list[int], list[int]]]


def corpus(n: int, seed: int = 0) -> Pairs:
    """Word i is translated by V - 1 - i at the same place, or now and then by a neighbour, or not at all."""
    draw = Random(seed)
    pairs: Pairs = []
    for _ in range(n):
        source = [draw.randrange(SPECIALS, V) for _ in range(draw.randrange(1, 9))]
        target = [max(SPECIALS, V - 1 - word + draw.choice([0, 0, 0, 1])) for word in source]
        target = [min(word, V - 1) for word in target if draw.random() > 0.1]
        pairs.append((source, target or [SPECIALS]))
    return pairs


def by_hand(pairs: Pairs, iterations: int) -> dict[tuple[int, int], float]:
    """p(target | source) of IBM Model 1, a word at a time."""
    p: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in pairs:
            for t in target:
                whole = sum(p[s, t] for s in [0, *source])
                for s in [0, *source]:
                    counts[s, t] += p[s, t] / whole
                    totals[s] += p[s, t] / whole
        p = defaultdict(float, {(s, t): count / totals[s] for (s, t), count in counts.items()})
    return dict(p)


def build(folder: Path, pairs: Pairs) -> Table:
    return Table.build(folder / "pairs", pairs, pairs_of(V))


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_probabilities_are_those_of_model_1(tmp_path: Path, iterations: int) -> None:
    pairs = corpus(200)
    keys, p = _model_1(_Text(build(tmp_path, pairs), 0), V, iterations)
    expected = by_hand(pairs, iterations)
    assert sorted(keys.tolist()) == sorted(s * V + t for s, t in expected)
    found = dict(zip(keys.tolist(), p.tolist(), strict=True))
    for (s, t), value in expected.items():
        assert found[s * V + t] == pytest.approx(value, rel=1e-4, abs=1e-7)


def test_a_shortlist_holds_the_likeliest_the_commonest_the_specials_and_the_word_itself(tmp_path: Path) -> None:
    pairs = corpus(300)
    shortlist = learn_shortlist(build(tmp_path, pairs), vocabulary=V, marks=MARKS, size=3, common=5)
    expected = by_hand(pairs, 5)
    seen = {s for source, _ in pairs for s in source}
    for word in range(1, V):
        row = shortlist.tokens[shortlist.offsets[word] : shortlist.offsets[word + 1]].tolist()
        likely = sorted((-p, t) for (s, t), p in expected.items() if s == word)
        assert row == sorted({word, *(t for _, t in likely[:3])})
        assert (len(row) > 1) == (word in seen)
    counts: dict[int, int] = defaultdict(int)
    for _, target in pairs:
        for t in target:
            counts[t] += 1
    often = sorted(counts, key=lambda t: (-counts[t], t))[:5]
    assert shortlist.common.tolist() == sorted({0, 1, 2, 3, *often})

    few = shortlist.of([10, 20, 10, 2])
    rows = [shortlist.tokens[shortlist.offsets[s] : shortlist.offsets[s + 1]].tolist() for s in (10, 20, 2)]
    assert few.tolist() == sorted({*shortlist.common.tolist(), *rows[0], *rows[1], *rows[2]})
    assert {V - 1 - 10, V - 1 - 20, 10, 20, 2} <= set(few.tolist())
    assert len(few) == len(set(few.tolist())) < V


def test_unseen_text_is_covered(tmp_path: Path) -> None:
    shortlist = learn_shortlist(build(tmp_path, corpus(400)), vocabulary=V, marks=MARKS, size=4, common=0)
    unseen = [(source, np.array(target)) for source, target in corpus(100, seed=1)]
    found = coverage(shortlist, unseen)
    assert found.covered > 0.95
    assert found.size < V / 2
    few = [shortlist.of(source) for source, _ in unseen]
    assert found.size == pytest.approx(sum(map(len, few)) / 100)
    hits = sum(t in row for (_, target), row in zip(unseen, few, strict=True) for t in target.tolist())
    assert found.covered == pytest.approx(hits / sum(len(target) for _, target in unseen))


def test_the_table_is_a_set_with_places_and_turns_away_what_comes_too_late() -> None:
    draw = np.random.default_rng(0)
    table, known = _Table(2**11), set()
    for _ in range(20):
        keys = draw.integers(-1, 2**40, 40)
        table.add(keys)
        known |= set(keys[keys >= 0].tolist())
        table.add(keys[::2])  # again: nothing new
    wanted = np.array([*known, *(key + 1 for key in known if key + 1 not in known), -1])
    found = table.find(wanted)
    assert len(known) < 2**10
    assert len(set(found[: len(known)].tolist())) == len(known)
    assert (table.keys[found[: len(known)]] == wanted[: len(known)]).all()
    assert (found[len(known) :] == -1).all()
    full = _Table(16)
    full.add(np.arange(100) * 7)
    full.add(np.arange(3))
    assert sorted(full.keys[full.keys >= 0].tolist()) == [7 * i for i in range(8)]
    assert full.find(np.array([[0, 1], [49, 56]])).tolist()[0][1] == -1


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = corpus(400)
    monkeypatch.setattr(lexicon, "MOST_SLOTS", 2**10)  # room for 512 of some thousand
    shortlist = learn_shortlist(build(tmp_path, pairs), vocabulary=V, marks=MARKS, size=4, common=0)
    assert len(shortlist.tokens) <= 512 + V
    whole = by_hand(pairs, 5)
    assert len(whole) > 1024


def test_long_pairs_do_not_count_and_a_text_of_nothing_else_is_refused(tmp_path: Path) -> None:
    long: Pairs = [([5] * 300, [6]), ([7], [8] * 256)]
    shortlist = learn_shortlist(build(tmp_path, [*corpus(50), *long]), vocabulary=V, marks=MARKS)
    alone = learn_shortlist(build(tmp_path / "alone", corpus(50)), vocabulary=V, marks=MARKS)
    assert all(np.array_equal(getattr(shortlist, name), getattr(alone, name)) for name in lexicon.DTYPES)
    with pytest.raises(ValueError, match="no pair of at most 255 tokens a side"):
        learn_shortlist(build(tmp_path / "long", long), vocabulary=V, marks=MARKS)
    for name in ("size", "iterations"):
        with pytest.raises(ValueError, match=f"{name} = 0: it must be at least 1"):
            learn_shortlist(build(tmp_path, []), vocabulary=V, marks=MARKS, **{name: 0})


def test_it_is_stored_whole_and_read_back(tmp_path: Path) -> None:
    shortlist = learn_shortlist(build(tmp_path, corpus(100)), vocabulary=V, marks=MARKS, size=5, common=7)
    shortlist.save(tmp_path / "model")
    first = (tmp_path / "model" / "shortlist.safetensors").read_bytes()
    loaded = Shortlist.load(tmp_path / "model")
    for name, dtype in lexicon.DTYPES.items():
        assert getattr(loaded, name).dtype == dtype
        assert np.array_equal(getattr(loaded, name), getattr(shortlist, name))
    loaded.save(tmp_path / "model")
    assert (tmp_path / "model" / "shortlist.safetensors").read_bytes() == first


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no shortlist.safetensors: make one with `regard shortlist"):
        Shortlist.load(tmp_path)
    learn_shortlist(build(tmp_path, corpus(50)), vocabulary=V, marks=MARKS).save(tmp_path)
    path = tmp_path / "shortlist.safetensors"
    good = Shortlist.load(tmp_path)
    arrays = {name: getattr(good, name) for name in lexicon.DTYPES}
    wrong = {
        "not a shortlist: it holds tokens": {"tokens": good.tokens},
        "not a shortlist": arrays | {"tokens": good.tokens.astype(np.int64)},
        "do not fit": arrays | {"offsets": good.offsets[:-1]},
        "parts do not fit": arrays | {"offsets": good.offsets[::-1].copy()},
        "its parts do not fit": arrays | {"common": np.array([V], np.int32)},
        "damaged .its parts": arrays | {"offsets": good.offsets[:0]},
        "its parts are no lists": arrays | {"tokens": good.tokens[None]},
        "damaged .its parts do": arrays | {"common": good.common[:0]},
        "a shortlist: its parts are no lists": arrays | {"offsets": good.offsets[None]},
    }
    for message, content in wrong.items():
        path.write_bytes(save(content))
        with pytest.raises(ValueError, match=message) as caught:
            Shortlist.load(tmp_path)
        assert str(path) in str(caught.value)
    path.write_bytes(b"half")
    with pytest.raises(ValueError, match=r"is damaged .*make it again"):
        Shortlist.load(tmp_path)
