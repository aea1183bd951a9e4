"""Files of any size through a translator: in constant memory, in order, and a run that is interrupted goes on.

A run into a file notes beside it, in `OUT.progress`, what it is a run of and how far it has come. Windows of lines are
written whole, first the lines and then the note: after any interruption, the note names a state that was on the disk.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from regard.asks import Answer, Ask
from regard.data.text import NO_TEXT, Skipped, read_lines
from regard.files import write_whole

KEYS = ("text", "prefix", "require", "forbid", "id")  # of a line of JSON
NAMED = 5  # lines that a note names before it only counts them


def read_asks(files: Sequence[Path], *, jsonl: bool, errors: str, skipped: Skipped) -> Iterator[Ask]:
    """What the lines of some files ask for; "-" is standard input."""
    for file in files:
        name = "standard input" if str(file) == "-" else str(file)
        for number, line in enumerate(read_lines(file, skipped=skipped, errors=errors, may_be_empty=True), start=1):
            yield _ask(line, f"{name}:{number}") if jsonl else Ask(line, f"{name}:{number}")


def _no_constant(name: str) -> None:
    raise json.JSONDecodeError(f"it has no {name}", name, 0)


def _ask(line: str, place: str) -> Ask:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise ValueError(f'{place} is no JSON ({reason}): write {{"text": "..."}}') from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(f'{place} is no object with a text: write {{"text": "..."}}')
    for key, value in row.items():
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KEYS)}"
            raise ValueError(f"{place}: unknown key {key!r}; {hint}")
        texts = [value] if key in ("text", "prefix") else value if key in ("require", "forbid") else []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            kind = "text" if key in ("text", "prefix") else "a list of texts"
            raise ValueError(f"{place}: {key!r} is {kind}, got {json.dumps(value)[:40]}")
        if key == "id":
            texts = [json.dumps(value, ensure_ascii=False)]  # whatever it is: it is written again
        if any(NO_TEXT.search(text) for text in texts):
            raise ValueError(f"{place}: {key!r} holds a NUL or half a surrogate pair, which is no text; remove it")
    phrases = {key: tuple(row[key]) for key in ("require", "forbid") if key in row}
    return Ask(row["text"], place, row.get("id"), row.get("prefix", ""), **phrases)


class Bar:
    """On a terminal: how many lines are done, how many in a second, and how much of the files that is."""

    def __init__(self, files: Sequence[Path], *, shown: bool) -> None:
        regular = all(file.is_file() and file.suffix != ".gz" for file in files)
        console = Console(stderr=True)
        columns = TextColumn("  {task.description}"), BarColumn(30), TaskProgressColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
        self._task = self._bar.add_task("", total=sum(file.stat().st_size for file in files) if regular else None)
        self._began, self._lines = time.monotonic(), 0
        self.start, self.stop = self._bar.start, self._bar.stop

    def advance(self, asks: Sequence[Ask]) -> None:
        """Show that these are done."""
        self._lines += len(asks)
        rate = self._lines / max(time.monotonic() - self._began, 1e-9)
        size = sum(len(ask.text.encode()) + 1 for ask in asks)
        self._bar.update(self._task, advance=size, description=f"{self._lines:,} lines · {rate:,.0f} lines/s")


class Output:
    """Where the lines of answers go: standard output, or a file. Use it in `with`; it shows how far it has come.

    `about` says what the file is made from: only a run of the same goes on with it.
    """

    def __init__(
        self, path: Path | None, about: dict[str, Any], inputs: Sequence[Path], *, resume: bool, overwrite: bool
    ) -> None:
        self.path, self.about, self.done = path, about, 0  # asks whose lines are there
        self._bar = Bar(inputs, shown=path is not None or not sys.stdout.isatty())
        self._file: IO[bytes] | None = None
        if path is None:
            return
        for file in inputs:  # before anything is replaced
            if str(file) != "-" and (file.is_dir() or not os.access(file, os.R_OK)):
                raise ValueError(f"{file} is {'a directory' if file.is_dir() else 'not there, or not to be read'}")
        if any(file.exists() and path.exists() and file.samefile(path) for file in inputs):
            raise ValueError(f"{path} is what is to be translated: write to another file")
        self.note = path.with_name(f"{path.name}.progress")
        size = 0
        if resume and self.note.exists():
            size = self._resumed()
        elif resume and path.exists():
            raise ValueError(f"{path} is whole, or of another program: there is nothing to go on with")
        elif path.exists() and not overwrite:
            raise ValueError(f"{path} exists: go on with it by --resume, or replace it by --overwrite")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "r+b" if size else "wb")  # noqa: SIM115  closed by __exit__
        self._file.truncate(size)
        self._file.seek(size)
        self._write_note(size)

    def __enter__(self) -> "Output":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if self._file is not None:
            self._file.close()
            if kind is None:
                self.note.unlink()  # all is there: nothing is left to go on with
            elif kind is KeyboardInterrupt:
                typer.echo(f"stopped after {self.done:,} lines: the same command with --resume goes on", err=True)

    def _resumed(self) -> int:
        assert self.path is not None
        try:
            note = json.loads(self.note.read_text("utf-8"))
            about, self.done, size = dict(note["about"]), int(note["done"]), int(note["bytes"])
            if min(self.done, size) < 0:
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError):
            raise ValueError(f"{self.note} is damaged: begin again by --overwrite") from None
        for key, value in json.loads(json.dumps(self.about)).items():
            if about.get(key) != value:
                raise ValueError(f"{self.path} was begun with {key} = {about.get(key)!r}, not {value!r}: use the same")
        if (self.path.stat().st_size if self.path.exists() else 0) < size:
            raise ValueError(f"{self.path} is shorter than {self.note} says: begin again by --overwrite")
        return size

    def write(self, lines: Iterable[str], asks: Sequence[Ask]) -> None:
        """Add the lines of some asks."""
        text = "".join(f"{line}\n" for line in lines)
        self.done += len(asks)
        if self._file is None:
            typer.echo(text, nl=False)
        else:
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._write_note(self._file.tell())
        self._bar.advance(asks)

    def _write_note(self, size: int) -> None:
        write_whole(self.note, json.dumps({"about": self.about, "done": self.done, "bytes": size}) + "\n")


def about_files(models: Sequence[Path], files: Sequence[Path]) -> dict[str, Any]:
    """What distinguishes models and inputs from others: digests of the weights, names and digests of the inputs."""
    return {
        "model": [_digest(model / "model.safetensors") for model in models],
        "input": [[str(file), _digest(file) if file.is_file() else None] for file in files],
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


class Notes:
    """Remarks about lines, on standard error: the first few one by one, and how many there were."""

    def __init__(self, longest: int | None) -> None:
        self.longest, self.cut = longest, 0

    def see(self, ask: Ask, answer: Answer) -> None:
        """Remark on what was too long to be read at once."""
        if answer.cut:
            self.cut += 1
            if self.cut <= NAMED:
                typer.echo(f"note: {ask.place} goes on for more than {self.longest} sub-words: read in parts", err=True)

    def report(self, skipped: Skipped) -> None:
        """What else there was."""
        if self.cut > NAMED:
            typer.echo(f"note: {self.cut:,} lines in all were read in parts", err=True)
        if skipped.report():
            typer.echo(f"note: {skipped.report()}", err=True)
