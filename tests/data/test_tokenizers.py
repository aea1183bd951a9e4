"""Every kind gives back what it promises, no text becomes a special, and the same text gives the same file."""

import gzip
import json
import os
import pickle
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers as rust
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import collate
from regard.data.tokenizers import KINDS, RESERVED, UNK, Tokenizer, TokensConfig, state
from regard.data.vocabulary import BOS, EOS, PAD, Marks

LINES = [
    "The cat sat on the mat, and the other cat sat on the other mat.",
    "A cat that sits on a mat is not the cat that sat on the mat.",
    "Die Katze saß auf der Matte, und die andere Katze saß auf der anderen Matte.",
    "Größere Katzen sitzen größtenteils auf größeren Matten.",
    "那只猫坐在垫子上。 那只猫不在垫子上。",
    "<s> the cat </s> <unk> <pad> <s> the mat </s> <s>sat</s> <0x41> <s>",
    "<s> the cat </s> <unk> <pad> <s> the mat </s> <s>sat</s> <0x41> <s>",
]
SIZES = {"bpe": 330, "unigram": 320, "wordpiece": 120, "byte": 8000, "char": 0, "none": 0}
LITERAL = [*RESERVED, "<s>the cat</s>", "the <s> cat </s> <pad>", "<s><s></s> <unk><pad>", " <s>", "<0x41><0x00>"]
EXACT = ("bpe", "byte", "unigram")


@lru_cache
def learnt(kind: str, lowercase: bool = False) -> Tokenizer:
    return Tokenizer.learn(TokensConfig(kind, SIZES[kind], lowercase), iter(LINES))


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    for kind in ("bpe", "byte"):
        ids = learnt(kind).encode(text)
        assert learnt(kind).decode(ids) == text
        assert all(i > UNK for i in ids)


@given(st.text())
def test_unigram_gives_any_text_back_but_for_the_sign_of_its_space(text: str) -> None:
    ids = learnt("unigram").encode(text)
    assert learnt("unigram").decode(ids) == text.replace("▁", " ")
    assert all(i > UNK for i in ids)


@pytest.mark.parametrize(
    "text", ["", " ", "  the cat ", " the", "\tthe\n\ncat\r\n", "the\u00a0cat\u3000", "👩‍🚀é", "\0"]
)
def test_spaces_at_the_ends_and_controls_come_back(text: str) -> None:
    assert [learnt(kind).decode(learnt(kind).encode(text)) for kind in EXACT] == [text] * 3


def test_the_first_word_is_like_the_others() -> None:
    for kind in ("bpe", "unigram"):
        first, second = learnt(kind).encode("the"), learnt(kind).encode("the the")
        assert second == first + first


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_becomes_a_special(kind: str) -> None:
    tokens = learnt(kind)  # from lines that are full of them
    for text in LITERAL:
        ids = tokens.encode(text)
        assert ids
        assert min(ids) >= (UNK if kind in ("wordpiece", "none") else UNK + 1)
        if kind in (*EXACT, "char"):
            assert tokens.decode(ids) == text
    assert tokens.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]


