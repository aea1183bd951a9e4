"""Passages keep sentences whole, and know where they stand."""

import errno
import os
from pathlib import Path

import pytest

from regard.data.collection import Documents, Store
from regard.data.passages import FAILED, Standing, TextBlock, packed, paragraphs, sentences
from regard.data.shelf import SeenFiles
from regard.data.text import Skipped
from tests.documents import pdf

PROSE = """# Rents

The rent is due on the first day of a month. Who pays later, by up to ten days,
pays a fee. Dr. Smith, whose office is on the ground floor in no. 12, is the
landlord; write to him.

- keys are to be given back
- doors are to be locked

The house has three floors."""
PAGE = """<html><head><title>A house</title><style>p { x }</style></head>
<body><h1>Rooms</h1><p>The <b>kitchen</b> is
small. It has
  a window.</p><script>
var hidden = "nothing. To read.";
</script><ul><li>a bath<li>a cellar &amp; a loft</ul></body></html>"""


def read(path: Path, skipped: Skipped | None = None, **how: int) -> list[tuple[str, str]]:
    return [tuple(each) for each in Documents(path, "passage", (), **how).read(skipped)]  # type: ignore[misc]


@pytest.mark.parametrize("most", [60, 100, 200, 10_000])
def test_a_passage_is_whole_sentences_at_the_line_that_it_names(most: int) -> None:
    lines = PROSE.split("\n")
    whole = [s.text for block in paragraphs(lines) for s in sentences(block, 10_000)]
    assert "Who pays later, by up to ten days,\npays a fee." in whole  # a line that is full goes on
    assert "Dr. Smith, whose office is on the ground floor in no. 12, is the\nlandlord; write to him." in whole
    assert whole[-3:] == ["- keys are to be given back", "- doors are to be locked", "The house has three floors."]
    found = list(packed(paragraphs(lines), most))
    assert "".join("".join(each.text for each in found).split()) == "".join(PROSE.split())  # nothing is lost
    for each in found:
        assert len(each.text) <= most
        first, *more = each.text.split("\n")
        assert lines[each.line - 1].find(first.strip()) >= 0
        for n, line in enumerate(more, start=each.line):  # and so is every further line of it
            assert line.strip() in lines[n]
    if most >= 100:  # no sentence is longer
        ends = [s.rstrip() for s in whole]
        assert all(any(each.text.rstrip().endswith(end) for end in ends) for each in found)


def test_a_sentence_that_is_too_long_is_cut_and_pages_are_not_joined() -> None:
    long = TextBlock("first one, then the other, " * 9, 1)
    parts = list(packed([long], 50))
    assert all(len(part.text) <= 50 for part in parts)
    assert "".join("".join(part.text for part in parts).split()) == "".join(long.text.split())
    pages = [TextBlock("One.", 1, 1), TextBlock("Two.", 1, 2), TextBlock("Three.", 2, 2), TextBlock("Far.", 40, 2)]
    assert [(b.text, b.page) for b in packed(pages, 100)] == [("One.", 1), ("Two.\nThree.", 2), ("Far.", 2)]


def test_html_has_its_text_at_the_lines_of_its_source(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE)
    found = read(tmp_path, characters=40)
    assert found == [
        ("a.html:1", "A house\nRooms The kitchen is\nsmall."),
        ("a.html:3", "It has\n  a window.\n\na bath"),  # what is short is joined
        ("a.html:6", "a cellar & a loft"),
    ]
    (tmp_path / "b.htm").write_bytes('<meta charset="iso-8859-1"><p>caf\xe9'.encode("latin-1"))
    assert read(tmp_path / "b.htm") == [("b.htm:1", "café")]


def test_a_pdf_has_pages(tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="needs pypdf")
    (tmp_path / "r.pdf").write_bytes(pdf(["The first page.", "It has two lines."], ["A second page tells more."]))
    found = read(tmp_path)
    assert [id for id, _ in found] == ["r.pdf#page=1:1", "r.pdf#page=2:1"]
    assert found[0][1].split("\n") == ["The first page.", "It has two lines."]
    assert Standing.of(found[1][0]) == ("r.pdf", 2, 1)


