"""What is told of a sound that is still coming in stays, comes soon, and needs no more memory for more sound."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from regard.api import load
from regard.convert import import_
from regard.data.sound import RATE
from regard.tasks.listen import LONGEST, Certain, Listening, nearest
from regard.tasks.transcripts import Segment, TranscribeUse, Word
from tests.speech import directory, noise

ANY: dict[str, Any] = {"repetitive": None, "improbable": None, "silent": None, "step": 0, "language": "en"}


class Speaker:
    """Somebody who says a word each second, in sentences of so many, and is heard with a mistake in the last word."""

    unspaced = ("zh",)

    def __init__(self, sentence: int, compression: float = 1.0) -> None:
        self.sentence, self.compression, self.longest = sentence, compression, 0

    def hearing(self, samples: NDArray[np.float32], how: TranscribeUse) -> Any:
        self.longest = max(self.longest, len(samples))
        second = [round(float(x)) for x in samples[RATE // 2 :: RATE]]  # a sample says which second it is
        # What is said in the newest second is misheard; each segment ends with a sentence, or with the sound.
        found, words = list[Segment](), list[Word]()
        for i, n in enumerate(second):
            newest = i == len(second) - 1 and how.step == 0
            words.append(Word(f" {'wrong' if newest else n}", float(i), i + 1.0, 1.0))
            if (n + 1) % self.sentence == 0 or i == len(second) - 1:
                text = "".join(word.word for word in words)
                given = (*words,) if how.words else None
                found.append(Segment(words[0].start, i + 1.0, text, compression=self.compression, words=given))
                words = []
        return _Heard(found)


class _Heard:
    language = "en"

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments

    def __iter__(self) -> Iterator[list[Segment]]:
        yield self.segments


def seconds(count: int) -> Iterator[NDArray[np.float32]]:
    for i in range(count):
        yield np.full(RATE, i, np.float32)


def told(by: Any, count: int, **how: Any) -> list[Certain]:
    return [*Listening(by, TranscribeUse(language="en", **how), 1.0).to(seconds(count))]


@pytest.mark.parametrize("sentence", [4, 7, 1000])
def test_what_is_told_is_all_that_is_said_once_and_in_order(sentence: int) -> None:
    by = Speaker(sentence)
    found = told(by, 100)
    assert "".join(each.text for each in found).split() == [*map(str, range(100))]
    # Of each word it was certain a second after it was misheard, unless it took a sentence without an end.
    for each in found:
        for word in each.text.split():
            assert each.heard - int(word) <= (3 if sentence < LONGEST else LONGEST + 1)
    assert by.longest <= (LONGEST + 1) * RATE
    segments = [segment for each in found for segment in each.segments]
    assert " ".join(segment.text.strip() for segment in segments).split() == [*map(str, range(100))]
    assert all(a.end <= b.start + 1e-6 for a, b in itertools.pairwise(segments))
    for segment in segments:
        assert (segment.start, segment.end) == (int(segment.text.split()[0]), int(segment.text.split()[-1]) + 1)


def test_what_looks_wrong_is_not_told() -> None:
    by = Speaker(5, compression=9.0)
    assert told(by, 90) == []
    assert by.longest <= (LONGEST + 1) * RATE


def test_what_was_told_is_found_again() -> None:
    assert nearest([], [" a", " b"]) == 0
    assert nearest([" a", " b"], []) == 0
    assert nearest([" It", " was", " the"], [" was", " the", " best"]) == 2
    assert nearest([" so", " my"], [" And,", " so", " my", " fellow"]) == 3
    assert nearest([" ask"], [" Ask!", " what"]) == 1


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(directory(tmp_path_factory.mktemp("whisper") / "toy"))


def test_silence_takes_no_memory_and_says_nothing(transcriber: Any) -> None:
    listening = Listening(transcriber, TranscribeUse(language="en"), 5.0)
    assert [*listening.to(np.zeros(30 * RATE, np.float32) for _ in range(20))] == []
    assert len(listening.sound) <= 10 * RATE
    loud = TranscribeUse(voice=10, **ANY)
    assert [*Listening(transcriber, loud, 5.0).to(noise(5, seed) for seed in range(12))] == []


def test_samples_of_any_rate_and_size_are_heard(transcriber: Any) -> None:
    sound = noise(3)
    one = [*transcriber.listen([sound], **ANY)]
    assert "".join(each.text for each in one)
    assert one[-1].heard == 3.0
    assert [*transcriber.listen((sound[i : i + 999] for i in range(0, len(sound), 999)), **ANY)][-1].heard == 3.0
    (*_, last) = transcriber.listen([noise(3), noise(3)], rate=32_000, **ANY)
    assert last.heard == pytest.approx(3.0, abs=0.01)
    for wrong, said in (([], "empty"), ([np.array([np.nan])], "no numbers"), ([np.array([1])], "divided by")):
        with pytest.raises(ValueError, match=said):
            list(transcriber.listen(wrong))
    with pytest.raises(ValueError, match="every"):
        transcriber.listen([sound], every=0.0)


def test_only_voices_are_heard_of_a_file(transcriber: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, encoded = list[Any](), transcriber.encoded
    monkeypatch.setattr(transcriber, "encoded", lambda frames: windows.append(frames) or encoded(frames))
    sound = noise(12, loud=0.001)
    sound[5 * RATE : 6 * RATE] += noise(1)
    transcriber.transcribe(sound, voice=10, **ANY)
    assert windows  # from half a second before it to half a second after it
    assert (windows[0][:40].mean(), windows[0][150:].mean()) < (windows[0][60:140].mean(),) * 2
    lengths = [int((frames > frames.min()).any(1).nonzero().max()) for frames in windows]
    assert max(lengths) < 200
    assert sum(lengths) < 2 * 200
    windows.clear()
    assert transcriber.transcribe(noise(12), voice=10, **ANY).segments == ()
    assert not windows


def tones(length: float) -> NDArray[np.float32]:
    """Notes of a scale, two in a second, that die away: music of a kind."""
    draw, at = np.random.default_rng(0), np.arange(RATE // 2) / RATE
    pitches = draw.choice([262, 294, 330, 349, 392, 440, 494, 523], int(2 * length))
    notes = [sum(np.sin(2 * np.pi * k * f * at) / k for k in (1, 2, 4)) * np.exp(-4 * at) for f in pitches]
    return (0.3 * np.concatenate(notes)).astype(np.float32)


@pytest.mark.slow
def test_real_weights_write_nothing_where_nobody_speaks(tmp_path: Path) -> None:
    try:
        import_("whisper-tiny.en", tmp_path / "whisper")
    except OSError as error:
        pytest.skip(str(error))
    transcriber: Any = load(tmp_path / "whisper")
    at = np.arange(60 * RATE) / RATE
    hum = sum(0.1 / k * np.sin(2 * np.pi * 50 * k * at) for k in (1, 2, 3, 5)).astype(np.float32)
    still = {"silence": 0 * hum, "hum": hum, "noise": noise(60), "faint": noise(60, loud=0.001), "tones": tones(60)}
    for name, sound in still.items():
        assert len(transcriber.transcribe(sound).text.split()) <= 2, name  # no loop; " you" is what it may say
        if name != "tones":
            assert transcriber.transcribe(sound, voice=10).segments == (), name
    told = transcriber.listen([still["faint"][: 20 * RATE]], every=5.0)
    assert len("".join(each.text for each in told).split()) <= 2


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_who_uses_a_model_does_not_pay_for_a_compiler_or_for_several_processes(engine: str, tmp_path: Path) -> None:
    code = (
        f"import sys, numpy, regard; model = regard.load({str(directory(tmp_path))!r}, engine={engine!r});"
        "model.transcribe(numpy.random.default_rng(0).normal(0, 0.1, 8000), words=True);"
        "sys.exit(any(name in sys.modules for name in ('sympy', 'torch._dynamo', 'torch.distributed.fsdp')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
