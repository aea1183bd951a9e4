"""What a model does with sequences longer than any that taught it: the trials of the experiment `extrapolation`.

A contestant is a kind of positions, in a Transformer, or a recurrent preset, which needs none. It learns from sequences
of up to `limit` tokens and is measured by length.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from regard.data.corpora import obtain
from regard.data.generated import sequence_pairs
from regard.data.vocabulary import Vocabulary
from regard.evaluation.calibration import perplexity
from regard.evaluation.translation import bleu
from regard.experiments.lab import Result
from regard.experiments.runs import Pair, batched, foretold, taught, written
from regard.models.family import build, presets
from regard.models.transformer import TransformerConfig
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.training.validation import foretell

KINDS = ("sinusoidal", "learned", "shaw", "t5", "rope", "alibi", "none")
RIVALS = ("lstm", "linear-rnn")
SYMBOLS = "abcdefghijklmnopqrstuvwxyz"
TEST = 10**6  # added to the seed of a test
ROWS = 128  # of a batch that is tested
CHUNK = 4096  # pairs read at a time

Size = Mapping[str, Any]  # d_model, layers (of encoder and decoder each), heads, dropout


def contestant(name: str, vocabulary: int, limit: int, size: Size, seed: int) -> nn.Module:
    """An untaught model: a kind of positions or a rival. Learned positions are for `limit` tokens and a mark."""
    layers = {"encoder_layers": size["layers"], "decoder_layers": size["layers"]}
    common = {**layers, "d_model": size["d_model"], "dropout": size["dropout"]}
    torch.manual_seed(seed)
    if name in RIVALS:
        heads = {"heads": size["heads"]} if name == "linear-rnn" else {}
        return build(presets()[name](vocabulary).but(**common, **heads))
    attention = {"heads": size["heads"], "d_ff": 4 * size["d_model"], "positions": name, "max_length": limit + 1}
    return build(TransformerConfig(vocabulary, norm="pre").but(**common, **attention))


def longest(pairs: Iterable[Pair]) -> int:
    """The most tokens that a side has."""
    return max(max(map(len, pair)) for pair in pairs)


def readable(model: nn.Module, pairs: Sequence[Pair]) -> bool:
    """Whether the model has a position for each token and the mark at an end."""
    config: Any = model.config
    return config.longest is None or longest(pairs) < config.longest


def judged(model: nn.Module, pairs: Sequence[Pair]) -> tuple[float | None, float | None]:
    """The shares of pairs and of labels that are `foretold` right; None for what the model cannot read."""
    return foretold(model, batched(model, pairs, ROWS))[:2] if readable(model, pairs) else (None, None)


def by_length(model: nn.Module, groups: Mapping[int, Sequence[Pair]]) -> Result:
    """`judged` for each length."""
    exact, tokens = zip(*(judged(model.eval(), pairs) for pairs in groups.values()), strict=True)
    counts = [len(pairs) for pairs in groups.values()]
    return {"lengths": list(groups), "counts": counts, "exact": list(exact), "tokens": list(tokens)}


def shuffled(fetch: Callable[[list[int]], Sequence[Pair]], rows: Iterable[int], seed: int) -> Iterator[Pair]:
    """The pairs of these rows in a random order, again and again; `fetch` gives some of them at a time."""
    draw, order = random.Random(seed), list(rows)
    while True:
        draw.shuffle(order)
        for start in range(0, len(order), CHUNK):
            yield from fetch(order[start : start + CHUNK])


def algorithm(
    folder: Path,
    console: Console,
    *,
    task: str,
    name: str,
    limit: int,
    tested: int,
    size: Size,
    seed: int,
    **teaching: Any,
) -> Result:
    """A trial: copy, reverse or sort, taught with up to `limit` letters, asked for up to four times as many."""
    letters = Vocabulary(tuple(SYMBOLS))

    def pairs(lengths: Sequence[int], seed: int) -> Iterator[Pair]:
        drawn = sequence_pairs(task, symbols=SYMBOLS, lengths=lengths, seed=seed)
        return ((letters.encode(source), letters.encode(target)) for source, target in drawn)

    model = contestant(name, len(letters), limit, size, seed)
    losses = taught(model, pairs(range(1, limit + 1), seed), console, seed=seed, name=f"{task}, {name}", **teaching)
    lengths = sorted({max(1, limit * quarter // 4) for quarter in range(1, 17)})
    groups = {length: list(islice(pairs([length], seed + TEST), tested)) for length in lengths}
    return {**by_length(model, groups), "limit": limit, **_about(model, losses)}


def commands(
    folder: Path, console: Console, *, split: str, name: str, tested: int | None, size: Size, seed: int, **teaching: Any
) -> Result:
    """A trial: a split of SCAN; lengths are those of the actions, the limit is the longest in training."""
    texts = {part: list(files.read()) for part, files in obtain(f"scan-in-out-{split}").items()}
    words = Vocabulary(tuple(sorted({word for pair in texts["train"] for side in pair for word in side.split()})))
    pairs: dict[str, list[Pair]] = {
        part: [(words.encode(source.split()), words.encode(target.split())) for source, target in found]
        for part, found in texts.items()
    }
    limit = longest(pairs["train"])
    model = contestant(name, len(words), limit, size, seed)
    lessons = shuffled(lambda rows: [pairs["train"][i] for i in rows], range(len(pairs["train"])), seed)
    losses = taught(model, lessons, console, seed=seed, name=f"SCAN {split}, {name}", **teaching)
    chosen = pairs["test"] if tested is None else random.Random(seed).sample(pairs["test"], tested)
    groups: dict[int, list[Pair]] = {}
    for pair in sorted(chosen, key=lambda pair: len(pair[1])):
        groups.setdefault(len(pair[1]), []).append(pair)
    return {**by_length(model, groups), "limit": limit, **_about(model, losses)}


def translation(
    folder: Path,
    console: Console,
    *,
    recipe: str,
    changes: Sequence[str],
    name: str,
    limit: int,
    tested: int,
    size: Size,
    seed: int,
    **teaching: Any,
) -> Result:
    """A trial: short sentences of a corpus taught, longer ones translated; lengths are those of the longer side.

    Groups reach up to 1, 1½, 2, 3 and 4 times the limit. The first is of the corpus's test sentences; the others are
    of its training sentences as well, which are too long to have taught anything.
    """
    data = prepare(recipes.load(recipe, changes))
    lengths = data.train.lengths(np.arange(len(data.train))).max(1)  # (N,)
    short = np.flatnonzero(lengths <= limit).tolist()
    if not short:
        raise ValueError(f"no training sentence of {recipe} has {limit} sub-words or less: raise limit")

    def fetch(rows: Sequence[int]) -> list[Pair]:
        return [(source.tolist(), target.tolist()) for source, target in data.train.rows(rows)]

    model = contestant(name, len(data.tokenizer), limit, size, seed)
    losses = taught(model, shuffled(fetch, short, seed), console, seed=seed, name=f"translation, {name}", **teaching)
    encode, decode = data.tokenizer.encode, data.tokenizer.decode
    held_out: list[Pair] = [(encode(source), encode(target)) for source, target in data.test]
    rows: list[list[float | None]] = []
    model.eval()
    for low, high in pairwise([0, limit, limit * 3 // 2, 2 * limit, 3 * limit, 4 * limit]):
        group = [pair for pair in held_out if low < longest([pair]) <= high][:tested]
        if low >= limit:
            group += fetch(np.flatnonzero((low < lengths) & (lengths <= high)).tolist()[: tested - len(group)])
        if not group or not readable(model, group):
            rows.append([high, len(group), None, None, None])
            continue
        said = written(model, group, extra=10)
        score = bleu([decode(ids) for ids in said], [decode(target) for _, target in group]).value
        share = sum(map(len, said)) / sum(len(target) for _, target in group)
        rows.append([high, len(group), score, perplexity(foretell(model, group).loss, 1), share])
    columns = ("lengths", "counts", "bleu", "perplexity", "ratio")
    found = {key: list(column) for key, column in zip(columns, zip(*rows, strict=True), strict=True)}
    size = {"limit": limit, "taught": len(short), "corpus": len(data.train), "vocabulary": len(data.tokenizer)}
    return {**found, **size, **_about(model, losses)}


def _about(model: nn.Module, losses: Sequence[float]) -> Result:
    last = losses[-max(1, len(losses) // 20) :]
    return {
        "loss": sum(last) / len(last),  # of training, at its end
        "steps": len(losses),
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
    }
