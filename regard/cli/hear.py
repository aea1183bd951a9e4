"""The verb `regard transcribe`: sound files in, what is said in them out.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.checks import choose
from regard.cli.options import Engine, Said
from regard.files import write_whole
from regard.shipped import located
from regard.tasks.transcripts import FORMS, TranscribeUse, Transcript, piece

ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf")
NOTE = ".transcripts.progress"


def transcribe(
    model: Path,  # a model directory
    files: list[Path],  # `SOUND|FOLDER` what to listen to; -: what comes through a pipe, told while it does
    *,
    every: Annotated[float, typer.Option(min=0.1)] = 1.0,  # of a pipe: seconds after which it is heard anew
    rate: int = 16_000,  # of a pipe that is no WAV: samples in a second, whole numbers of 16 bits
    form: str = "txt",  # `--format` `FORM` what to write: txt, srt, vtt, json, or several, as txt,srt
    output: Path | None = None,  # `-o` `FOLDER` write here, a file for each sound (default: stdout)
    resume: bool = False,  # go on with a folder: what is there is not heard again
    overwrite: bool = False,  # replace what is there
    ray: str
    | None = None,  # `ADDRESS` hear on the machines of a Ray cluster, which see the same files; local: one here
    engine: Engine,
    settings: Annotated[dict[str, Any], Said(TranscribeUse)],
) -> None:
    """Write down what is said in sound files of any length, and when."""
    forms = form.split(",")
    for each in forms:
        choose("format", each, FORMS)
    if output is None and (resume or overwrite or len(forms) > 1):
        raise ValueError("--resume, --overwrite and several formats are about files: name a folder for them by -o")
    if resume and overwrite:
        raise ValueError("--resume goes on with a folder and --overwrite begins again: choose one")
    if Path("-") in files and (len(files) > 1 or output is not None or ray):
        raise ValueError("- is sound that comes through a pipe: it is heard alone, here, and told on stdout")
    sounds = found(files)
    from regard.api import load
    from regard.cli.bulk import about_models, spreading
    from regard.data.sound import stream

    place = located(model).absolute()
    opening = partial(load, place, task="transcribe", **vars(engine))
    transcriber = opening()
    how = transcriber.settings(**settings)
    if files == [Path("-")]:
        with suppress(ImportError, AttributeError, OSError):  # so that nothing is lost while a hearing takes long
            import fcntl

            fcntl.fcntl(sys.stdin.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
        _told(transcriber.listen(stream(sys.stdin.buffer, rate), every=every, **settings), form)
        return
    places = {sound: [] if output is None else [output / f"{name}.{each}" for each in forms] for sound, name in sounds}
    if output is not None:
        about = json.loads(json.dumps(about_models([place], **asdict(how), engine=asdict(engine), form=form)))
        _begin(output, about, [path for paths in places.values() for path in paths], resume, overwrite)
    broken, do = 0, partial(_heard, settings)
    names = {sound: f"{i}/{len(places)} {sound.name}" for i, sound in enumerate(places, start=1)}
    todo = [sound for sound, paths in places.items() if not (resume and all(path.exists() for path in paths))]
    with spreading(ray, transcriber, opening, [place], engine) as spread:
        heard = spread(do, ((sound.absolute() if ray else sound, names[sound]) for sound in todo))
        for sound, (said, notes) in zip(todo, heard, strict=True):
            for note in notes:
                typer.echo(f"note: {note}", err=True)
            if isinstance(said, ValueError):
                if len(places) == 1:
                    raise said
                broken += 1
                typer.echo(f"note: {said}", err=True)
                continue
            for each, path in zip(forms, places[sound], strict=False):
                write_whole(path, said.written(each))
            if not places[sound]:
                typer.echo(_shown(said, form, sound, alone=len(places) == 1), nl=False)
    if broken:
        raise ValueError(f"{broken} of {len(places)} sounds could not be heard: see the notes above")
    if output is not None:
        (output / NOTE).unlink()


def _told(more: Iterable[Any], form: str) -> None:
    """Tell what is said while it comes in: txt word by word, the other forms segment by segment."""
    number, line = 0, ""
    if form == "vtt":
        typer.echo("WEBVTT\n")
    for text, _, segments in more:
        if form == "txt":
            told = text if line else text.lstrip()
            line = "" if segments else line + told
            typer.echo(told + ("\n" if segments else ""), nl=False)
        for segment in segments if form != "txt" else ():
            number += 1
            typer.echo(piece(segment, form, number), nl=False)
        sys.stdout.flush()
    if line:
        typer.echo("")


def found(files: Sequence[Path]) -> list[tuple[Path, str]]:
    """Sound files, and those in folders, each with a name for what is written of it, which no other has."""
    sounds = dict[Path, str]()
    for file in files:
        if not file.is_dir():
            sounds[file] = file.stem
            continue
        inside = sorted(path for path in file.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
        if not inside:
            raise ValueError(f"{file} has no sound in it: files that end in {', '.join(ENDINGS)}")
        sounds |= {path: str(path.relative_to(file).with_suffix("")) for path in inside}
    names = list(sounds.values())
    for path, name in sounds.items():
        if names.count(name) > 1:
            sounds[path] = f"{name}{path.suffix}"
    if len({*sounds.values()}) < len(sounds):
        twice = next(name for name in sounds.values() if [*sounds.values()].count(name) > 1)
        raise ValueError(f"two of the files are called {twice}: name the folder that they lie in")
    return [*sounds.items()]


def _begin(folder: Path, about: dict[str, Any], paths: Sequence[Path], resume: bool, overwrite: bool) -> None:
    """Have the folders for what is to be written, and a note of how it is made, for who goes on with it."""
    note = folder / NOTE
    there = [path for path in paths if path.exists()]
    if there and not (resume or overwrite):
        raise ValueError(f"{there[0]} exists: go on with {folder} by --resume, or replace what is there by --overwrite")
    if resume and note.exists():
        try:
            before = dict(json.loads(note.read_text("utf-8")))
        except (ValueError, TypeError):
            raise ValueError(f"{note} is damaged: begin again by --overwrite") from None
        for key, value in about.items():
            if before.get(key) != value:
                raise ValueError(f"{folder} was begun with {key} = {before.get(key)!r}, not {value!r}: use the same")
    for path in {path.parent for path in (note, *paths)}:
        path.mkdir(parents=True, exist_ok=True)
    write_whole(note, json.dumps(about) + "\n")


def _heard(
    settings: dict[str, Any], transcriber: Any, item: tuple[Path, str]
) -> tuple[Transcript | ValueError, list[str]]:
    """What is said in a sound, or why it cannot be heard, and remarks; with a bar of this title on a terminal."""
    sound, title = item
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("  {task.description}"), BarColumn(30), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            try:
                result: Transcript = transcriber.transcribe(
                    sound, progress=lambda done, all_: bar.update(task, completed=done, total=all_), **settings
                )
            except ValueError as error:
                return ValueError(str(error)), []  # plain, to be sent
    silent = [] if result.segments else [f"nothing is said in {sound}"]
    return result, [*(str(each.message) for each in said), *silent]


def _shown(said: Transcript, form: str, sound: Path, alone: bool) -> str:
    """For standard output: of several sounds, each with its name."""
    text = said.written(form)
    if form == "json":
        return json.dumps({"file": str(sound), **json.loads(text)}, ensure_ascii=False) + "\n"
    return text if alone else f"{sound}:\n{text}{chr(10) * (form == 'txt')}"
