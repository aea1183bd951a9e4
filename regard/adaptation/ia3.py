"""Vectors: (IA)³ scales keys, values and the inside of feed-forward networks (Liu et al., 2022); BitFit moves biases
(Ben Zaken et al., 2022). Scales are ones at first, and what is added to biases zero, so that the model is the base."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.adaptation.products import check_name, products, replaced, roles_of
from regard.core.added import Added, add
from regard.core.quantised import WholeLinear, matrix

INSIDE = {"output", "outer"}  # products of which it scales what they read: what attention or a network has made


class Scales(Added):
    """Factors of some outputs of a product, by role; or, `inside`, of what it reads."""

    def __init__(self, rows: Mapping[str, slice], like: Tensor, inside: int | None = None) -> None:
        super().__init__()
        self.rows, self.inside = dict(rows), inside
        widths = {role: inside or at.stop - at.start for role, at in rows.items()}
        self.scale = nn.ParameterDict({role: like.new_ones(width) for role, width in widths.items()})

    def before(self, x: Tensor) -> Tensor:
        return x * next(iter(self.scale.values())) if self.inside else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        if self.inside:
            return y
        whole = torch.ones(y.shape[-1], dtype=y.dtype, device=y.device)
        ends = [(at, self.scale[role]) for role, at in self.rows.items()]
        parts, end = list[Tensor](), 0
        for at, scale in ends:
            parts += [whole[end : at.start], scale]
            end = at.stop
        return y * torch.cat([*parts, whole[end:]])

    @property
    def roles(self) -> Sequence[str]:
        return list(self.rows)

    def weight(self, W: Tensor) -> Tensor:
        if self.inside:
            return W * next(iter(self.scale.values()))
        return replaced(W, [(at, W[at] * self.scale[role][:, None]) for role, at in self.rows.items()])

    @torch.no_grad()
    def amounts(self, module: nn.Module) -> dict[str, Tensor]:
        whole, found = matrix(module), dict[str, Tensor]()
        for role, at in self.rows.items():
            by = self.scale[role] - 1
            found[role] = (whole * by if self.inside else whole[at] * by[:, None]).norm() / whole[at].norm()
        return found

    @torch.no_grad()
    def merge(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Linear):
            raise ValueError("its products are of whole numbers, which hold no sum")
        for role, at in self.rows.items():
            if self.inside:
                module.weight *= self.scale[role]
                continue
            module.weight[at] *= self.scale[role][:, None]
            if module.bias is not None:
                module.bias[at] *= self.scale[role]


@dataclass(frozen=True)
class IA3:
    """A factor for each number that some products make, or, of the last one of a sub-layer, read."""

    where: Sequence[str] = ("key", "value", "outer")  # query, output, gate, inner; attention, feed_forward, all
    name: str = "ia3"  # of the tensors

    def __post_init__(self) -> None:
        roles_of(self.where)
        check_name(self.name)

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"ia3 on {places} {'matrix' if places == 1 else 'matrices'}"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        meant, made = roles_of(self.where), dict[Tensor, Scales]()
        for each in products(model):
            rows, weight = {role: at for role, at in each.rows.items() if role in meant}, each.module.weight
            if rows:
                if weight not in made:
                    made[weight] = Scales(rows, each.like, each.module.in_features if rows.keys() & INSIDE else None)
                add(each.module, self.name, made[weight])
        if not made:
            raise ValueError(
                f"ia3 finds nothing to change: a {type(model).__name__} model has no product {', '.join(self.where)}"
            )
        return model


class Shift(Added):
    """What is added to a bias."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros_like(like))

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return y + self.bias

    roles = ("bias",)

    def weight(self, W: Tensor) -> Tensor:
        return W

    @torch.no_grad()
    def amounts(self, module: nn.Module) -> dict[str, Tensor]:
        assert isinstance(module.bias, Tensor)
        return {"bias": self.bias.norm() / module.bias.norm()}

    @torch.no_grad()
    def merge(self, module: nn.Module) -> None:
        assert isinstance(module.bias, Tensor)
        module.bias += self.bias


@dataclass(frozen=True)
class Biases:
    """Every bias of products and norms learns, but those of the head."""

    name: str = "shift"  # of the tensors

    def __post_init__(self) -> None:
        check_name(self.name)

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"{places} {'bias' if places == 1 else 'biases'}"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        made, output = dict[Tensor, Shift](), getattr(model, "output", None)
        apart = set(output.modules()) if isinstance(output, nn.Module) else set()
        for module in list(model.modules()):
            if not isinstance(module, nn.Linear | WholeLinear | nn.LayerNorm) or module in apart or module.bias is None:
                continue
            if module.bias not in made:
                made[module.bias] = Shift(module.bias)
            add(module, self.name, made[module.bias])
        if not made:
            raise ValueError(f"biases finds nothing to change: this {type(model).__name__} model has none")
        return model
