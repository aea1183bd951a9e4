"""The model part of a model directory: `config.json`, which says what to build, and `model.safetensors`, its weights.

Nothing in them is code. A tensor that goes by several names, as tied embeddings do, is written once, under its first
name: the model that is built from the config ties the same names again. What the config knows nothing of, heads that
were pruned and products in whole numbers, is listed under `changes`; the dtype of a model is that of its tensors.

A model that was begun with another one and only adds to it has `base`, the path and the digest of that one's directory:
then its own changes are listed, and its weights are those that were added, and a head that is new.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.adaptation.change import BESIDE, WHOLE, changed, listed, plain, read
from regard.adaptation.prune import of_text
from regard.core.added import Base
from regard.core.outputs import HeadConfig
from regard.core.quantised import dequantise
from regard.files import digest, read_whole, sync, write_whole
from regard.models.family import FAMILIES, blank, build, configured, family

FORMAT = 2
CONFIG, WEIGHTS, TEMPLATE = "config.json", "model.safetensors", "chat_template.jinja"  # the last of conversations
LARGEST, PIECE = 2**20, 2**22  # bytes of a config.json; numbers that are read at a time
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # in which a model can compute


def save(
    model: nn.Module, directory: str | Path, purpose: "Purpose | None" = None, *, place: str | Path | None = None
) -> None:
    """Write a model into a directory, made if need be; the other files in it stay. Its purpose, if known, goes along.

    What only adds to another model notes the way to that from `place`, where the directory will be, if not where it is.
    Both files are on the disk before either takes its place. The same model gives the same bytes.

    >>> import tempfile
    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=50, positions="rope"))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save(model, directory)
    ...     load(directory).config == model.config
    True
    """
    directory = Path(directory)
    name = next((name for name in FAMILIES if type(model) is family(name).model), None)
    if name is None:
        raise ValueError(f"a {type(model).__name__} cannot be saved: the families are {', '.join(FAMILIES)}")
    settings: Any = model.config
    tensors = {names[0]: tensor.detach().contiguous() for names, tensor in _named(model)}
    changes = listed(model)
    head: HeadConfig = getattr(model, "head", HeadConfig())
    base: Base | None = getattr(model, "base", None)
    if base is None:
        _check("the model", tensors, _blank(settings, head, changes))
    else:
        whole = _whole(Path(base.path))
        changes = _taught(changes)[len(_taught(whole.changes)) :]
        known = _blank(settings, head, whole.changes + changes, spared=whole.anew or base.head)
        own = _own(known, whole, base.head)
        tensors = {name: tensors[name] for name in sorted(own)}
        _check("the model", tensors, known, own)
    about = {"format": FORMAT, "family": name, "regard": version("regard"), "config": asdict(settings)}
    about |= {"head": {"kind": head.kind} | {k: v for k, v in asdict(head).items() if v != getattr(HeadConfig, k)}}
    about |= {"changes": changes} if changes else {}
    if base is not None:
        path = _path_from(Path(place or directory), base.path)
        about["base"] = {"path": path, "digest": base.digest, "head": base.head}
    about |= {} if purpose is None else purpose._asdict()
    staging = directory / ".saving"
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
        staging.mkdir(parents=True)
        save_file(tensors, staging / WEIGHTS)
        (staging / CONFIG).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        (staging / WEIGHTS).chmod((staging / CONFIG).stat().st_mode)  # not for their owner alone, as safetensors has it
        for file in (WEIGHTS, CONFIG):
            sync(staging / file)
        for file in (WEIGHTS, CONFIG):
            os.replace(staging / file, directory / file)
        sync(directory)
    except SafetensorError as error:
        raise OSError(f"{directory} cannot be written: {error}") from error
    except OSError as error:  # a full disk, say, which is met in a write that knows no name
        raise OSError(error.errno, error.strerror, str(directory)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def load(
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    base: str | Path | None = None,
) -> nn.Module:
    """The model of a directory, in eval mode; its weights as they were saved, or converted to `dtype`.

    A quantised model given a `dtype` is a plain one of that dtype. What adds to another model is looked up there, or
    where that is by now: `base`. No random number is drawn.
    """
    about = _whole(Path(directory), base)
    tensors = about.tensors()
    whole = plain(about.changes) != about.changes  # numbers
    if about.base is not None and dtype is None and not whole:
        dtype = torch.float32  # in which it was taught, whatever its base is stored in
    changes = about.changes if dtype is None else plain(about.changes)
    tensors = tensors if dtype is None or not whole else dequantise(tensors)
    model = _blank(about.config, about.head, changes, spared=about.anew)
    state: dict[str, Tensor] = {}
    for names, empty in _named(model):
        tensor = tensors.pop(names[0])
        tensor = tensor.to(device, dtype if tensor.is_floating_point() else None)
        if isinstance(empty, nn.Parameter):
            tensor = nn.Parameter(tensor, empty.requires_grad)  # one object for all its names: that is the tie
        state |= dict.fromkeys(names, tensor)
    assert {name for name, _ in model.named_buffers()} <= state.keys(), "a buffer that is not stored has no value here"
    model.load_state_dict(state, assign=True)
    if about.base is not None:
        _begun(model, Base(str(about.base), about.digest, about.own, about.new))
    model.directory = Path(directory).absolute()  # type: ignore[assignment]
    return model.eval()


def beside(directory: str | Path, model: nn.Module) -> nn.Module:
    """The model of a directory that only adds to one that was loaded: the tensors of that one are both models'.

    What it adds has the other's dtype. The digest is that of what lies where the other was loaded from.
    """
    about = _whole(Path(directory), model.directory)  # type: ignore[arg-type]
    if about.before.base is not None:
        raise ValueError(f"{directory} adds to what adds to another model: make one of them, with `regard merge`")
    own, theirs = about.stored(), {names[0]: x for names, x in _named(model)}
    needed = {p: p.requires_grad for p in model.parameters()}
    like = next(p for p in needed if p.is_floating_point())
    changes = listed(model) + about.changes[len(about.before.changes) :]
    made, state = _blank(about.config, about.head, changes, spared=about.anew), dict[str, Tensor]()
    for names, _ in _named(made):
        x = nn.Parameter(own[names[0]].to(like), requires_grad=False) if names[0] in own else theirs[names[0]]
        state |= dict.fromkeys(names, x)
    made.load_state_dict(state, assign=True)
    for p, gradient in needed.items():
        p.requires_grad_(gradient)
    made.base = Base(str(about.base), about.digest, about.own, about.new)  # type: ignore[assignment]
    return made.eval()


def begin(
    directory: str | Path,
    config: Any,
    head: HeadConfig | None,
    changes: Sequence[dict[str, Any]],
    *,
    anew: bool = False,
) -> nn.Module:
    """A new model that adds to that of a directory, which stays as it is: with these changes, and a head of its own
    where it needs one, or where it is to be `anew`. Of what is new, the first values are drawn."""
    place = Path(directory).absolute()
    base, model = _whole(place), build(config, head)
    head = getattr(model, "head", HeadConfig())
    other = _shapes(config, head) != _shapes(base.config, base.head)
    new = anew or other
    model = _changed(model, base.changes, spared=new or base.anew)
    theirs = {name: x for name, x in base.tensors().items() if not (other and _of_head(name))}
    if new and not other and plain(base.changes) != base.changes:
        theirs = {**theirs, **{name: x for name, x in dequantise(theirs).items() if _of_head(name)}}
    names = {group[0]: group for group, _ in _named(model)}
    model.load_state_dict({name: x for first, x in theirs.items() for name in names.get(first, ())}, strict=False)
    model = changed(model, list(changes))
    known = _blank(config, head, base.changes + list(changes), spared=new or base.anew)
    return _begun(model, Base(str(place), base.sum(), _own(known, base, new), new))


def _begun(model: nn.Module, base: Base) -> nn.Module:
    """The model, noting with what it began and what it has for itself: that learns."""
    model.base = base  # type: ignore[assignment]
    for name, p in model.named_parameters():
        p.requires_grad_(name in base.own and p.is_floating_point())
    return model


def adopt(model: nn.Module, directory: str | Path) -> None:
    """Give a model the weights of another one with the same body; where its head is another, that stays as it is."""
    if (about := _read(Path(directory))).base is not None or _taught(about.changes):
        raise ValueError(
            f"{directory} adds to another model: add to it by `changes`, or make one of both: regard merge"
        )
    found, new = load(directory, dtype=torch.float32), set(unlike(model, directory))
    theirs = {name: tensor for name, tensor in found.state_dict().items() if name not in new}
    model.load_state_dict({name: x for name, x in theirs.items() if name in model.state_dict()}, strict=False)


def unlike(model: nn.Module, directory: str | Path) -> list[str]:
    """Tensors of a model's head, or of its family alone, that a directory is no beginning for; all else is wrong."""
    own, other = {name: x.shape for name, x in model.state_dict().items()}, shape(directory)
    theirs = {name: x.shape for name, x in other.state_dict().items()}
    wrong = [name for name in own if theirs.get(name) != own[name]]
    for name in wrong:  # on vectors of words alone, all but these is new
        new = _of_head(name) or (name not in theirs and not getattr(other.config, "layers", 1))
        if not new and (type(model) is type(other) or hasattr(other, name.partition(".")[0])):
            had = f"of shape {tuple(theirs[name])}" if name in theirs else "missing"
            raise ValueError(f"{directory} is no beginning for this model: {name!r} is {had}, not {tuple(own[name])}")
    return wrong


