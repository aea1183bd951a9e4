"""A language model: documents of plain text, a decoder that says what comes next, perplexity and bits a byte.

All documents stand one after the other, each from `bos` to `eos`, and are cut into blocks: nothing is padded, nothing
left out. Which documents share a block is chance, so no token sees another document, unless it may.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.checks import at_least
from regard.core.generation import DecoderOnly
from regard.data.batching import Batch
from regard.data.corpora import CORPORA
from regard.data.documents import Passage
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import Marks
from regard.decoding.protocol import SamplingConfig, SearchConfig
from regard.tasks.generator import Generator
from regard.tasks.task import Evidence, Measured, Sections
from regard.tasks.texts import OverText, TextConfig
from regard.training.objectives import IGNORE, NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate
from regard.training.validation import foretold

ROWS = 32  # blocks of held-out text that are looked at together
SAMPLES = 5  # of what is written after held-out text
CHANCE = SamplingConfig(0.8, top_p=0.95)
STRETCH, FEWEST = 500, 20  # characters of a text that are drawn together; fewer, so that there are so many stretches
PROMPT = 40  # characters of held-out text that a sample goes on from


@dataclass(frozen=True)
class GenerateConfig:
    """What a model is for."""

    name: str = "generate"
    block: int = 256  # tokens that are read together
    apart: bool = True  # no token sees another document of its block

    def __post_init__(self) -> None:
        at_least(2, **{"task.block": self.block})


@dataclass(frozen=True)
class WriteConfig(SearchConfig):
    """How a text is gone on with."""

    limit: int | None = 200  # tokens that are written at most
    sampling: SamplingConfig | None = CHANCE  # draw what is written by chance; null: search


@dataclass(frozen=True)
class JudgeConfig:
    """How a language model is judged."""

    stride: int | None = None  # each window sees so many tokens it has not seen: half a block, if left out


@dataclass(frozen=True)
class Generate(OverText):
    """Text in, more text out."""

    block: int = GenerateConfig.block
    apart: bool = True

    name, called = "generate", "completion"
    sections = Sections(GenerateConfig, TextConfig, WriteConfig, JudgeConfig)
    needs = DecoderOnly

    def examples(self, rows: Sequence[Passage], tokenizer: Tokenizer) -> Iterator[tuple[list[int]]]:
        begin, end = tokenizer.marks.frame
        for row, (ids,) in zip(rows, super().examples(rows, tokenizer), strict=True):
            own = ids[1:] if begin and ids[:1] == begin else ids  # which a tokenizer of others may have put there
            yield ([*(begin if row.first else []), *own, *(end if row.last else [])],)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 for a language model")

        def shifted(rows: Sequence[tuple[NDArray[Any]]], draw: Random) -> Batch:
            """A block of each window, from wherever chance has it."""
            starts = [draw.randrange(max(1, len(ids) - self.block)) for (ids,) in rows]
            some = [ids[start : start + self.block + 1] for (ids,), start in zip(rows, starts, strict=True)]
            return blocks(some, tokenizer.marks, self.apart)

        return shifted

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return NextToken(model, smoothing, ignore=IGNORE)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: WriteConfig, **how: Any) -> Generator:
        return Generator(models, tokenizer, use, **how)

    def windows(self, ids: Sequence[int], marks: Marks, stride: int) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
        """Batches of the windows of a text, and which of its tokens each of their labels is (B, T)."""
        windows, stride = list(sliding(ids, self.block, stride)), min(stride, self.block)
        for i in range(0, len(windows), ROWS):
            some, seen = zip(*windows[i : i + ROWS], strict=True)
            batch = blocks(some, marks, self.apart, seen)
            first = stride * np.arange(i, i + len(some))[:, None] + 1
            yield batch, first + np.arange(batch["labels"].shape[1])

    def foretell(self, predictor: Generator, held_out: Sequence[Passage], stride: int) -> dict[str, float]:
        """How likely a model holds a text: nats a token, and bits a byte, which compare models of other sub-words."""
        found = self.evidence(predictor, held_out, stride)
        return found.figures(np.arange(found.rows))

    def evidence(self, predictor: Generator, held_out: Sequence[Passage], stride: int) -> Evidence:
        """The same of some stretches of the text, which are those of every model, whatever its sub-words."""
        tokenizer, text = predictor.tokenizer, "".join(passage.text for passage in held_out)
        ids = [id for (row,) in self.examples(held_out, tokenizer) for id in row]
        places = list[NDArray[np.int64]]()  # of each label, by number

        def batches() -> Iterator[Batch]:
            for batch, which in self.windows(ids, tokenizer.marks, stride):
                places.append(which[batch["labels"].numpy() != IGNORE])
                yield batch

        found = foretold(predictor.model, batches(), IGNORE)
        width = max(1, min(STRETCH, len(text) // FEWEST))
        count = -(-len(text) // width)
        of = self._begins(held_out, tokenizer)[np.concatenate(places)] // width
        nats, right = -found.log_likelihood.double().numpy(), found.correct.numpy()
        words = [each.start() // width for each in re.finditer(r"\S+|\n", text)]
        octets = [len(text[i : i + width].encode()) for i in range(0, len(text), width)]
        each = [np.bincount(of, x, count) for x in (nats, right, np.ones(len(of)))]
        sums = np.stack([*each, octets, np.bincount(words, minlength=count)])

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            nats, right, tokens, octets, words = sums[:, some].sum(1).clip([0, 0, 1, 1, 1]).tolist()
            return {
                "loss": nats / tokens,
                "perplexity": math.exp(min(nats / tokens, 700.0)),
                "bits a byte": nats / math.log(2) / octets,
                "perplexity a word": math.exp(min(nats / words, 700.0)),
                "accuracy": right / tokens,
            }

        how = f"block:{self.block}|stride:{stride}|apart:{str(self.apart).lower()}"
        made = dict.fromkeys(figures(np.arange(count)), how)
        return Evidence(count, figures, found.confidence.double().numpy(), right, made)

    def _begins(self, rows: Sequence[Passage], tokenizer: Tokenizer) -> NDArray[np.int64]:
        """At which character of a text each token of its `examples` begins; a mark stands where it is beside one."""
        (begin, end), found, before = tokenizer.marks.frame, list[int](), 0
        texts = self.cut(rows, tokenizer)
        for row, text, each in zip(rows, texts, tokenizer.rust.encode_batch(texts), strict=True):
            after = before + len(row.text)
            own = [after - len(text) + start for start, _ in each.offsets]
            own = own[1:] if begin and each.ids[:1] == begin else own
            found += [*([before] if row.first and begin else []), *own, *([after - 1] if row.last and end else [])]
            before = after
        return np.array(found, np.int64)

    def measure(self, predictor: Generator, held_out: Sequence[Passage], recipe: Any) -> Measured:
        measures = self.foretell(predictor, held_out[: recipe.train.validate_sentences], self.block)
        del measures["perplexity a word"]  # for the end: at first it is out of all proportion
        some = [prompt_of(passage) for passage in held_out[:SAMPLES]]
        said = predictor.generate([prompt for prompt, _ in some], limit=40, seed=0)
        samples = [Sample(prompt, text, rest) for (prompt, rest), text in zip(some, said, strict=True)]
        return Measured(-measures["loss"], measures, samples)

    def judge(
        self, predictor: Generator, held_out: Sequence[Passage], recipe: Any
    ) -> tuple[dict[str, Any], list[Sample]]:
        stride = recipe.evaluate.stride or max(1, self.block // 2)
        found = self.evidence(predictor, held_out, stride)
        some = [prompt_of(passage) for passage in held_out[:SAMPLES]]
        said = predictor.generate([prompt for prompt, _ in some], limit=60, seed=0)
        measures = found.figures(np.arange(found.rows))
        figures = {name: {"score": value, "signature": found.made[name]} for name, value in measures.items()}
        return figures, [Sample(prompt, text, rest) for (prompt, rest), text in zip(some, said, strict=True)]

    def title(self, recipe: Any) -> str:
        corpus = CORPORA.get(recipe.data.corpus or "")
        return corpus.name if corpus else "language model"


def prompt_of(passage: Passage) -> tuple[str, str]:
    """The beginning of a passage, and what follows."""
    end = passage.text.find(" ", PROMPT)
    end = end if end > 0 else PROMPT
    return passage.text[:end], passage.text[end : end + 3 * PROMPT]


def blocks(rows: Sequence[Any], marks: Marks, apart: bool, seen: Sequence[int] | None = None) -> Batch:
    """A batch of some stretches of text, each of which one token more than a model reads: (B, T) of each.

    `tokens` are read, `labels` are those that follow; `documents` numbers the documents of a row, where there are
    several. The first `seen` labels of a row do not count, nor what follows the end of a document.

    >>> batch = blocks([[1, 5, 6, 2, 1, 7]], Marks(0, 1, 2), apart=True)
    >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["documents"].tolist()
    ([[1, 5, 6, 2, 1]], [[5, 6, 2, -100, 7]], [[0, 0, 0, 0, 1]])
    """
    width = max(map(len, rows)) - 1
    tokens, labels = np.zeros((len(rows), width), np.int64), np.full((len(rows), width), IGNORE, np.int64)
    for row, (ids, skip) in enumerate(zip(rows, seen or [0] * len(rows), strict=True)):
        n = len(ids) - 1
        tokens[row, :n], labels[row, skip:n] = ids[:-1], ids[1 + skip :]
    begin, end = marks.frame
    if begin and end:
        labels[(tokens == end[0]) & (labels == begin[0])] = IGNORE
    tensors = {"tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
    # A document begins with its first mark; where there is none, after the last one of the document before.
    starts = (
        tokens == begin[0] if begin else np.roll(tokens == end[0], 1, axis=1) if end else np.zeros_like(tokens, bool)
    )
    starts[:, 0] = False
    if apart and starts.any():
        tensors["documents"] = torch.from_numpy(starts.cumsum(axis=1))
    return Batch(tensors, int((labels != IGNORE).sum()))


def sliding(ids: Sequence[int], block: int, stride: int) -> Iterator[tuple[Sequence[int], int]]:
    """Windows of a text, one token more than a block, and how many labels of each an earlier one has had.

    >>> list(sliding([1, 2, 3, 4, 5, 6], block=3, stride=2))
    [([1, 2, 3, 4], 0), ([3, 4, 5, 6], 1)]
    """
    done = 0  # labels
    for start in range(0, max(1, len(ids) - 1), min(stride, block)):
        window = ids[start : start + block + 1]
        if start + len(window) - 1 > done:
            yield window, done - start
            done = start + len(window) - 1


TASK = Generate
