"""A .gguf that regard writes is what a hand has written, and says in llama.cpp what the model says here."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.convert import export, gguf, import_, llamacpp
from regard.convert.weights import WEIGHTS
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.decoder import Decoder, DecoderConfig, gpt_tiny, llama_tiny
from regard.models.encoder import Encoder, bert_tiny
from tests.convert.test_gguf import exactly, learnt, llama, packed, told
from tests.convert.test_gguf import gguf as by_hand
from tests.convert.toys import learn, sentences

SMALL: dict[str, Any] = {"layers": 2, "d_model": 64, "d_ff": 96, "heads": 4, "kv_heads": 2, "max_length": 64}


def half(x: float) -> list[int]:
    return [*np.float16(x).tobytes()]


def away(x: float) -> int:
    """Rounded, halves away from 0, as C does."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def nibbles(codes: Sequence[int]) -> list[int]:
    return [codes[i] | codes[i + 16] << 4 for i in range(16)]


def q8_0(x: Sequence[np.float32]) -> list[int]:
    d = max(map(abs, x)) / np.float32(127)
    inverse = np.float32(1) / d if d else np.float32(0)
    return half(d) + [away(each * inverse) % 256 for each in x]


def q4_0(x: Sequence[np.float32]) -> list[int]:
    d = max(x, key=abs) / np.float32(-8)
    inverse = np.float32(1) / d if d else np.float32(0)
    return half(d) + nibbles([min(15, int(each * inverse + np.float32(8.5))) for each in x])


def q4_1(x: Sequence[np.float32]) -> list[int]:
    d = (max(x) - min(x)) / np.float32(15)
    inverse = np.float32(1) / d if d else np.float32(0)
    return half(d) + half(min(x)) + nibbles([min(15, int((each - min(x)) * inverse + np.float32(0.5))) for each in x])


@pytest.mark.parametrize("slow", [q8_0, q4_0, q4_1])
def test_a_block_is_what_the_slow_truth_says(slow: Callable[[Any], list[int]]) -> None:
    x = np.random.default_rng(0).normal(size=(40, 32)).astype(np.float32)
    x[0], x[1, 1:], x[2] = 0, 0, 0.5
    packing = llamacpp.PACKINGS[slow.__name__]
    fast = packing.pack(x)
    assert fast.dtype == np.uint8
    assert fast.tolist() == [slow(row) for row in x]
    step = (x.max(1) - x.min(1)) / 15 if slow is q4_1 else np.abs(x).max(1) / (127 if slow is q8_0 else 8)
    off = np.abs(gguf.TYPES[packing.type].read(fast) - x).max(1)
    assert (off <= step * 1.01 + 1e-3).all()


def parsed(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, list[int], bytes]]]:
    data = np.fromfile(path, np.uint8)
    said, tensors, begin = gguf.parse(data)
    found = {}
    for name, each in tensors.items():
        size = int(np.prod(each.shape)) // gguf.TYPES[each.type].numbers * gguf.TYPES[each.type].bytes
        assert (begin + each.offset) % 32 == 0
        found[name] = each.type, each.shape, data[begin + each.offset :][:size].tobytes()
    offsets = sorted(each.offset for each in tensors.values())
    assert all(b > a for a, b in pairwise(offsets))
    return said, found


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_what_came_from_a_file_goes_back_into_it(tmp_path: Path, kind: str) -> None:
    rust, name = learnt(), kind.lower()
    about = {key.replace("llama.", f"{name}."): each for key, each in told(rust).items()}
    about |= {"general.architecture": name, f"{name}.attention.key_length": 8, f"{name}.rope.freq_base": 5000.0}
    (tmp_path / "there.gguf").write_bytes(by_hand(about, packed(llama(rust.get_vocab_size(), kind), exactly)))
    import_(tmp_path / "there.gguf", tmp_path / "model")
    export(tmp_path / "model", tmp_path / "back.gguf")
    (before, tensors), (after, again) = (parsed(tmp_path / f"{each}.gguf") for each in ("there", "back"))
    assert again == tensors
    assert {key: after.get(key) for key in before} == before
    assert after.keys() - before.keys() == {
        f"{name}.attention.value_length", f"{name}.rope.dimension_count", f"{name}.vocab_size", "general.file_type",
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
    }  # fmt: skip


