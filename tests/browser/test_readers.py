"""Models that read, in the explorer: each says what it has to say in its own form, and a silent head changes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import regard
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.browser.conftest import Watch
from tests.browser.driver import grid_cell, rest, same_map, save, state, table
from tests.readers import TASKS, directory
from tests.serving.servers import running

pytestmark = pytest.mark.slow
LAST = "encoder.layers.1.self_attention"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("models")
    return {name: directory(place / name, name) for name in TASKS}


@pytest.fixture(scope="module")
def address(paths: dict[str, Path]) -> Iterator[str]:
    with running(Registry([*paths.values()]), ServeConfig(explorer=True)) as (address, _):
        yield address


@contextmanager
def opened(chromium: Browser, address: str, model: str, text: str, pair: str = "", **how: Any) -> Iterator[Page]:
    context = chromium.new_context(
        viewport={"width": 1280, "height": 800}, locale="en-GB", accept_downloads=True, **how
    )
    context.set_default_timeout(20_000)
    page = context.new_page()
    watch = Watch(page, address)
    page.goto(f"{address}/explore/#model={model}")
    expect(page.locator("#figures")).not_to_be_empty()  # an example, to begin with
    page.locator("#text").fill(text)
    if pair:
        page.locator("#pair").fill(pair)
    expect(page.locator("body")).to_have_class("reads")
    yield page
    context.close()
    assert watch.wrong == []


def bars(page: Page, where: str = "#answer") -> list[tuple[str, str]]:
    """The bars of an answer: what each is of, and how much."""
    rest(page)
    items = page.locator(f"{where} .bars li")
    return [(item.locator(".what").inner_text(), item.locator(".p").inner_text()) for item in items.all()]


def percent(p: float) -> str:
    return f"{100 * p:.{int(p < 0.0995)}f} %"


def test_a_class_and_what_becomes_of_it_without_a_layer(
    chromium: Browser, address: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    reader: Any = regard.load(paths["classify"], engine="torch")
    text, pair = "a good film", "the film is long"
    with opened(chromium, address, "classify", text, pair) as page:
        own = reader.classify(text, pair)
        expect(page.locator("#translation")).to_have_text(own.label)
        assert bars(page) == [(label, percent(p)) for label, p in own.probabilities.items()]
        (wanted,) = reader.attention(text, pair, names=LAST, heads=[0])
        same_map(page, wanted.weights[0])
        rows, columns, _ = table(page)
        assert rows == columns
        expect(page.locator(".grid-cell")).to_have_count(4)
        for name in ("#steps", "#beam", "#rescoring", "#edited"):
            expect(page.locator(name)).to_be_hidden()
        page.locator("#preset").select_option(LAST)
        page.locator("#presets button").click()
        with regard.edit(reader.model, {LAST: {0: 0.0, 1: 0.0}}):
            silent = reader.classify(text, pair)
        expect(page.locator("#edited-translation")).to_have_text(silent.label)
        changed = dict(bars(page, "#edited-answer"))
        for label, p in own.probabilities.items():
            after = percent(silent.probabilities[label])
            assert changed[label] == (percent(p) if percent(p) == after else f"{percent(p)} → {after}")
        same = silent.label == own.label
        said = "The answer stays the same." if same else "The answer changes."
        expect(page.locator("#edited-figures")).to_contain_text(said)
        expect(page.locator("#edited-figures")).to_contain_text("Largest change:")
        page.locator("#preset").select_option("keep")  # by how far each moves what is said
        page.locator("#k").fill("3")
        page.locator("#presets button").click()
        expect(page.locator("#edits li")).to_have_count(1)
        page.keyboard.press("Escape")
        assert (state(page)["text"], state(page)["pair"]) == (text, pair)
        for kind in ("csv", "html", "page"):
            save(page, kind).save_as(tmp_path / kind)
            assert "film" in (tmp_path / kind).read_text("utf-8")


def test_a_token_shows_what_it_looks_at(chromium: Browser, address: str) -> None:
    with opened(chromium, address, "tag", "two men sit") as page:
        expect(page.locator("#strip .token")).to_have_text(["<s>", "two", "men", "sit", "</s>"])
        page.locator("#strip .token").nth(2).click()
        expect(page.locator("#strip .token").nth(2)).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#focus .readout")).to_contain_text("Reading “men”, it looks most at")
        assert state(page)["locked"] == "2;"
        page.locator("#strip .token").nth(2).press("ArrowRight")
        expect(page.locator("#focus .readout")).to_contain_text("Reading “sit”")
        page.locator("#strip .token").nth(3).click()
        assert "locked" not in state(page)
        page.keyboard.press("w")
        page.keyboard.press("v")
        expect(page.locator("#focus input[value=norm]")).to_be_checked()
        page.keyboard.press("v")
        expect(page.locator("#focus input[value=rollout]")).to_be_checked()
        page.locator("#tab-atlas").click()
        expect(page.locator("#atlas tbody tr")).to_have_count(4)


def test_names_are_marked_where_they_stand(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    text = "two  men 🐈 sit on a bench"
    found = regard.load(paths["tag"], engine="torch").tag(text)
    assert found.spans
    with opened(chromium, address, "tag", text) as page:
        marks = page.locator("#answer mark")
        expect(marks).to_have_text([f"{span.text}{span.label}" for span in found.spans])
        assert bars(page) == [(span.text, percent(span.probability)) for span in found.spans]
        assert page.locator("#beside").is_hidden()


def test_gaps_have_their_words_and_none_is_said(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    first, second = regard.load(paths["mask"], engine="torch").fill("a [MASK] film is [MASK]", top=5)
    with opened(chromium, address, "mask", "a [MASK] film is [MASK]") as page:
        expect(page.locator("#translation")).to_have_text(f"{first.tokens[0]} · {second.tokens[0]}")
        expect(page.locator("#answer h3")).to_have_text(["Gap 1", "Gap 2"])
        told = [percent(p) for gap in (first, second) for p in gap.probabilities]
        assert [p for _, p in bars(page)] == told
        page.locator("#text").fill("a good film")
        expect(page.locator("#translation")).to_contain_text("has no gap: write <mask>")
        expect(page.locator("#answer")).to_be_hidden()
        expect(page.locator("#strip .token")).to_have_count(5)  # it is looked at all the same
        page.locator("#text").fill("")
        expect(page.locator("#translation")).to_have_text("Waiting for a text.")
        expect(page.locator("#grid .note")).to_contain_text("Type a text")


def test_an_answer_stands_in_its_context(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    text, pair = "film long", "the film is awful, and long"
    reply = regard.load(paths["answer"], engine="torch").answer(text, pair, top=2)
    with opened(chromium, address, "answer", text, pair) as page:
        expect(page.locator("#pair-title")).to_have_text("Context")
        expect(page.locator("#translation")).to_have_text(reply.text)
        expect(page.locator("#answer mark")).to_have_text(reply.text)
        assert bars(page)[:2] == [(span.text, percent(span.probability)) for span in reply.best]
        page.locator("#pair").fill("")
        expect(page.locator("#translation")).to_contain_text("has no context to find an answer in")


def test_texts_are_compared_with_the_first(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    embedder = regard.load(paths["embed"], engine="torch")
    near = embedder.similarity(["a good film"], ["fine", "two men sit"])[0]
    with opened(chromium, address, "embed", "a good film", "fine\ntwo men sit") as page:
        expect(page.locator("#answer .bars li")).to_have_count(2)
        signs = [f"{'−' if x < 0 else '+'}{abs(x):.2f}" for x in near.tolist()]
        assert bars(page) == [("fine", signs[0]), ("two men sit", signs[1])]
        expect(page.locator("#answer .facts")).to_contain_text("Length1.000")
        grid_cell(page, LAST, 1).locator(".grid-switch").click()
        expect(page.locator("#edited-figures")).to_contain_text("Cosine with the original vector: 0.")


def test_another_task_brings_its_own_example_and_words(chromium: Browser, address: str) -> None:
    with opened(chromium, address, "classify", "a film") as page:
        expect(page.locator("#input-title")).to_have_text("Text")
        page.locator("#model").select_option("answer")
        expect(page.locator("#input-title")).to_have_text("Question")
        expect(page.locator("#pair")).not_to_be_empty()
        expect(page.locator("#answer mark, #answer .what.none").first).to_be_visible()
        expect(page.locator("#compare-with")).to_be_hidden()  # there is no other model for questions
        page.locator("#language").select_option("zh")
        expect(page.locator("#input-title")).to_have_text("问题")
        page.keyboard.press("?")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_small_screen(chromium: Browser, address: str, scheme: Any) -> None:
    pair = "the film is awful, and long"
    with opened(chromium, address, "answer", "film long", pair, color_scheme=scheme) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        rest(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#text").focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "pair"
