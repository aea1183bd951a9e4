"""One base in memory and many LoRAs by name: asked together, added and removed while the server runs."""

import json
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

import regard
from regard.core.outputs import HeadConfig
from regard.models import storage
from regard.serving.config import ServeConfig
from regard.serving.queue import Queue
from regard.serving.registry import Registry
from regard.tasks import company
from tests.adaptation.models import taught
from tests.readers import TEXTS
from tests.readers import directory as reader
from tests.serving.servers import directory as translator
from tests.serving.servers import running
from tests.serving.toys import LINES, writer

BASES = ("writer", "vectors", "classes", "en-es")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def lora(base: Path, path: Path, seed: int = 1, head: HeadConfig | None = None, **more: Any) -> Path:
    """A directory that adds to another one."""
    changes = more.pop("changes", [{"lora": {"rank": 2}}])
    about = storage.purpose(base)
    torch.manual_seed(seed)
    model = storage.begin(base, storage.config(base), head or storage._read(base).head, changes)
    storage.save(taught(model, seed), path, storage.Purpose({**about.task, **more}, about.use) if about else None)
    for name in ("tokenizer.json", "recipe.yaml", storage.TEMPLATE):
        if (base / name).exists():
            shutil.copy(base / name, path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    bases = {
        "writer": writer(folder / "writer", TEMPLATE),
        "vectors": reader(folder / "vectors", "embed"),
        "classes": reader(folder / "classes", "classify"),
        "en-es": translator(folder / "en-es"),
    }
    for name, base in bases.items():
        for n in range(3):
            lora(base, folder / f"{name}-{n}", n)
    more = {"labels": ["no", "yes"], "hidden": None}
    lora(bases["classes"], folder / "two", 7, HeadConfig("classes", 2, pool="first", dropout=0.1), **more)
    return folder


@pytest.fixture(scope="module")
def registry(place: Path) -> Registry:
    names = [f"{name}-{n}" for name in BASES for n in range(3)]
    return Registry([place / name for name in ("writer-1", *BASES, "two", *(n for n in names if n != "writer-1"))])


def test_all_are_models_of_their_own_for_a_client(client: openai.OpenAI, registry: Registry) -> None:
    assert [model.id for model in client.models.list()] == registry.ids
    assert (len(registry.ids), registry.ids[:3]) == (17, ["writer-1", "writer", "vectors"])
    assert client.models.retrieve("writer-2").id == "writer-2"
    assert [served.base.id for served in registry if served.base is not None and served.joins] == [
        served.id.rpartition("-")[0] or "classes" for served in registry if served.base is not None
    ]


def test_they_are_asked_at_once_by_every_route_and_each_says_what_it_says_alone(
    place: Path, client: openai.OpenAI, address: str
) -> None:
    http = httpx.Client(base_url=address, timeout=60)

    def asked(kind: str, name: str, text: str) -> Any:
        if kind == "completion":
            found = client.completions.create(model=name, prompt=text, max_tokens=8, temperature=0)
            return found.choices[0].text
        if kind == "chat":
            messages: Any = [{"role": "user", "content": text}]
            said = client.chat.completions.create(model=name, messages=messages, max_tokens=8, seed=3)
            return said.choices[0].message.content
        if kind == "vector":
            return client.embeddings.create(model=name, input=text, encoding_format="float").data[0].embedding
        if kind == "classes":
            return http.post("/predict", json={"inputs": text, "model": name, "raw_scores": True}).json()
        return http.post("/translate", json={"q": text, "source": "en", "target": "es", "model": name}).json()

    kinds = {"completion": "writer", "chat": "writer", "vector": "vectors", "classes": "classes", "text": "en-es"}
    asks = [
        (kind, f"{name}-{n}" if n < 3 else name, text)
        for kind, name in kinds.items()
        for n in range(4)
        for text in (LINES if kind not in ("vector", "classes") else TEXTS)[:3]
    ] + [("classes", "two", text) for text in TEXTS]
    alone = [asked(*ask) for ask in asks]
    with ThreadPoolExecutor(len(asks)) as clients:
        for _ in range(3):
            assert list(clients.map(lambda ask: asked(*ask), asks)) == alone
    said = {ask: json.dumps(found) for ask, found in zip(asks, alone, strict=True)}
    for kind, name in kinds.items():  # and none says what another does
        text = (LINES if kind not in ("vector", "classes") else TEXTS)[1]
        assert len({said[kind, f"{name}-{n}", text] for n in range(3)} | {said[kind, name, text]}) == 4
    for n in range(3):
        model = regard.load(place / f"vectors-{n}")
        assert alone[asks.index(("vector", f"vectors-{n}", TEXTS[0]))] == pytest.approx(
            model.embed(TEXTS[0]).tolist(), abs=1e-5
        )
    labels = [each["label"] for each in alone[asks.index(("classes", "two", TEXTS[0]))]]
    assert {*labels} == {"no", "yes"}


def test_requests_to_a_base_and_its_loras_are_one_batch(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.native import NativeReader
    from regard.serving.metrics import Metrics
    from regard.serving.reading import PredictRequest, predict

    reads: list[int] = []
    outputs = NativeReader.outputs

    def counted(self: Any, texts: Any, *more: Any) -> Any:
        reads.append(len(texts))
        return outputs(self, texts, *more)

    monkeypatch.setattr(NativeReader, "outputs", counted)
    metrics, config = Metrics(), ServeConfig(wait_ms=10_000)
    lead = Queue(registry.get("classes"), config, metrics)
    queues = [lead, *(Queue(registry.get(id), config, metrics, lead) for id in ("classes-0", "classes-1", "two"))]
    try:
        questions = [predict(PredictRequest(inputs=[[text] for text in TEXTS])) for _ in queues]
        jobs = [queue.prepare(ask) for queue, ask in zip(queues, questions, strict=True)]
        lead.coming = 4
        futures = [queue.submit(job) for queue, job in zip(queues, jobs, strict=True)]
        lead.coming = 0
        with lead._change:
            lead._change.notify()
        lead.config = ServeConfig(wait_ms=0)
        found = [future.result(30) for future in futures]
    finally:
        for queue in queues[1:] + queues[:1]:
            queue.close()
    assert reads == [4 * len(TEXTS)]
    for queue, answers in zip(queues, found, strict=True):
        assert answers == queue.served.predictor().answers(questions[0].asks, queue.served.predictor().use)


@pytest.fixture
def folder(place: Path, tmp_path: Path) -> Iterator[tuple[Path, str, Registry]]:
    """A server of a base and a folder of LoRAs."""
    loras = tmp_path / "loras"
    lora(place / "writer", loras / "first", 1)
    made = Registry([place / "writer"], loras)
    with running(made) as (address, _):
        yield loras, address, made


def test_they_come_and_go_while_the_server_runs(
    place: Path, folder: tuple[Path, str, Registry], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "regard.serving")
    loras, address, made = folder
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

        def say(name: str) -> str:
            return client.completions.create(model=name, prompt="a dog", max_tokens=8, temperature=0).choices[0].text

        def names() -> list[str]:
            return [model.id for model in client.models.list()]

        assert names() == ["writer", "first"]
        first = say("first")
        with pytest.raises(openai.NotFoundError, match="no model 'next': there are writer, first"):
            say("next")
        lora(place / "writer", tmp_path / "next", 2).rename(loras / "next")
        assert say("next") not in (first, say("writer"))
        assert names() == ["writer", "first", "next"]
        shutil.rmtree(loras / "next")
        lora(place / "writer", loras / "next", 1)
        assert say("next") == first  # it is another one now
        coming = client.completions.create(model="next", prompt="a", max_tokens=60, temperature=0, stream=True)
        begun = next(iter(coming)).choices[0].text
        shutil.rmtree(loras / "next")
        with pytest.raises(openai.NotFoundError, match="no model 'next': there are writer, first"):
            say("next")
        rest = "".join(piece.choices[0].text for piece in coming if piece.choices)
        alone = client.completions.create(model="first", prompt="a", max_tokens=60, temperature=0).choices[0].text
        assert begun + rest == alone  # who was being answered was answered to the end
        assert names() == ["writer", "first"]
        assert say("first") == first
        assert 'regard_model_loaded{model="next"}' not in httpx.get(f"{address}/metrics").text
    assert not made.gone
    assert [each.message for each in caplog.records if "served" in each.message] == [
        f"{loras / 'next'} is served: it adds to writer",
        f"{loras / 'next'} is not served any more",
        f"{loras / 'next'} is served: it adds to writer",
        f"{loras / 'next'} is not served any more",
    ]


def test_what_is_no_lora_of_a_served_model_is_told_and_hurts_nobody(
    place: Path, folder: tuple[Path, str, Registry], caplog: pytest.LogCaptureFixture
) -> None:
    loras, address, made = folder
    (loras / "empty").mkdir()
    (loras / "file").write_text("no directory")
    (loras / "broken").mkdir()
    (loras / "broken" / storage.CONFIG).write_text("{")
    shutil.copytree(place / "vectors-1", loras / "other")
    shutil.copytree(place / "vectors", loras / "plain")
    shutil.copytree(place / "writer-1", loras / "half")
    (loras / "half" / storage.WEIGHTS).unlink()
    shutil.copytree(place / "writer-2", loras / "writer")
    shutil.copytree(place / "writer-2", loras / "damaged")
    (loras / "damaged" / storage.WEIGHTS).write_bytes(b"nothing")
    assert made.ids == ["writer", "damaged", "first"]
    told = "\n".join(each.message for each in caplog.records if each.levelno == logging.ERROR)
    about = storage.adding(place / "vectors-1")
    assert about is not None
    served = storage.summed(place / "writer")
    assert f"(digest {about.digest[:12]}), which is not served: there is {place / 'writer'} ({served[:12]})" in told
    assert f"{loras / 'plain'} is not served: it adds to no other model" in told
    assert f"{loras / 'half'} is not served: it has no model.safetensors" in told
    assert f"{loras / 'broken'} is not served: " in told
    for name, status in {
        "other": 404,
        "..": 404,
        "first/../../x": 404,
        "a\0b": 404,
        "x" * 5000: 404,
        "damaged": 503,
    }.items():
        found = httpx.post(f"{address}/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 2})
        assert found.status_code == status, name
    shutil.copy(place / "writer-2" / storage.WEIGHTS, loras / "damaged")
    shutil.copy(place / "writer-2" / storage.WEIGHTS, loras / "half")
    for name in ("damaged", "half", "first", "writer"):
        found = httpx.post(f"{address}/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 2})
        assert found.status_code == 200, found.text
    shutil.rmtree(loras)
    assert made.ids == ["writer"]


def test_two_of_one_name_and_another_base_are_errors_at_once(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "writer-1", tmp_path / "writer-1")
    config = json.loads((tmp_path / "writer-1" / storage.CONFIG).read_text())
    config["base"]["path"] = str(place / "writer")
    (tmp_path / "writer-1" / storage.CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"writer-1 and .*writer-1 have one name, by which they are asked"):
        Registry([place / "writer", place / "writer-1", tmp_path / "writer-1"])
    with pytest.raises(ValueError, match=r"writer-1 and .*writer-1 have one name, by which they are asked"):
        Registry([place / "writer", place / "writer-1"], tmp_path)
    with pytest.raises(ValueError, match="there is no such folder"):
        Registry([place / "writer"], tmp_path / "nowhere")
    alone = Registry([tmp_path / "writer-1", place / "vectors"]).get("writer-1")  # its base is not served
    assert alone.base is None
    assert alone.predictor().generate("a dog", limit=3)
    config["base"]["path"] = str(place / "vectors")
    (tmp_path / "writer-1" / storage.CONFIG).write_text(json.dumps(config))
    digest = config["base"]["digest"][:12]
    with pytest.raises(
        ValueError, match=f"adds to another model than that in .*vectors: its digest is .*, not {digest}"
    ):
        Registry([tmp_path / "writer-1"])
    found = Registry([tmp_path / "writer-1", place / "writer"])  # found by its digest
    assert found.ids == ["writer-1", "writer"]
    assert found.get("writer-1").base is found.get("writer")
    assert found.get("writer-1").predictor().generate("a dog", limit=3)


@pytest.mark.parametrize("change", ["adapter", "prompt", "prefix", "ia3", "biases"])
def test_other_additions_share_the_base_and_stand_in_a_line_of_their_own(
    place: Path, tmp_path: Path, change: str
) -> None:
    path = lora(place / "writer", tmp_path / "more", changes=[{change: {}}])
    found = Registry([place / "writer", path])
    more, base = found.get("more"), found.get("writer").predictor()
    assert (more.base, more.joins) == (found.get("writer"), False)
    assert {id(p) for p in base.model.parameters()} < {id(p) for p in more.predictor().model.parameters()}
    assert more.predictor().tokenizer is base.tokenizer
    assert more.predictor().generate("a dog", limit=5) == regard.load(path).generate("a dog", limit=5)


def test_who_works_alone_meets_nobody_and_a_meeting_ends_though_some_fail() -> None:
    asked: list[list[int]] = []

    def double(asks: Any) -> list[int]:
        asked.append(sorted(asks))
        if 13 in asks:
            raise ValueError("thirteen")
        return [2 * ask for ask in asks]

    def work(*rounds: int) -> list[int]:
        return [company.together("double", [n], double)[0] for n in rounds]

    assert work(1, 2) == [2, 4]
    with ThreadPoolExecutor(4) as threads:
        done = company.meet([lambda: work(1, 2, 3), lambda: work(4), lambda: work(), lambda: [1 // 0]], threads)
        assert [each.result(5) for each in done[:3]] == [[2, 4, 6], [8], []]
        with pytest.raises(ZeroDivisionError):
            done[3].result(5)
        assert asked[2:] == [[1, 4], [2], [3]]
        failing = company.meet([lambda: work(13), lambda: work(5)], threads)
        assert [str(each.exception(5)) for each in failing] == ["thirteen"] * 2
