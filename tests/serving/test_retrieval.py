"""An index over HTTP: what is found and what is answered is what Python says, and a page asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import regard
from regard import cli
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.chats import CHATML, talker
from tests.readers import directory
from tests.serving.servers import running

STORY = "A dog runs in the park.\nTwo men sit on a bench.\n\nThe film is awful, and long. A good film is fine.\n"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("served")
    (root / "notes").mkdir()
    (root / "notes" / "story.txt").write_text(STORY)
    made = directory(root / "embed", "embed")
    done = CliRunner().invoke(
        cli.app, ["index", str(root / "notes"), str(root / "notes.index"), "--model", str(made), "--characters", "30"]
    )
    assert done.exit_code == 0, done.exception
    answer, (_, chat) = directory(root / "answer", "answer"), talker(root / "t", "bytes", CHATML)
    return [root / "notes.index", answer, chat, root / "notes"]


@pytest.fixture(scope="module")
def address(places: list[Path]) -> Iterator[str]:
    with running(Registry(places[:3]), ServeConfig()) as (where, _):
        yield where


def post(address: str, path: str, status: int = 200, **body: Any) -> Any:
    answer = httpx.post(f"{address}{path}", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_search_and_ask_say_what_python_says(address: str, places: list[Path]) -> None:
    index, answerer = regard.load(places[0], bitwise=True), regard.load(places[1], bitwise=True)
    hits = post(address, "/search", query="who sits?", top=2)["hits"]
    expected = index.search("who sits?", top=2)
    assert [(hit["id"], hit["text"]) for hit in hits] == [(hit.id, hit.text) for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected])
    assert {(hit["file"], hit["page"]) for hit in hits} == {("story.txt", None)}
    words = post(address, "/search", query="a bench", top=1, by="words")["hits"]
    assert (words[0]["text"], words[0]["line"]) == ("Two men sit on a bench.", 2)
    found, said = post(address, "/ask", question="who sits?"), index.ask("who sits?", answerer)
    assert (found["answer"], found["citations"][0]["line"]) == (said.text, said.citations[0].line)
    written = post(address, "/ask", question="who sits?", reader="ours", top=1)
    assert written["answer"]
    assert post(address, "/ask", question="who sits?", least=1.0)["why"] == "no passage is near enough"


def test_what_cannot_be_asked_is_refused(address: str, places: list[Path]) -> None:
    assert "without words" in post(address, "/ask", 400, question="?!")["error"]
    assert "without words" in post(address, "/search", 400, query=" ")["error"]
    post(address, "/search", 400, query="x", by="sense")
    assert "is an index of documents: ask it by POST /search" in str(
        post(address, "/v1/embeddings", 404, input="x", model="notes.index")
    )
    assert "a question is answered by" in post(address, "/ask", 404, question="who?", reader="notes.index")["error"]
    assert post(address, "/search", 404, query="x", index="answer")["error"].startswith("answer is a")
    with running(Registry(places[:1])) as (alone, _):
        assert "no model is served that reads passages" in post(alone, "/ask", 404, question="who?")["error"]


def test_the_page_and_the_lists_know_of_it(address: str) -> None:
    home = httpx.get(address, follow_redirects=True, timeout=60)
    assert home.url.path == "/ask"
    assert "connect-src 'self'" in home.headers["content-security-policy"]
    assert "/ask" in httpx.get(f"{address}/openapi.json", timeout=60).json()["paths"]
    assert "notes.index is an index of documents" in httpx.get(f"{address}/docs", timeout=60).text
    ready = httpx.get(f"{address}/ready", timeout=60).json()["models"]
    assert ready["notes.index"] != "missing"
    models = httpx.get(f"{address}/explore/api/models", timeout=60).json()
    assert models["default"] == "answer"


def test_a_renewed_index_is_searched_anew(address: str, places: list[Path]) -> None:
    (places[3] / "more.md").write_text("Cats sleep.")
    assert CliRunner().invoke(cli.app, ["index", str(places[3]), str(places[0])]).exit_code == 0
    assert post(address, "/search", query="cats", top=1, by="words")["hits"][0]["file"] == "more.md"
