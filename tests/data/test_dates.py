import calendar
import datetime
import random
import re
import unicodedata
from itertools import islice
from typing import Any

import pytest
from babel import Locale
from babel.dates import format_date, format_skeleton

from regard.data.dates import (
    FIRST,
    FORMATS,
    LAST,
    LOCALES,
    SKELETONS,
    WrittenDate,
    date_pairs,
    forms,
    held_out,
    vocabulary,
)

DAY = datetime.date(1987, 3, 5)
# A year is known by its first weekday and by its length: fourteen kinds.
YEARS = set({(calendar.weekday(y, 1, 1), calendar.isleap(y)): y for y in range(1990, 2030)}.values())


def draw(count: int, **arguments: Any) -> list[WrittenDate]:
    return list(islice(date_pairs(**arguments), count))


def days_of(year: int) -> list[datetime.date]:
    first = datetime.date(year, 1, 1)
    return [first + datetime.timedelta(days) for days in range(366 if calendar.isleap(year) else 365)]


def plain(text: str) -> str:
    """In NFC, with Latin digits."""
    return "".join(str(unicodedata.decimal(c, c)) for c in unicodedata.normalize("NFC", text))


@pytest.mark.parametrize("locale", LOCALES)
def test_forms_write_what_babel_writes(locale: str) -> None:
    ordinals = random.Random(locale).sample(range(FIRST.toordinal(), LAST.toordinal() + 1), 12)
    skeletons = [key for key in SKELETONS if key in Locale.parse(locale).datetime_skeletons]
    for date in map(datetime.date.fromordinal, ordinals):
        written = [plain(form.write(date)) for form in forms(locale)]
        assert written == [plain(format_date(date, form.pattern, locale)) for form in forms(locale)]

        noon = datetime.datetime.combine(date, datetime.time(12))
        known = {plain(format_date(date, key, locale)) for key in FORMATS}
        known |= {plain(format_skeleton(key, noon, fuzzy=False, locale=locale)) for key in skeletons}
        assert set(written) <= known
        for text in known - set(written):  # what we leave out is all numbers, and does not begin with the year
            assert [int(n) for n in re.findall(r"\d+", text)] == [date.day, date.month, date.year], text


@pytest.mark.parametrize("locale", LOCALES)
def test_digits_are_those_of_the_locale(locale: str) -> None:
    prefix = {
        "latn": "DIGIT",
        "arab": "ARABIC-INDIC DIGIT",
        "arabext": "EXTENDED ARABIC-INDIC DIGIT",
        "beng": "BENGALI DIGIT",
        "deva": "DEVANAGARI DIGIT",
        "mymr": "MYANMAR DIGIT",
    }[Locale.parse(locale).default_numbering_system]
    for form in forms(locale):
        year = re.findall(r"\d{4}", form.write(DAY))[0]
        assert [unicodedata.name(c) for c in year] == [f"{prefix} {n}" for n in ("ONE", "NINE", "EIGHT", "SEVEN")]


@pytest.mark.parametrize(
    ("locale", "text"),
    [
        ("th", "วันพฤหัสบดีที่ 5 มีนาคม ค.ศ. 1987"),  # not 2530, the Buddhist year
        ("fa", "پنجشنبه ۵ مارس ۱۹۸۷"),  # not 1365, the Persian year
        ("ar_EG", "الخميس، ٥ مارس ١٩٨٧"),
        ("ru", "четверг, 5 марта 1987\u202fг."),
        ("ja", "1987年3月5日木曜日"),
    ],
)
def test_the_full_form_as_people_write_it(locale: str, text: str) -> None:
    assert forms(locale)[0].write(DAY) == text


@pytest.mark.parametrize("year", [2024, *(pytest.param(y, marks=pytest.mark.slow) for y in YEARS - {2024})])
def test_no_text_stands_for_two_dates(year: int) -> None:
    """A text tells its year, so two dates of one text would be of one year; no kind of year has them."""
    meaning: dict[str, datetime.date] = {}
    for locale in LOCALES:
        for form in forms(locale):
            for date in days_of(year):
                text = form.write(date)
                assert [int(n) for n in re.findall(r"\d{3,}", text)] == [year], (locale, text)
                assert meaning.setdefault(text, date) == date, (locale, text)


def test_pairs_are_a_function_of_their_arguments() -> None:
    assert draw(500, seed=1) == draw(500, seed=1)
    assert draw(500, seed=1) != draw(500, seed=2)
    assert draw(500, seed=1, split="test") == draw(500, seed=1, split="test")
    assert {pair.locale for pair in draw(500, seed=1, locales=["el", "ka"])} == {"el", "ka"}


def test_pairs_are_true_and_can_be_spelled() -> None:
    known = set(vocabulary().symbols)
    pairs = draw(30_000, seed=3)
    for text, iso, locale in pairs:
        date = datetime.date.fromisoformat(iso)
        assert FIRST <= date <= LAST
        assert text in {form.write(date) for form in forms(locale)}
        assert unicodedata.is_normalized("NFC", text)
        assert known.issuperset(text)
        assert known.issuperset(iso)
    assert {locale for _, _, locale in pairs} == set(LOCALES)
    meaning = {text: iso for text, iso, _ in pairs}
    assert all(meaning[text] == iso for text, iso, _ in pairs)


def test_no_date_is_in_both_splits() -> None:
    train = {iso for _, iso, _ in draw(30_000, seed=0, split="train")}
    test = {iso for _, iso, _ in draw(10_000, seed=0, split="test")}
    assert not train & test
    assert not any(held_out(datetime.date.fromisoformat(iso)) for iso in train)
    assert all(held_out(datetime.date.fromisoformat(iso)) for iso in test)


def test_one_date_in_ten_is_held_out_in_every_month() -> None:
    days = [date for year in range(FIRST.year, LAST.year + 1, 10) for date in days_of(year)]
    for month in range(1, 13):
        of_month = [held_out(date) for date in days if date.month == month]
        assert 0.07 < sum(of_month) / len(of_month) < 0.13  # about 1,900 dates: four standard deviations


def test_the_vocabulary_is_sorted_and_has_nothing_it_does_not_need() -> None:
    symbols = vocabulary().symbols
    assert list(symbols) == sorted(symbols)
    texts = {form.write(date) for locale in LOCALES for form in forms(locale) for date in days_of(2024)}
    assert set(symbols) == set("0123456789-").union(*texts)


def test_wrong_arguments_fail_at_the_call() -> None:
    with pytest.raises(ValueError, match=r"unknown locale 'fr_FR': there are en, en_GB, fr"):
        date_pairs(seed=0, locales=["en", "fr_FR"])
    with pytest.raises(ValueError, match=r"unknown locale 'ZH_HANT': did you mean 'zh_Hant'"):
        forms("ZH_HANT")
    with pytest.raises(ValueError, match="at least one locale"):
        date_pairs(seed=0, locales=[])
    with pytest.raises(ValueError, match="'valid'; choose train or test"):
        date_pairs(seed=0, split="valid")  # type: ignore[arg-type]
