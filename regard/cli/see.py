"""The verbs that look into a model: inspect, heads, prune, explore; and serve, which shows it to others.

torch takes a second to load: what needs it is imported when a verb runs.
"""

from os.path import isdir  # which answers for a name that is too long, too
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.telling import telling


def inspect(
    what: Annotated[
        list[str],
        typer.Argument(metavar="[MODEL] TEXT", help="A model directory (default: the one shipped), and what it reads."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write here: .html, .svg, .png, .npz or .csv.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="A translation to follow. (default: the model's own)")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Attentions, as 'decoder.*'. (default: all; in a figure '*cross*')"),
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Numbers of heads, as 0,2. (default: all)")] = None,
    view: Annotated[str, typer.Option(help="weights, or norm: the length of what each key adds.")] = "weights",
    words: Annotated[bool, typer.Option("--words", help="Put sub-words together.")] = False,
    hide_special: Annotated[bool, typer.Option("--hide-special", help="Leave out start and end symbols.")] = False,
    split: Annotated[
        bool | None, typer.Option(help="Read sentence by sentence: one is drawn. (default: as the model learnt)")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic colours.")] = False,
) -> None:
    """Write what every head looks at, as a model translates a text or goes on with it, into a file."""
    from regard.shipped import located

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

    seen = inspect(
        None if model is None else Path(model),
        str(text),
        output,
        target=target,
        names=names,
        heads=numbers,
        view=view,
        words=words,
        special=not hide_special,
        split=split,
        log=log,
    )
    count = sum(len(each.weights) for each in seen.maps)
    typer.echo(f"{output}: {_many(count, 'head')} of {_many(len(seen.maps), 'attention')}, {seen.title}")


def heads(
    model: Annotated[Path | None, typer.Argument(help="A model directory. (default: the one that comes along)")] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Text to look at the heads on, one sentence a line. (default: the test text of its recipe)"),
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    text: Annotated[
        Path | None, typer.Option(help="Of a language model, in their place: any text. (default: as above)")
    ] = None,
    gold: Annotated[Path | None, typer.Option(help="Word alignments of the two, as 0-0 1-2 3?3 on each line.")] = None,
    parse: Annotated[
        Path | None, typer.Option(help="Dependencies of the source in CoNLL-U, a sentence for each line.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write heads.html and heads.json here. (default: the model's)")
    ] = None,
    limit: Annotated[int, typer.Option(help="Sentences, or stretches of the text, at most.")] = 1000,
    ablate: Annotated[bool, typer.Option("--ablate/--no-ablate", help="Silence each head by itself.")] = True,
    curves: Annotated[bool, typer.Option("--prune/--no-prune", help="Silence more and more of them.")] = True,
    share: Annotated[float, typer.Option(help="Of the heads, at a time.")] = 0.1,
    seeds: Annotated[int, typer.Option(help="Orders by chance, to compare with.")] = 3,
    price: Annotated[
        list[float] | None,
        typer.Option(help="Learn gates at this price of a head in nats; several times. (default: 0.005 and 0.02)"),
    ] = None,
) -> None:
    """Analyse every head on a text: what it does, which others are like it, whether it is missed."""
    from collections import Counter

    from regard.shipped import SHIPPED, located
    from regard.studies.atlas import PRICES, make_atlas, writable

    place = located(model)
    if out is None and (place.is_relative_to(SHIPPED) or not writable(place)):
        out = Path()
        typer.echo(f"note: {place.name} is not yours to write into: heads.html and heads.json go here", err=True)
    with telling("heads") as show:
        atlas = make_atlas(
            place,
            source,
            reference,
            text=text,
            out=out,
            gold=gold,
            parse=parse,
            limit=limit,
            ablate=ablate,
            prune=curves,
            share=share,
            seeds=seeds,
            prices=price or PRICES,
            progress=show,
        )
    counts = Counter(each["role"] for each in atlas["heads"])
    read = f"{atlas['sentences']:,} {'sentences' if 'bleu' in atlas else 'stretches of text'}"
    typer.echo(f"{out or place}/heads.html: {_many(len(atlas['heads']), 'head')} on {read}")
    typer.echo(", ".join(f"{count} {role}" for role, count in counts.most_common()))


def prune(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    out: Annotated[Path, typer.Argument(help="The new one.")],
    heads: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:N,N", help="Heads that go, as encoder.layers.0.self_attention:1,3."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="N|SHARE", help="Keep the best: so many, as 12, or a share of all, as 0.7.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="The best by importance (gradients), gates (learned) or atlas (of `regard heads`).")
    ] = "importance",
    source: Annotated[Path | None, typer.Option(help="Text to measure on, a sentence a line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    text: Annotated[Path | None, typer.Option(help="Of a language model, in their place: any text.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Use the first so many pairs, or stretches of the text.")] = 1000,
) -> None:
    """Write a smaller model, without some heads: those named, or those that are missed least."""
    from regard.adaptation.prune import read_heads
    from regard.shipped import located
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
    models: Annotated[list[Path] | None, typer.Argument(help="Model directories. (default: the one shipped)")] = None,
    host: Annotated[str, typer.Option(help="Listen at this address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="And at this port; 0: any that is free.")] = 0,
    anyone: Annotated[bool, typer.Option("--anyone", help="Let other machines see the page, too.")] = False,
    host_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Answer to this name, too; * is any.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Open a page that shows every head of a model at work, and lets you change them."""
    import logging
    import webbrowser
    from threading import Thread

    from regard.serving.config import ServeConfig
    from regard.serving.door import listen
    from regard.shipped import located

    config = ServeConfig(host=host, port=port, anyone=anyone, host_names=tuple(host_name or ()))
    door = listen(config)  # first of all: a port that is taken is told at once
    from regard.serving.run import serve as run

    def ready(address: str) -> None:
        page = f"{address}/explore/"
        typer.echo(f"exploring at {page}; Ctrl-C ends it", err=True)
        if browser:  # which may be one that waits until it is closed
            Thread(target=webbrowser.open, args=[page], daemon=True).start()

    logging.getLogger("regard").setLevel(logging.WARNING)  # one's own requests are no news
    places = [located(model) for model in models] if models else [located()]
    run(places, config, door, ready=ready)


def serve(
    models: Annotated[list[Path] | None, typer.Argument(help="Model directories. (default: the one shipped)")] = None,
    host: Annotated[str, typer.Option(help="Listen at this address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="And at this port; 0: any that is free.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys, one a line; or set REGARD_API_KEYS.")
    ] = None,
    anyone: Annotated[bool, typer.Option("--anyone", help="Without a key, serve other machines, too.")] = False,
    host_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Answer to this name, too; * is any.")
    ] = None,
    rate: Annotated[int | None, typer.Option(help="Requests a minute, of each client.")] = None,
    characters: Annotated[int, typer.Option(help="Of a request, at most.")] = 10_000,
    tokens: Annotated[int, typer.Option(help="Sub-words of a request, at most.")] = 10_000,
    seconds: Annotated[float, typer.Option(help="For a request, at most.")] = 60.0,
    queue: Annotated[int, typer.Option(help="Requests of a model that wait or are at work, at most.")] = 256,
    batch_tokens: Annotated[int, typer.Option(help="Sub-words that are worked on together.")] = 2_048,
    wait: Annotated[float, typer.Option(help="Milliseconds that a request waits for company.")] = 2.0,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Let pages of this origin ask; * is any.")
    ] = None,
    explorer: Annotated[bool, typer.Option("--explorer/--no-explorer", help="Serve the explorer's page.")] = True,
    workers: Annotated[int | None, typer.Option(help="Threads of a model. (default: all cores)")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, int8. (default: the model's)")] = None,
) -> None:
    """Serve models over HTTP: LibreTranslate's and OpenAI's routes, and the explorer."""
    from regard.serving.config import ServeConfig, read_keys
    from regard.serving.door import listen
    from regard.shipped import located

    config = ServeConfig(
        host=host,
        port=port,
        api_keys=read_keys(keys),
        anyone=anyone,
        host_names=tuple(host_name or ()),
        rate=rate,
        characters=characters,
        tokens=tokens,
        seconds=seconds,
        queue=queue,
        batch_tokens=batch_tokens,
        wait_ms=wait,
        cors=tuple(cors or ()),
        explorer=explorer,
    )
    door = listen(config)  # first of all: a port that is taken is told at once
    from regard.serving.run import serve as run

    def ready(address: str) -> None:
        typer.echo(f"serving at {address} (routes: {address}/docs); Ctrl-C ends it", err=True)

    places = [located(model) for model in models] if models else [located()]
    run(places, config, door, ready=ready, workers=workers, precision=precision)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
