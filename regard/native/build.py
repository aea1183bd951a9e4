"""The C engine as a library: compiled for this processor at first use, and kept.

The library's name holds what it was made from: the source, the compiler and the processor. A change of one of them
makes another library; a folder that several machines share serves them all.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from importlib.resources import files
from pathlib import Path

from regard.files import cache_folder

PANEL, VECTOR = 32, 16  # of vectors.h: columns of a product that lie together, numbers in a vector
SOURCES = ("engine.c", "training.c", "vectors.h")
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread")
NATIVE = (("-march=native",), ("-mcpu=native",), ())  # what a compiler calls the processor that it runs on


class UnavailableError(Exception):
    """Why there is no native engine here."""


class UnsupportedError(UnavailableError):
    """Why there is none for this model, on whichever machine."""


class Product(Structure):
    _fields_ = [("K", c_int32), ("N", c_int32)] + [(name, c_void_p) for name in ("w", "q", "scale", "sum", "bias")]


class Norm(Structure):
    _fields_ = [("gain", c_void_p), ("bias", c_void_p)]


class Heads(Structure):
    _fields_ = [("heads", c_int32), ("kv_heads", c_int32)]


class Layer(Structure):
    _fields_ = [
        *((name, Norm) for name in ("attention_norm", "cross_norm", "feed_forward_norm")),
        *((name, Heads) for name in ("own", "read")),
        *((name, Product) for name in ("query_key_value", "output")),
        *((name, Product) for name in ("query", "key_value", "cross_output", "inner", "outer")),
    ]


class Embedding(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("table", "q", "scale", "positions")),
        ("norm", Norm),
        ("factor", c_float),
        ("tokens", c_int32),
    ]


class Model(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("d", "heads", "kv_heads", "d_k", "d_v", "d_ff")),
        *((name, c_int32) for name in ("encoder_layers", "decoder_layers", "pre", "activation")),
        *((name, c_float) for name in ("score_scale", "eps")),
        ("source", Embedding),
        ("target", Embedding),
        ("encoder", POINTER(Layer)),
        ("decoder", POINTER(Layer)),
        ("encoder_norm", Norm),
        ("decoder_norm", Norm),
        ("logits", Product),
    ]


class Rows(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("lengths", "sentence", "history")),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("memory", "sources", "keys", "values", "owner")),
        ("cells", c_int64),
    ]


@cache
def library() -> ctypes.CDLL:
    """The engine, compiled if it is not there yet. Its calls let other threads run.

    `CC` names the compiler, as ever; REGARD_NATIVE=0 goes without the engine.
    """
    if os.environ.get("REGARD_NATIVE") == "0":
        raise UnavailableError("REGARD_NATIVE=0 says so")
    place = _compiled()
    try:
        lib = ctypes.CDLL(str(place))
    except OSError as error:  # it was cut short, or lies where nothing may be executed
        raise UnavailableError(f"{error}: remove it, or let REGARD_CACHE name another folder") from error
    pointer, model, product = c_void_p, POINTER(Model), POINTER(Product)
    lib.room.argtypes, lib.room.restype = [model, c_int32, c_int32], c_int64
    lib.encode.argtypes, lib.encode.restype = [model, c_int32, *[pointer] * 5], c_int32
    lib.decode.argtypes = [model, POINTER(Rows), c_int32, pointer, pointer, c_int32, *[pointer] * 3]
    lib.decode.restype = c_int32
    lib.logits.argtypes, lib.logits.restype = [product, c_int32, *[pointer] * 4], None
    lib.best.argtypes = [product, c_int32, pointer, c_int32, c_int32, *[pointer] * 3, c_int32, pointer, pointer]
    lib.best.restype = c_int32
    lib.gather.argtypes, lib.gather.restype = [c_int32], pointer
    lib.dismiss.argtypes, lib.dismiss.restype = [pointer], None
    lib.columns.argtypes, lib.columns.restype = [product, c_int32, *[pointer] * 6], None
    return lib


def _compiled() -> Path:
    try:
        compiler = shlex.split(os.environ.get("CC", "cc"))
    except ValueError as error:
        raise UnavailableError(f"CC = {os.environ['CC']}: {error}") from error
    if not compiler or shutil.which(compiler[0]) is None:
        raise UnavailableError(f"there is no C compiler {' '.join(compiler)!r}: install one, or name it by CC")
    sources = {name: (files("regard.native") / name).read_bytes() for name in SOURCES}
    made_from = [
        *sources.values(),
        " ".join((*compiler, *FLAGS)).encode(),
        _run([*compiler, "--version"]).encode(),
        _processor(),
    ]
    digest = hashlib.sha256(b"\0".join(made_from)).hexdigest()[:24]
    place = cache_folder() / "native" / f"engine-{digest}.so"
    try:
        if place.exists():
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            for name, source in sources.items():
                (Path(folder) / name).write_bytes(source)
            for i, processor in enumerate(NATIVE):
                try:
                    _run([*compiler, *FLAGS, *processor, "-o", "engine.so", "engine.c", "training.c", "-lm"], folder)
                    break
                except UnavailableError:
                    if i == len(NATIVE) - 1:
                        raise
            os.replace(Path(folder) / "engine.so", place)
    except OSError as error:
        raise UnavailableError(f"{place.parent} cannot be used: {error.strerror}") from error
    return place


def _run(command: list[str], folder: str | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UnavailableError(f"{command[0]} failed: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _processor() -> bytes:
    """What distinguishes one kind of processor from another."""
    about = [platform.system(), platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        about += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    except OSError:
        pass
    return "\n".join(about).encode()
