"""`regard heads`: the atlas of a model's heads: what each does on a text, which are alike, which are missed.

Every figure is of the model as it reads the source and follows the reference. Heads are chosen for pruning on every
other sentence, and what is left of the model is measured on the sentences between.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.adaptation.gates import GateConfig, learn_gates
from regard.api import told
from regard.checks import at_least
from regard.files import write_whole
from regard.inspection.alignment import Gold, Link, error_rate, head_links, lexical_links
from regard.inspection.axes import KINDS, layer_of
from regard.inspection.importance import ablate_each, pruning_curve, random_curve
from regard.inspection.measures import OFFSETS, Tally, joined, rows_of, tally
from regard.inspection.page import filled
from regard.inspection.roles import ABOUT, BETTER, Aligned, roles
from regard.inspection.similarity import Likeness, scaling
from regard.inspection.syntax import FEWEST, Arc, Grammar
from regard.inspection.taps import record
from regard.inspection.times import over_all, said
from regard.studies.sights import Sights
from regard.studies.study import Study, Translations, study_of

FORMAT = 1
FILE, PAGE = "heads.json", "heads.html"
ALIKE = 0.15  # nats: a divergence below which two heads count as redundant; ln 2 = 0.69 have nothing in common
SEEN = ("recognise", "match", "caption", "look")  # tasks of models that see pictures
PAIRS = 60  # redundant pairs that are named, at most
PRICES = 0.005, 0.02  # nats that a head must be worth to stay
GATES = GateConfig(steps=200)
GATED = 512  # tokens of a batch for learning gates: many small steps
DIGITS = {"bleu": 2, "loss": 4}

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is, of how much
Found = TypeVar("Found")


def make_atlas(
    model: Path,
    source: Path | None = None,
    reference: Path | None = None,
    *,
    text: Path | None = None,
    pictures: Sequence[Path] = (),
    out: Path | None = None,
    limit: int = 1000,
    gold: Path | None = None,
    parse: Path | None = None,
    ablate: bool = True,
    prune: bool = True,
    share: float = 0.1,
    seeds: int = 3,
    prices: Sequence[float] = PRICES,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Analyse every head of a model on a text; write heads.json and heads.html into `out`, or the model's directory.

    Without `source` and `reference`, or of a language model without `text`, it is what the model's recipe has kept from
    training as its test; so are the `pictures` of a model that sees. `limit` sentences are looked at, or stretches of a
    text. `gold` names a file with the word alignments of the text, `parse` one in CoNLL-U with the dependencies of its
    sources. `ablate` silences each head in turn. `prune` takes away a `share` of them at a time, by importance and,
    with so many `seeds`, by chance; and it learns gates at each of the `prices`.
    """
    at_least(1, seeds=seeds, limit=limit)
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share = {share}: it must be above 0, and 1 at most")
    if told(model).task.name != "translate" and (gold or parse):
        raise ValueError(f"{gold or parse} is about the words of translations, and {model} makes none: leave it out")
    if source is None and (gold or parse):
        raise ValueError(f"{gold or parse} has a line for each one of a text: give --source and --reference as well")
    how = How(ablate, prune, share, seeds, [replace(GATES, price=price) for price in prices], progress)
    place = model if out is None else out
    if not writable(place):  # which is to be known now, and not after minutes of work
        raise ValueError(f"{place} is no directory that can be written into: name one with -o")
    known, parsed, texts = None, None, (source, reference, text)
    if told(model).task.name in SEEN and not any(texts):
        study: Study = Sights.seen(model, pictures, limit)
    elif pictures:
        raise ValueError(
            f"{pictures[0]}: {model} reads texts, and sees no pictures: give --text, or --source and --reference"
        )
    else:
        study = study_of(model, *texts, limit)
    if isinstance(study, Translations):
        known, parsed = None if gold is None else study.gold(gold), None if parse is None else study.arcs(parse)
    atlas = {"format": FORMAT, "model": model.resolve().name, **analysed(study, known, parsed, how)}
    if isinstance(study, Sights) and study.left:
        atlas["left_out"] = list(study.left)
    write_whole(place / FILE, json.dumps(atlas, ensure_ascii=False, separators=(",", ":")))
    write_whole(place / PAGE, atlas_page(atlas))
    return atlas


