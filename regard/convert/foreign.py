"""To and from Hugging Face: one engine for every table of `tables`, in both directions.

Their sinusoids come as [sin | cos], ours alternate: between the two lies a permutation of the residual stream, which
the weights absorb, so a model stays exact and without a limit of length.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.convert import tokenizers
from regard.convert.hub import CONFIG, WEIGHTS, load, told_by
from regard.convert.pooling import MODULES, read_pooling, write_pooling
from regard.convert.sights import read_sight, write_sight
from regard.convert.source import PAPERS, Source, same_heads
from regard.convert.tables import TABLES, Foreign, Top
from regard.convert.tables.table import Counterpart, at, pairs, said, settings, told
from regard.convert.whisper import ENGLISH
from regard.core.generation import DecoderOnly, EncoderDecoder
from regard.core.layers import GATES
from regard.core.outputs import HeadConfig
from regard.core.positions import sinusoid
from regard.data.pictures import Sight
from regard.data.recordings import SPELLING
from regard.data.tokenizers import Tokenizer
from regard.files import read_whole, write_whole
from regard.models.family import FAMILIES, blank, build, configured, family
from regard.models.storage import TEMPLATE

GENERATION = "generation_config.json"
POSITIONS = 1024  # that transformers tabulates of the sinusoids
NEVER = -1e4  # the logit of a token that must not be written; finite, so that a mean of logits still is
TASKS = {"classes": "classify", "tags": "tag", "spans": "answer", "vector": "embed"}  # of a head
SEEING = {"pixels": "recognise", "pairs": "match", "graph": "graph"}  # of what a model reads
SIZED = ("classes", "tags")  # heads that have labels, and
MOST = 2**20  # of them
PROBLEMS = {"one": "single_label_classification", "several": "multi_label_classification", "number": "regression"}
ALIKE = {f"cross_{name}": PAPERS[f"cross_{name}"] for name in ("score", "normaliser")}
TRAINING = {"dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth", "backend"}  # of no matter there
FREE = {"bias", "output_bias", "max_length", "pad", "source_vocabulary"}  # unless a table fixes it
FOLLOWS = re.compile(r"(position_ids|inv_freq|attn\.(masked_)?bias|embed_positions\.weight)$")  # of config.json


def lines(table: Foreign, top: Top, config: Any, names: Iterable[str]) -> list[Counterpart]:
    """Which tensors of ours are which of theirs."""
    other, known = "plain" if config.feed_forward in GATES else "gated", set(names)
    below = table.tensors.replace(table.base, top.base) if top.base else table.tensors
    found = (pair for pair in pairs(below + top.tensors, known) if other not in pair.words)
    return [pair for pair in found if pair.ours in known or "ours" not in pair.words]


WORDS: dict[str, tuple[Callable[[Tensor, str], Tensor], Callable[[Tensor, str], Tensor]]] = {  # there, and back
    "transposed": (lambda x, _: x.transpose(0, -1), lambda x, _: x.transpose(0, -1)),
    "offset": (lambda x, n: torch.cat([x.new_zeros(int(n), *x.shape[1:]), x]), lambda x, n: x[int(n) :]),
    "row": (lambda x, _: x[None], lambda x, _: x[0]),
    "flat": (lambda x, _: x[0], lambda x, _: x[None]),
    "folded": (lambda x, n: x.unflatten(1, (int(n), -1)), lambda x, _: x.flatten(1, 2)),
}


def to_theirs(pair: Counterpart, x: Tensor, config: Any) -> list[Tensor]:
    """A tensor of ours in theirs: of queries, keys and values each has its share of the heads, of others the same."""
    kv, several = config.kv_heads or config.heads, len(pair.theirs[0])
    shares = [config.heads, kv, kv] if several == 3 and "even" not in pair.words else [1] * several
    parts = [*x.split([len(x) * share // sum(shares) for share in shares])]
    for word, (there, _) in WORDS.items():
        if word in pair.words:
            parts = [there(part, str(getattr(config, pair.words[word], pair.words[word]))) for part in parts]
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
    describe(source, directory)
    save_file({name: x.clone() for name, x in tensors(source)}, directory / WEIGHTS, {"format": "pt"})


def their_config(source: Source) -> tuple[Foreign, Top, dict[str, Any]]:
    """The class of theirs that a model is, what of it is on top, and the config of it."""
    c, head = source.config, source.head
    table, top = _table(source)
    about: dict[str, Any] = {"model_type": table.name, "architectures": [top.name], "dtype": "float32"}
    width, own = c.d_model // c.heads, asdict(c)
    own |= {"kv_heads": c.kv_heads or c.heads, "d_k": c.d_k or width, "d_v": c.d_v or width}
    for key, its in chain(said(top.settings, asdict(head)), said(table.settings, own), table.constant.items()):
        if (was := at(about, key)) not in (None, its) and "drop" not in key:
            raise ValueError(f"Hugging Face has one {key}, and not both {was!r} and {its!r}")
        _put(about, key, its)
    if table.words:
        marks = source.tokenizer.marks
        about |= {f"{name}_token_id": getattr(marks, name) for name in ("pad", "bos", "eos")}
        for name, theirs in table.marks.items():
            _put(about, theirs.rstrip("?"), getattr(marks, name))
    about |= {"forced_bos_token_id": None, "forced_eos_token_id": None} if _writes(source) else {}
    about |= {"max_position_embeddings": POSITIONS} if table.permuted else {}
    if (kind := source.task.get("kind")) in PROBLEMS:
        about["problem_type"] = PROBLEMS[str(kind)]
    if head.kind in SIZED:
        names = source.task.get("labels") or [f"LABEL_{i}" for i in range(head.size)]
        about |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    return table, top, about


def _writes(source: Source) -> bool:
    return source.head.kind == "tokens" and isinstance(source.model, DecoderOnly | EncoderDecoder)


def describe(source: Source, directory: Path) -> None:
    """Write all that a directory of theirs has but the weights."""
    c, head, (table, _, about) = source.config, source.head, their_config(source)
    write_whole(directory / CONFIG, json.dumps(about, indent=2) + "\n")
    if _writes(source):
        ids = {key: x for key, x in about.items() if key.endswith("_token_id")}
        longest = min(c.longest or POSITIONS, 512)
        write_whole(directory / GENERATION, json.dumps(ids | {"max_length": longest}, indent=2) + "\n")
    if table.sees:
        seen = {"size": c.size, "channels": c.channels, "frames": getattr(c, "frames", 0)}
        write_sight(Sight(**source.task.get("sight", seen)), directory)
    if not table.words:
        return
    if head.kind == "vector" and head.hidden is None and not table.sees:
        write_pooling(head, c.d_model, directory)
    several = (getattr(c, "segments", None) or 1) > 1
    tokenizers.write(source.tokenizer, directory, _around(table, head), segments=several)
    if source.template is not None:
        write_whole(directory / TEMPLATE, source.template)
    own = getattr(source.model, "directory", None)  # of a model that lies in none there is no such file
    if own is not None and (own / SPELLING).is_file():
        write_whole(directory / SPELLING, read_whole(own / SPELLING))


def _table(source: Source) -> tuple[Foreign, Top]:
    """The class of theirs that a model is, and what of it is on top."""
    c, name = source.config, next(name for name in FAMILIES if family(name).model is type(source.model))
    nearest: list[str] = []
    for table in (table for table in TABLES.values() if table.family == name and table.out):
        known = {each.name: (each.default,) for each in fields(c)} | ALIKE | same_heads(c)
        known |= {setting: (value,) for setting, value in table.fixed.items()}
        open_ = settings(table.settings).keys() | TRAINING | (FREE - table.fixed.keys())
        wrong = [
            f"{setting} = {value!r} (in {table.name} it is {values[-1]!r})"
            for setting, values in known.items()
            if setting not in open_ and (value := getattr(c, setting, None)) not in values
        ]
        top = next((top for top in table.tops if _fits(top, source.head)), None)
        if top is not None and not wrong:
            return table, top
        wrong += [f"head = {asdict(source.head)} (no class of {table.name} has it)"] if top is None else []
        nearest = min(nearest or wrong, wrong, key=len)
    if not nearest:
        raise ValueError(f"a {type(source.model).__name__} model: no class of Hugging Face's is one")
    raise ValueError(f"Hugging Face has no model with {' and '.join(nearest)}")


def _fits(top: Top, head: HeadConfig) -> bool:
    """Whether a head is what a class of theirs has on top: dropout is for training, files beside say how to pool."""
    open_ = settings(top.settings).keys() | {"dropout", "size"}
    open_ |= {"pool", "normalise"} if top.fixed.get("kind") == "vector" and not top.tensors else set()
    return all(
        value == top.fixed.get(name, getattr(HeadConfig, name)) or name in open_ for name, value in vars(head).items()
    )


def _put(about: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    if last.isdecimal():  # of a list
        listed = about.setdefault(path[0], [])
        listed += [None] * (int(last) + 1 - len(listed))
        listed[int(last)] = value
    elif not path or value is not None:  # an object of theirs has no more than it needs
        reduce(lambda inner, name: inner.setdefault(name, {}), path, about)[last] = value


def tensors(source: Source) -> Iterator[tuple[str, Tensor]]:
    """The tensors by their names, one after the other; of tied ones only the first."""
    table, top, about = their_config(source)
    c, ours, seen = source.config, source.tensors, set[str]()
    rows, base = lines(table, top, c, ours), table.base if source.head.kind == "vector" else ""
    known = settings(table.settings)
    tied = at(about, known["tie"].names[0].keys[0] if "tie" in known else "tie_word_embeddings")
    for pair in rows:
        own = ours.get(pair.ours)
        if own is None:  # a bias that we do without
            own = torch.zeros(len(ours[pair.ours.replace("bias", "weight")]))
        several = tied and len(pair.theirs) > 1
        same = [p.theirs for p in rows if several and p.ours in ours and ours[p.ours].data_ptr() == own.data_ptr()]
        names = next(names for names in pair.theirs if all(names in others for others in same))
        for name, part in zip(names, to_theirs(pair, _permuted(pair.ours, own, table, c, back=False), c), strict=True):
            if name and name not in seen:
                seen.add(name)
                yield name.removeprefix(base), part.contiguous()
    if table.permuted:
        positions = sinusoid(torch.arange(POSITIONS), c.d_model).float().index_select(1, _order(c.d_model))
        for stack in ("encoder", "decoder"):
            yield f"model.{stack}.embed_positions.weight", positions


# In


class Imported(NamedTuple):
    """A model of theirs."""

    model: nn.Module
    tokenizer: Tokenizer | None  # of a model that has words
    task: dict[str, Any]  # what it is for
    left: list[str]  # what is not carried over, in words
    use: dict[str, Any] = {}  # noqa: RUF012  # how it is used, beyond what files of theirs say


def read(directory: Path, tensors: dict[str, Tensor] | None = None) -> Imported:
    """The model and the tokenizer of a directory of Hugging Face's; its tensors, if they were read already."""
    if not told_by(directory, CONFIG):
        raise ValueError(f"{directory} is not a directory of a Hugging Face model: it has no {CONFIG}")
    about, path = about_model(directory), directory / CONFIG
    known = [name for name, table in TABLES.items() if table.family in FAMILIES]
    if (name := about.get("model_type")) not in known:
        raise ValueError(f"{path}: model_type = {name!r} cannot be imported, only {', '.join(known)}")
    table = TABLES[str(name)]
    content = tokenizers.read(directory, table) if table.words else None
    found = _Tensors(load(directory) if tensors is None else tensors, table.base)
    biased = {"output_bias": True} if "output.bias" in table.tensors else {}
    try:
        vector = read_pooling(directory)
        top = _top(table, about, found, vector)
        given = top.fixed | told(settings(top.settings), about) | (vector or {})
        names = labels(about) if given.get("kind") in SIZED else []
        head = configured(HeadConfig, given | ({"size": len(names)} if names else {}))
        tied = found.tied(table.tensors + top.tensors)
        c = configured(family(table.family).config, _config(table, about, tied) | biased)
        for layers in ("layers", "encoder_layers", "decoder_layers"):  # before anything of that size is built
            if (count := getattr(c, layers, 0)) > len(found.all):
                raise ValueError(f"{layers} = {count}, but {WEIGHTS} has {len(found.all)} tensors")
        tokenizer = content and tokenizers.kept(directory, content, about, table, _around(table, head))
        sight = read_sight(directory, c.size, c.channels, getattr(c, "frames", 0)) if table.sees else None
        never = about.get("bad_words_ids") or []
        if not all(isinstance(row, list) for row in never):
            raise ValueError(f"bad_words_ids = {never}: each is a list of ids")
        if tokenizer is not None and tokenizer.marks.pad is not None and hasattr(c, "pad"):
            c = c.but(pad=tokenizer.marks.pad)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}" if str(directory) not in str(error) else str(error)) from error
    state = _ours(directory / WEIGHTS, table, top, found, blank(c, head))
    if biased:
        state["output.bias"][[row[0] for row in never if len(row) == 1 and row[0] in range(c.vocabulary)]] = NEVER
        if not state["output.bias"].any():
            del state["output.bias"]
            c = c.but(output_bias=False)
    model = build(c, head)
    model.load_state_dict(state)
    task = _task(model, head, about, table.task) | ({"labels": names} if names else {})
    if sight is not None:
        task |= {"sight": sight}
    if "atoms" in about:  # of a model that reads molecules
        task |= {"atoms": about["atoms"]}
    return Imported(model.eval(), tokenizer, task, found.left() + _ends(about, tokenizer))


