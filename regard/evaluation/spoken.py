"""What is said, however it is written: texts before their words are compared, as in Whisper's paper (appendix C).

English has rules of its own: short forms and titles are written out, numbers in words become digits, and British words
American where a table of them is at hand. Of other languages, case and signs go. Both equal the reference, its odd ends
included ("ninth" stays a word): figures would not compare with those of others.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from itertools import chain, product
from pathlib import Path

from regard.files import read_whole

NOTED = (r"[<\[][^>\]]*[>\]]", r"\([^)]+?\)")  # what was not said
UNACCENTED = {"œ": "oe", "ø": "o", "æ": "ae", "Æ": "AE", "ß": "ss", "đ": "d", "ð": "d", "þ": "th", "ł": "l"}
FILLERS = r"\b(hmm|mm|mhm|mmm|uh|um)\b"
SHORT = (  # words that stand for others
    "won't will not, can't can not, let's let us, ain't aint, y'all you all, wanna want to, gotta got to, "
    "gonna going to, i'ma i am going to, imma i am going to, woulda would have, coulda could have, "
    "shoulda should have, ma'am madam"
)
TITLES = (
    "mr mister, mrs missus, st saint, dr doctor, prof professor, capt captain, gov governor, ald alderman, "
    "gen general, sen senator, rep representative, pres president, rev reverend, hon honorable, asst assistant, "
    "assoc associate, lt lieutenant, col colonel, jr junior, sr senior, esq esquire"
)
ENDS = {"'d been": "had been", "'s been": "has been", "'d gone": "had gone", "'s gone": "has gone"}
ENDS |= {"'d done": "had done", "'s got": "has got", "n't": "not", "'re": "are", "'s": "is", "'d": "would"}
ENDS |= {"'ll": "will", "'t": "not", "'ve": "have", "'m": "am"}
WRITTEN = [  # in this order: patterns, and what is written for them
    *((rf"\b{short}\b", whole) for short, _, whole in (each.partition(" ") for each in SHORT.split(", "))),
    *((rf"\b{title}\b", f"{whole} ") for title, _, whole in (each.partition(" ") for each in TITLES.split(", "))),
    *((rf"{end}\b", f" {whole}") for end, whole in ENDS.items()),
]

Small = dict[str, tuple[int, str]]  # a word -> its number, and what is written after it
ZEROS = ("o", "oh", "zero")
ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ONES += [f"{each}teen" for each in ["thir", "four", "fif", "six", "seven", "eigh", "nine"]]
TENS = [f"{each}ty" for each in ["twen", "thir", "for", "fif", "six", "seven", "eigh", "nine"]]
PREFIXES = ["m", "b", "tr", "quadr", "quint", "sext", "sept", "oct", "non", "dec"]
POWERS = ["thousand", *(f"{each}illion" for each in PREFIXES)]
VALUES = {word: i for i, word in enumerate(ONES, 1)} | {word: 10 * i for i, word in enumerate(TENS, 2)}
FACTORS = {"hundred": 100} | {word: 1000**i for i, word in enumerate(POWERS, 1)}
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "twelve": "twelfth"}


def _suffixed() -> tuple[Small, Small]:
    """The words for numbers and for factors, with their plurals and ordinals."""
    small: Small = {word: (n, "") for word, n in VALUES.items()} | {"zeroth": (0, "th")}
    for word, n in VALUES.items():
        stem, plural = (word[:-1], "ies") if word in TENS else (word, "es" if word == "six" else "s")
        ordinal = f"{stem}ieth" if word in TENS else f"{stem}h" if word.endswith("t") else f"{stem}th"
        ordinal = ORDINALS.get(word, ordinal)
        small |= {stem + plural: (n, "s"), ordinal: (n, ordinal[-2:])}
    return small, {f"{word}{end}": (n, end) for (word, n), end in product(FACTORS.items(), ("", "s", "th"))}


SMALL, LARGE = _suffixed()
BEFORE = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}
AFTER = {"pound": "£", "euro": "€", "dollar": "$", "cent": "¢"}
AFTER |= {f"{word}s": sign for word, sign in AFTER.items()}
TIMES = {"double": 2, "triple": 3}
COUNTING = {*ZEROS, *SMALL, *LARGE, *BEFORE, *AFTER, *TIMES, "per", "percent", "and", "point"}
DECIMALS = {*ZEROS, *VALUES}
NUMERAL = re.compile(r"\d+(\.\d+)?")


class Number:
    """A number that is being read, word by word: a whole one, or digits in a row as of a year; and what was read."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.sign = ""
        self.value: int | str | None = None

    def write(self, text: str) -> None:
        self.read.append(f"{self.sign}{text}")
        self.sign, self.value = "", None

    def end(self) -> None:
        if self.value is not None:
            self.write(f"{self.value}")

    def follow(self, digits: str) -> None:
        self.value = f"{self.value or ''}{digits}"

    def add(self, n: int, last: str) -> None:
        """Twenty and one are 21, nineteen and eighty 1980; `last` is the word before."""
        room = 10 if n < 10 else 100
        if self.value is None:
            self.value = n
        elif isinstance(self.value, int) and last not in ONES and self.value % room == 0:
            self.value += n
        elif n < 10 and last in TENS:
            self.value = f"{self.value}"[:-1] + f"{n}"
        else:
            self.value = f"{self.value}{n}"

    def scale(self, factor: int) -> None:
        """A factor holds for what comes after the last thousand."""
        if isinstance(self.value, int):
            self.value = self.value // 1000 * 1000 + self.value % 1000 * factor
            return
        try:
            whole = Fraction(self.value or "1") * factor
        except ValueError:  # 1.2.3
            whole = Fraction(1, 2)
        if whole.denominator > 1:
            self.end()
        self.value = int(whole) if whole.denominator == 1 else factor


