"""The maps of the explorer: each number is the model's own, whichever way one looks, and files hold what is seen."""

import csv
import io
import json
import re
import struct
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect

from tests.browser.driver import CROSS, SENTENCE, TRANSLATION, Explorer, Heat, grid_cell, same_map, save, table

pytestmark = pytest.mark.slow
READ = ["the", "beau", "tiful", "dog", "forgets", "a", "happy", "book", ".", "</s>"]
WRITTEN = ["el", "perro", "he", "rmoso", "olvida", "un", "libro", "contento", ".", "</s>"]
READ_WORDS = ["the", "beautiful", "dog", "forgets", "a", "happy", "book."]
WRITTEN_WORDS = ["el", "perro", "hermoso", "olvida", "un", "libro", "contento."]
REDS = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((_, i) => i % 4 === 0)"
SVG = "{http://www.w3.org/2000/svg}"


def test_every_head_of_every_kind_is_in_the_grid_and_can_be_focused(opened: Page, explorer: Explorer) -> None:
    kinds = {
        "Encoder": ("encoder.layers.{}.self_attention", READ, READ),
        "Decoder": ("decoder.layers.{}.self_attention", WRITTEN, ["<s>", *WRITTEN[:-1]]),
        "Cross": ("decoder.layers.{}.cross_attention", WRITTEN, READ),
    }
    for kind, (name, rows, columns) in kinds.items():
        opened.locator("#grid").get_by_text(kind).click()
        expect(opened.locator(".grid-cell")).to_have_count(8)
        expect(grid_cell(opened, name.format(0), 0)).to_be_visible()
        for layer, head in ((0, 0), (1, 3)):
            grid_cell(opened, name.format(layer), head).click()
            same_map(opened, explorer.map(name.format(layer), head))
            assert table(opened)[:2] == (rows, columns)
        reds = opened.locator(".grid-cell canvas").first.evaluate(REDS)
        assert len(set(reds)) > 3  # it is painted


def test_the_number_under_the_mouse_is_the_weight(opened: Page, explorer: Explorer) -> None:
    weights, heat = explorer.map(CROSS, 0), Heat(opened)
    for row, column in ((0, 0), (1, 3), (6, 7), (9, 9)):
        heat.hover(row, column)
        expect(opened.locator("#focus .readout")).to_contain_text(WRITTEN[row])
        expect(opened.locator("#focus .readout")).to_contain_text(READ[column])
        assert heat.number == pytest.approx(weights[row, column].item(), rel=1e-3)
    lit = opened.locator("#focus .lines .lit")  # the lines follow
    assert lit.all_text_contents() == ["</s>", "</s>"]


def test_a_click_locks_escape_frees_shift_adds(opened: Page, explorer: Explorer) -> None:
    weights, heat = explorer.map(CROSS, 0), Heat(opened)
    heat.click(1, 3)
    opened.mouse.move(5, 5)
    assert heat.number == pytest.approx(weights[1, 3].item(), rel=1e-3)
    opened.keyboard.press("Escape")
    expect(opened.locator("#focus .readout .hint")).to_be_visible()
    heat.click(2, 2)
    opened.keyboard.down("Shift")
    heat.click(3, 2)
    opened.keyboard.up("Shift")
    heat.hover(3, 2)
    assert heat.number == pytest.approx(weights[2:4, 2].mean().item(), rel=1e-3)
    opened.get_by_text("Sum", exact=True).click()
    heat.hover(3, 2)
    assert heat.number == pytest.approx(weights[2:4, 2].sum().item(), rel=1e-3)


def test_views(opened: Page, explorer: Explorer) -> None:
    opened.get_by_text("Norms", exact=True).click()
    same_map(opened, explorer.map(CROSS, 0, view="norm"))
    opened.locator("#grid").get_by_text("Encoder").click()
    opened.get_by_text("Roll-out", exact=True).click()
    first = explorer.translator().attention(SENTENCE, names="encoder.layers.0*")[0].weights
    second = explorer.translator().attention(SENTENCE, names="encoder.layers.1*")[0].weights
    steps = [(each.mean(0) + torch.eye(10)) / 2 for each in (first, second)]
    same_map(opened, steps[1] @ steps[0])


def test_neurons_add_up_to_the_score(opened: Page, explorer: Explorer) -> None:
    Heat(opened).click(1, 3)
    opened.get_by_text("Neurons", exact=True).click()
    expect(opened.locator("#neuron")).to_contain_text("perro")
    scores = [float(text.replace("−", "-")) for text in opened.locator(".neuron-number").all_inner_texts()]
    found = torch.tensor(scores).softmax(0)
    torch.testing.assert_close(found, explorer.map(CROSS, 0)[1], atol=2e-3, rtol=0)


