"""Translation: pairs of texts, an encoder-decoder that reads one and writes the other, BLEU."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from regard.evaluation.translation import TOKENIZERS, bleu, chrf
from regard.tasks.asks import DecodeConfig
from regard.tasks.task import Data, Measured, Sections, Task
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
    """How translations are scored, in sacreBLEU's terms."""

    tokenize: str = "13a"  # none, for text that is tokenised already
    lowercase: bool = False  # before comparing

    def __post_init__(self) -> None:
        one_of(TOKENIZERS, **{"evaluate.tokenize": self.tokenize})


@dataclass(frozen=True)
class Translate(Task):
    """Text in, text out."""

    languages: tuple[str, str] = ("source", "target")
    longest: int | None = DataConfig.max_length  # sub-words that a sentence had in training, at most
    order: str = "forward"  # in which the target is written
    tokenize: str = EvaluateConfig.tokenize  # of how it is scored
    lowercase: bool = EvaluateConfig.lowercase

    name, called = "translate", "translation"
    sections = Sections(TranslateConfig, DataConfig, DecodeConfig, EvaluateConfig)
    row, rows, shares = "pair", "pairs", ", joint"
    needs = EncoderDecoder

    def __post_init__(self) -> None:
        object.__setattr__(self, "languages", tuple(self.languages))
        one_of(ORDERS, order=self.order)
        at_least(1, longest=self.longest)

    @classmethod
    def of(cls, recipe: Any) -> "Translate":
        data, e = recipe.data, recipe.evaluate
        return cls(languages(data), data.max_length, data.target_order, e.tokenize, e.lowercase)

    def prepared_by(self) -> list[Any]:
        return [self.longest, self.order]

    def texts(self, row: Pair) -> Pair:
        return row

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return pairs_of(vocabulary)

    def examples(self, rows: Sequence[Pair], tokenizer: Tokenizer) -> Iterator[tuple[list[int], list[int]] | None]:
        sources, targets = (tokenizer.encode_batch(side) for side in zip(*rows, strict=True))
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

    def measure(self, predictor: Translator, held_out: Sequence[Pair], recipe: Any) -> Measured:
        ids = list(self.examples(held_out, predictor.tokenizer))
        unbounded = Translate(longest=None, order=self.order)
        known = [pair for pair in ids if pair is not None] or unbounded.examples(held_out, predictor.tokenizer)
        seen = foretell(predictor.model, known, marks=predictor.tokenizer.marks)  # type: ignore[arg-type]
        some = held_out[: recipe.train.validate_sentences]
        said = list(predictor.translate_lines((source for source, _ in some), beam=1))
        references = [predictor.tokenizer.joined(target) for _, target in some]
        score = bleu(said, references, tokenize=self.tokenize, lowercase=self.lowercase).value
        measures = {"bleu": score, "loss": seen.loss, "perplexity": perplexity(seen.loss, 1), "accuracy": seen.accuracy}
        samples = [Sample(source, text, target) for (source, target), text in zip(some, said, strict=True)]
        return Measured(score, measures, samples)

    def judge(
        self, predictor: Translator, held_out: Sequence[Pair], recipe: Any
    ) -> tuple[dict[str, Any], list[Sample]]:
        said = list(predictor.translate_lines(source for source, _ in held_out))
        references = [predictor.tokenizer.joined(target) for _, target in held_out]
        scores = [
            bleu(said, references, tokenize=self.tokenize, lowercase=self.lowercase),
            chrf(said, references, lowercase=self.lowercase),
        ]
        result: dict[str, Any] = {s.name: {"score": s.value, "signature": s.signature} for s in scores}
        result["read"] = predictor.reads
        samples = [Sample(source, text, target) for (source, target), text in zip(held_out, said, strict=True)]
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
        bleu(["a"], ["a"], tokenize=self.tokenize)

    def habits(self, rows: Iterable[Pair]) -> dict[str, Any]:
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
