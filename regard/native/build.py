"""The C engine as a library: the one that came with a wheel, or compiled for this processor at first use, and kept.

A compiled library's name holds what it was made from (source, compiler, processor) and what is in it: a change of the
first makes another library, so a folder that several machines share serves them all; damage to the second shows.
"""

import ctypes
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import POINTER, Structure, byref, c_float, c_int16, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from regard.files import cache_folder, sweep, sync
from regard.native import compiler
from regard.native.compiler import UnavailableError

PANEL, VECTOR = 32, 16  # of vectors.h: columns of a product that lie together, numbers in a vector


class UnsupportedError(UnavailableError):
    """Why there is none for this model, on whichever machine."""


def fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Of a struct, one after the other."""
    return [(name, kind) for name in names.split()]


class Product(Structure):
    _fields_ = [*fields(c_int32, "K N"), *fields(c_void_p, "w h q scale sum bias n")]


class Norm(Structure):
    _fields_ = [*fields(c_void_p, "gain bias"), ("eps", c_float)]


class Heads(Structure):
    _fields_ = fields(c_int32, "heads kv_heads")


class Layer(Structure):
    _fields_ = [
        *fields(Norm, "attention_norm cross_norm feed_forward_norm"),
        *fields(Heads, "own read"),
        *fields(Product, "query_key_value output query key_value cross_output inner outer"),
        ("activation", c_int32),
    ]


class Embedding(Structure):
    _fields_ = [
        *fields(c_void_p, "table h q scale positions segments"),
        *(("norm", Norm), ("factor", c_float)),
        *fields(c_int32, "tokens width"),
        ("widen", Product),
    ]


class Ears(Structure):
    _fields_ = [*fields(Product, "first second"), ("positions", c_void_p)]


class Head(Structure):
    _fields_ = [*fields(c_int32, "pool activation unit"), ("inner", Product), ("norm", Norm)]


class Model(Structure):
    _fields_ = [
        *fields(c_int32, "d heads kv_heads d_k d_v d_ff encoder_layers decoder_layers pre gated causal turned"),
        *(("turns", c_void_p), ("score_scale", c_float)),
        *fields(Embedding, "source target"),
        *fields(POINTER(Layer), "encoder decoder"),
        *fields(Norm, "encoder_norm decoder_norm"),
        *(("head", Head), ("logits", Product)),
    ]


class Low(Structure):
    _fields_ = fields(Product, "a b")


class Lows(Structure):
    _fields_ = fields(Low, "query_key_value output query key_value cross_output inner outer")


class Adapter(Structure):
    _fields_ = [*fields(POINTER(Lows), "encoder decoder"), ("own", c_int32), ("head", Head), ("logits", Product)]


class Rows(Structure):
    _fields_ = [
        *fields(c_void_p, "lengths sentence history"),
        ("stride", c_int64),
        *fields(c_void_p, "memory sources keys values owner"),
        *(("cells", c_int64), ("adapters", c_void_p), ("rank", c_int64)),
    ]


class Address:
    """An argument of C's that says where something lies: numbers of NumPy's or PyTorch's, a struct; or nothing does."""

    @staticmethod
    def from_param(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return c_void_p(x.ctypes.data)
        if isinstance(x, Structure):
            return byref(x)
        return None if x is None else c_void_p(x.data_ptr())


KINDS: dict[str, Any] = {"h": c_int16, "i": c_int32, "l": c_int64, "f": c_float, "p": c_void_p, "a": Address}


@cache
def library() -> SimpleNamespace:
    """The engine's functions, compiled if they are not there yet. Calls of them let other threads run.

    `CC` names the compiler, as ever; REGARD_NATIVE=0 goes without the engine.
    """
    if os.environ.get("REGARD_NATIVE") == "0":
        raise UnavailableError("REGARD_NATIVE=0 says so")
    if os.name != "posix":
        raise UnavailableError(f"it is for Linux and macOS, not for {os.name}")
    with suppress(OSError):  # a wheel for another C library
        if (lib := load(compiler.FOLDER, "engine-", others=True)) is not None:
            return functions(lib, variants(lib)[-1])
    return functions(_compiled(), "")


def variants(lib: ctypes.CDLL) -> list[str]:
    """Those of a wheel's library that this processor runs, the best last."""
    return [name for name in compiler.VARIANTS if lib[f"{name}runs"]()]


def functions(lib: ctypes.CDLL, variant: str) -> SimpleNamespace:
    """By their names in C, with what they take and return."""
    found = SimpleNamespace()
    for name, kinds in compiler.FUNCTIONS.items():
        function, (result, given) = lib[f"{variant}{name}"], kinds.split(" ")
        function.restype = KINDS.get(result)
        function.argtypes = [KINDS[kind] for kind in given]
        setattr(found, name, function)
    return found


def _compiled() -> ctypes.CDLL:
    cc = compiler.command()
    name, folder = f"engine-{compiler.made_from(cc)}-", cache_folder() / "native"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(0o700, exist_ok=True)
        if (lib := load(folder, name)) is None:
            print("compiling the engine for this processor, once (10 to 20 seconds)", file=sys.stderr, flush=True)
            sweep(folder, ".compiling-*")
            with tempfile.TemporaryDirectory(prefix=".compiling-", dir=folder) as place:
                made = Path(place) / "engine.so"
                compiler.for_this_processor(cc, made)
                made.chmod(0o600)  # whatever the umask says
                sync(made)
                os.replace(made, folder / f"{name}{compiler.digest(made.read_bytes())}.so")
            sync(folder)
            lib = load(folder, name)
    except OSError as error:
        raise UnavailableError(f"{folder} cannot be used: {error.strerror or error}") from error
    if lib is None:
        raise UnavailableError(f"{folder} does not keep what is written to it: let REGARD_CACHE name another folder")
    return lib


def load(folder: Path, name: str, *, others: bool = False) -> ctypes.CDLL | None:
    """The library whose name begins so; None if there is none, or none whose content is what its name says.

    A library runs as whoever loads it. So what others own or may write to is refused, a folder or a file, unless
    `others` are trusted with it; and what is loaded is the very file that was looked at.
    """
    straight = 0 if others else os.O_NOFOLLOW
    with _opened(str(folder), os.O_DIRECTORY | straight) as place:
        if not others:
            _refuse_others(place, folder)
        for each in sorted(each for each in os.listdir(place) if each.startswith(name) and each.endswith(".so")):
            with _opened(each, os.O_NONBLOCK | straight, place) as handle:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise UnavailableError(f"{folder / each} is no file: remove it")
                if not others:
                    _refuse_others(handle, folder / each)
                with open(handle, "rb", closefd=False) as file:
                    whole = compiler.digest(file.read()) == each[:-3].rpartition("-")[2]
                if whole:  # the system knows libraries by their names: this one's must be no other's, so it stays open
                    here = f"/proc/self/fd/{os.dup(handle)}"
                    return ctypes.CDLL(here if os.path.exists(here) else str(folder / each))
    return None


@contextmanager
def _opened(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def _refuse_others(handle: int, path: Path) -> None:
    about = os.fstat(handle)
    if about.st_uid not in (os.geteuid(), 0):
        raise UnavailableError(
            f"{path} belongs to another user, number {about.st_uid}: let REGARD_CACHE name a folder of your own"
        )
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnavailableError(f"others may write to {path}, so it is not to be trusted: remove it")