def _around(table: Foreign, head: HeadConfig) -> str:
    """What stands around a text."""
    return table.around if head.kind == "tokens" else "frame"


def _task(model: nn.Module, head: HeadConfig, about: Mapping[str, Any], own: str) -> dict[str, Any]:
    """What a model is for. Texts are read as far as it can, not as far as those of a training of ours."""
    if own:
        several = about.get("is_multilingual", about["vocab_size"] != ENGLISH)
        return {"name": own, "alignment": about.get("alignment_heads"), "multilingual": several}
    if head.kind == "tokens":
        reads = getattr(model, "reads", "tokens")
        writes = {
            DecoderOnly: "look" if reads == "both" else "generate",
            EncoderDecoder: "caption" if reads == "pixels" else "translate",
        }
        return {"name": next((name for kind, name in writes.items() if isinstance(model, kind)), "mask")}
    said: dict[str, Any] = {"name": TASKS[head.kind], "longest": about.get("max_seq_length")}
    if (reads := getattr(model, "reads", "tokens")) in SEEING:
        said = {"name": SEEING[reads]}
    if head.kind == "classes":
        kinds = {theirs: ours for ours, theirs in PROBLEMS.items()}
        said["kind"] = kinds.get(str(about.get("problem_type")), "number" if head.size == 1 else "one")
    return said


