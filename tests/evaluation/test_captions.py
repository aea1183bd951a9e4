"""BLEU and CIDEr-D of captions: against a slow truth, and sacreBLEU."""

import math
import random

import numpy as np
import pytest

from regard.evaluation.captions import judged, words

WORDS = ["a", "dog", "cat", "runs", "sits", "on", "the", "grass", "red", "ball", "with", "two", "men"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


SAID = sentences(12, 0)
REFERENCES = [sentences(3, 100 + i) + [SAID[i]] * (i % 3 == 0) for i in range(12)]


def slow_cider(said: list[str], references: list[list[str]]) -> float:
    """The definition, with a vector over all n-grams for each caption."""
    total = 0.0
    for n in (1, 2, 3, 4):

        def grams(text: str, n: int = n) -> list[tuple[str, ...]]:
            own = words(text)
            return [tuple(own[i : i + n]) for i in range(len(own) - n + 1)]

        every = sorted({g for texts in [said, *references] for text in texts for g in grams(text)})
        if not every:
            continue
        has = [sum(any(g in grams(text) for text in own) for own in references) for g in every]
        idf = np.array([math.log(len(references)) - math.log(max(1, count)) for count in has])

        def vector(text: str, every: list[tuple[str, ...]] = every, idf: np.ndarray = idf) -> np.ndarray:
            return np.array([grams(text).count(g) for g in every]) * idf

        for text, own in zip(said, references, strict=True):
            for other in own:
                a, b = vector(text), vector(other)
                norm = np.linalg.norm(a) * np.linalg.norm(b)
                apart = len(words(text)) - len(words(other))
                near = np.minimum(a, b) @ b / norm if norm else 0.0
                total += 10 / 4 * near * math.exp(-(apart**2) / 72) / len(own) / len(said)
    return 100 * total


def test_cider_is_its_definition() -> None:
    assert judged(SAID, REFERENCES)(np.arange(12))["cider"] == pytest.approx(slow_cider(SAID, REFERENCES), rel=1e-9)
    assert slow_cider(SAID, REFERENCES) > 10


def test_bleu_is_that_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    references = [own[:3] for own in REFERENCES]
    found = judged(SAID, references)(np.arange(12))
    columns = [list(column) for column in zip(*references, strict=True)]
    for n in (1, 2, 3, 4):
        metric = sacrebleu.BLEU(tokenize="none", max_ngram_order=n, smooth_method="none")
        assert found[f"bleu{n}"] == pytest.approx(metric.corpus_score(SAID, columns).score, abs=1e-9)


def test_some_rows_are_judged_by_the_words_of_all() -> None:
    of = judged(SAID, REFERENCES)
    some = [of(np.array([i]))["cider"] for i in range(12)]
    assert np.mean(some) == pytest.approx(of(np.arange(12))["cider"])
    assert of(np.array([0]))["bleu1"] == pytest.approx(100)  # it is among its references
    assert judged([""], [["a dog"]])(np.arange(1)) == dict.fromkeys(("bleu1", "bleu2", "bleu3", "bleu4", "cider"), 0.0)
