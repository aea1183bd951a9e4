"""What is loaded: valid files, how each is changed, and the loader."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

from regard.adaptation.prune import prune
from regard.api import told
from regard.convert.foreign import read as read_huggingface
from regard.convert.foreign import write as write_huggingface
from regard.convert.readers import opened
from regard.convert.source import Source
from regard.core.outputs import HeadConfig
from regard.core.quantised import quantise
from regard.data.lexicon import Shortlist
from regard.data.tokenizers import KINDS, Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.recipes import reading as recipes
from regard.training.checkpoints import FILES, MANIFEST, Snapshots, average
from regard.training.config import TrainConfig
from regard.training.loop import Learner
from regard.training.objectives import NextToken
from regard.training.optimisers import OptimiserConfig
from regard.training.run import Trainer
from tests.convert import test_gguf, test_llama2c
from tests.fuzz.mutations import Draw, at_random, elsewise, other_json, other_tensors

Files = dict[str, bytes]
LINES = ["the cat sat on the mat, and the other cat sat on the other mat", "a cat that sits on a mat ☕"] * 3
SMALL = ["encoder_layers=1", "decoder_layers=1", "d_model=8", "dropout=0"]
PRESETS = {
    "tiny": ["heads=2", "d_ff=8", "positions=learned", "max_length=20"],
    "small": ["heads=2", "d_ff=8", "positions=shaw"],
    "base": ["heads=2", "d_ff=8", "positions=alibi", "normaliser=topk:2", "tie=none"],
    "shallow": ["heads=2", "d_ff=8", "self_attention=window:2", "positions=rope"],
    "big": ["heads=2", "d_ff=8", "self_attention=linformer:4", "decoder_self_attention=full", "max_length=30"],
    "lstm": [],
    "linear-rnn": ["heads=2"],
    "convs2s": [],
    "bytenet": [],
}
RECIPE = """
description: all of it
data: {train: {source: a.en, target: a.de}, valid: {tsv: b.tsv, columns: [1, 0]}, languages: [en, de], max_length: 99}
tokens: {kind: bpe, size: 400, dropout: 0.1}
model: {preset: tiny, heads: 2, positions: rope, dropout: 0.3}
train: {steps: 9, optimiser: {name: adam, betas: [0.9, 0.98]}, schedule: {name: linear, peak: 1e-3}, average: 2}
decode: {beam: 2}
evaluate: {tokenize: 13a}
"""


def files_in(directory: Path) -> Files:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def made(write: Callable[[Path], object]) -> Files:
    """The files that a function writes into a directory."""
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        return files_in(Path(directory))


@cache
def models() -> list[Files]:
    def one(name: str, int8: bool) -> Callable[[Path], None]:
        def write(directory: Path) -> None:
            torch.manual_seed(0)
            model = build(configure(name, [*SMALL, *PRESETS[name]], vocabulary=11))
            if name == "small":
                model = prune(model, {"encoder.layers.0.self_attention": [0]})
            storage.save(quantise(model) if int8 else model, directory)

        return write

    return [made(one(name, int8=name == "shallow")) for name in PRESETS]


def load_model(directory: Path) -> None:
    """Load, and compute something."""
    model: Any = storage.load(directory)
    with torch.no_grad():
        model(torch.tensor([[1, 2, 0]]), torch.tensor([[1, 2]]))


@cache
def tokenizers() -> list[Files]:
    def one(kind: str) -> Callable[[Path], None]:
        size = {"bpe": 280, "unigram": 282, "wordpiece": 40}.get(kind, 0)
        return lambda directory: Tokenizer.learn(TokensConfig(kind, size), LINES).save(directory / "tokenizer.json")

    own = [made(one(kind)) for kind in KINDS]
    around = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    imported = json.loads(own[1]["tokenizer.json"]) | {"post_processor": around}
    return [*own, {"tokenizer.json": json.dumps(imported).encode()}]


def load_tokenizer(directory: Path) -> None:
    tokens = Tokenizer.load(directory / "tokenizer.json")
    tokens.decode(tokens.encode("the cat, ☕ <s> a</s>"))


@cache
def shortlists() -> list[Files]:
    few = Shortlist(np.array([0, 0, 1, 3]), np.array([1, 0, 2], np.int32), np.array([0], np.int32))
    return [made(few.save)]


def other_recipe(data: bytes, draw: Draw) -> bytes:
    if draw(st.integers(0, 3)) == 0:
        return at_random(data, draw)
    return str(yaml.dump(elsewise(yaml.safe_load(data), draw), allow_unicode=True)).encode("utf-8", "replace")


def trainer(directory: Path) -> Trainer:
    torch.manual_seed(0)
    model = build(configure("tiny", [*SMALL, "heads=2", "d_ff=8"], vocabulary=11))
    config = TrainConfig(steps=3, shards=1, ema=0.9, optimiser=OptimiserConfig("muon"))
    return Trainer(
        Learner(NextToken(model, 0.1), lambda step: 1e-3, config), lambda position: iter(()), directory, total=3
    )


@cache
def checkpoints() -> list[Files]:
    def write(directory: Path) -> None:
        from regard.data.batching import collate

        run = trainer(directory)
        run.learner.step([collate([([3, 4, 5], [5, 4, 3])])], 4)
        list(run._save())

    return [made(write)]


def forged(files: Files, name: str, changed: bytes) -> Files:
    """The files of a checkpoint with one of them changed, and a manifest that says so."""
    folder = name.rpartition("/")[0]
    files = files | {name: changed}
    if name.endswith(MANIFEST):
        return files
    sums = {file: files[f"{folder}/{file}"] for file in FILES}
    entries = {file: {"size": len(x), "sha256": hashlib.sha256(x).hexdigest()} for file, x in sums.items()}
    return files | {f"{folder}/{MANIFEST}": json.dumps({"format": 1, "files": entries}, indent=2).encode()}


@cache
def snapshots() -> list[Files]:
    return [made(lambda directory: Snapshots(directory).save(3, {"w": torch.ones(2, 3), "b": torch.ones(())}))]


def named_by_content(files: Files, name: str, changed: bytes) -> Files:
    return {f"step-00000003-{hashlib.sha256(changed).hexdigest()[:16]}.safetensors": changed}


@cache
def huggingface() -> list[Files]:
    tokens = Tokenizer.learn(TokensConfig("bpe", 280), LINES)

    def written(preset: str, settings: list[str], head: HeadConfig | None, task: dict[str, Any]) -> Files:
        torch.manual_seed(0)
        config = configure(preset, [*settings, "heads=2", "d_ff=8"], vocabulary=len(tokens))
        return made(lambda directory: write_huggingface(Source(build(config, head), tokens, task), directory))

    alone = ["layers=1", "d_model=8", "dropout=0"]
    labels = {"labels": ["a", "b"], "kind": "several"}
    return [
        written("tiny", SMALL, None, {}),
        written("bert-tiny", alone, HeadConfig("classes", 2, hidden="tanh"), labels),
        written("bert-tiny", alone, HeadConfig("vector", pool="mean"), {}),
        written("llama-tiny", [*alone, "rope_scaling=llama3:8,1,4,8192"], None, {}),
        written("t5-small", SMALL, None, {}),
    ]


@cache
def others() -> list[Files]:
    rust = test_gguf.learnt()
    tensors = test_gguf.packed(test_gguf.llama(rust.get_vocab_size()), test_gguf.in_eight_bits)
    return [
        {"toy.gguf": test_gguf.gguf(test_gguf.told(rust), tensors)},
        {"model.bin": test_llama2c.model(), "tokenizer.bin": test_llama2c.tokenizer()},
    ]


def load_other(directory: Path) -> None:
    with opened(directory) as (theirs, tensors):
        read_huggingface(theirs, tensors)


def replaced(files: Files, name: str, changed: bytes) -> Files:
    return files | {name: changed}


class Target(NamedTuple):
    """Files, one of which is changed, and what loads them."""

    files: Callable[[], list[Files]]
    changed: dict[str, Callable[[bytes, Draw], bytes]]  # by the ends of their names
    load: Callable[[Path], object]
    together: Callable[[Files, str, bytes], Files] = replaced


TARGETS = {
    "config": Target(models, {"config.json": other_json}, load_model),
    "weights": Target(models, {"model.safetensors": other_tensors}, load_model),
    "tokenizer": Target(tokenizers, {"tokenizer.json": other_json}, load_tokenizer),
    "shortlist": Target(shortlists, {".safetensors": other_tensors}, Shortlist.load),
    "recipe": Target(
        lambda: [{"r.yaml": RECIPE.encode()}], {"r.yaml": other_recipe}, lambda d: recipes.load(f"{d}/r.yaml")
    ),
    "decode": Target(lambda: [{"decode.json": b'{"beam": 3}'}], {"": other_json}, lambda d: told(d)),
    "checkpoint": Target(
        checkpoints, {".json": other_json, ".safetensors": other_tensors}, lambda d: trainer(d).resume(), forged
    ),
    "damaged checkpoint": Target(checkpoints, {"": at_random}, lambda d: trainer(d).resume()),
    "snapshot": Target(snapshots, {"": other_tensors}, lambda d: average(Snapshots(d).paths()), named_by_content),
    "others": Target(others, {"": at_random}, load_other),
    "import": Target(huggingface, {".json": other_json, ".safetensors": other_tensors}, read_huggingface),
}
