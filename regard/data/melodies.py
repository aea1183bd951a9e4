"""Melodies made by rule, like those of folk dances: jigs, reels, waltzes and airs, in two parts of eight bars.

A part is two phrases of four bars, which begin alike: the first ends on the fifth, the second on the tonic. Each bar
has a chord; its strong notes are of that chord, the others go by steps between them. What a motif was in one bar comes
again in others, a few steps higher or lower. All of it is drawn by chance, the same for the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from regard.data.downloads import Held, Progress
from regard.data.music import STEPS, Melody, Tone, signs_of
from regard.files import write_whole

if TYPE_CHECKING:
    from regard.data.corpora import Corpus

# Of each dance: its metre, the eighths at which strong notes stand, rhythms of a bar, and that of the last one.
DANCES = {
    "jig": ("6/8", (0, 3), ("111111", "21111", "2121", "11121", "321"), "33"),
    "reel": ("4/4", (0, 4), ("11111111", "2111111", "22211", "111122", "211211"), "2222"),
    "waltz": ("3/4", (0, 2, 4), ("222", "42", "2211", "321", "11112"), "6"),
    "air": ("4/4", (0, 4), ("2222", "422", "3122", "44", "224"), "8"),
}
KEYS = ("G", "D", "A", "C", "F", "Am", "Em", "Dm")
CHORDS = ((0, 3, 4, 0), (0, 5, 3, 4), (0, 4, 0, 4), (0, 0, 3, 4), (0, 3, 0, 4))  # degrees of a phrase's bars
ENDS = ((0, 3, 4, 0), (3, 0, 4, 0), (0, 5, 4, 0))
LOWEST, HIGHEST = -3, 11  # degrees from the tonic in the first octave


@dataclass(frozen=True)
class Melodies:
    """A corpus of such melodies, in ABC."""

    counts: dict[str, int]  # split -> how many

    def held(self, data: Path, languages: Sequence[str]) -> Held:
        """Nothing is needed for it."""
        return {}

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """train.abc and so on."""
        for split, count in self.counts.items():
            written = (tune(f"{split} {i}").written(".abc").decode() for i in range(count))
            write_whole(
                into / f"{split}.abc", "\n".join(t.replace("X:1", f"X:{i}", 1) for i, t in enumerate(written, 1))
            )


def tune(seed: str) -> Melody:
    """One of them.

    >>> tune("train 0").words().split()[:8]
    ['M:4/4', 'K:C', 'G', 'F', 'G', 'F', 'G', 'F']
    """
    draw = Random(f"melody {seed}")
    metre, strong, rhythms, last = DANCES[draw.choice([*DANCES])]
    key = draw.choice(KEYS)
    scale = _scale(key)
    bars = list[tuple[Tone, ...]]()
    at = draw.choice((0, 2, 4))
    for part in range(2):
        begins = [draw.choice(rhythms) for _ in range(2)]
        motif, first = draw.choices((-2, -1, 1, 2), k=8), draw.choice(CHORDS)
        for phrase, chords in enumerate((first, (first[0], *draw.choice(ENDS)[1:]))):
            for i, chord in enumerate(chords):
                closing = phrase == 1 and i == 3
                rhythm = last if closing else begins[i % 2] if i < 2 or draw.random() < 0.6 else draw.choice(rhythms)
                if i == 0:  # phrases begin alike; the second part begins higher
                    at = _nearest(2 + 3 * part, chord)
                bar, at = _bar(rhythm, strong, chord, at, motif, draw, closing)
                bars.append(tuple(Tone(_pitch(scale, degree), Fraction(length)) for degree, length in bar))
    return Melody((*bars,), metre, key)


def _bar(
    rhythm: str, strong: Sequence[int], chord: int, at: int, motif: Sequence[int], draw: Random, closing: bool
) -> tuple[list[tuple[int, int]], int]:
    """The degrees and lengths of a bar that goes on from a degree, and the last of them."""
    clock, made = 0, list[tuple[int, int]]()
    for i, length in enumerate(map(int, rhythm)):
        if closing and i == len(rhythm) - 1:
            at = _nearest(at, 0, triad=(0,))
        elif clock in strong:
            at = _nearest(at + (motif[i] if draw.random() < 0.8 else 0), chord)
        else:
            at += motif[i] // abs(motif[i]) if draw.random() < 0.75 else draw.choice((-1, 1))
        at = min(HIGHEST, max(LOWEST, at))
        made.append((at, length))
        clock += length
    return made, at


def _nearest(degree: int, chord: int, triad: Sequence[int] = (0, 2, 4)) -> int:
    """The degree of a chord that is nearest."""
    own = [chord + step + 7 * octave for octave in (-2, -1, 0, 1) for step in triad]
    return min((each for each in own if LOWEST <= each <= HIGHEST), key=lambda each: (abs(each - degree), each))


def _scale(key: str) -> list[int]:
    """The pitches of seven degrees from the tonic on, around the middle of a staff."""
    signs, letters = signs_of(key), "CDEFGAB"
    first = letters.index(key[0])
    low = 48 if first > 4 else 60  # A and B begin below
    return [low + 12 * (i > 6) + STEPS[letters[i % 7]] + signs.get(letters[i % 7], 0) for i in range(first, first + 7)]


def _pitch(scale: Sequence[int], degree: int) -> int:
    octave, step = divmod(degree, 7)
    return scale[step] + 12 * octave
