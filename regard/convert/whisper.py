"""Whisper: OpenAI's .pt with its vocabulary beside it, whisper.cpp's ggml .bin, which has everything, CTranslate2's
model.bin with its tokenizer.json, as faster-whisper has it; and its tokens.

After the sub-words of GPT-2 come the end and the beginning of a transcript, languages, tasks, and times in steps of a
fiftieth of a second. A vocabulary of theirs numbers its sub-words in the order in which they were merged.
"""

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.convert.theirs import Theirs
from regard.convert.vocabularies import CONTROL, merged, ranked
from regard.data.recordings import SPELLING
from regard.files import read_whole, regular_size

GGML = struct.pack("<I", 0x67676D6C)
AUDIO, TEXT = (tuple(f"{side}_{each}" for each in ("ctx", "state", "head", "layer")) for side in ("audio", "text"))
SIZES = ("vocab", *AUDIO, *TEXT, "mels")  # in the order of a ggml file
CODES = (  # in the order of their tokens
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = CODES.split()
AFTER = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
TIMES = [f"{i / 50:.2f}" for i in range(1501)]
ENGLISH = 51864  # tokens of a model that knows no other language
ALIGNED = {  # heads that follow the sound word by word, layer and head, by (layers, width, whether English alone)
    (4, 384, True): [[1, 0], [2, 0], [2, 5], [3, 0], [3, 1], [3, 2], [3, 3], [3, 4]],
    (4, 384, False): [[2, 2], [3, 0], [3, 2], [3, 3], [3, 4], [3, 5]],
    (6, 512, True): [[3, 3], [4, 7], [5, 1], [5, 5], [5, 7]],
    (6, 512, False): [[3, 1], [4, 2], [4, 3], [4, 7], [5, 1], [5, 2], [5, 4], [5, 6]],
}
NAMES: dict[str, Any] = {  # OpenAI's, in Hugging Face's
    r"(encoder|decoder)\.": r"model.\1.",
    r"\.blocks\.": ".layers.",
    r"\.cross_attn": ".encoder_attn",
    r"\.attn": ".self_attn",
    r"attn\.(query|key|value)": lambda found: f"attn.{found[1][0]}_proj",
    r"attn\.out\.": "attn.out_proj.",
    "attn_ln": "attn_layer_norm",
    r"\.mlp\.0": ".fc1",
    r"\.mlp\.2": ".fc2",
    r"\.mlp_ln": ".final_layer_norm",
    r"\.ln(_post)?\.": ".layer_norm.",
    "positional_embedding": "embed_positions.weight",
    "token_embedding": "embed_tokens",
}
CT2 = re.compile(rb"[\x01-\xff]\0\0\0\x0c\0WhisperSpec\0", re.DOTALL)  # a version, and what it is
CT2_KINDS = ("f4", "i1", "i2", "i4", "f2", None)  # by number; the last is bf16
CT2_NAMES = {  # CTranslate2's, in Hugging Face's; several are one of theirs
    r"/layer_(\d+)/": r".layers.\1.",
    r"\.self_attention/linear_0/": ".self_attn.{q,k,v}_proj.",
    r"\.self_attention/linear_1/": ".self_attn.out_proj.",
    r"\.attention/linear_0/": ".encoder_attn.q_proj.",
    r"\.attention/linear_1/": ".encoder_attn.{k,v}_proj.",
    r"\.attention/linear_2/": ".encoder_attn.out_proj.",
    r"\.self_attention/layer_norm/": ".self_attn_layer_norm.",
    r"\.attention/layer_norm/": ".encoder_attn_layer_norm.",
    r"\.ffn/linear_0/": ".fc1.",
    r"\.ffn/linear_1/": ".fc2.",
    r"\.ffn/layer_norm/": ".final_layer_norm.",
    r"embeddings/": "embed_tokens.",
    r"position_encodings/encodings": "embed_positions.weight",
    r"gamma$": "weight",
    r"beta$": "bias",
    r"/": ".",
}


def marks(tokens: int) -> list[str]:
    """What stands after the sub-words in a vocabulary of so many tokens.

    >>> len(marks(51864)), len(marks(51865)), marks(51866)[100:102]
    (1608, 1608, ['<|su|>', '<|yue|>'])
    """
    languages = LANGUAGES[: 99 + max(0, tokens - ENGLISH - 1)]
    return [f"<|{name}|>" for name in ("endoftext", "startoftranscript", *languages, *AFTER, *TIMES)]


def timed(content: dict[str, Any], tokens: int) -> dict[str, Any]:
    """A tokenizer.json of Hugging Face's with all that is no text known as such: some have no times."""
    added = [token | {"special": True} for token in content["added_tokens"]]
    ids = {token["content"]: token["id"] for token in added}
    if (last := ids.get("<|notimestamps|>")) is None:
        raise ValueError("its tokenizer has no <|notimestamps|>: it is none of Whisper's")
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    times = {f"<|{time}|>": last + 1 + i for i, time in enumerate(TIMES) if last + 1 + i < tokens}
    added += [{"id": i, "content": name} | plain for name, i in times.items() if name not in ids]
    return content | {"added_tokens": added}


def read_pt(path: Path) -> Theirs:
    """OpenAI's own file; its vocabulary, gpt2.tiktoken or multilingual.tiktoken, lies beside it."""
    regular_size(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        sizes = {name: int(found["dims"][f"n_{name}"]) for name in SIZES}
        tensors: dict[str, Tensor] = found["model_state_dict"]
    except Exception:  # of pickle, of zip, of many kinds
        raise ValueError(f"{path} is damaged, or no Whisper of OpenAI's: it has no dims and model_state_dict") from None
    vocabulary = path.with_name("gpt2.tiktoken" if sizes["vocab"] == ENGLISH else "multilingual.tiktoken")
    if not vocabulary.is_file():
        raise ValueError(f"{vocabulary} is not there: it is in the package openai-whisper, as whisper/assets/")
    try:
        words = [base64.b64decode(line.split()[0]) for line in read_whole(vocabulary).splitlines() if line]
    except (ValueError, IndexError):
        raise ValueError(f"{vocabulary} is damaged: each line is a token in base64, and its number") from None
    return _theirs(path, sizes, words, tensors)


class _Numbers:
    """Numbers of a file, one after the other."""

    def __init__(self, path: Path, at: int) -> None:
        regular_size(path)
        self.path, self.raw, self.at = path, path.read_bytes(), at

    def __call__(self, count: int, kind: str = "i4") -> Any:
        begin, self.at = self.at, self.at + count * np.dtype(kind).itemsize
        if count < 0 or self.at > len(self.raw):
            raise ValueError(f"{self.path} is damaged: it ends within byte {self.at:,}")
        return np.frombuffer(self.raw, f"<{kind}", count, begin)


def is_ggml(path: Path) -> bool:
    """Whether a file is of whisper.cpp."""
    with open(path, "rb") as file:
        return file.read(len(GGML)) == GGML


def read_ggml(path: Path) -> Theirs:
    """A file of whisper.cpp, in f16 or f32: sizes, the usual filter bank, the vocabulary, the tensors."""
    take = _Numbers(path, len(GGML))
    *numbers, kind = take(len(SIZES) + 1).tolist()
    sizes = dict(zip(SIZES, numbers, strict=True))
    if kind not in (0, 1):
        raise ValueError(f"{path} is quantised (ftype {kind}): take one in f16 or f32")
    bands, bins = take(2).tolist()
    take(bands * bins, "f4")
    words = [take(int(take(1)[0]), "u1").tobytes() for _ in range(int(take(1)[0]))]
    tensors = {}
    while take.at < len(take.raw):
        dims, length, half = take(3).tolist()
        shape = take(dims).tolist()[::-1]
        name = take(length, "u1").tobytes().decode("utf-8", "replace")
        x = torch.from_numpy(take(int(np.prod(shape)), "f2" if half else "f4").copy()).reshape(shape)
        tensors[name] = x.reshape(-1) if name.endswith("bias") else x
    return _theirs(path, sizes, words, tensors)


def is_ct2(path: Path) -> bool:
    """Whether a file is a Whisper of CTranslate2's."""
    with open(path, "rb") as file:
        return CT2.match(file.read(32)) is not None


def read_ct2(path: Path) -> Theirs:
    """A model.bin of CTranslate2's, in fp32, fp16, bf16 or int8; its tokenizer.json lies beside it."""
    take = _Numbers(path, 4)

    def text() -> str:
        return take(int(take(1, "u2")[0]), "u1").tobytes()[:-1].decode("utf-8", "replace")

    def numbers() -> Tensor:
        shape = take(int(take(1, "u1")[0]), "u4").tolist()
        kind, count = int(take(1, "u1")[0]), int(take(1, "u4")[0])
        if kind >= len(CT2_KINDS):
            raise ValueError(f"{path} has numbers of an unknown kind, {kind}: take one in float32, float16 or int8")
        if CT2_KINDS[kind] is None:
            return torch.from_numpy(take(count // 2, "i2").copy()).view(torch.bfloat16).reshape(shape)
        width = np.dtype(CT2_KINDS[kind]).itemsize
        return torch.from_numpy(take(count // width, CT2_KINDS[kind]).copy()).reshape(shape)

    text()
    take(1)
    held = {text(): numbers() for _ in range(int(take(1)[0]))}
    tensors: dict[str, Tensor] = {}
    try:
        for name, x in held.items():
            if x.dim() == 0 or name.endswith("_scale") or "projection" in name:
                continue  # a setting; what is of another; what is tied
            if x.dtype == torch.int8:
                x = x / held[f"{name}_scale"].reshape(-1, *[1] * (x.dim() - 1))
            for theirs, its in CT2_NAMES.items():
                name = re.sub(theirs, its, name)
            parts = re.search(r"\{(.*)\}", name)
            each = parts[1].split(",") if parts else [""]
            for part, own in zip(each, x.float().chunk(len(each)), strict=True):
                if (part, name[-4:]) != ("k", "bias"):  # which keys have not
                    tensors[f"model.{re.sub('{.*}', part, name)}"] = own
        conv, places = tensors["model.encoder.conv1.weight"], "model.{}.embed_positions.weight"
        sides, (tokens, width) = ("encoder", "decoder"), tensors["model.decoder.embed_tokens.weight"].shape
        sizes = {"vocab": tokens, "mels": conv.shape[1]}
        for side, own in zip(sides, ("audio", "text"), strict=True):
            layers = {name.split(".")[3] for name in tensors if name.startswith(f"model.{side}.layers.")}
            heads = int(held[f"{side}/num_heads"])
            of = len(tensors[places.format(side)]), width, heads, len(layers)
            sizes |= {f"{own}_{name}": size for name, size in zip(("ctx", "state", "head", "layer"), of, strict=True)}
    except (KeyError, IndexError, RuntimeError, ValueError):
        raise ValueError(f"{path} is damaged, or no Whisper of CTranslate2's: it lacks tensors of one") from None
    if not (beside := path.with_name("tokenizer.json")).is_file():
        raise ValueError(f"{beside} is not there: it belongs to {path.name}")
    end = tokens - len(marks(tokens))
    files = {"config.json": _about(sizes, end), "tokenizer.json": read_whole(beside).decode("utf-8", "replace")}
    return Theirs(files | _spelling(path), tensors)


def _about(sizes: Mapping[str, int], end: int) -> dict[str, Any]:
    """A config.json of Hugging Face's, for a model whose signs begin with the end of a transcript."""
    about: dict[str, Any] = {
        "model_type": "whisper",
        "vocab_size": sizes["vocab"],
        "num_mel_bins": sizes["mels"],
        "d_model": sizes["text_state"],
        "max_source_positions": sizes["audio_ctx"],
        "max_target_positions": sizes["text_ctx"],
        "encoder_layers": sizes["audio_layer"],
        "decoder_layers": sizes["text_layer"],
        "encoder_attention_heads": sizes["audio_head"],
        "decoder_attention_heads": sizes["text_head"],
        "encoder_ffn_dim": 4 * sizes["audio_state"],
        "decoder_ffn_dim": 4 * sizes["text_state"],
        "activation_function": "gelu",
        "dropout": 0.0,
        "pad_token_id": end,
        "eos_token_id": end,
        "decoder_start_token_id": end + 1,
    }
    if heads := ALIGNED.get((sizes["text_layer"], sizes["text_state"], sizes["vocab"] == ENGLISH)):
        about["alignment_heads"] = heads
    return about


def _theirs(path: Path, sizes: Mapping[str, int], words: Sequence[bytes], tensors: Mapping[str, Tensor]) -> Theirs:
    said, tokens = marks(sizes["vocab"]), sizes["vocab"]
    if (known := len(words) + len(said)) != tokens:
        raise ValueError(f"{path} has {tokens} tokens, and its vocabulary {known}: they do not belong together")
    pieces, merges = ranked(words)
    tokenizer = merged([*pieces, *said], merges, "gpt-2", [1] * len(words) + [CONTROL] * len(said), None)
    found = {}
    for name, x in tensors.items():
        for theirs, its in NAMES.items():
            name = re.sub(rf"^{theirs}" if theirs[0] == "(" else theirs, its, name)
        found[name] = x
    return Theirs({"config.json": _about(sizes, len(words)), "tokenizer.json": tokenizer} | _spelling(path), found)


def _spelling(path: Path) -> dict[str, str]:
    """The table of spellings, if it lies beside a file."""
    beside = path.with_name(SPELLING)
    return {SPELLING: read_whole(beside).decode("utf-8", "replace")} if beside.is_file() else {}
