"""A .bin of llama2.c says what it says there: a plain forward in NumPy, written from its README, is the reference."""

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.convert import import_
from regard.data.tokenizers import Tokenizer
from regard.models import storage

Array = NDArray[np.float32]
SIZES = {"d": 24, "ff": 40, "layers": 2, "heads": 4, "kv": 2, "vocabulary": 300, "longest": 16}
ORDER = ("norm1", "wq", "wk", "wv", "wo", "norm2", "w1", "w2", "w3")


def shapes(s: dict[str, int]) -> dict[str, tuple[int, ...]]:
    d, ff, n, kv = s["d"], s["ff"], s["layers"], s["d"] // s["heads"] * s["kv"]
    per_layer: list[tuple[int, ...]] = [(d,), (d, d), (kv, d), (kv, d), (d, d), (d,), (ff, d), (d, ff), (ff, d)]
    return (
        {"embedding": (s["vocabulary"], d)}
        | {name: (n, *shape) for name, shape in zip(ORDER, per_layer, strict=True)}
        | {"norm": (d,), "angles": (2, s["longest"], d // s["heads"] // 2)}
    )


def unpack(raw: bytes) -> tuple[dict[str, int], dict[str, Array]]:
    """The sizes and the arrays of a file."""
    sizes = dict(zip(SIZES, struct.unpack("<7i", raw[:28]), strict=True))
    numbers, found = np.frombuffer(raw, "<f4", offset=28), {}
    wanted = shapes(sizes | {"vocabulary": abs(sizes["vocabulary"])})
    for name, shape in wanted.items():
        found[name], numbers = numbers[: np.prod(shape)].reshape(shape), numbers[np.prod(shape) :]
    found["output"] = numbers.reshape(wanted["embedding"]) if len(numbers) else found["embedding"]
    return sizes, found


def norm(x: Array, weight: Array) -> Array:
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def forward(s: dict[str, int], w: dict[str, Array], tokens: list[int]) -> Array:
    """Logits of each next token, (T, V): position by position, neighbours turned together."""
    heads, kv, size = s["heads"], s["kv"], s["d"] // s["heads"]
    T = len(tokens)
    angle = np.arange(T)[:, None] / 10000 ** (np.arange(0, size, 2) / size)
    turn = np.exp(1j * angle)[:, None]  # (T, 1, size / 2)

    def turned(x: Array) -> Array:
        pairs = x[..., ::2] + 1j * x[..., 1::2]
        return np.stack([(pairs * turn).real, (pairs * turn).imag], -1).reshape(x.shape)

    x = w["embedding"][tokens].astype(np.float64)
    for i in range(s["layers"]):
        y = norm(x, w["norm1"][i])
        q = turned((y @ w["wq"][i].T).reshape(T, heads, size))
        k = turned((y @ w["wk"][i].T).reshape(T, kv, size)).repeat(heads // kv, 1)
        v = (y @ w["wv"][i].T).reshape(T, kv, size).repeat(heads // kv, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size) + np.triu(np.full((T, T), -1e9), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", weights, v).reshape(T, -1) @ w["wo"][i].T
        y = norm(x, w["norm2"][i])
        gate = y @ w["w1"][i].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["w3"][i].T)) @ w["w2"][i].T
    return norm(x, w["norm"]) @ w["output"].T


def model(tied: bool = True, **changes: int) -> bytes:
    sizes = SIZES | changes
    draw = np.random.default_rng(0)
    head = struct.pack("<7i", *(sizes | {"vocabulary": sizes["vocabulary"] * (1 if tied else -1)}).values())
    arrays = [draw.normal(0, 0.3, shape) for shape in shapes(sizes).values()]
    arrays += [] if tied else [draw.normal(0, 0.3, arrays[0].shape)]
    return head + b"".join(x.astype("<f4").tobytes() for x in arrays)


def pieces(spelled: bool) -> list[tuple[float, bytes]]:
    """Marks, the bytes, letters, and what is merged of them; bytes are written as <0x41>, or as their character."""
    words = [" ", *"aehnot", " t", "he", " the", "on", " on", "no", "  "]
    found = [(0.0, b"<unk>"), (0.0, b"\n<s>\n"), (0.0, b"\n</s>\n")]
    found += [(0.0, f"<0x{i:02X}>".encode() if spelled else chr(i).encode()) for i in range(256)]
    found += [(-float(i) if len(word) > 1 else -1e9, word.encode()) for i, word in enumerate(words)]
    return found + [(-1e9, f"<{i}>".encode()) for i in range(300 - len(found))]


def tokenizer(spelled: bool = True) -> bytes:
    return struct.pack("<i", 8) + b"".join(struct.pack("<fi", s, len(p)) + p for s, p in pieces(spelled))


def slow(text: str) -> list[int]:
    """What llama2.c makes of a text: a space before it, characters or bytes, then the best pair, again and again."""
    known = [piece.decode() if i > 258 or i < 3 else f"byte {i}" for i, (_, piece) in enumerate(pieces(True))]
    ids: list[int] = []
    for character in " " + text:
        ids += [known.index(character)] if character in known else [3 + byte for byte in character.encode()]
    while True:
        pairs = [(known[a] + known[b], n) for n, (a, b) in enumerate(pairwise(ids))]
        best = max(((pieces(True)[known.index(p)][0], -n, p) for p, n in pairs if p in known[3:]), default=None)
        if best is None:
            return [1, *ids]
        n = -best[1]
        ids[n : n + 2] = [known.index(best[2])]


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_slow_truth(tmp_path: Path, tied: bool) -> None:
    (tmp_path / "toy.bin").write_bytes(model(tied))
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer())
    assert import_(tmp_path / "toy.bin", tmp_path / "out") == []
    ours: Any = storage.load(tmp_path / "out")
    tokens = [1, *range(260, 270), 7, 299]
    with torch.inference_mode():
        said = ours(torch.tensor([tokens]))[0].numpy()
    expected = forward(*unpack(model(tied)), tokens)
    np.testing.assert_allclose(said, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("spelled", [True, False])
def test_a_text_is_cut_as_there(tmp_path: Path, spelled: bool) -> None:
    (tmp_path / "model.bin").write_bytes(model())
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer(spelled))
    import_(tmp_path, tmp_path / "out")
    ours = Tokenizer.load(tmp_path / "out" / "tokenizer.json")
    for text in ("the one", "on no hen", "a  hat", "ö\n", "é", ""):
        assert ours.encode(text) == (slow(text) if text else [1])
        assert ours.decode(ours.encode(text)) == text
    assert ours.marks[:3] == (None, 1, 1)  # what it writes ends with the mark that a text begins with


def test_what_is_no_such_file_is_one_line(tmp_path: Path) -> None:
    path, good = tmp_path / "model.bin", model()
    bad: list[tuple[bytes, bytes | None, str]] = [
        (b"abc", tokenizer(), "model.bin is no model of llama2.c: it has 3 bytes"),
        (struct.pack("<7i", 24, 40, 2, 5, 2, 300, 16), tokenizer(), "no model of llama2.c, version 0: its header is"),
        (good[:-4], tokenizer(), "model.bin is damaged, or no model of llama2.c, version 0: .* bytes of numbers, but"),
        (good[:-1], tokenizer(), "model.bin is damaged"),
        (good + bytes(4), tokenizer(), "model.bin is damaged"),
        (good, None, "tokenizer.bin is not there: a model of llama2.c needs its tokenizer.bin beside it"),
        (
            good,
            tokenizer()[:-3],
            "tokenizer.bin is damaged, or the tokenizer of another model: it ends within token 299",
        ),
        (good, tokenizer()[:90], "tokenizer.bin is damaged"),
        (good, tokenizer() + bytes(9), "tokenizer.bin is damaged, .* it has more than 300 tokens"),
    ]
    for content, beside, message in bad:
        path.write_bytes(content)
        (tmp_path / "tokenizer.bin").unlink(missing_ok=True)
        if beside is not None:
            (tmp_path / "tokenizer.bin").write_bytes(beside)
        with pytest.raises(ValueError, match=message) as caught:
            import_(path, tmp_path / "out")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()
