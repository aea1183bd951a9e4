"""Exact state on disk: a run that stops, for whatever reason, goes on as if it had not.

A state is made of dicts, lists and tuples around tensors, numbers, strings and None. On the disk it is a directory of
three files, none of them code:

    tensors.safetensors    the tensors, bit by bit
    state.json             all else, with a marker where each tensor was
    MANIFEST.json          size and SHA-256 of the other two

Everything is written beside its place, flushed to the disk, then renamed: what has its own name was once whole, and
the checksums tell whether it still is.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.checks import at_least
from regard.files import digest, discard, read_whole, sync
from regard.training.distributed import parted, whole

FORMAT = 1
FILES = TENSORS, SKELETON = "tensors.safetensors", "state.json"
MANIFEST = "MANIFEST.json"
LONGEST = 2**16  # bytes of a manifest
CODES = {torch.bool: "BOOL", torch.bfloat16: "BF16"}  # dtypes as safetensors spells them: float32 is F32
for _kind, _sizes in {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}.items():
    CODES |= {getattr(torch, f"{_kind}{bits}"): f"{_kind[0].upper()}{bits}" for bits in _sizes}
SNAPSHOT = re.compile(r"step-(\d+)-([0-9a-f]{16})\.safetensors")


class CheckpointError(ValueError):
    """A checkpoint that is torn or damaged; the message names the file."""


def write_state(path: Path, state: Any, *, main: bool = True) -> None:
    """Write a state as the directory `path`, in place of what is there.

    Tensors of which each process has a share are made whole one at a time: all take part, and the `main` one writes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     write_state(Path(runs) / "now", {"step": 3, 0: [torch.ones(2), (0.9, None)]})
    ...     read_state(Path(runs) / "now")
    {'step': 3, 0: [tensor([1., 1.]), (0.9, None)]}
    """
    skeleton, tensors = _take_apart(state)
    if not main:
        for name in _ordered(tensors):
            whole(tensors[name])
        return
    with _beside(path) as temporary:
        temporary.mkdir()
        files = {
            TENSORS: _write_tensors(temporary / TENSORS, tensors),
            SKELETON: _write(temporary / SKELETON, [json.dumps(skeleton).encode()]),
        }
        _write(temporary / MANIFEST, [_manifest(files)])
        sync(temporary)
        old = _old(path)
        if path.exists():  # a directory cannot replace another in one step: meanwhile `read_state` finds the old one
            discard(old)
            os.replace(path, old)
        os.replace(temporary, path)
        sync(path.parent)
        discard(old)


def read_state(path: Path, *, tensors: bool = True, mapped: bool = False) -> Any:
    """The state in the directory `path`, with its tensors on the CPU; CheckpointError if it is not what was written.

    A tensor that stood in the state twice comes back as two equal ones. Without `tensors` their file is not read, and
    each is None; `mapped`, each is a view of that file, which takes no memory, and is to be copied before it goes.
    """
    if not path.exists() and _old(path).exists():
        path = _old(path)
    _verify(path, FILES if tensors else (SKELETON,))
    try:
        skeleton = json.loads((path / SKELETON).read_bytes())
        if not tensors:
            return _assemble(skeleton, lambda name: None)
        with safe_open(path / TENSORS, "pt") as file:
            # Cloned, because it is a view of the file, which may be removed or lie on a failing disk.
            return _assemble(skeleton, lambda name: file.get_tensor(name) if mapped else file.get_tensor(name).clone())
    except (ValueError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} is no checkpoint of regard's, whole as it is ({error})") from None


class Checkpoints:
    """The checkpoints of a run in its `trainer/` folder: the newest `keep`.

    One process writes and any may read. `warn` is told of a damaged one that is passed over.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     checkpoints = Checkpoints(Path(run) / "trainer", keep=1)
    ...     for step in 100, 200, 300:
    ...         path = checkpoints.save(step, {"seen": 10 * step})
    ...     path.name, checkpoints.steps(), checkpoints.latest()
    ('step-00000300', [300], (300, {'seen': 3000}))
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, warn: Callable[[str], None] = warnings.warn) -> None:
        at_least(1, keep=keep)
        self.directory, self.keep, self.warn = Path(directory), keep, warn

    def save(self, step: int, state: Any, *, main: bool = True) -> Path:
        """Write the state after `step` steps; once it is safe, remove what is not among the newest.

        Checkpoints of later steps, left by a run that went back, stay until this one has passed them. Of several
        processes the `main` one writes, and all bring their shares.
        """
        path = self._path(step)
        if main:
            _prepare(self.directory)
        write_state(path, state, main=main)
        for old in [s for s in self.steps() if s <= step][: -self.keep] if main else ():
            self._remove(old)
        return path

    def latest(self, *, tensors: bool = True, mapped: bool = False) -> tuple[int, Any] | None:
        """The newest step and state that can be read; None before the first, CheckpointError if all are damaged."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, read_state(self._path(step), tensors=tensors, mapped=mapped)
            except CheckpointError as error:
                self.warn(f"the checkpoint of step {step} is passed over: {error}")
        if steps:
            raise CheckpointError(f"no checkpoint in {self.directory} can be read: remove it to begin anew")
        return None

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, oldest first."""
        names = [path.name for path in self.directory.glob("step-*")]
        return sorted({int(found[1]) for name in names if (found := re.fullmatch(r"step-(\d+)(\.old)?", name))})

    def _path(self, step: int) -> Path:
        return self.directory / f"step-{step:08d}"

    def _remove(self, step: int) -> None:
        path = self._path(step)
        with _beside(path) as temporary:  # renamed first: a removal that is interrupted leaves no half checkpoint
            if path.exists():
                os.replace(path, temporary)
        discard(_old(path))


