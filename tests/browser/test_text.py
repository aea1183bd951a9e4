"""A language model in the explorer: a text to go on with, what it may say next, and heads that are silenced."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import regard
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.browser.conftest import Watch
from tests.browser.driver import grid_cell, same_map, save, state, table
from tests.browser.toys import storyteller
from tests.serving.servers import running

pytestmark = pytest.mark.slow
BEGINNING = "the red dog"
LAST = "decoder.layers.1.self_attention"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("models") / "stories"
    place.mkdir()
    return storyteller(place)


@pytest.fixture
def opened(chromium: Browser, model: Path) -> Iterator[Page]:
    with running(Registry([model]), ServeConfig(explorer=True)) as (address, _):
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB", accept_downloads=True)
        context.set_default_timeout(20_000)
        page = context.new_page()
        watch = Watch(page, address)
        page.goto(f"{address}/explore/")
        expect(page.locator("#figures")).not_to_be_empty()  # an example, to begin with
        page.locator("#text").fill(BEGINNING)
        expect(page.locator("#translation")).to_have_text(whole(model))
        yield page
        context.close()
    assert watch.wrong == []


def whole(model: Path, **settings: Any) -> str:
    return regard.load(model, engine="torch").generate(BEGINNING, beam=1, echo=True, limit=12, **settings)


def test_a_text_is_gone_on_with_and_every_head_of_it_is_shown(opened: Page, model: Path) -> None:
    expect(opened.locator("#input-title")).to_have_text("Text to go on with")
    expect(opened.locator("#model option")).to_have_text(["stories"])
    expect(opened.locator(".grid-cell")).to_have_count(8)
    expect(opened.locator('input[name="kind"]')).to_have_count(1)
    generator = regard.load(model, engine="torch")
    (expected,) = generator.attention(whole(model), names=LAST, heads=[0])
    same_map(opened, expected.weights[0])
    rows, columns, _ = table(opened)
    assert [row.strip("▁ ") for row in rows] == [text.strip("▁") for text in expected.queries]
    assert columns[0] == "<s>"
    assert columns[1:] == rows[:-1]
    score = generator.score([whole(model)])[0]
    expect(opened.locator("#figures")).to_contain_text(f"log-probability −{-score.log_probability:.2f}")


def test_another_token_is_chosen_and_the_text_goes_on_from_it(opened: Page, model: Path) -> None:
    generator = regard.load(model, engine="torch")
    given = len(generator.ids(BEGINNING)) - 1
    opened.locator("#strip .token").nth(given).click()  # the first that the model has written itself
    second = opened.locator("#alternatives button").nth(1)
    expect(second).to_be_visible()
    chosen = second.locator(".what").inner_text()
    before = opened.locator("#translation").inner_text()
    second.click()
    grown = re.compile(f"^{re.escape(f'{BEGINNING} {chosen}')}")  # the text comes token by token
    expect(opened.locator("#translation")).to_have_text(grown)
    expect(opened.locator("#translation")).not_to_have_text(before)
    expect(opened.locator("#forced button")).to_have_count(1)  # not the text that was there before
    opened.locator("#forced button").click()
    expect(opened.locator("#translation")).to_have_text(before)
    assert "prefix" not in state(opened)


def test_a_silent_head_changes_the_text_and_its_probability(opened: Page) -> None:
    opened.locator("#preset").select_option(LAST)
    opened.locator("#presets button").click()
    expect(opened.locator("#edited-figures")).not_to_be_empty()
    expect(opened.locator("#rescored li")).to_have_count(opened.locator("#strip .token").count())
    opened.locator("#preset").select_option("keep")
    opened.locator("#k").fill("5")
    opened.locator("#presets button").click()
    expect(opened.locator("#edits li")).to_have_count(3)  # by measures of this text


def test_what_is_seen_is_saved(opened: Page, tmp_path: Path) -> None:
    grid_cell(opened, LAST, 2).click()
    for kind in ("csv", "html", "page"):
        path = tmp_path / kind
        save(opened, kind).save_as(path)
        assert "dog" in path.read_text("utf-8")