def test_words_and_special_tokens(opened: Page, explorer: Explorer) -> None:
    opened.get_by_text("Words", exact=True).click()
    same_map(opened, explorer.map(CROSS, 0, words=True))
    assert table(opened)[:2] == ([*WRITTEN_WORDS, "</s>"], [*READ_WORDS, "</s>"])
    opened.get_by_text("Special tokens", exact=True).click()
    same_map(opened, explorer.map(CROSS, 0, words=True, special=False))
    assert table(opened)[:2] == (WRITTEN_WORDS, READ_WORDS)
    expect(opened.locator("#focus > .note").first).to_contain_text("sum to 1")
    opened.get_by_text("Words", exact=True).click()
    same_map(opened, explorer.map(CROSS, 0, special=False))


def test_rows_say_what_is_predicted_or_read(opened: Page, explorer: Explorer) -> None:
    expect(opened.locator("#table caption")).to_contain_text("predicts a token")
    opened.get_by_text("reads", exact=True).first.click()
    expect(opened.locator("#table caption")).to_contain_text("reads a token")
    assert table(opened)[0] == ["<s>", *WRITTEN[:-1]]
    same_map(opened, explorer.map(CROSS, 0))


def test_the_note_says_how_far_attention_agrees(opened: Page) -> None:
    expect(opened.locator("#focus .faithful")).to_contain_text("Attention is not explanation")
    expect(opened.locator("#focus .faithful")).to_contain_text(re.compile(r"\d\.\d\d"))


@pytest.fixture
def seen(opened: Page, explorer: Explorer) -> tuple[Page, torch.Tensor]:
    """By words, without special tokens: what is seen, and so what is to be exported."""
    opened.get_by_text("Words", exact=True).click()
    opened.get_by_text("Special tokens", exact=True).click()
    expected = explorer.map(CROSS, 0, words=True, special=False)
    same_map(opened, expected)
    return opened, expected


def test_export_as_numbers(seen: tuple[Page, torch.Tensor]) -> None:
    page, expected = seen
    saved = save(page, "csv")
    assert saved.suggested_filename == "cross-1-head-0-weights.csv"
    head, *rows = csv.reader(io.StringIO(saved.path().read_text("utf-8"), newline=""))
    assert head[1:] == READ_WORDS
    assert [row[0] for row in rows] == WRITTEN_WORDS
    found = torch.tensor([[float(x) for x in row[1:]] for row in rows])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    with np.load(save(page, "npz").path(), allow_pickle=False) as arrays:
        assert arrays["weights"].dtype == np.float32
        assert np.array_equal(arrays["weights"], found.numpy())
        assert (arrays["rows"].tolist(), arrays["columns"].tolist()) == (WRITTEN_WORDS, READ_WORDS)
        about = json.loads(arrays["about"][0])
    assert (about["attention"], about["head"], about["model"], about["words"]) == (CROSS, 0, "toy", True)


def test_export_as_drawings(seen: tuple[Page, torch.Tensor]) -> None:
    page, _ = seen
    drawing = ElementTree.fromstring(save(page, "svg").path().read_text("utf-8"))
    texts = ["".join(each.itertext()) for each in drawing.iter(f"{SVG}text")]
    assert {*WRITTEN_WORDS, *READ_WORDS} <= set(texts)
    assert any(TRANSLATION in text for text in texts)
    assert not [each for each in drawing.iter() if each.tag.endswith(("script", "foreignObject"))]
    assert not [v for each in drawing.iter() for k, v in each.attrib.items() if k.endswith("href") and v[0] != "#"]
    picture = save(page, "png").path().read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert picture.startswith(b"\x89PNG")
    box = [float(x) for x in drawing.attrib["viewBox"].split()]
    assert (width, height) == pytest.approx((2 * box[2], 2 * box[3]), abs=2)


def test_export_as_pages(seen: tuple[Page, torch.Tensor]) -> None:
    page, expected = seen
    one = save(page, "html").path().read_text("utf-8")
    assert "default-src 'none'" in one
    assert "<script" not in one
    assert all(f">{word}</th>" in one for word in (*READ_WORDS, *WRITTEN_WORDS))
    numbers = [float(x) for x in re.findall(r"<td>([\d.]+)</td>", one)]
    torch.testing.assert_close(torch.tensor(numbers).view(7, 7), expected, atol=1e-4, rtol=0)
    every = save(page, "page").path().read_text("utf-8")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', every)[0])
    assert sum(len(each["weights"]) for each in data["maps"]) == 24
    for content in (one, every):  # both open by themselves
        other = page.context.new_page()
        other.set_content(content)
        expect(other.locator("h1")).to_be_visible()
        other.close()
