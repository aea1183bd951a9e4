"""Importance is the gradient that calculus says; a curve of silenced heads is what silencing them gives."""

import pytest
import torch
from torch import Tensor

from regard.core.quantised import quantise
from regard.data.batching import Batch
from regard.inspection.importance import (
    ablate_each,
    head_importance,
    least_important,
    loss,
    pruning_curve,
    random_curve,
    sentence_losses,
)
from regard.inspection.taps import attentions, edit
from regard.models.transformer import Transformer, TransformerConfig
from tests.inspection.toys import language_model

FIRST = "encoder.layers.0.self_attention"
CROSS = "decoder.layers.1.cross_attention"


def row(batch: Batch, i: int) -> Batch:
    """One sentence without its padding."""
    source, target, labels = (batch[name][i] for name in ("source", "target", "labels"))
    T = int((labels != 0).sum())
    return Batch({"source": source[source != 0][None], "target": target[:T][None], "labels": labels[:T][None]}, T)


BATCH = Batch(
    {
        "source": torch.tensor([[5, 9, 3, 7, 2, 4], [8, 6, 2, 0, 0, 0], [3, 3, 4, 2, 0, 0]]),
        "target": torch.tensor([[1, 4, 4, 9], [1, 7, 0, 0], [1, 5, 6, 0]]),
        "labels": torch.tensor([[4, 4, 9, 2], [7, 2, 0, 0], [5, 6, 2, 0]]),
    },
    count=9,
)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(10, d_model=16, d_ff=24, heads=4, kv_heads=2, encoder_layers=2, decoder_layers=2)
    return Transformer(config).double().eval()


def of_one_sentence(model: Transformer, pair: Batch, name: str, head: int, factor: float) -> float:
    with edit(model, {name: {head: factor}}):
        return loss(model, [pair], pad=0) * pair["labels"].numel()


def test_loss_is_the_mean_over_labels_and_padding_does_not_count(model: Transformer) -> None:
    alone = [row(BATCH, i) for i in range(3)]
    by_hand = [
        -model(pair["source"], pair["target"])
        .log_softmax(-1)[0, range(pair["labels"].numel()), pair["labels"][0]]
        .sum()
        .item()
        for pair in alone
    ]
    assert loss(model, [BATCH], pad=0) == pytest.approx(sum(by_hand) / 9, abs=1e-6)
    assert loss(model, alone, pad=0) == pytest.approx(sum(by_hand) / 9, abs=1e-6)


@pytest.mark.parametrize("name", [FIRST, CROSS])
def test_importance_is_the_mean_of_absolute_slopes(model: Transformer, name: str) -> None:
    found = head_importance(model, [BATCH], pad=0, normalise=False)
    step = 1e-2
    for head in range(4):
        slopes = [
            (of_one_sentence(model, pair, name, head, 1 + step) - of_one_sentence(model, pair, name, head, 1 - step))
            / (2 * step)
            for pair in (row(BATCH, i) for i in range(3))
        ]
        assert found[name][head].item() == pytest.approx(sum(map(abs, slopes)) / 3, rel=1e-3, abs=1e-6)


def test_batches_change_nothing(model: Transformer) -> None:
    together = head_importance(model, [BATCH], pad=0, normalise=False)
    alone = head_importance(model, [row(BATCH, i) for i in range(3)], pad=0, normalise=False)
    assert list(together) == list(attentions(model))
    for name, x in together.items():
        torch.testing.assert_close(alone[name], x, atol=1e-6, rtol=1e-5)


def test_the_heads_of_an_attention_have_norm_one(model: Transformer) -> None:
    plain, normed = (head_importance(model, [BATCH], pad=0, normalise=n) for n in (False, True))
    for name in plain:
        torch.testing.assert_close(normed[name], plain[name] / plain[name].norm())


def test_importance_leaves_no_trace_and_silent_heads_have_none(model: Transformer) -> None:
    before = model(BATCH["source"], BATCH["target"])
    with edit(model, {FIRST: {1: 0.0, 2: 0.0}}):
        found = head_importance(model, [BATCH], pad=0)
    assert found[FIRST].gt(0).tolist() == [True, False, False, True]
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(model(BATCH["source"], BATCH["target"]), before)


def test_whole_numbers_and_no_sentences_are_refused(model: Transformer) -> None:
    with pytest.raises(ValueError, match="there are none"):
        head_importance(model, [], pad=0)
    with pytest.raises(ValueError, match="precision fp32"):
        head_importance(quantise(model.float()), [BATCH], pad=0)


