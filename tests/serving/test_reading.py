"""Models that read over HTTP: OpenAI's embeddings by its own client, text-embeddings-inference's routes as they are."""

import json
import re
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from huggingface_hub import InferenceClient

import regard
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from regard.tasks.summarise import Summarise
from tests.readers import LONGEST, TEXTS, directory
from tests.serving.servers import Hold, running
from tests.serving.toys import writer

LONG = " ".join([TEXTS[0]] * 30)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    made = {
        "classes": directory(root / "classes", "classify"),
        "vectors": directory(root / "vectors", "embed"),
        "two": directory(root / "two", "classify", labels=("no", "yes")),
        "number": directory(root / "number", "classify", kind="number", labels=()),
        "single": directory(root / "single", "classify", labels=("no", "yes"), pairs=False),
        "some": directory(root / "some", "classify", kind="several", labels=("a", "b")),
        "writer": writer(root / "writer"),
        **{name: directory(root / name, name) for name in ("mask", "tag", "answer")},
    }
    return Registry(list(made.values()))


@pytest.fixture(scope="module")
def embedder(registry: Registry) -> Any:
    return regard.load(registry.get("vectors").path, bitwise=True)


def post(address: str, path: str, status: int = 200, **body: Any) -> Any:
    answer = httpx.post(f"{address}{path}", json=body, timeout=30)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_client_gets_the_vectors_of_the_embedder_to_the_bit(client: openai.OpenAI, embedder: Any) -> None:
    expected = embedder.embed(TEXTS)
    found = client.embeddings.create(model="vectors", input=TEXTS)  # as base64, which the client unpacks
    assert (found.object, found.model) == ("list", "vectors")
    assert [(each.index, each.object) for each in found.data] == [(i, "embedding") for i in range(5)]
    assert np.array_equal(np.array([each.embedding for each in found.data], np.float32), expected)
    written = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
    assert np.array_equal(np.array([each.embedding for each in written.data], np.float32), expected)
    tokens = sum(map(len, embedder.tokenizer.encode_batch(TEXTS)))
    assert found.usage.prompt_tokens == found.usage.total_tokens == tokens
    (short,) = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=4).data
    assert np.array_equal(np.array(short.embedding, np.float32), embedder.embed(TEXTS[0], dimensions=4))


def test_an_input_comes_in_four_ways(client: openai.OpenAI, embedder: Any) -> None:
    ids = embedder.tokenizer.encode_batch(TEXTS[:2])

    def vectors(given: Any) -> list[list[float]]:
        return [each.embedding for each in client.embeddings.create(model="vectors", input=given).data]

    assert vectors(TEXTS[:2]) == vectors(ids)
    assert vectors(TEXTS[0]) == vectors(ids[0]) == vectors(TEXTS[:2])[:1]
    marked = embedder.tokenizer.marks.around(ids[0])[0]
    assert vectors(marked) == vectors(ids[0])  # with its marks as well
    assert vectors(LONG) == [embedder.embed(LONG).tolist()]  # nothing of it is lost
    assert client.embeddings.create(model="vectors", input=ids).usage.prompt_tokens == sum(map(len, ids))


def test_what_openais_client_asks_wrongly_is_an_error_of_its_kind(client: openai.OpenAI) -> None:
    def refused(match: str, kind: type[openai.APIStatusError] = openai.BadRequestError, **asked: Any) -> Any:
        with pytest.raises(kind, match=match) as error:
            client.embeddings.create(**{"model": "vectors", "input": "a", **asked})
        return error.value

    assert refused("dimensions = 17: the model's vectors have 16", dimensions=17).param == "input"
    assert refused("input is empty", input=[]).code == "empty"
    refused("input is empty", input=[[1], []])
    refused("99999 is no token: the model has 80", input=[1, 99999])
    refused("2,049 texts: give 2,048 at most", input=["a"] * 2049)
    refused("dimensions: Input should be greater than or equal to 1", dimensions=0)
    refused("encoding_format", encoding_format="int8")
    refused("Extra inputs are not permitted", extra_body={"colour": "red"})
    refused("exceeds text limit", input="a" * 10_001)
    refused("no text", input="a\x00")
    about = "classes is a classification model: ask it by POST /predict"
    assert refused(about, openai.NotFoundError, model="classes").code == "model_not_supported"
    refused("there is no model 'none'", openai.NotFoundError, model="none")
    with pytest.raises(
        openai.NotFoundError, match="vectors is an embedding model: ask it by POST /v1/embeddings or POST"
    ):
        client.completions.create(model="vectors", prompt="a")


