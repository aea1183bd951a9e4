"""To GGUF, the format of llama.cpp: what `gguf.py` reads, written; one tensor at a time is in memory.

What is said of a tokenizer is taken for true only if what is read from it is the tokenizer again.
"""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.convert import foreign, gguf
from regard.convert.source import Source
from regard.convert.tables.table import at
from regard.convert.theirs import neighbouring
from regard.convert.vocabularies import BYTE, CONTROL, CUTS, OWN
from regard.data.tokenizers import Tokenizer
from regard.files import write_whole

ALIGNMENT, NORMAL, UNUSED = 32, 1, 5
FLOAT, BOOL, UNSIGNED, SIGNED = 6, 7, 4, 5  # types of values
CAN = "Llama, Mistral without a window, SmolLM, Qwen2 and Qwen3"
Numbers = NDArray[np.float32]  # (n, numbers of a block)
Bytes = NDArray[np.uint8]  # (n, bytes of a block)


# Blocks of 32: a scale, maybe the least, and codes


def _halves(*columns: Numbers) -> list[Bytes]:
    return [column.astype("<f2").view(np.uint8) for column in columns]


def _inverse(scale: Numbers) -> Numbers:
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _q8_0(x: Numbers) -> Bytes:
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    y = x * _inverse(scale)
    codes = np.trunc(y + np.copysign(np.float32(0.5), y)).astype(np.int8)  # halves away from 0
    return np.concatenate([*_halves(scale), codes.view(np.uint8)], 1)


def _nibbles(codes: Numbers) -> Bytes:
    """Codes (n, 32) from 0 to 15: the second half of a block is in the upper bits of the first."""
    low, high = np.minimum(15, codes).astype(np.uint8).reshape(-1, 2, 16).transpose(1, 0, 2)
    return low | high << np.uint8(4)


def _q4_0(x: Numbers) -> Bytes:
    most = np.take_along_axis(x, np.abs(x).argmax(1, keepdims=True), 1)  # with its sign, for which there is one more
    scale = most / np.float32(-8)
    return np.concatenate([*_halves(scale), _nibbles(x * _inverse(scale) + np.float32(8.5))], 1)


def _q4_1(x: Numbers) -> Bytes:
    least = x.min(1, keepdims=True)
    scale = (x.max(1, keepdims=True) - least) / np.float32(15)
    return np.concatenate([*_halves(scale, least), _nibbles((x - least) * _inverse(scale) + np.float32(0.5))], 1)


class Packing(NamedTuple):
    """How tensors are written."""

    type: int  # of a tensor, in `gguf.TYPES`
    file: int  # what llama.cpp calls such a file
    pack: Callable[[Numbers], Bytes]


F32, F16 = Packing(0, 0, lambda x: x.view(np.uint8)), Packing(1, 1, lambda x: x.astype("<f2").view(np.uint8))
PACKINGS = {
    "f32": F32,
    "f16": F16,
    "q8_0": Packing(8, 7, _q8_0),
    "q4_0": Packing(2, 2, _q4_0),
    "q4_1": Packing(3, 3, _q4_1),
}


# The file


def write(source: Source, path: Path, quantization: str | None = None) -> None:
    """Write a .gguf, whole or not at all. Matrices are packed as `quantization` says, f32 unless told; vectors are not,
    and a matrix whose rows are no blocks of 32 is f16 at least."""
    packing = PACKINGS.get(quantization or "f32")
    if packing is None:
        raise ValueError(f"unknown quantization {quantization!r}: for gguf it is one of {', '.join(PACKINGS)}")
    write_whole(path, _parts(source, packing))


