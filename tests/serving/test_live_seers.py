"""Models that see, in the explorer: what each says of a picture, what it looks at, and what heads do for it."""

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import regard
from regard.inspection.importance import moved
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.pictures import Album
from regard.serving.registry import Registry
from tests.seers import MODELS, SIDE, SIZE, directory, filming, gif, png
from tests.videos import video, written

SEEN = {"clip": "picture_encoder.layers.1.self_attention"}
TEXT, OTHERS = "a photo of a blue dog", ["it is all red .", "two men"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: directory(place / name, name) for name in MODELS}


@pytest.fixture(scope="module")
def client(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    place = tmp_path_factory.mktemp("pictures")
    (place / "one.png").write_bytes(png(7))
    (place / "broken.png").write_bytes(png(7)[:90])
    app = create_app(Registry([*paths.values()]), ServeConfig(megabytes=1, pictures=(place,)))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def sent(client: TestClient, model: str, content: bytes) -> Any:
    return client.post(f"/explore/api/pictures?model={model}", content=content, headers={"Content-Type": "image/png"})


def asked(client: TestClient, model: str, **more: Any) -> tuple[str, list[Any]]:
    """The name of a picture, and the lines of what is said of it."""
    picture = sent(client, model, png()).json()["picture"]
    texts = {"text": TEXT, "pair": "\n".join(OTHERS)} if model == "clip" else {}
    said = client.post("/explore/api/translate", json={"model": model, "picture": picture, **texts, **more})
    assert said.status_code == 200, said.text
    return picture, list(map(json.loads, said.text.splitlines()))


def look(model: str, picture: str, lines: list[Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"model": model, "picture": picture}
    if model == "captions":
        given["target"] = [line["id"] for line in lines if line["kind"] == "token"]
    if model == "clip":
        given["tokens"] = [token["id"] for token in lines[0]["tokens"]]
    return given


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_answer_is_the_predictors_with_and_without_heads(
    client: TestClient, paths: dict[str, Path], name: str, silent: bool
) -> None:
    attention = SEEN.get(name, "encoder.layers.1.self_attention")
    edits = {attention: {"0": 0.0, "1": 0.5}} if silent else {}
    _, lines = asked(client, name, edits=edits, beam=4)
    predictor: Any = regard.load(paths[name], engine="torch")
    model = getattr(predictor, "pair", predictor.model)
    with regard.edit(model, {attention: {0: 0.0, 1: 0.5}} if silent else {}, what="outputs"):
        if name == "clip":
            cosines = (predictor.see([png()]) @ predictor.embed([TEXT, *OTHERS]).T)[0].tolist()
        elif name == "captions":
            said = predictor.caption(png(), beam=4)
        else:
            own = predictor.classify(png())
    done = lines[-1]
    if name == "captions":
        assert done["text"] == said
        assert [token["text"] for token in lines[0]["tokens"]] == [f"{r},{c}" for r in range(3) for c in range(3)]
    elif name == "clip":
        (bars,) = done["answer"]["bars"]
        assert [bar["text"] for bar in bars] == [TEXT, *OTHERS]
        assert [bar["value"] for bar in bars] == pytest.approx(cosines, abs=1e-5)
    else:
        (bars,) = done["answer"]["bars"]
        assert {bar["text"]: bar["value"] for bar in bars} == pytest.approx(own.probabilities, abs=1e-5)
        assert done["text"] == own.label
        assert sum(done["shares"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("view", ["weights", "norm", "rollout"])
@pytest.mark.parametrize("name", MODELS)
def test_maps_are_those_of_the_package(client: TestClient, paths: dict[str, Path], name: str, view: str) -> None:
    picture, lines = asked(client, name, beam=4)
    predictor: Any = regard.load(paths[name], engine="torch")
    how: dict[str, Any] = {"view": view}
    texts = [TEXT] if name in ("clip", "captions") else []
    known = {each.name: each for each in predictor.attention(png(), *texts, **how)}
    given = {**look(name, picture, lines), "view": view, "dtype": "f32"}
    if name == "captions":
        given["target"] = [*predictor.tokenizer.encode(TEXT), predictor.eos]
    answer = client.post("/explore/api/maps", json={**given, "attentions": [{"name": each} for each in known]})
    assert answer.status_code == 200, answer.text
    size = int.from_bytes(answer.content[:4], "little")
    for entry in json.loads(answer.content[4 : 4 + size])["maps"]:
        each = known[entry["name"]]
        count = int(np.prod(entry["shape"]))
        found = np.frombuffer(answer.content, "<f4", count, 4 + size + entry["offset"]).reshape(entry["shape"])
        assert np.allclose(found, each.weights.numpy(), atol=1e-5), entry["name"]


def test_models_say_how_they_see_and_what_does_not_apply_is_refused(client: TestClient) -> None:
    known = {each["id"]: each for each in client.get("/explore/api/models").json()["models"]}
    assert {name: known[name]["grid"] for name in ("vit", "deit", "cct")} == {
        name: {"tokens": tokens, "rows": SIDE, "columns": SIDE, "times": 1}
        for name, tokens in (("vit", 1), ("deit", 2), ("cct", 0))
    }
    kinds = {name: sorted({a["kind"] for a in each["attentions"]}) for name, each in known.items()}
    assert kinds["vit"] == ["encoder"]
    assert kinds["clip"] == ["cross", "decoder", "encoder"]
    assert [a["name"] for a in known["clip"]["attentions"] if a.get("derived")] == ["words_to_patches"]
    assert kinds["captions"] == ["cross", "decoder", "encoder"]
    assert len(known["vit"]["samples"]) == 1  # the broken one is left out
    picture, lines = asked(client, "captions", beam=4)
    given = look("captions", picture, lines)
    refused = {
        "faithfulness": given,
        "score": look("vit", picture, lines),
        "maps": {"model": "vit", "attentions": [{"name": "encoder.layers.0.self_attention"}]},
        "translate": {"model": "clip", "picture": picture, "text": "a", "edits": {"words_to_patches": {"0": 0.0}}},
    }
    for route, body in refused.items():
        answer = client.post(f"/explore/api/{route}", json=body)
        assert (answer.status_code, len(answer.json()["error"].splitlines())) == (400, 1), answer.text
    said = client.post("/explore/api/translate", json={"model": "vit", "picture": picture, "text": "words"})
    assert said.status_code == 400
    assert "leave it out" in said.json()["error"]
    gone = client.post("/explore/api/translate", json={"model": "vit", "picture": "0" * 32})
    assert gone.status_code == 404
    assert "choose it again" in gone.json()["error"]


def test_a_picture_is_shown_as_the_model_sees_it(client: TestClient, paths: dict[str, Path]) -> None:
    picture, _ = asked(client, "vit")
    answer = client.get(f"/explore/api/pictures/{picture}?model=vit")
    seen: Any = regard.load(paths["vit"])
    own = seen.sight.pixels(png())
    assert answer.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.content))), own)
    assert own.shape == (SIZE, SIZE, 3)
    small = Image.open(io.BytesIO(client.get(f"/explore/api/pictures/{picture}").content))
    assert small.size == (30, 30)
    assert client.get("/explore/api/pictures/nothing").status_code == 404