def test_embed(address: str, embedder: Any) -> None:
    expected = embedder.embed(TEXTS)
    found = post(address, "/embed", inputs=TEXTS)
    assert np.array_equal(np.array(found, np.float32), expected)
    assert post(address, "/embed", inputs=TEXTS[0]) == found[:1]  # always a list of vectors
    ids = embedder.tokenizer.encode(TEXTS[1])
    assert post(address, "/embed", inputs=[TEXTS[0], ids]) == found[:2]
    assert post(address, "/embed", inputs=ids) == found[1:2]
    assert len(post(address, "/embed", inputs="a", dimensions=3, something="else")[0]) == 3
    cut = post(address, "/embed", inputs=LONG, truncate=True)
    assert np.array_equal(np.array(cut[0], np.float32), embedder.embed(LONG, long="cut"))
    assert cut != post(address, "/embed", inputs=LONG, truncate=None)
    assert post(address, "/embed", inputs=TEXTS, normalize=False) == found  # as the model makes them


def test_vectors_of_any_length_are_made_of_length_one_unless_said(tmp_path: Path) -> None:
    free = directory(tmp_path / "free", "embed")
    about = json.loads((free / "config.json").read_text())
    about["head"]["normalise"] = False
    (free / "config.json").write_text(json.dumps(about))
    with running(Registry([free])) as (address, _):
        unit, own = (np.array(post(address, "/embed", inputs="fine", normalize=x)[0]) for x in (True, False))
        ranks = post(address, "/rerank", query=TEXTS[0], texts=TEXTS)
    assert np.linalg.norm(unit) == pytest.approx(1)
    assert abs(np.linalg.norm(own) - 1) > 0.1
    assert np.allclose(own / np.linalg.norm(own), unit, atol=1e-6)
    assert (ranks[0]["index"], ranks[0]["score"]) == (0, pytest.approx(1))


def test_predict(address: str, registry: Registry) -> None:
    classifier = regard.load(registry.get("classes").path, bitwise=True)
    one = classifier.classify(TEXTS[0])
    expected = [{"score": p, "label": label} for label, p in one.probabilities.items()]
    assert post(address, "/predict", inputs=TEXTS[0]) == expected  # of a single one, no list of lists
    assert post(address, "/predict", inputs=[TEXTS[0]]) == expected
    both = classifier.classify(TEXTS[0], TEXTS[1])
    assert post(address, "/predict", inputs=TEXTS[:2])[0] == {"score": both.probability, "label": both.label}
    mixed = post(address, "/predict", inputs=[[TEXTS[0]], TEXTS[:2]])
    assert mixed[0] == expected
    assert mixed[1][0]["score"] == both.probability
    raw = post(address, "/predict", inputs=TEXTS[0], raw_scores=True)
    assert {each["label"]: each["score"] for each in raw} == dict(zip(classifier.labels, one.logits, strict=True))
    assert [each["score"] for each in raw] == sorted(one.logits, reverse=True)
    (number,) = post(address, "/predict", inputs=TEXTS[0], model="number")
    assert number["score"] == regard.load(registry.get("number").path, bitwise=True).classify(TEXTS[0]).value
    several = post(address, "/predict", inputs=TEXTS[0], model="some")
    assert {each["label"] for each in several} == {"a", "b"}
    cut, whole = (post(address, "/predict", inputs=LONG, truncate=x)[0]["score"] for x in (True, False))
    assert cut != whole


@pytest.mark.parametrize("model", ["two", "number", "vectors"])
def test_rerank(address: str, registry: Registry, model: str) -> None:
    found = post(address, "/rerank", query="a good film", texts=TEXTS, model=model, return_text=True)
    predictor = regard.load(registry.get(model).path, bitwise=True)
    if model == "vectors":
        scores = predictor.embed(TEXTS) @ predictor.embed("a good film")
    elif model == "two":
        scores = [each.probabilities["yes"] for each in predictor.classify([("a good film", text) for text in TEXTS])]
    else:
        values = [each.value for each in predictor.classify([("a good film", text) for text in TEXTS])]
        scores = [1 / (1 + np.exp(-x)) for x in values]
    assert [each["score"] for each in found] == pytest.approx(sorted(scores, reverse=True), abs=1e-6)
    assert [each["index"] for each in found] == np.argsort(-np.array(scores)).tolist()
    assert all(each["text"] == TEXTS[each["index"]] for each in found)
    raw = post(address, "/rerank", query="a good film", texts=TEXTS, model=model, raw_scores=True)
    assert [each["index"] for each in raw] == [each["index"] for each in found]
    assert "text" not in raw[0]
    if model != "vectors":
        logits = [np.log(each["score"] / (1 - each["score"])) for each in found]
        assert [each["score"] for each in raw] == pytest.approx(logits, rel=1e-4, abs=1e-6)


