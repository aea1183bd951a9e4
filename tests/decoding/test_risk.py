"""The consensus is found as its definition has it, and each pair of texts is compared once."""

import itertools
import random

import pytest

from regard.decoding.risk import choose
from regard.evaluation.translation import sentence_chrf


def definition(candidates: list[str]) -> int:
    """Mean utility against the others, by position."""
    means = [
        sum(sentence_chrf(a, b) for j, b in enumerate(candidates) if j != i) / max(len(candidates) - 1, 1)
        for i, a in enumerate(candidates)
    ]
    return max(range(len(candidates)), key=lambda i: (round(means[i], 9), -i))


def test_equals_the_definition_also_with_repeated_candidates() -> None:
    words, draw = ["der", "die", "Hund", "Katze", "läuft", "schläft", "."], random.Random(0)
    for _ in range(40):
        candidates = [" ".join(draw.choices(words, k=draw.randint(0, 4))) for _ in range(draw.randint(1, 12))]
        assert choose(candidates, sentence_chrf) == definition(candidates)


def test_one_drawn_often_outweighs_and_the_first_of_equals_is_taken() -> None:
    def same(a: str, b: str) -> float:
        return float(a == b)

    assert choose(["a", "b", "c", "b"], same) == 1
    assert choose(["a", "b", "b", "a"], same) == 0
    assert choose(["a", "b", "c"], same) == 0
    assert choose(["alone"], same) == 0


def test_utility_need_not_be_symmetric_and_is_asked_once_for_each_pair() -> None:
    asked = []

    def covers(hypothesis: str, reference: str) -> float:
        asked.append((hypothesis, reference))
        return float(set(reference) <= set(hypothesis))

    assert choose(["a", "ab", "abc", "a", "b"], covers) == 2
    texts = ["a", "ab", "abc", "b"]
    assert sorted(asked) == sorted([*itertools.permutations(texts, 2), ("a", "a")])


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to choose from"):
        choose([], sentence_chrf)
