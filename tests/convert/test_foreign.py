"""Imported tokenizers cut a text as they did where they came from, and our specials come from no text."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Rust

import regard
from regard.convert import export, import_
from regard.data.tokenizers import RESERVED, Tokenizer
from regard.decoding.module import Module
from regard.decoding.pool import search
from regard.decoding.protocol import Request, SearchConfig
from regard.models import storage
from regard.models.decoder import Decoder, gpt_tiny, llama_tiny
from tests.convert.test_huggingface import foreign_model, logits
from tests.convert.toys import before, learn, padded, sentences

transformers = pytest.importorskip("transformers")
TEXTS = [*sentences(10, seed=5), "the  cat ", "the cät saw 7 dogs", "a <s> b </s> <pad><unk>", "ﬁve ½ trees"]


def readable() -> bool:
    rust = Rust(models.WordLevel({name: i for i, name in enumerate(RESERVED)}, unk_token="<unk>"))
    rust.post_processor = processors.TemplateProcessing("$A", special_tokens=[])
    try:
        Tokenizer(rust.to_str())
    except ValueError:
        return False
    return True


pytestmark = pytest.mark.skipif(not readable(), reason="this regard reads no tokenizers but its own kinds")


def save(rust: Rust, directory: Path, **names: str) -> Any:
    """What transformers makes of a tokenizer, saved."""
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **names)
    theirs.save_pretrained(directory)
    return theirs


def bart(directory: Path) -> tuple[Any, Any]:
    """Byte-level BPE; a text lies between <s> and </s>, and the decoder starts with </s>."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    rust.train_from_iterator(sentences(200), trainer)
    rust.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    rust.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    size = rust.get_vocab_size() + 2  # rows that no token has, as where sizes are rounded up
    model = foreign_model("BartForConditionalGeneration", directory, size, **ids)
    (directory / "generation_config.json").write_text('{"forced_bos_token_id": 0}')
    return model, save(rust, directory, **names)


def pegasus(directory: Path) -> tuple[Any, Any]:
    """A unigram model; the decoder starts with <pad>."""
    rust = Rust(models.Unigram())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "[UNK]", "mask_token": "<mask_1>"}
    trainer = trainers.UnigramTrainer(
        vocab_size=40, special_tokens=list(names.values()), unk_token="[UNK]", show_progress=False
    )
    rust.train_from_iterator(sentences(200), trainer)
    rust.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = foreign_model("PegasusForConditionalGeneration", directory, rust.get_vocab_size(), **ids)
    return model, save(rust, directory, **names)