def use_so(directory: str | Path, **changes: Any) -> None:
    """Note in a directory that its model is used so from now on."""
    path = Path(directory) / CONFIG
    _read(Path(directory))  # refuses what is none
    about = json.loads(read_whole(path, LARGEST))
    about["use"] = {**(about.get("use") or {}), **changes}
    write_whole(path, json.dumps(about, indent=2) + "\n")


def config(directory: str | Path) -> Any:
    """The config of the model of a directory, such as a `TransformerConfig`, without its weights."""
    return _read(Path(directory)).config


def shape(directory: str | Path) -> nn.Module:
    """The model of a directory in plain numbers, and without memory for them."""
    about = _whole(Path(directory))
    return _blank(about.config, about.head, plain(about.changes))


class Adding(NamedTuple):
    """What a directory adds to."""

    digest: str
    place: Path  # where it should be
    lora: bool  # whether LoRA is all that is added


def adding(directory: str | Path) -> Adding | None:
    """What a directory says of the one that it adds to, if it does: neither is looked at."""
    if (about := _read(Path(directory))).base is None:
        return None
    place = Path(os.path.normpath(Path(directory).absolute() / about.base["path"]))
    return Adding(about.base["digest"], place, {name for change in about.changes for name in change} == {"lora"})


def summed(directory: str | Path) -> str:
    """What a directory is known by to those that add to it."""
    return _whole(Path(directory)).sum()


