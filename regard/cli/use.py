"""The verbs `regard translate`, `summarise`, `generate`, `chat` and `score`: their options, how answers are written.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from os.path import isdir, isfile  # which answer for a name that is too long, too
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.checks import one_of
from regard.cli.options import ERRORS, Engine, Said, Searched, Spreading
from regard.decoding.protocol import SamplingConfig, SearchConfig
from regard.shipped import located, shipped
from regard.tasks.asks import Answer, Ask, Prompt, ReachError, Score, Settings, Translation, Writing, windows

if TYPE_CHECKING:
    from regard.api import Translator
    from regard.cli.bulk import Notes

GENERAL = ("extra", "ordered")  # of a search, what means nothing to a language model
UNSAID = ("read", "ids", "told", "complete")  # of a completion: numbers that say nothing to a person


def translate(
    model: str | None = None,  # a model directory (default: the one that comes along)
    files: list[str] | None = None,  # `TEXT|FILE` what to translate (default: stdin)
    *,
    lines: Spreading,
    tokens: bool = False,  # add sub-words and their log p to JSON
    stream: bool = False,  # write each word as soon as it is certain
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    engine: Searched,
    settings: Annotated[dict[str, Any], Said(SearchConfig, SamplingConfig, Settings)],
) -> None:
    """Translate text, a sentence a line. Without an option, as the model's recipe says."""
    _write("translate", lambda: _model_and_text(model, files or []), lines, tokens, stream, ensemble, engine, settings)


def summarise(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to summarise, a text a line (default: stdin)
    *,
    lines: Spreading,
    tokens: bool = False,  # add sub-words and their log p to JSON
    stream: bool = False,  # write each word as soon as it is certain
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    engine: Searched,
    settings: Annotated[dict[str, Any], Said(SearchConfig, SamplingConfig, Settings, but=("split", "keep", "stops"))],
) -> None:
    """Make a short text of a long one, a text a line. Without an option, as the model's recipe says."""
    from regard.cli.bulk import named_texts

    def found() -> tuple[Path, list[Path], str | None]:
        files, text = named_texts(texts or [])
        return located(model), files, None if text is None else " ".join(text.split())

    _write("summarise", found, lines, tokens, stream, ensemble, engine, settings)


DOING = {"translate": ("translating", "translation"), "summarise": ("summarising", "summary")}  # what makes what


def _write(
    task: str,
    found: Callable[[], tuple[Path, list[Path], str | None]],
    lines: Spreading,
    tokens: bool,
    stream: bool,
    ensemble: list[Path] | None,
    engine: Searched,
    settings: dict[str, Any],
) -> None:
    """Have a model for a task write what it makes of what was `found`: of which model, files, or else a text."""
    if tokens and not lines.objects:
        raise ValueError("--tokens adds to JSON: ask for --json")
    if stream and (lines.objects or settings.get("align") or lines.output is not None or lines.ray):
        raise ValueError(
            "--stream writes bare text to standard output: leave out --json, --jsonl, --align, -o and --ray"
        )
    first, inputs, text = found()
    from regard.api import load
    from regard.cli.bulk import Input, Notes, Output, about_models, answering, go_through, note_engine, spreading
    from regard.files import digest

    reader = Input(inputs, text, jsonl=lines.jsonl, errors=ERRORS[lines.invalid])
    models = [place.absolute() for place in (first, *map(located, ensemble or ()))]
    second = [located(engine.rescore).absolute()] if engine.rescore else []
    opening = partial(load, models, task=task, **{**vars(engine), "rescore": second[0] if second else None})
    translator = opening()
    note_engine(translator, engine.engine)
    how = Settings.of(settings, translator.decode)
    if not lines.objects:
        how = how.bare()
    notes = Notes(translator.longest, cut=how.long == "cut")
    if stream:
        _stream(translator, reader, settings, notes)
        notes.report(reader.skipped)
        return
    about: dict[str, Any] = {}
    if lines.output is not None:
        about = {**asdict(how.search), **asdict(how), "search": "", "longest": translator.longest}
        about |= {"engine": engine.engine, "precision": engine.precision, "shortlist": engine.shortlist}
        about |= {"weight": engine.weight if engine.rescore else None}
        about |= {"jsonl": lines.jsonl, "json": lines.as_json, "tokens": tokens}
        about = about_models([*models, *second], **about)
        if engine.shortlist:
            about["shortlist.safetensors"] = digest(first / "shortlist.safetensors")[:16]
    doing, made = DOING[task]
    form = AnswerForm(lines.objects, tokens, how, made)
    work = spreading(lines.ray, translator, opening, [*models, *second], engine, reader)
    with work as spread, Output(lines, about, reader, doing) as written:
        go_through(reader, written, spread, answering(how, form, notes), notes)
    notes.report(reader.skipped)


