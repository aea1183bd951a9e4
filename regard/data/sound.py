"""Sound: files to samples, samples to the frames that a model reads.

A sample is a number from -1 to 1, and there are 16,000 in a second. A frame says how loud it is in each of some bands
of pitch, 100 times in a second: the logarithm of a mel spectrogram, as Whisper has it (Radford et al., 2022).
"""

import io
import math
import re
import tempfile
import warnings
import wave
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import IO, Any

import numpy as np
import torch
import torch.nn.functional as F
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
SHORT = re.compile(r"^ ?(?:data|SSND) : (\d+) \(should be", re.MULTILINE)  # of more than there is
LONG = 1800  # seconds of a sound that are kept in memory; ten hours would be 2.3 GB
PIPE, ENDLESS = 1 << 20, 0x7FFF0000  # bytes that are read of a pipe at a time; a length that nobody knew
UNUSUAL = 8.0  # of a sample from -1 to 1
NOISY = 0.15  # deviations by which noise differs from frame to frame, and from band to band
PAUSE, SHORTEST = 100, 10  # frames: between stretches that are heard, twice as many; of which something sounds at least

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
        if len(samples) > seconds * rate:
            raise ValueError(_longer(name, seconds)) from None
        return heard(samples.mean(1), rate, name)
    try:
        with soundfile.SoundFile(stream) as file:
            rate = checked_rate(file.samplerate, name)
            short = any(int(size) < ENDLESS for size in SHORT.findall(file.extra_info))
            return levelled(_joined(incoming(_blocks(file, name, seconds, short), rate, name)), name)
    except soundfile.LibsndfileError as error:
        with (
            suppress(wave.Error, EOFError),
            wave.open(io.BytesIO(source) if isinstance(source, bytes) else str(source)) as sound,
        ):
            checked_rate(sound.getframerate(), name)
        why = str(error.error_string).rstrip(".")
        raise ValueError(f"{name} is no sound that can be read ({why}): {READ} can") from None


def _blocks(file: Any, name: str | Path, seconds: float, short: bool) -> Iterator[Samples]:
    """The samples of a file, a second at a time; what ends too early is heard as far as it goes, and that is said."""
    done, rate = 0, file.samplerate
    while True:
        try:
            x = file.read(rate, dtype="float32", always_2d=True)
        except RuntimeError:
            if not done:
                raise
            short, x = True, np.zeros((0, 1), np.float32)
        done += len(x)
        if done > seconds * rate:
            raise ValueError(_longer(name, seconds))
        if not len(x):
            break
        yield x.mean(1)
    if short:
        warnings.warn(f"{name} ends too early, after {done / rate:.1f} seconds: what there is was heard", stacklevel=2)


def _joined(blocks: Iterable[Samples]) -> Samples:
    """All of them: in memory, or, of a long sound, in a file that nobody else sees and that goes with the samples."""
    begun, size = list[Samples](), 0
    for block in (blocks := iter(blocks)):
        begun.append(block)
        size += len(block)
        if size > LONG * RATE:
            break
    whole = np.concatenate(begun)
    if size <= LONG * RATE:
        return whole
    with tempfile.TemporaryFile() as file:
        whole.tofile(file)
        for block in blocks:
            block.tofile(file)
        return np.memmap(file, np.float32, "r+")


def levelled(samples: Samples, name: str | Path = "this sound") -> Samples:
    """From -1 to 1, of floats that are on another scale; that is said. A little more than 1 is none."""
    loudest = max(float(samples.max()), -float(samples.min()))
    if loudest < UNUSUAL:
        return samples
    warnings.warn(f"{name} has samples of up to {loudest:,.0f}: the loudest was taken for 1", stacklevel=2)
    return np.divide(samples, np.float32(loudest), out=samples if isinstance(samples, np.memmap) else None)


