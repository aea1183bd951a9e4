"""Processes and accumulation share one batch out and change nothing of it; any position continues the run."""

import random
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.arrays import Table, pairs_of
from regard.data.batching import Batch, Position, batches_from, collate
from regard.data.vocabulary import EOS
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.loop import Learner
from regard.training.objectives import NextToken
from regard.training.run import Work
from regard.training.stream import Collate, stream

VOCABULARY, TOKENS, SEED = 20, 60, 5
SOME = 20  # batches: the corpus below is gone through more than twice
SPLITS = pytest.mark.parametrize(("size", "accumulate"), [(1, 1), (2, 1), (1, 3), (3, 2), (5, 2)])
Pair = tuple[list[int], list[int]]
Resample = Callable[[Any, random.Random], Any]  # the ids of a text -> those of another segmentation


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """60 pairs, the source and the target of each of a length of its own."""
    draw = random.Random(0)
    rows = [[[draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(1, 9))] for _ in "st"] for _ in range(60)]
    return Table.build(tmp_path_factory.mktemp("data") / "arrays", map(tuple, rows), pairs_of(VOCABULARY))  # type: ignore[arg-type]


def works(
    arrays: Table,
    count: int = SOME,
    *,
    rank: int = 0,
    size: int = 1,
    position: Position = Position(),  # noqa: B008  it is frozen
    resample: Resample | None = None,
    **changes: Any,
) -> list[Work]:
    config = TrainConfig(**{"steps": 1, "batch_tokens": TOKENS, "seed": SEED} | changes)
    return list(islice(stream(arrays, collating(resample), config, World(rank, size), position), count))


def collating(resample: Resample | None) -> Collate:
    """Pairs as they are, or each text of them segmented anew."""
    if resample is None:
        return collate
    return lambda rows, draw: collate([(resample(s, draw), resample(t, draw)) for s, t in rows])


def pairs(parts: Iterable[Batch]) -> list[Pair]:
    """The pairs that a model learns from in some batches, in order."""
    found = []
    for part in parts:
        for row in zip(part["source"].tolist(), part["labels"].tolist(), strict=True):
            if part.count:
                source, target = (side[: side.index(EOS)] for side in row)
                found.append((source, target))
    return found


def together(ranks: Iterable[list[Work]]) -> Iterable[list[Work]]:
    """The work of all processes, step by step."""
    return map(list, zip(*ranks, strict=True))


def equal(a: Work, b: Work) -> bool:
    same = all(
        torch.equal(x, y)
        for p, q in zip(a.parts, b.parts, strict=True)
        for x, y in zip(p.tensors.values(), q.tensors.values(), strict=True)
    )
    return same and (a.tokens, a.after) == (b.tokens, b.after)


def longer(ids: Any, draw: random.Random) -> list[int]:
    """The same text, and a few ids more."""
    return [*ids.tolist(), *(draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(4)))]


def test_one_process_works_on_whole_batches_epoch_after_epoch(arrays: Table) -> None:
    planned = islice(batches_from(arrays, Position(), tokens=TOKENS, seed=SEED), SOME)
    for work, (after, rows) in zip(works(arrays), planned, strict=True):
        batch = collate(arrays.rows(rows))
        assert equal(work, Work([batch], batch.count, after))
    assert work.after.epoch >= 2


@SPLITS
def test_ranks_and_accumulation_together_are_the_batch_of_one_process(
    arrays: Table, size: int, accumulate: int
) -> None:
    ranks = [works(arrays, rank=rank, size=size, accumulate=accumulate) for rank in range(size)]
    for whole, shares in zip(works(arrays), together(ranks), strict=True):
        assert {len(share.parts) for share in shares} == {accumulate}
        parts = [share.parts[i] for i in range(accumulate) for share in shares]
        assert pairs(parts) == pairs(whole.parts)
        assert sum(part.count for part in parts) == whole.tokens
        assert {(share.tokens, share.after) for share in shares} == {(whole.tokens, whole.after)}


