"""Models that see, in the explorer: what every head looks at lies over the picture, and a silent one changes what is
said of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import regard
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.browser.conftest import Watch
from tests.browser.driver import grid_cell, rest, save, state
from tests.eyes import eyes
from tests.seers import MODELS, SIDE, directory, filming, gif, png
from tests.serving.servers import running
from tests.videos import video, written

pytestmark = pytest.mark.slow
LAST = "encoder.layers.1.self_attention"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("models")
    found = {name: directory(place / name, name) for name in MODELS}
    return {**found, "look": eyes(place / "look", "look")}


@pytest.fixture(scope="module")
def address(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("pictures")
    for i in range(2):
        (place / f"{i}.png").write_bytes(png(i))
    with running(Registry([*paths.values()]), ServeConfig(explorer=True, pictures=(place,))) as (address, _):
        yield address


@contextmanager
def opened(chromium: Browser, address: str, model: str, refused: int = 0, *, first: bool = True) -> Iterator[Page]:
    """The page, with the `first` sample if there is one; a browser complains of each request that is refused."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB", accept_downloads=True)
    context.set_default_timeout(20_000)
    page = context.new_page()
    watch = Watch(page, address)
    page.goto(f"{address}/explore/#model={model}")
    if first:
        expect(page.locator("#figures")).not_to_be_empty()
    expect(page.locator("body")).to_contain_class("sees")
    yield page
    context.close()
    assert len(watch.wrong) == refused, watch.wrong


def number(page: Page) -> float:
    rest(page)
    return float(page.locator("#focus .readout b").inner_text())


OVER = """() => {
  const canvas = document.querySelector("#focus .over canvas");
  const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  return Array.from({ length: data.length / 4 }, (_, i) => data[4 * i + 3]);
}"""


def strength(page: Page) -> list[int]:
    """How much lies over each patch."""
    rest(page)
    found: list[int] = page.evaluate(OVER)
    return found


def same_order(found: list[int], wanted: torch.Tensor) -> None:
    """Over stronger patches lies more: the opacity goes with the number."""
    part = (wanted / wanted.max()).flatten().numpy()
    assert np.allclose(np.array(found), 255 * (0.1 + 0.62 * part), atol=1.5)


def hover(page: Page, row: int, column: int) -> None:
    box = page.locator("#focus .over").first.bounding_box()
    assert box is not None
    at = [box[a] + (i + 0.5) * box[b] / SIDE for a, b, i in (("x", "width", column), ("y", "height", row))]
    page.mouse.move(*at)


@pytest.mark.parametrize("name", ["vit", "cct"])
def test_attention_lies_over_the_picture(chromium: Browser, address: str, paths: dict[str, Path], name: str) -> None:
    predictor: Any = regard.load(paths[name], engine="torch")
    own = predictor.classify(png(0))
    (wanted,) = predictor.attention(png(0), names=LAST, heads=[0])
    with opened(chromium, address, name) as page:
        expect(page.locator("#translation")).to_have_text(own.label)
        expect(page.locator(".grid-cell img:visible")).to_have_count(4)
        same_order(strength(page), wanted.over()[0])
        assert number(page) == pytest.approx(float(wanted.over()[0].max()), rel=2e-3)
        hover(page, 1, 2)  # what a patch looks at
        tokens = wanted.picture.grid.tokens
        same_order(strength(page), wanted.over(tokens + 5)[0])
        expect(page.locator("#focus .readout")).to_contain_text("“1,2” looks most at")
        expect(page.locator("#focus .over-marks .from")).to_have_count(1)
        for gone in ("#text", "#steps", "#beam", "#beside", "#strip"):
            expect(page.locator(gone)).to_be_hidden()
        page.locator("#focus input[value=rollout]").check(force=True)
        (_, rolled) = predictor.attention(png(0), view="rollout")
        page.mouse.move(5, 5)
        same_order(strength(page), rolled.over()[0])


