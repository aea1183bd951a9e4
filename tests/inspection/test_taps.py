"""What is recorded is what was computed, what is edited is what one meant, and nothing stays behind."""

import pytest
import torch
from torch import Tensor

from regard.core.attention import MultiHeadAttention
from regard.core.mixers import Tap
from regard.inspection.taps import TAPS, attentions, edit, record
from regard.models.transformer import Transformer, TransformerConfig

SOURCE = torch.tensor([[5, 9, 3, 7, 2, 4], [8, 6, 1, 0, 0, 0]])
TARGET = torch.tensor([[1, 4, 4, 9], [1, 7, 2, 0]])
FIRST = "encoder.layers.0.self_attention"
CROSS = "decoder.layers.1.cross_attention"


@pytest.fixture(params=["all-heads", "grouped-heads"])
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(0)
    kv_heads = 4 if request.param == "all-heads" else 2
    config = TransformerConfig(10, d_model=16, d_ff=24, heads=4, kv_heads=kv_heads, encoder_layers=2, decoder_layers=2)
    return Transformer(config).double().eval()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def watchers(model: Transformer) -> int:
    return sum(len(m.watchers) for m in model.modules() if isinstance(m, Tap))


def test_every_attention_has_the_name_of_its_place(model: Transformer) -> None:
    parts = {"encoder": ["self_attention"], "decoder": ["self_attention", "cross_attention"]}
    names = [f"{stack}.layers.{i}.{part}" for stack in parts for i in range(2) for part in parts[stack]]
    assert list(attentions(model)) == names
    assert attentions(model)[CROSS] is model.decoder.layers[1].cross_attention.sublayer
    assert list(attentions(model.encoder)) == ["layers.0.self_attention", "layers.1.self_attention"]


def test_records_every_attention(model: Transformer) -> None:
    logits = model(SOURCE, TARGET)
    with record(model) as seen:
        close(model(SOURCE, TARGET), logits)  # looking changes nothing
    assert set(seen) == set(attentions(model))
    keys = {"encoder": {"self": (6, 6)}, "decoder": {"self": (4, 4), "cross": (4, 6)}}
    for name, weights in seen.weights.items():
        stack, _, _, part = name.split(".")
        assert weights.shape == (2, 4, *keys[stack][part.removesuffix("_attention")])
        assert not weights.requires_grad
        close(weights.sum(-1), torch.ones(weights.shape[:-1], dtype=weights.dtype))
        if "decoder.layers" in name and part == "self_attention":
            assert weights.triu(1).eq(0).all()
        else:
            assert weights[1, :, :, 3:].eq(0).all()  # padding is not seen
            assert weights[0].gt(0).all()


