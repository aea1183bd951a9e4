"""What each head looks at, in figures: over one sentence, or over many.

Letters: B sentences, H heads, T queries, S keys. A row of a map is one query's weights over its keys, which sum to 1:
weights[b, h, i, j] says how much query i looks at key j. Where key j stands from query i is its offset, j - i.

What a row is (`regard.inspection.axes` has the names of rows and columns):
- encoder: row i reads token i.
- decoder: row i has read token i, where token 0 is the start symbol; it sees the keys up to itself. "Previous" is the
  token read before, and "duplicate" means: the same as the one that is read.
- cross: row i predicts the i-th target token, counted without the start symbol; so offset 0 is the diagonal.

What counts: padding never does, neither as a query nor as a key, nor does a row that sees one key alone, for it has no
choice. A row counts for an offset or a pattern only if that has a place in it: the first token has no previous one.

A measure is the mean over the rows that count of

confidence   the greatest weight, the end symbol aside as a key and as a query (Voita et al., 2019)
entropy      -Σ α ln α of 0.9999 α + 0.0001 / n over the n keys in sight, in nats (Clark et al., 2019)
evenness     the entropy over ln n, the most it can be: 1 is even
positional   whether the greatest weight is at one offset, for the offset where it is most often (Voita et al., 2019)
previous, next, itself   the weight at the offsets -1, +1, 0
first        the weight of the first key
special      the weight of the start and end symbols
punctuation  the weight of tokens that are punctuation
rare         whether the greatest weight is on the rarest of two or more tokens in sight, special ones aside; rows in
             which several are as rare do not count, for in a short text most tokens are
duplicate    the weight of other tokens that are the same as the query's
induction    the weight of tokens that come after one which is the same as the query's

Of patches of a picture, those before them are special, and there is no order of which to be the next. There are then

distance     how far the patches lie that a patch looks at, by their weights, in patches (Dosovitskiy et al., 2021)
reach        the same over the distance of an even look at all patches: below 1 a head is local
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple
from unicodedata import category

import torch
from torch import Tensor, nn

from regard.inspection.axes import Axes, Grid, Taught, axes
from regard.inspection.taps import record
from regard.inspection.times import over_all

OFFSETS = sorted(range(-5, 6), key=abs)  # where a positional head may look; of equals the nearest is named
SMOOTH = 1e-4  # of entropy
NONE, BEFORE = -100, -99  # what no token is; what stands before the patches of a picture
ORDERED = ("first", "punctuation", "previous", "next", "duplicate", "induction")  # what patches have not


@dataclass(frozen=True, eq=False)
class Tokens:
    """What must be known of tokens, which are numbers: the marks, punctuation, and how often each one occurs."""

    pad: int
    bos: int
    eos: int
    punctuation: frozenset[int] = frozenset()
    counts: Mapping[str, Tensor] = field(default_factory=dict)  # (V,) of an input by name; without, nothing is rare
    grids: Mapping[str, Grid] = field(default_factory=dict)  # of an input that is a picture

    @classmethod
    def of(cls, marks: Any, pieces: Sequence[str], **counts: Tensor) -> "Tokens":
        """Of a tokenizer with these marks, some of which it may not have: cls and sep are read in place of bos, eos."""
        first, last = marks.bos if marks.cls is None else marks.cls, marks.eos if marks.sep is None else marks.sep
        pad, bos, eos = (NONE if mark is None else mark for mark in (marks.pad, first, last))
        return cls(pad, bos, eos, punctuation(pieces), counts)

    def along(self, batch: Taught, name: str) -> Tensor:
        """The tokens of an input, (B, S): of a picture, each patch is another, and what stands before them a mark."""
        if (grid := self.grids.get(name)) is None:
            return batch[name]
        patches = NONE - 1 - torch.arange(grid.places, device=batch[name].device)
        patches[: grid.tokens] = BEFORE
        return patches.expand(len(batch[name]), -1)


class Positional(NamedTuple):
    """The offset at which a head's greatest weight is most often, and in which share of the rows it is."""

    offset: int
    share: float


