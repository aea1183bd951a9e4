"""Melodies: words, ABC and MIDI say the same; what is written can be read by others; what is wrong is named."""

import io
import struct
import wave
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from regard.data.documents import TextFiles
from regard.data.melodies import DANCES, tune
from regard.data.music import RATE, Melody, Tone, from_abc, from_midi, melody, signs_of, tunes

ABC = """X:1
T:A tune % with a remark
M:6/8
L:1/8
K:Edor
|: "Em"BAB E2F|(3GAB {c}A2-A ~F|[EG]2 z c>d ^d d|=c' c, B/2A/ G// :|2 x3
"""


@pytest.mark.parametrize("seed", range(20))
def test_a_melody_is_the_same_in_every_form(seed: int) -> None:
    made = tune(f"test {seed}")
    assert melody(made.words()) == made
    assert from_abc(made.written(".abc").decode()) == made
    read = from_midi(made.midi())
    assert (read.metre, read.bars) == (made.metre, made.bars)
    assert tune(f"test {seed}") == made != tune(f"valid {seed}")


def test_bars_are_full_and_a_melody_ends_on_its_tonic() -> None:
    metres = set()
    for seed in range(60):
        made = tune(str(seed))
        metres.add(made.metre)
        assert {sum(note.length for note in bar) for bar in made.bars} == {8 * Fraction(made.metre)}
        assert len(made.bars) == 16
        tonic = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9}[made.key[0]]
        assert made.notes[-1].pitch % 12 == tonic  # type: ignore[operator]
        signs = signs_of(made.key)
        white = {
            (step + signs.get(letter, 0)) % 12 for letter, step in zip("CDEFGAB", (0, 2, 4, 5, 7, 9, 11), strict=True)
        }
        assert {note.pitch % 12 for note in made.notes} <= white  # type: ignore[operator]
    assert metres == {dance[0] for dance in DANCES.values()}


def test_abc_of_others_is_read_without_what_is_no_note() -> None:
    made = from_abc(ABC)
    assert made.words() == (
        "M:6/8 K:Edor B A B E2 F | G2/3 A2/3 B2/3 A3 F | G2 z c3/2 d/2 ^d ^d | =c' C B/2 A/2 G/4 | z3 |"
    )
    # E dorian has F and C sharp: c> is C sharp, =c' is C, and the c, of another octave is sharp as its key says
    assert [note.pitch for note in made.notes][10:19] == [67, None, 73, 74, 75, 75, 84, 61, 71]
    assert from_abc("M:2/4\nK:C\nCD").notes == [Tone(60, Fraction(1, 2)), Tone(62, Fraction(1, 2))]  # sixteenths


@pytest.mark.parametrize(
    ("key", "signs"),
    [
        ("C", {}),
        ("G", {"F": 1}),
        ("Bb", {"B": -1, "E": -1}),
        ("F#m", {"F": 1, "C": 1, "G": 1}),
        ("Amix", {"F": 1, "C": 1}),
    ],
)
def test_keys_have_their_signs(key: str, signs: dict[str, int]) -> None:
    assert signs_of(key) == signs


def plain(content: bytes) -> list[tuple[int, int, int]]:
    """(ticks since the last, status, pitch) of each note event, by hand, without what the package has."""
    assert content[:4] == b"MThd"
    assert struct.unpack(">IHHH", content[4:14]) == (6, 0, 1, 480)
    assert content[14:18] == b"MTrk"
    data, found, at = content[22:], [], 0
    assert struct.unpack(">I", content[18:22])[0] == len(data)
    while at < len(data):
        wait = 0
        while data[at] & 128:
            wait, at = wait * 128 + (data[at] & 127), at + 1
        wait, at = wait * 128 + data[at], at + 1
        if data[at] == 255:
            at += 3 + data[at + 2]
        else:
            found.append((wait, data[at], data[at + 1]))
            at += 3
    assert data[-3:] == b"\xff\x2f\0"
    return found


@pytest.mark.oracle
def test_midi_is_what_it_says() -> None:
    content = melody("M:3/4 K:C C2 z3 c8 |").midi()
    assert plain(content) == [(0, 0x90, 60), (480, 0x80, 60), (720, 0x90, 72), (1920, 0x80, 72)]
    mido = pytest.importorskip("mido")
    read = mido.MidiFile(file=io.BytesIO(content))
    notes = [(m.time, m.type, m.note) for m in read.tracks[0] if not m.is_meta]
    assert notes == [(0, "note_on", 60), (480, "note_off", 60), (720, "note_on", 72), (1920, "note_off", 72)]
    assert read.length == pytest.approx((2 + 3 + 8) * 0.25)


def test_midi_of_others_is_read() -> None:
    """Two tracks, running status, a note that ends by loudness 0, a chord, drums that do not count."""
    metre = b"\x00\xff\x58\x04\x03\x02\x18\x08\x00\xff\x2f\x00"
    notes = bytes.fromhex("00903c40 004040 603c00 004000 00992440 60802440 00904340 604300")
    tracks = b"".join(b"MTrk" + struct.pack(">I", len(each)) + each for each in (metre, notes + b"\x00\xff\x2f\x00"))
    made = from_midi(b"MThd" + struct.pack(">IHHH", 6, 1, 2, 96) + tracks)
    assert made.words() == "M:3/4 K:C E2 z2 G2 |"


def test_the_sound_has_the_pitch_that_is_written() -> None:
    with wave.open(io.BytesIO(melody("A8").written(".wav"))) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (RATE, 1, 2)
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    assert len(samples) == 2 * RATE
    spectrum = np.abs(np.fft.rfft(samples))
    assert np.fft.rfftfreq(len(samples), 1 / RATE)[spectrum.argmax()] == pytest.approx(440, abs=1)


def test_melodies_are_documents(tmp_path: Path) -> None:
    (tmp_path / "two.abc").write_text(f"{ABC}\n{ABC.replace('X:1', 'X:2')}")
    (tmp_path / "one.mid").write_bytes(tune("1").midi())
    found = list(TextFiles(text=str(tmp_path)).read())
    assert [passage.first and passage.last for passage in found] == [True] * 3
    assert found[1].text == found[2].text == from_abc(ABC).words()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("K:G Q2", "'Q2' is no note"),
        ("K:H A", "K:H is no key"),
        ("M:x A", "M:x is no metre"),
        ("c''''''", "beyond what MIDI can say"),
        ("A999", "64 at most"),
    ],
)
def test_what_is_no_melody_is_named(words: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        melody(words)


def test_files_that_are_broken_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.abc").write_text("X:1\nM:7\nK:C\nA\n")
    with pytest.raises(ValueError, match=r"a\.abc, tune 1: M:7 is no metre"):
        list(tunes(tmp_path / "a.abc"))
    whole = tune("0").midi()
    for content in (b"", b"RIFF", whole[:40], whole[:-9], b"MThd" + whole[4:10] + b"\0\0" + whole[12:]):
        with pytest.raises(ValueError, match=r"no MIDI file that can be read|no notes in it"):
            from_midi(content)
    assert Melody(()).words() == "M:4/4 K:C"