def test_records_what_one_computes_by_hand(model: Transformer) -> None:
    with record(model) as seen:
        model(SOURCE, TARGET)
    attention, x = attentions(model)[FIRST], model.source_embedding(SOURCE)
    W_Q, W_K, _ = attention.query_key_value.weight.split(attention.widths)
    group = 4 // attention.kv_heads
    for head in range(4):
        q = x @ W_Q[4 * head : 4 * head + 4].T  # biases begin at zero
        k = x @ W_K[4 * (head // group) : 4 * (head // group) + 4].T
        scores = (q @ k.mT / 2).masked_fill((SOURCE == 0)[:, None], -torch.inf)  # √d_k = 2
        close(seen[FIRST][:, head], scores.softmax(-1).detach())


def test_a_source_of_padding_alone_gives_rows_of_zeros(model: Transformer) -> None:
    with record(model) as seen:
        model(torch.zeros_like(SOURCE), TARGET)
    assert seen[CROSS].eq(0).all()
    assert seen[FIRST].eq(0).all()


def test_a_pattern_chooses(model: Transformer) -> None:
    with record(model, "decoder.*.cross_attention") as seen:
        assert watchers(model) == 2
        model(SOURCE, TARGET)
    assert set(seen) == {"decoder.layers.0.cross_attention", "decoder.layers.1.cross_attention"}
    with pytest.raises(ValueError, match=r"no attention is named 'encoder\.self': the model has encoder\.layers\.0"):
        record(model, "encoder.self").__enter__()
    with pytest.raises(ValueError, match="there is nothing to see"):
        record(torch.nn.Linear(2, 2)).__enter__()


def test_step_by_step_decoding_leaves_the_row_of_the_last_step(model: Transformer) -> None:
    with record(model) as whole:
        logits = model(SOURCE, TARGET)
    memory, cache = model.encode(SOURCE), model.new_cache()
    for i in range(4):
        with record(model, "decoder.*") as seen:
            close(model.decode(TARGET[:, i : i + 1], memory, cache)[:, 0], logits[:, i])
        for name, weights in seen.weights.items():
            row = whole[name][:, :, i : i + 1]
            close(weights, row if "cross" in name else row[..., : i + 1])


def without_head(attention: MultiHeadAttention, head: int, factor: float) -> None:
    """Scale the rows of W_O that read this head."""
    with torch.no_grad():
        attention.output.weight[:, 4 * head : 4 * head + 4] *= factor


@pytest.mark.parametrize("factor", [0.0, 2.0, -0.5])
@pytest.mark.parametrize("name", [FIRST, CROSS])
def test_a_scaled_head_is_a_scaled_part_of_the_output_matrix(model: Transformer, name: str, factor: float) -> None:
    with edit(model, {name: {1: factor}}):
        edited = model(SOURCE, TARGET)
    assert not torch.allclose(edited, model(SOURCE, TARGET))
    without_head(attentions(model)[name], 1, factor)
    close(edited, model(SOURCE, TARGET))


def test_several_heads_in_several_places(model: Transformer) -> None:
    with edit(model, {FIRST: {0: 0.0, 3: 3.0}, CROSS: {2: 0.0}}):
        edited = model(SOURCE, TARGET)
    for name, head, factor in ((FIRST, 0, 0.0), (FIRST, 3, 3.0), (CROSS, 2, 0.0)):
        without_head(attentions(model)[name], head, factor)
    close(edited, model(SOURCE, TARGET))


def test_a_function_says_what_to_use_instead(model: Transformer) -> None:
    with edit(model, dict.fromkeys(attentions(model), torch.clone)):
        same = model(SOURCE, TARGET)
    close(same, model(SOURCE, TARGET))
    with edit(model, {CROSS: lambda w: torch.full_like(w, 1 / w.shape[-1])}):
        uniform = model(SOURCE, TARGET)
    attention = attentions(model)[CROSS]
    with torch.no_grad():  # scores of zero weigh all keys alike; nothing is padded in the first example
        attention.query.weight.zero_()
        attention.query.bias.zero_()
    close(uniform[0], model(SOURCE, TARGET)[0])


def test_a_cached_step_can_be_edited(model: Transformer) -> None:
    changes = {CROSS: {0: 0.0}, "decoder.layers.0.self_attention": {2: 5.0}}
    with edit(model, changes):
        logits, memory, cache = model(SOURCE, TARGET), model.encode(SOURCE), model.new_cache()
        steps = [model.decode(TARGET[:, i : i + 1], memory, cache) for i in range(4)]
    close(torch.cat(steps, 1), logits)


def test_who_looks_from_inside_an_edit_sees_it(model: Transformer) -> None:
    with record(model, FIRST) as plain:
        model(SOURCE, TARGET)
    with record(model, FIRST) as outside, edit(model, {FIRST: {1: 0.0}}), record(model, FIRST) as inside:
        model(SOURCE, TARGET)
    close(outside[FIRST], plain[FIRST])
    assert inside[FIRST][:, 1].eq(0).all()
    close(inside[FIRST][:, [0, 2, 3]], plain[FIRST][:, [0, 2, 3]])


def test_an_edit_inside_another_takes_only_itself_away(model: Transformer) -> None:
    def double(weights: Tensor) -> Tensor:
        return weights * 2

    with record(model, FIRST) as plain:
        model(SOURCE, TARGET)
    with edit(model, {FIRST: double}), record(model, FIRST) as seen:
        with edit(model, {FIRST: double}):
            pass
        model(SOURCE, TARGET)
    close(seen[FIRST], 2 * plain[FIRST])


def test_the_model_is_left_as_it_was_also_after_an_error(model: Transformer) -> None:
    logits = model(SOURCE, TARGET)
    with edit(model, {FIRST: {0: 0.0}}), record(model):
        assert watchers(model) == 7
        model(SOURCE, TARGET)
    assert watchers(model) == 0
    with pytest.raises(KeyError), edit(model, {FIRST: {0: 0.0}}), record(model):
        raise KeyError
    with pytest.raises(ZeroDivisionError), edit(model, {FIRST: lambda w: w * (1 // 0)}):
        model(SOURCE, TARGET)
    with pytest.raises(ValueError, match="no attention"), edit(model, {FIRST: {0: 0.0}, "nowhere": {}}):
        pass
    assert watchers(model) == 0
    assert torch.equal(model(SOURCE, TARGET), logits)  # through the fused kernels again, to the last bit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder.layer.0.self_attention": {0: 0.0}}, r"did you mean 'encoder\.layers\.0\.self_attention'\?"),
        ({"decoder.layers.1.crossattention": {0: 0.0}}, r"did you mean 'decoder\.layers\.1\.cross_attention'\?"),
        ({FIRST: {4: 0.0}}, r"encoder\.layers\.0\.self_attention has heads 0\.\.3, not 4"),
        ({FIRST: {-1: 0.0}}, r"heads 0\.\.3, not -1"),
    ],
)
def test_what_is_not_there_cannot_be_edited(model: Transformer, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edit(model, changes).__enter__()


def test_every_tap_holds_its_part_of_the_equation(model: Transformer) -> None:
    with record(model, what=TAPS) as seen:
        model(SOURCE, TARGET)
    for name, attention in attentions(model).items():
        q, k, v = seen.queries[name], seen.keys[name], seen.values[name]
        assert k.shape[1] == v.shape[1] == 4  # one for each query head, also where they share
        close(seen.scores[name], q @ k.mT / 2)
        hidden = seen[name] == 0
        close(seen[name], seen.scores[name].masked_fill(hidden, -torch.inf).softmax(-1))
        close(seen.outputs[name], seen[name] @ v)
        assert seen.outputs[name].shape[-1] == attention.d_v


def test_heads_and_patterns_bound_what_is_held(model: Transformer) -> None:
    with record(model) as whole:
        model(SOURCE, TARGET)
    with record(model, [FIRST, "decoder.layers.1.*"], what=["weights", "keys"], heads=[3, 1]) as seen:
        model(SOURCE, TARGET)
    assert set(seen) == set(seen.keys) == {FIRST, "decoder.layers.1.self_attention", CROSS}
    assert not seen.scores
    close(seen[CROSS], whole[CROSS][:, [3, 1]])
    for arguments, message in (
        ({"heads": [4]}, r"heads 0\.\.3, not 4"),
        ({"what": "logits"}, "no tap for 'logits': choose from weights, scores"),
        ({"names": [FIRST, "nowhere"]}, "no attention is named 'nowhere'"),
    ):
        with pytest.raises(ValueError, match=message):
            record(model, **arguments).__enter__()


def test_a_beam_search_can_be_watched_step_by_step(model: Transformer) -> None:
    """Three hypotheses read one memory; each row of each step is what force-decoding its tokens gives."""
    source, tokens = SOURCE[:1], torch.tensor([[1, 4, 9], [1, 7, 7], [1, 3, 5]])
    memory, cache = model.encode(source), model.new_cache()
    with record(model, "decoder.*", what=("weights", "outputs"), every=True) as seen:
        for i in range(3):
            model.decode(tokens[:, i : i + 1], memory, cache)
    with record(model, "decoder.*", what=("weights", "outputs")) as whole:
        model(source.expand(3, -1), tokens)
    for name, steps in seen.weights.items():
        assert [len(each) for each in steps] == [3, 3, 3]
        for i, weights in enumerate(steps):
            row = whole[name][:, :, i : i + 1]
            close(weights, row if "cross" in name else row[..., : i + 1])
            close(seen.outputs[name][i], whole.outputs[name][:, :, i : i + 1])


def test_one_head_is_replaced_by_a_function_of_it(model: Transformer) -> None:
    def uniform(weights: Tensor) -> Tensor:
        assert weights.dim() == 3
        return torch.full_like(weights, 1 / weights.shape[-1])

    def uniform_second(weights: Tensor) -> Tensor:
        return torch.cat([weights[:, :1], uniform(weights[:, 1]).unsqueeze(1), 2 * weights[:, 2:]], 1)

    with edit(model, {CROSS: {1: uniform, 2: 2.0, 3: 2.0}}):
        edited = model(SOURCE, TARGET)
    with edit(model, {CROSS: uniform_second}):
        close(edited, model(SOURCE, TARGET))


def test_other_taps_can_be_edited(model: Transformer) -> None:
    with edit(model, {FIRST: {2: 0.0}}):
        silent = model(SOURCE, TARGET)
    for what in ("outputs", "values"):
        with edit(model, {FIRST: {2: 0.0}}, what=what):
            close(model(SOURCE, TARGET), silent)
    with edit(model, {FIRST: {2: 0.0}}, what="scores"), record(model, FIRST, heads=[2]) as seen:
        model(SOURCE, TARGET)
    close(seen[FIRST][0], torch.full_like(seen[FIRST][0], 1 / 6))