def test_each_head_is_silenced_alone(model: Transformer) -> None:
    found = ablate_each(model, lambda: loss(model, [BATCH], pad=0))
    assert len(found) == 6 * 4
    whole = attentions(model)[CROSS].output.weight.data.clone()
    attentions(model)[CROSS].output.weight.data[:, 8:12] = 0.0  # what head 2 writes
    assert found[CROSS, 2] == pytest.approx(loss(model, [BATCH], pad=0), abs=1e-9)
    attentions(model)[CROSS].output.weight.data = whole
    assert found[CROSS, 2] != pytest.approx(loss(model, [BATCH], pad=0), abs=1e-6)


def test_the_least_important_are_the_least() -> None:
    importance = {"b": torch.tensor([0.3, 0.1, 0.3]), "a": torch.tensor([0.2, 0.9])}
    assert least_important(importance, 0) == {}
    assert least_important(importance, 3) == {"a": [0], "b": [0, 1]}  # of the two equals the first
    assert least_important(importance, 99) == {"a": [0, 1], "b": [0, 1, 2]}


def test_a_curve_silences_in_order_until_none_is_left(model: Transformer) -> None:
    order = {name: torch.arange(4.0) + 4 * i for i, name in enumerate(attentions(model))}
    curve = pruning_curve(model, order, lambda: loss(model, [BATCH], pad=0), share=0.25)
    assert [point.kept for point in curve] == [24, 18, 12, 6, 0]
    assert curve[0].silenced == {}
    assert curve[1].silenced == least_important(order, 6)
    assert curve[-1].silenced == {name: [0, 1, 2, 3] for name in attentions(model)}
    with edit(model, {name: dict.fromkeys(heads, 0.0) for name, heads in curve[2].silenced.items()}):
        assert curve[2].found == loss(model, [BATCH], pad=0)


def test_a_curve_asks_again_before_each_step(model: Transformer) -> None:
    asked: list[dict[str, Tensor]] = []

    def importance() -> dict[str, Tensor]:
        asked.append(head_importance(model, [BATCH], pad=0))
        return asked[-1]

    assert [point.kept for point in pruning_curve(model, importance, lambda: None, down_to=21)] == [24, 22, 21]
    asked.clear()
    curve = pruning_curve(model, importance, lambda: None, share=0.5)
    assert [point.kept for point in curve] == [24, 12, 0]
    assert curve[1].silenced == least_important(asked[0], 12)
    for name, heads in curve[1].silenced.items():
        assert asked[1][name][heads].eq(0).all()


def test_chance_is_a_function_of_the_seed(model: Transformer) -> None:
    first, again, other = (random_curve(model, lambda: 0, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert [point.kept for point in first] == [*range(24, 0, -2), 0]
    with pytest.raises(ValueError, match=r"share = 0\.0"):
        random_curve(model, lambda: 0, seed=1, share=0.0)


def test_the_heads_of_a_language_model_are_measured_by_its_loss() -> None:
    model = language_model().double()
    labels = torch.tensor([[5, 6, 5, 6, 2], [7, 8, 2, 0, 0]])
    batch = Batch({"tokens": torch.tensor([[1, 5, 6, 5, 6], [1, 7, 8, 0, 0]]), "labels": labels}, count=8)
    by_hand = -model(batch["tokens"]).log_softmax(-1).gather(-1, labels[..., None])[..., 0][labels != 0].mean()
    assert loss(model, [batch], pad=0) == pytest.approx(by_hand.item(), abs=1e-6)
    name, step = "stack.layers.1.self_attention", 1e-3
    found = head_importance(model, [batch], pad=0, normalise=False)
    for head in range(2):
        sides = []
        for factor in (1 + step, 1 - step):
            with edit(model, {name: {head: factor}}), torch.inference_mode():
                sides.append(sentence_losses(model, batch, 0))
        slopes = (sides[0] - sides[1]).abs() / (2 * step)
        assert found[name][head].item() == pytest.approx(slopes.mean().item(), rel=2e-2, abs=1e-4)
    curve = pruning_curve(model, found, lambda: loss(model, [batch], pad=0), share=0.5)
    assert [point.kept for point in curve] == [4, 2, 0]
    assert curve[0].found == loss(model, [batch], pad=0)
