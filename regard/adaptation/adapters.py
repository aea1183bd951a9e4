"""Adapters: small networks with a narrow inside, after the sub-layers of a model that stays as it is.

Houlsby et al. (2019) put one after attention and one after the feed-forward network, Pfeiffer et al. (2021) only the
latter. y + W_up activation(W_down y + b_down) + b_up; W_up is zero at first, so that the model is the base.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from regard.adaptation.products import FEED_FORWARD, check_name
from regard.checks import at_least, one_of
from regard.core.added import Added, add
from regard.core.attention import MultiHeadAttention
from regard.core.layers import ACTIVATIONS, Residual

KINDS = ("houlsby", "pfeiffer")
INITIAL = 0.02  # standard deviation of W_down at first


class Narrow(Added):
    """A narrow network with a residual connection, of what a sub-layer makes."""

    def __init__(self, d_model: int, width: int, activation: str, like: Tensor) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.down, self.up = nn.Parameter(like.new_empty(width, d_model)), nn.Parameter(like.new_zeros(d_model, width))
        self.down_bias, self.up_bias = nn.Parameter(like.new_zeros(width)), nn.Parameter(like.new_zeros(d_model))
        if not like.is_meta:
            nn.init.normal_(self.down, std=INITIAL)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return y + F.linear(self.activation(F.linear(y, self.down, self.down_bias)), self.up, self.up_bias)

    def matrices(self) -> list[Tensor]:
        return [self.down, self.up]

    def merge(self, module: nn.Module) -> None:
        raise ValueError("an adapter is a network of its own, not a change of weights")


@dataclass(frozen=True)
class Adapter:
    """A small network after each sub-layer."""

    kind: str = "pfeiffer"  # after feed-forward networks; houlsby: after attention as well
    width: int = 48  # of its inside
    activation: str = "relu"  # gelu, silu, gelu_tanh
    name: str = "adapter"  # of the tensors

    def __post_init__(self) -> None:
        one_of(KINDS, kind=self.kind)
        one_of(ACTIVATIONS, activation=self.activation)
        at_least(1, width=self.width)
        check_name(self.name)

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"{self.kind} adapter, {self.width} wide, after {places} sub-layers"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        kinds = FEED_FORWARD if self.kind == "pfeiffer" else (*FEED_FORWARD, MultiHeadAttention)
        made: dict[Tensor, Narrow] = {}
        for residual in [module for module in model.modules() if isinstance(module, Residual)]:
            if not isinstance(residual.sublayer, kinds):
                continue
            norm: Tensor = residual.norm.weight  # type: ignore[assignment]
            if norm not in made:  # layers that are gone through again share what is added to them
                made[norm] = Narrow(len(norm), self.width, self.activation, norm)
            add(residual.sublayer, self.name, made[norm])
        if not made:
            raise ValueError(
                f"adapter finds nothing to change: a {type(model).__name__} model has no sub-layers of this kind"
            )
        return model
