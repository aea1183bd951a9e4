"""What a table is: plain text, which `foreign.py` reads in both directions.

A line of `settings` is one of ours, the names of theirs that say it, which must agree, and after a colon which values
of theirs are which of ours, if they are not the same: `swish>silu`; * is any value, and stands for the same in ours. Of
several lines for one setting the last counts. A dot leads into an object, | is followed by an older name, -N says that
ours is so much less, = is followed by what stands for a name that is missing: a value as in JSON, or a number times
another name.

A line of `tensors` is a name of ours, theirs, and words. @ is encoder and decoder, # the number of a layer, * weight
and bias; {a,b} are several of theirs that are one of ours, one below the other; | another name where theirs may be
found: tied tensors are written once, under the first name that all of them have. Words:

transposed      inputs before outputs
offset:N        N rows come before the first of ours
row             a vector is a matrix of one row
optional        it may be missing, and is then 0
spare           it must be there, though nothing reads it
gated, plain    of a feed-forward network with a gate, or without
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARKS = {"pad": "pad_token_id?", "bos": "bos_token_id", "eos": "eos_token_id"}  # ours -> theirs; with ?, maybe none
BRACKETS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ANGLES = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}


@dataclass(frozen=True)
class Top:
    """What one of their classes has on the features. How many classes or tags it has, its labels say."""

    name: str  # of the class
    fixed: dict[str, Any] = field(default_factory=dict)  # of our HeadConfig
    tensors: str = ""
    settings: str = ""


@dataclass(frozen=True)
class Foreign:
    """A model of theirs."""

    name: str  # its model_type
    family: str  # of ours
    tops: tuple[Top, ...]  # of two that fit, the first
    settings: str
    fixed: dict[str, Any]  # of our settings, what theirs always are
    tensors: str
    base: str = ""  # before the name of each tensor that is not the top's, unless nothing is on top
    constant: dict[str, Any] = field(default_factory=dict)  # of their settings, what ours always are
    marks: Mapping[str, str] = field(default_factory=lambda: MARKS)
    special: Mapping[str, str] = field(default_factory=dict)  # marks by the names that they have unless a file says so
    around: str = ""  # a text: its end after it; or a frame, cls and sep
    permuted: bool = False  # in their residual stream sines come first, then cosines; ours alternate
