"""The generated demo: learn in about two minutes to read dates in sixty languages, and show where the model looks.

Training and held-out dates are disjoint: the model is asked for dates that it has never seen in any language.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.checks import at_least
from regard.data.batching import collate
from regard.data.dates import LOCALES, WrittenDate, date_pairs, vocabulary
from regard.experiments.runs import taught, written
from regard.inspection.maps import attention_maps
from regard.inspection.page import attention_page, write_page
from regard.models.transformer import Transformer, TransformerConfig

BATCH = 128  # dates a step: 128 x 11 labels
HELD_OUT = 1000  # dates on which accuracy is measured


@dataclass(frozen=True)
class DateRead:
    """A written date, and what the model makes of it."""

    asked: WrittenDate
    said: str

    @property
    def right(self) -> bool:
        return self.said == self.asked.iso


def demo(directory: Path, *, steps: int = 800, seed: int = 0, console: Console | None = None) -> float:
    """Train, test on unseen dates, write an attention page into `directory`; returns the share of dates read right."""
    console = console or Console()
    at_least(1, steps=steps)
    directory.mkdir(parents=True, exist_ok=True)  # before training: a wrong name must not cost two minutes
    torch.manual_seed(seed)
    model = Transformer(
        TransformerConfig.tiny(len(vocabulary()), encoder_layers=2, decoder_layers=2, norm="pre", dropout=0.0)
    )
    size = sum(p.numel() for p in model.parameters())
    console.print(
        f"[bold]regard[/] · dates in {len(LOCALES)} languages → ISO 8601 · {size / 1e6:.1f} M parameters · "
        f"{torch.get_num_threads()} cores",
        highlight=False,
    )
    encode = vocabulary().encode
    pairs = ((encode(date.text), encode(date.iso)) for date in date_pairs(seed=seed, split="train"))
    taught(model, pairs, console, steps=steps, batch=BATCH, rise=12, seed=seed, every=100, device="cpu")
    answers = ask(model, list(islice(date_pairs(seed=seed, split="test"), HELD_OUT)))
    right = sum(answer.right for answer in answers) / len(answers)
    console.print(f"  held out {right:.1%} of {len(answers):,} unseen dates read right", highlight=False)
    console.print(_samples(answers))
    path = directory / "attention.html"
    write_page(path, page(model, next((a for a in answers if a.asked.locale == "zh"), answers[0])))
    console.print(f"  look     {path}", highlight=False, soft_wrap=True)
    return right


def ask(model: Transformer, dates: list[WrittenDate]) -> list[DateRead]:
    """What the model makes of written dates."""
    said = written(model, [(vocabulary().encode(date.text), []) for date in dates])
    return [DateRead(date, "".join(vocabulary().decode(ids))) for date, ids in zip(dates, said, strict=True)]


def page(model: Transformer, answer: DateRead) -> str:
    """All heads while the model writes its answer, as one self-contained HTML page."""
    batch = collate([(vocabulary().encode(answer.asked.text), vocabulary().encode(answer.said))])
    texts = {"source": [*answer.asked.text, "</s>"], "target": [*answer.said, "</s>"]}
    maps = attention_maps(model, batch.inputs, texts)
    note = f"Locale {answer.asked.locale}; the model writes {answer.said}, the date is {answer.asked.iso}."
    return attention_page(maps, title=f"{answer.asked.text} → {answer.said}", note=note)


def _samples(answers: list[DateRead]) -> Table:
    """One answer for each of some languages, and the first mistakes."""
    table = Table(box=None, padding=(0, 2), show_header=False)
    by_locale = {answer.asked.locale: answer for answer in reversed(answers)}
    shown = [by_locale[name] for name in ("en", "es", "ru", "el", "ar", "hi", "zh", "ko") if name in by_locale]
    shown += [answer for answer in answers if not answer.right and answer not in shown][:2]
    for answer in shown:
        verdict = "[green]✓[/]" if answer.right else f"[red]✗[/] {answer.asked.iso}"
        # The text comes last: a terminal that turns Arabic around must not turn the answer with it.
        table.add_row(f"[dim]{answer.asked.locale}[/]", answer.said, verdict, Text(answer.asked.text))
    return table
