"""Imported tokenizers give the ids that those of transformers give: of odd strings, of pairs, of files without JSON."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Rust

from regard.convert import tokenizers
from regard.convert.tables import TABLES
from regard.data.tokenizers import Tokenizer
from tests.convert.toys import sentences

transformers = pytest.importorskip("transformers")
LINES = [
    *sentences(200),
    "Straße, naïve café: 3.14 €!",
    "我爱北京 天安门",
    "isn't it? they'll go... #1 @home",
    "ﬁ ½ Ⅷ ™ é",
]
# fmt: off
FIXED = [
    '', ' ', '  a  b  ', '\n', '\t tab\tand\r\nlines\n\n', '\xa0nbsp\u2003em\u200b', '\ufeffbom', 'a\x00b\x07',
    'The QUICK brown fox', "don't can't we'll I'm", 'e\u0301 \xe9 E\u0301', 'ﬁve ½ trees', 'Ⅷ ™ ℃ ㎏',
    '\uff26\uff35\uff2c\uff2c\u3000width', '我爱北京天安门', '日本語のテキスト、です。', '한국어 문장',
    'العربية', 'עברית',
    '\u0939\u093f\u0928\u094d\u0926\u0940', 'ไทย', 'ελληνικά ΣΑΣ', 'Straße ẞ',
    '\U0001f600 \U0001f1e9\U0001f1ea \U0001f469\u200d\U0001f469\u200d\U0001f467 \u2615\ufe0f', 'x² + y³ = z⁻¹',
    '1,234,567.89', '3.14e-10', 'C:\\path\\file.txt', 'https://a.b/c?d=e&f#g', 'a@b.co', '#tag @name', '__init__',
    'snake_case camelCase', '<b>bold</b>', '[CLS', 'CLS]', '<s', 's>', '</', '##ing', '▁a▁b', 'Ġ',
    '!?.,;:—–…«»„“‚‘', '(((())))', 'İstanbul ıI', 'ǅ', '\u0301', 'a\u0335b', '\U0010fffd', '0', '00', '1 2 3',
    'Ünïcödé', 'ÀÉÎÕÜ', 'œuvre Æon', 'ß', 'ſ', 'K', 'Å', '\u2028line\u2029para', '\xad soft\xadhyphen',
    'the  cat ', ' the cat saw', 'THE CAT', 'thecat', 'cat.', '.cat', 'cat,dog;bird', 'a-b-c', "rock'n'roll", "''",
    '""', '``', '힣', '\ue000', '㐀𠀀', '𝓗𝓮𝓵𝓵𝓸', 'ﷺ', '½½', 'e\u0336r\u0336', 'x\u200dy', '\u202eabc', 'a\x00',
    'tab\there', '\r', '\x0b\x0c', 'a\x85b', '~`^|', '$100 £5 ¥7', '2+2=4', '50%', 'A.B.C.', 'e.g. i.e.',
    '--option=value', "{'json': [1, 2]}", 'SELECT * FROM t;', 'if (x) { y++; }', 'Ñandú', 'naïve façade', 'ℌ𝔢',
    '①②③', '👍🏽', 'ẞ', 'Ω≈ç√',
    "a" * 120, "é" * 60, "ab" * 200,
]
# fmt: on
ODD = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.lists(
    st.sampled_from(
        ["the", "cat", " ", "é", "日", "😀", "'s", "12", "-", "\n", "▁", "##", "Ġ", "<", ">", "[", "]", "S"]
    )
).map("".join)


def wordpiece(directory: Path) -> Any:
    """BERT's, cased, from tokenizer.json."""
    return save(bert(lowercase=False), directory, model_type="bert", **BERT)


def vocabulary(directory: Path) -> Any:
    """BERT's, in lower case, from vocab.txt alone."""
    ids = bert(lowercase=True).get_vocab()
    directory.mkdir()
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__)), "utf-8")
    return theirs_from(directory, transformers.BertTokenizer, "bert")


