"""What may be asked of a translator, and what it answers.

A text is read in parts: sentences, unless it is to be read as one, and pieces of those that are too long. White space
between them is never read, and stands in the answer where it stood in the text; so do addresses, code and emoji.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

from regard.checks import at_least, hint, one_of
from regard.data.kept import Links as Links
from regard.data.kept import Without
from regard.data.sentences import Piece
from regard.decoding.forms import Form
from regard.decoding.protocol import Bare, SamplingConfig, SearchConfig
from regard.evaluation.calibration import perplexity

AHEAD, CHARACTERS = 2_000, 2**20  # lines, and characters of them, that are translated together
SAMPLING = [each.name for each in fields(SamplingConfig)]
SEARCH = [each.name for each in fields(SearchConfig) if each.name != "sampling"]
PHRASES = ("require", "forbid")
USED = ("keep", "long", "prompt")  # settings that a recipe may say, too, if its task has them
LONG = ("split", "cut", "refuse")
TEXT = SearchConfig(shortest=1)  # what is not blank has a translation


@dataclass(frozen=True)
class DecodeConfig(SearchConfig):
    """How a text is read, and how its translation is searched for (§6.1)."""

    shortest: int = 1  # tokens that an output has at least: what is not blank has a translation
    split: bool | None = None  # read sentence by sentence; left out: unless most training lines have several
    stops: bool | None = None  # no full stop where the input has none; left out: if training pairs have it so


@dataclass(frozen=True)
class Summarising(DecodeConfig):
    """How a text is read, and how its summary is searched for."""

    split: bool | None = False  # a text is read as a whole
    stops: bool | None = False
    keep: bool = False
    long: str = "cut"  # a text longer than the model has seen: cut it, or refuse
    prompt: str = ""  # stands before each text, in training, too; as T5 wants it: "summarize: "

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(LONG, long=self.long)


@dataclass(frozen=True)
class Settings:
    """How a text is translated."""

    search: SearchConfig = TEXT
    seed: int = 0  # of sampling; what is drawn for a sentence hangs on it and on the sentence alone
    mbr: int | None = None  # draw so many outputs, and take the one that the others agree with most
    split: bool = True  # a text is several sentences: translate each, and keep what is between them
    keep: bool = True  # addresses, @names, code and emoji come out as they went in
    stops: bool = False  # an output ends in a full stop only where its input ends in some stop
    long: str = "split"  # what to do with a sentence longer than the model has seen: split, cut or refuse it
    prompt: str = ""  # stands before each text that is read, as T5 wants it: "summarize: "
    align: bool = False  # say which word comes from which
    prefix: str = ""  # the output begins so
    require: tuple[str, ...] = ()  # phrases that it contains
    forbid: tuple[str, ...] = ()  # phrases that it does not contain

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed}: it is a whole number from 0")
        if self.long not in LONG:
            raise ValueError(f"long = {self.long!r}: choose {', '.join(LONG[:-1])} or {LONG[-1]}")
        if self.align and self.prompt:
            raise ValueError("align is for the words of a text, and a prompt stands before them: leave one of them out")
        if self.mbr is not None and self.mbr < 2:
            raise ValueError(f"mbr = {self.mbr}: it takes at least 2 outputs to compare")

    @classmethod
    def of(cls, given: Mapping[str, Any], default: DecodeConfig | None = None) -> "Settings":
        """From names and values; None is as if left out. A recipe's section `decode` says what is then the case.

        >>> Settings.of({"beam": 8, "best": 3, "seed": None}).search.best
        3
        >>> Settings.of({"beem": 8})
        Traceback (most recent call last):
        ValueError: there is no setting 'beem': did you mean 'beam'?
        """
        given = given_of(given, cls)
        base, mbr = default or DecodeConfig(), given.get("mbr", 0)
        search = search_of(given, base)
        if mbr > 1:
            if "best" in given:
                raise ValueError(f"best = {given['best']}: mbr chooses one of its {mbr} outputs; leave one of them out")
            search = replace(search, best=mbr, sampling=search.sampling or SamplingConfig())
        own: dict[str, Any] = {name: getattr(base, name) for name in USED if hasattr(base, name)}
        own |= {"split": base.split is not False, "stops": base.stops is True}
        own |= {each.name: given[each.name] for each in fields(cls) if each.name in given}
        own |= {name: _phrases(given[name]) for name in PHRASES if name in given}
        return cls(search, **own)

    def bare(self) -> "Settings":
        """The same where nobody asks for scores: greedy search does without a soft-max."""
        alone = self.search.beam == 1 and self.search.best == 1
        return replace(self, search=Bare(**vars(self.search))) if alone else self


def names_of(settings: type[Any]) -> list[str]:
    """All that can be said of a search, and of what else there is in some settings."""
    return [*SEARCH, *SAMPLING, *(each.name for each in fields(settings) if each.name != "search")]


def given_of(given: Mapping[str, Any], settings: type[Any]) -> dict[str, Any]:
    """What is given of some settings and those of a search, None left out; a name that is none of them is an error."""
    known, given = names_of(settings), {name: value for name, value in given.items() if value is not None}
    for name in given.keys() - set(known):
        raise ValueError(f"there is no setting {name!r}: {hint(name, known)}")
    return given


def search_of(given: Mapping[str, Any], base: SearchConfig) -> SearchConfig:
    """A search with what is given of its settings, by name; of the others, it has those of `base`.

    Where outputs are drawn by chance unless somebody asks for a beam, `beam` does so.
    """
    search = {each.name: getattr(base, each.name) for each in fields(SearchConfig)}
    search |= {name: given[name] for name in SEARCH if name in given}
    sampling = {name: given[name] for name in SAMPLING if name in given}
    if base.sampling is not None and "beam" not in given:
        sampling = asdict(base.sampling) | sampling
    return SearchConfig(**search | {"sampling": SamplingConfig(**sampling) if sampling else None})


def _phrases(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class Writing:
    """How a text is gone on with."""

    search: SearchConfig
    seed: int = 0  # of chance; what is drawn for a prompt hangs on it and on the prompt alone
    stop: tuple[str, ...] = ()  # texts before which the output ends
    echo: bool = False  # the prompt stands before it
    schema: str | None = None  # `JSON|FILE` it is JSON that satisfies this JSON Schema
    regex: str | None = None  # it matches this regular expression as a whole
    grammar: str | None = None  # `FILE` it keeps this grammar, in Lark's notation

    def __post_init__(self) -> None:
        at_least(0, seed=self.seed)
        self.form  # noqa: B018  or why not
        if not all(self.stop):
            raise ValueError("a stop text is empty: leave it out")

    @classmethod
    def of(cls, given: Mapping[str, Any], default: SearchConfig) -> "Writing":
        """From names and values; None is as if left out.

        >>> Writing.of({"beam": 4, "limit": 9, "stop": "."}, SearchConfig()).stop
        ('.',)
        """
        given = given_of(given, cls)
        own = {each.name: given[each.name] for each in fields(cls) if each.name in given}
        if isinstance(stop := own.get("stop", ()), str):
            own["stop"] = (stop,)
        else:
            own["stop"] = tuple(stop)
        if isinstance(own.get("schema"), Mapping | bool):
            own["schema"] = json.dumps(own["schema"])
        return cls(search_of(given, default), **own)

    @property
    def form(self) -> Form | None:
        """What an output is as a whole."""
        return Form.of(self.schema, self.regex, self.grammar)


@dataclass(frozen=True)
class Prompt:
    """A text to go on with."""

    text: str
    place: str = ""  # where it stands, for errors
    id: object = None  # whatever its owner knows it by
    seed: int | None = None  # in place of that of the settings
    ids: tuple[int, ...] | None = None  # what is read in place of its sub-words, marks and all
    end: int | None = None  # a token that ends the output, as the model's own end does
    form: Form | None = None  # what the output is as a whole, in place of that of the settings
    tell: int | None = None  # say how likely the model held each token, and so many others
    pixels: Any = None  # of the pictures in it, (N, C, H, W), for a model that sees


class ReachError(ValueError):
    """A prompt is longer than its model can read."""


class Followed(NamedTuple):
    """A token, and what the model held of it before it came."""

    id: int
    log_p: float | None  # None: nothing stands before it
    others: dict[int, float]  # the likeliest, itself perhaps among them: log p by id


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt."""

    text: str
    tokens: list[str]  # sub-words, as a person reads them
    score: float  # by which outputs are ranked
    log_probability: float  # log P of the tokens, and of the end if there is one
    token_scores: list[float]
    why: str  # it ended: stop (the model's own end, or a stop text), or length
    read: list[int]  # ids of the prompt
    ids: list[int]  # and of the tokens
    told: list[Followed] | None = None  # where asked for: of the tokens, and with `echo` of the prompt's before them
    complete: bool | None = None  # whether it keeps its form to the end, where it was to keep one


