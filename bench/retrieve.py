"""Retrieval: how good, how quick and how large, beside bm25s and plain faiss.

    python bench/retrieve.py quality INDEX FOLDER           nDCG@10 of an index of BEIR's FOLDER by meaning, words, both
                       [--rerank MODEL]                    and the first 20 of both, ranked again
    python bench/retrieve.py pairs INDEX QRELS [--wrong N]  what answers and what does not, for a model to rank again
    python bench/retrieve.py speed [--passages N]           milliseconds of a search, recall, beside faiss's own indexes
    python bench/retrieve.py build PLACE [--passages N]     a build that is killed half way and goes on: time and memory
    python bench/retrieve.py articles SQUAD FOLDER          a text for each article that questions are asked of
    python bench/retrieve.py answers INDEX SQUAD --reader MODEL [--limit N] [--top N ...]   answers with the right
                                                           passage, with what is found, and with nothing

Passages of `speed` and `build` are made up: words drawn by Zipf's law, and vectors of 384 numbers around 2,000 centres
that overlap, in a space of 32. Nothing is embedded: that is the matter of bench/embed.py. Contestants take turns, a
question each; what is timed begins with the vector of a question. `recall` is the share of the exact ten nearest that
are found.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import resident
from rich.console import Console
from rich.table import Table

import regard
from regard.data import beir
from regard.data.collection import Document, Store
from regard.data.near import PART, REACH, Near
from regard.data.words import words_of
from regard.evaluation.retrieval import DEEPEST, ranks_judged
from regard.evaluation.spans import marked, of_marks
from regard.tasks.answer import QuestionFiles
from regard.tasks.ask import LIMIT, put_to, writing
from regard.tasks.index import Hit, Index, fused, unit
from regard.tasks.reader import Given
from regard.tasks.uses import SearchUse

WIDTH, INNER, CENTRES, BLOCK, TOP = 384, 32, 2_000, 1_000, 10
RERANKED = 20  # passages that are read with a question
CLOSED = "Answer the question in a few words.\n\nQuestion: {question}"
console = Console()


class _Vector(NamedTuple):
    vector: Any


class MadeUp:
    """What stands in for an embedder: the vector of a passage is a function of its number."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self.centres, self.out = draw.normal(size=(CENTRES, INNER)), draw.normal(size=(INNER, WIDTH))

    def vectors(self, texts: Iterator[str]) -> Iterator[Any]:
        while numbers := [int(text.split(" ", 1)[0]) for _, text in zip(range(BLOCK), texts, strict=False)]:
            yield self.some(numbers[0], len(numbers))

    def some(self, first: int, count: int) -> Any:
        draw = np.random.default_rng([2, first])
        inner = self.centres[draw.integers(0, CENTRES, count)] + 0.6 * draw.normal(size=(count, INNER))
        return unit(inner @ self.out + 0.3 * draw.normal(size=(count, WIDTH)))

    def answers(self, asks: list[Given], _: Any) -> list[_Vector]:
        return [_Vector(ask.id) for ask in asks]


def passages(count: int) -> Iterator[Document]:
    """Forty words each."""
    vocabulary = np.array([f"w{n}" for n in range(50_000)])
    for first in range(0, count, BLOCK):
        draw = np.random.default_rng([3, first])
        for n, row in enumerate(vocabulary[(50_000 ** draw.random((BLOCK, 40))).astype(int) - 1], start=first):
            yield Document(f"made-up.txt:{n}", f"{n} {' '.join(row)}")


def index_at(place: Path, near: str) -> Index:
    """An index of what is made up."""
    index = Index.__new__(Index)
    index.embedder, index.reranker, index.use = MadeUp(), None, SearchUse()  # type: ignore[assignment]
    index.store = Store(place, "made up", "made up", WIDTH)
    index.near = None if near == "exact" else Near(place, near)
    index._words = index._sorted = None
    return index


