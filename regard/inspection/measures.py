"""What each head looks at, in figures: over one sentence, or over many.

Letters: B sentences, H heads, T queries, S keys. A row of a map is one query's weights over its keys, which sum to 1:
weights[b, h, i, j] says how much query i looks at key j. Where key j stands from query i is its offset, j - i.

What a row is:
- encoder: row i reads source token i.
- decoder: row i reads target token i, where token 0 is the start symbol; it sees the keys up to itself. "Previous" is
  the token read before, and "duplicate" means: the same as the one that is read.
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
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import SimpleNamespace
from typing import Any, NamedTuple
from unicodedata import category

import torch
from torch import Tensor, nn

from regard.inspection.importance import Taught
from regard.inspection.taps import record

OFFSETS = sorted(range(-5, 6), key=abs)  # where a positional head may look; of equals the nearest is named
SMOOTH = 1e-4  # of entropy


@dataclass(frozen=True, eq=False)
class Tokens:
    """What must be known of tokens, which are numbers: the marks, punctuation, and how often each one occurs."""

    pad: int
    bos: int
    eos: int
    punctuation: frozenset[int] = frozenset()
    source_counts: Tensor | None = None  # (V,); without them nothing is rare
    target_counts: Tensor | None = None


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
    positional: Positional | None
    first: float | None
    special: float | None
    punctuation: float | None
    previous: float | None = None  # self-attention has these
    itself: float | None = None
    duplicate: float | None = None
    induction: float | None = None
    next: float | None = None  # an encoder has this
    rare: float | None = None  # given counts

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


def kind_of(name: str) -> str:
    """What an attention is, by its name: encoder, decoder or cross.

    >>> kind_of("decoder.layers.2.cross_attention")
    'cross'
    """
    return "cross" if name.endswith("cross_attention") else "encoder" if name.startswith("encoder") else "decoder"


def layer_of(name: str) -> int:
    """The number of an attention's layer, by its name; where layers have no numbers, there is one.

    >>> layer_of("decoder.layers.2.cross_attention"), layer_of("decoder.cross_attention")
    (2, 0)
    """
    return int(next(filter(str.isdigit, name.split(".")), 0))


def punctuation(pieces: Sequence[str]) -> frozenset[int]:
    """Which tokens are punctuation and nothing else, by the texts of all tokens in the order of their ids.

    >>> sorted(punctuation(["<s>", "▁.", "a,", "¿", "▁", "-@@"]))
    [1, 3, 5]
    """
    bare = [piece.removesuffix("@@").removeprefix("##").strip("▁Ġ") for piece in pieces]
    return frozenset(i for i, text in enumerate(bare) if text and all(category(c).startswith("P") for c in text))


class Axes(NamedTuple):
    """What stands along the two axes of an attention's maps, and what of it counts."""

    queries: Tensor  # (B, T): the token that each row reads
    keys: Tensor  # (B, S)
    ended: Tensor  # (B, T) bool: rows of the end symbol
    visible: Tensor  # (B, T, S) bool
    counted: Tensor  # (B, T) bool
    offsets: Tensor  # (T, S): j - i
    counts: Tensor | None  # (V,)


def axes_of(kind: str, batch: Taught, tokens: Tokens) -> Axes:
    """The axes of an attention of a kind, while a model reads a batch."""
    queries, said = (batch["source"], batch["source"]) if kind == "encoder" else (batch["target"], batch["labels"])
    keys = batch["target"] if kind == "decoder" else batch["source"]
    (B, T), S = queries.shape, keys.shape[1]
    offsets = torch.arange(S, device=keys.device) - torch.arange(T, device=keys.device)[:, None]
    live = batch["labels"] if kind == "decoder" else batch["source"]  # a target's padding is where nothing is predicted
    visible = (live != tokens.pad)[:, None].expand(B, T, S)
    if kind == "decoder":
        visible = visible & (offsets <= 0)
    counted = (said != tokens.pad) & (visible.sum(-1) > 1)
    counts = tokens.target_counts if kind == "decoder" else tokens.source_counts
    return Axes(queries, keys, said == tokens.eos, visible, counted, offsets, counts)


