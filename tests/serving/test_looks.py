"""What is shown of a look is what the model does, against recordings and products made by hand."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.data.vocabulary import BOS, EOS, PAD
from regard.inspection.faithfulness import faithfulness
from regard.inspection.importance import head_importance
from regard.inspection.taps import edit, record
from regard.serving import looks
from regard.serving.live import Live, Look, TooLargeError
from regard.serving.looks import pack, pooled
from tests.serving.toys import CROSS, ENCODER, translator

DECODER = "decoder.layers.0.self_attention"
EDITS = {ENCODER: {0: 0.0}, CROSS: {1: -2.0}}
SOURCE, TARGET = [5, 6, 7, 8, EOS], [9, 10, EOS]


@pytest.fixture(scope="module")
def live() -> Live:
    return Live(translator())


@pytest.fixture
def look(live: Live) -> Look:
    return live.look({"source": SOURCE, "target": TARGET}, EDITS)


def batch() -> Batch:
    rows = {"source": SOURCE, "target": [BOS, *TARGET[:-1]], "labels": TARGET}
    return Batch({name: torch.tensor([ids]) for name, ids in rows.items()}, len(TARGET))


def unpack(data: bytes) -> tuple[dict, list[np.ndarray]]:
    """As a page reads it."""
    size = int.from_bytes(data[:4], "little")
    assert (4 + size) % 8 == 0
    header, rest = json.loads(data[4 : 4 + size]), data[4 + size :]
    kind = {"u8": np.uint8, "f32": np.dtype("<f4")}[header["dtype"]]
    found = []
    for each in header["maps"]:
        assert each["offset"] % 8 == 0
        numbers = np.frombuffer(rest, kind, math.prod(each["shape"]), each["offset"]).reshape(each["shape"])
        found.append(numbers / 255 * each["scale"] if header["dtype"] == "u8" else numbers)
    return header, found


def test_weights_are_those_of_the_changed_model(live: Live, look: Look) -> None:
    names = list(live.attentions)
    with record(live.model) as seen, edit(live.model, EDITS):
        live.model(**batch().inputs)
    found = list(looks.maps(live, look, "weights", [(name, None) for name in names]))
    assert [name for name, _, _ in found] == names
    for name, heads, weights in found:
        assert heads == [0, 1, 2, 3]
        torch.testing.assert_close(weights, seen[name][0], atol=1e-5, rtol=0)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))  # as it looks, before it is scaled


def test_heads_are_those_asked_for(live: Live, look: Look) -> None:
    ((_, _, whole),) = looks.maps(live, look, "weights", [(CROSS, None)])
    ((name, heads, some),) = looks.maps(live, look, "weights", [(CROSS, [3, 1])])
    assert (name, heads) == (CROSS, [3, 1])
    assert torch.equal(some, whole[[3, 1]])
    twice = [(CROSS, [3]), (ENCODER, [0]), (CROSS, [1])]
    assert [(name, heads) for name, heads, _ in looks.maps(live, look, "weights", twice)] == twice


def test_norms_are_of_what_a_head_adds(live: Live, look: Look) -> None:
    attention = live.attentions[CROSS]
    with (
        torch.no_grad(),
        record(live.model, what=("weights", "values")) as seen,
        edit(live.model, EDITS, what="outputs"),
    ):
        live.model(**batch().inputs)
    ((_, _, norms),) = looks.maps(live, look, "norm", [(CROSS, None)])
    W_O = attention.output.weight.detach()
    for head, factor in enumerate((1.0, -2.0, 1.0, 1.0)):
        own = W_O[:, head * attention.d_v : (head + 1) * attention.d_v]
        for i, j in ((0, 0), (2, 3)):
            moved = factor * seen[CROSS][0, head, i, j] * (own @ seen.values[CROSS][0, head, j])
            assert math.isclose(norms[head, i, j], moved.norm(), rel_tol=1e-4)
    ((_, _, again),) = looks.maps(live, look, "norm", [(CROSS, None)])
    assert torch.equal(norms, again)  # what is kept is not scaled twice


def test_a_silent_head_moves_nothing(live: Live, look: Look) -> None:
    ((_, _, norms),) = looks.maps(live, look, "norm", [(ENCODER, [0, 1])])
    assert not norms[0].any()
    assert norms[1].all()


def test_a_rollout_is_of_the_encoder_and_has_one_map_for_a_layer(live: Live, look: Look) -> None:
    second = "encoder.layers.1.self_attention"
    found = {name: (heads, x) for name, heads, x in looks.maps(live, look, "rollout", [(second, None), (ENCODER, [2])])}
    assert {name: heads for name, (heads, _) in found.items()} == {second: [0], ENCODER: [0]}
    (first,), (last,) = found[ENCODER][1], found[second][1]
    weights = [w.mean(0) for _, _, w in looks.maps(live, look, "weights", [(ENCODER, None), (second, None)])]
    mixed = [(w + torch.eye(5)) / 2 for w in weights]
    torch.testing.assert_close(first, mixed[0])
    torch.testing.assert_close(last, mixed[1] @ mixed[0])
    with pytest.raises(ValueError, match="a rollout goes through the encoder"):
        looks.maps(live, look, "rollout", [(CROSS, None)])


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi", "t5", "shaw"])
@pytest.mark.parametrize("name", [ENCODER, DECODER, CROSS])
def test_products_of_a_head_add_up_to_its_scores(positions: str, name: str) -> None:
    live = Live(translator(positions=positions, kv_heads=2))
    look = live.look({"source": SOURCE, "target": TARGET}, EDITS)
    found = looks.neuron(live, look, name, 3, 1)
    products, scores, bias = (torch.tensor(found[key]) for key in ("products", "scores", "bias"))
    torch.testing.assert_close(products.sum(-1) + bias, scores, atol=1e-5, rtol=0)
    expected = torch.tensor(found["query"]) * torch.tensor(found["keys"]) * found["scale"]
    torch.testing.assert_close(products, expected)
    ((_, _, weights),) = looks.maps(live, look, "weights", [(name, [3])])
    torch.testing.assert_close(torch.tensor(found["weights"]), weights[0, 1], atol=1e-5, rtol=0)
    seen = scores[:2] if name == DECODER else scores  # position 1 sees two
    torch.testing.assert_close(seen.softmax(-1), weights[0, 1, : len(seen)], atol=1e-5, rtol=0)
    assert bool(bias.any()) == (positions in ("alibi", "t5", "shaw") and name != CROSS)


def test_a_query_that_is_not_there_is_said(live: Live, look: Look) -> None:
    for query in (-1, 3):
        with pytest.raises(ValueError, match=f"query = {query}: {CROSS} has queries 0 to 2"):
            looks.neuron(live, look, CROSS, 0, query)
    with pytest.raises(ValueError, match="has heads 0 to 3, not 4"):
        looks.neuron(live, look, CROSS, 4, 0)


def test_measures_are_of_this_sentence_and_every_head(live: Live, look: Look) -> None:
    found = looks.measures(live, look)
    assert [(h["name"], h["head"]) for h in found["heads"]] == [(n, h) for n in live.attentions for h in range(4)]
    with edit(live.model, EDITS, what="outputs"):
        importance = head_importance(live.model, [batch()], pad=PAD)
    for head in found["heads"]:
        assert math.isclose(head["importance"], importance[head["name"]][head["head"]], abs_tol=1e-5)
        assert 0 < head["confidence"] <= 1
    ((_, _, weights),) = looks.maps(live, look, "weights", [(ENCODER, None)])
    special = [h["special"] for h in found["heads"] if h["name"] == ENCODER]
    np.testing.assert_allclose(special, weights[:, :, -1].mean(-1), rtol=1e-4)
    assert found["about"] == "this sentence"
    json.dumps(found, allow_nan=False)


def test_faithfulness_is_that_of_the_changed_model(live: Live, look: Look) -> None:
    found = looks.faithfulness(live, look)
    with edit(live.model, EDITS, what="outputs"):
        expected = faithfulness(live.model, *batch().inputs.values(), TARGET, {PAD, BOS, EOS})
    assert found["gradient"] == {"tau": expected.gradient.tau, "steps": expected.gradient.steps}
    assert found["leave_one_out"] == {"tau": expected.leave_one_out.tau, "steps": expected.leave_one_out.steps}
    assert found["tokens"] == 4
    plain = looks.faithfulness(live, live.look({"source": SOURCE, "target": TARGET}, {}))
    assert plain != found


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rope", "alibi", "t5", "shaw"])
def test_gradients_can_be_had_of_a_model_that_was_used_without(positions: str) -> None:
    live = Live(translator(positions=positions))
    look = live.look({"source": SOURCE, "target": TARGET}, EDITS)
    live.score(look)
    list(live.translate("a dog"))
    assert looks.measures(live, look)["heads"]
    assert looks.faithfulness(live, look)["gradient"]["steps"]


def test_what_would_take_too_long_is_said(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooLargeError, match="the source has 130 tokens"):
        looks.faithfulness(live, live.look({"source": [5] * 129 + [EOS], "target": TARGET}, {}))
    monkeypatch.setattr(looks, "PAGE", 100)
    monkeypatch.setattr(looks, "IMPORTANT", 100)
    for ask in (looks.page, looks.measures):
        with pytest.raises(TooLargeError, match=r"hold [\d,]+ numbers"):
            ask(live, live.look({"source": SOURCE, "target": TARGET}, {}))


def test_a_page_shows_every_attention_and_what_was_changed(live: Live, look: Look) -> None:
    html = looks.page(live, look)
    assert all(f'"name":"{name}"' in html for name in live.attentions)
    assert f"{ENCODER} head 0 × 0, " in html or f"{ENCODER} head 0 × 0<" in html
    assert "http:" not in html
    assert "https:" not in html


@pytest.mark.parametrize("view", ["weights", "norm"])
def test_bytes_hold_the_numbers(live: Live, look: Look, view: str) -> None:
    wanted = [(name, [2, 0]) for name in live.attentions]
    maps = list(looks.maps(live, look, view, wanted))
    header, exact = unpack(pack(view, maps, dtype="f32"))
    assert header["view"] == view
    for (name, heads, numbers), entry, found in zip(maps, header["maps"], exact, strict=True):
        assert (entry["name"], entry["heads"], entry["shape"]) == (name, heads, list(numbers.shape))
        np.testing.assert_array_equal(found, numbers)
    header, rounded = unpack(pack(view, maps, dtype="u8"))
    for entry, found, numbers in zip(header["maps"], rounded, exact, strict=True):
        assert entry["scale"] == (1.0 if view == "weights" else pytest.approx(numbers.max()))
        np.testing.assert_allclose(found, numbers, atol=entry["scale"] / 509)


def test_a_map_of_nothing_has_a_scale() -> None:
    header, (found,) = unpack(pack("norm", [("a", [0], torch.zeros(1, 2, 2))], dtype="u8"))
    assert not found.any()
    json.dumps(header, allow_nan=False)


@pytest.mark.parametrize(("shape", "size"), [((2, 7, 5), 3), ((1, 512, 130), 64), ((1, 3, 3), 8), ((1, 9, 2), 1)])
def test_pooling_keeps_the_largest_of_each_block(shape: tuple[int, int, int], size: int) -> None:
    maps: Tensor = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    found = pooled(maps, size)
    rows, columns = (-(-n // size) for n in shape[1:])
    assert max(found.shape[1:]) <= size
    for i in range(found.shape[1]):
        for j in range(found.shape[2]):
            block = maps[:, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            assert torch.equal(found[:, i, j], block.amax((1, 2)))
