"""What a vocabulary can spell: characters that it has no sub-word for, and outputs that are no Unicode text.

A sub-word may be a part of a character only, one or several bytes of its UTF-8. Text of such sub-words is text that the
model has hardly seen; and one that it writes need not make characters at all, unless it is held to.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizers import Tokenizer


@lru_cache(maxsize=8)
def spellings(tokenizer: Tokenizer) -> list[bytes]:
    """What each token adds to a text."""
    return [tokenizer.spelled(i) for i in range(len(tokenizer))]


@lru_cache(maxsize=8)
def added(tokenizer: Tokenizer) -> list[bytes]:
    """The same where a text has begun, exactly: a piece after a space has this space.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = Tokenizer.learn(TokensConfig("unigram", size=280), ["low lower lowest"] * 9)
    >>> b"".join(added(tokens)[i] for i in tokens.encode("low ☕")).decode()
    ' low ☕'
    """
    decoder = json.loads(tokenizer.rust.to_str())["decoder"] or {}
    kinds = {each.get("type") for each in (decoder, *decoder.get("decoders", ()))}
    if tokenizer.kind in ("wordpiece", "none") or kinds & {"WordPiece", "BPEDecoder", "CTC"}:
        raise ValueError("what a sub-word of this model adds to a text hangs on those around it: it can keep no form")
    spelled, names = spellings(tokenizer), tokenizer.rust.get_vocab_size()
    if tokenizer.kind == "other" and "ByteLevel" not in kinds:
        (*_, probe), parts = tokenizer.encode("a"), fragments(tokenizer)
        begun = len(tokenizer.decode([probe]))
        texts = tokenizer.decode_batch([[probe, i] for i in range(len(tokenizer))])
        spelled = [spelled[i] if i in parts else text[begun:].encode() for i, text in enumerate(texts)]
    return [text if i < names and tokenizer.rust.id_to_token(i) is not None else b"" for i, text in enumerate(spelled)]


@lru_cache(maxsize=8)
def openings(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """(V,): the tokens that begin a text with what they add: some lose their space there."""
    alone, texts = tokenizer.decode_batch([[i] for i in range(len(tokenizer))]), added(tokenizer)
    parts = fragments(tokenizer)
    return np.array([i in parts or said.encode() == texts[i] for i, said in enumerate(alone)])


@lru_cache(maxsize=8)
def fragments(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that are no whole characters."""
    return frozenset(i for i, spelled in enumerate(spellings(tokenizer)) if _pending(spelled) != b"")


def unknown(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> tuple[str, ...]:
    """What of a text, whose ids these are, the vocabulary has no whole sub-word for: stretches, each once.

    Where every token is a byte, there is none to have.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = Tokenizer.learn(TokensConfig(size=267), ["low lower lowest"] * 9)
    >>> unknown(tokens, "low, мир ☕!", tokens.encode("low, мир ☕!"))
    ('мир', '☕')
    """
    if tokenizer.kind == "byte":
        return ()
    strange, unk = fragments(tokenizer), tokenizer.marks.unk
    if unk not in ids and strange.isdisjoint(ids):
        return ()
    marked = bytearray(len(text))
    for (begin, end), i in zip(tokenizer.spans(text), ids, strict=True):
        if i == unk or i in strange:
            marked[begin:end] = b"\1" * (end - begin)
    stretches = "".join(c if m else " " for c, m in zip(text, marked, strict=True)).split()
    return tuple(dict.fromkeys(stretches))


def whole(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """How many of some ids, from the first on, make whole characters and nothing else.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"])
    >>> a, *coffee = tokens.encode("a☕")
    >>> [whole(tokens, ids) for ids in ([a, *coffee], [a, *coffee[:2], a], [*coffee[1:], a], [])]
    [4, 1, 0, 0]
    """
    if fragments(tokenizer).isdisjoint(ids):
        return len(ids)
    spelled, pending, good = spellings(tokenizer), b"", 0
    for n, i in enumerate(ids, start=1):
        rest = _pending(pending + spelled[i])
        if rest is None:
            return good
        pending = rest
        if not pending:
            good = n
    return good


class Characters:
    """Holds an output to whole characters: which tokens would make bytes that are no UTF-8 (a search's `Refusal`)."""

    def __init__(self, tokenizer: Tokenizer, *, backward: bool = False) -> None:
        """`backward`: an output is written from its end. Then it does without characters that are in several tokens."""
        self._spelled, self._refused = spellings(tokenizer), dict[bytes, list[int]]()
        (self._eos,) = tokenizer.marks.need("eos")
        self.wakes = np.zeros(len(tokenizer), bool)
        self.wakes[list(fragments(tokenizer))] = True
        self._backward = np.flatnonzero(self.wakes).tolist() if backward else None

    def refused(self, written: Sequence[int]) -> list[int]:
        """The tokens that cannot follow; the end is one while a character is begun and not finished."""
        if self._backward is not None:
            return self._backward
        tail = b"".join(self._spelled[i] for i in written[-4:])
        # What is written is valid, so the last character begins at the last byte that is no continuation.
        begin = max((i for i, byte in enumerate(tail) if byte & 0xC0 != 0x80), default=0)
        pending = _pending(tail[begin:]) or b""
        if pending not in self._refused:
            wrong = [i for i, spelled in enumerate(self._spelled) if spelled and _pending(pending + spelled) is None]
            self._refused[pending] = [*wrong, self._eos] if pending else wrong
        return self._refused[pending]


class Both:
    """Two refusals as one."""

    wakes = None

    def __init__(self, *refusals: Any) -> None:
        self._refusals = refusals

    def refused(self, written: Sequence[int]) -> list[int]:
        """The tokens that one of them refuses."""
        return [token for refusal in self._refusals for token in refusal.refused(written)]


@lru_cache(maxsize=8)
def characters(tokenizer: Tokenizer, backward: bool = False) -> Characters | None:
    """What holds an output to whole characters; None where every token is one or several."""
    return Characters(tokenizer, backward=backward) if fragments(tokenizer) else None


def _pending(spelled: bytes) -> bytes | None:
    """The beginning of a character that some bytes end with, or None if they are no beginning of a text."""
    try:
        spelled.decode()
        return b""
    except UnicodeDecodeError as error:
        return spelled[error.start :] if error.reason == "unexpected end of data" else None
