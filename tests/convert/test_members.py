"""Every class of Hugging Face's that is a member: the same outputs here, and back there the same bytes."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

import regard
from regard.convert import export, import_
from regard.convert.pooling import read_pooling
from regard.convert.precision import quantize_directory
from regard.convert.tables import TABLES
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.tasks.asks import Ask, Settings
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
# tests/convert/test_huggingface.py, test_whisper.py, test_pictures.py, test_towers.py, test_vectors.py
ELSEWHERE = (
    "marian",
    "pegasus",
    "bart",
    "mbart",
    "whisper",
    "vit",
    "deit",
    "vivit",
    "timesformer",
    "clip",
    "vision-encoder-decoder",
    "llava",
    "chytorch",
    "vectors",
)
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


def changed(directory: Path, name: str, change: dict[str, Any]) -> None:
    path = directory / name
    about = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({key: value for key, value in (about | change).items() if value != "gone"}))


@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert", "Albert"])
def test_a_classifier_says_of_a_text_or_a_pair_what_theirs_says(tmp_path: Path, name: str) -> None:
    names = {0: "bad", 1: "so so", 2: "good"}
    model = foreign(f"{name}ForSequenceClassification", tmp_path / "hf", id2label=names)
    import_(tmp_path / "hf", tmp_path / "out")
    purpose = storage.purpose(tmp_path / "out")
    assert purpose is not None
    assert purpose.task == {"name": "classify", "labels": [*names.values()], "longest": None, "kind": "one"}
    classifier, theirs = regard.load(tmp_path / "out"), transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for texts in (("the old cat",), ("the cat", "a dog")):
        batch = theirs(*texts, return_tensors="pt", return_token_type_ids=name in ("Bert", "Albert"))
        with torch.inference_mode():
            expected = model(**batch).logits[0].softmax(0)
        said = classifier.classify(*texts, top=3)
        found = torch.tensor([said.probabilities[label] for label in names.values()])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert said.label == names[int(expected.argmax())]
    export(tmp_path / "out", tmp_path / "back", "hf")
    again = transformers.AutoConfig.from_pretrained(tmp_path / "back")
    assert (again.id2label, again.label2id) == (names, {label: i for i, label in names.items()})
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    pair = "the cat", "a dog"
    assert auto(*pair)["input_ids"] == theirs(*pair)["input_ids"]
    with torch.inference_mode():  # as people call it, with all that a tokenizer gives
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back")(
            **auto(*pair, return_tensors="pt")
        )


def test_a_t5_that_is_asked_to_summarise_reads_what_theirs_reads(tmp_path: Path) -> None:
    foreign("T5ForConditionalGeneration", tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = " ".join(sentences(80, seed=5))  # more than its translations have
    summariser = regard.load(tmp_path / "out", task="summarise")
    ((part,),), cut = summariser._parts([Ask(text)], Settings.of({"prompt": "summarize: "}, summariser.decode))
    assert [*part.ids, summariser.eos] == theirs(f"summarize: {text}")["input_ids"]
    assert len(part.ids) > 256
    assert cut == [0]
    assert isinstance(summariser.summarise(text, prompt="summarize: ", limit=4), str)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_labels": 1}, {"kind": "number", "labels": ["LABEL_0"]}),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, {"kind": "several"}),
        ({}, {"kind": "one", "labels": ["LABEL_0", "LABEL_1"]}),
    ],
)
def test_what_kind_of_labels_they_are_is_told(tmp_path: Path, changes: dict[str, Any], told: dict[str, Any]) -> None:
    foreign("BertForSequenceClassification", tmp_path / "hf", **changes)
    import_(tmp_path / "hf", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told.items() <= about["task"].items()
    assert about["head"]["size"] == len(about["task"]["labels"])
    export(tmp_path / "out", tmp_path / "back", "hf")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "back").num_labels == about["head"]["size"]


@pytest.mark.parametrize(
    ("architecture", "name", "head"),
    [
        ("BertForMaskedLM", "mask", {"kind": "tokens", "hidden": "gelu_tanh"}),
        ("BertForPreTraining", "mask", {"kind": "tokens", "hidden": "gelu_tanh", "relation": 2}),
        ("DistilBertForTokenClassification", "tag", {"kind": "tags", "size": 2, "dropout": 0.1}),
        ("AlbertForQuestionAnswering", "answer", {"kind": "spans"}),
        ("BertModel", "embed", {"kind": "vector", "hidden": "tanh"}),
        ("DistilBertModel", "embed", {"kind": "vector", "pool": "mean"}),
        ("GPT2ForSequenceClassification", "classify", {"kind": "classes", "size": 2, "pool": "last", "bias": False}),
        ("GPT2ForTokenClassification", "tag", {"kind": "tags", "size": 2, "dropout": 0.1}),
        ("LlamaForQuestionAnswering", "answer", {"kind": "spans"}),
        ("Qwen3ForCausalLM", "generate", {"kind": "tokens"}),
        ("T5ForConditionalGeneration", "translate", {"kind": "tokens"}),
    ],
)
def test_what_a_model_is_for_is_told(tmp_path: Path, architecture: str, name: str, head: dict[str, Any]) -> None:
    foreign(architecture, tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (about["task"]["name"], about["head"]) == (name, head)


def test_a_gap_is_filled_as_theirs_fills_it(tmp_path: Path) -> None:
    model = foreign("RobertaForMaskedLM", tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    batch = theirs("the<mask> saw a tree", return_tensors="pt")
    with torch.inference_mode():
        expected = model(**batch).logits[0, batch["input_ids"][0] == theirs.mask_token_id].softmax(-1)[0]
    (gap,) = regard.load(tmp_path / "out").fill("the<mask> saw a tree", top=3)
    torch.testing.assert_close(torch.tensor(gap.probabilities), expected.topk(3).values, atol=1e-5, rtol=1e-5)


def test_words_are_tagged_and_questions_answered_as_theirs_say(tmp_path: Path) -> None:
    names = {0: "O", 1: "B-A", 2: "B-C"}
    words = ["the", "old", "cat"]
    tagger = foreign("BertForTokenClassification", tmp_path / "tagger", id2label=names)
    reader = foreign("BertForQuestionAnswering", tmp_path / "reader")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "tagger")
    for name in ("tagger", "reader"):
        import_(tmp_path / name, tmp_path / f"{name}-out")
    batch = theirs(words, is_split_into_words=True, return_tensors="pt")
    first = [batch.word_ids().index(i) for i in range(len(words))]
    with torch.inference_mode():
        tags = tagger(**batch).logits[0, first].argmax(-1)
        batch = theirs("a dog", " ".join(words), return_tensors="pt")
        said = reader(**batch)
    assert regard.load(tmp_path / "tagger-out").tag(" ".join(words)).tags == [names[i] for i in tags.tolist()]
    begin, end = batch["input_ids"][0].tolist().index(3) + 1, batch["input_ids"].shape[1] - 1
    scores = said.start_logits[0, begin:end, None] + said.end_logits[0, None, begin:end]
    best = divmod(int(scores.triu().masked_fill(torch.ones_like(scores).tril(-1) > 0, -1e9).argmax()), end - begin)
    place = batch.token_to_chars(begin + best[0]).start, batch.token_to_chars(begin + best[1]).end
    assert regard.load(tmp_path / "reader-out").answer("a dog", " ".join(words)).text == " ".join(words)[slice(*place)]


POOLS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}


@pytest.mark.parametrize("mode", [*POOLS, "mean"])
def test_a_sentence_transformer_pools_as_its_files_say(tmp_path: Path, mode: str) -> None:
    """In the older form, and in the one of late."""
    model = foreign("BertModel", tmp_path / "hf")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (tmp_path / "hf" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "hf" / "1_Pooling").mkdir()
    told = {f"pooling_mode_{each}": each == mode for each in POOLS} if mode in POOLS else {"pooling_mode": mode}
    (tmp_path / "hf" / "1_Pooling" / "config.json").write_text(json.dumps(told))
    (tmp_path / "hf" / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    (note,) = import_(tmp_path / "hf", tmp_path / "out")
    assert note == "the tensor pooler.dense.bias and 1 more, which nothing here reads"
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["task"] == {"name": "embed", "longest": 16}
    assert (about["head"].get("pool", "first"), about["head"]["normalise"]) == (POOLS.get(mode, mode), True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    batch = theirs("the old cat", return_tensors="pt")
    with torch.inference_mode():
        x = model(**batch).last_hidden_state[0]
    pooled = {"first": x[0], "mean": x.mean(0), "max": x.amax(0), "last": x[-1]}[POOLS.get(mode, mode)]
    found = torch.from_numpy(regard.load(tmp_path / "out").embed("the old cat"))
    torch.testing.assert_close(found, pooled / pooled.norm(), atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    again = read_pooling(tmp_path / "back")
    assert again == {"pool": POOLS.get(mode, mode), "normalise": True}


@pytest.mark.parametrize(
    ("modules", "mode", "message"),
    [
        (["Transformer", "Pooling", "Dense"], "mean_tokens", "modules.json: a module Dense cannot be expressed"),
        (
            ["Transformer", "Pooling"],
            "weightedmean_tokens",
            r"pooling by \['weightedmean_tokens'\] cannot be expressed",
        ),
    ],
)
def test_a_vector_that_cannot_be_made_is_named(tmp_path: Path, modules: list[str], mode: str, message: str) -> None:
    foreign("BertModel", tmp_path / "hf")
    (tmp_path / "hf" / "modules.json").write_text(json.dumps([{"path": kind, "type": kind} for kind in modules]))
    (tmp_path / "hf" / "Pooling").mkdir()
    (tmp_path / "hf" / "Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    with pytest.raises(ValueError, match=message):
        import_(tmp_path / "hf", tmp_path / "out")


def test_older_files_are_read(tmp_path: Path) -> None:
    """LayerNorms with gamma and beta, GPT-2 without its prefix, no word of the class, several files, pickles."""
    hf, out = tmp_path / "hf", tmp_path / "out"
    foreign("BertForSequenceClassification", hf)
    tensors = load_file(hf / "model.safetensors")
    import_(hf, out / "0")
    expected = (out / "0" / "model.safetensors").read_bytes()
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in tensors.items()
    }
    save_file(older, hf / "model.safetensors")
    changed(hf, "config.json", {"architectures": "gone"})
    import_(hf, out / "1")
    (hf / "model.safetensors").unlink()
    torch.save(tensors, hf / "pytorch_model.bin")
    import_(hf, out / "2")
    (hf / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    files = {"a": names[:7], "b": names[7:]}
    for file, some in files.items():
        save_file({name: tensors[name] for name in some}, hf / f"{file}.safetensors")
    where = {name: f"{file}.safetensors" for file, some in files.items() for name in some}
    (hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    import_(hf, out / "3")
    for made in sorted(out.iterdir()):
        assert (made / "model.safetensors").read_bytes() == expected
    (hf / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no b.safetensors, which model.safetensors.index.json names"):
        import_(hf, out / "4")
    for damage in ({"weight_map": {"x": "../a.safetensors"}}, {"weight_map": []}, {"weight": {}}):
        (hf / "model.safetensors.index.json").write_text(json.dumps(damage))
        with pytest.raises(ValueError, match=r"model.safetensors.index.json is damaged: its weight_map names files"):
            import_(hf, out / "4")


def test_gpt2_without_its_prefix_is_a_language_model(tmp_path: Path) -> None:
    hf = tmp_path / "hf"
    model = foreign("GPT2LMHeadModel", hf)
    tensors = {name.removeprefix("transformer."): x for name, x in load_file(hf / "model.safetensors").items()}
    masks = {f"h.{i}.attn.{name}": torch.ones(1, 1, 3, 3) for i in range(2) for name in ("bias", "masked_bias")}
    save_file(tensors | masks, hf / "model.safetensors")
    assert import_(hf, tmp_path / "out") == []
    ours = storage.load(tmp_path / "out")
    given = inputs(ours, Tokenizer.load(tmp_path / "out" / "tokenizer.json"))
    close(said_here(ours, **given), said(model, **given), given["keep"])


def test_a_class_without_its_head_is_named(tmp_path: Path) -> None:
    foreign("BertForMaskedLM", tmp_path / "hf")
    for said, message in (
        (["BertForMultipleChoice"], r"architectures = \['BertForMultipleChoice'\] cannot be imported, only BertForPre"),
        (["BertForTokenClassification"], "model.safetensors has no tensor 'classifier.weight'"),
    ):
        changed(tmp_path / "hf", "config.json", {"architectures": said})
        with pytest.raises(ValueError, match=message):
            import_(tmp_path / "hf", tmp_path / "out")
    changed(tmp_path / "hf", "config.json", {"architectures": ["BertModel"]})
    (note,) = import_(tmp_path / "hf", tmp_path / "out")
    assert note == "the tensor cls.predictions.bias and 4 more, which nothing here reads"


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "BertForSequenceClassification",
            {"id2label": {"0": "a", "2": "b"}},
            "it names the labels 0, 1, ... one by one",
        ),
        ("BertModel", {"is_decoder": True}, "is_decoder = True cannot be expressed, only False"),
        ("BertModel", {"hidden_act": "mish"}, "hidden_act = 'mish' cannot be expressed, only gelu, gelu_new"),
        ("RobertaModel", {"pad_token_id": 0}, "pad_token_id = 0 cannot be expressed, only 1"),
        ("AlbertModel", {"num_hidden_groups": 2}, "num_hidden_groups = 2 cannot be expressed, only 1"),
        ("Qwen2Model", {"use_sliding_window": True}, "use_sliding_window = True cannot be expressed, only False"),
        ("LlamaModel", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type = 'yarn' and .*cannot be"),
        ("T5ForConditionalGeneration", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj = 'gated-tanh' cannot"),
        ("T5ForConditionalGeneration", {"relative_attention_num_buckets": 16}, "num_buckets = 16 cannot be expressed"),
    ],
)
def test_what_cannot_be_expressed_is_named(tmp_path: Path, architecture: str, changes: Any, message: str) -> None:
    foreign(architecture, tmp_path / "hf")
    changed(tmp_path / "hf", "config.json", changes)
    with pytest.raises(ValueError, match=message) as caught:
        import_(tmp_path / "hf", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "hf" / "config.json") in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_output_layer_of_its_own_is_kept_whatever_the_config_says(tmp_path: Path) -> None:
    for architecture, name in (
        ("LlamaForCausalLM", "lm_head.weight"),
        ("BertForMaskedLM", "cls.predictions.decoder.weight"),
    ):
        hf = tmp_path / architecture
        foreign(architecture, hf, tie_word_embeddings=True)
        tensors = load_file(hf / "model.safetensors")
        save_file(tensors | {name: torch.randn(SIZE, 16)}, hf / "model.safetensors")
    import_(tmp_path / "LlamaForCausalLM", tmp_path / "out")
    ours: Any = storage.load(tmp_path / "out")
    assert ours.config.tie == "none"
    assert torch.equal(
        ours.output.weight, load_file(tmp_path / "LlamaForCausalLM" / "model.safetensors")["lm_head.weight"]
    )
    with pytest.raises(ValueError, match="its output layer is not the matrix of its embeddings, which regard cannot"):
        import_(tmp_path / "BertForMaskedLM", tmp_path / "other")


@pytest.mark.parametrize("form", ["text", "list", "file"])
def test_the_template_of_a_chat_is_kept(tmp_path: Path, form: str) -> None:
    foreign("LlamaForCausalLM", tmp_path / "hf")
    text = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}é"
    if form == "file":
        (tmp_path / "hf" / "chat_template.jinja").write_text(text, "utf-8")
    else:
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": text}]
        changed(tmp_path / "hf", "tokenizer_config.json", {"chat_template": text if form == "text" else named})
    import_(tmp_path / "hf", tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text("utf-8") == text
    quantize_directory(tmp_path / "out", tmp_path / "int8")
    assert (tmp_path / "int8" / "chat_template.jinja").read_text("utf-8") == text
    export(tmp_path / "out", tmp_path / "back", "hf")
    chat = [{"role": "user", "content": "the cat"}]
    said = transformers.AutoTokenizer.from_pretrained(tmp_path / "back").apply_chat_template(chat, tokenize=False)
    assert said == "<|user|>the cat\né"


def test_of_several_ends_the_tokenizers_is_taken_and_the_others_are_told(tmp_path: Path) -> None:
    foreign("LlamaForCausalLM", tmp_path / "hf")
    changed(tmp_path / "hf", "generation_config.json", {"eos_token_id": [7, 2, 9]})
    (note,) = import_(tmp_path / "hf", tmp_path / "out")
    assert note == "eos_token_id [7, 9]: of several ends one is known, 2 (--stop)"
    assert Tokenizer.load(tmp_path / "out" / "tokenizer.json").marks.eos == 2


def test_a_model_of_the_hub_is_imported_by_its_name(tmp_path: Path) -> None:
    """From a cache such as the hub's client leaves, without a connection; what is not there is one line."""
    foreign("BertForSequenceClassification", tmp_path / "hf")
    entry, revision = tmp_path / "cache" / "models--some--bert", "0" * 40
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(revision)
    (entry / "snapshots").mkdir()
    (tmp_path / "hf").rename(entry / "snapshots" / revision)
    where = {
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(regard.__file__).parents[1]),
    }

    def run(name: str, out: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "regard", "import", name, str(tmp_path / out)]
        return subprocess.run(command, env=os.environ | where, capture_output=True, text=True, check=False)

    done = run("hf:some/bert", "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}: try `regard classify {tmp_path / 'out'}`\n"), (
        done.stderr
    )
    assert run(f"hf:some/bert@{revision}", "same").returncode == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        tmp_path / "same" / "model.safetensors"
    ).read_bytes()
    failed = run("hf:some/other", "none")
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: hf:some/other cannot be fetched (LocalEntryNotFoundError: ")
    assert len(failed.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()


SMALL = {"d_model": 16, "layers": 2, "heads": 2, "d_ff": 24, "max_length": 20}
BOTH = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "d_ff": 24}
OURS: dict[str, tuple[dict[str, Any], HeadConfig | None]] = {
    "bert-tiny": (SMALL, HeadConfig(hidden="gelu", relation=2)),
    "roberta-base": (SMALL | {"pad": 0, "segments": 2}, HeadConfig("tags", 3)),  # which is BERT's, by our tokens
    "distilbert": (SMALL, HeadConfig("spans")),
    "albert-base": (SMALL | {"d_embedding": 8}, HeadConfig("vector", hidden="tanh")),
    "llama-tiny": (SMALL | {"kv_heads": 1, "d_k": 8, "d_v": 8}, None),
    "t5-small": (BOTH, None),
    "flan-t5-small": (BOTH, None),
    "bart-base": (BOTH, None),
}


@pytest.mark.parametrize(
    ("preset", "kind"), [*((preset, "bpe") for preset in OURS), ("bert-tiny", "unigram"), ("t5-small", "wordpiece")]
)
def test_a_model_of_ours_is_the_same_directory_there_and_back(tmp_path: Path, preset: str, kind: str) -> None:
    size = {"bpe": 300, "unigram": 284, "wordpiece": 60}[kind]
    tokenizer = Tokenizer.learn(TokensConfig(kind, size), sentences(300), also=("mask", "extra_id_0"))
    changes, head = OURS[preset]
    torch.manual_seed(0)
    model: Any = build(configure(preset, vocabulary=len(tokenizer)).but(**changes), head)
    for tensor in model.parameters():
        tensor.data.add_(0.1 * torch.randn_like(tensor))
    storage.save(model, tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    export(tmp_path / "model", tmp_path / "hf", "hf")
    assert import_(tmp_path / "hf", tmp_path / "back") == []
    back: Any = storage.load(tmp_path / "back")
    assert (back.config, getattr(back, "head", None)) == (model.config, getattr(model, "head", None))
    assert [name for name, x in model.state_dict().items() if not torch.equal(x, back.state_dict()[name])] == []
    first, second = ((tmp_path / place / "tokenizer.json").read_text("utf-8") for place in ("model", "back"))
    assert first == second


@pytest.mark.parametrize("template", ["", "<s> $A", "$A </s>", "<s> $A </s>"])
def test_a_decoder_that_reads_has_around_a_text_what_theirs_has(tmp_path: Path, template: str) -> None:
    model = foreign("LlamaForSequenceClassification", tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer.json"
    rust = Rust.from_file(str(path))
    if template:
        rust.post_processor = processors.TemplateProcessing(template, special_tokens=[("<s>", 1), ("</s>", 2)])
    rust.save(str(path))
    import_(tmp_path / "hf", tmp_path / "out")
    export(tmp_path / "out", tmp_path / "back", "hf")
    batch = rust.encode("the cat")
    for directory in ("hf", "back"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / directory)
        assert theirs("the cat")["input_ids"] == batch.ids
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([batch.ids])).logits[0].softmax(0)
    said = regard.load(tmp_path / "out").classify("the cat", top=2).probabilities
    found = torch.tensor([said["LABEL_0"], said["LABEL_1"]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_each_pass_through_a_shared_layer_is_seen_and_changed_by_its_own_name(tmp_path: Path) -> None:
    theirs = foreign("AlbertModel", tmp_path / "theirs", attn_implementation="eager")
    import_(tmp_path / "theirs", tmp_path / "ours")
    ours: Any = storage.load(tmp_path / "ours")
    tokens = torch.randint(5, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    with regard.record(ours) as seen:
        plain = ours(tokens)
    expected = theirs(tokens, output_attentions=True).attentions
    assert [*seen] == [f"encoder.layers.{i}.self_attention" for i in range(3)]
    for weights, wanted in zip(seen.weights.values(), expected, strict=True):
        torch.testing.assert_close(weights, wanted, atol=1e-5, rtol=0)
    assert not torch.allclose(seen["encoder.layers.0.self_attention"], seen["encoder.layers.1.self_attention"])
    with regard.edit(ours, {"encoder.layers.1.self_attention": {0: 0.0}}), regard.record(ours) as changed:
        assert not torch.allclose(ours(tokens), plain)
    first, second, third = (f"encoder.layers.{i}.self_attention" for i in range(3))
    assert torch.equal(changed[first], seen[first])
    assert torch.equal(changed[second], torch.cat([torch.zeros(2, 1, 9, 9), seen[second][:, 1:]], 1))
    assert not torch.allclose(changed[third], seen[third])
