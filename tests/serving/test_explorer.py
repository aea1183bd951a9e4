"""The explorer's routes: what a page asks and is told, and that no question brings the server down."""

import asyncio
import contextlib
import json
import shutil
import socket
import webbrowser
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.vocabulary import EOS
from regard.serving import explorer, looks, run
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.live import Live
from regard.serving.registry import Registry
from tests.serving.toys import CROSS, ENCODER, LINES, denoiser, directory

WEB = Path(explorer.__file__).parent / "web"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    return [directory(place / "one", 3), directory(place / "two", 4)]


def application(paths: list[Path], **changes: Any) -> FastAPI:
    return create_app(Registry(paths, engine="torch"), ServeConfig(host_names=("testserver",), **changes))


@pytest.fixture(scope="module")
def client(models: list[Path]) -> Iterator[TestClient]:
    with TestClient(application(models)) as client:
        yield client


def ask(client: TestClient, route: str, **asked: Any) -> Any:
    answer = client.post(f"/explore/api/{route}", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def translate(client: TestClient, **asked: Any) -> list[dict[str, Any]]:
    answer = client.post("/explore/api/translate", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def pair(client: TestClient, text: str = LINES[0], **asked: Any) -> dict[str, list[int]]:
    """The ids of a text and of its translation."""
    first, *tokens, _ = translate(client, text=text, **asked)
    return {"source": [t["id"] for t in first["tokens"]], "target": [t["id"] for t in tokens]}


def test_models_are_described(client: TestClient, models: list[Path]) -> None:
    answer = client.get("/explore/api/models").json()
    assert answer["default"] == "one"
    first, second = answer["models"]
    assert (first["id"], second["id"], first["source"], first["target"]) == ("one", "two", "en", "es")
    assert (first["layers"], first["d_model"], first["beam"]) == ({"encoder": 2, "decoder": 2}, 32, 3)
    assert first["parameters"] == sum(p.numel() for p in regard.load(models[0]).model.parameters())
    read, written = ({"input": name, "late": False} for name in ("source", "target"))
    sides = {"queries": read, "keys": read, "causal": False, "role": "read"}
    assert first["attentions"][0] == {
        "name": ENCODER, "kind": "encoder", **sides, "layer": 0, "heads": 4, "dots": True
    }  # fmt: skip
    sides = {"queries": written, "keys": written | {"late": True}, "causal": True, "role": "predicted"}
    assert sides.items() <= first["attentions"][2].items()
    assert [a["kind"] for a in first["attentions"]] == ["encoder", "encoder", "decoder", "cross", "decoder", "cross"]
    assert 3 <= len(first["examples"]) <= 6
    assert (first["atlas"], first["note"]) == (False, "")


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("model", ["one", "two"])
def test_a_translation_is_told_line_by_line(client: TestClient, models: list[Path], model: str, beam: int) -> None:
    first, *tokens, last = translate(client, text=LINES[1], model=model, beam=beam, alternatives=3)
    assert [token["text"] for token in first["tokens"]][-1] == "</s>"
    assert all(len(token["alternatives"]) == 3 for token in tokens)
    expected = regard.load(models[model == "two"], engine="torch").translate(LINES[1], beam=beam)
    assert last["text"] == expected
    assert last["milliseconds"] > 0


def test_edits_change_the_answer_and_nothing_else(client: TestClient) -> None:
    before = translate(client, text=LINES[1])
    edits = {name: {str(head): 0.0 for head in range(4)} for name in (ENCODER, CROSS)}
    edited = translate(client, text=LINES[1], edits=edits)
    assert edited[-1]["log_probability"] != before[-1]["log_probability"]
    after = translate(client, text=LINES[1])
    for line in (before[-1], after[-1]):
        del line["milliseconds"]
    assert after == before


def test_a_given_output_is_scored(client: TestClient) -> None:
    ids = pair(client)
    scored = ask(client, "score", **ids, alternatives=2)
    greedy = translate(client, text=LINES[0])
    np.testing.assert_allclose(
        [token["log_p"] for token in scored["tokens"]], [token["log_p"] for token in greedy[1:-1]], atol=1e-5
    )
    assert scored["log_probability"] == pytest.approx(greedy[-1]["log_probability"], abs=1e-4)
    edited = ask(client, "score", **ids, edits={CROSS: {"0": 0.0}})
    assert edited["log_probability"] != pytest.approx(scored["log_probability"])


def test_maps_come_as_bytes(client: TestClient) -> None:
    ids = pair(client)
    asked = {**ids, "attentions": [{"name": ENCODER, "heads": [2]}, {"name": CROSS}], "dtype": "f32"}
    answer = client.post("/explore/api/maps", json=asked)
    assert answer.headers["content-type"] == "application/octet-stream"
    size = int.from_bytes(answer.content[:4], "little")
    header = json.loads(answer.content[4 : 4 + size])
    S, T = len(ids["source"]), len(ids["target"])
    assert [entry["shape"] for entry in header["maps"]] == [[1, S, S], [4, T, S]]
    numbers = np.frombuffer(answer.content, "<f4", 4 * T * S, 4 + size + header["maps"][1]["offset"])
    np.testing.assert_allclose(numbers.reshape(4, T, S).sum(-1), 1.0, rtol=1e-5)
    small = client.post("/explore/api/maps", json={**asked, "dtype": "u8", "pool": 2}).content
    size = int.from_bytes(small[:4], "little")
    assert json.loads(small[4 : 4 + size])["maps"][1]["shape"] == [4, 2, 2]


def test_maps_that_would_fill_the_memory_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {**pair(client), "attentions": [{"name": ENCODER}, {"name": CROSS}]}
    assert client.post("/explore/api/maps", json=asked).status_code == 200
    monkeypatch.setattr(looks, "MAPS", 100)
    answer = client.post("/explore/api/maps", json=asked)
    assert (answer.status_code, "ask for fewer heads" in answer.json()["error"]) == (413, True)


def test_the_other_questions_are_answered(client: TestClient) -> None:
    ids = pair(client)
    assert len(ask(client, "neuron", **ids, attention=CROSS, head=1, query=0)["keys"]) == len(ids["source"])
    assert len(ask(client, "measures", **ids)["heads"]) == 24
    assert len(ask(client, "faithfulness", **ids)["gradient"]["steps"]) == len(ids["target"])
    page = client.post("/explore/api/page", json=ids)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-disposition"] == 'attachment; filename="attention.html"'
    assert page.text.startswith("<!doctype html>")


def test_an_atlas_is_there_or_it_is_said_how_to_make_one(tmp_path: Path) -> None:
    place = directory(tmp_path / "mapped")
    with TestClient(application([place])) as client:
        missing = client.get("/explore/api/atlas")
        assert missing.status_code == 404
        assert "regard heads" in missing.json()["error"]
        (place / "heads.json").write_text('{"format": 1, "heads": []}')
        assert client.get("/explore/api/atlas?model=mapped").json() == {"format": 1, "heads": []}
        assert client.get("/explore/api/models").json()["models"][0]["atlas"] is True
        (place / "heads.json").write_text('{"format": 1')
        damaged = client.get("/explore/api/atlas")
        assert (damaged.status_code, "heads.json" in damaged.json()["error"]) == (503, True)
        assert client.get("/explore/api/atlas?model=none").status_code == 404


@pytest.mark.parametrize(
    ("route", "asked", "status", "message"),
    [
        ("translate", {}, 400, "text: "),
        ("translate", {"text": ""}, 400, "there is no text"),
        ("translate", {"text": 5}, 400, "text: "),
        ("translate", {"text": "a", "model": "three"}, 404, "there is no model 'three': there are one, two"),
        ("translate", {"text": "a", "colour": 1}, 400, "colour: "),
        ("translate", {"text": "a", "edits": {ENCODER: {"x": 0}}}, 400, "edits"),
        ("translate", {"text": "a", "edits": {ENCODER: {"9": 0}}}, 400, "has heads 0 to 3, not 9"),
        ("translate", {"text": "a" * 2001}, 413, "2,001 characters: at most 2,000"),
        ("score", {"source": [EOS]}, 400, "target: "),
        ("score", {"source": [EOS], "target": []}, 400, "the target is empty"),
        ("score", {"source": [10**30, EOS], "target": [EOS]}, 400, "source"),
        ("score", {"source": [5] * 600, "target": [EOS]}, 413, "600 tokens: at most 512"),
        ("maps", {"source": [EOS], "target": [EOS], "attentions": []}, 400, "attentions: "),
        ("maps", {"source": [EOS], "target": [EOS], "attentions": [{"name": "x"}]}, 400, "no attention is named 'x'"),
        ("maps", {"source": [EOS], "target": [EOS], "attentions": [{"name": CROSS, "heads": [7]}]}, 400, "not 7"),
        ("maps", {"source": [EOS], "target": [EOS], "attentions": [{"name": CROSS}], "view": "x"}, 400, "view: "),
        (
            "maps",
            {"source": [EOS], "target": [EOS], "attentions": [{"name": CROSS}], "view": "rollout"},
            400,
            "rollout",
        ),
        ("maps", {"source": [EOS], "target": [EOS], "attentions": [{"name": CROSS}], "pool": -1}, 400, "pool: "),
        (
            "maps",
            {"source": [EOS], "target": [EOS], "attentions": [{"name": CROSS}, {"name": CROSS, "heads": [2]}]},
            400,
            "head 2 is asked for twice",
        ),
        ("neuron", {"source": [EOS], "target": [EOS], "attention": CROSS, "head": 0, "query": 9}, 400, "query = 9"),
        ("faithfulness", {"source": [5] * 200, "target": [EOS]}, 413, "200 tokens"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    client: TestClient, route: str, asked: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post(f"/explore/api/{route}", json=asked)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"text": "a", "beam": NaN}',
    ],
    ids=range(9),
)
def test_a_body_that_is_none_is_refused(client: TestClient, body: bytes) -> None:
    for header in ({"content-type": "application/json"}, {}):
        answer = client.post("/explore/api/translate", content=body, headers=header)
        assert answer.status_code == 400
        assert answer.json()["error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
IDS = st.lists(st.integers(-1, 295), max_size=6) | JSON
EDITS = st.dictionaries(
    st.sampled_from([ENCODER, CROSS, "x"]), st.dictionaries(st.integers(-1, 4).map(str), st.floats())
)
FIELDS = {
    "model": st.none() | st.just("one") | JSON,
    "text": st.text(max_size=20) | JSON,
    "prefix": IDS,
    "source": IDS | IDS.map(lambda ids: [*ids, EOS] if isinstance(ids, list) else ids),
    "target": IDS | IDS.map(lambda ids: [*ids, EOS] if isinstance(ids, list) else ids),
    "edits": EDITS | JSON,
    "beam": st.integers(-1, 20) | JSON,
    "alternatives": st.integers(-1, 80) | JSON,
    "view": st.sampled_from(["weights", "norm", "rollout"]) | JSON,
    "dtype": st.sampled_from(["u8", "f32"]) | JSON,
    "pool": st.integers(-1, 5) | JSON,
    "attentions": st.lists(st.fixed_dictionaries({"name": st.sampled_from([ENCODER, CROSS, "x"]) | JSON}), max_size=3),
    "attention": st.sampled_from([ENCODER, CROSS, "x"]) | JSON,
    "head": st.integers(-1, 5) | JSON,
    "query": st.integers(-1, 5) | JSON,
}
ROUTES = {
    "translate": ["text", "prefix", "beam", "alternatives"],
    "score": ["source", "target", "alternatives"],
    "maps": ["source", "target", "attentions", "view", "dtype", "pool"],
    "neuron": ["source", "target", "attention", "head", "query"],
    "measures": ["source", "target"],
    "faithfulness": ["source", "target"],
    "page": ["source", "target"],
}


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), route=st.sampled_from(sorted(ROUTES)))
def test_no_question_is_an_internal_error(client: TestClient, data: st.DataObject, route: str) -> None:
    chosen = {name: FIELDS[name] for name in ROUTES[route]}
    asked = data.draw(st.fixed_dictionaries(chosen, optional={"edits": FIELDS["edits"], "model": FIELDS["model"]}))
    answer = client.post(
        f"/explore/api/{route}", content=json.dumps(asked), headers={"content-type": "application/json"}
    )
    assert answer.status_code in (200, 400, 404, 413)  # an exception would come through the client
    if answer.status_code != 200:
        assert list(answer.json()) == ["error"]
    elif route == "translate":
        assert json.loads(answer.text.splitlines()[-1])["kind"] == "done"


def test_a_model_that_cannot_be_loaded_is_named_and_the_others_work(tmp_path: Path) -> None:
    good, bad = directory(tmp_path / "good"), directory(tmp_path / "bad")
    app = application([good, bad])
    (bad / "model.safetensors").write_bytes(b"nothing")
    with TestClient(app) as client:
        first, second = client.get("/explore/api/models").json()["models"]
        assert first["attentions"]
        assert second.keys() == {"id", "error"}
        answer = client.post("/explore/api/translate", json={"text": "a", "model": "bad"})
        assert answer.status_code == 503
        assert "model.safetensors" in answer.json()["error"]
        shutil.copy(good / "model.safetensors", bad)
        assert translate(client, text="a", model="bad")[-1]["kind"] == "done"


def test_what_goes_wrong_in_mid_stream_is_the_last_line(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: Exception) -> Iterator[None]:
        yield None
        raise error

    for error, message in (
        (ValueError("the weights are damaged"), "the weights are damaged"),
        (KeyError("x"), "internal error"),
    ):
        monkeypatch.setattr(Live, "translate", lambda *_, error=error, **__: fail(error))
        answer = client.post("/explore/api/translate", json={"text": "a"})
        assert [json.loads(line) for line in answer.text.splitlines()] == [{"kind": "error", "error": message}]
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_client_that_leaves_stops_the_work(
    models: list[Path], monkeypatch: pytest.MonkeyPatch, beam: int, version: str
) -> None:
    """Servers tell of it in two ways: by a message, or, newer ones, by failing to send."""
    steps = 0
    work = Live.translate

    def counted(*asked: Any, **how: Any) -> Iterator[Any]:
        nonlocal steps
        for line in work(*asked, **how):
            steps += 1
            yield line

    monkeypatch.setattr(Live, "translate", counted)
    body = json.dumps({"text": LINES[3], "beam": beam}).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": version},
        "method": "POST",
        "path": "/explore/api/translate",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    app = application(models)

    async def run(sent: int) -> None:
        asked, gone, left = False, asyncio.Event(), sent

        async def receive() -> MutableMapping[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal left
            left -= message["type"] == "http.response.body"
            if left <= 0:
                gone.set()
                if version == "2.4":
                    raise OSError("gone")
            await asyncio.sleep(0.01)

        await app(scope, receive, send)

    with ThreadPoolExecutor(1) as alone:  # a thread has an event loop of its own, whoever else has one
        alone.submit(asyncio.run, run(10**6)).result()
        whole, steps = steps, 0
        # How a framework says that nobody is there.
        with contextlib.suppress(ClientDisconnect):
            alone.submit(asyncio.run, run(2)).result()
    assert whole > 8
    assert steps <= 4


@pytest.mark.parametrize("option", ["--browser", "--no-browser"])
def test_the_verb_opens_the_page_when_it_can_be_asked(
    models: list[Path], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    opened: Queue[str] = Queue()
    asked: dict[str, Any] = {}

    def serve(
        paths: list[Path], config: ServeConfig, door: socket.socket, *, ready: Callable[[str, Any], None]
    ) -> None:
        door.close()
        asked.update(paths=paths, config=config)
        assert opened.empty()
        ready("http://127.0.0.1:4321", None)

    monkeypatch.setattr(run, "serve", serve)
    monkeypatch.setattr(webbrowser, "open", opened.put)
    said = CliRunner().invoke(cli.app, ["explore", *map(str, models), "--port", "4321", option])
    assert said.exit_code == 0, said.output
    assert "http://127.0.0.1:4321/explore/" in said.output
    assert asked == {"paths": models, "config": ServeConfig(port=4321)}
    if option == "--browser":
        assert opened.get(timeout=30) == "http://127.0.0.1:4321/explore/"
    assert opened.empty()


def test_the_page_is_served_under_a_strict_policy(client: TestClient) -> None:
    assert client.get("/explore", follow_redirects=False).headers["location"] == "explore/"
    for path in ("/explore/", "/explore/index.html"):
        page = client.get(path)
        assert page.content == (WEB / "index.html").read_bytes()
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-cache"
    again = client.get("/explore/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_every_file_of_the_page_is_served_as_what_it_is(client: TestClient) -> None:
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for path in WEB.iterdir():
        found = client.get(f"/explore/{path.name}")
        assert found.status_code == 200, path.name
        assert found.headers["content-type"].startswith(kinds[path.suffix])


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "..%2fexplorer.py",
        "%2e%2e%2fexplorer.py",
        "..\\explorer.py",
        "web",
        ".",
        "main.js%00",
        "main.js/",
        "%ff.js",
    ],
)
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    answer = client.get(f"/explore/{name}", follow_redirects=False)
    assert answer.status_code in (404, 307)
    assert b"import" not in answer.content


def test_a_model_that_makes_text_whole_opens_as_one_that_translates(tmp_path: Path) -> None:
    with TestClient(application([denoiser(tmp_path / "whole")])) as client:
        (about,) = client.get("/explore/api/models").json()["models"]
        assert (about["task"], about["reads"], about["inputs"]) == ("denoise", False, ["source", "target"])
        assert about["examples"]
        read = pair(client, about["examples"][0])
        silent = {CROSS: {"0": 0.0}}
        assert (
            ask(client, "score", **read)["log_probability"]
            != ask(client, "score", **read, edits=silent)["log_probability"]
        )
        assert len(ask(client, "measures", **read)["heads"]) == 24
        said = client.post("/explore/api/translate", json={"text": "a dog", "pair": "a cat"})
        assert "pair: this model reads one text" in said.json()["error"]
