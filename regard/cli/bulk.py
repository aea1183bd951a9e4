"""Files of any size through a model: in constant memory, in order, and a run that is interrupted goes on.

A run into a file notes beside it, in `OUT.progress`, what it is a run of, how far it has come, and a digest of what it
has read. Windows of lines are written whole, first the lines and then the note: after any interruption, the note names
a state that was on the disk. What is made of a window is made here, or on the machines of a cluster: the same windows,
written in the same order.
"""

import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice, tee
from os.path import basename, exists, isfile  # which answer for a name that is too long, too
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from regard.checks import hint
from regard.cli.options import Engine, Lines
from regard.cli.telling import EVERY
from regard.cluster import Do, Spread, here, there
from regard.data.text import Skipped, check_text, decoded, from_json, named, open_bytes, read_lines
from regard.files import digest, lock, write_whole
from regard.tasks.asks import Ask, listed, windows

ONE, SEVERAL, NUMBER, ANYTHING = "text", "a list of texts", "a whole number from 0", "anything"  # under a key of JSON
ASKED = {"text": ONE, "prefix": ONE, "require": SEVERAL, "forbid": SEVERAL, "seed": NUMBER, "id": ANYTHING}
PROMPTED = {"prompt": ONE, "seed": NUMBER, "id": ANYTHING}
CUT = "ended before the form was complete: --limit N lets it write more"
REMEMBERED = 1_000  # lines that were typed
NAMED = 5  # lines that a note names before it only counts them
LIKE_A_FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z]\w{0,9}")  # what has a slash or a suffix, and no space
LIKE_A_NAME = re.compile(r"[A-Za-z0-9_-]+")
Written = list[str] | NDArray[np.float32]
# What is written of (ask, answer) by what has answered, if so many were asked before.
Form = Callable[[Any, list[tuple[Any, Any]], int], Written]


class Portion(NamedTuple):
    """Asks that are answered together, and what was read when the last of them was."""

    asks: list[Any]
    first: int  # how many there were before
    read: str  # a digest of all lines until here
    bytes: int


def named_texts(names: Sequence[str], *, models: bool = False) -> tuple[list[Path], str | None]:
    """What arguments name: files, or else one text itself; without any, standard input. They might be `models`, too.

    What is not there is text, if it stands alone and does not look like the name of a file.
    """
    missing = [name for name in names if name != "-" and not exists(name)]
    text = names[0] if missing and len(names) == 1 and not LIKE_A_FILE.fullmatch(names[0]) else None
    if missing and text is None:
        what = "neither a model directory nor a text file" if models else "no file that is there"
        raise ValueError(
            f"{missing[0]} is {what}: text itself goes into one pair of quotation marks, or to standard input"
        )
    if text is not None and LIKE_A_NAME.fullmatch(text):
        typer.echo(f"note: there is no file {'or model ' if models else ''}{text}: read as text", err=True)
    return [] if text is not None else [Path(name) for name in names or ["-"]], text


def whole_text(name: str | None) -> str:
    """A text, or what stands in the file that is named, or in standard input."""
    files, text = named_texts([] if name is None else [name])
    if text is not None:
        return text
    check_texts(files)
    with nullcontext(sys.stdin.buffer) if str(files[0]) == "-" else open_bytes(str(files[0])) as stream:
        return decoded(stream.read(), f"{named(files[0])}:").removesuffix("\n")


def check_texts(names: Iterable[str | Path]) -> None:
    """Refuse files that a model would have to see or hear."""
    from regard.data.labelled_pictures import PictureFiles
    from regard.data.recordings import SoundFiles

    for name in map(str, names):
        for kind, does in ((PictureFiles, "sees"), (SoundFiles, "hears")):
            if kind.takes(basename(name)) and isfile(name):
                raise ValueError(f"{name} is a {kind.called[:-1]}, and texts are read here: ask a model that {does}")


