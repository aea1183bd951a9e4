"""The attention maps of a text, with the texts of the tokens along both axes; by words, without special tokens.

Letters: H heads, T queries, S keys. Rows are queries, columns keys.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checks import one_of
from regard.core.added import added
from regard.inspection.axes import END, KINDS, START, Axis, Grid, axes, grids
from regard.inspection.page import VIEWS, AttentionMap, Picture
from regard.inspection.taps import Names, Seen, attentions, checked_heads, record
from regard.inspection.times import over_all
from regard.inspection.views import norm_maps, rollout, standing
from regard.inspection.words import Words, merge


@torch.inference_mode()
def attention_maps(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    texts: Mapping[str, Sequence[str]],
    *,
    words: Mapping[str, Words] | None = None,
    names: Names = "*",
    heads: Sequence[int] | None = None,
    view: str = "weights",
    start: str = START,
    pixels: NDArray[np.uint8] | None = None,
    among: Mapping[str, Grid] | None = None,
) -> list[AttentionMap]:
    """The attentions of a model while it reads one row of inputs, (1, T) each; cross-attention first.

    `texts` are those of each input's tokens, as `Axis.along` takes them: what is read, or, of an input that the model
    writes, what is predicted at each position; `start` is what is read at the first. Given their `words`, maps are by
    words, as `merge` has them.
    `names` is a pattern, or several, `heads` are the numbers of some; the view "norm" is that of `norm_maps`, "rollout"
    that of `rollout`: one map for each layer of an encoder. Of a model that sees, `pixels` (H, W, C) are what it sees;
    the places of these need no texts; `among` says where they stand among those of a text.
    """
    one_of(VIEWS, view=view)
    known, laid, grid = attentions(model), axes(model), next(iter(grids(model).items()), None)
    recorded: Names = names
    if view == "rollout":
        recorded = [name for name, sides in laid.items() if sides.kind == "encoder"]
        if heads is not None or not recorded:
            raise ValueError("a roll-out is of all heads of an encoder: there are none, or some were named")
    if grid is not None:
        texts = {**texts, grid[0]: grid[1].texts()}
    model.eval()
    with (
        record(model, recorded, what="weights" if view != "norm" else ("weights", "values")) as seen,
        standing(model, Grid(0, 0, 0) if grid is None else grid[1]) as shares,
    ):
        model(**inputs)
    viewed = _viewed(model, seen, view, names)
    if not viewed:
        raise ValueError(f"a roll-out goes through an encoder: choose among {', '.join(recorded)}")
    places = {} if grid is None or pixels is None else dict([grid]) | dict(among or {})
    maps = []
    for name, shown in viewed.items():
        sides = laid[name]
        queries, keys = (axis.along(texts, start) for axis in (sides.queries, sides.keys))
        some_of = shown[0]
        if added(model):  # before tokens stands what was taught and is none
            some_of = some_of[:, -len(queries) :, -len(keys) :]
        whole = AttentionMap(name, some_of.float(), queries, keys, sides.role, view=view)
        if pixels is not None and (at := places.get(sides.keys.input)):
            whole = replace(whole, picture=Picture(pixels, at, shares[-1]))
        if words is not None:
            whole = _in_words(whole, sides.queries, sides.keys, words)
        if (some := checked_heads(heads, known[name], name)) is not None:
            whole = replace(whole, weights=whole.weights[list(some)], heads=list(some))
        maps.append(whole)
    return sorted(maps, key=lambda each: -KINDS.index(laid[each.name].kind))


def _viewed(model: nn.Module, seen: Seen[Tensor], view: str, names: Names) -> Mapping[str, Tensor]:
    """The numbers of each map, (B, H, T, S), by name."""
    found: Mapping[str, Tensor] = seen.weights
    if view == "norm":
        known = attentions(model)
        found = {name: norm_maps(known[name], weights, seen.values[name]) for name, weights in found.items()}
    found = {name: over_all(model, name, x) for name, x in found.items()}
    if view != "rollout":
        return found
    patterns = [names] if isinstance(names, str) else names
    square = [weights[..., -weights.shape[-2] :] for weights in found.values()]  # without a prefix
    reached = zip(found, rollout(square), strict=True)
    return {name: x[:, None] for name, x in reached if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _in_words(tokens: AttentionMap, queries: Axis, keys: Axis, words: Mapping[str, Words]) -> AttentionMap:
    (rows, down), (columns, across) = (_words_along(axis, words[axis.input]) for axis in (queries, keys))
    return replace(tokens, weights=merge(tokens.weights, rows, columns), queries=down, keys=across)


def _words_along(axis: Axis, words: Words) -> tuple[list[int], list[str]]:
    """Of which word along an axis each token is a part, counted from 0, and their texts; a start symbol is one."""
    of = axis.along({axis.input: words.of}, -1)
    return [word - of[0] for word in of], [START if word < 0 else words.texts[word] for word in dict.fromkeys(of)]


def without_special(whole: AttentionMap) -> AttentionMap:
    """A map of `attention_maps` without the start and end symbols; rows of weights sum to 1 again.

    A row of which nothing is left is zeros. Lengths of the view "norm" are no shares, and stay as they are.
    """
    rows, columns = (
        list(range(len(texts)))[slice(texts[0] == START, len(texts) - (texts[-1] == END))]
        for texts in (whole.queries, whole.keys)
    )
    return _only(whole, rows, columns)


def without(whole: AttentionMap, marks: Collection[str]) -> AttentionMap:
    """The same of a map along whose axes stand marks of these names, wherever they do."""
    rows, columns = ([i for i, text in enumerate(texts) if text not in marks] for texts in (whole.queries, whole.keys))
    return _only(whole, rows, columns)


def _only(whole: AttentionMap, rows: list[int], columns: list[int]) -> AttentionMap:
    weights = whole.weights[:, rows][:, :, columns]
    if whole.view == "weights":
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    queries, keys = [whole.queries[i] for i in rows], [whole.keys[i] for i in columns]
    return replace(whole, weights=weights, queries=queries, keys=keys)