@dataclass(frozen=True)
class HeadMeasures:
    """What one head looks at, as the top of this file defines it; None where no row counts."""

    confidence: float | None
    entropy: float | None
    evenness: float | None
    positional: Positional | None = None
    first: float | None = None
    special: float | None = None
    punctuation: float | None = None
    previous: float | None = None  # self-attention has these
    itself: float | None = None
    duplicate: float | None = None
    induction: float | None = None
    next: float | None = None  # an encoder has this
    rare: float | None = None  # given counts
    distance: float | None = None  # patches have these
    reach: float | None = None

    def named(self) -> dict[str, Any]:
        """The measures by name, those that there are."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | ({"positional": self.positional._asdict()} if self.positional else {})


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over the rows of each of some sentences, of which any mean can be made."""

    totals: dict[str, Tensor]  # (B, H) for each measure
    rows: dict[str, Tensor]  # (B,): how many rows these are
    hits: Tensor  # (B, H, offsets): rows whose greatest weight is at an offset
    places: Tensor  # (B, offsets): rows in which the offset has a place
    counted: Tensor  # (B,): rows that count at all

    def measures(self) -> list[HeadMeasures]:
        """The measures of each head, over all the sentences together."""
        totals = {name: total.sum(0).tolist() for name, total in self.totals.items()}
        rows = {name: float(count.sum()) for name, count in self.rows.items()}
        places = self.places.sum(0)  # (offsets,)
        # An offset that few rows have proves nothing: with one row, any head would be positional.
        common = (2 * places >= self.counted.sum()) & (places > 0)
        shares = (self.hits.sum(0) / places).masked_fill(~common, -1.0)  # (H, offsets)
        best = [Positional(OFFSETS[int(row.argmax())], float(row.max())) if common.any() else None for row in shares]
        return [
            HeadMeasures(
                positional=best[head],
                **{name: total[head] / rows[name] if rows[name] else None for name, total in totals.items()},
            )
            for head in range(len(shares))
        ]

    def of_sentence(self, measure: str) -> Tensor:
        """One measure of each sentence by itself, (B, H); NaN where no row counts.

        "positional -2", say, is the share of rows whose greatest weight is at that offset.
        """
        if measure.startswith("positional"):
            at = OFFSETS.index(int(measure.split()[1]))
            return self.hits[..., at] / self.places[:, None, at]
        return self.totals[measure] / self.rows[measure][:, None]


def punctuation(pieces: Sequence[str]) -> frozenset[int]:
    """Which tokens are punctuation and nothing else, by the texts of all tokens in the order of their ids.

    >>> sorted(punctuation(["<s>", "▁.", "a,", "¿", "▁", "-@@"]))
    [1, 3, 5]
    """
    bare = [piece.removesuffix("@@").removeprefix("##").strip("▁Ġ") for piece in pieces]
    return frozenset(i for i, text in enumerate(bare) if text and all(category(c).startswith("P") for c in text))


class RowTokens(NamedTuple):
    """The tokens of an attention's rows and columns while a model reads a batch, and what of them counts."""

    queries: Tensor  # (B, T): the token that each row has read
    keys: Tensor  # (B, S)
    ended: Tensor  # (B, T) bool: rows of the end symbol
    visible: Tensor  # (B, T, S) bool
    counted: Tensor  # (B, T) bool
    offsets: Tensor  # (T, S): j - i


def rows_of(sides: Axes, batch: Taught, tokens: Tokens) -> RowTokens:
    """The rows of an attention with these axes, while a model reads a batch."""
    queries, keys = tokens.along(batch, sides.queries.input), tokens.along(batch, sides.keys.input)
    said = queries if sides.role == "read" else batch["labels"]
    (B, T), S = queries.shape, keys.shape[1]
    offsets = torch.arange(S, device=keys.device) - torch.arange(T, device=keys.device)[:, None]
    live = keys != tokens.pad
    if sides.causal:  # the padding of what is written is where nothing more is predicted
        live = (said != tokens.pad).flip(1).cummax(1).values.flip(1)
    visible = live[:, None].expand(B, T, S)
    if sides.causal:
        visible = visible & (offsets <= 0)
    counted = (said != tokens.pad) & (visible.sum(-1) > 1)
    return RowTokens(queries, keys, said == tokens.eos, visible, counted, offsets)


