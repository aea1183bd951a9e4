"""What is said, however it is written: texts before their words are compared."""

import re
import unicodedata

SHORT = {  # English: what stands for more
    r"\bwon't\b": "will not",
    r"\bcan't\b": "can not",
    r"\blet's\b": "let us",
    r"\bain't\b": "am not",
    r"\by'all\b": "you all",
    r"n't\b": " not",
    r"'re\b": " are",
    r"'ve\b": " have",
    r"'ll\b": " will",
    r"'d\b": " would",
    r"'m\b": " am",
    r"\b(it|he|she|that|there|what|who|where|here)'s\b": r"\1 is",
    r"\bmr\b": "mister",
    r"\bmrs\b": "missus",
    r"\bdr\b": "doctor",
    r"\bst\b": "saint",
    r"\bgonna\b": "going to",
    r"\bwanna\b": "want to",
    r"\bgotta\b": "got to",
}
ASIDE = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")  # what was not said, but noted
FILLERS = re.compile(r"\b(hmm+|mm+|mhm|uh+|um+|er+)\b")
WITHIN = re.compile(r"(?<=\d),(?=\d{3})")


def normal(text: str) -> str:
    """A text as it sounds: in lower case, without accents, signs, remarks and fillers, English short forms written out.

    It is a small part of what Whisper's own normaliser does: numbers stay as they are written, and so do British words.

    >>> normal("Mr. Brown can't (laughs) — um — café, 1,000!")
    'mister brown can not cafe 1000'
    """
    text = ASIDE.sub(" ", unicodedata.normalize("NFKC", text).lower().replace("’", "'"))
    text = WITHIN.sub("", FILLERS.sub(" ", text))
    for short, whole in SHORT.items():
        text = re.sub(short, whole, text)
    text = re.sub(r"'(?=s\b)", "", text)
    bare = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return " ".join("".join(c if c.isalnum() else " " for c in bare).split())