@pytest.mark.parametrize("kind", KINDS)
def test_decode_ends_at_the_first_end_and_drops_specials(kind: str) -> None:
    tokens = learnt(kind)
    ids = tokens.encode("the cat")
    assert tokens.decode([BOS, *ids, UNK, PAD, EOS, *ids, EOS]) == tokens.decode(ids) == "the cat"
    assert tokens.decode_batch([[*ids, EOS, PAD], [], [EOS, *ids]]) == ["the cat", "", ""]
    for wrong in ([-1], [len(tokens)], [*ids, EOS, len(tokens)]):
        with pytest.raises(ValueError, match=rf"0\.\.{len(tokens) - 1}, got"):
            tokens.decode(wrong)
        with pytest.raises(ValueError, match=rf"0\.\.{len(tokens) - 1}, got"):
            tokens.pieces(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_everything(kind: str, tmp_path: Path) -> None:
    tokens, path = learnt(kind), tmp_path / "new" / "tokenizer.json"
    tokens.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.kind == kind
    assert len(loaded) == len(tokens)
    texts = LINES + LITERAL
    rows = tokens.encode_batch(texts)
    assert rows == loaded.encode_batch(texts) == [loaded.encode(text) for text in texts]
    assert loaded.decode_batch(rows) == tokens.decode_batch(rows) == [tokens.decode(row) for row in rows]
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.json"]
    other = rust.Tokenizer.from_file(str(path))  # as any program that knows the format reads it
    assert [row.ids for row in other.encode_batch(texts)] == rows
    ordinary = [[i for i in row if i != UNK] for row in rows]
    assert other.decode_batch(ordinary) == tokens.decode_batch(rows)


@pytest.mark.parametrize(
    ("kind", "size"), [("bpe", 600), ("unigram", 420), ("wordpiece", 200), ("char", 20), ("none", 90)]
)
def test_the_same_text_gives_the_same_bytes(kind: str, size: int) -> None:
    # The trainers' hash tables have another order each time. A text of chance has many ties, and the Greek letters are
    # so rare that unigram keeps them for completeness only.
    draw = Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyzäöüß那只猫", k=draw.randint(1, 7))) for _ in range(400)]
    lines = [" ".join(draw.choices(words, k=12)) for _ in range(200)]
    lines += [f"the{letter}end the{letter}" for letter in "αβγδεζηθικλμνξοπρ"]
    files = {pickle.dumps(Tokenizer.learn(TokensConfig(kind, size), lines)) for _ in range(5)}
    assert len(files) == 1


# --- what each kind is ---


def test_the_ids_of_bytes_are_the_bytes() -> None:
    tokens = learnt("byte")
    assert len(tokens) == 260
    assert tokens.encode("aß猫") == [4 + byte for byte in "aß猫".encode()]
    assert tokens.decode([4 + 0xE7, 4 + ord("a")]) == "�a"


def test_bpe_has_every_byte_and_merges_what_is_frequent() -> None:
    tokens = learnt("bpe")
    assert {bytes([b]) for b in range(128)} <= {piece.replace("▁", " ").encode() for piece in tokens.pieces(range(260))}
    assert tokens.pieces(tokens.encode("the cat")) == ["▁the", "▁cat"]
    assert tokens.pieces(tokens.encode("☕")) == ["▁", "\\xe2", "\\x98", "\\x95"]


def test_unigram_falls_back_to_bytes() -> None:
    tokens = learnt("unigram")
    assert tokens.pieces(tokens.encode("☕}")) == ["▁", "\\xe2", "\\x98", "\\x95", "}"]


def test_wordpiece_takes_the_longest_piece_and_marks_the_inner_ones() -> None:
    tokens = learnt("wordpiece")
    vocabulary = set(tokens.pieces(range(len(tokens))))
    for word in ("größtenteils", "anderen", "sitzt", "Mattenkatze"):
        pieces = tokens.pieces(tokens.encode(word))
        assert "".join(piece.removeprefix("##") for piece in pieces) == word
        rest = str(word)
        for i, piece in enumerate(pieces):
            longest = next(n for n in range(len(rest), 0, -1) if "##" * (i > 0) + rest[:n] in vocabulary)
            assert piece == "##" * (i > 0) + rest[:longest]
            rest = rest[longest:]
    assert tokens.pieces(tokens.encode("the catz, ☕")) == ["the", "cat", "##z", ",", "<unk>"]
    assert tokens.decode(tokens.encode("the cat ,  sat.")) == "the cat, sat."


def test_char_keeps_the_most_frequent_characters() -> None:
    tokens = Tokenizer.learn(TokensConfig("char", size=7), ["ccc bb aa", "c z"])
    assert tokens.pieces(range(7)) == [*RESERVED, "c", "▁", "a"]  # a before b: as frequent, alphabetical
    assert tokens.pieces(tokens.encode("cab a")) == ["c", "a", "<unk>", "▁", "a"]
    assert tokens.decode(tokens.encode("cab a")) == "ca a"


def test_none_keeps_the_tokens_of_the_text() -> None:
    lines = ["c@@ at b b a a", "b c@@ at sat <s> <unk>"]
    tokens = Tokenizer.learn(TokensConfig("none", size=0), lines)
    assert tokens.pieces(range(len(tokens))) == [*RESERVED, "b", "a", "at", "c@@", "sat"]
    assert tokens.decode(tokens.encode("a  c@@ at sat c@@")) == "a cat sat c"
    assert tokens.pieces(tokens.encode("a <s> dog </s>")) == ["a", "<unk>", "<unk>", "<unk>"]
    cut = Tokenizer.learn(TokensConfig("none", size=6), lines)
    assert cut.pieces(range(len(cut))) == [*RESERVED, "b", "a"]


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case(kind: str, tmp_path: Path) -> None:
    tokens = learnt(kind, lowercase=True)
    tokens.save(tmp_path / "t.json")
    loaded = Tokenizer.load(tmp_path / "t.json")
    assert loaded.kind == kind
    assert loaded.decode(loaded.encode("THE Größere Cat")) == "the größere cat"
    assert min(loaded.encode("<S> <PAD>")) >= UNK


# --- dropout ---


@given(st.text(), st.integers(0, 99))
def test_a_sample_is_the_text(text: str, seed: int) -> None:
    tokens = learnt("bpe")
    assert tokens.sample(text, 0.0, Random(seed)) == tokens.encode(text)
    for dropout in (0.1, 0.6, 1.0):
        sample = tokens.sample(text, dropout, Random(seed))
        assert tokens.decode(sample) == text
        assert sample == tokens.sample(text, dropout, Random(seed))
    assert len(sample) == len(f" {text}".encode()) * bool(text)  # at 1.0, single bytes


@given(st.lists(st.sampled_from(" ".join(LINES).split()), max_size=12).map(" ".join))
def test_without_dropout_words_are_merged_as_encode_does(text: str) -> None:
    assert learnt("bpe").sample(text, 0.0, Random(0)) == learnt("bpe").encode(text)


def outcomes(symbols: tuple[str, ...], ranks: dict[tuple[str, ...], int], p: float) -> dict[tuple[str, ...], float]:
    """The probability of each segmentation, by definition: drop each merge that fits or not, do the best left."""
    fits = [i for i in range(len(symbols) - 1) if symbols[i : i + 2] in ranks]
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for n in range(len(fits) + 1):
        for kept in combinations(fits, n):
            chance = (1 - p) ** n * p ** (len(fits) - n)
            if not kept:
                found[symbols] += chance
                continue
            i = min(kept, key=lambda i: (ranks[symbols[i : i + 2]], i))
            merged = (*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :])
            for outcome, share in outcomes(merged, ranks, p).items():
                found[outcome] += chance * share
    return found


