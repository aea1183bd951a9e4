"""Small models of every family, in directories, to be changed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.added import added
from regard.core.outputs import HeadConfig
from regard.models import storage
from regard.models.family import build, configure

SMALL = ("d_model=32", "heads=2", "d_ff=48", "dropout=0.0")
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "encoder": ("bert-tiny", (*SMALL, "attention_dropout=0.0", "max_length=40")),
    "albert": ("albert-base", (*SMALL, "layers=3", "d_embedding=16", "max_length=40")),
    "gpt2": ("gpt-tiny", (*SMALL, "layers=2", "max_length=40")),
    "llama": ("llama-tiny", (*SMALL, "layers=2", "kv_heads=1")),
    "transformer": ("tiny", (*SMALL, "encoder_layers=2", "decoder_layers=2")),
    "t5": ("t5-small", (*SMALL, "encoder_layers=2", "decoder_layers=2", "d_k=16", "d_v=16")),
    "bart": ("bart-base", (*SMALL, "encoder_layers=2", "decoder_layers=2", "max_length=40")),
}
CHANGES: dict[str, dict[str, Any]] = {
    "lora": {"rank": 4, "alpha": 8.0, "where": ["all"]},
    "ia3": {},
    "biases": {},
    "adapter": {"kind": "houlsby", "width": 6},
    "prompt": {"length": 3},
    "prefix": {"length": 3},
}
MERGED = ("lora", "ia3", "biases")
UNBIASED = ("llama", "t5")  # which have no biases
CASES = [(name, change) for name in FAMILIES for change in CHANGES if change != "biases" or name not in UNBIASED]
VOCABULARY = 50


def model_of(name: str, head: HeadConfig | None = None) -> nn.Module:
    """The model of a family, of no use but not all zeros."""
    torch.manual_seed(1)
    preset, settings = FAMILIES[name]
    model = build(configure(preset, settings, vocabulary=VOCABULARY), head).eval()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return model


def directory_of(name: str, path: Path) -> Path:
    storage.save(model_of(name), path)
    return path


def texts(name: str) -> tuple[Tensor, ...]:
    """Rows to read, the second shorter; and to write, for an encoder-decoder."""
    generator = torch.Generator().manual_seed(2)
    source, target = (torch.randint(3, VOCABULARY, shape, generator=generator) for shape in ((2, 7), (2, 5)))
    if name in ("encoder", "albert", "transformer", "t5", "bart"):
        source[1, 4:] = 0
    return (source, target) if name in ("transformer", "t5", "bart") else (source,)


def taught(model: nn.Module, seed: int = 5) -> nn.Module:
    """As if what was added had learnt something."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for part in added(model):
            for p in filter(lambda p: p.requires_grad, part.parameters()):
                p.add_(0.2 * torch.randn_like(p))
    return model
