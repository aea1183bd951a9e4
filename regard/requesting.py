"""From what a person asks of a text to what a search is asked: parts of a text, phrases as tokens, contradictions."""

import hashlib
import math
from collections.abc import Sequence

from regard.asks import Ask, Part, Settings, one_sentence, short
from regard.data.phrases import Forbidden, forbidden
from regard.data.sentences import shorten, split
from regard.data.tokenizers import UNK, Tokenizer
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding.beam import maximum
from regard.decoding.constrained import check
from regard.decoding.protocol import Request, Special

SPECIAL = Special(BOS, EOS, PAD)


def in_parts(
    asks: Sequence[Ask], settings: Settings, tokenizer: Tokenizer, most: int | None
) -> tuple[list[list[Part]], list[int]]:
    """What a model reads of each text, so many sub-words at a time, and how many sentences of it had to be cut."""
    pieces = [split(ask.text) if settings.split else one_sentence(ask.text) for ask in asks]
    ids = iter(tokenizer.encode_batch([piece.text for row in pieces for piece in row]))
    texts, cuts = [], []
    encode, longest = tokenizer.encode, math.inf if most is None else most
    for ask, row in zip(asks, pieces, strict=True):
        parts: list[Part] = []
        cut = 0
        for piece in row:
            read = next(ids)
            if len(read) <= longest:
                parts.append(Part(piece.text, read, piece.gap))
                continue
            if settings.long == "refuse":
                raise ValueError(
                    f"{ask.place or short(piece.text)}: a sentence of {len(read)} sub-words; the model is used to "
                    f"{longest} at most: shorten it, or have it cut by long = split"
                )
            cut += 1
            *some, last = shorten(piece.text, lambda text: len(encode(text)) <= longest)
            parts += [Part(text, encode(text), gap) for text, gap in (*some, (last.text, piece.gap))]
        texts.append(parts)
        cuts.append(cut)
    return texts, cuts


def requested(
    part: Part, ask: Ask, parts: int, settings: Settings, tokenizer: Tokenizer, longest: int | None
) -> Request:
    """The request for one of the parts in which a text is read; `longest` is the model's limit."""
    try:
        return _request(part, ask, parts, settings, tokenizer, longest)
    except ValueError as error:
        raise ValueError(f"{ask.place or short(ask.text)}: {error}") from None


def _request(
    part: Part, ask: Ask, parts: int, settings: Settings, tokenizer: Tokenizer, longest: int | None
) -> Request:
    prefix, require = ask.prefix or settings.prefix, (*settings.require, *ask.require)
    forbid = (*settings.forbid, *ask.forbid)
    source, seed = [*part.ids, EOS], 0
    limit = maximum(Request(source), settings.search, longest)
    if settings.search.sampling is not None:
        key = f"{settings.seed if ask.seed is None else ask.seed} {part.text}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
    if not (prefix or require or forbid):
        return Request(source, seed=seed)
    if parts > 1 and (prefix or require):
        raise ValueError(f"it is read in {parts} parts, and no phrase says of which it is required")
    if require and settings.search.sampling is not None:
        raise ValueError("phrases cannot be required of an output that is drawn by chance")
    if not all(map(str.strip, forbid)):
        raise ValueError("a forbidden phrase is empty: leave it out")
    begin = _ids(prefix, tokenizer) if prefix.strip() else ()
    required = tuple(_ids(text, tokenizer) for text in require)
    if len(begin) > limit:
        raise ValueError(f"the prefix has {len(begin)} sub-words, and the output at most {limit}")
    refusal = forbidden(tokenizer, forbid) if forbid else None
    if refusal is not None:
        _contradict("prefix", begin, refusal, tokenizer)
        for ids in required:
            _contradict("required phrase", ids, refusal, tokenizer)
    asked = Request(source, begin, required, seed=seed, refusal=refusal)
    check(asked, settings.search, SPECIAL, limit, show=lambda ids: repr(tokenizer.decode(ids)))
    return asked


def _ids(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = tokenizer.encode(text.strip())
    if not ids or UNK in ids:
        raise ValueError(f"the model has no sub-words to write {text!r} with")
    return tuple(ids)


def _contradict(name: str, ids: Sequence[int], refusal: Forbidden, tokenizer: Tokenizer) -> None:
    """Refuse a phrase that is wanted if it cannot be written without one that is not."""
    for t, token in enumerate(ids):
        if token in refusal.refused(ids[:t]):
            inner = refusal.found(tokenizer.decode(ids[: t + 1]))
            raise ValueError(
                f"the {name} {tokenizer.decode(ids)!r} contains {inner!r}, which is forbidden: drop one of them"
            )
