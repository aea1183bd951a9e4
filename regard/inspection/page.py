"""One self-contained HTML page that shows every head of several attentions of one example.

H heads, T queries, S keys: weights are (H, T, S), and row i says how query i spreads over the keys.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.files import write_whole
from regard.inspection.axes import Grid

SCALE = 10_000  # the page holds whole ten-thousandths: 4 digits, in half the bytes of decimal fractions
VIEWS = ("weights", "norm", "rollout")
TOLERANCE = 1e-3  # half precision may leave [0, 1] by this much


@dataclass(frozen=True, eq=False)
class Picture:
    """What a model sees: pixels (H, W, C), how its patches lie, and which share each of its places has in what stands
    for the whole of it, (places,)."""

    pixels: NDArray[np.uint8]
    grid: Grid
    shares: Tensor


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one attention and the texts of the tokens along its two axes.

    weights: (H, T, S), the probabilities before dropout; a fully masked row is zeros. T `queries`, S `keys`.
    `query_role` says whether `queries` are the tokens "read" at each position or "predicted" there (the next); or words
    that are "said" of a picture, and no head looks, but the map tells how near they are.
    `heads` are the numbers of the H heads, if they are not all of them. In the view "norm" the weights are lengths
    instead, of any size: of what each key adds to each query; in the view "rollout" there is one map for all heads.
    Where keys are places of a `picture`, queries may be, too.

    >>> weights = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])  # one head
    >>> cross = AttentionMap("decoder.layers.1.cross_attention", weights, ["un", "gato"], ["a", "cat"], "predicted")
    """

    name: str
    weights: torch.Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    query_role: str
    heads: Sequence[int] | None = None
    view: str = "weights"
    picture: Picture | None = None

    def over(self, query: int | None = None) -> Tensor:
        """What a query puts on the patches of the picture, (H, rows, columns); without one, what stands for the whole
        picture does, or of a text the mean of its tokens; the mean, too, where that takes no part."""
        assert self.picture is not None, f"{self.name} looks at no picture"
        grid, weights = self.picture.grid, self.weights.float()
        if query is not None:
            found = weights[:, query]
        else:
            found = weights.mean(1)
            if self.query_role == "read":
                standing = torch.einsum("t,hts->hs", self.picture.shares.to(weights), weights)
                found = standing if standing.any() else found
        return found[:, grid.tokens : grid.places].unflatten(1, (grid.rows, grid.columns))

    @property
    def numbers(self) -> list[int]:
        """The number of each head."""
        return list(range(len(self.weights)) if self.heads is None else self.heads)

    @property
    def largest(self) -> float:
        """What the strongest colour stands for: 1, or of lengths, roll-outs and pictures, the largest there is."""
        one = self.view == "weights" and self.picture is None
        return 1.0 if one else max(self.weights.max().item(), 1e-30)

    def __post_init__(self) -> None:
        shape, labels = tuple(self.weights.shape), (len(self.queries), len(self.keys))
        if len(shape) != 3 or 0 in shape:
            raise ValueError(f"{self.name}: weights must be (heads, queries, keys), none of them 0; got {shape}")
        if shape[1:] != labels:
            raise ValueError(f"{self.name}: weights {shape} need {shape[1:]} queries and keys; got {labels} texts")
        if self.query_role not in (roles := ("read", "predicted", "said")):
            raise ValueError(f"{self.name}: query_role must be one of {roles}; got {self.query_role!r}")
        if self.view not in VIEWS:
            raise ValueError(f"{self.name}: view = {self.view!r}: choose {' or '.join(VIEWS)}")
        if self.heads is not None and len(self.heads) != shape[0]:
            raise ValueError(f"{self.name}: weights {shape} need the numbers of {shape[0]} heads, got {self.heads}")
        most = 1 + TOLERANCE if self.view != "norm" else torch.finfo(torch.float32).max
        inside = (self.weights >= -TOLERANCE) & (self.weights <= most)  # NaN is not
        if not inside.all():
            h, i, j = (~inside).nonzero()[0].tolist()
            bounds = "between 0 and 1 (give them before dropout)" if self.view != "norm" else "at least 0"
            raise ValueError(
                f"{self.name}: weights must be finite and {bounds}; "
                f"got {self.weights[h, i, j].item():g} at head {h}, query {i}, key {j}"
            )


def attention_page(maps: Sequence[AttentionMap], *, title: str, note: str = "", log: bool = False) -> str:
    """An HTML document that shows all heads of `maps` and fetches nothing: style, script and data are inside.

    `log` begins with logarithmic colours; the page has a switch for them.

    >>> cross = AttentionMap("cross", torch.full((8, 2, 4), 0.25), "ab", "wxyz", "predicted")  # (H, T, S)
    >>> "<title>wxyz → ab</title>" in attention_page([cross], title="wxyz → ab")
    True
    """
    names = [each.name for each in maps]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a page needs one or more maps, each of its own name; got {names}")
    entries = [
        {
            "name": each.name,
            "role": each.query_role,
            "queries": list(each.queries),
            "keys": list(each.keys),
            "heads": each.numbers,
            "largest": each.largest,
            "pictured": each.picture is not None,
            "before": 0 if each.picture is None else each.picture.grid.tokens,
            "weights": (each.weights.detach().cpu().double() / each.largest * SCALE)
            .clamp(0, SCALE)
            .round()
            .int()
            .tolist(),
        }
        for each in maps
    ]
    slots = {"note": escape(note), "log": "checked" if log else ""}
    seen = next((_told(each.picture) for each in maps if each.picture is not None), None)
    return filled("page.html", title, {"scale": SCALE, "maps": entries, "picture": seen}, **slots)


def _told(picture: Picture) -> dict[str, object]:
    """A picture for a page: its pixels as red, green and blue, in base64."""
    high, wide, channels = picture.pixels.shape
    colours = picture.pixels if channels == 3 else picture.pixels.repeat(3, axis=2)
    shares = [round(share, 5) for share in picture.shares.tolist()]
    rgb = base64.b64encode(colours.tobytes()).decode()
    return {"width": wide, "height": high, "rgb": rgb, "grid": picture.grid._asdict(), "shares": shares}


def filled(name: str, title: str, data: object, **slots: str) -> str:
    """A template of this room as a document that holds its data, and fetches nothing."""
    template = resources.files("regard.inspection").joinpath(name).read_text("utf-8")
    # In JSON "<" occurs only within strings; written as an escape, no token can close the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    slots |= {"policy": _policy(template), "title": escape(title), "data": text}
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], template)  # one pass: a title names no slot


def _policy(template: str) -> str:
    """The content-security policy under which the template's own style and script run and nothing loads."""
    rules = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        rules.append(f"{tag}-src 'sha256-{digest}'")
    return "; ".join(rules)


def write_page(path: str | os.PathLike[str], html: str) -> None:
    """Write `html` to `path`, whole or not at all, creating its directories.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     write_page(f"{runs}/quickstart/attention.html", "<!doctype html>")
    """
    write_whole(path, html.encode("utf-8", "xmlcharrefreplace"))  # a title from a shell may hold undecodable bytes
