"""A folder as BEIR has them: documents, questions, and how well which document answers which question."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from regard.data.rows import RowFiles


class DocumentFiles(RowFiles):
    """corpus.jsonl, or queries.jsonl."""

    parts, optional = ("_id", "text"), ("title",)


class JudgementFiles(RowFiles):
    """What lies in qrels/."""

    parts = ("query-id", "corpus-id", "score")


class Judgements(NamedTuple):
    """What is to be found."""

    corpus: DocumentFiles
    questions: dict[str, str]  # those that were judged: text by id
    gains: dict[str, dict[str, float]]  # how much each document is wanted, by question

    def documents(self) -> Iterator[tuple[str, str]]:
        """The id of each document, and its title and text."""
        for row in self.corpus.read():
            yield str(row["_id"]), f"{row.get('title', '')} {row['text']}".strip()


def load(path: Path) -> Judgements:
    """What lies in a folder, judged as its qrels/test.tsv says, or the only one there; or as the one that is named."""
    folder = path if path.is_dir() else path.parent.parent
    corpus, queries = (_one(folder, name) for name in ("corpus.jsonl", "queries.jsonl"))
    gains: dict[str, dict[str, float]] = {}
    judgements = _qrels(path)
    for row in JudgementFiles(tsv=str(judgements)).read():
        try:
            gains.setdefault(row["query-id"], {})[row["corpus-id"]] = float(row["score"])
        except ValueError:
            raise ValueError(f"{judgements}: the score {row['score']!r} is no number") from None
    questions = {str(row["_id"]): str(row["text"]) for row in DocumentFiles(jsonl=str(queries)).read()}
    if missing := gains.keys() - questions.keys():
        raise ValueError(f"{judgements} judges {sorted(missing)[0]!r}, which is no question of {queries}")
    return Judgements(DocumentFiles(jsonl=str(corpus)), {id: questions[id] for id in gains}, gains)


def _one(folder: Path, name: str) -> Path:
    """A file, packed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"{folder} has no {name}: a folder of BEIR's has corpus.jsonl, queries.jsonl and qrels/test.tsv")


def _qrels(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted((path / "qrels").glob("*.tsv"))
    named = [each for each in found if each.name == "test.tsv"] or found
    if len(named) != 1:
        what = f"has {', '.join(each.name for each in found)}: name one of them" if found else "has no .tsv"
        raise ValueError(f"{path / 'qrels'} {what}")
    return named[0]
