"""From llama2.c, version 0: seven whole numbers, then a Llama in float32, and tokenizer.bin beside it.

Its rows of queries and keys turn neighbours together. A text begins with <s>, and what it writes ends with <s> as well.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.convert.theirs import Theirs, halved
from regard.convert.vocabularies import BYTE, CONTROL, scored
from regard.files import read_whole, regular_size

TOKENIZER = "tokenizer.bin"
HEADER = struct.Struct("<7i")
TENSORS = [  # a tensor for all layers, one below the other: its name, rows and columns, in the order of the file
    ("input_layernorm", "1", "d"),
    ("self_attn.q_proj", "d", "d"),
    ("self_attn.k_proj", "kv", "d"),
    ("self_attn.v_proj", "kv", "d"),
    ("self_attn.o_proj", "d", "d"),
    ("post_attention_layernorm", "1", "d"),
    ("mlp.gate_proj", "ff", "d"),
    ("mlp.down_proj", "d", "ff"),
    ("mlp.up_proj", "ff", "d"),
]
UNKNOWN, BOS, EOS = range(3)
BYTES = range(3, 259)


def read(path: Path) -> Theirs:
    """The model in a .bin, and the tokenizer beside it."""
    regular_size(path)
    raw = path.read_bytes()
    if len(raw) < HEADER.size:
        raise ValueError(f"{path} is no model of llama2.c: it has {len(raw)} bytes")
    d, ff, layers, heads, kv_heads, vocabulary, longest = HEADER.unpack(raw[: HEADER.size])
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    if min(d, ff, layers, heads, kv_heads, vocabulary, longest) < 1 or d % heads or heads % kv_heads:
        raise ValueError(
            f"{path} is no model of llama2.c, version 0: its header is {HEADER.unpack(raw[: HEADER.size])}"
        )
    sizes = {"1": 1, "d": d, "kv": d // heads * kv_heads, "ff": ff}
    per_layer = sum(sizes[rows] * sizes[columns] for _, rows, columns in TENSORS)
    angles = longest * (d // heads // 2) * 2  # tables of cosines and sines, which need not be read
    expected = vocabulary * d * (1 if tied else 2) + layers * per_layer + d + angles
    numbers = np.frombuffer(raw, "<f4", offset=HEADER.size) if len(raw) % 4 == 0 else np.empty(0)
    if len(numbers) != expected:
        raise ValueError(
            f"{path} is damaged, or no model of llama2.c, version 0: {len(raw) - HEADER.size:,} bytes of numbers, but "
            f"its header says {4 * expected:,}"
        )
    whole, at = torch.from_numpy(numbers.copy()), 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        at += int(np.prod(shape))
        return whole[at - int(np.prod(shape)) : at].view(shape)

    tensors = {"model.embed_tokens.weight": take(vocabulary, d)}
    for name, rows, columns in TENSORS:
        for i, x in enumerate(take(layers, sizes[rows], sizes[columns])):
            if name.endswith(("q_proj", "k_proj")):
                x = halved(x, heads if "q_proj" in name else kv_heads)
            tensors[f"model.layers.{i}.{name}.weight"] = x[0] if rows == "1" else x
    tensors["model.norm.weight"] = take(d)
    take(angles)
    if not tied:
        tensors["lm_head.weight"] = take(vocabulary, d)
    about: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": d,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": longest,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": BOS,
        "eos_token_id": BOS,
    }
    tokenizer = _tokenizer(path.with_name(TOKENIZER), vocabulary)
    return Theirs({"config.json": about, "tokenizer.json": tokenizer}, tensors)


def _tokenizer(path: Path, size: int) -> Any:
    """A BPE of SentencePiece, in which a space is a space, and a byte may be the character of its number."""
    if not path.is_file():
        raise ValueError(f"{path} is not there: a model of llama2.c needs its {TOKENIZER} beside it")
    raw, at = read_whole(path), 4  # the first number says how long its longest piece is
    pieces, scores = [], []
    try:
        for i in range(size):
            score, length = struct.unpack_from("<fi", raw, at)
            piece = raw[at + 8 : at + 8 + length]
            if length < 0 or len(piece) < length:
                raise ValueError(f"it ends within token {i}")
            pieces.append(f"<0x{i - BYTES.start:02X}>" if i in BYTES else piece.decode().replace(" ", "▁"))
            scores.append(score)
            at += 8 + length
        if at != len(raw):
            raise ValueError(f"it has more than {size} tokens")
        pieces[UNKNOWN : EOS + 1] = ["<unk>", "<s>", "</s>"]
        kinds = [CONTROL if i <= EOS else BYTE if i in BYTES else 1 for i in range(size)]
        return scored(pieces, scores, kinds, BOS)
    except (struct.error, ValueError) as error:
        raise ValueError(f"{path} is damaged, or the tokenizer of another model: {error}") from None