def base_of(directory: str | Path) -> tuple[Path, int] | None:
    """The model that one of a directory adds to, and how many numbers it adds; None if it stands alone."""
    about = _whole(Path(directory))
    if about.base is None:
        return None
    known = {names[0]: x for names, x in _named(_blank(about.config, about.head, about.changes, spared=about.anew))}
    return about.base, sum(known[name].numel() for name in about.own)


class Purpose(NamedTuple):
    """What a model is for, and how it is used: all that a program must know of it beside its weights and tokens."""

    task: dict[str, Any]  # `name`, and what it is of that
    use: dict[str, Any]  # the settings that are in force unless somebody says otherwise


def purpose(directory: str | Path) -> Purpose | None:
    """What the model of a directory is for; None if nothing says so, as in a directory of an older regard."""
    return _read(Path(directory)).purpose


class _About(NamedTuple):
    config: Any
    head: HeadConfig
    changes: list[dict[str, Any]]
    purpose: Purpose | None
    base: dict[str, Any] | None
    said: str  # what a digest is of: as it is written, which a younger regard may read with more settings


class _Whole(NamedTuple):
    """What a directory says, with all that it has from the one it adds to."""

    directory: Path
    said: str
    config: Any
    head: HeadConfig
    changes: list[dict[str, Any]]  # the base's, then its own
    anew: bool = False  # whether its head is not that of the model at the root, which may be in whole numbers
    base: Path | None = None
    digest: str = ""  # the base's
    own: frozenset[str] = frozenset()  # tensors that it adds
    new: bool = False  # a head among them
    before: Any = None  # the base's _Whole

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by their first names."""
        tensors = self.stored()
        if self.before is None:
            return tensors
        theirs: dict[str, Tensor] = self.before.tensors()
        return {name: x for name, x in theirs.items() if not (self.new and _of_head(name))} | tensors

    def stored(self) -> dict[str, Tensor]:
        """Those that are in the directory itself."""
        if not (path := self.directory / WEIGHTS).is_file():
            raise ValueError(f"{self.directory} is not a whole model directory: it has no {WEIGHTS}")
        try:
            tensors = {name: _copied(path, name) for name in [*safe_open(path, "pt").keys()]}
        except (SafetensorError, AttributeError, TypeError) as error:  # the last two of a dtype that PyTorch has not
            raise ValueError(f"{path} is damaged ({error}): copy it again, or train again") from error
        layers = sum(value for name, value in vars(self.config).items() if name.endswith("layers"))
        if layers > len(tensors) and self.base is None:  # before they are built
            raise ValueError(f"{path} does not fit its config: it has {len(tensors)} tensors for {layers} layers")
        model = _blank(self.config, self.head, self.changes, spared=self.anew)
        _check(str(path), tensors, model, self.own if self.base else None)
        for name, x in tensors.items():
            if x.is_floating_point() and x.numel() and not all(end.isfinite() for end in x.aminmax()):
                raise ValueError(
                    f"{path} is damaged, or its training diverged: {name!r} has values that are no numbers (NaN or "
                    f"infinite): copy it again, or train again"
                )
        return tensors

    def sum(self) -> str:
        """What the weights and what they make are known by."""
        stat = (path := self.directory / WEIGHTS).stat()
        known = _digest(path, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return hashlib.sha256((self.said + known).encode()).hexdigest()


def _copied(path: Path, name: str) -> Tensor:
    """A tensor of a file: a copy, as PyTorch's last bits depend on its place; only a piece is in memory twice."""
    x = torch.empty_like(safe_open(path, "pt").get_tensor(name))
    for i, part in enumerate(x.flatten().split(PIECE)):
        part.copy_(safe_open(path, "pt").get_tensor(name).flatten().split(PIECE)[i])
    return x


