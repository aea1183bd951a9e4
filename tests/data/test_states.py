from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.states import States

RANDOM = np.random.default_rng(0)
KEYS = RANDOM.normal(size=(300, 8)).astype(np.float32)
ROWS = [(1, [5, 6, 7]), (2, [8] * 96), (7, RANDOM.integers(0, 9, 202).tolist())]


def lessons(calls: list[int] | None = None, until: int = 99) -> Any:
    """All states, 70 at a time; `until` so many are made, then the power fails."""
    for number, begin in enumerate(range(0, 300, 70)):
        some = slice(begin, min(begin + 70, 300))

        def make(some: slice = some, number: int = number) -> Any:
            if number == until:
                raise KeyboardInterrupt
            if calls is not None:
                calls.append(number)
            return KEYS[some], np.arange(300)[some] + 1

        yield some.stop - some.start, make


def built(folder: Path, near: str = "exact") -> States:
    states = States(folder, 8, "model", near)
    assert states.remember("a.txt", "digest", [(line, [*ids]) for line, ids in [*ROWS, (9, [1])]], lessons())
    states.grow()
    return States.at(folder, 8, "model", near)


def nearest(query: Any, k: int) -> list[tuple[float, int]]:
    """In plain loops."""
    far = [(sum((float(a) - float(b)) ** 2 for a, b in zip(key, query, strict=True)), i) for i, key in enumerate(KEYS)]
    return sorted(far)[:k]


@pytest.mark.parametrize("near", ["exact", "ivf", "hnsw"])
def test_the_nearest_are_those_of_plain_loops(tmp_path: Path, near: str) -> None:
    if near != "exact":
        pytest.importorskip("faiss")
    states, queries = built(tmp_path / "memory", near), RANDOM.normal(size=(30, 8)).astype(np.float32)
    distances, numbers = states.nearest(queries, 7)
    found = 0
    for query, far, which in zip(queries, distances, numbers, strict=True):
        expected = nearest(query, 7)
        found += len({i for _, i in expected} & {*which.tolist()})
        truth = {i: d for d, i in nearest(query, 300)}
        np.testing.assert_allclose(far, [truth[i] for i in which.tolist()], rtol=1e-12)
    assert found == 30 * 7 if near == "exact" else found > 0.9 * 30 * 7
    alone = [states.nearest(query[None], 7) for query in queries]
    assert np.array_equal(distances, np.concatenate([d for d, _ in alone]))  # to the bit, in any company
    assert np.array_equal(numbers, np.concatenate([n for _, n in alone]))
    assert states.nearest(queries[:1], 1000)[0].shape[1] <= 300


def test_of_equals_the_first_comes_first(tmp_path: Path) -> None:
    states = States(tmp_path / "memory", 2, "model")
    made = lambda: (np.ones((5, 2), np.float32), np.arange(5))  # noqa: E731
    states.remember("a", "a", [(1, [4, 3, 2, 1, 0])], [(5, made)])
    distances, numbers = states.nearest(np.zeros((1, 2), np.float32), 3)
    assert (distances.tolist(), numbers.tolist()) == ([[2.0] * 3], [[0, 1, 2]])
    assert states.tokens(numbers).tolist() == [[4, 3, 2]]


def test_a_state_knows_what_stands_around_it(tmp_path: Path) -> None:
    states = built(tmp_path / "memory")
    found = states.neighbour(1)  # the third of all ids
    assert found == ("a.txt", 1, 7, [5, 6], [])
    assert states.neighbour(2).line == 2
    assert states.neighbour(2).token == 8
    assert len(states.neighbour(2).after) == 95
    assert states.neighbour(299).line == 7
    assert states.neighbour(299).after == []


def test_an_interrupted_part_goes_on_and_counts_when_it_is_whole(tmp_path: Path) -> None:
    whole, calls = built(tmp_path / "whole"), list[int]()
    states, rows = States(tmp_path / "cut", 8, "model"), [*ROWS, (9, [1])]
    with pytest.raises(KeyboardInterrupt):
        states.remember("a.txt", "digest", rows, lessons(until=3))
    with pytest.raises(ValueError, match="has nothing in it yet"):
        States.at(tmp_path / "cut", 8, "model")
    with open(tmp_path / "cut" / "states.f32", "ab") as file:
        file.write(b"half a state")
    states = States(tmp_path / "cut", 8, "model")
    assert states.remember("a.txt", "digest", rows, lessons(calls))
    assert calls == [3, 4]
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes()
    assert not states.remember("elsewhere.txt", "digest", rows, lessons(calls))  # the same bytes
    assert len(states) == len(whole) == 300


def test_another_part_takes_the_place_of_one_that_was_left(tmp_path: Path) -> None:
    states = built(tmp_path / "memory")
    with pytest.raises(KeyboardInterrupt):
        states.remember("b.txt", "b", ROWS, lessons(until=2))
    states = States(tmp_path / "memory", 8, "model")
    made = lambda: (np.full((2, 8), 9, np.float32), np.array([0, 1]))  # noqa: E731
    states.remember("c.txt", "c", [(4, [3, 2])], [(2, made)])
    assert len(states) == 302
    _, numbers = states.nearest(np.full((1, 8), 9, np.float32), 2)
    assert [states.neighbour(int(i))[:3] for i in numbers[0]] == [("c.txt", 4, 3), ("c.txt", 4, 2)]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    states = built(tmp_path / "memory")
    with pytest.raises(ValueError, match="has the states of another model"):
        States(tmp_path / "memory", 8, "other")
    with pytest.raises(ValueError, match="has states of 8 numbers, the model has 16"):
        States(tmp_path / "memory", 16, "model")
    with pytest.raises(ValueError, match="is asked with 4"):
        states.nearest(np.zeros((1, 4), np.float32), 2)
    with pytest.raises(ValueError, match="is not there: build it"):
        States.at(tmp_path / "none", 8, "model")
    (tmp_path / "memory" / "states.f32").write_bytes(b"short")
    with pytest.raises(ValueError, match="is damaged, it is too short"):
        States.at(tmp_path / "memory", 8, "model")
    (tmp_path / "memory" / "memory.json").write_text("{}")
    with pytest.raises(ValueError, match=r"memory.json is damaged"):
        States.at(tmp_path / "memory", 8, "model")
