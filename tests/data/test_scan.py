"""SCAN as a corpus: from files, from their archive or from the network, checked; a mistake names the file."""

import hashlib
import os
import tarfile
from pathlib import Path

import pytest

from regard.data.corpora import CORPORA, obtain

SHARED = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEXT = "IN: walk OUT: I_WALK\nIN: run left twice OUT: I_TURN_LEFT I_RUN I_TURN_LEFT I_RUN\n"
PAIRS = [("walk", "I_WALK"), ("run left twice", "I_TURN_LEFT I_RUN I_TURN_LEFT I_RUN")]


@pytest.fixture
def scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a length split of two lines."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    files = CORPORA["scan-in-out-length"].form.files
    for split, (name, _) in list(files.items()):
        path = tmp_path / "data" / "scan" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT)
        monkeypatch.setitem(files, split, (name, hashlib.sha256(TEXT.encode()).hexdigest()))
    return tmp_path / "data" / "scan"


def test_files_become_commands_and_actions(scan: Path) -> None:
    found = obtain("scan-in-out-length")
    assert set(found) == {"train", "test"}
    assert list(found["train"].read()) == list(found["test"].read()) == PAIRS


def test_the_archive_holds_the_same(scan: Path) -> None:
    with tarfile.open(scan / "scan.tar.gz", "w:gz") as archive:
        archive.add(scan / "length_split", "scan/length_split")
    for path in (scan / "length_split").iterdir():
        path.unlink()
    assert list(obtain("scan-in-out-length")["test"].read()) == PAIRS
    with pytest.raises(
        ValueError, match=r"scan\.tar\.gz is broken: it holds no simple_split/tasks_train_simple\.txt; replace it"
    ):
        obtain("scan-in-out-simple")
    (scan / "scan.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"scan\.tar\.gz is broken: .*; replace it"):
        obtain("scan-in-out-jump")


def test_a_changed_file_is_refused_and_stays(scan: Path) -> None:
    path = scan / "length_split" / "tasks_test_length.txt"
    path.write_text(TEXT.replace("walk", "jump"))
    with pytest.raises(ValueError, match=r"tasks_test_length\.txt is broken: its sha256 .*; replace it"):
        obtain("scan-in-out-length")
    assert path.exists()


def test_what_is_not_there_is_fetched(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(url: str, path: Path, **_: object) -> None:
        asked.append(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT if "length" in url else "IN: broken")

    monkeypatch.delenv("REGARD_DATA")
    monkeypatch.setattr("regard.data.scan.download", fetch)
    assert list(obtain("scan-in-out-length")["train"].read()) == PAIRS
    assert [url.rpartition("/SCAN/")[2] for url in asked] == [
        "master/length_split/tasks_train_length.txt",
        "master/length_split/tasks_test_length.txt",
    ]
    with pytest.raises(ValueError, match="it was removed, try again"):
        obtain("scan-in-out-simple")
    assert not list((scan.parents[1] / "cache" / "downloads" / "scan").glob("*simple*"))


@pytest.mark.skipif(not (SHARED / "scan").is_dir(), reason=f"no data in {SHARED}; REGARD_SHARED_DATA names it")
def test_the_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setenv("REGARD_DATA", str(SHARED))
    for name in ("simple", "length", "jump"):
        pairs = {split: list(files.read()) for split, files in obtain(f"scan-in-out-{name}").items()}
        assert sum(map(len, pairs.values())) == CORPORA[f"scan-in-out-{name}"].pairs
        if name == "length":
            train, test = ({len(actions.split()) for _, actions in pairs[split]} for split in ("train", "test"))
            assert (max(train), min(test), max(test)) == (22, 24, 48)