def _model_and_text(first: str | None, others: list[str]) -> tuple[Path, list[Path], str | None]:
    """What the arguments name: a model, or the one that comes with regard; and files, or else one text itself.

    A directory is a model, and what is there otherwise is a file.
    """
    from regard.cli.bulk import named_texts

    names = [] if first is None else [first, *others]
    place = None
    if first and first != "-" and not isfile(first) and isdir(located(first)):
        place, names = located(first), others
    found = named_texts(names, models=place is None)
    if place is None:
        place = shipped()
        typer.echo(f"note: by {place.name}, the model that comes with regard", err=True)
    return place, *found


class AnswerForm:
    """How an answer is written: as text, or as JSON."""

    def __init__(self, as_json: bool, tokens: bool, settings: Settings, key: str = "translation") -> None:
        """`key`: what an output is called in JSON."""
        self.as_json, self.tokens, self.key = as_json, tokens, key
        self.align, self.several = settings.align, settings.search.best > 1 and settings.mbr is None

    def __call__(self, _: Any, both: list[tuple[Ask, Answer]], first: int) -> list[str]:
        """The lines of some answers, of which the first has this number."""
        return [line for i, each in enumerate(both, start=first) for line in self.lines(i, *each)]

    def lines(self, index: int, ask: Ask, answer: Answer) -> Iterator[str]:
        """One line, or in text one for each of several outputs: `index ||| text ||| score`, as Moses has them."""
        if self.as_json:
            yield json.dumps(self._row(ask, answer), ensure_ascii=False)
            return
        for each in answer.translations:
            parts = [each.text.replace("\n", " ")]  # a line stays a line
            if self.several:
                parts = [str(index), *parts, f"{each.score:.4f}"]
            if self.align:
                parts.append(" ".join(f"{i}-{j}" for i, j in each.alignment or ()))
            yield " ||| ".join(parts)

    def _row(self, ask: Ask, answer: Answer) -> dict[str, Any]:
        row: dict[str, Any] = {} if ask.id is None else {"id": ask.id}
        row |= {"text": ask.text, **self._output(answer.translations[0])}
        if self.several:
            row["hypotheses"] = [self._output(each) for each in answer.translations]
        return row | ({"unknown": answer.unknown} if answer.unknown else {})

    def _output(self, each: Translation) -> dict[str, Any]:
        row: dict[str, Any] = {self.key: each.text, "score": each.score, "log_probability": each.log_probability}
        if self.align:
            row["alignment"] = each.alignment
        return row | ({"tokens": each.tokens, "token_scores": each.token_scores} if self.tokens else {})


def _stream(translator: "Translator", asks: Iterable[Ask], given: dict[str, Any], notes: "Notes") -> None:
    def pieces(ask: Ask) -> Iterator[str]:
        answer = yield from translator.stream(ask, **given)
        typer.echo()
        notes.see(ask, answer)

    for ask in asks:
        for piece in pieces(ask):
            typer.echo(piece.replace("\n", " "), nl=False)  # which does not wait for the line's end


