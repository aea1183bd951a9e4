"""The explorer as a person uses it, in a real browser, on a model that has learned something: text in, text out."""

import math
import re

import pytest
from playwright.sync_api import Page, Route, expect

import regard
from tests.browser.driver import CROSS, SENTENCE, TRANSLATION, Explorer, figure_of, grid_cell, same_map, state

pytestmark = pytest.mark.slow


def test_what_one_types_is_translated_token_by_token(opened: Page, explorer: Explorer) -> None:
    expect(opened).to_have_title("regard")
    (score,) = explorer.translator().score([SENTENCE], [TRANSLATION])
    assert figure_of(opened.locator("#figures").inner_text()) == pytest.approx(score.log_probability, abs=0.006)
    chips = opened.locator("#strip .token")
    assert chips.all_inner_texts() == [piece.removeprefix("▁") for piece in score.tokens]
    for chip, log_p in zip(chips.all(), score.token_scores, strict=True):
        assert float(chip.evaluate("chip => chip.style.getPropertyValue('--p')")) == pytest.approx(
            math.exp(log_p), abs=0.002
        )
    opened.locator("#text").fill("a cat")
    expect(opened.locator("#strip .token")).not_to_have_count(10)
    assert state(opened)["text"] == "a cat"


def test_steps_and_what_else_could_have_come(opened: Page, explorer: Explorer) -> None:
    opened.locator("#step-on").click()
    opened.locator("#step-on").click()
    expect(opened.locator("#step-says")).to_have_text("step 2 of 10")
    expect(opened.locator("#strip .token").nth(1)).to_have_attribute("aria-pressed", "true")
    expect(opened.locator("#alternatives-title")).to_contain_text("after “el”")
    assert state(opened)["step"] == "1"
    found = explorer.translator().alternatives(SENTENCE, prefix="el", count=8)
    listed = opened.locator("#alternatives .what")
    assert listed.all_inner_texts() == [each.token.removeprefix("▁") for each in found]
    joins = ["joins" in (each.get_attribute("class") or "") for each in listed.all()]  # those that begin no word
    assert joins == [not each.token.startswith(("▁", "<")) for each in found]
    opened.locator("#step-back").click()
    expect(opened.locator("#step-says")).to_have_text("step 1 of 10")


def test_a_forced_token_is_gone_on_from_and_can_be_undone(opened: Page, explorer: Explorer) -> None:
    opened.locator("#strip .token").nth(1).click()
    choice = opened.locator("#alternatives button").nth(1)  # the first is the one that was taken
    token = choice.locator(".what").inner_text()
    choice.click()
    expected = explorer.translator().alternatives(SENTENCE, prefix="el", count=8)[1].text
    expect(opened.locator("#translation")).to_have_text(expected)
    expect(opened.locator("#strip .token").nth(1)).to_have_class(re.compile(r"\bforced\b"))
    chip = opened.locator("#forced .undo")
    expect(chip).to_have_text(f"forced at step 2: {token}")
    assert len(state(opened)["prefix"].split(",")) == 2
    chip.click()
    expect(opened.locator("#translation")).to_have_text(TRANSLATION)
    assert "prefix" not in state(opened)


def test_a_silenced_head_changes_what_comes_at_once(opened: Page, explorer: Explorer) -> None:
    expect(opened.locator("#edited")).to_be_hidden()
    opened.get_by_role("button", name="Silence head 0 of layer 1").click()
    expect(opened.locator("#edits li")).to_have_count(1)
    expect(grid_cell(opened, CROSS, 0)).to_have_class(re.compile(r"\boff\b"))
    translator = explorer.translator()
    with regard.edit(translator.model, {CROSS: {0: 0.0}}):
        said = translator.translate(SENTENCE, beam=1)
        (score,) = translator.score([SENTENCE], [said])
        (rescored,) = translator.score([SENTENCE], [TRANSLATION])
    expect(opened.locator("#edited-translation")).to_have_text(said)
    expect(opened.locator("#edited-figures")).to_contain_text("og-probability")
    after = opened.locator("#rescored-figures").inner_text().split("→")[1]
    assert figure_of(after) == pytest.approx(rescored.log_probability, abs=0.006)
    assert score.log_probability != pytest.approx(explorer.translator().score([SENTENCE], [said])[0].log_probability)
    assert state(opened)["edits"] == f"{CROSS}:0=0"
    slider = opened.locator("#edits input[type=range]")
    slider.fill("1.5")
    expect(opened.locator("#edits output")).to_have_text("×1.50")
    opened.locator("#reset").click()
    expect(opened.locator("#edited")).to_be_hidden()
    assert "edits" not in state(opened)