def test_what_is_no_picture_or_too_large_is_refused_in_a_line(client: TestClient) -> None:
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    for content, status, says in (
        (b"words", 400, "no picture"),
        (png()[:200], 400, "damaged"),
        (bomb.getvalue(), 400, "pixels"),
        (b"", 400, "no picture"),
        (b"x" * 2**21, 413, "bytes"),
    ):
        answer = sent(client, "vit", content)
        assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text


def test_measures_and_a_page_of_what_is_seen(client: TestClient, paths: dict[str, Path]) -> None:
    for name in MODELS:
        picture, lines = asked(client, name, beam=4)
        given = look(name, picture, lines)
        heads = client.post("/explore/api/measures", json=given).json()["heads"]
        first = next(each for each in heads if each["name"] == SEEN.get(name, "encoder.layers.1.self_attention"))
        assert first["distance"] > 0
        assert "punctuation" not in first
        page = client.post("/explore/api/page", json=given)
        assert page.status_code == 200
        assert '"pictured":true' in page.text
    vit: Any = regard.load(paths["vit"], engine="torch")
    picture, lines = asked(client, "vit")
    heads = client.post("/explore/api/measures", json=look("vit", picture, lines)).json()["heads"]
    wanted = moved(vit.model, {"pixels": vit.read(png())[1]})
    assert [each["importance"] for each in heads] == pytest.approx(
        [float(x) for row in wanted.values() for x in row], abs=1e-5
    )