def _longer(name: str | Path, seconds: float) -> str:
    return f"{name} goes on for more than {seconds:g} seconds: send less at a time"


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
    return _numbers(raw[: len(raw) // (width * channels) * width * channels], width).reshape(-1, channels), rate


def _numbers(raw: NDArray[np.uint8], width: int) -> Samples:
    """Whole numbers of so many bytes each, from -1 to 1."""
    raw = raw.reshape(-1, width)
    if width == 1:  # these alone have no sign
        return (raw[:, 0] / 128 - 1).astype(np.float32)
    whole = np.zeros((len(raw), 4), np.uint8)
    whole[:, 4 - width :] = raw  # the lowest byte comes first
    return (whole.view("<i4")[:, 0] / 2**31).astype(np.float32)


def stream(file: Any, rate: int = RATE, name: str = "the stream") -> Iterator[Samples]:
    """The samples of a pipe as they come in, one channel at `RATE`: of a WAV, or bare whole numbers of 16 bits, the
    lowest byte first, of one channel, `rate` in a second. What a header says of its length is taken for a bound."""
    width, channels, whole, left = 2, 1, True, math.inf
    head = file.read(4)
    if head == b"RIFF":
        width, channels, rate, whole, left = _header(file, name)
        head = b""
    elif head[:3] == b"ID3" or head in (b"fLaC", b"OggS", b"caff", b"FORM"):
        raise ValueError(f"{name} is no WAV and no bare samples: pipe it through `ffmpeg -i - -f wav -`")

    def samples() -> Iterator[Samples]:
        nonlocal left
        some, known = getattr(file, "read1", file.read), head
        while left > 0 and (got := some(int(min(left, PIPE)))):
            left, known = left - len(got), known + got
            count = len(known) // (width * channels) * width * channels
            raw, known = np.frombuffer(known[:count], np.uint8), known[count:]
            yield (_numbers(raw, width) if whole else raw.view("<f4")).reshape(-1, channels)

    return incoming(samples(), rate, name)


def incoming(chunks: Iterable[Any], rate: int = RATE, name: str | Path = "this sound") -> Iterator[Samples]:
    """What `heard` makes of samples, of those that come in chunk by chunk."""
    checked_rate(rate, name)
    resampler = None if rate == RATE else need("soxr", "sound").ResampleStream(rate, RATE, 1, dtype="float32")
    done = 0
    for chunk in chunks:
        if not len(chunk):
            continue
        x = heard(chunk, RATE, f"{name} after {done / rate:.1f} seconds")
        done += len(x)
        if resampler is not None:
            x = resampler.resample_chunk(x)
        if len(x):
            yield x
    if not done:
        raise ValueError(f"{name} is empty: there is nothing to hear")
    if resampler is not None:
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


def _header(file: Any, name: str) -> tuple[int, int, int, bool, float]:
    """Of a WAV after its first four bytes: bytes of a number, channels, rate, whether these are whole; all bytes."""
    found, rest = None, file.read(8)[4:] == b"WAVE"
    while rest:
        kind, size = file.read(4), int.from_bytes(file.read(4), "little")
        if kind == b"data" and found is not None:
            return *found, size if 0 < size < ENDLESS else math.inf
        content = file.read(min(size + size % 2, PIPE))
        if kind == b"fmt " and len(content) >= 16:
            code, channels, rate = (int.from_bytes(content[a:b], "little") for a, b in ((0, 2), (2, 4), (4, 8)))
            bits = int.from_bytes(content[14:16], "little")
            if code == 0xFFFE:  # says more of itself further on
                code = int.from_bytes(content[24:26], "little")
            if (code, bits) not in ((1, 8), (1, 16), (1, 24), (1, 32), (3, 32)) or not channels:
                raise ValueError(
                    f"{name} is a WAV of another kind ({code}, {bits} bits): whole numbers, or 32-bit floats"
                )
            found = bits // 8, channels, rate, code == 1
        rest = len(content) > 0
    raise ValueError(f"{name} is a damaged WAV: it ends within its header")


def voiced(samples: Samples, above: float, background: float | None = None) -> NDArray[np.bool_]:
    """For each frame whether it may be speech, by energy: so many dB louder than the background, which is what a tenth
    of the sound is below; a little around it; and pauses of less than two seconds."""
    loud = levels(samples)
    loud = np.convolve(loud, np.ones(5) / 5, "same")
    if background is None:
        background = floor(loud)
    on = np.flatnonzero(loud > background + above)
    found = np.zeros(len(loud), bool)
    for i in np.split(on, np.flatnonzero(np.diff(on) > 2 * PAUSE) + 1):
        if len(i) >= SHORTEST:
            found[max(0, i[0] - PAUSE // 2) : i[-1] + PAUSE // 2] = True
    return found


def levels(samples: Samples) -> NDArray[np.float64]:
    """How loud each frame is, in dB; 0: as loud as can be."""
    x = np.pad(samples, (0, -len(samples) % HOP)).reshape(-1, HOP).astype(np.float64)
    return 10 * np.log10((x * x).mean(1) + 1e-10)


def floor(loud: NDArray[np.float64]) -> float:
    """The background of a sound: what a tenth of it is below, where there is any sound."""
    some = loud[loud > -90]
    return float(np.percentile(some, 10)) if len(some) else 0.0


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


class Spectrum:
    """The frames of a sound, made where they are asked for: the rest is silent, and takes no memory."""

    def __init__(self, samples: Samples, bands: int = 80, most: int | None = None) -> None:
        self.samples, self.bands = samples, bands
        self.made = (len(samples) + WINDOW // 2 - 1) // HOP + 1  # windows that reach into the sound
        if most is not None:  # nobody asks for others
            self.made = min(self.made, most)
        self.known = {0: self._block(0)}  # of a short sound this is all; of another one at a time
        top = max(float(self._block(i).max()) for i in range(0, self.made, BLOCK))
        self.least = max(FAINTEST, top - DEPTH)

    def _block(self, first: int) -> Tensor:
        """BLOCK frames from `first` on, or those that there are: the logarithm of the power in each band."""
        if first in getattr(self, "known", {}):
            return self.known[first]
        count = min(BLOCK, self.made - first)
        begin, end = first * HOP - WINDOW // 2, (first + count - 1) * HOP + WINDOW // 2
        x = torch.from_numpy(self.samples[max(0, begin) : end])
        if begin < 0:  # a window stands around the middle of its frame; before the first sample the sound is mirrored
            mirrored = torch.from_numpy(self.samples[1 : 1 - begin]).flip(0)
            x = torch.cat([torch.zeros(-begin - len(mirrored)), mirrored, x])
        windows = F.pad(x, (0, end - begin - len(x))).unfold(0, WINDOW, HOP)
        spectrum = torch.view_as_real(torch.fft.rfft(windows * torch.hann_window(WINDOW)))
        power = spectrum.square_().sum(-1)
        return (power @ filters(self.bands)).clamp_(min=10**FAINTEST).log10_()

    def frames(self, first: int, count: int) -> Tensor:
        """(count, bands) from `first` on."""
        x = torch.full((count, self.bands), self.least)
        end = min(first + count, self.made)
        for block in range(first // BLOCK * BLOCK, end, BLOCK):
            self.known = {block: self._block(block)}
            a, b = max(first, block), min(end, block + BLOCK)
            x[a - first : b - first] = self.known[block][a - block : b - block]
        return (x.clamp_(min=self.least) + 4) / 4

    @property
    def silence(self) -> float:
        """What frames hold where nothing sounds."""
        return (self.least + 4) / 4


def log_mel(samples: Samples, bands: int = 80, frames: int | None = None) -> Tensor:
    """Samples (n,) -> (frames, bands): those in which something sounds, or as many as are asked for, the rest silent.

    >>> log_mel(np.zeros(16_000, np.float32)).shape, log_mel(np.zeros(16_000, np.float32), frames=3000).shape
    (torch.Size([100, 80]), torch.Size([3000, 80]))
    """
    count = -(-len(samples) // HOP) if frames is None else frames
    return Spectrum(samples, bands, count).frames(0, count)


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
    al., 2019), it is heard as of another speaker, or in noise, and it begins later."""

    bands: int = 0  # left out side by side, so many at most, twice
    frames: int = 0  # likewise, one after the other
    pitch: float = 0.0  # bands that all are moved up or down, at most
    speed: float = 0.0  # how much faster or slower, at most: 0.2, by a fifth
    tilt: float = 0.0  # how much louder or fainter the highest band than the lowest, at most: another microphone
    noise: float = 0.0  # how far the background rises, at most
    later: int = 0  # frames of silence before it, at most, as far as there is room
    blends = False

    def __post_init__(self) -> None:
        at_least(0, **{f"data.augment.{name}": value for name, value in vars(self).items()})

    def picture(self, frames: NDArray[np.float16], draw: Random) -> NDArray[np.float16]:
        """One window (frames, bands), changed. Loudness is in deviations, as it is evened."""
        x, silent = frames.astype(np.float32), float(frames.min())
        count, bands = x.shape
        if self.speed or self.later:
            sounding = int(np.flatnonzero(x.max(1) > silent)[-1:].sum()) + 1  # no word is lost at the end
            faster = max((1.0 + self.speed) ** draw.uniform(-1, 1), sounding / count)
            late = draw.randint(0, min(self.later, int(count - sounding / faster)))
            x = _moved(x, (np.arange(count) - late) * faster, silent)
        if self.pitch:
            x = _moved(x.T, np.arange(bands) - draw.uniform(-self.pitch, self.pitch), silent).T
        if self.tilt:
            x = x + np.linspace(-0.5, 0.5, bands) * draw.uniform(-self.tilt, self.tilt) * (x > silent)
        if self.noise:
            rough = np.random.default_rng(draw.getrandbits(32)).standard_normal(x.shape) * NOISY
            x = np.maximum(x, silent + draw.uniform(0, self.noise) + rough)
        for axis, most in ((1, self.bands), (0, self.frames)):
            for _ in range(2 if most else 0):
                size = draw.randint(0, most)
                start = draw.randint(0, x.shape[axis] - size)
                x[(slice(None),) * axis + (slice(start, start + size),)] = silent
        return x.astype(np.float16)


def _moved(x: Samples, at: NDArray[np.float64], outside: float) -> Samples:
    """The rows of x at some places, which may lie between two of them, or outside."""
    low = np.floor(at).astype(int)
    share = (at - low).astype(np.float32)[:, None]
    padded = np.concatenate([x, np.full((2, x.shape[1]), outside, np.float32)])
    below, above = (np.where((i < 0) | (i >= len(x)), len(x), i) for i in (low, low + 1))
    return padded[below] * (1 - share) + padded[above] * share


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
