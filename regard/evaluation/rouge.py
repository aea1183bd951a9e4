"""ROUGE (Lin, 2004): how much of a summary is in another, as the package rouge-score counts it.

Words are letters a to z and digits, in lower case; those of more than three letters are stemmed (Porter, 1980), with
the few changes that NLTK has made to Porter's rules, for published figures are made with its stemmer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

WORD = re.compile("[a-z0-9]+")


def overlaps(said: str, reference: str, stemmed: bool = True) -> tuple[float, float, float]:
    """ROUGE-1, -2 and -L of a text, 0 to 1: F1 of words, of pairs of words, and of the longest common subsequence.

    >>> [round(x, 3) for x in overlaps("the cats sat on mats", "a cat sat on the mat")]
    [0.909, 0.444, 0.727]
    """
    a, b = words(said, stemmed), words(reference, stemmed)
    pairs = (Counter(pairwise(a)) & Counter(pairwise(b))).total()
    hits = [((Counter(a) & Counter(b)).total(), 0), (pairs, 1), (common(a, b), 0)]
    one, two, longest = (2 * hit / (len(a) + len(b) - 2 * less) if hit else 0.0 for hit, less in hits)
    return one, two, longest


def words(text: str, stemmed: bool = True) -> list[str]:
    """What of a text is compared."""
    found = WORD.findall(text.lower())
    return [stem(word) if len(word) > 3 else word for word in found] if stemmed else found


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence, a row of its table at a time in the bits of a number.

    >>> common("nematode knowledge", "empty bottle")
    7
    """
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    whole = row = (1 << len(a)) - 1  # a zero: here the subsequence grows by one
    for word in b:
        both = row & places.get(word, 0)
        row = ((row + both) | (row - both)) & whole
    return len(a) - row.bit_count()


ODD = {"skies": "sky", "dying": "die", "lying": "lie", "tying": "tie"}
ODD |= {word: word.removesuffix("s") for word in ("innings", "inning", "outings", "outing", "cannings", "canning")}
ODD |= {word: word for word in ("news", "howe", "proceed", "exceed", "succeed")}


def _endings(text: str) -> dict[str, str]:
    """What gives way to what, or to nothing."""
    return {old: new for old, _, new in (each.partition(">") for each in text.split())}


SECOND = _endings(
    "ational>ate tional>tion enci>ence anci>ance izer>ize bli>ble alli>al entli>ent eli>e ousli>ous ization>ize "
    "ation>ate ator>ate alism>al iveness>ive fulness>ful ousness>ous aliti>al iviti>ive biliti>ble fulli>ful logi>log"
)
THIRD = _endings("icate>ic ative alize>al iciti>ic ical>ic ful ness")
FOURTH = _endings("al ance ence er ic able ible ant ement ment ent sion>s tion>t ou ism ate iti ous ive ize")
KEPT = ("logi", "sion", "tion")  # their first letter belongs to the stem


@lru_cache(maxsize=2**16)
def stem(word: str) -> str:
    """The stem of a word of more than three letters.

    >>> [stem(word) for word in ("caresses", "agreed", "hopping", "filing", "happy", "relational", "adjustment")]
    ['caress', 'agre', 'hop', 'file', 'happi', 'relat', 'adjust']
    """
    if word in ODD:
        return ODD[word]
    word = _past(_plural(word))
    if word[-1:] == "y" and len(word) > 2 and _shape(word[:-1])[-1] == "c":
        word = word[:-1] + "i"
    if word.endswith("alli") and _measure(word[:-4]):
        word = word[:-2]
    word = _shorter(_shorter(_shorter(word, SECOND, 0), THIRD, 0), FOURTH, 1)
    if word[-1:] == "e" and (m := _measure(word[:-1])) and (m > 1 or not _short(word[:-1])):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return word[: -1 if len(word) == 4 else -2]
    return word[:-2] if word.endswith("sses") else word if word.endswith("ss") else word.removesuffix("s")


def _past(word: str) -> str:
    if word.endswith("ied"):
        return word[: -1 if len(word) == 4 else -2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    ending = next((each for each in ("ed", "ing") if word.endswith(each)), "")
    rest = word.removesuffix(ending)
    if not ending or "v" not in _shape(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return f"{rest}e"
    if rest[-2:-1] == rest[-1] and _shape(rest)[-1] == "c":
        return rest if rest[-1] in "lsz" else rest[:-1]
    return f"{rest}e" if _measure(rest) == 1 and _short(rest) else rest


def _shorter(word: str, endings: dict[str, str], least: int) -> str:
    """A word with the longest of some endings replaced, if enough of it is left."""
    for n in range(min(7, len(word)), 1, -1):
        if (ending := word[-n:]) in endings:
            enough = _measure(word[: len(word) - n + (ending in KEPT)]) > least
            return word[:-n] + endings[ending] if enough else word
    return word


def _shape(word: str) -> str:
    """Consonants and vowels: c and v; y is a vowel after a consonant."""
    found = ""
    for letter in word:
        found += "v" if letter in "aeiou" or (letter == "y" and found[-1:] == "c") else "c"
    return found


def _measure(word: str) -> int:
    """How often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _short(word: str) -> bool:
    """Whether a word ends as hop does, and not as how."""
    return _shape(word) == "vc" or (_shape(word)[-3:] == "cvc" and word[-1] not in "wxy")