def build(place: Path, count: int, near: str, words: bool) -> None:
    """Build it, or go on; tell how long it took."""
    began, index = time.monotonic(), index_at(place, near)
    new = index.store.renew(passages(count), index.embedder.vectors)  # type: ignore[attr-defined]
    stored = time.monotonic() - began
    if index.near is not None:
        index.near.grow(index.store.vectors())
    listed = time.monotonic() - began - stored
    if words:
        index.words()
    counted = time.monotonic() - began - stored - listed
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    console.print(
        f"{len(index):,} passages, {new:,} vectors made: stored in {stored:.0f} s, {near} {listed:.0f} s, words "
        f"{counted:.0f} s; at most {peak:,.0f} MiB in memory, of which files are mapped"
    )


def killed_and_gone_on(arguments: argparse.Namespace) -> None:
    """The same in processes of their own; the first one ends by SIGKILL when half of the vectors are there."""
    command = [sys.executable, *sys.argv, "--child"]
    vectors = Path(arguments.place) / "vectors.f32"
    process = subprocess.Popen(command)
    while process.poll() is None and not (vectors.exists() and vectors.stat().st_size > 2 * WIDTH * arguments.passages):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    console.print(f"killed when {vectors.stat().st_size // (4 * WIDTH):,} vectors were on the disk")
    subprocess.run(command, check=True)
    index = index_at(Path(arguments.place), arguments.near)
    size = sum(path.stat().st_size for path in Path(arguments.place).rglob("*") if path.is_file())
    before = resident()
    queries = [Given("", id=vector) for vector in MadeUp().some(10**9, 50)]
    for by in ("meaning", "words") if arguments.words else ("meaning",):
        took = []
        for query in queries:
            ask = (
                query if by == "meaning" else Given(" ".join(f"w{random.Random(1).randrange(2_000)}" for _ in range(8)))
            )
            began = time.perf_counter()
            index.answers([ask if by == "words" else Given("x", id=query.id)], SearchUse(by=by, top=TOP))
            took.append(1e3 * (time.perf_counter() - began))
        console.print(f"by {by}: p50 {np.percentile(took, 50):.1f} ms, p99 {np.percentile(took, 99):.1f} ms")
    console.print(f"{size / 2**20:,.0f} MiB on the disk; searching has added {resident() - before:,.0f} MiB, mapped")


