"""README.md keeps its word, in each language: its Python runs and prints what it says, its links and verbs exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README, CHINESE = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh.md"))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README + CHINESE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_prints_what_its_comments_say(block: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)


def test_there_is_an_example() -> None:
    assert BLOCKS


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)", path.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_verbs_exist(page: str) -> None:
    verbs = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make (\w+)", (ROOT / page).read_text("utf-8"), re.MULTILINE)) <= verbs


def code(page: str) -> list[str]:
    """What stands in blocks and between back-ticks, line by line, without what is remarked on it."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"\s+#.*", "", line).rstrip() for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return lines + sorted(re.sub(r"\s+", " ", each) for each in re.findall(r"`([^`]+)`", prose))


def test_both_languages_name_the_same_commands_links_and_figures() -> None:
    assert code(CHINESE) == code(README)
    for what in (r"\]\((?!README)([^)]+)\)", r"\b\d\.\d+\b", r"\b\d+ BLEU"):
        assert sorted(re.findall(what, CHINESE)) == sorted(re.findall(what, README))
    assert "(README.zh.md)" in README
    assert "(README.md)" in CHINESE