def tally(kind: str, weights: Tensor, batch: Taught, tokens: Tokens) -> Tally:
    """What the rows of one attention add to the measures of its heads, for each sentence of a batch.

    weights (B, H, T, S) as recorded, of an attention of a `kind`, while the model read `batch`.
    """
    weights = weights.float()
    axes = axes_of(kind, batch, tokens)
    keys, visible, counted, offsets = axes.keys, axes.visible, axes.counted, axes.offsets
    values: dict[str, tuple[Tensor, Tensor]] = {}  # of each row (B, H, T), and which rows count (B, T)

    ends = (keys == tokens.eos)[:, None, None]
    values["confidence"] = weights.masked_fill(ends, 0.0).amax(-1), counted & ~axes.ended
    n = visible.sum(-1)[:, None, :, None].clamp(min=1)  # (B, 1, T, 1)
    smooth = ((1 - SMOOTH) * weights + SMOOTH / n).where(visible[:, None], 1.0)  # 1 ln 1 = 0: what is hidden adds 0
    entropy = -(smooth * smooth.log()).sum(-1)
    values["entropy"] = entropy, counted
    values["evenness"] = entropy / n[..., 0].clamp(min=2).log(), counted

    def mass(pattern: Tensor) -> Tensor:
        return (weights * pattern[:, None]).sum(-1)

    values["first"] = weights[..., 0], counted
    for name, ids in (("special", (tokens.bos, tokens.eos)), ("punctuation", tokens.punctuation)):
        values[name] = mass(_among(keys, ids)[:, None]), counted
    top = weights.argmax(-1)  # (B, H, T)
    if axes.counts is not None:
        plain = visible & ~_among(keys, (tokens.bos, tokens.eos))[:, None]
        often = axes.counts.to(keys.device)[keys][:, None].where(plain, torch.inf)  # (B, T, S)
        rarest = plain & (often == often.amin(-1, keepdim=True))
        values["rare"] = _at(rarest, top).float(), counted & (plain.sum(-1) > 1) & (rarest.sum(-1) == 1)
    if kind != "cross":
        same = keys[:, None] == axes.queries[:, :, None]  # (B, T, S)
        patterns = {
            "previous": offsets == -1,
            "itself": offsets == 0,
            "duplicate": same & (offsets != 0),
            "induction": nn.functional.pad(same, (1, -1)) & (offsets != 1),  # one to the right
        }
        if kind == "encoder":
            patterns["next"] = offsets == 1
        for name, pattern in patterns.items():
            values[name] = mass(pattern & visible), counted & (pattern & visible).any(-1)

    at = top - torch.arange(top.shape[-1], device=top.device)  # (B, H, T)
    fits = torch.stack([(visible & (offsets == o)).any(-1) & counted for o in OFFSETS], -1)  # (B, T, offsets)
    hits = torch.stack([((at == o) & counted[:, None]).sum(-1) for o in OFFSETS], -1)  # (B, H, offsets)
    return Tally(
        {name: (value * rows[:, None]).sum(-1).double().cpu() for name, (value, rows) in values.items()},
        {name: rows.sum(-1).cpu() for name, (_, rows) in values.items()},
        hits.cpu(),
        fits.sum(1).cpu(),
        counted.sum(-1).cpu(),
    )


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
    """The measures of every head of an encoder-decoder, by attention and number, over the sentences of all batches."""
    tallies: dict[str, list[Tally]] = {}
    for batch in batches:
        with record(model) as seen:
            model(batch["source"], batch["target"])
        for name, weights in seen.weights.items():
            tallies.setdefault(name, []).append(tally(kind_of(name), weights, batch, tokens))
    return {
        (name, head): measures
        for name, several in tallies.items()
        for head, measures in enumerate(joined(several).measures())
    }


def sentence_measures(
    maps: Mapping[str, Tensor], source: Sequence[int], target: Sequence[int], tokens: Tokens
) -> list[dict[str, Any]]:
    """The measures of every head over one sentence, each as {"name", "head", "confidence", ...}.

    maps: the weights (H, T, S) of each attention by name; `source` are the S ids that were read, with their end,
    `target` the T ids that were predicted, without the start symbol.

    >>> maps = {"encoder.layers.0.self_attention": torch.tensor([[[0.0, 1.0, 0.0], [0.1, 0.0, 0.9], [0.3, 0.4, 0.3]]])}
    >>> (head,) = sentence_measures(maps, [7, 8, 2], [9, 2], Tokens(pad=0, bos=1, eos=2))
    >>> head["name"], head["head"], round(head["next"], 2), round(head["special"], 2), head["positional"]["offset"]
    ('encoder.layers.0.self_attention', 0, 0.95, 0.4, 1)
    """
    read = [tokens.bos, *target[:-1]]
    source_, target_, labels = (torch.tensor([list(ids)]) for ids in (source, read, target))
    batch: Any = SimpleNamespace(source=source_, target=target_, labels=labels)
    return [
        {"name": name, "head": head, **measures.named()}
        for name, weights in maps.items()
        for head, measures in enumerate(tally(kind_of(name), weights[None].cpu(), batch, tokens).measures())
    ]


def _among(ids: Tensor, some: Iterable[int]) -> Tensor:
    return torch.isin(ids, ids.new_tensor(sorted(some)))


def _at(pattern: Tensor, top: Tensor) -> Tensor:
    """Whether a pattern (B, T, S) holds at the keys `top` (B, H, T)."""
    return pattern[:, None].expand(-1, top.shape[1], -1, -1).gather(-1, top[..., None])[..., 0]