def test_the_first_model_that_can_is_asked(address: str) -> None:
    """`classes` comes first, but has three classes: texts are ranked by `vectors`, which comes next."""
    assert post(address, "/rerank", query="a", texts=TEXTS) == post(
        address, "/rerank", query="a", texts=TEXTS, model="vectors"
    )
    said = post(address, "/rerank", 404, query="a", texts=TEXTS, model="classes")
    assert said["error"] == "classes is a classification model: ask it by POST /predict or POST /models/classes"
    said = post(address, "/rerank", 404, query="a", texts=TEXTS, model="single")
    assert said["error"] == "single is a classification model: ask it by POST /predict or POST /models/single"
    said = post(address, "/predict", 422, inputs=["a", "b"], model="single")
    assert "has a second text: this model reads one, so leave the other out" in said["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        ("/embed", {}, 422, "Validation", "missing inputs parameter"),
        ("/embed", {"inputs": []}, 400, "Empty", "inputs is empty"),
        ("/embed", {"inputs": 7}, 422, "Validation", "inputs: Input should be a valid string"),
        ("/embed", {"inputs": "a", "dimensions": 17}, 422, "Validation", "dimensions = 17"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "Validation", "prompt_name: Input should be None"),
        ("/embed", {"inputs": [-1]}, 422, "Validation", "-1 is no token"),
        (
            "/embed",
            {"inputs": "a", "truncate": True, "truncation_direction": "Left"},
            422,
            "Validation",
            "should be 'Right'",
        ),
        ("/embed", {"inputs": "a", "model": "classes"}, 404, "Validation", "classes is a classification model"),
        ("/embed", {"inputs": "a" * 10_001}, 422, "Validation", "exceeds text limit"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 422, "Validation", "a pair [text, text]"),
        ("/predict", {"inputs": [["a"], []]}, 400, "Empty", "inputs is empty"),
        ("/predict", {"inputs": []}, 400, "Empty", "inputs is empty"),
        ("/predict", {"inputs": "a", "model": "vectors"}, 404, "Validation", "vectors is an embedding model"),
        ("/rerank", {"query": "a"}, 422, "Validation", "missing texts parameter"),
        ("/rerank", {"query": "a", "texts": []}, 400, "Empty", "texts is empty"),
        ("/rerank", {"query": LONG, "texts": ["a"], "model": "two"}, 422, "Validation", f"the model reads {LONGEST}"),
        ("/rerank", {"query": "a", "texts": ["b"], "model": "some"}, 404, "Validation", "some is a classification"),
    ],
)
def test_errors_have_their_form(address: str, path: str, body: Any, status: int, kind: str, message: str) -> None:
    said = post(address, path, status, **body)
    assert sorted(said) == ["error", "error_type"]
    assert said["error_type"] == kind
    assert message in said["error"]


def test_bodies_of_no_sense_have_it_as_well(address: str) -> None:
    for body in (b"{", b"[]", b"\xff"):
        answer = httpx.post(f"{address}/embed", content=body)
        assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
    assert httpx.get(f"{address}/embed").json()["error_type"] == "Validation"