def marian(directory: Path) -> tuple[Any, Any]:
    """SentencePiece for each side, numbered together; the decoder starts with <pad>, the last of the vocabulary."""
    sentencepiece = pytest.importorskip("sentencepiece")
    directory.mkdir()
    pieces: dict[str, None] = dict.fromkeys(["</s>", "<unk>", ">>fra<<"])
    for side, texts in (("source", sentences(200)), ("target", [text.upper() for text in sentences(200)])):
        with (directory / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts), model_writer=file, vocab_size=60, hard_vocab_limit=False, minloglevel=2
            )
        spm = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{side}.spm"))
        pieces |= dict.fromkeys(spm.id_to_piece(i) for i in range(len(spm)))
    ids = {piece: i for i, piece in enumerate([*pieces, "<pad>"])}
    (directory / "vocab.json").write_text(json.dumps(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.MarianTokenizer(
            *(str(directory / name) for name in ("source.spm", "target.spm", "vocab.json"))
        )
    special = {"pad_token_id": ids["<pad>"], "eos_token_id": 0, "decoder_start_token_id": ids["<pad>"]}
    return foreign_model("MarianMTModel", directory, len(ids), **special), theirs


@pytest.mark.parametrize("kind", [bart, pegasus, marian], ids=lambda kind: kind.__name__)
def test_a_text_is_cut_as_before(tmp_path: Path, kind: Any) -> None:
    model, theirs = kind(tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    tokenizer, ours = Tokenizer.load(tmp_path / "out" / "tokenizer.json"), storage.load(tmp_path / "out")
    assert tokenizer.kind == "other"
    marks = tokenizer.marks
    assert marks[:4] == (
        theirs.pad_token_id,
        model.config.decoder_start_token_id,
        theirs.eos_token_id,
        theirs.unk_token_id,
    )
    assert marks.mask == theirs.mask_token_id
    texts = [*TEXTS, ">>fra<< the cat"] if kind is marian else TEXTS
    for text in texts:
        if "<" in text and ">>" not in text:  # where theirs finds specials
            assert not tokenizer.silent.intersection(tokenizer.encode(text)[kind is bart :]) - {marks.unk}
            continue
        expected = theirs(text)["input_ids"]
        assert [*tokenizer.encode(text), marks.eos] == expected
        if marks.unk not in expected:
            assert tokenizer.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    source = padded(tokenizer.encode_batch(sentences(4, seed=2)), *marks.need("pad", "eos"))
    assert source.tolist() == theirs(sentences(4, seed=2), padding=True)["input_ids"]
    target = torch.full((4, 1), model.config.decoder_start_token_id)
    torch.testing.assert_close(ours(source, target), logits(model, source, target, marks.pad), atol=1e-4, rtol=0)
    export(tmp_path / "out", tmp_path / "back", "hf")
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    for text in texts:
        assert back(text)["input_ids"] == theirs(text)["input_ids"] or "<" in text
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back")
    torch.testing.assert_close(logits(again, source, target, marks.pad), logits(model, source, target, marks.pad))


def test_a_damaged_marian_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "marian"
    marian(directory)
    for damage in ({"</s>": 0}, {"<unk>": 1, "</s>": "0"}):
        (directory / "vocab.json").write_text(json.dumps(damage))
        with pytest.raises(ValueError, match=r"vocab.json is damaged: it needs an id for each piece"):
            import_(directory, tmp_path / "out")
    (directory / "source.spm").write_bytes(b"")
    with pytest.raises(ValueError, match=r"source.spm is damaged, it has no pieces"):
        import_(directory, tmp_path / "out")


def test_what_is_put_after_a_text_must_be_the_end(tmp_path: Path) -> None:
    bart(tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer.json"
    rust = Rust.from_file(str(path))
    rust.post_processor = processors.TemplateProcessing("$A </s> <mask>", special_tokens=[("</s>", 2), ("<mask>", 320)])
    rust.save(str(path))
    with pytest.raises(ValueError, match=r"after a text it puts the tokens \[2, 320\], but regard puts"):
        import_(tmp_path / "hf", tmp_path / "out")
    rust.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    rust.save(str(path))
    with pytest.raises(ValueError, match="forced_bos_token_id = 0 forces the first token: set it to null"):
        import_(tmp_path / "hf", tmp_path / "out")


def test_how_it_generates_is_kept_or_told(tmp_path: Path) -> None:
    pegasus(tmp_path / "hf")
    told = {"num_beams": 6, "length_penalty": 0.8, "min_length": 4, "bad_words_ids": [[7], [8, 9]]}
    path = tmp_path / "hf" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    assert import_(tmp_path / "hf", tmp_path / "out") == ["bad_words_ids of several tokens: 1 (--forbid)"]
    decode = regard.load(tmp_path / "out").decode
    assert (decode.beam, decode.penalty, decode.alpha, decode.shortest) == (6, "mean", 0.8, 4)


def test_what_an_older_regard_has_noted_of_it_is_read(tmp_path: Path) -> None:
    pegasus(tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(
        json.dumps({key: about[key] for key in ("family", "config")} | {"format": 1})
    )
    (tmp_path / "out" / "decode.json").write_text('{"beam": 6}')
    assert regard.load(tmp_path / "out").decode.beam == 6
    (tmp_path / "out" / "decode.json").write_text('{"beem": 6}')
    with pytest.raises(
        ValueError, match=r"decode.json: there is no setting .beem.: did you mean .beam.*: mend or remove"
    ):
        regard.load(tmp_path / "out")


@pytest.mark.parametrize("kind", [pegasus, marian], ids=lambda kind: kind.__name__)  # a random BART writes no UTF-8
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_translator_writes_what_theirs_generates(tmp_path: Path, kind: Any, engine: str) -> None:
    model, theirs = kind(tmp_path / "hf")
    import_(tmp_path / "hf", tmp_path / "out")
    translator, texts = regard.load(tmp_path / "out", engine=engine), sentences(4, seed=2)
    batch = theirs(texts, padding=True, return_tensors="pt")
    found = translator.hypotheses(texts, beam=1, limit=8, shortest=0, align=True)
    wishes = {"forced_bos_token_id": None, "forced_eos_token_id": None}
    ids = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    outputs = model.generate(**ids, num_beams=1, do_sample=False, max_new_tokens=8, **wishes)
    for row, (said, *_) in zip(outputs.tolist(), found, strict=True):
        written = before(row, theirs.eos_token_id)
        assert said.tokens == translator.tokenizer.pieces(written)
        assert said.text == theirs.decode(written, skip_special_tokens=True)
        assert all(word < len(said.text.split()) for _, word in said.alignment)


LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "max_position_embeddings": 40, "tie_word_embeddings": False, "rope_theta": 500.0},
    ),
}


def language(directory: Path, name: str, **changes: Any) -> tuple[Any, Any]:
    """A random language model, no parameter of which is at its neutral value; before a text of a Llama's stands <s>."""
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<e>", "<s>"], initial_alphabet=alphabet, show_progress=False
    )
    rust.train_from_iterator(sentences(200), trainer)
    if name == "llama":
        rust.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    architecture, shape = LANGUAGE[name]
    kind = getattr(transformers, architecture)
    torch.manual_seed(1)
    ids = {"vocab_size": 300, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": None}
    model = kind(kind.config_class(**shape | ids | changes)).eval()
    for tensor in model.parameters():
        tensor.data.add_(0.3 * torch.randn_like(tensor))
    model.save_pretrained(directory)
    return model, save(rust, directory, bos_token="<s>", eos_token="<e>")


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_says_the_same_here_and_back_there(tmp_path: Path, name: str) -> None:
    model, theirs = language(tmp_path / "hf", name)
    import_(tmp_path / "hf", tmp_path / "out")
    tokenizer, ours = Tokenizer.load(tmp_path / "out" / "tokenizer.json"), storage.load(tmp_path / "out")
    assert (tokenizer.marks.bos, tokenizer.marks.eos, tokenizer.marks.pad) == (1, 0, None)
    for text in TEXTS[:10]:
        assert tokenizer.encode(text) == theirs(text)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
    tokens = torch.randint(2, 300, (3, 12))
    with torch.inference_mode():
        torch.testing.assert_close(ours(tokens), model(tokens).logits, atol=1e-5, rtol=1e-5)
    export(tmp_path / "out", tmp_path / "back", "hf")
    first, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert first.keys() == back.keys()
    assert all(torch.equal(first[each], back[each]) for each in first)
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits)
    prompt = theirs("the cat")["input_ids"]
    written = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=6, pad_token_id=0)[
        0, len(prompt) :
    ]
    assert regard.load(tmp_path / "out").ids("the cat") == prompt
    ((found,),) = search(Module(ours), [Request(prompt[:-1], prompt[-1], 6)], SearchConfig(beam=1), eos=0)
    assert [*found.tokens, 0][:6] == [*written.tolist(), 0][:6]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"attention_bias": True}, "config.json: attention_bias = True cannot be expressed, only False"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = False cannot be expressed, only True"),
        (
            "gpt2",
            {"activation_function": "tanh"},
            "activation_function = 'tanh' cannot be expressed, only gelu_new, relu",
        ),
    ],
)
def test_what_a_language_model_of_ours_cannot_be_is_named(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    language(tmp_path / "hf", name, **changes)
    with pytest.raises(ValueError, match=message):
        import_(tmp_path / "hf", tmp_path / "out")


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_may_have_a_pad(tmp_path: Path, name: str) -> None:
    language(tmp_path / "hf", name, pad_token_id=0)
    import_(tmp_path / "hf", tmp_path / "out")
    assert Tokenizer.load(tmp_path / "out" / "tokenizer.json").marks.pad == 0


@pytest.mark.parametrize(
    ("preset", "change", "message"),
    [
        (gpt_tiny, {"norm": "post"}, "no model with norm = 'post' .in gpt2 it is 'pre'"),
        (gpt_tiny, {"scale": 0.5}, "no model with scale = 0.5 .in gpt2 it is None"),
        (llama_tiny, {"bias": True}, "no model with bias = True .in llama it is False"),
    ],
)
def test_a_language_model_that_theirs_is_not_is_named(tmp_path: Path, preset: Any, change: Any, message: str) -> None:
    tokenizer = learn("none")
    storage.save(Decoder(preset(len(tokenizer), **change)), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    with pytest.raises(ValueError, match=message):
        export(tmp_path / "model", tmp_path / "out", "hf")