@pytest.mark.parametrize("resample", [None, longer])
def test_any_position_continues_the_run(arrays: Table, resample: Resample | None) -> None:
    whole = works(arrays, resample=resample)
    for i, work in enumerate(whole):
        rest = whole[i + 1 : i + 4]
        assert all(map(equal, works(arrays, len(rest), position=work.after, resample=resample), rest))


@SPLITS
def test_resampled_texts_are_the_same_in_every_process_and_their_labels_are_counted(
    arrays: Table, size: int, accumulate: int
) -> None:
    plain, whole = works(arrays), works(arrays, resample=longer)
    ranks = [works(arrays, rank=rank, size=size, accumulate=accumulate, resample=longer) for rank in range(size)]
    for before, after, shares in zip(plain, whole, together(ranks), strict=True):
        for (source, target), (s, t) in zip(pairs(before.parts), pairs(after.parts), strict=True):
            assert (s[: len(source)], t[: len(target)]) == (source, target)
        parts = [share.parts[i] for i in range(accumulate) for share in shares]
        assert pairs(parts) == pairs(after.parts)
        assert {share.tokens for share in shares} == {sum(part.count for part in parts)}
    assert sum(work.tokens for work in whole) > sum(work.tokens for work in plain)


def test_every_epoch_and_seed_resamples_anew(tmp_path: Path) -> None:
    one = Table.build(tmp_path / "one", [([3, 4], [5])], pairs_of(VOCABULARY))  # one pair: an order of one kind

    def dice(ids: Any, draw: random.Random) -> list[int]:
        return [draw.randrange(3, VOCABULARY) for _ in range(6)]

    drawn = [pairs(work.parts)[0] for seed in (1, 2) for work in works(one, 5, seed=seed, resample=dice)]
    texts = {tuple(text) for pair in drawn for text in pair}
    assert len(texts) == 2 * 5 * 2  # source and target, epochs, seeds


@pytest.mark.parametrize(("size", "accumulate"), [(3, 1), (2, 2)])
def test_a_process_without_rows_keeps_step_with_a_batch_of_nothing(tmp_path: Path, size: int, accumulate: int) -> None:
    few = Table.build(tmp_path / "few", [([3, 4], [5]), ([6, 7], [8])], pairs_of(VOCABULARY))
    ranks = [works(few, 1, rank=rank, size=size, accumulate=accumulate)[0] for rank in range(size)]
    assert {work.tokens for work in ranks} == {4}
    parts = [part for work in ranks for part in work.parts]
    assert sorted(pairs(parts)) == [([3, 4], [5]), ([6, 7], [8])]
    empty = [part for part in parts if not part.count]
    assert len(empty) == size * accumulate - 2
    model = Transformer(TransformerConfig.tiny(VOCABULARY, encoder_layers=1, decoder_layers=1))
    before = [p.clone() for p in model.parameters()]
    with Learner(NextToken(model), lambda step: 0.1, TrainConfig(steps=1, shards=1, clip=0)) as learner:
        assert learner.step(empty, 4).loss == 0
    assert all(map(torch.equal, model.parameters(), before))


def test_a_pair_that_fits_no_batch_is_named_at_the_first_step(arrays: Table) -> None:
    with pytest.raises(ValueError, match=r"example \d+ has 9 tokens .* raise train\.batch_tokens"):
        works(arrays, batch_tokens=8)


def test_the_next_work_is_made_while_a_step_computes(arrays: Table) -> None:
    batches: list[random.Random] = []
    makers, ahead = set(), threading.Event()

    def watch(ids: Any, draw: random.Random) -> Any:
        makers.add(threading.get_ident())
        batches.append(draw)
        if draw is not batches[0]:
            ahead.set()
        return ids

    config = TrainConfig(steps=1, batch_tokens=TOKENS, seed=SEED)
    work = stream(arrays, collating(watch), config, World(0, 1), Position())
    next(work)
    assert ahead.wait(timeout=60)  # nobody has asked for a second batch
    assert len(makers) == 1
    assert makers != {threading.get_ident()}
