"""The attention page: self-contained, safe against any token text, true to the weights, written whole."""

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.inspection.page import AttentionMap, attention_page, write_page

HOSTILE = ["</script><b>", "<!--<script>", "]]>", '"\\', "&lt;", "\u2028", "\ud800", "{{title}}", " ", "", "年", "שלום"]


class Elements(HTMLParser):
    """The page as a browser's parser splits it: the elements with their attributes, and the text of some."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def softmax_map(name: str = "decoder.layers.0.cross_attention", H: int = 3, T: int = 5) -> AttentionMap:
    weights = torch.randn(H, T, len(HOSTILE), generator=torch.Generator().manual_seed(0)).softmax(-1)
    return AttentionMap(name, weights, HOSTILE[:T], HOSTILE, "predicted")


def embedded(html: str) -> Any:
    return json.loads(Elements(html).texts["data"])


def test_fetches_nothing() -> None:
    html = attention_page([softmax_map()], title="t")
    assert not re.search(r"\b(https?|wss?|ftp):|\burl\(|@import|\bimport\b|\bfetch\(|XMLHttpRequest", html)
    names = {name for _, attributes in Elements(html).tags for name in attributes}
    assert not names & {"src", "href", "srcset", "action", "style"}
    assert not any(name.startswith("on") for name in names)  # the policy would refuse them


def test_policy_allows_exactly_the_inline_style_and_script() -> None:
    page = Elements(attention_page([softmax_map()], title="t"))
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    assert rules["default-src"] == "'none'"
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag].encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"


def test_any_text_comes_back_as_text() -> None:
    title = "</title><script>alert(1)</script>{{data}}"
    html = attention_page([softmax_map("</script><b>")], title=title, note="<i>{{policy}} & so on")
    (entry,) = embedded(html)["maps"]
    assert entry["name"] == "</script><b>"
    assert entry["keys"] == HOSTILE
    assert entry["queries"] == HOSTILE[:5]
    assert entry["role"] == "predicted"
    page = Elements(html)
    assert [tag for tag, _ in page.tags].count("script") == 2  # the data and the one that draws them
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.texts["title"] == page.texts["h1"] == title
    assert page.texts["p"].startswith("<i>{{policy}} & so on")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_in_the_page_are_those_given(dtype: torch.dtype) -> None:
    weights = softmax_map().weights.to(dtype)
    weights[0, 0] = 0  # a fully masked row
    weights[0, 1] = 1 + 5e-5 if dtype == torch.float64 else 1  # rounding above 1 is clamped
    data = embedded(attention_page([AttentionMap("a", weights, HOSTILE[:5], HOSTILE, "read")], title="t"))
    found = torch.tensor(data["maps"][0]["weights"], dtype=torch.float64) / data["scale"]
    torch.testing.assert_close(found, weights.double(), rtol=0, atol=1e-4)
    assert found.min() == 0
    assert found.max() == 1


def test_weights_that_need_a_gradient_are_taken() -> None:
    weights = softmax_map().weights.requires_grad_()
    attention_page([AttentionMap("a", weights, HOSTILE[:5], HOSTILE, "read")], title="t")


def test_sixteen_heads_of_64_by_64_stay_small() -> None:
    tokens = [f"token{i}" for i in range(64)]
    weights = torch.randn(16, 64, 64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert len(attention_page([AttentionMap("a", weights, tokens, tokens, "read")], title="t")) < 400_000


@pytest.mark.parametrize(
    ("weights", "queries", "keys", "role", "message"),
    [
        (torch.zeros(2, 3), "ab", "abc", "read", r"\(2, 3\)"),
        (torch.zeros(0, 2, 3), "ab", "abc", "read", r"\(0, 2, 3\)"),
        (torch.zeros(1, 2, 3), "abc", "ab", "read", r"\(2, 3\) queries and keys; got \(3, 2\)"),
        (torch.zeros(1, 2, 3), "ab", "abc", "written", "'written'"),
        (torch.full((1, 2, 3), 1.25), "ab", "abc", "read", "1.25 at head 0, query 0, key 0"),
        (torch.full((1, 2, 3), -0.5), "ab", "abc", "read", "-0.5"),
        (torch.full((1, 2, 3), torch.nan), "ab", "abc", "read", "nan"),
        (torch.full((1, 2, 3), torch.inf), "ab", "abc", "read", "inf"),
    ],
)
def test_a_map_that_cannot_be_right_is_refused(
    weights: torch.Tensor, queries: str, keys: str, role: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionMap("encoder.layers.0.self_attention", weights, queries, keys, role)


def test_a_page_needs_maps_of_different_names() -> None:
    for maps in ([], [softmax_map("same"), softmax_map("same")]):
        with pytest.raises(ValueError, match="own name"):
            attention_page(maps, title="t")


def test_write_makes_directories_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "page.html"
    write_page(path, "old")
    write_page(str(path), "年\r\n\udcff")  # newlines as they are; what UTF-8 cannot hold becomes a reference
    assert path.read_bytes() == "年\r\n&#56575;".encode()
    assert os.listdir(path.parent) == ["page.html"]


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_page(path, "old")

    def full(self: Path, *how: object) -> int:
        self.touch()
        raise OSError("no space left on device")

    for target, name in ((Path, "open"), (os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full)
            with pytest.raises(OSError, match="no space"):
                write_page(path, "new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["page.html"]
