"""HTML in translation: no tag is lost, moved past another or made up, and text is escaped."""

import re
import time
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serving.markup import Page
from regard.tasks.asks import Links, Translation

TAG = re.compile("<[^>]*>")


def said(text: str, links: Links | None = None) -> list[Translation]:
    return [Translation(text, [], 0.0, 0.0, [], links)]


def shouted(html: str) -> str:
    """Every text in capitals, word for word."""
    page = Page(html)
    (filled,) = page.filled([said(text.upper(), [(i, i) for i in range(len(text.split()))]) for text in page.texts])
    return filled


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("", ""),
        ("plain text", "PLAIN TEXT"),
        ("<p>one</p>\n<p>two</p>", "<p>ONE</p>\n<p>TWO</p>"),
        ("<P CLASS = x>one</P >", "<P CLASS = x>ONE</P >"),
        ("<p>a <b>red</b>, <i>big</i> dog</p>", "<p>A <b>RED</b>, <i>BIG</i> DOG</p>"),
        ("<p><b>all of it</b></p>", "<p><b>ALL OF IT</b></p>"),
        ("<p>a <a href='?a=1&amp;b=<'>red <b>dog</b></a>!</p>", "<p>A <a href='?a=1&amp;b=<'>RED <b>DOG</b></a>!</p>"),
        ("one<br>two<br/>three", "ONE<br>TWO<br/>THREE"),
        ("an <img src=x alt='a dog'> image", "AN <img src=x alt='a dog'> IMAGE"),
        ("un<b>believ</b>able luck", "<b>UNBELIEVABLE</b> LUCK"),
        ("wo<b></b>rd and", "<b>WORD</b> AND"),
        ("(<i>one</i>) two", "(<i>ONE</i>) TWO"),
        ("&lt;b&gt; &amp; &copy; caf&eacute;", "&lt;B&gt; &amp; © CAFÉ"),
        ("a < b & c > d", "A &lt; B &amp; C &gt; D"),
        ("<p>one\n   two</p>", "<p>ONE TWO</p>"),
        ("<p>\n  one </p>", "<p>\n  ONE </p>"),
        ("<p>12 &mdash; 5</p>", "<p>12 &mdash; 5</p>"),
        ("<script>var a = '<p>one</p>';</script>", "<script>var a = '<p>one</p>';</script>"),
        ("<style>p { color: red }</style>x", "<style>p { color: red }</style>X"),
        ("run <code>ls -l</code> now", "RUN <code>ls -l</code> NOW"),
        ("<pre>a\n  b</pre>c", "<pre>a\n  b</pre>C"),
        ('<p translate="no">one <p>two</p> three</p>four', '<p translate="no">one <p>two</p> three</p>FOUR'),
        ("<b TRANSLATE=No>one</b> two", "<b TRANSLATE=No>one</b> TWO"),
        ("<span class='x notranslate'>one</span> two", "<span class='x notranslate'>one</span> TWO"),
        ("<!-- one --> two <!-- three --> four", "<!-- one --> TWO <!-- three --> FOUR"),
        ("<!DOCTYPE html><title>one</title>", "<!DOCTYPE html><title>ONE</title>"),
        ("<?php one ?>two", "<?php one ?>TWO"),
        ("<ul><li>one<li>two <b>three</ul>", "<ul><li>ONE<li>TWO <b>THREE</ul>"),
        ("</b>one <b>two</i> three", "</b>ONE <b>TWO</i> THREE"),
        ("<table><tr><td>one</td><td>two</td></tr></table>", "<table><tr><td>ONE</td><td>TWO</td></tr></table>"),
        ("one <b>two", "ONE <b>TWO"),
        ("<b> one</b> <i>two</i>", "<b> ONE</b> <i>TWO</i>"),
        ("one <span></span> two <wbr>three", "ONE <span></span>TWO <wbr>THREE"),
        ("<script><b>one", "<script><b>one"),
        ("one <code><b>two", "ONE <code><b>two"),
    ],
)
def test_tags_stay_and_text_is_translated(html: str, expected: str) -> None:
    assert shouted(html) == expected


def test_an_element_goes_with_its_words() -> None:
    page = Page("<p>The <b>red</b> house is <i>very big</i>.</p>")
    assert page.texts[0] == "The red house is very big."
    links = [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5)]
    whole = said("La casa roja es muy grande.", links)
    rest = [said(text) for text in page.texts[1:]]
    assert page.filled([whole, *rest]) == ["<p>La casa <b>roja</b> es <i>muy grande</i>.</p>"]