def test_any_company_gives_the_same_bits_and_those_that_come_together_are_read_together(
    registry: Registry, embedder: Any
) -> None:
    texts = [*TEXTS, LONG, *(f"{text} {i}" for i in range(5) for text in TEXTS)]
    expected = [embedder.embed(text) for text in texts]
    served = Registry([registry.get("vectors").path])
    with running(served) as (address, _):
        hold = Hold(served.get("vectors"))

        def ask(text: str) -> Any:
            answer = httpx.post(
                f"{address}/v1/embeddings", json={"model": "vectors", "input": text, "encoding_format": "base64"}
            )
            return np.frombuffer(b64decode(answer.json()["data"][0]["embedding"]), "<f4")

        with ThreadPoolExecutor(len(texts)) as threads:
            waiting = [threads.submit(ask, text) for text in texts]
            assert hold.begun.wait(30)
            while (
                httpx.get(f"{address}/metrics").text.split('regard_queue_length{model="vectors"} ')[1][:2]
                != f"{len(texts)}"
            ):
                pass
            hold.go.set()
            found = [each.result() for each in waiting]
        hold.release()
        metrics = httpx.get(f"{address}/metrics").text
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert max(map(len, hold.batches)) > 5
    read = re.search(r'regard_tokens_total\{model="vectors",side="read"\} (\S+)', metrics)
    assert read is not None
    assert float(read[1]) == sum(map(len, embedder.tokenizer.encode_batch(texts)))
    assert re.search(r'regard_requests_total\{method="POST",route="/v1/embeddings",status="200"\} 31\.0', metrics)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_either_engine_reads_a_text_alone(registry: Registry, engine: str) -> None:
    served = Registry([registry.get("classes").path], engine=engine)
    predictor = served.get().predictor()
    together = predictor.classify([*TEXTS, LONG])
    assert together == [predictor.classify(text) for text in (*TEXTS, LONG)]


def test_keys_and_limits_hold_here_too(registry: Registry) -> None:
    config = ServeConfig(explorer=False, api_keys=("one-key",), tokens=10)
    with running(registry, config) as (address, _):
        refused = httpx.post(f"{address}/embed", json={"inputs": "a"})
        assert (refused.status_code, refused.json()["error_type"]) == (401, "Validation")
        headers = {"Authorization": "Bearer one-key"}
        assert httpx.post(f"{address}/embed", json={"inputs": "a"}, headers=headers).status_code == 200
        long = httpx.post(f"{address}/embed", json={"inputs": [TEXTS[1], TEXTS[1]]}, headers=headers)
        assert (long.status_code, long.json()["error_type"]) == (422, "Validation")
        assert "exceed the limit of 10" in long.json()["error"]
    with running(registry, replace(config, api_keys=(), rate=1)) as (address, _):
        assert httpx.post(f"{address}/embed", json={"inputs": "a"}).status_code == 200
        slow = httpx.post(f"{address}/embed", json={"inputs": "a"})
        assert (slow.status_code, slow.json()["error_type"]) == (429, "Overloaded")
        assert int(slow.headers["Retry-After"]) > 0


def test_a_model_whose_numbers_are_none_is_said_to_be_damaged(tmp_path: Path) -> None:
    place = directory(tmp_path / "broken", "embed")
    model = storage.load(place)
    for matrix in model.parameters():
        matrix.data.mul_(1e30)  # numbers, of which none remain
    purpose = storage.purpose(place)
    storage.save(model, place, purpose)
    with running(Registry([place])) as (address, _):
        said = post(address, "/embed", 503, inputs="a good film")
    assert said["error_type"] == "Unhealthy"
    assert "the model broken cannot be used" in said["error"]


def test_hugging_faces_client_asks_every_kind_of_model(address: str, registry: Registry) -> None:
    def own(name: str) -> Any:
        return regard.load(registry.get(name).path, bitwise=True)

    def client(name: str) -> InferenceClient:
        return InferenceClient(model=f"{address}/models/{name}", token="none")

    found = client("classes").text_classification(TEXTS[0], top_k=2)
    expected = own("classes").classify(TEXTS[0], top=2).probabilities
    assert [(each.label, each.score) for each in found] == list(expected.items())
    assert np.array_equal(client("vectors").feature_extraction(TEXTS[0])[0], own("vectors").embed(TEXTS[0]))
    near = client("vectors").sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    assert near == pytest.approx(own("vectors").similarity([TEXTS[0]], TEXTS[1:])[0].tolist(), abs=1e-6)
    (gap,) = own("mask").fill("a <mask> film", top=3)
    filled = client("mask").fill_mask("a <mask> film", top_k=3)
    assert [(each.token_str, each.sequence, each.score) for each in filled] == list(
        zip(gap.tokens, gap.texts, gap.probabilities, strict=True)
    )
    assert own("mask").tokenizer.pieces([filled[0].token]) == [filled[0].token_str]
    tagged = client("tag").token_classification(TEXTS[1])
    spans = [(s.label, s.text, s.start, s.end, s.probability) for s in own("tag").tag(TEXTS[1]).spans]
    assert [(each.entity_group, each.word, each.start, each.end, each.score) for each in tagged] == spans
    reply = own("answer").answer("a good film", TEXTS[3])
    said: Any = client("answer").question_answering("a good film", TEXTS[3])
    assert (said.answer, said.score, said.start, said.end) == (reply.text, reply.probability, reply.start, reply.end)
    best: Any = client("answer").question_answering("a good film", TEXTS[3], top_k=2)
    assert [each.answer for each in best] == [s.text for s in own("answer").answer("a good film", TEXTS[3], top=2).best]