def test_a_silent_head_changes_the_answer(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    predictor: Any = regard.load(paths["vit"], engine="torch")
    with opened(chromium, address, "vit") as page:
        grid_cell(page, LAST, 1).locator(".grid-switch").click()
        with regard.edit(predictor.model, {LAST: {1: 0.0}}):
            silent = predictor.classify(png(0))
        expect(page.locator("#edited-translation")).to_have_text(silent.label)
        expect(page.locator("#edited-figures")).to_contain_text("Largest change:")
        page.locator("#sides label").last.click()  # both
        expect(page.locator("#focus .over:visible")).to_have_count(2)


def test_a_picture_is_chosen_locked_and_kept_in_the_address(
    chromium: Browser, address: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "mine.png").write_bytes(png(5))
    predictor: Any = regard.load(paths["vit"], engine="torch")
    with opened(chromium, address, "vit") as page:
        first = state(page).get("picture")
        page.locator("#file").set_input_files(tmp_path / "mine.png")
        expect(page.locator("#translation")).to_have_text(predictor.classify(png(5)).label)
        (wanted,) = predictor.attention(png(5), names=LAST, heads=[0])
        same_order(strength(page), wanted.over()[0])
        assert state(page)["picture"] != first
        hover(page, 2, 0)
        page.mouse.down()
        page.mouse.up()
        assert state(page)["locked"] == "7;"
        page.locator("#focus .over").first.press("ArrowRight")
        for kind in ("svg", "png", "csv", "npz", "html", "page"):
            save(page, kind).save_as(tmp_path / f"seen.{kind}")
        assert b"<image" in (tmp_path / "seen.svg").read_bytes()
        kept = page.url
        page.goto("about:blank")
        page.goto(kept)
        expect(page.locator("#focus .over-marks .from")).to_have_count(1)
        page.locator("#tab-atlas").click()
        expect(page.locator("#atlas")).to_contain_text("Reach")


def test_what_is_no_picture_is_told(chromium: Browser, address: str, tmp_path: Path) -> None:
    (tmp_path / "words.png").write_bytes(b"words")
    with opened(chromium, address, "vit", refused=1) as page:
        page.locator("#file").set_input_files(tmp_path / "words.png")
        expect(page.locator("#error")).to_contain_text("no picture")


def test_words_look_at_the_picture(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    with opened(chromium, address, "captions") as page:
        count = page.locator("#strip .token").count()
        expect(page.locator(".gallery li")).to_have_count(count)
        page.locator("#strip .token").nth(2).click()
        expect(page.locator(".gallery button").nth(2)).to_have_attribute("aria-pressed", "true")
        page.locator(".gallery button").nth(1).click()
        assert state(page)["step"] == "1"
        page.locator("input[name=kind][value=decoder]").check(force=True)
        expect(page.locator("#focus .lines-frame")).to_be_visible()
        page.locator("input[name=kind][value=encoder]").check(force=True)
        expect(page.locator("#focus .over").first).to_be_visible()


def test_a_pair_has_a_picture_and_texts(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    predictor: Any = regard.load(paths["clip"], engine="torch")
    with opened(chromium, address, "clip") as page:
        page.locator("#text").fill("a blue dog")
        page.locator("#pair").fill("two men")
        cosines = (predictor.see([png(0)]) @ predictor.embed(["a blue dog", "two men"]).T)[0]
        expect(page.locator("#answer .p").first).to_have_text(f"{cosines[0]:+.2f}".replace("-", "−"))
        expect(page.locator("#answer .p").nth(1)).to_have_text(f"{cosines[1]:+.2f}".replace("-", "−"))
        page.locator("input[name=kind][value=encoder]").check(force=True)
        expect(page.locator(".grid-cell img:visible")).to_have_count(4)
        (wanted,) = predictor.attention(png(0), "a blue dog", names="picture_encoder.layers.0.*", heads=[0])
        same_order(strength(page), wanted.over()[0])
        page.locator("#strip .token").nth(1).click()
        expect(page.locator("input[name=kind][value=decoder]")).to_be_checked()
        expect(page.locator("#focus .readout")).to_contain_text("“a” looks most at")


def test_words_of_a_pair_lie_over_the_picture(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    predictor: Any = regard.load(paths["clip"], engine="torch")
    with opened(chromium, address, "clip") as page:
        page.locator("#text").fill("a blue dog")
        page.locator("input[name=kind][value=cross]").check(force=True)
        places = predictor.attention(png(0), "a blue dog")[0]
        expect(page.locator(".gallery li")).to_have_count(len(places.queries))
        page.locator(".gallery button").nth(2).click()
        same_order(strength(page), places.over(2)[0])
        expect(page.locator("#heads .grid-switch:visible")).to_have_count(0)  # no head's, so nothing to switch
        expect(page.locator("#focus .scaling")).to_be_hidden()


def test_words_of_an_answer_look_at_the_picture(chromium: Browser, address: str, paths: dict[str, Path]) -> None:
    looker: Any = regard.load(paths["look"], bitwise=True)
    name, question = "decoder.layers.0.self_attention", "Who is it?"
    with opened(chromium, address, "look") as page:
        page.locator("#text").fill(question)
        said = looker.caption(png(0), question)
        expect(page.locator("#translation")).to_have_text(said)
        (wanted,) = looker.attention(png(0), said, question=question, names=name, heads=[0])
        expect(page.locator(".gallery li")).to_have_count(page.locator("#strip .token").count())
        page.locator(".gallery button").nth(1).click()
        assert (state(page)["step"], state(page)["kind"]) == ("1", "decoder")
        same_order(strength(page), wanted.over(1)[0])
        grid_cell(page, name, 1).locator(".grid-switch").click()
        with regard.edit(looker.model, {name: {1: 0.0}}, what="outputs"):
            silent = looker.caption(png(0), question)
        assert silent != said
        expect(page.locator("#edited-translation")).to_have_text(silent)
        page.locator("input[name=kind][value=encoder]").check(force=True)
        expect(page.locator("#focus .over").first).to_be_visible()


def test_a_video_is_opened_as_a_film(chromium: Browser, tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "clip.gif").write_bytes(gif())
    place = filming(tmp_path / "film")
    viewer: Any = regard.load(place, engine="torch")
    with (
        running(Registry([place]), ServeConfig(explorer=True)) as (address, _),
        opened(chromium, address, "film", first=False) as page,
    ):
        page.locator("#file").set_input_files(tmp_path / "clip.gif")
        expect(page.locator("#translation")).to_have_text(viewer.classify(gif()).label)
        within = "encoder.layers.0.self_attention"
        grid_cell(page, within, 1).click()
        (wanted,) = viewer.attention(gif(), names=within, heads=[1])
        same_order(strength(page), wanted.over()[0])
        size = page.locator("#focus .over img").first.evaluate("image => [image.naturalWidth, image.naturalHeight]")
        assert size == [16, 48]  # three times, one below the other
        over_time = "encoder.layers.0.time"
        grid_cell(page, over_time, 0).locator(".grid-switch").click()
        with regard.edit(viewer.model, {over_time: {0: 0.0}}, what="outputs"):
            silent = viewer.classify(gif())
        expect(page.locator("#edited-translation")).to_have_text(silent.label)


def test_each_model_is_offered_what_it_can_see(chromium: Browser, paths: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "a.png").write_bytes(png(0))
    clip = written(video("darker", np.random.default_rng(0)), tmp_path / "shown" / "b.mp4")
    film = filming(tmp_path / "film")
    models, shown = Registry([paths["vit"], film]), ServeConfig(explorer=True, pictures=(tmp_path / "shown",))
    with running(models, shown) as (address, _), opened(chromium, address, "vit") as page:
        for name, place, seen in (("vit", paths["vit"], png(0)), ("film", film, clip), ("vit", paths["vit"], png(0))):
            page.select_option("#model", name)
            expect(page.locator(".sample")).to_have_count(1)
            predictor: Any = regard.load(place, engine="torch")
            expect(page.locator("#translation")).to_have_text(predictor.classify(seen).label)