class Input:
    """What the lines of some files, or of a text, ask for, each once; "-" is standard input: of a terminal, a prompt.

    `ask` makes a question of what stands in a line: in JSON the values of such `keys`, else the first of them. The
    reader knows what it has read: how many bytes, and a digest of the lines.
    """

    def __init__(
        self,
        files: Sequence[Path],
        text: str | None = None,
        *,
        jsonl: bool,
        errors: str,
        ask: Callable[..., Any] = Ask,
        keys: Mapping[str, str] = ASKED,
        cut: bool = True,
    ) -> None:
        """A line that is too long may be `cut`, but for JSON: the beginning of an object is none."""
        check_texts(files)
        self.files, self.jsonl, self.errors, self.text = files, jsonl, errors, text
        self.cut = cut and not jsonl
        self.ask, self.keys = ask, keys
        self.typed = [str(file) for file in files] == ["-"] and sys.stdin.isatty()
        self.skipped, self.bytes, self._seen = Skipped(), 0, hashlib.sha256()
        self._asks = self._read()

    def __iter__(self) -> Iterator[Any]:
        return self._asks

    def window(self, asks: list[Any], first: int) -> Portion:
        """The asks that were read last, after so many others."""
        return Portion(asks, first, self._seen.hexdigest()[:16], self.bytes)

    def windows(self, first: int) -> Iterator[Portion]:
        """All that is still to be asked, after so many others: many at a time, or each as it is typed."""
        for asks in ([ask] for ask in self) if self.typed else windows(self):
            yield self.window(asks, first)
            first += len(asks)

    def _read(self) -> Iterator[Any]:
        if self.text is not None:
            yield from self._asked("text", self.text.splitlines() or [""])
        for file in self.files:
            if self.typed:
                lines = _typed()
            else:
                lines = read_lines(file, cut=self.cut, skipped=self.skipped, errors=self.errors, may_be_empty=True)
            yield from self._asked(named(file), lines)

    def _asked(self, name: str, lines: Iterable[str]) -> Iterator[Any]:
        for number, line in enumerate(lines, start=1):
            raw = f"{line}\n".encode()
            self._seen.update(raw)
            self.bytes += len(raw)
            place = f"{name}:{number}"
            yield self.ask(
                place=place, **(row_of(line, place, self.keys) if self.jsonl else {next(iter(self.keys)): line})
            )


def _typed() -> Iterator[str]:
    """What a person types, line by line, until end of file."""
    with history("history"):
        while True:
            try:
                yield input("> " if sys.stdout.isatty() else "")
            except EOFError:
                return


@contextmanager
def history(name: str) -> Iterator[None]:
    """At a terminal, lines can be edited, and those of earlier times found again; nobody else may read them."""
    try:
        import readline  # which `input` then uses
    except ImportError:  # as on Windows
        readline = None  # type: ignore[assignment]
    if readline is None or not sys.stdout.isatty():
        yield
        return
    past = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "regard" / name
    with suppress(OSError):  # a line is answered also where none can be kept
        past.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(past, os.O_CREAT | os.O_WRONLY, 0o600))
        readline.read_history_file(past)
    readline.set_history_length(REMEMBERED)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(past)


