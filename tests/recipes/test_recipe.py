"""A recipe says what it means, survives being written down, and is refused in one line that says where and what."""

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text import PairFiles
from regard.data.tokenizers import TokensConfig
from regard.evaluation.translation import TOKENIZERS
from regard.models import storage
from regard.models.family import FAMILIES, build, configure, presets
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig
from regard.recipes import reading as module
from regard.recipes.reading import dump, load, schema, shipped
from regard.recipes.recipe import ModelConfig, Recipe
from regard.tasks.asks import DecodeConfig
from regard.tasks.translate import DataConfig, EvaluateConfig
from regard.training.config import TrainConfig
from regard.training.optimisers import OptimiserConfig
from regard.training.schedules import ScheduleConfig

GOOD = """\
description: a small one
data:
  corpus: tatoeba-en-es
model: {preset: tiny, dropout: 0.3, positions: rope}
train:
  minutes: 15
  schedule: {name: cosine, peak: 3e-3}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test stands in a folder with two shipped recipes of its own."""
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "quickstart.yaml").write_text(GOOD)
    (tmp_path / "shipped" / "files.yaml").write_text("data: {train: {tsv: pairs.tsv}}\ntrain: {epochs: 2}\n")
    (tmp_path / "shipped" / "README.md").write_text("not a recipe")
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str | bytes) -> str:
    Path("my.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return "my.yaml"


def refused(call: Callable[[], object]) -> str:
    """The one line by which a call is refused."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call()
    return str(caught.value)


def test_what_is_said_is_there_and_the_rest_has_defaults() -> None:
    assert load(write(GOOD)) == Recipe(
        description="a small one",
        data=DataConfig("tatoeba-en-es"),
        model=ModelConfig("tiny", {"dropout": 0.3, "positions": "rope"}),
        train=TrainConfig(minutes=15.0, schedule=ScheduleConfig("cosine", peak=0.003)),
    )


def test_a_model_is_its_preset_with_changes() -> None:
    expected = TransformerConfig.tiny(8000, dropout=0.3, positions="rope")
    assert load(write(GOOD)).model.build(8000) == expected
    assert ModelConfig().build(100) == TransformerConfig.small(100)
    with pytest.raises(ValueError, match=r"model\.pad comes from the tokens: leave it out"):
        ModelConfig("tiny", {"pad": 3})
    with pytest.raises(ValueError, match="no setting 'head': did you mean 'heads'"):
        ModelConfig("tiny", {"head": 3})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.clip=1e-3", 0.001),
        ("train.clip=3", 3.0),
        ("train.clip=.5", 0.5),
        ("train.batch_tokens=25_000", 25_000),
        ("train.batch_tokens=010", 10),
        ("train.compile=true", True),
        ("train.shards=null", None),
        ("train.shards=", None),
        ("train.schedule.peak=0.01", 0.01),
        ("train.optimiser={name: muon}", OptimiserConfig("muon")),
        ("train.optimiser.betas=[0.9, 0.95]", (0.9, 0.95)),
        ("data.languages=[no,on]", ("no", "on")),
        ("data.corpus='2016'", "2016"),
        ("data.corpus=2016-12-31", "2016-12-31"),
        ("data.corpus=y", "y"),
        ("data.corpus=1:30", "1:30"),
        ("data.corpus=a=b", "a=b"),
        ("description=''", ""),
    ],
)
def test_an_override_is_read_as_yaml_without_surprises(text: str, value: Any) -> None:
    found: Any = load(write(GOOD), [text])
    for key in text.partition("=")[0].split("."):
        found = getattr(found, key)
    assert (type(found), found) == (type(value), value)


def test_an_override_replaces_other_answers_to_its_question() -> None:
    train = load(write(GOOD), ["train.steps=100"]).train
    assert (train.steps, train.epochs, train.minutes) == (100, None, None)
    train = load(write(GOOD), ["train.steps=100", "train.epochs=1.5"]).train
    assert (train.steps, train.epochs, train.minutes) == (None, 1.5, None)
    train = load(write(GOOD), ["train.steps=null"]).train
    assert train.minutes == 15.0
    data = load(write(GOOD), ["data.train.source=a.en", "data.train.target=a.de"]).data
    assert data.corpus is None
    files = "data: {train: {tsv: a.tsv}, test: {tsv: b.tsv}}\ntrain: {steps: 1}\n"
    assert load(write(files), ["data.corpus=tatoeba-en-es"]).data == DataConfig("tatoeba-en-es")


def test_another_preset_keeps_the_changes_only_even_of_a_complete_recipe(folder: Path) -> None:
    complete = write(dump(load(write(GOOD))))
    big = ModelConfig("big", {"dropout": 0.3, "positions": "rope"})
    assert load(complete, ["model.preset=big"]).model == big
    # Four heads are tiny's own number, but here somebody asks for them.
    assert load(complete, ["model.heads=4", "model.preset=big"]).model.changes == {"positions": "rope", "heads": 4}


def test_paths_start_from_the_file_and_on_the_command_line_from_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder / "home"))
    (folder / "deep").mkdir()
    text = "data: {train: {source: a.en, target: ../a.de}, test: {jsonl: /abs.jsonl}}\ntrain: {steps: 1}\n"
    (folder / "deep" / "my.yml").write_text(text)
    data = load("deep/my.yml", ["data.valid.tsv=here.tsv"]).data
    assert data.train == PairFiles(source=str(folder / "deep/a.en"), target=str(folder / "deep/../a.de"))
    assert data.test == PairFiles(jsonl="/abs.jsonl")
    assert data.valid == PairFiles(tsv=str(folder / "here.tsv"))
    assert load("files").data.train == PairFiles(tsv=str(folder / "pairs.tsv"))
    home = load("files", ["data.train.tsv=~/pairs.tsv"]).data
    assert home.train == PairFiles(tsv=str(folder / "home" / "pairs.tsv"))


def test_sacrebleu_knows_every_way_to_tokenise() -> None:
    assert set(TOKENIZERS) <= set(sacrebleu.BLEU.TOKENIZERS)


def test_shipped_recipes_have_names_and_descriptions() -> None:
    assert shipped() == {"files": "", "quickstart": "a small one"}
    assert load("quickstart", ["decode.beam=1"]).decode.beam == 1


def test_what_comes_with_the_package_loads_and_has_a_description(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    bases = {"minilm": "bert-tiny", "smollm2": "gpt-tiny", "instruct": "gpt-tiny", "imdb-gpt": "llama-tiny"}
    bases |= {"flickr8k-clip": "clip-tiny", "glove": "bert-tiny"}
    for base, preset in bases.items():
        storage.save(build(configure(preset, ["layers=1"], vocabulary=9)), tmp_path / "runs" / base)
        (tmp_path / "runs" / base / storage.TEMPLATE).write_text("{{ messages }}")
    for name, description in shipped().items():
        assert load(name).description == description != ""


def test_the_papers_recipes_say_what_the_paper_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    table = {  # §5.1, §5.2, §6.1 and Table 3: pieces, model, steps, dropout, snapshots to average
        "wmt14-en-de-base": (37_000, (6, 6, 512, 2048, 8), 100_000, 0.1, 5),
        "wmt14-en-de-big": (37_000, (6, 6, 1024, 4096, 16), 300_000, 0.3, 20),
        "wmt14-en-fr-big": (32_000, (6, 6, 1024, 4096, 16), 300_000, 0.1, 20),
    }
    for name, (pieces, shape, steps, dropout, average) in table.items():
        recipe = load(name)
        c, m = recipe.train, recipe.model.build(recipe.tokens.size)
        assert (m.vocabulary, recipe.tokens.kind, recipe.tokens.dropout) == (pieces, "bpe", 0.0)
        assert (m.encoder_layers, m.decoder_layers, m.d_model, m.d_ff, m.heads) == shape
        assert (m.norm, m.positions, m.feed_forward, m.tie) == ("post", "sinusoidal", "relu", "all")
        assert (m.dropout, m.attention_dropout, m.feed_forward_dropout, m.stochastic_depth) == (dropout, 0, 0, 0)
        assert (c.steps, c.batch_tokens, c.smoothing, c.clip, c.ema) == (steps, 25_000, 0.1, 0.0, 0.0)
        assert (c.optimiser.name, c.optimiser.betas, c.optimiser.eps) == ("adam", (0.9, 0.98), 1e-9)
        assert (c.schedule.name, c.schedule.warmup) == ("paper", 4000)
        hours = 12 if steps == 100_000 else 84
        assert c.average == average
        assert c.snapshot_every == pytest.approx(steps / hours / 6, rel=0.02)  # every 10 minutes
        assert (recipe.decode.beam, recipe.decode.alpha, recipe.decode.extra) == (4, 0.6, 50)


KEYS = "description, task, data, tokens, model, changes, train, distil, decode, evaluate"
SHIPPED = "(`regard recipes` lists them; your own is a file that ends in .yaml)"
WANTED = "expected a whole number, got"
UNCLOSED = "while parsing a flow sequence, expected ',' or ']', but got '<stream end>'"
NO_TAGS = "a recipe has no anchors, aliases or tags (& * !): quote it, or write it out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"my.yaml: a recipe is a mapping with keys {KEYS}; the file is empty"),
        ("# only a comment\n", f"my.yaml: a recipe is a mapping with keys {KEYS}; the file is empty"),
        ("- data\n", f"my.yaml: a recipe is a mapping with keys {KEYS}; got ['data']"),
        ("data: {corpus: x}\n", "my.yaml: the section 'train' is missing"),
        # not YAML
        ("data:\n  corpus: x: y\n", "my.yaml:2: not YAML at column 12: mapping values are not allowed here"),
        ("data: [a\n", f"my.yaml:2: not YAML at column 1: {UNCLOSED}"),
        (
            "data:\n\tcorpus: x\n",
            "my.yaml:2: not YAML at column 1: while scanning for the next token, "
            "found character '\\t' that cannot start any token",
        ),
        (
            GOOD + "---\ndata: {}\n",
            "my.yaml:8: not YAML at column 1: expected a single document in the stream, but found another document",
        ),
        (GOOD + "evaluate: {tokenize: \a}\n", "my.yaml:8: not YAML: the character U+0007 may not be in it"),
        (b"data: x\ntrain: \xff\n", "my.yaml:2: this is not UTF-8 text: save it as UTF-8"),
        # YAML, but of no use here
        (GOOD + "train: {steps: 3}\n", "my.yaml:8: duplicate key 'train': keep one of the two"),
        (GOOD + "decode: {beam: 3, beam: 4}\n", "my.yaml:8: duplicate key 'beam': keep one of the two"),
        (GOOD + "? [decode]\n: 3\n", "my.yaml:8: a key is a name, as in `steps: 100`"),
        (GOOD + "decode: &a {beam: 3}\n", f"my.yaml:8: {NO_TAGS}"),
        (GOOD + "decode: *a\n", f"my.yaml:8: {NO_TAGS}"),
        (GOOD + "decode: !!python/object:os.system {}\n", f"my.yaml:8: {NO_TAGS}"),
        (GOOD + "decode: " + "[" * 10_000, "my.yaml:8: no part of a recipe lies as deep as this"),
        (
            GOOD + 'tokens: {kind: "\\ud800"}\n',
            "my.yaml:8: a text holds NUL or half a character: remove it",
        ),
        # unknown keys
        (GOOD + "evalaute: {}\n", "my.yaml:8: unknown key 'evalaute'; did you mean 'evaluate'?"),
        (GOOD + "7: {}\n", f"my.yaml:8: unknown key '7'; there are {KEYS}"),
        (GOOD + "<<: {}\n", f"my.yaml:8: unknown key '<<'; there are {KEYS}"),
        (GOOD + "decode:\n  baem: 4\n", "my.yaml:9: unknown key 'baem' in decode; did you mean 'beam'?"),
        (
            GOOD + "decode:\n  x: 4\n",
            "my.yaml:9: unknown key 'x' in decode; there are beam, best, alpha, penalty, patience, groups, "
            "diversity, extra, limit, shortest, block, repetition, ordered, sampling, split, stops",
        ),
        (
            GOOD.replace("peak", "paek"),
            "my.yaml:7: unknown key 'paek' in train.schedule; did you mean 'peak'?",
        ),
        (GOOD.replace("dropout", "drop_out"), "my.yaml:4: unknown key 'drop_out' in model; did you mean 'dropout'?"),
        (GOOD.replace("dropout: 0.3", "pad: 0"), "my.yaml:4: model.pad comes from the tokens: leave it out"),
        (
            "data: {train: {tvs: a}}\ntrain: {steps: 1}",
            "my.yaml:1: unknown key 'tvs' in data.train; did you mean 'tsv'?",
        ),
        ("dta: {corpus: x}\ntrain: {steps: 1}", "my.yaml:1: unknown key 'dta'; did you mean 'data'?"),
        # ill-typed values
        (GOOD + "decode:\n  beam: many\n", f"my.yaml:9: decode.beam: {WANTED} 'many'"),
        (GOOD + "decode:\n  beam: '4'\n", f"my.yaml:9: decode.beam: {WANTED} '4'"),
        (GOOD + "decode:\n  beam: true\n", f"my.yaml:9: decode.beam: {WANTED} true"),
        (GOOD + "decode:\n  beam: 3.5\n", f"my.yaml:9: decode.beam: {WANTED} 3.5"),
        (GOOD + "decode:\n  beam: 4.0\n", f"my.yaml:9: decode.beam: {WANTED} 4.0"),
        (GOOD + "decode:\n  beam:\n", f"my.yaml:9: decode.beam: {WANTED} nothing"),
        (GOOD + "decode:\n  beam: [4]\n", f"my.yaml:9: decode.beam: {WANTED} [4]"),
        (GOOD + "decode:\n  beam: {a: 1}\n", f"my.yaml:9: decode.beam: {WANTED} a mapping"),
        (GOOD + "decode:\n  alpha: .nan\n", "my.yaml:9: decode.alpha: expected a number, got '.nan'"),
        (GOOD + "decode:\n  alpha: 1e999\n", "my.yaml:9: decode.alpha: expected a number, got inf"),
        (GOOD + "decode:\n  alpha: true\n", "my.yaml:9: decode.alpha: expected a number, got true"),
        (GOOD + "decode:\n", "my.yaml:8: decode: expected a mapping (key: value), got nothing"),
        (GOOD + "decode: [beam]\n", "my.yaml:8: decode: expected a mapping (key: value), got ['beam']"),
        (GOOD + "evaluate: {lowercase: yes}\n", "my.yaml:8: evaluate.lowercase: expected true or false, got 'yes'"),
        (GOOD + "evaluate: {lowercase: 1}\n", "my.yaml:8: evaluate.lowercase: expected true or false, got 1"),
        (GOOD + "tokens: {kind: 13}\n", "my.yaml:8: tokens.kind: expected text, got 13; put it in quotes"),
        (GOOD.replace("0.3", "high"), "my.yaml:4: model.dropout: expected a number, got 'high'"),
        (GOOD.replace("tiny", "3"), "my.yaml:4: model.preset: expected text, got 3; put it in quotes"),
        (GOOD.replace("3e-3", "'3e-3'"), "my.yaml:7: train.schedule.peak: expected a number, got '3e-3'"),
        ("data: a.tsv\ntrain: {steps: 1}", "my.yaml:1: data: expected a mapping (key: value), got 'a.tsv'"),
        # values that their section refuses
        (GOOD + "decode:\n  beam: 0\n", "my.yaml:9: decode.beam = 0: it must be at least 1"),
        (GOOD + "decode:\n  alpha: -1\n", "my.yaml:9: decode.alpha = -1.0: it must be at least 0"),
        (
            GOOD + "  epochs: 2\n",
            "my.yaml:5: train: give exactly one of steps, epochs, minutes; got epochs and minutes",
        ),
        (GOOD + "  clip: -1\n", "my.yaml:8: train.clip = -1.0: it must be at least 0"),
        (
            GOOD.replace("tiny", "huge"),
            "my.yaml:4: model.preset = 'huge': choose " + " or ".join(", ".join(presets()).rsplit(", ", 1)),
        ),
        (GOOD.replace("preset: tiny", "preset: [tiny]"), "my.yaml:4: model.preset: expected text, got ['tiny']"),
        ("data: {}\ntrain: {steps: 1}", "my.yaml:1: data: give exactly one of corpus (a name) and train (your files)"),
        (
            "data: {corpus: x, max_length: 99}\nmodel: {max_length: 99, positions: learned}\ntrain: {steps: 1}",
            "my.yaml:2: model.max_length = 99: what is learned of each position must reach further "
            "than data.max_length = 99",
        ),
        (
            GOOD + "evaluate: {tokenize: 14a}",
            "my.yaml:8: evaluate.tokenize = '14a': choose " + ", ".join(TOKENIZERS[:-1]) + " or none",
        ),
    ],
)
def test_a_mistake_in_a_file_is_told_in_one_line(text: str | bytes, message: str) -> None:
    assert refused(lambda: load(write(text))) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.stpes=3", "unknown key 'stpes' in train; did you mean 'steps'?"),
        ("trian.steps=3", "unknown key 'trian'; did you mean 'train'?"),
        ("=3", f"unknown key ''; there are {KEYS}"),
        ("train.steps=many", "train.steps: expected a whole number, got 'many'"),
        ("train.steps='8000'", "train.steps: expected a whole number, got '8000'"),
        ("train.steps=1 000", "train.steps: expected a whole number, got '1 000'"),
        ("train=5", "train: expected a mapping (key: value), got 5"),
        ("model.dropout.rate=0.3", "model.dropout: expected a number, got a mapping"),
        ("data.languages=[en,de,fr]", "data.languages: expected [text, text], got ['en', 'de', 'fr']"),
        ("data.languages=[en]", "data.languages: expected [text, text], got ['en']"),
        ("data.languages=[en,1]", "data.languages: expected [text, text], got ['en', 1]"),
        ("data.languages=en", "data.languages: expected [text, text], got 'en'"),
        ("data.corpus=2016", "data.corpus: expected text, got 2016; put it in quotes"),
        ("data.corpus=*x", NO_TAGS),
        ("data.languages=[en", f"not YAML at column 4: {UNCLOSED}"),
        ("data.hold_out=0", "data.hold_out = 0: it must be at least 1"),
        ("data.train={tsv: a.tsv, columsn: [0, 1]}", "unknown key 'columsn' in data.train; did you mean 'columns'?"),
        ("train.clip=-1", "train.clip = -1.0: it must be at least 0"),
        (f"tokens.size={10**20}", f"tokens.size = {10**20} is too large: it is at most 16,777,216"),
        (f"train.batch_tokens={10**20}", f"train.batch_tokens = {10**20}: it must be below 2³¹"),
        ("model.vocabulary=8000", "model.vocabulary comes from the tokens: leave it out"),
        ("model.preset=huge", "model.preset = 'huge': choose " + " or ".join(", ".join(presets()).rsplit(", ", 1))),
    ],
)
def test_a_mistake_in_an_override_looks_alike(text: str, message: str) -> None:
    complete = dump(load(write(GOOD)))
    assert refused(lambda: load(write(GOOD), [text])) == f"override {text}: {message}"
    assert refused(lambda: load(write(complete), [text])) == f"override {text}: {message}"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("train.optimiser.name=adma", "train.optimiser: "),
        ("train.schedule.name=cosin", "train.schedule: "),
        ("train.schedule.warmup=0", "train.schedule.warmup = 0: "),
        ("model.positions=ropes", "model.positions = "),
        ("model.heads=5", "model: "),
        ("tokens.kind=bpx", ""),
        ("tokens.dropout=2", ""),
    ],
)
def test_what_a_section_refuses_is_told_with_the_override_behind_it(text: str, start: str) -> None:
    complete = dump(load(write(GOOD)))
    assert refused(lambda: load(write(GOOD), [text])).startswith(f"override {text}: {start}")
    assert refused(lambda: load(write(complete), [text])).startswith(f"override {text}: {start}")


def test_the_first_mistake_of_the_file_comes_first() -> None:
    text = "train: {steps: 3}\ny: 1\nx: 1\n"
    assert refused(lambda: load(write(text), ["decode.beam=x"])) == f"my.yaml:2: unknown key 'y'; there are {KEYS}"


def test_an_override_has_a_value() -> None:
    message = "override 'train.steps': write section.key=value, as in train.steps=1000"
    assert refused(lambda: load(write(GOOD), ["train.steps"])) == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikstart", f"there is no recipe 'quikstart': did you mean 'quickstart'? {SHIPPED}"),
        ("mine", f"there is no recipe 'mine': there are files, quickstart {SHIPPED}"),
        ("mine.yaml", f"there is no file 'mine.yaml': there are files, quickstart {SHIPPED}"),
        ("runs/quickstart.yml", f"there is no file 'runs/quickstart.yml': did you mean 'quickstart'? {SHIPPED}"),
    ],
)
def test_a_recipe_that_is_not_there(name: str, message: str) -> None:
    assert refused(lambda: load(name)) == message


def test_what_is_no_recipe_by_its_size_or_kind_is_not_read(folder: Path) -> None:
    start = time.perf_counter()
    assert refused(lambda: load(write("#" * 60_000_000))) == (
        "my.yaml has 60,000,000 bytes: what it should be has at most 65,536"
    )
    assert "encoder_layers = 4294967296: it must be at most 4,096" in refused(
        lambda: load(write(GOOD.replace("dropout: 0.3", "encoder_layers: 4294967296")))
    )
    os.mkfifo("pipe.yaml")
    assert refused(lambda: load("pipe.yaml")) == "pipe.yaml is no file, but a pipe or a device: name a file"
    assert time.perf_counter() - start < 2


TRAPS = ["no", "1e-3", "089", "1_000", "~", "null", "True", "0x1F", "1:30", "=", "<<", "- a", "a: b", "#", " x ", "é\n"]
LINES = ["\x85", "a\u2028", "\u2029 b", "a\r\nb"]
words = st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.sampled_from([*TRAPS, *LINES])
counts = st.integers(1, 10**9)
positive = st.floats(0, 1e300, exclude_min=True)
shares = st.floats(0, 1, exclude_max=True)
paths = st.text("ab/ é:#'", min_size=1).map(lambda name: str(Path("/", name)))
pairs = st.one_of(
    st.builds(PairFiles, source=paths, target=paths),
    st.builds(PairFiles, tsv=paths, columns=st.just((3, 1))),
    st.builds(PairFiles, jsonl=paths, keys=st.tuples(words, words).filter(lambda keys: keys[0] != keys[1])),
)
recipes = st.builds(
    Recipe,
    description=words,
    data=st.builds(DataConfig, corpus=words, test=st.none() | pairs, languages=st.tuples(words, words), limit=counts)
    | st.builds(DataConfig, train=pairs, valid=st.none() | pairs, hold_out=counts),
    tokens=st.builds(TokensConfig, size=st.integers(300, 10**6), lowercase=st.booleans(), dropout=shares),
    model=st.builds(
        ModelConfig,
        st.sampled_from(["tiny", "shallow", "small", "base", "big"]),
        st.fixed_dictionaries(
            {},
            optional={
                "dropout": shares,
                "positions": st.sampled_from(["rope", "alibi", "sinusoidal"]),
                "d_ff": counts,
                "kv_heads": st.sampled_from([None, 1, 2]),
                "scale": st.none() | positive,
                "norm": st.sampled_from(["pre", "post"]),
                "bias": st.booleans(),
            },
        ),
    ),
    train=st.builds(
        TrainConfig,
        epochs=positive,
        seed=st.integers(0, 2**63 - 1),
        shards=st.none() | counts,
        optimiser=st.builds(OptimiserConfig, betas=st.tuples(shares, shares)),
        schedule=st.builds(ScheduleConfig, peak=positive, warmup=counts),
        precision=st.sampled_from(["fp32", "bf16"]),
        ema=shares,
        compile=st.booleans(),
    ),
    decode=st.builds(DecodeConfig, beam=counts, alpha=positive, extra=counts),
    evaluate=st.builds(EvaluateConfig, st.sampled_from(["13a", "none"]), st.booleans()),
)


@given(recipe=recipes)
@settings(max_examples=40, deadline=None)
def test_a_recipe_survives_being_written_down(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("written") / "recipe.yaml"
    text = dump(recipe)
    file.write_text(text, "utf-8")
    assert load(str(file)) == recipe
    # PyYAML's own reader, which knows another YAML, understands the same.
    other = yaml.safe_load(text)
    assert other["description"] == recipe.description
    assert tuple(other["data"]["languages"]) == recipe.data.languages
    assert other["train"]["epochs"] == recipe.train.epochs


@pytest.mark.parametrize("text", [*TRAPS, *LINES])
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    recipe = dataclasses.replace(load("quickstart"), description=text, data=DataConfig("x", languages=(text, text)))
    assert load(write(dump(recipe))) == recipe


def test_what_is_written_down_is_complete() -> None:
    def keys(values: dict[str, Any]) -> set[str]:
        inner = {f"{key}.{k}" for key, value in values.items() if isinstance(value, dict) for k in keys(value)}
        return inner | values.keys()

    recipe = load("files")
    written = keys(yaml.safe_load(dump(recipe)))
    model = {f"model.{f.name}" for f in dataclasses.fields(TransformerConfig)}
    model -= {"model.vocabulary", "model.source_vocabulary", "model.pad"}
    expected = keys(dataclasses.asdict(recipe)) - {"model.changes", "model.base", "model.sees"}
    assert written == expected | model
    assert "columns: [0, 1]" in dump(recipe)


def test_the_preset_says_which_keys_a_model_has() -> None:
    recurrent = GOOD.replace("preset: tiny, dropout: 0.3, positions: rope", "preset: lstm, dropout: 0.3, cell: gru")
    recipe = load(write(recurrent))
    assert recipe.model.build(8000) == RecurrentConfig.lstm(8000, dropout=0.3, cell="gru")
    written = dump(recipe)
    assert "cell: gru" in written
    assert "positions" not in written
    assert load(write(written)) == recipe
    unknown = recurrent.replace("cell", "sell")
    assert refused(lambda: load(write(unknown))) == "my.yaml:4: unknown key 'sell' in model; did you mean 'cell'?"
    wrong = recurrent.replace("gru", "7")
    assert refused(lambda: load(write(wrong))) == "my.yaml:4: model.cell: expected text, got 7; put it in quotes"
    # Another family: what the file says of the model was about the first one; what is asked for beside it stays.
    other = load(write(GOOD), ["model.d_model=64", "model.preset=convs2s"])
    assert other.model == ModelConfig("convs2s", {"d_model": 64})
    assert load(write(GOOD), ["model.preset=small"]).model == ModelConfig(
        "small", {"dropout": 0.3, "positions": "rope"}
    )


def test_the_schema_knows_every_key_and_says_what_it_is_for() -> None:
    whole = schema()
    assert whole["required"] == ["data", "train"]
    assert list(whole["properties"]) == KEYS.split(", ")
    ways = whole["properties"]["model"]["oneOf"]
    models, begun = (dict(zip(FAMILIES, some, strict=True)) for some in (ways[: len(FAMILIES)], ways[len(FAMILIES) :]))
    assert all("from" in each["required"] and "preset" not in each["properties"] for each in begun.values())
    sections = {**whole["$defs"], **models, "Recipe": whole}
    assert {"DataConfig", "PairFiles", "OptimiserConfig", "ScheduleConfig"} < sections.keys()
    for name, section in sections.items():
        assert section["additionalProperties"] is False, name
    for name in ("Recipe", "DataConfig", "TrainConfig", "DecodeConfig", "EvaluateConfig"):
        assert all(setting["description"] for setting in sections[name]["properties"].values()), name
    model = models["transformer"]["properties"]
    assert model["heads"]["type"] == "integer"
    assert model["norm"]["description"] == "or pre"
    assert "vocabulary" not in model
    assert models["recurrent"]["properties"]["cell"]["description"] == "rnn, gru, lstm, linear"
    assert models["recurrent"]["properties"]["preset"]["enum"] == ["rnn", "gru", "lstm", "linear-rnn"]
    assert [name for name, section in models.items() if "preset" not in section.get("required", [])] == ["transformer"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "train: give exactly one of steps, epochs, minutes; got none"),
        ({"steps": 1, "minutes": 1.0}, "train: give exactly one of steps, epochs, minutes; got steps and minutes"),
        ({"steps": 0}, "train.steps = 0: it must be at least 1"),
        ({"epochs": 0.0}, "train.epochs = 0.0: it must be above 0"),
        ({"minutes": float("inf")}, "train.minutes = inf: it must be finite"),
        *(
            ({"steps": 1, name: 0}, f"train.{name} = 0: it must be at least 1")
            for name in (
                "validate_sentences",
                "accumulate",
                "shards",
                "snapshot_every",
                "validate_every",
                "keep",
                "patience",
            )
        ),
        ({"steps": 1, "checkpoint_every": 0}, "train.checkpoint_every = 0: it must be at least 1"),
        ({"steps": 1, "checkpoint_minutes": 0.0}, "train.checkpoint_minutes = 0.0: it must be above 0"),
        ({"steps": 1, "timeout_minutes": 0.0}, "train.timeout_minutes = 0.0: it must be above 0"),
        ({"steps": 1, "seed": -1}, "train.seed = -1: it lies in 0..2⁶³-1"),
        ({"steps": 1, "seed": 2**63}, f"train.seed = {2**63}: it lies in 0..2⁶³-1"),
        ({"steps": 1, "smoothing": 1.0}, "train.smoothing = 1.0: it lies in [0, 1)"),
        ({"steps": 1, "ema": -0.1}, "train.ema = -0.1: it lies in [0, 1)"),
        ({"steps": 1, "clip": float("nan")}, "train.clip = nan: it must be at least 0"),
        ({"steps": 1, "average": -1}, "train.average = -1: it must be at least 0"),
        ({"steps": 1, "batch_tokens": -1}, "train.batch_tokens = -1: it must be at least 0"),
        ({"steps": 1, "precision": "fp8"}, "train.precision = 'fp8': choose fp32, bf16 or fp16"),
        ({"steps": 1, "recompute": "all"}, "train.recompute = 'all': choose nothing, feed_forward or layers"),
        ({"steps": 1, "distributed": "dp"}, "train.distributed = 'dp': choose ddp or fsdp"),
    ],
)
def test_training_refuses_what_makes_no_sense(changes: dict[str, Any], message: str) -> None:
    assert refused(lambda: TrainConfig(**changes)) == message


def test_the_edges_make_sense() -> None:
    TrainConfig(steps=1, clip=0.0, smoothing=0.0, ema=0.0, average=0, batch_tokens=0, seed=0, shards=1, keep=1)
    TrainConfig(epochs=0.01, seed=2**63 - 1, precision="fp16", recompute="layers", distributed="fsdp")


def test_scores_that_an_older_regard_has_written_are_no_setting_and_read_over() -> None:
    recipe = load(write(GOOD + "decode: {beam: 2, scores: false}\n"), ["decode.scores=true"])
    assert recipe.decode == DecodeConfig(beam=2)
    assert "scores" not in dump(recipe)
    reads = "task: {name: classify}\ndata: {train: {tsv: a.tsv}}\nmodel: {preset: bert-tiny}\ntrain: {steps: 1}\n"
    assert "unknown key 'scores' in decode" in refused(lambda: load(write(f"{reads}decode: {{scores: true}}\n")))
