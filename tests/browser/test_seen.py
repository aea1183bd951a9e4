"""Maps side by side, and files of whatever is seen: two maps, neurons, the atlas."""

import csv
import io
import json
import struct
import xml.etree.ElementTree as ElementTree
from urllib.parse import quote

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect

import regard
from tests.browser.driver import CROSS, SENTENCE, TRANSLATION, Explorer, Heat, figure_of, rest, save, state

pytestmark = pytest.mark.slow
BELOW = "decoder.layers.0.cross_attention"
SVG = "{http://www.w3.org/2000/svg}"
TABLES = """() => [...document.querySelectorAll("#table table")].map((table) =>
  [...table.querySelectorAll("tbody tr")].map((row) =>
    [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent))))"""
MIDDLE = """([canvas, row, column]) => {
  const box = canvas.getBoundingClientRect();
  return [box.x + (column + 0.5) * box.width / canvas.width, box.y + (row + 0.5) * box.height / canvas.height];
}"""


def both(page: Page, explorer: Explorer, edits: str = f"{BELOW}:0=0.9", more: str = "") -> None:
    """The page with two maps; so small a change of a lower layer moves weights, but no word."""
    page.goto(f"{explorer.url}#text={quote(SENTENCE)}&edits={edits}&side=both{more}")
    expect(page.locator("#focus .heat canvas")).to_have_count(2)
    expect(page.locator("#table table")).to_have_count(2)


def edited(explorer: Explorer) -> torch.Tensor:
    translator = explorer.translator()
    with regard.edit(translator.model, {BELOW: {0: 0.9}}):
        assert translator.translate(SENTENCE, beam=1) == TRANSLATION
        return translator.attention(SENTENCE, names=CROSS, heads=[0])[0].weights[0]


def drawn(page: Page) -> list[torch.Tensor]:
    return [torch.tensor(each) for each in page.evaluate(TABLES)]


def places(page: Page) -> list[dict[str, float]]:
    """Where the two pictures stand."""
    boxes = page.locator("#focus .picture").evaluate_all("all => all.map((e) => e.getBoundingClientRect().toJSON())")
    return [*boxes]


def point(page: Page, which: int, row: int, column: int) -> None:
    canvas = page.locator("#focus .heat canvas").nth(which)
    canvas.scroll_into_view_if_needed()
    page.mouse.move(*page.evaluate(MIDDLE, [canvas.element_handle(), row, column]))


def read(page: Page) -> list[float]:
    numbers = page.locator("#focus .readout b")
    expect(numbers).to_have_count(2)
    return [float(text) for text in numbers.all_inner_texts()]


def test_the_original_and_the_edited_map_side_by_side(page: Page, explorer: Explorer) -> None:
    both(page, explorer)
    before, after = explorer.map(CROSS, 0), edited(explorer)
    for found, expected in zip(drawn(page), (before, after), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-6)
    assert page.locator("#focus .picture h3").all_inner_texts() == ["Original", "Edited"]
    expect(page.locator("#focus .lines")).to_have_count(0)
    one, two = places(page)
    assert one["y"] == two["y"]
    assert page.locator("#focus .differs").evaluate("e => e.getBoundingClientRect().bottom") <= one["y"]
    for which in (0, 1):  # pointing at one is pointing at both
        point(page, which, 1, 3)
        expect(page.locator("#focus .heat .band.hover")).to_have_count(4)
        assert read(page) == pytest.approx([before[1, 3].item(), after[1, 3].item()], rel=1e-3)
    expect(page.locator(".grid-switch:visible")).to_have_count(8)  # the grid is the original's
    page.set_viewport_size({"width": 390, "height": 844})
    rest(page)
    one, two = places(page)
    assert one["y"] + one["height"] <= two["y"]
    wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]


