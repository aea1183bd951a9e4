"""Bodies as nobody would write them, to every route that takes one: each is answered, and none brings the server down.

A quarter of a minute in every run; as many minutes as REGARD_FUZZ says, if it does, with other bodies each time.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from regard.data.text import PairFiles
from regard.serving import explorer
from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from regard.studies.remember import remember
from tests.readers import TASKS
from tests.readers import directory as reader
from tests.serving.servers import directory, running
from tests.serving.test_graphs import GRAPH, graph_reader
from tests.serving.toys import CROSS, ENCODER, LINES, writer

READERS = list(TASKS)
MINUTES = float(os.environ.get("REGARD_FUZZ") or 0)
LOOK = {"source": [9, 10, 2], "target": [9, 2]}
FINE: dict[str, dict[str, Any]] = {  # what each route would like to be sent
    "/translate": {"q": LINES[0], "source": "en", "target": "es", "format": "html", "alternatives": 2, "api_key": "k"},
    "/detect": {"q": LINES[0], "api_key": "k"},
    "/v1/completions": {"model": "writer", "prompt": LINES[0], "max_tokens": 9},
    "/v1/embeddings": {"model": "embed", "input": LINES[0], "dimensions": 4, "encoding_format": "base64"},
    "/embed": {"inputs": [LINES[0], [5, 6]], "normalize": True, "truncate": True, "model": "embed"},
    "/predict": {"inputs": [[LINES[0]], LINES[:2]], "raw_scores": True, "truncate": False},
    "/rerank": {"query": LINES[0], "texts": LINES[1:3], "raw_scores": True, "return_text": True, "model": "embed"},
    "/models/{id}": {"inputs": LINES[0], "parameters": {"top_k": 2}},
    "/explore/api/translate": {
        "text": LINES[0],
        "prefix": [9],
        "beam": 2,
        "alternatives": 3,
        "edits": {ENCODER: {"0": 2}},
    },
    "/explore/api/score": {**LOOK, "alternatives": 3, "edits": {CROSS: {"1": 0.0}}, "model": "first"},
    "/explore/api/maps": {
        **LOOK,
        "attentions": [{"name": CROSS, "heads": [0]}],
        "view": "norm",
        "pool": 2,
        "dtype": "u8",
    },
    "/explore/api/neuron": {**LOOK, "attention": CROSS, "head": 0, "query": 1},
    "/explore/api/measures": LOOK,
    "/explore/api/recall": {**LOOK, "model": "reminded"},
    "/explore/api/faithfulness": LOOK,
    "/explore/api/page": LOOK,
    "/explore/api/graph": {"graph": json.dumps(GRAPH), "model": "nets", "edits": {ENCODER: {"1": 0.0}}},
}
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")
ODD = (
    "",
    "json",
    "application/json; charset=utf-16",
    "multipart/form-data",
    'multipart/form-data; boundary="',
    "a/b;=;",
)
ODD += (
    "multipart/form-data; boundary=x; charset=idna",
    "APPLICATION/JSON;charset=utf-7",
    "application/x-ndjson",
    "*/*",
)

CHARACTERS = st.characters(codec=None, exclude_categories=()) | st.sampled_from(
    "\0\ud800\udfff\ufeff\u202e<>&;%\\\"'\n"
)
TEXT = st.text(CHARACTERS, max_size=30) | st.sampled_from(
    [*LINES, "<b>" * 200, "a. " * 300, "&#x110000;", "\U0001f600" * 50]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**31, 1e308, -0.0, 3.0, 5e-324])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn, route: str) -> bytes:
    """A good request, one that is a little wrong, or anything; written in one of many ways, and perhaps harmed."""
    fields = dict(FINE[route])
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        if draw(st.booleans()):
            fields.pop(name, None)
        else:
            fields[name] = draw(VALUES)
    fields |= draw(st.dictionaries(TEXT, VALUES, max_size=1))
    pairs = [
        *fields.items(),
        *draw(st.lists(st.sampled_from([*fields.items()]), max_size=2) if fields else st.just([])),
    ]
    body = draw(st.sampled_from([_json, _form, _multipart]))(pairs)
    harm = draw(st.sampled_from(["none"] * 6 + ["cut", "flip", "utf-16", "utf-8-sig", "deep", "bytes", "number"]))
    if harm == "cut":
        return body[: draw(st.integers(0, len(body)))]
    if harm == "flip" and body:
        at = draw(st.integers(0, len(body) - 1))
        return body[:at] + draw(st.binary(max_size=3)) + body[at + 1 :]
    if harm in ("utf-16", "utf-8-sig"):
        return body.decode("utf-8", "replace").encode(harm)
    if harm == "deep":
        name, depth = draw(st.sampled_from(sorted(FINE[route]))), draw(st.sampled_from([10, 900, 30_000]))
        opening, closing = draw(st.sampled_from([("[", "]"), ('{"a":', "}"), ("<b>", "</b>")]))
        return f'{{"{name}": {opening * depth}1{closing * depth}}}'.encode()
    if harm == "number":
        return b'{"%s": %s}' % (draw(st.sampled_from(sorted(FINE[route]))).encode(), b"9" * draw(st.integers(1, 9_000)))
    return draw(st.binary(max_size=200)) if harm == "bytes" else body


def _json(pairs: list[tuple[str, Any]]) -> bytes:
    """An object in which a name may come twice; half a character is spelt out, and so are NaN and Infinity."""
    return f"{{{', '.join(f'{json.dumps(name)}: {json.dumps(value)}' for name, value in pairs)}}}".encode()


def _form(pairs: list[tuple[str, Any]]) -> bytes:
    return urlencode([(_bytes(name), _bytes(value)) for name, value in pairs]).encode()


def _multipart(pairs: list[tuple[str, Any]]) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    return b"".join(head % (_bytes(name), _bytes(value)) for name, value in pairs) + b"--x--\r\n"


def _bytes(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    readers = [reader(root / name, name) for name in READERS]
    writers = [directory(root / "first"), writer(root / "writer")]
    (root / "pairs.tsv").write_text(f"{LINES[0]}\t{LINES[1]}\n", encoding="utf-8")
    remember(writers[0], root / "reminded", [PairFiles(tsv=str(root / "pairs.tsv"))])
    return Registry([*writers, root / "reminded", *readers, graph_reader(root / "nets")], engine="torch")


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[httpx.Client]:
    config = ServeConfig(characters=2_000, tokens=300, seconds=10.0)
    with running(registry, config) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        yield client


def test_every_route_that_takes_a_body_is_tried(registry: Registry) -> None:
    app = create_app(registry)
    looks = {route.path for route in explorer.router(app.state.service).routes if "POST" in route.methods}  # type: ignore[attr-defined]
    looks -= {"/explore/api/pictures"}  # takes a file: tests/serving/test_live_seers.py
    assert FINE.keys() == looks | {path for path, about in app.openapi()["paths"].items() if "post" in about}


def test_what_is_fine_is_answered(client: httpx.Client) -> None:
    for path, fields in FINE.items():
        assert client.post(path.format(id="classify"), json=fields).status_code == 200, path


def test_every_body_is_answered(client: httpx.Client) -> None:
    met = dict.fromkeys(FINE, frozenset[int]())
    end = time.monotonic() + (60 * MINUTES or 12)

    @settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(FINE)))
        body, query = data.draw(bodies(path)), data.draw(st.just(b"") | st.binary(max_size=20))
        headers = {"Content-Type": data.draw(st.sampled_from(KINDS * 5 + ODD))}
        if data.draw(st.integers(0, 9)) == 0:
            headers["Content-Encoding"] = "gzip"
        kind = headers["Content-Type"] or "none"
        place = path.format(id=data.draw(st.sampled_from(READERS)))
        answer = client.post(f"{place}?{quote_from_bytes(query, '=&%+;')}", content=body, headers=headers)
        assert well_formed(path, answer), (path, kind, body, answer.status_code, answer.text)
        met[path] |= {answer.status_code}

    for n in count(random.randrange(2**32) if MINUTES else 0):
        seed(n)(ask)()
        if time.monotonic() > end:
            break
    assert client.get("/health").status_code == 200
    for path, fields in FINE.items():  # and it does as before
        assert client.post(path.format(id="classify"), json=fields).status_code == 200, path
        assert met[path] & {400, 422}, "most bodies are wrong"


def well_formed(path: str, answer: httpx.Response) -> bool:
    """Whether an answer is one: of a status that is meant, and if it is an error, one line in the form of its API."""
    if answer.status_code >= 500 and answer.status_code not in (503, 504):
        return False
    kind = answer.headers["content-type"]
    if answer.status_code == 200:
        lines = answer.text.splitlines() if kind == "application/x-ndjson" else [answer.text]
        return "json" not in kind or all(json.loads(line) is not None for line in lines)
    error = answer.json()["error"]
    message = error["message"] if path.startswith("/v1") else error
    return isinstance(message, str) and 0 < len(message) < 1_000 and "\n" not in message
