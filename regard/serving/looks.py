"""What the explorer shows of a look: maps of every kind, one head's products, measures, faithfulness, a whole page."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.adaptation.recall import recall_of, reminded
from regard.inspection.axes import KINDS
from regard.inspection.faithfulness import faithfulness as attention_faithfulness
from regard.inspection.measures import tally
from regard.inspection.page import AttentionMap, attention_page
from regard.inspection.taps import record
from regard.inspection.times import apart
from regard.inspection.views import norm_maps, query_key_products, rollout
from regard.serving.live import Live, Look, TooLargeError
from regard.serving.seers import LiveLooker, LiveMatcher, Seeing
from regard.tasks.match import PLACES

Map = tuple[str, list[int], Tensor]  # of an attention: its name, which heads, and their maps (H, T, S)
Wanted = Sequence[tuple[str, Sequence[int] | None]]  # attentions, and which of their heads
EXPLAINED = 128  # source tokens of which each is left out once
MAPS = 2**23  # numbers of the maps of one answer
IMPORTANT = 2**24  # weights whose gradient is held
PAGE = 2**22  # numbers that a page holds
REMINDED = 8  # neighbours of a token that are shown


def maps(live: Live, look: Look, view: str, wanted: Wanted) -> Iterator[Map]:
    """Maps (H, T, S) of attentions, by name and heads: rows are queries, columns keys.

    The weights are those before a head is scaled; norms are of what it then says. A rollout is of the encoder: each
    layer has one map.
    """
    size, seen, derived = 0, set[tuple[str, int]](), list[Map]()
    if isinstance(live, LiveMatcher) and PLACES in dict(wanted):
        if view != "weights":
            raise ValueError(f"{PLACES} are no attention's, and have no {view}: ask for weights")
        derived.append((PLACES, [0], live.places(look)))
        wanted = [each for each in wanted if each[0] != PLACES]
    for name, heads in wanted:
        live.check(name, *heads or ())
        for head in range(live.attentions[name].heads) if heads is None else heads:
            if (name, head) in seen:
                raise ValueError(f"{name} head {head} is asked for twice: once is enough")
            seen.add((name, head))
            size += live.size(look, name) // live.attentions[name].heads
        if view == "rollout" and live.axes[name].kind != "encoder":
            raise ValueError(f"a rollout goes through the encoder, and {name} is not part of it")
    if size > MAPS:
        raise TooLargeError(f"these maps hold {size:,} numbers, and an answer {MAPS:,}: ask for fewer heads at a time")
    return chain(derived, _maps(live, look, view, wanted))


def _maps(live: Live, look: Look, view: str, wanted: Wanted) -> Iterator[Map]:
    if view == "rollout":
        layers = [name for name in live.attentions if live.axes[name].kind == "encoder"]
        reached = rollout([recorded.weights[None] for _, recorded in live.recorded(look, layers)])
        by_name = dict(zip(layers, reached, strict=True))
        yield from ((name, [0], by_name[name]) for name, _ in wanted)
        return
    found = live.recorded(look, [name for name, _ in wanted])
    for (_, asked), (name, recorded) in zip(wanted, found, strict=True):
        attention = live.attentions[name]
        heads = list(range(attention.heads)) if asked is None else list(asked)
        numbers = recorded.weights
        if view == "norm":
            if apart(live.model):
                numbers = recorded.values.clone()
            else:
                with live.turn(look.changes) if live.additions else nullcontext():  # what was added to W_O counts
                    numbers = norm_maps(attention, numbers[None], recorded.values[None])[0]
            for changed, head, factor in look.changes.heads:
                if changed == name:
                    numbers[head] *= abs(factor)
        numbers = numbers[:, -_rows(live, look, name) :]
        yield name, heads, numbers if asked is None else numbers[heads]


def _rows(live: Live, look: Look, name: str) -> int:
    """How many rows of an attention's maps are shown, the last: what is written, not what it goes on from."""
    return len(live.steps(look)[1]) if live.axes[name].role == "predicted" else live.lengths(look, name)[0]


