"""To and from Hugging Face: one engine for every table of `tables.py`, in both directions.

Their sinusoids come as [sin | cos], ours alternate: between the two lies a permutation of the residual stream, which
the weights absorb, so a model stays exact and without a limit of length.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.convert import tokenizers
from regard.convert.source import Source, same_heads
from regard.convert.tables import TABLES, Foreign
from regard.convert.tokenizers import told_by
from regard.core.positions import sinusoid
from regard.data.tokenizers import Tokenizer
from regard.files import write_whole
from regard.models.family import FAMILIES, blank, configured, family

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
POSITIONS = 1024  # that transformers tabulates of the sinusoids
NEVER = -1e4  # the logit of a token that must not be written; finite, so that a mean of logits still is


class Setting(NamedTuple):
    """What says a setting of ours."""

    names: dict[str, str]  # of theirs -> what stands for one that is missing; nothing: it must be there
    values: list[tuple[list[Any], Any]]  # theirs, one for each name, and ours; none: they are the same


def settings(table: Foreign) -> dict[str, Setting]:
    """The lines of a table, by settings of ours."""
    found = {}
    for line in filter(None, table.settings.split("\n")):
        ours, theirs = line.split(maxsplit=1)
        names, _, values = theirs.partition(":")
        which = [([_value(each) for each in its.split(",")], _value(own or its)) for its, own in _cut(values, ">")]
        found[ours] = Setting(dict(_cut(names, "=")), which)
    return found


def _cut(words: str, at: str) -> Iterator[tuple[str, str]]:
    return ((before, after) for before, _, after in (word.partition(at) for word in words.split()))


def _value(word: str) -> Any:
    return {"true": True, "false": False}.get(word, word)


class Counterpart(NamedTuple):
    """A tensor of ours, and those of theirs that make it, under each of their names."""

    ours: str
    theirs: list[list[str]]
    words: dict[str, str]  # with their numbers


def pairs(tensors: str, names: Iterable[str]) -> Iterator[Counterpart]:
    """The lines of a table for a model whose tensors have these names."""
    known = list(names)
    for line in filter(None, tensors.split("\n")):
        for stack in ("encoder", "decoder") if "@" in line else ("",):
            ours, theirs, *words = line.replace("@", stack).split()
            before, layered, _ = ours.partition("#")
            layers = {name.removeprefix(before).split(".")[0] for name in known if name.startswith(before)}
            for layer in sorted(layers, key=int) if layered else ("",):
                for part in ("weight", "bias") if "*" in ours else ("",):
                    own, *others = (x.replace("#", layer).replace("*", part) for x in (ours, *theirs.split("|")))
                    yield Counterpart(own, [_braces(other) for other in others], dict(_cut(" ".join(words), ":")))


def _braces(name: str) -> list[str]:
    before, brace, rest = name.partition("{")
    some, _, after = rest.partition("}")
    return [f"{before}{each}{after}" for each in some.split(",")] if brace else [name]


WORDS: dict[str, tuple[Callable[[Tensor, str], Tensor], Callable[[Tensor, str], Tensor]]] = {  # there, and back
    "transposed": (lambda x, _: x.transpose(0, -1), lambda x, _: x.transpose(0, -1)),
    "offset": (lambda x, n: torch.cat([x.new_zeros(int(n), *x.shape[1:]), x]), lambda x, n: x[int(n) :]),
    "row": (lambda x, _: x[None], lambda x, _: x[0]),
}


def to_theirs(pair: Counterpart, x: Tensor, config: Any) -> list[Tensor]:
    """A tensor of ours in theirs: of queries, keys and values each has its share of the heads, of others the same."""
    kv, several = config.kv_heads or config.heads, len(pair.theirs[0])
    shares = [config.heads, kv, kv] if several == 3 else [1] * several
    parts = [*x.split([len(x) * share // sum(shares) for share in shares])]
    for word, (there, _) in WORDS.items():
        if word in pair.words:
            parts = [there(part, pair.words[word]) for part in parts]
    return parts


def to_ours(pair: Counterpart, parts: list[Tensor]) -> Tensor:
    """And back."""
    for word, (_, back) in reversed(WORDS.items()):
        if word in pair.words:
            parts = [back(part, pair.words[word]) for part in parts]
    return torch.cat(parts)


def _permuted(name: str, x: Tensor, table: Foreign, config: Any, *, back: bool) -> Tensor:
    """One of our tensors with the residual stream in their order; or, `back`, in ours again."""
    if not table.permuted:
        return x
    order = _order(config.d_model).argsort() if back else _order(config.d_model)
    if re.search(r"\.(output|outer|norm)\.", name):  # what writes into the stream, or scales it
        return x.index_select(0, order)
    return x.index_select(1, order) if x.dim() == 2 else x


def _order(d: int) -> Tensor:
    """Our residual stream in their order: the even dimensions, to which sines are added, then the odd ones."""
    return torch.cat([torch.arange(0, d, 2), torch.arange(1, d, 2)])


# Out


def write(source: Source, directory: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer into an empty directory."""
    c, table = source.config, _table(source)
    about: dict[str, Any] = {"model_type": table.name, "architectures": [table.heads["tokens"]], "dtype": "float32"}
    for name, setting in settings(table).items():
        value = getattr(c, name)
        said = [its for its, own in setting.values if own == value]
        if setting.values and not said:
            known = ", ".join(dict.fromkeys(repr(own) for _, own in setting.values))
            raise ValueError(f"Hugging Face cannot express {name} = {value!r}, only {known}")
        for key, its in zip(setting.names, said[0] if said else [value] * len(setting.names), strict=True):
            _put(about, key.split("|")[0], its)
    for key, value in table.constant.items():
        _put(about, key, value)
    marks = source.tokenizer.marks
    ids: dict[str, Any] = {f"{name}_token_id": getattr(marks, name) for name in ("pad", "bos", "eos")}
    ids |= {theirs.rstrip("?"): getattr(marks, name) for name, theirs in table.marks.items()}
    ids |= {"forced_bos_token_id": None, "forced_eos_token_id": None}
    about |= ids | ({"max_position_embeddings": POSITIONS} if table.permuted else {})
    longest = min(c.longest or POSITIONS, 512)
    write_whole(directory / CONFIG, json.dumps(about, indent=2) + "\n")
    write_whole(directory / GENERATION, json.dumps(ids | {"max_length": longest}, indent=2) + "\n")
    save_file(_theirs(source, table, tied=about["tie_word_embeddings"]), directory / WEIGHTS, {"format": "pt"})
    tokenizers.write(source.tokenizer, directory, ends=table.ends)


