"""The C sources and a compiler for them: for the processor at hand, or for every x86-64.

It imports nothing of regard, for a wheel is built with it where nothing is installed yet (hatch_build.py).
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES, HEADERS = ("engine.c", "training.c", "pictures.c"), ("vectors.h",)
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-pthread")
OWN = {"pictures.c": ("-ffp-contract=off",)}  # flags of one source: its bits are those of another program
NATIVE = (("-march=native",), ("-mcpu=native",), ())  # what a compiler calls the processor that it runs on
# What each returns, and takes: h i l are 16, 32 and 64 bits of a whole number, f is a float, p an address, a an address
# of what is given.
FUNCTIONS = {
    "room": "l aiiii",
    "encode": "i aiaaaiaiapp",
    "hear": "- aaiaaapp",
    "memory_size": "l ai",
    "read_texts": "- aiiaaaaaiiaalppl",
    "decode": "i aaiaaaiapp",
    "logits": "- aiaapp",
    "best": "i aiaiiaaaipp",
    "gather": "p i",
    "dismiss": "- p",
    "columns": "- aiaaaaaaa",
    "worth_it": "i ",
    "cross_entropy": "i iiiaaaafaaaa",
    "attend": "i aaa",
    "attend_back": "i aaaaaaaa",
    "halves": "i ",
    "attend_half": "i aaa",
    "attend_half_back": "i aaaaaaaa",
    "linear_half": "i iiiaaaa",
    "linear_half_back": "i iiiaaaaaa",
    "feed_forward_half": "i iiiiaaiaa",
    "feed_forward_half_back": "i iiiiaaaiaaa",
    "linear": "i iiiaaaa",
    "linear_back": "- iiiaaaaaa",
    "feed_forward": "i iiiiaaahfaaa",
    "feed_forward_back": "i iiiiaaaafaaa",
    "residual": "- liaaahfaafaaaa",
    "residual_back": "- liaaaafaaaaaaa",
    "tells": "i iaa",
    "bags": "- liiaaa",
    "bags_back": "- liiaaa",
    "keep_rows": "- liaha",
    "dropout": "- laahfaa",
    "dropout_back": "- laafa",
    "change_pictures": "- iiiiaiaaa",
}
AVX2 = ("avx2", "fma")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
VNNI = (*AVX512, "avx512vnni")
# A wheel's library has every function in each of these variants; what a processor must have for it, the best last.
VARIANTS = {"plain_": (), "avx2_": AVX2, "avx512_": AVX512, "vnni_": VNNI, "bf16_": (*VNNI, "avx512bf16")}


class UnavailableError(Exception):
    """Why there is no native engine here."""


def command() -> list[str]:
    """The compiler: what `CC` names, as ever, or cc."""
    try:
        words = shlex.split(os.environ.get("CC", "cc"))
    except ValueError as error:
        raise UnavailableError(f"CC = {os.environ['CC']}: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise UnavailableError(f"there is no C compiler {' '.join(words)!r}: install one, or name it by CC")
    return words


def made_from(cc: list[str]) -> str:
    """A digest of all that decides what `for_this_processor` makes."""
    parts = [(FOLDER / name).read_bytes() for name in (*SOURCES, *HEADERS)]
    parts += [" ".join((*cc, *FLAGS, str(OWN))).encode(), _run([*cc, "--version"]).encode(), _processor()]
    return digest(b"\0".join(parts))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def for_this_processor(cc: list[str], to: Path) -> None:
    *named, unnamed = NATIVE
    for processor in named:
        with suppress(UnavailableError):  # it has another name for it
            _library(cc, {"": processor}, to)
            return
    _library(cc, {"": unnamed}, to)


def for_every_processor(cc: list[str], to: Path) -> None:
    """Each function in each variant, under the variant's name, and for each of these whether a processor runs it."""
    flags, chooser = {}, to.with_name("chooser.c")
    for prefix, features in VARIANTS.items():
        flags[prefix] = [*(f"-m{feature}" for feature in features), *(f"-D{name}={prefix}{name}" for name in FUNCTIONS)]
    chooser.write_text("".join(f"{_runs(prefix, features)}\n" for prefix, features in VARIANTS.items()), "utf-8")
    _library(cc, flags, to, str(chooser), "-s")


def _library(cc: list[str], flags: Mapping[str, Sequence[str]], to: Path, *more: str) -> None:
    """The sources, compiled in each of these ways, as one library."""
    jobs = {
        str(to.with_name(f"{way}{source}.o")): (*flags[way], *OWN.get(source, ()), source)
        for way in flags
        for source in SOURCES
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda made: _run([*cc, *FLAGS, "-c", "-o", made, *jobs[made]]), jobs))
    _run([*cc, *FLAGS, "-shared", "-o", str(to), *jobs, *more, "-lm"])


def _runs(prefix: str, features: Iterable[str]) -> str:
    has = "".join(f' && __builtin_cpu_supports("{feature}")' for feature in features)
    return f"int {prefix}runs(void) {{ __builtin_cpu_init(); return 1{has}; }}"


def _run(words: list[str]) -> str:
    try:
        done = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{words[0]} cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UnavailableError(f"{words[0]} failed: {said[0] if said else f'exit code {done.returncode}'}")
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
