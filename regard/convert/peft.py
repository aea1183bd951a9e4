"""What was added to a model, as peft has it: adapter_config.json and adapter_model.safetensors, in and out.

LoRA, (IA)³, prompt and prefix tuning, of models that a table knows: their names of products are those of the tables. A
product of theirs may be three of ours, as in GPT-2: A of each is then theirs, and B its share of the rows.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.adaptation.change import TAUGHT
from regard.adaptation.ia3 import IA3, INSIDE
from regard.adaptation.lora import Lora
from regard.adaptation.products import ENDS, ROLES, Product, ends, products
from regard.adaptation.prompts import KeysValues, Prefix, SoftPrompt
from regard.checks import choose
from regard.convert import foreign
from regard.convert.source import TOKENIZER, Source
from regard.core.added import called
from regard.core.attention import MultiHeadAttention
from regard.core.generation import DecoderOnly, EncoderDecoder
from regard.files import read_whole, write_whole
from regard.models import storage

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BEFORE = "base_model.model."  # a name; of what is put before a text, "base_model."
HEADS = {"classifier", "score", "qa_outputs"}  # which peft always saves along
VECTORS = "prompt_embeddings"
LOW, LOOKED_UP = ("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B")  # ends of names
# Of their settings, what ours always are.
NEUTRAL: dict[str, Any] = {"bias": "none", "rank_pattern": {}, "alpha_pattern": {}}
NEUTRAL |= dict.fromkeys(("use_dora", "use_qalora", "lora_bias"), False)


class Aimed(NamedTuple):
    """A product of theirs, and what of ours it is."""

    theirs: str
    path: str  # of our product
    roles: tuple[str, ...]


def parts(source: Source) -> Iterator[Aimed]:
    """All products of a model inside its layers, by their names."""
    table, top, _ = foreign.their_config(source)
    if table.permuted:
        raise ValueError(f"{table.name} has its numbers in another order there: peft's are not carried over")
    ours = _ours(source)
    base = table.base if source.head.kind == "vector" else ""
    for pair in foreign.lines(table, top, source.config, source.tensors):
        if (each := ours.get(path := pair.ours.removesuffix(".weight"))) is None or pair.ours == path:
            continue
        roles, names = tuple(each.rows), [name.removesuffix(".weight") for name in pair.theirs[0]]
        shared = [roles] if len(names) == 1 else [(role,) for role in roles]
        for name, own in zip(names, shared, strict=True):
            yield Aimed(name.removeprefix(base), path, own)


def _ours(source: Source) -> dict[str, Product]:
    """Our products, and the two ends of a model, by path; of an encoder-decoder, whose words they share, none."""
    both = () if isinstance(source.model, EncoderDecoder) else ends(source.model)
    return {each.path: each for each in (*products(source.model), *both)}


# In


def is_peft(directory: str | Path) -> bool:
    """Whether a directory is one of peft's."""
    return (Path(directory) / CONFIG).is_file()


def read(directory: Path, base: Path, made: Path, place: Path) -> None:
    """Write what a directory of peft's adds to a model of ours as a model directory, which will be at a place."""
    path = directory / CONFIG
    try:
        about = dict(json.loads(read_whole(path, storage.LARGEST)))
        tensors = {_bare(name): x.float() for name, x in load_file(directory / WEIGHTS).items()}
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{directory} is not a whole directory of peft's: {error}") from None
    source = Source.load(base)
    try:
        kind = choose("peft_type", str(about.get("peft_type")), READERS)
        for name, plain in NEUTRAL.items():
            if (value := about.get(name)) not in (None, plain):
                raise ValueError(f"{name} = {value!r} cannot be expressed")
        change, values = kind(about, tensors, source)
        head = _head(about, tensors, source)
        if tensors:
            raise ValueError(f"{WEIGHTS} has a tensor {min(tensors)!r}, which nothing here reads")
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ValueError(f"{path}: {error}") from None
    model = storage.begin(base, source.config, source.head, [change], anew=bool(head))
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, p in own.items():
            if name in model.base.own and (".lora." in name or not name.startswith("output.")):  # type: ignore[union-attr, operator]
                p.fill_(1.0 if ".ia3." in name else 0.0)  # what their settings do not name
        for name, x in (values | head).items():
            if own[name].shape != x.shape:
                raise ValueError(f"{directory} is of another model than {base}: {name} is {tuple(x.shape)} there")
            own[name].copy_(x)
    storage.save(model, made, storage.purpose(base), place=place)
    for name, places in {TOKENIZER: [base], storage.TEMPLATE: [directory, base]}.items():
        if there := next((place / name for place in places if (place / name).is_file()), None):
            write_whole(made / name, read_whole(there))