def roberta(directory: Path) -> Any:
    """Byte-level BPE in a frame, from tokenizer.json."""
    rust = byte_level(["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return save(rust, directory, model_type="roberta", **ROBERTA)


def gpt2(directory: Path) -> Any:
    """Byte-level BPE from vocab.json and merges.txt."""
    return merged(directory, byte_level(["<|endoftext|>"]), transformers.GPT2Tokenizer, "gpt2")


def roberta_files(directory: Path) -> Any:
    """The same in a frame."""
    rust = byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return merged(directory, rust, transformers.RobertaTokenizer, "roberta")


def qwen(directory: Path) -> Any:
    """Byte-level BPE that cuts otherwise, with tokens that are found in a text."""
    rust = byte_level(["<|endoftext|>", "<|im_start|>"], ["<tool>"], special=False)
    cut = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    cut += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.normalizer = normalizers.NFC()
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated"), bytes_])
    return save(rust, directory, model_type="qwen2", eos="<|endoftext|>", eos_token_id=0)


def llama(directory: Path) -> Any:
    """SentencePiece's BPE with bytes for what it does not know, a space before all, and <s>."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz'.,"]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "▁t", "he", "▁the", "ca", "cat", "▁cat"])}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("c", "a"), ("ca", "t"), ("▁", "cat")]
    rust = Rust(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    plain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    rust.decoder = decoders.Sequence(plain)
    rust.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return save(rust, directory, model_type="llama", bos="<s>", eos="</s>", unk="<unk>", **ids)


def t5(directory: Path) -> Any:
    """A unigram model; </s> after all, and marks that stand for gaps."""
    rust = Rust(models.Unigram())
    rust.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    marks = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=marks, unk_token="<unk>", show_progress=False)
    rust.train_from_iterator(LINES, trainer)
    rust.add_special_tokens(["<extra_id_1>", "<extra_id_0>"])
    rust.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return save(rust, directory, model_type="t5", pad="<pad>", eos="</s>", unk="<unk>", **ids)


BERT = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]"}
ROBERTA = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>", "unk": "<unk>"}
ROBERTA |= {"pad_token_id": 1}
KINDS = [wordpiece, vocabulary, roberta, gpt2, roberta_files, qwen, llama, t5]


def bert(lowercase: bool) -> Rust:
    rust = Rust(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=None)
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece("##")
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    rust.train_from_iterator(LINES, trainers.WordPieceTrainer(special_tokens=marks, show_progress=False))
    ids = [("[CLS]", 2), ("[SEP]", 3)]
    rust.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    return rust


def byte_level(marks: list[str], added: list[str] | None = None, special: bool = True) -> Rust:
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = {"special_tokens": marks, "initial_alphabet": alphabet, "show_progress": False}
    rust.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=330, **how))
    rust.add_tokens([AddedToken(name, special=special, normalized=False) for name in added or []])
    return rust


def save(rust: Rust, directory: Path, **told: Any) -> Any:
    about = {key: told.pop(key) for key in [*told] if key == "model_type" or key.endswith("_id")}
    names = {f"{name}_token": token for name, token in told.items()}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=rust, **names)
    theirs.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"vocab_size": len(theirs) + 3} | about))
    return theirs


def merged(directory: Path, rust: Rust, kind: Any, name: str) -> Any:
    directory.mkdir()
    model = json.loads(rust.to_str())["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    return theirs_from(directory, kind, name)


def theirs_from(directory: Path, kind: Any, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = kind.from_pretrained(directory)
    ids = {
        "bos_token_id": theirs.bos_token_id,
        "eos_token_id": theirs.eos_token_id,
        "pad_token_id": theirs.pad_token_id,
    }
    (directory / "config.json").write_text(json.dumps({"vocab_size": len(theirs), "model_type": name} | ids))
    return theirs


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer, str]:
    """A tokenizer of theirs, the same here, and how a text stands in its family."""
    directory = tmp_path_factory.mktemp("tokens") / request.param.__name__
    theirs = request.param(directory)
    about = json.loads((directory / "config.json").read_text())
    table = TABLES[about["model_type"]]
    return (
        theirs,
        tokenizers.kept(directory, tokenizers.read(directory, table), about, table, table.around),
        table.around,
    )


def agree(theirs: Any, ours: Tokenizer, around: str, text: str, pair: str) -> None:
    ids, others = ours.encode_batch([text, pair])
    if around != "frame":
        assert [*ids, *([ours.marks.eos] if around else [])] == theirs(text)["input_ids"]
        return
    assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.marks.around(ids)[0] == theirs(text)["input_ids"]
    if not pair:  # which they take for none
        return
    found = theirs(text, pair, return_token_type_ids=True)
    assert ours.marks.around(ids, others) in (
        (found["input_ids"], found["token_type_ids"]),
        (found["input_ids"], [0, *[0] * len(ids), 0, 1, *[1] * len(others), 1]),  # which RoBERTa has no use for
    )


def test_odd_texts_are_cut_the_same(both: Any) -> None:
    assert len(FIXED) >= 100
    for text, pair in zip(FIXED, reversed(FIXED), strict=True):
        agree(*both, text, pair)


@settings(max_examples=60, deadline=None)
@given(text=ODD, pair=ODD)
def test_any_text_is_cut_the_same(both: Any, text: str, pair: str) -> None:
    theirs, ours, around = both
    if not any(name in text + pair for name in theirs.all_special_tokens):
        agree(theirs, ours, around, text, pair)


def test_marks_have_their_ids_and_no_text_gives_one(both: Any) -> None:
    theirs, ours, _ = both
    for name in ("pad", "mask", "cls", "sep"):
        assert getattr(ours.marks, name) == getattr(theirs, f"{name}_token_id")
    for name in theirs.all_special_tokens:
        text = f"a {name} b{name}c"
        own = set(ours.encode(text)) - {ours.marks.unk} - set(ours.encode("")[:1])
        assert not own & {theirs.convert_tokens_to_ids(each) for each in theirs.all_special_tokens}
