"""A forbidden phrase is found in the text, whatever its sub-words."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.phrases import Forbidden
from regard.data.tokenizers import KINDS, UNK, Tokenizer, TokensConfig

LINES = ["a dog runs", "two men sit on a bench", "a woman reads.", "the man looks at a dog ☕ 中文 está aquí"]
SIZES = {"bpe": 290, "unigram": 290, "wordpiece": 70, "byte": 0, "char": 0, "none": 0}


@cache
def tokenizer(kind: str) -> Tokenizer:
    lines = LINES if kind != "none" else [line.replace("dog", "d@@ og").replace("man", "m@@ an") for line in LINES]
    return Tokenizer.learn(TokensConfig(kind, size=SIZES[kind]), lines * 3)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_token_is_refused_if_with_it_the_text_has_a_phrase_and_only_then(kind: str, data: st.DataObject) -> None:
    tokens = tokenizer(kind)
    phrases = data.draw(
        st.lists(st.sampled_from(["dog", "a dog", "man", "está", "☕", "中", "a", ".", "reads"]), min_size=1)
    )
    forbidden = Forbidden(tokens, phrases)
    words = data.draw(
        st.lists(st.sampled_from(["a", "do", "dog", "wo", "man", "est", "está", "中文", "the"]), max_size=4)
    )
    first = UNK + 1 if kind != "unigram" else UNK + 257  # no single bytes, which make letters around them unreadable
    more = data.draw(st.lists(st.integers(first, len(tokens) - 1), max_size=3))
    written = [*tokens.encode(" ".join(words)), *more]
    while forbidden.found(tokens.decode(written)):
        written.pop()
    rest = range(first, len(tokens))
    truth = {token for token in rest if forbidden.found(tokens.decode([*written, token]))}
    assert {*forbidden.refused(written)} & {*rest} == truth


def test_words_are_whole_and_case_counts() -> None:
    forbidden = Forbidden(tokenizer("char"), ["man", "a dog", "文"])
    for text, found in {
        "woman": None,
        "mano": None,
        "Man": None,
        "the man.": "man",
        "a  dog": "a  dog",
        "a dogs": None,
        "中文中": "文",
    }.items():
        assert forbidden.found(text) == found


def test_a_phrase_that_has_no_tokens_of_its_own_is_found_inside_of_others() -> None:
    tokens = tokenizer("none")
    (token,) = tokens.encode("reads.")
    assert UNK in tokens.encode("reads")
    assert Forbidden(tokens, ["reads"]).refused(tokens.encode("a")) == [token]
