"""docs/paper.md is whole, and every name in it exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"`([\w./]+\.py)::([\w.]+)`")
SECTIONS = "1 2 3 3.1 3.2 3.2.1 3.2.2 3.2.3 3.3 3.4 3.5 4 5 5.1 5.2 5.3 5.4 6 6.1 6.2 6.3 7"  # all there are


def rows(text: str) -> list[list[str]]:
    """The cells of each row of each Markdown table, without heads and rules."""
    lines = text.splitlines()
    is_rule = [re.fullmatch(r"\|[-|: ]+\|", line) is not None for line in lines]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line, rule, rule_follows in zip(lines, is_rule, [*is_rule[1:], False], strict=True)
        if line.startswith("|") and not rule and not rule_follows
    ]


def defined(node: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """What the body of a module or class gives a name to."""
    found: dict[str, ast.stmt] = {}
    for statement in node.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = statement
            case ast.Assign(targets=targets):
                found |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    return found


def missing(text: str) -> list[str]:
    """The entries `path::name` of a text that name nothing."""
    result = []
    for path, dotted in ENTRY.findall(text):
        file = ROOT / path
        scope: ast.stmt | ast.Module | None = ast.parse(file.read_text("utf-8")) if file.is_file() else None
        for name in dotted.split("."):
            scope = defined(scope).get(name) if isinstance(scope, ast.Module | ast.ClassDef) else None
        if scope is None:
            result.append(f"{path}::{dotted}")
    return result


MAP = (ROOT / "docs" / "paper.md").read_text("utf-8")


def test_every_name_exists() -> None:
    assert ENTRY.search(MAP)
    assert missing(MAP) == []


def test_nothing_of_the_paper_is_left_out() -> None:
    first = [row[0] for row in rows(MAP)]
    assert " ".join(cell[1:].split()[0] for cell in first if cell.startswith("§")) == SECTIONS
    for kind, count in (("Eq.", 3), ("Figure", 5), ("Table", 4)):
        assert [cell for cell in first if cell.startswith(kind)] == [f"{kind} {i + 1}" for i in range(count)]
    assert {"MultiHead", "PE"} <= set(first)


def test_every_row_says_where_it_is_or_that_it_is_not() -> None:
    for row in rows(MAP):
        assert len(row) == 3, row
        assert ENTRY.search(row[2]) or "not yet" in row[2] or "nothing to build" in row[2], row
        assert row[2].count("::") == len(ENTRY.findall(row[2])), f"ill-formed entry in {row}"


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("`regard/core/attention.py::attend`", True),
        ("`regard/core/layers.py::Residual.forward`", True),
        ("`regard/models/transformer.py::TransformerConfig.tie`", True),
        ("`regard/core/backends.py::BACKENDS`", True),
        ("`regard/core/attention.py::atend`", False),
        ("`regard/core/layers.py::Residual.backward`", False),
        ("`regard/core/attention.py::attend.q`", False),
        ("`regard/core/attentions.py::attend`", False),
    ],
)
def test_a_wrong_entry_is_caught(entry: str, found: bool) -> None:
    assert (missing(entry) == []) is found
