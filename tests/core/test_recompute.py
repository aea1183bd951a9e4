"""Recomputing changes memory, and nothing else."""

import pytest
import torch
from torch import nn

from regard.core.blocks import DecoderLayer, EncoderLayer
from regard.core.dropout import drawing_from
from regard.core.layers import FeedForward
from regard.core.recompute import recompute
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.parallel import Shards

KINDS: dict[str, tuple[type[nn.Module], ...]] = {"feed_forward": (FeedForward,), "layers": (EncoderLayer, DecoderLayer)}


def transformer(kind: str | None) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig.tiny(30, dropout=0.3, attention_dropout=0.2, feed_forward_dropout=0.1, stochastic_depth=0.2)
    )
    if kind:
        recompute(m for m in model.modules() if isinstance(m, KINDS[kind]))
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(3, 30, (4, 7)), torch.randint(3, 30, (4, 6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generator", [False, True])
def test_value_and_gradient_are_the_same_to_the_last_bit(kind: str, generator: bool) -> None:
    results = []
    for model in (transformer(None), transformer(kind)):
        torch.manual_seed(1)
        source, target = batch()
        with drawing_from(torch.Generator().manual_seed(5) if generator else torch.default_generator):
            loss = model(source, target).square().mean()
            results.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for plain, recomputed in zip(*results, strict=True):
        assert torch.equal(plain, recomputed)


@pytest.mark.parametrize("kind", KINDS)
def test_in_shards_too(kind: str) -> None:
    gradients = []
    for model in (transformer(None), transformer(kind)):
        torch.manual_seed(1)
        with Shards(2) as shards:
            shards.backward(
                lambda s, t, m=model: m(s, t).square().sum(),
                list(model.parameters()),
                dict(zip("st", batch(), strict=True)),
            )
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is not None
        assert torch.equal(plain, recomputed)


def test_less_is_kept() -> None:
    def kept(kind: str | None) -> int:
        sizes: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        model = transformer(kind)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            outputs = model.features(*batch())
        del outputs
        return sum(sizes.values())

    assert kept("layers") < kept("feed_forward") < kept(None)


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_evaluation_stay(kind: str) -> None:
    plain, recomputed = transformer(None).eval(), transformer(kind).eval()
    assert list(plain.state_dict()) == list(recomputed.state_dict())
    assert torch.equal(plain(*(b := batch())), recomputed(*b))
