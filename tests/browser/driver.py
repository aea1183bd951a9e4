"""Hands and eyes for the explorer's page: what a person points at, and what then stands there."""

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import torch
from playwright.sync_api import Download, Locator, Page, expect

import regard
from regard.api import Translator

# "beautiful" and "hermoso" are two sub-words each: 9 tokens are read, 9 are written, and each ends with </s>.
SENTENCE, TRANSLATION = "the beautiful dog forgets a happy book.", "el perro hermoso olvida un libro contento."
CROSS = "decoder.layers.1.cross_attention"


class Explorer(NamedTuple):
    """A server that runs: where it is, and the directories of its two models."""

    address: str
    first: Path
    second: Path

    @property
    def url(self) -> str:
        return f"{self.address}/explore/"

    def translator(self, path: Path | None = None) -> Translator:
        return regard.load(path or self.first, engine="torch")

    def map(self, name: str, head: int, *, path: Path | None = None, **options: object) -> torch.Tensor:
        """The map of one head by the package itself: what the page must show."""
        (found,) = self.translator(path).attention(SENTENCE, names=name, heads=[head], **options)  # type: ignore[arg-type]
        return found.weights[0]


class Heat:
    """The heat map of the focused head."""

    def __init__(self, page: Page) -> None:
        self.page, self.canvas = page, page.locator("#focus .heat canvas")

    def at(self, row: int, column: int) -> tuple[float, float]:
        """The middle of a cell, on the screen."""
        self.canvas.scroll_into_view_if_needed()
        box = self.canvas.bounding_box()
        assert box is not None
        rows, columns = self.canvas.evaluate("canvas => [canvas.height, canvas.width]")
        return box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows

    def hover(self, row: int, column: int) -> None:
        self.page.mouse.move(*self.at(row, column))

    def click(self, row: int, column: int) -> None:
        self.page.mouse.click(*self.at(row, column))

    @property
    def number(self) -> float:
        """The number that is read out."""
        shown = self.page.locator("#focus .readout b")
        expect(shown).to_be_visible()
        return float(shown.inner_text())


def grid_cell(page: Page, name: str, head: int) -> Locator:
    return page.locator(f'.grid-cell[data-name="{name}"][data-head="{head}"]')


TABLE = """() => ["tbody th", "thead th", "tbody td"].map((which) =>
  [...document.querySelectorAll(`#table ${which}`)].map((cell) => cell.textContent))"""


def table(page: Page) -> tuple[list[str], list[str], torch.Tensor]:
    """The table twin of the focused map: the texts of its rows and columns, and its numbers."""
    rows, columns, cells = page.evaluate(TABLE)  # in one moment
    numbers = torch.tensor([float(text) for text in cells])
    return rows, columns[1:], numbers.view(len(rows), len(columns[1:]))


def same_map(page: Page, expected: torch.Tensor) -> None:
    """Wait until the table shows these numbers, to four digits."""
    for _ in range(100):
        rows, _, found = table(page)
        if found.shape == expected.shape and torch.allclose(found, expected, rtol=2e-3, atol=2e-6):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"the page shows {found}, not {expected}, in rows {rows}")


REST = """async () => {
  for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
  const ends = (each) => each.effect.getComputedTiming().endTime < Infinity;
  await Promise.allSettled(document.getAnimations().filter(ends).map((each) => each.finished));
  await new Promise((wake) => setTimeout(wake, 250));
}"""


def rest(page: Page) -> None:
    """Wait until what was done is drawn, colours have changed, and the address is written; by the page's own clock."""
    page.evaluate(REST)


def state(page: Page) -> dict[str, str]:
    """What the address says."""
    rest(page)
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).fragment).items()}


def save(page: Page, kind: str) -> Download:
    """Export what is seen."""
    page.locator("#export > button").click()
    with page.expect_download() as download:
        page.locator(f'#export [data-kind="{kind}"]').click()
    return download.value


def figure_of(text: str) -> float:
    """The first number of a line; the page writes a minus sign, not a hyphen."""
    found = re.search(r"[−-]?\d+(\.\d+)?", text)
    assert found is not None, text
    return float(found[0].replace("−", "-"))
