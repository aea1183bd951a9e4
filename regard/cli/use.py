"""The verbs `regard translate` and `regard score`: their options, and how what comes back is written.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import zip_longest
from os.path import exists, isdir, isfile  # which answer for a name that is too long, too
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.checks import hint
from regard.cli.options import ENGINE, TEXT, WRITTEN, said, settings
from regard.shipped import located, shipped
from regard.tasks.asks import Prompt, Settings, Writing

if TYPE_CHECKING:
    from regard.api import Translator
    from regard.cli.bulk import Notes, Output, Reader
    from regard.tasks.asks import Answer, Ask, Score, Translation

ERRORS = {"refuse": "strict", "replace": "replace"}  # of decoding, by what a person chooses
LIKE_A_FILE = re.compile(r"\S*/\S*|\S+\.[A-Za-z]\w{0,9}")  # what has a slash or a suffix, and no space
LIKE_A_NAME = re.compile(r"[A-Za-z0-9_-]+")
UNSAID = ("read", "ids", "told")  # of a completion: numbers that say nothing to a person


@settings(Settings)
def translate(
    model: Annotated[str | None, typer.Argument(help="A model directory. (default: the one that comes along)")] = None,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT|FILE", help="What to translate. (default: stdin)")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here. (default: stdout)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an output that was interrupted.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there.")] = False,
    invalid: Annotated[str, typer.Option(help="What is not UTF-8: refuse, replace.", rich_help_panel=TEXT)] = "refuse",
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Lines are JSON, in and out.", rich_help_panel=TEXT)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.", rich_help_panel=WRITTEN)] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Add sub-words and their log p to JSON.", rich_help_panel=WRITTEN)
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write each word as soon as it is certain.", rich_help_panel=WRITTEN)
    ] = False,
    ensemble: Annotated[
        list[Path] | None, typer.Option(metavar="MODEL", help="One more model to ask.", rich_help_panel=ENGINE)
    ] = None,
    rescore: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Rank outputs by its word, too.", rich_help_panel=ENGINE)
    ] = None,
    weight: Annotated[float, typer.Option(help="What its word counts.", rich_help_panel=ENGINE)] = 1.0,
    engine: Annotated[str, typer.Option(help="auto, native, torch", rich_help_panel=ENGINE)] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, mps", rich_help_panel=ENGINE)] = "cpu",
    workers: Annotated[int | None, typer.Option(help="Threads. (default: all cores)", rich_help_panel=ENGINE)] = None,
    rows: Annotated[
        int, typer.Option("--rows", "--batch-size", help="Beginnings side by side, at most.", rich_help_panel=ENGINE)
    ] = 256,
    precision: Annotated[
        str | None,
        typer.Option(help="fp32, bf16 (fp32 in native), int8. (default: the model's)", rich_help_panel=ENGINE),
    ] = None,
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Only tokens that go with the source.", rich_help_panel=ENGINE)
    ] = False,
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="With torch: the same bits in any company.", rich_help_panel=ENGINE)
    ] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Translate text, a sentence a line. Without an option, as the model's recipe says."""
    given = said(settings)
    errors = _errors(invalid)
    if (resume or overwrite) and output is None:
        raise ValueError("--resume and --overwrite are about an output file: name it by -o")
    if resume and overwrite:
        raise ValueError("--resume goes on with an output and --overwrite begins again: choose one")
    if tokens and not (as_json or jsonl):
        raise ValueError("--tokens adds to JSON: ask for --json")
    if stream and (as_json or jsonl or given.get("align") or output is not None):
        raise ValueError("--stream writes bare text to standard output: leave out --json, --jsonl, --align and -o")
    first, inputs, text = _model_and_text(model, files or [])
    from regard.api import load
    from regard.cli.bulk import Notes, Output, Reader, digest

    reader = Reader(inputs, jsonl=jsonl, errors=errors, text=text)
    models = [first, *map(located, ensemble or ())]
    translator = load(
        models,
        device=device,
        engine=engine,
        workers=workers,
        rows=rows,
        bitwise=bitwise,
        precision=precision,
        shortlist=shortlist,
        rescore=rescore,
        weight=weight,
        task="translate",
    )
    if engine == "auto" and (reason := translator.without_native):
        typer.echo(f"note: by PyTorch, for the native engine, which is quicker, cannot be used: {reason}", err=True)
    how = Settings.of(given, translator.decode)
    if not (as_json or jsonl):
        how = how.bare()
    notes = Notes(translator.longest)
    if stream:
        _stream(translator, reader, given, notes)
        notes.report(reader.skipped)
        return
    about: dict[str, Any] = {}
    if output is not None:
        about = {**asdict(how.search), **asdict(how), "search": "", "longest": translator.longest}
        about |= {"engine": engine, "precision": precision, "shortlist": shortlist}
        about |= {"weight": weight if rescore else None}
        about |= {"jsonl": jsonl, "json": as_json, "tokens": tokens}
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            about[name] = [digest(each / name) for each in (*models, *([located(rescore)] if rescore else ()))]
        if shortlist:
            about["shortlist.safetensors"] = digest(first / "shortlist.safetensors")
    with Output(output, about, reader, resume=resume, overwrite=overwrite) as written:
        _translate(translator, how, AnswerForm(as_json or jsonl, tokens, how), reader, written, notes)
    notes.report(reader.skipped)


