"""Melodies as words: out of ABC and MIDI files, and into MIDI, WAV and ABC that one can play.

    M:6/8 K:G | D | G2 B d2 B | ^c3 z3 |

A word is a note of ABC 2.1 with its length in eighths, a rest (z), a bar line, the metre or the key: so a line of words
is the body of an ABC tune. A melody has one voice: of a chord the highest note counts, of repeats, ornaments and chord
names nothing. A sign (^ _ =) holds to the end of its bar, as in ABC; it is written where a note is not as its key says.
"""

import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.sound import Samples, as_wav
from regard.data.text import decoded
from regard.files import read_whole

ABC, MIDI = (".abc",), (".mid", ".midi")
WRITTEN = (*ABC, *MIDI, ".wav")
STEPS = dict(zip("CDEFGAB", (0, 2, 4, 5, 7, 9, 11), strict=True))
SIGNS = {"^^": 2, "^": 1, "=": 0, "_": -1, "__": -2}
SHARPS = "FCGDAEB"  # in the order in which keys have them
MODES = {"": 0, "maj": 0, "ion": 0, "m": -3, "min": -3, "aeo": -3, "dor": -2, "mix": -1, "phr": -4, "lyd": 1, "loc": -5}
NOTE = re.compile(r"(\^\^|\^|__|_|=)?([A-Ga-g])([,']*)(\d*)(/*)(\d*)")
REST = re.compile(r"[zx](\d*)(/*)(\d*)")
KEY = re.compile(r"([A-G])([#b]?)\s*([A-Za-z]{0,3})")
TICKS = 480  # of a quarter, in the MIDI that is written
FINEST = Fraction(1, 2)  # eighths to which the MIDI that is read is rounded
RATE = 22_050


class Tone(NamedTuple):
    """What sounds, as MIDI counts it, or None; and for how many eighths."""

    pitch: int | None
    length: Fraction


