"""The verbs that look into a model: inspect, heads, prune, explore; and serve, which shows it to others.

torch takes a second to load: what needs it is imported when a verb runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from os.path import isdir  # which answers for a name that is too long, too
from pathlib import Path
from typing import Any

import typer

from regard.cli.options import Count
from regard.cli.telling import telling
from regard.data.text import count_of
from regard.serving.config import ServeConfig, read_keys
from regard.shipped import located


@dataclass(frozen=True)
class Looked:
    """What is shown of attention, as `regard.studies.maps` is told."""

    target: str | None = None  # a translation to follow (default: the model's own)
    pair: str | None = None  # a second text beside the first, for a model that reads two: a pair, a context
    names: tuple[str, ...] | None = None  # `PATTERN` attentions, as 'decoder.*' (default: all; in a figure '*cross*')
    view: str = "weights"  # weights, norm: the length of what each key adds; rollout: through all layers of an encoder
    words: bool = False  # put sub-words together
    split: bool | None = None  # read sentence by sentence: one is drawn (default: as the model learnt)
    log: bool = False  # logarithmic colours
    without: tuple[str, ...] | None = None  # `NAME` leave off what was added to the model, as lora; or all


def inspect(
    what: list[str],  # `[MODEL] TEXT` a model directory (default: the one shipped), and what it reads, or a picture
    *,
    output: Path | None = None,  # `-o` write here: .html, .svg, .png, .npz or .csv
    heads: str | None = None,  # numbers of heads, as 0,2 (default: all)
    hide_special: bool = False,  # leave out start and end symbols
    looked: Looked,
) -> None:
    """Write what every head looks at, as a model translates a text, reads it, or sees a picture, into a file."""
    if len(what) > 2:
        raise ValueError(f"a model and one text are enough, got {len(what)} words: put the text in quotation marks")
    if len(what) == 1 and isdir(located(what[0])):
        raise ValueError(f"{what[0]} is a model: say what it shall read, as regard inspect {what[0]} TEXT")
    model, text = (None, *what)[-2:]
    if output is None:
        raise ValueError("say where to write by -o: a file that ends in .html, .svg, .png, .npz or .csv")
    try:
        numbers = None if heads is None else list(dict.fromkeys(int(head) for head in heads.split(",")))
    except ValueError:
        raise ValueError(f"--heads {heads}: write numbers with commas between them, as 0,2") from None
    from regard.studies.maps import inspect

    place = None if model is None else Path(model)
    seen = inspect(place, str(text), output, heads=numbers, special=not hide_special, **vars(looked))
    count = sum(len(each.weights) for each in seen.maps)
    kind = "roll-out" if looked.view == "rollout" else "head"
    typer.echo(f"{output}: {count_of(count, kind)} of {count_of(len(seen.maps), 'attention')}, {seen.title}")


@dataclass(frozen=True)
class Studied:
    """What heads are looked at on, and how, as `regard.studies.atlas` is told."""

    source: Path | None = None  # text to look at the heads on, a sentence a line (default: the test of its recipe)
    reference: Path | None = None  # its translation, line by line
    text: Path | None = None  # of another model, in their place: any text, or lines of it (default: as above)
    gold: Path | None = None  # word alignments of the two, as 0-0 1-2 3?3 on each line
    parse: Path | None = None  # dependencies of the source in CoNLL-U, a sentence for each line
    limit: int = 1000  # sentences, or stretches of the text, at most
    ablate: bool = True  # silence each head by itself
    prune: bool = True  # silence more and more of them
    share: float = 0.1  # of the heads, at a time
    seeds: int = 3  # orders by chance, to compare with


def heads(
    model: Path | None = None,  # a model directory (default: the one that comes along)
    pictures: list[Path] | None = None,  # of a model that sees: files, folders, tables (default: its recipe's test)
    *,
    studied: Studied,
    output: Path | None = None,  # `-o` write heads.html and heads.json here (default: the model's)
    price: list[float] | None = None,  # learn gates at this price of a head in nats; several (default: 0.005 and 0.02)
) -> None:
    """Analyse every head on texts or pictures: what it does, which others are like it, whether it is missed."""
    from collections import Counter

    from regard.shipped import SHIPPED
    from regard.studies.atlas import PRICES, make_atlas, writable

    place = located(model)
    if output is None and (place.is_relative_to(SHIPPED) or not writable(place)):
        output = Path()
        typer.echo(f"note: {place.name} is not yours to write into: heads.html and heads.json go here", err=True)
    with telling("heads") as show:
        how: dict[str, Any] = {"out": output, "prices": price or PRICES, "progress": show, **vars(studied)}
        atlas = make_atlas(place, pictures=pictures or (), **how)
    for why in atlas.get("left_out", ()):
        typer.echo(f"skipped: {why}", err=True)
    counts = Counter(each["role"] for each in atlas["heads"])
    read = f"{atlas['sentences']:,} {atlas['called']}"
    typer.echo(f"{output or place}/heads.html: {count_of(len(atlas['heads']), 'head')} on {read}")
    typer.echo(", ".join(f"{count} {role}" for role, count in counts.most_common()))


def prune(
    model: Path,  # a model directory
    out: Path,  # the new one
    *,
    heads: list[str] | None = None,  # `NAME:N,N` heads that go, as encoder.layers.0.self_attention:1,3
    layers: list[str] | None = None,  # `NAME` layers that go in their place, as decoder.layers.3
    keep: str | None = None,  # `N|SHARE` keep the best: so many, as 12, or a share of all, as 0.7
    by: str = "importance",  # the best by importance (gradients), gates (learned) or atlas (of `regard heads`)
    source: Path | None = None,  # text to measure on, a sentence a line
    reference: Path | None = None,  # its translation, line by line
    text: Path | None = None,  # of a language model, in their place: any text
    limit: Count = 1000,  # use the first so many pairs, or stretches of the text
) -> None:
    """Write a smaller model, without some heads, those named or those that are missed least, or without some layers."""
    from regard.adaptation.prune import read_heads
    from regard.studies.pruning import prune_directory

    number: int | float | None = None
    try:
        if keep is not None:
            number = float(keep) if "." in keep else int(keep)
    except ValueError:
        raise ValueError(f"--keep {keep}: write a number of heads, as 12, or a share of all, as 0.7") from None
    with telling("pruning"):
        made = prune_directory(
            located(model),
            out,
            heads=None if heads is None else read_heads(" ".join(heads)),
            layers=layers or (),
            keep=number,
            by=by,
            source=source,
            reference=reference,
            text=text,
            limit=limit,
        )
    before, after = made.before, made.after
    for name, numbers in made.gone.items():
        typer.echo(f"  {name}: without {', '.join(map(str, numbers))}")
    sizes = [f"{each.parameters:,} parameters, {each.bytes / 1e6:.2f} MB" for each in (after, before)]
    typer.echo(f"{out}: {after.heads} of {before.heads} heads; {sizes[0]}, before {sizes[1]}")
    if after.loss is not None:
        typer.echo(f"loss {after.loss:.3f}, before {before.loss:.3f} (nats per token of {reference or text})")


def explore(
    models: list[Path] | None = None,  # model directories (default: the one shipped)
    *,
    host: str = "127.0.0.1",  # listen at this address
    port: int = 0,  # and at this port; 0: any that is free
    anyone: bool = False,  # let other machines see the page, too
    host_name: list[str] | None = None,  # `NAME` answer to this name, too; * is any
    pictures: list[Path] | None = None,  # `PATH` a picture, or a folder of them, to choose from
    browser: bool = True,  # open the page
) -> None:
    """Open a page that shows every head of a model at work, and lets you change them."""
    import logging
    import webbrowser
    from threading import Thread

    def ready(address: str, registry: Any) -> None:
        page = f"{address}/explore/"
        typer.echo(f"exploring at {page}; Ctrl-C ends it", err=True)
        if browser:  # which may be one that waits until it is closed
            Thread(target=webbrowser.open, args=[page], daemon=True).start()

    logging.getLogger("regard").setLevel(logging.WARNING)  # one's own requests are no news
    names, seen = tuple(host_name or ()), tuple(pictures or ())
    config = ServeConfig(host=host, port=port, anyone=anyone, host_names=names, pictures=seen)
    _serve(models, config, ready)


def serve(
    models: list[Path] | None = None,  # model directories (default: the one shipped)
    *,
    keys: Path | None = None,  # `FILE` API keys, one a line; or set REGARD_API_KEYS
    workers: int | None = None,  # threads of a model (default: all cores)
    precision: str | None = None,  # of its weights: fp32, bf16, int8, int4 (default: the model's)
    config: ServeConfig,
) -> None:
    """Serve models over HTTP: LibreTranslate's, OpenAI's and text-embeddings-inference's routes, and the explorer."""

    def ready(address: str, registry: Any) -> None:
        typer.echo(f"serving at {address} (routes: {address}/docs); Ctrl-C ends it", err=True)
        for served in registry:
            typer.echo(f"  {served.about}", err=True)

    _serve(models, replace(config, api_keys=read_keys(keys)), ready, workers=workers, precision=precision)


def _serve(
    models: list[Path] | None,
    config: ServeConfig,
    ready: Callable[[str, Any], None],
    **how: Any,
) -> None:
    from regard.serving.door import listen

    door = listen(config)  # first of all: a port that is taken is told at once
    from regard.serving.run import serve

    serve([*map(located, models or (None,))], config, door, ready=ready, **how)
