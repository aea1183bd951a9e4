"""Tokens as a page shows them."""

import json

import pytest

from regard.data.tokenizers import UNK, Tokenizer, TokensConfig
from regard.data.vocabulary import BOS, EOS
from regard.serving.shown import Shown, examples

LINES = ["a dog runs", "the man in the hat looks at a dog, don't do not ☕ 中文 说中文"]
SIZES = {"bpe": 290, "unigram": 285, "wordpiece": 60, "byte": 0, "char": 0, "none": 0}


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.learn(TokensConfig(kind, size=SIZES[kind]), LINES * 3)


def show(kind: str, text: str) -> list[tuple[str, bool, int | None]]:
    tokens = tokenizer(kind)
    return [(t["text"], t["space"], t["word"]) for t in Shown(tokens).all(tokens.encode(text))]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "none"])
def test_texts_and_spaces_together_are_the_text(kind: str) -> None:
    text = "the man looks at a dog"
    shown = show(kind, text)
    assert "".join(" " * space + text for text, space, _ in shown).replace("␣", "") == text


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_words_are_what_stands_between_white_space(kind: str) -> None:
    tokens = tokenizer(kind)
    words: dict[int, str] = {}
    for token in Shown(tokens).all(tokens.encode("the man looks at a dog")):
        words[token["word"]] = words.get(token["word"], "") + token["text"].replace("␣", "")
    assert words == dict(enumerate(["the", "man", "looks", "at", "a", "dog"]))


def test_white_space_has_a_sign() -> None:
    assert show("char", "a d") == [("a", False, 0), ("␣", True, 1), ("d", False, 1)]
    assert [text for text, _, _ in show("byte", "a\n\tb")] == ["a", "⏎", "⇥", "b"]


def test_half_a_character_is_shown_by_its_bytes_and_divides_no_word() -> None:
    assert show("byte", "a☕b") == [
        ("a", False, 0),
        *((rf"\x{b}", False, 0) for b in ("e2", "98", "95")),
        ("b", False, 0),
    ]
    assert [word for _, _, word in show("byte", "中文")] == [0, 0, 0, 1, 1, 1]


def test_a_script_without_spaces_has_a_word_for_each_token() -> None:
    assert show("char", "说中文") == [("说", False, 0), ("中", False, 1), ("文", False, 2)]
    assert [word for _, _, word in show("char", "a中do")] == [0, 1, 2, 2]


def test_sub_words_of_text_that_is_cut_already_lose_their_marks() -> None:
    tokens = Tokenizer.learn(TokensConfig("none", size=0), ["a g@@ uitar player"])
    shown = Shown(tokens).all(tokens.encode("a g@@ uitar xyzzy player"))
    assert [t["text"] for t in shown] == ["a", "g", "uitar", "<unk>", "player"]
    assert [t["word"] for t in shown] == [0, 1, 1, 2, 3]
    assert [t["space"] for t in shown] == [False, True, False, True, True]
    assert [t["special"] for t in shown] == [False] * 5


def test_a_tokenizer_of_another_program_is_read_by_what_it_writes() -> None:
    learnt = json.loads(tokenizer("bpe").__reduce__()[1][0])
    kind = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    foreign = Tokenizer(json.dumps(learnt | {"normalizer": None, "post_processor": kind, "decoder": kind}))
    assert foreign.kind == "other"
    shown = Shown(foreign).all(foreign.encode("the man looks ☕"))
    assert "".join(" " * t["space"] + t["text"] for t in shown if t["word"] < 3).replace("␣", "") == "the man looks"
    assert {t["word"] for t in shown} == {0, 1, 2, 3}


def test_specials_belong_to_no_word() -> None:
    tokens = tokenizer("bpe")
    shown = Shown(tokens).all([BOS, *tokens.encode("a dog"), EOS])
    assert (
        [t["special"] for t in shown] == [t["word"] is None for t in shown] == [True, *[False] * (len(shown) - 2), True]
    )
    assert (shown[0]["text"], shown[-1]["text"]) == ("<s>", "</s>")
    assert shown[1]["space"] is False


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_what_might_come_next_is_named_as_if_it_did(kind: str) -> None:
    tokens = tokenizer(kind)
    shown, ids = Shown(tokens), tokens.encode("the man, don't ☕")
    for id in [*ids, UNK, EOS]:
        (named,) = shown.possible([id])
        token = shown.all([id])[0]
        assert named == {key: token[key] for key in ("id", "text", "space")}
        assert named["text"]


def test_examples_are_for_the_language_and_the_kind_of_text() -> None:
    for language in ("en", "de", "es", "fr", "zh"):
        assert 3 <= len(examples(language, "bpe")) <= 6
    assert all(text == text.lower() and text.endswith(" .") for text in examples("de", "none"))
    assert examples("en-GB", "bpe") == examples("en", "bpe")
    assert examples("source", "bpe") == []
