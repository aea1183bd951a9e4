"""What models that see or hear are shown by the command: files, folders of them, tables that name them; and graphs."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from regard.cli.options import Batched, Lines
from regard.shipped import located

TOGETHER = 64  # pictures that are answered at once


def look(
    kind: Any,
    models: list[Path],
    shown: list[str],
    lines: Lines,
    engine: Batched,
    settings: dict[str, Any],
    make: Callable[[Any], Any] = lambda model: model,
    part: str = "image",
) -> None:
    """Say of each picture, after its path, what a verb of this kind tells of it, or of each graph; what answers is what
    a model is made into.

    One that cannot be opened is named on standard error, and left out; if none can be, that is an error.
    """
    from regard.api import load
    from regard.cli.read import UNSAID
    from regard.data.graphs import GraphError
    from regard.data.labelled_pictures import PictureFiles
    from regard.data.pictures import PictureError, in_groups
    from regard.data.recordings import SoundFiles
    from regard.data.sound import SoundError
    from regard.data.text import count_of
    from regard.files import write_whole

    files: Any = {"image": PictureFiles, "sound": SoundFiles}.get(part)
    things = f"{part}s" if files is None else files.called
    if lines.resume:
        raise ValueError(f"--resume is for texts: of {things} all are taken again")
    if lines.output is not None and lines.output.suffix == ".npy":
        raise ValueError(f"{lines.output}: an array of numpy's is of texts; name a .jsonl, with --json")
    if lines.output is not None and lines.output.exists() and not lines.overwrite:
        raise ValueError(f"{lines.output} is already there: name another file, or say --overwrite")
    how = {key: value for key, value in vars(engine).items() if key != "attended"}
    predictor = make(load(list(map(located, models)), task=kind.task, **how))
    things = "videos" if getattr(getattr(predictor, "sight", None), "frames", 0) and part == "image" else things
    use, written, left = replace(predictor.use, **settings), list[str](), list[ValueError]()

    def answered(asks: list[Any]) -> Iterator[tuple[Any, Any]]:
        try:
            yield from zip(asks, predictor.answers(asks, use), strict=True)
        except (PictureError, SoundError, GraphError) as error:
            if len(asks) == 1:
                left.append(error)
            else:  # one of them: each by itself
                for ask in asks:
                    yield from answered([ask])

    named = {"graph": _graphs, "reaction": _reactions}.get(part)
    asks, looped = _asks(shown, lines.jsonl, files) if named is None else named(shown, lines.jsonl), 0
    for some in in_groups(asks, TOGETHER):
        for ask, answer in answered(some):
            looped += getattr(ask.image, "loops", 0) > 0
            if lines.objects:
                told = {key: value for key, value in kind.row(answer).items() if key not in UNSAID}
                row = {"id": ask.id, part: ask.place, **told}
                said = json.dumps({key: x for key, x in row.items() if x is not None}, ensure_ascii=False)
            else:
                said = "\n".join("\t".join([ask.place, *cells]) for cells in kind.cells(answer, use))
            if lines.output is None:
                typer.echo(said)
            written.append(said)
    if not written and not left:
        raise ValueError(f"there are no {things} to read: name some")
    if not written:
        raise left[0] if len(left) == 1 else ValueError(f"none of {len(left):,} {things} can be read: {left[0]}")
    _tell(left, len(written), things)
    if looped:
        typer.echo(f"note: {count_of(looped, 'graph')} had edges from a node to itself: these were left out", err=True)
    if unknown := getattr(predictor, "unknown", None):
        typer.echo(f"note: no training graph had {', '.join(sorted(unknown)[:9])}: they are read as unknown", err=True)
    if lines.output is not None:
        write_whole(lines.output, "".join(f"{each}\n" for each in written))


def _asks(shown: list[str], jsonl: bool, files: Any) -> Iterator[Any]:
    """What is named: such files, those of a folder, or of a table; without any name, the paths on standard input."""
    from regard.data.labelled_pictures import files_in
    from regard.tasks.viewer import Viewed

    names: Any = shown or (line.rstrip("\n") for line in sys.stdin if line.strip())
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from (Viewed(str(each), str(each)) for each in files_in(path, files))
        elif path.name.endswith((".jsonl", ".jsonl.gz")) or jsonl:
            yield from _listed(path, files.parts[0])
        elif not path.exists():
            raise ValueError(f"there is no file {name[:60]!r}: this model takes {files.called}, and reads no text")
        else:
            yield Viewed(name, name)


def _listed(path: Path, key: str) -> Iterator[Any]:
    from regard.data.text import from_json, read_lines
    from regard.tasks.viewer import Viewed

    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            held = from_json(line, f"{path}, line {number}", "; each line holds one object")
            image = held.get(key) if isinstance(held, dict) else None
            if not isinstance(image, str):
                example = {"image": "photo.jpg", "sound": "bell.wav"}[key]
                raise ValueError(f'{path}, line {number} names no file: write {{"{key}": "{example}"}}')
            yield Viewed(str(path.parent / image), image, held.get("id"))


def _tell(left: list[Any], seen: int, things: str = "pictures") -> None:
    """Name those that could not be seen, beside so many that could."""
    for error in left:
        typer.echo(f"skipped: {error}", err=True)
    if left:
        typer.echo(f"note: {len(left):,} of {len(left) + seen:,} {things} were left out", err=True)


def _found_cells(hits: Any, use: Any) -> Iterator[list[str]]:
    for rank, hit in enumerate(hits, start=1):
        yield [str(rank), f"{hit.score:.4f}", hit.path]


def renew(gallery: Any, folder: Path) -> None:
    """Have the pictures of a folder, and say how many those are."""
    from regard.cli.telling import telling
    from regard.data.text import count_of

    with telling("embedding") as progress:
        new = gallery.renew(folder, progress)
    where = gallery.store.path
    typer.echo(f"{count_of(len(gallery), 'picture')}, {count_of(new, 'new one')} embedded: {where}", err=True)
    _tell(gallery.bad, len(gallery))


def search(
    kind: Any,
    model: Path,
    folder: Path | None,
    queries: list[str],
    index: Path | None,
    settings: dict[str, Any],
    lines: Lines,
    engine: Batched,
) -> None:
    """Find the pictures of a folder, or without one those of an index, that are nearest to what is said, or to other
    pictures. Vectors are kept."""
    from hashlib import sha256

    from regard.cli.read import _read
    from regard.data.labelled_pictures import is_picture
    from regard.files import cache_folder
    from regard.tasks.uses import SearchUse

    where, about = sha256(str(folder and folder.absolute()).encode()).hexdigest()[:16], dict[str, Any]()
    kind = replace(kind, task="match", cells=_found_cells)

    def make(matcher: Any) -> Any:
        from regard.tasks.gallery import Gallery, sighted

        use = SearchUse(**vars(matcher.use) | settings)
        kept = index or cache_folder() / "search" / f"{where}-{sighted(matcher, use.embedding)[:16]}"
        found = Gallery(matcher, kept, name=str(model), use=use)
        if folder is not None:
            renew(found, folder)
        about["documents"] = found.store.documents
        return found

    if any(is_picture(query) and Path(query).is_file() for query in queries):
        look(kind, [model], queries, lines, engine, settings, make)
        return
    files = any(Path(query).is_file() or query == "-" for query in queries)
    texts: Any = queries if files or not queries else "\n".join(queries)
    _read(kind, [model], texts, lines, engine, settings, make=make, about=about)


def _graphs(shown: list[str], jsonl: bool) -> Iterator[Any]:
    """What is named: files of graphs, or molecules as SMILES; without any, SMILES on standard input."""
    from regard.data.labelled_graphs import GraphFiles
    from regard.tasks.viewer import Viewed

    endings = tuple(f".{way}{packed}" for way in (*GraphFiles.ways, "txt") for packed in ("", ".gz"))
    for name in shown or (line.strip() for line in sys.stdin if line.strip()):
        if Path(name).exists():
            files = GraphFiles(jsonl=name) if jsonl else GraphFiles.at(name)
            yield from (Viewed(row["graph"], row["name"]) for row in files.rows())
        elif name.endswith(endings):
            raise ValueError(f"there is no file {name[:60]!r}: name one, or molecules as SMILES")
        else:
            yield Viewed(name, name)


def _reactions(shown: list[str], jsonl: bool) -> Iterator[Any]:
    """What is named: reactions as SMILES, or files with one in each line; without any, those on standard input."""
    from regard.data.text import read_lines
    from regard.tasks.viewer import Viewed

    if jsonl:
        raise ValueError("--jsonl: reactions stand a line each in a file, or by themselves")
    for name in shown or sys.stdin:
        for line in read_lines(Path(name)) if ">" not in name and Path(name).exists() else [name]:
            if line.strip():
                yield Viewed(line.split()[0], line.split()[0])
