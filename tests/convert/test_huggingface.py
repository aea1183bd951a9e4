"""The transformers package opens what regard exports, and regard what it saved: with equal logits and outputs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.convert import export, import_
from regard.convert.tokenizers import write
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import EOS, PAD, Marks
from regard.models import storage
from regard.models.transformer import Transformer
from tests.convert.toys import before, learn, padded, search, sentences

transformers = pytest.importorskip("transformers")
KINDS: dict[str, dict[str, Any]] = {
    "MarianMTModel": {},
    "PegasusForConditionalGeneration": {"norm": "pre", "feed_forward": "gelu"},
    "BartForConditionalGeneration": {"positions": "learned", "max_length": 30, "embedding_norm": True},
    "MBartForConditionalGeneration": {"norm": "pre", "positions": "learned", "max_length": 30, "embedding_norm": True},
}


def load(directory: Path) -> Transformer:
    model = storage.load(directory)
    assert isinstance(model, Transformer)
    return model


def logits(theirs: Any, source: Tensor, target: Tensor, pad: int = PAD) -> Tensor:
    with torch.inference_mode():
        keep = (source != pad).long()
        return theirs(input_ids=source, attention_mask=keep, decoder_input_ids=target).logits


def check_export(directory: Path, out: Path, architecture: str) -> None:
    export(directory, out, "hf")
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert type(theirs).__name__ == architecture
    assert not any(report.values())  # no tensor is missing, left over or of another shape
    ours, tokenizer = load(directory), Tokenizer.load(directory / "tokenizer.json")
    auto = transformers.AutoTokenizer.from_pretrained(out)
    texts = sentences(4, seed=3)
    rows = tokenizer.encode_batch(texts)
    batch = auto(texts, padding=True, return_tensors="pt")
    source = padded(rows)
    assert batch["input_ids"].tolist() == source.tolist()
    target = torch.randint(3, len(tokenizer), (len(rows), 5))
    torch.testing.assert_close(logits(theirs, source, target), ours(source, target), atol=1e-4, rtol=0)
    for width in (1, 3):
        found = theirs.generate(
            input_ids=source,
            attention_mask=batch["attention_mask"],
            num_beams=width,
            do_sample=False,
            length_penalty=0.0,
            max_new_tokens=8,
        )
        expected = [search(ours, row, width, 8) for row in rows]
        assert [before(row, EOS) for row in found.tolist()] == expected
        assert [auto.decode(row, skip_special_tokens=True) for row in expected] == tokenizer.decode_batch(expected)


@pytest.mark.parametrize("architecture", KINDS)
def test_transformers_writes_the_same(build: Callable[..., Path], tmp_path: Path, architecture: str) -> None:
    check_export(build(output_bias=True, **KINDS[architecture]), tmp_path / "out", architecture)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie": "none", "scale_embedding": False, "feed_forward": "silu"},
        {"tie": "target", "bias": False},
        {"tie": "target", "norm": "pre"},
        {"tie": "none", "norm": "pre"},
    ],
    ids=str,
)
def test_ties_and_missing_biases_are_kept(build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any]) -> None:
    kind = "PegasusForConditionalGeneration" if changes.get("norm") == "pre" else "MarianMTModel"
    check_export(build("none", **changes), tmp_path / "out", kind)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "byte", "char", "none"])
def test_there_and_back_is_the_same_directory(build: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    directory = build(kind, tie="none", output_bias=True)
    export(directory, tmp_path / "hf", "hf")
    import_(tmp_path / "hf", tmp_path / "back")
    ours, back = load(directory), load(tmp_path / "back")
    assert back.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    first, second = (path / "tokenizer.json" for path in (directory, tmp_path / "back"))
    assert first.read_text("utf-8") == second.read_text("utf-8")


def foreign_model(architecture: str, directory: Path, tokens: int, **changes: Any) -> Any:
    """A random model of transformers, saved; no parameter is at its neutral value."""
    torch.manual_seed(1)
    kind = getattr(transformers, architecture)
    settings: dict[str, Any] = {"vocab_size": tokens, "d_model": 32, "max_position_embeddings": 40}
    for stack in ("encoder", "decoder"):
        settings |= {f"{stack}_layers": 2, f"{stack}_ffn_dim": 40, f"{stack}_attention_heads": 4}
    model = kind(kind.config_class(**settings | changes)).eval()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "embed_positions" not in name or architecture.startswith(("B", "MB")):
            with torch.no_grad():
                tensor.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize(
    ("architecture", "changes", "never"),
    [
        # Marian's way: it starts with padding, which it must not write.
        (
            "MarianMTModel",
            {"decoder_start_token_id": 0, "activation_function": "swish", "scale_embedding": True},
            [0],
        ),
        ("PegasusForConditionalGeneration", {"decoder_start_token_id": 0, "scale_embedding": True}, []),
        ("BartForConditionalGeneration", {"decoder_start_token_id": 2}, []),  # BART's: it starts with the end
        ("MBartForConditionalGeneration", {"decoder_start_token_id": 9, "activation_function": "relu"}, []),
    ],
)
def test_a_model_of_transformers_writes_the_same_here(
    tmp_path: Path, architecture: str, changes: dict[str, Any], never: list[int]
) -> None:
    tokenizer, out = learn("none"), tmp_path / "out"
    start = changes["decoder_start_token_id"]
    ids = {"pad_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": None}
    theirs = foreign_model(architecture, tmp_path / "hf", len(tokenizer), **ids | changes)
    if PAD in never:
        (tmp_path / "hf" / "generation_config.json").write_text(json.dumps({"bad_words_ids": [[0]]}))
    write(tokenizer, tmp_path / "hf", "end")
    import_(tmp_path / "hf", out)
    ours, learnt = load(out), Tokenizer.load(out / "tokenizer.json")
    assert learnt.marks == Marks(pad=0, bos=start, eos=2, unk=3)
    assert learnt.rust.get_vocab() == tokenizer.rust.get_vocab()
    source = padded(learnt.encode_batch(sentences(4, seed=3)))
    target = torch.randint(4, len(learnt), (4, 5))
    target[:, 0] = start
    expected, found = logits(theirs, source, target), ours(source, target)
    usual = [i for i in range(len(learnt)) if i not in never]
    torch.testing.assert_close(found[:, :, usual], expected[:, :, usual], atol=1e-4, rtol=0)
    assert (found[:, :, never] < -9000).all()
    for width in (1, 3):
        outputs = theirs.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=width,
            do_sample=False,
            length_penalty=0.0,
            max_new_tokens=8,
            **({"bad_words_ids": [[0]]} if PAD in never else {}),
        )
        for text, output in zip(sentences(4, seed=3), outputs.tolist(), strict=True):
            assert search(ours, learnt.encode(text), width, 8, start) == before(output, 2)
    export(out, tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "back"))
    unread = {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}  # of sinusoids
    assert first.keys() | unread == back.keys() | unread
    for name in first.keys() - unread - ({"final_logits_bias"} if never else set()):
        assert torch.equal(first[name], back[name]), name
    if ours.config.positions == "learned":
        assert all(torch.equal(first[name][2:], back[name][2:]) for name in unread)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_kind": "rms"}, "Hugging Face has no model with norm_kind = 'rms' .in marian it is 'layer'"),
        ({"feed_forward": "swiglu"}, "Hugging Face cannot express feed_forward = 'swiglu'"),
        ({"scale": 0.5}, "Hugging Face has no model with scale = 0.5 .in marian it is None"),
        ({"kv_heads": 1}, "Hugging Face has no model with kv_heads = 1"),
        (
            {"positions": "learned"},
            "no model with positions = 'learned' .in marian it is 'sinusoidal'",
        ),
    ],
)
def test_what_cannot_be_expressed_is_named(
    build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export(build(**changes), tmp_path / "out", "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "opt"},
            "config.json: model_type = 'opt' cannot be imported, only marian, pegasus, bart, mbart, t5, whisper, ",
        ),
        ({"decoder_ffn_dim": 99}, "encoder_ffn_dim = 48 and decoder_ffn_dim = 99 differ, which regard cannot express"),
        ({"activation_function": "tanh"}, "activation_function = 'tanh' cannot be expressed, only relu, gelu, silu"),
        ({"d_model": None}, "config.json: it has no d_model"),
        ({"d_model": "32"}, "config.json: d_model = '32': expected a whole number"),
        ({"vocab_size": 300.5}, "config.json: vocab_size = 300.5 and decoder_vocab_size = 300 differ"),
        ({"bad_words_ids": [3]}, r"config.json: bad_words_ids = \[3\]: each is a list of ids"),
        ({"model_type": []}, r"model_type = \[\] cannot be imported"),
        ({"decoder_layers": 3}, "model.safetensors has no tensor 'model.decoder.layers.2.self_attn.out_proj.weight'"),
        ({"vocab_size": 20, "decoder_vocab_size": 20}, "the tokenizer has an id 299, but vocab_size = 20"),
        ({"d_model": 64}, "does not fit its config.json: .*out_proj.weight' has the shape .32, 32., not .64, 64."),
    ],
)
def test_a_directory_that_cannot_be_imported_is_named(
    build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    export(build(), tmp_path / "hf", "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes))
    with pytest.raises(ValueError, match=message):
        import_(tmp_path / "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Evil:
    """What touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def test_files_that_are_missing_are_named_and_a_pickle_runs_no_code(build: Callable[..., Path], tmp_path: Path) -> None:
    hf = tmp_path / "hf"
    export(build(), hf, "hf")
    tensors = load_file(hf / "model.safetensors")
    (hf / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"hf has no model.safetensors, nor pytorch_model.bin: load it with"):
        import_(hf, tmp_path / "out")
    for content in (Evil(tmp_path / "ran"), {"w": Evil(tmp_path / "ran")}, [1], {"w": 1}):
        torch.save(content, hf / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"pytorch_model.bin is damaged, or holds more than tensors, which regard"):
            import_(hf, tmp_path / "out")
    assert not (tmp_path / "ran").exists()
    torch.save(tensors, hf / "pytorch_model.bin")
    import_(hf, tmp_path / "opened")
    (hf / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"neither tokenizer.json nor source.spm and vocab.json: load its tokenizer"):
        import_(hf, tmp_path / "out")
    (hf / "config.json").unlink()
    with pytest.raises(ValueError, match=r"is not a directory of a Hugging Face model: it has no config.json"):
        import_(hf, tmp_path / "out")


def test_nothing_is_overwritten(build: Callable[..., Path], tmp_path: Path) -> None:
    directory = build()
    (tmp_path / "out").mkdir()
    export(directory, tmp_path / "out", "hf")  # an empty one is welcome
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ValueError, match="out is already there: name a new directory, or remove it first"):
        export(directory, tmp_path / "out", "hf")
    with pytest.raises(ValueError, match="out is already there"):
        import_(tmp_path / "out", tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    with pytest.raises(ValueError, match="unknown format 'tflite': there are ctranslate2, gguf, hf, onnx, peft"):
        export(directory, tmp_path / "new", "tflite")
    with pytest.raises(
        ValueError, match="quantization = 'int8' is for ctranslate2, onnx and gguf: leave it out for hf"
    ):
        export(directory, tmp_path / "new", "hf", quantization="int8")
