"""Lines come in as they stand in the file; what is wrong with a file is said with its name and line."""

import gzip
import io
import json
import os
import re
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text import PairFiles, Skipped, read_lines

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=20)
NOT_BLANK = TEXT.filter(str.strip).filter(lambda text: not text.endswith("\r") and text[0] != "\ufeff")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


def save(path: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return str(path)


def both(folder: Path, source: str | bytes, target: str | bytes) -> PairFiles:
    return PairFiles(source=save(folder / "a.en", source), target=save(folder / "a.de", target))


def problem(files: PairFiles | str) -> str:
    """The message of what is wrong, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        list(read_lines(files) if isinstance(files, str) else files.read())
    return str(caught.value)


@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(NOT_BLANK, NOT_BLANK), min_size=1, max_size=5), ending=st.sampled_from(["\n", "\r\n"]))
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_any_pairs_come_back_from_any_of_the_three_forms(
    folder: Path, packed: str, pairs: list[tuple[str, str]], ending: str
) -> None:
    sides = [save(folder / f"a.{i}{packed}", "".join(pair[i] + ending for pair in pairs)) for i in (0, 1)]
    assert list(PairFiles(*sides).read()) == pairs
    objects = "".join(json.dumps({"id": 7, "de": t, "en": s}) + ending for s, t in pairs)
    assert list(PairFiles(jsonl=save(folder / f"a.jsonl{packed}", objects), keys=("en", "de")).read()) == pairs
    plain = [(s.replace("\t", " ") + ".", t.replace("\t", " ") + ".") for s, t in pairs]
    table = "".join(f"7\t{t}\t{s}{ending}" for s, t in plain)
    assert list(PairFiles(tsv=save(folder / f"a.tsv{packed}", table), columns=(2, 1)).read()) == plain


@settings(max_examples=50, deadline=None)
@given(lines=st.lists(TEXT.filter(lambda text: not text.endswith("\r")), min_size=1), whole=st.booleans())
def test_read_lines_gives_one_for_each_line(folder: Path, lines: list[str], whole: bool) -> None:
    lines = ["first", *lines] if whole else ["first", *lines, "last"]
    path = save(folder / "lines.txt", "\n".join(lines) + "\n" * whole)
    assert list(read_lines(Path(path))) == lines


def test_lines_end_at_a_line_feed_alone_and_a_byte_order_mark_goes(tmp_path: Path) -> None:
    odd = "a\rb\u2028c\x0bd\x85e\x1cf"
    assert list(read_lines(save(tmp_path / "a", f"\ufeff{odd}\r\r\n\n\ufeffx\r\n"))) == [odd + "\r", "", "\ufeffx"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("één\n\ntwo".encode())))
    assert list(read_lines("-")) == ["één", "", "two"]
    assert not sys.stdin.closed
    assert problem("-") == "standard input is empty; it needs at least one line"


def test_blank_and_long_pairs_are_left_out_whole_and_counted(tmp_path: Path) -> None:
    files = both(
        tmp_path, "one\n\ntwo\nthree\n" + "y" * 11 + "\nfour\n", "eins\nx\n \u3000\ndrei\ny\n" + "z" * 10 + "\n"
    )
    skipped = Skipped()
    expected = [("one", "eins"), ("three", "drei"), ("four", "z" * 10)]
    assert list(files.read(max_characters=10, skipped=skipped)) == expected
    assert (skipped.empty, skipped.long, skipped.cut) == (2, 1, 0)
    assert skipped.report() == "skipped 3 pairs: 2 with an empty side, 1 too long"
    assert Skipped().report() == ""
    assert Skipped(long=1, cut=1).report() == "skipped 1 pair: 1 too long; cut 1 line that went on too long"


def test_blank_lines_of_tables_are_left_out_too(tmp_path: Path) -> None:
    skipped = Skipped()
    tsv = PairFiles(tsv=save(tmp_path / "a.tsv", "a\tb\n\n \nc\t\n\td\n"))
    assert list(tsv.read(skipped=skipped)) == [("a", "b")]
    jsonl = PairFiles(
        jsonl=save(tmp_path / "a.jsonl", '\n{"source": "a", "target": "b"}\n{"source": "", "target": "b"}')
    )
    assert list(jsonl.read(skipped=skipped)) == [("a", "b")]
    assert skipped == Skipped(empty=6)


@pytest.mark.parametrize("name", ["a.en.gz", "a.tsv.gz", "a.jsonl.gz"])
def test_an_endless_line_is_never_held(tmp_path: Path, name: str) -> None:
    size = 2**25
    good = {"en": "good", "tsv": "good\tgut", "jsonl": '{"source": "good", "target": "gut"}'}[name.split(".")[1]]
    path = save(tmp_path / name, f"{good}\n{'x' * size}\n{good}\n")
    if "en" in name:
        files = PairFiles(source=path, target=save(tmp_path / "a.de", "gut\nx\ngut\n"))
    else:
        files = PairFiles(**{name.split(".")[1]: path})  # type: ignore[arg-type]
    skipped = Skipped()
    tracemalloc.start()
    try:
        assert list(files.read(skipped=skipped)) == [("good", "gut")] * 2
        assert tracemalloc.get_traced_memory()[1] < size // 4
    finally:
        tracemalloc.stop()
    assert skipped == Skipped(long=1)


@pytest.mark.parametrize("letter", ["x", "é", "語", "🙂"])
def test_a_long_line_is_cut_at_a_character_and_counted(tmp_path: Path, letter: str) -> None:
    skipped = Skipped()
    path = save(tmp_path / "a", f"\ufeff{letter * 10}\r\n{letter * 11}\n{letter * 1000}\n{letter}")
    lines = list(read_lines(path, max_characters=10, skipped=skipped))
    assert lines == [letter * 10, letter * 10, letter * 10, letter]
    assert skipped == Skipped(cut=2)
    with pytest.raises(ValueError, match="a, line 2 has more than 10 characters: break it up"):
        list(read_lines(path, max_characters=10, cut=False))


def test_missing_files_and_directories_are_the_systems_errors(tmp_path: Path) -> None:
    here = save(tmp_path / "a", "a")
    for path, kind in [("none", FileNotFoundError), ("none.gz", FileNotFoundError), ("", IsADirectoryError)]:
        where = str(tmp_path / path)
        for use in (
            lambda where: list(PairFiles(source=here, target=where).read()),
            lambda where: list(read_lines(where)),
            lambda where: PairFiles(tsv=where).fingerprint(),
        ):
            with pytest.raises(kind) as caught:
                use(where)
            assert caught.value.filename == where


def test_empty_files(tmp_path: Path) -> None:
    for name in ("a.tsv", "a.tsv.gz"):
        path = save(tmp_path / name, "")
        assert problem(PairFiles(tsv=path)) == f"{path} is empty; it needs at least one line"
    assert problem(both(tmp_path, "a\n", "")) == f"{tmp_path / 'a.de'} is empty; it needs at least one line"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = save(tmp_path / "latin", "fine\nein schöner Tag\n".encode("latin-1"))
    expected = f"{path}, line 2: byte 8 of the line (0xf6) is not UTF-8; save the file as UTF-8 text"
    assert problem(path) == expected
    cut = save(tmp_path / "cut", "fine\né".encode()[:-1])
    assert problem(cut).startswith(f"{cut}, line 2: byte 1 of the line (0xc3) is not UTF-8")
    nul = save(tmp_path / "nul", "a\nb\0c\n")
    assert problem(nul) == f"{nul}, line 2 holds a NUL byte; save the file as UTF-8 text without it"


@pytest.mark.parametrize(("lines", "others"), [(2, 5), (5, 2), (1, 2)])
def test_files_of_different_lengths(tmp_path: Path, lines: int, others: int) -> None:
    files = both(tmp_path, "a\n" * lines, "b\n" * others)
    expected = f"{files.source} has {lines} line{'s' * (lines > 1)} and {files.target} has {others}: "
    assert problem(files).startswith(expected)


def test_broken_gzip(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gz"
    plain.write_text("not packed\n")
    assert problem(str(plain)).startswith(f"{plain} is no whole gzip file (Not a gzipped file (b'no'))")
    whole = gzip.compress("".join(f"line {i}\n" for i in range(1000)).encode())
    for broken in (whole[:-100], whole[:-1], whole[:50] + bytes(100) + whole[150:], whole[:-8] + bytes(8)):
        path = tmp_path / "broken.gz"
        path.write_bytes(broken)
        assert problem(str(path)).startswith(f"{path} is no whole gzip file (")


def test_a_tsv_line_with_too_few_columns(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tsv", "a\tb\tc\nd\te\n")
    assert problem(PairFiles(tsv=path, columns=(2, 0))) == (
        f"{path}, line 2: found 2 columns between tabs, and columns 2 and 0 (from 0) need 3; "
        "correct the line or `columns`"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'source': 1}", "is no JSON (Expecting property name enclosed in double quotes); each line holds one object"),
        ("[" * 100_000, "is no JSON (RecursionError)"),
        ("1" * 5_000, "is no JSON (ValueError)"),
        ("[1, 2]", 'is no JSON object but [1, 2]; write {"source": ..., "target": ...}'),
        ('{"src": "", "target": ""}', "lacks the key 'source'; the nearest is 'src'. Set `keys`"),
        ('{"source": "", "targte": ""}', "lacks the key 'target'; the nearest is 'targte'"),
        ("{}", "lacks the key 'source': it is empty"),
        ('{"source": 12, "target": ""}', ": 'source' is not text but 12; put it in quotes"),
        ('{"source": "", "target": null}', ": 'target' is not text but null"),
        ('{"source": "\\u0000", "target": ""}', ": 'source' holds a NUL or half a surrogate pair"),
        ('{"source": "", "target": "\\ud83d"}', ": 'target' holds a NUL or half a surrogate pair"),
    ],
)
def test_a_jsonl_line_that_is_no_pair(tmp_path: Path, line: str, message: str) -> None:
    path = save(tmp_path / "a.jsonl", f'{{"source": "a", "target": "\\ud83d\\ude42"}}\n{line}\n')
    assert re.match(re.escape(f"{path}, line 2") + " ?" + re.escape(message), problem(PairFiles(jsonl=path)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name one, got none"),
        ({"source": "a"}, "source and target come together, got source='a', target=None"),
        ({"target": "a"}, "source and target come together"),
        ({"source": "a", "target": ""}, "name one"),
        ({"tsv": "a", "jsonl": "b"}, r"name one, got \['tsv', 'jsonl'\]"),
        ({"source": "a", "target": "b", "tsv": "c"}, r"name one, got \['source', 'tsv'\]"),
        ({"tsv": "a", "columns": (1, 1)}, r"two different columns of the tsv, counted from 0, got \(1, 1\)"),
        ({"tsv": "a", "columns": (-1, 1)}, "counted from 0"),
        ({"jsonl": "a", "keys": ("en", "en")}, "two different keys"),
    ],
)
def test_pairs_come_one_way(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairFiles(**given)


def test_the_fingerprint_is_of_content_and_of_what_is_read(tmp_path: Path) -> None:
    one = both(tmp_path, "a\n", "b\n")
    assert one.source is not None
    (tmp_path / "moved").mkdir()
    moved = both(tmp_path / "moved", "a\n", "b\n")
    swapped = PairFiles(source=one.target, target=one.source)
    tables = [PairFiles(tsv=one.source), PairFiles(tsv=one.source, columns=(1, 0))]
    objects = [PairFiles(jsonl=one.source), PairFiles(jsonl=one.source, keys=("en", "de"))]
    split = both(tmp_path / "moved", "a", "\nb\n")
    assert one.fingerprint() == both(tmp_path, "a\n", "b\n").fingerprint()
    prints = [files.fingerprint() for files in (one, swapped, *tables, *objects, split)]
    assert len(set(prints)) == len(prints)
    both(tmp_path / "moved", "a\n", "b\n")
    assert moved.fingerprint() == one.fingerprint()
    assert PairFiles(one.source, one.target, columns=(2, 3), keys=("x", "y")).fingerprint() == one.fingerprint()


def test_pairs_come_from_files_since_they_are_read_again_and_lines_from_anything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    files = PairFiles(tsv=str(tmp_path / "pipe"))
    for call in (lambda: files.fingerprint(), lambda: list(files.read())):
        with pytest.raises(ValueError, match="pipe is no file, but a pipe or a device"):
            call()
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("a\nb\n"))
    writer.start()
    assert list(read_lines(tmp_path / "pipe")) == ["a", "b"]
    writer.join()
