import hashlib
import random
from pathlib import Path

import pytest

from regard.data.corpora import CORPORA

SIZES = {"train": 80, "val": 12, "test_2016_flickr": 12}
WORDS = {
    "en": "a man woman dog child bird runs sings sees walks red green big small",
    "de": "ein mann frau hund kind vogel läuft singt sieht geht rot grün groß klein",
    "fr": "un homme femme chien enfant oiseau court chante voit marche rouge vert grand petit",
}


@pytest.fixture
def captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Multi30k of a hundred sentences, translated word by word; and no cache but the test's own."""
    folder, draw = tmp_path / "data" / "multi30k", random.Random(0)
    folder.mkdir(parents=True)
    sums = CORPORA["multi30k-en-de"].form.sums
    for stem, size in SIZES.items():
        sentences = [[draw.randrange(14) for _ in range(draw.randint(3, 8))] for _ in range(size)]
        for language, words in WORDS.items():
            text = "".join(" ".join(words.split()[i] for i in sentence) + " .\n" for sentence in sentences)
            (folder / f"{stem}.{language}").write_text(text, "utf-8")
            monkeypatch.setitem(sums, f"{stem}.{language}", hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_NATIVE", "0")  # in a new cache it would be compiled first
