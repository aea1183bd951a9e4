"""Summaries: a long text in, a short one out; ROUGE."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from torch import nn

from regard.checks import at_least
from regard.data.rows import Row
from regard.data.stories import SummaryFiles
from regard.data.tokenizers import Tokenizer
from regard.tasks.asks import Ask, DecodeConfig, Part, Settings, Summarising
from regard.tasks.task import Cut, Data, Sections
from regard.tasks.translate import EvaluateConfig, Pair, Translate
from regard.tasks.translator import Translator


@dataclass(frozen=True)
class SummariseConfig:
    """What a model is for."""

    name: str = "summarise"


@dataclass(frozen=True)
class SummariesConfig(Data):
    """Where texts and their summaries come from."""

    train: SummaryFiles | None = None  # your own files
    valid: SummaryFiles | None = None  # held out of train if left out
    test: SummaryFiles | None = None  # held out of train if left out
    max_length: int = 512  # sub-words; longer texts are cut, longer summaries are skipped, and both are counted

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})


@dataclass(frozen=True)
class Overlap(EvaluateConfig):
    """How summaries are scored."""

    by: tuple[str, ...] = ("rouge",)  # or bleu, chrf, exact, wer, per; the first says which weights are the best


class Summariser(Translator):
    """A model that summarises, and its tokenizer.

    >>> summariser = load("runs/aeslc")                                # doctest: +SKIP
    >>> summariser.summarise("Attached is the draft for Thursday ...")  # doctest: +SKIP
    'Draft agenda'
    """

    @property
    def reads(self) -> str:
        """How texts are read, for evaluations to state."""
        return "whole" if self.longest is None else f"up to {self.longest} sub-words of each text"

    @overload
    def summarise(self, text: str, **settings: Any) -> str: ...
    @overload
    def summarise(self, text: list[str], **settings: Any) -> list[str]: ...
    def summarise(self, text: str | list[str], **settings: Any) -> str | list[str]:
        """The summary of a text, or of each in a list; of a text that is too long to be read, it warns."""
        return self.translate(text, **settings)

    def _parts(self, asks: Sequence[Ask], settings: Settings) -> tuple[list[list[Part]], list[int]]:
        return super()._parts([replace(ask, text=" ".join(ask.text.split())) for ask in asks], settings)


@dataclass(frozen=True)
class Summarise(Translate):
    """A long text in, a short one out."""

    languages: tuple[str, str] = ("text", "summary")
    longest: int | None = SummariesConfig.max_length  # sub-words that a text had in training, at most
    by: tuple[str, ...] = Overlap.by
    prompt: str = Summarising.prompt  # stands before each text

    name, called = "summarise", "summarising"
    sections = Sections(SummariseConfig, SummariesConfig, Summarising, Overlap)
    row, rows = "text", "texts"

    @classmethod
    def of(cls, recipe: Any) -> "Summarise":
        return cls(longest=recipe.data.max_length, prompt=recipe.decode.prompt, **vars(recipe.evaluate))

    def prepared_by(self) -> list[Any]:
        return [self.name, self.longest, self.prompt]

    def texts(self, row: Row) -> Pair:
        return row["text"], row["summary"][0]

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        texts = tokenizer.encode_batch([self.prompt + row["text"] for row in rows])
        summaries = tokenizer.encode_batch([row["summary"][0] for row in rows])
        for text, summary in zip(texts, summaries, strict=True):
            most = self.longest and self.longest - 1  # an end is added
            if most is not None and len(summary) > most:
                yield None
            else:
                yield (text, summary) if most is None or len(text) <= most else Cut((text[:most], summary))

    def questions(self, rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
        return [(row["text"], row["summary"]) for row in rows]

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: DecodeConfig, **how: Any) -> Summariser:
        return Summariser(models, tokenizer, use, longest=self.longest, **how)

    def habits(self, rows: Iterable[Row]) -> dict[str, Any]:
        return {}

    def title(self, recipe: Any) -> str:
        return self.name


TASK = Summarise
