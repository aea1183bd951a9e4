"""Trees: read, cleaned, in line and back."""

import os
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corpora import located, obtain
from regard.data.treebank import Tree, cleaned, from_linear, leaves, linear, read_trees, spans

SHARED = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
LABELS = st.sampled_from(["S", "NP", "VP", "ADVP"])
LEAVES = st.builds(lambda tag, word: Tree(tag, word=word), st.sampled_from(["NN", "."]), st.sampled_from(["a", "b"]))
PARTS = st.recursive(
    LEAVES,
    lambda parts: st.builds(lambda label, many: Tree(label, tuple(many)), LABELS, st.lists(parts, min_size=1)),
    max_leaves=12,
)
TREES = st.builds(lambda label, many: Tree(label, tuple(many)), LABELS, st.lists(PARTS, min_size=1, max_size=4))


def words(tree: Tree) -> list[tuple[str, str]]:
    return [(leaf.label, leaf.word) for leaf in leaves(tree)]


@given(TREES)
def test_there_and_back(tree: Tree) -> None:
    assert list(read_trees([str(tree)], "")) == [tree]
    assert cleaned(tree) == tree
    assert from_linear(linear(tree), words(tree)) == tree
    opened = Counter(label for label, _, _ in spans(tree))
    assert opened == Counter(token[1:] for token in linear(tree) if token.startswith("("))
    assert spans(tree)[0] == (tree.label, 0, len(leaves(tree)))


@given(TREES, st.data())
def test_what_is_no_tree_is_refused(tree: Tree, data: st.DataObject) -> None:
    tokens = linear(tree)
    del tokens[data.draw(st.integers(0, len(tokens) - 1))]
    with pytest.raises(ValueError, match=r"token|tree"):
        from_linear(tokens, words(tree))


def test_several_brackets_make_a_tree() -> None:
    two = list(read_trees(["( (S (NN a))", "", "  (S (NN b)) )", "( (X (NN c)) )"], ""))
    assert [str(cleaned(tree)) for tree in two] == ["(TOP (S (NN a)) (S (NN b)))", "(X (NN c))"]
    assert str(cleaned(Tree("", (Tree("NN", word="a"),)))) == "(TOP (NN a))"
    assert cleaned(next(read_trees(["( (S (NP (-NONE- *))) )"], ""))) is None


def test_labels_are_bared_but_not_those_of_words() -> None:
    text = "(S=2 (-LRB- -LCB-) (PP-LOC-PRD-3 (PRP$ its)) (-RRB- -RCB-))"
    assert str(cleaned(next(read_trees([text], "")))) == "(S (-LRB- -LCB-) (PP (PRP$ its)) (-RRB- -RCB-))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("( (S (NN a)) )\n(S (NN b)", "x.mrg, line 2: this bracket is never closed"),
        ("\n(S (NN a)))", "x.mrg, line 2: '\\)' stands outside all brackets"),
        ("word", "x.mrg, line 1: 'word' stands outside all brackets"),
        ("(S\n (NP ))", "x.mrg, line 2: the bracket \\(NP\\) holds neither"),
        ("(S ())", "x.mrg, line 1: the bracket \\(\\) holds neither"),
        ("(S (NN two words))", "x.mrg, line 1: the word 'words' has no bracket of its own"),
        ("(S (NN a) b)", "x.mrg, line 1: the word 'b' has no bracket of its own"),
        ("(S (NN a (NN b)))", "x.mrg, line 1: a bracket opens after the word 'a'"),
        ("(S " * 301, "x.mrg, line 1: over 300 brackets are open"),
    ],
)
def test_a_mistake_has_a_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_trees(text.splitlines(), "x.mrg"))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "treebank"


def fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in (1, 150, 151, 170, 171, 199, 200):
        (folder / f"wsj_{number:04}.mrg").write_text(f"( (S (NP-SBJ (CD {number})) (VP (VBZ is))) )\n" * 2)


