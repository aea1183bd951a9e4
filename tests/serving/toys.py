"""A model for the explorer's tests that has learned nothing, but is sure of itself."""

from pathlib import Path
from typing import Any

import torch

from regard.api import Translator
from regard.data.tokenizers import UNK, Tokenizer, TokensConfig
from regard.data.vocabulary import MARKS
from regard.models import storage
from regard.models.family import build, configure
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.asks import DecodeConfig
from tests.adaptation.models import taught

LINES = ["a dog runs", "two men sit on a bench", "a woman reads.", "the man in the hat looks at a dog, don't ☕ 中文"]
RECIPE = (
    "data: {corpus: tatoeba-en-es}\ntokens: {kind: bpe, size: 290}\ntrain: {steps: 1}\ndecode: {extra: 6, beam: 3}\n"
)
ENCODER, CROSS = "encoder.layers.0.self_attention", "decoder.layers.1.cross_attention"


def tokenizer() -> Tokenizer:
    return Tokenizer.learn(TokensConfig(size=290), LINES * 3)


def model(seed: int = 3, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 32, "heads": 4, **changes}
    made = Transformer(TransformerConfig.tiny(290, **shape)).eval()
    made.output.weight.data *= 4.0
    return made


def translator(seed: int = 3, **changes: Any) -> Translator:
    return Translator(model(seed, **changes), tokenizer(), DecodeConfig(extra=6, beam=3), engine="torch")


def writer(path: Path, template: str | None = None, **changes: Any) -> Path:
    """A directory of a language model of characters that has learned nothing, either."""
    tokens = Tokenizer.learn(TokensConfig("char", size=0), LINES)
    torch.manual_seed(4)
    settings = {"layers": 2, "d_model": 32, "heads": 4, "max_length": 128, **changes}
    config = configure("gpt-tiny", [f"{name}={value}" for name, value in settings.items()], vocabulary=len(tokens))
    made: Any = build(config)
    for matrix in made.parameters():  # so that what it writes is not one letter again and again
        matrix.data *= 3.0
    made.output.weight.data[[*MARKS[:2], UNK]] = 0.0  # nor anything that is no text
    storage.save(made, path, storage.Purpose({"name": "generate", "block": 64}, {"limit": 40}))
    tokens.save(path / "tokenizer.json")
    if template is not None:
        (path / storage.TEMPLATE).write_text(template)
    return path


def denoiser(path: Path) -> Path:
    """A directory of a model that makes text whole, as BART does."""
    tokens = Tokenizer.learn(TokensConfig(size=290), LINES * 3, ("mask",))
    torch.manual_seed(5)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 32, "heads": 4}
    task = {"name": "denoise", "block": 32, "noise": ["infill"], "share": 0.3}
    storage.save(build(TransformerConfig.tiny(len(tokens), **shape)), path, storage.Purpose(task, {"extra": 6}))
    tokens.save(path / "tokenizer.json")
    return path


def directory(path: Path, seed: int = 3) -> Path:
    """A model directory."""
    storage.save(model(seed), path)
    tokenizer().save(path / "tokenizer.json")
    (path / "recipe.yaml").write_text(RECIPE)
    return path


def adapted(path: Path, base: Path, *changes: dict[str, Any]) -> Path:
    """A directory that only adds to another one, as if it had been taught."""
    made = taught(storage.begin(base, storage.config(base), getattr(storage.shape(base), "head", None), list(changes)))
    storage.save(made, path, storage.purpose(base))
    for name in ("tokenizer.json", "recipe.yaml"):
        if (base / name).exists():
            (path / name).write_bytes((base / name).read_bytes())
    return path
