"""Models of other families in the explorer: one that attends to its source alone, and one that does not attend."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import regard
from regard.models.convolutional import ConvolutionalConfig
from regard.models.recurrent import RecurrentConfig
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.browser.conftest import Watch
from tests.browser.driver import SENTENCE, Heat, same_map
from tests.browser.toys import trained
from tests.serving.servers import running

pytestmark = pytest.mark.slow
CROSS = "decoder.cross_attention"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("families")
    kinds = {
        "gru": (partial(RecurrentConfig.gru, d_model=64, dropout=0.0), 150),
        "bytenet": (partial(ConvolutionalConfig.bytenet, d_model=32, encoder_layers=2, decoder_layers=2), 2),
    }
    for name in kinds:
        (place / name).mkdir()
    return [trained(place / name, config, steps) for name, (config, steps) in kinds.items()]


@pytest.fixture
def opened(chromium: Browser, models: list[Path]) -> Iterator[Page]:
    """The page with the first model; it may not complain."""
    with running(Registry(models), ServeConfig(explorer=True)) as (address, _):
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
        page = context.new_page()
        watch = Watch(page, address)
        page.goto(f"{address}/explore/#text={quote(SENTENCE)}")
        expect(page.locator("#figures")).not_to_be_empty()
        yield page
        context.close()
    assert watch.wrong == []


def test_the_alignment_of_a_recurrent_model_is_shown(opened: Page, models: list[Path]) -> None:
    translator = regard.load(models[0], engine="torch")
    expect(opened.locator("#translation")).to_have_text(translator.translate(SENTENCE, beam=1))
    expect(opened.locator("#model-note")).to_have_text(re.compile(r"parameters · heads: 1\b"))
    expect(opened.locator(".grid-cell")).to_have_count(1)
    expect(opened.locator(f'.grid-cell[data-name="{CROSS}"][data-head="0"]')).to_be_visible()
    expect(opened.locator('input[name="kind"]')).to_have_count(1)
    (known,) = translator.attention(SENTENCE, names=CROSS)
    expect(opened.locator("#table tbody tr")).to_have_count(len(known.queries))
    same_map(opened, known.weights[0])
    heat = Heat(opened)
    heat.hover(1, 2)
    assert heat.number == pytest.approx(known.weights[0, 1, 2].item(), abs=1e-3)
    # Scores by a feed-forward network are no products of queries and keys: they have no neuron view.
    expect(opened.locator('input[name="view"][value="neuron"]')).to_be_disabled()
    for key in ("1", "2", "v", "v", "v"):
        opened.keyboard.press(key)
    expect(opened.locator(".grid-cell")).to_have_count(1)


def test_a_model_without_attention_translates_and_says_that_there_is_nothing_to_see(opened: Page) -> None:
    expect(opened.locator("#focus .heat canvas")).to_be_visible()
    opened.locator("#model").select_option("bytenet")
    expect(opened.locator("#grid .note")).to_have_text("This model has no attention: there is nothing to look at.")
    expect(opened.locator(".grid-cell")).to_have_count(0)
    expect(opened.locator("#focus .heat canvas")).to_be_hidden()
    expect(opened.locator("#figures")).not_to_be_empty()
    opened.locator("#model").select_option("gru")
    expect(opened.locator("#focus .heat canvas")).to_be_visible()
    expect(opened.locator("#grid .note")).to_be_hidden()
