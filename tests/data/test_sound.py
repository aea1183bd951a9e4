"""Sound is read as it is, and its frames are those of Whisper's own."""

import io
import sys
import warnings
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.data.sound import RATE, Spectrum, filters, heard, log_mel, read, stream, voiced
from tests.speech import noise

transformers, soundfile = pytest.importorskip("transformers"), pytest.importorskip("soundfile")


def wav(samples: NDArray[np.float32], width: int = 2, rate: int = RATE, channels: int = 1) -> bytes:
    whole = np.clip(
        np.round(samples.astype(np.float64) * 2 ** (8 * width - 1)), -(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1
    )
    raw = whole.astype("<i8")[:, None].view(np.uint8)[:, :width] if width > 1 else (whole + 128).astype(np.uint8)
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.ascontiguousarray(raw).tobytes())
    return held.getvalue()


@pytest.mark.parametrize("bands", [80, 128])
def test_the_filter_bank_is_slaneys(bands: int) -> None:
    theirs = transformers.audio_utils.mel_filter_bank(201, bands, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(filters(bands).numpy(), theirs, atol=1e-8)


@pytest.mark.parametrize("seconds", [0.0001, 0.02, 1.0, 7.77, 29.99])
def test_frames_are_those_of_the_reference(seconds: float) -> None:
    sound = noise(seconds) * np.linspace(0, 1, int(RATE * seconds), dtype=np.float32)
    theirs = transformers.WhisperFeatureExtractor()(sound, sampling_rate=RATE, return_tensors="pt").input_features[0]
    torch.testing.assert_close(log_mel(sound, frames=3000), theirs.T, atol=1e-5, rtol=0)


def test_frames_of_a_long_sound_are_those_of_the_whole() -> None:
    sound = noise(65)
    theirs = transformers.WhisperFeatureExtractor()(
        np.pad(sound, (0, 480_000)), sampling_rate=RATE, return_tensors="pt", truncation=False
    ).input_features[0]
    torch.testing.assert_close(log_mel(sound, frames=9500), theirs.T, atol=1e-5, rtol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_plain_wav_needs_no_other_package(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = noise(0.1)
    want = read(wav(sound, width))
    monkeypatch.setitem(sys.modules, "soundfile", None)
    np.testing.assert_allclose(read(wav(sound, width)), want, atol=1e-7)
    np.testing.assert_allclose(want, sound, atol=1.01 / 2 ** (8 * width - 1))


def test_channels_become_one_and_any_rate_becomes_16000() -> None:
    t = np.arange(8000) / 8000
    tone = (0.5 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
    both = np.stack([tone, 0 * tone], 1)
    found = read(wav(both.ravel(), rate=8000, channels=2))
    np.testing.assert_allclose(found, heard(both, 8000), atol=1e-3)
    want = 0.25 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    assert len(found) == RATE
    np.testing.assert_allclose(found[500:-500], want[500:-500], atol=2e-3)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (b"", "is no sound that can be read"),
        (b"This is a text, and no sound at all. " * 9, "is no sound that can be read"),
        (wav(noise(0)), "is empty"),
    ],
)
def test_what_is_no_sound_is_refused_in_a_line(held: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_bytes(held)
    with pytest.raises(ValueError, match=f"x.wav {said}") as refused:
        read(tmp_path / "x.wav")
    assert "\n" not in str(refused.value)


def test_samples_that_are_none_are_refused() -> None:
    for samples, rate, said in (
        (np.array([0.0, np.nan]), RATE, "no numbers"),
        (np.array([0.0]), 0, "its rate is 0 Hz"),
        (np.array([1, 2], np.int16), RATE, "int16 divided by 32768"),
        (np.zeros((2, 2, 2)), RATE, "of shape"),
        (np.zeros(0), RATE, "is empty"),
    ):
        with pytest.raises(ValueError, match=said):
            heard(samples, rate)
    with pytest.raises(ValueError, match="not there"):
        read("no-such-file.wav")
    with pytest.raises(ValueError, match="more than 1 seconds"):
        read(wav(noise(1.5)), seconds=1)


def held(samples: NDArray[np.float32], form: str, kind: str | None = None) -> bytes:
    whole = io.BytesIO()
    soundfile.write(whole, samples, RATE, format=form, subtype=kind)
    return whole.getvalue()


@pytest.mark.parametrize("form", ["WAV", "AIFF", "FLAC"])
def test_a_file_that_ends_early_is_heard_as_far_as_it_goes_and_that_is_said(form: str) -> None:
    whole = held(noise(5), form)
    with pytest.warns(UserWarning, match="what was sent ends too early, after [12]"):
        found = read(whole[: len(whole) // 2])
    np.testing.assert_allclose(found, read(whole)[: len(found)], atol=1e-6)
    assert RATE <= len(found) <= 2.5 * RATE


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 1_152_000_000])
def test_a_header_that_says_anything_makes_no_memory(size: int) -> None:
    whole = bytearray(wav(noise(1)))
    whole[40:44] = size.to_bytes(4, "little")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(read(bytes(whole))) == RATE
    assert len(said) == (size == 1_152_000_000)  # ten hours of it; a pipe does not know, and says the most there is


def test_a_rate_that_cannot_be_is_refused() -> None:
    for rate in (0, 5, 2_000_000, 2**31):
        whole = bytearray(wav(noise(1)))
        whole[24:28] = rate.to_bytes(4, "little")
        with pytest.raises(ValueError, match=f"its rate is {rate} Hz"):
            read(bytes(whole))


def test_clipped_and_deep_samples_are_heard() -> None:
    loud = np.clip(noise(1) * 50, -1, 1)
    np.testing.assert_allclose(read(held(loud, "WAV", "PCM_24")), loud, atol=1e-6)
    damaged = loud.copy()
    damaged[100] = np.nan
    with pytest.raises(ValueError, match="no numbers"):
        read(held(damaged, "WAV", "FLOAT"))
    assert torch.isfinite(log_mel(loud * 1e15)).all()
    with pytest.warns(UserWarning, match=r"samples of up to 32,768: the loudest was taken for 1"):
        np.testing.assert_allclose(read(held(loud * 32768, "WAV", "FLOAT")), loud, atol=1e-6)
    np.testing.assert_array_equal(read(held(loud * 2, "WAV", "FLOAT")), loud * 2)


def test_a_long_sound_lies_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("soundfile")
    given = wav(noise(5), 2, RATE, 1)
    whole = read(given)
    assert not isinstance(whole, np.memmap)
    monkeypatch.setattr("regard.data.sound.LONG", 2)
    kept = read(given)
    assert isinstance(kept, np.memmap)
    np.testing.assert_array_equal(kept, whole)
    assert torch.equal(log_mel(kept), log_mel(whole))


def test_a_long_sound_is_made_into_frames_where_they_are_asked_for() -> None:
    sound = noise(70) * np.linspace(0, 1, 70 * RATE, dtype=np.float32)
    whole, some = log_mel(sound, frames=10_000), Spectrum(sound)
    for first, count in ((0, 3000), (2990, 3000), (6990, 30), (7500, 100), (3, 1)):
        torch.testing.assert_close(some.frames(first, count), whole[first : first + count], atol=1e-6, rtol=0)


class Pipe(io.BytesIO):
    """What comes in a few bytes at a time."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 1001))


@pytest.mark.parametrize(("width", "channels", "rate"), [(1, 1, RATE), (2, 1, RATE), (3, 2, RATE), (4, 1, 44_100)])
def test_a_pipe_is_heard_as_a_file(width: int, channels: int, rate: int) -> None:
    whole = wav(noise(1), width, rate, channels)
    for size in (None, 0, 0xFFFFFFFF):  # of which a pipe may not know how long it is
        given = whole if size is None else whole[:40] + size.to_bytes(4, "little") + whole[44:]
        found = np.concatenate([*stream(Pipe(given))])
        np.testing.assert_allclose(found, read(whole), atol=1e-6)
    more = whole + b"LIST\x04\x00\x00\x00abcd"
    np.testing.assert_allclose(np.concatenate([*stream(Pipe(more))]), read(whole), atol=1e-6)


def test_bare_samples_and_floats_come_through_a_pipe() -> None:
    sound = noise(1)
    raw = (sound * 32767).astype("<i2").tobytes()
    np.testing.assert_allclose(np.concatenate([*stream(Pipe(raw))]), sound, atol=1e-4)
    np.testing.assert_allclose(np.concatenate([*stream(Pipe(held(sound, "WAV", "FLOAT")))]), sound, atol=1e-7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "is empty"),
        (b"RIFF\0\0\0\0WAVEfmt ", "ends within its header"),
        (wav(noise(0)), "is empty"),
        (b"fLaC" + bytes(99), "ffmpeg"),
        (held(noise(0.1), "WAV", "ULAW"), "of another kind"),
        (held(noise(0.1) * np.float32("nan"), "WAV", "FLOAT"), "after 0.0 seconds"),
    ],
)
def test_a_pipe_of_something_else_is_refused_in_a_line(given: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        list(stream(Pipe(given)))


def test_what_is_no_louder_than_the_background_is_no_voice() -> None:
    hum = (0.1 * np.sin(2 * np.pi * 50 * np.arange(30 * RATE) / RATE)).astype(np.float32)
    for still in (noise(30), hum, np.zeros(30 * RATE, np.float32)):
        assert not voiced(still, 10).any()
    for background in (noise(30, loud=0.01), 0.1 * hum):
        sound = background.copy()
        sound[10 * RATE : 12 * RATE] += noise(2)
        on = np.flatnonzero(voiced(sound, 10)) / 100
        assert 9.3 < on[0] < 10 < 12 < on[-1] < 12.7
        assert len(on) == round(100 * (on[-1] - on[0])) + 1
