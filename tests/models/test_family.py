"""A new family is a file and a name: presets, settings, storage and the account come with it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.cache import Cache
from regard.core.generation import DecoderOnly
from regard.core.masks import causal
from regard.core.mixers import AttentionConfig
from regard.models import storage
from regard.models.costs import breakdown, footprint, parameters
from regard.models.family import FAMILIES, Config, Family, build, configure, family_of


@dataclass(frozen=True)
class ToyConfig(Config):
    """A language model: one text, one vocabulary, one stack."""

    vocabulary: int
    layers: int = 2
    d_model: int = 8
    skip: int = 0
    dropout: float = 0.0
    shape: str = "round"

    def __post_init__(self) -> None:
        self.check(shape=("round", "square"))


class Toy(DecoderOnly, nn.Module):
    """Words that attend to those before them."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary, c.d_model)
        self.decoder = nn.ModuleList(MultiHeadAttention(AttentionConfig(c.d_model, 2)) for _ in range(c.layers))
        self.output = nn.Linear(c.d_model, c.vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.features(tokens))

    def new_cache(self) -> Cache:
        return Cache.empty(self.config.layers)

    def features(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        past = [None] * self.config.layers if cache is None else [layer.self_attention for layer in cache]
        x = self.embedding(tokens)
        for layer, own in zip(self.decoder, past, strict=True):
            x = x + layer(x, mask=causal(), cache=own)
        return x


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("toys")
    module.FAMILY = Family(ToyConfig, Toy, {"toy-tiny": ToyConfig})
    monkeypatch.setitem(sys.modules, "toys", module)
    monkeypatch.setitem(FAMILIES, "toy", "toys")


@pytest.mark.usefixtures("toy")
def test_a_new_family_is_configured_stored_and_accounted_for(tmp_path: Path) -> None:
    assert family_of("toy-tiny") == "toy"
    config = configure("toy-tiny", ["layers=3", "shape=square"], vocabulary=50)
    assert config == ToyConfig(50, layers=3, shape="square")
    storage.save(build(config), tmp_path)
    assert storage.load(tmp_path).config == config
    inner = 3 * 8 * 8 + 3 * 8, 8 * 8 + 8  # W_Q, W_K, W_V; W_O
    assert {part.name: part.parameters for part in breakdown(config)} == {
        "embeddings": 50 * 8,
        "decoder query-key-value": 3 * inner[0],
        "decoder output": 3 * inner[1],
        "output": 0,
    }
    assert parameters(config) == 50 * 8 + 3 * sum(inner)
    flops = 2 * 7 * 50 * 8 + 3 * (2 * 7 * 4 * 8 * 8 + 2 * 2 * 7 * 7 * 8)
    assert sum(part.flops for part in breakdown(config, 2, target=7)) == 2 * flops
    size = footprint(config, target=7)
    assert (size.cache_per_target_token, size.cache_per_source_token) == (4 * 3 * 2 * 8, 0)
    assert size.activations > 0


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("layer=3", "a Toy model has no setting 'layer': did you mean 'layers'"),
        ("layers=0", "layers = 0: it must be at least 1"),
        ("skip=-1", "skip = -1: it must be at least 0"),
        ("layers=99999", "layers = 99999: it must be at most 4,096"),
        ("dropout=1.5", r"dropout = 1.5: a probability lies in \[0, 1\]"),
        ("shape=flat", "shape = 'flat': choose round or square"),
        ("vocabulary=none", "vocabulary = 'none': expected a whole number"),
    ],
)
def test_a_setting_is_checked_if_a_config_has_it(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure("toy-tiny", [change], vocabulary=50)


def test_a_family_is_imported_when_it_is_asked_for() -> None:
    code = "import sys; from regard.models import family as f; f.configure('base', vocabulary=9); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "regard.models.transformer" in loaded
    assert "regard.models.recurrent" not in loaded


def test_an_account_draws_nothing() -> None:
    state = torch.get_rng_state()
    breakdown(configure("lstm", vocabulary=50))
    assert torch.equal(torch.get_rng_state(), state)
