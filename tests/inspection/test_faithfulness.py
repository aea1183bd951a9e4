"""τ by its definition; gradients and left-out tokens one at a time; and attention that is faithful by construction."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from regard.core.quantised import quantise
from regard.inspection.alignment import source_attention
from regard.inspection.faithfulness import faithfulness, gradients, kendall, leave_one_out
from regard.inspection.taps import edit
from regard.models.transformer import Transformer, TransformerConfig

SOURCE = torch.tensor([[5, 9, 3, 7, 2]])
TARGET = torch.tensor([[1, 4, 4, 9]])
PREDICTED = [4, 4, 9, 2]
CROSS = "decoder.layers.0.cross_attention"


def transformer(**changes: object) -> Transformer:
    torch.manual_seed(3)
    config = TransformerConfig(10, d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=1)
    return Transformer(config.but(**changes)).double().eval()


def brute(a: list[float], b: list[float]) -> float | None:
    """τ_b = (P − Q) / √((P + Q + a's ties) (P + Q + b's ties)), pair by pair."""
    P = Q = only_a = only_b = 0
    for i, j in combinations(range(len(a)), 2):
        x, y = a[i] - a[j], b[i] - b[j]
        P += x * y > 0
        Q += x * y < 0
        only_a += x == 0 and y != 0
        only_b += y == 0 and x != 0
    untied = ((P + Q + only_a) * (P + Q + only_b)) ** 0.5
    return (P - Q) / untied if untied else None


def test_kendall_is_its_definition_with_and_without_ties() -> None:
    torch.manual_seed(0)
    for n in range(9):
        for _ in range(20):
            a, b = torch.randint(0, 4, (2, n)).double()
            expected = brute(a.tolist(), b.tolist())
            found = kendall(a, b)
            assert found == (None if expected is None else pytest.approx(expected))
    ranking = torch.tensor([0.1, 0.7, 0.2])
    assert kendall(ranking, ranking * 5) == pytest.approx(1)
    assert kendall(ranking, -ranking) == pytest.approx(-1)


def log_p(model: Transformer, vectors: Tensor, step: int) -> Tensor:
    """The model run on vectors in place of those of the source's tokens."""
    table = model.source_embedding.tokens
    hook = table.register_forward_hook(lambda *_: vectors)
    memory = model.encode(SOURCE)
    hook.remove()
    return model.decode(TARGET, memory)[0, step].log_softmax(-1)[PREDICTED[step]]


@pytest.mark.parametrize("tie", ["all", "none"])
@pytest.mark.parametrize("rows", [1, 3, 32])
def test_gradients_are_the_slope_along_each_vector(tie: str, rows: int) -> None:
    model, h = transformer(tie=tie), 1e-6
    found = gradients(model, SOURCE, TARGET, PREDICTED, rows=rows)
    vectors = model.source_embedding.tokens(SOURCE).detach()
    assert found.shape == (4, 5)
    with torch.no_grad():
        for t in range(4):
            for j in range(5):
                more, less = vectors.clone(), vectors.clone()
                more[0, j] *= 1 + h
                less[0, j] *= 1 - h
                slope = (log_p(model, more, t) - log_p(model, less, t)) / (2 * h)
                torch.testing.assert_close(found[t, j], slope.abs(), atol=1e-7, rtol=1e-5)
    assert all(not module._forward_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_what_is_left_out_is_left_out_one_at_a_time(rows: int) -> None:
    model = transformer()
    found = leave_one_out(model, SOURCE, TARGET, PREDICTED, [0, 2, 3], rows=rows)
    with torch.no_grad():
        whole = model(SOURCE, TARGET)[0].log_softmax(-1)
        for n, shorter in enumerate(([9, 3, 7, 2], [5, 9, 7, 2], [5, 9, 3, 2])):
            without = model(torch.tensor([shorter]), TARGET)[0].log_softmax(-1)
            for t, token in enumerate(PREDICTED):
                change = float((whole[t, token] - without[t, token]).abs())
                assert float(found[t, n]) == pytest.approx(change, abs=1e-6)


def test_each_step_compares_attention_with_both_over_the_words_alone() -> None:
    model, words = transformer(), [0, 1, 2, 3]
    found = faithfulness(model, SOURCE, TARGET, PREDICTED, {0, 1, 2}, tokens=20)
    attended = source_attention(model, {"source": SOURCE, "target": TARGET})[0][:, words]
    slopes = gradients(model, SOURCE, TARGET, PREDICTED)[:, words]
    changes = leave_one_out(model, SOURCE, TARGET, PREDICTED, words)
    for t in range(4):
        assert found.gradient.steps[t] == pytest.approx(brute(attended[t].tolist(), slopes[t].tolist()))
        assert found.leave_one_out.steps[t] == pytest.approx(brute(attended[t].tolist(), changes[t].tolist()))
    assert found.gradient.tau == pytest.approx(sum(map(float, filter(None, found.gradient.steps))) / 4)


def test_a_model_that_sees_one_word_alone_is_told_by_the_gradient() -> None:
    """Attention is forced on to the word 2, and the encoder mixes nothing: only its gradient is not zero."""
    model = transformer()

    def only(weights: Tensor) -> Tensor:
        return torch.zeros_like(weights).index_fill(-1, torch.tensor([2]), 1.0)

    with edit(model, {CROSS: only, "encoder.layers.0.self_attention": torch.zeros_like}):
        found = faithfulness(model, SOURCE, TARGET, PREDICTED, {2})
        slopes = gradients(model, SOURCE, TARGET, PREDICTED)
    assert found.gradient.steps == pytest.approx((1.0,) * 4)
    assert found.gradient.tau == pytest.approx(1.0)
    assert slopes[:, [0, 1, 3, 4]].eq(0).all()
    assert slopes[:, 2].gt(0).all()


def test_where_there_is_nothing_to_rank_there_is_no_tau() -> None:
    model = transformer()
    none = (None,) * 4
    for source in ([[2]], [[5, 2]]):
        found = faithfulness(model, torch.tensor(source), TARGET, PREDICTED, {2})
        assert (found.gradient.tau, found.gradient.steps) == (None, none)
        assert (found.leave_one_out.tau, found.leave_one_out.steps) == (None, none)


def test_whole_numbers_have_no_gradient() -> None:
    with pytest.raises(ValueError, match="precision='fp32'"):
        gradients(quantise(transformer().float()), SOURCE, TARGET, PREDICTED)
