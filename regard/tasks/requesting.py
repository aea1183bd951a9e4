"""From what a person asks of a text to what a search is asked: parts of a text, phrases as tokens, contradictions."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from regard.data.kept import Without
from regard.data.phrases import Forbidden, forbidden
from regard.data.sentences import Piece, shorten, split
from regard.data.spelling import Both, characters, unknown
from regard.data.tokenizers import Tokenizer
from regard.decoding.constrained import check
from regard.decoding.protocol import Refusal, Request, bounded
from regard.tasks.asks import Ask, Part, Settings, one_sentence, short


def in_parts(
    asks: Sequence[Ask], settings: Settings, tokenizer: Tokenizer, most: int | None
) -> tuple[list[list[Part]], list[int]]:
    """What a model reads of each text, so many sub-words at a time, and how many sentences of it had to be cut."""
    sentences = [split(ask.text) if settings.split else one_sentence(ask.text) for ask in asks]
    keeps = [settings.keep and not _wanted(ask, settings) for ask in asks]
    withouts = [[_without(piece.text, keep) for piece in row] for keep, row in zip(keeps, sentences, strict=True)]
    reads = [each.read for row in withouts for each in row]
    ids = iter(tokenizer.encode_batch([text and settings.prompt + text for text in reads]))
    texts, cuts = [], []
    longest = math.inf if most is None else most

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text and settings.prompt + text)

    def strange(text: str, ids: list[int]) -> tuple[str, ...]:
        return unknown(tokenizer, settings.prompt + text, ids)

    def fits(keep: bool, text: str) -> bool:
        return len(encode(_without(text, keep).read)) <= longest

    def parts_of(without: Without, read: list[int], gap: str) -> Iterator[Part]:
        """The parts of a sentence: what is kept before and after its words, and these."""
        if without.before:
            yield Part(without.before, [], "" if without.read else gap)
        if without.read:
            pieces: list[Part] = []
            for text, kept in without.stretches() if without.things else ():
                for piece in [Piece(text, "")] if kept else one_sentence(text):
                    own = [] if kept or not any(map(str.isalnum, piece.text)) else encode(piece.text)
                    pieces.append(Part(piece.text, own, piece.gap, strange(piece.text, own)))
            odd, among = strange(without.read, read), without if pieces else None
            yield Part(without.text, read, "" if without.after else gap, odd, among, tuple(pieces))
        if without.after:
            yield Part(without.after, [], gap)

    for ask, keep, row, pieces in zip(asks, keeps, withouts, sentences, strict=True):
        parts: list[Part] = []
        cut = 0
        for piece, without in zip(pieces, row, strict=True):
            read = next(ids)
            if not without.text and not without.before:
                parts.append(Part("", [], piece.gap))
            elif len(read) <= longest:
                parts += parts_of(without, read, piece.gap)
            elif settings.long == "refuse":
                raise ValueError(
                    f"{ask.place or short(piece.text)}: a sentence of {len(read)} sub-words; the model is used to "
                    f"{longest} at most: shorten it, or have it cut by long = split"
                )
            elif settings.long == "cut":
                cut += 1
                kept = read[:most]
                parts.append(Part(tokenizer.decode(kept), kept, piece.gap, strange(without.read, read)))
            else:
                cut += 1
                some = shorten(piece.text, partial(fits, keep))
                for text, gap in (*some[:-1], Piece(some[-1].text, piece.gap)):
                    less = _without(text, keep)
                    parts += parts_of(less, encode(less.read), gap)
        texts.append(parts)
        cuts.append(cut)
    return texts, cuts


def _without(text: str, keep: bool) -> Without:
    return Without.of(text) if keep else Without(text, text, [], [(0, 0)])


def _wanted(ask: Ask, settings: Settings) -> bool:
    """Whether the output is told what to say: then the text is read as it stands."""
    return bool(ask.prefix or settings.prefix or ask.require or settings.require)


def requested(
    part: Part, ask: Ask, parts: int, settings: Settings, tokenizer: Tokenizer, longest: int | None, backward: bool
) -> Request:
    """The request for one of the parts in which a text is read; `longest` is the model's limit."""
    try:
        return _request(part, ask, parts, settings, tokenizer, longest, characters(tokenizer, backward))
    except ValueError as error:
        raise ValueError(f"{ask.place or short(ask.text)}: {error}") from None


def _request(
    part: Part,
    ask: Ask,
    parts: int,
    settings: Settings,
    tokenizer: Tokenizer,
    longest: int | None,
    text: Refusal | None,
) -> Request:
    """`text` refuses what is none."""
    prefix, require = ask.prefix or settings.prefix, (*settings.require, *ask.require)
    forbid = (*settings.forbid, *ask.forbid)
    bos, eos = tokenizer.marks.need("bos", "eos")
    source, seed = [*part.ids, eos], 0
    if settings.search.sampling is not None:
        key = f"{settings.seed if ask.seed is None else ask.seed} {part.text}".encode()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=7).digest())
    plain = bounded(settings.search.request(source, bos, seed=seed, refusal=text), settings.search, longest)
    if not (prefix or require or forbid):
        return plain
    if parts > 1 and (prefix or require):
        raise ValueError(
            f"it is read in {parts} parts, and no phrase says of which it is required: give one sentence, or have it "
            "read as one (split=False, --no-split)"
        )
    if require and settings.search.sampling is not None:
        raise ValueError("phrases cannot be required of an output that is drawn by chance")
    if not all(map(str.strip, forbid)):
        raise ValueError("a forbidden phrase is empty: leave it out")
    begin = _ids(prefix, tokenizer) if prefix.strip() else ()
    required = tuple(_ids(text, tokenizer) for text in require)
    if len(begin) > plain.room:
        raise ValueError(f"the prefix has {len(begin)} sub-words, and the output at most {plain.room}")
    refusal = forbidden(tokenizer, forbid) if forbid else None
    if refusal is not None:
        _contradict("prefix", begin, refusal, tokenizer)
        for ids in required:
            _contradict("required phrase", ids, refusal, tokenizer)
    refusals = [each for each in (text, refusal) if each is not None]
    both = Both(*refusals) if len(refusals) > 1 else text or refusal
    asked = replace(plain, prefix=begin, required=required, refusal=both)
    check(asked, settings.search, eos, show=lambda ids: repr(tokenizer.decode(ids)))
    return asked


def _ids(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = tokenizer.encode(text.strip())
    if not ids or tokenizer.marks.unk in ids:
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
