"""A compiled library is whole and one's own, or it does not run."""

import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard import files
from regard.native import UnavailableError, build, compiler

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

ENGINE = "".join(f"int {name}(void) {{ return 1; }}\n" for name in compiler.FUNCTIONS)
EVIL = '#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fclose(fopen("{}", "w")); }}\n'


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and an engine that does nothing but is quickly compiled."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "engine.c").write_text(ENGINE)
    for name, value in (("FOLDER", tmp_path / "package"), ("SOURCES", ("engine.c",)), ("HEADERS", ())):
        monkeypatch.setattr(compiler, name, value)
    build.library.cache_clear()
    yield tmp_path
    build.library.cache_clear()


def again() -> object:
    build.library.cache_clear()
    return build.library()


def only(folder: Path) -> Path:
    (made,) = folder.iterdir()
    return made


def compiled(source: str, to: Path) -> None:
    to.with_suffix(".c").write_text(source)
    compiler._run(["cc", "-shared", "-fPIC", "-o", str(to), str(to.with_suffix(".c"))])


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another user own it."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def test_is_compiled_once_and_says_so(fresh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build.library()
    made = only(fresh / "native")
    when = made.stat().st_mtime_ns
    assert capfd.readouterr().err.startswith("compiling the engine for this processor, once")
    again()
    assert made.stat().st_mtime_ns == when
    assert capfd.readouterr().err == ""


def test_what_it_writes_is_its_users_alone_whatever_the_umask(fresh: Path) -> None:
    before = os.umask(0)
    try:
        build.library()
    finally:
        os.umask(before)
    assert (fresh / "native").stat().st_mode & 0o777 == 0o700
    assert only(fresh / "native").stat().st_mode & 0o777 == 0o600


def test_it_is_on_the_disk_before_it_has_its_name(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(build, "sync", lambda path: (done.append(Path(path).name), files.sync(path)))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("renamed"), replace(a, b)))
    build.library()
    assert done == ["engine.so", "renamed", "native"]


@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("how", ["owned", "writable"])
def test_what_others_have_or_may_write_to_never_runs(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    build.library()
    made, ran = only(fresh / "native"), fresh / "ran"
    compiled(ENGINE + EVIL.format(ran), fresh / "evil.so")
    content = (fresh / "evil.so").read_bytes()
    made.unlink()
    made = made.with_name(f"{made.stem.rpartition('-')[0]}-{compiler.digest(content)}.so")
    made.write_bytes(content)  # its name says what is in it
    path = fresh / "native" if what == "folder" else made
    if how == "writable":
        path.chmod(0o720)
    else:
        given_away(path, monkeypatch)
    with pytest.raises(UnavailableError, match="belongs to another user" if how == "owned" else "others may write"):
        again()
    assert not ran.exists()


def test_a_shared_parent_does_no_harm(fresh: Path) -> None:
    fresh.chmod(0o1777)
    build.library()
    fresh.chmod(0o777)
    again()


def test_a_library_cut_short_or_another_of_its_name_is_compiled_anew(fresh: Path) -> None:
    build.library()
    made = only(fresh / "native")
    whole = made.read_bytes()
    compiled(ENGINE.replace("return 1", "return 2") + EVIL.format(fresh / "ran"), fresh / "other.so")
    cut = [whole[:n] for n in (0, 1, 64, 4096, len(whole) // 2, len(whole) - 1)]
    for content in (*cut, whole[:100] + b"x" + whole[101:], (fresh / "other.so").read_bytes()):
        made.unlink()
        made.write_bytes(content)
        made.chmod(0o600)
        again()
        assert made.read_bytes() == whole
        assert only(fresh / "native") == made
    assert not (fresh / "ran").exists()


@pytest.mark.parametrize("kind", ["pipe", "link", "linked folder"])
def test_what_is_no_file_is_refused_at_once(fresh: Path, kind: str) -> None:
    build.library()
    made = only(fresh / "native")
    if kind == "linked folder":
        (fresh / "native").rename(fresh / "elsewhere")
        (fresh / "native").symlink_to(fresh / "elsewhere")
    else:
        made.rename(fresh / "elsewhere")
        os.mkfifo(made) if kind == "pipe" else made.symlink_to(fresh / "elsewhere")
    before = time.monotonic()
    with pytest.raises(UnavailableError, match="is no file: remove it" if kind == "pipe" else "native cannot be used"):
        again()
    assert time.monotonic() - before < 5


def test_what_a_killed_compilation_left_is_swept(fresh: Path) -> None:
    old, new = fresh / "native" / ".compiling-old", fresh / "native" / ".compiling-new"
    (fresh / "native").mkdir(0o700)
    for place in (old, new):
        place.mkdir()
        (place / "engine.so").write_bytes(b"half")
    week_ago = time.time() - files.WEEK - 60
    os.utime(old, (week_ago, week_ago))
    build.library()
    assert not old.exists()
    assert new.exists()  # somebody may be at it


def test_two_libraries_in_one_process_are_two(fresh: Path) -> None:
    build.library()
    (fresh / "package" / "engine.c").write_text(ENGINE.replace("return 1", "return 2"))
    assert build.library().worth_it() == 1
    assert again().worth_it() == 2


def test_a_wheels_library_comes_first_if_it_is_whole(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = ENGINE.replace("return 1", "return 2")
    every = "".join(
        f"int {prefix}runs(void) {{ return {prefix not in ('vnni_', 'bf16_')}; }}\n" for prefix in compiler.VARIANTS
    )
    for prefix in compiler.VARIANTS:
        every += (two if prefix == "avx512_" else ENGINE).replace("int ", f"int {prefix}")
    compiled(every.replace("True", "1").replace("False", "0"), fresh / "every.so")
    content = (fresh / "every.so").read_bytes()
    shipped = fresh / "package" / f"engine-{compiler.digest(content)}.so"
    shipped.write_bytes(content)
    given_away(shipped, monkeypatch)  # as the Python files around it may be
    monkeypatch.setenv("CC", "no-such-compiler")
    assert build.library().worth_it() == 2
    assert not (fresh / "native").exists()
    shipped.unlink()  # it is in use
    shipped.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnavailableError, match="no-such-compiler"):
        again()


def test_says_why_there_is_none(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UnavailableError, match="no C compiler 'no-such-compiler'"):
        build.library()
    monkeypatch.setenv("CC", "cc '-O1")
    with pytest.raises(UnavailableError, match="No closing quotation"):
        build.library()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(UnavailableError, match="false failed"):
        build.library()
    assert not (fresh / "native").exists() or not list((fresh / "native").iterdir())
    monkeypatch.delenv("CC")
    monkeypatch.setenv("REGARD_NATIVE", "0")
    with pytest.raises(UnavailableError, match="REGARD_NATIVE=0"):
        build.library()
    monkeypatch.delenv("REGARD_NATIVE")
    monkeypatch.setenv("REGARD_CACHE", str(fresh / ("x" * 300)))
    with pytest.raises(UnavailableError, match="cannot be used: File name too long"):
        build.library()


def test_a_library_that_the_system_will_not_load_is_told(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: failed to map segment from shared object")  # as from a disk mounted noexec

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(UnavailableError, match=r"native cannot be used: .*failed to map segment"):
        build.library()
