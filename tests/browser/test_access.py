"""The explorer for everybody: by keyboard alone, by ear, in the dark, in Chinese, on a narrow screen."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.driver import CROSS, TRANSLATION, Explorer, grid_cell, rest, state

pytestmark = pytest.mark.slow

NAMELESS = """() => {
  const name = (e) => e.getAttribute("aria-label") || e.getAttribute("title") || e.alt || e.textContent.trim()
    || [...(e.labels ?? [])].map((l) => l.textContent.trim()).join("")
    || document.getElementById(e.getAttribute("aria-labelledby") ?? "")?.textContent.trim();
  const things = "button, a, input, select, textarea, [role=gridcell], [role=application], [role=tab]";
  const seen = [...document.querySelectorAll(things)].filter((e) => e.checkVisibility());
  return seen.filter((e) => !name(e)).map((e) => e.outerHTML.slice(0, 120));
}"""

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((x) => x / 255).map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, [r, g, b, a]) =>
      [r, g, b].map((x, i) => (x * a + under[i] * (255 - a)) / 255), [255, 255, 255]);
  };
  const poor = [];
  for (const e of document.querySelectorAll("h1, h2, h3, p, label span, button, select, textarea, .what, .p, td, th")) {
    if (!e.checkVisibility({ opacityProperty: true }) || !e.textContent.trim() || e.disabled) continue;
    if (e.closest(".unseen, [disabled], [aria-disabled=true], label:has(:disabled)")) continue;
    const back = behind(e);
    const [r, g, b, a] = rgba(getComputedStyle(e).color);
    const front = [r, g, b].map((x, i) => (x * a + back[i] * (255 - a)) / 255);
    const [high, low] = [light(front), light(back)].sort((p, q) => q - p);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.outerHTML.slice(0, 90)}`);
  }
  return poor;
}"""

MARKED = """() => {
  const e = document.activeElement;
  const styles = [e, e.nextElementSibling, e.parentElement].filter(Boolean).map((each) => getComputedStyle(each));
  return styles.some(({ outlineStyle, boxShadow }) => outlineStyle !== "none" || boxShadow !== "none");
}"""

SPOKEN = """() => [...document.querySelectorAll("button, fieldset > legend, caption, .note")]
  .filter((e) => !e.closest("#examples, #strip")).map((e) => e.ariaLabel || e.textContent).filter(Boolean)"""


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')"))


def test_everything_by_keyboard(page: Page, explorer: Explorer) -> None:
    page.goto(explorer.url)
    expect(page.locator("#figures")).not_to_be_empty()
    press, type_ = page.keyboard.press, page.keyboard.type
    press("/")
    assert focused(page) == "text"
    press("Control+A")
    type_("the beautiful dog forgets a happy book.")
    expect(page.locator("#translation")).to_have_text(TRANSLATION)
    press("Escape")
    press("]")
    press("]")
    expect(page.locator("#step-says")).to_have_text("step 2 of 10")
    press("2")
    expect(page.locator("#focus .focus-title")).to_contain_text("decoder")
    press("3")
    for _ in range(60):
        press("Tab")
        if page.evaluate("document.activeElement.matches('.grid-cell')"):
            break
    press("Home")
    press("ArrowRight")
    press("ArrowRight")
    press("Enter")
    expect(page.locator("#focus .focus-title")).to_contain_text("head 2")
    press("x")
    expect(page.locator("#edits li")).to_have_count(1)
    press("x")
    expect(page.locator("#edits li")).to_have_count(0)
    for key, name in (("w", "words"), ("s", "special"), ("l", "colour"), ("p", "axis"), ("v", "view")):
        press(key)
        assert name in state(page)
    press("a")
    expect(page.locator("#atlas")).to_be_visible()
    press("a")
    press("?")
    expect(page.locator("#help")).to_be_visible()
    press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    press("e")
    press("ArrowDown")
    press("ArrowDown")
    with page.expect_download() as download:
        press("Enter")
    assert download.value.suggested_filename.endswith(".csv")


def test_the_map_by_keyboard_is_read_out(opened: Page) -> None:
    heat = opened.locator("#focus .heat")
    heat.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"):
        heat.press(key)
    expect(opened.locator("#status")).to_contain_text(re.compile(r"\d"))
    heat.press("Enter")
    assert "locked" in state(opened)
    heat.press("Escape")
    assert "locked" not in state(opened)


def test_what_has_the_focus_can_be_seen(opened: Page) -> None:
    opened.locator("body").click(position={"x": 2, "y": 2})
    seen = set()
    for _ in range(25):
        opened.keyboard.press("Tab")
        assert opened.evaluate(MARKED), opened.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        seen.add(opened.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
    assert len(seen) > 15


def test_everything_has_a_name(opened: Page) -> None:
    opened.get_by_role("button", name="Silence head 0 of layer 1").click()
    opened.locator("#compare-with").select_option("lesser")
    expect(opened.locator("#edits li")).to_have_count(1)
    assert opened.evaluate(NAMELESS) == []
    opened.locator("#tab-atlas").click()
    expect(opened.locator(".atlas-table")).to_be_visible()
    assert opened.evaluate(NAMELESS) == []
    assert opened.locator("h1").count() == 1
    assert opened.locator("[tabindex]:not([tabindex='0']):not([tabindex='-1'])").count() == 0
    ids = opened.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_light_and_dark_can_be_read(opened: Page, theme: str) -> None:
    opened.locator("#theme").select_option(theme)
    expect(opened.locator("html")).to_have_attribute("data-theme", theme)
    rest(opened)  # colours may take a moment to change
    background = opened.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(background) > 384) == (theme == "light")
    assert opened.evaluate(CONTRAST) == []


def test_the_theme_follows_the_system(opened: Page) -> None:
    for scheme in ("dark", "light"):
        opened.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(opened.locator("html")).to_have_attribute("data-theme", scheme)


def test_the_page_in_chinese(opened: Page) -> None:
    opened.locator("#language").select_option("zh")
    expect(opened.locator("html")).to_have_attribute("lang", "zh")
    expect(opened.locator("#generation-title")).to_have_text("译文")
    texts = opened.locator("[data-t]").all_text_contents()
    assert [text for text in texts if text and not re.search(r"[\u4e00-\u9fff]", text)] == []
    expect(opened.locator("#table caption")).to_contain_text("每行")  # which is made when there is time
    english = re.compile(r"\b(head|layer|step|show|the|of|row|token|sum)\b", re.IGNORECASE)
    assert [text for text in opened.evaluate(SPOKEN) if english.search(text)] == []
    assert state(opened)["language"] == "zh"
    opened.keyboard.press("Escape")
    expect(opened.locator("#translation")).to_have_text(TRANSLATION)


def test_a_browser_that_speaks_chinese_gets_chinese(page: Page, explorer: Explorer) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'language', { get: () => 'zh-CN' })")
    page.goto(explorer.url)
    expect(page.locator("html")).to_have_attribute("lang", "zh")


def test_a_narrow_screen(opened: Page) -> None:
    opened.set_viewport_size({"width": 390, "height": 844})
    rest(opened)
    wide = opened.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]
    grid_cell(opened, CROSS, 1).click()
    expect(opened.locator("#focus .focus-title")).to_contain_text("head 1")


def test_the_list_of_routes_has_its_style_under_its_policy(page: Page, explorer: Explorer) -> None:
    page.goto(f"{explorer.address}/docs")
    expect(page.locator("code").first).to_have_text("/translate")
    expect(page.locator("td").first).to_have_css("padding-right", "32px")