class Snapshots:
    """The parameters of a model at several steps, in fp32, one file each: the best to keep, the last to average (§6.1).

    The name of a file ends with the beginning of its SHA-256.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     snapshots = Snapshots(Path(run) / "snapshots")
    ...     for step in 100, 200, 300:
    ...         path = snapshots.save(step, {"weight": torch.tensor([0.0, step])})
    ...         snapshots.prune(2)
    ...     average(snapshots.paths())["weight"].tolist()
    [0.0, 250.0]
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> Path:
        """Write parameters by name. Snapshots of later steps go: the run went back, and they are not its own."""
        for name, x in tensors.items():
            if not x.is_floating_point():
                raise ValueError(f"{name!r} is {x.dtype}: a snapshot holds parameters, which can be averaged")
        _prepare(self.directory)
        stem = self.directory / f"step-{step:08d}"
        with _beside(stem) as temporary:
            _, written = _write_tensors(temporary, tensors, dtype=torch.float32)
            path = self.directory / f"{stem.name}-{written[:16]}.safetensors"
            os.replace(temporary, path)
            sync(self.directory)
        for other in self.paths():
            if _step(other) >= step and other != path:
                other.unlink()
        return path

    def prune(self, keep: int, besides: Collection[int] = ()) -> None:
        """Remove all but the last `keep` and those of the steps `besides`."""
        for path in self.paths()[:-keep]:
            if _step(path) not in besides:
                path.unlink()

    def paths(self) -> list[Path]:
        """The files, oldest step first."""
        files = (path for path in self.directory.glob("step-*") if SNAPSHOT.fullmatch(path.name) and path.is_file())
        return sorted(files, key=_step)

    def whole(self, warn: Callable[[str], None] = warnings.warn) -> dict[int, Path]:
        """The files that are as they were written, by step; `warn` is told of the others."""
        found = {}
        for path in self.paths():
            if _damaged(path):
                warn(f"{path} is damaged and passed over: remove it")
            else:
                found[_step(path)] = path
        if not found:
            raise CheckpointError(
                f"{self.directory} has no whole snapshot: train a few steps more, by train.steps, for one"
            )
        return found


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of snapshots, summed in fp64, as fp32; one tensor of one snapshot is in memory at a time."""
    if not paths:
        raise ValueError("there is no snapshot to average")
    for path in paths:
        if SNAPSHOT.fullmatch(path.name) is None:
            raise ValueError(f"{path} is not a snapshot: they are called step-(number)-(checksum).safetensors")
        if _damaged(path):
            raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in its name. Remove it to do without")
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(safe_open(path, "pt")) for path in paths]
        except SafetensorError as error:
            raise CheckpointError(f"{path.parent} has a snapshot that is none ({error}): remove it") from None
        shapes = [{name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} for file in files]  # noqa: SIM118
        for path, other in zip(paths, shapes, strict=True):
            if other != shapes[0]:
                raise ValueError(f"{path} and {paths[0].name} are not of the same model: names or shapes differ")
        mean = {}
        for name in shapes[0]:
            total = files[0].get_tensor(name).double()
            for file in files[1:]:
                total += file.get_tensor(name)
            mean[name] = (total / len(files)).float()
        return mean


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _damaged(path: Path) -> bool:
    return digest(path)[:16] != path.name.removesuffix(".safetensors")[-16:]


# A state, taken apart and put together


