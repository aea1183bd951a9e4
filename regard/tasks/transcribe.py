"""Speech: sound in, what is said out, and when; word errors.

A model hears 30 seconds at a time. It writes when what is said, so that the next window begins where the last sentence
that it heard whole has ended (Radford et al., 2022, §3.8 and §4.5). It knows languages and tasks as tokens.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.checks import at_least, choose, hint
from regard.core.generation import Begun
from regard.core.quantised import dtype_of
from regard.data.recordings import SPELLING
from regard.data.sound import HOP, RATE, Samples, Spectrum, heard, incoming, levelled, read, voiced
from regard.data.tokenizers import Tokenizer
from regard.decoding import pool
from regard.decoding.protocol import Hypothesis, Request, SamplingConfig, SearchConfig
from regard.decoding.spoken import Rules, Spoken
from regard.evaluation.spoken import spellings
from regard.inspection.timing import spoken_at
from regard.native import Listened, Native
from regard.tasks.listen import Certain, Listening
from regard.tasks.searching import Searcher
from regard.tasks.transcripts import Heard, Segment, TranscribeUse, Transcript
from regard.tasks.wording import fitted, in_time

SYMBOLS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'  # are written, and never said
PAIRED = ("<<", ">>", "--", "-(", "-[", "('", '("', "((", "))", "[[", "]]", "{{", "}}", "♪♪")
SEVERAL = (*PAIRED, "<<<", ">>>", "---", "(((", ")))", "♪♪♪")
NOTES = "♩♪♫♬♭♮♯"
SKIPPED = 100  # frames without any sound that are not heard
UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")  # languages that are written without spaces


class Signs:
    """The tokens of a transcript that are no words, by what they are for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.id = tokenizer, tokenizer.rust.token_to_id
        self.first, self.end = tokenizer.marks.need("bos", "eos")
        self.zero = self._need("0.00")
        self.before, self.silence, self.untimed = map(self._need, ("startofprev", "nospeech", "notimestamps"))
        self.tasks = {name: self._need(name) for name in ("transcribe", "translate")}
        # Languages stand between the first token and the tasks; of a model for English alone, they mean nothing.
        listed = range(self.first + 1, min(self.tasks.values()))
        self.languages = {str(tokenizer.rust.id_to_token(i)).strip("<|>"): i for i in listed}

    def _need(self, name: str) -> int:
        found: int | None = self.id(f"<|{name}|>")
        if found is None:
            raise ValueError(f"its tokenizer has no <|{name}|>: it is not one of Whisper's")
        return found

    @cached_property
    def unspoken(self) -> tuple[int, ...]:
        """What is never written: signs, and the first token of symbols that nobody says; inside a word, - and ' are."""
        ids = {self.tokenizer.encode(text)[0] for text in (" -", " '")}
        for symbol in (*SYMBOLS, *SEVERAL, *NOTES):
            for encoded in map(self.tokenizer.encode, (symbol, f" {symbol}")):
                if len(encoded) == 1 or symbol in NOTES:
                    ids.add(encoded[0])
        return (*sorted({*ids, *range(self.first, self.zero)}),)

    def rules(self, begin: Sequence[int], times: bool) -> Rules:
        """What a transcript keeps to that begins so."""
        blank = (*self.tokenizer.encode(" "),)
        return Rules((*begin,), self.end, self.zero, self.silence, self.unspoken, blank, times)


def whisper(tokenizer: Tokenizer) -> bool:
    """Whether its tokens are Whisper's, with times and languages among them."""
    return tokenizer.rust.token_to_id("<|notimestamps|>") is not None


class Found(NamedTuple):
    """What a window of sound says."""

    tokens: list[int]
    log_probability: float  # the mean of all, the end included
    silence: float
    temperature: float
    compression: float