def _errors(invalid: str) -> str:
    if invalid not in ERRORS:
        raise ValueError(f"invalid = {invalid!r}: choose {' or '.join(ERRORS)}")
    return ERRORS[invalid]


def _model_and_text(first: str | None, others: list[str]) -> tuple[Path, list[Path], str | None]:
    """What the arguments name: a model, or the one that comes with regard; and files, or else one text itself.

    A directory is a model, and what is there otherwise is a file. What is not there is text, if it stands alone and
    does not look like the name of a file.
    """
    names = [] if first is None else [first, *others]
    place = None
    if first and first != "-" and not isfile(first) and isdir(located(first)):
        place, names = located(first), others
    missing = [name for name in names if name != "-" and not exists(name)]
    text = names[0] if missing and len(names) == 1 and not LIKE_A_FILE.fullmatch(names[0]) else None
    if missing and text is None:
        what = "no file that is there" if place else "neither a model directory nor a text file"
        raise ValueError(
            f"{missing[0]} is {what}: text itself goes into one pair of quotation marks, or to standard input"
        )
    if place is None:
        place = shipped()
        typer.echo(f"note: by {place.name}, the model that comes with regard", err=True)
    if text is not None and LIKE_A_NAME.fullmatch(text):
        typer.echo(f"note: there is no file {'' if others else 'or model '}{text}: read as text", err=True)
    return place, [] if text is not None else [Path(name) for name in names or ["-"]], text


class AnswerForm:
    """How an answer is written: as text, or as JSON."""

    def __init__(self, as_json: bool, tokens: bool, settings: "Settings") -> None:
        self.as_json, self.tokens = as_json, tokens
        self.align, self.several = settings.align, settings.search.best > 1 and settings.mbr is None

    def lines(self, index: int, ask: "Ask", answer: "Answer") -> Iterator[str]:
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

    def _row(self, ask: "Ask", answer: "Answer") -> dict[str, Any]:
        row: dict[str, Any] = {} if ask.id is None else {"id": ask.id}
        row |= {"text": ask.text, **self._output(answer.translations[0])}
        if self.several:
            row["hypotheses"] = [self._output(each) for each in answer.translations]
        return row | ({"unknown": answer.unknown} if answer.unknown else {})

    def _output(self, each: "Translation") -> dict[str, Any]:
        row = {"translation": each.text, "score": each.score, "log_probability": each.log_probability}
        if self.align:
            row["alignment"] = each.alignment
        return row | ({"tokens": each.tokens, "token_scores": each.token_scores} if self.tokens else {})


def _translate(
    translator: "Translator",
    settings: "Settings",
    form: AnswerForm,
    reader: "Reader",
    written: "Output",
    notes: "Notes",
) -> None:
    from regard.tasks.asks import windows

    for window in ([ask] for ask in reader) if reader.typed else windows(reader):
        both = list(zip(window, translator.answers(window, settings), strict=True))
        lines = [line for i, each in enumerate(both, start=written.done) for line in form.lines(i, *each)]
        written.write(lines, len(window))
        for ask, answer in both:
            notes.see(ask, answer)


def _stream(translator: "Translator", asks: "Iterable[Ask]", given: dict[str, Any], notes: "Notes") -> None:
    def pieces(ask: "Ask") -> Iterator[str]:
        answer = yield from translator.stream(ask, **given)
        typer.echo()
        notes.see(ask, answer)

    for ask in asks:
        for piece in pieces(ask):
            typer.echo(piece.replace("\n", " "), nl=False)  # which does not wait for the line's end


