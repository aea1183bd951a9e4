"""The verbs of an index of documents: index, ask; and what `regard search` asks of one."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Batched, Lines, Said
from regard.cli.read import Verb
from regard.cli.read import _read as read_all
from regard.shipped import located
from regard.tasks.uses import AskUse, EmbedUse, SearchUse


def _answer_cells(found: Any, use: AskUse) -> Iterator[list[str]]:
    yield [
        found.text or f"nothing fits: {found.why}",
        *([] if found.probability is None else [f"{found.probability:.4f}"]),
    ]
    for each in found.citations if found.text else ():
        yield ["", each.place, f"{each.score:.4f}", " ".join(each.text.split())]


def _answer_row(found: Any) -> dict[str, Any]:
    row = asdict(found)
    return {"answer": row.pop("text"), **row}


ANSWERS = Verb("embed", "asking", _answer_cells, _answer_row, ("question",))


def index(
    documents: Path,  # `DOCUMENTS` a folder or file of text, Markdown, HTML, PDF; a .tsv, .csv, .jsonl; BEIR's; images
    index: Path,  # `INDEX` the folder to keep what is found by: a new one, or one that is to be brought up to date
    *,
    model: Path | None = None,  # a model directory, of a model that embeds
    unit: str | None = None,  # what a document of a text is: passage, line, paragraph, file (default: passage)
    characters: int | None = None,  # of a passage, at most, if its sentences are not longer (default: 600)
    column: list[str] | None = None,  # `PART=PLACE` where in a table a part stands, as text=abstract or id=0
    near: str | None = None,  # how vectors are found: exact, ivf, hnsw (default: exact)
    ray: str | None = None,  # `ADDRESS` embed on the machines of a Ray cluster; local: one here
    settings: Annotated[dict[str, Any], Said(EmbedUse)],
    engine: Batched,
) -> None:
    """Build an index of documents, or bring one up to date: what has not changed is not read again. An interrupted run
    goes on where it was."""
    from regard.api import load, told
    from regard.cli import look
    from regard.cli.bulk import spreading
    from regard.cli.telling import going_on, telling
    from regard.data.shelf import PICTURE, SETTINGS, SeenFiles, Shelf
    from regard.data.text import Skipped, count_of
    from regard.tasks.index import Index

    known = vars(Shelf.at(index)) if (index / SETTINGS).is_file() else {}
    if model is None and not known:
        raise ValueError(f"{index} is a new index: say by --model what is to embed its documents")
    said: dict[str, Any] = {
        "model": model and str(located(model).absolute()),
        "unit": unit,
        "characters": characters,
        "near": near,
    }
    said |= {"columns": column and tuple(column), **settings, "documents": str(documents.absolute())}
    if pictures := told(located(said["model"] or known["model"])).task.name == "match":
        if unit or characters or column or near or ray:
            raise ValueError(
                "an index of pictures has no --unit, --characters, --column, --near or --ray: leave them out"
            )
        said["unit"] = PICTURE
    shelf = Shelf(**known | {name: value for name, value in said.items() if value is not None})
    skipped, use = Skipped(), SearchUse(shelf.dimensions, shelf.long)
    if pictures:
        from regard.tasks.gallery import Gallery

        with going_on(index):
            look.renew(Gallery(load(shelf.model, **vars(engine)), index, name=shelf.model, use=use), documents)
        shelf.save(index)
        return
    opening = partial(load, shelf.model, task="embed", **vars(engine))
    embedder = opening()
    found = Index(embedder, index, name=shelf.model, use=use, near=shelf.near)
    seen = SeenFiles(found.store, [shelf.documents, shelf.unit, shelf.characters])
    work = spreading(ray, embedder, opening, [Path(shelf.model)], engine)
    with going_on(index), work as spread, telling("indexing") as progress:
        new = found.renew(shelf.source().read(skipped, seen), progress, spread)
        found.words()
        seen.save()
        shelf.save(index)
    same = f", {count_of(seen.kept, 'file')} as before" if seen.kept else ""
    typer.echo(f"{count_of(len(found), 'passage')}, {count_of(new, 'new text')} embedded{same}: {index}", err=True)
    if skipped.report():
        typer.echo(f"note: {skipped.report()}", err=True)


def ask(
    index: Path,  # `INDEX` an index of documents, as `regard index` builds it
    questions: list[str] | None = None,  # `QUESTION|FILE` what to ask (default: stdin)
    *,
    reader: Path,  # `MODEL` what reads the passages: a model to answer, or a language model that can chat
    embedder: Path | None = None,  # `--model` `MODEL` where the model of the index is (default: where it was)
    rerank: Path | None = None,  # `MODEL` rank what is found by a model that classifies pairs
    settings: Annotated[dict[str, Any], Said(AskUse)],
    lines: Lines,
    engine: Batched,
) -> None:
    """Answer questions from documents, and say where each answer stands: file, page and line; or that nothing fits."""
    from regard.cli.bulk import about_models
    from regard.data.shelf import is_index

    if not is_index(index):
        raise ValueError(f"{index} is no index: build one by `regard index DOCUMENTS INDEX --model MODEL`")
    about: dict[str, Any] = {"rerank": str(rerank)}
    if lines.output is not None:
        about["reader"] = about_models([located(reader)], precision=engine.precision)

    def asking(found: Any) -> Any:
        from regard.api import load
        from regard.tasks.ask import Asker

        return Asker(found, load(reader, **vars(engine)), AskUse(found.use.dimensions, found.use.long))

    embeds = replace(engine, precision=None)  # which is the reader's: vectors are as they were made
    of_index(ANSWERS, index, embedder, questions, lines, embeds, settings, about, rerank, asking)


def of_index(
    kind: Verb,
    folder: Path,
    model: Path | None,
    questions: list[str] | None,
    lines: Lines,
    engine: Batched,
    settings: dict[str, Any],
    about: dict[str, Any],
    rerank: Path | None,
    asking: Callable[[Any], Any] = lambda index: index,
) -> None:
    """Ask an index, whose model is read as other models are."""
    from regard.cli import look
    from regard.data.shelf import PICTURE, Shelf

    shelf = Shelf.at(folder)
    place = located(model or shelf.model)
    if not place.is_dir():
        raise ValueError(f"{place}, the model of {folder}, is not there: say where it is by --model")
    if shelf.unit == PICTURE:
        if kind is ANSWERS or rerank is not None or settings.get("by", "meaning") != "meaning":
            raise ValueError(f"{folder} is an index of pictures: `regard search` finds them, by their looks alone")
        look.search(kind, place, None, questions or [], folder, settings, lines, engine)
        return

    def make(embedder: Any) -> Any:
        from regard.tasks.index import Index

        use = SearchUse(settings.get("dimensions", shelf.dimensions), settings.get("long", shelf.long))
        found = Index.open(embedder, folder, name=str(place), use=use, reranker=ranker(rerank, engine), near=shelf.near)
        about["documents"] = found.store.documents
        return asking(found)

    read_all(kind, [place], several(questions), lines, engine, settings, make=make, about=about)


def ranker(model: Path | None, engine: Batched) -> Any:
    """What ranks what is found, if a person names it."""
    from regard.api import load

    return None if model is None else load(model, task="classify", **vars(engine))


def several(queries: list[str] | None) -> Any:
    """Several queries, unless they are files: each is a line of a text."""
    from os.path import exists

    from regard.cli.bulk import LIKE_A_FILE

    if queries and not any(query == "-" or exists(query) or LIKE_A_FILE.fullmatch(query) for query in queries):
        return "\n".join(queries)
    return queries
