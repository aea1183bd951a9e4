"""Sound: files to samples, samples to the frames that a model reads.

A sample is a number from -1 to 1, and there are 16,000 in a second. A frame says how loud it is in each of some bands
of pitch, 100 times in a second: the logarithm of a mel spectrogram, as Whisper has it (Radford et al., 2022).
"""

import io
import math
import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.checks import at_least, need
from regard.data.arrays import Column

RATE = 16_000  # samples in a second
RATES = 1_000, 1_000_000  # that another sound may have, from and to
HOP, WINDOW = 160, 400  # samples from frame to frame, and those that one looks at
BLOCK = 3000  # frames that are made at a time
FAINTEST = -10.0  # log10 of the power that counts as silence
DEPTH = 8.0  # powers of ten below the loudest that are told apart
READ = "WAV, FLAC, OGG and MP3"

Samples = NDArray[np.float32]


def read(source: str | Path | bytes, name: str | Path | None = None, seconds: float = math.inf) -> Samples:
    """The samples of a sound file, or of what it holds: one channel, the mean of all, at `RATE`. One that goes on for
    more than so many seconds is refused before it is in memory."""
    name = name or (source if isinstance(source, str | Path) else "what was sent")
    if isinstance(source, str | Path) and not Path(source).is_file():
        raise ValueError(f"{source} is {'a folder' if Path(source).is_dir() else 'not there'}: name a sound file")
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        import soundfile
    except (ModuleNotFoundError, OSError):  # the latter where its library is missing
        samples, rate = _wav(stream, name)
    else:
        try:
            with soundfile.SoundFile(stream) as file:
                rate = checked_rate(file.samplerate, name)
                most = -1 if seconds == math.inf else int(seconds * rate) + 1
                samples = file.read(most, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            why = str(error.error_string).rstrip(".")
            raise ValueError(f"{name} is no sound that can be read ({why}): {READ} can") from None
    if len(samples) > seconds * rate:
        raise ValueError(f"{name} goes on for more than {seconds:g} seconds: send less at a time")
    return heard(samples.mean(1), rate, name)


def _wav(stream: Any, name: str | Path) -> tuple[Samples, int]:
    """A WAV of whole numbers, by the standard library alone: (samples, channels), and how many in a second."""
    try:
        file: IO[bytes] = stream if isinstance(stream, io.BytesIO) else open(stream, "rb")  # noqa: SIM115
        with file, wave.open(file) as sound:
            width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
            raw = np.frombuffer(sound.readframes(sound.getnframes()), np.uint8)
    except (wave.Error, EOFError) as error:
        raise ValueError(
            f"{name} is no plain WAV ({error or 'it ends too early'}): pip install 'regard[sound]' for {READ}"
        ) from None
    raw = raw[: len(raw) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:  # these alone have no sign
        numbers = (raw[:, 0] / 128 - 1).astype(np.float32)
    else:
        whole = np.zeros((len(raw), 4), np.uint8)
        whole[:, 4 - width :] = raw  # the lowest byte comes first
        numbers = (whole.view("<i4")[:, 0] / 2**31).astype(np.float32)
    return numbers.reshape(-1, channels), rate


def heard(samples: Any, rate: int = RATE, name: str | Path = "this sound") -> Samples:
    """Samples (n,) or (n, channels) of any rate as a model hears them: checked, in one channel, at `RATE`."""
    x = np.asarray(samples)
    if x.ndim == 2:
        x = x.mean(1)
    if x.ndim != 1 or x.dtype.kind not in "fiu":
        raise ValueError(f"{name}: samples are numbers (n,) or (n, channels), got {x.dtype} of shape {x.shape}")
    if x.dtype.kind != "f":
        raise ValueError(f"{name}: samples are {x.dtype}: give them from -1 to 1, int16 divided by 32768")
    if not len(x):
        raise ValueError(f"{name} is empty: there is nothing to hear")
    checked_rate(rate, name)
    x = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(x).all():
        raise ValueError(f"{name} has samples that are no numbers (NaN or infinite): it is damaged")
    return x if rate == RATE else need("soxr", "sound").resample(x, rate, RATE)


def checked_rate(rate: int, name: str | Path) -> int:
    """How many samples there are in a second, if that can be."""
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(f"{name}: its rate is {rate} Hz: sound has {RATES[0]:,} to {RATES[1]:,} samples in a second")
    return rate


@cache
def filters(bands: int) -> Tensor:
    """How much each frequency of a window counts in each band: (frequencies, bands), triangles on Slaney's mel scale.

    Up to 1,000 Hz the scale is even, above it goes by a constant factor; all triangles have the same area.
    """

    def hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * math.log(6.4) / 27))

    top = 15 + 27 * math.log(RATE / 2 / 1000) / math.log(6.4)
    edges = hertz(np.linspace(0.0, top, bands + 2))
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    at = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising, falling = (at - low) / (middle - low), (high - at) / (high - middle)
    return torch.from_numpy((np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)).astype(np.float32))


