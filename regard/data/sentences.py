"""Text to sentences, such that nothing is lost: what is found, put together again, is the text, to the character.

Where a sentence ends is a guess from the marks around white space, for any language and without learning. It is a
cautious one: a boundary that is missed costs little, for a translator reads two sentences as well as one, while a wrong
one tears a sentence in half.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

STOPS = ".!?…‥؟۔‼⁇⁈⁉։"  # end a sentence where white space follows
WIDE = "。！？｡．।॥።፧។။"  # end one by themselves: Chinese, Japanese, Devanagari, Ethiopic, Khmer, Burmese
CLOSING = "\"'”’»›)]}」』）】》〉〕"  # may stand between the stop and the white space
OPENING = "\"'“„‘‚«‹»›([{¿¡「『（【《〈–—-•*"  # may stand before the first letter of a sentence
# Scripts that put no space between words: Thai, Lao, Myanmar, Khmer; Chinese, Japanese, and their full-width forms.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff]"
)
ENDS = (".", "。", "।")  # full stops
FULL = "".join(ENDS) + CLOSING  # what may be at the end of a text that `unstopped` changes
CLAUSES = ",;:،؛、，；：–—"  # where a long sentence is cut first

# What a full stop follows without ending a sentence. Those that often end one (etc., Inc.) are not here: if they
# do not, the next word is mostly in lower case, and says so.
ABBREVIATION = re.compile(
    r"""
    mr|mrs|ms|dr|prof|rev|hon|gen|col|capt|lt|sgt|maj|cmdr|adm|gov|sen|pres|st|messrs|mme|mlle|mgr|
    vs|cf|al|eg|ie|viz|approx|dept|ca|resp|bzw|zb|evtl|ggf|inkl|exkl|zzt|vgl|geb|hr|fr|frl|hl|dipl|ing|
    sr|sra|srta|dña|ud|uds|vd|vds|excmo|ilmo|av|avda|ej|pág|págs|tel|sig|sigg|dott|avv|egr|gent|dhr|mevr|
    jan|feb|apr|jun|jul|aug|sep|sept|oct|okt|nov|dec|dez|déc|févr|juil
    """,
    re.VERBOSE | re.IGNORECASE,
)
NUMBERED = re.compile("no|nr|nos|nº|núm|num|n|p|pp|s|fig|figs|abb|vol|bd|art|sec|ch|chap|kap|cap|eq|tab", re.IGNORECASE)

BREAKS = re.compile(rf"(?P<wide>[{WIDE}]++[{re.escape(CLOSING)}]*+)\s*+|\s++")
LINES = re.compile("[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
STOPPED = re.compile(
    rf"(?P<word>[^\s{STOPS}](?:\S*[^\s{STOPS}])?)?(?P<stop>[{STOPS}]+)(?P<close>(?:\s[»›]|[{re.escape(CLOSING)}])*)\Z"
)
LAST = frozenset(STOPS + CLOSING)  # what STOPPED ends in
SPACED = re.compile(r"[»›](\s|\Z)")  # a closing mark of French, not an opening one
LETTERS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")  # J, U.S, z.B
RARE = 0.05  # of pairs that are no habit
REACH = 40  # characters looked at around a place: no abbreviation is longer


class Piece(NamedTuple):
    """A sentence, or a part of one, and the white space after it."""

    text: str  # without white space around it; empty only at the beginning of a text that begins with white space
    gap: str


def split(text: str) -> list[Piece]:
    """The sentences of a text; the end of a line ends a sentence, too.

    >>> split('Dr. Smith said "No." He left.\\n\\n  又下雨了。走吧！')  # doctest: +NORMALIZE_WHITESPACE
    [Piece(text='Dr. Smith said "No."', gap=' '), Piece(text='He left.', gap='\\n\\n  '),
     Piece(text='又下雨了。', gap=''), Piece(text='走吧！', gap='')]
    >>> "".join(text + gap for text, gap in split(" a. B"))
    ' a. B'
    """
    cuts: list[tuple[int, int]] = []  # where a gap begins, where it ends
    for found in BREAKS.finditer(text):
        begin, end = found.end("wide") if found["wide"] else found.start(), found.end()
        if found["wide"] or begin == 0 or end == len(text) or LINES.search(text, begin, end) or _ends(text, begin, end):
            cuts.append((begin, end))
    return list(_pieces(text, cuts))


def shorten(text: str, fits: Callable[[str], bool]) -> list[Piece]:
    """The parts of a sentence that is too long, each of which `fits`, or is a single character.

    It is halved, and so on: as near to the middle as may be after a comma or the like, else at white space, else
    anywhere.

    >>> shorten("first one, then the other", lambda part: len(part) <= 15)
    [Piece(text='first one,', gap=' '), Piece(text='then the other', gap='')]
    """
    if len(text) < 2 or fits(text):
        return [Piece(text, "")]
    begin, end = _middle(text)
    left, right = shorten(text[:begin], fits), shorten(text[end:], fits)
    return [*left[:-1], Piece(left[-1].text, text[begin:end]), *right]


def stopped(text: str) -> bool:
    """Whether a text ends in a mark that ends a sentence, before whatever closes around it.

    >>> stopped('He said "No."'), stopped("Chapter 1")
    (True, False)
    """
    return text.rstrip().rstrip(CLOSING)[-1:] in (*STOPS, *WIDE)


def unstopped(text: str) -> str:
    """A text without the full stop at its end, if it is one stop, of the sentence, and no word by itself.

    >>> unstopped("Un perro rojo."), unstopped("a las 3 p.m."), unstopped("Espera...")
    ('Un perro rojo', 'a las 3 p.m.', 'Espera...')
    """
    inner = text.rstrip().rstrip(CLOSING)
    if inner[-1:] not in ENDS or inner[-2:-1].isspace() or inner[-2:-1] in ("", *STOPS, *WIDE):
        return text
    bare = inner[:-1].split()[-1].lstrip(OPENING)
    if LETTERS.match(bare) or NUMBERED.fullmatch(bare) or ABBREVIATION.fullmatch(bare) or "." in bare:
        return text
    return inner[:-1] + text[len(inner) :]


class Habits(NamedTuple):
    """What lines of a parallel text are like."""

    split: bool  # a line is one sentence, mostly
    stops: bool  # where a source ends in no stop, its target has no full stop


def habits(pairs: Iterable[tuple[str, str]]) -> Habits:
    """What the lines of a text are like, of which these are some.

    >>> habits([("A dog.", "Un perro."), ("Two dogs", "Dos perros"), ("Sit. Stay!", "¡Siéntate! ¡Quieto!")])
    Habits(split=True, stops=True)
    """
    lines = several = bare = gained = 0
    for source, target in pairs:
        lines, several = lines + 1, several + (len(split(source.strip())) > 1)
        if not stopped(source):
            bare, gained = bare + 1, gained + (unstopped(target) != target)
    return Habits(2 * several <= lines, gained <= RARE * bare)


def _pieces(text: str, cuts: Iterable[tuple[int, int]]) -> Iterator[Piece]:
    for (_, start), (begin, end) in pairwise([(0, 0), *cuts, (len(text), len(text))]):
        if start < end:
            yield Piece(text[start:begin], text[begin:end])


def _ends(text: str, begin: int, end: int) -> bool:
    """Whether a sentence ends before the white space text[begin:end]."""
    if text[begin - 1] not in LAST:  # as mostly
        return False
    found = STOPPED.search(text[max(0, begin - REACH) : begin])
    after = text[end : end + REACH].lstrip(OPENING)
    if found is None or after[:1].islower() or SPACED.match(text, end):
        return False
    word = (found["word"] or "").lstrip(OPENING)
    if found["stop"] != "." or not word or found["close"]:
        return True
    initial = LETTERS.match(word) and (word.isascii() or word.isupper())  # as a word ends in Korean, or in Russian я
    counted = NUMBERED.fullmatch(word) and after[:1].isdigit()
    ordinal = word.isdigit() and len(word) <= 2  # 3. Oktober; or the number of a paragraph
    return not (initial or counted or ordinal or ABBREVIATION.fullmatch(word))


def _middle(text: str) -> tuple[int, int]:
    """Where to cut a text in two: the beginning and the end of the white space that is left between the halves."""
    middle, low, high = len(text) // 2, len(text) // 4, len(text) - len(text) // 4
    spaces = [found.span() for found in re.finditer(r"\s+", text)]
    inside = [(begin, end) for begin, end in spaces if (low <= begin and end <= high) or begin < middle < end]
    clauses = [(begin, end) for begin, end in inside if text[begin - 1] in CLAUSES + STOPS]
    clauses += [(i, i) for i in range(low + 1, high) if text[i - 1] in "、，；：" and not text[i].isspace()]
    for cuts in (clauses, inside):
        if cuts:
            return min(cuts, key=lambda cut: abs(cut[0] + cut[1] - 2 * middle))
    whole = (i for i in range(middle, min(middle + REACH, len(text))) if not _joined(text[i - 1], text[i]))
    cut = next(whole, middle)
    return cut, cut


def _joined(left: str, right: str) -> bool:
    """Whether two characters make one, as a letter and its accent do, or the parts of an emoji."""
    return "\u200d" in (left, right) or unicodedata.category(right).startswith("M")
