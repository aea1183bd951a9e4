"""A language model that sees, in the explorer: what it answers, what its words look at, and what heads do for that."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import regard
from regard.inspection.axes import grids
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.eyes import eyes, png

WORDS, SIGHT = "decoder.layers.0.self_attention", "sight.encoder.layers.0.self_attention"
QUESTION = "Who is it?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eyes(tmp_path_factory.mktemp("models") / "look", "look")


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Registry([model]), ServeConfig(megabytes=1)), base_url="http://localhost") as client:
        yield client


def asked(client: TestClient, **more: Any) -> tuple[dict[str, Any], Any]:
    """What is looked at, and the last line of the answer."""
    sent = client.post("/explore/api/pictures", content=png(), headers={"Content-Type": "image/png"}).json()
    said = client.post("/explore/api/translate", json={**sent, "text": QUESTION, **more})
    assert said.status_code == 200, said.text
    first, *lines, done = map(json.loads, said.text.splitlines())
    source = [token["id"] for token in first["tokens"]]
    return {**sent, "source": source, "target": [line["id"] for line in lines]}, done


@pytest.mark.parametrize("beam", [1, 3])
def test_an_answer_is_the_lookers_with_and_without_heads(client: TestClient, model: Path, beam: int) -> None:
    looker, said = regard.load(model, bitwise=True), set[str]()
    for name in (None, WORDS, SIGHT):
        edits: Any = {} if name is None else {name: {0: 0.0}}
        with regard.edit(looker.model, edits, what="outputs"):
            own = looker.caption(png(), QUESTION, beam=beam)
        _, done = asked(client, beam=beam, edits=edits)
        assert done["text"] == own
        said.add(own)
    assert len(said) > 1
    _, done = asked(client, text="")
    assert done["text"] == looker.caption(png(), looker.question)


@pytest.mark.parametrize("view", ["weights", "norm"])
def test_rows_are_words_of_the_answer_and_patches_stand_among_the_columns(
    client: TestClient, model: Path, view: str
) -> None:
    given, done = asked(client)
    looker: Any = regard.load(model)
    known = {each.name: each for each in looker.attention(png(), done["text"], question=QUESTION, view=view)}
    given["target"] = [*looker.tokenizer.encode(done["text"]), looker.closing]  # some bytes are written in two ways
    wanted = {**given, "view": view, "dtype": "f32", "attentions": [{"name": each} for each in known]}
    content = client.post("/explore/api/maps", json=wanted).content
    size = int.from_bytes(content[:4], "little")
    for entry in json.loads(content[4 : 4 + size])["maps"]:
        found = np.frombuffer(content, "<f4", int(np.prod(entry["shape"])), 4 + size + entry["offset"])
        own = known[entry["name"]].weights
        np.testing.assert_allclose(found.reshape(entry["shape"]), own, rtol=1e-4, atol=1e-5)
    words, patches = known[WORDS], grids(looker.model)["pixels"]
    at = given["source"].index(looker.patches[0])
    assert words.keys[at : at + 16] == patches.texts()
    assert len(words.queries) == len(looker.tokenizer.encode(done["text"])) + 1  # and the end
    torch.testing.assert_close(words.over(1)[0].flatten(), words.weights[0, 1, at : at + 16])
    assert known[SIGHT].weights.shape[1:] == (16, 16)


def test_measures_scores_products_and_a_page(client: TestClient) -> None:
    given, done = asked(client)
    heads = {
        (each["name"], each["head"]): each for each in client.post("/explore/api/measures", json=given).json()["heads"]
    }
    assert {name for name, _ in heads} == {WORDS, SIGHT}
    assert "distance" in heads[SIGHT, 0]
    assert "distance" not in heads[WORDS, 0]
    assert all(each["importance"] > 0 for each in heads.values())
    score = client.post("/explore/api/score", json=given).json()
    assert score["log_probability"] == pytest.approx(done["log_probability"], abs=1e-4)
    one = {**given, "attention": WORDS, "head": 0, "query": 2}
    weights = client.post("/explore/api/neuron", json=one).json()["weights"]
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert weights[len(given["source"]) + 2 :] == [0] * (len(weights) - len(given["source"]) - 2)  # it looks back
    page = client.post("/explore/api/page", json=given)
    assert f'"before":{given["source"].index(-1)}' in page.text


def test_what_cannot_be_looked_at_is_refused_in_a_line(client: TestClient) -> None:
    given, _ = asked(client)
    for wrong in (
        {"source": given["source"][1:20]},
        {"source": [*given["source"][:-1], 10_000]},
        {"source": None},
        {"picture": None},
    ):
        answer = client.post("/explore/api/score", json={**given, **wrong})
        assert (answer.status_code, len(answer.json()["error"].splitlines())) == (400, 1), answer.text
    said = client.post("/explore/api/translate", json={"picture": given["picture"], "pair": "x"})
    assert said.status_code == 400