class How(NamedTuple):
    """What is done besides looking."""

    ablate: bool
    prune: bool
    share: float
    seeds: int
    gates: list[GateConfig]
    progress: Progress


def analysed(study: Study, gold: list[Gold] | None, parsed: list[set[Arc]] | None, how: How) -> dict[str, Any]:
    """All that an atlas says of a model. Without a score there is no `bleu`, and heads are pruned by the loss alone."""
    seen = _look(study, gold, parsed, how.progress)
    everything = range(len(study.examples))
    batches = study.batches(everything)
    importance = study.importance(everything)
    heads = _heads(study, seen, importance)
    score, whole = study.score(everything), study.loss(everything)
    if how.ablate:
        for entry, (less, more) in zip(heads, _ablations(study, how.progress), strict=True):
            bleu = {} if score is None or less is None else {"bleu": round(less - score.value, 2)}
            entry["ablation"] = {"loss": round(more - whole, 4), **bleu}
    return {
        "sentences": len(study.examples),
        "called": study.called,
        "tokens": sum(batch.count for batch in batches),
        **({} if score is None else {"bleu": score.value, "signature": score.signature}),
        "loss": whole,
        "heads": heads,
        "redundant": _redundant(study, seen),
        "pruning": _pruning(study, how) if how.prune else None,
        "aer": None if gold is None else _error_rates(study, seen, gold, heads),
        "syntax": None if seen.grammar is None else _relations(seen.grammar, heads),
    }


def atlas_page(atlas: Mapping[str, Any]) -> str:
    """An HTML document of what `make_atlas` has found; style, script and data are inside.

    >>> found = {"format": 1, "model": "<b>", "sentences": 1, "tokens": 3, "bleu": 0.0, "loss": 1.0, "heads": [],
    ...          "redundant": [], "pruning": None, "aer": None}
    >>> "<title>The heads of &lt;b&gt;</title>" in atlas_page(found)
    True
    """
    return filled("atlas.html", f"The heads of {atlas['model']}", {**atlas, "about": ABOUT})


def writable(place: Path) -> bool:
    """Whether a directory can be written into, or made."""
    nearest = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


@dataclass(eq=False)
class Pass:
    """What one pass over the text has shown."""

    order: list[int] = field(default_factory=list)  # the sentences, as the tallies have them
    tallies: dict[str, Tally] = field(default_factory=dict)
    likeness: dict[str, Likeness] = field(default_factory=dict)  # of each kind
    aligned: dict[str, list[Aligned]] = field(default_factory=dict)  # of cross-attention, for each head
    links: dict[tuple[str, int, str], list[set[Link]]] = field(default_factory=dict)  # name, head, row: in that order
    grammar: Grammar | None = None  # of an encoder, given a parse


