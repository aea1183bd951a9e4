"""Gates are distributed as the paper says, and shut before heads that do nothing while those that are needed stay."""

import pytest
import torch

from regard.adaptation.gates import GateConfig, chance_open, draw, learn_gates, settled
from regard.adaptation.prune import prune
from regard.core.quantised import quantise
from regard.data.batching import Batch, collate
from regard.inspection.importance import loss
from regard.inspection.taps import attentions, edit
from regard.models.transformer import Transformer, TransformerConfig

USELESS = {
    "encoder.layers.0.self_attention": [0, 3],
    "decoder.layers.0.self_attention": [1],
    "decoder.layers.0.cross_attention": [0, 1, 2],
}
CROSS = "decoder.layers.0.cross_attention"


def pairs(count: int, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(4, 12, (count, 4), generator=draw).tolist()
    return collate([(row, row[::-1]) for row in rows])


@pytest.fixture(scope="module")
def taught() -> Transformer:
    """A model that turns sequences round while some heads were silent, and now say nothing at all."""
    torch.manual_seed(0)
    config = TransformerConfig(12, d_model=32, d_ff=48, heads=4, encoder_layers=1, decoder_layers=1, dropout=0.0)
    model = Transformer(config.but(norm="pre"))
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    with edit(model, {name: dict.fromkeys(heads, 0.0) for name, heads in USELESS.items()}):
        for step in range(200):
            batch = pairs(32, step)
            logits = model(batch["source"], batch["target"])
            adam.zero_grad()
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=0
            ).backward()
            adam.step()
    for name, heads in USELESS.items():
        for head in heads:
            attentions(model)[name].output.weight.data[:, head * 8 : head * 8 + 8] = 0.0
    model.zero_grad()
    return model.eval()


def test_gates_are_open_and_shut_as_often_as_they_say() -> None:
    log_a = torch.tensor([-2.0, -0.5, 0.0, 1.0, 3.0])
    u = torch.rand(50_000, 1, generator=torch.Generator().manual_seed(0))
    gates = draw(log_a, u)
    assert gates.min() == 0.0
    assert gates.max() == 1.0
    torch.testing.assert_close(gates.gt(0).float().mean(0), chance_open(log_a), atol=1e-2, rtol=0)
    assert settled(torch.tensor([-9.0, 0.0, 9.0])).tolist() == [0.0, 0.5, 1.0]


def test_useless_heads_are_shut_and_the_others_are_kept(taught: Transformer) -> None:
    held_out = [pairs(100, 9999)]
    before = loss(taught, held_out, pad=0)
    assert before < 0.3, "the model has not learned its task"
    state = {name: x.clone() for name, x in taught.state_dict().items()}
    gates = learn_gates(taught, [pairs(32, seed) for seed in range(20)], pad=0, config=GateConfig(steps=150))
    for name, heads in USELESS.items():
        assert set(heads) <= set(gates.shut[name])
    assert gates.shut[CROSS] == [0, 1, 2]  # the last one is the only way to the source
    assert gates.history[0].open > gates.history[-1].open
    assert len(gates.history) == 150
    assert loss(prune(taught, gates.shut), held_out, pad=0) < before + 0.1
    assert all(torch.equal(state[name], x) for name, x in taught.state_dict().items())
    assert all(p.grad is None for p in taught.parameters())


def test_gates_are_a_function_of_the_seed(taught: Transformer) -> None:
    batches = [pairs(8, seed) for seed in range(3)]
    chance = torch.get_rng_state()
    first, again, other = (
        learn_gates(taught, batches, pad=0, config=GateConfig(steps=5, seed=seed)) for seed in (1, 1, 2)
    )
    assert first.history == again.history != other.history
    assert all(torch.equal(first.log_a[name], again.log_a[name]) for name in first.log_a)
    assert torch.equal(chance, torch.get_rng_state())


def test_weights_learn_along_if_they_are_asked_to(taught: Transformer) -> None:
    model = prune(taught, {})  # a copy
    config = GateConfig(steps=60, price=0.1, weights_rate=1e-3)
    gates = learn_gates(model, [pairs(32, seed) for seed in range(20)], pad=0, config=config)
    assert not model.training
    assert not torch.equal(model.output.weight, taught.output.weight)
    held_out = [pairs(100, 9999)]
    assert loss(prune(model, gates.shut), held_out, pad=0) < loss(prune(taught, gates.shut), held_out, pad=0)


def test_mistakes_are_named(taught: Transformer) -> None:
    with pytest.raises(ValueError, match="there are none"):
        learn_gates(taught, [], pad=0)
    with pytest.raises(ValueError, match=r"price = 0\.0: it must be above 0"):
        GateConfig(price=0.0)
    with pytest.raises(ValueError, match="steps = 0"):
        GateConfig(steps=0)
    with pytest.raises(ValueError, match="precision fp32"):
        learn_gates(quantise(prune(taught, {})), [pairs(2, 0)], pad=0)
