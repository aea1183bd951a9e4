"""What models that see are shown by the command, or those that hear: files, folders of them, tables that name them."""

import json
import os
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
) -> None:
    """Say of each picture, after its path, what a verb of this kind tells of it; what answers is what a model is made
    into.

    One that cannot be opened is named on standard error, and left out; if none can be, that is an error.
    """
    from regard.api import load
    from regard.cli.read import UNSAID
    from regard.data.labelled_pictures import PictureFiles
    from regard.data.pictures import PictureError, in_groups
    from regard.data.recordings import SoundFiles
    from regard.data.sound import SoundError
    from regard.files import write_whole

    files = SoundFiles if kind.task == "hear" else PictureFiles
    if lines.resume:
        raise ValueError(f"--resume is for texts: of {files.called} all are taken again")
    if lines.output is not None and lines.output.exists() and not lines.overwrite:
        raise ValueError(f"{lines.output} is already there: name another file, or say --overwrite")
    how = {key: value for key, value in vars(engine).items() if key != "attended"}
    predictor = make(load(list(map(located, models)), task=kind.task, **how))
    use, written, left = replace(predictor.use, **settings), list[str](), list[ValueError]()

    def answered(asks: list[Any]) -> Iterator[tuple[Any, Any]]:
        try:
            yield from zip(asks, predictor.answers(asks, use), strict=True)
        except (PictureError, SoundError) as error:
            if len(asks) == 1:
                left.append(error)
            else:  # one of them: each by itself
                for ask in asks:
                    yield from answered([ask])

    for some in in_groups(_asks(shown, lines.jsonl, files), TOGETHER):
        for ask, answer in answered(some):
            if lines.objects:
                told = {key: value for key, value in kind.row(answer).items() if key not in UNSAID}
                row = {"id": ask.id, files.parts[0]: ask.place, **told}
                said = json.dumps({key: x for key, x in row.items() if x is not None}, ensure_ascii=False)
            else:
                said = "\n".join("\t".join([ask.place, *cells]) for cells in kind.cells(answer, use))
            if lines.output is None:
                typer.echo(said)
            written.append(said)
    if not written:
        raise left[0] if len(left) == 1 else ValueError(f"none of {len(left):,} {files.called} can be read: {left[0]}")
    for error in left:
        typer.echo(f"skipped: {error}", err=True)
    if left:
        typer.echo(f"note: {len(left):,} of {len(left) + len(written):,} {files.called} were left out", err=True)
    if lines.output is not None:
        write_whole(lines.output, "".join(f"{each}\n" for each in written))


def _asks(shown: list[str], jsonl: bool, files: Any) -> Iterator[Any]:
    """What is named: such files, those of a folder, or of a table; without any name, the paths on standard input."""
    from regard.tasks.viewer import Viewed

    names: Any = shown or (line.rstrip("\n") for line in sys.stdin if line.strip())
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = sorted(Path(at) / each for at, _, names in os.walk(path) for each in names if files.takes(each))
            if not found:
                raise ValueError(f"{path} has no {files.called[:-1]} in it: name a folder that has, or a file")
            yield from (Viewed(str(each), str(each)) for each in found)
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
