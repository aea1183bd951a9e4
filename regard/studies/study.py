"""A model and a text to study it on: batches, loss, a score, and the same without some heads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.api import Translator, load, told
from regard.core.generation import of_like_length
from regard.data.batching import Batch, collate
from regard.data.text import read_lines
from regard.data.tokenizers import Tokenizer
from regard.evaluation.translation import Score, bleu
from regard.inspection.axes import END, Axes, axes
from regard.inspection.importance import loss
from regard.inspection.links import Gold, read_gold
from regard.inspection.measures import Tokens, punctuation
from regard.inspection.syntax import Arc, arcs, read_conllu
from regard.inspection.taps import attentions, edit
from regard.inspection.words import Words, added, words, words_of_spans
from regard.recipes import reading as recipes
from regard.recipes.prepare import find_splits
from regard.recipes.recipe import Recipe

TOKENS = 4096  # of a batch


@dataclass(frozen=True, eq=False)
class Study:
    """A model and a text, and the figures that are taken of the one on the other.

    Of any model the likelihood of its labels is measured; how well it does what it is for, its own kind of study says.
    """

    model: nn.Module  # in fp32: gradients, and rows of W_O, are of plain numbers
    tokenizer: Tokenizer
    examples: list[dict[str, list[int]]]  # of each sentence the ids of every input, without marks
    collate: Callable[[list[dict[str, list[int]]]], Batch]

    def score(self, which: Sequence[int]) -> Score | None:
        """What is scored of some sentences besides the loss, if anything is."""
        return None

    @cached_property
    def axes(self) -> dict[str, Axes]:
        """What stands along the axes of each attention."""
        return axes(self.model)

    @property
    def pad(self) -> int:
        """What fills up the rows of a batch."""
        return self.tokenizer.marks.need("pad")[0]

    def tokens(self) -> Tokens:
        """What the measures must know of the tokens; how often they occur is counted in the text."""
        V, counts = len(self.tokenizer), dict[str, Tensor]()
        for name in self.examples[0]:
            counts[name] = torch.bincount(
                torch.tensor([id for each in self.examples for id in each[name]]), minlength=V
            )
        pad, bos, eos = self.tokenizer.marks.need("pad", "bos", "eos")
        return Tokens(pad, bos, eos, punctuation(self.tokenizer.pieces(range(V))), counts)

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
    task: Any  # how translations are scored
    lines: list[int]  # of each sentence in its file, from 0
    filled: list[int]  # the same, where blank lines of the source do not count
    texts: list[tuple[str, str]]

    @classmethod
    def of(cls, model: Path, source: Path | None, reference: Path | None, limit: int) -> "Translations":
        """The first `limit` pairs of lines that are neither empty nor longer than the model is used to.

        Without files they are the test sentences of the recipe that the model was trained by.
        """
        translator = load(model, precision="fp32")
        path, tokenizer = model / "recipe.yaml", translator.tokenizer
        recipe = recipes.load(str(path)) if path.exists() else None

        def batch(examples: list[dict[str, list[int]]]) -> Batch:
            return collate([(each["source"], each["target"]) for each in examples], marks=tokenizer.marks)

        found, filled = cls(translator.model, tokenizer, [], batch, translator, told(model).task, [], [], []), 0
        for line, texts in enumerate(_texts(model, recipe, source, reference)):
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

    def score(self, which: Sequence[int]) -> Score:
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


def _texts(model: Path, recipe: Recipe | None, source: Path | None, reference: Path | None) -> list[tuple[str, str]]:
    """Source and reference line by line, or what the recipe of a model has kept from training."""
    if source is not None and reference is not None:
        sources, targets = list(read_lines(source)), list(read_lines(reference))
        if len(sources) != len(targets):
            raise ValueError(
                f"{source} has {len(sources):,} lines and {reference} has {len(targets):,}: they must be as many"
            )
        return list(zip(sources, targets, strict=True))
    if source is not None or reference is not None:
        raise ValueError("a text and its translation go together: give --source and --reference, or neither")
    if recipe is None:
        raise ValueError(f"{model} has no recipe that names a text: give --source and --reference")
    return list(find_splits(recipe).rows("test"))