def test_samples_are_distributed_as_the_paper_says(tmp_path: Path) -> None:
    tokens = Tokenizer.learn(TokensConfig(size=270), ["abab abab baba aba ab bb abb cabab"] * 3)
    tokens.save(tmp_path / "t.json")
    merges = json.loads((tmp_path / "t.json").read_text("utf-8"))["model"]["merges"]
    ranks = {tuple(part.replace("Ġ", "▁") for part in pair): rank for rank, pair in enumerate(merges)}
    p, count, draw = 0.3, 20_000, Random(0)
    words = [outcomes(tuple(word), ranks, p) for word in ("▁abab", "▁abb")]
    expected = {(*a, *b): pa * pb for a, pa in words[0].items() for b, pb in words[1].items()}
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 30
    seen = Counter(tuple(tokens.pieces(tokens.sample("abab abb", p, draw))) for _ in range(count))
    assert seen.keys() <= expected.keys()
    for outcome, chance in expected.items():
        assert abs(seen[outcome] - count * chance) < 4.5 * (count * chance * (1 - chance)) ** 0.5 + 1, outcome


# --- mistakes ---


def test_a_wrong_config_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"unknown tokens.kind 'unigramm': did you mean 'unigram'\?"):
        TokensConfig("unigramm")
    with pytest.raises(ValueError, match=r"unknown tokens.kind 'xyz': there are bpe, unigram, wordpiece"):
        TokensConfig("xyz")
    for kind, size in (("bpe", 259), ("unigram", 260), ("wordpiece", 4), ("char", 4), ("none", -1), ("wordpiece", 0)):
        with pytest.raises(ValueError, match=rf"tokens.size = {size} is too small: {kind} needs at least"):
            TokensConfig(kind, size)
    with pytest.raises(ValueError, match=r"tokens.dropout = 1.0: it lies in \[0, 1\)"):
        TokensConfig(dropout=1.0)
    with pytest.raises(ValueError, match="set it to 0 for unigram"):
        TokensConfig("unigram", dropout=0.1)
    with pytest.raises(ValueError, match="only bpe has merges"):
        learnt("unigram").sample("the cat", 0.1, Random(0))
    with pytest.raises(ValueError, match=r"dropout = -0\.1: it lies in \[0, 1\]"):
        learnt("bpe").sample("the cat", -0.1, Random(0))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_size_too_large_for_the_text_names_the_largest(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"tokens.size = 8000 is too large: this text has \d+ {kind} tokens") as error:
        Tokenizer.learn(TokensConfig(kind), LINES)
    most = int(str(error.value).rsplit(" ", 1)[-1])
    assert len(Tokenizer.learn(TokensConfig(kind, most), LINES)) == most
    with pytest.raises(ValueError, match=f"at most {most}"):
        Tokenizer.learn(TokensConfig(kind, most + 1), LINES)


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_a_size_too_small_for_the_characters_names_one_that_is_enough(kind: str) -> None:
    size = {"unigram": 270, "wordpiece": 50}[kind]
    with pytest.raises(ValueError, match=rf"tokens.size = {size} is too small") as error:
        Tokenizer.learn(TokensConfig(kind, size), LINES)
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    assert len(Tokenizer.learn(TokensConfig(kind, least), LINES)) == least


