"""Tagging: files of every kind become BIO, a word has one tag in one window, and spans are told where they stand."""

import gzip
import json
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.recipes import reading
from regard.recipes.train import train
from regard.tasks.reader import Given, windows
from regard.tasks.tag import WORD, GivenWords, Tag, TaggedFiles, likeliest, nearest
from regard.training.objectives import IGNORE

QUIET = Console(quiet=True)
CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""
PEOPLE, PLACES = ["Ann Lee", "Bob", "Tim van Dam"], ["Rome", "New York"]
RECIPE = """
task: {name: tag}
data: {train: {conll: train.txt}, valid: {conll: valid.txt}, test: {conll: valid.txt}, max_length: 24}
tokens: {kind: wordpiece, size: 40}
model: {preset: bert-tiny, layers: 1, d_model: 32, d_ff: 64, heads: 2, max_length: 24, dropout: 0.0}
train: {steps: 80, batch_tokens: 256, smoothing: 0.0, checkpoint_every: 40, shards: 1, validate_every: 40,
  optimiser: {name: muon}, schedule: {name: constant, peak: 0.01, warmup: 10}}
"""


def sentences(draw: Random, count: int) -> str:
    """IOB1, as CoNLL-2003 has it: who saw which place, up to three times."""
    text = ""
    for _ in range(count):
        for _ in range(draw.randint(1, 3)):
            person, place = draw.choice(PEOPLE).split(), draw.choice(PLACES).split()
            tagged = [(w, "I-PER") for w in person] + [("saw", "O")] + [(w, "I-LOC") for w in place] + [(".", "O")]
            text += "".join(f"{word} {tag}\n" for word, tag in tagged)
        text += "\n"
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sentences, a recipe for them, and the run of that."""
    folder, draw = tmp_path_factory.mktemp("tagging"), Random(0)
    (folder / "train.txt").write_text(sentences(draw, 200))
    (folder / "valid.txt").write_text(sentences(draw, 20))
    (folder / "tag.yaml").write_text(RECIPE)
    assert train(reading.load(str(folder / "tag.yaml")), folder / "run", name="tag", console=QUIET)
    return folder


def read(path: Path, text: str, **how: Any) -> tuple[list[dict[str, Any]], str]:
    """The rows of a file, and what is said of them."""
    path.write_text(text)
    skipped = Skipped()
    way = {"txt": "conll"}.get(path.suffix[1:], path.suffix[1:])
    return list(TaggedFiles(**{way: str(path)}, **how).read(skipped)), skipped.report()


def test_files_of_every_kind(tmp_path: Path) -> None:
    expected = [
        {"words": ["EU", "rejects", "German"], "tags": ["B-ORG", "O", "B-MISC"]},
        {"words": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    said = "3 tags that are not BIO (B-X begins a span, I-X goes on with it) read as such"
    assert read(tmp_path / "a.txt", CONLL) == (expected, said)
    assert read(tmp_path / "a.txt", CONLL.rstrip("\n"), columns={"word": 0, "tag": 3}) == (expected, said)
    parts = [row["tags"] for row in read(tmp_path / "a.txt", CONLL, columns={"word": 0, "tag": 2})[0]]
    assert parts == [["B-NP", "B-VP", "B-NP"], ["B-NP", "I-NP"]]
    tabs = CONLL.replace(" ", "\t").replace("EU", "E U")  # between tabs a word may hold a space
    assert read(tmp_path / "a.txt", tabs)[0][0]["words"][0] == "E U"
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(CONLL)
    assert list(TaggedFiles(conll=str(tmp_path / "a.txt.gz")).read()) == expected
    rows = "".join(json.dumps(row) + "\n" for row in expected)
    assert read(tmp_path / "a.jsonl", rows) == (expected, "")
    other = rows.replace('"words"', '"tokens"').replace('"tags"', '"ner"')
    assert read(tmp_path / "a.jsonl", other, columns={"word": "tokens", "tag": "ner"})[0] == expected
    cells = "".join(f"{' '.join(row['words'])}\t{' '.join(row['tags'])}\n" for row in expected)
    assert read(tmp_path / "a.tsv", cells)[0] == expected


@pytest.mark.parametrize(
    ("name", "text", "how", "message"),
    [
        ("a.txt", CONLL, {"columns": {"tag": 4}}, r"a.txt, line 1 has 4 columns|a.txt, line 3 has 4 columns"),
        ("a.txt", "EU\n", {}, "line 1 has 1 columns, no word and tag in 0 and 0: say `columns`"),
        ("a.txt", CONLL, {"columns": {"tag": "ner"}}, "columns.tag = 'ner': of a CoNLL file it is a number, from 0"),
        ("a.txt", CONLL, {"columns": {"tags": 3}}, "columns has 'tags': did you mean 'tag'?"),
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}\n', {}, "sentence 1: as many words as tags are needed"),
        ("a.jsonl", '{"words": ["a"], "tags": [3]}\n', {}, "sentence 1: 3 is no word and no tag: put it in quotes"),
        ("a.jsonl", '{"words": ["a"]}\n', {}, "line 1 has no 'tag', only"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, name: str, text: str, how: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, text, **how)


def test_the_first_sub_word_carries_the_tag() -> None:
    tokens = Tokenizer.learn(TokensConfig("wordpiece", 13), ["ab abc abcd"] * 9)
    task = Tag(("O", "B-X", "I-X"), longest=64)
    row = {"words": ["abcd", "ab", "dcba", "\u200b"], "tags": ["B-X", "I-X", "O", "O"]}
    ((ids, tags),) = task.examples([row], tokens)
    pieces = tokens.pieces(ids)
    counted = [(piece, tag) for piece, tag in zip(pieces, tags, strict=True) if tag != IGNORE]
    assert [tag for _, tag in counted] == [1, 2, 0, 0]
    assert [piece for piece, _ in counted[:2]] == [tokens.pieces(tokens.encode(word))[0] for word in ("abcd", "ab")]
    assert (tags[0], tags[-1]) == (IGNORE, IGNORE)
    batch = task.collate(tokens, 0.0)(
        [(np.array(ids), np.array(tags)), (np.array(ids[:3]), np.array(tags[:3]))], Random(0)
    )
    assert batch.count == 4 + sum(tag != IGNORE for tag in tags[:3])
    assert batch["labels"].shape == batch["tokens"].shape
    assert (batch["labels"][~batch["keep"]] == IGNORE).all()


@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "unigram", "wordpiece", "none"])
def test_words_are_read_as_if_spaces_stood_between_them(kind: str) -> None:
    tokens = Tokenizer.learn(
        TokensConfig(kind, {"bpe": 262, "unigram": 264, "wordpiece": 9}.get(kind, 0)), ["ab ab c"] * 9
    )
    ((ids, _),) = Tag(("O", "B-X")).examples([{"words": ["ab", "c"], "tags": ["O", "O"]}], tokens)
    text = "ab c" if tokens.spaced else " ab c"
    assert ids == tokens.marks.around(tokens.encode(text))[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_word_is_tagged_once_where_it_has_the_most_around_it(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=30))
    longest = data.draw(st.integers(3, 20))
    tokens = Tokenizer.learn(TokensConfig("byte", 0), ["x"])
    row = {"words": ["a" * (n - 1) for n in sizes], "tags": ["B-X"] * len(sizes)}  # with its space, of n bytes
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    ids = [i for n in sizes for i in tokens.encode(" " + "a" * (n - 1))]
    found = list(Tag(("O", "B-X"), longest).examples([row], tokens))
    assert sum(tag != IGNORE for _, tags in found for tag in tags) == len(sizes)
    framed = list(windows(tokens.marks, ids, None, longest))
    assert all(len(each.ids) <= longest for each in framed)
    for token, (n, at) in zip(firsts, nearest(framed, firsts), strict=True):
        assert framed[n].ids[at] == ids[token]
        room = []
        for each in framed:
            end = each.first + each.tokens
            sides = [token - each.first] * (each.first > 0) + [end - 1 - token] * (end < len(ids))
            room.append(min(sides, default=10**9) if each.first <= token < end else -1)
        assert room[n] == max(room)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), words=st.integers(1, 5))
def test_the_likeliest_tags_are_the_best_of_all_that_are_allowed(seed: int, words: int) -> None:
    labels = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    scores = np.random.default_rng(seed).normal(size=(words, 5))

    def allowed(path: tuple[int, ...]) -> bool:
        names = ["O", *(labels[i] for i in path)]
        return all(b[0] != "I" or a[1:] == b[1:] for a, b in pairwise(names))

    best = max(filter(allowed, product(range(5), repeat=words)), key=lambda path: sum(scores[range(words), path]))
    assert likeliest(scores, labels).tolist() == list(best)


def test_a_text_is_split_into_words() -> None:
    text = "The U.S. won't—at 3,000.50 km/h—buy AT&T's 1996-08-22 e-mail... (O'Brien) 北京大学 हिन्दी! a_b 😀😀."
    found = [match[0] for match in WORD.finditer(text)]
    assert found == [
        *("The", "U.S.", "won't", "—", "at", "3,000.50", "km", "/", "h", "—", "buy", "AT&T's", "1996-08-22", "e-mail"),
        *("...", "(", "O'Brien", ")", "北", "京", "大", "学", "हिन्दी", "!", "a_b", "😀😀", "."),
    ]
    assert "".join(found) == "".join(text.split())


def test_a_tagger_learns_and_tells_where_spans_stand(folder: Path) -> None:
    about = json.loads((folder / "run" / "config.json").read_text())
    assert about["task"]["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert about["head"] == {"kind": "tags", "size": 5, "dropout": 0.1}
    figures = json.loads((folder / "run" / "evaluation.json").read_text())
    assert list(figures) == ["f1", "precision", "recall", "accuracy"]
    assert figures["f1"]["score"] == 1.0
    tagger = regard.load(folder / "run", bitwise=True)
    text = "  Tim  van\nDam saw New York."
    found = tagger.tag(text)
    assert [(span.text, span.label) for span in found.spans] == [("Tim  van\nDam", "PER"), ("New York", "LOC")]
    assert all(text[span.start : span.end] == span.text and 0 < span.probability < 1 for span in found.spans)
    assert found.words == ["Tim", "van", "Dam", "saw", "New", "York", "."]
    assert found.tags == ["B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC", "O"]
    several = tagger.tag(
        ["Bob saw Rome.", ["Bob", "saw", "Rome", "."], "", GivenWords.of(["Bob", "saw"]), Given("Bob")]
    )
    assert [each.tags for each in several[:2]] == [["B-PER", "O", "B-LOC", "O"]] * 2
    assert several[1].spans[1].start == 8  # of the words with a space between
    assert (several[2].spans, several[2].words) == ([], [])
    assert several[0] == tagger.tag("Bob saw Rome.")
    likely = found.spans[0].probability
    assert [s.label for s in tagger.tag(text, threshold=likely).spans].count("PER") == 1
    assert [s.label for s in tagger.tag(text, threshold=min(1.0, likely + 1e-9)).spans].count("PER") == 0
    with pytest.raises(ValueError, match="has no word 'Rome' after its first 3 characters"):
        tagger.tag([GivenWords("Bob saw", words=("Bob", "Rome"))])


def test_a_long_text_is_read_in_windows(folder: Path) -> None:
    tagger = regard.load(folder / "run")
    text = "Bob saw New York. " * 40
    found = tagger.tag(text)
    assert found.windows > 10
    assert [(span.text, span.label) for span in found.spans] == [("Bob", "PER"), ("New York", "LOC")] * 40
    assert [span.start for span in found.spans[::2]] == list(range(0, 720, 18))


def test_constraints_forbid_what_a_model_may_prefer(folder: Path) -> None:
    tagger = regard.load(folder / "run")
    with torch.no_grad():
        tagger.model.output.outer.bias[2] += 20.0  # I-LOC everywhere
    free, held = tagger.tag("Bob saw", constrained=False), tagger.tag("Bob saw")
    assert free.tags == ["I-LOC", "I-LOC"]
    assert [(span.label, span.text) for span in free.spans] == [("LOC", "Bob saw")]
    assert held.tags == ["B-LOC", "I-LOC"]


def test_a_resumed_run_is_the_same_model_bit_for_bit(folder: Path) -> None:
    path = str(folder / "tag.yaml")
    train(reading.load(path, ["train.steps=40"]), folder / "parts", name="tag", console=QUIET)
    train(reading.load(path), folder / "parts", name="tag", console=QUIET, resume=True)
    ours, theirs = (load_file(folder / name / "model.safetensors") for name in ("parts", "run"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_decoder_tags_too_and_the_largest_batch_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.batch_size.LARGEST", 512)
    small = ["model.preset=gpt-tiny", "model.layers=1", "model.d_model=16", "model.heads=2", "model.max_length=24"]
    recipe = reading.load(str(folder / "tag.yaml"), [*small, "train.steps=2", "train.batch_tokens=0"])
    assert train(recipe, folder / "decoder", name="tag", console=QUIET)
    assert reading.load(str(folder / "decoder" / "recipe.yaml")).train.batch_tokens == 512
    assert len(regard.load(folder / "decoder").tag("Bob saw Rome").tags) == 3


def test_what_cannot_be_learnt_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model.max_length = 24: it must hold the 128 tokens of data.max_length"):
        reading.load(str(folder / "tag.yaml"), ["data.max_length=128"])
    with pytest.raises(ValueError, match="the training sentences have no tag but O: say by `columns` where they are"):
        Tag().fitted([{"words": ["a"], "tags": ["O"]}])