def speed(count: int, rounds: int) -> None:
    """All contestants over the same passages."""
    import faiss

    with tempfile.TemporaryDirectory() as folder:
        place, made = Path(folder) / "index", MadeUp()
        index_at(place, "exact").store.renew(passages(count), made.vectors)
        ways: dict[str, Callable[[Any], Any]] = {}
        vectors = index_at(place, "exact").store.vectors()
        for kind in ("exact", "ivf", "hnsw"):
            index, began = index_at(place, kind), time.monotonic()
            if index.near is not None:
                index.near.grow(vectors)
                console.print(f"{kind}: built in {time.monotonic() - began:.0f} s")

            def ours(query: Any, index: Index = index) -> Any:
                (hits,) = index.answers([Given("x", id=query)], SearchUse(top=TOP))
                return [int(hit.id.rpartition(":")[2]) for hit in hits]

            ways[f"regard {kind}"] = ours
        flat = faiss.IndexFlatIP(WIDTH)
        lists = int(2 * np.sqrt(count))
        inverted = faiss.IndexIVFFlat(faiss.IndexFlatIP(WIDTH), WIDTH, lists, faiss.METRIC_INNER_PRODUCT)
        inverted.nprobe = max(1, lists // PART)
        graph = faiss.IndexHNSWFlat(WIDTH, 16, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efSearch = REACH
        inverted.train(np.ascontiguousarray(vectors[: 64 * lists]))
        for name, peer in (("flat", flat), ("ivf", inverted), ("hnsw", graph)):
            began = time.monotonic()
            peer.add(np.ascontiguousarray(vectors))
            console.print(f"faiss {name}: added in {time.monotonic() - began:.0f} s")
            ways[f"faiss {name}"] = lambda query, peer=peer: peer.search(query[None], TOP)[1][0].tolist()
        took: dict[str, list[float]] = {name: [] for name in ways}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for query in made.some(10**9, rounds):
            truth = {*ways["faiss flat"](query)}
            for name, way in ways.items():
                began = time.perf_counter()
                said = way(query)
                took[name].append(1e3 * (time.perf_counter() - began))
                found[name].append(len(truth & {*said}) / TOP)
    table = Table("", "p50, ms", "p99, ms", "recall@10")
    for name, times in took.items():
        row = [f"{np.percentile(times, at):.2f}" for at in (50, 99)]
        table.add_row(name, *row, f"{np.mean(found[name]):.3f}")
    console.print(table)


def quality(place: Path, given: Path, rerank: Path | None) -> None:
    """Every way to find, and bm25s, judged as BEIR does."""
    index, held = regard.load(place), beir.load(given)
    asks, texts = [Given(text, id=id) for id, text in held.questions.items()], [*held.questions.values()]
    table = Table("", "nDCG@10", "recall@100")

    def judged(name: str, rows: list[list[str]]) -> None:
        each = ([n for n in row if n != ask.id][:DEEPEST] for ask, row in zip(asks, rows, strict=True))
        found = ranks_judged(zip(each, held.gains.values(), strict=True))
        table.add_row(name, *(f"{found[figure].mean():.4f}" for figure in ("ndcg@10", "recall@100")))

    for by in ("meaning", "words", "both"):
        use = SearchUse(index.use.dimensions, index.use.long, DEEPEST + 1, by, DEEPEST + 1)
        judged(f"regard, by {by}", [[hit.id for hit in row] for row in index.answers(asks, use)])
    if rerank is not None:
        index.reranker = regard.load(rerank, task="classify")
        use = SearchUse(index.use.dimensions, index.use.long, RERANKED, "both", RERANKED)
        again = [[hit.id for hit in row] for row in index.answers(asks, use)]
        judged(f"the first {RERANKED} of both, re-ranked", again)
        index.reranker = None
        first = [[hit.id for hit in row] for row in index.answers(asks, use)]
        ranks = ([[(id, 0.0) for id in row] for row in rows] for rows in zip(first, again, strict=True))
        judged("the same, by the ranks before and after", [[id for id, _ in fused(rows)] for rows in ranks])
    exact = [{hit.id for hit in row} for row in index.search(texts, top=TOP)]
    for kind in ("ivf", "hnsw"):
        with tempfile.TemporaryDirectory() as folder:
            index.near = Near(Path(folder), kind)
            index.near.grow(index.store.vectors())
            use = SearchUse(index.use.dimensions, index.use.long, DEEPEST + 1)
            rows = [[hit.id for hit in row] for row in index.answers(asks, use)]
            share = np.mean([len(x & {*row[:TOP]}) / TOP for x, row in zip(exact, rows, strict=True)])
            judged(f"regard, by meaning, {kind} (of the exact ten nearest: {share:.3f})", rows)
    console.print(table)  # what took minutes; bm25s may not be there
    import bm25s

    table = Table("", *(column.header for column in table.columns[1:]))
    documents = list(index.store)
    for name, split in (("bm25s, the same words", words_of), ("bm25s, its own", None)):
        theirs = bm25s.BM25()
        plain = [text for _, text in documents]
        tokens: Any = [split(text) for text in plain] if split else bm25s.tokenize(plain, show_progress=False)
        theirs.index(tokens, show_progress=False)
        asked: Any = [split(text) for text in texts] if split else bm25s.tokenize(texts, show_progress=False)
        rows, _ = theirs.retrieve(asked, k=DEEPEST + 1, show_progress=False)
        judged(name, [[documents[n].id for n in row] for row in rows])
    console.print(table)


def pairs(place: Path, given: Path, wrong: int) -> None:
    """A JSON line of each question with a document that answers it (1), and with one of the first by meaning and words
    that does not (0), so many for each: those a model has to tell apart that ranks these again."""
    index, held, draw = regard.load(place), beir.load(given), random.Random(0)
    use = SearchUse(index.use.dimensions, index.use.long, RERANKED, "both", RERANKED)
    texts, asks = dict(held.documents()), [Given(text, id=id) for id, text in held.questions.items()]
    for ask, hits in zip(asks, index.answers(asks, use), strict=True):
        right = held.gains[ask.id]
        near = [hit.id for hit in hits if hit.id not in right]
        for id in [*right, *draw.sample(near, min(wrong * len(right), len(near)))]:
            print(json.dumps({"text": ask.text, "pair": texts[id], "label": int(id in right)}))


def articles(squad: Path, folder: Path) -> None:
    """Each article of a file as SQuAD has them, in a file of its own, a paragraph after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(json.loads(squad.read_text("utf-8"))["data"], start=1):
        text = "\n\n".join(paragraph["context"] for paragraph in each["paragraphs"])
        (folder / f"{number:02}.txt").write_text(f"{text}\n", "utf-8")


def answers(place: Path, squad: Path, reader: Path, limit: int, tops: list[int]) -> None:
    """Exact match and F1, where a reader is shown the right passage, what is found, or nothing."""
    index, model = regard.load(place), regard.load(reader)
    rows = list(QuestionFiles.at(squad).read())
    rows = random.Random(0).sample(rows, min(limit, len(rows)))
    wanted, questions = [row["answers"] for row in rows], [row["question"] for row in rows]
    contexts = [" ".join(row["context"].split()) for row in rows]
    table = Table("", "exact", "F1", "seconds", "cited")

    def judged(name: str, said: list[str], seconds: float, cited: str = "") -> None:
        found = of_marks(marked(wanted, said), np.arange(len(said)))
        table.add_row(name, f"{found['exact']:.3f}", f"{found['f1']:.3f}", f"{seconds:.0f}", cited)

    began = time.monotonic()
    puts = [put_to(model, *each) for each in zip(questions, [[Hit("", c, 1.0)] for c in contexts], strict=True)]
    said = [
        put.answered(each) for put, each in zip(puts, model.answers([p.ask for p in puts], writing(model)), strict=True)
    ]
    judged("the right passage", [each.text for each in said], time.monotonic() - began)
    for top in tops:
        began = time.monotonic()
        found = index.ask(questions, model, top=top)
        right = [
            any(" ".join(c.text.split()) in context for c in each.citations[:1] if each.text)
            for each, context in zip(found, contexts, strict=True)
        ]
        judged(f"the first {top}", [each.text for each in found], time.monotonic() - began, f"{np.mean(right):.2f}")
    if getattr(model, "template", None) is not None:
        began = time.monotonic()
        closed = [model.chat(CLOSED.format(question=each), beam=1, limit=LIMIT) for each in questions]
        judged("nothing", closed, time.monotonic() - began)
    console.print(table)
    for row, each in list(zip(rows, found, strict=True))[:5]:
        console.print(json.dumps([row["question"], row["answers"][:1], each.text, each.why], ensure_ascii=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["quality", "pairs", "speed", "build", "articles", "answers"])
    parser.add_argument("place", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--near", default="ivf")
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--rerank", type=Path)
    parser.add_argument("--wrong", type=int, default=2)
    parser.add_argument("--reader")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--top", type=int, nargs="+", default=[3])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what == "quality":
        quality(Path(given.place), Path(given.data), given.rerank)
    elif given.what == "pairs":
        pairs(Path(given.place), Path(given.data), given.wrong)
    elif given.what == "speed":
        speed(given.passages, given.rounds)
    elif given.what == "articles":
        articles(Path(given.place), Path(given.data))
    elif given.what == "answers":
        answers(Path(given.place), Path(given.data), Path(given.reader), given.limit, given.top)
    elif given.child:
        build(Path(given.place), given.passages, given.near, given.words)
    else:
        shutil.rmtree(given.place, ignore_errors=True)
        os.makedirs(Path(given.place).parent, exist_ok=True)
        killed_and_gone_on(given)


if __name__ == "__main__":
    main()