def test_the_largest_changes_are_named_and_lead_to_their_cells(page: Page, explorer: Explorer) -> None:
    both(page, explorer)
    before, after = explorer.map(CROSS, 0), edited(explorer)
    row, column = divmod(int((after - before).abs().argmax()), before.shape[1])
    largest = page.locator("#focus .differs button").first
    change = (after - before)[row, column].item()
    assert figure_of(largest.inner_text().split("→")[1].split(" ")[-1]) == pytest.approx(abs(change), abs=6e-4)
    largest.click()
    assert read(page) == pytest.approx([before[row, column].item(), after[row, column].item()], rel=1e-3)
    assert state(page)["locked"] == f"{row};{column}"
    page.locator("#reset").click()
    expect(page.locator("#focus .lines")).to_have_count(2)
    expect(page.locator("#focus .heat canvas")).to_have_count(1)
    assert "side" not in state(page)


def test_the_second_map_by_keyboard(page: Page, explorer: Explorer) -> None:
    both(page, explorer)
    second = page.locator("#focus .heat").nth(1)
    second.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):  # the first goes to the corner
        second.press(key)
    assert read(page)[1] == pytest.approx(edited(explorer)[1, 1].item(), rel=1e-3)
    expect(page.locator("#status")).to_contain_text("Predicting “perro”, it looks at “beau”")
    second.press("Enter")
    assert "locked" in state(page)
    second.press("Escape")
    assert "locked" not in state(page)
    second.blur()
    page.keyboard.press("m")
    expect(page.locator("#focus .heat canvas")).to_have_count(1)
    for _ in range(2):
        page.keyboard.press("m")
    expect(page.locator("#focus .heat canvas")).to_have_count(2)


def test_two_models_side_by_side_in_maps(page: Page, explorer: Explorer) -> None:
    page.goto(f"{explorer.url}#text={quote(SENTENCE)}&compare=lesser&side=both")
    expect(page.locator("#table table")).to_have_count(2)
    lesser = explorer.translator(explorer.second).attention(SENTENCE, beam=1, names=CROSS, heads=[0])[0].weights[0]
    torch.testing.assert_close(drawn(page)[1], lesser, rtol=2e-3, atol=2e-6)
    expect(page.locator("#focus .picture h3").nth(1)).to_contain_text("Second model (lesser): cross 1 · head 0")
    for which in (0, 1):
        point(page, which, 0, 2)
        expect(page.locator("#focus .readout b")).to_have_count(2)


