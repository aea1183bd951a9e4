"""What no translator should touch is taken out whole, and comes back whole, wherever words have gone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.kept import KEPT, Without

ADDRESSES = [
    *("https://example.com", "http://a.b/c?d=e&f=g#h", "HTTPS://EXAMPLE.COM/A_(b)", "ftp://x.y", "www.example.org/a"),
    *("example.com", "docs.example.org/path", "bob@example.org", "first.last+tag@mail.example.co.uk"),
    *("@alice", "@alice_b", "@alice@mastodon.social", "`x = 1`", "``a`b``", "😀", "👩‍👩‍👧", "🇪🇸", "❤️", "👍🏽", "5️⃣"),
]


@pytest.mark.parametrize("thing", ADDRESSES)
@pytest.mark.parametrize("frame", ["{}", "see {}", "{} is it", "see {} now", "see {}, now", "see ({}).", "see {}!"])
def test_things_are_taken_out_whole(thing: str, frame: str) -> None:
    text = frame.format(thing)
    found = Without.of(text)
    kept = [found.before, *(each.text for each in found.things), found.after]
    assert sum(thing in each for each in kept) == 1
    assert thing not in found.read
    assert found.before + found.text + found.after == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Mr. Smith e.g. left.",
            "`` No '' he said `` yes ''",
            "wal@@ king @-@ ok",
            "5 @ 3 EUR",
            "a.b",
            "it's 3.5 com",
        ),
        *("C'est-à-dire…", "今天天气很好。", "The end.Next", "x @ y", "2 * 3 # 4", "`` ` ``"),
    ],
)
def test_text_is_not_taken_for_a_thing(text: str) -> None:
    assert Without.of(text).read == text


def test_a_thing_goes_with_the_word_before_it() -> None:
    sentence = Without.of("I saw https://a.b yesterday.")
    filled = sentence.filled("Ayer vi.", [(2, 0), (1, 1)])  # I saw yesterday.
    assert filled is not None
    assert filled.text == "Ayer vi https://a.b."
    assert filled.links == [(3, 0), (1, 1), (2, 2)]
    assert sentence.filled("Ayer vi.", []) is None  # nobody knows where
    assert sentence.filled("昨天我看了。", [(1, 0)]) is None  # words are not apart


def test_things_may_change_places() -> None:
    sentence = Without.of("from @a to @b go")
    filled = sentence.filled("ve hasta desde", [(0, 2), (1, 1), (2, 0)])
    assert filled is not None
    assert filled.text == "ve hasta @b desde @a"


WORDS = st.sampled_from(["a", "dog,", "runs.", "(so", "what)", "—", *ADDRESSES[:12], "😀"])


@settings(deadline=None)
@given(
    st.lists(WORDS, max_size=8), st.lists(st.sampled_from(["un", "perro,", "¿y?"]), min_size=1, max_size=6), st.data()
)
def test_nothing_is_lost_whatever_the_alignment(words: list[str], said: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    sentence = Without.of(text)
    assert sentence.before + sentence.text + sentence.after == text
    assert "".join(piece for piece, _ in sentence.stretches()) == sentence.text
    assert not KEPT.search(sentence.read)
    read = len(sentence.read.split())
    links = st.tuples(st.integers(0, max(read - 1, 0)), st.integers(0, len(said) - 1))
    filled = sentence.filled(" ".join(said), data.draw(st.lists(links, max_size=6)) if read else [])
    if filled is not None:
        for thing in sentence.things:
            assert thing.text in filled.text
        rest = filled.text
        for thing in sorted(sentence.things, key=lambda each: -len(each.text)):
            rest = rest.replace(thing.text, " ", 1)
        assert "".join(rest.split()) == "".join(said)
        assert all(i < len(sentence.text.split()) and j < len(filled.text.split()) for i, j in filled.links)