@settings(Writing, but=("extra", "ordered"))  # which are about a source and its phrases
def generate(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    prompt: Annotated[list[str] | None, typer.Argument(help="The text to go on with. (default: stdin)")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Prompts, one a line.")] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help='Of the file, lines are JSON: {"prompt": ..., "id": ..., "seed": ...}.')
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON lines, with log p of each token.", rich_help_panel=WRITTEN)
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here. (default: stdout)")] = None,
    engine: Annotated[str, typer.Option(help="auto, native, torch", rich_help_panel=ENGINE)] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, mps", rich_help_panel=ENGINE)] = "cpu",
    workers: Annotated[int | None, typer.Option(help="Threads. (default: all cores)", rich_help_panel=ENGINE)] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8. (default: the model's)", rich_help_panel=ENGINE)
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Go on with a text, and show it as it is written. Without an option, as the model's recipe says."""
    given = said(settings)
    if prompt and file is not None:
        raise ValueError("a prompt is given, and a file of them: leave one of them out")
    if jsonl and file is None:
        raise ValueError("--jsonl is about a file of prompts: name it by --file")
    from regard.api import load
    from regard.files import write_whole

    generator = load(model, device=device, engine=engine, workers=workers, precision=precision, task="generate")
    how = Writing.of(given, generator.decode)
    alone = file is None and not as_json and output is None and how.search.best == 1
    if file is None:
        text = " ".join(prompt) if prompt else "" if sys.stdin.isatty() else sys.stdin.read()
        prompts = [Prompt(text)]
    else:
        prompts = list(_prompts(file, jsonl))
    if alone:
        for piece in generator.stream(prompts[0], **given):
            typer.echo(piece, nl=False)
        typer.echo()
        return
    lines = []
    for asked, outputs in zip(prompts, generator.answers(prompts, how), strict=True):
        if as_json:
            known = {"id": asked.id} if asked.id is not None else {}
            rows = [{key: value for key, value in asdict(each).items() if key not in UNSAID} for each in outputs]
            lines.append(
                json.dumps(
                    {**known, "prompt": asked.text, **rows[0], **({"best": rows} if rows[1:] else {})},
                    ensure_ascii=False,
                )
            )
        else:
            lines += [each.text.replace("\n", " ") if file is not None else each.text for each in outputs]
    if output is not None:
        write_whole(output, "".join(f"{line}\n" for line in lines))
    else:
        typer.echo("\n".join(lines))


def _prompts(file: Path, jsonl: bool) -> Iterator[Prompt]:
    """The prompts of a file, one a line; in JSON they may have line feeds, an id and a seed."""
    from regard.data.text import read_lines

    for number, line in enumerate(read_lines(file, cut=False), start=1):
        where = f"{file}:{number}"
        if not jsonl:
            yield Prompt(line, where)
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where} is no JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise ValueError(f'{where} has no text under "prompt"')
        for key in row.keys() - {"prompt", "id", "seed"}:
            raise ValueError(f"{where}: unknown key {key!r}: {hint(key, ('prompt', 'id', 'seed'))}")
        yield Prompt(row["prompt"], where, row.get("id"), row.get("seed"))


def score(
    source: Annotated[Path, typer.Option(help="Text, a sentence a line.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    model: Annotated[Path | None, typer.Argument(help="A model directory. (default: the one that comes along)")] = None,
    per_token: Annotated[bool, typer.Option("--per-token", help="Add each sub-word and its log p.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
    invalid: Annotated[str, typer.Option(help="What is not UTF-8: refuse, replace.")] = "refuse",
    ensemble: Annotated[list[Path] | None, typer.Option(metavar="MODEL", help="One more model to ask.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps")] = "cpu",
) -> None:
    """Say how likely a model holds given translations: log P and perplexity, pair by pair."""
    from regard.api import load
    from regard.evaluation.calibration import perplexity
    from regard.tasks.asks import windows

    errors = _errors(invalid)
    translator = load([located(model), *(ensemble or ())], device=device, task="translate")
    pairs = count = 0
    total = 0.0
    for window in windows(_pairs(source, target, errors), lambda pair: sum(len(side.text) for side in pair)):
        for found in translator.score([a for a, _ in window], [b for _, b in window]):
            typer.echo(_scored(found, per_token, as_json))
            pairs, count, total = pairs + 1, count + len(found.token_scores), total + found.log_probability
    surprise = perplexity(-total, count)
    typer.echo(f"{pairs:,} pairs, {count:,} tokens: log P {total:,.3f}, perplexity {surprise:.3f}", err=True)


def _pairs(source: Path, target: Path, errors: str) -> "Iterator[tuple[Ask, Ask]]":
    """Two files line by line, each line whole: the score of a part is not that of a pair."""
    from regard.data.text import named, read_lines
    from regard.tasks.asks import Ask

    sides = [read_lines(file, cut=False, errors=errors) for file in (source, target)]
    for number, (a, b) in enumerate(zip_longest(*sides), start=1):
        if a is None or b is None:
            shorter = source if a is None else target
            raise ValueError(f"{shorter} has only {number - 1:,} lines: {source} and {target} go line by line")
        yield Ask(a, f"{named(source)}:{number}"), Ask(b, f"{named(target)}:{number}")


def _scored(found: "Score", per_token: bool, as_json: bool) -> str:
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