def row_of(line: str, place: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    """What a line of JSON says: an object with the first of some keys, perhaps others of them, each of its kind."""
    first = next(iter(kinds))
    remedy = f': write {{"{first}": "..."}}'
    row = from_json(line, place, remedy)
    if not isinstance(row, dict) or not isinstance(row.get(first), str):
        raise ValueError(f"{place} is no object with a {first}{remedy}")
    for key, value in row.items():
        if key not in kinds:
            raise ValueError(f"{place}: unknown key {key!r}; {hint(key, kinds)}")
        # Whatever is ANYTHING is written again, as text.
        texts = {ONE: [value], SEVERAL: value, ANYTHING: [json.dumps(value, ensure_ascii=False)]}.get(kinds[key], [])
        right = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not right or (kinds[key] == NUMBER and (type(value) is not int or value < 0)):
            raise ValueError(f"{place}: {key!r} is {kinds[key]}, got {json.dumps(value)[:40]}")
        for text in texts:
            check_text(text, key, place)
    return {key: tuple(value) if kinds[key] == SEVERAL else value for key, value in row.items()}


class Bar:
    """How many lines are done, how many in a second, and, on a terminal, how much of the files that is."""

    def __init__(self, reader: Input, doing: str, *, shown: bool) -> None:
        self._doing = doing
        regular = all(file.is_file() and file.suffix != ".gz" for file in reader.files)
        console = Console(stderr=True)
        columns = TextColumn("  {task.description}"), BarColumn(30), TaskProgressColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
        self._plain, self._told = shown and not console.is_terminal, time.monotonic()
        total = sum(file.stat().st_size for file in reader.files) if regular else None
        self._reader, self._task = reader, self._bar.add_task("", total=total)
        self.stop = self._bar.stop

    def start(self, lines: int) -> None:
        """Begin where so many were done before, which say nothing of how fast it goes."""
        self._before, self._began = lines, time.monotonic()
        self._bar.start()
        self.show(lines, self._reader.bytes)

    def show(self, lines: int, read: int) -> None:
        """Show that so many are done, and with them so many bytes of what was read."""
        rate = (lines - self._before) / max(time.monotonic() - self._began, 1e-9)
        text = f"{lines:,} lines · {rate:,.0f} lines/s"
        self._bar.update(self._task, completed=read, description=text)
        if self._plain and time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            typer.echo(f"{self._doing}: {text}", err=True)


class Output:
    """Where the lines of answers go: standard output, or a file. Use it in `with`; it shows how far it has come.

    `about` says how the file is made: only a run of the same, of the same lines so far, goes on with it. The reader
    then stands behind what is done. `doing` is what it is called to make them.
    """

    def __init__(self, lines: Lines, about: dict[str, Any], reader: Input, doing: str = "translating") -> None:
        path, resume = lines.output, lines.resume
        self.path, self.about, self.reader, self.done = path, about, reader, 0  # asks whose lines are there
        shown = path is not None or not sys.stdout.isatty()
        self._bar = Bar(reader, doing, shown=shown and not reader.typed)
        self._file: IO[bytes] | None = None
        if path is None:
            return
        if resume and reader.typed:
            raise ValueError("--resume reads the input again, and what was typed is gone: name a file, or pipe it in")
        for file in reader.files:  # before anything is replaced
            if str(file) != "-" and (file.is_dir() or not os.access(file, os.R_OK)):
                raise ValueError(f"{file} is {'a directory' if file.is_dir() else 'not there, or not to be read'}")
        if any(file.exists() and path.exists() and file.samefile(path) for file in reader.files):
            raise ValueError(f"{path} is what is to be read: write to another file")
        if path.suffix == ".gz":
            raise ValueError(f"{path}: what is written here is not compressed: leave out .gz, or pipe it into gzip")
        self.note = path.with_name(f"{path.name}.progress")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        self._file = open(path, "xb" if new else "r+b")  # noqa: SIM115  closed by __exit__
        try:
            if not lock(self._file.fileno()):
                raise ValueError(f"another process is writing {path}: wait for its end, or write to another file")
            if not (new or lines.overwrite or resume):
                raise ValueError(f"{path} exists: go on with it by --resume, or replace it by --overwrite")
            if resume and not (new or self.note.exists()):
                raise ValueError(f"{path} is whole, or of another program: there is nothing to go on with")
            size = self._resumed() if resume and self.note.exists() else 0
            self._file.truncate(size)
            self._file.seek(size)
            self._write_note(reader.window([], self.done), size)
        except BaseException:
            self._file.close()
            if new:
                path.unlink()
            raise

    def __enter__(self) -> "Output":
        self._bar.start(self.done)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if self._file is not None:
            self._file.close()
            if kind is None or self.reader.typed:
                self.note.unlink()  # all is there, or typed and gone: nothing is left to go on with
            elif kind is KeyboardInterrupt:
                typer.echo(f"stopped after {self.done:,} lines: the same command with --resume goes on", err=True)

    def _resumed(self) -> int:
        assert self.path is not None
        try:
            note = json.loads(self.note.read_text("utf-8"))
            about, self.done, size, read = dict(note["about"]), int(note["done"]), int(note["bytes"]), note["read"]
            if min(self.done, size) < 0:
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError):
            raise ValueError(f"{self.note} is damaged: begin again by --overwrite") from None
        for key, value in json.loads(json.dumps(self.about)).items():
            if about.get(key) != value:
                raise ValueError(f"{self.path} was begun with {key} = {about.get(key)!r}, not {value!r}: use the same")
        if self.path.stat().st_size < size:
            raise ValueError(f"{self.path} is shorter than {self.note} says: begin again by --overwrite")
        for _ in islice(self.reader, self.done):
            pass
        if self.reader.window([], self.done).read != read:
            raise ValueError(
                f"{self.path} was made from an input whose first {self.done:,} lines are others: give the same, or "
                "begin again by --overwrite"
            )
        return size

    def write(self, lines: Written, window: Portion) -> None:
        """Add the lines of the asks that come next; or the rows of an array."""
        self.done += len(window.asks)
        if isinstance(lines, np.ndarray):
            assert self._file is not None
            self._file.seek(0)
            # The head of a .npy says how many rows there are; numpy leaves room in it for there to be more.
            head = {"descr": "<f4", "fortran_order": False, "shape": (self.done, lines.shape[1])}
            np.lib.format.write_array_header_1_0(self._file, head)
            self._file.seek(0, os.SEEK_END)
            self._file.write(lines.tobytes())
        else:
            text = "".join(f"{line}\n" for line in lines)
            if self._file is None:
                typer.echo(text, nl=False)
            else:
                self._file.write(text.encode())
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._write_note(window, self._file.tell())
        self._bar.show(self.done, window.bytes)

    def _write_note(self, window: Portion, size: int) -> None:
        note = {"about": self.about, "done": self.done, "bytes": size, "read": window.read}
        write_whole(self.note, json.dumps(note) + "\n")


