"""A graph in the explorer: a page that draws it, and answers that change as heads are switched off."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

import regard
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.serving.servers import directory, running

GRAPH = {"nodes": ["a", "b", "b"], "edges": [[0, 1], [1, 2]]}


def graph_reader(place: Path) -> Path:
    """A directory with a small model of graphs."""
    tokens = Tokenizer.learn(TokensConfig("none", 0), ["a b -"])
    torch.manual_seed(0)
    shape = {"layers": 2, "d_model": 16, "d_ff": 16, "heads": 2}
    net = build(configure("graphormer-tiny", vocabulary=len(tokens)).but(**shape), HeadConfig("classes", 2))
    for x in net.parameters():
        x.data += 0.3 * torch.randn_like(x)
    storage.save(net, place, storage.Purpose({"name": "graph", "labels": ["x", "y"], "reading": {"reach": 5}}, {}))
    tokens.save(place / "tokenizer.json")
    return place


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph_reader(tmp_path_factory.mktemp("models") / "nets")


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    registry = Registry([directory(model.parent / "words"), model])
    with running(registry, ServeConfig(explorer=True)) as (found, _):
        yield found


def test_the_page_draws_the_graph_that_it_is_given(url: str) -> None:
    answer = httpx.get(f"{url}/explore/graph", params={"graph": json.dumps(GRAPH)})
    assert answer.status_code == 200
    data = json.loads(answer.text.split('id="data">')[1].split("</script>")[0])
    assert (data["nodes"], data["edges"], data["model"]) == (["a", "b", "b"], [[0, 1, "-"], [1, 2, "-"]], "nets")
    assert "connect-src 'self'" in answer.headers["Content-Security-Policy"]
    assert httpx.get(f"{url}/explore/graph").status_code == 200  # an example
    listed = {each["id"]: each for each in httpx.get(f"{url}/explore/api/models").json()["models"]}
    assert "look at /explore/graph?model=nets" in listed["nets"]["error"]


def test_a_head_that_is_off_changes_the_answer_for_who_asks_alone(url: str, model: Path) -> None:
    ours = regard.load(model)
    name = ours.attention(GRAPH)[0].name
    with regard.edit(ours.model, {name: {0: 0.0, 1: 0.0}}):
        expected = ours.classify(GRAPH).probabilities
    ask = {"model": "nets", "graph": json.dumps(GRAPH)}
    plain = httpx.post(f"{url}/explore/api/graph", json=ask).json()
    off = httpx.post(f"{url}/explore/api/graph", json={**ask, "edits": {name: {0: 0.0, 1: 0.0}}}).json()
    assert off["said"] == " · ".join(f"{label} {p:.1%}" for label, p in expected.items())
    assert off["said"] != plain["said"]
    assert httpx.post(f"{url}/explore/api/graph", json=ask).json()["said"] == plain["said"]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"graph": "{"}, "Expecting"),
        ({"graph": '{"nodes": 2, "edges": [[0, 7]]}'}, "numbered from 0 to 1"),
        ({"graph": '{"nodes": 9000, "edges": []}'}, "9,000 nodes"),
        ({"graph": json.dumps(GRAPH), "edits": {"nobody": {0: 0.0}}}, "no attention is named 'nobody'"),
        ({"graph": json.dumps(GRAPH), "model": "words"}, "it reads no graphs"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(url: str, ask: dict[str, object], said: str) -> None:
    answer = httpx.post(f"{url}/explore/api/graph", json=ask)
    assert answer.status_code in (400, 404)
    assert said in answer.text
    assert "Traceback" not in answer.text
