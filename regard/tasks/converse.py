"""Conversation: a language model learns to answer as an assistant does in examples (instruction tuning).

A template writes a conversation out as one text; only the answers in it are learnt, each with the mark that ends it.
Several conversations fill a block, and none of them sees another.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.checks import at_least, hint
from regard.core.generation import DecoderOnly, of_like_length
from regard.data.arrays import Column, Table
from regard.data.batching import Batch, Ints
from regard.data.chat import CHATML, MARKED, TEMPLATES, ChatTemplate, with_marks
from regard.data.dialogues import DialogueFiles, Turns, words
from regard.data.rows import Row
from regard.data.text import decoded
from regard.data.tokenizers import Tokenizer
from regard.tasks.asks import ReachError, Writing
from regard.tasks.classify import Evaluation
from regard.tasks.generate import Generate, WriteConfig
from regard.tasks.generator import Generator
from regard.tasks.reader import check_length
from regard.tasks.task import Cut, Data, Evidence, Measured, Sections, Task
from regard.training.objectives import IGNORE, NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate
from regard.training.validation import foretold

FILE = "chat_template.jinja"  # of a model directory
ANSWER, FIRST = 1, 2  # what a token is: of an answer, the first of a conversation; 0: any other
TOKENS = 8_192  # of held-out conversations that are looked at together
SAMPLES = 5


@dataclass(frozen=True)
class ConverseConfig:
    """What a model is for."""

    name: str = "converse"
    template: str | None = None  # chatml, plain, or a .jinja; left out: that of the model it begins with, else chatml


@dataclass(frozen=True)
class ConversationConfig(Data):
    """Where conversations come from."""

    train: DialogueFiles | None = None  # your own files
    valid: DialogueFiles | None = None  # held out of train if left out
    test: DialogueFiles | None = None  # held out of train if left out
    max_length: int = 1024  # tokens of a block; a conversation that is longer is cut, and counted

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})


@dataclass(frozen=True)
class Templated(Task):
    """A task whose texts a chat template writes out."""

    longest: int = ConversationConfig.max_length
    chat: str = ""  # the template; a model directory has it as a file

    needs = DecoderOnly

    @classmethod
    def of(cls, recipe: Any) -> Any:
        settings = {name: x for name, x in vars(recipe.task).items() if name not in ("name", "template")}
        return cls(longest=recipe.data.max_length, chat=template_of(recipe, CHATML), **settings)

    def noted(self) -> dict[str, Any]:
        """A language model, as any other: what it was taught by is in its recipe."""
        return Generate(self.longest).noted()

    def check(self, recipe: Any) -> None:
        check_length(recipe)
        check_marks(recipe, self.chat)

    def tokens(self, tokenizer: Tokenizer) -> Tokenizer:
        return marked(tokenizer, self.chat)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: WriteConfig, **how: Any) -> Generator:
        generator = Generator(models, tokenizer, use, **how)
        generator.template = self.chat
        return generator


def template_of(recipe: Any, default: str) -> str:
    """The template of a recipe: one by its name or its file, that of the model it begins with, or else this one."""
    named, base = recipe.task.template, recipe.model.base
    if named in TEMPLATES:
        return TEMPLATES[named]
    path = Path(base or "", FILE) if named is None else Path(named)
    if named is None and (base is None or not path.is_file()):
        return default
    if path.suffix != ".jinja":
        raise ValueError(f"task.template = {named!r}: {hint(str(named), TEMPLATES)} or name a .jinja file")
    return decoded(path.read_bytes(), f"{path}:")


def marked(tokenizer: Tokenizer, chat: str) -> Tokenizer:
    """The sub-words, with the marks that a template writes."""
    return with_marks(tokenizer, MARKED[chat]) if chat in MARKED else tokenizer


def check_marks(recipe: Any, chat: str) -> None:
    """Refuse a template whose marks a model has no room for."""
    tokenizer = recipe.model.tokenizer() if chat in MARKED else None
    if tokenizer is not None:
        new = [name for name in MARKED[chat] if tokenizer.rust.token_to_id(name) is None]
        room = recipe.model.build(0).vocabulary - len(tokenizer)
        if len(new) > room:
            raise ValueError(
                f"task.template = chatml writes {' and '.join(new)}, which {recipe.model.base} does not know, and its "
                f"model has room for {room} more tokens: choose plain, which needs none"
            )


@dataclass(frozen=True)
class Converse(Templated):
    """Messages in, an answer out."""

    name, called = "converse", "conversation"
    sections = Sections(ConverseConfig, ConversationConfig, WriteConfig, Evaluation)
    row, rows = "conversation", "conversations"

    def texts(self, row: Row) -> Sequence[str]:
        *before, last = row["messages"]
        return [words(before) or last["content"], last["content"]]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return {"tokens": Column.ids(vocabulary), "parts": Column("uint8", ragged=False)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        """The ids of each conversation up to the end of its last answer, and what each is; cut to a block."""
        template = ChatTemplate(self.chat, tokenizer)
        for row in rows:
            try:
                ids, spans = template.answered(row["messages"])
            except ValueError as error:
                raise ValueError(f"{row['where']}: {error}") from None
            parts = [FIRST, *[0] * (len(ids) - 1)]
            for begin, end in spans:
                parts[max(1, begin) : end] = [ANSWER] * (end - max(1, begin))
            size = min(spans[-1][1], self.longest)
            if ANSWER not in parts[:size]:
                yield None
            else:
                yield (Cut if size < spans[-1][1] else tuple)((ids[:size], parts[:size]))

    def corpus(self, table: Table) -> "Packs":
        return Packs(table, self.longest)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 for conversations")
        return lambda rows, draw: packed(rows)

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return NextToken(model, smoothing, ignore=IGNORE)

    def measure(self, predictor: Generator, held_out: Sequence[Row], recipe: Any) -> Measured:
        """How likely the answers are held."""
        examples = [each for each in self.examples(held_out, predictor.tokenizer) if each is not None]
        if not examples:
            raise ValueError(f"no held-out answer begins within data.max_length = {self.longest} tokens: raise it")
        some = list(of_like_length([len(ids) for ids, _ in examples], TOKENS))
        found = foretold(predictor.model, (packed([examples[i] for i in each]) for each in some), IGNORE)
        labels = np.array([list(parts[1:]).count(ANSWER) for _, parts in examples])
        of = np.repeat(order := list(chain.from_iterable(some)), labels[order])
        sums = [np.bincount(of, x.double().numpy()) for x in (-found.log_likelihood, found.correct)]  # of each row

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            loss, accuracy = (float(x[rows].sum() / labels[rows].sum()) for x in sums)
            return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}

        return Measured.of(Evidence(len(labels), figures), "loss", answered(predictor, held_out))

    def counted(self, train: Table, valid: Sequence[Row], test: Sequence[Row]) -> str:
        packs = self.corpus(train)
        return f"{super().counted(train, valid, test)} · {packs.tokens:,} tokens in {len(packs):,} blocks"


def last(row: Row) -> tuple[Turns, str]:
    """What comes before the last answer of a conversation, or before two; and that answer, or the chosen one."""
    messages, chosen = row["messages"], row.get("chosen")
    if chosen is not None:
        return messages, chosen
    at = max(k for k, each in enumerate(messages) if each["role"] == "assistant")
    return messages[:at], messages[at]["content"]


def written(predictor: Generator, rows: Sequence[Row]) -> list[str]:
    """What a model answers where the last answer of each conversation stands."""
    prompts = [predictor.conversation(last(row)[0]) for row in rows]
    return [found.text for found, *_ in predictor.answers(prompts, Writing.of({}, predictor.decode))]


def answered(predictor: Generator, held_out: Sequence[Row]) -> list[Sample]:
    """What a model answers to some prompts that it can read, beside what was answered."""
    samples = list[Sample]()
    for row in held_out[: 4 * SAMPLES]:
        messages, expected = last(row)
        if messages and len(samples) < SAMPLES:
            with suppress(ReachError):  # of one that is too long
                prompt = predictor.conversation(messages)
                if predictor.reach is None or len(prompt.ids or ()) < predictor.reach:
                    said = predictor.chat(messages, limit=60, seed=0)
                    samples.append(Sample(messages[-1]["content"], said, expected))
    return samples or [Sample("", "", "")]


class Packs:
    """The conversations of a table, so many together as fit in a block: the longest first, each where least is left."""

    marks = 0

    def __init__(self, table: Table, block: int) -> None:
        self.table, lengths = table, table.lengths(np.arange(len(table)))[:, 0]
        self.tokens, left, packs = int(lengths.sum()), list[tuple[int, int]](), list[list[int]]()
        for row in np.argsort(-lengths, kind="stable").tolist():
            size = int(lengths[row])
            at = bisect_left(left, (size, 0))
            room, pack = left.pop(at) if at < len(left) else (block, len(packs))
            if pack == len(packs):
                packs.append([])
            packs[pack].append(row)
            insort(left, (room - size, pack))
        self._packs = packs
        self._lengths = np.array([lengths[pack].sum() for pack in packs])

    def __len__(self) -> int:
        return len(self._packs)

    def lengths(self, indices: Ints) -> Ints:
        return self._lengths[indices][:, None]

    def rows(self, indices: Ints) -> list[tuple[NDArray[Any], ...]]:
        packs = (self.table.rows(self._packs[i]) for i in indices)
        return [tuple(np.concatenate(column) for column in zip(*pack, strict=True)) for pack in packs]


def packed(rows: Sequence[Sequence[Any]]) -> Batch:
    """A batch of rows of conversations, (B, T) of each: `tokens` are read, `labels` are those of answers that follow;
    `documents` numbers the conversations of a row, where there are several.

    >>> batch = packed([([5, 6, 7, 8, 9], [FIRST, 0, ANSWER, FIRST, ANSWER])])
    >>> batch["tokens"].tolist(), batch["labels"].tolist(), batch["documents"].tolist()
    ([[5, 6, 7, 8]], [[-100, 7, -100, 9]], [[0, 0, 0, 1]])
    """
    width = max(len(ids) for ids, _ in rows) - 1
    tokens, labels = np.zeros((len(rows), width), np.int64), np.full((len(rows), width), IGNORE, np.int64)
    documents = np.zeros((len(rows), width), np.int64)
    for row, (ids, parts) in enumerate(rows):
        n, ids, parts = len(ids) - 1, np.asarray(ids, np.int64), np.asarray(parts)
        tokens[row, :n], labels[row, :n] = ids[:-1], np.where(parts[1:] == ANSWER, ids[1:], IGNORE)
        documents[row] = (parts == FIRST).sum() - 1
        documents[row, :n] = (parts[:-1] == FIRST).cumsum() - 1
    tensors = {"tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
    if documents.any():
        tensors["documents"] = torch.from_numpy(documents)
    return Batch(tensors, int((labels != IGNORE).sum()))


TASK = Converse
