"""What the explorer shows of a look: maps of every kind, one head's products, measures, faithfulness, a whole page."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.inspection.axes import KINDS
from regard.inspection.faithfulness import faithfulness as attention_faithfulness
from regard.inspection.importance import head_importance
from regard.inspection.measures import tally
from regard.inspection.page import AttentionMap, attention_page
from regard.inspection.taps import record
from regard.inspection.views import norm_maps, query_key_products, rollout
from regard.serving.live import Live, Look, TooLargeError
from regard.serving.shown import Shown

Wanted = Sequence[tuple[str, Sequence[int] | None]]  # attentions, and which of their heads
EXPLAINED = 128  # source tokens of which each is left out once
MAPS = 2**23  # numbers of the maps of one answer
IMPORTANT = 2**24  # weights whose gradient is held
PAGE = 2**22  # numbers that a page holds


def maps(live: Live, look: Look, view: str, wanted: Wanted) -> Iterator[tuple[str, list[int], Tensor]]:
    """Maps (H, T, S) of attentions, by name and heads: rows are queries, columns keys.

    The weights are those before a head is scaled; norms are of what it then says. A rollout is of the encoder: each
    layer has one map.
    """
    size, seen = 0, set[tuple[str, int]]()
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
    return _maps(live, look, view, wanted)


def _maps(live: Live, look: Look, view: str, wanted: Wanted) -> Iterator[tuple[str, list[int], Tensor]]:
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
            numbers = norm_maps(attention, numbers[None], recorded.values[None])[0]
            for changed, head, factor in look.changes:
                if changed == name:
                    numbers[head] *= abs(factor)
        yield name, heads, numbers if asked is None else numbers[heads]


@torch.inference_mode()
def neuron(live: Live, look: Look, name: str, head: int, query: int) -> dict[str, Any]:
    """How the weights of one head and query come about, dimension by dimension."""
    live.check(name, head)
    attention = live.attentions[name]
    with live.turn(look.changes), record(live.model, name, what=("weights", "scores", "queries", "keys")) as seen:
        live.run(look)
    queries, keys, scores = seen.queries[name], seen.keys[name], seen.scores[name]
    if not 0 <= query < queries.shape[2]:
        raise ValueError(f"query = {query}: {name} has queries 0 to {queries.shape[2] - 1}")
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
        "weights": seen[name][0, head, query].tolist(),
        "scale": scale,
    }


def measures(live: Live, look: Look) -> dict[str, Any]:
    """What each head does in this sentence, and how much its part in it matters."""
    if (size := live.size(look)) > IMPORTANT:
        raise TooLargeError(f"the maps of this sentence hold {size:,} numbers: heads are measured up to {IMPORTANT:,}")
    marks, batch = live.marks, live.batch(look)
    with live.apart(look.changes) as model:
        importance = head_importance(model, [batch], pad=marks.pad)
    batch = batch.to("cpu")
    heads = [
        {"name": name, "head": head, **found.named(), "importance": float(importance[name][head])}
        for name, recorded in live.recorded(look, live.attentions)
        for head, found in enumerate(tally(live.axes[name], recorded.weights[None], batch, marks).measures())
    ]
    return {"heads": heads, "about": "this sentence"}


def faithfulness(live: Live, look: Look) -> dict[str, Any]:
    """How far attention goes along with what the predictions of this sentence hang on."""
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


def page(live: Live, look: Look) -> str:
    """A self-contained page of every head."""
    if (size := live.size(look)) > PAGE:
        raise TooLargeError(f"a page of this would hold {size:,} numbers, and at most {PAGE:,}: save a single map")
    first, predicted = live.steps(look)
    rows = [*look.ids[:-1], (first, *predicted)]
    shown_as = [[token["text"] for token in Shown(live.tokenizer).all(ids)] for ids in rows]
    start = shown_as[-1].pop(0)
    texts = dict(zip(live.inputs, shown_as, strict=True))
    shown = []
    for name in sorted(live.attentions, key=lambda name: -KINDS.index(live.axes[name].kind)):
        sides, ((_, recorded),) = live.axes[name], live.recorded(look, [name])
        down, across = (axis.along(texts, start) for axis in (sides.queries, sides.keys))
        shown.append(AttentionMap(name, recorded.weights, down, across, sides.role))
    changed = ", ".join(f"{name} head {head} × {factor:g}" for name, head, factor in look.changes)
    title = " → ".join(map(live.decoded, look.ids))
    return attention_page(shown, title=title, note=f"Changed: {changed}" if changed else "")
