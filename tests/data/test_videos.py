"""Videos as they come: of every kind, cut off, without frames; those that are made; and what is made of them."""

import io
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data import videos
from regard.data.augment import Augment
from regard.data.corpora import CORPORA, fetched
from regard.data.labelled_pictures import PictureFiles, content_of
from regard.data.moving import SLOWEST, STRAIGHT, WAYS, moving
from regard.data.pictures import PictureError, Sight
from regard.data.videos import middles, shots
from tests.data.test_pictures import idx
from tests.videos import folder, video, written

SIGHT = Sight(size=16, frames=3)


def ladder(frames: int = 9, size: int = 16) -> Any:
    """Frame i is of the grey 25 i."""
    return np.stack([np.full((size, size, 3), 25 * i, np.uint8) for i in range(frames)])


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mov", "mpeg4"),
        ("a.webm", "libvpx"),
        ("a.mkv", "ffv1"),
        ("a.avi", "mpeg4"),
        ("a.mpg", "mpeg1video"),
        ("a.gif", "gif"),
    ],
)
def test_every_kind_of_video_is_seen_from_its_beginning_to_its_end(tmp_path: Path, name: str, codec: str) -> None:
    path = written(ladder(), tmp_path / name, codec, rate=25)
    for source in (path, str(path), path.read_bytes()):
        seen = SIGHT.pixels(source)
        assert seen.shape == (3, 16, 16, 3)
        assert np.abs(seen.mean((1, 2, 3)) - [25, 100, 175]).max() < 12


def test_frames_are_those_in_the_middle_of_equal_parts() -> None:
    for length in (2, 3, 7, 8, 100):
        for count in (1, 3, 8):
            found = middles(length, count)
            assert found == [int((i + 0.5) * length / count) for i in range(count)]
    assert np.array_equal(SIGHT.pixels(ladder())[:, 0, 0, 0], [25, 100, 175])
    assert np.array_equal(SIGHT.pixels(ladder(2))[:, 0, 0, 0], [0, 25, 25])
    assert np.array_equal(SIGHT.pixels(ladder()[..., 0]), SIGHT.pixels(ladder()))  # (T, H, W)
    assert np.array_equal(SIGHT.pixels(ladder().transpose(0, 3, 1, 2)), SIGHT.pixels(ladder()))  # (T, C, H, W)


def test_what_a_file_says_of_its_frames_is_not_believed(tmp_path: Path) -> None:
    """A head that claims others than there are changes nothing of what is seen."""
    content = written(ladder(), tmp_path / "a.avi").read_bytes()
    at = content.index(b"strh") + 8 + 32
    assert struct.unpack_from("<I", content, at) == (9,)
    for claimed in (0, 5, 10):
        lie = content[:at] + struct.pack("<I", claimed) + content[at + 4 :]
        assert np.array_equal(SIGHT.pixels(lie), SIGHT.pixels(content))


def test_a_video_is_turned_upright(tmp_path: Path) -> None:
    """A camera writes what it saw, and how it was held: a matrix, in the head of a track."""
    frames = ladder()
    frames[:, :8, :8] = 255  # the corner at the left, above
    content = written(frames, tmp_path / "a.mp4").read_bytes()
    whole = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    turned = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)  # a quarter to the right
    at = content.index(whole, content.index(b"tkhd"))
    seen = SIGHT.pixels(content[:at] + turned + content[at + 36 :])[0].astype(int)
    assert np.abs(seen - np.rot90(SIGHT.pixels(content)[0], -1)).max() < 3


def early(content: bytes) -> bytes:
    """An MP4 whose head comes before its frames, so that what was cut off of it still has one."""
    at, boxes = 0, []
    while at < len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        boxes.append((kind, content[at : at + size]))
        at += size
    first, moov = dict(boxes)[b"ftyp"], dict(boxes)[b"moov"]
    rest = b"".join(box for kind, box in boxes if kind not in (b"ftyp", b"moov"))
    begin = moov.index(b"stco") + 12
    (was,) = struct.unpack_from(">I", moov, begin)
    return first + moov[:begin] + struct.pack(">I", was + len(moov)) + moov[begin + 4 :] + rest


