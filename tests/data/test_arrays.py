"""Ids come back from the disk as they went in, a failure leaves nothing, and size costs no memory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import arrays as module
from regard.data.arrays import Table, files_of, pairs_of

FILES = files_of(pairs_of(10))
PAIRS = [([5, 6, 7], [8]), ([], [9, 9]), ([3], [])]
Pairs = list[tuple[list[int], list[int]]]


def read(arrays: Table) -> Pairs:
    return [(source.tolist(), target.tolist()) for source, target in arrays.rows(range(len(arrays)))]


rows = st.lists(st.integers(0, 99), max_size=6)


@settings(max_examples=25, deadline=None)  # each waits for the disk
@given(pairs=st.lists(st.tuples(rows, rows), max_size=12), chunk=st.integers(1, 5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, pairs: Pairs, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        folder = tmp_path_factory.mktemp("arrays") / "train"
        Table.build(folder, iter(pairs), pairs_of(100))
    arrays = Table.open(folder)
    assert len(arrays) == len(pairs)
    assert read(arrays) == pairs
    assert arrays.lengths(range(len(pairs))).tolist() == [[len(source), len(target)] for source, target in pairs]


def test_rows_come_in_the_order_asked_for_and_only_those_there_are(tmp_path: Path) -> None:
    arrays = Table.build(tmp_path / "a", PAIRS, pairs_of(10))
    assert [source.tolist() for source, _ in arrays.rows(np.array([2, 0, 2]))] == [[3], [5, 6, 7], [3]]
    assert arrays.lengths([2, 0]).tolist() == [[1, 0], [3, 1]]
    assert arrays.rows([]) == []
    assert arrays.lengths([]).shape == (0, 2)
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match=r"numbered 0\.\.2"):
            arrays.rows([wrong])


@pytest.mark.parametrize(("vocabulary", "size"), [(65_536, 2), (65_537, 4)])
def test_the_files_are_as_documented(tmp_path: Path, vocabulary: int, size: int) -> None:
    top = vocabulary - 1
    arrays = Table.build(tmp_path / "deep" / "a", [([1, top], [2]), ([top], [])], pairs_of(vocabulary))
    folder = tmp_path / "deep" / "a"
    assert (folder / "source.ids").read_bytes() == b"".join(x.to_bytes(size, "little") for x in (1, top, top))
    assert (folder / "target.offsets").read_bytes() == b"".join(x.to_bytes(8, "little") for x in (0, 1, 1))
    about = json.loads((folder / "arrays.json").read_text())
    assert about["count"] == 2
    assert {column["dtype"] for column in about["columns"].values()} == {f"uint{8 * size}"}
    assert about["bytes"] == {name: (folder / name).stat().st_size for name in FILES}
    assert read(arrays) == [([1, top], [2]), ([top], [])]


@pytest.mark.parametrize("wrong", [-1, 10])
def test_an_id_outside_the_vocabulary_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    pairs = [*PAIRS, ([1], [2, wrong])]
    with pytest.raises(ValueError, match=f"row 3: target id {wrong} is outside the vocabulary of 10"):
        Table.build(tmp_path / "a", pairs, pairs_of(10))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[list[int], list[int]]]:
        yield from PAIRS
        raise ConnectionError("line 4")

    with pytest.raises(ConnectionError, match="line 4"):
        Table.build(tmp_path / "a", broken(), pairs_of(10))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource, sys
from regard.data.arrays import Table, files_of, pairs_of
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))  # no file may grow beyond 64 KB
Table.build(sys.argv[1], (([1] * 100, [2]) for _ in range(10_000)), pairs_of(10))
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True)
    assert run.returncode == 1
    assert "OSError: [Errno 27]" in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_builders_wins(tmp_path: Path) -> None:
    folder = tmp_path / "a"

    def overtaken() -> Iterator[tuple[list[int], list[int]]]:
        Table.build(folder, [([7], [7])], pairs_of(10))
        yield from PAIRS

    assert read(Table.build(folder, overtaken(), pairs_of(10))) == [([7], [7])]
    assert list(tmp_path.iterdir()) == [folder]


def test_many_may_build_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        builds = [pool.submit(Table.build, tmp_path / "a", PAIRS, pairs_of(10)) for _ in range(8)]
        assert all(read(build.result()) == PAIRS for build in builds)
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"holds no arrays\.json: choose another place"):
        Table.build(tmp_path, PAIRS, pairs_of(10))
    assert (tmp_path / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_folder_says_what_to_do(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a"
    Table.build(folder, PAIRS, pairs_of(10))
    path = folder / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{name} is {size - 1} bytes, not {size} bytes: delete the folder {folder}"):
        Table.open(folder)
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing, not {size} bytes: delete the folder {folder}"):
        Table.build(folder, PAIRS, pairs_of(10))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "count": 1, "dtype": "int8"}'])
def test_an_unreadable_description_says_what_to_do(tmp_path: Path, text: str) -> None:
    Table.build(tmp_path / "a", PAIRS, pairs_of(10))
    (tmp_path / "a" / "arrays.json").write_text(text)
    with pytest.raises(ValueError, match=r"cannot use .*arrays\.json .*: delete the folder"):
        Table.open(tmp_path / "a")


def test_no_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        Table.open(tmp_path / "absent")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see a process's peak memory")
def test_twenty_times_the_data_needs_no_more_memory(tmp_path: Path) -> None:
    # VmHWM, not getrusage: a child's ru_maxrss begins at what its parent had.
    code = """
import re, sys
from pathlib import Path
from regard.data.arrays import Table, files_of, pairs_of
from regard.data.batching import collate, token_batches
count = int(sys.argv[2])
pairs = (([i % 9_000] * (5 + i % 20), [i % 7_000] * (5 + i % 23)) for i in range(count))
arrays = Table.build(sys.argv[1], pairs, pairs_of(10_000))
seen = 0
for rows in token_batches(arrays, tokens=4096, seed=1, epoch=0, pool=2**14):
    seen += len(collate(arrays.rows(rows)))
assert seen == count
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
    peaks = []
    for count in (20_000, 400_000):
        argv = [sys.executable, "-c", code, str(tmp_path / str(count)), str(count)]
        peaks.append(int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) / 1024)
    assert sum(path.stat().st_size for path in (tmp_path / "400000").iterdir()) > 25e6
    assert peaks[1] - peaks[0] < 20  # MB
