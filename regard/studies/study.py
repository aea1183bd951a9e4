"""A model and a text to study it on: batches, loss, a score, and the same without some heads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from random import Random
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.api import Translator, load, told
from regard.core.generation import of_like_length, padded
from regard.data.batching import Batch, collate
from regard.data.documents import Passage, TextFiles
from regard.data.text import read_lines, read_parallel
from regard.data.tokenizers import Tokenizer
from regard.evaluation.translation import CorpusScore, bleu
from regard.inspection.alignment import Gold, read_gold
from regard.inspection.axes import END, START, Axes, axes
from regard.inspection.importance import head_importance, loss
from regard.inspection.measures import NONE, Tokens
from regard.inspection.syntax import Arc, arcs, read_conllu
from regard.inspection.taps import attentions, edit
from regard.inspection.words import Words, added, words, words_of_spans
from regard.recipes import reading as recipes
from regard.recipes.prepare import find_splits
from regard.tasks.denoise import Denoise
from regard.tasks.hear import Hear
from regard.tasks.reader import Framed, Given, Reader, batched
from regard.tasks.task import Damaged
from regard.tasks.texts import OverText
from regard.tasks.translate import Translate
from regard.training.objectives import IGNORE, Contrastive

TOKENS = 4096  # of a batch
STRETCH = 64  # tokens of a text that a language model is studied on at a time


@dataclass(frozen=True, eq=False)
class Study:
    """A model and a text, and the figures that are taken of the one on the other.

    Of any model the likelihood of its labels is measured; how well it does what it is for, its own kind of study says.
    """

    model: nn.Module  # in fp32: gradients, and rows of W_O, are of plain numbers
    tokenizer: Tokenizer
    examples: list[dict[str, list[int]]]  # of each sentence the ids of every input, without marks
    collate: Callable[[list[Any]], Batch]
    example: ClassVar[range] = range(6, 18)  # tokens of a sentence that shows a head
    called: ClassVar[str] = "sentences"  # the examples
    gated: ClassVar[bool] = True  # whether gates can be learned on it

    def score(self, which: Sequence[int]) -> CorpusScore | None:
        """What is scored of some sentences besides the loss, if anything is."""
        return None

    @cached_property
    def axes(self) -> dict[str, Axes]:
        """What stands along the axes of each attention."""
        return axes(self.model)

    @property
    def pad(self) -> int:
        """What fills up the labels of a batch."""
        mark = self.tokenizer.marks.pad
        return NONE if mark is None else mark

    @property
    def heads(self) -> int:
        """How many the model has."""
        return sum(attention.heads for attention in attentions(self.model).values())

    def tokens(self) -> Tokens:
        """What the measures must know of the tokens; how often they occur is counted in the text."""
        V, counts = len(self.tokenizer), dict[str, Tensor]()
        for name in self.examples[0]:
            ids = torch.tensor([id for each in self.examples for id in each[name]])
            counts[name] = torch.bincount(ids, minlength=V)
        return Tokens.of(self.tokenizer.marks, self.tokenizer.pieces(range(V)), **counts)

    def start(self, sentence: int) -> str:
        """The text of what is read before any of the writing."""
        return START

    def pieces(self, sentence: int) -> dict[str, list[str]]:
        """The texts of the tokens of every input, with their end: what stands along the axes of a map."""
        return {name: [*self.tokenizer.pieces(ids), END] for name, ids in self.examples[sentence].items()}

    def rows(self, which: Sequence[int], tokens: int = TOKENS) -> list[list[int]]:
        """Some sentences, those of like length together, about so many `tokens` at a time."""
        lengths = [max(map(len, self.examples[i].values())) + 1 for i in which]
        return [[which[i] for i in rows] for rows in of_like_length(lengths, tokens)]

    def batch(self, which: Sequence[int]) -> Batch:
        """Some sentences, as a model reads them."""
        return self.collate([self.examples[i] for i in which])

    def batches(self, which: Sequence[int], tokens: int = TOKENS) -> list[Batch]:
        """The same in batches, with labels."""
        return [self.batch(rows) for rows in self.rows(which, tokens)]

    def loss(self, which: Sequence[int]) -> float:
        """Nats for each label, end symbols among them."""
        return loss(self.model, self.batches(which), pad=self.pad)

    def importance(self, which: Sequence[int]) -> dict[str, Tensor]:
        """How much the loss hangs on each head, (H,) by name."""
        return head_importance(self.model, self.batches(which), pad=self.pad)

    @contextmanager
    def without(self, heads: Mapping[str, Iterable[int]]) -> Iterator[None]:
        """Inside the block these heads are silent: zeros in W_O, where an edit would keep the fast engine away."""
        known = attentions(self.model)
        bare = {name: dict.fromkeys(heads[name], 0.0) for name in heads if isinstance(known[name].output, nn.Identity)}
        matrices = {name: known[name].output.get_parameter("weight") for name in heads if name not in bare}
        kept = {name: matrix.clone() for name, matrix in matrices.items()}
        try:
            with torch.no_grad():
                for name, matrix in matrices.items():
                    matrix.unflatten(1, (known[name].heads, -1))[:, list(heads[name])] = 0.0
            with edit(self.model, bare, what="outputs"):
                yield
        finally:
            with torch.no_grad():
                for name, matrix in matrices.items():
                    matrix.copy_(kept[name])


@dataclass(frozen=True, eq=False)
class Translations(Study):
    """A translator and sentences with their translations."""

    translator: Translator
    task: Translate  # how translations are scored
    lines: list[int]  # of each sentence in its file, from 0
    filled: list[int]  # the same, where blank lines of the source do not count
    texts: list[tuple[str, str]]

    @classmethod
    def of(cls, model: Path, source: Path | None, reference: Path | None, limit: int) -> "Translations":
        """The first `limit` pairs of lines that are neither empty nor longer than the model is used to.

        Without files they are the test sentences of the recipe that the model was trained by.
        """
        translator = load(model, precision="fp32")
        tokenizer, task = translator.tokenizer, told(model).task
        scored = task if isinstance(task, Translate) else Translate()
        if (source is None) != (reference is None):
            raise ValueError("a text and its translation go together: give --source and --reference, or neither")
        given = (
            read_parallel(source, reference) if source and reference else kept_text(model, "--source and --reference")
        )

        def batch(examples: list[dict[str, list[int]]]) -> Batch:
            return collate([(each["source"], each["target"]) for each in examples], marks=tokenizer.marks)

        found, filled = cls(translator.model, tokenizer, [], batch, translator, scored, [], [], []), 0
        for line, texts in enumerate(given):
            if len(found.lines) == limit:
                break
            ids = tokenizer.encode(texts[0]), tokenizer.encode(texts[1])
            if all(ids) and max(map(len, ids)) <= (translator.longest or 256):
                found.lines.append(line)
                found.filled.append(filled)
                found.texts.append(texts)
                found.examples.append(dict(zip(("source", "target"), ids, strict=True)))
            filled += bool(texts[0].strip())
        if not found.examples:
            text = f"{source} and {reference} hold" if source else "the test text of its recipe holds"
            raise ValueError(f"{text} no pair of sentences that the model can read")
        return found

    def score(self, which: Sequence[int]) -> CorpusScore:
        """BLEU of greedy translations of the sources."""
        said = list(self.translator.translate_lines((self.texts[i][0] for i in which), beam=1))
        references = [self.tokenizer.joined(self.texts[i][1]) for i in which]
        return bleu(said, references, tokenize=self.task.tokenize, lowercase=self.task.lowercase)

    def words(self, sentence: int) -> tuple[list[int], list[int]]:
        """Of which word of its text each token of a source, and of a target, is a part."""
        source, target = (list(self._words(text).of) for text in self.texts[sentence])
        return source, target

    def _words(self, text: str) -> Words:
        """The words of a text."""
        spans = self.tokenizer.spans(text)
        if self.tokenizer.kind != "none":
            return Words(words_of_spans(text, spans), text.split())
        tokens = [text[begin:end] for begin, end in spans]  # of the text: an unknown one is joined by its @@, too
        texts = list(map(added, tokens, [None, *tokens], repeat("none")))
        return Words(words(texts), "".join(texts).split())

    def gold(self, path: Path) -> list[Gold]:
        """The gold alignment of each sentence, from a file with a line for each of the text's."""
        known = read_gold(read_lines(path), str(path))
        if len(known) <= self.lines[-1]:
            raise ValueError(
                f"{path} has {len(known):,} lines, and the text more: give each pair of sentences its line"
            )
        found = [known[line] for line in self.lines]
        for sentence, (line, gold) in enumerate(zip(self.lines, found, strict=True)):
            sizes = [words[-1] + 1 for words in self.words(sentence)]
            for i, j in gold.possible:
                if i >= sizes[0] or j >= sizes[1]:
                    raise ValueError(
                        f"{path}:{line + 1}: the link {i}-{j} is outside the sentences: they have {sizes[0]} and "
                        f"{sizes[1]} words, counted from 0"
                    )
        return found

    def arcs(self, path: Path) -> list[set[Arc]]:
        """The dependencies between the words of each source, from a CoNLL-U file with a sentence for each line."""
        known = read_conllu(read_lines(path), str(path))
        if len(known) <= self.filled[-1]:
            raise ValueError(f"{path} has {len(known):,} sentences, and the text more: give each line of it one")
        texts = (text for text, _ in self.texts)
        return [arcs(known[i], self._words(text).texts, str(path)) for i, text in zip(self.filled, texts, strict=True)]


