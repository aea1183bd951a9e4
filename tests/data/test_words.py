"""BM25 by its definition, document by document, and as bm25s has it."""

import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from regard.data import words
from regard.data.words import Bm25, words_of

draw = random.Random(3)
VOCABULARY = [f"w{n}" for n in range(60)]
TEXTS = [" ".join(draw.choices(VOCABULARY, weights=range(1, 61), k=draw.randint(0, 30))) for _ in range(200)]
QUESTIONS = ["w1 w59 w59", "w2", "w58 unheard", "unheard of", "W3, w4!"]


def truth(question: str) -> list[tuple[int, float]]:
    """By the formula: every document, every word."""
    held = [Counter(words_of(text)) for text in TEXTS]
    mean = sum(each.total() for each in held) / len(held)
    scores = []
    for each in held:
        score = 0.0
        for word in words_of(question):
            df = sum(word in other for other in held)
            tf = each[word]
            if tf:
                idf = math.log(1 + (len(held) - df + 0.5) / (df + 0.5))
                score += idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * each.total() / mean))
        scores.append(score)
    return sorted(((n, x) for n, x in enumerate(scores) if x), key=lambda each: (-each[1], each[0]))


@pytest.mark.parametrize("block", [7, words.BLOCK])
def test_scores_are_those_of_the_formula(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "BLOCK", block)
    found = Bm25.build(TEXTS, tmp_path / "words")
    again = Bm25(tmp_path / "words")
    assert sorted(path.suffix for path in (tmp_path / "words").iterdir()) == [".json", *[".npy"] * 5]
    for question in QUESTIONS:
        expected, said = truth(question), found.search(question, 500)
        assert sorted(n for n, _ in said) == sorted(n for n, _ in expected)
        assert dict(said) == pytest.approx(dict(expected))
        assert [x for _, x in said] == sorted((x for _, x in said), reverse=True)
        assert found.search(question, 9) == said[:9] == again.search(question, 9)


def test_of_equals_the_first_comes_first_and_words_are_of_any_script(tmp_path: Path) -> None:
    found = Bm25.build(["", "same here", "same here", "das Straßenfest", "猫が好き"], tmp_path / "words")
    assert [n for n, _ in found.search("same", 1)] == [1]
    assert [n for n, _ in found.search("STRASSENFEST", 5)] == [3]
    assert [n for n, _ in found.search("猫", 5)] == [4]
    assert Bm25.build(["", "!"], tmp_path / "none").search("a", 3) == []
    (tmp_path / "words" / "counts.npy").write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"is damaged .* remove it, and it is built again"):
        Bm25(tmp_path / "words")


@pytest.mark.oracle
def test_bm25s_finds_the_same(tmp_path: Path) -> None:
    bm25s = pytest.importorskip("bm25s")
    theirs = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    theirs.index([words_of(text) for text in TEXTS], show_progress=False)
    found = Bm25.build(TEXTS, tmp_path / "words")
    for question in QUESTIONS[:3]:
        scores = theirs.get_scores(words_of(question))
        ours = np.zeros(len(TEXTS))
        for n, x in found.search(question, len(TEXTS)):
            ours[n] = x
        assert np.allclose(ours, scores, atol=1e-5)
