"""docs/read.md leads somewhere: every stop is there, as long as it says, and the whole path is short."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "read.md").read_text("utf-8")
LONGEST = 1_100  # lines
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (\d+) \| .+ \|$", PAGE, re.MULTILINE)


def lines(stop: str) -> int:
    """How many lines what is named as in `core/masks.py::Mask.block` has."""
    file, _, name = stop.partition("::")
    node: ast.AST = ast.parse((ROOT / "regard" / file).read_text("utf-8"))
    for part in name.split("."):
        # The last of a name, for those before it are overloads.
        node = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part][-1]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def stops() -> list[tuple[list[str], int]]:
    """What is read at each stop, and how many lines the page says it has."""
    return [(re.findall(r"`([\w/]+\.py::[\w.]+)`", read), int(said)) for _, read, said in ROWS]


@pytest.mark.parametrize(("read", "said"), stops(), ids=[number for number, _, _ in ROWS])
def test_a_stop_is_there_and_about_as_long_as_it_says(read: list[str], said: int) -> None:
    assert read
    assert sum(map(lines, read)) == pytest.approx(said, rel=0.2, abs=5)


def test_the_path_is_whole_and_short() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, len(ROWS) + 1))
    assert 10 <= len(ROWS) <= 14
    assert 700 < sum(lines(stop) for read, _ in stops() for stop in read) < LONGEST
    others = set(re.findall(r"`([\w/]+\.py)(?:::\w+)?`", PAGE))
    assert all((ROOT / "regard" / file).exists() for file in others)


def test_a_stop_that_is_not_there_is_missed() -> None:
    with pytest.raises((IndexError, FileNotFoundError)):
        lines("core/attention.py::atend")