def _look(study: Study, gold: list[Gold] | None, parsed: list[set[Arc]] | None, progress: Progress) -> Pass:
    seen, tokens, laid = Pass(), study.tokens(), study.axes
    aligns = (each for each in laid.values() if each.kind == "cross" and each.keys.input not in tokens.grids)
    across = next(aligns, None)
    sides = () if across is None else (across.keys.input, across.queries.input)
    lexical = lexical_links([(each[sides[0]], each[sides[1]]) for each in study.examples]) if sides else []
    seen.grammar = None if parsed is None else Grammar()
    parts: dict[str, list[Tally]] = {}
    hits: dict[str, Tensor] = {}  # (H, 2): lexical links that the rows that predict, and read, look at
    work = study.rows(range(len(study.examples)))
    for done, rows in enumerate(work, 1):
        batch = study.batch(rows)
        with record(study.model, what=("weights", "outputs")) as flow, torch.inference_mode():
            study.model(**batch.inputs)
        for kind in KINDS:
            own = {name: weights for name, weights in flow.weights.items() if laid[name].kind == kind}
            maps = {name: over_all(study.model, name, weights) for name, weights in own.items()}
            if not maps:  # a pruned model may have lost all heads of a kind
                continue
            outputs = [said(study.model, name, flow.outputs[name]) for name in maps]
            rows_ = rows_of(laid[next(iter(maps))], batch, tokens)
            seen.likeness.setdefault(kind, Likeness()).add(list(maps.values()), outputs, rows_)
            for name, weights in maps.items():
                parts.setdefault(name, []).append(tally(laid[name], weights, batch, tokens))
                if kind == "cross" and across is not None:
                    hits[name] = hits.get(name, torch.zeros(())) + _agree(weights, [lexical[i] for i in rows])
            if kind == "encoder" and seen.grammar is not None and parsed is not None:
                assert isinstance(study, Translations)
                for b, i in enumerate(rows):
                    seen.grammar.add({name: weights[b] for name, weights in maps.items()}, study.words(i)[0], parsed[i])
            if kind == "cross" and gold is not None:
                assert isinstance(study, Translations)
                maps["mean"] = torch.stack([weights.mean(1) for weights in maps.values()]).mean(0)[:, None]
                for place, links in _links(study, rows, maps):
                    seen.links.setdefault(place, []).append(links)
        seen.order += rows
        progress("looking", done, len(work))
    seen.tallies = {name: joined(some) for name, some in parts.items()}
    total = max(1, sum(map(len, lexical)))
    fixed = max(sum(i - j == offset for links in lexical for i, j in links) for offset in OFFSETS) / total
    seen.aligned = {
        name: [Aligned(predicts, reads, fixed) for predicts, reads in (found / total).tolist()]
        for name, found in hits.items()
    }
    return seen


def _agree(weights: Tensor, lexical: Sequence[set[Link]]) -> Tensor:
    """(H, 2): how many of some sentences' lexical links a head's rows look at, that predict or that read the token."""
    at = torch.tensor([(b, i, j) for b, links in enumerate(lexical) for i, j in links], dtype=torch.long).view(-1, 3)
    top = weights.argmax(-1)  # (B, H, T)
    return torch.stack([(top[at[:, 0], :, at[:, 2] + later] == at[:, 1:2]).sum(0) for later in (0, 1)], -1)


def _links(
    study: Translations, rows: Sequence[int], maps: Mapping[str, Tensor]
) -> Iterator[tuple[tuple[str, int, str], set[Link]]]:
    for b, sentence in enumerate(rows):
        read, written = study.words(sentence)
        for name, weights in maps.items():
            for row in ("predicts", "reads"):
                for head, links in enumerate(head_links(weights[b], read, written, row)):
                    yield (name, head, row), links