def pooled(maps: Tensor, size: int) -> Tensor:
    """maps (H, T, S) -> the largest number of each block of rows and columns, at most `size` of both.

    Blocks are ⌈T / size⌉ rows high and ⌈S / size⌉ columns wide; the last may be smaller.

    >>> pooled(torch.arange(15.0).view(1, 3, 5), 2).tolist()
    [[[7.0, 9.0], [12.0, 14.0]]]
    """
    _, T, S = maps.shape
    blocks = -(-T // size), -(-S // size)
    return maps if blocks == (1, 1) else F.max_pool2d(maps[None], blocks, ceil_mode=True)[0]


def pack(view: str, maps: Iterable[Map], *, dtype: str, pool: int = 0) -> bytes:
    """(name, heads, numbers (H, T, S) that are not negative) of each map -> bytes, so that a page need not parse them.

    4 bytes, little-endian, say how long the header is, which is JSON; it is padded by spaces, and then come the
    numbers, where each map begins at a multiple of 8. u8 holds whole 255ths of `scale`, which is 1 for weights, or
    the largest number of a map; f32 the numbers.
    """
    entries, parts, offset = [], list[bytes](), 0
    for name, heads, numbers in maps:
        numbers = pooled(numbers, pool) if pool else numbers
        scale = 1.0 if view == "weights" else float(numbers.max()) if numbers.numel() else 1.0
        if dtype == "u8":
            data = (numbers * (255 / (scale or 1.0))).round_().clamp_(0, 255).byte().numpy().tobytes()
        else:
            data = numbers.contiguous().numpy().astype("<f4", copy=False).tobytes()
        entries.append({"name": name, "heads": heads, "shape": list(numbers.shape), "offset": offset, "scale": scale})
        parts.append(data + b"\0" * (-len(data) % 8))
        offset += len(parts[-1])
    header = json.dumps({"view": view, "dtype": dtype, "maps": entries}, separators=(",", ":")).encode()
    header += b" " * (-(4 + len(header)) % 8)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


@torch.inference_mode()
def neuron(live: Live, look: Look, name: str, head: int, query: int) -> dict[str, Any]:
    """How the weights of one head and query come about, dimension by dimension."""
    live.check(name, head)
    if apart(live.model):
        raise ValueError(f"{name} looks at parts of what is seen: its products are not shown")
    attention = live.attentions[name]
    with live.turn(look.changes), record(live.model, name, what=("weights", "scores", "queries", "keys")) as seen:
        live.run(look)
    T, S = live.lengths(look, name)  # what was taught may stand before the tokens, and is none
    queries, keys = seen.queries[name][:, :, -T:], seen.keys[name][:, :, -S:]
    scores, weights = (x[:, :, -T:, -S:] for x in (seen.scores[name], seen[name]))
    rows = _rows(live, look, name)
    if not 0 <= query < rows:
        raise ValueError(f"query = {query}: {name} has queries 0 to {rows - 1}")
    query += T - rows
    products = query_key_products(attention, queries, keys, head, query)  # (S, d_k)
    scale = attention.d_k**-0.5 if attention.config.scale is None else attention.config.scale
    bias = None if attention.cross else attention.positions.bias(queries, keys.shape[2], 0, scale)
    bias = torch.zeros_like(scores) if bias is None else bias.expand_as(scores)
    return {
        "query": queries[0, head, query].tolist(),
        "keys": keys[0, head].tolist(),
        "products": products.tolist(),
        "scores": scores[0, head, query].tolist(),
        "bias": bias[0, head, query].tolist(),
        "weights": weights[0, head, query].tolist(),
        "scale": scale,
    }


def measures(live: Live, look: Look) -> dict[str, Any]:
    """What each head does in this sentence, and how much its part in it matters."""
    if (size := live.size(look)) > IMPORTANT:
        raise TooLargeError(f"the maps of this sentence hold {size:,} numbers: heads are measured up to {IMPORTANT:,}")
    marks, importance, batch = live.marks, live.importance(look), live.batch(look).to("cpu")
    heads = [
        {"name": name, "head": head, **found.named(), "importance": float(importance[name][head])}
        for name, recorded in live.recorded(look, live.attentions)
        for head, found in enumerate(tally(live.axes[name], recorded.weights[None], batch, marks).measures())
    ]
    return {"heads": heads, "about": "this sentence"}


def faithfulness(live: Live, look: Look) -> dict[str, Any]:
    """How far attention goes along with what the predictions of this sentence hang on."""
    if live.grids:
        raise ValueError("faithfulness is measured by leaving tokens of a source out, and this model sees a picture")
    if len(look.ids) == 1:
        raise ValueError("faithfulness is measured by leaving tokens of a source out, and this model reads none")
    source, target = look.ids
    if len(source) > EXPLAINED:
        raise TooLargeError(
            f"the source has {len(source)} tokens: each is left out once to measure faithfulness, so at most "
            f"{EXPLAINED} are taken"
        )
    marks = live.tokenizer.marks.need("pad", "bos", "eos")
    with live.turn(look.changes):
        live.run(look)  # scores that are no numbers are told here: nothing could be ranked by them
    batch = live.batch(look)
    with live.apart(look.changes) as model:
        found = attention_faithfulness(model, batch["source"], batch["target"], target, marks)
    named = {name: each._asdict() for name, each in found._asdict().items()}
    return {**named, "tokens": sum(id not in marks for id in source)}


def _texts(live: Live, look: Look) -> tuple[dict[str, list[str]], str]:
    """What stands along each input, as `Axis.along` takes it, and what is read first."""
    if isinstance(live, LiveLooker):
        return live.texts(look)
    first, predicted = live.steps(look)
    rows = [*look.ids[:-1], predicted if first is None else (first, *predicted)]
    shown_as = [[token["text"] for token in live.shown(name, ids)] for name, ids in zip(live.inputs, rows, strict=True)]
    start = "" if first is None else shown_as[-1].pop(0)
    return dict(zip(live.inputs, shown_as, strict=True)), start


def page(live: Live, look: Look) -> str:
    """A self-contained page of every head."""
    if (size := live.size(look)) > PAGE:
        raise TooLargeError(f"a page of this would hold {size:,} numbers, and at most {PAGE:,}: save a single map")
    texts, start = _texts(live, look)
    picture, grids = (live.pictured(look), live.laid(look)) if isinstance(live, Seeing) else (None, {})
    shown = []
    for name in sorted(live.attentions, key=lambda name: -KINDS.index(live.axes[name].kind)):
        sides, ((_, recorded),) = live.axes[name], live.recorded(look, [name])
        down, across = (axis.along(texts, start) for axis in (sides.queries, sides.keys))
        rows, seen = _rows(live, look, name), None
        if picture is not None and (grid := grids.get(sides.keys.input)):
            seen = replace(picture, grid=grid)
        shown.append(AttentionMap(name, recorded.weights[:, -rows:], down[-rows:], across, sides.role, picture=seen))
    if isinstance(live, LiveMatcher):
        across, down = (texts[each] for each in live.inputs)
        shown.insert(0, AttentionMap(PLACES, live.places(look), down, across, "said", picture=picture))
    factors = [f"{name} head {head} × {factor:g}" for name, head, factor in look.changes.heads]
    changed = ", ".join([*factors, *(f"{name} off" for name in look.changes.off)])
    read = zip(live.inputs, look.ids, strict=True)
    title = " → ".join("picture" if name in live.grids else live.decoded(ids) for name, ids in read)
    return attention_page(shown, title=title, note=f"Changed: {changed}" if changed else "")


@torch.inference_mode()
def recalled(live: Live, look: Look) -> dict[str, Any]:
    """Of each token that is written: what it reminds the model of, and how likely it is without that."""
    if recall_of(live.model) is None:
        raise ValueError("this model remembers nothing: `regard remember` makes one that does")
    model: Any = live.model
    with live.turn(look.changes):
        h = model.features(**live.batch(look).inputs)[0]
        found = reminded(model, live.tokenizer, h, live.steps(look)[1], live.eos, REMINDED)
    steps = [{"p": each.p, "alone": each.alone, "near": [like._asdict() for like in each.near]} for each in found]
    return {"steps": steps}
