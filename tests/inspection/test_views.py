"""Each view equals its definition, written out slowly."""

import pytest
import torch

from regard.core.attention import MultiHeadAttention
from regard.core.mixers import AttentionConfig
from regard.core.quantised import quantise
from regard.inspection.taps import attentions, record
from regard.inspection.views import norm_maps, query_key_products, rollout
from regard.models.transformer import Transformer, TransformerConfig

SOURCE = torch.tensor([[5, 9, 3, 7, 2], [8, 6, 2, 0, 0]])
TARGET = torch.tensor([[1, 4, 4, 9], [1, 7, 6, 0]])
CROSS = "decoder.layers.1.cross_attention"
SELF = "encoder.layers.0.self_attention"


def transformer(kv_heads: int = 4, **changes: object) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(10, d_model=16, d_ff=24, heads=4, kv_heads=kv_heads, encoder_layers=2, decoder_layers=2)
    model = Transformer(config.but(**changes)).double().eval()
    for attention in attentions(model).values():  # biases begin at zero, where they would prove nothing
        for name, parameter in attention.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", [SELF, CROSS])
def test_norms_are_the_lengths_of_what_each_key_adds(name: str, kv_heads: int) -> None:
    model = transformer(kv_heads)
    attention = attentions(model)[name]
    inputs: list[torch.Tensor] = []
    hook = attention.register_forward_pre_hook(lambda _, args: inputs.extend(args))
    with record(model, name, what=("weights", "values")) as seen, torch.no_grad():
        model(SOURCE, TARGET)
    hook.remove()
    product = attention.key_value if attention.cross else attention.query_key_value
    W_V, b = product.weight[-attention.widths[2] :], product.bias[-attention.widths[2] :]
    found = norm_maps(attention, seen[name], seen.values[name])
    assert found.shape == seen[name].shape
    for h in range(4):
        group = h // (4 // kv_heads)
        for i in range(found.shape[2]):
            for j in range(found.shape[3]):
                x = inputs[-1][0, j]  # the memory of a cross-attention, else the sequence itself
                value = W_V[4 * group : 4 * group + 4] @ x + b[4 * group : 4 * group + 4]
                added = attention.output.weight[:, 4 * h : 4 * h + 4] @ (seen[name][0, h, i, j] * value)
                torch.testing.assert_close(found[0, h, i, j], added.norm())
    if name == CROSS:
        assert found[1, :, :, 3:].eq(0).all()  # padding


def test_without_an_output_matrix_and_with_one_of_whole_numbers() -> None:
    torch.manual_seed(0)
    weights, values = torch.rand(2, 4, 3, 5), torch.randn(2, 4, 5, 4)
    bare = MultiHeadAttention(AttentionConfig(16, 4, output=False))
    torch.testing.assert_close(norm_maps(bare, weights, values), weights * values.norm(dim=-1)[:, :, None])
    whole = MultiHeadAttention(AttentionConfig(16, 4))
    plain = norm_maps(whole, weights, values)
    torch.testing.assert_close(norm_maps(quantise(whole), weights, values), plain, rtol=0.02, atol=0.01)


def test_rollout_by_hand() -> None:
    first = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]])  # two heads
    second = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]])
    one, two = rollout([first, second])
    assert one.tolist() == [[[0.75, 0.25], [0.5, 0.5]]]  # ([[.5, .5], [1, 0]] + I) / 2
    assert two.tolist() == [[[0.625, 0.375], [0.5, 0.5]]]  # [[.5, .5], [0, 1]] times it
    assert rollout([]) == []


def test_rollout_of_a_model_spreads_one_over_what_is_no_padding() -> None:
    model = transformer()
    with record(model, "encoder.*") as seen:
        model(SOURCE, TARGET)
    for reached in rollout(list(seen.weights.values())):
        torch.testing.assert_close(reached.sum(-1), torch.ones(2, 5, dtype=torch.double))
        assert reached[1, :3, 3:].eq(0).all()


@pytest.mark.parametrize("changes", [{}, {"scale": 0.3}, {"positions": "rope"}, {"kv_heads": 2}])
@pytest.mark.parametrize("name", [SELF, CROSS])
def test_products_sum_to_the_scores(name: str, changes: dict[str, object]) -> None:
    model = transformer(**changes)
    with record(model, name, what=("scores", "queries", "keys")) as seen, torch.no_grad():
        model(SOURCE, TARGET)
    found = query_key_products(attentions(model)[name], seen.queries[name], seen.keys[name], head=2, query=1)
    assert found.shape == (5, 4)
    torch.testing.assert_close(found.sum(-1), seen.scores[name][0, 2, 1])