def about_model(directory: Path) -> dict[str, Any]:
    """What a directory says of its model, and of how to generate with it."""
    more = told_by(directory, "sentence_bert_config.json") | told_by(directory, GENERATION)
    return told_by(directory, CONFIG) | {key: value for key, value in more.items() if value is not None}


def labels(about: Mapping[str, Any]) -> list[str]:
    """The names of the classes or tags of a model, in their order; they have two where nothing is said.

    >>> labels({"id2label": {"1": "good", "0": "bad"}}), labels({})
    (['bad', 'good'], ['LABEL_0', 'LABEL_1'])
    """
    named = about.get("id2label")
    count = about.get("num_labels", 2 if named is None else len(named))  # which counts where the two differ
    if not isinstance(count, int) or not 0 < count <= MOST:
        raise ValueError(f"num_labels = {count!r}: it is a whole number from 1 to {MOST:,}")
    named = {str(i): f"LABEL_{i}" for i in range(count)} if named is None or len(named) != count else named
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(len(named)))):
        raise ValueError(f"id2label = {named!r}: it names the labels 0, 1, ... one by one")
    return [str(named[str(i)]) for i in range(len(named))]


def _ends(about: Mapping[str, Any], tokenizer: Tokenizer | None) -> list[str]:
    ends = about.get("eos_token_id")
    if tokenizer is None:
        return []
    others = [i for i in ends if i != tokenizer.marks.eos] if isinstance(ends, list) else []
    return [f"eos_token_id {others}: of several ends one is known, {tokenizer.marks.eos} (--stop)"] if others else []


