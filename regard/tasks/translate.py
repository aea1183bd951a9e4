"""Translation: pairs of texts, an encoder-decoder that reads one and writes the other, BLEU and other measures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from random import Random
from typing import Any

from torch import nn

from regard.checks import at_least, one_of
from regard.core.generation import EncoderDecoder
from regard.data.arrays import Column, pairs_of
from regard.data.batching import Batch, collate
from regard.data.corpora import CORPORA, obtain
from regard.data.sentences import habits
from regard.data.text import PairFiles
from regard.data.tokenizers import Tokenizer
from regard.evaluation.calibration import perplexity
from regard.evaluation.texts import BY, RATES, compare
from regard.evaluation.translation import TOKENIZERS, CorpusScore
from regard.tasks.asks import DecodeConfig
from regard.tasks.task import Data, Evidence, Measured, Sections, Task
from regard.tasks.translator import Translator
from regard.training.objectives import NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate
from regard.training.validation import foretell

Pair = tuple[str, str]
ORDERS = ("forward", "backward")
ANY = 2**16  # a vocabulary, where it does not matter


@dataclass(frozen=True)
class TranslateConfig:
    """What a model is for."""

    name: str = "translate"


@dataclass(frozen=True)
class DataConfig(Data):
    """Where the sentences come from: a corpus by its name, or files."""

    train: PairFiles | None = None  # your own files
    valid: PairFiles | None = None  # held out of train if left out
    test: PairFiles | None = None  # held out of train if left out
    languages: tuple[str, str] = ("", "")  # source and target, for display only: [en, de]
    max_length: int = 256  # sub-words of a side; longer pairs are skipped and counted
    target_order: str = "forward"  # or backward: the target is written from its end, for a second opinion on outputs

    def __post_init__(self) -> None:
        one_of(ORDERS, **{"data.target_order": self.target_order})
        super().__post_init__()
        at_least(1, **{"data.max_length": self.max_length})

    def of_corpus(self, name: str, progress: Any) -> dict[str, PairFiles]:
        return obtain(name, progress=progress)


@dataclass(frozen=True)
class EvaluateConfig:
    """How outputs are scored, BLEU and chrF in sacreBLEU's terms."""

    tokenize: str = "13a"  # none, for text that is tokenised already
    lowercase: bool = False  # before comparing
    by: tuple[str, ...] = ("bleu", "chrf")  # or rouge, exact, wer, per; the first says which weights are the best
    stem: bool = True  # words that rouge compares
    several: bool = False  # pairs of one source are one question, and each of their targets is right

    def __post_init__(self) -> None:
        one_of(TOKENIZERS, **{"evaluate.tokenize": self.tokenize})
        if not self.by:
            raise ValueError(f"evaluate.by is empty: name at least one of {', '.join(BY)}")
        for name in self.by:
            one_of(BY, **{"evaluate.by": name})


