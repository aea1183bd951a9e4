"""Models, and the engine that runs them: the quickest that there is for them on this machine."""

from collections.abc import Sequence
from threading import RLock
from typing import Any, TypeVar

import torch
from torch import nn

from regard.checks import at_least, one_of
from regard.core.added import Added
from regard.core.generation import longest
from regard.core.mixers import Tap
from regard.data.tokenizers import Tokenizer
from regard.native import UnavailableError, UnsupportedError

ENGINES = ("auto", "native", "torch")
MAKING = RLock()  # that several threads make one engine of a model, and not one each
Engine = TypeVar("Engine")


class Engines:
    """One model, or several that are asked together, their tokenizer, and what runs each: `native` or `module`."""

    beside: Any = None  # who has the model that this one only adds to: in the C engine its weights are there once
    native: Any  # (model) -> it in the C engine; `UnavailableError` says why there is none
    module: Any  # (model, why there is no other) -> it in PyTorch

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        *,
        engine: str = "auto",
        workers: int | None = None,
        rows: int = 256,
        bitwise: bool = False,
    ) -> None:
        """`rows` go through a model side by side; `bitwise`: the same bits in any company."""
        one_of(ENGINES, engine=engine)
        at_least(1, workers=workers, rows=rows)
        self.models = [each.eval() for each in ([model] if isinstance(model, nn.Module) else model)]
        self.model, self.tokenizer = self.models[0], tokenizer
        self.engine, self.workers, self.rows, self.bitwise = engine, workers, rows, bitwise
        self._made: tuple[object, list[Any]] | None = None  # engines, and what they were made from
        self._without: str | None = None

    @property
    def places(self) -> int | None:
        """The most positions that every model has; None: any number."""
        return min((n for each in self.models if (n := longest(each)) is not None), default=None)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def engines(self) -> list[Any]:
        """What runs each model: PyTorch while somebody watches a tap, and made anew for changed weights."""
        modules, parameters, watched = list[nn.Module | None](self.models), list[nn.Parameter | None](), False
        on: list[bool] = []
        for module in modules:  # PyTorch's own walk takes seven times as long: as long as a short text
            if module is None:
                continue
            if module._modules:
                modules.extend(module._modules.values())
            elif type(module) is Tap:
                watched = watched or bool(module.watchers)
            if isinstance(module, Added):
                on.append(module.on)
            if module._parameters:
                parameters.extend(module._parameters.values())
        # Of parameters that were made within torch.inference_mode() PyTorch counts no versions.
        versions = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters if p is not None]
        made_from = watched, on, versions
        with MAKING:
            if self._made is None or self._made[0] != made_from:
                self._made = made_from, [self._engine(model, watched) for model in self.models]
            return self._made[1]

    @property
    def without_native(self) -> str | None:
        """Why this machine cannot have the native engine, the quickest on a CPU; None: it can, or has no use for it."""
        assert self.engines
        return self._without

    def _adapted(self, model: nn.Module, kind: type[Engine]) -> Engine | None:
        """The engine of the other, of this kind, with what the model adds; None if there is none, or it adds more."""
        if self.beside is None or not isinstance(engine := self.beside.engines[0], kind):
            return None
        try:
            return engine.adapted(model, self.beside.model)  # type: ignore[attr-defined]
        except UnsupportedError:
            return None

    def _engine(self, model: nn.Module, watched: bool) -> Any:
        if self.engine != "torch" and self.device.type == "cpu" and not watched:
            try:
                return self.native(model)
            except UnavailableError as error:
                reason = str(error)
                self._without = None if isinstance(error, UnsupportedError) else reason
        else:
            reason = "a tap is watched" if watched else f"the engine is {self.engine}, the device {self.device}"
        if self.engine == "native":
            raise ValueError(f"there is no native engine for this model ({reason}): use torch")
        return self.module(model, reason)