def _top(table: Foreign, about: Mapping[str, Any], tensors: "_Tensors", vector: dict[str, Any] | None) -> Top:
    """What is on top of a model: what its class has, or what files beside it say."""
    if vector is not None:
        some = [top for top in table.tops if top.fixed.get("kind") == "vector" and not top.tensors]
        known = f"{MODULES} is not for a model of the type {table.name}"
    else:
        said = about.get("architectures") or [top.name for top in table.tops]
        some = [top for top in table.tops if top.name in said]
        known = (
            f"architectures = {said} cannot be imported, only {', '.join(dict.fromkeys(t.name for t in table.tops))}"
        )
    if not some:
        raise ValueError(known)
    there = (top for top in some if all(map(tensors.has, pairs(top.tensors, ()))))
    return next(there, some[-1])


def _config(table: Foreign, about: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Our settings, as their file has them; and as the tensors are, if not `tied`."""
    for name, value in table.constant.items():
        if (its := at(about, name)) not in (None, value):
            raise ValueError(f"{name} = {its!r} cannot be expressed, only {value!r}")
    rules = settings(table.settings)
    found = table.fixed | told(rules, about)
    if tied or found.get("tie") in ("none", "inputs"):
        return found
    if "tie" not in rules:
        raise ValueError("its output layer is not the matrix of its embeddings, which regard cannot express")
    return found | told({"tie": rules["tie"]}, about | {"tie_word_embeddings": False})


class _Tensors:
    """Those of a file, and which of them were looked for."""

    def __init__(self, tensors: dict[str, Tensor], base: str) -> None:
        self.all, self.base, self.seen = tensors, base, set[str]()

    def has(self, pair: Counterpart) -> bool:
        """Whether a tensor is there, under one of their names or by ours."""
        return pair.ours in self.all or any(map(self.find, pair.theirs))

    def find(self, names: list[str]) -> list[Tensor] | None:
        """Those with these names, or the same without what all begin with."""
        found = [name if name in self.all else name.removeprefix(self.base) for name in names]
        if not all(name in self.all for name in filter(None, found)):
            return None
        self.seen.update(found)
        like = self.all[next(filter(None, found))]
        return [self.all[name] if name else torch.zeros_like(like) for name in found]

    def tied(self, tensors: str) -> bool:
        """Whether what may be one matrix, the output layer and the embeddings, is one."""
        outputs = [pair for pair in pairs(tensors, ()) if pair.ours in ("output.weight", "output.tokens.weight")]
        for pair in outputs:
            first, *others = [found[0] for names in pair.theirs if (found := self.find(names))] or [torch.empty(0)]
            if not all(torch.equal(first, other) for other in others):
                return False
        return True

    def left(self) -> list[str]:
        """What nothing has looked for, in words; what follows from their config is none of it."""
        names = sorted(name for name in self.all.keys() - self.seen if not FOLLOWS.search(name))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return [f"the tensor {names[0]}{more}, which nothing here reads"] if names else []


def _ours(path: Path, table: Foreign, top: Top, tensors: _Tensors, empty: nn.Module) -> dict[str, Tensor]:
    """The tensors by our names."""
    state, shapes, config = {}, empty.state_dict(), empty.config
    for pair in lines(table, top, config, shapes):
        found = [parts for names in pair.theirs if (parts := tensors.find(names))]
        if (own := tensors.find([pair.ours])) and own[0].shape == shapes[pair.ours].shape:  # out of a graph of ours
            state[pair.ours] = own[0]
            continue
        if "spare" in pair.words:
            continue
        if not found:
            if "optional" in pair.words:
                state[pair.ours] = torch.zeros(shapes[pair.ours].shape)
                continue
            missing = next(name for name in pair.theirs[0] if name and not tensors.find([name]))
            raise ValueError(f"{path} has no tensor {missing!r}")
        expected = to_theirs(pair, shapes[pair.ours], config)
        for name, part, shape in zip(pair.theirs[0], found[0], expected, strict=True):
            if part.shape != shape.shape:
                raise ValueError(
                    f"{path} does not fit its {CONFIG}: {name!r} has the shape {tuple(part.shape)}, not "
                    f"{tuple(shape.shape)}"
                )
        whole = to_ours(pair, [part.float() for part in found[0]])
        state[pair.ours] = _permuted(pair.ours, whole, table, config, back=True)
    return state