@lru_cache(maxsize=16)
def _digest(path: Path, stamp: tuple[int, int, int]) -> str:
    """Of a file, which need not be read again for each that adds to it."""
    return digest(path)


def _whole(directory: Path, base: str | Path | None = None) -> _Whole:
    """What a directory says; the one it adds to is where it says, or at `base`, and the same as it was."""
    about = _read(directory)
    if about.base is None:
        if base is not None:
            raise ValueError(f"{directory} adds to no other model: leave out base = {str(base)!r}")
        return _Whole(directory, about.said, about.config, about.head, about.changes)
    place = Path(base) if base is not None else Path(os.path.normpath(directory.absolute() / about.base["path"]))
    if not (place / CONFIG).is_file():
        raise ValueError(
            f"{directory} adds to the model {place}, which is not there: put it back, or say where it is, by base"
        )
    before = _whole(place)
    if before.sum() != about.base["digest"]:
        raise ValueError(
            f"{directory} adds to another model than that in {place}: its digest is {before.sum()[:12]}, not "
            f"{about.base['digest'][:12]}; say where the right one is, by base"
        )
    changes, summed, new = before.changes + about.changes, about.base["digest"], about.base.get("head") is True
    own = _own(_blank(about.config, about.head, changes, spared=before.anew or new), before, new)
    more = (before.anew or new, place, summed, own, new, before)
    return _Whole(directory, about.said, about.config, about.head, changes, *more)


