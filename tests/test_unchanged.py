"""What no rearrangement of the code may change: weights, texts and scores to the last bit; verbs, keys and routes.

Only doors that stay are used: the command, `regard.load`, files that a run writes, HTTP. What is compared with lies in
unchanged.json. A change that is meant is recorded with the tests that show what it changes:

    python -m tests.test_unchanged --record [NAME ...]     (such as said-native, options; all, if none is named)

Bits hang on the processor, on PyTorch and on the compiler, so each such machine has figures of its own; one without is
held to the texts and losses of another, and its bits are skipped. Recording adds it. Data that a machine does not have
is left out, and what was recorded of it stays.

Elsewhere is held that conversion changes nothing:
- Marian, BART, Pegasus, mBART there and back: convert/test_huggingface.py (test_transformers_writes_the_same,
  test_a_model_of_transformers_writes_the_same_here, test_there_and_back_is_the_same_directory); sub-words of the first
  three: convert/test_foreign.py (test_a_text_is_cut_as_before)
- CTranslate2: convert/test_ctranslate2.py (test_a_random_model_writes_the_same, test_a_trained_model_writes_the_same)
- ONNX: convert/test_onnx.py (test_a_trained_model_writes_the_same, test_every_kind_of_model_writes_the_same)
- routes: serving/test_libretranslate.py and test_openai.py by the clients of others, serving/test_schema.py (every
  answer is one that the document names), fuzz/test_http.py (any body), serving/test_explorer.py
"""

import hashlib
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

import regard

HERE = Path(__file__).parent
RECORDED = HERE / "unchanged.json"
SHARED = Path(os.environ.get("REGARD_SHARED_DATA", HERE.parents[1] / "shared" / "data"))
HELD_OUT = 20  # sentences: scoring is not what a step is compared by
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "asimd", "sve", "i8mm")
EARLY = 20  # steps in which other roundings have not grown yet
WORDS = (  # whose combinations are a text that is always there
    (("Tom", "Tom"), ("Mary", "Mary"), ("my brother", "mi hermano"), ("the teacher", "el profesor"), ("she", "ella")),
    (("sees", "ve"), ("wants", "quiere"), ("has", "tiene"), ("buys", "compra"), ("forgets", "olvida")),
    (
        ("a book", "un libro"),
        ("the house", "la casa"),
        ("two apples", "dos manzanas"),
        ("the red car", "el coche rojo"),
    ),
    (("today", "hoy"), ("every day", "todos los días"), ("in the morning", "por la mañana"), ("now", "ahora")),
)
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "sampled": {"temperature": 0.8, "seed": 7},
    "best": {"beam": 4, "best": 3, "align": True},
}


def fingerprint() -> str:
    """What the bits of a figure hang on."""
    about = {}
    if (info := Path("/proc/cpuinfo")).exists():
        about = dict(re.findall(r"(?m)^([^\t\n]+?)\s*: (.*)$", info.read_text().split("\n\n")[0]))
    have = about.get("flags", about.get("Features", "")).split()
    processor = [about.get(key, "") for key in ("vendor_id", "cpu family", "model")]
    parts = [
        f"torch {torch.__version__}",
        f"numpy {np.__version__}",
        torch.backends.cpu.get_cpu_capability(),
        f"{platform.machine()} {' '.join(filter(None, processor))}",
        "+".join(flag for flag in FLAGS if flag in have),
        _engine(),
    ]
    return ", ".join(parts)


def _engine() -> str:
    """How the native engine was made."""
    if not native():
        return "no engine"
    if any(Path(regard.__file__).parent.rglob("engine-*.so")):
        return "engine of a wheel"
    told = subprocess.run([*os.environ.get("CC", "cc").split(), "--version"], capture_output=True, text=True)
    return told.stdout.partition("\n")[0]


@cache
def native() -> bool:
    try:
        regard.load(engine="native").translate("Hello.")
    except ValueError:
        return False
    return True


# Training


