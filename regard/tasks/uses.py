"""How models that read are used: of each task its settings, which are the section `decode` of a recipe, the options of
its verb, and what a request over HTTP may say.

torch takes a second to load: nothing here needs it.
"""

from dataclasses import dataclass
from pathlib import Path

from regard.checks import above, at_least, one_of, share

LONG = ("windows", "cut", "refuse")
BY = ("meaning", "words", "both")


@dataclass(frozen=True)
class ClassifyUse:
    """How classes are told."""

    top: int | None = None  # tell so many of the likeliest (default: the one, or all that apply)
    threshold: float = 0.5  # where several may apply: those that are at least so likely
    temperature: float = 1.0  # logits are divided by it: fitted on held-out text, probabilities are true shares
    long: str = "windows"  # a text longer than the model reads: windows (the mean of theirs), cut, refuse

    def __post_init__(self) -> None:
        one_of(LONG, long=self.long)
        at_least(1, top=self.top)
        share(threshold=self.threshold)
        above(0, temperature=self.temperature)


@dataclass(frozen=True)
class EmbedUse:
    """How vectors are told."""

    dimensions: int | None = None  # the first so many numbers, made of length 1 again (default: all)
    long: str = "windows"  # a text longer than the model reads: windows (the mean of theirs), cut, refuse

    def __post_init__(self) -> None:
        one_of(LONG, long=self.long)
        at_least(1, dimensions=self.dimensions)


@dataclass(frozen=True)
class SearchUse(EmbedUse):
    """How documents are found."""

    top: int = 10  # tell so many, the nearest first
    by: str = "meaning"  # what they and the query have in common: meaning (vectors), words (BM25), both (their ranks)
    candidates: int | None = None  # with --rerank, or by both: of so many nearest (default: ten times --top)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(BY, by=self.by)
        at_least(1, top=self.top, candidates=self.candidates)

    @property
    def embedding(self) -> EmbedUse:
        """How the vectors are told."""
        return EmbedUse(self.dimensions, self.long)


@dataclass(frozen=True)
class AskUse(SearchUse):
    """How questions are answered from documents."""

    top: int = 4  # read so many passages, the nearest
    least: float = 0.2  # by meaning: passages of a smaller score are not read

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(-1, least=self.least)


@dataclass(frozen=True)
class FillUse:
    """How gaps are filled."""

    top: int = 5  # tell so many tokens for each gap

    def __post_init__(self) -> None:
        at_least(1, top=self.top)


@dataclass(frozen=True)
class RewardUse:
    """How rewards are told."""

    long: str = "windows"  # an answer longer than the model reads: windows (the mean of theirs), cut, refuse

    def __post_init__(self) -> None:
        one_of(LONG, long=self.long)


@dataclass(frozen=True)
class TagUse:
    """How spans are told."""

    threshold: float = 0.0  # those that are at least so likely
    constrained: bool = True  # only tags that may follow each other, the likeliest together; else each word's likeliest

    def __post_init__(self) -> None:
        share(threshold=self.threshold)


@dataclass(frozen=True)
class AnswerUse:
    """How answers are told."""

    top: int = 1  # tell so many of the likeliest
    longest: int = 30  # tokens of an answer
    null: float | None = None  # none is said if its score is above the best by this (default: as learnt, 0 or never)

    def __post_init__(self) -> None:
        at_least(1, top=self.top, longest=self.longest)
        at_least(-1e9, null=self.null)


@dataclass(frozen=True)
class Prompting:
    """How a language model is asked for classes, or one that compares pictures with words."""

    prompt: str | None = None  # what a model reads: {text}, then {label}; or {label} alone; or what T5 reads before
    labels: str | None = None  # `A,B` which there are; 1=good: the label 1, of which the prompt says good
    examples: Path | None = None  # `FILE` rows of a text and its label, shown before each text
    shots: int | None = None  # show so many of them, drawn by chance (default: all, in their order)
    balanced: bool = False  # draw as many of each label
    seed: int = 0  # of what is drawn
    calibrated: bool = False  # weigh labels by what the model says of no text: N/A, an empty one, [MASK]
    by_length: bool = False  # log p of a label is divided by its tokens

    def __post_init__(self) -> None:
        at_least(0, shots=self.shots, seed=self.seed)
        if self.prompt is None and (given := next((k for k, x in vars(self).items() if x and k != "labels"), None)):
            raise ValueError(f"--{given.replace('_', '-')} is for a language model that is asked: say how by --prompt")
        if self.examples is None and (self.shots or self.balanced):
            raise ValueError("examples are drawn from a file: name it by --examples")
