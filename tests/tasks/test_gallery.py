"""Pictures of a folder, found by a text or by another picture: kept, renewed, and what is no picture is told."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import regard
from regard import cli
from regard.tasks.gallery import Gallery, Sighting
from tests.eyes import eyes, png


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eyes(tmp_path_factory.mktemp("models") / "clip", "match")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "old").mkdir(parents=True)
    for i in range(70):  # more than are seen at a time
        (folder / ("old" if i % 2 else "") / f"{i:02}.png").write_bytes(png(i))
    (folder / "notes.txt").write_text("no picture, and not called so")
    return folder


def test_the_nearest_are_those_of_the_largest_cosines(model: Path, photos: Path, tmp_path: Path) -> None:
    matcher = regard.load(model, bitwise=True)
    gallery = Gallery.build(matcher, photos, tmp_path / "index")
    paths = [str(photos / ("old" if i % 2 else "") / f"{i:02}.png") for i in range(70)]
    seen = matcher.see(paths)
    for query, vector in (("a dog", matcher.embed("a dog")), (png(99), matcher.see([png(99)])[0])):
        scores = seen @ vector
        expected = sorted(zip(scores.tolist(), paths, strict=True), key=lambda each: -each[0])[:5]
        found = gallery.search(query, top=5)
        assert [hit.path for hit in found] == [path for _, path in expected]
        np.testing.assert_allclose([hit.score for hit in found], [score for score, _ in expected], atol=1e-6)
    assert gallery.search(Path(paths[7]), top=1) == [Sighting(paths[7], pytest.approx(1.0, abs=1e-6))]
    assert [row[0].path for row in gallery.search([Path(paths[1]), Path(paths[2])])] == paths[1:3]


def test_only_what_is_new_is_embedded(model: Path, photos: Path, tmp_path: Path) -> None:
    gallery = Gallery.build(regard.load(model), photos, tmp_path / "index")
    assert (len(gallery), gallery.renew(photos)) == (70, 0)
    (photos / "00.png").write_bytes(png(500, size=30))
    (photos / "new.png").write_bytes(png(501))
    (photos / "old" / "01.png").unlink()
    assert (gallery.renew(photos), len(gallery)) == (2, 70)
    assert gallery.search(png(501), top=1)[0].path == str(photos / "new.png")
    again = Gallery(regard.load(model), tmp_path / "index")
    assert again.search(png(500, size=30), top=1)[0].path == str(photos / "00.png")
    other = eyes(tmp_path / "other", "match", seed=2)
    with pytest.raises(ValueError, match="vectors of another model"):
        Gallery(regard.load(other), tmp_path / "index")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, error = capsys.readouterr()
    return int(end.value.code or 0), out, error


def test_the_command_finds_pictures_and_names_what_is_none(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (photos / "cut.png").write_bytes(png()[:90])
    (photos / "text.jpg").write_text("this is text")
    os.symlink(photos / "nowhere", photos / "gone.jpg")
    code, out, error = run(capsys, monkeypatch, "search", model, photos, "a dog", "--top", 2)
    assert code == 0, error
    expected = Gallery.build(regard.load(model), photos, tmp_path / "index").search("a dog", top=2)
    assert out == "".join(f"{i}\t{hit.score:.4f}\t{hit.path}\n" for i, hit in enumerate(expected, start=1))
    assert "70 pictures, 70 new ones embedded" in error
    assert all(each in error for each in ("cut.png is damaged", "text.jpg is no picture", "gone.jpg is no file"))
    assert "3 of 73 pictures were left out" in error
    query = photos / "04.png"
    code, out, error = run(capsys, monkeypatch, "search", model, photos, query, "--top", 1)
    assert (code, out) == (0, f"{query}\t1\t1.0000\t{query}\n"), error
    assert "70 pictures, 0 new ones embedded" in error
    assert "3 of 73" in error
    code, out, error = run(capsys, monkeypatch, "search", model, photos, "a dog", "--unit", "file")
    assert (code, out) == (2, "")
    assert "leave --rerank, --column and --unit out" in error
    code, out, error = run(capsys, monkeypatch, "search", model, photos, " ")
    assert (code, out) == (2, "")
    assert "a query without words" in error


def test_where_there_is_nothing_to_see_that_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no picture in it"):
        Gallery.build(regard.load(model), tmp_path / "empty", tmp_path / "index")
    (tmp_path / "empty" / "a.jpg").write_text("text")
    with pytest.raises(ValueError, match=r"none of 1 pictures can be seen: .*a\.jpg is no picture"):
        Gallery.build(regard.load(model), tmp_path / "empty", tmp_path / "index")


def test_an_index_of_pictures_is_built_once_and_asked(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "photos.index"
    code, _, error = run(capsys, monkeypatch, "index", photos, index, "--model", model)
    assert (code, "70 pictures, 70 new ones embedded" in error) == (0, True), error
    (photos / "new.png").write_bytes(png(501))
    code, out, error = run(capsys, monkeypatch, "search", index, "a dog", "--top", 2)  # as it was built
    expected = Gallery(regard.load(model), index).search("a dog", top=2)
    assert (code, out) == (0, "".join(f"{i}\t{hit.score:.4f}\t{hit.path}\n" for i, hit in enumerate(expected, 1))), (
        error
    )
    code, _, error = run(capsys, monkeypatch, "index", photos, index)
    assert (code, "71 pictures, 1 new one embedded" in error) == (0, True), error
    code, out, error = run(capsys, monkeypatch, "search", index, photos / "new.png", "--top", 1)
    assert (code, out) == (0, f"{photos / 'new.png'}\t1\t1.0000\t{photos / 'new.png'}\n"), error
    assert regard.load(index).search(png(501), top=1)[0].path == str(photos / "new.png")
    for words, why in (
        (("index", photos, tmp_path / "other", "--model", model, "--near", "hnsw"), "leave them out"),
        (("ask", index, "where?", "--reader", model), "an index of pictures"),
        (("search", index, "a dog", "--by", "words"), "an index of pictures"),
        (("serve", index), "an index of pictures"),
    ):
        code, _, error = run(capsys, monkeypatch, *words)
        assert (code, why in error) == (2, True), error