def test_a_video_that_is_cut_off_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (20, 32, 32, 3), np.uint8)
    path = written(noise, tmp_path / "a.mp4")
    content = early(path.read_bytes())
    assert np.array_equal(SIGHT.pixels(content), SIGHT.pixels(path))
    for share in (0.4, 0.8):
        with pytest.raises(PictureError, match=r"is cut off|damaged"):
            SIGHT.pixels(content[: int(share * len(content))])
    webm = written(noise, tmp_path / "a.mkv").read_bytes()
    with pytest.raises(PictureError, match=r"a\.mkv is cut off: it has \d\.\d of 2\.0 seconds"):
        SIGHT.pixels(webm[: len(webm) // 2], "a.mkv")


def sound(path: Path) -> Path:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 16_000
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "the video is no video, or damaged"),
        (b"a text", "is no video, or damaged"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n", "is no video"),  # a list that names a host
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "is no video"),
        ("missing.mp4", "missing.mp4: No such file"),
        (".", "Is a directory"),
        (ladder(1), "has 1 frames, so nothing moves"),
        (ladder()[0], r"is an array of shape \(16, 16, 3\): a video is"),
        (ladder().astype(np.float32), "float32 of shape"),
        (Image.new("RGB", (8, 8)), "is a picture, and this model sees videos"),
    ],
)
def test_what_is_no_video_is_said_in_one_line(source: Any, message: str) -> None:
    pytest.importorskip("av")
    with pytest.raises(PictureError, match=message) as error:
        SIGHT.pixels(source)
    assert "\n" not in str(error.value)


def test_files_without_moving_pictures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PictureError, match=r"one\.mp4 has one frame, so nothing moves"):
        SIGHT.pixels(written(ladder(1), tmp_path / "one.mp4"))
    with pytest.raises(PictureError, match=r"a\.m4a has no frames: it is sound alone"):
        SIGHT.pixels(sound(tmp_path / "a.m4a"))
    content = written(ladder(), tmp_path / "a.mp4").read_bytes()
    with pytest.raises(PictureError, match=r"b\.mp4 has no frames: it is empty, or cut off"):
        SIGHT.pixels(content[: content.index(b"moov") + 150], "b.mp4")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(PictureError, match=r"a\.png is no video"):
        SIGHT.pixels(tmp_path / "a.png")
    path = written(ladder(), tmp_path / "a.mp4")
    with pytest.raises(PictureError, match=r"a\.mp4 is no picture"):
        Sight(size=16).pixels(path)
    monkeypatch.setattr(videos, "LONGEST", 8)
    with pytest.raises(PictureError, match="has more than 8 frames: cut it into clips"):
        SIGHT.pixels(path)
    monkeypatch.setattr(videos, "MOST", 100)
    with pytest.raises(PictureError, match="has frames of 16 x 16 pixels, at most 100"):
        SIGHT.pixels(path)


def test_without_the_package_a_file_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[video\]'"):
        shots(b"", 2, "a.mp4")
    assert len(shots(ladder(), 2, "an array")) == 2


def test_every_way_gives_the_same_videos(tmp_path: Path) -> None:
    place = folder(tmp_path / "all", 1)
    named = [f"{way}/0.mp4" for way in ("brighter", "darker")]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in named:
            archive.write(place / name, name)
    (tmp_path / "all.tsv").write_text("".join(f"all/{name}\t{name.split('/')[0]}\n" for name in named))
    expected = [SIGHT.pixels(place / name) for name in named]
    for files in (PictureFiles(folder=str(place)), *map(PictureFiles.at, (tmp_path / "all.zip", tmp_path / "all.tsv"))):
        rows = list(files.read())
        assert [row["label"] for row in rows] == ["brighter", "darker"]
        for row, one in zip(rows, expected, strict=True):
            assert np.array_equal(SIGHT.pixels(content_of(row["image"])), one)
    arrays = np.stack([video(way, np.random.default_rng(0)) for way in ("brighter", "darker")])
    for held, key in ((arrays, "videos"), (arrays[..., 0], "images")):  # with colours, and without
        np.savez(tmp_path / "a.npz", **{key: held, "labels": ["brighter", "darker"]})
        rows = list(PictureFiles(npz=str(tmp_path / "a.npz")).read())
        assert all(np.array_equal(row["image"], one) for row, one in zip(rows, held, strict=True))


def test_numbers_of_a_video_are_those_of_its_frames() -> None:
    sight = Sight(size=16, frames=3, mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0))
    pixels = np.stack([video("brighter", np.random.default_rng(i), 3) for i in range(2)])
    x = sight.tensor(pixels)
    assert x.shape == (2, 3, 3, 16, 16)
    for i in range(3):
        assert torch.equal(x[:, i], sight.tensor(pixels[:, i]))


