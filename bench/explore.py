"""How quick the explorer's page is: a model with 144 heads, long sentences, a real browser.

    python bench/explore.py [--tokens 128 512] [--moves N] [--clicks N] [--chromium PATH]

The model has 6 + 6 layers of 8 heads and random weights; sentences and outputs have as many tokens as asked for. `grid`
is the time from the click that asks for a kind of attention until the thumbnails of all its 48 heads are painted: the
first figure in the table is that of the slowest kind, the second that of all three together. `hover` is from a movement
of the mouse to the frame that shows the number under it, `focus` from the click on a head to the frame that shows its
map. Memory is what JavaScript holds in the end. The server and the browser share the machine.
"""

import argparse
import os
import random
import shutil
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table

from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.data.vocabulary import EOS
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig

NAMES = ("chromium", "chromium-browser", "google-chrome")
LETTERS = string.ascii_lowercase + " "

# In the page, so that no figure holds the way to the browser and back. A frame is over when the task after it runs.
TIMING = """
window.frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))));
window.until = async (holds) => { let now; do now = await frame(); while (!holds()); return now; };
window.changed = (node) => new Promise((done) => {
  const watch = new MutationObserver(() => { watch.disconnect(); done(); });
  watch.observe(node, { childList: true, subtree: true, characterData: true });
});
"""
GRID = """async (kind) => {
  const began = performance.now();
  document.querySelector(`#grid input[value=${kind}]`).click();
  const name = `${kind === "encoder" ? kind : "decoder"}.layers.0.${kind === "cross" ? kind : "self"}_attention`;
  const there = (cells) => cells.length === 48 && cells[0].dataset.name === name;
  const painted = (cell) => cell.querySelector("canvas").width !== 300; // as one that was never touched
  const all = () => [...document.querySelectorAll(".grid-cell")];
  return await until(() => there(all()) && all().every(painted)) - began;
}"""
FOCUS = """async ([layer, head]) => {
  const cell = document.querySelectorAll(".grid-row")[layer].querySelectorAll(".grid-cell")[head];
  const drawn = changed(document.querySelector("#focus .heat svg"));
  const began = performance.now();
  cell.click();
  await drawn;
  return await frame() - began;
}"""
HOVER = """async ([x, y]) => {
  const heat = document.querySelector("#focus .heat"), box = heat.querySelector("canvas").getBoundingClientRect();
  const said = changed(document.querySelector("#focus .readout"));
  const began = performance.now();
  const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true };
  heat.querySelector("canvas").dispatchEvent(new PointerEvent("pointermove", at));
  await said;
  return await frame() - began;
}"""


def make(directory: Path) -> None:
    """A model of 144 heads that never ends by itself: an output is as long as its sentence."""
    tokenizer = Tokenizer.learn(TokensConfig("char", size=0), [LETTERS])
    torch.manual_seed(0)
    shape = {"encoder_layers": 6, "decoder_layers": 6, "heads": 8, "d_model": 256, "d_ff": 512}
    model = Transformer(TransformerConfig.tiny(len(tokenizer), **shape))
    with torch.no_grad():
        model.output.weight[EOS] = 0.0  # its score is 0, and some other token's is above
    storage.save(model, directory)
    tokenizer.save(directory / "tokenizer.json")
    recipe = "data: {corpus: tatoeba-en-es, max_length: 600}\ntrain: {steps: 1}\ndecode: {beam: 1, extra: 1}\n"
    (directory / "recipe.yaml").write_text(recipe)


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The explorer in a process of its own; its address."""
    command = [sys.executable, "-m", "regard", "explore", str(directory), "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        try:
            if "http" not in line:
                raise SystemExit(f"the server did not start: {line}{server.stderr.read()}")
            yield line.split("exploring at ")[1].split(";")[0]
        finally:
            server.terminate()


def visit(page: Page, address: str, tokens: int, moves: int, clicks: int) -> list[str]:
    """The figures of one length of sentences."""
    chance = random.Random(tokens)
    text = "".join(chance.choice(LETTERS) for _ in range(tokens - 5)) + "end"  # then </s>, and one more in the output
    page.add_init_script(TIMING)

    def opened(kind: str) -> float:
        """Open the page at a kind of attention; seconds until the sentence is translated, and a map is there."""
        began = time.perf_counter()
        page.goto("about:blank")
        page.goto(f"{address}#kind={kind}&text={text.replace(' ', '+')}")
        page.locator("#figures", has_text="ms").wait_for(timeout=300_000)
        page.locator("#focus .heat svg > *").first.wait_for(state="attached")
        return time.perf_counter() - began

    opened("encoder")
    grids = [page.evaluate(GRID, kind) for kind in ("decoder", "cross")]
    translated = opened("cross")
    grids.append(page.evaluate(GRID, "encoder"))  # the one that the page began with was there already
    focus = [page.evaluate(FOCUS, [i // 8 % 6, i % 8]) for i in range(1, clicks + 1)]
    hover = [page.evaluate(HOVER, [chance.random(), chance.random()]) for _ in range(moves)]
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return [
        f"{tokens}",
        f"{translated:.1f} s",
        f"{max(grids):,.0f} / {sum(grids):,.0f}",
        f"{statistics.median(focus):,.0f} / {_p95(focus):,.0f}",
        f"{statistics.median(hover):,.0f} / {_p95(hover):,.0f}",
        f"{metrics['JSHeapUsedSize'] / 2**20:.1f} MiB",
    ]


def _p95(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[128, 512], help="lengths of sentences, their ends too"
    )
    parser.add_argument("--moves", type=int, default=100, help="of the mouse")
    parser.add_argument("--clicks", type=int, default=24, help="on heads")
    parser.add_argument("--chromium", default=os.environ.get("REGARD_CHROMIUM"), help="(default: the first there is)")
    asked = parser.parse_args()
    chromium = asked.chromium or next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        raise SystemExit("there is no Chromium: install one, or name it by --chromium")
    columns = (
        "tokens",
        "opened",
        "grid, ms (slowest / all 144)",
        "focus, ms (p50 / p95)",
        "hover, ms (p50 / p95)",
        "memory",
    )
    table = Table(*columns, title="the explorer, 6 + 6 layers of 8 heads", title_justify="left")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        directory = Path(place) / "large"
        directory.mkdir()
        make(directory)
        arguments = ["--disable-gpu", "--disable-background-networking"]
        arguments += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        with serving(directory) as address:
            for tokens in asked.tokens:
                page = browser.new_page(viewport={"width": 1600, "height": 1600})
                table.add_row(*visit(page, address, tokens, asked.moves, asked.clicks))
                page.close()
        browser.close()
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
