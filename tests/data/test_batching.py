"""Every pair once an epoch, within the budget, in an order that a seed and a position determine."""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from regard.data.arrays import Table, pairs_of
from regard.data.batching import Batch, Position, batches_from, collate, prefetch, split_rows, token_batches
from regard.data.vocabulary import BOS, EOS, PAD

Ints = NDArray[np.int64]
DATA = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


class Lengths:
    """Pairs of which only the lengths are known."""

    marks = 1

    def __init__(self, lengths: Any) -> None:
        self.table: Ints = np.array(lengths, dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.table)

    def lengths(self, indices: Ints, /) -> Ints:
        return self.table[indices]


def lists(batches: Iterator[Ints]) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


examples = settings(max_examples=50, deadline=None)
TABLE = Lengths(np.random.default_rng(0).integers(0, 40, (500, 2)))
tables = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), min_size=1, max_size=80).map(Lengths)
settings_of = st.fixed_dictionaries(
    {
        "tokens": st.integers(20, 200),
        "seed": st.integers(0, 2**70),
        "pool": st.integers(1, 100),
        "shuffle": st.booleans(),
    }
)


@examples
@given(table=tables, epoch=st.integers(0, 9), options=settings_of)
def test_every_pair_comes_once_within_the_budget(table: Lengths, epoch: int, options: dict[str, Any]) -> None:
    batches = list(token_batches(table, epoch=epoch, **options))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(table)))
    for rows in batches:
        source, target = table.table[rows].max(axis=0) + 1
        assert len(rows) * max(source, target) <= options["tokens"]


@examples
@given(table=tables, epoch=st.integers(0, 9), options=settings_of)
def test_the_order_is_a_function_of_its_arguments(table: Lengths, epoch: int, options: dict[str, Any]) -> None:
    assert lists(token_batches(table, epoch=epoch, **options)) == lists(token_batches(table, epoch=epoch, **options))


def test_the_order_is_the_same_on_every_machine() -> None:
    table = Lengths([[3, 4]] * 6)
    # Pinned: a training may go on under another version of numpy.
    assert lists(token_batches(table, tokens=10, seed=1, epoch=2)) == [[3, 2], [1, 4], [0, 5]]


def test_every_epoch_and_seed_has_an_order_of_its_own() -> None:
    orders = [
        np.concatenate(list(token_batches(TABLE, tokens=100, seed=seed, epoch=epoch))).tolist()
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (2**32, 0)]
    ]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_every_row_of_a_pool_may_meet_every_other_of_its_shape() -> None:
    table = Lengths([[3, 3]] * 8)
    company = {
        frozenset(rows) for epoch in range(200) for rows in lists(token_batches(table, tokens=8, seed=0, epoch=epoch))
    }
    assert len(company) == 8 * 7 / 2