def test_all_frames_are_changed_alike() -> None:
    everything = Augment(crop=2, scale=0.5, flip=True, operations=2, erase=0.5)
    still = np.repeat(np.random.default_rng(0).integers(0, 255, (1, 16, 16, 3), np.uint8), 4, 0)
    seen = set()
    for seed in range(8):
        changed = everything.picture(still, Random(seed))
        assert changed.shape == still.shape
        assert all(np.array_equal(frame, changed[0]) for frame in changed)
        assert np.array_equal(changed[0], everything.picture(still[0], Random(seed)))
        seen.add(changed.tobytes())
    assert len(seen) == 8
    one, other = Random(3), Random(3)  # what is drawn afterwards does not hang on the number of frames
    everything.picture(still, one)
    everything.picture(still[:2], other)
    assert one.random() == other.random()


@pytest.mark.parametrize("how", [{"mixup": 0.5}, {"cutmix": 1.0}])
def test_videos_are_blended_as_pictures_are(how: dict[str, float]) -> None:
    pixels = torch.arange(4.0).view(4, 1, 1, 1, 1).expand(4, 3, 1, 8, 8)
    for seed in range(4):
        mixed, told = Augment(**how).blended(pixels, torch.eye(4), Random(seed))  # type: ignore[arg-type]
        torch.testing.assert_close(mixed.mean((2, 3, 4)), (told @ torch.arange(4.0))[:, None].expand(4, 3))


@pytest.mark.parametrize("way", WAYS)
def test_what_moves_sets_out_as_its_label_says_and_bounces(way: str) -> None:
    """Its place, read off the frames, against a walk that turns round where the next step would leave the square."""
    right, down = WAYS[way]
    for seed in range(12):
        made = moving(np.full((4, 6), 9, np.uint8), way, 12, 20, Random(seed))
        places = [tuple(int(axis.min()) for axis in np.nonzero(frame)[::-1]) for frame in made]
        assert all((frame > 0).sum() == 24 for frame in made)  # it never leaves
        for t in range(STRAIGHT):
            step = tuple(b - a for a, b in zip(places[t], places[t + 1], strict=True))
            assert (np.sign(step[0]), np.sign(step[1])) == (right, down)
            assert max(map(abs, step)) >= SLOWEST
        speed = max(abs(b - a) for a, b in zip(places[0], places[1], strict=True))
        for axis, (sign, room) in enumerate(((right, 14), (down, 16))):
            at = places[0][axis]
            for t in range(1, 12):
                for _ in range(speed if sign else 0):  # pixel by pixel
                    sign = -sign if not 0 <= at + sign <= room else sign
                    at += sign
                assert places[t][axis] == at


def test_the_corpus_is_made_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = np.random.default_rng(0).integers(1, 255, (3, 28, 28), np.uint8)
    with zipfile.ZipFile(tmp_path / "toy.zip", "w") as archive:
        archive.writestr("images", idx(digits))
        archive.writestr("labels", idx(np.array([7, 1, 2], np.uint8)))
    part = {"train": {"images": ["images"], "labels": "labels"}}
    known, made = CORPORA["moving-mnist"], list[bytes]()
    form = type(known.form)(
        "toy.zip", "https://nowhere.invalid", None, "toy.zip", part, [*"0123456789"], (28, 28, 1), {"train": 5}, 8, 32
    )
    toy = type(known)("moving-toy", "", ("", ""), 5, "none", "nobody", "here", form, ("train",))
    monkeypatch.setitem(CORPORA, "moving-toy", toy)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    for place in "ab":
        monkeypatch.setenv("REGARD_CACHE", str(tmp_path / place))
        (path,) = fetched("moving-toy")["train"]
        with np.load(io.BytesIO(path.read_bytes())) as held:
            videos, labels = held["videos"], held["labels"]
        made.append(videos.tobytes() + "".join(labels).encode())
    assert made[0] == made[1]
    assert videos.shape == (5, 8, 32, 32)
    assert [label.split("|")[0] for label in labels] == ["7", "1", "2", "7", "1"]
    assert {label.split("|")[1] for label in labels} <= WAYS.keys()
    assert not np.array_equal(videos[0], videos[3])  # the same digit, on another way
