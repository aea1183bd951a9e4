"""Tokens as a page shows them: their text, whether white space comes before it, and the word that they are part of."""

import json
from collections.abc import Sequence
from importlib import resources
from itertools import repeat
from typing import Any

from regard.data.sentences import UNSPACED
from regard.data.tokenizers import Tokenizer
from regard.inspection.words import Counting, added

_BLANKS = {"\n": "⏎", "\t": "⇥"}


class Shown:
    """Tokens of one text, one after the other.

    Words are what stands between white space; where a script has none, each token is a word of its own.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = Tokenizer.learn(TokensConfig("none", size=0), ["the li@@ brary"])
    >>> [(t["text"], t["space"], t["word"]) for t in Shown(tokens).all(tokens.encode("the li@@ brary"))]
    [('the', False, 0), ('li', True, 1), ('brary', False, 1)]
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks = tokenizer.silent - {tokenizer.marks.unk, tokenizer.marks.mask}
        self._before: int | None = None  # the last token that has a text
        self._words = Counting(UNSPACED)

    def all(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The next tokens: of each its id, text, space, word and whether it is special."""
        befores, before = [], self._before
        for id in ids:
            befores.append(before)
            before = before if id in self._marks else id
        return list(map(self._next, ids, self._texts(befores, ids)))

    def possible(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Tokens of which one might come next: of each its id, text and space."""
        return list(map(self._seen, ids, self.adds(ids)))

    def adds(self, ids: Sequence[int]) -> list[str]:
        """What each of them would add to the text, white space included."""
        return self._texts([self._before] * len(ids), ids)

    def _seen(self, id: int, whole: str) -> dict[str, Any]:
        space = id not in self._marks and self._before is not None and whole[0].isspace()
        return {"id": id, "text": _visible(whole), "space": space}

    def _next(self, id: int, whole: str) -> dict[str, Any]:
        seen, special = self._seen(id, whole), id in self._marks
        self._before = self._before if special else id
        return {**seen, "word": None if special else self._words.next(whole), "special": special}

    def _texts(self, befores: Sequence[int | None], ids: Sequence[int]) -> list[str]:
        """What each token adds to a text that ends in the one before, white space included; or the bytes of a part."""
        tokens = self._tokenizer
        last = [None if before is None else tokens.pieces([before])[0] for before in befores]
        plain = list(map(added, tokens.pieces(ids), last, repeat(tokens.kind)))
        if tokens.kind not in ("wordpiece", "other"):
            return plain
        # Their decoders have rules of their own: what a token adds is seen from what they write with it and without.
        pairs = [([] if before is None else [before], id) for before, id in zip(befores, ids, strict=True)]
        textless = {tokens.marks.unk, tokens.marks.mask} - {None}
        decoded = tokens.decode_batch([row for old, id in pairs for row in (old, [*old, id])])
        texts = []
        for old, new, text, before, id in zip(decoded[::2], decoded[1::2], plain, befores, ids, strict=True):
            if before in textless or id in textless:
                texts.append(text if tokens.kind == "wordpiece" else f" {text}")
            elif new.startswith(old) and len(new) > len(old) and "\ufffd" not in new:
                texts.append(new[len(old) :])
            else:
                texts.append(text.removeprefix(" ") if tokens.kind == "wordpiece" else text)
        return texts


def _visible(text: str) -> str:
    """A text without the white space around it; signs for it where there is nothing else."""
    return text.strip() or "".join(_BLANKS.get(blank, "␣") for blank in text)


def examples(language: str, kind: str) -> list[Any]:
    """Sentences to try with a model that reads a language in tokens of a kind; none for a language unknown here.

    Of the kind "beginnings" they are for a language model, which may have learnt any language; of the name of a task,
    for a model that reads, where a list is a text and what stands beside it.

    >>> examples("en", "bpe")[0], examples("en", "none")[0]
    ('Where is the library?', 'two men are sitting on a bench .')
    """
    known = json.loads(resources.files("regard.serving").joinpath("examples.json").read_text("utf-8"))
    # Text that is cut into tokens already, and in small letters, is most often that of captions of pictures.
    if isinstance(known.get(kind), list):
        return list(known[kind])
    return list(known["cut" if kind == "none" else "plain"].get(language.split("-")[0].lower(), ()))
