"""The task to transcribe: recordings and what is said in them, word errors; and models that were taught it here.

A model writes on from the sound, as a Whisper does, or tells of each position of the sound a token, or none (CTC).
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.generation import Begun, EncoderDecoder, padded
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.labelled_pictures import trace_of
from regard.data.pictures import in_groups
from regard.data.recordings import RecordingFiles
from regard.data.rows import Row, RowFiles
from regard.data.sound import Ear, Samples, SoundError, SpecAugment
from regard.data.tokenizers import Tokenizer
from regard.decoding.ctc import greedy, prefix_beam, shortest_path
from regard.decoding.protocol import Request, SearchConfig
from regard.evaluation.spoken import basic, english
from regard.evaluation.texts import RATES, compare
from regard.tasks.hear import SoundConfig, hearing
from regard.tasks.searching import Searcher
from regard.tasks.task import Damaged, Evidence, Measured, Sections, Task
from regard.tasks.transcribe import SKIPPED, UNSPACED, Hearing, Signs, Transcriber, whisper
from regard.tasks.transcripts import Segment, TranscribeUse
from regard.training.objectives import CTC, IGNORE, NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate


class Scribe(Transcriber):
    """A model that was taught here to write down what it hears: a window at a time, and without times.

    It writes on as a Whisper does, or tells a token, or none, of each position (CTC).
    """

    def __init__(
        self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: TranscribeUse, ear: Ear, **how: Any
    ) -> None:
        Searcher.__init__(self, models, tokenizer, **how)
        if len(models) > 1:
            raise ValueError(f"{len(models)} models: speech is heard by one at a time")
        self.use, self.ear, self.bands, self.window, self.lock = use, ear, ear.bands, ear.frames, Lock()
        self.multilingual = True  # for all that is known

    def settings(self, **given: Any) -> TranscribeUse:
        """The model's own, with changes."""
        how = replace(self.use, **given)
        if changed := next((name for name in given if name != "beam" and given[name] != getattr(self.use, name)), None):
            raise ValueError(f"{changed} = {given[changed]!r}: this model knows `beam` alone: leave {changed} out")
        return how

    def hearing(self, samples: Samples, how: TranscribeUse) -> "Dictation":
        return Dictation(self, samples, how)

    def written(self, frames: Tensor, beam: int) -> tuple[list[int], float]:
        """The tokens of a window (frames, bands), and their log p."""
        if isinstance(self.model, EncoderDecoder):
            request = Request(Begun(self.encoded(frames)), self.bos, self.window // 2)
            best = self._search([request], SearchConfig(beam=beam))[0][0]
            return best.tokens, best.log_probability
        with torch.inference_mode():
            log_p = self.model(frames[None].to(self.device)).float().log_softmax(-1)[0].cpu()
        return prefix_beam(log_p, beam)[0] if beam > 1 else greedy(log_p)


class Dictation(Hearing):
    """The same by a model without times. What is longer than a window is cut in its second half, where it is least
    loud."""

    by: Scribe

    def _next(self) -> list[Segment]:
        size = min(self.by.window, self.sounding - self.at)
        frames = self.spectrum.frames(self.at, self.by.window)
        if self.at + size < self.sounding:
            size = size // 2 + int(frames[size // 2 : size].mean(1).argmin()) + 1
        if (nothing := self._nothing(frames[:size])) > SKIPPED or nothing == size:
            self.at += nothing - (SKIPPED // 2 if nothing < size else 0)
            return []
        frames[size:] = self.spectrum.silence
        tokens, log_p = self.by.written(self.by.ear.evened(frames, size), self.how.beam)
        start, self.at = self.at, self.at + size
        text = self.by.tokenizer.decode(tokens).strip()
        ends = start / 100, min(self.at / 100, self.duration)
        mean = log_p / (len(tokens) + 1)
        return [Segment(*ends, f" {text}", (*tokens,), log_probability=mean)] if text else []


@dataclass(frozen=True)
class TranscribeConfig:
    """What a model is for."""

    name: str = "transcribe"


@dataclass(frozen=True)
class RecordingsConfig(SoundConfig):
    """Where recordings and what is said in them come from."""

    train: RecordingFiles | None = None  # type: ignore[assignment]  # your own files
    valid: RecordingFiles | None = None  # type: ignore[assignment]  # held out of train if left out
    test: RecordingFiles | None = None  # type: ignore[assignment]  # held out of train if left out
    files_of: ClassVar[type[RowFiles]] = RecordingFiles


@dataclass(frozen=True)
class SpokenConfig:
    """How transcripts are scored."""

    by: tuple[str, ...] = ("wer", "cer")  # or exact, bleu, chrf; the first says which weights are the best
    normalise: bool = True  # compare what is said, however it is written


@dataclass(frozen=True)
class Transcribe(Task):
    """Sound in, what is said out."""

    alignment: tuple[tuple[int, int], ...] | None = None  # heads that follow the sound word by word: layer, head
    multilingual: bool = True  # it is told the language, and whether to translate
    by: tuple[str, ...] = SpokenConfig.by
    normalise: bool = SpokenConfig.normalise

    ctc: bool = False  # it tells a token of each position, and writes nothing on
    ear: Ear = field(default_factory=Ear)
    augment: SpecAugment = field(default_factory=SpecAugment)

    name, called = "transcribe", "speech"
    sections = Sections(TranscribeConfig, RecordingsConfig, TranscribeUse, SpokenConfig)
    row, rows = "recording", "recordings"
    reads = "frames"

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(given := getattr(self, each.name), dict):  # as JSON has it
                object.__setattr__(self, each.name, each.default_factory(**given))  # type: ignore[operator]

    @classmethod
    def of(cls, recipe: Any) -> "Transcribe":
        c, begun, e = hearing(recipe, "hearing-tiny"), recipe.model.task(), recipe.evaluate
        known = {name: begun[name] for name in ("alignment", "multilingual") if name in begun}
        even = recipe.model.base is None or begun.get("ear", {}).get("even", False)  # a Whisper knows loud and faint
        known |= {"ctc": not hasattr(c, "decoder_layers"), "ear": Ear(c.bands, c.frames, even)}
        return cls(**{"multilingual": False} | known, by=e.by, normalise=e.normalise, augment=recipe.data.augment)

    def check(self, recipe: Any) -> None:
        if recipe.train.batch_rows is None:
            raise ValueError("train.batch_rows: say how many recordings make a batch, as 32")

    def noted(self) -> dict[str, Any]:
        left = ("augment",) if self.ear.even else ("augment", "ear")
        return {key: value for key, value in super().noted().items() if key not in left}

    def prepared_by(self) -> list[Any]:
        return [self.name, self.ctc, self.multilingual, asdict(self.ear)]

    def texts(self, row: Row) -> Sequence[str]:
        return (row["text"],)

    def trace(self, row: Row) -> str:
        return trace_of(row["sound"])  # others may say the same

    def length(self, recipe: Any) -> int:
        return 1

    def columns(self, vocabulary: int) -> Mapping[str, Column]:
        return {"frames": self.ear.column, "tokens": replace(Column.ids(vocabulary), ragged=False)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterable[Any]:
        begin = self._begin(tokenizer)
        said = tokenizer.encode_batch([f"{' ' if begin else ''}{row['text'].strip()}" for row in rows])
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for some in in_groups(zip(rows, said, strict=True), 256):
                for frames, (row, ids) in zip(pool.map(lambda each: self._heard(each[0]), some), some, strict=True):
                    if self.ctc and (least := shortest_path(ids)) > self.ear.frames // 2:
                        most = self.ear.frames // 2
                        yield Damaged(f"{row['sound']} has {least} tokens and blanks for {most} positions: cut it")
                    else:
                        yield frames if isinstance(frames, Damaged) else (frames, [*begin, *ids])

    def _heard(self, row: Row) -> Any:
        try:
            return self.ear.pixels(row["sound"], row["sound"])
        except SoundError as error:
            return Damaged(error)

    def _begin(self, tokenizer: Tokenizer) -> list[int]:
        """With what a transcript begins: of a Whisper, what it is told."""
        if self.ctc or not whisper(tokenizer):
            return []
        signs = Signs(tokenizer)
        told = [signs.languages["en"], signs.tasks["transcribe"]] if self.multilingual else []
        return [*told, signs.untimed]

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad, bos, eos = tokenizer.marks.need("pad", "bos", "eos")
        begin = len(self._begin(tokenizer))

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            frames = self.ear.tensor(np.stack([self.augment.picture(each, draw) for each, _ in rows]))
            said = [ids.tolist() for _, ids in rows]
            if self.ctc:
                return Batch({"frames": frames, "labels": padded(said, pad, 2**31)}, sum(map(len, said)))
            target = padded([[bos, *ids] for ids in said], pad, 2**31)
            labels = padded([[*ids, eos] for ids in said], IGNORE, 2**31)
            labels[:, :begin] = IGNORE
            return Batch({"source": frames, "target": target, "labels": labels}, int((labels != IGNORE).sum()))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        (pad,) = tokenizer.marks.need("pad")
        return CTC(model, pad) if self.ctc else NextToken(model, smoothing, ignore=IGNORE)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: TranscribeUse, **how: Any) -> Transcriber:
        if not whisper(tokenizer):
            return Scribe(models, tokenizer, use, self.ear, **how)
        return Transcriber(models, tokenizer, use, alignment=self.alignment, multilingual=self.multilingual, **how)

    def measure(self, predictor: Transcriber, held_out: Sequence[Row], recipe: Any) -> Measured:
        held_out = held_out if recipe is None else held_out[: recipe.train.validate_sentences]
        heard = [predictor.transcribe(row["sound"]) for row in held_out]
        said, meant = [each.text for each in heard], [row["text"] for row in held_out]
        tongues = ["en" if predictor.use.translate else each.language for each in heard]
        both, how = [said, meant], "no"
        if self.normalise:
            both = [[*map(partial(_normal, predictor), texts, tongues)] for texts in both]
            kinds = {"english" if tongue == "en" else "basic" for tongue in tongues}
            unspelt = "-unspelt" if predictor.report() else ""
            how = f"whisper-{'+'.join(sorted(kinds))}{unspelt}"
        scores = compare(self.by, *both)
        figures = {name: score.value for name, score in scores.items()}
        rows = zip(held_out, said, meant, strict=True)
        samples = [Sample(Path(row["sound"]).name, text, wanted) for row, text, wanted in rows]
        first = figures[next(iter(figures))]
        made = {name: f"normal:{how}|{score.signature}".lower() for name, score in scores.items()}
        evidence = Evidence(
            len(samples), lambda some: {name: each.of(some) for name, each in scores.items()}, made=made
        )
        return Measured(-first if self.by[0] in RATES else first, figures, samples, evidence)

    def judge(
        self, predictor: Transcriber, held_out: Sequence[Row], recipe: Any
    ) -> tuple[dict[str, Any], list[Sample]]:
        found, how = self.measure(predictor, held_out, None), f"{self.rows}:{len(held_out)}"
        return {name: {"score": x, "signature": how} for name, x in found.measures.items()}, found.samples


def _normal(by: Transcriber, text: str, tongue: str) -> str:
    """A text of a language as Whisper's paper compares it."""
    return english(text, by.spelling) if tongue == "en" else basic(text, apart=tongue in UNSPACED)


TASK = Transcribe