def _heads(study: Study, seen: Pass, importance: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """An entry for each head, in the order of the model."""
    places = {kind: iter(scaling(like.distances()).round(4).tolist()) for kind, like in seen.likeness.items()}
    found = []
    for name, tallied in seen.tallies.items():
        kind = study.axes[name].kind
        for head, measures in enumerate(tallied.measures()):
            aligned = seen.aligned[name][head] if name in seen.aligned else None
            followed = seen.grammar.of_head(name, head) if seen.grammar and kind == "encoder" else []
            labels = roles(measures, aligned, followed[0] if followed else None)
            figures = measures.named()
            if aligned is not None:
                figures |= {"aligned": aligned.predicts, "aligned_read": aligned.reads}
            found.append(
                {
                    "name": name,
                    "head": head,
                    "kind": kind,
                    "layer": layer_of(name),
                    "role": labels[0],
                    "roles": labels,
                    "measures": _rounded(figures),
                    "importance": round(float(importance[name][head]), 4),
                    "ablation": None,
                    "syntax": [each.named() for each in followed if each.over >= BETTER],
                    "map": next(places[kind]),
                    "example": _example(study, seen, name, head, labels[0]),
                }
            )
    return found


def _example(study: Study, seen: Pass, name: str, head: int, role: str) -> dict[str, Any]:
    """The map of a head on the sentence where it is most itself."""
    plain = role in ("mixed", "aligner", "aligner of the read", "local") or role.startswith("syntactic")
    grid = study.tokens().grids.get(study.axes[name].keys.input)
    chosen = "confidence" if plain or (grid and role == "positional 0") else {"broad": "evenness"}.get(role, role)
    scores = seen.tallies[name].of_sentence(chosen)[:, head].nan_to_num(-1.0)
    lengths = torch.tensor([max(map(len, study.examples[i].values())) for i in seen.order])
    fit = (lengths >= study.example.start) & (lengths < study.example.stop)
    sentence = seen.order[int((scores.where(fit, -2.0) if fit.any() else -lengths).argmax())]
    with record(study.model, name, heads=[head]) as flow, torch.inference_mode():
        study.model(**study.batch([sentence]).inputs)
    texts, sides = study.pieces(sentence), study.axes[name]
    if grid is not None:  # what it looks at in the mean, as it lies in the picture
        seen_by = over_all(study.model, name, flow[name])[0, 0, :, grid.tokens :]
        over = seen_by.mean(0).unflatten(0, (grid.rows, grid.columns))
        lines, columns = ([str(i) for i in range(n)] for n in (grid.rows, grid.columns))
        weights = [[round(x, 3) for x in row] for row in over.tolist()]
        return {"row": "reads", "rows": lines, "columns": columns, "weights": weights}
    return {
        "row": {"read": "reads", "predicted": "predicts"}[sides.role],
        "rows": sides.queries.along(texts, study.start(sentence)),
        "columns": sides.keys.along(texts, study.start(sentence)),
        "weights": [[round(x, 3) for x in row] for row in flow[name][0, 0].tolist()],
    }


def _redundant(study: Study, seen: Pass) -> list[dict[str, Any]]:
    """Pairs of heads of one kind that look at the same, the most alike first."""
    found = []
    for kind, like in seen.likeness.items():
        places = [(n, h) for n, t in seen.tallies.items() if study.axes[n].kind == kind for h in range(t.hits.shape[1])]
        distances, cka = like.distances(), like.cka()
        for a, b in zip(*np.triu_indices(len(places), 1), strict=True):
            if distances[a, b] < ALIKE:
                pair = {"a": list(places[a]), "b": list(places[b])}
                found.append({**pair, "distance": round(distances[a, b], 4), "cka": round(cka[a, b], 4)})
    return sorted(found, key=lambda pair: pair["distance"])[:PAIRS]


def _ablations(study: Study, progress: Progress) -> Iterator[tuple[float | None, float]]:
    """The score, if there is one, and the loss without each head, in the order of the model."""
    everything = range(len(study.examples))
    losses = ablate_each(
        study.model, _ticking(lambda: study.loss(everything), "silencing each: loss", study.heads, progress)
    )
    for done, ((name, head), found) in enumerate(losses.items(), 1):
        with study.without({name: [head]}):
            score = study.score(everything)
        if score is not None:
            progress("silencing each: BLEU", done, study.heads)
        yield None if score is None else score.value, found


def _scored(study: Study, which: Sequence[int], loss: float) -> dict[str, float]:
    score = study.score(which)
    return {**({} if score is None else {"bleu": round(score.value, 2)}), "loss": round(loss, 4)}


def _pruning(study: Study, how: How) -> dict[str, Any]:
    """What is left of the model as heads go, by importance, by chance, and by gates that are learned."""
    _, _, share, seeds, gates, progress = how
    total = study.heads
    points = 1 - (-total // max(1, round(share * total)))
    # A text of one sentence has to serve for both.
    chosen_on, measured_on = range(0, len(study.examples), 2), range(1, len(study.examples), 2) or range(1)

    def curve(stage: str, run: Callable[[Callable[[], float]], Any]) -> list[dict[str, Any]]:
        found = run(_ticking(lambda: study.loss(measured_on), stage, 2 * points, progress))
        measured = []
        for done, point in enumerate(found, points + 1):
            with study.without(point.silenced):
                figures = _scored(study, measured_on, point.found)
            progress(stage, done, 2 * points)
            measured.append({"kept": point.kept, **figures, "silenced": point.silenced})
        return measured

    def rescored() -> dict[str, Tensor]:
        return study.importance(chosen_on)

    def gated(config: GateConfig) -> dict[str, Any]:
        progress(f"learning gates of price {config.price:g}", 0, 1)
        shut = learn_gates(study.model, study.batches(chosen_on, GATED), pad=study.pad, config=config).shut
        with study.without(shut):
            found = _scored(study, measured_on, study.loss(measured_on))
        progress(f"learning gates of price {config.price:g}", 1, 1)
        return {"price": config.price, "kept": total - sum(map(len, shut.values())), **found, "silenced": shut}

    by_importance = curve("pruning by importance", partial(pruning_curve, study.model, rescored, share=share))
    by_chance = [
        curve(f"pruning by chance, {1 + seed} of {seeds}", partial(random_curve, study.model, seed=seed, share=share))
        for seed in range(seeds)
    ]
    return {
        "chosen_on": len(chosen_on),
        "measured_on": len(measured_on),
        "seeds": seeds,
        "importance": by_importance,
        "random": [_spread(points) for points in zip(*by_chance, strict=True)],
        "gates": {"steps": GATES.steps, "points": [gated(each) for each in gates]} if gates and study.gated else None,
    }


def _spread(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of several curves at one point, and between which figures they lie: BLEU, or else losses."""
    mean = {name: round(fmean(p[name] for p in points), digits) for name, digits in DIGITS.items() if name in points[0]}
    drawn = [point[next(iter(mean))] for point in points]
    return {"kept": points[0]["kept"], **mean, "low": min(drawn), "high": max(drawn)}


def _relations(grammar: Grammar, heads: list[dict[str, Any]]) -> dict[str, Any]:
    """The relations of the text, each with the head that follows it best."""
    places = [(entry["name"], entry["head"]) for entry in heads if entry["kind"] == "encoder"]
    followed = {(place, each.relation): each for place in places for each in grammar.of_head(*place)}
    found = []
    for relation in grammar.relations():
        best = max(places, key=lambda place: followed[place, relation].share)
        found.append({**followed[best, relation].named(), "best": list(best)})
    return {"fewest": FEWEST, "relations": found}


def _error_rates(study: Study, seen: Pass, gold: list[Gold], heads: list[dict[str, Any]]) -> dict[str, Any]:
    """Alignment error rates: of every head, into its measures; of the mean of all; and of the best fixed offset."""
    ordered = [gold[i] for i in seen.order]
    rates = {place: round(error_rate(links, ordered), 4) for place, links in seen.links.items()}
    for entry in heads:
        if entry["kind"] == "cross":
            place = entry["name"], entry["head"]
            entry["measures"] |= {"aer": rates[*place, "predicts"], "aer_read": rates[*place, "reads"]}
    assert isinstance(study, Translations)
    words = [study.words(i) for i in seen.order]

    def shifted(offset: int) -> float:
        links = [{(j + offset, j) for j in set(to) if 0 <= j + offset <= max(read)} for read, to in words]
        return round(error_rate(links, ordered), 4)

    offset = min(OFFSETS, key=shifted)
    return {
        "sure": sum(len(each.sure) for each in ordered),
        "possible": sum(len(each.possible) for each in ordered),
        "mean": rates["mean", 0, "predicts"],
        "mean_read": rates["mean", 0, "reads"],
        "fixed": {"offset": offset, "aer": shifted(offset)},
    }


def _ticking(measure: Callable[[], Found], stage: str, total: int, progress: Progress) -> Callable[[], Found]:
    done = count(1)

    def measured() -> Found:
        found = measure()
        progress(stage, next(done), total)
        return found

    return measured


def _rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: round(x, 4) for key, x in value.items()} if isinstance(value, dict) else round(value, 4)
        for name, value in figures.items()
    }
