"""What is heard keeps the rules of a transcript, comes to an end, and is written down in four forms."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.api import load
from regard.decoding.spoken import Rules
from regard.inspection.timing import beginnings
from regard.tasks.transcribe import Transcriber
from regard.tasks.transcripts import Segment, Transcript, Word
from regard.tasks.wording import in_time, pieces
from tests.speech import WORDS, directory, noise, tokenizer


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    found: Transcriber = load(directory(tmp_path_factory.mktemp("whisper") / "toy"))
    return found


ANY: dict[str, Any] = {"repetitive": None, "improbable": None, "silent": None}  # whatever it says is right


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_times_come_in_pairs_and_never_go_back(seed: int) -> None:
    rules = Rules((), end=10, zero=20, silence=12, unspoken=(3, *range(11, 20)), blank=(4,), times=True, latest=5)
    draw, said = np.random.default_rng(seed), list[int]()
    while len(said) < 40:
        x = draw.standard_normal(60).astype(np.float32) * 3
        rules.keep(x, said)
        token = int(x.argmax())
        assert np.isfinite(x[token])
        if token == rules.end:
            break
        said.append(token)
    assert 20 <= said[0] <= 25
    assert not {3, *range(11, 20)} & {*said}
    times = [token for token in said if token >= 20]
    assert times == sorted(times)
    timed = [token >= 20 for token in said]
    runs = "".join("t" if each else "w" for each in timed)
    assert "ttt" not in runs
    # A time that begins something stands after another that ends something, or at the very beginning.
    inner = runs.lstrip("t").rstrip("t")
    assert all(len(run) == 2 for run in inner.replace("w", " ").split())


def test_a_window_moves_on_and_ends(transcriber: Transcriber) -> None:
    for seed in range(3):
        said = transcriber.transcribe(noise(7, seed), language="en", step=0, **ANY)
        assert said.duration == 7.0
        for segment in said.segments:
            assert 0 <= segment.start <= segment.end <= 7.0


def test_silence_says_nothing(transcriber: Transcriber) -> None:
    said = transcriber.transcribe(np.zeros(16_000 * 300, np.float32), language="en")
    assert said.segments == ()
    assert said.text == ""


def test_sound_after_silence_is_heard_where_it_is(transcriber: Transcriber) -> None:
    sound = np.concatenate([np.zeros(16_000 * 10, np.float32), noise(1.9)])
    said = transcriber.transcribe(sound, language="en", step=0, **ANY)
    assert said.segments
    assert all(segment.start > 9 for segment in said.segments)


def test_the_same_seed_says_the_same(transcriber: Transcriber) -> None:
    how = {"language": "en", "temperature": 0.8, "step": 0, "best": 2, **ANY}
    one, same, other = (transcriber.transcribe(noise(4), seed=seed, **how) for seed in (1, 1, 2))
    assert one == same != other


def test_what_looks_wrong_is_drawn_anew(transcriber: Transcriber) -> None:
    memory = transcriber.encoded(torch.randn(200, 16, generator=torch.Generator().manual_seed(1)))
    begin = [transcriber.signs.languages["en"], transcriber.signs.tasks["transcribe"]]

    def found(**given: Any) -> Any:
        return transcriber.said(memory, [], begin, transcriber.settings(best=1, **ANY | given), 0)

    loud = transcriber.model.output.weight
    kept = loud.data.clone()
    try:
        with torch.no_grad():
            loud /= 4  # it is less sure of itself
        plain = found()
        assert plain.temperature == 0.0 == found(repetitive=plain.compression + 1).temperature
        assert found(repetitive=plain.compression - 1e-6).temperature > 0.0
        assert found(improbable=0.0).log_probability >= plain.log_probability - 1e-6  # of all that are wrong, the best
        assert found(improbable=0.0, silent=plain.silence / 2) == plain  # in silence nothing is expected
    finally:
        with torch.no_grad():
            loud.copy_(kept)


def test_context_and_a_prompt_change_what_is_said(transcriber: Transcriber) -> None:
    how = {"language": "en", "step": 0, **ANY}
    plain = transcriber.transcribe(noise(6), **how)
    assert transcriber.transcribe(noise(6), prompt="the and the", **how) != plain
    assert transcriber.transcribe(noise(6), context=True, **how).segments[0] == plain.segments[0]


def test_a_beam_finds_what_is_at_least_as_likely(transcriber: Transcriber) -> None:
    memory = transcriber.encoded(torch.randn(200, 16, generator=torch.Generator().manual_seed(1)))
    begin = [transcriber.signs.languages["en"], transcriber.signs.tasks["transcribe"]]
    found = [transcriber.said(memory, [], begin, transcriber.settings(beam=beam, step=0, **ANY), 0) for beam in (1, 5)]
    assert found[1].log_probability >= found[0].log_probability - 1e-4


def test_the_language_is_found_once(transcriber: Transcriber) -> None:
    memory = transcriber.encoded(torch.randn(200, 16, generator=torch.Generator().manual_seed(1)))
    found = transcriber.languages(memory)
    assert len(found) == 99
    assert abs(sum(found.values()) - 1) < 1e-5
    assert transcriber.transcribe(noise(1), step=0, **ANY).language in found


def test_words_have_times_within_their_segments(transcriber: Transcriber) -> None:
    said = transcriber.transcribe(noise(6), language="en", words=True, step=0, **ANY)
    plain = transcriber.transcribe(noise(6), language="en", step=0, **ANY)
    assert [segment.tokens for segment in said.segments] == [segment.tokens for segment in plain.segments]
    for segment in said.segments:
        assert segment.words is not None
        assert "".join(word.word for word in segment.words) == segment.text
        for one, other in zip(segment.words, segment.words[1:], strict=False):
            assert one.start <= one.end <= other.end + 1e-9
            assert 0 <= one.probability <= 1


def slow(cost: Any) -> list[int]:
    """The same as `beginnings`, cell by cell."""
    T, S = cost.shape
    total, back = np.full((T, S), np.inf), {}
    for i in range(T):
        for j in range(S):
            ways = {(a, b): total[a, b] for a, b in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if a >= 0 and b >= 0}
            least = min(ways, key=ways.__getitem__) if ways else None
            total[i, j] = cost[i, j] + (total[least] if least else 0.0)
            back[i, j] = least
    at: Any = (T - 1, S - 1)
    first = [0] * T
    while at:
        first[at[0]] = at[1]
        at = back[at]
    return first


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_cheapest_way_is_the_cheapest(T: int, S: int, seed: int) -> None:
    cost = np.random.default_rng(seed).standard_normal((T, S))
    assert beginnings(cost).tolist() == slow(cost)


def test_words_are_whole_characters_with_their_signs() -> None:
    tokens = tokenizer()
    ids = tokens.encode('He said "no, ♪ two".')
    assert "".join(text for text, _ in pieces(tokens, ids)) == 'He said "no, ♪ two".'
    words = in_time(tokens, ids, np.arange(len(ids) + 1) / 10, [1.0] * len(ids))
    assert [word.word for _, word in words] == ["He", " said", ' "no,', " ♪", ' two".']
    assert words[0][1].end == pytest.approx(0.2) == words[1][1].start


def test_what_is_never_said_is_never_written(transcriber: Transcriber) -> None:
    unspoken = {*transcriber.signs.unspoken}
    assert {ord("#"), ord("["), ord("~")} <= {id for id in unspoken if id < 256}
    assert not {ord("a"), ord("-"), ord("'"), ord(".")} & unspoken
    assert {*range(len(WORDS) + 1, transcriber.signs.zero)} <= unspoken
    assert not {transcriber.signs.end, transcriber.signs.zero} & unspoken


BYE = Segment(3661.5, 3662.0, " Bye.", words=(Word(" Bye.", 3661.5, 3662.0, 0.5),))
SAID = Transcript("en", 3700.0, (Segment(0.0, 1.5, " Hello --> you."), BYE))


def test_forms() -> None:
    assert SAID.text == "Hello --> you. Bye."
    assert SAID.written("txt") == "Hello --> you.\nBye.\n"
    assert SAID.written("srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello -> you.\n\n2\n01:01:01,500 --> 01:01:02,000\nBye.\n\n"
    )
    assert SAID.written("vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello -> you.\n\n01:01:01.500")
    whole = json.loads(SAID.written("json"))
    assert whole["text"] == SAID.text
    assert [segment.get("words", "none") for segment in whole["segments"]] == [
        "none",
        [{"word": " Bye.", "start": 3661.5, "end": 3662.0, "probability": 0.5}],
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"language": "english"}, "there are en"),
        ({"beams": 3}, "did you mean 'beam'"),
        ({"temperature": 2.0}, "temperature"),
    ],
)
def test_a_setting_that_is_none_is_refused(given: dict[str, Any], said: str, transcriber: Transcriber) -> None:
    with pytest.raises(ValueError, match=said):
        transcriber.transcribe(noise(1), **given)


def test_a_model_of_text_hears_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot transcribe: it is a model to translate"):
        load(task="transcribe")
    with pytest.raises(ValueError, match="cannot translate: it is a model to transcribe"):
        load(directory(tmp_path / "toy"), task="translate")
