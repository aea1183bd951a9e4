"""What a run leaves to be read: `metrics.jsonl`, a JSON object a line, and curves where TensorBoard is installed."""

import json
import math
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard.training.loop import Report
from regard.training.run import Event, Finished, Note, Validation

EVERY = 10  # steps: reports in between are only counted in


class Journal:
    """The metrics of a run. Opened again after an interruption, it forgets what lies behind `step`."""

    def __init__(self, directory: Path, step: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "metrics.jsonl"
        kept = [line for line in self._lines() if json.loads(line).get("step", 0) <= step] if step else []
        partial = self.path.with_suffix(".tmp")
        partial.write_text("".join(kept), "utf-8")
        os.replace(partial, self.path)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        self._curves = None if find_spec("tensorboard") is None else _curves(directory / "tensorboard", step)
        self._since: list[Report] = []
        self._step = step

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if self._curves is not None:
            self._curves.close()

    def write(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Report):
            self._since.append(event)
            if event.step % EVERY == 0:
                self._report()
        elif isinstance(event, Validation):
            self._report()
            self.line(kind="validation", step=event.step, **event.measures, best=event.best, samples=event.samples)
            self._draw("valid", event.measures, event.step)
        elif isinstance(event, Note):
            self._report()
            self.line(kind="note", step=self._step, text=event.text)
        elif isinstance(event, Finished):
            self._report()
            self.line(kind="finished", step=event.step, why=event.why)

    def line(self, **entry: Any) -> None:
        """Add one entry; a figure that is no number is null, for JSON has neither NaN nor Infinity."""
        entry = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in entry.items()}
        self._file.write(json.dumps({**entry, "time": round(time.time(), 3)}, ensure_ascii=False) + "\n")

    def _report(self) -> None:
        if not self._since:
            return
        last, tokens = self._since[-1], sum(r.tokens for r in self._since)
        entry = {
            "loss": sum(r.loss * r.tokens for r in self._since) / tokens,
            "learning_rate": last.learning_rate,
            "gradient_norm": last.gradient_norm,
            "tokens_per_second": tokens / sum(r.seconds for r in self._since),
        }
        self.line(kind="train", step=last.step, **entry)
        self._draw("train", entry, last.step)
        self._since.clear()
        self._step = last.step

    def _draw(self, group: str, figures: dict[str, float], step: int) -> None:
        if self._curves is not None:
            for name, value in figures.items():
                self._curves.add_scalar(f"{group}/{name}", value, step)

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        # A torn line may end within a character. Only "\n" ends one: `splitlines` also cuts at U+2028 in a sample.
        with self.path.open(encoding="utf-8", errors="replace") as file:
            return [line for line in file if line.startswith("{") and line.endswith("}\n")]


def _curves(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)