SETTINGS = names_of(Settings)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Translation:
    """An output. Of a text in several parts, it has the texts and tokens of all, and the sums of their scores."""

    text: str
    tokens: list[str]  # sub-words, as a person reads them
    score: float  # by which outputs are ranked: log P over a norm of the length
    log_probability: float  # log P of the tokens and of the end
    token_scores: list[float]  # its parts: log p of each token, and of the end unless the output was cut
    alignment: Links | None = None  # where asked for
    unknown: tuple[str, ...] = ()  # of its source: what the model has no sub-words for, and can only guess at


@dataclass(frozen=True)
class Score:
    """How likely the model holds a translation that is given."""

    log_probability: float
    tokens: list[str]  # sub-words, the end last
    token_scores: list[float]  # log p of each, given those before

    @property
    def perplexity(self) -> float:
        """Of a token: exp of the mean surprise."""
        return perplexity(-self.log_probability, len(self.token_scores))


@dataclass(frozen=True)
class Alternative:
    """A token that may come next, how probable it is, and the output that it leads to."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True)
class Ask:
    """A text to translate, with what is asked of its output alone."""

    text: str
    place: str = ""  # where it stands, for errors
    id: object = None  # whatever its owner knows it by
    prefix: str = ""
    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    seed: int | None = None  # in place of that of the settings


@dataclass(frozen=True)
class Answer:
    """The outputs for a text, the best first."""

    translations: list[Translation]
    cut: int = 0  # of its sentences, so many were too long, and were read in parts, or their beginning alone

    @property
    def unknown(self) -> tuple[str, ...]:
        """What of the text the model has no sub-words for."""
        return self.translations[0].unknown


class Part(NamedTuple):
    """What the model reads at once, and the white space after it."""

    text: str
    ids: list[int]  # none: it stays as it is
    gap: str
    unknown: tuple[str, ...] = ()
    without: Without | None = None  # the things to keep that stand among its words, if there are any
    pieces: tuple["Part", ...] = ()  # what it is read in, should nobody know where these belong

    @property
    def read(self) -> str:
        """What the model sees of the text."""
        return self.text if self.without is None else self.without.read


def _characters(ask: Any) -> int:
    return len(ask.text)


def windows(asks: Iterable[Item], characters: Callable[[Item], int] = _characters) -> Iterator[list[Item]]:
    """Texts in groups to be read together: so many that sorting them by length pays, and memory is bounded.

    Of the texts, none is taken before its group is asked for.
    """
    window: list[Item] = []
    size = 0
    for ask in asks:
        window.append(ask)
        size += characters(ask)
        if len(window) == AHEAD or size >= CHARACTERS:
            yield window
            window, size = [], 0
    if window:
        yield window


def one_sentence(text: str) -> list[Piece]:
    """A text as one sentence, with the white space around it."""
    inner = text.strip()
    lead = text[: len(text) - len(text.lstrip())] if inner else text
    return [*([Piece("", lead)] if lead else []), *([Piece(inner, text[len(lead) + len(inner) :])] if inner else [])]


def unread(text: str) -> Translation:
    """What stays as it is."""
    return Translation(text, [], 0.0, 0.0, [], [(word, word) for word in range(len(text.split()))])


def joined(parts: Sequence[Part], said: Sequence[Translation]) -> Translation:
    """One output for a text out of those of its parts."""
    if len(parts) == 1 and not parts[0].gap:
        return said[0]
    links: Links = []
    counts, ends = [0, 0], ["", ""]  # words so far, and their last character, in source and target
    for part, each in zip(parts, said, strict=True):
        # Where no white space is between, as in Chinese, a word goes on.
        i, j = (count - bool(end.strip()) for count, end in zip(counts, ends, strict=True))
        links += [(i + a, j + b) for a, b in each.alignment or ()]
        texts = [ends[0] + part.text, ends[1] + each.text]
        counts = [i + len(texts[0].split()), j + len(texts[1].split())]
        ends = [(text + part.gap)[-1:] for text in texts]
    return Translation(
        "".join(each.text + part.gap for part, each in zip(parts, said, strict=True)),
        [token for each in said for token in each.tokens],
        math.fsum(each.score for each in said),
        math.fsum(each.log_probability for each in said),
        [score for each in said for score in each.token_scores],
        None if any(each.alignment is None for each in said) else links,
        tuple(dict.fromkeys(stretch for each in said for stretch in each.unknown)),
    )


def short(text: str) -> str:
    """A text as an error quotes it."""
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def listed(texts: Sequence[str]) -> str:
    """Some texts as a remark names them.

    >>> listed(["a", "b", "c", "d", "e"])
    "'a', 'b', 'c' and 2 more"
    """
    named = ", ".join(map(short, texts[:3]))
    return f"{named} and {len(texts) - 3} more" if len(texts) > 3 else named