def test_presets_silence_a_layer_and_the_difference_is_marked(opened: Page, explorer: Explorer) -> None:
    opened.locator("#preset").select_option(CROSS)
    opened.locator("#presets button").click()
    expect(opened.locator("#edits li")).to_have_count(4)
    translator = explorer.translator()
    with regard.edit(translator.model, {CROSS: dict.fromkeys(range(4), 0.0)}):
        said = translator.translate(SENTENCE, beam=1)
    assert said != TRANSLATION
    expect(opened.locator("#edited-translation")).to_have_text(said)
    expect(opened.locator("#edited-translation ins")).not_to_have_count(0)
    expect(opened.locator("#translation del")).not_to_have_count(0)
    opened.locator("#preset").select_option("keep")
    opened.locator("#k").fill("20")
    opened.locator("#presets button").click()
    expect(opened.locator("#edits li")).to_have_count(4)  # of 24
    assert state(opened)["edits"].count("=") == 4


def test_two_models_side_by_side(opened: Page, explorer: Explorer) -> None:
    opened.locator("#compare-with").select_option("lesser")
    lesser = explorer.translator(explorer.second)
    said = lesser.translate(SENTENCE, beam=1)
    expect(opened.locator("#other-translation")).to_have_text(said)
    opened.locator("#sides").get_by_text("Second model").click()
    same_map(opened, lesser.attention(SENTENCE, beam=1, names=CROSS, heads=[0])[0].weights[0])
    opened.locator("#model").select_option("lesser")
    expect(opened.locator("#compare-with")).not_to_have_value("lesser")


def test_the_second_models_heads_have_no_switches(opened: Page) -> None:
    opened.locator("#compare-with").select_option("lesser")
    opened.locator("#sides").get_by_text("Second model").click()
    for _ in range(2):
        expect(opened.locator(".grid-switch:visible")).to_have_count(0)
        expect(opened.locator("#focus .scaling")).to_be_hidden()
        grid_cell(opened, CROSS, 0).click()
        opened.keyboard.press("x")
        assert "edits" not in state(opened)
        opened.reload()  # the second model comes after the first
        expect(opened.locator("#other-translation")).not_to_be_empty()


def test_a_head_is_scaled_where_it_is_looked_at(opened: Page) -> None:
    grid_cell(opened, CROSS, 2).click()
    slider = opened.locator("#focus").get_by_role("slider", name="Factor of cross 1 · head 2")
    for value in ("1.4", "1", "0.5"):  # passing 1 takes nothing away
        slider.fill(value)
        expect(opened.locator("#edits output")).to_have_text(f"×{float(value):.2f}")
    expect(grid_cell(opened, CROSS, 2)).to_have_class(re.compile(r"\btouched\b"))
    expect(opened.locator("#edited-translation")).not_to_be_empty()
    slider.fill("1")
    slider.blur()
    expect(opened.locator("#edits li")).to_have_count(0)


def test_without_a_sentence_nothing_of_the_last_one_stays(opened: Page) -> None:
    opened.get_by_role("button", name="Silence head 0 of layer 1").click()
    opened.locator("#compare-with").select_option("lesser")
    expect(opened.locator("#other-figures")).not_to_be_empty()
    expect(opened.locator("#edited-figures")).not_to_be_empty()
    opened.locator("#text").fill("")
    for part in ("#edited", "#compare", "#focus", "#rescoring"):
        expect(opened.locator(part)).to_be_hidden()
    expect(opened.locator(".token")).to_have_count(0)
    expect(opened.locator("#figures")).to_be_empty()
    expect(opened.locator("#grid .note")).to_contain_text("Type a sentence")
    opened.locator("#text").fill("a cat")
    expect(opened.locator("#edited-figures")).not_to_be_empty()
    expect(opened.locator("#other-figures")).not_to_be_empty()
    expect(opened.locator("#grid .note")).to_be_hidden()


def test_while_the_models_load_the_page_says_so(page: Page, explorer: Explorer) -> None:
    held = list[Route]()
    page.route("**/api/models", lambda route: held.append(route))
    page.goto(f"{explorer.url}#text=a+cat")
    expect(page.locator("#translation")).to_have_text("Loading the model …")
    expect(page.locator("#grid .note")).to_be_hidden()
    held[0].continue_()
    expect(page.locator("#figures")).not_to_be_empty()


