"""Tokenizers that are no tokenizer.json yet, made into one: pieces with scores, pieces with merges, plain lists."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from regard.checks import choose
from regard.data.tokenizers import BYTES, no_panic

CONTROL, OWN, BYTE = 3, 4, 6  # kinds of pieces in SentencePiece: a mark, one that is always whole, a byte
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(numbers: str) -> pre_tokenizers.PreTokenizer:
    """Words, numbers, signs, and the space between, as models since GPT-4 have them."""
    whole = pre_tokenizers.Split(Regex(WORDS % numbers), "isolated")
    return pre_tokenizers.Sequence([whole, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2(digits: bool) -> pre_tokenizers.PreTokenizer:
    """As GPT-2 cuts a text; each digit alone if `digits`."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words]) if digits else words


CUTS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {  # how a text is cut before merges, as llama.cpp names it
    "gpt-2": lambda: _gpt2(digits=False),
    "smollm": lambda: _gpt2(digits=True),
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
    "qwen2": lambda: _split(r"\p{N}"),
}


def merged(pieces: Sequence[str], merges: Sequence[str], cut: str, kinds: Sequence[int], first: int | None) -> Any:
    """Byte-level BPE, whose merges are `left right`; `kinds` are of SentencePiece, `first` stands before a text."""
    pairs: list[Any] = [merge.partition(" ")[::2] for merge in merges]
    with no_panic():
        rust = Rust(models.BPE({piece: i for i, piece in enumerate(pieces)}, pairs))
    rust.pre_tokenizer, rust.decoder = choose("tokenizer.ggml.pre", cut, CUTS)(), decoders.ByteLevel()
    return _content(rust, pieces, kinds, first)


def ranked(words: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """Pieces and merges of a byte-level BPE that numbers its tokens in the order of their merges, as tiktoken does.

    >>> ranked([b"l", b"o", b"w", b" ", b"lo", b"low"])
    (['l', 'o', 'w', 'Ġ', 'lo', 'low'], ['l o', 'lo w'])
    """
    ids, merges = {word: i for i, word in enumerate(words)}, []
    pieces = ["".join(BYTES[byte] for byte in word) for word in words]
    for i, word in enumerate(words):
        parts = [word[n : n + 1] for n in range(len(word))]
        while len(parts) > 2:  # as all merges before it leave the word
            at = min(range(len(parts) - 1), key=lambda n: ids.get(parts[n] + parts[n + 1], i))
            if ids.get(joined := parts[at] + parts[at + 1], i) >= i:
                break
            parts[at : at + 2] = [joined]
        if len(parts) == 2 and all(part in ids for part in parts):
            merges.append(" ".join(pieces[ids[part]] for part in parts))
    return pieces, merges


def scored(
    pieces: Sequence[str], scores: Sequence[float], kinds: Sequence[int], first: int | None, *, space: bool = True
) -> Any:
    """A BPE of SentencePiece: of two neighbours that make a piece, those of the best score are merged first.

    `space`: a text is read as if a space stood before it.
    """
    ids = {piece: i for i, piece in enumerate(pieces)}
    whole = [i for i, kind in enumerate(kinds) if kind not in (CONTROL, BYTE)]
    merges = [
        (-scores[i], ids[left], ids[right], (left, right))
        for i in whole
        for n in range(1, len(pieces[i]))
        if (left := pieces[i][:n]) in ids and (right := pieces[i][n:]) in ids
    ]
    ordered: list[Any] = [merge[-1] for merge in sorted(merges)]
    with no_panic():
        rust = Rust(models.BPE(ids, ordered, unk_token=pieces[0], fuse_unk=True, byte_fallback=True))
    before: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if space else []
    rust.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    after: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if space else []
    bytes_first = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    rust.decoder = decoders.Sequence([*bytes_first, *after])
    return _content(rust, pieces, kinds, first)


def listed(
    pieces: Sequence[str],
    unknown: str,
    cut: str,
    around: Sequence[str] = (),
    *,
    fused: bool = False,
    lowercase: bool = False,
) -> Any:
    """Whole words, each a match of the pattern `cut`, with a space between unless they are `fused`; `around` a text
    stand two marks, or none."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    rust = Rust(models.WordLevel(ids, unk_token=unknown))
    if lowercase:
        rust.normalizer = normalizers.Lowercase()
    rust.pre_tokenizer = pre_tokenizers.Split(Regex(cut), "removed", invert=True)
    if fused:
        rust.decoder = decoders.Fuse()
    if around:
        cls, sep = around
        both = f"{cls} $A {sep} $B:1 {sep}:1"
        marks = [(cls, ids[cls]), (sep, ids[sep])]
        rust.post_processor = processors.TemplateProcessing(f"{cls} $A {sep}", both, marks)
    return json.loads(rust.to_str())


def _content(rust: Rust, pieces: Sequence[str], kinds: Sequence[int], first: int | None) -> Any:
    plain = {"normalized": False, "special": False}
    for kind, special in ((CONTROL, True), (OWN, False)):
        found = [AddedToken(p, **plain | {"special": special}) for p, k in zip(pieces, kinds, strict=True) if k == kind]
        (rust.add_special_tokens if special else rust.add_tokens)(found)
    if first is not None:
        rust.post_processor = processors.TemplateProcessing("<first> $A", special_tokens=[("<first>", first)])
    return json.loads(rust.to_str())
