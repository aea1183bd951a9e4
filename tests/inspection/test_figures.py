"""Figures and files of numbers: every weight is in them, every text is text, and the same maps give the same bytes."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from regard.inspection.figures import FLOOR, to_csv, to_html, to_npz, to_png, to_svg
from regard.inspection.page import AttentionMap

HOSTILE = [
    "</text>",
    "$a_1$",
    "&lt;",
    '"',
    ",",
    " ",
    "",
    "\n",
    "\0",
    "\ud800",
    "年",
    "שלום",
    "مرحبا",
    "\U0001f600",
    "ไทย",
]
Write = Callable[..., bytes]


def softmax_map(H: int = 3, T: int = 4, name: str = "decoder.layers.0.cross_attention", **more: object) -> AttentionMap:
    weights = torch.randn(H, T, len(HOSTILE), generator=torch.Generator().manual_seed(H)).softmax(-1)
    return AttentionMap(name, weights, HOSTILE[:T], HOSTILE, "predicted", **more)  # type: ignore[arg-type]


def svg_texts(content: bytes) -> list[str]:
    return [
        "".join(each.itertext()) for each in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.parametrize("H", [1, 2])
@pytest.mark.parametrize("write", [to_svg, to_png])
def test_any_text_can_be_drawn_and_the_same_again(write: Write, H: int) -> None:
    maps = [softmax_map(H)] if H == 1 else [softmax_map(H), softmax_map(H, name="encoder.layers.1.self_attention")]
    content = write(maps, title="$x$ 年 \ud800", note="$\\frac$", log=True)
    assert content == write(maps, title="$x$ 年 \ud800", note="$\\frac$", log=True)


def test_the_texts_of_a_figure_are_text() -> None:
    texts = svg_texts(to_svg([softmax_map(1)], title="$x$ 年", note="a note"))
    for text in ("$x$ 年", "a note", "$a_1$", "</text>", "שלום", "U+D800", "⏎", "∅", "␣", "predicts"):
        assert text in texts
    assert "decoder.layers.0.cross_attention, head 0: attends to" in texts
    grid = svg_texts(to_svg([softmax_map(2, heads=[5, 7])]))
    assert {"head 5", "head 7", "年"} <= set(grid)
    assert "head 0" not in grid


def test_a_figure_fetches_nothing() -> None:
    for content in (to_svg([softmax_map(1)]), to_svg([softmax_map(3)])):
        root = ElementTree.fromstring(content)
        linked = [value for each in root.iter() for name, value in each.attrib.items() if name.endswith("href")]
        assert all(value.startswith(("#", "data:")) for value in linked)
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def fills(weights: list[float], *, log: bool = False) -> list[str]:
    """The colours of the cells of a map of one row."""
    each = AttentionMap("cross", torch.tensor([[weights]]), "a", "vwxyz"[: len(weights)], "predicted")
    root = ElementTree.fromstring(to_svg([each], log=log))
    (cells,) = [group for group in root.iter() if group.get("id") == "QuadMesh_1"]
    return [str(cell.get("style")).removeprefix("fill: ") for cell in cells]


def test_colours_say_how_much() -> None:
    assert fills([0.0, 1.0]) == ["#eff5f2", "#24254b"]
    assert fills([0.0, FLOOR / 10, FLOOR, 1.0], log=True) == ["#eff5f2"] * 3 + ["#24254b"]
    assert fills([0.01, 0.1], log=True) == fills([1 / 3 + 1e-5, 2 / 3 + 1e-5])  # of the way, if it is logarithmic


def test_arrays_are_the_very_weights_without_pickle() -> None:
    maps = [softmax_map(2, heads=[1, 6]), softmax_map(3, name="x")]
    with np.load(io.BytesIO(to_npz(maps)), allow_pickle=False) as arrays:
        for each in maps:
            assert np.array_equal(arrays[each.name], each.weights.numpy())
            assert arrays[f"{each.name}.queries"].tolist() == [text.rstrip("\0") for text in each.queries]
            assert len(arrays[f"{each.name}.keys"]) == len(HOSTILE)
            assert arrays[f"{each.name}.keys"].tolist()[10:] == HOSTILE[10:]
        assert arrays["decoder.layers.0.cross_attention.heads"].tolist() == [1, 6]
        assert len(arrays.files) == 8
    assert to_npz(maps) == to_npz(maps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_lines_give_back_the_very_weights(dtype: torch.dtype) -> None:
    each = softmax_map(2, heads=[1, 6])
    each = AttentionMap(each.name, each.weights.to(dtype), each.queries, each.keys, "predicted", each.heads)
    rows = list(csv.DictReader(io.StringIO(to_csv([each]).decode("utf-8"), newline="")))
    assert len(rows) == each.weights.numel()
    again = torch.tensor([float(row["weight"]) for row in rows], dtype=torch.float64).to(dtype)
    assert torch.equal(again.view(each.weights.shape), each.weights)
    assert [row["head"] for row in rows] == ["1"] * 60 + ["6"] * 60
    assert (rows[17]["query"], rows[17]["query_token"], rows[17]["key"], rows[17]["key_token"]) == (
        "1",
        "$a_1$",
        "2",
        "&lt;",
    )
    assert rows[9]["key_token"] == "\\ud800"


def test_lengths_are_named_so_and_may_be_large() -> None:
    long = AttentionMap("cross", torch.tensor([[[3.5, 120.0]]]), "a", "xy", "predicted", view="norm")
    assert to_csv([long]).decode().splitlines()[::2] == [
        "attention,head,query,query_token,key,key_token,norm",
        "cross,0,0,a,1,y,120.0",
    ]
    assert "length of what is added" in svg_texts(to_svg([long]))
    assert "120" in svg_texts(to_svg([long], log=True))


def test_many_cells_become_a_picture_of_bounded_size() -> None:
    big = AttentionMap("x", torch.full((8, 150, 150), 1 / 150), ["q"] * 150, ["k"] * 150, "read")
    content = to_svg([big])
    assert b"data:image/png;base64" in content
    assert len(content) < 2_000_000


class Title(HTMLParser):
    text, checked = "", False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.checked |= tag == "input" and ("checked", None) in [(k, v or None) for k, v in attributes]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("log", [False, True])
def test_the_page_begins_with_the_colours_asked_for(log: bool) -> None:
    page = Title()
    page.feed(to_html([softmax_map()], title="\ud800 → b", log=log).decode("utf-8"))
    assert page.checked is log
    assert "→ b" in page.text


@pytest.mark.parametrize("write", [to_svg, to_png, to_npz, to_csv, to_html])
def test_no_maps_two_of_a_name_or_of_two_views_are_refused(write: Write) -> None:
    with pytest.raises(ValueError, match="one or more maps"):
        write([])
    with pytest.raises(ValueError, match="each of its own name"):
        write([softmax_map(), softmax_map()])
    if write is not to_html:
        with pytest.raises(ValueError, match="of one view"):
            write([softmax_map(), softmax_map(name="x", view="norm")])
