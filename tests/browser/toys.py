"""A small language pair and a model that has really learned it: adjectives change places, so heads look across."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.data.batching import Batch, collate
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.models.transformer import TransformerConfig
from regard.studies.atlas import make_atlas
from regard.training.loop import fit
from regard.training.schedules import ScheduleConfig, schedule

NOUNS = {"dog": "perro", "cat": "gato", "book": "libro", "boy": "chico", "tree": "árbol", "train": "tren"}
ADJECTIVES = {"red": "rojo", "big": "grande", "old": "viejo", "happy": "contento", "beautiful": "hermoso"}
VERBS = {"sees": "ve", "has": "tiene", "wants": "quiere", "forgets": "olvida"}
ARTICLES = {"the": "el", "a": "un"}
STEPS, ROWS = 220, 32


def phrase(chance: random.Random) -> tuple[str, str]:
    article, noun = chance.choice(list(ARTICLES.items())), chance.choice(list(NOUNS.items()))
    if chance.random() < 0.4:
        return f"{article[0]} {noun[0]}", f"{article[1]} {noun[1]}"
    adjective = chance.choice(list(ADJECTIVES.items()))
    return f"{article[0]} {adjective[0]} {noun[0]}", f"{article[1]} {noun[1]} {adjective[1]}"


def sentence(chance: random.Random) -> tuple[str, str]:
    """A sentence and its translation: `the red dog sees a book.`, `el perro rojo ve un libro.`"""
    subject, verb, thing = phrase(chance), chance.choice(list(VERBS.items())), phrase(chance)
    return f"{subject[0]} {verb[0]} {thing[0]}.", f"{subject[1]} {verb[1]} {thing[1]}."


def transformer(vocabulary: int) -> TransformerConfig:
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "d_ff": 128, "heads": 4}
    return TransformerConfig.tiny(vocabulary, norm="pre", dropout=0.0, **shape)


def trained(directory: Path, config: Callable[[int], Any] = transformer, steps: int = STEPS) -> Path:
    """The directory of a model that was trained here and now, as `config` of a vocabulary says."""
    chance = random.Random(1)
    pairs = [sentence(chance) for _ in range(STEPS * ROWS)]
    # Few sub-words: some words are whole, some are two or three pieces.
    tokenizer = Tokenizer.learn(TokensConfig(size=372), [line for pair in pairs[:2_000] for line in pair])
    tokenizer.save(directory / "tokenizer.json")
    ids = [tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1)]
    rows = list(zip(*ids, strict=True))
    torch.manual_seed(0)
    model = build(config(len(tokenizer)))
    batches = (collate(rows[i : i + ROWS]) for i in range(0, steps * ROWS, ROWS))
    for _ in fit(model, batches, schedule(ScheduleConfig("linear", peak=4e-3, warmup=40), total=STEPS), smoothing=0.0):
        pass
    storage.save(model, directory)
    (directory / "recipe.yaml").write_text("data: {corpus: tatoeba-en-es}\ntrain: {steps: 1}\ndecode: {beam: 1}\n")
    return directory


def storyteller(directory: Path, steps: int = 120) -> Path:
    """The directory of a language model that has learned the first of the two languages."""
    chance = random.Random(1)
    texts = [sentence(chance)[0] for _ in range(steps * ROWS)]
    tokenizer = Tokenizer.learn(TokensConfig(size=310), texts[:1_000])
    tokenizer.save(directory / "tokenizer.json")
    torch.manual_seed(0)
    changes = ["layers=2", "d_model=64", "heads=4", "max_length=64", "dropout=0"]
    model = build(configure("gpt-tiny", changes, vocabulary=len(tokenizer)))
    ids = tokenizer.encode_batch(texts)
    rows = (collate([([], each) for each in ids[i : i + ROWS]]) for i in range(0, len(ids), ROWS))
    batches = (Batch({"tokens": row["target"], "labels": row["labels"]}, row.count) for row in rows)
    for _ in fit(model, batches, schedule(ScheduleConfig("linear", peak=4e-3, warmup=20), total=steps), smoothing=0.0):
        pass
    storage.save(model, directory, storage.Purpose({"name": "generate", "block": 32}, {"limit": 20, "extra": 12}))
    (directory / "text.txt").write_text("".join(f"{text}\n\n" for text in texts[:40]), "utf-8")
    return directory


def damaged(directory: Path, of: Path) -> Path:
    """A second model for the same tokens: the first without the cross-attention of its last layer."""
    model = storage.load(of)
    with torch.no_grad():
        model.get_parameter("decoder.layers.1.cross_attention.sublayer.output.weight").zero_()
    storage.save(model, directory)
    for name in ("tokenizer.json", "recipe.yaml"):
        (directory / name).write_bytes((of / name).read_bytes())
    return directory


def studied(directory: Path) -> None:
    """Make the head atlas of a model, on a few sentences."""
    chance = random.Random(2)
    pairs = [sentence(chance) for _ in range(24)]
    for side, name in enumerate(("text.en", "text.es")):
        (directory / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    make_atlas(directory, directory / "text.en", directory / "text.es", ablate=False, prune=False)
