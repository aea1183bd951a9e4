"""A new task, as small as one can be: which of some labels a line has; what docs/extend.md shows.

A line is `text`, a tab, `label`. The label is the token that a language model says after the end of the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import nn

from regard.core.generation import DecoderOnly, padded
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.documents import Passage
from regard.data.tokenizers import Tokenizer
from regard.tasks.task import Measured, Sections, Task
from regard.tasks.texts import TextConfig
from regard.training.objectives import IGNORE, NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

Line = tuple[str, str]


@dataclass(frozen=True)
class LabelledConfig(TextConfig):
    """Where the lines come from."""

    max_length: int = 64  # of a text


@dataclass(frozen=True)
class LabelConfig:
    """What a model is for."""

    name: str = "label"


@dataclass(frozen=True)
class Nothing:
    """A section without settings."""


class Labeller:
    """What a person holds."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, **how: Any) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer

    @torch.no_grad()
    def label(self, text: str) -> str:
        """The label of a text."""
        ids = [*self.tokenizer.encode(text), *self.tokenizer.marks.need("eos")]
        return self.tokenizer.decode([int(self.model(torch.tensor([ids]))[0, -1].argmax())])


@dataclass(frozen=True)
class Label(Task):
    """Text in, a label out."""

    name, called = "label", "labelling"
    sections = Sections(LabelConfig, LabelledConfig, Nothing, Nothing)
    row, rows = "line", "lines"
    needs = DecoderOnly

    def texts(self, row: Passage) -> Line:
        text, _, label = row.text.partition("\t")
        return text, label

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return {"text": Column.ids(vocabulary), "label": Column.ids(vocabulary)}

    def examples(self, rows: Sequence[Passage], tokenizer: Tokenizer) -> Iterator[Any]:
        texts, labels = (tokenizer.encode_batch(side) for side in zip(*map(self.texts, rows), strict=True))
        return zip(texts, labels, strict=True)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        (eos,) = tokenizer.marks.need("eos")

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            tokens = padded([[*map(int, text), eos] for text, _ in rows], 0, len(tokenizer))
            labels = torch.full_like(tokens, IGNORE)
            for row, (text, label) in enumerate(rows):
                labels[row, len(text)] = int(label[0])
            return Batch({"tokens": tokens, "labels": labels}, len(rows))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return NextToken(model, smoothing, ignore=IGNORE)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: Nothing, **how: Any) -> Labeller:
        return Labeller(models[0], tokenizer, **how)

    def measure(self, predictor: Labeller, held_out: Sequence[Passage], recipe: Any) -> Measured:
        samples = [Sample(text, predictor.label(text), label) for text, label in map(self.texts, held_out)]
        accuracy = sum(sample.said == sample.expected for sample in samples) / len(samples)
        return Measured(accuracy, {"accuracy": accuracy}, samples)


TASK = Label