def test_what_cannot_be_read_is_named_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="needs pypdf")
    (tmp_path / "a.txt").write_bytes(b"fine.\n\nbad: \xff\n")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 and no more")
    (tmp_path / "c.pdf").write_bytes(pdf([]))
    (tmp_path / "d.txt").write_text("good.")
    (tmp_path / "e.png").write_bytes(b"x")
    skipped = Skipped()
    found = read(tmp_path, skipped)
    assert ("d.txt:1", "good.") in found
    assert skipped.notes[FAILED] == 3
    said = skipped.report()
    for part in (
        "1 file: a.txt (line 3",
        "b.pdf (no PDF that can be read",
        "c.pdf (a PDF without text",
        "1 of the files left out",
    ):
        assert part in said


def test_files_that_are_as_they_were_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from regard.data import passages

    folder = tmp_path / "docs"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text("".join(f"{name} says {n}.\n\n" for n in range(5)))
    seen_files: list[str] = []
    real = passages.blocks
    monkeypatch.setattr(passages, "blocks", lambda file: seen_files.append(file.name) or real(file))
    store = Store(tmp_path / "index", "model", "m", 2)

    def renew() -> int:
        seen = SeenFiles(store, "how")
        documents = Documents(folder, "passage", (), 20).read(Skipped(), seen)
        store.renew(documents, lambda texts: (np.ones((1, 2), np.float32) for _ in texts))
        seen.save()
        return seen.kept

    assert renew() == 0
    before = list(store)
    assert renew() == 3
    assert (list(store), len(seen_files)) == (before, 3)
    (folder / "b.txt").write_text("b is new.")
    (folder / "a.txt").unlink()
    assert renew() == 1
    assert seen_files[3:] == ["b.txt"]
    assert list(store) == [("b.txt:1", "b is new."), *before[6:]]
    os.utime(folder / "c.txt", ns=(1, 1))
    assert renew() == 1
    assert seen_files[4:] == ["c.txt"]


def test_a_file_that_goes_while_others_are_read_is_named(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} is here.")
    skipped = Skipped()
    documents = Documents(tmp_path, "passage", ()).read(skipped, SeenFiles(Store(tmp_path / "new", "m", "m", 2), ""))
    assert next(documents).id == "a.txt:1"
    (tmp_path / "b.txt").unlink()  # it was listed
    assert [*documents] == []
    assert "1 file: b.txt (No such file or directory)" in skipped.report()


def test_what_is_in_a_folder_and_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "here.txt").write_text("It is here.")
    (docs / "around").symlink_to(docs)
    (docs / "gone.txt").symlink_to("nowhere.txt")
    os.mkfifo(docs / "pipe.txt")
    (docs / "locked").mkdir()
    (docs / "locked" / "a.txt").write_text("Nobody reads it.")
    real = os.scandir

    def locked(folder: str) -> object:
        if str(folder).endswith("locked"):  # root may enter where others may not
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return real(folder)

    monkeypatch.setattr(os, "scandir", locked)
    skipped = Skipped()
    assert read(docs, skipped) == [("here.txt:1", "It is here.")]
    said = skipped.report()
    for part in (
        "1 file: gone.txt (No such file or directory)",
        "is no file, but a pipe or a device",
        "1 file: locked (Permission denied)",
        "1 links to folders were not followed",
    ):
        assert part in said, said


@pytest.mark.parametrize("unit", ["passage", "line"])
def test_a_name_that_is_no_text_is_written_as_text(tmp_path: Path, unit: str) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("It is open.")
    except OSError:
        pytest.skip("names of files are UTF-8 here")
    assert [*Documents(tmp_path, unit, ()).read()] == [("caf\\udce9.txt:1", "It is open.")]
