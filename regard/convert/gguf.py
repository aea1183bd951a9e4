"""From GGUF, the format of llama.cpp: one file has config, tokenizer, chat template and tensors, these in few bits.

A tensor is a run of blocks, each of some numbers that share a scale; here all become float32. Letters: n blocks.
"""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.convert.theirs import Theirs, halved
from regard.convert.vocabularies import merged, scored
from regard.files import regular_size
from regard.models.storage import TEMPLATE

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRING, ARRAY = 8, 9
MOST = 4  # dimensions
BYTES = re.compile("<0x[0-9A-F]{2}>")
Bytes = NDArray[np.uint8]  # (n, bytes of a block)
Numbers = NDArray[np.float32]  # (n, numbers of a block)


# Blocks


def _half(x: Bytes) -> Numbers:
    """Two bytes to a number: (n, 2k) -> (n, k)."""
    return np.ascontiguousarray(x).view("<f2").astype(np.float32)


def _nibbles(x: Bytes) -> Bytes:
    """Numbers of four bits: first the lower halves of all bytes, then the upper ones; (..., k) -> (..., 2k)."""
    return np.concatenate([x & 15, x >> 4], -1)


def _fifth(high: Bytes) -> Bytes:
    """The fifth bit of 32 numbers, from four bytes: (n, 4) -> (n, 32)."""
    return np.unpackbits(high, axis=-1, bitorder="little") << np.uint8(4)


def _scales(x: Bytes) -> tuple[Numbers, Numbers]:
    """Eight scales and eight minima of six bits each: (n, 12) -> (n, 8, 1) twice."""
    low, middle, high = x[:, :4], x[:, 4:8], x[:, 8:]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], -1)
    least = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], -1)
    return scale[..., None].astype(np.float32), least[..., None].astype(np.float32)


def _k(x: Bytes, codes: Bytes) -> Numbers:
    """Super-blocks: eight blocks of 32 codes, whose scales and minima are small numbers times those of all."""
    scale, least = _scales(x[:, 4:16])
    d, m = _half(x[:, :2])[..., None], _half(x[:, 2:4])[..., None]
    return (d * scale * codes - m * least).reshape(len(x), 256)


