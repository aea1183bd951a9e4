"""Imported tokenizers cut a text as they did where they came from, and our specials come from no text."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Rust

import regard
from regard.convert import import_
from regard.data.tokenizers import RESERVED, Tokenizer
from regard.data.vocabulary import BOS
from regard.models import storage
from tests.convert.test_huggingface import foreign_model, logits
from tests.convert.toys import padded, sentences

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
    renamed = {0: "<<s>>"} if kind is bart else {theirs.unk_token_id: "<unk>"}
    texts = [*TEXTS, ">>fra<< the cat"] if kind is marian else TEXTS
    for text in texts:
        if "<" in text and ">>" not in text:
            assert min(i for i in tokenizer.encode(text) if i != 3) > 3  # where theirs finds specials
            continue
        expected = theirs(text)["input_ids"]
        names = [renamed.get(i, theirs.convert_ids_to_tokens(i)) for i in expected]
        assert [tokenizer.rust.id_to_token(i) for i in tokenizer.encode(text)] == names[:-1]
        if 3 not in tokenizer.encode(text):
            assert tokenizer.decode(tokenizer.encode(text)) == theirs.decode(expected, skip_special_tokens=True)
    rows = tokenizer.encode_batch(sentences(4, seed=2))
    theirs_of = theirs(sentences(4, seed=2), padding=True, return_tensors="pt")["input_ids"]
    target = torch.full((4, 1), BOS)
    start = torch.full((4, 1), model.config.decoder_start_token_id)
    expected_logits = logits(model, theirs_of, start, theirs.pad_token_id)[:, 0]
    found = ours(padded(rows), target)[:, 0]
    same = [i for i in range(4, len(tokenizer)) if tokenizer.rust.id_to_token(i) in theirs.get_vocab()]
    numbers = [theirs.get_vocab()[tokenizer.rust.id_to_token(i)] for i in same]
    assert len(same) > 20
    torch.testing.assert_close(found[:, same], expected_logits[:, numbers], atol=1e-4, rtol=0)


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
    assert import_(tmp_path / "hf", tmp_path / "out") == [
        "length_penalty = 0.8 (--penalty mean --alpha 0.8)",
        "min_length = 4 (--shortest 4)",
        "bad_words_ids of several tokens: 1 (--forbid)",
    ]
    assert regard.load(tmp_path / "out").decode.beam == 6
    (tmp_path / "out" / "decode.json").write_text('{"beem": 6}')
    with pytest.raises(ValueError, match=r"decode.json: .*beem.*: mend or remove it"):
        regard.load(tmp_path / "out")
