"""Models that read, in the explorer: what each says, in its own form, what it looks at, and what heads have to do with
it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import regard
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.inspection.importance import moved
from regard.models import storage
from regard.models.family import build, configure
from regard.serving import looks
from regard.serving.app import create_app
from regard.serving.live import Live, replica
from regard.serving.readers import LiveReader
from regard.serving.registry import Registry
from regard.tasks.reader import Given
from tests.readers import LONGEST, TASKS, TEXTS, directory

FIRST, LAST = (f"encoder.layers.{i}.self_attention" for i in (0, 1))
ASKED = {
    "classify": ("a good film", "the film is long"),
    "embed": ("a good film", "fine\n\ntwo men sit"),
    "mask": ("a [MASK] film, a <mask>", ""),
    "tag": ("two  men sit on a bench", ""),  # two spaces: offsets are those of what was typed
    "answer": ("film long", "the film is awful, and long"),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: directory(place / name, name) for name in TASKS}


@pytest.fixture(scope="module")
def client(paths: dict[str, Path]) -> Iterator[TestClient]:
    app = create_app(Registry([*paths.values()]))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def told(client: TestClient, model: str, text: str, pair: str = "", **more: Any) -> tuple[Any, Any]:
    """The two lines of an answer."""
    said = client.post("/explore/api/translate", json={"model": model, "text": text, "pair": pair, **more})
    assert said.status_code == 200, said.text
    source, done = map(json.loads, said.text.splitlines())
    assert (source["kind"], done["kind"]) == ("source", "done"), done
    return source, done


def expected(reader: Any, name: str) -> dict[str, Any]:
    """What the predictor answers by its own methods, as far as a page has it."""
    text, pair = ASKED[name]
    if name == "classify":
        own = reader.classify(text, pair)
        top = [{"text": t, "value": p, "label": "", "chosen": t == own.label} for t, p in own.probabilities.items()]
        return {"said": own.label, "bars": [top[:50]]}
    if name == "embed":
        lines = ["fine", "two men sit"]
        cosines = reader.similarity([text], lines)[0].tolist()
        bars = [[{"text": t, "value": x, "label": "", "chosen": False} for t, x in zip(lines, cosines, strict=True)]]
        return {"bars": bars, "cosines": True, "vector": reader.embed(text).tolist()}
    if name == "mask":
        gaps = reader.fill(text, top=3)
        return {"said": " · ".join(gap.tokens[0] for gap in gaps), "filled": [gap.probabilities for gap in gaps]}
    if name == "tag":
        spans = [vars(each) for each in reader.tag(text).spans]
        return {"text": text, "spans": spans, "said": " · ".join(f"{s['text']} {s['label']}" for s in spans)}
    reply = reader.answer(text, pair, top=3)
    return {"said": reply.text, "text": pair, "spans": [vars(reply.best[0])], "best": [s.text for s in reply.best]}


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_an_answer_is_the_predictors_with_and_without_heads(
    client: TestClient, paths: dict[str, Path], name: str, silent: bool
) -> None:
    edits = {FIRST: {"0": 0.0}, LAST: {"1": 0.0}} if silent else {}
    _, done = told(client, name, *ASKED[name], edits=edits)
    answer = done["answer"]
    reader = regard.load(paths[name], engine="torch")
    heads = {FIRST: {0: 0.0}, LAST: {1: 0.0}} if silent else {}
    with regard.edit(reader.model, heads):
        wanted = expected(reader, name)
    if name == "mask":
        answer["filled"] = [[bar["value"] for bar in chart[:3]] for chart in answer["bars"]]
    if name == "answer":
        answer["best"] = [bar["text"] for bar in answer["bars"][0] if bar["text"]][:3]
    assert {key: _near(answer[key]) for key in wanted} == {key: _near(value) for key, value in wanted.items()}
    assert (done["text"], answer["note"]) == (answer["said"], "")
    if silent:
        assert told(client, name, *ASKED[name])[1]["answer"] != answer  # and only while it was asked for


def _near(value: Any) -> Any:
    """The same with five digits."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _near(each) for key, each in value.items()}
    return [_near(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", TASKS)
def test_maps_are_those_of_the_package(client: TestClient, paths: dict[str, Path], name: str) -> None:
    reader: Any = regard.load(paths[name], engine="torch")
    text, pair = ASKED[name]
    source, _ = told(client, name, text, pair)
    both = bool(pair) and reader.pairs
    (wanted,) = reader.attention(text, pair if both else None, names=LAST)
    tokens = source["tokens"]
    assert [reader.tokenizer.pieces([token["id"]])[0] for token in tokens] == wanted.queries == wanted.keys
    assert (max(token["segment"] for token in tokens), wanted.query_role) == (int(both), "read")
    live = LiveReader(reader)
    read = {"tokens": [token["id"] for token in tokens], "segments": [token["segment"] for token in tokens]}
    look = live.look(read, {})
    ((_, _, weights),) = looks.maps(live, look, "weights", [(LAST, None)])
    assert weights.allclose(wanted.weights, atol=1e-6)
    assert not weights.triu(1).eq(0).all()  # it looks ahead
    if both:  # which of two texts a token is in counts
        ((_, _, other),) = looks.maps(live, live.look({"tokens": read["tokens"]}, {}), "weights", [(LAST, None)])
        assert not other.allclose(weights, atol=1e-4)
    ((_, _, rolled),) = looks.maps(live, look, "rollout", [(LAST, None)])
    assert rolled.sum(-1).allclose(torch.ones(()), atol=1e-5)
    assert looks.neuron(live, look, LAST, 0, 1)["weights"] == pytest.approx(weights[0, 1].tolist(), abs=1e-5)
    assert "film" in looks.page(live, look) or "men" in looks.page(live, look)
    found = looks.measures(live, look)["heads"]
    apart = moved(live.model, live.batch(look).inputs)
    assert [each["importance"] for each in found] == pytest.approx([float(x) for row in apart.values() for x in row])
    assert {"special", "next", "previous", "evenness"} <= found[0].keys()


def test_models_say_what_they_read_and_bring_examples(client: TestClient) -> None:
    models = client.get("/explore/api/models").json()["models"]
    assert {each["id"]: (each["task"], each["second"]) for each in models} == {
        "classify": ("classify", "pair"),
        "embed": ("embed", "lines"),
        "mask": ("mask", ""),
        "tag": ("tag", ""),
        "answer": ("answer", "context"),
    }
    for about in models:
        assert (about["reads"], about["inputs"], about["layers"]) == (True, ["tokens"], {"encoder": 2})
        assert {each["role"] for each in about["attentions"]} == {"read"}
        for example in about["examples"][:1]:
            told(client, about["id"], *([example] if isinstance(example, str) else example))
    assert "<mask>" in models[2]["examples"][0]  # as this model has it


@pytest.mark.parametrize(
    ("model", "route", "asked", "message"),
    [
        ("tag", "translate", {"text": "a", "pair": "b"}, "pair: this model reads one text"),
        ("tag", "translate", {"text": " "}, "there is no text: type a sentence"),
        ("tag", "translate", {"text": "a", "prefix": [5]}, "prefix: this model reads"),
        ("answer", "translate", {"text": "a", "pair": "x" * 2001}, "the context has 2,001 characters"),
        ("tag", "score", {"tokens": [1, 5]}, "a score is of tokens that are written"),
        ("tag", "faithfulness", {"tokens": [1, 5]}, "faithfulness is measured by leaving tokens of a source out"),
        ("tag", "measures", {}, "tokens: they are missing"),
        ("tag", "measures", {"source": [1], "target": [2]}, "this model reads tokens alone"),
        ("tag", "measures", {"tokens": [1] * (LONGEST + 1)}, f"at most {LONGEST} are looked at"),
        ("tag", "measures", {"tokens": [1, 99]}, "tokens[1] = 99 is no token"),
        ("answer", "measures", {"tokens": [1, 5], "segments": [0]}, "segments: of each of the 2 tokens"),
        ("answer", "measures", {"tokens": [1, 5], "segments": [0, 2]}, "whether it is in text 0 or 1"),
    ],
)
def test_what_does_not_apply_says_so(
    client: TestClient, model: str, route: str, asked: dict[str, Any], message: str
) -> None:
    said = client.post(f"/explore/api/{route}", json={"model": model, **asked})
    assert said.status_code in (400, 413)
    assert message in said.json()["error"]
    assert "\n" not in said.json()["error"]


def test_without_an_answer_there_is_something_to_look_at(client: TestClient) -> None:
    source, done = told(client, "mask", "a good film")
    assert (len(source["tokens"]), done["text"]) == (5, "")
    assert done["answer"]["note"] == "'a good film' has no gap: write <mask> where something is to be filled in"
    source, done = told(client, "answer", "who sits", " \n")
    assert done["answer"]["note"] == "'who sits' has no context to find an answer in: give one"
    assert {token["segment"] for token in source["tokens"]} == {0}
    mask = next(token for token in told(client, "mask", "a <mask> film")[0]["tokens"] if token["text"] == "<mask>")
    assert (mask["special"], mask["space"], mask["word"]) == (False, True, 1)  # it is what one looks for
    assert told(client, "mask", "a [MASK] film ☕")[0]["unknown"] == ["☕"]


def test_a_long_text_is_answered_whole_and_looked_at_in_its_first_window(
    client: TestClient, paths: dict[str, Path]
) -> None:
    text = " ".join(TEXTS * 3)
    source, done = told(client, "classify", text)
    assert source["windows"] > 1
    assert len(source["tokens"]) == LONGEST
    own = regard.load(paths["classify"]).classify(text)
    assert done["answer"]["bars"][0][0]["value"] == pytest.approx(own.probability, abs=1e-5)


def test_labels_that_apply_together_and_numbers(tmp_path: Path) -> None:
    several: Any = regard.load(directory(tmp_path / "several", "classify", kind="several"))
    told = several.classify("a good film", threshold=0.4)
    several.use = type(several.use)(threshold=0.4)
    drawn = several.pictured(Given("a good film"))
    assert drawn.said == told.label.replace("|", " · ")
    assert [bar.chosen for bar in drawn.bars[0]] == [bar.value >= 0.4 for bar in drawn.bars[0]]
    number: Any = regard.load(directory(tmp_path / "number", "classify", kind="number", labels=()))
    drawn = number.pictured(Given("a good film"))
    assert drawn.numbers == {"value": number.classify("a good film").value}
    assert (drawn.said, drawn.bars) == (f"{drawn.numbers['value']:.3f}", ())


def test_a_question_may_have_no_answer(tmp_path: Path) -> None:
    answerer: Any = regard.load(directory(tmp_path / "answer", "answer", unanswerable=True))
    answerer.use = type(answerer.use)(null=-1e6)  # none is always said
    drawn = answerer.pictured(Given("who sits", "two men sit"))
    assert (drawn.said, drawn.spans) == ("", [])
    (none,) = (bar for bar in drawn.bars[0] if not bar.text)
    assert (none.chosen, sum(bar.chosen for bar in drawn.bars[0])) == (True, 1)
    assert none.value == pytest.approx(answerer.answer("who sits", "two men sit").none)
    assert [bar.value for bar in drawn.bars[0]] == sorted((bar.value for bar in drawn.bars[0]), reverse=True)


def test_a_decoder_that_classifies_looks_back_and_is_named_by_what_it_reads(tmp_path: Path) -> None:
    tokens = Tokenizer.learn(TokensConfig("wordpiece", 80), TEXTS * 3)
    config = configure("gpt-tiny", ["layers=1", "d_model=16", "heads=2", "max_length=24"], vocabulary=len(tokens))
    task = {"name": "classify", "labels": ["no", "yes"], "longest": 24}
    storage.save(build(config, HeadConfig("classes", 2, pool="last")), tmp_path, storage.Purpose(task, {}))
    tokens.save(tmp_path / "tokenizer.json")
    reader: Any = regard.load(tmp_path, engine="torch")
    (own,) = reader.attention("a good film")
    assert (own.queries, own.keys, own.query_role) == (["<s>", "a", "good", "film", "</s>"], own.queries, "read")
    assert not own.weights.triu(1).any()
    live = LiveReader(reader)
    source, done = (line for line in live.translate("a good film") if line)
    look = live.look({"tokens": [token["id"] for token in source["tokens"]]}, {})
    assert {bar["text"] for bar in done["answer"]["bars"][0]} == {"no", "yes"}
    assert (live.about()["layers"], live.about()["attentions"][0]["kind"]) == ({"decoder": 1}, "decoder")
    assert len(looks.measures(live, look)["heads"]) == 2
    assert "film" in looks.page(live, look)


@pytest.mark.parametrize("name", ["tag", "embed"])
def test_a_model_in_eight_bits_is_shown_with_its_own_head(paths: dict[str, Path], name: str) -> None:
    small: Any = regard.load(paths[name], precision="int8")
    plain = replica(small.model)
    assert plain.head == small.model.head
    given = {"tokens": torch.tensor([[1, 5, 6, 2]])}
    with torch.inference_mode():
        np.testing.assert_allclose(plain(**given), regard.load(paths[name]).model(**given), atol=0.1)


def test_a_layer_that_is_gone_through_again_is_told(tmp_path: Path) -> None:
    reader: Any = regard.load(directory(tmp_path / "one", "classify"))
    assert LiveReader(reader).about()["shared"] is False
    object.__setattr__(reader.model.config, "shared", True)
    assert LiveReader(reader).about()["shared"] is True
    assert isinstance(LiveReader(reader), Live)
