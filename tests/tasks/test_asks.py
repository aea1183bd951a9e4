"""What may be asked: settings by name, and outputs of parts put together."""

import pytest

from regard.decoding.protocol import SamplingConfig, SearchConfig
from regard.tasks import asks
from regard.tasks.asks import Ask, DecodeConfig, Part, Settings, Translation, joined, one_sentence, windows


def test_settings_go_where_they_belong_and_none_is_left_out() -> None:
    given = {"beam": None, "best": 2, "top_k": 5, "require": "a phrase", "forbid": ["x", "y"], "seed": 3}
    found = Settings.of(given, DecodeConfig(beam=6, alpha=0.1, extra=9))
    sampling = SamplingConfig(top_k=5)
    assert found.search == SearchConfig(beam=6, alpha=0.1, extra=9, shortest=1, best=2, sampling=sampling)
    assert (found.require, found.forbid, found.seed) == (("a phrase",), ("x", "y"), 3)
    assert Settings.of({}) == Settings()
    assert Settings.of({"shortest": 0}).search == SearchConfig()
    drawn = Settings.of({"mbr": 8})
    assert (drawn.search.best, drawn.search.sampling) == (8, SamplingConfig())
    assert Settings.of({"beam": 1}).bare().search.scores is False
    assert Settings.of({"beam": 2}).bare().search.scores is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beem": 3}, "there is no setting 'beem': did you mean 'beam'?"),
        ({"xyzzy": 3}, "there is no setting 'xyzzy': there are beam, best, "),
        ({"beam": 0}, "beam = 0: it must be at least 1"),
        ({"best": 9}, "best = 9: a beam of 4 yields at most 4 outputs"),
        ({"mbr": 1}, "mbr = 1: it takes at least 2"),
        ({"mbr": -3}, "mbr = -3: it takes at least 2"),
        ({"mbr": 4, "best": 2}, "mbr chooses one of its 4"),
        ({"seed": -1}, "seed = -1"),
        ({"long": "chop"}, "long = 'chop': choose split, cut or refuse"),
        ({"temperature": 0.0}, "temperature = 0.0"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Settings.of(given)


def test_windows_are_bounded_in_lines_and_in_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "AHEAD", 3)
    monkeypatch.setattr(asks, "CHARACTERS", 10)
    lines = ["a", "b", "c", "d", "x" * 20, "e", "12345", "12345", "f"]
    found = [[ask.text for ask in window] for window in windows(map(Ask, lines))]
    assert found == [["a", "b", "c"], ["d", "x" * 20], ["e", "12345", "12345"], ["f"]]
    pairs = [("a", "12345"), ("b", "12345"), ("c", "d")]
    assert list(windows(pairs, lambda pair: len(pair[0] + pair[1]))) == [pairs[:2], pairs[2:]]
    assert list(windows([])) == []


@pytest.mark.parametrize("text", ["", " ", "a b", "  a b", "a b\u2003", "\t a.  B \n"])
def test_one_sentence_keeps_the_white_space_around_it(text: str) -> None:
    pieces = one_sentence(text)
    assert "".join(piece.text + piece.gap for piece in pieces) == text
    assert [piece.text for piece in pieces if piece.text] == ([text.strip()] if text.strip() else [])


def said(text: str, links: list[tuple[int, int]] | None) -> Translation:
    return Translation(text, text.split(), -1.0, -2.0, [-2.0], links)


def test_parts_are_put_together_with_their_words_counted_on() -> None:
    parts = [Part("", [], "  "), Part("a b", [5, 6], " "), Part("c", [7], "\n")]
    found = joined(parts, [said("", []), said("x", [(1, 0)]), said("y z", [(0, 0), (0, 1)])])
    assert found.text == "  x y z\n"
    assert found.alignment == [(1, 0), (2, 1), (2, 2)]
    assert (found.tokens, found.score, found.log_probability) == (["x", "y", "z"], -3.0, -6.0)
    assert joined(parts, [said("", []), said("x", None), said("y", None)]).alignment is None


def test_without_white_space_between_a_word_goes_on() -> None:
    parts = [Part("一。", [5], ""), Part("二。", [6], ""), Part("   ", [], ""), Part("三。", [7], "")]
    found = joined(
        parts, [said("One.", [(0, 0)]), said("Two it is.", [(0, 0), (0, 2)]), said("   ", []), said("3", [(0, 0)])]
    )
    assert found.text == "One.Two it is.   3"
    assert found.alignment == [(0, 0), (0, 0), (0, 2), (1, 3)]
    assert joined([], []).text == ""
