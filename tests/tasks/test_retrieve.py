"""An index is built once, brought up to date, searched in several ways, and asked: answers say where they stand."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data import collection
from regard.data.near import Near
from regard.data.words import Bm25
from regard.tasks.answer import Reply
from regard.tasks.ask import NONE, PROMPT, Asker, Put
from regard.tasks.asks import Completion
from regard.tasks.index import Hit, Index, fused, nearest, unit
from tests.chats import CHATML, talker
from tests.readers import TEXTS, directory

WORDS = ("a dog runs", "two men", "the film", "in the park", "is awful", "a bench", "fine", "and long", "good")
MANY = [f"{a}, {b}" for a in WORDS for b in WORDS]  # 81 documents
STORY = "A dog runs in the park.\nTwo men sit on a bench.\n\nThe film is awful, and long. A good film is fine.\n"
HITS = [Hit("a.txt:7", "Nobody\nknows.", 0.9), Hit("b.pdf#page=2:3", "It is\nParis, in France.", 0.8)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {name: directory(root / name, name) for name in ("embed", "answer")}
    made["none"] = directory(root / "none", "answer", unanswerable=True)
    made["pairs"] = directory(root / "pairs", "classify", labels=("no", "yes"))
    return made | {"talker": talker(root / "talker", "bytes", CHATML, max_position_embeddings=1_000)[1]}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "inner").mkdir(parents=True)
    (folder / "story.txt").write_text(STORY)
    (folder / "inner" / "page.html").write_text("<h1>Dogs</h1>\n<p>A dog is\ngood.</p>")
    (folder / "broken.txt").write_bytes(b"\xff\xfe")
    return folder


def run(*arguments: Any, stdin: str = "") -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin)


def clusters(n: int, d: int = 32) -> Any:
    draw = np.random.default_rng(0)
    return unit(draw.normal(size=(40, d))[draw.integers(0, 40, n)] + 0.5 * draw.normal(size=(n, d)))


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_what_is_proposed_holds_the_nearest_and_grows_with_the_rows(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss", reason="needs faiss")
    from regard.data import near

    monkeypatch.setattr(near, "BLOCK", 512)
    vectors, queries = clusters(3_000), clusters(3_060)[3_000:]
    live = np.ones(3_000, bool)
    live[::3] = False
    found = Near(tmp_path, kind)
    found.grow(vectors[:2_000])
    again = Near(tmp_path, kind)
    assert len(again) == 2_000
    again.grow(vectors)
    (tmp_path / "once").mkdir()
    once = Near(tmp_path / "once", kind)
    once.grow(vectors)
    for which in (np.ones(3_000, bool), live):
        numbers = np.flatnonzero(which)
        truth = [{int(numbers[n]) for n, _ in row} for row in nearest(queries, [vectors[which]], 10)]
        said = again.rows(queries, 10, which)
        assert all(which[row].all() for row in said)
        share = [len(best & {*row.tolist()}) / 10 for best, row in zip(truth, said, strict=True)]
        assert np.mean(share) > 0.9
        alone = [again.rows(query[None], 10, which)[0].tolist() for query in queries]
        assert alone == [row.tolist() for row in said]  # in any company
    (tmp_path / "once" / f"near-{kind}.faiss").unlink()
    twice = Near(tmp_path / "once", kind)
    twice.grow(vectors)
    assert [x.tolist() for x in twice.rows(queries, 10, live)] == [x.tolist() for x in once.rows(queries, 10, live)]
    again.path.write_bytes(b"no index")
    with pytest.raises(ValueError, match=r"is damaged .*: remove it, and `regard index` again"):
        Near(tmp_path, kind)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_scores_are_exact_whatever_proposes(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    pytest.importorskip("faiss", reason="needs faiss")
    embedder = regard.load(models["embed"])
    exact = Index.build(embedder, MANY, tmp_path / "exact")
    index = Index.build(embedder, [("gone", "something else"), *MANY, ("twice", MANY[4])], tmp_path / "near", near=kind)
    index.renew([*MANY, ("twice", MANY[4])])
    expected = {hit.text: hit.score for hit in exact.search(MANY[4], top=81)}
    found = index.search(MANY[4], top=3)
    assert [hit.id for hit in found][:2] == ["5", "twice"]
    assert all(hit.score == expected[hit.text] for hit in found)
    assert index.near is not None
    index.near.path.unlink()  # as if its building had been interrupted
    again = Index.open(embedder, tmp_path / "near", near=kind)
    assert [hit.text for hit in again.search(TEXTS[0], top=5)][:1] == [exact.search(TEXTS[0], top=1)[0].text]


def test_words_and_both(models: dict[str, Path], tmp_path: Path) -> None:
    index = Index.build(regard.load(models["embed"]), MANY, tmp_path / "index")
    words = Bm25.build(MANY, tmp_path / "words")
    question = "is a good film fine?"
    by_words = index.answers([regard.tasks.reader.Given(question)], regard.tasks.uses.SearchUse(by="words", top=5))[0]
    assert [(int(hit.id) - 1, hit.score) for hit in by_words] == words.search(question, 5)
    by_meaning = [(int(hit.id) - 1, hit.score) for hit in index.search(question, top=20)]
    both = index.answers(
        [regard.tasks.reader.Given(question)], regard.tasks.uses.SearchUse(by="both", top=5, candidates=20)
    )[0]
    expected = fused([by_meaning, words.search(question, 20)])[:5]
    assert [(int(hit.id) - 1, hit.score) for hit in both] == expected
    index.renew(MANY[:3])
    assert len(index.words()) == 3  # those of others are not kept
    assert len(list((tmp_path / "index").glob("words-*"))) == 1


def test_a_span_is_cited_where_it_begins() -> None:
    context = "\n\n".join(hit.text for hit in HITS)
    start = context.index("Paris")
    found = Put(None, HITS).answered(Reply("Paris", start, start + 5, 0.7, 0.1))
    assert (found.text, found.probability, found.why) == ("Paris", 0.7, "")
    (cited,) = found.citations
    assert (cited.file, cited.page, cited.line, cited.score) == ("b.pdf", 2, 4, 0.8)
    assert cited.text[cited.start : cited.end] == "Paris"
    assert cited.place == "b.pdf, page 2, line 4"
    nothing = Put(None, HITS).answered(Reply("", None, None, 0.9, 0.9))
    assert (nothing.text, nothing.why) == ("", "no passage that was read tells it")


@pytest.mark.parametrize(
    ("said", "text", "places"),
    [
        ("Paris [2]", "Paris", ["b.pdf, page 2, line 4"]),
        ("Paris.", "Paris.", ["b.pdf, page 2, line 4"]),  # in which it stands
        ("Paris [1]", "Paris", ["a.txt, line 7"]),  # what it says is cited, though it does not hold it
        ("It is Paris", "It is Paris", ["b.pdf, page 2, line 3"]),  # over a line end
        ("Rome", "Rome", ["a.txt, line 7", "b.pdf, page 2, line 3"]),  # nowhere: all that was read
        (NONE.capitalize() + ".", "", ["a.txt, line 7", "b.pdf, page 2, line 3"]),
        ("[9]", "", ["a.txt, line 7", "b.pdf, page 2, line 3"]),
    ],
)
def test_what_is_written_is_cited(said: str, text: str, places: list[str]) -> None:
    found = Put(None, HITS).answered([Completion(said, [], 0.0, 0.0, [], "stop", [], [])])
    assert found.text == text
    assert [each.place for each in found.citations] == places
    assert bool(found.why) == (not text)


def test_a_reader_of_either_kind_reads_what_is_found(models: dict[str, Path], tmp_path: Path) -> None:
    index = Index.build(
        regard.load(models["embed"]), [(f"a.txt:{n}", text) for n, text in enumerate(MANY)], tmp_path / "i"
    )
    question = "who runs in the park?"
    hits = index.search(question, top=3)
    answerer = regard.load(models["answer"])
    found = index.ask(question, answerer, top=3)
    reply = answerer.answer(question, "\n\n".join(hit.text for hit in hits))
    assert found.text == reply.text
    assert found.probability == pytest.approx(reply.probability)
    assert found.citations[0].file == "a.txt"
    several = index.ask([question, "what is fine?"], answerer, top=3)
    assert several == [found, index.ask("what is fine?", answerer, top=3)]
    generator = regard.load(models["talker"])
    passages = "\n\n".join(f"[{n}] {hit.text}" for n, hit in enumerate(hits, start=1))
    said = generator.chat(PROMPT.format(passages=passages, question=question), beam=1, limit=64)
    written = index.ask(question, generator, top=3)
    assert written.text in said
    crowded = index.ask(question, generator, top=81)
    assert 0 < crowded.unread < 81  # of those that were found, some do not fit
    assert index.ask(question, answerer, least=1.0).why == "no passage is near enough"
    with pytest.raises(ValueError, match="a question without words"):
        index.ask("?!", answerer)
    with pytest.raises(ValueError, match="by a model to answer, or by a language model"):
        Asker(index, regard.load(models["embed"]))


def test_the_commands(models: dict[str, Path], notes: Path, tmp_path: Path) -> None:
    place = tmp_path / "notes.index"
    assert "say by --model" in str(run("index", notes, place).exception)
    built = run("index", notes, place, "--model", models["embed"], "--characters", 30)
    assert "new texts embedded" in built.stderr, built.exception
    assert "1 of the files could not be read" in built.stderr
    assert "broken.txt (" in built.stderr
    index = regard.load(place)
    assert [id for id, _ in index.store][:2] == ["inner/page.html:1", "story.txt:1"]
    again = run("index", notes, place)
    assert ", 0 new texts embedded, 2 files as before: " in again.stderr
    (notes / "more.md").write_text("# More\n\nSomething else.")
    assert ", 1 new text embedded, 2 files as before: " in run("index", notes, place).stderr
    index = regard.load(place)
    for by in ("meaning", "words", "both"):
        said = run("search", place, "a good film", "a dog", "--top", 2, "--by", by, "--json")
        rows = [json.loads(line) for line in said.stdout.splitlines()]
        use = regard.tasks.uses.SearchUse(by=by, top=2)
        expected = index.answers([regard.tasks.reader.Given(row["query"]) for row in rows], use)
        assert [row["hits"] for row in rows] == [[hit._asdict() for hit in some] for some in expected]
    assert run("search", place, "--top", 1, stdin="a dog\n").stdout.startswith("1\t")
    asked = run("ask", place, "who sits?", "--reader", models["answer"], "--json")
    row = json.loads(asked.stdout)
    assert row["answer"]
    assert row["citations"][0]["file"] in ("story.txt", "inner/page.html", "more.md")
    plain = run("ask", place, "who sits?", "--reader", models["answer"]).stdout.splitlines()
    assert plain[0].split("\t")[0] == row["answer"]
    assert f"line {row['citations'][0]['line']}" in plain[1]
    small = run("ask", place, "who sits?", "--reader", models["answer"], "--precision", "int8")
    assert small.exit_code == 0  # of the reader: the vectors are those of the model as it is
    silent = run("ask", place, "who sits?", "--reader", models["answer"], "--least", 1.0)
    assert silent.exception is None
    assert silent.stdout == "nothing fits: no passage is near enough\n"
    ranked = run("search", place, "who sits?", "--rerank", models["pairs"], "--top", 2)
    assert len(ranked.stdout.splitlines()) == 2


def test_what_is_wrong_is_said(models: dict[str, Path], notes: Path, tmp_path: Path) -> None:
    place = tmp_path / "notes.index"
    (tmp_path / "empty").mkdir()
    nothing = run("index", tmp_path / "empty", place, "--model", models["embed"])
    assert "has no document with text in it" in str(nothing.exception)
    assert not place.exists()
    moved = shutil.copytree(models["embed"], tmp_path / "moved")
    run("index", notes, place, "--model", moved)
    other = directory(tmp_path / "other", "embed", seed=9)
    for wrong, said in (
        (("search", place, "?!", "--by", "words"), "a question without words"),
        (("search", place, " "), "a question without words"),
        (("ask", place, "?!", "--reader", models["answer"]), "a question without words"),
        (("ask", models["embed"], "who?", "--reader", models["answer"]), "is no index: build one"),
        (("ask", place, "who?", "--reader", models["embed"]), "by a model to answer, or by a language model"),
        (("search", place, "who?", "--model", other), "has vectors of another model"),
        (("search", place, "who?", "--dimensions", 4), "has vectors of another model, or by other settings"),
        (("index", notes, place, "--model", other), "has vectors of another model"),
        (("search", place, "who?", "--unit", "file"), "is an index, and has its documents"),
        (("search", models["embed"]), "is no index: name a model, then documents"),
        (("index", notes, place, "--near", "tree"), "near = 'tree': choose exact, ivf or hnsw"),
    ):
        assert said in str(run(*wrong).exception), wrong
    shutil.rmtree(moved)
    assert "is not there: say where it is by --model" in str(run("search", place, "who?").exception)
    assert run("search", place, "who?", "--model", models["embed"]).exit_code == 0  # the same, elsewhere
    (place / "settings.json").write_text("{")
    assert "settings.json is damaged" in str(run("search", place, "who?").exception)
    (place / "settings.json").unlink()
    assert "is not finished" in str(run("search", place, "who?").exception)


def test_documents_that_are_damaged_are_named(models: dict[str, Path], notes: Path, tmp_path: Path) -> None:
    place = tmp_path / "notes.index"
    run("index", notes, place, "--model", models["embed"])
    (documents,) = place.glob("documents-*.jsonl")
    whole = documents.read_bytes()
    for content in (b"", whole[:-8], b"[" * 9 + whole[9:], whole.replace(b'", "', b'"# "')):
        documents.write_bytes(content)
        (notes / "more.md").touch()
        for command in (
            ("search", place, "a dog"),
            ("search", place, "a dog", "--by", "words"),
            ("index", notes, place),
        ):
            said = run(*command)
            assert isinstance(said.exception, ValueError), (content, command)
            assert "is damaged (" in str(said.exception)
            assert str(place) in str(said.exception)
    documents.unlink()
    assert "is damaged (" in str(run("search", place, "a dog").exception)


@pytest.mark.parametrize("at", [2, 3, 5, 6])
def test_a_full_disk_loses_nothing(
    models: dict[str, Path], notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    place = tmp_path / "notes.index"
    run("index", notes, place, "--model", models["embed"], "--characters", 30)
    before = run("search", place, "a dog").stdout
    (notes / "more.md").write_text("Something else.")
    calls, real = [0], os.fsync

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        failed = run("index", notes, place)
    assert "the disk is full; make room and say the same again" in str(failed.exception)
    assert not list(place.glob("documents.new"))
    after = run("search", place, "a dog")
    assert after.exit_code == 0, after.exception
    assert after.stdout in (before, run("search", place, "a dog").stdout)
    assert ": " in run("index", notes, place).stderr
    assert "Something else." in run("search", place, "Something else.", "--by", "words").stdout


@pytest.mark.slow
def test_a_disk_that_is_really_full(models: dict[str, Path], notes: Path, tmp_path: Path) -> None:
    disk, mount = tmp_path / "disk", ["mount", "-t", "tmpfs"]
    disk.mkdir()
    if subprocess.run([*mount, "-o", "size=256k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs to mount a small disk: Linux, and root")
    try:
        place = disk / "notes.index"
        assert run("index", notes, place, "--model", models["embed"], "--characters", 30).exit_code == 0
        before = run("search", place, "a dog").stdout
        (notes / "more.md").write_text("".join(f"{text}, number {n}.\n\n" for n, text in enumerate(MANY * 100)))
        failed = run("index", notes, place)
        assert "the disk is full; make room and say the same again" in str(failed.exception)
        assert run("search", place, "a dog").stdout == before
        subprocess.run([*mount[:1], "-o", "remount,size=64m", str(disk)], check=True)
        assert run("index", notes, place).exit_code == 0
        assert "number 99" in run("search", place, "number 99", "--by", "words").stdout
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # this process has files of it mapped


@pytest.mark.slow
def test_a_build_that_is_killed_goes_on(models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "many.txt"
    file.write_text("".join(f"{text}, number {n}\n\n" for n, text in enumerate(MANY * 40)))
    place = tmp_path / "index"
    command = [sys.executable, "-m", "regard", "index", str(file), str(place), "--model", str(models["embed"])]
    process = subprocess.Popen([*command, "--characters", "40"], stderr=subprocess.DEVNULL)
    while process.poll() is None and not ((place / "keys.b16").exists() and (place / "keys.b16").stat().st_size):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = (place / "keys.b16").stat().st_size // 16
    said = subprocess.run([*command, "--characters", "40"], capture_output=True, text=True, check=True).stderr
    new = int(said.split(" passages, ")[1].split()[0].replace(",", ""))
    assert done > 0
    assert new == len({t for _, t in regard.load(place).store}) - done


def test_the_store_keeps_what_it_has_where_the_documents_cannot_be_written(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(regard.load(models["embed"]), MANY[:5], tmp_path / "index")
    before = index.search(TEXTS[0])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(collection, "sync", full)
        with pytest.raises(OSError, match="No space left"):
            index.renew(MANY)
    assert index.search(TEXTS[0]) == before == regard.load(models["embed"]).search(TEXTS[0], tmp_path / "index")
    assert len(list((tmp_path / "index").glob("documents-*"))) == 2
    assert index.renew(MANY) == 0  # what was embedded is still known