@dataclass(frozen=True)
class Melody:
    """A melody: bars of notes, its metre and its key."""

    bars: tuple[tuple[Tone, ...], ...]
    metre: str = "4/4"
    key: str = "C"

    @property
    def notes(self) -> list[Tone]:
        """All of them."""
        return [note for bar in self.bars for note in bar]

    def words(self) -> str:
        """A line of words.

        >>> Melody(((Tone(66, Fraction(2)), Tone(65, Fraction(1, 2))),), key="G").words()
        'M:4/4 K:G F2 =F/2 |'
        """
        said, signature = [f"M:{self.metre}", f"K:{self.key}"], signs_of(self.key)
        for bar in self.bars:
            held = dict[tuple[str, int], int]()
            for note in bar:
                said.append(_spelled(note, signature, held))
            said.append("|")
        return " ".join(said)

    def midi(self, quarters: int = 120) -> bytes:
        """A MIDI file, so many quarters a minute."""
        tempo = (60_000_000 // quarters).to_bytes(3, "big")
        top, below = map(int, self.metre.split("/"))
        metre = bytes((top, below.bit_length() - 1, 24, 8))
        events, wait = [b"\0\xff\x51\x03" + tempo, b"\0\xff\x58\x04" + metre], 0
        for pitch, length in self.notes:
            ticks = round(length * TICKS / 2)
            if pitch is None:
                wait += ticks
                continue
            events += [_variable(wait) + bytes((0x90, pitch, 80)), _variable(ticks) + bytes((0x80, pitch, 0))]
            wait = 0
        track = b"".join([*events, _variable(wait) + b"\xff\x2f\0"])
        head = b"MThd" + struct.pack(">IHHH", 6, 0, 1, TICKS)
        return head + b"MTrk" + struct.pack(">I", len(track)) + track

    def samples(self, quarters: int = 120) -> Samples:
        """How it sounds, plucked: some overtones, each of which dies away sooner than the one below."""
        eighth, parts = 30 / quarters, [np.zeros(0)]
        for pitch, length in self.notes:
            at = np.arange(round(float(length) * eighth * RATE)) / RATE
            tone = np.zeros_like(at)
            for n in range(1, 7) if pitch is not None else ():
                hertz = 440 * 2 ** ((pitch - 69) / 12) * n  # type: ignore[operator]
                if hertz < RATE / 2:
                    tone += np.sin(2 * np.pi * hertz * at) * np.exp(-at * (1.5 + n)) / n
            edge = np.minimum(1, np.minimum(at, at[::-1]) / 0.005) if len(at) else at
            parts.append(0.4 * tone * edge)
        return np.concatenate(parts).astype(np.float32)

    def written(self, ending: str) -> bytes:
        """The content of a file that ends so: .abc, .mid or .wav."""
        if ending in ABC:
            metre, key, *notes = self.words().split(" ")
            return "\n".join(("X:1", metre, "L:1/8", key, " ".join(notes), "")).encode()
        return self.midi() if ending in MIDI else as_wav(self.samples(), RATE)


def melody(words: str) -> Melody:
    """The melody of a line of words.

    >>> [note.pitch for note in melody("K:G F =F F | F z2").notes]
    [66, 65, 65, 66, None]
    """
    metre, key, bars, bar = "4/4", "C", list[tuple[Tone, ...]](), list[Tone]()
    signature, held = signs_of(key), dict[tuple[str, int], int]()
    for word in words.split():
        begun = bool(bar or bars)  # what is said later, is of what follows
        if word.startswith("M:"):
            metre = metre if begun else _metre(word[2:])
        elif word.startswith("K:"):
            key, signature = key if begun else word[2:], signs_of(word[2:])
        elif set(word) <= set("|:[]12"):
            if bar:
                bars.append((*bar,))
            bar, held = [], {}
        elif found := REST.fullmatch(word):
            bar.append(Tone(None, _length(*found.groups())))
        elif found := NOTE.fullmatch(word):
            bar.append(Tone(_pitch(found, signature, held), _length(*found.groups()[3:])))
        else:
            raise ValueError(f"{word[:20]!r} is no note: words are as in M:6/8 K:G | D2 ^c/2 z |")
    return Melody((*bars, *([(*bar,)] if bar else [])), metre, key)


def signs_of(key: str) -> dict[str, int]:
    """How many half tones up each letter is in a key.

    >>> signs_of("D"), signs_of("Dm"), signs_of("Ador")
    ({'F': 1, 'C': 1}, {'B': -1}, {'F': 1})
    """
    found = KEY.match(key)
    mode = "" if found is None else found[3].lower()
    if found is None or (mode[:3] not in MODES and mode[:1] not in MODES):
        raise ValueError(f"K:{key[:20]} is no key: write it as in K:G, K:Bb, K:Am or K:Ddor")
    fifths = SHARPS.index(found[1]) - 1 + 7 * {"": 0, "#": 1, "b": -1}[found[2]]
    fifths += MODES.get(mode[:3], MODES.get(mode[:1], 0))
    many = SHARPS[:fifths] if fifths > 0 else SHARPS[fifths:] if fifths else ""
    return dict.fromkeys(many, 1 if fifths > 0 else -1)


def _metre(text: str) -> str:
    metre = {"C": "4/4", "C|": "2/2"}.get(text, text)
    if not re.fullmatch(r"[1-9]\d?/(1|2|4|8|16)", metre):
        raise ValueError(f"M:{text[:20]} is no metre: write it as in M:6/8")
    return metre


def _pitch(note: re.Match[str], signature: dict[str, int], held: dict[tuple[str, int], int]) -> int:
    sign, letter, marks, *_ = note.groups()
    octave = (5 if letter.isupper() else 6) + marks.count("'") - marks.count(",")
    place = letter.upper(), octave
    if sign is not None:
        held[place] = SIGNS[sign]
    pitch = 12 * octave + STEPS[place[0]] + held.get(place, signature.get(place[0], 0))
    if not 0 <= pitch < 128:
        raise ValueError(f"{note[0]!r} is beyond what MIDI can say: write it nearer to the middle")
    return pitch


def _length(above: str, strokes: str, below: str) -> Fraction:
    """Of a note in units: 3, /, /2, 3/2, //."""
    length = Fraction(int(above or 1), int(below) if below else 2 ** len(strokes))
    if not 0 < length <= 64:
        raise ValueError(f"a note of {length} units: it has 64 at most")
    return length


def _spelled(note: Tone, signature: dict[str, int], held: dict[tuple[str, int], int]) -> str:
    """A word for a note: in its key if it can be, else with a sharp, or a flat where the key has flats."""
    up, down = note.length.as_integer_ratio()
    length = f"{up if up != 1 else ''}{f'/{down}' if down != 1 else ''}"
    if note.pitch is None:
        return f"z{length}"
    flat = -1 in signature.values()
    for signs in (signature, {}, dict.fromkeys(STEPS, -1 if flat else 1)):
        for letter, step in STEPS.items():
            sign = signs.get(letter, 0)
            octave, left = divmod(note.pitch - step - sign, 12)
            if left == 0:
                return _written(letter, octave, sign, signature, held) + length
    raise AssertionError("every pitch is a letter, or half a tone beside one")


def _written(letter: str, octave: int, sign: int, signature: dict[str, int], held: dict[tuple[str, int], int]) -> str:
    own = signature.get(letter, 0)
    needed = sign != held.get((letter, octave), own) or sign != own
    if needed:
        held[letter, octave] = sign
    mark = {value: key for key, value in SIGNS.items()}[sign] if needed else ""
    name = letter if octave < 6 else letter.lower()
    return mark + name + ("'" * (octave - 6) if octave > 5 else "," * (5 - octave))


def tunes(path: str | Path) -> Iterator[Melody]:
    """The melodies of an ABC file, or the one of a MIDI file."""
    content = read_whole(Path(path))
    if str(path).endswith(MIDI):
        yield from_midi(content, path)
        return
    for number, lines in enumerate(re.split(r"(?m)^(?=X:)", decoded(content, f"{path}:").replace("\r\n", "\n"))):
        if body := lines.strip():
            try:
                found = from_abc(body)
            except ValueError as error:
                raise ValueError(f"{path}, tune {max(1, number)}: {error}") from None
            if found.notes:
                yield found


def from_abc(text: str) -> Melody:
    """A tune of ABC: its first voice, without what is no note."""
    metre, key, unit, words = "4/4", "C", None, list[str]()
    for line in text.splitlines():
        line = line.partition("%")[0].strip()
        field = re.match(r"([A-Za-z]):\s*(.*)", line)
        if field is None:
            words += _abc_words(line)
        elif field[1] == "M":
            metre = "4/4" if field[2] == "none" else _metre(field[2])
        elif field[1] == "L":
            unit = Fraction(field[2]) * 8 if re.fullmatch(r"\d+/\d+", field[2]) else None
        elif field[1] == "K" and not words:  # of a tune that changes, the first
            key = "".join(field[2].split()[:1]) or "C"
            key = key if KEY.match(key) else "C"
    if unit is None:
        unit = Fraction(1, 2) if Fraction(metre) < Fraction(3, 4) else Fraction(1)
    found = melody(" ".join((f"M:{metre}", f"K:{key}", *words)))
    bars = tuple(tuple(Tone(pitch, length * unit) for pitch, length in bar) for bar in found.bars)
    return Melody(bars, metre, key)


ITEMS = re.compile(
    r'"[^"]*"|![^!]*!|\{[^}]*\}|\[[A-Za-z]:[^\]]*\]|(?P<tuple>\(\d)|(?P<chord>\[[^\]|]*\]\d*/*\d*)|'
    r"(?P<bar>[|:\[\]]*\|[|:\]]*\d?|::)|(?P<note>(?:\^\^|\^|__|_|=)?[A-Ga-g][,']*\d*/*\d*|[zx]\d*/*\d*)|"
    r"(?P<broken>[<>])|(?P<tie>-)|(?P<other>.)"
)


def _abc_words(line: str) -> Iterator[str]:
    """The words of a line of ABC: a tuplet is shorter, of a pair a>b one is longer, a-a is one note in its bar."""
    notes, left, share, before, tied = list[tuple[str, Fraction]](), 0, Fraction(1), Fraction(1), False
    for item in ITEMS.finditer(line):
        kind, text = item.lastgroup, item[0]
        if kind == "chord":
            inside, _, after = text.rpartition("]")
            inner = ["".join(each[:3]) for each in NOTE.findall(inside)]
            text = max(inner, key=lambda each: melody(each).notes[0].pitch or 0, default="")
            kind, text = ("note", text + after) if text else (None, "")
        if kind == "bar":
            notes.append(("|", Fraction(0)))
        elif kind == "tuple":
            left = int(text[1])
            share = {2: Fraction(3, 2), 3: Fraction(2, 3), 4: Fraction(3, 4)}.get(left, Fraction(2, left))
        elif kind == "broken" and notes:
            name, length = notes[-1]
            longer, shorter = Fraction(3, 2), Fraction(1, 2)
            notes[-1] = name, length * (longer if text == ">" else shorter)
            before = shorter if text == ">" else longer
        elif kind == "note":
            found = re.fullmatch(r"(.*?)(\d*)(/*)(\d*)", text)
            assert found is not None
            length = _length(*found.groups()[1:]) * before * (share if left else 1)
            if tied and notes[-1][0] == found[1]:
                notes[-1] = found[1], notes[-1][1] + length
            else:
                notes.append((found[1], length))
            left, before, tied = max(0, left - 1), Fraction(1), False
        elif kind == "tie":
            tied = bool(notes)
    return (name if name == "|" else f"{name}{length.numerator}/{length.denominator}" for name, length in notes)


def from_midi(content: bytes, name: str | Path = "this file") -> Melody:
    """The melody of a MIDI file: at each moment the highest note, in bars of its metre, in C with sharps."""
    try:
        stream = io.BytesIO(content)
        kind, size = struct.unpack(">4sI", stream.read(8))
        _, tracks, division = struct.unpack(">HHH", stream.read(size)[:6])
        if kind != b"MThd" or not 0 < division < 2**15:
            raise ValueError("it does not begin as one, or counts in frames of film")
        found, metre = list[tuple[int, int, int]](), "4/4"  # when it begins and ends, and what
        for _ in range(tracks):
            kind, size = struct.unpack(">4sI", stream.read(8))
            if len(track := stream.read(size)) < size:
                raise ValueError("it ends early")
            notes, own = _track(track) if kind == b"MTrk" else ([], "")
            found, metre = found + notes, own or metre
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"{name} is no MIDI file that can be read: {error}") from None
    if not found:
        raise ValueError(f"{name} has no notes in it")
    highest = {start: (end, pitch) for start, end, pitch in sorted(found, key=lambda each: (each[0], each[2]))}
    starts, whole = sorted(highest), 8 * Fraction(metre)
    bars, bar, clock = list[tuple[Tone, ...]](), list[Tone](), Fraction(0)

    def add(pitch: int | None, length: Fraction) -> None:
        nonlocal clock, bar
        if length > 0:
            bar.append(Tone(pitch, length))
            clock += length
        if clock >= whole * (len(bars) + 1):
            bars.append((*bar,))
            bar = []

    for start, following in zip(starts, [*starts[1:], 2**31], strict=True):
        end, pitch = highest[start]
        begin, stop = (_eighths(min(each, following), division) for each in (start, end))
        add(None, begin - clock)
        add(pitch, max(stop, begin + FINEST) - clock)
    return Melody((*bars, *([(*bar,)] if bar else [])), metre)