def tally(sides: Axes, weights: Tensor, batch: Taught, tokens: Tokens) -> Tally:
    """What the rows of one attention add to the measures of its heads, for each sentence of a batch.

    weights (B, H, T, S) as recorded, of an attention with these axes, while the model read `batch`.
    """
    weights = weights.float()
    queries, keys, ended, visible, counted, offsets = rows_of(sides, batch, tokens)
    values: dict[str, tuple[Tensor, Tensor]] = {}  # of each row (B, H, T), and which rows count (B, T)

    ends = (keys == tokens.eos)[:, None, None]
    values["confidence"] = weights.masked_fill(ends, 0.0).amax(-1), counted & ~ended
    n = visible.sum(-1)[:, None, :, None].clamp(min=1)  # (B, 1, T, 1)
    smooth = ((1 - SMOOTH) * weights + SMOOTH / n).where(visible[:, None], 1.0)  # 1 ln 1 = 0: what is hidden adds 0
    entropy = -(smooth * smooth.log()).sum(-1)
    values["entropy"] = entropy, counted
    values["evenness"] = entropy / n[..., 0].clamp(min=2).log(), counted

    def mass(pattern: Tensor) -> Tensor:
        return (weights * pattern[:, None]).sum(-1)

    values["first"] = weights[..., 0], counted
    for name, ids in (("special", (tokens.bos, tokens.eos, BEFORE)), ("punctuation", tokens.punctuation)):
        values[name] = mass(_among(keys, ids)[:, None]), counted
    top = weights.argmax(-1)  # (B, H, T)
    if (counts := tokens.counts.get(sides.keys.input)) is not None:
        plain = visible & ~_among(keys, (tokens.bos, tokens.eos))[:, None]
        often = counts.to(keys.device)[keys][:, None].where(plain, torch.inf)  # (B, T, S)
        rarest = plain & (often == often.amin(-1, keepdim=True))
        values["rare"] = _at(rarest, top).float(), counted & (plain.sum(-1) > 1) & (rarest.sum(-1) == 1)
    if sides.kind != "cross":
        same = keys[:, None] == queries[:, :, None]  # (B, T, S)
        patterns = {
            "previous": offsets == -1,
            "itself": offsets == 0,
            "duplicate": same & (offsets != 0),
            "induction": nn.functional.pad(same, (1, -1)) & (offsets != 1),  # one to the right
        }
        if not sides.causal:
            patterns["next"] = offsets == 1
        for name, pattern in patterns.items():
            values[name] = mass(pattern & visible), counted & (pattern & visible).any(-1)

    if (grid := tokens.grids.get(sides.keys.input)) is not None:
        for name in (*ORDERED, *(() if grid.tokens else ("special",))):
            values.pop(name, None)
        if sides.kind != "cross":
            values |= {name: (far, ~_among(queries, [BEFORE])) for name, far in _distances(weights, grid).items()}
    at = top - torch.arange(top.shape[-1], device=top.device)  # (B, H, T)
    fits = torch.stack([(visible & (offsets == o)).any(-1) & counted for o in OFFSETS], -1)  # (B, T, offsets)
    hits = torch.stack([((at == o) & counted[:, None]).sum(-1) for o in OFFSETS], -1)  # (B, H, offsets)
    fits = fits & (grid is None)  # patches lie in two directions
    return Tally(
        {name: (value * rows[:, None]).sum(-1).double().cpu() for name, (value, rows) in values.items()},
        {name: rows.sum(-1).cpu() for name, (_, rows) in values.items()},
        hits.cpu(),
        fits.sum(1).cpu(),
        counted.sum(-1).cpu(),
    )


def _distances(weights: Tensor, grid: Grid) -> dict[str, Tensor]:
    """How far each patch looks, (B, H, T) in patches, and for an even look; 0 of what stands before the patches."""
    lines, columns = torch.meshgrid(torch.arange(grid.rows), torch.arange(grid.columns), indexing="ij")
    places = torch.stack([lines.flatten(), columns.flatten()], 1).to(weights)  # (patches, 2)
    apart = torch.cdist(places, places)
    seen = weights[:, :, grid.tokens :, grid.tokens :]
    far = (seen * apart).sum(-1) / seen.sum(-1).clamp(min=torch.finfo(seen.dtype).tiny)
    found = {"distance": far, "reach": far / apart.mean(-1).clamp(min=1e-9)}
    return {name: nn.functional.pad(each, (grid.tokens, 0)) for name, each in found.items()}


def joined(tallies: Sequence[Tally]) -> Tally:
    """The tally of all the sentences of several."""

    def cat(name: str) -> Any:
        parts = [getattr(each, name) for each in tallies]
        if isinstance(parts[0], dict):
            return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        return torch.cat(parts)

    return Tally(**{field.name: cat(field.name) for field in fields(Tally)})


@torch.inference_mode()
def measure(model: nn.Module, batches: Iterable[Taught], tokens: Tokens) -> dict[tuple[str, int], HeadMeasures]:
    """The measures of every head of a model, by attention and number, over the sentences of all batches."""
    laid, tallies = axes(model), dict[str, list[Tally]]()
    for batch in batches:
        with record(model) as seen:
            model(**batch.inputs)
        for name, weights in seen.weights.items():
            tallies.setdefault(name, []).append(tally(laid[name], over_all(model, name, weights), batch, tokens))
    return {
        (name, head): measures
        for name, several in tallies.items()
        for head, measures in enumerate(joined(several).measures())
    }


def _among(ids: Tensor, some: Iterable[int]) -> Tensor:
    return torch.isin(ids, ids.new_tensor(sorted(some)))


def _at(pattern: Tensor, top: Tensor) -> Tensor:
    """Whether a pattern (B, T, S) holds at the keys `top` (B, H, T)."""
    return pattern[:, None].expand(-1, top.shape[1], -1, -1).gather(-1, top[..., None])[..., 0]
