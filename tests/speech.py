"""A Whisper that has learned nothing, and sounds for it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.convert.vocabularies import CONTROL, merged, ranked
from regard.convert.whisper import marks
from regard.data.tokenizers import Tokenizer, state
from regard.data.vocabulary import Marks
from regard.models import storage
from regard.models.transformer import Transformer, whisper_tiny

WORDS = [*(bytes([i]) for i in range(256)), b" t", b"he", b" the", b" a", b"nd", b" and", b"..", b"\xe2\x99"]
SIGNS = marks(51865)
SIZES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 64, "heads": 4, "max_length": 40}


def content() -> dict[str, Any]:
    """A tokenizer.json."""
    pieces, merges = ranked(WORDS)
    kinds = [1] * len(WORDS) + [CONTROL] * len(SIGNS)
    found: dict[str, Any] = merged([*pieces, *SIGNS], merges, "gpt-2", kinds, None)
    return found


def tokenizer() -> Tokenizer:
    import json

    from tokenizers import Tokenizer as Rust

    whole = content() | {"added_tokens": []}
    rust = Rust.from_str(json.dumps(whole))
    end, first = len(WORDS), len(WORDS) + 1
    others = {name: len(WORDS) + i for i, name in enumerate(SIGNS) if i > 1}
    rust.post_processor = state(Marks(pad=end, bos=first, eos=end), [], others)
    return Tokenizer(rust.to_str())


def model(seed: int = 0, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    shape = SIZES | {"bands": 16, "places": 100, "pad": len(WORDS), **changes}
    made = Transformer(whisper_tiny(len(WORDS) + len(SIGNS), **shape)).eval()
    made.output.weight.data *= 4.0
    made.output.weight.data[[*range(32), *range(127, 256)]] = 0.0  # it writes characters
    return made


def directory(path: Path, **changes: Any) -> Path:
    task = {"name": "transcribe", "alignment": [[1, 0], [1, 2]], "multilingual": True}
    storage.save(model(**changes), path, storage.Purpose(task, {}))
    tokenizer().save(path / "tokenizer.json")
    return path


def noise(seconds: float, seed: int = 1, loud: float = 0.1) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(int(16_000 * seconds)) * loud).astype(np.float32)