def _taught(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that add to a model that stays as it is."""
    return [each for each, change in zip(changes, read(changes), strict=True) if isinstance(change, BESIDE)]


def _of_head(name: str) -> bool:
    return name.startswith("output.")


def _shapes(settings: Any, head: HeadConfig) -> dict[str, Any]:
    """What a head is made of."""
    return {name: x.shape for name, x in _blank(settings, head, []).state_dict().items() if _of_head(name)}


def _own(model: nn.Module, base: _Whole, new: bool) -> frozenset[str]:
    """The tensors of a model without memory that its base has not, or has for another head, if this one is `new`."""
    theirs = {names[0] for names, _ in _named(_blank(base.config, base.head, base.changes, spared=base.anew))}
    return frozenset(own for (own, *_), _ in _named(model) if own not in theirs or (new and _of_head(own)))


def _path_from(directory: Path, base: str) -> str:
    """The way to a base, from a directory if there is one."""
    try:
        return Path(os.path.relpath(base, directory.absolute())).as_posix()
    except ValueError:  # another drive
        return base


def _read(directory: Path) -> _About:
    if not (path := directory / CONFIG).parent.is_dir():
        raise ValueError(f"{directory} is not a directory: name one that holds a model, with {CONFIG} and {WEIGHTS}")
    if not path.is_file():
        if (directory / "trainer").is_dir():
            raise ValueError(f"{directory} has no model yet: its training goes on by `regard train {directory}`")
        raise ValueError(f"{directory} is not a model directory: it has no {CONFIG}")
    try:
        about = json.loads(read_whole(path, LARGEST).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("config"), dict):
        raise ValueError(f"{path} is not the config of a model: it has no object under 'config'")
    found = about.get("format")
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"{path} is of unknown format {found!r}, this regard reads up to {FORMAT}")
    if found > FORMAT:
        raise ValueError(f"{path} is of format {found}, this regard reads up to {FORMAT}: upgrade regard")
    said = {key: about.get(key) for key in ("family", "config", "head", "changes", "precision")}
    said["base"] = about["base"].get("digest") if isinstance(about.get("base"), dict) else None
    text = json.dumps(said, sort_keys=True)
    try:
        changes = about["changes"] if "changes" in about else _of_format_1(about)
        kind = family(str(about.get("family"))).config
        told = None
        if "task" in about:
            told = Purpose(about["task"], about.get("use", {}))
            if not all(isinstance(part, dict) for part in told) or not isinstance(told.task.get("name"), str):
                raise ValueError("'task' and 'use' are objects, and a task has a name")
        head = configured(HeadConfig, about.get("head", {}))
        base = about.get("base")
        if not (base is None or (isinstance(base, dict) and all(type(base.get(k)) is str for k in ("path", "digest")))):
            raise ValueError("'base' has a path and a digest")
        return _About(configured(kind, about["config"]), head, changes, told, base, text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _of_format_1(about: dict[str, Any]) -> list[dict[str, Any]]:
    """What format 1 says of changes: heads in the config, and a precision."""
    if about.get("precision") not in (None, "int8"):
        raise ValueError(f"unknown precision {about['precision']!r}: it is int8, or left out")
    pruned = of_text(str(about["config"].pop("kept_heads", "")))
    return ([{"prune": asdict(pruned)}] if pruned else []) + ([{"int8": {}}] if "precision" in about else [])


def _blank(settings: Any, head: HeadConfig, changes: list[dict[str, Any]], *, spared: bool = False) -> nn.Module:
    """The model that a config builds, and these changes make, with names and shapes but without memory."""
    try:
        return _changed(blank(settings, head), changes, spared=spared)
    except RuntimeError as error:  # a matrix of more bytes than there are numbers for
        raise ValueError(f"no model can be built from its config: {str(error).splitlines()[0]}") from None


def _changed(model: nn.Module, changes: list[dict[str, Any]], *, spared: bool) -> nn.Module:
    """The model with these changes; its head is `spared` if it is younger than they are."""
    after = next((i for i, change in enumerate(changes, 1) if change in WHOLE), 0)
    if not spared or not after:
        return changed(model, changes)
    output, model.output = model.output, nn.Identity()
    model = changed(model, changes[:after])
    model.output = output
    return changed(model, changes[after:])


def _named(model: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Each tensor of a model once, with all of its names, in their order."""
    names: dict[int, list[str]] = {}
    tensors = model.state_dict(keep_vars=True)  # the parameters themselves: tied ones are the same object
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return [(group, tensors[group[0]]) for group in names.values()]


def _check(what: str, tensors: Mapping[str, Tensor], blank: nn.Module, own: frozenset[str] | None = None) -> None:
    """Refuse tensors whose names, shapes or dtypes are not the model's, or those of its `own` alone. All floats have
    one dtype, whichever it is."""
    expected = {names[0]: tensor for names, tensor in _named(blank) if own is None or names[0] in own}
    floats = next((x.dtype for x in tensors.values() if x.dtype in FLOATS), torch.float32)
    wrong = []
    for name, y in expected.items():
        x, dtype = tensors.get(name), floats if y.is_floating_point() else y.dtype
        if x is None:
            wrong.append(f"it has no tensor {name!r}")
        elif x.shape != y.shape:
            wrong.append(f"{name!r} has the shape {tuple(x.shape)}, not {tuple(y.shape)}")
        elif x.dtype != dtype:
            wrong.append(f"{name!r} is {x.dtype}, not {dtype}")
    wrong += [f"it has a tensor {name!r} too many" for name in tensors if name not in expected]
    if wrong:
        others = f"; {len(wrong) - 1} more are wrong" if len(wrong) > 1 else ""
        raise ValueError(f"{what} does not fit its config: {wrong[0]}{others}")
