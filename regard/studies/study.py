"""A model and a text to study it on: batches, loss, a score, and the same without some heads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.api import Translator, load, told
from regard.core.generation import of_like_length, padded
from regard.data.batching import Batch, collate
from regard.data.documents import Passage, TextFiles
from regard.data.text import read_lines, read_parallel
from regard.data.tokenizers import Tokenizer
from regard.evaluation.translation import CorpusScore, bleu
from regard.inspection.alignment import Gold, read_gold
from regard.inspection.axes import END, START, Axes, axes
from regard.inspection.importance import loss
from regard.inspection.measures import NONE, Tokens
from regard.inspection.syntax import Arc, arcs, read_conllu
from regard.inspection.taps import attentions, edit
from regard.inspection.words import Words, added, words, words_of_spans
from regard.recipes import reading as recipes
from regard.recipes.prepare import find_splits
from regard.tasks.translate import Translate

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
    collate: Callable[[list[dict[str, list[int]]]], Batch]
    example: ClassVar[range] = range(6, 18)  # tokens of a sentence that shows a head

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

    def batches(self, which: Sequence[int], tokens: int = TOKENS) -> list[Batch]:
        """The same as batches of ids."""
        return [self.collate([self.examples[i] for i in rows]) for rows in self.rows(which, tokens)]

    def loss(self, which: Sequence[int]) -> float:
        """Nats for each label, end symbols among them."""
        return loss(self.model, self.batches(which), pad=self.pad)

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

    example = range(6, STRETCH + 2)

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


def study_of(model: Path, source: Path | None, reference: Path | None, text: Path | None, limit: int) -> Study:
    """What there is to study a model on: pairs of sentences, or a text."""
    task = told(model).task
    if (verb := task.verb or task.name) not in ("translate", "generate"):
        raise ValueError(
            f"{model} is {task.a_model}: what is measured of heads is of models that translate or go on with a text; "
            f"see them by `regard inspect {model} TEXT`"
        )
    if verb == "translate":
        if text is not None:
            raise ValueError(f"--text is for a language model, and {model} translates: give --source and --reference")
        return Translations.of(model, source, reference, limit)
    if source is not None or reference is not None:
        raise ValueError(
            f"{model} goes on with a text, and has no translations: give --text, not --source, --reference"
        )
    return Stretches.of(model, text, limit)


def kept_text(model: Path, give: str) -> Iterable[Any]:
    """What the recipe of a model has kept from training; without one, what to `give` instead."""
    path = model / "recipe.yaml"
    if not path.exists():
        raise ValueError(f"{model} has no recipe that names a text: give {give}")
    return find_splits(recipes.load(str(path))).rows("test")