@pytest.mark.parametrize("kind", KINDS)
def test_learning_needs_text_and_passes_the_readers_errors_on(kind: str) -> None:
    for lines in ([], ["", "  "]):
        with pytest.raises(ValueError, match="no text to learn tokens from"):
            Tokenizer.learn(TokensConfig(kind, SIZES[kind]), lines)

    def broken() -> Iterator[str]:
        raise ValueError("train.de, line 1: not UTF-8")
        yield ""

    with pytest.raises(ValueError, match=r"train\.de, line 1: not UTF-8"):
        Tokenizer.learn(TokensConfig(kind, SIZES[kind]), broken())


def test_half_a_surrogate_pair_is_an_error_that_shows_it() -> None:
    with pytest.raises(ValueError, match=r"'a\\ud83d' is not Unicode text"):
        learnt("bpe").encode("a\ud83d")


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.load(path)
    learnt("bpe").save(path)
    content = json.loads(path.read_text("utf-8"))
    foreign = rust.Tokenizer(rust.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    swapped = json.loads(json.dumps(content).replace('"<s>": 1', '"<s>": 2').replace('"</s>": 2', '"</s>": 1'))
    for wrong, message in (
        ("", "no tokenizer.json that this version can read"),
        ("[]", "no tokenizer.json"),
        (json.dumps(content)[:-20], "no tokenizer.json"),
        (json.dumps(content | {"version": "2.0"}), "no tokenizer.json that this version can read"),
        (json.dumps(content | {"normalizer": {"type": "NFKC"}}), "of another program, or of a newer regard"),
        (json.dumps(swapped), "of another program"),
        (foreign.to_str(), "of another program"),
    ):
        path.write_text(wrong, "utf-8")
        with pytest.raises(ValueError, match=message) as error:
            Tokenizer.load(path)
        assert str(path) in str(error.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer.json"):
        Tokenizer.load(path)


PADDING = {"strategy": {"Fixed": 2**33}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about["model"]["vocab"].update(x=2**31), "ids are 0 to 2147483648, and not 0 to"),
        (lambda about: about["model"]["vocab"].update(x=-1), "ids are -1 to 329"),
        (
            lambda about: about.update(added_tokens=[TOKEN | {"id": 2**32 - 1, "content": "x"}]),
            "to 4294967295, and not",
        ),
        (lambda about: about.update(padding=PADDING | {"pad_type_id": 0, "pad_token": "x"}), "it pads or cuts texts"),
        (lambda about: about["model"].update(vocab="abc"), "no tokenizer.json that this version can read"),
        (lambda about: about.update(model=None), "no tokenizer.json that this version can read"),
    ],
)
def test_one_number_in_a_file_costs_neither_minutes_nor_gigabytes(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    about = json.loads(learnt("bpe").rust.to_str())
    change(about)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=message):
        Tokenizer(json.dumps(about))
    assert time.perf_counter() - start < 1


