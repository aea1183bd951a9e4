"""The objective is the sum of PyTorch's label-smoothed cross-entropy over the logits, without holding them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.batching import Batch, collate
from regard.data.vocabulary import PAD
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.objectives import NextToken

V = 40
PAIRS = [([5, 6, 7], [8, 9]), ([10], [11, 12, 13, 14, 15]), ([16, 17, 18, 19], [20]), ([21, 22], [])]
Loss = Callable[..., Tensor]


def transformer(tie: str = "all") -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig.tiny(V, encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64, dropout=0.0, tie=tie)
    return Transformer(config)


def reference(model: nn.Module, smoothing: float) -> Loss:
    def loss(source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        logits = model(source, target).flatten(0, 1)
        return F.cross_entropy(logits, labels.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum")

    return loss


def learned(model: nn.Module, loss: Loss, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient as one vector."""
    model.zero_grad()
    value = loss(**batch.tensors)
    value.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    return value.detach(), torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_the_loss_and_its_gradient_are_those_of_cross_entropy(smoothing: float, tie: str) -> None:
    model, batch = transformer(tie).double(), collate(PAIRS)
    ours = learned(model, NextToken(model, smoothing), batch)
    expected = learned(model, reference(model, smoothing), batch)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def test_it_is_a_sum_that_adds_up_over_rows_and_ignores_padding() -> None:
    model = transformer().double()
    loss, whole = NextToken(model, 0.1), collate(PAIRS)
    alone = [collate([pair]) for pair in PAIRS]  # each as narrow as it can be
    total = sum(loss(**batch.tensors) for batch in alone)
    torch.testing.assert_close(loss(**whole.tensors), total, rtol=1e-12, atol=0)


def test_without_labels_there_is_nothing_to_learn() -> None:
    model, batch = transformer(), collate(PAIRS)
    value, gradient = learned(
        model, NextToken(model, 0.1), Batch({**batch.tensors, "labels": torch.full_like(batch["labels"], PAD)}, 0)
    )
    assert value == 0
    assert not gradient.any()


def test_the_parameters_of_the_objective_are_the_models() -> None:
    model = transformer()
    objective = NextToken(model)
    assert {id(p) for p in objective.parameters()} == {id(p) for p in model.parameters()}
    assert not objective.eval().model.training  # type: ignore[attr-defined]


def test_under_autocast_products_are_bf16_and_sums_are_not() -> None:
    model, batch = transformer(), collate(PAIRS)

    def low(loss: Loss) -> Loss:
        def run(**rows: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return loss(**rows)

        return run

    exact, exact_gradient = learned(model, NextToken(model), batch)
    ours, gradient = learned(model, low(NextToken(model)), batch)
    theirs, expected = learned(model, low(reference(model, 0.0)), batch)
    assert ours.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)  # the same rounded logits
    assert (gradient - expected).norm() < 0.01 * expected.norm()
    assert 0 < abs(ours - exact) < 0.01 * exact
    assert 0 < (gradient - exact_gradient).norm() < 0.02 * exact_gradient.norm()
