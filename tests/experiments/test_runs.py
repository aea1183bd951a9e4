"""What trials share: where they run, and what is asked of the models."""

from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from regard.data.batching import collate
from regard.data.vocabulary import PAD
from regard.experiments import runs
from regard.experiments.runs import batched, foretold, taught
from regard.models.transformer import Transformer, TransformerConfig
from regard.training import loop

PAIRS: list[runs.Pair] = [([3, 4], [4, 3]), ([3], [3]), ([4, 4, 3], [3, 4, 4])]


@pytest.mark.parametrize(("gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_a_model_is_taught_on_a_gpu_where_there_is_one(gpu: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refused(model: nn.Module, schedule: Any, config: Any, world: Any) -> None:
        asked.append(world.device.type)
        raise NotImplementedError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(loop, "Learner", refused)
    with pytest.raises(NotImplementedError):
        taught(nn.Linear(1, 1), iter(PAIRS), Console(quiet=True), steps=1)
    assert asked == [device]


def test_batches_are_where_the_model_is() -> None:
    first, second = batched(nn.Linear(1, 1, device="meta"), PAIRS, 2)
    assert {x.device.type for x in (first["source"], second["target"], second["labels"])} == {"meta"}
    assert (len(first["source"]), len(second["source"])) == (2, 1)


def test_what_is_foretold_does_not_hang_on_batches() -> None:
    torch.manual_seed(0)
    size = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 2}
    model = Transformer(TransformerConfig(5).but(**size))
    pairs = [PAIRS[i % 3] for i in range(8 * 30)]
    taught(model, iter(pairs), Console(quiet=True), steps=30, batch=8, peak=0.01)
    whole, right, _ = foretold(model.eval(), batched(model, PAIRS, 2))
    labels = [collate([pair]) for pair in PAIRS]
    good = [(model(b["source"], b["target"]).argmax(-1) == b["labels"])[b["labels"] != PAD] for b in labels]
    assert whole == sum(bool(each.all()) for each in good) / 3
    assert right == torch.cat(good).double().mean()
