"""Videos: of a file, or of an array, so many frames, from all of its length.

It is decoded from its beginning to its end, for what a file says of its frames need not be true; of them only those
that are wanted are kept, so memory does not hang on how long it is.
"""

import io
import math
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.pictures import MOST, PictureError, of_array

LONGEST = 20_000  # frames of a video: eleven minutes. A small file may have millions
FORMATS = "mov,matroska,avi,gif,mpeg,mpegts,mpegvideo"  # as FFmpeg names them; others may name further files, or hosts
WHOLE = 0.9  # of the length that a file says it has: with less, it was cut off


def middles(length: int, count: int) -> list[int]:
    """Which of so many frames are seen: those in the middle of each of `count` equal parts. Of a shorter video, each
    more than once.

    >>> middles(16, 4), middles(2, 4)
    ([2, 6, 10, 14], [0, 0, 1, 1])
    """
    return [(2 * i + 1) * length // (2 * count) for i in range(count)]


def shots(source: Any, count: int, name: str) -> list[Image.Image]:
    """So many frames of a video, upright: of a path, the content of a file, or an array (T, H, W) or (T, H, W, C).
    `PictureError` says in one line why it cannot be."""
    if isinstance(source, np.ndarray):
        return _of_array(source, count, name)
    if not isinstance(source, str | PathLike | bytes):
        raise PictureError(f"{name} is a picture, and this model sees videos")
    try:
        import av
    except ImportError:
        raise ValueError("videos are read with PyAV: pip install 'regard[video]'") from None
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
            expected = -1
            for _ in range(3):  # twice, unless damage is decoded in another way each time
                file.seek(0)
                with av.open(file, options={"format_whitelist": FORMATS}) as container:
                    expected, found = _seen(container, expected, count, name)
                if found:
                    return found
            raise ValueError("it has another number of frames each time")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise PictureError(f"{name}: {error.strerror}") from None
    except PictureError:
        raise
    except Exception as error:  # of decoders, of many kinds
        what = str(error).split("] ")[-1].split(": '")[0]
        raise PictureError(f"{name} is no video, or damaged ({what}): give one as MP4, WebM, MKV, AVI or GIF") from None


def _seen(container: Any, expected: int, count: int, name: str) -> tuple[int, list[Image.Image]]:
    """How many frames there are, and, if these are as many as expected, those that are wanted. At first, what the file
    says is expected; if it says nothing, nothing is found yet."""
    if not container.streams.video:
        what = "it is sound alone" if container.streams.audio else "it is empty, or cut off"
        raise PictureError(f"{name} has no frames: {what}")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise PictureError(f"{name} has no frames: it is cut off, or how they are coded is not known")
    if math.prod(size := (stream.codec_context.width, stream.codec_context.height)) > MOST:
        raise PictureError(f"{name} has frames of {size[0]:,} x {size[1]:,} pixels, at most {MOST:,} are opened")
    expected = stream.frames if expected < 0 else expected
    wanted, found = middles(expected, count), list[Image.Image]()
    length, frame = 0, None
    for frame in container.decode(stream):
        if length == LONGEST:
            raise PictureError(f"{name} has more than {LONGEST:,} frames: cut it into clips")
        if frame.width * frame.height > MOST:
            raise PictureError(f"{name} has frames of more than {MOST:,} pixels")
        if len(found) < count and wanted[len(found)] == length:
            image = frame.to_image().rotate(frame.rotation, expand=True)
            found += [image] * wanted.count(length)
        length += 1
    if length < 2:
        raise PictureError(f"{name} has {'one frame' if length else 'no frames'}, so nothing moves: it is no video")
    _check_whole(container, stream, frame, length, name)
    return length, found if length == expected else []


def _check_whole(container: Any, stream: Any, last: Any, length: int, name: str) -> None:
    """Where a file says how long it is, see that it does not end long before that."""
    seconds = float(stream.duration * stream.time_base) if stream.duration else None
    if seconds is None and container.duration and len(container.streams) == 1:  # else that may be of the sound
        seconds = container.duration / 1e6
    if seconds and last.time is not None:
        seen = last.time - float((stream.start_time or 0) * stream.time_base) + seconds / length
        if seen < WHOLE * seconds:
            raise PictureError(f"{name} is cut off: it has {seen:.1f} of {seconds:.1f} seconds")


def _of_array(frames: NDArray[Any], count: int, name: str) -> list[Image.Image]:
    if frames.ndim not in (3, 4) or (frames.ndim == 3 and frames.shape[2] in (1, 3, 4)):
        raise PictureError(f"{name} is an array of shape {frames.shape}: a video is (T, H, W) or (T, H, W, C)")
    if len(frames) < 2:
        raise PictureError(f"{name} has {len(frames)} frames, so nothing moves: it is no video")
    return [of_array(frames[i], name) for i in middles(len(frames), count)]