def test_the_address_holds_everything(opened: Page, explorer: Explorer) -> None:
    grid_cell(opened, "decoder.layers.0.cross_attention", 2).click()
    opened.get_by_role("button", name="Silence head 3 of layer 0").click()
    opened.locator("#strip .token").nth(2).click()
    opened.get_by_text("Words", exact=True).click()
    opened.get_by_text("Special tokens", exact=True).click()
    opened.get_by_text("Log colour", exact=True).click()
    opened.locator("#compare-with").select_option("lesser")
    opened.locator("#theme").select_option("dark")
    expect(opened.locator("#table tbody tr")).to_have_count(7)
    expect(opened.locator("#edited-translation")).not_to_be_empty()
    expect(opened.locator("#other-translation")).not_to_be_empty()
    for figures in ("#figures", "#edited-figures", "#other-figures"):  # they come with the last token
        expect(opened.locator(figures)).not_to_be_empty()
    shown = ["#translation", "#edited-translation", "#other-translation", "#strip", "#step-says", "#table", "#edits"]
    shown += ["#alternatives", "#focus .focus-title"]

    def seen(page: Page) -> list[str]:
        return [page.locator(each).inner_text() for each in shown]

    before, address = seen(opened), state(opened)
    assert {"model", "text", "head", "edits", "step", "words", "special", "colour", "compare", "theme"} <= set(address)
    url = opened.url
    opened.reload()
    for other in (opened, opened.context.new_page()):
        if other is not opened:
            other.goto(url)
        expect(other.locator("#other-translation")).to_have_text(before[2])
        expect(other.locator("#table tbody tr")).to_have_count(7)
        expect(other.locator("#edits li")).to_have_count(1)
        expect(other.locator("#edited-translation")).to_have_text(before[1])
        expect(other.locator("#step-says")).to_have_text(before[4])
        assert seen(other) == before
        assert state(other) == address
        assert other.evaluate("document.documentElement.dataset.theme") == "dark"


def test_an_address_that_asks_for_what_is_not_there(page: Page, explorer: Explorer) -> None:
    page.goto(f"{explorer.url}#model=nowhere&text=a+cat&head=x:9&edits=__proto__:1=0&step=-3&view=magic")
    expect(page.locator("#error")).to_contain_text("nowhere")
    expect(page.locator("#model")).to_have_value("toy")
    expect(page.locator("#strip .token").first).to_be_visible()
    page.locator("#error button").click()
    expect(page.locator("#error")).to_be_hidden()


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", "图书馆在哪里？", "אני אוהב ספרים", "a\n\nb \U0001f600"]
)
def test_any_text_stays_text(page: Page, explorer: Explorer, text: str) -> None:
    page.goto(explorer.url)
    page.locator("#text").fill(text)
    expect(page.locator("#figures")).not_to_be_empty()
    expect(page.locator("#table tbody tr").first).to_be_attached()
    assert page.locator("#table img, #strip img, #focus img").count() == 0
    page.get_by_role("radio", name="Encoder").check(force=True)
    expect(page.locator("#table thead th").nth(1)).to_be_attached()


def test_the_atlas_sorts_and_leads_to_a_head(opened: Page) -> None:
    opened.locator("#tab-atlas").click()
    rows = opened.locator(".atlas-table tbody tr")
    expect(rows).to_have_count(24)
    opened.locator('[data-sort="confidence"]').click()

    def column() -> list[float]:
        return [figure_of(text) for text in opened.locator(".atlas-table td.confidence").all_inner_texts()]

    assert column() == sorted(column(), reverse=True)
    opened.locator('[data-sort="confidence"]').click()
    assert column() == sorted(column())
    name = rows.nth(3).locator("th button").inner_text()
    rows.nth(3).locator("th button").click()
    expect(opened.locator("#focus .focus-title")).to_have_text(name)
    expect(opened.locator("#heads")).to_be_visible()


def test_without_an_atlas_the_sentence_is_measured(opened: Page) -> None:
    opened.locator("#model").select_option("lesser")
    opened.locator("#tab-atlas").click()
    expect(opened.locator(".atlas-none code")).to_contain_text("regard heads")
    expect(opened.locator(".atlas-table tbody tr")).to_have_count(24)


def test_of_several_sentences_one_is_looked_at_and_chosen(opened: Page, explorer: Explorer) -> None:
    expect(opened.locator("#sentences")).to_be_hidden()
    opened.locator("#text").fill(f"{SENTENCE}. A cat, Привет! A dog.")
    expect(opened.locator("#one-of")).to_have_text("The model reads sentence by sentence. This is 1 of 3:")
    expect(opened.locator("#unknown")).to_be_hidden()
    opened.locator("#sentences button").nth(1).click()
    expect(opened.locator("#one-of")).to_have_text("The model reads sentence by sentence. This is 2 of 3:")
    said = explorer.translator().hypotheses("A cat, Привет!", beam=1)[0]
    expect(opened.locator("#translation")).to_have_text(said.text.strip())
    expect(opened.locator("#unknown")).to_contain_text("Привет")
    assert state(opened)["sentence"] == "1"
    opened.locator("#text").fill(SENTENCE)
    expect(opened.locator("#translation")).to_have_text(TRANSLATION)
    expect(opened.locator("#sentences")).to_be_hidden()
    assert "sentence" not in state(opened)