def test_both_maps_are_exported(page: Page, explorer: Explorer) -> None:
    both(page, explorer)
    before, after = explorer.map(CROSS, 0).numpy(), edited(explorer).numpy()
    saved = save(page, "csv")
    assert saved.suggested_filename == "cross-1-head-0-weights-both.csv"
    blocks = saved.path().read_bytes().decode().split("\r\n\r\n")
    for block, name, expected in zip(blocks, ("Original", "Edited"), (before, after), strict=True):
        head, *rows = csv.reader(io.StringIO(block, newline=""))
        assert head[0].startswith(name)
        np.testing.assert_allclose([[float(x) for x in row[1:]] for row in rows], expected, rtol=1e-4, atol=1e-6)
    with np.load(save(page, "npz").path(), allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["weights"], before, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(arrays["beside_weights"], after, rtol=1e-4, atol=1e-6)
        assert json.loads(arrays["about"].item())["beside"]["edits"] == {BELOW: {"0": 0.9}}
    drawing = ElementTree.fromstring(save(page, "svg").path().read_text("utf-8"))
    assert {"Original", "Edited"} <= {"".join(each.itertext()) for each in drawing.iter(f"{SVG}text")}
    assert save(page, "png").path().read_bytes().startswith(b"\x89PNG")
    assert save(page, "html").path().read_text("utf-8").count("<table>") == 2


def test_neurons_are_exported_as_they_are_seen(opened: Page, explorer: Explorer) -> None:
    Heat(opened).click(1, 3)
    opened.get_by_text("Neurons", exact=True).click()
    expect(opened.locator("#neuron .focus-title")).to_contain_text("perro")
    shown = [figure_of(text) for text in opened.locator(".neuron-number").all_inner_texts()]
    saved = save(opened, "npz")
    assert saved.suggested_filename == "cross-1-head-0-neurons-query-1.npz"
    with np.load(saved.path(), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    np.testing.assert_allclose(found["scores"], shown, atol=6e-4)
    np.testing.assert_allclose(found["products"].sum(1), found["scores"], atol=1e-4)
    about = json.loads(found["about"].item())
    np.testing.assert_allclose(found["products"], found["query"] * found["keys"] * about["scale"], atol=1e-4)
    np.testing.assert_allclose(found["weights"], explorer.map(CROSS, 0)[1], atol=1e-5)
    assert found["labels"].tolist()[:3] == ["the", "beau", "tiful"]
    head, query, *keys = csv.reader(io.StringIO(save(opened, "csv").path().read_bytes().decode(), newline=""))
    assert len(keys) == len(shown)
    np.testing.assert_allclose([float(x) for x in query if x and x[0] in "-0123456789"], found["query"], rtol=1e-5)
    assert head[:3] == ["key", "score", "weight"]
    drawing = ElementTree.fromstring(save(opened, "svg").path().read_text("utf-8"))
    texts = {"".join(each.itertext()) for each in drawing.iter(f"{SVG}text")}
    assert {"beau", *opened.locator(".neuron-number").all_inner_texts()} <= texts
    picture = save(opened, "png").path().read_bytes()
    assert struct.unpack(">II", picture[16:24])[0] == 2 * float(drawing.attrib["width"])
    html = save(opened, "html").path().read_text("utf-8")
    assert "perro" in html
    assert "<script" not in html


def test_the_atlas_is_exported_in_its_order(opened: Page, explorer: Explorer) -> None:
    opened.locator("#tab-atlas").click()
    opened.locator('[data-sort="confidence"]').click()
    heads = opened.locator(".atlas-table tbody th").all_inner_texts()
    saved = save(opened, "csv")
    assert saved.suggested_filename == "heads-toy.csv"
    lines = list(csv.DictReader(io.StringIO(saved.path().read_bytes().decode(), newline="")))
    assert [line["Head"] for line in lines] == heads
    values = [float(line["Confidence"]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert json.loads(save(opened, "json").path().read_bytes()) == json.loads(
        (explorer.first / "heads.json").read_bytes()
    )
    drawing = ElementTree.fromstring(save(opened, "svg").path().read_text("utf-8"))
    assert "Which heads are alike" in {"".join(each.itertext()) for each in drawing.iter(f"{SVG}text")}
    chart = next(drawing.iter(f"{SVG}g"))
    coloured = [each for each in chart.iter() if each.find(f"{SVG}title") is not None and each.tag != f"{SVG}line"]
    assert len(coloured) == opened.locator("#atlas .chart .mark").count()
    assert all(each.attrib["fill"].startswith("rgb(") for each in coloured)
    assert not [each for each in drawing.iter() if each.get("class")]
    assert save(opened, "png").path().read_bytes().startswith(b"\x89PNG")
    html = save(opened, "html").path().read_text("utf-8")
    before, table = html.split("<table>")
    assert "<svg" in before
    assert table.index(f">{heads[0]}<") < table.index(f">{heads[-1]}<")


def test_the_measures_of_a_sentence_are_exported_without_charts(opened: Page) -> None:
    opened.locator("#model").select_option("lesser")
    opened.locator("#tab-atlas").click()
    expect(opened.locator(".atlas-none code")).to_be_visible()
    expect(opened.locator(".atlas-table tbody tr")).to_have_count(24)
    expect(opened.locator("#export > button")).to_be_visible()
    opened.keyboard.press("e")
    expect(opened.locator("#export [data-kind]")).to_have_count(2)
    assert opened.locator("#export [data-kind]").first.inner_text().startswith("CSV")
    opened.keyboard.press("Escape")
    assert "<table>" in save(opened, "html").path().read_text("utf-8")