def in_digits(text: str) -> str:
    """English numbers in words as digits, with signs for money and percent.

    >>> in_digits("in nineteen eighty four the twenty first cost two million dollars and a half per cent")
    'in 1984 the 21st cost $2000000 and a half per cent'
    >>> in_digits("minus three point one four percent of oh double seven")
    '-3.14% of 077'
    """
    *halves, rest = re.split(r"\band\s+a\s+half\b", text)
    known = DECIMALS | FACTORS.keys()
    ends = ["point five" if half.split()[-1] in known else "and a half" for half in halves if half.strip()]
    text = " ".join([*chain.from_iterable(zip(filter(str.strip, halves), ends, strict=True)), rest])
    text = re.sub(r"(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])", " ", text)
    words = re.sub(r"([0-9])\s+(st|nd|rd|th|s)\b", r"\1\2", text).split()
    number, done = Number(), 0  # so many words
    for i, (last, word, after) in enumerate(zip(["", *words], words, [*words[1:], ""], strict=False)):
        if i < done:
            continue
        numeral = bool(NUMERAL.fullmatch(after))
        counts = numeral or after in COUNTING
        sign, bare = (word[0], word[1:]) if word[0] in "-+£€$¢" else ("", word)
        if NUMERAL.fullmatch(bare):
            if f"{number.value}".endswith("."):
                number.follow(word)
                continue
            number.end()
            number.sign = sign or number.sign
            exact = Fraction(bare)
            number.value = int(exact) if exact.denominator == 1 else bare
        elif word in ZEROS:
            number.follow("0")
        elif word in SMALL or word in LARGE:
            n, suffix = (SMALL if word in SMALL else LARGE)[word]
            number.add(n, last) if word in SMALL else number.scale(n)
            if suffix:
                number.write(f"{number.value}{suffix}")
        elif word in BEFORE and counts:
            number.end()
            number.sign = BEFORE[word]
        elif word in AFTER and number.value is not None:
            number.sign = AFTER[word]
            number.end()
        elif number.value is not None and (word == "percent" or (word, after) == ("per", "cent")):
            number.write(f"{number.value}%")
            done = i + (1 if word == "percent" else 2)
        elif word in TIMES and (after in ONES or after in ZEROS):
            number.follow(f"{VALUES.get(after, 0)}" * TIMES[word])
            done = i + 2
        elif word == "point" and counts:
            if numeral or after in DECIMALS:
                number.follow(".")
        elif not (word == "and" and counts and last in FACTORS):
            number.end()
            number.write(word)
    number.end()
    text = " ".join(number.read)
    text = re.sub(r"([€£$][0-9]+) (?:and )?¢([0-9]{1,2})\b", lambda m: f"{m[1]}.{int(m[2]):02}", text)
    text = re.sub(r"[€£$]0.([0-9]{1,2})\b", lambda m: f"¢{int(m[1])}", text)
    return re.sub(r"\b1(s?)\b", r"one\1", text)


def bare(text: str, keep: str = "", *, accents: bool = True) -> str:
    """A space for each sign that is not to be kept; without accents, letters alone.

    >>> bare("naïve—5%", "%", accents=False), bare("naïve—5%")
    ('naive 5%', 'naïve 5 ')
    """
    kinds = [(c, unicodedata.category(c)) for c in unicodedata.normalize("NFKC" if accents else "NFKD", text)]
    if not accents:
        kinds = [(UNACCENTED.get(c, c), kind) for c, kind in kinds if kind != "Mn"]
    return "".join(c if c in keep or kind[0] not in "MSP" else " " for c, kind in kinds)


def said(text: str) -> str:
    """In lower case, and without remarks."""
    text = text.lower()
    for noted in NOTED:
        text = re.sub(noted, "", text)
    return text


def basic(text: str, *, apart: bool = False) -> str:
    """A text of any language as it sounds; where words are not `apart` by spaces, its characters.

    >>> basic("Qué [risas] día!"), basic("很好。", apart=True)
    ('qué día', '很 好')
    """
    text = bare(said(text)).lower()
    return " ".join((re.sub(r"(\S[\u200c\u200d]*)", r"\1 ", text) if apart else text).split())


def english(text: str, spelling: Mapping[str, str] | None = None) -> str:
    """An English text as it sounds; `spelling` are other words for some.

    >>> english("Mr. Brown's café can't (laughs) — um — charge £1,000 for twenty-one colours!", {"colours": "colors"})
    'mister brown is cafe can not charge £1000 for 21 colors'
    """
    text = re.sub(r"\s+'", "'", re.sub(FILLERS, "", said(text)))
    for pattern, whole in WRITTEN:
        text = re.sub(pattern, whole, text)
    text = re.sub(r"\.([^0-9]|$)", r" \1", re.sub(r"(\d),(\d)", r"\1\2", text))
    words = in_digits(bare(text, ".%$¢€£", accents=False)).split()
    text = " ".join((spelling or {}).get(word, word) for word in words)
    return " ".join(re.sub(r"([^0-9])%", r"\1 ", re.sub(r"[.$¢€£]([^0-9])", r" \1", text)).split())


def spellings(path: Path) -> dict[str, str] | None:
    """Words and how else they are spelt, as Whisper's normalizer.json has them; none if there is no such file."""
    if not path.is_file():
        return None
    try:
        found = json.loads(read_whole(path))
        if not isinstance(found, dict) or not all(isinstance(word, str) for word in found.values()):
            raise ValueError
    except ValueError:
        raise ValueError(f"{path} is damaged: it has words, and how else each is spelt") from None
    return found
