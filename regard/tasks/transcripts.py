"""Transcripts: how speech is written down, what comes of it, and the forms in which that is given.

torch takes a second to load: nothing here needs it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from regard.checks import at_least, share


@dataclass(frozen=True)
class TranscribeUse:
    """How speech is written down. What comes out repetitive or improbable of a window of 30 seconds is drawn by chance,
    at rising temperatures, as in Whisper's paper (Radford et al., 2022, §4.5)."""

    language: str | None = None  # of the speech: en, de, ... (default: what the first 30 seconds sound like)
    translate: bool = False  # into English
    times: bool = True  # the model says when what is said; without, it writes 30 seconds at a time
    words: bool = False  # and when each word is said, by what its heads look at
    beam: int = 1  # hypotheses kept at temperature 0; 1: greedy
    best: int = 5  # outputs drawn at other temperatures, of which the likeliest is kept
    temperature: float = 0.0  # the first that is tried
    step: float = 0.2  # to the next, up to 1; 0: there is no other
    repetitive: float | None = 2.4  # an output is, if zlib makes it so many times shorter
    improbable: float | None = -1.0  # an output is, if the mean log p of its tokens is less
    silent: float | None = 0.6  # a window is, if the model says so with this probability, and its output is improbable
    voice: float | None = None  # hear only what is so many dB louder than the background; 10 is usual (default: all)
    context: bool = False  # what was said before goes along: more even, but an error may go on and on
    prompt: str = ""  # names and words that are likely, as if they were said before
    seed: int = 0  # of what is drawn

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam, best=self.best)
        at_least(0, step=self.step, seed=self.seed)
        share(temperature=self.temperature)
        if self.voice is not None:
            at_least(0, voice=self.voice)
        if self.silent is not None:
            share(silent=self.silent)

    @property
    def temperatures(self) -> list[float]:
        """Those that are tried, one after the other.

        >>> TranscribeUse().temperatures, TranscribeUse(temperature=0.5, step=0).temperatures
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.5])
        """
        count = int((1 - self.temperature) / self.step + 1e-6) if self.step else 0
        return [round(self.temperature + i * self.step, 6) for i in range(count + 1)]


@dataclass(frozen=True)
class Word:
    """A word, and when it is said, in seconds."""

    word: str  # as it stands in the text, with the space before it
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class Segment:
    """Something that is said in one go."""

    start: float  # in seconds
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0  # at which it was found
    log_probability: float = 0.0  # the mean of the tokens of its window
    compression: float = 1.0  # how many times shorter zlib makes the text of its window
    silence: float = 0.0  # how likely it is that nothing was said
    words: tuple[Word, ...] | None = None

    def later(self, seconds: float) -> "Segment":
        """The same, so much later."""
        words = self.words and tuple(replace(w, start=w.start + seconds, end=w.end + seconds) for w in self.words)
        return replace(self, start=self.start + seconds, end=self.end + seconds, words=words)


@dataclass(frozen=True)
class Transcript:
    """What was said."""

    language: str
    duration: float  # of the sound, in seconds
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(segment.text for segment in self.segments).strip()

    def written(self, form: str) -> str:
        """As txt, srt, vtt or json."""
        return FORMS[form](self)


def _lines(transcript: Transcript) -> str:
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def _json(transcript: Transcript) -> str:
    whole = {"text": transcript.text, **asdict(transcript), "segments": [*map(_record, transcript.segments)]}
    return json.dumps(whole, ensure_ascii=False) + "\n"


def _record(segment: Segment) -> dict[str, Any]:
    found = asdict(segment) | {"start": round(segment.start, 2), "end": round(segment.end, 2)}
    if segment.words is None:
        del found["words"]
    return found


def piece(segment: Segment, form: str, number: int) -> str:
    """One segment of a transcript that is still going on, as srt, vtt or a line of json."""
    if form == "json":
        return json.dumps(_record(segment), ensure_ascii=False) + "\n"
    cues = _cues([segment], "," if form == "srt" else ".")
    return "".join((f"{number}\n" if form == "srt" else "") + f"{times}\n{text}\n\n" for times, text in cues)


def clock(seconds: float, point: str = ".") -> str:
    """A time as subtitles have it.

    >>> clock(3661.5), clock(61.25, ",")
    ('01:01:01.500', '00:01:01,250')
    """
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def _cues(segments: Iterable[Segment], point: str) -> Iterator[tuple[str, str]]:
    """Times and text of each subtitle; an arrow in a text would end it."""
    for segment in segments:
        if text := segment.text.strip().replace("-->", "->"):
            yield f"{clock(segment.start, point)} --> {clock(segment.end, point)}", text


def _srt(transcript: Transcript) -> str:
    cues = enumerate(_cues(transcript.segments, ","), start=1)
    return "".join(f"{i}\n{times}\n{text}\n\n" for i, (times, text) in cues)


def _vtt(transcript: Transcript) -> str:
    return "WEBVTT\n\n" + "".join(f"{times}\n{text}\n\n" for times, text in _cues(transcript.segments, "."))


FORMS: Mapping[str, Callable[[Transcript], str]] = {"txt": _lines, "srt": _srt, "vtt": _vtt, "json": _json}
Heard = Callable[[float, float], Any]  # seconds that are done, of so many
