"""What LoRA adds to a model, in the C engine: beside its products narrow ones, for the rows that want them.

The model's own product is done once for all rows, whoever adds to it. What is added is of each row alone, so its bits
are the same in any company; from those of merged weights they differ in the last digits.
"""

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.core.added import Added, added
from regard.native import build
from regard.native.build import UnsupportedError
from regard.native.layout import Layout


class NativeAdapter(Layout):
    """What is added to a model in the engine, and maybe a head in the place of the model's."""

    layer = build.Lows

    def __init__(self, model: nn.Module, base: nn.Module, d: int) -> None:
        """The model has the tensors of the base, beside those that were added, and those of its head."""
        super().__init__(d)
        own = {id(x) for part in added(model) for x in _tensors(part).values()}
        own |= {id(x) for x in _tensors(base).values()}
        others = [name for name, x in _tensors(model).items() if id(x) not in own]
        if strange := next((name for name in others if not name.startswith("output.")), None):
            raise UnsupportedError(f"its {strange} is not that of its base")
        alike = getattr(model, "head", None) == getattr(base, "head", None)
        self.head: Any = None if alike and not others else model.output
        self.rank, self._seen = 1, set[Added]()  # the most columns of an A
        sides = {side: getattr(model, side) for side in ("encoder", "decoder") if hasattr(model, side)}
        self.c = build.Adapter(**{side: self.stack(stack) for side, stack in sides.items()})
        if self._seen != {*added(model)}:
            raise UnsupportedError("something was added to it beside its products")
        self.address = addressof(self.c)

    def speak(self, head: build.Head, logits: build.Product, kept: Layout) -> None:
        """Have a head of its own."""
        self.c.own, self.c.head, self.c.logits = True, head, logits
        self._kept.append(kept)

    def norm(self, norm: nn.Module | None, d: int) -> None:
        """It is the model's."""

    def attention(self, attention: nn.Module, *products: str) -> list[Any]:
        if getattr(attention, "heads", None) == 0:
            return [None, *(build.Low() for _ in (*products, "output"))]
        return super().attention(attention, *products)

    @torch.no_grad()
    def product(
        self, linear: nn.Module, N: int, K: int, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> build.Low:
        parts = [part for part in linear.children() if isinstance(part, Added)]
        self._seen |= {*parts}
        pairs = [part.low() for part in parts if part.on]
        if not pairs:
            return build.Low()
        found = [pair for pair in pairs if pair is not None]
        if len(found) < len(pairs):
            raise UnsupportedError("more than LoRA was added to it")
        a, b = torch.cat([a for a, _ in found]), torch.cat([b for _, b in found], 1)
        self.rank = max(self.rank, len(a))
        down = super().product(_linear(a), len(a), K, None, columns)
        return build.Low(down, super().product(_linear(b), N, len(a), rows))


def addresses(adapters: Sequence[NativeAdapter | None]) -> tuple[int, NDArray[np.int64] | None]:
    """The most columns that one of them has, and where each is; 0 and nothing where there are none."""
    rank = max((each.rank for each in adapters if each is not None), default=0)
    return rank, np.array([0 if each is None else each.address for each in adapters], np.int64) if rank else None


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _linear(weight: Tensor) -> nn.Linear:
    """A product of these numbers."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight.float(), requires_grad=False)
    return made