def about_models(places: Sequence[Path], **how: Any) -> dict[str, Any]:
    """What an output hangs on: models, and how they are used."""
    files = ("config.json", "model.safetensors", "tokenizer.json")
    return {**how, **{name: [digest(each / name)[:16] for each in places] for name in files}}


def note_engine(predictor: Any, engine: str) -> None:
    """Say why what is quickest is not used."""
    if engine == "auto" and (reason := predictor.without_native):
        typer.echo(f"note: by PyTorch, for the native engine, which is quicker, cannot be used: {reason}", err=True)


def spreading(
    ray: str | None,
    opened: Any,
    opening: Callable[[], Any],
    places: Sequence[Path],
    engine: Engine,
    reader: Input | None = None,
) -> AbstractContextManager[Spread]:
    """Work by what was opened here; or, on a Ray cluster, by what its machines open, if they have the same models."""
    if ray is None:
        return nullcontext(here(opened))
    if reader is not None and reader.typed:
        raise ValueError("--ray is for much work, and what is typed is little: name a file, or pipe it in")
    own = partial(_same, opening, places, about_models(places))
    return there(ray, own, engine.workers, gpus=int(engine.device == "cuda"))


def _same(opening: Callable[[], Any], places: Sequence[Path], known: dict[str, Any]) -> Any:
    """What is opened where models are those that are known."""
    for place in places:
        if not (place / "config.json").is_file():
            raise ValueError(f"there is no model {place}")
    if about_models(places) != known:
        raise ValueError(f"{', '.join(map(str, places))}: another model than here")
    return opening()


def answering(settings: Any, form: Form, notes: "Notes") -> Do:
    """What is made of a window: what is written of it, and remarks."""

    def do(predictor: Any, window: Portion) -> tuple[Written, list[tuple[str, str]]]:
        both = list(zip(window.asks, predictor.answers(window.asks, settings), strict=True))
        return form(predictor, both, window.first), [remark for each in both for remark in notes.of(*each)]

    return do


def go_through(reader: Input, written: Output, spread: Spread, do: Do, notes: "Notes") -> None:
    """Answer all that is asked."""
    cut, sent = tee(reader.windows(written.done))
    for (lines, remarks), window in zip(spread(do, sent), cut, strict=True):
        written.write(lines, window)
        for remark in remarks:
            notes.say(*remark)


class Notes:
    """Remarks about lines, on standard error: of each kind the first few one by one, and how many there were."""

    def __init__(self, longest: int | None, cut: bool = False) -> None:
        """`cut`: of what is longer, the beginning alone was read."""
        self.longest, self._counts = longest, Counter[str]()
        self._long = ("the rest was not read", "were cut") if cut else ("read in parts", "were read in parts")

    def see(self, ask: Any, answer: Any) -> None:
        """Say what there is to remark."""
        for remark in self.of(ask, answer):
            self.say(*remark)

    def of(self, ask: Any, answer: Any) -> Iterator[tuple[str, str]]:
        """Remarks on what was too long to be read at once, and what the model cannot know: of each its kind, too."""
        long = f"{ask.place} goes on for more than {self.longest} sub-words"
        if getattr(answer, "cut", 0) or getattr(answer, "windows", 1) > 1:
            how, kind = self._long
            yield kind, f"{long}: {how}"
        if isinstance(answer, list) and any(getattr(each, "around", None) for each in answer):
            yield "were read around their gaps alone", f"{long}: read around each gap, and the rest was not read"
        if unknown := getattr(answer, "unknown", ()):
            about = f"{ask.place}: the model has no sub-words for {listed(unknown)}, and can only guess"
            yield "hold what the model has no sub-words for", about
        if isinstance(answer, list) and any(getattr(each, "complete", None) is False for each in answer):
            yield CUT, f"{ask.place} {CUT}"

    def say(self, kind: str, remark: str) -> None:
        """Say it, if there were not too many of its kind."""
        self._counts[kind] += 1
        if self._counts[kind] <= NAMED:
            typer.echo(f"note: {remark}", err=True)

    def report(self, skipped: Skipped) -> None:
        """What else there was."""
        for kind, count in self._counts.items():
            if count > NAMED:
                typer.echo(f"note: {count:,} lines in all {kind}", err=True)
        if skipped.report():
            typer.echo(f"note: {skipped.report()}", err=True)
