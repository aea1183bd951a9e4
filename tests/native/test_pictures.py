"""Pictures that C changes are those that Python changes, to the bit, by the same draws."""

from itertools import cycle
from random import Random
from typing import Any

import numpy as np
import pytest

from regard.data.augment import OPERATIONS, Augment
from regard.data.pictures import Pixels
from regard.data.sound import SpecAugment
from regard.native import pictures
from regard.native.pictures import augmented

SIZES = [(1, 1), (1, 7), (2, 2), (3, 3), (9, 1), (16, 5), (32, 32), (40, 33), (23, 37)]
PLACES = 2 * len(OPERATIONS)
WHOLE = Augment(crop=4, flip=True, operations=2)


class InTurn(Augment):
    """Each operation in each direction, one after the other."""

    turn = cycle(range(PLACES))

    def drawn(self, draw: Random) -> list[int]:
        return [next(self.turn), 0, 0, 0]


@pytest.fixture(autouse=True)
def needs_kernels() -> None:
    if pictures._library() is None:
        pytest.skip("there is no C compiler here")


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> list[Pixels]:
    """Of all brightnesses, of some, of two, of one."""
    draw, found = np.random.default_rng(seed), list[Pixels]()
    for i in range(count):
        low, high = sorted(draw.integers(0, 256, 2).tolist())
        least, most = ((0, 256), (low, high + 1), (254, 256), (low, low + 1))[i % 4]
        found.append(draw.integers(least, most, shape).astype(np.uint8))
    return found


def same(augment: Augment, given: list[Pixels], seed: int = 0) -> None:
    """What is made, what was given, and what is drawn afterwards."""
    ours, theirs, before = Random(seed), Random(seed), [image.copy() for image in given]
    found = augmented(augment, given, ours)
    expected = [augment.picture(image, theirs) for image in given]
    assert found.dtype == np.uint8
    assert [i for i, each in enumerate(expected) if not np.array_equal(found[i], each)] == []
    assert ours.getstate() == theirs.getstate()
    assert all(map(np.array_equal, given, before))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_each_operation_is_pythons(size: tuple[int, int], channels: int) -> None:
    for strength in (0, 1, 9, 17, 30):
        for image in images(4, (*size, channels), sum(size) + strength):
            same(InTurn(operations=1, strength=strength), [image] * PLACES)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_pythons(channels: int) -> None:
    for seed, size in enumerate(SIZES):
        for augment in (WHOLE, Augment(crop=50), Augment(flip=True), Augment(operations=4, strength=20)):
            same(augment, images(16, (*size, channels), seed), seed)


def test_the_frames_of_a_video_are_changed_alike() -> None:
    same(WHOLE, images(8, (3, 12, 10, 3)))


def test_it_does_not_matter_how_pixels_lie() -> None:
    given = images(8, (3, 10, 12))
    same(WHOLE, [image.transpose(2, 1, 0) for image in given])
    same(WHOLE, [np.asfortranarray(image.transpose(1, 2, 0)[::-1, ::2]) for image in given])
    for image in given:
        image.flags.writeable = False
    same(WHOLE, [image.transpose(1, 2, 0) for image in given])


@pytest.mark.parametrize("augment", [Augment(), Augment(scale=0.5, flip=True), Augment(erase=1.0, operations=2)])
def test_what_c_does_not_know_python_does(augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_library", lambda: pytest.fail("it was asked"))
    same(augment, images(8, (12, 10, 3)))


def test_what_is_no_picture_is_not_for_c() -> None:
    heard: Any = SpecAugment(bands=2)
    frames = np.random.default_rng(0).standard_normal((2, 20, 8)).astype(np.float16)
    draw = Random(1)
    expected = [heard.picture(each, draw) for each in frames]
    assert np.array_equal(augmented(heard, [*frames], Random(1)), expected)


def test_pictures_of_unlike_sizes_are_no_batch() -> None:
    with pytest.raises(ValueError, match="same shape"):
        augmented(WHOLE, [*images(1, (4, 4, 3)), *images(1, (4, 5, 3))], Random(0))


def test_without_a_compiler_python_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_library", lambda: None)
    same(WHOLE, images(8, (12, 10, 3)))