def test_a_pool_is_made_of_blocks_from_anywhere() -> None:
    table = Lengths([[3, 3]] * 2**15)
    first = next(token_batches(table, tokens=4 * 1024, seed=0, epoch=0, pool=2**14))
    assert len(np.unique(first // 2**12)) == 4  # blocks of 2**12, four to a pool
    pools = {
        frozenset(np.unique(next(token_batches(table, tokens=4096, seed=0, epoch=e, pool=2**14)) // 2**12).tolist())
        for e in range(5)
    }
    assert len(pools) > 1


def test_without_shuffling_pools_follow_the_corpus_and_epochs_are_alike() -> None:
    first, second = (lists(token_batches(TABLE, tokens=100, seed=0, epoch=e, pool=100, shuffle=False)) for e in (0, 1))
    assert first == second
    pools = [row // 100 for rows in first for row in rows]
    assert pools == sorted(pools)


@pytest.mark.parametrize("seed", range(3))
def test_cuts_are_the_best_of_all_cuts(seed: int) -> None:
    """Against all 2**(n - 1) ways to cut the same order: the least padded positions and charges."""
    lengths = np.random.default_rng(seed).integers(0, 9, (11, 2))
    tokens = 30
    batches = list(token_batches(Lengths(lengths), tokens=tokens, seed=0, epoch=0, shuffle=False))

    def cost(batches: list[Ints]) -> float:
        shapes = [(len(rows), *(lengths[rows].max(axis=0) + 1)) for rows in batches]
        fits = all(B * max(S, T) <= tokens for B, S, T in shapes)
        return sum(B * (S + T) + 0.3 * tokens for B, S, T in shapes) if fits else np.inf

    order = np.concatenate(batches)
    ways = (np.split(order, [i + 1 for i in range(10) if cuts >> i & 1]) for cuts in range(2**10))
    assert cost(batches) == min(cost(way) for way in ways)


@pytest.mark.parametrize("tokens", [2048, 4096])
@pytest.mark.parametrize("sides", [("en", "de"), ("de", "en")])
def test_little_of_multi30k_is_padding(tokens: int, sides: tuple[str, str]) -> None:
    folder = DATA / "multi30k" / "bpe"
    if not folder.exists():
        pytest.skip("Multi30k is not here: set REGARD_SHARED_DATA to the folder that holds multi30k/bpe")
    columns = []
    for side in sides:
        with gzip.open(folder / f"train.{side}.gz", "rt", encoding="utf-8") as lines:
            columns.append([len(line.split()) for line in lines])
    table = Lengths(np.array(columns).T)
    batches = list(token_batches(table, tokens=tokens, seed=1, epoch=0))
    positions = sum(len(rows) * int((table.table[rows].max(axis=0) + 1).sum()) for rows in batches)
    assert 1 - (table.table + 1).sum() / positions < 0.03
    # And not by making the batches small: with no padding at all, batches would be this many.
    assert len(batches) < 1.1 * (table.table.max(axis=1) + 1).sum() / tokens


def test_a_pair_beyond_the_budget_fails_before_the_first_batch() -> None:
    table = Lengths([[3, 4], [5, 5], [2, 19], [1, 1]])
    assert sum(map(len, token_batches(table, tokens=20, seed=0, epoch=0))) == 4
    message = r"example 2 has 20 tokens .* batch has 19: raise train\.batch_tokens, or lower data\.max_length"
    with pytest.raises(ValueError, match=message):
        token_batches(table, tokens=19, seed=0, epoch=0, pool=2)
    with pytest.raises(ValueError, match=message):
        batches_from(table, Position(), tokens=19, seed=0)


def test_no_pairs_and_a_negative_seed_are_errors() -> None:
    with pytest.raises(ValueError, match="no examples"):
        token_batches(Lengths([]), tokens=19, seed=0, epoch=0)
    with pytest.raises(ValueError, match="seed = -1: it must be at least 0"):
        token_batches(TABLE, tokens=100, seed=-1, epoch=0)


@examples
@given(table=tables, options=settings_of, stop=st.integers(0, 60))
def test_a_run_goes_on_exactly_where_it_stopped(table: Lengths, options: dict[str, Any], stop: int) -> None:
    def steps(position: Position) -> Iterator[tuple[Position, Ints]]:
        return batches_from(table, position, **options)

    run = [(position, rows.tolist()) for position, rows in islice(steps(Position()), stop + 20)]
    position = run[stop - 1][0] if stop else Position()
    assert [(p, rows.tolist()) for p, rows in islice(steps(position), 20)] == run[stop:]


@examples
@given(table=tables, options=settings_of)
def test_epochs_follow_each_other(table: Lengths, options: dict[str, Any]) -> None:
    epochs = [lists(token_batches(table, epoch=epoch, **options)) for epoch in range(3)]
    run = list(islice(batches_from(table, Position(), **options), sum(map(len, epochs))))
    assert [rows.tolist() for _, rows in run] == [rows for epoch in epochs for rows in epoch]
    ends = [number for number, (position, _) in enumerate(run, start=1) if position.batch == 0]
    assert ends == np.cumsum([len(epoch) for epoch in epochs]).tolist()
    assert run[-1][0] == Position(epoch=3, batch=0)
    last = Position(epoch=0, batch=len(epochs[0]))  # another way to write Position(1)
    assert next(batches_from(table, last, **options))[1].tolist() == epochs[1][0]


@examples
@given(table=tables, parts=st.integers(1, 12))
def test_parts_make_up_the_batch_and_are_even(table: Lengths, parts: int) -> None:
    indices = np.arange(len(table)) * 7
    split = split_rows(indices, parts, lengths=table.table)
    assert len(split) == parts
    assert np.concatenate(split).tolist() == indices.tolist()
    assert sum(len(part) == 0 for part in split) == max(0, parts - len(table))
    tokens = table.table.sum(axis=1) + 2
    sums = [tokens[part // 7].sum() for part in split]
    assert max(sums) <= tokens.sum() / parts + tokens.max()


def test_equal_rows_are_shared_out_equally() -> None:
    split = split_rows(np.arange(12), 4, lengths=np.full((12, 2), 5))
    assert [part.tolist() for part in split] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


ids = st.lists(st.integers(3, 60_000), max_size=8)


@examples
@given(pairs=st.lists(st.tuples(ids, ids), max_size=6), dtype=st.sampled_from(["<u2", "<u4", "<i8"]))
def test_collate_pads_arrays_as_it_pads_lists(pairs: list[tuple[list[int], list[int]]], dtype: str) -> None:
    batch = collate((np.array(source, dtype), np.array(target, dtype)) for source, target in pairs)
    again = collate(pairs)
    assert batch.count == sum(len(target) + 1 for _, target in pairs)
    for name in ("source", "target", "labels"):
        ours = batch[name]
        assert ours.dtype == torch.int64
        assert torch.equal(ours, again[name])
        rows = [
            {"source": [*source, EOS], "target": [BOS, *target], "labels": [*target, EOS]}[name]
            for source, target in pairs
        ]
        width = max(map(len, rows), default=1)
        assert ours.tolist() == [row + [PAD] * (width - len(row)) for row in rows]


def test_inputs_and_devices_of_a_batch() -> None:
    batch = collate([([5, 6], [6, 5]), ([7], [7]), ([8], [8])])
    assert len(batch) == 3
    assert batch.inputs.keys() == {"source", "target"}
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert {x.device.type for x in moved.tensors.values()} == {"meta"}
    assert moved.count == 7


def test_skipping_reads_no_tokens(tmp_path: Path) -> None:
    arrays = Table.build(tmp_path / "a", [([5] * (i % 7), [6] * (i % 5)) for i in range(100)], pairs_of(10))
    for name in ("source.ids", "target.ids"):
        (tmp_path / "a" / name).unlink()
    table = Lengths([(i % 7, i % 5) for i in range(100)])
    ours, expected = (islice(batches_from(x, Position(2, 5), tokens=20, seed=3), 9) for x in (arrays, table))
    assert [rows.tolist() for _, rows in ours] == [rows.tolist() for _, rows in expected]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("ahead", [1, 2, 4, 50])
def test_prefetched_items_come_in_order_from_one_other_thread(ahead: int) -> None:
    makers = set()

    def make() -> Iterator[int]:
        for i in range(20):
            makers.add(threading.get_ident())
            yield i

    assert list(prefetch(make(), ahead)) == list(range(20))
    assert len(makers) == 1
    assert makers != {threading.get_ident()}
    assert threads() == []


def test_prefetch_works_ahead_but_not_further() -> None:
    made, third = [], threading.Event()

    def make() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            if i == 3:
                third.set()
            yield i

    items = prefetch(make(), ahead=3)
    assert made == []  # nothing runs before the first item is asked for
    assert next(items) == 0
    assert third.wait(timeout=60)  # 1, 2 and 3 are made while nobody asks
    items.close()
    assert made == [0, 1, 2, 3]


def test_an_error_comes_after_the_items_before_it() -> None:
    def make() -> Iterator[int]:
        yield 1
        yield 2
        raise ConnectionError("cable")

    items = prefetch(make())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ConnectionError, match="cable"):
        next(items)
    assert threads() == []
    with pytest.raises(ValueError, match="ahead = 0: it must be at least 1"):
        next(prefetch([1], ahead=0))


@pytest.mark.parametrize("how", ["close", "forget", "raise"])
def test_the_thread_ends_when_the_consumer_stops(how: str) -> None:
    closed = []

    def make() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    items = prefetch(make())
    assert next(items) == 1
    assert len(threads()) == 1
    if how == "close":
        items.close()
    elif how == "raise":
        with pytest.raises(KeyboardInterrupt):
            items.throw(KeyboardInterrupt)
    del items
    assert threads() == []
    assert closed == [True]


@pytest.mark.slow
def test_a_program_may_end_in_the_middle() -> None:
    code = "from itertools import count\nfrom regard.data.batching import prefetch\n"
    code += "items = prefetch(count())\nprint(next(items), next(items))\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0 1\n", "")