def _parts(source: Source, packing: Packing) -> Iterator[bytes]:
    told, name, heads = _told(source)
    told |= {"general.file_type": packing.file} | ({"general.quantization_version": 2} if packing.file > 1 else {})
    shapes = {key: tuple(x.shape) for key, x in _tensors(source, name, heads)}
    used = {key: _used(packing, shape) for key, shape in shapes.items()}
    head = [gguf.MAGIC, struct.pack("<IQQ", gguf.VERSIONS[-1], len(shapes), len(told))]
    head += [_text(key) + _value(x) for key, x in told.items()]
    offset = 0
    for key, shape in shapes.items():
        head.append(_text(key) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], used[key].type, offset))
        offset += _aligned(_size(shape, used[key]))
    yield (whole := b"".join(head)) + bytes(_aligned(len(whole)) - len(whole))
    for key, x in _tensors(source, name, heads):
        rows = x.detach().numpy().astype(np.float32, copy=False)
        blocks = gguf.TYPES[used[key].type].numbers
        with np.errstate(over="ignore"):
            packed = used[key].pack(np.ascontiguousarray(rows).reshape(-1, blocks)).tobytes()
        if used[key] is F16 and not np.isfinite(np.frombuffer(packed, "<f2")).all():
            raise ValueError(f"{key} has numbers that f16 has not: export it in f32")
        yield packed + bytes(_aligned(len(packed)) - len(packed))


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def _used(packing: Packing, shape: tuple[int, ...]) -> Packing:
    if len(shape) < 2:
        return F32
    return F16 if shape[-1] % gguf.TYPES[packing.type].numbers else packing


def _size(shape: tuple[int, ...], packing: Packing) -> int:
    blocks = gguf.TYPES[packing.type]
    return int(np.prod(shape)) // blocks.numbers * blocks.bytes


def _text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def _value(x: Any) -> bytes:
    """A value with its type; numbers in a list have a sign."""
    if isinstance(x, list):
        kind = {int: SIGNED, float: FLOAT}.get(type(x[0]) if x else str, gguf.STRING)
        inner = b"".join(map(_text, x)) if kind == gguf.STRING else np.array(x, f"<{gguf.SCALARS[kind]}4").tobytes()
        return struct.pack("<IIQ", gguf.ARRAY, kind, len(x)) + inner
    if isinstance(x, str):
        return struct.pack("<I", gguf.STRING) + _text(x)
    kind = {bool: BOOL, int: UNSIGNED, float: FLOAT}[type(x)]
    return struct.pack(f"<I{gguf.SCALARS[kind]}", kind, x)


# What is in it


def _tensors(source: Source, name: str, heads: tuple[int, int]) -> Iterator[tuple[str, torch.Tensor]]:
    """By their names, rows of queries and keys as they turn them."""
    names = {theirs: own for own, theirs in gguf.NAMES.items()}
    for theirs, x in foreign.tensors(source):
        layer, inner = "", theirs
        if theirs.startswith("model.layers."):
            number, inner = theirs.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        part, _, last = inner.rpartition(".")
        if gguf.ARCHITECTURES[name].neighbours and part in (turned := ("self_attn.q_proj", "self_attn.k_proj")):
            x = neighbouring(x, heads[turned.index(part)])
        yield f"{layer}{names[part]}.{last}", x