def _take_apart(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """The state as JSON, and its tensors by name.

    Each object of the JSON has one key, the kind of what it stands for: a dict by its pairs, since keys may be
    numbers, a tuple by its items, a tensor by its name. A name reads as the way to its tensor.

    >>> _take_apart({"lr": 0.1, 7: (torch.tensor(1.0),)})
    ({'dict': [['lr', 0.1], [7, {'tuple': [{'tensor': 'state[7][0]'}]}]]}, {'state[7][0]': tensor(1.)})
    """
    tensors: dict[str, Tensor] = {}
    names: dict[Any, str] = {}

    def store(x: Tensor, where: str) -> str:
        if x.dtype not in CODES or x.layout != torch.strided:
            raise ValueError(f"{where} is {x.dtype} and {x.layout}: a state holds dense tensors of real numbers")
        place = x.data_ptr() if parted(x) is None else id(x)  # a share is nowhere, and may have nothing in it
        name = names.setdefault((place, x.device, x.dtype, x.shape, x.stride()), where)  # shared: stored once
        tensors.setdefault(name, x)
        return name

    def walk(value: Any, where: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return {"tensor": store(value, where)}
        if isinstance(value, list | tuple):
            items = [walk(item, f"{where}[{i}]") for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        if isinstance(value, dict) and all(isinstance(key, int | str) for key in value):
            return {"dict": [[key, walk(item, f"{where}[{key!r}]")] for key, item in value.items()]}
        raise ValueError(
            f"{where} is of type {type(value).__name__} ({value!r:.50}): a state is made of tensors, numbers, strings "
            "and None in lists, tuples, and dicts by strings or whole numbers"
        )

    return walk(state, "state"), tensors


def _assemble(skeleton: Any, tensor: Callable[[str], Any]) -> Any:
    if isinstance(skeleton, list):
        return [_assemble(item, tensor) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return tensor(content)
    if kind == "tuple":
        return tuple(_assemble(content, tensor))
    if kind != "dict":
        raise ValueError(f"{kind!r} is no kind of part")
    return {key: _assemble(item, tensor) for key, item in content}


# Files that are whole or not there


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, for the block to rename; what is left of it goes. An OSError names `path`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
    except OSError as error:  # a full disk, say, which is met in a write that knows no name
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        discard(temporary)


def _prepare(directory: Path) -> None:
    """Make a directory, and sweep out what a process that was killed has left in it."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(".*.tmp"):
        discard(left)


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> tuple[int, str]:
    """Write safetensors one tensor at a time, so that there is never a copy of all; size and SHA-256 of the file.

    The format: the length of the header in 8 bytes, the header in JSON, the numbers of each tensor in its order.
    """
    kinds, names = {name: dtype or x.dtype for name, x in tensors.items()}, _ordered(tensors)
    header, end = {}, 0
    for name in names:
        start, end = end, end + tensors[name].numel() * kinds[name].itemsize
        header[name] = {"dtype": CODES[kinds[name]], "shape": [*tensors[name].shape], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def chunks() -> Iterator[Any]:
        yield len(text).to_bytes(8, "little") + text
        for name in names:
            x = whole(tensors[name].detach()).to("cpu", kinds[name]).contiguous()
            yield x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()  # of none or one number, any stride goes

    return _write(path, chunks())


def _ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names in the order of a file: wide numbers first, so that all are aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def _write(path: Path, chunks: Iterable[Any]) -> tuple[int, str]:
    """Write bytes to a file and on to the disk; size and SHA-256."""
    seen = hashlib.sha256()
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            seen.update(chunk)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), seen.hexdigest()


def _manifest(files: Mapping[str, tuple[int, str]]) -> bytes:
    entries = {name: {"size": size, "sha256": sha256} for name, (size, sha256) in files.items()}
    return json.dumps({"format": FORMAT, "files": entries}, indent=2).encode()


def _verify(path: Path, names: Collection[str]) -> None:
    """Compare files of a checkpoint with its manifest, then the manifest with the one that all of them have."""
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise CheckpointError(f"{manifest} is missing")
    try:
        text = read_whole(manifest, LONGEST)
        content = json.loads(text)
        newer, entries = content["format"] > FORMAT, content["files"]
        written = {} if newer else {name: (entries[name]["size"], entries[name]["sha256"]) for name in names}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{manifest} is damaged") from None
    if newer:
        raise CheckpointError(
            f"{path} is of format {content['format']}, this regard reads up to {FORMAT}: upgrade regard"
        )
    found = {}
    for name, (size, sha256) in written.items():
        if not (path / name).is_file():
            raise CheckpointError(f"{path / name} is missing")
        found[name] = (path / name).stat().st_size, digest(path / name)
        if found[name][0] != size:
            raise CheckpointError(f"{path / name} is torn: it has {found[name][0]} of {size} bytes")
        if found[name][1] != sha256:
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the one in {MANIFEST}")
    if names == FILES and text != _manifest(found):
        raise CheckpointError(f"{manifest} is damaged")