def generate(
    model: Path,  # a model directory
    prompt: list[str] | None = None,  # the text to go on with (default: stdin)
    *,
    file: Path | None = None,  # `-f` prompts, one a line
    jsonl: bool = False,  # of the file, lines are JSON: {"prompt": ..., "id": ..., "seed": ...}
    as_json: bool = False,  # write JSON lines, with log p of each token
    output: Path | None = None,  # `-o` write here (default: stdout); of a melody .mid, .wav or .abc, with its prompt
    resume: bool = False,  # go on with the output of a file of prompts that was interrupted
    overwrite: bool = False,  # replace an output that is there
    ray: str | None = None,  # `ADDRESS` go on with a file of prompts on the machines of a Ray cluster; local: one here
    engine: Engine,
    settings: Annotated[dict[str, Any], Said(SearchConfig, SamplingConfig, Writing, but=GENERAL)],
) -> None:
    """Go on with a text, and show it as it is written. Without an option, as the model's recipe says."""
    if prompt and file is not None:
        raise ValueError("a prompt is given, and a file of them: leave one of them out")
    for name, said in {"jsonl": jsonl, "resume": resume, "ray": ray}.items():
        if said and file is None:
            raise ValueError(f"--{name} is about a file of prompts: name it by --file")
    lines = Spreading(output, resume, overwrite, jsonl=jsonl, as_json=as_json, ray=ray)
    if file is None and output is not None and output.exists() and not overwrite:
        raise ValueError(f"{output} exists: replace it by --overwrite")
    from regard.api import load
    from regard.cli.bulk import CUT, check_texts
    from regard.cli.hear import ENDINGS
    from regard.data.music import WRITTEN, melody
    from regard.data.text import check_text, decoded
    from regard.files import write_whole

    check_texts(prompt or ())
    if prompt and isfile(prompt[0]):
        typer.echo(
            f"note: {prompt[0]} is gone on with as a text: for the lines of that file, name it by --file", err=True
        )
    if output is not None and output.suffix.lower() in {*ENDINGS} - {*WRITTEN}:
        raise ValueError(f"{output}: a melody is written as {', '.join(WRITTEN)}")
    settings = _formed(settings)
    opening = partial(load, located(model).absolute(), task="generate", **vars(engine))
    generator = opening()
    how = Writing.of(settings, generator.decode)
    alone = file is None and not as_json and output is None and how.search.best == 1
    played = output is not None and output.suffix.lower() in WRITTEN
    if played and (file is not None or as_json or how.search.best > 1):
        raise ValueError(f"{output} holds one melody: leave --file, --json and --best out")
    form = partial(_completed, as_json=as_json, formed=how.form is not None, one_line=file is not None)
    if file is not None:
        _go_on(located(model).absolute(), file, lines, engine, generator, opening, how, form)
        return
    text = " ".join(prompt or ())
    if not prompt and not sys.stdin.isatty():
        text = decoded(sys.stdin.buffer.read(), "standard input, line ")
        check_text(text, "prompt", "standard input")
    asked = Prompt(text)
    if alone:
        for piece in _whole(generator.stream(asked, **settings)):
            typer.echo(piece, nl=False)
        return
    ((*outputs,),) = generator.answers([asked], how)
    written = form(generator, [(asked, outputs)], 0)
    if output is not None and played:
        found = melody(written[0] if settings.get("echo") else f"{asked.text} {written[0]}")
        write_whole(output, found.written(output.suffix.lower()))
        typer.echo(f"{output}: {len(found.notes)} notes in {len(found.bars)} bars, {found.metre}, {found.key}")
    elif output is not None:
        write_whole(output, "".join(f"{line}\n" for line in written))
    else:
        typer.echo("\n".join(written))
    if cut := sum(each.complete is False for each in outputs):
        typer.echo(f"note: of the outputs, {cut} {CUT}", err=True)


def _completed(
    _: Any, both: list[tuple[Prompt, list[Any]]], first: int, *, as_json: bool, formed: bool, one_line: bool
) -> list[str]:
    """The lines of what was written after some prompts."""
    lines = list[str]()
    for asked, outputs in both:
        if as_json:
            known = {"id": asked.id} if asked.id is not None else {}
            rows = [{key: value for key, value in asdict(each).items() if key not in UNSAID} for each in outputs]
            if formed:
                rows = [{**row, "complete": each.complete} for row, each in zip(rows, outputs, strict=True)]
            row = {**known, "prompt": asked.text, **rows[0], **({"best": rows} if rows[1:] else {})}
            lines.append(json.dumps(row, ensure_ascii=False))
        else:
            lines += [each.text.replace("\n", " ") if one_line else each.text for each in outputs]
    return lines