def _bare(name: str) -> str:
    return name.removeprefix(BEFORE) if name.startswith(BEFORE) else name.removeprefix("base_model.")


Read = tuple[dict[str, Any], dict[str, Tensor]]  # a change, and what it has been taught by our names


def _within(name: str, modules: Sequence[str] | None) -> bool:
    """Whether a tensor or module of theirs is one of these modules, or inside one."""
    return any(f".{module}." in f".{name}." for module in modules or ())


def _targeted(about: Mapping[str, Any], name: str, roles: Sequence[str]) -> bool:
    """Whether peft adds to the product of this name, by its settings: a list has ends of names, a text is a pattern."""

    def said(given: Any) -> bool:
        if isinstance(given, str):
            return re.fullmatch(given, name) is not None
        return any(f".{name}".endswith(f".{end}") for end in given or ())

    modules, layers, before = (about.get(key) for key in ("target_modules", "layers_to_transform", "layers_pattern"))
    if not modules:
        raise ValueError("it has no target_modules, which say what was added to")
    if said(about.get("exclude_modules")) or _within(name, about.get("modules_to_save")):
        return False
    if isinstance(modules, str) and modules.lower() == "all-linear":
        return not set(ENDS) & set(roles)
    if isinstance(modules, str) or name in modules or layers in (None, []):
        return said(modules)
    among = [before] if isinstance(before, str) else before or [r"[^.]*"]
    at = re.match(rf"(?:.*?\.)?(?:{'|'.join(among)})\.(\d+)\.", name)
    return at is not None and int(at[1]) in (layers if isinstance(layers, list) else [layers]) and said(modules)


def _missing(name: str, setting: str) -> ValueError:
    return ValueError(f"{WEIGHTS} has no tensor {name!r}, though {setting} says that it was taught")


def _taken(
    about: Mapping[str, Any], tensors: dict[str, Tensor], source: Source, ends_of: Callable[[Aimed], Sequence[str]]
) -> Iterator[tuple[Aimed, list[Tensor]]]:
    """Of each product that their settings name, its tensors with these ends, which are taken out; all must be there."""
    base = foreign.their_config(source)[0].base
    for part in parts(source):
        names, ends = (part.theirs, part.theirs.removeprefix(base), base + part.theirs), ends_of(part)
        there = [name for name in names if any(f"{name}.{end}" in tensors for end in ends)]
        meant = [name for name in names if _targeted(about, name, part.roles)]
        if there and not meant:
            raise ValueError(f"{WEIGHTS} has tensors of {there[0]!r}, which target_modules and its like do not name")
        if meant and ends:
            for end in ends:
                if f"{(there or meant)[0]}.{end}" not in tensors:
                    raise _missing(f"{(there or meant)[0]}.{end}", "target_modules")
            yield part, [tensors.pop(f"{there[0]}.{end}") for end in ends]


