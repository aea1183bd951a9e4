"""Every class of Hugging Face's that is a member: the same outputs here, and back there the same bytes."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from regard.convert import export, import_
from regard.convert.tables import TABLES
from regard.data.tokenizers import Tokenizer
from regard.models import storage
from tests.convert.toys import sentences

transformers = pytest.importorskip("transformers")
SIZE = 300
BERT: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"vocab_size": SIZE, "max_position_embeddings": 22}
LLAMA = BERT | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES: dict[str, dict[str, Any]] = {
    "Bert": BERT | {"hidden_act": "gelu_new"},
    "Roberta": BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "XLMRoberta": BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "DistilBert": {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "vocab_size": SIZE}
    | {"max_position_embeddings": 22, "activation": "relu"},
    "Albert": BERT | {"embedding_size": 8, "num_hidden_layers": 3},
    "GPT2": {"n_embd": 16, "n_inner": 24, "n_layer": 2, "n_head": 4, "n_positions": 22, "vocab_size": SIZE}
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Llama": LLAMA | {"tie_word_embeddings": True, "head_dim": 6},
    "Mistral": LLAMA | {"sliding_window": 4},
    "Qwen2": LLAMA,
    "Qwen3": LLAMA | {"head_dim": 6},
    "Gemma": LLAMA | {"head_dim": 6},
    "T5": {"vocab_size": SIZE, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3}
    | {"num_heads": 3, "decoder_start_token_id": 0, "eos_token_id": 2}
    | {"initializer_factor": 0.1},
}
ELSEWHERE = ("marian", "pegasus", "bart", "mbart")  # tests/convert/test_huggingface.py
CLASSES = dict.fromkeys(top.name for name, table in TABLES.items() if name not in ELSEWHERE for top in table.tops)
SAME = {(f"XLM{name}", name) for name in CLASSES} | {("MistralForCausalLM", "LlamaForCausalLM")}  # without a window
SCALING = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALING |= {"original_max_position_embeddings": 8, "rope_theta": 500.0}
MORE: list[tuple[str, dict[str, Any]]] = [
    ("BertForSequenceClassification", {"id2label": {0: "bad", 1: "so so", 2: "good"}, "classifier_dropout": 0.3}),
    ("BertModel", {"type_vocab_size": 3}),
    ("AlbertForMaskedLM", {"embedding_size": 16}),
    ("LlamaForCausalLM", {"rope_parameters": SCALING, "tie_word_embeddings": False}),
    ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    ("MistralForCausalLM", {"sliding_window": None}),
    ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "public": True}),
]


@cache
def brackets() -> Rust:
    rust = Rust(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece("##")
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    rust.train_from_iterator(sentences(200), trainers.WordPieceTrainer(special_tokens=marks, show_progress=False))
    ids = [("[CLS]", 2), ("[SEP]", 3)]
    rust.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    return rust


@cache
def angles(frame: str) -> Rust:
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if frame == "roberta" else ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        sentences(200), trainers.BpeTrainer(vocab_size=280, special_tokens=marks, initial_alphabet=alphabet)
    )
    if frame == "roberta":
        rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    elif frame == "t5":
        rust.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return rust


def save_tokenizer(name: str, directory: Path) -> Any:
    if "Roberta" in name:
        rust, marks = angles("roberta"), {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>"}
        marks |= {"mask": "<mask>", "unk": "<unk>"}
    elif name in ("Bert", "DistilBert", "Albert"):
        rust = brackets()
        marks = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]"}
        marks |= {"bos": "[CLS]", "eos": "[SEP]"} if name == "Albert" else {}  # as theirs has it
    else:
        rust, marks = angles("t5" if name == "T5" else ""), {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    told = {f"{mark}_token": token for mark, token in marks.items()}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **told)
    theirs.save_pretrained(directory)
    return theirs


def foreign(architecture: str, directory: Path, **changes: Any) -> Any:
    """A random model of theirs, saved; no parameter is at its neutral value."""
    name = next(name for name in sorted(SIZES, key=len, reverse=True) if architecture.startswith(name))
    kind = getattr(transformers, architecture)
    torch.manual_seed(1)
    model = kind(kind.config_class(**SIZES[name] | changes)).eval()
    if apart := changes.get("tie_word_embeddings") is False and architecture.startswith("T5"):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    for tensor in model.parameters():
        tensor.data.add_(0.2 * torch.randn_like(tensor))
    if architecture.startswith(("Roberta", "XLM")):  # rows before the first position, which are never read
        model.get_submodule(
            f"{model.base_model_prefix if 'For' in architecture else ''}.embeddings".strip(".")
        ).position_embeddings.weight.data[:2] = 0
    model.save_pretrained(directory)
    if apart and changes.get("public"):  # as T5 v1.1 is on the hub; this transformers writes scale_decoder_outputs
        about = json.loads((directory / "config.json").read_text()) | {"tie_word_embeddings": False}
        (directory / "config.json").write_text(json.dumps({k: about[k] for k in about if k != "scale_decoder_outputs"}))
    save_tokenizer(name, directory)
    return model


def said(model: Any, tokens: Tensor, keep: Tensor, **more: Tensor) -> list[Tensor]:
    """What theirs makes of tokens: one tensor or two."""
    with torch.inference_mode():
        out = model(input_ids=tokens, attention_mask=keep.long(), **more)
    if "start_logits" in out:
        return [torch.stack([out.start_logits, out.end_logits], -1)]
    names = ("prediction_logits", "seq_relationship_logits", "sop_logits", "logits", "pooler_output")
    found = [out[name] for name in names if name in out]
    if found:
        return found
    x = out.last_hidden_state
    if model.config.model_type in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma"):
        return [x[range(len(x)), keep.sum(1) - 1]]
    return [(x * keep[:, :, None]).sum(1) / keep.sum(1, keepdim=True)]


def said_here(model: Any, tokens: Tensor, keep: Tensor, **more: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        if "decoder_input_ids" in more:
            return [model(tokens, more["decoder_input_ids"])]
        renamed = {"segments": more["token_type_ids"]} if "token_type_ids" in more else {}
        out = [model(tokens, keep=keep, **renamed)]
        relation = getattr(model.output, "relation", None)
        return out if relation is None else [*out, relation(model.features(tokens, keep=keep, **renamed), keep=keep)]


def inputs(model: nn.Module, tokenizer: Tokenizer) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    pad = tokenizer.marks.need("pad")[0]
    tokens, keep = torch.randint(5, 200, (3, 12), generator=draw), torch.arange(12) < torch.tensor([[12], [7], [9]])
    given = {"tokens": tokens.masked_fill(~keep, pad), "keep": keep}
    if (segments := getattr(model.config, "segments", None) or 1) > 1:
        given["token_type_ids"] = torch.randint(segments, (3, 12), generator=draw)
    if hasattr(model, "encode"):
        given["decoder_input_ids"] = torch.randint(5, 200, (3, 6), generator=draw)
    return given


def close(ours: list[Tensor], theirs: list[Tensor], keep: Tensor) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        each = a.dim() == 3 and a.shape[1] == keep.shape[1]  # of a token that is kept
        torch.testing.assert_close(a[keep] if each else a, b[keep] if each else b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "changes"), [*((name, {}) for name in CLASSES), *MORE], ids=str)
def test_a_class_is_the_same_here_and_back_there(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    model = foreign(architecture, tmp_path / "hf", **changes)
    assert import_(tmp_path / "hf", tmp_path / "out") == []
    ours: Any = storage.load(tmp_path / "out")
    given = inputs(ours, Tokenizer.load(tmp_path / "out" / "tokenizer.json"))
    expected = said(model, **given)
    close(said_here(ours, **given), expected, given["keep"])
    export(tmp_path / "out", tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert first.keys() == back.keys()
    assert [name for name in first if not torch.equal(first[name], back[name])] == []
    (name,) = json.loads((tmp_path / "back" / "config.json").read_text())["architectures"]
    assert name == architecture or (architecture, name) in SAME
    kind = getattr(transformers, name)
    again, report = kind.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    close(said(again, **given), expected, given["keep"])
