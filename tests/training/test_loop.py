"""The loop trains: the same seed gives the same run, and the loss it reports is the one a reader would compute."""

import pytest
import torch
import torch.nn.functional as F

from regard.data.batching import Batch, collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.loop import Report, fit

BATCHES = [collate([([3, 4, 5], [5, 4, 3]), ([6], [6]), ([7, 8], [8, 7])]) for _ in range(6)]


def run(dropout: float = 0.1, batches: list[Batch] = BATCHES) -> tuple[Transformer, list[Report]]:
    torch.manual_seed(0)
    config = TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1, dropout=dropout)
    model = Transformer(config)
    return model, list(fit(model, batches, lambda step: 1e-3, shards=2))


def test_the_same_seed_gives_the_same_bits() -> None:
    (a, reports_a), (b, reports_b) = run(), run()
    assert [r.loss for r in reports_a] == [r.loss for r in reports_b]
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_first_loss_is_label_smoothed_cross_entropy_per_label_and_it_falls() -> None:
    _, reports = run(dropout=0.0)
    model, _ = run(dropout=0.0, batches=[])
    batch = BATCHES[0]
    logits, labels = model(batch.source, batch.target).flatten(0, 1), batch.labels.flatten()
    expected = F.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.1)
    assert reports[0].loss == pytest.approx(expected.item(), rel=1e-5)
    assert [r.step for r in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1].loss < reports[0].loss