@dataclass(frozen=True, eq=False)
class Stretches(Study):
    """A language model and stretches of a text: of each the first token is read, and the others are predicted."""

    example, called = range(6, STRETCH + 2), "stretches of text"

    @classmethod
    def of(cls, model: Path, text: Path | None, limit: int) -> "Stretches":
        """The first `limit` stretches of a file, or of what the model's recipe has kept from training as its test."""
        generator = load(model, precision="fp32")
        task = told(model).task
        rows = kept_text(model, "--text") if text is None else TextFiles(str(text)).read()
        tokenizer, size = generator.tokenizer, min(STRETCH, generator.reach or STRETCH)
        found: Stretches

        def batch(examples: list[dict[str, list[int]]]) -> Batch:
            ids, V = [each["tokens"] for each in examples], len(tokenizer)
            read, labels = padded([row[:-1] for row in ids], 0, V), padded([row[1:] for row in ids], found.pad, V)
            return Batch({"tokens": read, "labels": labels}, sum(map(len, ids)) - len(ids))

        found = cls(generator.model, tokenizer, [], batch)
        found.examples.extend({"tokens": ids} for ids in islice(_stretches(rows, task, tokenizer, size), limit))
        if not found.examples:
            raise ValueError(f"{text or 'the test text of its recipe'} has no text in it")
        return found

    def pieces(self, sentence: int) -> dict[str, list[str]]:
        return {name: self.tokenizer.pieces(ids[1:]) for name, ids in self.examples[sentence].items()}

    def start(self, sentence: int) -> str:
        return self.tokenizer.pieces(self.examples[sentence]["tokens"][:1])[0]


