"""Files that were valid once: bytes turned, cut and repeated, and values of any other kind where JSON had one."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Path = tuple[Any, ...]  # of a value in nested JSON
Draw = Callable[[st.SearchStrategy[Any]], Any]

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
NUMBERS = [-1, 0, 1, 2, 3, 2**12, 2**16, 2**24, 2**31, 2**32, 2**53, 2**63, 2**64, 10**400, -(2**63)]
WILD = [None, True, False, 0.5, -1.5, 1e308, float("inf"), float("nan"), "", "x", "é☕\0", "x" * 10_000, [], {}, DEEP]
values = st.sampled_from([*NUMBERS, *WILD]) | st.integers() | st.text(max_size=9)
TEXTS = [
    b"\0",
    b"\xff" * 8,
    b"99999999999999999999",
    b"[" * 5000,
    b"{" * 300,
    b"NaN",
    b"\n",
    b'"',
    b"null",
    b": - &a *a\n",
]


def at_random(data: bytes, draw: Draw) -> bytes:
    """Some bytes turned, cut off, left out, put in or repeated."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        to = draw(st.integers(at, min(len(data), at + 64)))
        how = draw(st.sampled_from(["turn", "cut", "leave out", "put in", "repeat"]))
        if how == "turn" and data:
            data = data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        elif how == "cut":
            data = data[:at]
        elif how == "leave out":
            data = data[:at] + data[to:]
        elif how == "put in":
            data = data[:at] + draw(st.sampled_from(TEXTS) | st.binary(max_size=16)) + data[at:]
        else:
            data = data[:to] + data[at:]
    return data


def paths(value: Any, place: Path = ()) -> Iterator[Path]:
    """The place of each value in nested JSON; of long lists the first and the last ones."""
    yield place
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in [*keys[:20], *keys[20:][-3:]]:
        yield from paths(value[key], (*place, key))


def elsewise(value: Any, draw: Draw) -> Any:
    """Nested JSON with other values at some places, or without them, or with more."""
    value = deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(sorted(paths({"": value}), key=len)[1:]))
        holder: Any = {"": value}
        outer = holder
        for key in way:
            holder = holder[key]
        how = draw(st.sampled_from(["other", "other", "other", "gone", "more", "number"]))
        if how == "gone" and way:
            del holder[last]
        elif how == "more" and isinstance(holder, dict):
            holder[draw(st.sampled_from([*holder, "x", ""]))] = deepcopy(draw(values))
        elif how == "more":
            holder.append(deepcopy(holder[last]))
        else:
            holder[last] = deepcopy(draw(st.sampled_from(NUMBERS) if how == "number" else values))
        value = outer.get("", value)
    return value


def other_json(data: bytes, draw: Draw) -> bytes:
    """A JSON file that says something else, and mostly still is one."""
    if draw(st.integers(0, 3)) == 0:
        return at_random(data, draw)
    return json.dumps(elsewise(json.loads(data), draw)).encode()


def other_tensors(data: bytes, draw: Draw) -> bytes:
    """A safetensors file with another header, of the right length, or with other bytes."""
    if draw(st.booleans()):
        return at_random(data, draw)
    size = int.from_bytes(data[:8], "little")
    header = other_json(data[8 : 8 + size], draw)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