def _eighths(ticks: int, quarter: int) -> Fraction:
    return round(Fraction(2 * ticks, quarter) / FINEST) * FINEST


def _track(data: bytes) -> tuple[list[tuple[int, int, int]], str]:
    """The notes of a track, but for the drums': when each begins and ends, in ticks, and its pitch; and the metre."""
    at, clock, status, metre = 0, 0, 0, ""
    held, found = dict[int, int](), list[tuple[int, int, int]]()

    def number() -> int:
        nonlocal at
        value = 0
        while True:
            value, at = value << 7 | data[at] & 127, at + 1
            if data[at - 1] < 128:
                return value

    while at < len(data):
        clock += number()
        if data[at] >= 128:
            status, at = data[at], at + 1
        if status in (0xFF, 0xF0, 0xF7):
            kind, at = (data[at], at + 1) if status == 0xFF else (0, at)
            size = number()
            if kind == 0x58 and not metre:
                metre = f"{data[at]}/{2 ** data[at + 1]}"
            at += size
            continue
        pitch, loud = data[at], data[at + 1] if status >> 4 not in (12, 13) else 0
        at += 1 if status >> 4 in (12, 13) else 2
        if status >> 4 in (8, 9) and status & 15 != 9:
            if pitch in held:
                found.append((held.pop(pitch), clock, pitch))
            if status >> 4 == 9 and loud:
                held[pitch] = clock
    return found, metre


def _variable(value: int) -> bytes:
    """A number as MIDI has it, seven bits a byte."""
    some = [value & 127]
    while value := value >> 7:
        some.append(value & 127 | 128)
    return bytes(reversed(some))
