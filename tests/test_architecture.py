"""Imports point one way (docs/architecture.md), and no file outgrows a sitting."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "regard"
LONGEST = 500  # lines; at this length a room is missing

# What a room may import from `regard` besides itself. A new room states its arrows here first.
LEAVES = {"checks", "files"}
ROOMS: dict[str, set[str]] = {
    "checks": set(),  # what a person may ask for, said in one line
    "files": set(),  # whole files; whoever writes one
    "shipped": set(),  # where the models are that come along
    "core": {"checks"},
    "data": LEAVES,
    "evaluation": LEAVES,
    "models": LEAVES | {"core", "adaptation"},  # of which the last is for the storage alone
    "decoding": LEAVES | {"core"},
    "inspection": LEAVES | {"core"},
    "native": LEAVES | {"core", "decoding"},
    "adaptation": LEAVES | {"core", "inspection"},  # it finds its way by type, never by a model's name
    "training": LEAVES | {"core", "data", "native"},  # never models: a model is an argument
    "convert": LEAVES | {"core", "adaptation", "data", "decoding", "models"},
}
BELOW = set(ROOMS)
ROOMS |= {
    "tasks": BELOW | {"recipes"},
    "recipes": BELOW | {"tasks", "api"},
    "api": BELOW | {"tasks", "recipes"},
}
BELOW |= {"tasks", "recipes", "api"}
ROOMS["studies"] = BELOW
ROOMS["experiments"] = BELOW
ROOMS["serving"] = BELOW | {"studies"}
ROOMS["cli"] = BELOW | {"experiments", "serving", "studies"}
ROOMS["__main__"] = {"cli"}
FRONT = {"api", "inspection"}  # what `import regard` brings
# A model imports another only where it is one.
MODELS_OF_MODELS: dict[str, set[str]] = {}
SHARED = {"family"}  # what they all have in common
ABOUT_MODELS = {
    "__init__",
    "costs",
    "storage",
}  # no members of the family: they may import any of them


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
    if room == "models" and to_room == "adaptation":
        return member == "storage"
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