def test_samples_are_those_that_a_model_can_see(tmp_path: Path) -> None:
    pytest.importorskip("av")
    for name, content in {"a.png": png(1), "b.gif": gif(), "d.jpg": b"text"}.items():
        (tmp_path / name).write_bytes(content)
    clip = written(video("darker", np.random.default_rng(0)), tmp_path / "c.mp4").read_bytes()
    still, both, moving = (hashlib.sha256(content).hexdigest()[:32] for content in (png(1), gif(), clip))
    assert Album([tmp_path]).samples == {False: [still, both], True: [both, moving]}


def test_the_album_keeps_what_was_used_last() -> None:
    album = Album(budget=2 * len(png()))
    first, second = album.put(png(1)), album.put(png(2))
    assert album[first] == png(1)
    album.put(png(3))
    assert album[first] == png(1)
    with pytest.raises(Exception, match="choose it again"):
        album[second]


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    place = filming(tmp_path_factory.mktemp("films") / "film")
    with TestClient(create_app(Registry([place]), ServeConfig(megabytes=1)), base_url="http://localhost") as client:
        yield client, place


def test_a_video_is_its_frames_one_below_the_other(film: tuple[TestClient, Path]) -> None:
    pytest.importorskip("av")
    client, place = film
    viewer, headers = regard.load(place, engine="torch"), {"Content-Type": "video/mp4"}
    (about,) = client.get("/explore/api/models").json()["models"]
    assert about["grid"] == {"tokens": 1, "rows": 12, "columns": 4, "times": 3}
    assert [(each["name"], each["dots"]) for each in about["attentions"]] == [
        ("encoder.layers.0.time", False),
        ("encoder.layers.0.self_attention", False),
    ]
    sent = client.post("/explore/api/pictures?model=film", content=gif(), headers=headers)
    assert sent.status_code == 200, sent.text
    given = {"model": "film", "picture": sent.json()["picture"]}
    shown = Image.open(io.BytesIO(client.get(f"/explore/api/pictures/{given['picture']}?model=film").content))
    assert shown.size == (16, 48)  # three times of two frames each
    assert client.get(f"/explore/api/pictures/{given['picture']}").status_code == 200
    answers = {}
    for edits in ({}, {"encoder.layers.0.time": {"0": 0.0}}):
        said = client.post("/explore/api/translate", json={**given, "edits": edits}).text.splitlines()
        answers[bool(edits)] = json.loads(said[-1])["answer"]["bars"][0]
    known = viewer.classify(gif()).probabilities
    assert {bar["text"]: bar["value"] for bar in answers[False]} == pytest.approx(known, abs=1e-5)
    assert answers[True] != answers[False]
    for view in ("weights", "norm", "rollout"):
        maps = {each.name: each.weights.numpy() for each in viewer.attention(gif(), view=view)}
        asked = {**given, "view": view, "dtype": "f32", "attentions": [{"name": each} for each in maps]}
        content = client.post("/explore/api/maps", json=asked).content
        size = int.from_bytes(content[:4], "little")
        for entry in json.loads(content[4 : 4 + size])["maps"]:
            count = int(np.prod(entry["shape"]))
            found = np.frombuffer(content, "<f4", count, 4 + size + entry["offset"]).reshape(entry["shape"])
            np.testing.assert_allclose(found, maps[entry["name"]], atol=1e-5)
    heads = client.post("/explore/api/measures", json=given).json()["heads"]
    assert len(heads) == 4
    assert client.post("/explore/api/page", json=given).status_code == 200
    wanted = {**given, "attention": "encoder.layers.0.time", "head": 0, "query": 1}
    refused = client.post("/explore/api/neuron", json=wanted)
    assert (refused.status_code, "parts of what is seen" in refused.text) == (400, True), refused.text
    still = client.post("/explore/api/pictures?model=film", content=png(), headers=headers)
    assert (still.status_code, "is no video" in still.text) == (400, True), still.text