def test_its_client_asks_for_summaries(tmp_path: Path) -> None:
    purpose, tokens = Summarise(longest=16), Tokenizer.learn(TokensConfig("wordpiece", 80), TEXTS * 3)
    torch.manual_seed(1)
    model = Transformer(TransformerConfig.tiny(len(tokens), d_model=16, d_ff=32, heads=2))
    storage.save(model, tmp_path / "short", storage.Purpose(purpose.noted(), {}))
    tokens.save(tmp_path / "short" / "tokenizer.json")
    own = regard.load(tmp_path / "short")
    with running(Registry([tmp_path / "short"])) as (address, _):
        client = InferenceClient(model=f"{address}/models/short", token="none")
        assert client.summarization(TEXTS[0]).summary_text == own.summarise(TEXTS[0])
        said = post(address, "/models/short", 200, inputs=TEXTS, parameters={"num_beams": 1, "max_new_tokens": 5})
        assert [each["summary_text"] for each in said] == own.summarise(TEXTS, beam=1, limit=5)
        assert "is not supported" in post(address, "/models/short", 400, inputs="a", parameters={"top_k": 2})["error"]


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        ("classes", {"inputs": 7}, "inputs is a text, or a list of texts"),
        ("classes", {"inputs": "a", "parameters": {"top_k": "two"}}, "top_k = 'two': it is a whole number"),
        ("classes", {"inputs": "a", "parameters": {"top_k": 0}}, "top = 0: it must be at least 1"),
        ("mask", {"inputs": "no gap"}, "has no gap: write <mask>"),
        ("mask", {"inputs": "<mask>", "parameters": {"targets": ["a"]}}, "is not supported: leave it out"),
        ("answer", {"inputs": "a"}, "inputs is an object of question and context"),
        ("vectors", {"inputs": {"sentences": []}}, "inputs is an object of source_sentence and sentences"),
        ("vectors", {"inputs": "a", "prompt_name": "query"}, "prompt_name = 'query' is not supported"),
        ("vectors", {}, "missing inputs parameter"),
    ],
)
def test_its_errors_are_one_line(address: str, model: str, body: Any, message: str) -> None:
    said = post(address, f"/models/{model}", 400, **body)
    assert list(said) == ["error"]
    assert message in said["error"]
    assert "ask it by POST /v1/completions" in post(address, "/models/writer", 404, inputs="a")["error"]


def test_only_what_applies_is_shown(registry: Registry) -> None:
    def routes(*names: str) -> set[str]:
        with running(Registry([registry.get(name).path for name in names]), ServeConfig()) as (address, _):
            found = set(httpx.get(f"{address}/spec").json()["paths"])
            page = httpx.get(f"{address}/docs").text
            front.append(httpx.get(address, follow_redirects=False).headers["location"])
            shown.append(httpx.get(f"{address}/explore/api/models"))
            assert all(f"<code>{path}</code>" in page for path in found)
            assert all(f"<li>{name} is a" in page for name in names)
        return found - {"/health", "/ready", "/metrics", "/spec", "/docs", "/v1/models", "/v1/models/{id}"}

    front: list[str] = []
    shown: list[Any] = []
    any_kind = "/models/{id}"
    assert routes("classes") == {"/predict", any_kind}
    assert routes("two") == {"/predict", "/rerank", any_kind}
    assert routes("vectors") == {"/embed", "/rerank", "/v1/embeddings", any_kind}
    assert routes("vectors", "writer") == {"/embed", "/rerank", "/v1/embeddings", any_kind, "/v1/completions"}
    assert front == ["/explore/"] * 4
    assert [[each["id"] for each in about.json()["models"]] for about in shown] == [
        ["classes"],
        ["two"],
        ["vectors"],
        ["vectors", "writer"],
    ]
    assert shown[3].json()["default"] == "vectors"