@pytest.mark.parametrize("packed", [False, True])
def test_a_corpus_is_made_of_files(data: Path, packed: bool) -> None:
    fill(data / "treebank" / "combined")
    if packed:
        with zipfile.ZipFile(data / "treebank.zip", "w") as archive:
            for path in sorted(data.rglob("*.mrg")):
                archive.write(path, f"treebank/combined/{path.name}")
                path.unlink()
    assert located("treebank-en-trees") == (data if packed else data / "treebank" / "combined")
    files = obtain("treebank-en-trees")
    found = {split: [source.split()[0] for source, _ in pairs.read()] for split, pairs in files.items()}
    assert found == {
        "train": ["1"] * 2 + ["150"] * 2,
        "valid": ["151"] * 2 + ["170"] * 2,
        "test": ["171", "171", "199", "199"],
    }
    assert files["test"].target is not None
    whole = Path(files["test"].target).with_suffix(".mrg").read_text("utf-8").splitlines()
    assert whole[0] == "(S (NP (CD 171)) (VP (VBZ is)))"
    assert Path(files["test"].target).read_text("utf-8").splitlines()[0] == "(S (NP XX )NP (VP XX )VP )S"


def test_what_is_missing_or_broken_is_told(data: Path) -> None:
    with pytest.raises(ValueError, match=r"treebank-en-trees is yours to get .*treebank.zip.*set REGARD_DATA"):
        obtain("treebank-en-trees")
    fill(data)
    (data / "wsj_0171.mrg").write_text("\n( (S (NN a))\n")
    with pytest.raises(ValueError, match=r"wsj_0171.mrg, line 2: this bracket is never closed"):
        obtain("treebank-en-trees")
    (data / "wsj_0171.mrg").write_bytes(b"( (S (NN a)) )\n( (S (NN \xff)) )\n")
    with pytest.raises(ValueError, match=r"wsj_0171.mrg, line 2: this is not UTF-8"):
        obtain("treebank-en-trees")
    for number in (171, 199):
        (data / f"wsj_0{number}.mrg").unlink()
    with pytest.raises(ValueError, match=r"holds no tree for test: it needs wsj_0171.mrg to wsj_0199.mrg"):
        obtain("treebank-en-trees")
    (data / "wsj_0171.mrg").mkdir()  # a folder is no file
    with pytest.raises(ValueError, match=r"holds no tree for test"):
        obtain("treebank-en-trees")
    (data / "treebank.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"treebank.zip is broken"):
        obtain("treebank-en-trees")
    with zipfile.ZipFile(data / "treebank.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("wsj_0001.mrg", "( (S (NN a)) )\n" * 9)
    whole = (data / "treebank.zip").read_bytes()
    start = 30 + len("wsj_0001.mrg")  # where what is compressed begins, with a kind of block that there is not
    (data / "treebank.zip").write_bytes(whole[:start] + b"\xff" + whole[start + 1 :])
    with pytest.raises(ValueError, match=r"treebank.zip is broken: Error -3"):
        obtain("treebank-en-trees")


@pytest.mark.skipif(not (SHARED / "treebank").is_dir(), reason=f"no treebank in {SHARED}; REGARD_SHARED_DATA names it")
def test_the_real_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setenv("REGARD_DATA", str(SHARED))
    files = obtain("treebank-en-trees")
    counts = {split: sum(1 for _ in pairs.read()) for split, pairs in files.items()}
    assert counts == {"train": 3262, "valid": 247, "test": 405}
    assert files["valid"].target is not None
    whole = Path(files["valid"].target).with_suffix(".mrg").read_text("utf-8").splitlines()
    for (source, target), line in zip(files["valid"].read(), whole, strict=True):
        (tree,) = read_trees([line], "valid.mrg")
        assert " ".join(word for _, word in words(tree)) == source
        assert from_linear(target.split(), words(tree)) == tree
