"""Labels on either side of their thresholds."""

from dataclasses import replace
from typing import Any

import pytest

from regard.inspection.measures import HeadMeasures, Positional
from regard.inspection.roles import ABOUT, Aligned, roles

PLAIN = HeadMeasures(
    confidence=0.4, entropy=1.5, evenness=0.6, positional=Positional(0, 0.3), first=0.1, special=0.1, punctuation=0.1
)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"previous": 0.51}, "positional -1"),
        ({"next": 0.51}, "positional +1"),
        ({"itself": 0.51}, "positional 0"),
        ({"positional": Positional(-2, 0.9)}, "positional -2"),
        ({"special": 0.61}, "special"),
        ({"punctuation": 0.61}, "punctuation"),
        ({"rare": 0.51}, "rare"),
        ({"duplicate": 0.51}, "duplicate"),
        ({"induction": 0.51}, "induction"),
        ({"evenness": 0.79}, "broad"),
    ],
)
def test_what_passes_its_threshold_alone_is_the_label(changes: dict[str, Any], label: str) -> None:
    assert roles(replace(PLAIN, **changes)) == [label]
    assert any(label.startswith(role) for role in ABOUT)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"previous": 0.5, "next": 0.5, "positional": Positional(-2, 0.89)},
        {"special": 0.6, "punctuation": 0.6, "rare": 0.5, "duplicate": 0.5, "induction": 0.5, "evenness": 0.78},
        {"confidence": None, "entropy": None, "evenness": None, "positional": None, "special": None, "first": None},
    ],
)
def test_what_does_not_is_mixed(changes: dict[str, Any]) -> None:
    assert roles(replace(PLAIN, **changes)) == ["mixed"]


def test_one_place_is_named_once_and_several_labels_have_an_order() -> None:
    both = replace(PLAIN, previous=0.8, positional=Positional(-1, 0.95), rare=0.7)
    assert roles(both) == ["positional -1", "rare"]


def test_an_aligner_beats_the_best_fixed_offset_by_ten_points() -> None:
    assert roles(PLAIN, Aligned(0.6, 0.1, 0.3)) == ["aligner"]
    assert roles(PLAIN, Aligned(0.1, 0.6, 0.3)) == ["aligner of the read"]
    assert roles(PLAIN, Aligned(0.6, 0.1, 0.55)) == ["mixed"]  # most links lie on the diagonal: no merit
    assert roles(PLAIN, Aligned(0.45, 0.1, 0.2)) == ["mixed"]
