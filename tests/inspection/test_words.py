"""The word of each token: by where it stands, by what is written so far, by its piece."""

from itertools import repeat

import pytest

from regard.data.sentences import UNSPACED
from regard.inspection.words import added, words_of_prefixes, words_of_spans
from regard.inspection.words import words as words_of


def test_words_of_tokens() -> None:
    assert words_of_prefixes(["", "▁", "a", "a b", "a b", "a b "]) == [0, 0, 0, 1, 1, 1]
    text = "  one two\u2003three"
    assert words_of_spans(text, [(0, 2), (2, 5), (5, 7), (7, 9), (9, 10), (10, 15)]) == [0, 0, 1, 1, 1, 2]
    assert words_of_spans("", [(0, 0)]) == [0]


def test_white_space_is_a_part_of_the_word_before_or_as_a_person_is_shown_it_of_the_word_after() -> None:
    texts = [" ", "a", " ", " ", "b ", "c", "", " of the", "se", " "]
    assert words_of(texts) == [0, 0, 0, 0, 1, 2, 2, 4, 4, 4]
    assert words_of(texts, UNSPACED) == [0, 0, 1, 1, 1, 2, 2, 4, 4, 5]
    assert words_of(["", "我", "们"]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "pieces", "words"),
    [
        ("bpe", ["▁", "s", "lo", "w", "▁dog", "."], [0, 0, 0, 0, 1, 1]),
        ("char", ["a", "▁", "d", "o", "▁", "▁", "c"], [0, 1, 1, 1, 2, 2, 2]),
        ("unigram", ["▁我", "们", "很", "好", "。", "▁OK"], [0, 1, 2, 3, 4, 5]),
        ("wordpiece", ["play", "##ing", "##s", ",", "now"], [0, 0, 0, 1, 2]),
        ("none", ["a", "pl@@", "ay@@", "ing", "<unk>"], [0, 1, 1, 1, 2]),
        ("other", ["Hello", "Ġwor", "ld"], [0, 1, 1]),
        ("bpe", [], []),
    ],
)
def test_pieces_make_words(kind: str, pieces: list[str], words: list[int]) -> None:
    texts = map(added, pieces, [None, *pieces], repeat(kind))
    assert words_of(texts, UNSPACED) == words
