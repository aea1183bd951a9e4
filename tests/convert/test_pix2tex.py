"""LaTeX-OCR: its files give the logits of its own architecture, written out below; real weights read a formula."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import regard
from regard.convert import export, import_
from regard.convert.weights import WEIGHTS
from regard.data.pictures import PictureError, Sight

D, HEADS, TOKENS = 32, 2, 40
SHEET = Sight(672, 192, 1)
Weights = dict[str, Tensor]


def weights() -> Weights:
    """A small model, in their names, with one block in each stage but the last."""
    shapes: dict[str, tuple[int, ...]] = {"encoder.cls_token": (1, 1, D), "encoder.pos_embed": (1, 505, D)}
    net = "encoder.patch_embed.backbone."
    shapes |= {f"{net}stem.conv.weight": (64, 1, 7, 7)} | normal(f"{net}stem.norm", 64)
    before = 64
    for stage, count in enumerate((1, 1, 2)):
        after = 256 * 2**stage
        for i in range(count):
            block, inner = f"{net}stages.{stage}.blocks.{i}.", after // 4
            if not i:
                shapes |= {f"{block}downsample.conv.weight": (after, before, 1, 1)}
                shapes |= normal(f"{block}downsample.norm", after)
            for n, shape in enumerate([(inner, before, 1, 1), (inner, inner, 3, 3), (after, inner, 1, 1)], 1):
                shapes |= {f"{block}conv{n}.weight": shape} | normal(f"{block}norm{n}", shape[0])
            before = after
    shapes |= {"encoder.patch_embed.proj.weight": (D, before, 1, 1), "encoder.patch_embed.proj.bias": (D,)}
    for i in range(2):
        own = f"encoder.blocks.{i}."
        shapes |= normal(f"{own}norm1", D) | normal(f"{own}norm2", D)
        for name, (N, K) in {
            "attn.qkv": (3 * D, D),
            "attn.proj": (D, D),
            "mlp.fc1": (4 * D, D),
            "mlp.fc2": (D, 4 * D),
        }.items():
            shapes |= {f"{own}{name}.weight": (N, K), f"{own}{name}.bias": (N,)}
    shapes |= normal("encoder.norm", D) | normal("decoder.net.norm", D)
    shapes |= {"decoder.net.token_emb.weight": (TOKENS, D), "decoder.net.pos_emb.emb.weight": (20, D)}
    shapes |= {"decoder.net.to_logits.weight": (TOKENS, D), "decoder.net.to_logits.bias": (TOKENS,)}
    for i in range(6):
        own = f"decoder.net.attn_layers.layers.{i}."
        shapes |= normal(f"{own}0", D)
        if i % 3 < 2:
            shapes |= {f"{own}1.to_{x}.weight": (64 * HEADS, D) for x in "qkv"}
            shapes |= {f"{own}1.to_out.0.weight": (2 * D, 64 * HEADS), f"{own}1.to_out.0.bias": (2 * D,)}
        else:
            shapes |= {f"{own}1.net.0.proj.weight": (8 * D, D), f"{own}1.net.0.proj.bias": (8 * D,)}
            shapes |= {f"{own}1.net.2.weight": (D, 4 * D), f"{own}1.net.2.bias": (D,)}
    torch.manual_seed(0)
    return {name: 0.3 * torch.randn(shape) + float("norm" in name) for name, shape in shapes.items()}


def normal(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def forward(w: Weights, pixels: Tensor, tokens: Tensor) -> Tensor:
    """Their model, step by step."""
    x = pixels
    net = "encoder.patch_embed.backbone."

    def convolved(x: Tensor, name: str, stride: int = 1) -> Tensor:
        k = w[f"{name}.weight"]
        k = F.batch_norm(k.reshape(1, len(k), -1), None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(k)
        size = k.shape[2]
        ends = [(max((-(-n // stride) - 1) * stride + size - n, 0)) for n in (x.shape[3], x.shape[2])]
        return F.conv2d(F.pad(x, [p for end in ends for p in (end // 2, end - end // 2)]), k, stride=stride)

    def grouped(x: Tensor, name: str) -> Tensor:
        return F.group_norm(x, 32, w[f"{name}.weight"], w[f"{name}.bias"])

    def normed(x: Tensor, name: str, eps: float) -> Tensor:
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def product(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def mixed(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[2:]).triu(1).bool(), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    x = F.relu(grouped(convolved(x, f"{net}stem.conv", 2), f"{net}stem.norm"))
    x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2)
    for stage, count in enumerate((1, 1, 2)):
        for i in range(count):
            own, stride = f"{net}stages.{stage}.blocks.{i}.", 2 if stage and not i else 1
            past = x if i else grouped(convolved(x, f"{own}downsample.conv", stride), f"{own}downsample.norm")
            x = F.relu(grouped(convolved(x, f"{own}conv1"), f"{own}norm1"))
            x = F.relu(grouped(convolved(x, f"{own}conv2", stride), f"{own}norm2"))
            x = F.relu(grouped(convolved(x, f"{own}conv3"), f"{own}norm3") + past)
    x = F.conv2d(x, w["encoder.patch_embed.proj.weight"], w["encoder.patch_embed.proj.bias"])
    places = [0, *(1 + 42 * row + column for row in range(x.shape[2]) for column in range(x.shape[3]))]
    x = torch.cat([w["encoder.cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
    x = x + w["encoder.pos_embed"][:, places]
    for i in range(2):
        own = f"encoder.blocks.{i}."
        q, k, v = product(normed(x, f"{own}norm1", 1e-6), f"{own}attn.qkv").chunk(3, -1)
        x = x + product(mixed(q, k, v, False), f"{own}attn.proj")
        x = x + product(F.gelu(product(normed(x, f"{own}norm2", 1e-6), f"{own}mlp.fc1")), f"{own}mlp.fc2")
    memory = normed(x, "encoder.norm", 1e-6)
    x = w["decoder.net.token_emb.weight"][tokens] + w["decoder.net.pos_emb.emb.weight"][: tokens.shape[1]]
    for i in range(6):
        own = f"decoder.net.attn_layers.layers.{i}."
        y = normed(x, f"{own}0", 1e-5)
        if i % 3 < 2:
            read = memory if i % 3 else y
            q, k, v = (product(of, f"{own}1.to_{each}") for of, each in ((y, "q"), (read, "k"), (read, "v")))
            x = x + F.glu(product(mixed(q, k, v, i % 3 == 0), f"{own}1.to_out.0"))
        else:
            value, gate = product(y, f"{own}1.net.0.proj").chunk(2, -1)
            x = x + product(value * F.gelu(gate), f"{own}1.net.2")
    return product(normed(x, "decoder.net.norm", 1e-5), "decoder.net.to_logits")


def theirs(place: Path) -> Weights:
    """A directory of theirs."""
    place.mkdir()
    torch.save(found := weights(), place / "weights.pth")
    marks = ["[PAD]", "[BOS]", "[EOS]"]
    vocabulary = {name: i for i, name in enumerate([*marks, *(chr(ord("a") + i) for i in range(26)), "Ġ"])}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    about = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": name} | plain for i, name in enumerate(marks)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"vocab": vocabulary, "merges": []},
    }
    (place / "tokenizer.json").write_text(json.dumps(about))
    return found


def drawn(wide: int, high: int) -> Image.Image:
    """Something black on white."""
    ink = np.random.default_rng(0).random((high, wide)) < 0.3
    ink[0, 0] = ink[-1, -1] = True
    return Image.fromarray(np.where(ink, 0, 255).astype(np.uint8))


@torch.no_grad()
def test_it_says_what_its_own_architecture_says(tmp_path: Path) -> None:
    given = theirs(tmp_path / "theirs")
    assert import_(tmp_path / "theirs", tmp_path / "out") == []
    describer = regard.load(tmp_path / "out")
    pictures = [drawn(60, 30), drawn(100, 50), drawn(61, 29)]
    tokens = torch.randint(3, TOKENS, (1, 7))
    for picture in pictures:
        pixels = describer.viewer.sight.tensor(describer.viewer.sight.pixels(picture)[None])
        expected = forward(given, pixels, tokens)
        torch.testing.assert_close(describer.model(pixels, tokens), expected, atol=2e-4, rtol=1e-4)
    together = describer.caption(pictures, beam=2, limit=6)  # of several sizes
    assert together == [describer.caption(each, beam=2, limit=6) for each in pictures]
    with pytest.raises(ValueError, match="Hugging Face has no model with"):
        export(tmp_path / "out", tmp_path / "hf", "hf")


def test_a_sheet_is_cut_out_and_seen_as_large_as_it_is() -> None:
    sheet = Image.new("L", (300, 200), 255)
    sheet.paste(drawn(70, 20), (100, 90))
    seen = SHEET.pixels(sheet)
    assert seen.shape == (32, 96, 1)
    assert np.array_equal(seen[:20, :70, 0], np.asarray(drawn(70, 20)))
    assert (seen[20:] == 255).all()
    assert (seen[:, 70:] == 255).all()
    white = Image.fromarray(255 - np.asarray(sheet))  # light on dark
    assert np.array_equal(SHEET.pixels(white), seen)
    clear = Image.new("LA", sheet.size)  # black on nothing
    clear.putalpha(Image.fromarray(255 - np.asarray(sheet)))
    assert np.array_equal(SHEET.pixels(clear), seen)
    assert SHEET.pixels(drawn(2000, 100)).shape[1] == 672
    with pytest.raises(PictureError, match="all of one colour"):
        SHEET.pixels(Image.new("L", (40, 40), 7))


def test_what_is_damaged_is_said_in_one_line(tmp_path: Path) -> None:
    theirs(tmp_path / "theirs")
    for content in (b"no weights", _saved({"encoder.cls_token": torch.zeros(1)})):
        (tmp_path / "theirs" / "weights.pth").write_bytes(content)
        with pytest.raises(ValueError, match=r"weights.pth is damaged, or not of LaTeX-OCR: fetch it again$"):
            import_(tmp_path / "theirs", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _saved(tensors: Weights) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


@pytest.mark.slow
def test_real_weights_read_a_formula(tmp_path: Path) -> None:
    if not (os.environ.get("REGARD_REAL_WEIGHTS") or WEIGHTS["latex-ocr"].here):
        pytest.skip("latex-ocr is not here: REGARD_REAL_WEIGHTS=1 fetches it")
    mathtext = pytest.importorskip("matplotlib.mathtext")
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties

    import_("latex-ocr", tmp_path / "latex")
    describer = regard.load(tmp_path / "latex")
    said = {r"\frac{a+b}{c}": r"\frac { a + b } { c }", "x^2+y^2=z^2": "x ^ { 2 } + y ^ { 2 } = z ^ { 2 }"}
    for formula, expected in said.items():
        with rc_context({"mathtext.fontset": "cm"}):
            mathtext.math_to_image(f"${formula}$", tmp_path / "formula.png", prop=FontProperties(size=14), dpi=140)
        assert describer.caption(tmp_path / "formula.png") == expected