def _table(source: Source) -> Foreign:
    """The class of theirs that a model is."""
    c, name = source.config, next(name for name in FAMILIES if family(name).model is type(source.model))
    nearest: list[str] = []
    for table in (table for table in TABLES.values() if table.family == name):
        own, known = settings(table), same_heads(c) | {setting: (value,) for setting, value in table.fixed.items()}
        wrong = [
            f"{setting} = {value!r} (in {table.name} it is {values[-1]!r})"
            for setting, values in known.items()
            if setting not in own and (value := getattr(c, setting, None)) not in values
        ]
        if not wrong:
            return table
        nearest = min(nearest or wrong, wrong, key=len)
    if not nearest:
        raise ValueError(f"a {type(source.model).__name__} model: no class of Hugging Face's is one")
    raise ValueError(f"Hugging Face has no model with {' and '.join(nearest)}")


def _put(about: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    reduce(lambda inner, name: inner.setdefault(name, {}), path, about)[last] = value


def _theirs(source: Source, table: Foreign, *, tied: bool) -> dict[str, Tensor]:
    """The tensors by their names; of tied ones only the first."""
    c, ours, tensors = source.config, source.tensors, dict[str, Tensor]()
    lines = list(pairs(table.tensors, ours))
    for pair in lines:
        own = ours.get(pair.ours)
        if own is None:  # a bias that we do without
            own = torch.zeros(len(ours[pair.ours.replace("bias", "weight")]))
        several = tied and len(pair.theirs) > 1
        same = [p.theirs for p in lines if several and p.ours in ours and ours[p.ours].data_ptr() == own.data_ptr()]
        names = next(names for names in pair.theirs if all(names in others for others in same))
        for name, part in zip(names, to_theirs(pair, _permuted(pair.ours, own, table, c, back=False), c), strict=True):
            tensors.setdefault(name, part.contiguous().clone())
    if table.permuted:
        positions = sinusoid(torch.arange(POSITIONS), c.d_model).float().index_select(1, _order(c.d_model))
        tensors |= {f"model.{stack}.embed_positions.weight": positions.clone() for stack in ("encoder", "decoder")}
    return tensors


# In


def read(directory: Path, tensors: dict[str, Tensor] | None = None) -> tuple[nn.Module, Tokenizer]:
    """The model and the tokenizer of a directory of Hugging Face's; its tensors, if they were read already."""
    if not told_by(directory, CONFIG):
        raise ValueError(f"{directory} is not a directory of a Hugging Face model: it has no {CONFIG}")
    about, path = about_model(directory), directory / CONFIG
    known = [name for name, table in TABLES.items() if table.family in FAMILIES]
    if (name := about.get("model_type")) not in known:
        raise ValueError(f"{path}: model_type = {name!r} cannot be imported, only {', '.join(known)}")
    table, content = TABLES[str(name)], tokenizers.read(directory)
    tensors = _load(directory) if tensors is None else tensors
    try:
        biased = {"output_bias": True} if "output.bias" in table.tensors else {}
        c = configured(family(table.family).config, _config(table, about) | biased)
        for layers in ("layers", "encoder_layers", "decoder_layers"):  # before anything of that size is built
            if (count := getattr(c, layers, 0)) > len(tensors):
                raise ValueError(f"{layers} = {count}, but {WEIGHTS} has {len(tensors)} tensors")
        tokenizer = tokenizers.kept(directory, content, about, table.marks, ends=table.ends)
        never = about.get("bad_words_ids") or []
        if not all(isinstance(row, list) for row in never):
            raise ValueError(f"bad_words_ids = {never}: each is a list of ids")
        if tokenizer.marks.pad is not None and hasattr(c, "pad"):
            c = c.but(pad=tokenizer.marks.pad)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}" if str(directory) not in str(error) else str(error)) from error
    state = _ours(directory / WEIGHTS, table, tensors, c)
    if biased:
        state["output.bias"][[row[0] for row in never if len(row) == 1 and row[0] in range(c.vocabulary)]] = NEVER
        if not state["output.bias"].any():
            del state["output.bias"]
            c = c.but(output_bias=False)
    model = family(table.family).model(c)
    model.load_state_dict(state)
    return model.eval(), tokenizer