def log_mel(samples: Samples, bands: int = 80, frames: int | None = None) -> Tensor:
    """Samples (n,) -> (frames, bands): those in which something sounds, or as many as are asked for, the rest silent.

    >>> log_mel(np.zeros(16_000, np.float32)).shape, log_mel(np.zeros(16_000, np.float32), frames=3000).shape
    (torch.Size([100, 80]), torch.Size([3000, 80]))
    """
    sounding = -(-len(samples) // HOP)
    count = sounding if frames is None else frames
    made = min(count, (len(samples) + WINDOW // 2 - 1) // HOP + 1)  # windows that reach into the sound
    known = torch.zeros(max(len(samples), (made - 1) * HOP) + WINDOW)
    known[: len(samples)] = torch.from_numpy(samples)
    mirrored = torch.cat([known[1 : WINDOW // 2 + 1].flip(0), known])  # a window stands around the middle of its frame
    windows = mirrored.unfold(0, WINDOW, HOP)[:made]
    x = torch.full((count, bands), FAINTEST)
    shape, weights = torch.hann_window(WINDOW), filters(bands)
    for i in range(0, made, BLOCK):
        spectrum = torch.view_as_real(torch.fft.rfft(windows[i : i + BLOCK] * shape))
        power = spectrum.square_().sum(-1)
        x[i : min(i + BLOCK, made)] = (power @ weights).clamp_(min=10**FAINTEST).log10_()
    return (x.clamp_(min=float(x.max()) - DEPTH) + 4) / 4


class SoundError(ValueError):
    """What is no sound that a model can hear."""


@dataclass(frozen=True)
class Ear:
    """What a model hears at once: a window of so many frames, of so many bands each; what is shorter ends in silence.

    >>> Ear(40, 100).pixels(np.zeros(8000, np.float32)).shape
    (100, 40)
    """

    bands: int = 80
    frames: int = 100  # 100 are a second
    even: bool = True  # each sound has mean 0 and deviation 1: how loud and how hissing it is, says nothing

    @property
    def column(self) -> Column:
        """How a window lies on disk."""
        return Column("float16", ragged=False, shape=(self.frames, self.bands))

    def pixels(self, source: Any, place: str = "") -> NDArray[np.float16]:
        """The frames of a sound, a path, the content of a file or samples at `RATE`, as they are stored."""
        try:
            samples = read(source, place) if isinstance(source, str | Path | bytes) else heard(source)
        except ValueError as error:
            raise SoundError(str(error)) from None
        if len(samples) > self.frames * HOP:
            long, name = len(samples) / RATE, place or "the sound"
            raise SoundError(f"{name} lasts {long:.2f} s, the model hears {self.frames / 100:g} s at once: cut it")
        frames = self.evened(log_mel(samples, self.bands, self.frames), -(-len(samples) // HOP))
        return frames.to(torch.float16).numpy()

    def evened(self, frames: Tensor, sounding: int) -> Tensor:
        """Frames as this model has them, of which so many are not the silence at the end."""
        own = frames[:sounding]
        return (frames - own.mean()) / own.std().clamp(min=0.01) if self.even else frames

    def tensor(self, frames: NDArray[Any]) -> Tensor:
        """Frames (B, frames, bands) as a model reads them."""
        return torch.from_numpy(np.array(frames)).float()


@dataclass(frozen=True)
class SpecAugment:
    """What becomes of a sound before a model learns from it: parts of it are left out by chance (SpecAugment; Park et
    al., 2019), it is heard at another pitch, and it begins later."""

    bands: int = 0  # left out side by side, so many at most, twice
    frames: int = 0  # likewise, one after the other
    pitch: int = 0  # bands that all are moved up or down, at most: as of another speaker
    later: int = 0  # frames of silence before it, at most; as many are cut off at the end
    blends = False

    def __post_init__(self) -> None:
        at_least(0, **{f"data.augment.{name}": value for name, value in vars(self).items()})

    def picture(self, frames: NDArray[np.float16], draw: Random) -> NDArray[np.float16]:
        """One window (frames, bands), changed."""
        silent, x = frames.min(), frames
        for axis, most in ((1, self.pitch), (0, self.later)):
            if most:
                by = draw.randint(0 if axis == 0 else -most, most)
                x = np.roll(x, by, axis)
                gone = slice(0, by) if by >= 0 else slice(by, None)
                x[(slice(None),) * axis + (gone,)] = silent
        x = x if x is not frames else frames.copy()
        for axis, most in ((1, self.bands), (0, self.frames)):
            for _ in range(2 if most else 0):
                size = draw.randint(0, most)
                start = draw.randint(0, x.shape[axis] - size)
                x[(slice(None),) * axis + (slice(start, start + size),)] = silent
        return x


def as_wav(samples: Samples, rate: int) -> bytes:
    """A WAV file of samples (n,) from -1 to 1; what is louder is cut off.

    >>> len(as_wav(np.zeros(8000, np.float32), 8000))
    16044
    """
    held = io.BytesIO()
    with wave.open(held, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes((np.clip(samples, -1, 1) * (2**15 - 1)).round().astype("<i2").tobytes())
    return held.getvalue()
