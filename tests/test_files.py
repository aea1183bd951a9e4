"""Files are whole or not there, read only if they are files, and a directory belongs to one process at a time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.files import HOUR, alone_in, new_directory, read_whole, vacant, write_whole


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_trace(
    tmp_path: Path, occupy: Callable[[Path], "subprocess.Popen[str]"]
) -> None:
    place = tmp_path / "runs" / "new"
    other = occupy(place)
    with pytest.raises(ValueError, match=r"another process is at work in .*new: wait for its end"), alone_in(place):
        pass
    other.kill()
    other.wait()
    assert os.listdir(place) == []
    with alone_in(place), alone_in(place):  # again, and within itself
        pass
    assert place.exists()  # it was there before


def test_a_second_thread_is_refused_as_well(tmp_path: Path) -> None:
    said: list[str] = []

    def second() -> None:
        try:
            with alone_in(tmp_path):
                said.append("in")
        except ValueError as error:
            said.append(str(error))

    with alone_in(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    second()
    assert [line.split(" in ")[0] for line in said] == ["another process is at work", "in"]


def test_a_directory_that_was_not_used_goes_again(tmp_path: Path) -> None:
    with pytest.raises(KeyError), alone_in(tmp_path / "new"):
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_a_new_directory_is_whole_or_not_there_and_a_killed_one_is_taken_over(tmp_path: Path) -> None:
    program = """
import sys, time
from regard.files import new_directory
with new_directory(sys.argv[1]) as made:
    (made / "half").write_text("half")
    print("in", flush=True)
    time.sleep(60)
"""
    place = tmp_path / "out"
    other = subprocess.Popen([sys.executable, "-c", program, str(place)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    with pytest.raises(ValueError, match=r"another process is at work in .*/out: "), new_directory(place):
        pass
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert not place.exists()
    with new_directory(place) as made:
        (made / "whole").write_text("whole")
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(place) == ["whole"]
    with pytest.raises(ValueError, match="out is already there: name a new directory"), new_directory(place):
        pass


def test_what_a_killed_write_has_left_is_no_content_and_is_swept(tmp_path: Path) -> None:
    for name in (f".{'0f' * 8}.tmp", f".{'a1' * 8}.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".saving").mkdir()
    assert vacant(tmp_path)
    os.utime(tmp_path / f".{'0f' * 8}.tmp", (then := time.time() - 2 * HOUR, then))
    write_whole(tmp_path / "file", "whole")
    assert sorted(os.listdir(tmp_path)) == [f".{'a1' * 8}.tmp", ".saving", "file"]  # one may still be written
    assert not vacant(tmp_path)
    (tmp_path / "file").unlink()
    with new_directory(tmp_path) as made:
        (made / "whole").touch()
    assert os.listdir(tmp_path) == ["whole"]


def test_only_files_of_a_sensible_size_are_read(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "12345")
    assert read_whole(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="file has 5 bytes: what it should be has at most 4"):
        read_whole(tmp_path / "file", 4)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match=f"{path} is no file, but a pipe or a device"):
            read_whole(path, 5)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "none", 5)
    with pytest.raises(IsADirectoryError):
        read_whole(tmp_path, 5)
