"""Strings of spoken digits: CTC, and word by word with full, monotonic and chunkwise attention to the sound.

    python bench/digits.py [--out runs/digits] [--only NAME ...] [CHANGE ...]

Each model is trained by its recipe (digits-ctc, digits-seq2seq) with an encoder whose layers look two positions, 40 ms,
ahead; changes such as train.steps=400 are for all. A run that is there is not trained again, one that was interrupted
goes on. They are judged on the speakers whom no model has heard. `first word` is how much of a sound must have been
heard before the first word is certain: for full attention all of it; for the others up to the last position that any
head reads for that word, or all of it if a head stops nowhere; and what the encoder looks ahead. Beside it is when
that word ends, and how long the sounds are.
"""

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from regard.api import load
from regard.data.corpora import fetched
from regard.data.sound import HOP, RATE, log_mel, read
from regard.evaluation.texts import compare
from regard.inspection.taps import record
from regard.recipes import reading as recipes
from regard.recipes.train import train

AHEAD = 2
MODELS = {
    "CTC": ("digits-ctc", []),
    "full": ("digits-seq2seq", []),
    "monotonic": ("digits-seq2seq", ["model.cross_normaliser=monotonic"]),
    "chunkwise:4": ("digits-seq2seq", ["model.cross_normaliser=chunkwise:4"]),
}


def position(scribe: Any, frames: torch.Tensor) -> int | None:
    """The last position that is read for the first word; None: all are."""
    model = scribe.model
    with torch.inference_mode():
        if not hasattr(model, "decode"):
            words = model(frames[None]).argmax(-1)[0].nonzero()
            return int(words[0]) if len(words) else None
        with record(model, "*cross_attention") as seen:
            model.decode(torch.tensor([[scribe.bos]]), model.encode(frames[None]))
    stops = [head[0].nonzero() for name in seen for head in seen[name][0]]  # (H, 1, S) of each layer
    return max(int(each[-1]) for each in stops) if all(map(len, stops)) else None


def judged(run: Path, rows: list[dict[str, Any]], folder: Path) -> tuple[float, float]:
    """Word errors in a hundred, and the mean of the seconds that the first word waits for."""
    scribe = load(run)
    c = scribe.model.config
    layers = getattr(c, "encoder_layers", None) or c.layers
    late = 0.01 * (2 + 1.25) + 0.02 * AHEAD * layers  # of a position: its convolutions, half a window, its layers
    said, waits = [], []
    for row in rows:
        samples = read(folder / row["sound"])
        said.append(scribe.transcribe(samples).text)
        frames = scribe.ear.evened(log_mel(samples, scribe.bands, scribe.window), -(-len(samples) // HOP))
        at, whole = position(scribe, frames), len(samples) / RATE
        waits.append(whole if at is None else min(whole, 0.02 * at + late))
    wer = compare(("wer",), said, [row["text"] for row in rows])["wer"].value
    return wer, statistics.fmean(waits)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--out", type=Path, default=Path("runs/digits"))
    ask.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS])
    ask.add_argument("changes", nargs="*", metavar="CHANGE")
    given = ask.parse_args()
    (path,) = fetched("digit-strings")["test"]
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    ends, lasts = (statistics.fmean(row["ends"][i] for row in rows) for i in (0, -1))
    table = Table("attention", "steps", "WER", "first word, s", title=f"{len(rows)} strings, speakers never heard")
    for name in given.only:
        recipe, own = MODELS[name]
        chosen = recipes.load(recipe, [f"model.lookahead={AHEAD}", *own, *given.changes])
        run = given.out / name.replace(":", "-")
        if not (run / "evaluation.json").is_file():
            train(chosen, run, name=name, resume=(run / "trainer").is_dir(), console=Console())
        wer, wait = judged(run, rows, path.parent)
        table.add_row(name, str(asdict(chosen.train)["steps"]), f"{wer:.1f}", f"{wait:.2f}")
    Console().print(table)
    print(f"the first word ends after {ends:.2f} s, the last after {lasts:.2f} s (means)")


if __name__ == "__main__":
    main()
