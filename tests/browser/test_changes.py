"""What a model adds to another, in the explorer: base and adapted side by side, and each change switched on and off."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import regard
from regard.core.added import without
from regard.serving.config import ServeConfig
from regard.serving.live import Live
from regard.serving.registry import Registry
from tests.browser.conftest import Watch
from tests.browser.driver import rest, save, state
from tests.readers import directory
from tests.serving.servers import running
from tests.serving.toys import adapted, writer

pytestmark = pytest.mark.slow
LAST = "encoder.layers.1.self_attention"
LORA: dict[str, Any] = {"lora": {"rank": 2, "where": ["attention"]}}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("models")
    base, other = directory(place / "plain", "classify"), writer(place / "writer")
    both = adapted(place / "adapted", base, LORA, {"prompt": {"length": 2}})
    return [both, base, adapted(place / "story", other, LORA)]


@pytest.fixture(scope="module")
def address(paths: list[Path]) -> Iterator[str]:
    with running(Registry(paths), ServeConfig(explorer=True)) as (address, _):
        yield address


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", accept_downloads=True)
    context.set_default_timeout(20_000)
    made = context.new_page()
    watch = Watch(made, address)
    yield made
    context.close()
    assert watch.wrong == []


def shown(probabilities: dict[str, float]) -> dict[str, str]:
    return {label: f"{100 * p:.{int(p < 0.0995)}f} %" for label, p in probabilities.items()}


def bars(page: Page, where: str) -> dict[str, str]:
    rest(page)
    items = page.locator(f"{where} .bars li").all()
    return {item.locator(".what").inner_text(): item.locator(".p").inner_text().split(" → ")[-1] for item in items}


def test_the_base_stands_beside_and_switches_act_alone(
    page: Page, address: str, paths: list[Path], tmp_path: Path
) -> None:
    reader: Any = regard.load(paths[0], engine="torch")
    page.goto(f"{address}/explore/#model=adapted&text=a good film")
    expect(page.locator("#edited-title")).to_have_text("The base, without what was added")
    expect(page.locator("#added .name")).to_have_text(["lora r=2 on 8 matrices", "prompt of 2 vectors"])
    expect(page.locator("#added small").first).to_have_text("512 parameters")
    expect(page.locator("#edited-figures")).to_contain_text("The answer")
    assert bars(page, "#answer") == shown(reader.classify("a good film").probabilities)
    with without(reader.model):
        assert bars(page, "#edited-answer") == shown(reader.classify("a good film").probabilities)
    cells = page.locator("#added .amount")
    expect(cells).to_have_count(8)  # two layers, four roles; a prompt changes no matrix
    expect(cells.first).to_have_attribute("title", "encoder 0, self query: " + cells.first.inner_text())
    expect(page.locator("#added table")).to_have_count(1)
    assert "off" not in state(page)
    page.get_by_label("prompt of 2 vectors: on or off").check()
    expect(page.locator("#edited-title")).to_have_text("Without lora")
    with without(reader.model, "lora"):
        wanted = shown(reader.classify("a good film").probabilities)
    expect(page.locator("#edited-figures")).to_contain_text("The answer")
    for _ in range(50):
        if bars(page, "#edited-answer") == wanted:
            break
    assert bars(page, "#edited-answer") == wanted
    assert state(page)["off"] == "lora"
    page.locator("body").press("b")  # all off, then all on
    expect(page.locator("#changes-hint")).to_have_text("All off: the second output is the base’s.")
    page.locator("body").press("b")
    expect(page.locator("#edited")).to_be_hidden()
    expect(page.locator("#sides")).to_be_hidden()


def test_two_maps_and_their_difference(page: Page, address: str, paths: list[Path], tmp_path: Path) -> None:
    reader: Any = regard.load(paths[0], engine="torch")
    page.goto(f"{address}/explore/#model=adapted&text=a good film&off=lora&side=both&head={LAST}:1&kind=encoder")
    expect(page.locator("#focus .picture h3")).to_have_text(["Adapted", "Without lora"])
    page.get_by_label("Difference").check()
    expect(page.locator("#focus .picture h3")).to_have_text(["Adapted", "Without lora − Adapted"])
    expect(page.locator("#focus .differs")).to_contain_text("Blue is more, orange less")
    (one,) = reader.attention("a good film", names=LAST, heads=[1])
    with without(reader.model, "lora"):
        (two,) = reader.attention("a good film", names=LAST, heads=[1])
    save(page, "csv").save_as(tmp_path / "both.csv")
    blocks = (tmp_path / "both.csv").read_bytes().decode("utf-8-sig").strip().split("\r\n\r\n")
    found = [[[float(x) for x in line.split(",")[1:]] for line in block.splitlines()[1:]] for block in blocks]
    torch.testing.assert_close(torch.tensor(found[0]), one.weights[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(found[1]), (two.weights - one.weights)[0], atol=1e-5, rtol=0)
    save(page, "html").save_as(tmp_path / "both.html")
    assert "lora: off" in (tmp_path / "both.html").read_text("utf-8")


def test_a_model_that_writes_and_one_to_which_nothing_was_added(page: Page, address: str, paths: list[Path]) -> None:
    page.goto(f"{address}/explore/#model=story&text=a dog")
    expect(page.locator("#edited-figures")).to_contain_text("Log-probability")
    expect(page.locator("#rescoring h3")).to_have_text("How likely the base holds this output")
    *_, done = Live(regard.load(paths[2].parent / "writer", engine="torch")).translate("a dog")
    assert done is not None
    letters = [page.locator(f"#{name}translation").inner_text() for name in ("edited-", "")]
    letters = ["".join(text.replace("␣", "").split()) for text in letters]
    assert letters[0] == "".join(done["text"].split()) != letters[1]
    page.goto(f"{address}/explore/#model=plain&text=fine")
    expect(page.locator("#changes")).to_be_hidden()
    expect(page.locator("#edited")).to_be_hidden()
    expect(page.locator("#answer .bars li")).to_have_count(3)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{address}/explore/#model=adapted&text=fine")
    expect(page.locator("#changes")).to_be_visible()
    rest(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
