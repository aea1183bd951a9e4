"""kill -9 while a directory is written: it is whole or not there, and the same command again works."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from regard.convert import export, import_
from regard.convert.foreign import read
from regard.convert.precision import quantize_directory
from regard.models import storage

VERBS: dict[str, tuple[Callable[[Path, Path], object], Callable[[Path], object]]] = {
    "quantize": (quantize_directory, storage.load),
    "export": (lambda model, out: export(model, out, "hf"), read),
    "import": (import_, storage.load),
}


def killed(work: Callable[[], object], moment: int) -> bool:
    """Do something in a process that is killed before the so-many-th thing that it does to a file; False if it ends."""
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL), f"it ended with {status}"
        return status != 0
    try:
        passed = iter(range(moment))

        def die_in_time(event: str, arguments: object) -> None:  # before anything is opened, renamed, removed, ...
            touches = event.startswith(("open", "os.", "shutil.")) and event != "os.kill"
            if touches and next(passed, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(die_in_time)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory_is_whole_or_not_there(
    build: Callable[..., Path], tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    source, out = build(), tmp_path / "out"
    if verb == "import":
        export(source, tmp_path / "theirs", "hf")
        source = tmp_path / "theirs"
    write, load = VERBS[verb]
    write(source, tmp_path / "first")
    whole = sorted(path.name for path in (tmp_path / "first").iterdir())
    before = {path.name for path in tmp_path.iterdir()}
    seen = set()
    for moment in count(0, 5):
        done = not killed(lambda: write(source, out), moment)
        seen.add(out.exists())
        if not out.exists():
            assert {path.name for path in tmp_path.iterdir()} <= before | {".out.new"}
            write(source, out)
        assert sorted(path.name for path in out.iterdir()) == whole
        load(out)
        shutil.rmtree(out)
        if done:
            break
    assert seen == {True, False}
    write(source, out)
    assert {path.name for path in tmp_path.iterdir()} == before | {"out"}
