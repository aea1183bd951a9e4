"""Models that see and read or write, over HTTP: vectors of pictures and texts, classes in words, captions, and chat."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import regard
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.eyes import eyes, png
from tests.serving.servers import running
from tests.serving.test_pictures import bomb


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for task in ("match", "caption", "look"):
        eyes(place / task, task)
    return place


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    registry = Registry([models / task for task in ("match", "caption", "look")])
    with running(registry, ServeConfig(megabytes=1, explorer=True)) as (found, _):
        yield found


def data(content: bytes) -> str:
    return f"data:image/png;base64,{b64encode(content).decode()}"


def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_texts_and_pictures_have_vectors_in_one_space(url: str, models: Path) -> None:
    matcher = regard.load(models / "match")
    texts, pictures = matcher.embed(["a dog", "a cat"]), matcher.see([png(0), png(1)])
    found = client(url).embeddings.create(model="match", input=["a dog", data(png(0)), "a cat", data(png(1))])
    said = np.array([each.embedding for each in found.data])
    np.testing.assert_allclose(said[[0, 2]], texts, atol=1e-6)
    np.testing.assert_allclose(said[[1, 3]], pictures, atol=1e-6)
    for answer in (
        httpx.post(f"{url}/embed", files=[("file", ("a.png", png(0))), ("file", ("b.png", png(1)))]),
        httpx.post(f"{url}/embed", json={"inputs": [data(png(0)), data(png(1))]}),
        httpx.post(f"{url}/models/match", json={"inputs": [data(png(0)), data(png(1))]}),
    ):
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(np.array(answer.json()), pictures, atol=1e-6)
    one = httpx.post(f"{url}/embed", content=png(0), headers={"Content-Type": "image/png"}).json()
    np.testing.assert_allclose(np.array(one), pictures[:1], atol=1e-6)
    short = httpx.post(f"{url}/embed", json={"inputs": [data(png(0)), "a dog"], "dimensions": 4}).json()
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    assert len(short[0]) == 4


def test_classes_are_told_in_words(url: str, models: Path) -> None:
    expected = regard.load(models / "match").classify(png(), ["dog", "cat"], prompt="a photo of a {label}")
    likely = [{"label": label, "score": pytest.approx(p, abs=1e-5)} for label, p in expected.probabilities.items()]
    about = {"candidate_labels": ["dog", "cat"], "hypothesis_template": "a photo of a {}"}
    sent = {"inputs": b64encode(png()).decode(), "parameters": about}
    assert httpx.post(f"{url}/models/match", json=sent).json() == likely
    fields = {"candidate_labels": "dog,cat", "hypothesis_template": "a photo of a {}"}
    assert httpx.post(f"{url}/models/match", files={"file": png()}, data=fields).json() == likely
    for wrong, message in (
        ({"candidate_labels": ["dog"]}, "two at least"),
        ({"candidate_labels": 3}, "list of texts"),
        ({**about, "hypothesis_template": "a photo"}, "no {label} in it"),
    ):
        answer = httpx.post(f"{url}/models/match", json={**sent, "parameters": wrong})
        assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text


def test_hugging_faces_client_asks_about_pictures(url: str, models: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    likely = regard.load(models / "match").classify(png(), ["dog", "cat"], prompt="a photo of a {label}").probabilities
    asks = hub.InferenceClient(model=f"{url}/models/match", token="none")
    how = {"candidate_labels": ["dog", "cat"], "hypothesis_template": "a photo of a {}"}
    found = asks.zero_shot_image_classification(png(), **how)
    assert {each.label: pytest.approx(each.score, abs=1e-5) for each in found} == likely
    describer = hub.InferenceClient(model=f"{url}/models/caption", token="none")
    (tmp_path / "a.png").write_bytes(png())
    assert describer.image_to_text(tmp_path / "a.png").generated_text == regard.load(models / "caption").caption(png())


def test_captions_are_those_of_the_model(url: str, models: Path) -> None:
    describer = regard.load(models / "caption")
    said = [{"generated_text": text} for text in describer.caption([png(0), png(1)])]
    assert httpx.post(f"{url}/models/caption", files=[("f", ("a", png(i))) for i in range(2)]).json() == said
    sent = {"inputs": b64encode(png(0)).decode()}
    assert httpx.post(f"{url}/models/caption", json=sent).json() == said[:1]
    short = httpx.post(f"{url}/models/caption", json={**sent, "parameters": {"max_new_tokens": 2}}).json()
    assert short == [{"generated_text": describer.caption(png(0), limit=2)}]


def conversation(*pictures: bytes, text: str = "What is it?") -> list[Any]:
    shown = [{"type": "image_url", "image_url": {"url": data(each)}} for each in pictures]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": text}]}]


def test_a_picture_is_asked_about_with_openais_client(url: str, models: Path) -> None:
    looker = regard.load(models / "look", bitwise=True)
    expected = [looker.chat("What is it?", images=[png(i)]) for i in range(3)]
    assert len(set(expected)) > 1
    for i in range(3):
        found = client(url).chat.completions.create(model="look", messages=conversation(png(i)))
        assert found.choices[0].message.content == expected[i]
        assert found.usage.prompt_tokens > looker.model.config.places
    both = client(url).chat.completions.create(model="look", messages=conversation(png(0), png(1)))
    assert both.choices[0].message.content == looker.chat("What is it?", images=[png(0), png(1)])
    pieces = client(url).chat.completions.create(model="look", messages=conversation(png(1)), stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in pieces) == expected[1]


def test_a_text_alone_is_answered_as_ever(url: str, models: Path) -> None:
    looker = regard.load(models / "look", bitwise=True)
    for said in ("What is it?", [{"type": "text", "text": "What is it?"}]):
        found = client(url).chat.completions.create(model="look", messages=[{"role": "user", "content": said}])
        assert found.choices[0].message.content == looker.chat("What is it?")
    found = client(url).completions.create(model="look", prompt="it is")
    assert found.choices[0].text == looker.generate("it is")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"url": "https://example.org/a.png"}, "nothing is fetched"),
        ({"url": "file:///etc/passwd"}, "nothing is fetched"),
        ({"url": "data:image/png;base64,!!!"}, "no base64"),
        ({"url": data(b"text")}, "is no picture"),
        ({"url": data(png()[:90])}, "is damaged or cut off"),
        ({"url": data(bomb())}, "pixels, at most"),
        (None, "nothing is fetched"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_line(url: str, part: Any, message: str) -> None:
    asked = [{"role": "user", "content": [{"type": "image_url", "image_url": part}]}]
    answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "look", "messages": asked})
    error = answer.json()["error"]["message"]
    assert (answer.status_code, message in error, "\n" in error) == (400, True, False), answer.text
    assert "messages[0].content[0]" in error


def test_other_things_that_cannot_be_asked(url: str) -> None:
    def refused(**more: Any) -> str:
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "look", **more})
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["message"])

    assert "64 at most" in refused(messages=conversation(*[png(size=2)] * 65))
    assert "logprobs" in refused(messages=conversation(png()), logprobs=True)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert "without pictures" in refused(messages=conversation(png()), tools=tools)
    shown = conversation(png())[0]["content"]
    assert "shown by the user" in refused(messages=[{"role": "assistant", "content": shown}])
    assert "type 'input_audio'" in refused(messages=[{"role": "user", "content": [{"type": "input_audio"}]}])
    large = httpx.post(f"{url}/v1/chat/completions", json={"model": "look", "messages": conversation(bytes(1_300_000))})
    assert large.status_code == 413
