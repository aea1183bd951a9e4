"""LoRA: beside a matrix that stays as it is, the product of two narrow ones is taught (Hu et al., 2022).

Letters: r rank, d_in and d_out widths of the matrix. y = W x + s B A x, with A (r, d_in) and B (d_out, r), which is
zero at first, so that the model is the base. s is alpha / r; rank-stabilised, alpha / √r (Kalajdzievski, 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.adaptation.products import check_name, products, roles_of
from regard.checks import above, at_least
from regard.core.added import Added, add
from regard.core.dropout import Dropout, check_probability


class LowRank(Added):
    """B A of each matrix of a product that is meant, by role."""

    def __init__(self, rows: Mapping[str, slice], shape: tuple[int, int], like: Tensor, c: "Lora") -> None:
        super().__init__()
        (self.d_out, d_in), self.rows, self.scale = shape, dict(rows), c.scale
        self.dropout = Dropout(c.dropout)
        self.a = nn.ParameterDict({role: like.new_empty(c.rank, d_in) for role in rows})
        self.b = nn.ParameterDict({role: like.new_zeros(at.stop - at.start, c.rank) for role, at in rows.items()})
        for a in self.a.values() if not like.is_meta else ():
            nn.init.uniform_(a, -(d_in**-0.5), d_in**-0.5)  # as nn.Linear begins

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        x, parts, end = self.dropout(x), list[Tensor](), 0
        low = F.linear(x, torch.cat([self.a[role] for role in self.rows])).chunk(len(self.a), -1)  # (..., r) of each
        for part, (role, at) in zip(low, self.rows.items(), strict=True):
            if at.start > end:
                parts.append(y.new_zeros(*y.shape[:-1], at.start - end))
            parts.append(self.scale * F.linear(part, self.b[role]))
            end = at.stop
        if end < self.d_out:
            parts.append(y.new_zeros(*y.shape[:-1], self.d_out - end))
        return y + (torch.cat(parts, -1) if len(parts) > 1 else parts[0])

    @torch.no_grad()
    def low(self) -> tuple[Tensor, Tensor]:
        a = torch.cat([self.a[role] for role in self.rows])
        b, r = a.new_zeros(self.d_out, len(a)), len(a) // len(self.rows)
        for i, (role, at) in enumerate(self.rows.items()):
            b[at, i * r : (i + 1) * r] = self.scale * self.b[role]
        return a, b

    @torch.no_grad()
    def merge(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Linear):
            raise ValueError("its products are of whole numbers, which hold no sum")
        for role, at in self.rows.items():
            module.weight[at] += self.scale * (self.b[role] @ self.a[role])


@dataclass(frozen=True)
class Lora:
    """Narrow matrices beside those of products, which are named by their roles."""

    rank: int = 8  # r, how narrow they are
    alpha: float = 16.0  # what they add counts alpha / rank times
    dropout: float = 0.0  # of what they read
    where: Sequence[str] = ("query", "value")  # key, output, gate, inner, outer; attention, feed_forward, all
    stabilised: bool = False  # it counts alpha / √rank times
    name: str = "lora"  # of the tensors: two changes of a kind have two names

    def __post_init__(self) -> None:
        at_least(1, rank=self.rank)
        above(0, alpha=self.alpha)
        check_probability(self.dropout)
        roles_of(self.where)
        check_name(self.name)

    @property
    def scale(self) -> float:
        """What B A is multiplied with."""
        return self.alpha / (self.rank**0.5 if self.stabilised else self.rank)

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        meant, made = roles_of(self.where), dict[Tensor, LowRank]()
        for each in products(model):
            rows, weight = {role: at for role, at in each.rows.items() if role in meant}, each.module.weight
            for role, at in rows.items():
                if self.rank > min(at.stop - at.start, weight.shape[1]):
                    shape = f"{at.stop - at.start} x {weight.shape[1]}"
                    raise ValueError(f"rank = {self.rank}: the {role} of {each.path} is {shape}, choose a smaller one")
            if rows:  # layers that are gone through again share what is added to them
                if weight not in made:
                    made[weight] = LowRank(rows, (weight.shape[0], weight.shape[1]), each.like, self)
                add(each.module, self.name, made[weight])
        if not made:
            raise ValueError(
                f"lora finds nothing to change: a {type(model).__name__} model has no product {', '.join(self.where)}"
            )
        return model