def _dealt(part: Aimed, x: Tensor, widths: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """The share of each role in what was added to a product."""
    if len(x) != sum(widths):
        raise ValueError(f"{part.theirs} has {sum(widths)} numbers in the base, and {len(x)} in {WEIGHTS}")
    return zip(part.roles, x.split(list(widths)), strict=True)


def _lora(about: Mapping[str, Any], tensors: dict[str, Tensor], source: Source) -> Read:
    found, roles, ours = dict[str, Tensor](), set[str](), _ours(source)
    for name in [name for name in tensors if name.endswith(".base_layer.weight")]:
        del tensors[name]  # what they have added to, which they may save along

    def ends_of(part: Aimed) -> Sequence[str]:
        return LOOKED_UP if part.roles == ("embedding",) else LOW

    for part, (a, b) in _taken(about, tensors, source, ends_of):
        roles |= set(part.roles)
        rows = ours[part.path].rows
        for role, own in _dealt(part, b, [rows[role].stop - rows[role].start for role in part.roles]):
            found |= {f"{part.path}.lora.a.{role}": a, f"{part.path}.lora.b.{role}": own}
    settings = {"rank": about["r"], "alpha": float(about["lora_alpha"]), "dropout": float(about.get("lora_dropout", 0))}
    settings |= {"where": [r for r in (*ROLES, *ENDS) if r in roles], "stabilised": bool(about.get("use_rslora"))}
    return {"lora": settings}, found


def _ia3(about: Mapping[str, Any], tensors: dict[str, Tensor], source: Source) -> Read:
    found, roles, ours = dict[str, Tensor](), set[str](), _ours(source)
    for part, (scales,) in _taken(about, tensors, source, lambda part: () if {*part.roles} & {*ENDS} else ("ia3_l",)):
        inside = scales.shape[0] == 1 and scales.shape[1] > 1
        if inside != bool(INSIDE & set(part.roles)):
            raise ValueError(f"{part.theirs}: of it regard scales what it {'makes' if inside else 'reads'}")
        roles |= set(part.roles)
        rows = ours[part.path].rows
        widths = [scales.numel()] if inside else [rows[role].stop - rows[role].start for role in part.roles]
        for role, own in _dealt(part, scales.flatten(), widths):
            found[f"{part.path}.ia3.scale.{role}"] = own
    return {"ia3": {"where": [role for role in ROLES if role in roles]}}, found


def _vectors(tensors: dict[str, Tensor]) -> Tensor:
    if VECTORS not in tensors:
        raise _missing(VECTORS, "peft_type")
    return tensors.pop(VECTORS)


def _prompt(about: Mapping[str, Any], tensors: dict[str, Tensor], source: Source) -> Read:
    stem = "source_embedding" if isinstance(source.model, EncoderDecoder) else "stem"
    n = about["num_virtual_tokens"]
    return {"prompt": {"length": n}}, {f"{stem}.prompt.vectors": _vectors(tensors)[:n]}


def _prefix(about: Mapping[str, Any], tensors: dict[str, Tensor], source: Source) -> Read:
    found, n, whole = dict[str, Tensor](), about["num_virtual_tokens"], _vectors(tensors)
    layers = list(_prefixed(source))
    for i, (path, attention) in enumerate(layers):
        if whole.shape != (n, shape := 2 * len(layers) * attention.kv_heads * attention.d_k):
            raise ValueError(f"{VECTORS} is {tuple(whole.shape)}, and of the base it would be {(n, shape)}")
        each = whole.view(n, 2 * len(layers), attention.kv_heads, -1)
        for j, name in enumerate(("keys", "values")):
            found[f"{path}.prefix.{name}"] = each[:, _entry(source, i, len(layers)) + j].transpose(0, 1)
    return {"prefix": {"length": n, "where": [_side(source)]}}, found


READERS = {"LORA": _lora, "IA3": _ia3, "PROMPT_TUNING": _prompt, "PREFIX_TUNING": _prefix}


def _side(source: Source) -> str:
    return "decoder" if isinstance(source.model, DecoderOnly | EncoderDecoder) else "encoder"


def _prefixed(source: Source) -> Iterator[tuple[str, MultiHeadAttention]]:
    """The attentions that a prefix of theirs is of: how those of one stack attend to themselves."""
    for path, module in source.model.named_modules():
        if isinstance(module, MultiHeadAttention) and path.startswith(_side(source)) and not module.cross:
            yield path, module


def _entry(source: Source, i: int, layers: int) -> int:
    """Where the keys of a layer stand in theirs; of an encoder-decoder all lie there twice, dealt out by four."""
    return 4 * i % (2 * layers) if isinstance(source.model, EncoderDecoder) else 2 * i


def _head(about: Mapping[str, Any], tensors: dict[str, Tensor], source: Source) -> dict[str, Tensor]:
    """The tensors of a head that they have saved along, by our names; taken out."""
    table, top, _ = foreign.their_config(source)
    found: dict[str, Tensor] = {}
    for pair in foreign.lines(table, top, source.config, source.tensors):
        for name in pair.theirs[0]:
            if name not in tensors and _within(name, about.get("modules_to_save")):
                raise _missing(name, "modules_to_save")
        if pair.ours.startswith("output.") and len(pair.theirs[0]) == 1 and pair.theirs[0][0] in tensors:
            found[pair.ours] = tensors.pop(pair.theirs[0][0])
    return found


# Out


def _their_name(source: Source) -> str:
    return foreign.their_config(source)[0].name


def write(source: Source, directory: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors into an empty directory."""
    changes = [change for change in getattr(source.model, "changes", []) if isinstance(change, TAUGHT)]
    known = {Lora: _write_lora, IA3: _write_ia3, SoftPrompt: _write_prompt, Prefix: _write_prefix}
    names = ", ".join(type(change).__name__.lower() for change in changes)
    if len(changes) != 1 or type(changes[0]) not in known:
        raise ValueError(
            f"peft has one of lora, ia3, prompt and prefix in a directory: this model has {names or 'none'}"
        )
    about, tensors = known[type(changes[0])](changes[0], source)  # type: ignore[operator]
    table, top, _ = foreign.their_config(source)
    kinds = {"classes": "SEQ_CLS", "tags": "TOKEN_CLS", "spans": "QUESTION_ANS", "vector": "FEATURE_EXTRACTION"}
    writes = {DecoderOnly: "CAUSAL_LM", EncoderDecoder: "SEQ_2_SEQ_LM"}
    writing = next((kind for of, kind in writes.items() if isinstance(source.model, of)), None)
    about |= {"task_type": kinds.get(source.head.kind, writing), "base_model_name_or_path": None}
    base, heads = source.model.base, dict[str, Tensor]()
    for pair in foreign.lines(table, top, source.config, source.tensors):
        (name, *_), headed = pair.theirs[0], source.head.kind in ("classes", "tags", "spans")
        if headed and pair.ours.startswith("output.") and ((base and base.head) or name.split(".")[0] in HEADS):
            heads[name] = source.tensors[pair.ours]
    about["modules_to_save"] = sorted({name.rpartition(".")[0] for name in heads}) or None
    write_whole(directory / CONFIG, json.dumps(about | {"inference_mode": True}, indent=2) + "\n")
    before = "base_model." if VECTORS in tensors else BEFORE
    tensors |= heads
    named = {name if name == VECTORS else before + name: x.detach().clone() for name, x in tensors.items()}
    save_file(named, directory / WEIGHTS, {"format": "pt"})
    if source.template is not None:
        write_whole(directory / storage.TEMPLATE, source.template)


def _write_lora(change: Lora, source: Source) -> Read:
    found, modules, rank = dict[str, Tensor](), {path: each.module for path, each in _ours(source).items()}, change.rank
    aimed = list(parts(source))
    for path, _ in called(source.model)[change.name]:
        if path not in {part.path for part in aimed}:
            raise ValueError(f"what was added to {path} is not carried over: leave it out of `where`")
    for part in aimed:
        added: Any = getattr(modules[part.path], change.name, None)
        roles = [role for role in part.roles if added is not None and role in added.a]
        if not roles:
            continue
        alike = all(torch.equal(added.a[role], added.a[roles[0]]) for role in roles)
        a = added.a[roles[0]] if alike else torch.cat([added.a[role] for role in roles])
        rank = max(rank, len(a))
        alone = len(part.roles) == 1
        b = a.new_zeros(len(added.b[roles[0]]) if alone else modules[part.path].out_features, len(a))
        for i, role in enumerate(roles):
            at = slice(None) if alone else added.rows[role]
            columns = slice(0, change.rank) if alike else slice(i * change.rank, (i + 1) * change.rank)
            b[at, columns] = added.b[role]
        names = LOOKED_UP if roles == ["embedding"] else LOW
        found |= {f"{part.theirs}.{name}": x for name, x in zip(names, (a, b), strict=True)}
    if any(len(x) != rank for name, x in found.items() if "A" in name.rpartition(".lora_")[2]):
        found = {name: _filled(x, rank, int("B" in name.rpartition(".lora_")[2])) for name, x in found.items()}
    wider = (rank / change.rank) ** (0.5 if change.stabilised else 1.0)  # so that alpha / rank stays the same
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": change.alpha * wider, "lora_dropout": change.dropout}
    about |= {"use_rslora": change.stabilised, "bias": "none", "fan_in_fan_out": _their_name(source) == "gpt2"}
    return about | {"target_modules": sorted({name.rpartition(".lora_")[0] for name in found})}, found


def _filled(x: Tensor, rank: int, axis: int) -> Tensor:
    """A matrix with zeros up to a rank."""
    shape = [*x.shape]
    shape[axis] = rank - shape[axis]
    return torch.cat([x, x.new_zeros(shape)], axis)


def _write_ia3(change: IA3, source: Source) -> Read:
    found, modules, inside = dict[str, Tensor](), _ours(source), list[str]()
    for part in parts(source):
        each = modules[part.path]
        added: Any = getattr(each.module, change.name, None)
        roles = [role for role in part.roles if added is not None and role in added.scale]
        if not roles:
            continue
        ones = [torch.ones(each.rows[role].stop - each.rows[role].start) for role in part.roles]
        scales = [added.scale[r] if r in roles else one for r, one in zip(part.roles, ones, strict=True)]
        found[f"{part.theirs}.ia3_l"] = torch.cat(scales)[None] if added.inside else torch.cat(scales)[:, None]
        inside += [part.theirs] * bool(added.inside)
    about = {"peft_type": "IA3", "target_modules": sorted(name.removesuffix(".ia3_l") for name in found)}
    return about | {"feedforward_modules": inside, "fan_in_fan_out": _their_name(source) == "gpt2"}, found


def _virtual(n: int, source: Source) -> dict[str, Any]:
    c = source.config
    layers = c.decoder_layers if isinstance(source.model, EncoderDecoder) else c.layers
    about = {"num_virtual_tokens": n, "token_dim": c.d_model, "num_layers": layers, "num_attention_heads": c.heads}
    return about | {"num_transformer_submodules": 1 + isinstance(source.model, EncoderDecoder)}


def _write_prompt(change: SoftPrompt, source: Source) -> Read:
    model = source.model
    stem: Any = getattr(model, "source_embedding", None) or model.stem
    about = {"peft_type": "PROMPT_TUNING", "prompt_tuning_init": "RANDOM"} | _virtual(change.length, source)
    return about | {"num_transformer_submodules": 1}, {VECTORS: stem.prompt.vectors}


def _write_prefix(change: Prefix, source: Source) -> Read:
    layers = list(_prefixed(source))
    if list(change.where) != [_side(source)] and isinstance(source.model, EncoderDecoder):
        raise ValueError("peft has a prefix in the decoder's attention to itself alone: this one is elsewhere, too")
    entries: dict[int, Tensor] = {}
    for i, (path, attention) in enumerate(layers):
        prefix = attention.prefix
        assert isinstance(prefix, KeysValues)
        for j, x in enumerate(prefix.key_value()):
            at, flat = _entry(source, i, len(layers)) + j, x.transpose(0, 1).flatten(1)  # (n, G · d)
            if at in entries and not torch.equal(entries[at], flat):
                raise ValueError(f"peft has one prefix for {path} and an earlier layer of so many: train it there")
            entries[at] = flat
    zeros = torch.zeros_like(next(iter(entries.values())))
    whole = torch.cat([entries.get(i, zeros) for i in range(2 * len(layers))], 1)
    about = {"peft_type": "PREFIX_TUNING", "prefix_projection": False} | _virtual(change.length, source)
    kv, first = layers[0][1].kv_heads, layers[0][1]
    return about | {"token_dim": kv * first.d_k, "num_attention_heads": kv}, {VECTORS: whole}