def _stretches(rows: Iterable[Passage], task: Any, tokenizer: Tokenizer, size: int) -> Iterator[list[int]]:
    """The tokens of documents, one more than `size` at a time: the last of a stretch is the first of the next."""
    held: list[int] = []
    for row in rows:
        ((ids,),) = task.examples([row], tokenizer)
        held = ids if row.first else held + ids
        while len(held) > size:
            yield held[: size + 1]
            held = held[size:]
        if row.last and len(held) > 1:
            yield held


@dataclass(frozen=True, eq=False)
class Readings(Study):
    """A model that reads, and texts: with what is true of them; where that is not known, with what it says itself."""

    learnt: list[Any]  # of each text, what `collate` makes a batch of
    objective: Callable[..., Tensor]
    example, called, gated = range(6, 32), "texts", False

    @classmethod
    def of(cls, model: Path, text: Path | None, limit: int) -> "Readings":
        """The first `limit` texts of what the model's recipe has kept from training as its test; or lines of a file."""
        reader, task = load(model, precision="fp32"), told(model).task
        objective: Any = task.objective(reader.model, 0.0, reader.tokenizer)
        if text is None or isinstance(task, OverText):
            rows = list(kept_text(model, "--text") if text is None else TextFiles(str(text)).read())
            learnt, collate = taught(task, rows, reader.tokenizer, limit)
        else:
            learnt, collate = _said(reader, [line for line in read_lines(text) if line.strip()][:limit])
            if task.stands == "vector":
                objective = Contrastive(reader.model)
        if not learnt:
            raise ValueError(f"{text or 'the test text of its recipe'} has no text in it")
        examples = [{"tokens": [int(i) for i in each[0]]} for each in learnt]
        return cls(reader.model, reader.tokenizer, examples, collate, learnt, objective)

    def batch(self, which: Sequence[int]) -> Batch:
        """Of texts that belong together, the first."""
        whole = self.collate([self.learnt[i] for i in which])
        read, longest = ("tokens", "segments", "keep"), int(whole["keep"][: len(which)].sum(1).max())
        return Batch(
            {name: x[: len(which), :longest] for name, x in whole.tensors.items() if name in read}, whole.count
        )

    def batches(self, which: Sequence[int], tokens: int = TOKENS) -> list[Batch]:
        return [self.collate([self.learnt[i] for i in rows]) for rows in self.rows(which, tokens)]

    @torch.inference_mode()
    def loss(self, which: Sequence[int]) -> float:
        batches = self.batches(which)
        return sum(float(self.objective(**b.tensors)) for b in batches) / sum(b.count for b in batches)

    def importance(self, which: Sequence[int]) -> dict[str, Tensor]:
        def losses(batch: Any) -> Tensor:
            return self.objective(**batch.tensors)

        return head_importance(self.model, self.batches(which), pad=self.pad, losses=losses)

    def pieces(self, sentence: int) -> dict[str, list[str]]:
        return {"tokens": self.tokenizer.pieces(self.batch([sentence])["tokens"][0].tolist())}


Learnt = tuple[list[Any], Callable[[list[Any]], Batch]]  # what is learnt of each text, and what makes a batch of it


