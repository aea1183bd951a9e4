"""The objective is the sum of PyTorch's label-smoothed cross-entropy over the logits, without holding them."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import losses
from regard.data.batching import Batch, collate
from regard.data.vocabulary import PAD
from regard.models.decoder import Decoder, llama_tiny
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.objectives import IGNORE, PREFERENCES, Likelier, NextToken, Pairs, Preferred

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


ONE = (-1.0, -3.0, 2, 4, -2.0, -2.5)  # log p of the chosen and the rejected answer, their tokens, the reference's log p


def soft(x: float) -> float:
    """-log σ(-x)."""
    return math.log(1 + math.exp(x))


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def odds(p: float) -> float:
    return p / (1 - p)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [  # by hand: the gains are 1 and -0.5, the lead 1.5; β = 0.5, γ = 0.3, ε = 0.1
        ("dpo", 0.9 * soft(-0.75) + 0.1 * soft(0.75)),
        ("robust", (0.9 * soft(-0.75) - 0.1 * soft(0.75)) / 0.8),
        ("hinge", 0.25),
        ("ipo", (1 / 2 + 0.5 / 4 - 1) ** 2),
        ("exo", sigma(0.75) * math.log(sigma(0.75) / 0.9) + sigma(-0.75) * math.log(sigma(-0.75) / 0.1)),
        ("nca", soft(-0.5) + 0.5 * soft(0.5) + 0.5 * soft(-0.25)),
        ("bco", soft(-0.5) + soft(-0.25)),
        ("sppo", (1 - 1) ** 2 + (-0.5 + 1) ** 2),
        ("kto", (1 - sigma(0.5) + 1 - sigma(0.75)) / 2),  # 0 and 1 are how far both have gone from the reference
        ("apo-zero", sigma(-0.5) + sigma(-0.25)),
        ("apo-down", sigma(0.5) + sigma(-0.75)),
        ("cpo", 0.9 * soft(-1) + 0.1 * soft(1)),
        ("simpo", 0.9 * soft(0.175) + 0.1 * soft(-0.175)),  # 0.5 (-0.5 + 0.75) - 0.3
        ("orpo", 0.5 * math.log(1 + odds(math.exp(-0.75)) / odds(math.exp(-0.5)))),
    ],
)
def test_a_preference_costs_what_its_formula_says(loss: str, expected: float) -> None:
    pairs = Pairs(*(torch.tensor([float(x)]) for x in ONE))
    found = float(PREFERENCES[loss](pairs, 0.5, 0.3, 0.1)[0])
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_preference_is_learnt_by_blocks_as_by_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Decoder(llama_tiny(V, layers=2, d_model=32, d_ff=48)).double()
    tokens = torch.randint(3, V, (3, 2, 9))
    labels = tokens.roll(-1, 2).masked_fill(torch.rand(3, 2, 9) < 0.4, IGNORE)
    reference = -10 * torch.rand(3, 2, dtype=torch.float64)
    monkeypatch.setattr(losses, "BLOCK", 3 * V)

    def plainly(loss: str) -> Callable[..., Tensor]:
        def whole(tokens: Tensor, labels: Tensor, reference: Tensor) -> Tensor:
            log_p = model(tokens.flatten(0, 1)).log_softmax(-1)
            y = labels.flatten(0, 1)
            each = log_p.gather(2, y.clamp(min=0)[..., None])[..., 0].masked_fill(y == IGNORE, 0.0).sum(1).view(-1, 2)
            sizes = (labels != IGNORE).sum(2)
            pairs = Pairs(*each.unbind(1), *sizes.unbind(1), *reference.unbind(1))
            return (PREFERENCES[loss](pairs, 0.2, 0.1, 0.1) - 0.5 * pairs.means[0]).sum()

        return whole

    batch = Batch({"tokens": tokens, "labels": labels, "reference": reference}, 3)
    for loss in PREFERENCES:
        ours = learned(model, Likelier(model, loss, 0.2, 0.1, 0.1, 0.5), batch)
        torch.testing.assert_close(ours, learned(model, plainly(loss), batch), rtol=1e-9, atol=1e-10)


def test_a_reward_is_to_be_larger_by_its_margin() -> None:
    class Told(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return tokens[:, :1].float()

    tokens = torch.tensor([[[2], [1]], [[1], [3]]])
    loss = Preferred(Told(), 0.1)(torch.tensor([0.0, 1.0]), tokens=tokens)
    # softplus(-1) + 0.1 · 3² and softplus(2 + 1) + 0.1 · 4²
    assert float(loss) == pytest.approx(0.313262 + 0.9 + 3.048587 + 1.6, abs=1e-5)
