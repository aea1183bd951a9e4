"""A model that is looked at: what it says is what it says unwatched, and nobody notices."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.adaptation.prune import prune
from regard.api import Translator
from regard.core.quantised import quantise
from regard.data.spelling import characters
from regard.data.vocabulary import BOS, EOS
from regard.inspection.taps import attentions, record
from regard.models.transformer import Transformer, TransformerConfig
from regard.serving.live import CHARACTERS, TOKENS, Edits, Live, TooLargeError, replica
from tests.serving.toys import CROSS, ENCODER, LINES, model, translator

EDITS = {ENCODER: {0: 0.0, 2: 1.7}, CROSS: {3: 0.0, 1: -0.5}}


@pytest.fixture(scope="module")
def served() -> Translator:
    return translator()


@pytest.fixture
def live(served: Translator) -> Live:
    return Live(served)


def lines(found: Iterable[dict[str, Any] | None]) -> tuple[list[int], list[dict[str, Any]], dict[str, Any]]:
    """The ids of the source, the tokens, and the last line."""
    first, *tokens, last = (line for line in found if line is not None)
    assert (first["kind"], {token["kind"] for token in tokens}, last["kind"]) == ("source", {"token"}, "done")
    assert [token["step"] for token in tokens] == list(range(len(tokens)))
    return [token["id"] for token in first["tokens"]], tokens, last


def pruned(whole: Transformer, edits: Edits) -> Transformer:
    """The same model with columns of W_O scaled: what scaling a head must come to."""
    changed = copy.deepcopy(whole)
    for name, factors in edits.items():
        attention = attentions(changed)[name]
        for head, factor in factors.items():
            attention.output.weight.data[:, head * attention.d_v : (head + 1) * attention.d_v] *= factor
    return changed


def test_a_replica_shares_numbers_and_no_taps() -> None:
    whole = model()
    twin = replica(whole)
    assert all(a is b for a, b in zip(whole.parameters(), twin.parameters(), strict=True))
    assert twin.output.weight is twin.target_embedding.tokens.weight
    source, target = torch.randint(3, 290, (1, 7)), torch.randint(3, 290, (1, 5))
    before = whole(source, target)
    with regard.edit(twin, {ENCODER: {0: 0.0}}), record(twin) as seen:
        changed = twin(source, target)
        assert torch.equal(whole(source, target), before)
    assert not torch.allclose(changed, before)
    assert len(seen) == 6
    assert not any(a.watched for a in attentions(twin).values())


def test_a_replica_of_a_model_that_is_looked_at_is_not_looked_at() -> None:
    whole = model()
    with record(whole) as seen:
        twin = replica(whole)
    assert not any(attention.watched for attention in attentions(twin).values())
    twin(torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]]))
    assert not seen.weights


def test_a_replica_is_of_fp32() -> None:
    whole = model()
    small = quantise(copy.deepcopy(whole))
    twin = replica(small)
    assert {p.dtype for p in twin.parameters()} == {torch.float32}
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in whole.parameters())
    near = whole.output.weight.abs().amax(1, keepdim=True) / 254 * 1.001  # half a step of eight bits
    assert ((twin.output.weight - whole.output.weight).abs() <= near).all()
    half = copy.deepcopy(whole).bfloat16()
    assert {p.dtype for p in replica(half).parameters()} == {torch.float32}
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("text", LINES)
def test_without_edits_it_says_what_the_translator_says(served: Translator, live: Live, beam: int, text: str) -> None:
    source, tokens, done = lines(live.translate(text, beam=beam))
    (expected,) = served.hypotheses(text, beam=beam, keep=False)
    assert done["text"] == served.translate(text, beam=beam, keep=False) == expected.text
    assert source == [*served.tokenizer.encode(text), EOS]
    np.testing.assert_allclose([token["log_p"] for token in tokens], expected.token_scores, atol=1e-5)
    assert math.isclose(done["log_probability"], expected.log_probability, abs_tol=1e-4)
    assert math.isclose(done["score"], expected.score, abs_tol=1e-4)
    assert done["cut"] == (tokens[-1]["id"] != EOS)


@pytest.mark.parametrize("edits", [{}, EDITS])
def test_tokens_one_by_one_are_as_likely_as_all_at_once(live: Live, edits: Edits) -> None:
    source, tokens, done = lines(live.translate(LINES[1], edits=edits, alternatives=5))
    scored = live.score(
        live.look({"source": source, "target": [token["id"] for token in tokens]}, edits), alternatives=5
    )
    assert math.isclose(scored["log_probability"], done["log_probability"], abs_tol=1e-4)
    for n, (one, other) in enumerate(zip(tokens, scored["tokens"], strict=True)):
        assert math.isclose(one["log_p"], other["log_p"], abs_tol=1e-5)
        assert (one["id"], one["text"], one["word"]) == (other["id"], other["text"], other["word"])
        ps = [each["p"] for each in one["alternatives"]]
        assert ps == sorted(ps, reverse=True)
        np.testing.assert_allclose(ps, [each["p"] for each in other["alternatives"]], atol=1e-5)
        refused = characters(live.tokenizer).refused([token["id"] for token in tokens[:n]])
        best = next(each for each in one["alternatives"] if each["id"] not in refused)
        assert best["id"] == one["id"]  # greedy, but for what makes no character
        assert math.isclose(math.log(best["p"]), one["log_p"], abs_tol=1e-6)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_scaled_head_is_a_scaled_part_of_the_output_matrix(served: Translator, live: Live, beam: int) -> None:
    changed = Translator(pruned(served.model, EDITS), served.tokenizer, served.decode, engine="torch")  # type: ignore[arg-type]
    _, tokens, done = lines(live.translate(LINES[3], edits=EDITS, beam=beam))
    (expected,) = changed.hypotheses(LINES[3], beam=beam, keep=False)
    assert done["text"] == expected.text
    np.testing.assert_allclose([token["log_p"] for token in tokens], expected.token_scores, atol=1e-4)
    assert expected.log_probability != pytest.approx(
        served.hypotheses(LINES[3], beam=beam, keep=False)[0].log_probability
    )


@pytest.mark.parametrize("beam", [1, 3])
def test_a_prefix_is_kept_and_gone_on_from(live: Live, beam: int) -> None:
    source, tokens, _ = lines(live.translate(LINES[0]))
    other = tokens[1]["alternatives"][1]["id"]
    prefix = [tokens[0]["id"], other]
    _, forced, _ = lines(live.translate(LINES[0], prefix, beam=beam))
    assert [token["id"] for token in forced[:2]] == prefix
    assert [token["forced"] for token in forced] == [True, True, *[False] * (len(forced) - 2)]
    assert math.isclose(math.exp(forced[1]["log_p"]), tokens[1]["alternatives"][1]["p"], rel_tol=1e-4)
    _, ended, done = lines(live.translate(LINES[0], [*prefix, EOS], beam=beam))
    assert [token["id"] for token in ended] == [*prefix, EOS]
    assert all(token["forced"] for token in ended)
    assert done["cut"] is False
    assert math.isclose(
        done["log_probability"],
        live.score(live.look({"source": source, "target": [*prefix, EOS]}, {}))["log_probability"],
        abs_tol=1e-4,
    )


def test_streams_take_turns_without_disturbing_each_other(live: Live) -> None:
    alone = [lines(live.translate(LINES[1], edits=edits)) for edits in ({}, EDITS)]
    assert [token["log_p"] for token in alone[0][1]] != [token["log_p"] for token in alone[1][1]]
    streams = [live.translate(LINES[1], edits=edits) for edits in ({}, EDITS)]
    found: list[list[dict[str, Any] | None]] = [[], []]
    while len(found[0]) + len(found[1]) < sum(len(tokens) + 2 for _, tokens, _ in alone):
        for stream, said in zip(streams, found, strict=True):
            said.extend(line for line in [next(stream, None)] if line)
    for (_, expected, _), said in zip(alone, found, strict=True):
        assert [token["log_p"] for token in lines(said)[1]] == [token["log_p"] for token in expected]


def test_an_abandoned_stream_leaves_the_model_as_it_was(served: Translator, live: Live) -> None:
    for beam in (1, 3):
        stream = live.translate(LINES[1], edits=EDITS, beam=beam)
        for _ in range(3):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert not any(a.watched for a in live.attentions.values())
    assert not any(a.watched for a in attentions(served.model).values())
    assert lines(live.translate(LINES[0]))[2]["text"] == served.translate(LINES[0], beam=1)


def test_a_wider_beam_offers_places_to_stop(live: Live) -> None:
    found = list(live.translate(LINES[1], beam=3))
    first = next(i for i, line in enumerate(found) if line is not None and line["kind"] == "token")
    assert found[1:first] == [None] * (first - 1)
    assert first > 1


def test_an_output_that_does_not_end_is_cut() -> None:
    endless = translator()
    endless.model.output.weight.data[EOS] = 0.0  # type: ignore[union-attr]
    endless.model.output.weight.data[7] = endless.model.output.weight.data.mean(0)  # type: ignore[union-attr]
    found = [lines(Live(endless).translate(text)) for text in LINES]
    source, tokens, done = max(found, key=lambda each: len(each[1]) - len(each[0]))
    assert len(tokens) == len(source) + 6
    assert done["cut"] is True
    assert all(not token["special"] for token in tokens if token["id"] != BOS)


def test_one_pass_serves_every_attention(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    run = live.run
    monkeypatch.setattr(live, "run", lambda look: passes.append(look) or run(look))  # type: ignore[func-returns-value]
    look = live.look({"source": [5, 6, 7, EOS], "target": [8, 9, EOS]}, EDITS)
    for name in live.attentions:
        list(live.recorded(look, [name]))
    assert len(passes) == 1
    list(live.recorded(live.look({"source": [5, 6, 7, EOS], "target": [8, 9, EOS]}, {}), live.attentions))
    assert len(passes) == 2


def test_what_is_kept_is_bounded_and_what_is_shown_does_not_hang_on_it(served: Translator) -> None:
    roomy, narrow = Live(served), Live(served, budget=1500)
    looks = [roomy.look({"source": [5, 6, 7, 8, EOS], "target": [8, id, EOS]}, EDITS) for id in (9, 10)]
    for look in (*looks, *looks):
        for (name, a), (_, b) in zip(
            roomy.recorded(look, roomy.attentions), narrow.recorded(look, narrow.attentions), strict=True
        ):
            # Unwatched, an attention goes another way, which rounds otherwise.
            torch.testing.assert_close(a.weights, b.weights, atol=1e-5, rtol=0, msg=name)
            torch.testing.assert_close(a.values, b.values, atol=1e-5, rtol=0, msg=name)
            held = sum(4 * (each.weights.numel() + each.values.numel()) for each in narrow._held.values())
            assert held <= 1500 or len(narrow._held) == 1
    assert len(roomy._held) == 2 * len(roomy.attentions)


def test_the_size_of_a_recording_is_known_before(live: Live) -> None:
    look = live.look({"source": [5, 6, 7, EOS], "target": [8, 9, 10, 11, 12, EOS]}, {})
    for name, found in live.recorded(look, live.attentions):
        assert live.size(look, name) == found.weights.numel() + found.values.numel()


@pytest.mark.parametrize(
    ("source", "target", "edits", "message"),
    [
        ([], [EOS], {}, "source is empty"),
        ([EOS], [], {}, "target is empty"),
        ([290, EOS], [EOS], {}, r"source\[0\] = 290 is no token: they are 0 to 289"),
        ([EOS], [5, -1], {}, r"target\[1\] = -1"),
        ([5, EOS, 5], [EOS], {}, r"source\[1\] is the end token"),
        ([EOS], [EOS], {"encoder": {0: 0.0}}, "no attention is named 'encoder'"),
        ([EOS], [EOS], {ENCODER: {4: 0.0}}, "has heads 0 to 3, not 4"),
        ([EOS], [EOS], {ENCODER: {-1: 0.0}}, "has heads 0 to 3, not -1"),
        ([EOS], [EOS], {ENCODER: {0: math.nan}}, "head 0 times nan"),
        ([EOS], [EOS], {ENCODER: {0: math.inf}}, "a factor lies within ±100"),
        ([EOS], [EOS], {ENCODER: {0: 1e9}}, "a factor lies within ±100"),
    ],
)
def test_what_cannot_be_looked_at_is_said(
    live: Live, source: list[int], target: list[int], edits: Edits, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        live.look({"source": source, "target": target}, edits)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"text": " \n"}, "there is no text"),
        ({"text": "a", "beam": 0}, "beam = 0: it lies between 1 and 16"),
        ({"text": "a", "beam": 99}, "beam = 99"),
        ({"text": "a", "alternatives": -1}, "alternatives = -1"),
        ({"text": "a", "prefix": [5, EOS, 5]}, r"prefix\[1\] is the end token"),
        ({"text": "a", "prefix": [9999]}, "9999 is no token"),
        ({"text": "\ud800"}, "not Unicode"),
    ],
)
def test_what_cannot_be_translated_is_said_before_anything_is(live: Live, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        live.translate(**asked)


def test_what_is_too_large_is_told_apart(live: Live) -> None:
    for asked in ({"text": "a" * (CHARACTERS + 1)}, {"text": "a " * TOKENS}, {"text": "a", "prefix": [5] * 60}):
        with pytest.raises(TooLargeError, match=r"[\d,]+ (characters|tokens)"):
            live.translate(**asked)  # type: ignore[arg-type]
    with pytest.raises(TooLargeError, match=f"513 tokens: at most {TOKENS}"):
        live.look({"source": [5] * 512 + [EOS], "target": [EOS]}, {})
    learned = Live(translator(positions="learned", max_length=20))
    with pytest.raises(TooLargeError, match="21 tokens: at most 20"):
        learned.look({"source": [5] * 20 + [EOS], "target": [EOS]}, {})
    assert lines(learned.translate("a dog", [5] * 8))[1]


def test_a_factor_of_one_changes_nothing(live: Live) -> None:
    assert live.look({"source": [EOS], "target": [EOS]}, {ENCODER: {0: 1.0, 1: 0.5}}).changes.heads == (
        (ENCODER, 1, 0.5),
    )


def test_of_several_sentences_one_is_looked_at(served: Translator, live: Live) -> None:
    text = f"{LINES[0]}. Ça va? A {LINES[1]}!"
    for k, sentence in enumerate([f"{LINES[0]}.", "Ça va?", f"A {LINES[1]}!"]):
        first, *_, done = live.translate(text, sentence=k)
        assert (first["sentence"], first["sentences"][k]) == (k, sentence)
        assert first["unknown"] == served.hypotheses(sentence)[0].unknown
        assert done["text"] == served.hypotheses(sentence, beam=1)[0].text
    assert next(live.translate(text, sentence=7))["sentence"] == 2  # an old address


def test_a_replica_of_a_pruned_model_in_int8_has_the_heads_that_are_left() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(20, encoder_layers=1, decoder_layers=1)).eval()
    small = quantise(
        prune(model, {"encoder.layers.0.self_attention": [1], "decoder.layers.0.self_attention": range(4)})
    )
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]])
    torch.testing.assert_close(replica(small)(source, target), small(source, target), atol=0.1, rtol=0.1)
