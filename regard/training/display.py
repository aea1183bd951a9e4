"""A run as a person watches it: one live line in a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from regard.training.loop import Report
from regard.training.run import UNKNOWN, Event, Note, Validation

WINDOW = 50  # steps over which speed and loss are averaged
LINES = 40  # in a run, where there is no terminal


class Display:
    """Shows events on a console: `with Display(console) as display: display.show(event, total)`."""

    unit = "tok"  # what a label is of

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = TextColumn("  learning "), BarColumn(30), TextColumn("{task.description}")
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._recent: deque[Report] = deque(maxlen=WINDOW)

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, event: Event, total: int) -> None:
        """Show one event of a run of `total` steps."""
        if isinstance(event, Report):
            self._recent.append(event)
            self._step(event, total)
        elif isinstance(event, Validation):
            self.console.print(self._validation(event), soft_wrap=True)
        elif isinstance(event, Note):
            self.line("note", event.text)

    def line(self, name: str, text: str, style: str = "") -> None:
        """A line with its name in the left column."""
        self.console.print(Text.assemble((f"  {name:9}", "dim"), (text, style)), soft_wrap=True, highlight=False)

    def _step(self, report: Report, total: int) -> None:
        tokens, seconds = sum(r.tokens for r in self._recent), sum(r.seconds for r in self._recent)
        loss = sum(r.loss * r.tokens for r in self._recent) / tokens
        known = total != UNKNOWN
        left = (total - report.step) * seconds / len(self._recent)
        parts = [
            f"step {report.step:,}" + (f"/{total:,}" if known else ""),
            f"loss {loss:.3f}",
            f"lr {report.learning_rate:.1e}",
            f"{tokens / seconds:,.0f} {self.unit}/s",
            *([f"{_clock(left)} left"] if known else []),
        ]
        line = " · ".join(parts)
        self._progress.update(
            self._task, completed=report.step, total=total if known else None, description=line, refresh=False
        )
        due = report.step % max(1, total // LINES if known else WINDOW) == 0 or report.step in (1, total)
        if not self.console.is_terminal and due:
            self.line("learning", line)

    def _validation(self, event: Validation) -> Text:
        rise = "▲" if event.best else "▽"
        figures = "  ".join(f"{name} {value:.2f}" for name, value in event.measures.items())
        text = Text.assemble(
            ("  valid    ", "dim"), (figures, "bold"), " ", (rise, "green" if event.best else "yellow")
        )
        for sample in event.samples[:1]:
            text.append(f"\n           {sample.line()}")
        return text


@contextmanager
def fetching(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Downloads in a bar, or in a line each: in the block, call it with a name, the bytes so far, and those in all."""
    columns = TextColumn("  fetching  {task.description}"), BarColumn(30), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
                if not console.is_terminal:
                    console.print(Text(f"  fetching  {what}"), soft_wrap=True)
            progress.update(tasks[what], completed=done, total=total)

        yield show


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"
