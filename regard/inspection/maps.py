"""The attention maps of a translation, with the texts of the tokens along both axes; by words, without special tokens.

Letters: H heads, T queries, S keys. Rows are queries, columns keys.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.inspection.page import VIEWS, AttentionMap
from regard.inspection.taps import Names, attentions, record
from regard.inspection.views import norm_maps

Axis = TypeVar("Axis")
START, END = "<s>", "</s>"
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")  # no spaces between words


@torch.inference_mode()
def translation_maps(
    model: nn.Module,
    source: Tensor,
    target: Tensor,
    read: Sequence[str],
    written: Sequence[str],
    *,
    names: Names = "*",
    heads: Sequence[int] | None = None,
    view: str = "weights",
) -> list[AttentionMap]:
    """The attentions of an encoder-decoder while it writes a known target, cross-attention first.

    source (1, S) and target (1, T) as the model reads them: T begins with the start symbol. `read` are the S texts of
    the source's tokens, `written` the T texts of what the model predicts at each position, the end symbol last.
    `names` is a pattern, or several, `heads` are the numbers of some; the view "norm" is that of `norm_maps`.
    """
    if view not in VIEWS:
        raise ValueError(f"view = {view!r}: choose {' or '.join(VIEWS)}")
    model.eval()
    with record(model, names, what="weights" if view == "weights" else ("weights", "values")) as seen:
        model(source, target)
    known, before = attentions(model), [START, *written[:-1]]
    maps = []
    for name, weights in seen.weights.items():
        shown = weights if view == "weights" else norm_maps(known[name], weights, seen.values[name])
        queries, keys = _axes(name, read, written, before)
        role = "read" if name.startswith("encoder") else "predicted"
        maps.append(_of_heads(AttentionMap(name, shown[0].float(), queries, keys, role, view=view), heads))
    return sorted(maps, key=lambda m: (not m.name.endswith("cross_attention"), m.name.startswith("encoder")))


def _axes(name: str, read: Axis, written: Axis, before: Axis) -> tuple[Axis, Axis]:
    """What stands along the two axes of an attention: queries and keys."""
    if name.startswith("encoder"):
        return read, read
    return written, before if name.endswith("self_attention") else read


def _of_heads(whole: AttentionMap, heads: Sequence[int] | None) -> AttentionMap:
    if heads is None:
        return whole
    for head in heads:
        if not 0 <= head < len(whole.weights):
            raise ValueError(f"{whole.name} has heads 0..{len(whole.weights) - 1}, not {head}")
    return replace(whole, weights=whole.weights[list(heads)], heads=list(heads))


def merge(weights: Tensor, queries: Sequence[int], keys: Sequence[int]) -> Tensor:
    """The map of words of a map of tokens: the sum over the tokens of a key, the mean over those of a query.

    weights (..., T, S) -> (..., words of the queries, words of the keys); `queries` and `keys` say of which word each
    token is a part, counted from 0. A row that sums to 1 does so still.

    >>> weights = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    >>> merge(weights, [0, 0], [0, 1, 1])
    tensor([[0.2000, 0.8000]])
    """
    to_query = _membership(queries, weights)
    return to_query / to_query.sum(1, keepdim=True) @ weights @ _membership(keys, weights).T


def _membership(words: Sequence[int], like: Tensor) -> Tensor:
    """(words, tokens): 1 where a token is a part of a word."""
    found = like.new_zeros(max(words) + 1, len(words))
    found[list(words), range(len(words))] = 1.0
    return found


class Words(NamedTuple):
    """The words of a text, special tokens aside: of which one each token is a part, and how they read."""

    of: Sequence[int]
    texts: Sequence[str]


def words_of_pieces(pieces: Sequence[str], kind: str) -> list[int]:
    """Of which word each token is a part, by its text as `Tokenizer.pieces` of a kind of tokens shows it.

    Words are what stands between white space; in a script that has none, each token is a word.

    >>> words_of_pieces(["▁the", "▁lib", "rary", ".", "▁图书", "馆"], "bpe")
    [0, 1, 1, 1, 2, 3]
    >>> words_of_pieces(["the", "lib@@", "rary", "."], "none")
    [0, 1, 1, 2]
    """
    words: list[int] = []
    before = ""
    for piece in pieces:
        if kind == "none":
            begins = not before.endswith("@@")
        elif kind == "wordpiece":
            begins = not piece.startswith("##")
        else:
            begins = piece.startswith(("▁", "Ġ")) and bool(before.strip("▁Ġ"))  # Ġ is a space in imported vocabularies
            begins = begins or any(unicodedata.name(c, "").startswith(UNSPACED) for c in (before[-1:] + piece)[:2])
        words.append(words[-1] + begins if words else 0)
        before = piece
    return words


def in_words(tokens: AttentionMap, read: Words, written: Words) -> AttentionMap:
    """A map of `translation_maps` by words, as `merge` has them; special tokens stay by themselves."""
    before = Words([0, *(word + 1 for word in written.of)], [START, *written.texts])
    read, written = (Words([*each.of, len(each.texts)], [*each.texts, END]) for each in (read, written))
    queries, keys = _axes(tokens.name, read, written, before)
    merged = merge(tokens.weights, queries.of, keys.of)
    return replace(tokens, weights=merged, queries=queries.texts, keys=keys.texts)


def without_special(whole: AttentionMap) -> AttentionMap:
    """A map of `translation_maps` without the start and end symbols; rows of weights sum to 1 again.

    A row of which nothing is left is zeros. Lengths of the view "norm" are no shares, and stay as they are.
    """
    reads_written = whole.name.startswith("decoder") and whole.name.endswith("self_attention")
    columns = slice(1, None) if reads_written else slice(None, -1)
    weights = whole.weights[:, :-1, columns]
    if whole.view == "weights":
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return replace(whole, weights=weights, queries=whole.queries[:-1], keys=whole.keys[columns])