class Transcriber(Searcher):
    """A model that hears, and its tokenizer.

    >>> transcriber = load("runs/whisper")                   # doctest: +SKIP
    >>> transcriber.transcribe("jfk.flac").text              # doctest: +SKIP
    'And so my fellow Americans ask not what your country can do for you ask what you can do for your country.'
    """

    longest = None

    def __init__(
        self,
        models: Sequence[nn.Module],
        tokenizer: Tokenizer,
        use: TranscribeUse | None = None,
        *,
        alignment: Sequence[Sequence[int]] | None = None,
        multilingual: bool = True,
        **how: Any,
    ) -> None:
        """`alignment` are heads that follow the sound word by word, [layer, head] each; a model that is `multilingual`
        is told the language and the task."""
        if len(models) > 1:
            raise ValueError(f"{len(models)} models: speech is heard by one at a time")
        super().__init__(models, tokenizer, **how)
        self.use, self.alignment, self.signs = use or TranscribeUse(), alignment, Signs(tokenizer)
        c: Any = self.model.config
        if getattr(c, "bands", None) is None:
            raise ValueError("the model reads words, not sound: its setting `bands` is none")
        self.bands, self.window = int(c.bands), 2 * int(c.places)
        self.most = int(c.max_length) // 2  # tokens of a window; the other half is for what was said before
        self.multilingual = multilingual
        self.lock = Lock()  # a window at a time: what a head looks at is recorded in the model

    def settings(self, **given: Any) -> TranscribeUse:
        """The model's own, with changes."""
        for name in given:
            choose("setting", name, dict.fromkeys(each.name for each in fields(TranscribeUse)))
        how = replace(self.use, **given)
        if not self.multilingual and (how.translate or how.language not in (None, "en")):
            raise ValueError("the model knows English alone: leave language and translate out, or take another")
        if how.language is not None and how.language not in self.signs.languages:
            raise ValueError(f"language = {how.language!r}: {hint(how.language, self.signs.languages)}")
        return how

    def transcribe(
        self, sound: str | Path | bytes | Any, *, rate: int = RATE, progress: Heard | None = None, **settings: Any
    ) -> Transcript:
        """What is said in a file, or in samples from -1 to 1, (n,) or (n, channels), of which there are `rate` in a
        second. Settings are those of `TranscribeUse`."""
        how = self.settings(**settings)
        samples = read(sound) if isinstance(sound, str | Path | bytes) else levelled(heard(sound, rate))
        hearing = self.hearing(samples, how)
        for _ in hearing:
            if progress is not None:
                progress(hearing.at / 100, hearing.duration)
        return hearing.transcript

    def listen(
        self, sound: Iterable[Any], *, rate: int = RATE, every: float = 1.0, **settings: Any
    ) -> Iterator[Certain]:
        """What is said in chunks of samples from -1 to 1 while they come in, as soon as it is certain: all is heard
        anew when so many seconds have come. Memory and delay have a limit, the sound has none."""
        at_least(0.1, every=every)
        listening = Listening(self, self.settings(**settings), every)
        return listening.to(incoming(sound, rate))

    def hearing(self, samples: Samples, how: TranscribeUse) -> "Hearing":
        """What is said in samples at `RATE`, window by window."""
        return Hearing(self, samples, how)

    @cached_property
    def spelling(self) -> dict[str, str] | None:
        """British words and how Americans spell them, if its directory has them."""
        where: Path | None = getattr(self.model, "directory", None)
        return spellings(where / SPELLING) if where else None

    def report(self) -> str:
        """What was missing when it was judged, in a line."""
        missed = "spelling" in vars(self) and self.spelling is None
        return f"British and American spellings count as different: the model has no {SPELLING}" if missed else ""

    @property
    def unspaced(self) -> tuple[str, ...]:
        """Languages that are written without spaces."""
        return UNSPACED

    @property
    def aligned(self) -> list[list[int]]:
        """Heads that follow the sound: those that are known, or all of the later half of the layers."""
        c: Any = self.model.config
        later = range(c.decoder_layers // 2, c.decoder_layers)
        return [[*each] for each in self.alignment or [(layer, head) for layer in later for head in range(c.heads)]]

    @torch.inference_mode()
    def encoded(self, frames: Tensor) -> Any:
        """What a model makes of the frames of a window, (frames, bands)."""
        model: Any = self.model
        if isinstance(engine := self._alone(), Native):
            return engine.hear(frames.numpy())
        return model.encode(frames[None].to(self.device, dtype_of(model)))

    def languages(self, memory: Any) -> dict[str, float]:
        """How likely each language is, the likeliest first."""
        rows = self._alone().rows()
        rows.start([Begun(memory)])
        logits = torch.from_numpy(rows.step(np.array([self.signs.first]))[0])
        p = logits[[*self.signs.languages.values()]].softmax(0).tolist()
        return dict(sorted(zip(self.signs.languages, p, strict=True), key=lambda pair: -pair[1]))

    def said(self, memory: Any, before: Sequence[int], begin: Sequence[int], how: TranscribeUse, seed: int) -> Found:
        """What a window says: at the first temperature at which it looks right, or at the one where it looks best."""
        tried: list[tuple[bool, Found]] = []
        source = Begun(memory, [self.signs.before, *before[1 - self.most :]] if before else [])
        rules = self.signs.rules(begin, how.times)
        for temperature in how.temperatures:
            spoken = Spoken(self._alone(), rules)
            request = Request(source, self.signs.first, len(begin) + self.most, seed=seed)
            search = SearchConfig(beam=how.beam, alpha=1.0, penalty="mean")
            if temperature:
                search = SearchConfig(beam=1, best=how.best, sampling=SamplingConfig(temperature))
            rows = pool.search(spoken, [request], search, self.signs.end, rows=max(how.best, how.beam))[0]
            best = max(rows, key=lambda each: self._mean(each, len(begin)))
            tokens = best.tokens[len(begin) :]
            text = self.tokenizer.decode(tokens).encode()
            ratio = len(text) / len(zlib.compress(text))
            found = Found(tokens, self._mean(best, len(begin)), spoken.silence[0], temperature, ratio)
            improbable = how.improbable is not None and found.log_probability < how.improbable
            silent = how.silent is not None and found.silence > how.silent
            repetitive = how.repetitive is not None and ratio > how.repetitive
            tried.append((not repetitive, found))
            if not (improbable or repetitive) or (improbable and silent):
                return found
        return max(tried, key=lambda each: (each[0], each[1].log_probability))[1]

    @staticmethod
    def _mean(h: Hypothesis, begin: int) -> float:
        return math.fsum(h.token_scores) / (len(h.tokens) - begin + 1)


class Hearing:
    """A sound that is written down: window by window what is said in it, which may be nothing."""

    def __init__(self, transcriber: Transcriber, samples: Samples, how: TranscribeUse) -> None:
        self.by, self.how, self.at = transcriber, how, 0  # frames that are done
        self.duration, self.sounding = len(samples) / RATE, -(-len(samples) // HOP)
        self.spectrum = Spectrum(samples, transcriber.bands)
        self.voiced = None if how.voice is None else voiced(samples, how.voice)  # (frames,)
        self.language = how.language or ("" if transcriber.multilingual else "en")
        self.segments: list[Segment] = []  # so far
        self._before = transcriber.tokenizer.encode(f" {how.prompt.strip()}") if how.prompt.strip() else []

    @property
    def transcript(self) -> Transcript:
        """What was said so far."""
        return Transcript(self.language, self.duration, (*self.segments,))

    def __iter__(self) -> Iterator[list[Segment]]:
        while self.at < self.sounding:
            with self.by.lock:
                said = self._next()
            self.segments += said
            yield said

    def _next(self) -> list[Segment]:
        """What is said in the next window."""
        by, how = self.by, self.how
        size = min(by.window, self.sounding - self.at)
        frames = self.spectrum.frames(self.at, by.window)
        if (nothing := self._nothing(frames[:size])) > SKIPPED or nothing == size:
            self.at += nothing - (SKIPPED // 2 if nothing < size else 0)
            return []
        if self.voiced is not None:
            ahead = self.voiced[self.at : self.at + size]
            if not ahead[0]:
                self.at += int(ahead.argmax()) or size
                return []
            if not ahead.all():  # up to the pause
                size = int(ahead.argmin())
                frames = torch.cat([frames[:size], frames.min().expand(by.window - size, by.bands)])
        memory = by.encoded(frames)
        if not self.language:
            self.language = next(iter(by.languages(memory)))
        found = by.said(memory, self._before, self._begin(), how, self._seed())
        unlikely = how.improbable is None or found.log_probability <= how.improbable
        if how.silent is not None and found.silence > how.silent and unlikely:
            self.at += size
            return []
        segments, step = self._segments(found, size)
        said = [segment for segment in segments if any(map(str.isalnum, segment.text))]  # signs alone are not said
        said = [each.later(self.at / 100) for each in (self._timed(memory, said, size) if how.words else said)]
        self.at += step
        self._remember(said, found.temperature)
        end = self.duration  # which a model may overshoot
        return [replace(each, start=min(each.start, end), end=min(max(each.start, each.end), end)) for each in said]

    @staticmethod
    def _nothing(frames: Tensor) -> int:
        """Frames before the first in which there is anything at all."""
        loud = (frames > frames.min()).any(1).nonzero()
        return int(loud[0]) if len(loud) else len(frames)

    def _begin(self) -> list[int]:
        signs = self.by.signs
        task = "translate" if self.how.translate else "transcribe"
        begin = [signs.languages[self.language], signs.tasks[task]] if self.by.multilingual else []
        return begin if self.how.times else [*begin, signs.untimed]

    def _seed(self) -> int:
        return self.how.seed * 2**32 + self.at

    def _remember(self, said: Sequence[Segment], temperature: float) -> None:
        """What the next window is told of this one; not what was drawn in despair."""
        if not self.how.context or temperature > 0.5:
            self._before = []
        else:
            self._before = [*self._before, *(token for each in said for token in each.tokens)][-self.by.most :]

    def _segments(self, found: Found, size: int) -> tuple[list[Segment], int]:
        """What is said between times, and how many frames of the window are done: up to the last pair of times, where
        one sentence ends and the next begins, or all where it says nothing more after the last."""
        tokens, zero = found.tokens, self.by.signs.zero
        timed = [token >= zero for token in tokens]
        cuts = [i + 1 for i in range(len(tokens) - 1) if timed[i] and timed[i + 1]]
        done = timed[-2:] == [False, True]
        if not cuts:
            last = next((token - zero for token in reversed(tokens) if token > zero), size / 2)
            return [self._segment(found, tokens, 0, last)], size
        cuts += [len(tokens)] if done else []
        pieces = [tokens[i:j] for i, j in zip([0, *cuts], cuts, strict=False)]
        step = size if done else 2 * (pieces[-1][-1] - zero)
        return [self._segment(found, each, each[0] - zero, each[-1] - zero) for each in pieces], min(step or size, size)

    def _timed(self, memory: Any, segments: Sequence[Segment], size: int) -> list[Segment]:
        """The same segments, with their words."""
        by, signs = self.by, self.by.signs
        begin = [signs.first, *(token for token in self._begin() if token != signs.untimed), signs.untimed]
        said = [[token for token in each.tokens if token < signs.end] for each in segments]
        text = [token for tokens in said for token in tokens]
        if not text or size < 2:
            return [replace(each, words=()) for each in segments]
        if isinstance(memory, Listened):  # who looks where is recorded in PyTorch
            model: Any = by.model
            memory = model.remembered(torch.from_numpy(memory.states)[None].to(dtype_of(model)))
        at, logits = spoken_at(by.model, memory, [*begin, *text, signs.end], len(begin) - 1, by.aligned, size // 2)
        p = logits[:, : signs.end].softmax(-1)
        likely = [float(p[i, token]) for i, token in enumerate(text)]
        cuts = {*accumulate(map(len, said), initial=0)}
        words = in_time(by.tokenizer, text, at / 50, likely, cuts=cuts, alike=self.language in UNSPACED)
        result, done = [], 0
        for each, tokens in zip(segments, said, strict=True):
            own = [word for first, word in words if done <= first < done + len(tokens)]
            done += len(tokens)
            result.append(fitted(replace(each, words=(*own,))))
        return result

    def _segment(self, found: Found, tokens: Sequence[int], start: float, end: float) -> Segment:
        """Times are in fiftieths of a second."""
        text = self.by.tokenizer.decode(tokens)
        _, log_probability, silence, temperature, compression = found
        return Segment(start / 50, end / 50, text, (*tokens,), temperature, log_probability, compression, silence)