def about_model(directory: Path) -> dict[str, Any]:
    """What a directory says of its model, and of how to generate with it."""
    told = told_by(directory, GENERATION)
    return told_by(directory, CONFIG) | {key: value for key, value in told.items() if value is not None}


def _at(about: Any, key: str) -> Any:
    """What stands under a key with dots; None if nothing does."""
    for name in key.split("."):
        about = about.get(name) if isinstance(about, dict) else None
    return about


def _config(table: Foreign, about: dict[str, Any]) -> dict[str, Any]:
    """Our settings, as their file has them."""

    def get(names: str, default: str = "") -> Any:
        value = next((found for name in names.split("|") if (found := _at(about, name)) is not None), None)
        if value is not None:
            return value
        if not default:
            raise ValueError(f"it has no {names.split('|')[0]}")
        times, several, other = default.partition("*")
        return int(times) * get(other) if several else json.loads(default)

    for name, value in table.constant.items():
        if (its := _at(about, name)) not in (None, value):
            raise ValueError(f"{name} = {its!r} cannot be expressed, only {value!r}")
    found = dict(table.fixed)
    for ours, setting in settings(table).items():
        its = [get(names, default) for names, default in setting.names.items()]
        told = " and ".join(f"{name} = {value!r}" for name, value in zip(setting.names, its, strict=True))
        said = [own for theirs, own in setting.values if theirs == its]
        if setting.values and not said:
            known = dict.fromkeys(",".join(map(str, theirs)) for theirs, _ in setting.values)
            raise ValueError(f"{told} cannot be expressed, only {', '.join(known)}")
        if not setting.values and any(other != its[0] for other in its):
            raise ValueError(f"{told} differ, which regard cannot express")
        found[ours] = said[0] if said else its[0]
    return found


def _load(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS
    if not path.is_file():
        others = [file.name for file in sorted(directory.glob("*.bin")) + sorted(directory.glob("*.index.json"))]
        found = f" but {others[0]}, which regard does not open" if others else ""
        raise ValueError(
            f"{directory} has no {WEIGHTS}{found}: load it with transformers in a place you trust, and call "
            f"save_pretrained, which writes one {WEIGHTS}"
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from error


def _ours(path: Path, table: Foreign, tensors: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """The tensors by our names."""
    empty, state = blank(config).state_dict(), {}
    for pair in pairs(table.tensors, empty):
        if "spare" in pair.words:
            continue
        names = next((names for names in pair.theirs if all(name in tensors for name in names)), None)
        if names is None:
            if "optional" in pair.words:
                state[pair.ours] = torch.zeros(empty[pair.ours].shape)
                continue
            missing = next(name for name in pair.theirs[0] if name not in tensors)
            raise ValueError(f"{path} has no tensor {missing!r}")
        parts = [tensors[name].float() for name in names]
        for name, part, expected in zip(names, parts, to_theirs(pair, empty[pair.ours], config), strict=True):
            if part.shape != expected.shape:
                raise ValueError(
                    f"{path} does not fit its {CONFIG}: {name!r} has the shape {tuple(part.shape)}, not "
                    f"{tuple(expected.shape)}"
                )
        state[pair.ours] = _permuted(pair.ours, to_ours(pair, parts), table, config, back=True)
    return state