def test_what_is_put_around_a_text_is_known() -> None:
    about = json.loads(learnt("bpe").rust.to_str())
    far = {"id": "x", "ids": [2**31], "tokens": ["x"]}
    single = [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    about["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single,
        "special_tokens": {"x": far},
    }
    with pytest.raises(ValueError, match=r"this text cannot read a text: ids lie in 0..329, got "):
        Tokenizer(json.dumps(about))


def test_an_unknown_token_that_is_none_is_noticed_before_a_text_needs_it() -> None:
    about = json.loads(learnt("char").rust.to_str())
    about["model"]["unk_token"] = "nothing"
    with pytest.raises(ValueError, match=r"this text cannot read a text: the tokenizer is damaged .*Missing"):
        Tokenizer(json.dumps(about))


def test_a_panic_is_told_as_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):  # its name in the package
        pass

    def panic(*_: object, **options: object) -> None:
        raise PanicException("index out of bounds")

    content = learnt("bpe").rust.to_str()
    with monkeypatch.context() as patch:
        patch.setattr("regard.data.tokenizers.Rust", type("Rust", (), {"from_str": panic}))
        with pytest.raises(ValueError, match=r"can read: the tokenizer is damaged .index out of bounds"):
            Tokenizer(content)
    broken = Tokenizer(content)
    monkeypatch.setattr(broken, "rust", type("Rust", (), {"encode_batch_fast": panic, "decode_batch": panic})())
    monkeypatch.setattr(Tokenizer, "__len__", lambda self: 9)
    for call in (lambda: broken.encode("a"), lambda: broken.decode([5])):
        with pytest.raises(ValueError, match="the tokenizer is damaged"):
            call()


def test_a_pipe_or_a_device_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    for path in (tmp_path / "tokenizer.json", Path("/dev/zero")):
        with pytest.raises(ValueError, match="is no file, but a pipe or a device"):
            Tokenizer.load(path)


def test_a_save_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    (path / "full").mkdir(parents=True)
    with pytest.raises(OSError, match=r"tokenizer\.json"):
        learnt("bpe").save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


# --- processes ---


