"""A text comes back whole from its passages, documents are what they were said to be, and mistakes name their place."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import documents as module
from regard.data.documents import Passage, TextFiles
from regard.data.text import Skipped


def joined(passages: list[Passage]) -> list[str]:
    """The documents that some passages are of."""
    found: list[str] = []
    for passage in passages:
        assert passage.first == (not found or found[-1].endswith("\0"))
        text = passage.text + ("\0" if passage.last else "")
        found = [*found, text] if passage.first else [*found[:-1], found[-1] + text]
    assert all(text.endswith("\0") for text in found)
    return [text.removesuffix("\0") for text in found]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from("ab  \n"), max_size=200), size=st.integers(2, 20))
def test_passages_are_the_text(tmp_path_factory: pytest.TempPathFactory, text: str, size: int) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(text + "x\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PASSAGE", size)
        passages = list(TextFiles(str(path)).read())
    assert joined(passages) == [text + "x\n"]
    assert all(len(passage.text) <= 2 * size or passage.last for passage in passages)


def test_what_a_document_is(tmp_path: Path) -> None:
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("one\ntwo\n\n\nthree\n")
    with gzip.open(tmp_path / "texts" / "deep" / "c.md.gz", "wt") as file:
        file.write("four\r\n")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("five\nsix", " ", "seven"))
    )

    def documents(**how: object) -> list[str]:
        return joined(list(TextFiles(**how).read(skipped)))  # type: ignore[arg-type]

    skipped, folder = Skipped(), str(tmp_path / "texts")
    assert documents(text=folder) == ["one\ntwo\n\n\nthree\n", "four\n"]
    assert documents(text=(folder,), documents="paragraph") == ["one\ntwo\n", "three\n", "four\n"]
    assert documents(text=folder, documents="line") == ["one", "two", "three", "four"]
    assert skipped.empty == 2
    assert documents(jsonl=str(tmp_path / "d.jsonl")) == ["five\nsix", "seven"]
    assert skipped.empty == 3


def test_the_fingerprint_is_of_what_is_read(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / f"{name}.txt").write_text(f"{text}\n")
    a, b, c = (TextFiles(str(tmp_path / f"{name}.txt")).fingerprint() for name in "abc")
    assert a == b != c
    assert TextFiles(str(tmp_path / "a.txt"), documents="line").fingerprint() != a


def test_mistakes_are_told_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no text in it: files that end in"):
        TextFiles(str(tmp_path / "empty")).paths()
    for how in ({}, {"text": "a", "jsonl": "b"}):
        with pytest.raises(ValueError, match="name one of them"):
            TextFiles(**how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="documents = 'page': choose file, paragraph or line"):
        TextFiles("a", documents="page")
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    with pytest.raises(ValueError, match=r"d\.jsonl, line 2 lacks the key 'text'; the nearest is 'txt'"):
        list(TextFiles(jsonl=str(tmp_path / "d.jsonl")).read())
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 2: byte 1 .* is not UTF-8"):
        list(TextFiles(str(tmp_path / "bad.txt")).read())