def test_a_word_that_attention_misplaces_moves_no_tag() -> None:
    page = Page("This is <b>my house</b>, and this is <i>my garden</i>.")
    links = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (2, 5), (3, 6), (7, 7), (8, 8)]  # "esta es" from "my house"
    whole = said("Esta es mi casa, y esta es mi jardín.", links)
    assert page.filled([whole] * 5) == ["Esta es <b>mi casa</b>, y esta es <i>mi jardín</i>."]


@pytest.mark.parametrize(
    "links",
    [
        [(0, 0), (1, 2), (2, 1)],  # the two elements would change places
        [(0, 0), (2, 2)],  # nobody knows where one belongs
        [(0, 0), (1, 0), (1, 2), (2, 1)],  # another word stands between those of one
        None,
    ],
)
def test_where_tags_would_have_to_move_the_stretches_are_translated(links: Links | None) -> None:
    page = Page("a <b>red</b> <i>house</i>")
    assert page.texts == ["a red house", "a", "red", "house"]
    parts = [said("una casa roja", links), said("una"), said("roja"), said("casa")]
    assert page.filled(parts) == ["una <b>roja</b> <i>casa</i>"]


@pytest.mark.parametrize(
    ("html", "whole", "parts", "expected"),
    [
        ("a <b>red</b> house", "一座红房子", ["一座", "红", "房子"], "一座 <b>红</b> 房子"),
        ("我喜欢<b>红色</b>的房子", "I like red houses", ["I like", "red", "houses"], "I like<b>red</b>houses"),
    ],
)
def test_words_that_are_not_written_apart_are_no_words_to_go_by(
    html: str, whole: str, parts: list[str], expected: str
) -> None:
    links = [(i, j) for i in range(len(Page(html).texts[0].split())) for j in range(len(whole.split()))]
    assert Page(html).filled([said(whole, links), *map(said, parts)]) == [expected]


@pytest.mark.parametrize("piece", ["a&amp;", "& ", "<b> ", "<b></i>", "<b>&nbsp;"])
def test_the_time_that_it_takes_grows_with_the_length(piece: str) -> None:
    begin = time.perf_counter()
    assert TAG.findall(shouted(piece * 20_000)) == TAG.findall(piece) * 20_000
    assert time.perf_counter() - begin < 20  # by squares it would be minutes


def test_many_tags_and_words_find_their_places_in_time() -> None:
    html = "<b>a</b> " * 120 + "b " * 20_000
    begin = time.perf_counter()
    assert shouted(html).startswith("<b>A</b> <b>A</b>")
    assert time.perf_counter() - begin < 5


def test_alternatives_are_pages_of_the_next_best_translations() -> None:
    page = Page("<p>one</p><p>two</p>")
    assert page.filled([said("a") + said("b"), said("c")], best=3) == [
        "<p>a</p><p>c</p>",
        "<p>b</p><p>c</p>",
        "<p>b</p><p>c</p>",
    ]


PIECES = re.split(
    "~",
    "<b>~</b>~<i>~</i>~<p>~</p>~<br>~<a href='x'>~</a>~<code>~</code>~<!-- c -->~<script>~</script>~"
    "<span translate=no>~</span>~&amp;~&#1;~&~<~>~ ~\n~one~two!~é~中文~\u2028~\r\n~<!~</~<?~]]>~<![CDATA[~&nbsp~12",
)


@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), st.data())
def test_no_tag_is_lost_whatever_the_alignment(html: str, data: st.DataObject) -> None:
    page = Page(html)
    translations = []
    for text in page.texts:
        words = len(text.split())
        pairs = st.lists(st.tuples(st.integers(0, words - 1), st.integers(0, words - 1)), max_size=8)
        translations.append(said(text.swapcase(), data.draw(pairs)))
    (filled,) = page.filled(translations)
    assert TAG.findall(filled) == TAG.findall(html) or "&lt;" in filled  # a lone < was text, and now says so

    def letters(html: str) -> list[str]:
        return sorted(c for c in unescape(html).casefold() if c.isalpha())

    assert letters(filled) == letters(html)


@given(st.text(max_size=60))
def test_any_text_is_survived(text: str) -> None:
    page = Page(text)
    assert len(page.filled([said(each) for each in page.texts])) == 1
