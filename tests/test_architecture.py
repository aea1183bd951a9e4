"""Imports point one way (docs/architecture.md), names mean one thing, no file and no room outgrows its place."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "regard"
LONGEST = 500  # lines; at this length a room is missing

# What a room may import from `regard` besides itself. A new room states its arrows here first.
LEAVES = {"checks", "files", "heap", "shipped"}
ROOMS: dict[str, set[str]] = {
    "checks": set(),  # what a person may ask for, said in one line
    "files": set(),  # whole files; whoever writes one
    "heap": set(),  # what the C library does with freed memory
    "cluster": {"checks"},  # the machines of a Ray cluster; what they do is an argument
    "shipped": set(),  # where the models are that come along
    "core": {"checks"},
    "data": {"checks", "files"},
    "evaluation": {"checks", "files"},
    "models": {"checks", "files", "core", "adaptation"},
    "decoding": {"checks", "core"},
    "inspection": {"checks", "files", "core"},
    "native": {"files", "core", "decoding"},
    "adaptation": {"checks", "core", "inspection"},  # it finds its way by type, never by a model's name
    "training": {"checks", "files", "heap", "core", "data", "native"},  # never models: a model is an argument
    "tasks": {"checks", "core", "data", "training", "decoding", "native", "inspection", "evaluation"},  # nor here
    "convert": {"checks", "files", "core", "adaptation", "data", "decoding", "models"},
    "recipes": {"checks", "files", "core", "adaptation", "data", "models", "native", "training", "tasks", "api"},
    "api": {*LEAVES, "core", "data", "models", "tasks", "recipes"},
}
BELOW = set(ROOMS)
ROOMS["studies"] = BELOW
ROOMS["experiments"] = BELOW
ROOMS["serving"] = BELOW - {"recipes", "training", "convert", "evaluation"}  # it uses models, and makes none
ROOMS["cli"] = BELOW | {"experiments", "serving", "studies"}
ROOMS["__main__"] = {"cli"}
FRONT = {"api", "inspection"}  # what `import regard` brings
# Narrow doors: which files of a room may import another room, and which of a room another may see.
THROUGH = {
    ("models", "adaptation"): {"storage"},
    ("recipes", "api"): {"distil", "rewards"},
    ("recipes", "native"): {"shortlist"},
}
SEEN = {
    ("tasks", "training"): {"objectives", "policies", "run", "stream", "validation"},
    ("api", "recipes"): {"reading"},
}
# A model imports another only where it is one.
MODELS_OF_MODELS: dict[str, set[str]] = {
    "captioner": {"transformer"},
    "speech": {"transformer"},
    "video": {"vision"},
    "seer": {"decoder", "vision"},
}
SHARED = {"family"}  # what they all have in common
ABOUT_MODELS = {"__init__", "costs", "storage"}  # no members of the family: they may import any of them
# Lines of Python that a room may have: a little more than it has. Who needs more takes something out, or says why.
BUDGET = {
    "__init__": 30,
    "checks": 110,
    "files": 212,
    "heap": 35,
    "cluster": 150,
    "shipped": 40,
    "core": 4_800,  # sums of rows of a table, which a kernel may make
    "data": 8_440,  # what of a folder cannot be reached, damaged documents, and graphs that fit no form are named
    "evaluation": 1_535,  # Whisper's way to compare English texts has many words
    "models": 3_675,
    "decoding": 2_320,
    "inspection": 2_580,
    "native": 2_265,  # maps and feed-forward networks in bf16; a bias that learns, and sums of rows of a table
    "adaptation": 1_475,
    "training": 2_995,  # what several processes need is loaded by them alone
    "tasks": 10_150,  # who learnt from single texts takes no pairs
    "convert": 5_010,  # sixteen classes of Hugging Face's, a table each
    "recipes": 1_485,
    "api": 215,
    "studies": 1_965,
    "experiments": 4_770,
    "serving": 5_932,
    "cli": 3_310,  # one process an output, and none over what is there
    "__main__": 10,
}


def imports(path: Path, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and dotted name of each import anywhere in a file; `from a import b` counts as a.b."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            package = module[: len(module) - node.level] if node.level else ()
            base = package + tuple(node.module.split(".") if node.module else ())
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


def allowed(here: tuple[str, ...], there: tuple[str, ...]) -> bool:
    """Whether the module `here`, such as (regard, core, masks), may import `there`."""
    room, member = here[1], here[2] if len(here) > 2 else ""
    if there[0] != "regard":
        return room != "core" or there[0] == "torch" or there[0] in sys.stdlib_module_names
    to_room, to_member = (*there[1:3], "", "")[:2]
    if room == "__init__":
        return to_room in FRONT
    if there == ("regard",):
        return room == "cli"  # which shows its version and what it says of itself
    if member not in THROUGH.get((room, to_room), {member}) or to_member not in SEEN.get((room, to_room), {to_member}):
        return False
    if room == to_room == "models":
        return (
            member in ABOUT_MODELS or to_member == member or to_member in SHARED | MODELS_OF_MODELS.get(member, set())
        )
    return room in ROOMS and (to_room == room or to_room in ROOMS[room])


def violations(package: Path) -> list[str]:
    """Each import that no arrow allows, as `file:line imports name`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        here = ("regard", *path.relative_to(package).with_suffix("").parts)
        for line, there in imports(path, here):
            if not allowed(here, there):
                found.append(f"{'/'.join(here)}.py:{line} imports {'.'.join(there)}")
    return found


def test_imports_point_one_way() -> None:
    assert violations(PACKAGE) == []


def test_every_room_states_its_arrows() -> None:
    rooms = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in PACKAGE.rglob("*.py")}
    assert rooms - ROOMS.keys() == {"__init__"}


