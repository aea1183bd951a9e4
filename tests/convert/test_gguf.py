"""A .gguf is read as llama.cpp reads it: each quantisation number by number, each tensor in its place."""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard.convert import import_
from regard.convert.gguf import TYPES
from regard.data.tokenizers import Tokenizer
from regard.models import storage
from tests.convert.toys import sentences

Block = Sequence[int]


def half(b: Block) -> float:
    return float(np.frombuffer(bytes(b), "<f2")[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q4(b: Block, i: int) -> int:
    return b[i] & 15 if i < 16 else b[i - 16] >> 4


def q4_0(b: Block) -> list[float]:
    return [half(b[:2]) * (q4(b[2:], i) - 8) for i in range(32)]


def q4_1(b: Block) -> list[float]:
    return [half(b[:2]) * q4(b[4:], i) + half(b[2:4]) for i in range(32)]


def fifth(b: Block, i: int) -> int:
    return (int.from_bytes(bytes(b[:4]), "little") >> i & 1) << 4


def q5_0(b: Block) -> list[float]:
    return [half(b[:2]) * ((q4(b[6:], i) | fifth(b[2:], i)) - 16) for i in range(32)]


def q5_1(b: Block) -> list[float]:
    return [half(b[:2]) * (q4(b[8:], i) | fifth(b[4:], i)) + half(b[2:4]) for i in range(32)]


def q8_0(b: Block) -> list[float]:
    return [half(b[:2]) * signed(b[2 + i]) for i in range(32)]


def scale_and_least(s: Block, j: int) -> tuple[int, int]:
    """Of block j in a super-block, out of twelve bytes that hold sixteen numbers of six bits."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4


def k(b: Block, code: Callable[[int], int]) -> list[float]:
    """Numbers of a super-block; `code` of each."""
    found = []
    for i in range(256):
        scale, least = scale_and_least(b[4:16], i // 32)
        found.append(half(b[:2]) * scale * code(i) - half(b[2:4]) * least)
    return found


def nibble(b: Block, i: int) -> int:
    """64 numbers share 32 bytes: the lower halves are the first 32."""
    byte = b[i // 64 * 32 + i % 32]
    return byte & 15 if i % 64 < 32 else byte >> 4


def q4_k(b: Block) -> list[float]:
    return k(b, lambda i: nibble(b[16:], i))


def q5_k(b: Block) -> list[float]:
    return k(b, lambda i: nibble(b[48:], i) | (b[16 + i % 32] >> (i // 32) & 1) << 4)


def q6_k(b: Block) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], b[192:208], half(b[208:210])
    found = []
    for i in range(256):
        h, r = divmod(i, 128)  # each half has 64 bytes of lower and 32 of upper bits
        quarter, l = divmod(r, 32)
        byte = low[64 * h + l + 32 * (quarter % 2)]
        bits = (byte & 15 if quarter < 2 else byte >> 4) | (high[32 * h + l] >> 2 * quarter & 3) << 4
        found.append(d * signed(scales[i // 16]) * (bits - 32))
    return found


SLOW: dict[str, Callable[[Block], list[float]]] = {
    "F32": lambda b: [struct.unpack("<f", bytes(b))[0]],
    "F16": lambda b: [half(b)],
    "BF16": lambda b: [struct.unpack("<f", bytes([0, 0, *b]))[0]],
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
NUMBERS = {blocks.name: number for number, blocks in TYPES.items()}


@pytest.mark.parametrize("name", SLOW)
def test_a_quantisation_is_what_the_slow_truth_says(name: str) -> None:
    blocks = TYPES[NUMBERS[name]]
    raw = np.random.default_rng(0).integers(0, 256, (20, blocks.bytes), dtype=np.uint8)
    for at in ({"Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q4_1": (0, 2), "Q5_1": (0, 2)}).get(name, (0,)):
        if blocks.numbers > 1:  # scales that are numbers of a bearable size
            raw[:, at : at + 2] = np.linspace(-2, 2, 20, dtype="<f2")[:, None].view(np.uint8)
    slow = np.array([SLOW[name](row) for row in raw.tolist()])
    read = blocks.read(raw)
    assert read.dtype == np.float32
    assert read.shape == slow.shape == (20, blocks.numbers)
    np.testing.assert_allclose(read, slow, rtol=1e-6, atol=1e-6)


def test_every_quantisation_is_tested() -> None:
    assert SLOW.keys() == NUMBERS.keys()


# A file, by hand


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def value(x: Any) -> bytes:
    """A value with its type: numbers of 32 bits, texts, lists."""
    if isinstance(x, bool):
        return struct.pack("<I?", 7, x)
    if isinstance(x, int):
        return struct.pack("<II", 4, x)
    if isinstance(x, float):
        return struct.pack("<If", 6, x)
    if isinstance(x, str):
        return struct.pack("<I", 8) + text(x)
    inner = struct.pack("<I", 5) if isinstance(x[0], int) else value(x[0])[:4]  # numbers in a list have a sign
    return struct.pack("<I", 9) + inner + struct.pack("<Q", len(x)) + b"".join(value(each)[4:] for each in x)


Tensors = dict[str, tuple[int, tuple[int, ...], bytes]]  # name -> type, shape, bytes


def gguf(told: dict[str, Any], tensors: Tensors) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(told))
    head += b"".join(text(key) + value(x) for key, x in told.items())
    data = b""
    for name, (kind, shape, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


def eight_bits(x: NDArray[np.float32]) -> bytes:
    """Q8_0, by rounding."""
    rows = x.reshape(-1, 32)
    scales = np.abs(rows).max(1, keepdims=True) / 127
    codes = np.round(rows / np.maximum(scales, 1e-9)).astype(np.int8)
    return b"".join(s.astype("<f2").tobytes() + c.tobytes() for s, c in zip(scales, codes, strict=True))


HEADS, KV, WIDTH = 4, 2, 32
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def learnt() -> Rust:
    """A byte-level BPE with two marks."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(sentences(200), trainer)
    return rust


def llama(vocabulary: int, kind: str = "Llama") -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": 8}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=64, tie_word_embeddings=True, **sizes
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def packed(model: Any, pack: Callable[[NDArray[np.float32]], tuple[int, bytes]]) -> Tensors:
    """The tensors as llama.cpp has them: of a Llama, neighbouring rows of queries and keys are turned together."""
    found: Tensors = {}
    for name, x in model.model.state_dict(prefix="model.").items():
        *path, last = name.split(".")
        inner = ".".join(path[3:]) if path[1] == "layers" else ".".join(path)
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV}.get(inner)
        if heads and type(model).__name__.startswith("Llama"):
            x = x.reshape(heads, 2, -1, WIDTH).transpose(1, 2).reshape(-1, WIDTH)
        kind, content = pack(x.numpy()) if x.dim() == 2 else (0, x.numpy().tobytes())
        layer = f"blk.{path[2]}." if path[1] == "layers" else ""
        found[f"{layer}{NAMES[inner]}.{last}"] = kind, tuple(x.shape), content
    return found


def told(rust: Rust, **more: Any) -> dict[str, Any]:
    pieces = [str(rust.id_to_token(i)) for i in range(rust.get_vocab_size())]
    own = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 3, *[1] * (len(pieces) - 2)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(rust.to_str())["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    return own | more


def exactly(x: NDArray[np.float32]) -> tuple[int, bytes]:
    return 0, x.tobytes()


def in_eight_bits(x: NDArray[np.float32]) -> tuple[int, bytes]:
    return 8, eight_bits(x)


@pytest.mark.parametrize(
    ("kind", "pack", "near"),
    [("Llama", exactly, 1e-5), ("Llama", in_eight_bits, 0.3), ("Qwen2", exactly, 1e-5), ("Qwen3", exactly, 1e-5)],
)
def test_a_model_says_what_it_said(tmp_path: Path, kind: str, pack: Any, near: float) -> None:
    rust = learnt()
    theirs = llama(rust.get_vocab_size(), kind)
    about = {key.replace("llama.", f"{kind.lower()}."): each for key, each in told(rust).items()}
    about |= {"general.architecture": kind.lower(), f"{kind.lower()}.attention.key_length": 8}
    (tmp_path / "toy.gguf").write_bytes(gguf(about, packed(theirs, pack)))
    assert import_(tmp_path / "toy.gguf", tmp_path / "out") == []
    ours: Any = storage.load(tmp_path / "out")
    tokens = torch.randint(2, rust.get_vocab_size(), (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, said = theirs(tokens).logits, ours(tokens)
    assert (said - expected).abs().max() < near * expected.std()
    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer.json")
    for line in [*sentences(5, seed=3), "the  cät 1234!", "<|start|>"]:
        ids = rust.encode(line).ids
        assert line == "<|start|>" or tokenizer.encode(line) == ids
        assert tokenizer.decode(tokenizer.encode(line)) == line  # where no text gives a mark
    assert tokenizer.marks[:3] == (None, 0, 1)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert purpose.task == {"name": "generate"}


def test_pieces_with_scores_are_merged_as_sentencepiece_does(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    with (tmp_path / "spm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences(300)),
            model_writer=file,
            vocab_size=320,
            model_type="bpe",
            byte_fallback=True,
            minloglevel=2,
        )
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm"))
    kinds = [2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1 for i in range(320)]
    about = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [spm.id_to_piece(i) for i in range(320)],
        "tokenizer.ggml.scores": [spm.get_score(i) for i in range(320)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    (tmp_path / "toy.gguf").write_bytes(gguf(told(learnt()) | about, packed(llama(320), exactly)))
    import_(tmp_path / "toy.gguf", tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer.json")
    for line in [*sentences(30, seed=3), "the cät ☕", "treehouse", "a  b"]:
        assert tokenizer.encode(line)[0] == 1
        assert tokenizer.decode(tokenizer.encode(line)) == line
        if "  " not in line:  # SentencePiece makes one space of several
            assert tokenizer.encode(line)[1:] == spm.encode(line)
    assert tokenizer.marks.unk == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"general.architecture": "mamba"},
            r"it is of the architecture 'mamba', and regard reads llama, qwen2",
        ),
        ({"llama.rope.scaling.type": "yarn"}, r"its rotation is scaled \(llama.rope.scaling.type = 'yarn'\)"),
        ({"tokenizer.ggml.model": "bert"}, r"its tokenizer is of the kind 'bert', and regard reads gpt2"),
        ({"tokenizer.ggml.pre": "smolm"}, r"unknown tokenizer.ggml.pre 'smolm': did you mean 'smollm'\?"),
        ({"llama.attention.head_count": 3}, r"toy.gguf cannot be imported: "),
        (
            {"llama.embedding_length": 64},
            r"toy.gguf does not fit its config.json: 'model.embed_tokens.weight' has the shape",
        ),
        ({"llama.block_count": 3}, r"toy.gguf has no tensor 'model.layers.2."),
        ({"tokenizer.ggml.bos_token_id": "one"}, r"toy.gguf: bos_token_id = 'one' is not a token's id"),
    ],
)
def test_what_a_file_says_that_regard_has_not_is_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rust = learnt()
    path = tmp_path / "toy.gguf"
    path.write_bytes(gguf(told(rust) | change, packed(llama(rust.get_vocab_size()), exactly)))
    with pytest.raises(ValueError, match=message) as caught:
        import_(path, tmp_path / "out")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["toy.gguf"]


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    rust = learnt()
    path, tensors = tmp_path / "toy.gguf", packed(llama(rust.get_vocab_size()), exactly)
    good = gguf(told(rust), tensors)
    unknown = tensors | {"token_embd.weight": (17, *tensors["token_embd.weight"][1:])}
    less = {name: each for name, each in tensors.items() if "blk.1.attn_v" not in name}
    without = {key: each for key, each in told(rust).items() if "head_count" not in key}
    bad: list[tuple[bytes, str]] = [
        (b"", "toy.gguf cannot be imported"),
        (b"GGML" + good[4:], "it does not begin with GGUF"),
        (good[:4] + struct.pack("<I", 9) + good[8:], "it is of version 9, and this regard reads 2 and 3"),
        (good[:1000], "it ends too early"),
        (good[:-100], "'blk.1.ffn_down.weight' of shape .* is not whole|'output_norm.weight' of shape .* is not whole"),
        (good[:8] + struct.pack("<Q", 2**60) + good[16:], "cannot be imported"),
        (gguf(told(rust), unknown), "'token_embd.weight' has the quantisation of number 17, and regard reads F32, F16"),
        (
            gguf(told(rust), tensors | {"rope_freqs.weight": (0, (1,), bytes(4))}),
            "a tensor 'rope_freqs.weight', of which",
        ),
        (
            gguf(told(rust), tensors | {"output_norm.weight": (0, (32,), b"\xff" * 128)}),
            "'output_norm.weight' has values that",
        ),
        (gguf(told(rust), less), "has no tensor 'model.layers.1.self_attn.v_proj.weight'"),
        (gguf(without, tensors), "it says nothing of 'num_attention_heads'"),
    ]
    for content, message in bad:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            import_(path, tmp_path / "out")
        assert "\n" not in str(caught.value)
        assert [each.name for each in tmp_path.iterdir()] == ["toy.gguf"]