def _told(source: Source) -> tuple[dict[str, Any], str, tuple[int, int]]:
    """What the file says; the architecture, and how many heads have queries, and how many keys."""
    if source.head.kind != "tokens":
        raise ValueError(f"a model with the head {source.head.kind}: only a language model can be exported to GGUF")
    try:
        table, _, about = foreign.their_config(source)
        kind = next(name for name, known in gguf.ARCHITECTURES.items() if known.name == table.name)
    except (ValueError, StopIteration):
        family = type(source.model).__name__
        raise ValueError(f"no such {family} model can be exported to GGUF, only {CAN}: see docs/convert.md") from None
    if source.config.rope_scaling is not None:
        raise ValueError(f"rope_scaling = {source.config.rope_scaling!r}: no such model can be exported to GGUF")
    about |= {"rope_theta": at(about, "rope_parameters.rope_theta")}
    told = {"general.architecture": kind} | {f"{kind}.{own}": about[theirs] for own, theirs in gguf.SETTINGS.items()}
    told |= {f"{kind}.{key}": about["head_dim"] for key in ("attention.value_length", "rope.dimension_count")}
    told |= {f"{kind}.vocab_size": about["vocab_size"]} | _tokenizer(source.tokenizer)
    told |= {} if source.template is None else {"tokenizer.chat_template": source.template}
    return told, kind, (about["num_attention_heads"], about["num_key_value_heads"])


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """What the file says of a tokenizer, if it can."""
    content, marks, size = json.loads(tokenizer.rust.to_str()), tokenizer.marks, len(tokenizer)
    pieces = [str(tokenizer.rust.id_to_token(i)) for i in range(size)]
    own = {token["content"] for token in content["added_tokens"]}
    falls = content["model"].get("byte_fallback")
    kinds = [
        CONTROL if i in tokenizer.silent else OWN if piece in own
        else BYTE if falls and gguf.BYTES.fullmatch(piece) else UNUSED if piece == f"<no token {i}>" else NORMAL
        for i, piece in enumerate(pieces)
    ]  # fmt: skip
    before = tokenizer.encode("") if tokenizer.imported else marks.frame[0]
    told = {"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds}
    told |= {"tokenizer.ggml.add_bos_token": bool(before), "tokenizer.ggml.add_eos_token": False}
    ids = {long: getattr(marks, mark) for mark, long in gguf.MARKS.items()} | {"unknown": marks.unk}
    told |= {f"tokenizer.ggml.{long}_token_id": i for long, i in ids.items() if i is not None}
    merges: list[tuple[str, str]] = [*map(tuple, content["model"].get("merges") or ())]
    cuts: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": [*map(" ".join, merges)]}
    tries = [told | cuts | {"tokenizer.ggml.pre": cut} for cut in CUTS]
    scored: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}
    scored |= {"tokenizer.ggml.scores": _scores(pieces, merges)} if falls else {}
    tries += [told | scored | {"tokenizer.ggml.add_space_prefix": space} for space in (True, False) if falls]
    for said in tries if before in ([], [marks.bos]) else ():
        if _same(content, gguf.tokenizer(said)):
            return said
    raise ValueError(
        f"its tokenizer, of the kind {tokenizer.kind}, cannot be said in GGUF, which has byte-level BPE as GPT-2, "
        "SmolLM, Llama 3 and Qwen2 cut texts, and SentencePiece's: train with tokens.kind = byte"
    )


def _scores(pieces: list[str], merges: list[tuple[str, str]]) -> list[float]:
    """Of each piece a score, higher where it is merged earlier; where merges of several take turns, they have the same.

    >>> _scores(["a", "aa", "b", "ba", "bb"], [("b", "a"), ("a", "a"), ("b", "b"), ("a", "a")])
    [-3.0, -2.0, -3.0, -1.0, -2.0]
    """
    last = {"".join(pair): rank for rank, pair in enumerate(merges)}
    levels: dict[str, int] = {}
    level, end = 0, -1
    for rank, pair in enumerate(map("".join, merges)):
        level += rank > end
        end = max(end, last[pair])
        levels[pair] = level
    return [-float(levels.get(piece, level + 1)) for piece in pieces]


def _same(ours: dict[str, Any], read: dict[str, Any]) -> bool:
    """Whether two tokenizers cut a text alike; without merges, where it is cut before is of no matter."""
    a, b = ([each["model"].get(key) for key in ("type", "vocab", "merges", "byte_fallback")] for each in (ours, read))
    but = ["trim_offsets", *([] if ours["model"].get("merges") else ["use_regex"])]
    return a == b and all(_bare(ours[x], but) == _bare(read[x], but) for x in ("normalizer", "pre_tokenizer"))


def _bare(part: Any, but: list[str]) -> Any:
    """A part of a tokenizer without what changes no token; nothing done is nothing."""
    if isinstance(part, dict) and part.get("type") == "Sequence":
        inner = [_bare(each, but) for each in part.get("normalizers") or part.get("pretokenizers") or ()]
        return inner[0] if len(inner) == 1 else inner or None
    return {key: x for key, x in part.items() if key not in but} if isinstance(part, dict) else part
