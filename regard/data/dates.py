"""Dates as sixty locales write them, to be read as ISO dates: real text without end, from babel's CLDR.

Reading is a function: no text stands for two dates. So a month is a word, or the order is year, month, day
(05/03/1987 is March in Madrid and May in Memphis), a year has four digits, and the calendar is Gregorian even
where CLDR prefers another (th, fa). It still takes care: "5. lis 1987." is a Croat's October, "5 lis 1987" a
Pole's November. Odd spaces such as U+202F stay as CLDR has them. babel writes dates in Latin digits only; we
put in the digits CLDR prefers (ar_EG, fa, bn, ne, my). A new babel may bring new texts: keep the vocabulary.
"""

import datetime
import hashlib
import random
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from babel import Locale
from babel.dates import format_date, tokenize_pattern

from regard.checks import hint
from regard.data.vocabulary import Vocabulary

FIRST, LAST = datetime.date(1583, 1, 1), datetime.date(2199, 12, 31)  # 1583: the first whole Gregorian year
LOCALES = (
    "en", "en_GB", "fr", "de", "es", "it", "pt", "eu", "cy", "nl", "sv", "fi", "lv", "lt", "pl", "cs", "hr",
    "hu", "tr", "vi", "id", "sw", "yo",                          # Latin
    "ru", "uk", "be", "bg", "sr", "kk", "mn", "el", "hy", "ka",  # Cyrillic, Greek, Armenian, Georgian
    "he", "ar", "ar_EG", "fa", "ur", "am", "zgh", "chr",         # Hebrew, Arabic, Ge'ez, Tifinagh, Cherokee
    "hi", "ne", "bn", "pa", "gu", "ta", "te", "kn", "ml", "si",  # Brahmic scripts of South Asia
    "th", "lo", "km", "my", "bo", "zh", "zh_Hant", "ja", "ko",   # East and South-East Asia
)  # fmt: skip
FORMATS = ("full", "long", "medium")
SKELETONS = ("yMMMd", "yMMMEd", "yMMMMd", "yMMMMEd", "yMMMMEEEEd")
ZEROS = {"latn": "0", "arab": "٠", "arabext": "۰", "beng": "০", "deva": "०", "mymr": "၀"}


@dataclass(frozen=True)
class DateForm:
    """One way to write a date in one locale: a CLDR pattern, compiled once, for babel formats slowly."""

    pattern: str  # CLDR: "EEEE, d MMMM y"
    template: str  # ours: "{E}, {d} {M} {y}"
    months: tuple[str, ...]
    weekdays: tuple[str, ...]  # from Monday
    digits: dict[int, int]  # Latin to native, for str.translate

    def write(self, date: datetime.date) -> str:
        """The date as text, in Unicode NFC."""
        month, weekday = self.months[date.month - 1], self.weekdays[date.weekday()]
        text = self.template.format(y=date.year, M=month, d=date.day, E=weekday)
        return unicodedata.normalize("NFC", text.translate(self.digits))


@cache
def forms(name: str) -> tuple[DateForm, ...]:
    """The different ways in which a locale of LOCALES writes a date.

    >>> [form.write(datetime.date(1987, 3, 5)) for form in forms("es")][:3]
    ['jueves, 5 de marzo de 1987', '5 de marzo de 1987', '5 mar 1987']
    """
    if name not in LOCALES:
        raise ValueError(f"unknown locale {name!r}: {hint(name, LOCALES)}")
    locale = Locale.parse(name)
    skeletons = locale.datetime_skeletons
    patterns = [locale.date_formats[key].pattern for key in FORMATS]
    patterns += [skeletons[key].pattern for key in SKELETONS if key in skeletons]
    return tuple(filter(None, (_compile(locale, pattern) for pattern in dict.fromkeys(patterns))))


def _compile(locale: Locale, pattern: str) -> DateForm | None:
    """The form of a CLDR pattern, or None if one must know the locale to tell day, month and year apart."""
    template, fields = "", {"G": "G", "E": "E"}
    for _, value in tokenize_pattern(pattern):
        if isinstance(value, str):
            template += value
        else:
            letter, width = value
            kind = {"L": "M", "c": "E"}.get(letter, letter)  # L and c: the names as they stand alone
            template += f"{{d:0{width}}}" if kind == "d" else f"{{{kind}}}"
            fields[kind] = letter * width
    numeric, order = len(fields["M"]) < 3, [kind for kind in fields if kind in "yMd"]
    if fields["y"] == "yy" or (numeric and order != ["y", "M", "d"]):
        return None
    zero = ord(ZEROS[locale.default_numbering_system])
    return DateForm(
        pattern=pattern,
        template=template.replace("{G}", format_date(FIRST, fields["G"], locale)),  # one era: ours
        months=tuple(format_date(datetime.date(2000, i, 1), fields["M"], locale) for i in range(1, 13)),
        weekdays=tuple(format_date(datetime.date(2000, 5, i), fields["E"], locale) for i in range(1, 8)),
        digits={ord("0") + i: zero + i for i in range(10)},
    )


class WrittenDate(NamedTuple):
    """A date as `locale` writes it, and what it means."""

    text: str
    iso: str
    locale: str


def held_out(date: datetime.date) -> bool:
    """Whether a date belongs to the test split: one in ten, the same in every locale, run and machine.

    >>> [day for day in range(1, 32) if held_out(datetime.date(1987, 3, day))]
    [13, 27]
    """
    return int(hashlib.sha256(date.isoformat().encode()).hexdigest(), 16) % 10 == 0


def date_pairs(
    *, seed: int, split: Literal["train", "test"] = "train", locales: Sequence[str] = LOCALES
) -> Iterator[WrittenDate]:
    """Endless written dates of one split, even over locales, their forms, and dates; pure in its arguments.

    >>> next(date_pairs(seed=2, locales=["fr"]))
    WrittenDate(text='jeudi 3 août 1623', iso='1623-08-03', locale='fr')
    """
    if split not in ("train", "test"):
        raise ValueError(f"unknown split {split!r}; choose train or test")
    ways = [(name, forms(name)) for name in locales]
    if not ways:
        raise ValueError("date_pairs needs at least one locale")
    draw = random.Random(seed)

    def pairs() -> Iterator[WrittenDate]:
        while True:
            date = datetime.date.fromordinal(draw.randint(FIRST.toordinal(), LAST.toordinal()))
            if held_out(date) == (split == "test"):
                name, choices = draw.choice(ways)
                yield WrittenDate(draw.choice(choices).write(date), date.isoformat(), name)

    return pairs()


@cache
def vocabulary() -> Vocabulary:
    """Every character of every written date, and of ISO dates, in the order of Unicode.

    >>> "".join(vocabulary().decode(vocabulary().encode("5 ožujka 1987.")))
    '5 ožujka 1987.'
    """
    # The first weeks of the months of 1980 hold every month beside every weekday, and every digit.
    week = [datetime.date(1980, month, day) for month in range(1, 13) for day in range(1, 8)]
    texts = {form.write(date) for name in LOCALES for form in forms(name) for date in week}
    return Vocabulary(tuple(sorted(set("0123456789-").union(*texts))))
