"""Outputs are whole characters, whatever tokens a search would like; and what a vocabulary lacks is named."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.spelling import Characters, characters, fragments, spellings, unknown, whole
from regard.data.tokenizers import KINDS, Tokenizer, TokensConfig
from regard.data.vocabulary import EOS

TEXT = ["a dog runs, don't ☕ 中文 El ñandú corrió", "two men sit"]
SIZES = {"bpe": 290, "unigram": 286, "wordpiece": 60, "byte": 0, "char": 0, "none": 0}


@cache
def tokens(kind: str) -> Tokenizer:
    return Tokenizer.learn(TokensConfig(kind, size=SIZES[kind]), TEXT * 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_what_its_tokens_spell(kind: str) -> None:
    tokenizer = tokens(kind)
    ids = tokenizer.encode(TEXT[0])
    spelled = b"".join(map(spellings(tokenizer).__getitem__, ids)).decode()
    assert "".join(spelled.split()) == "".join(TEXT[0].split())
    assert whole(tokenizer, ids) == len(ids)
    assert bool(fragments(tokenizer)) == (kind in ("bpe", "byte", "unigram")) == (characters(tokenizer) is not None)


@pytest.mark.parametrize("kind", ["bpe", "byte", "unigram"])
@settings(deadline=None)
@given(data=st.data())
def test_whatever_is_not_refused_is_text(kind: str, data: st.DataObject) -> None:
    tokenizer = tokens(kind)
    held = characters(tokenizer)
    assert held is not None
    tricky = sorted(fragments(tokenizer))
    ids: list[int] = []
    for _ in range(data.draw(st.integers(0, 8))):
        refused = set(held.refused(ids))
        choice = [i for i in (*tricky, *range(4, 30)) if i not in refused]
        ids.append(data.draw(st.sampled_from(choice)))
    refused = set(held.refused(ids))
    assert {i for i in range(4, len(tokenizer)) if not valid(tokenizer, [*ids, i])} == refused - {EOS}
    ended = EOS not in refused
    assert ended == (whole(tokenizer, ids) == len(ids))
    if ended:
        assert "\ufffd" not in tokenizer.decode(ids)


def valid(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """The slow truth: the bytes are the beginning of some text."""
    try:
        b"".join(spellings(tokenizer)[i] for i in ids).decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def test_backwards_characters_are_written_whole_or_not_at_all() -> None:
    tokenizer = tokens("bpe")
    assert set(Characters(tokenizer, backward=True).refused([5])) == fragments(tokenizer)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("bpe", ("мир",)),
        ("unigram", ("мир",)),
        ("char", ("мир",)),
        ("wordpiece", ("мир",)),
        ("none", ("мир,", "men's")),
        ("byte", ()),
    ],
)
def test_what_a_vocabulary_lacks_is_named_once(kind: str, found: tuple[str, ...]) -> None:
    text = "two мир, мир, sit" if kind != "none" else "two мир, men's мир, sit"
    assert unknown(tokens(kind), text, tokens(kind).encode(text)) == found
    assert unknown(tokens(kind), TEXT[1], tokens(kind).encode(TEXT[1])) == ()
