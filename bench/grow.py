"""A trained model in a larger shape that computes the same: real translations for benchmarks of shapes nobody trained.

    python bench/grow.py runs/tiny runs/base

A width r times as large repeats the residual stream r times, which leaves means and variances, and so LayerNorm, as
they are. What reads it is divided by r; what writes it is repeated; new heads, units and layers write zeros. Sinusoids
of another width are others, so the grown model has the old ones in a table of learned positions.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.positions import sinusoid
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig

POSITIONS = 512


@torch.no_grad()
def grow(model: Transformer, to: TransformerConfig) -> Transformer:
    """A model of the shape `to` whose logits are those of `model`, pre-norm, tied, with sinusoids and ReLU."""
    c = model.config
    for name, value in {"norm": "pre", "norm_kind": "layer", "tie": "all", "positions": "sinusoidal"}.items():
        if getattr(c, name) != value:
            raise SystemExit(f"only {name} = {value} grows, this model has {getattr(c, name)}")
    if (
        to.d_model % c.d_model
        or to.heads < c.heads
        or to.d_ff < c.d_ff
        or to.d_model // to.heads < c.d_model // c.heads
    ):
        raise SystemExit("the shape is not a larger one")
    r = to.d_model // c.d_model
    large = Transformer(to.but(norm="pre", positions="learned", max_length=POSITIONS, dropout=c.dropout)).eval()
    table = sinusoid(torch.arange(POSITIONS), c.d_model).float()
    for ours, embedding in (
        (large.source_embedding, model.source_embedding),
        (large.target_embedding, model.target_embedding),
    ):
        ours.positions.table.copy_(table.repeat(1, r))
        ours.tokens.weight.copy_(embedding.tokens.weight.repeat(1, r) * r**-0.5)  # they are multiplied by √d_model
    for new, old in ((large.encoder, model.encoder), (large.decoder, model.decoder)):
        for i, layer in enumerate(new.layers):
            for name, residual in layer.named_children():
                if i < len(old.layers):
                    _residual(residual, getattr(old.layers[i], name), r)
                else:
                    _silence(residual.sublayer)
        _norm(new.norm, old.norm, r)
    # The embedding is the output layer too: r products of 1/√r each, so the last norm is √r too large.
    large.decoder.norm.weight.mul_(r**-0.5)
    large.decoder.norm.bias.mul_(r**-0.5)
    return large


def _residual(new: Any, old: Any, r: int) -> None:
    _norm(new.norm, old.norm, r)
    if hasattr(old.sublayer, "inner"):
        _fill(new.sublayer.inner, _reads(old.sublayer.inner.weight, r), old.sublayer.inner.bias)
        _fill(new.sublayer.outer, old.sublayer.outer.weight.repeat(r, 1), old.sublayer.outer.bias.repeat(r))
        return
    a, b = new.sublayer, old.sublayer
    spread = (a.d_k / b.d_k) ** 0.5  # the scores are divided by √d_k, which has grown
    if b.cross:
        _fill(a.query, *_heads(b.query, 1, a, b, r, [spread]))
        _fill(a.key_value, *_heads(b.key_value, 2, a, b, r, [1.0, 1.0]))
    else:
        _fill(a.query_key_value, *_heads(b.query_key_value, 3, a, b, r, [spread, 1.0, 1.0]))
    weight = torch.zeros(a.config.d_model, a.heads, a.d_v)
    weight[:, : b.heads, : b.d_v] = b.output.weight.repeat(r, 1).unflatten(1, (b.heads, b.d_v))
    _fill(a.output, weight.flatten(1), b.output.bias.repeat(r))


def _heads(old: nn.Linear, parts: int, a: Any, b: Any, r: int, factors: list[float]) -> tuple[Tensor, Tensor]:
    """Weight and bias of projections into heads: old heads at the start of the first new ones."""
    weight, bias = torch.zeros(parts, a.heads, a.d_k, a.config.d_model), torch.zeros(parts, a.heads, a.d_k)
    scale = torch.tensor(factors)[:, None, None]
    shape = (parts, b.heads, b.d_k)
    weight[:, : b.heads, : b.d_k] = _reads(old.weight, r).unflatten(0, shape) * scale[..., None]
    bias[:, : b.heads, : b.d_k] = old.bias.unflatten(0, shape) * scale
    return weight.flatten(0, 2), bias.flatten()


def _reads(weight: Tensor, r: int) -> Tensor:
    return weight.repeat(1, r) / r


def _fill(new: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """The given weights in the corner of a product, zeros elsewhere."""
    new.weight.zero_()
    new.bias.zero_()
    new.weight[: weight.shape[0], : weight.shape[1]] = weight
    new.bias[: len(bias)] = bias


def _norm(new: Any, old: Any, r: int) -> None:
    new.weight.copy_(old.weight.repeat(r))
    new.bias.copy_(old.bias.repeat(r))


def _silence(sublayer: Any) -> None:
    last = sublayer.outer if hasattr(sublayer, "outer") else sublayer.output
    last.weight.zero_()
    last.bias.zero_()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", default="base", choices=["small", "base", "big"])
    args = parser.parse_args()
    model: Any = storage.load(args.model)
    torch.manual_seed(0)  # of the layers that write nothing
    storage.save(grow(model, getattr(TransformerConfig, args.shape)(model.config.vocabulary)), args.out)
    shutil.copy(args.model / "tokenizer.json", args.out)


if __name__ == "__main__":
    main()
