"""Splitting loses nothing, finds the sentences of many scripts, and takes time in proportion to the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sentences import Piece, shorten, split

TEXT = st.one_of(st.text(max_size=60), st.text(alphabet='aB1 .!?…。！,"”)(\n\t-、', max_size=60))


def joined(pieces: list[Piece]) -> str:
    return "".join(piece.text + piece.gap for piece in pieces)


def sentences(text: str) -> list[str]:
    pieces = split(text)
    assert joined(pieces) == text
    return [piece.text for piece in pieces]


@pytest.mark.parametrize(
    "marked",  # | stands where a sentence must end, and nowhere else
    [
        "One sentence only",
        "He left. |She stayed! |Why? |Nobody knows…",
        "Mr. Smith met Dr. J. R. Jones in the U.S. on Dec. 5 at 3 p.m. They spoke. |So.",
        "It is 3.14, not 2.71. |In 1998. |We left at 10. He too.",
        "Use e.g. Python, i.e. code, etc. and so on. |Come on. |Let's go.",
        "See No. 5, Fig. 3 and p. 117. |He said no. |I left. |Smith et al. agree.",
        '"Stop!" he said. |"No." |She (quietly) left. |(He did too.) |Then “yes.” |«Oui.» |Fin.',
        "Wait... what? |Well... |Yes.",
        "Yahoo! is a firm. |Is it? |Yes.",
        "Am 3. Oktober ist frei, z. B. hier bzw. Dr. Meier. |Das ist gut. |Prof. Ünal auch.",
        "¿Dónde está? |¡Aquí! |Sr. Gómez no vino. |Él está en la pág. 5.",
        "Il est là. |« Oui. » |À demain. |Été. |Où ?",
        "又下雨了。|走吧！|为什么？|“好。”|他说。",
        "「行こう。」|彼は言った。|本当？！|うん。",
        "안 해. |가자. |왜?",
        "هل أنت هنا؟ |نعم. |شكرا",
        "یہ ہے۔ |وہ تھا۔",
        "वह गया। |मैं आया।|क्या?",
        "Кто там? |Это я. |А. С. Пушкин. |Да.",
        "πού; τώρα. |Ναι.",
    ],
)
def test_sentences_end_where_they_end(marked: str) -> None:
    assert sentences(marked.replace("|", "")) == [part.strip() for part in marked.split("|")]


def test_lines_and_white_space_are_kept() -> None:
    text = "  A title\n\n\tFirst one. Second one.  \r\n— third\u2028fourth \n"
    pieces = split(text)
    assert joined(pieces) == text
    assert [p.text for p in pieces] == ["", "A title", "First one.", "Second one.", "— third", "fourth"]
    assert [p.gap for p in pieces] == ["  ", "\n\n\t", " ", "  \r\n", "\u2028", " \n"]
    assert split("") == []
    assert split(" \n ") == [Piece("", " \n ")]


@given(TEXT)
def test_nothing_is_lost_and_only_white_space_is_between(text: str) -> None:
    pieces = split(text)
    assert joined(pieces) == text
    for i, piece in enumerate(pieces):
        assert piece.text == piece.text.strip()
        assert piece.text or i == 0
        assert not piece.gap.strip()
        assert len(split(piece.text)) <= 1


@given(TEXT, st.integers(1, 9))
def test_parts_of_a_long_sentence_fit_and_lose_nothing(text: str, longest: int) -> None:
    sentence = text.strip()
    parts = shorten(sentence, lambda part: len(part) <= longest)
    assert joined(parts) == sentence
    assert all(len(part.text) <= longest and not part.gap.strip() for part in parts)


def test_a_long_sentence_is_cut_after_a_clause_then_at_white_space_then_anywhere() -> None:
    def parts(text: str, longest: int) -> list[str]:
        return [part.text for part in shorten(text, lambda part: len(part) <= longest)]

    assert parts("short", 9) == ["short"]
    assert parts("a b c d e, f g h i j", 12) == ["a b c d e,", "f g h i j"]
    assert parts("天气很好，我们去公园吧", 6) == ["天气很好，", "我们去公园吧"]
    assert parts("one two three four", 9) == ["one two", "three", "four"]
    assert parts("one two" + " " * 40 + "three", 9) == ["one two", "three"]  # no white space is read
    assert parts("aaaabbbb", 4) == ["aaaa", "bbbb"]
    assert parts("e\u0301" * 3, 3) == ["e\u0301", "e\u0301", "e\u0301"]  # a letter stays with its accent
    assert "👩\u200d🚀" in parts("👩\u200d🚀👩\u200d🚀", 3)


@pytest.mark.parametrize("unit", [".", " ", ". ", "a", "。", ".)", "\u0301", "\u200d", ", ", "Dr. "])
def test_a_line_of_a_hundred_thousand_characters(unit: str) -> None:
    """Were anything quadratic in them, this would not end."""
    text = (unit * 100_000)[:100_000]
    assert joined(split(text)) == text
    calls = 0

    def fits(part: str) -> bool:
        nonlocal calls
        calls += 1
        return len(part) <= 200

    assert joined(shorten(text.strip(), fits)) == text.strip()
    assert calls < 5_000