def _q4_k(x: Bytes) -> Numbers:
    return _k(x, _nibbles(x[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(x: Bytes) -> Numbers:
    fifth = np.unpackbits(x[:, 16:48, None], axis=-1, bitorder="little").transpose(0, 2, 1)  # (n, 8, 32)
    return _k(x, _nibbles(x[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth << np.uint8(4))


def _q6_k(x: Bytes) -> Numbers:
    low = _nibbles(x[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = x[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    scale = np.ascontiguousarray(x[:, 192:208]).view(np.int8).astype(np.float32)[..., None]
    return (_half(x[:, 208:])[..., None] * scale * codes).reshape(len(x), 256)


class Quantisation(NamedTuple):
    """How a type of tensor is packed."""

    name: str
    numbers: int  # of a block
    bytes: int
    read: Callable[[Bytes], Numbers]


TYPES = {
    0: Quantisation("F32", 1, 4, lambda x: np.ascontiguousarray(x).view("<f4")),
    1: Quantisation("F16", 1, 2, _half),
    2: Quantisation("Q4_0", 32, 18, lambda x: _half(x[:, :2]) * (_nibbles(x[:, 2:]).astype(np.float32) - 8)),
    3: Quantisation("Q4_1", 32, 20, lambda x: _half(x[:, :2]) * _nibbles(x[:, 4:]) + _half(x[:, 2:4])),
    6: Quantisation(
        "Q5_0", 32, 22, lambda x: _half(x[:, :2]) * ((_nibbles(x[:, 6:]) | _fifth(x[:, 2:6])).astype(np.float32) - 16)
    ),
    7: Quantisation(
        "Q5_1", 32, 24, lambda x: _half(x[:, :2]) * (_nibbles(x[:, 8:]) | _fifth(x[:, 4:8])) + _half(x[:, 2:4])
    ),
    8: Quantisation("Q8_0", 32, 34, lambda x: _half(x[:, :2]) * np.ascontiguousarray(x[:, 2:]).view(np.int8)),
    12: Quantisation("Q4_K", 256, 144, _q4_k),
    13: Quantisation("Q5_K", 256, 176, _q5_k),
    14: Quantisation("Q6_K", 256, 210, _q6_k),
    30: Quantisation(
        "BF16", 1, 2, lambda x: (np.ascontiguousarray(x).view("<u2").astype(np.uint32) << 16).view(np.float32)
    ),
}


# The file


class Cursor:
    """Reads a file from its beginning, and never beyond its end."""

    def __init__(self, data: Bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in SCALARS:
                packed = np.dtype(f"<{SCALARS[inner]}")
                return np.frombuffer(self.take(count * packed.itemsize), packed).tolist()
            return [self.value(inner) for _ in range(min(count, len(self.data)))]
        if kind not in SCALARS:
            raise ValueError(f"a value has the type {kind}")
        return self.number(SCALARS[kind])


class Packed(NamedTuple):
    """A tensor in the file."""

    shape: list[int]
    type: int
    offset: int  # from the first byte of all tensors


def parse(data: Bytes) -> tuple[dict[str, Any], dict[str, Packed], int]:
    """What a file says, its tensors, and where they begin."""
    cursor = Cursor(data)
    if cursor.take(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    if (version := cursor.number("I")) not in VERSIONS:
        raise ValueError(f"it is of version {version}, and this regard reads 2 and 3")
    count, keys = cursor.number("Q"), cursor.number("Q")
    told = {}
    for _ in range(keys):
        name = cursor.text()
        told[name] = cursor.value(cursor.number("I"))
    tensors = {}
    for _ in range(count):
        name, dimensions = cursor.text(), cursor.number("I")
        if dimensions > MOST:
            raise ValueError(f"{name!r} has {dimensions} dimensions")
        shape = [cursor.number("Q") for _ in range(dimensions)]
        tensors[name] = Packed(shape[::-1], cursor.number("I"), cursor.number("Q"))
    step = max(1, int(told.get("general.alignment", 32)))
    return told, tensors, -(-cursor.at // step) * step


def unpack(name: str, packed: Packed, data: Bytes, begin: int) -> torch.Tensor:
    """A tensor in float32."""
    if (blocks := TYPES.get(packed.type)) is None:
        known = ", ".join(each.name for each in TYPES.values())
        raise ValueError(f"{name!r} has the quantisation of number {packed.type}, and regard reads {known}")
    count = int(np.prod(packed.shape, dtype=object))
    n, begin = count // blocks.numbers, begin + packed.offset
    if count % blocks.numbers or begin + n * blocks.bytes > len(data):
        raise ValueError(f"{name!r} of shape {tuple(packed.shape)} is not whole: it ends too early")
    raw = np.array(data[begin : begin + n * blocks.bytes]).reshape(n, blocks.bytes)
    with np.errstate(invalid="ignore", over="ignore"):
        x = torch.from_numpy(blocks.read(raw).reshape(packed.shape))
    if x.numel() and not all(end.isfinite() for end in x.aminmax()):
        raise ValueError(f"{name!r} has values that are no numbers (NaN or infinite)")
    return x


# What is in it: members of the family


class Architecture(NamedTuple):
    """What llama.cpp calls a model, in the words of Hugging Face."""

    name: str  # its model_type
    neighbours: bool  # rows of queries and keys that are turned together lie side by side


ARCHITECTURES = {
    "llama": Architecture("llama", neighbours=True),
    "qwen2": Architecture("qwen2", neighbours=False),
    "qwen3": Architecture("qwen3", neighbours=False),
}
SETTINGS = {  # theirs -> of Hugging Face
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read(path: Path) -> Theirs:
    """The model, the tokenizer and the template of a file."""
    regular_size(path)
    try:
        data = np.memmap(path, np.uint8, "r")
        told, packed, begin = parse(data)
        kind, about = _about(told, packed)
        tensors = {}
        for name, each in packed.items():
            x = unpack(name, each, data, begin)
            if kind.neighbours and ".attn_q." in name:
                x = halved(x, about["num_attention_heads"])
            elif kind.neighbours and ".attn_k." in name:
                x = halved(x, about["num_key_value_heads"])
            tensors[_named(name)] = x
        about |= {f"{mark}_token_id": told.get(f"tokenizer.ggml.{long}_token_id") for mark, long in MARKS.items()}
        files = {"config.json": about, "tokenizer.json": tokenizer(told), "tokenizer_config.json": _unknown(told)}
        template = told.get("tokenizer.chat_template")
        return Theirs(files | ({} if template is None else {TEMPLATE: template}), tensors)
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        reason = f"it says nothing of {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} cannot be imported: {reason}") from None


MARKS = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _about(told: dict[str, Any], tensors: dict[str, Packed]) -> tuple[Architecture, dict[str, Any]]:
    """Which architecture it is, and its config in the words of Hugging Face."""
    name = told["general.architecture"]
    if name not in ARCHITECTURES:
        raise ValueError(f"it is of the architecture {name!r}, and regard reads {', '.join(ARCHITECTURES)}")
    if (scaling := told.get(f"{name}.rope.scaling.type", "none")) != "none":
        raise ValueError(f"its rotation is scaled ({name}.rope.scaling.type = {scaling!r}), which regard has not")
    about: dict[str, Any] = {
        theirs: value for own, theirs in SETTINGS.items() if (value := told.get(f"{name}.{own}")) is not None
    }
    about["rms_norm_eps"] = float(str(np.float32(about["rms_norm_eps"])))  # 1e-05, not what float32 has near it
    about.setdefault("num_key_value_heads", about["num_attention_heads"])
    about |= {"model_type": ARCHITECTURES[name].name, "hidden_act": "silu"}
    about |= {"vocab_size": tensors["token_embd.weight"].shape[0]}
    about |= {"tie_word_embeddings": "output.weight" not in tensors}
    return ARCHITECTURES[name], about


def _named(name: str) -> str:
    """What Hugging Face calls a tensor.

    >>> _named("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    *layer, part, last = name.split(".")
    if part not in NAMES or (layer and layer[0] != "blk"):
        raise ValueError(f"it has a tensor {name!r}, of which regard knows nothing")
    return ".".join([*(["model", "layers", *layer[1:]] if layer else []), NAMES[part], last])


def tokenizer(told: dict[str, Any]) -> Any:
    """The tokenizer.json of what a file says."""
    kind, pieces = told["tokenizer.ggml.model"], told["tokenizer.ggml.tokens"]
    kinds = told.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    first = told["tokenizer.ggml.bos_token_id"] if told.get("tokenizer.ggml.add_bos_token", kind == "llama") else None
    if kind == "gpt2":
        return merged(pieces, told["tokenizer.ggml.merges"], told.get("tokenizer.ggml.pre", "gpt-2"), kinds, first)
    if kind == "llama":
        space = told.get("tokenizer.ggml.add_space_prefix", True)
        return scored(pieces, told["tokenizer.ggml.scores"], kinds, first, space=space)
    raise ValueError(f"its tokenizer is of the kind {kind!r}, and regard reads gpt2 and llama")


def _unknown(told: dict[str, Any]) -> dict[str, Any]:
    """The token for the unknown, as a tokenizer_config.json says it."""
    i = told.get("tokenizer.ggml.unknown_token_id")
    return {} if i is None else {"unk_token": told["tokenizer.ggml.tokens"][i]}