def taught(task: Any, rows: Iterable[Any], tokenizer: Tokenizer, limit: int) -> Learnt:
    """What a task learns from rows that have their labels, or, of plain text, what it hides of it."""
    collate, columns = task.collate(tokenizer, 0.0), task.columns(len(tokenizer)).values()
    if isinstance(task, OverText):
        learnt: Any = ((ids,) for ids in task.stretches(list(rows), tokenizer, limit))
    else:
        learnt = (each for row in rows for each in task.examples([row], tokenizer) if each is not None)
    stored = (
        each if isinstance(each, Damaged) else tuple(np.asarray(x, c.dtype) for x, c in zip(each, columns, strict=True))
        for each in learnt
    )
    return list(islice(stored, limit)), lambda some: collate(some, Random(0))  # the same is hidden each time


@torch.inference_mode()
def _said(reader: Reader, lines: Sequence[str]) -> Learnt:
    """Lines, or pairs with a tab between, and what a model says of each, as if that were true; of vectors each text
    belongs to itself."""
    cells = [line.split("\t", 1) if reader.pairs else [line] for line in lines]
    for each in cells if reader.second == "context" else ():
        if len(each) < 2:
            raise ValueError(f"{each[0][:40]!r} has no context: write it on the same line, after a tab")
    asks = [Given(each[0], each[1] if len(each) > 1 else None) for each in cells]
    kind, model = reader.model.head.kind, reader.model  # type: ignore[union-attr]
    of = getattr(reader, "kind", "one")
    pad = reader.tokenizer.marks.pad or 0

    def label(read: Framed) -> Tensor:
        said = model(**batched([read], pad, reader.told_apart).inputs)[0].float()
        if kind == "spans":
            return said.argmax(0)
        return said.argmax(-1) if of == "one" else (said > 0).long() if of == "several" else said[0]

    read = [row[0] for row in reader.framed(asks)]
    learnt = [(each.ids, each, None if kind == "vector" else label(each)) for each in read]

    def collate(some: list[Any]) -> Batch:
        inputs = dict(batched([each for _, each, _ in some], pad, reader.told_apart).tensors)
        if kind == "vector":
            group = torch.arange(2).repeat_interleave(len(some))
            return Batch({**{name: torch.cat([x, x]) for name, x in inputs.items()}, "group": group}, len(some))
        labels = [own for *_, own in some]
        if kind == "tags":
            inputs["labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORE)
        else:
            inputs["labels"] = torch.stack(labels)
        return Batch(inputs, int((inputs["labels"] != IGNORE).sum()) if kind == "tags" else len(some))

    return learnt, collate


def _spoilt(model: Path, text: Path | None, limit: int) -> Study:
    """A model that makes text whole, and stretches of text that are spoilt as it has learnt it."""
    translator, task = load(model, precision="fp32"), cast(Any, told(model).task)
    tokenizer, random = translator.tokenizer, np.random.default_rng(0)
    rows = list(kept_text(model, "--text") if text is None else TextFiles(str(text)).read())
    spoil = task.spoiling(tokenizer)
    pairs = [[side.tolist() for side in spoil(ids, random)] for ids in task.stretches(rows, tokenizer, limit)]

    def batch(examples: list[Any]) -> Batch:
        return collate([(each["source"], each["target"]) for each in examples], marks=tokenizer.marks)

    return Study(translator.model, tokenizer, [{"source": a, "target": b} for a, b in pairs], batch)


def study_of(model: Path, source: Path | None, reference: Path | None, text: Path | None, limit: int) -> Study:
    """What there is to study a model on: pairs of sentences, or a text."""
    task = told(model).task
    if isinstance(task, Hear):
        raise ValueError(f"{model} reads no text: its heads are studied by regard.record, not on a text")
    if hasattr(task, "sight"):
        raise ValueError(f"{model} sees pictures: name some, or none for the test of its recipe; leave texts out")
    if isinstance(task, Translate):
        if text is not None:
            raise ValueError(f"--text is for a language model, and {model} translates: give --source and --reference")
        return Translations.of(model, source, reference, limit)
    if source is not None or reference is not None:
        what = "goes on with a text" if task.name == "generate" else f"is {task.a_model}"
        raise ValueError(f"{model} {what}, and has no translations: give --text, not --source, --reference")
    if task.name == "generate":
        return Stretches.of(model, text, limit)
    return (_spoilt if isinstance(task, Denoise) else Readings.of)(model, text, limit)


def kept_text(model: Path, give: str) -> Iterable[Any]:
    """What the recipe of a model has kept from training; without one, what to `give` instead."""
    path = model / "recipe.yaml"
    if not path.exists():
        raise ValueError(f"{model} has no recipe that names a text: give {give}")
    return find_splits(recipes.load(str(path))).rows("test")