def test_a_copy_for_another_process_is_the_same() -> None:
    tokens = Tokenizer.learn(TokensConfig(size=300), LINES)
    tokens.sample("the cat", 0.1, Random(0))
    copy = pickle.loads(pickle.dumps(tokens))
    assert copy.kind == "bpe"
    assert copy.sample(LINES[0], 0.3, Random(1)) == tokens.sample(LINES[0], 0.3, Random(1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_encodes_without_a_warning() -> None:
    program = (
        "import os\n"
        "from regard.data.tokenizers import Tokenizer, TokensConfig\n"
        "tokens = Tokenizer.learn(TokensConfig('byte'), ['a'])\n"
        "tokens.encode_batch(['abc'] * 1000)\n"
        "if os.fork() == 0:\n"
        "    print(len(tokens.encode_batch(['abc'] * 1000)), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=plain, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1000\n", "")


# --- real text ---

DATA = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def read(name: str) -> list[str]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there: set REGARD_SHARED_DATA")
    return gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()


def test_captions_and_chinese_come_back() -> None:
    captions = read("multi30k/train.en.gz")[:2000] + read("multi30k/train.de.gz")[:2000]
    pairs = [line.split("\t")[:2] for line in read("tatoeba/eng-cmn.tsv.gz")[::10]]
    for lines in (captions, [english for english, _ in pairs] + [chinese for _, chinese in pairs]):
        tokens = Tokenizer.learn(TokensConfig(size=2000), lines[::2])
        rows = tokens.encode_batch(lines[1::2])
        assert tokens.decode_batch(rows) == lines[1::2]
        assert sum(map(len, rows)) < 0.4 * sum(len(line.encode()) for line in lines[1::2])
        draw = Random(0)
        samples = [tokens.sample(line, 0.1, draw) for line in lines[1:401:2]]
        assert tokens.decode_batch(samples) == lines[1:401:2]
        assert sum(map(len, samples)) > sum(map(len, rows[:200]))
        assert [tokens.sample(line, 0.0, draw) for line in lines[1:401:2]] == rows[:200]


def test_text_that_is_already_tokens_comes_back_as_words() -> None:
    lines = read("multi30k/bpe/train.de.gz")[:5000]
    tokens = Tokenizer.learn(TokensConfig("none", size=0), lines)
    counts = Counter(token for line in lines for token in line.split())
    assert tokens.pieces(range(4, len(tokens))) == sorted(counts, key=lambda token: (-counts[token], token))
    assert tokens.decode_batch(tokens.encode_batch(lines)) == [line.replace("@@ ", "") for line in lines]


def test_an_imported_one_keeps_its_ids_and_states_its_marks() -> None:
    words = ["a", "</s>", "b", "<pad>", "en", "<unk>", "c"]
    theirs = rust.Tokenizer(rust.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    theirs.pre_tokenizer = rust.pre_tokenizers.WhitespaceSplit()
    theirs.post_processor = state(Marks(pad=3, bos=3, eos=1, unk=5), [("en", 4)])
    tokens = pickle.loads(pickle.dumps(Tokenizer(theirs.to_str())))
    assert (tokens.kind, tokens.marks) == ("other", Marks(pad=3, bos=3, eos=1, unk=5))
    assert tokens.encode("a c d") == [4, 0, 6, 5]
    assert tokens.decode([3, 4, 0, 6, 5, 1, 2]) == "a c"
    assert [tokens.spelled(i) for i in (0, 1, 3, 4, 5)] == [b"a", b"", b"", b"", b""]
    assert collate([([0], [2, 6])], marks=tokens.marks)["target"].tolist() == [[3, 2, 6]]
    with pytest.raises(ValueError, match="the tokenizer has no mark `mask`, which is needed here"):
        tokens.marks.need("pad", "mask")


def test_its_own_have_the_marks_they_always_had() -> None:
    assert Tokenizer.learn(TokensConfig("char", 0), ["ab"]).marks == Marks(pad=0, bos=1, eos=2, unk=3)


def test_one_that_an_older_regard_imported_is_read_as_before() -> None:
    words = [*RESERVED, "<<s>>", "a"]
    theirs = rust.Tokenizer(rust.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    theirs.post_processor = rust.processors.TemplateProcessing("<<s>> $A", special_tokens=[("<<s>>", 4)])
    tokens = Tokenizer(theirs.to_str())
    assert tokens.marks == Marks(pad=0, bos=1, eos=2, unk=3)
    assert (tokens.encode("a"), tokens.decode([4, 5, 2])) == ([4, 5], "a")
