"""LoRA: beside a matrix that stays as it is, the product of two narrow ones is taught (Hu et al., 2022).

Letters: r rank, d_in and d_out widths of the matrix. y = W x + s B A x, with A (r, d_in) and B (d_out, r), which is
zero at first, so that the model is the base. s is alpha / r; rank-stabilised, alpha / √r (Kalajdzievski, 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.adaptation.products import ENDS, check_name, ends, products, replaced, roles_of
from regard.checks import above, at_least
from regard.core.added import Added, add
from regard.core.dropout import Dropout, check_probability
from regard.core.quantised import Int8Embedding, WholeLinear, matrix


def _norm(b: Tensor, a: Tensor) -> Tensor:
    """|B A|, of which no more than r x r numbers are made."""
    return ((b.T @ b) * (a @ a.T)).sum().clamp(min=0).sqrt()


class LowRank(Added):
    """B A of each matrix of a product that is meant, by role. One that has the matrix of another, `tied`, too, as the
    head that of the words, cannot be merged."""

    def __init__(self, rows: Mapping[str, slice], shape: tuple[int, int], like: Tensor, c: "Lora", tied: bool) -> None:
        super().__init__()
        (self.d_out, d_in), self.rows, self.scale, self.tied = shape, dict(rows), c.scale, tied
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

    def matrices(self) -> list[Tensor]:
        return [*self.a.values(), *self.b.values()]

    def weight(self, W: Tensor) -> Tensor:
        changed = [(at, W[at] + self.scale * (self.b[role] @ self.a[role])) for role, at in self.rows.items()]
        return replaced(W, changed)

    @property
    def roles(self) -> Sequence[str]:
        return list(self.rows)

    @torch.no_grad()
    def amounts(self, module: nn.Module) -> dict[str, Tensor]:
        whole = matrix(module)
        return {role: self.scale * _norm(self.b[role], a) / whole[self.rows[role]].norm() for role, a in self.a.items()}

    @torch.no_grad()
    def low(self) -> tuple[Tensor, Tensor]:
        a = torch.cat([self.a[role] for role in self.rows])
        b, r = a.new_zeros(self.d_out, len(a)), len(a) // len(self.rows)
        for i, (role, at) in enumerate(self.rows.items()):
            b[at, i * r : (i + 1) * r] = self.scale * self.b[role]
        return a, b

    @torch.no_grad()
    def merge(self, module: nn.Module) -> None:
        self._check(module)
        W = module.get_parameter("weight")
        for role, at in self.rows.items():
            W[at] += self.scale * (self.b[role] @ self.a[role])

    def _check(self, module: nn.Module) -> None:
        if isinstance(module, WholeLinear | Int8Embedding):
            raise ValueError("its products are of whole numbers, which hold no sum")
        if self.tied:
            raise ValueError(f"the {next(iter(self.rows))} shares its matrix with others, which were not changed")


class LowRankTable(LowRank):
    """B A of the vectors of words, of which A is looked up: it begins as zeros, and B does not."""

    def __init__(self, rows: Mapping[str, slice], shape: tuple[int, int], like: Tensor, c: "Lora", tied: bool) -> None:
        super().__init__(rows, shape, like, c, tied)
        for x, first in ((self.a["embedding"], nn.init.zeros_), (self.b["embedding"], nn.init.normal_)):
            if not like.is_meta:
                first(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return y + self.scale * F.linear(F.embedding(x, self.a["embedding"].T), self.b["embedding"])

    @torch.no_grad()
    def amounts(self, module: nn.Module) -> dict[str, Tensor]:
        return {"embedding": self.scale * _norm(self.b["embedding"], self.a["embedding"]) / matrix(module).norm()}

    @torch.no_grad()
    def merge(self, module: nn.Module) -> None:
        self._check(module)
        module.get_parameter("weight").add_(self.scale * (self.b["embedding"] @ self.a["embedding"]).T)


@dataclass(frozen=True)
class Lora:
    """Narrow matrices beside those of products, which are named by their roles."""

    rank: int = 8  # r, how narrow they are
    alpha: float = 16.0  # what they add counts alpha / rank times
    dropout: float = 0.0  # of what they read
    # key, output, gate, inner, outer; attention, feed_forward, all of these; embedding, head
    where: Sequence[str] = ("query", "value")
    stabilised: bool = False  # it counts alpha / √rank times
    name: str = "lora"  # of the tensors: two changes of a kind have two names

    def __post_init__(self) -> None:
        at_least(1, rank=self.rank)
        above(0, alpha=self.alpha)
        check_probability(self.dropout)
        roles_of(self.where, *ENDS)
        check_name(self.name)

    @property
    def scale(self) -> float:
        """What B A is multiplied with."""
        return self.alpha / (self.rank**0.5 if self.stabilised else self.rank)

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"lora r={self.rank} on {places} {'matrix' if places == 1 else 'matrices'}"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        meant, made = roles_of(self.where, *ENDS), dict[tuple[Tensor, str], LowRank]()
        both = list(ends(model))
        for each in (*products(model), *both):
            rows = {role: at for role, at in each.rows.items() if role in meant}
            if not rows:
                continue
            table, weight = "embedding" in rows, each.module.weight
            d_out, d_in = weight.shape[::-1] if table else (each.module.out_features, each.module.in_features)
            for role, at in rows.items():
                if self.rank > min(at.stop - at.start, d_in):
                    shape = f"{at.stop - at.start} x {d_in}"
                    raise ValueError(f"rank = {self.rank}: the {role} of {each.path} is {shape}, choose a smaller one")
            key = weight, min(rows)  # layers that are gone through again share what is added to them
            if key not in made:
                tied = len({id(end.module) for end in both if end.module.weight is weight}) > 1
                made[key] = (LowRankTable if table else LowRank)(rows, (d_out, d_in), each.like, self, tied)
            if made[key] not in each.module.children():
                add(each.module, self.name, made[key])
        if missing := {role for role in ENDS if role in meant} - {role for part in made.values() for role in part.rows}:
            raise ValueError(
                f"lora finds no {min(missing)} to change: a {type(model).__name__} model has none of that kind"
            )
        if not made:
            raise ValueError(
                f"lora finds nothing to change: a {type(model).__name__} model has no product {', '.join(self.where)}"
            )
        return model