def command(*arguments: str, **environment: str) -> str:
    """The output of a command in a process of its own."""
    told = subprocess.run(
        [sys.executable, "-m", "regard", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def trained(place: Path, recipe: str, kernels: bool, *overrides: str) -> dict[str, Any]:
    """What 50 steps of a recipe note, and a digest of the weights that they lead to.

    Two threads share a batch, each with one thread of PyTorch's, on however many cores.
    """
    short = (f"train.validate_sentences={HELD_OUT}", "decode.beam=1", "decode.extra=1")
    steps = ("train.steps=50", "train.validate_every=50", "train.shards=2", *short, *overrides)
    _own_cache(place / "cache")
    how = {"REGARD_CACHE": str(place / "cache"), "REGARD_NATIVE": str(int(kernels))}
    command("train", recipe, *steps, "--out", str(place / "run"), **how)
    noted = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    for line in noted:
        for key in ("time", "tokens_per_second"):
            line.pop(key, None)
    files = {name: _digest((place / "run" / name).read_bytes()) for name in ("tokenizer.json", "evaluation.json")}
    return {"noted": noted, "weights": _weights(place / "run" / "model.safetensors"), **files}


def _own_cache(place: Path) -> None:
    """A cache that holds the engine alone, so that it need not be compiled: text is prepared anew."""
    cached = os.environ.get("REGARD_CACHE")
    mine = Path(cached) if cached else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
    place.mkdir(0o700)
    if (mine.expanduser() / "native").is_dir():
        shutil.copytree(mine.expanduser() / "native", place / "native")


def _weights(path: Path) -> str:
    """A digest of the tensors, names and bytes, and of nothing else that the file says."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = {name: about for name, about in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}
    found = hashlib.sha256()
    for name in sorted(head):
        first, last = head[name]["data_offsets"]
        found.update(f"{name} {head[name]['dtype']} {head[name]['shape']}".encode())
        found.update(data[8 + size + first : 8 + size + last])
    return found.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def made(place: Path, kernels: bool) -> dict[str, Any]:
    """The recipe quickstart, on a text of our own."""
    pairs = [[" ".join(side) for side in zip(*each, strict=True)] for each in product(*WORDS)]
    lines = [f"{source}.\t{target}.\n" for source, target in pairs]
    (place / "train.tsv").write_text("".join(lines[1::2] * 2), "utf-8")
    (place / "held_out.tsv").write_text("".join(lines[:: len(lines) // HELD_OUT]), "utf-8")
    files = {"train": "train", "valid": "held_out", "test": "held_out"}
    where = (f"data.{split}.tsv={place / name}.tsv" for split, name in files.items())
    return trained(place, "quickstart", kernels, *where, "tokens.size=300", "train.batch_tokens=512")


def whole(recipe: str, corpus: str) -> Callable[[Path, bool], dict[str, Any]]:
    """A recipe on its own corpus, of which less is held out."""

    def run(place: Path, kernels: bool) -> dict[str, Any]:
        how = {"REGARD_DATA": str(SHARED)} if corpus.startswith("multi30k") else {}
        listed = command("data", **how)
        if not re.search(rf"(?m)^\s*{corpus} .* yes\s*$", listed):
            pytest.skip(f"{corpus} is not here; REGARD_SHARED_DATA names the folder of what cannot be fetched")
        if how:
            how["REGARD_CACHE"] = str(place / "corpus")
        where = []
        for split, *files in (line.split() for line in command("data", corpus, **how).splitlines()):
            for side, file in zip(("source", "target"), files, strict=True):
                few = place / f"{split}.{side}"
                with open(file, encoding="utf-8") as lines:
                    few.write_text("".join(lines if split == "train" else islice(lines, HELD_OUT)), "utf-8")
                where.append(f"data.{split}.{side}={few}")
        return trained(place, recipe, kernels, *where)

    return run


RUNS = {
    "made": made,
    "quickstart": whole("quickstart", "tatoeba-en-es"),
    "multi30k-en-de": whole("multi30k-en-de", "multi30k-en-de-bpe"),
}


# Translating


def said(engine: str) -> dict[str, Any]:
    """Texts, tokens and scores of every search, by the model that comes with regard."""
    translator = regard.load(engine=engine, workers=1)
    lines, found = recorded()["sentences"], {}
    for name, settings in HOW.items():
        few = lines[:10] if name == "best" else lines
        rows = [one for each in translator.hypotheses(few, **settings) for one in each]
        exact = repr([(row.tokens, row.token_scores, row.score, row.alignment) for row in rows])
        found[name] = {
            "texts": [row.text for row in rows],
            "log_p": [row.log_probability for row in rows],
            "tokens and scores": _digest(exact.encode()),
        }
    given = translator.score(lines, found["greedy"]["texts"])
    found["given"] = {
        "texts": [],
        "log_p": [each.log_probability for each in given],
        "tokens and scores": _digest(repr([(each.tokens, each.token_scores) for each in given]).encode()),
    }
    return found


def maps() -> dict[str, str]:
    """Digests of what every head looks at, those of an attention side by side, in three sentences."""
    translator = regard.load(engine="torch", workers=1)
    found = {}
    for n, line in enumerate(recorded()["sentences"][:3]):
        for view in ("weights", "norm"):
            for each in translator.attention(line, view=view):
                about = f"{each.weights.dtype} {each.weights.shape} {each.queries} {each.keys} {each.query_role}"
                heads = (about.encode() + head.numpy().tobytes() for head in each.weights)
                found[f"{n} {view} {each.name}"] = " ".join(_digest(head)[:16] for head in heads)
    return found


def sentences() -> list[str]:
    """Sentences that the model was not trained on, which its atlas quotes, and what is read in more than one way."""
    atlas = json.loads((Path(regard.__file__).parent / "shipped" / "en-es" / "heads.json").read_text("utf-8"))
    read = [head["example"]["columns"] for head in atlas["heads"] if head["kind"] != "decoder"]
    quoted = dict.fromkeys("".join(pieces[:-1]).replace("▁", " ").strip() for pieces in read)
    several = ["Where is Tom? I don't know. Ask Mary!", "A heading", "Write to bob@example.org, please. 😀", ""]
    return [*quoted, *several]


# What a person types


@cache
def app() -> typer.Typer:
    """The application that the command of pyproject.toml runs, wherever it is."""
    script = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]["regard"]
    module, _, name = script.partition(":")
    with mock.patch.object(typer.Typer, "__call__", autospec=True) as called:
        getattr(importlib.import_module(module), name)()
    found = called.call_args.args[0]
    assert isinstance(found, typer.Typer)
    return found


def options() -> list[str]:
    """Every verb with every option: `translate --beam N`, or without N where it takes no value; arguments as <name>."""

    def walk(verb: Any, path: str) -> Iterator[str]:
        for each in verb.params:
            if each.param_type_name == "option":
                value = "" if each.is_flag or each.count else " N"
                yield from (f"{path} {name}{value}".strip() for name in (*each.opts, *each.secondary_opts))
            else:
                yield f"{path} <{each.name}>{'...' if each.nargs == -1 else ''}"
        if hasattr(verb, "list_commands"):
            context = typer.Context(verb)
            for name in verb.list_commands(context):
                yield from walk(verb.get_command(context, name), f"{path} {name}".strip())

    return sorted(walk(typer.main.get_command(app()), ""))


def typed(*arguments: str) -> str:
    """The output of a command in this process."""
    result = CliRunner().invoke(app(), arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    if result.exception is not None:
        raise result.exception
    return result.stdout


def dumped(*arguments: str) -> dict[str, Any]:
    """A recipe's settings by their places: {"train.seed": 1}; of paths, what is beyond this directory."""

    def walk(value: Any, place: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key in value:
                yield from walk(value[key], f"{place}.{key}")
        else:
            here = isinstance(value, str) and value.startswith(f"{Path.cwd()}/")
            yield place.removeprefix("."), str(Path(value).relative_to(Path.cwd())) if here else value

    return dict(walk(yaml.safe_load(typed("train", *arguments, "--dump")), ""))


def choices(place: str) -> list[str]:
    """The names that a setting may have, as its error lists them."""
    try:
        typed("train", "quickstart", f"{place}=no-such-name", "--dump")
    except ValueError as error:
        told = re.search(r"(?:choose(?: one of)?|Known:|The kinds are|there are) (.+)", str(error))
        return re.split(r", | or ", told[1]) if told else []
    return []


def recipes() -> dict[str, dict[str, Any]]:
    """Every setting of every recipe that is shipped, of every preset, and of every way to name files."""
    shipped = re.findall(r"(?m)^ {2}(\S+) {2,}\S", typed("recipes"))
    named = [[name] for name in shipped]
    named += [["quickstart", f"model.preset={preset}"] for preset in choices("model.preset")]
    files = ("source=/a {0}target=/b", "tsv=/c", "jsonl=/d")
    for way in files:
        where = (f"{split}{way.format(split)}".split() for split in ("data.train.", "data.valid.", "data.test."))
        named.append(["quickstart", *(each for split in where for each in split)])
    first = dumped("quickstart")
    found = {}
    for each in named:
        own = dumped(*each)
        differs = (key for key in own if key.startswith("model.") or key not in first or own[key] != first[key])
        found[" ".join(each)] = {key: own[key] for key in differs}
    return found | {"quickstart": first}


def names() -> dict[str, list[str]]:
    """The settings that are chosen by name, and these names."""
    texts = [place for place, value in dumped("quickstart").items() if isinstance(value, str)]
    return {place: found for place in texts if (found := choices(place))}


# What a program asks

EXPLORER = (  # which no document lists
    *("GET /", "GET /openapi.json", "GET /explore/", "GET /explore/api/models", "GET /explore/api/atlas"),
    *(f"POST /explore/api/{look}" for look in ("translate", "score", "maps", "neuron", "measures", "faithfulness")),
    "POST /explore/api/page",
)


@contextmanager
def server() -> Iterator[str]:
    """The address of the server that `regard serve` starts."""
    line = [sys.executable, "-m", "regard", "serve", "--port", "0", "--workers", "1"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as made:
        try:
            assert made.stderr is not None
            for told in made.stderr:
                if found := re.search(r"http://127\.0\.0\.1:\d+", told):
                    break
            else:
                pytest.fail("the server does not say where it is")
            yield found[0]
        finally:
            made.terminate()


def asked(address: str, body: dict[str, Any] | None = None, method: str | None = None) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(address, data, {"Content-Type": "application/json"}, method=method), timeout=60) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def listed(address: str) -> list[str]:
    """The routes that the document names."""
    paths = json.loads(asked(f"{address}/openapi.json")[1])["paths"]
    return sorted(f"{method.upper()} {path}" for path, about in paths.items() for method in about)


def routes() -> list[str]:
    with server() as address:
        there = [route for route in EXPLORER if _there(address, route)]
        return sorted({*listed(address), *there})


def _there(address: str, route: str) -> bool:
    method, path = route.split()
    status, _ = asked(f"{address}{path}", {} if method == "POST" else None, method)
    return status not in (404, 405)


# Comparing

MACHINE: dict[str, Callable[[], Any]] = {
    "said-native": lambda: said("native"),
    "said-torch": lambda: said("torch"),
    "maps": maps,
}
ANYWHERE: dict[str, Callable[[], Any]] = {
    "sentences": sentences,
    "options": options,
    "recipes": recipes,
    "names": names,
    "routes": routes,
}


def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {"machines": {}}


def compare(name: str, found: Any, alike: Callable[[Any, Any], bool]) -> None:
    """With what this machine has recorded, to the bit; or else with any other."""
    machines, here = recorded()["machines"], fingerprint()
    if name in machines.get(here, {}):
        assert found == machines[here][name]
        return
    others = [each[name] for each in machines.values() if name in each]
    assert any(alike(found, each) for each in others), f"{name} is like that of no machine: {found}"
    pytest.skip(f"{name} is alike, but no bits are known of {here}: python -m tests.test_unchanged --record {name}")


def like_losses(a: Any, b: Any) -> bool:
    if a["tokenizer.json"] != b["tokenizer.json"] or len(a["noted"]) != len(b["noted"]):
        return False
    both = [pair for pair in zip(a["noted"], b["noted"], strict=True) if pair[0]["kind"] == "train"]
    near = {True: 1e-4, False: 1e-2}  # roundings grow, step by step
    return all(x["loss"] == pytest.approx(y["loss"], rel=near[x["step"] <= EARLY]) for x, y in both)


def like_texts(a: Any, b: Any) -> bool:
    return all(a[how]["texts"] == b[how]["texts"] for how in ("greedy", "beam"))


@pytest.mark.parametrize("kernels", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("run", ["made", *(pytest.param(run, marks=pytest.mark.slow) for run in [*RUNS][1:])])
def test_training_leads_to_the_same_weights(run: str, kernels: bool, tmp_path: Path) -> None:
    if kernels and not native():
        pytest.skip("there is no native engine here")
    name = f"{run}-{'native' if kernels else 'torch'}"
    compare(name, RUNS[run](tmp_path, kernels), like_losses)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_translations_and_their_scores_are_the_same(engine: str) -> None:
    if engine == "native" and not native():
        pytest.skip("there is no native engine here")
    compare(f"said-{engine}", said(engine), like_texts)


def test_every_head_looks_at_the_same() -> None:
    compare("maps", maps(), lambda a, b: a.keys() == b.keys())


def test_every_option_is_still_there() -> None:
    assert not {*recorded()["options"]} - {*options()}


def test_every_setting_of_a_recipe_is_still_there() -> None:
    known = recorded()["recipes"]
    for name, own in known.items():
        now = dumped(*name.split())
        expected = {key: value for key, value in {**known["quickstart"], **own}.items() if key in own or key in now}
        assert {key: now.get(key, "gone") for key in expected} == expected, name


def test_every_name_of_a_setting_is_still_there() -> None:
    now = names()
    for place, known in recorded()["names"].items():
        assert not {*known} - {*now.get(place, ())}, place


def test_every_route_is_still_there_and_answers_the_same() -> None:
    known = recorded()
    translator = regard.load(workers=1)
    with server() as address:
        for route in {*known["routes"], *EXPLORER} - {*listed(address)}:  # the page lists what the model is asked by
            assert _there(address, route), route
        for line in known["sentences"][:3]:
            status, answer = asked(f"{address}/translate", {"q": line, "source": "en", "target": "es"})
            assert (status, json.loads(answer)["translatedText"]) == (200, translator.translate(line))


def record(*wanted: str) -> None:
    """Write down what is found now."""
    torch.set_num_threads(1)
    known = recorded()
    for name, find in ANYWHERE.items():
        if not wanted or name in wanted:
            known[name] = find()
            _write(known)
    mine = known["machines"].setdefault(fingerprint(), {})
    for name, find in MACHINE.items():
        if (not wanted or name in wanted) and (native() or "native" not in name):
            mine[name] = find()
    for run, kernels in product(RUNS, (True, False) if native() else (False,)):
        name = f"{run}-{'native' if kernels else 'torch'}"
        if not wanted or name in wanted:
            with tempfile.TemporaryDirectory() as place:
                try:
                    mine[name] = RUNS[run](Path(place), kernels)
                except pytest.skip.Exception as reason:
                    print(f"{name} is left as it was: {reason}")
    _write(known)


def _write(known: dict[str, Any]) -> None:
    RECORDED.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--record"]:
        sys.exit(__doc__)
    record(*sys.argv[2:])
