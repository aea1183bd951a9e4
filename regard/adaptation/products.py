"""The products of a model by their roles: which of them a change is of, whatever the model is called."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import hint
from regard.core.attention import MultiHeadAttention
from regard.core.layers import ConvolutionFeedForward, FeedForward, GatedFeedForward
from regard.core.quantised import Int8Embedding, WholeLinear
from regard.core.stems import Embedding

FEED_FORWARD = (FeedForward, GatedFeedForward, ConvolutionFeedForward)
ROLES = ("query", "key", "value", "output", "gate", "inner", "outer")
ENDS = ("embedding", "head")  # of a model, which some changes are of as well
GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("query", "key", "value", "output"),
    "feed_forward": ("gate", "inner", "outer"),
    "all": ROLES,
}


class Product(NamedTuple):
    """A linear map inside attention or a feed-forward network, of matrices side by side that have a role each; or one
    of the two ends of a model."""

    path: str
    module: Any  # nn.Linear, WholeLinear; of words nn.Embedding, Int8Embedding
    rows: Mapping[str, slice]  # of which outputs each role is
    of: nn.Module

    @property
    def like(self) -> Tensor:
        """Numbers of the dtype and on the device that go with it."""
        return self.module.scale if isinstance(self.module, WholeLinear | Int8Embedding) else self.module.weight


def products(model: nn.Module) -> Iterator[Product]:
    """All of a model, but those of its embeddings and its head."""
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            q, k, v = (("query", "key", "value")[i : i + 1] for i in range(3))
            sides = {"query_key_value": q + k + v, "query": q, "key_value": k + v, "output": ("output",)}
        elif isinstance(module, FEED_FORWARD):
            gated = isinstance(module, GatedFeedForward)
            sides = {"inner": ("gate", "inner") if gated else ("inner",), "outer": ("outer",)}
        else:
            continue
        for name, roles in sides.items():
            product = getattr(module, name, None)
            if isinstance(product, nn.Linear | WholeLinear):
                widths = [product.out_features // len(roles)] * len(roles)
                if isinstance(module, MultiHeadAttention) and name != "output":
                    widths = [module.widths[("query", "key", "value").index(role)] for role in roles]
                ends = [sum(widths[: i + 1]) for i in range(len(widths))]
                rows = {role: slice(end - w, end) for role, end, w in zip(roles, ends, widths, strict=True)}
                yield Product(f"{path}.{name}", product, rows, module)


def ends(model: nn.Module) -> Iterator[Product]:
    """The tables of a model's words, and the last product of its head."""
    for path, module in model.named_modules():
        if isinstance(module, Embedding):
            width = {"embedding": slice(0, module.tokens.embedding_dim)}
            yield Product(f"{path}.tokens", module.tokens, width, module)
    for path in ("output", "output.tokens", "output.outer"):
        parent, _, name = path.rpartition(".")
        head = getattr(getattr(model, parent, None) if parent else model, name, None)
        if isinstance(head, nn.Linear | WholeLinear):
            yield Product(path, head, {"head": slice(0, head.out_features)}, model)


def replaced(W: Tensor, rows: Sequence[tuple[slice, Tensor]]) -> Tensor:
    """W with other rows at these places, which are in order."""
    parts, end = list[Tensor](), 0
    for at, x in rows:
        parts += [W[end : at.start], x]
        end = at.stop
    return torch.cat([*parts, W[end:]])


def roles_of(where: Sequence[str], *more: str) -> list[str]:
    """The roles that a setting `where` names, by themselves or in groups, or `more`.

    >>> roles_of(["value", "feed_forward"])
    ['value', 'gate', 'inner', 'outer']
    """
    if not isinstance(where, list | tuple) or not where or not all(isinstance(name, str) for name in where):
        raise ValueError(f"where = {where!r}: it is a list of products, as [query, value]")
    for name in where:
        if name not in (known := (*ROLES, *more, *GROUPS)):
            raise ValueError(f"where = {name!r}: no product is called so; {hint(name, known)}")
    return [role for role in (*ROLES, *more) if any(role in GROUPS.get(name, (name,)) for name in where)]


def check_name(name: str) -> None:
    """Refuse what cannot be the name of something added."""
    if not isinstance(name, str) or not name.isidentifier() or name in ("prompt", "prefix"):
        raise ValueError(f"name = {name!r}: its tensors are called by it, so it is a word, but not prompt or prefix")