@pytest.mark.parametrize(
    ("file", "line", "named"),
    [
        ("core/masks.py", "from regard.models.transformer import Transformer", "regard.models.transformer.Transformer"),
        ("core/masks.py", "import numpy.linalg", "numpy.linalg"),
        ("core/masks.py", "import regard", "regard"),
        ("core/masks.py", "from ..data import dates", "regard.data.dates"),
        ("core/masks.py", "def f():\n    import regard.inspection.taps", "regard.inspection.taps"),
        ("data/dates.py", "from regard.core.masks import causal", "regard.core.masks.causal"),
        ("evaluation/bleu.py", "from regard.data import dates", "regard.data.dates"),
        ("models/gpt.py", "from regard.models.transformer import Transformer", "regard.models.transformer.Transformer"),
        ("models/gpt.py", "from . import transformer", "regard.models.transformer"),
        ("models/gpt.py", "from regard.training.loop import fit", "regard.training.loop.fit"),
        ("training/loop.py", "from regard import models", "regard.models"),
        ("decoding/beam.py", "import regard.models.transformer as t", "regard.models.transformer"),
        ("inspection/taps.py", "from regard.models import transformer", "regard.models.transformer"),
        ("inspection/taps.py", "from regard import record", "regard.record"),
        ("experiments/table1.py", "from regard.cli import main", "regard.cli.main"),
        ("tasks/translate.py", "from regard.models.family import build", "regard.models.family.build"),
        ("tasks/translate.py", "from regard.training.loop import Learner", "regard.training.loop.Learner"),
        ("models/gpt.py", "from regard.adaptation.change import changed", "regard.adaptation.change.changed"),
        ("recipes/train.py", "from regard.api import load", "regard.api.load"),
        ("api.py", "from regard.recipes.train import train", "regard.recipes.train.train"),
        ("serving/service.py", "from regard.recipes.train import train", "regard.recipes.train.train"),
        ("__init__.py", "from regard.cli import main", "regard.cli.main"),
        ("attic/old.py", "from regard.core import masks", "regard.core.masks"),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, file: str, line: str, named: str) -> None:
    path = tmp_path / "regard" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"import math\n\nimport torch\n\n{line}\n")
    (found,) = violations(tmp_path / "regard")
    assert found.startswith(f"regard/{file}:")
    assert found.endswith(f" imports {named}")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/attention.py", "from regard.core.masks import causal"),
        ("models/storage.py", "from regard.models.transformer import Transformer"),
        ("models/gpt.py", "from ..core import blocks"),
        ("models/storage.py", "from regard.adaptation.change import changed"),
        ("tasks/generate.py", "from regard.training.objectives import NextToken"),
        ("recipes/distil.py", "from regard.api import load"),
        ("inspection/page.py", "import numpy"),
        ("cli/command.py", "from regard.experiments.demo import run"),
        ("__main__.py", "from regard.cli import main"),
        ("__init__.py", "from regard.inspection.taps import record"),
    ],
)
def test_a_good_import_passes(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / "regard" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert violations(tmp_path / "regard") == []


def test_no_file_outgrows_a_sitting() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert [path.name for path, lines in lengths.items() if lines >= LONGEST] == []


def lines_of_rooms() -> dict[str, int]:
    """Lines of Python in each room; a file beside the rooms is one."""
    found: dict[str, int] = defaultdict(int)
    for path in PACKAGE.rglob("*.py"):
        found[path.relative_to(PACKAGE).with_suffix("").parts[0]] += len(path.read_text("utf-8").splitlines())
    return found


def test_no_room_outgrows_its_budget() -> None:
    found = lines_of_rooms()
    assert found.keys() == BUDGET.keys()
    assert {room: lines for room, lines in found.items() if lines > BUDGET[room]} == {}


def test_the_page_names_every_file_and_no_other() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
    tree = page.partition("```\n")[2].partition("\nbench/")[0]
    rooms = re.split(r"^  (\w+)/ ", tree, flags=re.MULTILINE)
    for room, text in zip(rooms[1::2], rooms[2::2], strict=True):
        named = set(re.findall(r"\b(\w+)\.py\b", re.split(r"^  \w+\.py", text, flags=re.MULTILINE)[0]))
        there = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
        assert named <= there, (room, named - there)
        assert not named or room == "experiments" or named >= there, (room, there - named)


def public_classes(package: Path) -> dict[str, list[str]]:
    """Where each public class is, by its name; the structs of C aside."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if "Structure" not in map(ast.unparse, node.bases):  # of C, which has the name
                found[node.name].append(path.relative_to(package).as_posix())
    return found


def test_one_public_name_is_one_thing() -> None:
    assert {name: paths for name, paths in public_classes(PACKAGE).items() if len(paths) > 1} == {}


def test_a_name_that_means_two_things_is_caught(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Memory: ...\nclass _Own: ...\n")
    (tmp_path / "b.py").write_text("class Memory: ...\nclass _Own: ...\nclass Row(Structure): ...\n")
    assert public_classes(tmp_path) == {"Memory": ["a.py", "b.py"]}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_room_says_what_lives_there_and_where_to_begin(room: str) -> None:
    said = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8"))) or ""
    begin = " ".join(said.split()).partition("Begin with")[2].split("`")[1::2]
    assert begin
    assert len(said.split()) > 25
    assert all(_exists(PACKAGE / room, name) for name in begin), begin


def _exists(room: Path, name: str) -> bool:
    """Whether a room has what is named so: a file or folder, or something in a file."""
    file, _, inner = name.partition(".")
    path = room / f"{file}.py"
    return (room / name).exists() or (path.exists() and (not inner or f" {inner}" in path.read_text("utf-8")))
