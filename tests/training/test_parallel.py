"""Shards change nothing but the order of additions, and the same seed gives the same bits."""

import platform
import sys

import pytest
import torch
from torch import Tensor

from regard.heap import keep_freed_memory
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.memory import MUCH, heap_for
from regard.training.objectives import NextToken
from regard.training.parallel import Shards

LENGTHS = {"source": 7, "target": 5, "labels": 5}


def gradients(shards: int, *, dropout: float, seed: int = 0, rows: int = 6) -> tuple[float, list[Tensor]]:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(40, encoder_layers=1, decoder_layers=1, dropout=dropout)).double()
    batch = {name: torch.randint(1, 40, (rows, length)) for name, length in LENGTHS.items()}
    parameters = list(model.parameters())
    torch.manual_seed(seed)
    with Shards(shards) as parallel:
        total = parallel.backward(NextToken(model), parameters, batch)
    return total.item(), [p.grad for p in parameters if p.grad is not None]


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_the_gradient_is_that_of_the_whole_batch(shards: int) -> None:
    whole, expected = gradients(1, dropout=0.0)
    value, ours = gradients(shards, dropout=0.0)
    assert value == pytest.approx(whole, rel=1e-12)
    assert len(ours) == len(expected)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_the_same_seed_gives_the_same_bits() -> None:
    runs = [gradients(3, dropout=0.3) for _ in range(5)]
    for value, grads in runs[1:]:
        assert value == runs[0][0]
        assert all(torch.equal(a, b) for a, b in zip(grads, runs[0][1], strict=True))
    assert gradients(3, dropout=0.3, seed=1)[0] != runs[0][0]


def test_each_shard_draws_its_own_dropout() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(40, encoder_layers=1, decoder_layers=1, dropout=0.5))
    row = {name: torch.randint(1, 40, (1, length)).expand(2, -1) for name, length in LENGTHS.items()}
    values: list[float] = []

    def loss(**part: Tensor) -> Tensor:
        value = NextToken(model)(**part)
        values.append(value.item())
        return value

    with Shards(2) as parallel:
        parallel.backward(loss, list(model.parameters()), row)
    assert values[0] != values[1]


def test_a_second_call_adds_to_the_gradient_and_unused_parameters_stay_without() -> None:
    weight, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    with Shards(2) as parallel:
        for _ in range(2):
            total = parallel.backward(lambda x: (x * weight).sum(), [weight, unused], {"x": torch.ones(4, 3)})
    assert total.item() == 12
    assert weight.grad is not None
    assert weight.grad.tolist() == [8, 8, 8]
    assert unused.grad is None


def test_an_error_in_a_shard_reaches_the_caller_and_threads_are_counted_from_one() -> None:
    with Shards(2) as parallel, pytest.raises(ValueError, match="d_model"):
        parallel.backward(lambda x: (_ for _ in ()).throw(ValueError("d_model")), [], {"x": torch.ones(4)})
    with pytest.raises(ValueError, match="shards = 0: it must be at least 1"):
        Shards(0)


def test_glibc_is_asked_to_keep_what_a_step_frees() -> None:
    glibc = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    assert keep_freed_memory(MUCH) == glibc
    assert heap_for(2_900_000) == MUCH  # a step of a small model is over before the system has given it its pages
    assert heap_for(134_515_008) < MUCH
