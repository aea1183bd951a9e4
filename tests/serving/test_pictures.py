"""Pictures over HTTP: uploads, base64, the file itself; and what is too large, damaged, or for another model."""

import io
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import regard
from regard.core.outputs import HeadConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.serving.servers import directory, running

LABELS = ["cat", "dog", "bird"]


def png(seed: int = 0, size: int = 20) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "eyes"
    model = build(configure("cct-2").but(size=16, d_model=16, d_ff=16), HeadConfig("classes", 3, pool="attention"))
    storage.save(model, place, storage.Purpose({"name": "recognise", "labels": LABELS, "sight": {"size": 16}}, {}))
    return place


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    registry = Registry([directory(model.parent / "words"), model])
    with running(registry, ServeConfig(megabytes=1, explorer=True)) as (found, _):
        yield found


def expected(model: Path, content: bytes) -> list[Any]:
    told = regard.load(model).classify(content).probabilities
    return [{"label": label, "score": pytest.approx(p, abs=1e-5)} for label, p in told.items()]


def test_every_way_to_send_a_picture_gives_the_same(url: str, model: Path) -> None:
    content, text = png(), b64encode(png()).decode()
    said = expected(model, content)
    for answer in (
        httpx.post(f"{url}/predict", files={"file": ("photo.png", content)}),
        httpx.post(f"{url}/predict", content=content, headers={"Content-Type": "image/png"}),
        httpx.post(f"{url}/predict", json={"inputs": text}),
        httpx.post(f"{url}/predict", json={"inputs": f"data:image/png;base64,{text}", "model": "eyes"}),
        httpx.post(f"{url}/models/eyes", content=content, headers={"Content-Type": "application/octet-stream"}),
        httpx.post(f"{url}/models/eyes", json={"inputs": text}),
    ):
        assert answer.status_code == 200, answer.text
        assert answer.json() == said


def test_several_pictures_are_told_one_by_one(url: str, model: Path) -> None:
    files = [("file", (f"{i}.png", png(i))) for i in range(3)]
    answer = httpx.post(f"{url}/predict", files=files, data={"top_k": "1"})
    assert answer.json() == [expected(model, png(i))[:1] for i in range(3)]
    both = [b64encode(png(i)).decode() for i in range(2)]
    assert httpx.post(f"{url}/predict", json={"inputs": both}).json() == [expected(model, png(i)) for i in range(2)]
    two = httpx.post(f"{url}/models/eyes", json={"inputs": both[0], "parameters": {"top_k": 2}}).json()
    assert two == expected(model, png(0))[:2]


def bomb() -> bytes:
    head = bytearray(png())
    head[16:24] = (20_000).to_bytes(4, "big") * 2  # its size, as its head has it
    head[29:33] = zlib.crc32(bytes(head[12:29])).to_bytes(4, "big")
    return bytes(head)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"files": {"file": ("a.png", png()[:90])}}, "picture 1 is damaged or cut off"),
        ({"files": {"file": ("a.png", b"text")}}, "picture 1 is no picture"),
        ({"files": {"file": ("a.png", bomb())}}, "picture 1 has more than 178,956,970 pixels, at most"),
        ({"files": {"file": ("a.png", b"")}}, "there is no picture"),
        ({"json": {"inputs": "a charming film"}}, "this model sees pictures: send one in base64"),
        ({"json": {"inputs": []}}, "there is no picture"),
        ({"files": {"file": ("a.png", png())}, "data": {"top_k": "many"}}, "top_k = 'many'"),
        ({"files": [("f", (f"{i}", png(size=2))) for i in range(65)]}, "Too many files|64 at most"),
    ],
)
def test_what_cannot_be_seen_is_one_line(url: str, sent: dict[str, Any], message: str) -> None:
    answer = httpx.post(f"{url}/predict", **sent)
    assert answer.status_code in (400, 422), answer.text
    assert re.search(message, answer.json()["error"]), answer.text
    assert "\n" not in answer.json()["error"]


def test_what_is_too_large_is_not_read(url: str) -> None:
    answer = httpx.post(f"{url}/predict", content=bytes(1_300_000), headers={"Content-Type": "image/png"})
    assert (answer.status_code, answer.json()["error"]) == (413, "the request exceeds 1,234,112 bytes")


def test_a_picture_for_a_model_that_reads_is_refused(url: str, model: Path) -> None:
    answer = httpx.post(f"{url}/predict", files={"file": png()}, data={"model": "words"})
    assert answer.status_code == 404
    assert "words is a translation model" in answer.json()["error"]


def test_the_explorer_shows_it_beside_one_that_reads(url: str) -> None:
    about = httpx.get(f"{url}/explore/api/models").json()["models"]
    assert [(each["id"], each.get("sees", False), "error" in each) for each in about] == [
        ("words", False, False),
        ("eyes", True, False),
    ]


def test_without_a_model_that_sees_a_body_is_as_small_as_before(model: Path) -> None:
    with running(Registry([model.parent / "words"]), ServeConfig(characters=100, explorer=False)) as (found, _):
        answer = httpx.post(f"{found}/predict", content=bytes(400_000), headers={"Content-Type": "image/png"})
        assert answer.status_code == 413
        answer = httpx.post(f"{found}/predict", content=png(), headers={"Content-Type": "image/png"})
        assert answer.status_code in (400, 404)