def directory(
    path: Path, kind: str = "byte", config: Callable[..., DecoderConfig] = llama_tiny, **changes: Any
) -> Path:
    """A random language model, whose outputs vary, but are ASCII."""
    tokenizer = Tokenizer.learn(TokensConfig("byte", 0), ["x"]) if kind == "byte" else learn(kind)
    torch.manual_seed(0)
    model = Decoder(config(len(tokenizer), **SMALL | changes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if kind == "byte":
        for parameter in model.stem.tokens.weight, model.output.weight:
            parameter.data[[*range(36), *range(131, len(tokenizer))]] = 0  # type: ignore[index]
    storage.save(model, path, storage.Purpose({"name": "generate"}, {}))
    tokenizer.save(path / "tokenizer.json")
    return path


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_model_of_ours_comes_back_bit_for_bit(tmp_path: Path, tie: str) -> None:
    directory(tmp_path / "model", tie=tie)
    export(tmp_path / "model", tmp_path / "a.gguf", "gguf", quantization="f32")
    assert ("output.weight" in parsed(tmp_path / "a.gguf")[1]) == (tie == "none")
    assert import_(tmp_path / "a.gguf", tmp_path / "back") == []
    ours, back = (storage.load(tmp_path / each).state_dict() for each in ("model", "back"))
    assert ours.keys() == back.keys()
    assert all(torch.equal(ours[key], back[key]) for key in ours)
    tokenizers = [Tokenizer.load(tmp_path / each / "tokenizer.json") for each in ("model", "back")]
    for line in [*sentences(5), "ä ☕\n"]:  # where a text begins with <s>, which the task puts there, or the tokenizer
        assert [1, *tokenizers[0].encode(line)] == tokenizers[1].encode(line)
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ValueError, match=r"b.gguf is already there: name a new file"):
        export(tmp_path / "model", tmp_path / "b.gguf")


@pytest.mark.parametrize(("quantization", "near"), [("f16", 1e-3), ("q8_0", 0.01), ("q4_0", 0.15), ("q4_1", 0.15)])
def test_fewer_bits_are_near(tmp_path: Path, quantization: str, near: float) -> None:
    directory(tmp_path / "model", d_ff=72)  # a matrix whose rows are no blocks of 32 is in f16
    export(tmp_path / "model", tmp_path / "a.gguf", quantization=quantization)
    types = {name: gguf.TYPES[each[0]].name.lower() for name, each in parsed(tmp_path / "a.gguf")[1].items()}
    assert types["blk.1.attn_q.weight"] == types["token_embd.weight"] == quantization
    assert (types["blk.0.attn_norm.weight"], types["blk.0.ffn_down.weight"]) == ("f32", "f16")
    import_(tmp_path / "a.gguf", tmp_path / "back")
    ours, back = (storage.load(tmp_path / each).state_dict() for each in ("model", "back"))
    assert all((ours[key] - back[key]).abs().max() <= near * ours[key].abs().max() for key in ours)


def test_what_cannot_be_said_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    can = "can be exported to GGUF, only Llama, Mistral without a window, SmolLM, Qwen2 and Qwen3"
    bad: list[tuple[dict[str, Any], str]] = [
        ({"config": gpt_tiny, "kv_heads": None}, rf"no such Decoder model {can}"),
        ({"self_attention": "window:8"}, rf"no such Decoder model {can}"),
        ({"rope_scaling": "linear:2"}, r"rope_scaling = 'linear:2': no such model can be exported to GGUF"),
        (
            {"kind": "char"},
            r"its tokenizer, of the kind char, cannot be said in GGUF, .*: train with tokens.kind = byte",
        ),
        ({"kind": "bpe"}, r"its tokenizer, of the kind bpe, cannot be said"),
    ]
    for i, (changes, message) in enumerate(bad):
        made = directory(tmp_path / str(i), **changes)
        with pytest.raises(ValueError, match=message) as caught:
            export(made, tmp_path / "x.gguf")
        assert "\n" not in str(caught.value)
    whole = directory(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"unknown quantization 'q2_k': for gguf it is one of f32, f16, q8_0"):
        export(whole, tmp_path / "x.gguf", quantization="q2_k")
    with pytest.raises(ValueError, match=r"for which program is .*x\? Say it: --to ctranslate2, gguf, hf, onnx"):
        export(whole, tmp_path / "x")
    model = storage.load(whole)
    torch.nn.init.constant_(model.get_parameter("decoder.layers.1.feed_forward.sublayer.outer.weight"), 1e6)
    storage.save(model, whole)
    with pytest.raises(ValueError, match=r"blk.1.ffn_down.weight has numbers that f16 has not: export it in f32"):
        export(whole, tmp_path / "x.gguf", quantization="f16")  # when half of it is written
    storage.save(Encoder(bert_tiny(260), HeadConfig("vector")), whole)
    with pytest.raises(ValueError, match=r"a model with the head vector: only a language model can be exported"):
        export(whole, tmp_path / "x.gguf")
    assert sorted(each.name for each in tmp_path.iterdir()) == [*map(str, range(len(bad))), "whole"]


# Beside llama.cpp


def said(path: Path, prompts: Sequence[str], count: int) -> list[tuple[int, list[int], list[float]]]:
    """How many tokens llama.cpp reads in each prompt, what it writes greedily, and its log-probabilities."""
    xllamacpp = pytest.importorskip("xllamacpp")
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.verbosity, p.cpuparams.n_threads = str(path), 256, 1, False, -1, 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(p)
    found = []
    for prompt in prompts:
        asked = {"prompt": prompt, "n_predict": count, "temperature": 0.0, "n_probs": 1, "cache_prompt": False}
        answer = server.handle_completions(asked)
        steps = answer["choices"][0]["logprobs"]["content"]
        found.append(
            (answer["usage"]["prompt_tokens"], [step["id"] for step in steps], [step["logprob"] for step in steps])
        )
    return found


@torch.inference_mode()
def check(model_dir: Path, path: Path, prompts: Sequence[str], count: int, near: float) -> None:
    model: Any = storage.load(model_dir)
    tokenizer = Tokenizer.load(model_dir / "tokenizer.json")
    for prompt, (n, written, logs) in zip(prompts, said(path, prompts, count), strict=True):
        read = [*([] if tokenizer.imported else tokenizer.marks.frame[0]), *tokenizer.encode(prompt)]
        assert len(read) == n
        ours = model(torch.tensor([[*read, *written]]))[0].log_softmax(-1)[len(read) - 1 : -1]
        assert len(written) == count or tokenizer.marks.eos in written
        assert ours.argmax(-1).tolist() == written
        assert ours[range(len(written)), written].tolist() == pytest.approx(logs, abs=near)


ODD = "Tom's 12345 café  ☕, and\n\nLily"  # without the names of marks, which a server takes for marks


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", ["stories15m", "smollm2-135m-instruct"])
def test_llama_cpp_writes_the_same(tmp_path: Path, name: str) -> None:
    pytest.importorskip("xllamacpp")
    if not WEIGHTS[name].here:
        pytest.skip(f"{name} is not here: regard import fetches it")
    import_(name, tmp_path / "model")
    export(tmp_path / "model", tmp_path / "a.gguf")
    check(tmp_path / "model", tmp_path / "a.gguf", ["Once upon a time"], 24, 1e-3)
    check(tmp_path / "model", tmp_path / "a.gguf", [ODD], 8, 1e-3)  # of a cup's three bytes a server lists the last
    import_(tmp_path / "a.gguf", tmp_path / "back")
    names = ["tokenizer.json", "model.safetensors"]
    assert all((tmp_path / "model" / each).read_bytes() == (tmp_path / "back" / each).read_bytes() for each in names)


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True, "tie": "none"}, {"qk_norm": True}], ids=str)
def test_llama_cpp_writes_what_a_model_of_ours_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    directory(tmp_path / "model", **changes)
    for quantization in ("f32", "q8_0", "q4_0", "q4_1"):
        path = tmp_path / f"{quantization}.gguf"
        export(tmp_path / "model", path, quantization=quantization)
        if quantization == "f32":
            check(tmp_path / "model", path, ["the old cat", "ä ☕\n"], 16, 1e-3)
        else:  # products round what goes through them: they stay near, where the same goes in
            import_(path, tmp_path / quantization)
            ((_, written, logs),) = said(path, ["the old cat"], 1)
            model: Any = storage.load(tmp_path / quantization)
            read = Tokenizer.load(tmp_path / quantization / "tokenizer.json").encode("the old cat")
            expected = model(torch.tensor([read]))[0, -1].log_softmax(-1)[written[0]].item()
            assert logs[0] == pytest.approx(expected, abs=0.3)
