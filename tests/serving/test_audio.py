"""OpenAI's own client has speech written down, in every form that it knows."""

import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.data.test_sound import wav
from tests.serving.servers import directory, running
from tests.speech import directory as speech
from tests.speech import noise


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    path = speech(root / "whisper")
    config = json.loads((path / "config.json").read_text())
    config["use"] = {"step": 0.0, "repetitive": None, "improbable": None, "silent": None, "language": "en"}
    (path / "config.json").write_text(json.dumps(config))
    return Registry([directory(root / "texts"), path])


def asked(seconds: float = 3.0, **more: Any) -> dict[str, Any]:
    return {"model": "whisper", "file": ("a.wav", wav(noise(seconds))), **more}


def test_every_form_says_the_same(client: openai.OpenAI, registry: Registry) -> None:
    said = registry.get("whisper").predictor().transcribe(np.round(noise(3.0) * 2**15) / np.float32(2**15))
    assert said.segments
    create: Any = client.audio.transcriptions.create
    assert create(**asked()).text == said.text
    assert create(**asked(response_format="text")) == f"{said.text}\n"
    assert create(**asked(response_format="srt")) == said.written("srt")
    assert create(**asked(response_format="vtt")) == said.written("vtt")
    whole = create(**asked(response_format="verbose_json", timestamp_granularities=["word", "segment"]))
    assert whole.text == said.text
    assert whole.language == "english"
    assert whole.duration == pytest.approx(3.0)
    assert [tuple(segment.tokens) for segment in whole.segments] == [segment.tokens for segment in said.segments]
    assert "".join(word.word for word in whole.words) == "".join(said.text.split())


def test_a_stream_says_it_bit_by_bit(client: openai.OpenAI) -> None:
    whole = client.audio.transcriptions.create(**asked(9.0)).text
    events = [*client.audio.transcriptions.create(**asked(9.0, stream=True))]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole
    deltas = [event.delta for event in events[:-1]]
    assert len(deltas) > 1
    assert "".join(deltas) == whole


def test_translations_are_another_task(client: openai.OpenAI) -> None:
    create: Any = client.audio.translations.create
    assert create(**asked()).text != client.audio.transcriptions.create(**asked()).text
    assert create(**asked(response_format="verbose_json")).task == "translate"


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"file": ("a.txt", b"no sound at all, " * 9)}, "file", "a.txt is no sound that can be read"),
        ({"file": ("a.wav", wav(noise(0)))}, "file", "a.wav is empty"),
        ({"language": "xx"}, "language", "language = 'xx'"),
        ({"temperature": 3}, "temperature", "temperature"),
        ({"response_format": "mp3"}, "response_format", "response_format"),
    ],
)
def test_what_cannot_be_is_refused(client: openai.OpenAI, given: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        client.audio.transcriptions.create(**asked(1.0) | given)
    assert refused.value.param == param


def test_sound_is_not_for_a_model_of_text(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="texts is a translation model: ask it by POST /translate"):
        client.audio.transcriptions.create(**asked(1.0, model="texts"))
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.audio.transcriptions.create(**asked(1.0, model="other"))


def test_a_body_that_is_no_form_is_refused(address: str) -> None:
    for content, kind in ((b"{}", "application/json"), (b"--x\r\n", "multipart/form-data; boundary=x"), (b"", "")):
        found = httpx.post(f"{address}/v1/audio/transcriptions", content=content, headers={"Content-Type": kind})
        assert found.status_code == 400
        assert "form" in found.json()["error"]["message"]


def test_limits_of_bytes_and_of_time(registry: Registry) -> None:
    config = ServeConfig(explorer=False, megabytes=1, minutes=0.05)
    with running(registry, config) as (address, _), openai.OpenAI(base_url=f"{address}/v1", api_key="x") as client:
        with pytest.raises(openai.BadRequestError, match="more than 3 seconds"):
            client.audio.transcriptions.create(**asked(4.0))
        with pytest.raises(openai.APIStatusError, match="exceeds") as refused:
            client.audio.transcriptions.create(model="whisper", file=("a.wav", io.BytesIO(bytes(2**21))))
        assert refused.value.status_code == 413
        assert client.audio.transcriptions.create(**asked(2.0)).text is not None


def test_routes_are_in_the_document(address: str, registry: Registry, tmp_path: Path) -> None:
    paths = httpx.get(f"{address}/openapi.json").json()["paths"]
    assert {"/v1/audio/transcriptions", "/v1/audio/translations"} <= paths.keys()
    form = paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["file", "model"]
