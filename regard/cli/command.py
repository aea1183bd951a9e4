"""The `regard` command. A verb reads its arguments, calls a room of the package, and shows what comes back.

torch takes a second to load, so each verb imports what it needs when it runs: help is instant.
"""

import atexit
import gc
import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import regard
from regard.cli.find import ask, index
from regard.cli.hear import transcribe
from regard.cli.make import export, import_, merge, models, quantize, shortlist
from regard.cli.measure import evaluate, experiment, info
from regard.cli.options import command_of
from regard.cli.read import answer, caption, classify, embed, fill, map_, search, tag
from regard.cli.remember import recall, remember
from regard.cli.see import explore, heads, inspect, prune, serve
from regard.cli.train import data, demo, distill, recipes, train
from regard.cli.use import chat, generate, score, summarise, translate

VERBS = {
    "Use a model": (
        *(
            translate,
            summarise,
            generate,
            chat,
            transcribe,
            classify,
            embed,
            caption,
            map_,
            index,
            search,
            ask,
            remember,
            recall,
            fill,
            tag,
            answer,
        ),
        *(score, serve),
    ),
    "See inside it": (explore, inspect, heads),
    "Train your own": (train, recipes, data, demo),
    "Measure it": (info, evaluate, experiment),
    "Make it smaller": (quantize, shortlist, distill, prune, merge),
    "Exchange it with other programs": (export, import_, models),
}
EXAMPLES = """Try it, with the small English-Spanish model that comes along:

  regard translate "Where is the library?"

  regard explore

Then train your own, and use it by its directory:

  regard train quickstart

  regard translate runs/quickstart book.txt -o book.es
"""
TRANSLATE = """For example:

  regard translate "Where is the library?"

  regard translate runs/my < new.en > new.de

  regard translate runs/my book.txt -o book.de --resume

An argument that is no directory and no file is the text, unless it looks like the name of a file: without a space, but
with a slash or a suffix.
"""
GENERATE = """For example:

  regard generate runs/shakespeare "ROMEO:" --limit 50 --seed 1

  regard generate runs/shakespeare --file prompts.txt --json -o written.jsonl
"""
CHAT = """For example:

  regard chat runs/smollm

  regard chat runs/smollm "Why is the sky blue?" --system "You are brief." --beam 1

  regard chat runs/flickr8k-look "What is on the picture?" --image photo.jpg
"""
SUMMARISE = """For example:

  regard summarise runs/aeslc < mails.txt > subjects.txt

  regard summarise runs/t5 report.jsonl --jsonl --prompt "summarize: " -o summaries.jsonl --resume
"""
TRANSCRIBE = """For example:

  regard transcribe runs/whisper interview.mp3

  regard transcribe runs/whisper film.flac --format srt > film.srt

  regard transcribe runs/whisper recordings -o transcripts --format txt,json --words --resume
"""
CLASSIFY = """For example:

  regard classify runs/films "a charming journey" --top 3

  regard classify runs/films new.txt -o new.tsv --resume

  regard classify runs/nli "A man sleeps." --pair "Somebody rests."

  regard classify runs/smollm2 new.txt --prompt 'Review: {text}\\nAnswer: {label}' --labels Negative,Positive
"""
EMBED = """For example:

  regard embed runs/sentences "A cat sits on a mat."

  regard embed runs/sentences corpus.txt -o corpus.npy --resume
"""
SEARCH = """For example:

  regard search runs/minilm abstracts.jsonl "does coffee keep one awake?" --top 3

  regard search runs/minilm notes --unit paragraph < questions.txt

  regard search runs/flickr8k-clip holiday "a dog on a beach"

  regard search reports.index "who signed the lease?" --by both

The vectors of the documents are kept: what has not changed is not embedded again.
"""
INDEX = """For example:

  regard index reports reports.index --model runs/minilm

  regard index reports reports.index

The second brings the index up to date: files that have not changed are not read again.
"""
ASK = """For example:

  regard ask reports.index "who signed the lease?" --reader runs/squad

  regard ask reports.index questions.txt --reader runs/smollm2 --json -o answers.jsonl
"""
FILL = """For example:

  regard fill runs/bert "The cat [MASK] on the mat."
"""
TAG = """For example:

  regard tag runs/names "EU rejects German call to boycott British lamb."
"""
ANSWER = """For example:

  regard answer runs/squad --question "Who fled?" --context report.txt

  regard answer runs/squad questions.jsonl --jsonl -o answers.jsonl
"""
EPILOGS = {
    "translate": TRANSLATE,
    "summarise": SUMMARISE,
    "generate": GENERATE,
    "chat": CHAT,
    "transcribe": TRANSCRIBE,
    "classify": CLASSIFY,
    "embed": EMBED,
    "index": INDEX,
    "search": SEARCH,
    "ask": ASK,
    "fill": FILL,
    "tag": TAG,
    "answer": ANSWER,
}
# What PyTorch says of memory, on an accelerator, on a CPU, and where none could have as much.
SCARCE = ("out of memory", "tried to allocate", "Storage size calculation overflowed")
LONGEST = 1000  # characters of an error: a message may quote a whole file

app = typer.Typer(help=regard.__doc__, epilog=EXAMPLES, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command. A person's mistake ends it with one line and exit code 2, Ctrl-C with 130.

    REGARD_TRACEBACK=1 shows where the mistake was noticed.
    """
    atexit.register(gc.freeze)  # a process that ends need not look once more through all that torch has made
    try:
        app(prog_name="regard")
    except (ValueError, OSError, MemoryError, RuntimeError) as mistake:
        scarce = isinstance(mistake, MemoryError) or any(words in str(mistake) for words in SCARCE)
        if os.environ.get("REGARD_TRACEBACK") or (isinstance(mistake, RuntimeError) and not scarce):
            raise
        reason = str(mistake)
        if isinstance(mistake, OSError) and mistake.strerror and mistake.filename is not None:
            reason = f"{mistake.filename}: {mistake.strerror}"
        if scarce:
            reason = "not enough memory: to train, lower train.batch_tokens or raise train.accumulate"
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), _readable(reason)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _readable(reason: str) -> str:
    """One line of a bearable length, beginning and end, in which nothing commands the terminal.

    >>> _readable("no file \\x1b[2J\\nby that name")
    'no file \\\\x1b[2J by that name'
    """
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in reason.replace("\n", " "))
    return line if len(line) <= LONGEST else f"{line[: LONGEST * 3 // 4]} … {line[-LONGEST // 4 :]}"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit()


@app.callback()
def _regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


for panel, verbs in VERBS.items():
    for verb in verbs:
        name = verb.__name__.rstrip("_")
        app.command(name, rich_help_panel=panel, epilog=EPILOGS.get(name))(command_of(verb))