def _go_on(
    model: Path, file: Path, lines: Spreading, engine: Engine, generator: Any, opening: Any, how: Writing, form: Any
) -> None:
    """Go on with each prompt of a file, one a line; in JSON they may have line feeds, an id and a seed."""
    from regard.cli.bulk import PROMPTED, Input, Notes, Output, about_models, answering, go_through, spreading

    def ask(place: str, prompt: str, **more: Any) -> Prompt:
        return Prompt(prompt, place, **more)

    reader = Input([file], jsonl=lines.jsonl, errors="strict", ask=ask, keys=PROMPTED, cut=False)
    about: dict[str, Any] = {}
    if lines.output is not None:
        about = {**asdict(how.search), **asdict(how), "search": "", "jsonl": lines.jsonl, "json": lines.as_json}
        about = about_models([model], **about, engine=engine.engine, precision=engine.precision)
    notes = Notes(None)
    work = spreading(lines.ray, generator, opening, [model], engine, reader)
    with work as spread, Output(lines, about, reader, "going on") as written:
        go_through(reader, written, spread, answering(how, form, notes), notes)
    notes.report(reader.skipped)


def _formed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which a schema and a grammar are what their files say."""
    from regard.files import read_whole

    found = dict(settings)
    for name in ("schema", "grammar"):
        text = settings.get(name)
        if text is not None and (isfile(text) or (name == "grammar" and "\n" not in text)):
            found[name] = read_whole(text).decode()
        elif name == "schema" and text is not None and not text.lstrip().startswith(("{", "true", "false")):
            raise ValueError(
                f'--schema {text[:60]}: it is neither a file nor a JSON Schema such as {{"type": "object"}}'
            )
    return found


def _whole(coming: Any) -> Iterator[str]:
    """What is streamed; where it was to keep a form and was cut, that is told."""
    from regard.cli.bulk import CUT

    found = yield from coming
    typer.echo()
    if found.complete is False:
        typer.echo(f"note: it {CUT}", err=True)


def chat(
    model: Path,  # a model directory
    message: list[str] | None = None,  # what to say (default: stdin, a message a line)
    *,
    system: str | None = None,  # what the model is told before
    image: list[str] | None = None,  # `FILE` a picture that stands before the first message, for a model that sees
    engine: Engine,
    settings: Annotated[dict[str, Any], Said(SearchConfig, SamplingConfig, Writing, but=(*GENERAL, "best", "echo"))],
) -> None:
    """Talk with a model that has a chat template. At a terminal: /reset begins anew, Ctrl-D ends."""
    from regard.api import load
    from regard.cli.bulk import check_texts

    generator = load(model, task="generate", **vars(engine))
    if generator.patches is None:
        check_texts(message or ())
        if image:
            raise ValueError(f"{model} reads text alone: leave --image out, or ask a model that sees")
    talk = Talk(generator, _formed(settings), system, image or [])
    if message:
        talk.say(" ".join(message))
    elif sys.stdin.isatty():
        talk.at_terminal()
    else:
        for line in sys.stdin:
            talk.say(text, one_line=True) if (text := line.strip()) else typer.echo()


class Talk:
    """A conversation: what was said, and how it goes on. What no longer fits is left out, and that is told."""

    def __init__(
        self, generator: Any, settings: dict[str, Any], system: str | None, images: Sequence[str] = ()
    ) -> None:
        self.generator, self.settings = generator, Writing.of(settings, generator.decode)
        self.before = [] if system is None else [{"role": "system", "content": system}]
        self.said, self.images = list[dict[str, Any]](), images
        # An answer should find room beside what is said before it; half of the places, if it may be very long.
        places, limit = generator.memory, self.settings.search.limit
        self.room = None if places is None else places - min(limit or places, places // 2)
        generator.conversation([*self.before, {"role": "user", "content": ""}])  # or why not

    def say(self, text: str, *, one_line: bool = False) -> None:
        """Say something, and show the answer as it is written."""
        shown = [{"type": "image", "image": each} for each in (() if self.said else self.images)]
        content = [*shown, {"type": "text", "text": text}] if shown else text
        self.said.append({"role": "user", "content": content})
        coming = self.generator.streamed(self._fitting(), self.settings)
        self.said.append({"role": "assistant", "content": ""})

        def pieces() -> Iterator[str]:
            found = yield from coming
            typer.echo()
            if found.why == "length":
                typer.echo(f"note: cut after {len(found.ids)} tokens: --limit N lets it write more", err=True)

        for piece in pieces():
            self.said[-1]["content"] += piece
            typer.echo(piece.replace("\n", " ") if one_line else piece, nl=False)

    def at_terminal(self) -> None:
        """Say what is typed, line by line."""
        from regard.cli.bulk import history

        typer.echo("/reset begins anew, Ctrl-D ends", err=True)
        with history("chat"):
            while (text := self._heard()) is not None:
                if text.strip() == "/reset":
                    self.said.clear()
                elif text.strip():
                    try:
                        self.say(text)
                    except KeyboardInterrupt:  # enough: what it has said stands
                        typer.echo()
                    except ValueError as error:
                        typer.echo(f"error: {error}", err=True)
                        del self.said[-1 if self.said[-1]["role"] == "user" else -2 :]

    def _heard(self) -> str | None:
        try:
            return input("> ")
        except EOFError:
            typer.echo()
            return None

    def _fitting(self) -> Prompt:
        """The conversation, without its oldest turns if need be."""
        for first in range(0, len(self.said), 2):
            last = first + 1 == len(self.said)
            with nullcontext() if last else suppress(ReachError):
                prompt = self.generator.conversation([*self.before, *self.said[first:]])
                if last or self.room is None or len(prompt.ids) <= self.room:
                    break
        del self.said[:first]
        for _ in range(0, first, 2):
            typer.echo(f"note: the model has {self.generator.memory:,} places: the oldest turn is left out", err=True)
        return prompt


def score(
    model: Path | None = None,  # a model directory (default: the one that comes along)
    *,
    source: Path,  # text, a sentence a line
    target: Path,  # its translation, line by line
    per_token: bool = False,  # add each sub-word and its log p
    as_json: bool = False,  # write JSON lines
    invalid: str = "refuse",  # what is not UTF-8: refuse, replace
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    device: str = "cpu",  # where: cpu, cuda, mps
) -> None:
    """Say how likely a model holds given translations: log P and perplexity, pair by pair."""
    from regard.api import load
    from regard.data.text import named, read_parallel
    from regard.evaluation.calibration import perplexity

    one_of(ERRORS, invalid=invalid)
    translator = load([located(model), *(ensemble or ())], device=device, task="translate")
    pairs = count = 0
    total = 0.0
    lines = enumerate(read_parallel(source, target, cut=False, errors=ERRORS[invalid]), start=1)
    asks = ((Ask(a, f"{named(source)}:{i}"), Ask(b, f"{named(target)}:{i}")) for i, (a, b) in lines)
    for window in windows(asks, lambda pair: sum(len(side.text) for side in pair)):
        for found in translator.score([a for a, _ in window], [b for _, b in window]):
            typer.echo(_scored(found, per_token, as_json))
            pairs, count, total = pairs + 1, count + len(found.token_scores), total + found.log_probability
    surprise = perplexity(-total, count)
    typer.echo(f"{pairs:,} pairs, {count:,} tokens: log P {total:,.3f}, perplexity {surprise:.3f}", err=True)


def _scored(found: Score, per_token: bool, as_json: bool) -> str:
    if as_json:
        row: dict[str, Any] = {"log_probability": found.log_probability, "perplexity": found.perplexity}
        if per_token:
            row |= {"tokens": found.tokens, "token_scores": found.token_scores}
        return json.dumps(row, ensure_ascii=False)
    cells = [f"{found.log_probability:.4f}", f"{found.perplexity:.4f}"]
    if per_token:
        each = zip(found.tokens, found.token_scores, strict=True)
        cells.append(" ".join(f"{token} {log_p:.4f}" for token, log_p in each))
    return "\t".join(cells)
