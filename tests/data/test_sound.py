"""Sound is read as it is, and its frames are those of Whisper's own."""

import io
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.data.sound import RATE, filters, heard, log_mel, read
from tests.speech import noise

transformers = pytest.importorskip("transformers")


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