@dataclass(frozen=True)
class Translate(Task):
    """Text in, text out."""

    languages: tuple[str, str] = ("source", "target")
    longest: int | None = DataConfig.max_length  # sub-words that a sentence had in training, at most
    order: str = "forward"  # in which the target is written
    tokenize: str = EvaluateConfig.tokenize  # of how it is scored
    lowercase: bool = EvaluateConfig.lowercase
    by: tuple[str, ...] = EvaluateConfig.by
    stem: bool = EvaluateConfig.stem
    several: bool = EvaluateConfig.several

    name, called = "translate", "translation"
    sections = Sections(TranslateConfig, DataConfig, DecodeConfig, EvaluateConfig)
    row, rows, shares = "pair", "pairs", ", joint"
    needs = EncoderDecoder

    def __post_init__(self) -> None:
        for name in ("languages", "by"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        one_of(ORDERS, order=self.order)
        at_least(1, longest=self.longest)

    @classmethod
    def of(cls, recipe: Any) -> "Translate":
        data, e = recipe.data, recipe.evaluate
        return cls(languages(data), data.max_length, data.target_order, **vars(e))

    def prepared_by(self) -> list[Any]:
        return [self.longest, self.order]

    def texts(self, row: Any) -> Pair:
        return row

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return pairs_of(vocabulary)

    def examples(self, rows: Sequence[Any], tokenizer: Tokenizer) -> Iterator[tuple[list[int], list[int]] | None]:
        sources, targets = (tokenizer.encode_batch(side) for side in zip(*map(self.texts, rows), strict=True))
        for source, target in zip(sources, targets, strict=True):
            short = self.longest is None or max(len(source), len(target)) < self.longest
            yield (source, target[:: -1 if self.order == "backward" else 1]) if short else None

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if not dropout:
            return partial(collate, marks=tokenizer.marks)

        def another(ids: Any, draw: Random) -> Any:
            """Another segmentation of the text of some ids, unless it is too long."""
            sampled = tokenizer.sample(tokenizer.decode(ids.tolist()), dropout, draw)
            return sampled if self.longest is None or len(sampled) < self.longest else ids

        def sampled(rows: Sequence[Any], draw: Random) -> Batch:
            return collate([(another(s, draw), another(t, draw)) for s, t in rows], marks=tokenizer.marks)

        return sampled

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        (pad,) = tokenizer.marks.need("pad")
        return NextToken(model, smoothing, ignore=pad)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: DecodeConfig, **how: Any) -> Translator:
        return Translator(models, tokenizer, use, longest=self.longest, backward=self.order == "backward", **how)

    def questions(self, rows: Sequence[Any]) -> list[tuple[str, list[str]]]:
        """What is asked of a model, and the answers that are right."""
        found = [(source, [target]) for source, target in map(self.texts, rows)]
        if not self.several:
            return found
        alike: dict[str, list[str]] = {}
        for source, targets in found:
            alike.setdefault(source, []).extend(targets)
        return list(alike.items())

    def scored(
        self, predictor: Translator, rows: Sequence[Any], by: Sequence[str], **how: Any
    ) -> tuple[dict[str, CorpusScore], list[Sample]]:
        """What a model says, by some measures."""
        asked = self.questions(rows)
        said = list(predictor.translate_lines((source for source, _ in asked), **how))
        references = [[predictor.tokenizer.joined(target) for target in targets] for _, targets in asked]
        scores = compare(by, said, references, tokenize=self.tokenize, lowercase=self.lowercase, stem=self.stem)
        both = zip(asked, said, strict=True)
        return scores, [Sample(source, text, targets[0]) for (source, targets), text in both]

    def measure(self, predictor: Translator, held_out: Sequence[Any], recipe: Any) -> Measured:
        """At a validation by the first measure and greedily; without a recipe by all of them, as the model is used."""
        if recipe is None:
            scores, samples = self.scored(predictor, held_out, self.by)
            figures = {name: score.value for name, score in scores.items()}
            made = {name: score.signature for name, score in scores.items()}
            told = lambda some: {name: score.of(some) for name, score in scores.items()}  # noqa: E731
            evidence = Evidence(len(samples), told, made=made)
            return Measured(self._best(figures), figures, samples, evidence)
        ids = list(self.examples(held_out, predictor.tokenizer))
        unbounded = replace(self, longest=None)
        known = [pair for pair in ids if pair is not None] or unbounded.examples(held_out, predictor.tokenizer)
        seen = foretell(predictor.model, known, marks=predictor.tokenizer.marks)  # type: ignore[arg-type]
        scores, samples = self.scored(predictor, held_out[: recipe.train.validate_sentences], self.by[:1], beam=1)
        figures = {name: score.value for name, score in scores.items()}
        measures = {**figures, "loss": seen.loss, "perplexity": perplexity(seen.loss, 1), "accuracy": seen.accuracy}
        return Measured(self._best(figures), measures, samples)

    def _best(self, figures: dict[str, float]) -> float:
        """What is to be as large as possible."""
        first = next(iter(figures.values()))
        return -first if self.by[0] in RATES else first

    def judge(self, predictor: Translator, held_out: Sequence[Any], recipe: Any) -> tuple[dict[str, Any], list[Sample]]:
        scores, samples = self.scored(predictor, held_out, self.by)
        result: dict[str, Any] = {s.name: {"score": s.value, "signature": s.signature} for s in scores.values()}
        result["read"] = predictor.reads
        return result, samples

    def check(self, recipe: Any) -> None:
        if self.order == "backward" and recipe.tokens.dropout:
            raise ValueError("tokens.dropout is for text that is read forward: set it to 0 for target_order backward")
        longest = recipe.model.build(ANY).longest
        if longest is not None and self.longest is not None and longest <= self.longest:  # an end is added to each side
            raise ValueError(
                f"model.max_length = {longest}: what is learned of each position must reach further than "
                f"data.max_length = {self.longest}"
            )

    def rehearse(self) -> None:
        compare(self.by, ["a"], ["a"], tokenize=self.tokenize)

    def habits(self, rows: Iterable[Any]) -> dict[str, Any]:
        return habits(rows)._asdict()

    def title(self, recipe: Any) -> str:
        """`en → de`, as far as somebody has said so."""
        named, corpus = recipe.data.languages, CORPORA.get(recipe.data.corpus or "")
        if corpus is not None and not any(named):
            named = corpus.languages
        return " → ".join(named) if all(named) else "source → target"


def languages(data: DataConfig) -> tuple[str, str]:
    """Which languages a model reads and writes; `source` and `target` if nobody knows.

    Where a recipe names none, they are those of its corpus, or the endings of its files.
    """
    if any(data.languages):
        source, target = data.languages
    elif data.corpus in CORPORA:
        source, target = CORPORA[data.corpus].languages
    else:
        source, target = _endings(data.train)
    return source or "source", target or "target"


def _endings(files: PairFiles | None) -> tuple[str, str]:
    """Of train.en and train.de.gz: en and de."""
    if files is None or files.source is None or files.target is None:
        return "", ""
    source, target = (PurePath(name.removesuffix(".gz")).suffix[1:] for name in (files.source, files.target))
    named = source != target and all(2 <= len(code) <= 3 and code.isalpha() for code in (source, target))
    return (source, target) if named else ("", "")


TASK = Translate
