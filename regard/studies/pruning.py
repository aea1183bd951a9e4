"""`regard prune`: a model directory without some heads, those named or those that are missed least; or layers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.adaptation.change import listed
from regard.adaptation.gates import GateConfig, learn_gates
from regard.adaptation.prune import check_prunable, prune
from regard.checks import hint, one_of
from regard.convert.precision import USED
from regard.core.blocks import Stack
from regard.data.batching import Batch
from regard.files import new_directory, read_whole, write_whole
from regard.inspection.importance import Importance, head_importance, least_important, loss, pruning_curve
from regard.inspection.taps import attentions
from regard.models import storage
from regard.models.family import blank
from regard.studies.study import Study, study_of

ATLAS = "heads.json"  # of `regard heads`, in a model directory
NO_LAYERS = "a {0.__class__.__name__} model has no layers to prune"
WAYS = ("importance", "gates", "atlas")
TOKENS = 1024  # of a batch: its logits are held, and gates are learned batch by batch


@dataclass(frozen=True)
class Size:
    """What a model has."""

    heads: int
    parameters: int
    bytes: int  # of weights on disk
    loss: float | None = None  # of a label of the text given, in nats


@dataclass(frozen=True)
class Summary:
    """What became of a model."""

    before: Size
    after: Size
    gone: dict[str, list[int]]  # the heads that went, by attention


def prune_directory(
    model_dir: Path,
    out_dir: Path,
    *,
    heads: Mapping[str, Iterable[int]] | None = None,
    layers: Sequence[str] = (),
    keep: int | float | None = None,
    by: str = "importance",
    source: Path | None = None,
    reference: Path | None = None,
    text: Path | None = None,
    limit: int = 1000,
    gates: GateConfig | None = None,
) -> Summary:
    """Write a whole new model directory beside the old one, without some heads, or the `layers` that are named;
    its weights are as precise as before.

    Either `heads` names those that go, or `keep` says how many stay, a whole number or a share of all: those that are
    most important by their gradient on `limit` pairs of `source` and `reference`, or stretches of `text`, measured anew
    after every tenth of all; or the most worth by learned gates; or the most important in the model's atlas. Gates
    without `keep` decide themselves how many stay. What is there is never overwritten.
    """
    if layers and (heads is not None or keep is not None):
        raise ValueError("layers go, or heads do: prune the one after the other")
    heads = {} if layers else heads
    _check(heads, keep, by, source, reference, text)
    with new_directory(out_dir) as made:
        model: Any = storage.load(model_dir)
        if not layers:
            check_prunable(model)  # before anything is measured
        study = study_of(model_dir, source, reference, text, limit) if source or text else None
        if study is not None and not study.gated:
            raise ValueError(f"{model_dir} reads: its heads go by its atlas, by = atlas, of `regard heads`; or by name")
        given = study.batches(range(len(study.examples)), TOKENS) if study else []
        gone = {name: sorted(set(numbers)) for name, numbers in heads.items()} if heads is not None else {}
        if heads is None:
            known = {name: attention.heads for name, attention in attentions(model).items()}
            count = None if keep is None else sum(known.values()) - _count(keep, sum(known.values()))
            if by == "atlas":
                assert count is not None
                gone = least_important(_atlas(model_dir, known), count)
            else:
                assert study is not None
                gone = _chosen(study, given, by, count, gates)
        smaller: Any = without_layers(model, layers) if layers else prune(model, gone)
        storage.save(smaller, made, storage.purpose(model_dir))
        for name in USED:
            if (model_dir / name).exists():
                write_whole(made / name, read_whole(model_dir / name))
        before, after = (_size(each, place, study, given) for each, place in ((model, model_dir), (smaller, made)))
    return Summary(before, after, gone)


def without_layers(model: Any, layers: Sequence[str]) -> nn.Module:
    """A new model without these layers, as decoder.layers.3: its config has fewer, and those that stay move up."""
    stacks = {path: module.layers for path, module in model.named_modules() if isinstance(module, Stack)}
    gone: dict[str, set[int]] = {}
    for name in layers:
        path, _, number = name.rpartition(".layers.")
        if path not in stacks or not number.isdecimal() or int(number) >= len(stacks[path]):
            known = [f"{each}.layers.{i}" for each, of in stacks.items() for i in range(len(of))]
            raise ValueError(f"no layer is named {name!r}: {hint(name, known)}" if known else NO_LAYERS.format(model))
        gone.setdefault(path, set()).add(int(number))
    if listed(model):
        raise ValueError("layers go before heads and before numbers are rounded: prune the model that was changed so")
    fewer, places = dict[str, int](), dict[str, str]()
    for path, numbers in gone.items():
        of = stacks[path]
        fields = [each for each in (f"{path}_layers", "layers") if getattr(model.config, each, None) == len(of)]
        if not fields or len({id(p) for p in of.parameters()}) < sum(1 for layer in of for _ in layer.parameters()):
            raise ValueError(f"{path} cannot lose a layer: its layers share what they have, or no setting counts them")
        if len(numbers) == len(of):
            raise ValueError(f"{path} would have no layer left: keep one")
        left = [i for i in range(len(of)) if i not in numbers]
        fewer[fields[0]] = len(left)
        places |= {
            f"{path}.layers.{i}.": f"{path}.layers.{left.index(i)}." if i in left else "" for i in range(len(of))
        }
    smaller, state = blank(model.config.but(**fewer), getattr(model, "head", None)), dict[str, Any]()
    for name, x in model.state_dict(keep_vars=True).items():
        begin = next((place for place in places if name.startswith(place)), None)
        if begin is None or places[begin]:
            state[name if begin is None else places[begin] + name.removeprefix(begin)] = x
    try:
        smaller.load_state_dict(state, assign=True)
    except RuntimeError:
        raise ValueError(f"{' '.join(layers)}: the layers of this model are not alike, so none can go") from None
    return smaller.eval()


def _check(
    heads: object, keep: float | None, by: str, source: Path | None, reference: Path | None, text: Path | None
) -> None:
    one_of(WAYS, by=by)
    if (source is None) != (reference is None):
        raise ValueError("source and reference belong together: give both, line by line")
    if heads is not None:
        if keep is not None:
            raise ValueError("heads names those that go, keep says how many stay: give one of them")
        return
    if keep is None and by != "gates":
        raise ValueError("say which heads go, by heads, or how many stay, by keep: a number such as 12, a share as 0.7")
    if source is None and text is None and by != "atlas":
        raise ValueError(
            f"{by} is measured on a text: give source and reference, or text of a language model, or take the atlas's "
            "by = atlas"
        )


def _count(keep: float, total: int) -> int:
    """How many of `total` heads stay: a whole number of them, or a share."""
    if isinstance(keep, float) and not 0.0 <= keep <= 1.0:
        raise ValueError(f"keep = {keep}: a share lies in [0, 1]; for a number of heads leave the point out")
    if not 0 <= keep <= total:
        raise ValueError(f"keep = {keep}: the model has {total} heads")
    return round(keep * total) if isinstance(keep, float) else int(keep)


def _chosen(
    study: Study, given: list[Batch], by: str, count: int | None, gates: GateConfig | None
) -> dict[str, list[int]]:
    """The `count` heads of a model, in fp32, that are missed least on a text; None: as many as the gates shut."""
    model, pad = study.model, study.pad
    if by == "gates":
        learned = learn_gates(model, given, pad=pad, config=gates)
        return learned.shut if count is None else least_important(learned.log_a, count)
    assert count is not None
    left = study.heads - count
    return pruning_curve(model, lambda: head_importance(model, given, pad=pad), lambda: None, down_to=left)[-1].silenced


def _atlas(model_dir: Path, heads: Mapping[str, int]) -> Importance:
    """The importance of each head that `regard heads` has found."""
    path = model_dir / ATLAS
    if not path.is_file():
        raise ValueError(f"{model_dir} has no {ATLAS}: make it with `regard heads {model_dir}`, or choose another way")
    try:
        entries = json.loads(path.read_text("utf-8"))["heads"]
        found = {(entry["name"], entry["head"]): float(entry["importance"]) for entry in entries}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is no atlas of heads: make it again with `regard heads {model_dir}`") from None
    if set(found) != {(name, head) for name, count in heads.items() for head in range(count)}:
        raise ValueError(f"{path} is about other heads than the model's: make it again with `regard heads {model_dir}`")
    return {name: torch.tensor([found[name, head] for head in range(count)]) for name, count in heads.items()}


def _size(model: Any, place: Path, study: Study | None, given: list[Batch]) -> Size:
    return Size(
        heads=sum(attention.heads for attention in attentions(model).values()),
        parameters=sum(p.numel() for name, p in model.named_parameters() if not name.endswith(".scale")),
        bytes=(place / storage.WEIGHTS).stat().st_size,
        loss=loss(model, given, pad=study.pad) if study else None,
    )
