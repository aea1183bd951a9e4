"""The verbs of a memory of states: remember, recall."""

import json
from pathlib import Path
from typing import Any

import typer

from regard.cli.options import Count
from regard.cli.telling import going_on, telling
from regard.shipped import located

TABLES = (".tsv", ".jsonl")


def remember(
    model: Path,  # a model directory, of a language model or a translator
    memory: Path,  # `MEMORY` the model directory to make: the same model, which remembers; or one to be added to
    files: list[Path] | None = None,  # `FILE` what to remember: texts, or folders of them; a .tsv or .jsonl of pairs
    *,
    source: Path | None = None,  # of a translator: sentences, a line each
    target: Path | None = None,  # and their translations, line by line
    held_out: Path | None = None,  # choose share and temperature so that this, one more such file, is likeliest
    share: float | None = None,  # of what is remembered in what is said next, from 0 to 1 (default: 0.25)
    neighbours: int | None = None,  # states that are looked up (default: 16)
    temperature: float | None = None,  # of their squared distances (default: 10)
    near: str | None = None,  # how they are found: exact, ivf, hnsw (default: exact)
) -> None:
    """Give a model a memory of texts that it was not taught: what followed in a like state (kNN-LM, kNN-MT). Nothing is
    trained. Files that it has are not read again; an interrupted run goes on."""
    from regard.data.text import PairFiles, count_of
    from regard.studies.remember import remember

    def given(file: Path) -> Any:
        way = Path(file.name.removesuffix(".gz")).suffix
        how: dict[str, Any] = {way[1:]: str(file)}
        return PairFiles(**how) if way in TABLES else file

    told: list[Any] = [given(file) for file in files or ()]
    if source is not None or target is not None:
        sides: Any = [None if side is None else str(side) for side in (source, target)]
        told.append(PairFiles(*sides))
    said = {"share": share, "neighbours": neighbours, "temperature": temperature, "near": near}
    with going_on(memory), telling("remembering") as progress:
        found = remember(
            model,
            memory,
            told,
            {name: x for name, x in said.items() if x is not None},
            None if held_out is None else given(held_out),
            progress,
        )
    typer.echo(
        f"{memory}: {found.states:,} states, {count_of(found.new, 'new file')}; {found.change.says(1)}", err=True
    )
    if found.losses is not None:
        before, after = found.losses
        typer.echo(f"held out: {before:.4f} nats a token without, {after:.4f} with what is remembered", err=True)
    if found.skipped:
        typer.echo(f"note: {found.skipped}", err=True)


def recall(
    memory: Path,  # `MEMORY` a model directory that `regard remember` has made
    text: str | None = None,  # `TEXT|FILE` what the model is to go on with, or to translate (default: stdin)
    *,
    target: str | None = None,  # of a translator: what it is to write (default: what it does write)
    top: Count = 3,  # states that are shown of each
    every: bool = False,  # of a language model, for each token of the text, and not just for what follows
    as_json: bool = False,  # print JSON lines
) -> None:
    """Show what a model remembers as it writes: which texts it was reminded of, where these stand, what they change."""
    from regard.cli.bulk import whole_text
    from regard.studies.remember import recalled

    found = recalled(located(memory), whole_text(text), target, top=top)
    for each in found if every or target is not None or found[-1].ends else found[-1:]:
        if as_json:
            row = {**each._asdict(), "near": [like._asdict() for like in each.near]}
            typer.echo(json.dumps({key: x for key, x in row.items() if key != "ends"}, ensure_ascii=False))
            continue
        typer.echo(f"{each.token!r}: {each.p:.4f}, without memory {each.alone:.4f}")
        for like in each.near:
            before, token, after = (
                json.dumps(x, ensure_ascii=False)[1:-1] for x in (like.before, like.token, like.after)
            )
            typer.echo(f"  {like.weight:.3f} at {like.distance:.1f}  {like.place}  {before} [{token}] {after}")
