"""A Chromium, a server with a model that was trained a moment ago, and a page that may neither complain nor leave."""

import os
import shutil
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.browser.driver import SENTENCE, TRANSLATION, Explorer
from tests.browser.toys import damaged, studied, trained
from tests.serving.servers import running

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
QUIET += ["--no-first-run", "--disable-default-apps", "--disable-extensions"]
expect.set_options(timeout=20_000)  # ms: a busy machine is slow, and that is no fault of the page


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser: the one that REGARD_CHROMIUM names, or the first that there is."""
    named = os.environ.get("REGARD_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"there is no Chromium: install one, or name it by REGARD_CHROMIUM (looked for {', '.join(NAMES)})")
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # root may have none
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*QUIET, *sandbox])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def explorer(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    """Where there is a browser: a server with two models, the first of which has learned its language."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("models")
    for name in ("toy", "lesser"):
        (place / name).mkdir()
    first = trained(place / "toy")
    second = damaged(place / "lesser", first)
    studied(first)
    with running(Registry([first, second]), ServeConfig(explorer=True)) as (address, _):
        yield Explorer(address, first, second)


class Watch:
    """What a page must not do."""

    def __init__(self, page: Page, origin: str) -> None:
        self.origin, self.wrong = origin, list[str]()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"an exception: {error}"))
        page.on("request", self._request)
        page.on("crash", lambda _: self.wrong.append("the page crashed"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type} on the console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "blob:", "data:")):
            self.wrong.append(f"a request to {request.url}")


@pytest.fixture
def page(chromium: Browser, explorer: Explorer) -> Iterator[Page]:
    """An empty page, whose test fails if anything is wrong with it: on the console, or a request that leaves."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB", accept_downloads=True)
    context.set_default_timeout(20_000)
    made = context.new_page()
    watch = Watch(made, explorer.address)
    yield made
    context.close()
    assert watch.wrong == []


@pytest.fixture
def opened(page: Page, explorer: Explorer) -> Page:
    """The page when a sentence is translated, and its maps are drawn."""
    page.goto(explorer.url)
    expect(page.locator("#figures")).not_to_be_empty()  # an example, to begin with
    page.locator("#text").fill(SENTENCE)
    expect(page.locator("#translation")).to_have_text(TRANSLATION)
    expect(page.locator("#table tbody tr")).to_have_count(10)
    return page
