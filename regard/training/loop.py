"""One training step, and the next: a batch in, a report out; what to show of it is the caller's business."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.added import own
from regard.core.blocks import layers_of
from regard.core.layers import ConvolutionFeedForward, FeedForward, GatedFeedForward
from regard.core.recompute import recompute
from regard.data.batching import Batch
from regard.heap import keep_freed_memory
from regard.native.lend import lend, lending
from regard.native.training import kernels
from regard.training.config import TrainConfig
from regard.training.distributed import CPU, World, like, not_yet, parted, share, whole
from regard.training.memory import LITTLE, heap_for
from regard.training.objectives import NextToken, Objective
from regard.training.optimisers import Average, OptimiserConfig, build, named_like, set_learning_rate
from regard.training.parallel import Shards

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FEED_FORWARD = (FeedForward, GatedFeedForward, ConvolutionFeedForward)
RECOMPUTED: dict[str, Callable[[nn.Module], list[nn.Module]]] = {
    "nothing": lambda model: [],
    "feed_forward": lambda model: [module for module in model.modules() if isinstance(module, FEED_FORWARD)],
    "layers": layers_of,
}


@dataclass(frozen=True)
class Report:
    """One step."""

    step: int
    loss: float  # a label
    learning_rate: float
    gradient_norm: float  # before clipping
    tokens: int  # labels
    seconds: float


class DivergedError(ValueError):
    """The loss or its gradient is no longer a number."""


class Learner:
    """A model and its objective, optimiser and schedule; `step` teaches one batch. `with Learner(...) as learner:`

    All that is random in a step is a function of (seed, step, process, shard), so a step repeats exactly, alone or
    after any other. `schedule` maps a step, counted from 1, to a learning rate.
    """

    def __init__(
        self, objective: Objective, schedule: Callable[[int], float], config: TrainConfig, world: World | None = None
    ) -> None:
        model = objective.model
        self.model, self.schedule, self.config, self.world = model, schedule, config, world or World()
        self.steps, self.damping = 0, 1.0
        self._held = named_like(model, config.freeze)
        for p in self._held if config.thaw is None else ():
            p.requires_grad_(False)
        device, several, name = self.world.device, self.world.size > 1, config.optimiser.name
        self.sharded = sharded = several and config.distributed == "fsdp"
        if sharded and config.precision == "fp16":
            raise ValueError("train.precision=fp16 does not work with train.distributed=fsdp: use bf16, or ddp")
        if sharded and name in ("muon", "adafactor"):
            raise ValueError(f"train.optimiser.name={name} needs whole matrices: use train.distributed=ddp, or adamw")
        if sharded and any(isinstance(module, nn.RNNBase) for module in model.modules()):
            raise ValueError("train.distributed=fsdp cannot share out PyTorch's recurrent cells: use ddp")
        self._low = PRECISIONS[config.precision]
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._lend = device.type == "cpu" and not config.compile
        if self._lend:
            lend(model)
        twice = RECOMPUTED[config.recompute](model)
        if config.recompute != "nothing" and not twice:
            raise ValueError(f"train.recompute={config.recompute}: a {type(model).__name__} model has no such part")
        recompute(twice)
        for layer in layers_of(model) if config.compile else ():
            layer.compile(dynamic=True)
        # Shares cannot be used outside of a training step: the first process judges a model of its own, which has the
        # very tensors of this one as it was built. Those lie on the disk if it was built `OnDisk`.
        tensors = [*model.parameters(), *model.buffers()] if sharded and self.world.main else []
        self._replica = copy.deepcopy(model, {id(x): x for x in tensors}).to(device) if tensors else None
        self._objective = share(objective.to(device), config.distributed, self.world)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = build(model, config.optimiser)
        self.average = Average(model, config.ema) if config.ema else None
        # An accelerator, a compiled model and PyTorch's own data parallelism each share the work out by themselves.
        alone = device.type != "cpu" or several or config.compile or not objective.separable
        if config.accumulate > 1 and not objective.separable:
            raise ValueError(f"train.accumulate = {config.accumulate}: this objective looks at a whole batch at once")
        self._shards = Shards(1 if alone else config.shards, lend=self._lend)
        self.shards = None if alone else self._shards.count
        # What a process saves by its share is not to be lost to the heap.
        keep_freed_memory(LITTLE if sharded else heap_for(sum(p.numel() for p in model.parameters())))

    def __enter__(self) -> "Learner":
        return self

    def __exit__(self, *error: object) -> None:
        self._shards.__exit__(None, None, None)

    def step(self, parts: Sequence[Batch], tokens: int) -> Report:
        """Learn from one batch, given as the parts that this process works on, one after the other.

        `tokens` counts the labels of the whole batch, of all parts and all processes. A part that counts for nothing
        adds nothing.
        """
        start, step = time.perf_counter(), self.steps + 1
        torch.manual_seed(int(np.random.SeedSequence([self.config.seed, step, self.world.rank]).generate_state(1)[0]))
        self.model.train()
        total = 0.0
        for i, part in enumerate(parts):
            with not_yet(self._objective, more=i + 1 < len(parts)):
                total += self._backward(part.to(self.world.device), tokens)
        loss = self.world.sums(total)[0] / tokens
        for p in self._held if step <= (self.config.thaw or 0) else ():
            p.grad = None
        self._scaler.unscale_(self.optimiser)
        norm = float(whole(nn.utils.clip_grad_norm_(self.parameters, self.config.clip or math.inf)))
        overflow = self._scaler.is_enabled() and self._scaler.get_scale() >= 1.0  # of the gradient: its business
        if not math.isfinite(loss) or (not math.isfinite(norm) and not overflow):
            self.optimiser.zero_grad()
            raise DivergedError(f"step {step}: the loss is {loss:g} and its gradient's norm {norm:g}")
        rate = self.schedule(step) * self.damping
        set_learning_rate(self.optimiser, rate)
        self._scaler.step(self.optimiser)  # which leaves a step out if fp16 overflowed in it
        self._scaler.update()
        self.optimiser.zero_grad()
        if self.average is not None:
            self.average.update(self.model)
        self.steps = step
        return Report(step, loss, rate, norm, tokens, time.perf_counter() - start)

    def _backward(self, batch: Batch, tokens: int) -> float:
        """Σ loss over the labels of `batch`; its gradient, over all `tokens`, is added to the parameters'."""

        def loss_of(**rows: Tensor) -> Tensor:
            with self._cast():
                loss: Tensor = self._objective(**rows)
            return loss if batch.count else 0.0 * loss

        if self.world.size > 1:
            with lending(kernels() if self._lend else None):  # for the way back as well: it may compute layers anew
                loss = loss_of(**batch.tensors)
                # DDP and FSDP take the mean over processes; the sum is meant.
                self._scaler.scale(loss * (self.world.size / tokens)).backward()
            return loss.item()
        loss = self._shards.backward(
            lambda **rows: self._scaler.scale(loss_of(**rows) / tokens), self.parameters, batch.tensors
        )
        return loss.item() * tokens / self._scaler.get_scale()

    def _cast(self) -> AbstractContextManager[Any]:
        if self._low is torch.float32:
            return nullcontext()
        return torch.autocast(self.world.device.type, self._low)

    def sound(self) -> bool:
        """Whether all parameters are numbers, in every process."""
        held = (p if (shares := parted(p)) is None else shares.to_local() for p in self.parameters)
        broken = any(not torch.isfinite(x).all() for x in held)
        return not self.world.sums(broken)[0]

    @contextmanager
    def evaluated(self) -> Iterator[nn.Module]:
        """The model as it is to be judged: in eval mode, averaged if an average is kept; all processes ask together.

        If each of them has a share of it, it is for the first one alone, and made whole a tensor at a time."""
        if self.sharded:
            replica = {} if self._replica is None else own(self._replica)
            averages = {} if self.average is None else self.average.parameters
            for name, tensor in own(self.model).items():
                now = whole(averages.get(name, tensor).detach())
                if self._replica is not None:
                    replica[name].detach().copy_(now)
            yield (self.model if self._replica is None else self._replica).eval()
        else:
            with self.average.swapped(self.model) if self.average is not None else nullcontext():
                yield self.model.eval()

    def state(self) -> dict[str, Any]:
        """Everything the next steps depend on; tensors of which each process has a share are such."""
        return {
            "step": self.steps,
            "damping": self.damping,
            "model": parameters_of(self.model),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self._scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Become what `state`, of whole tensors, describes."""
        self.steps, self.damping = state["step"], state["damping"]
        load_parameters(self.model, state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        for parameter, slots in self.optimiser.state.items():
            for key, value in slots.items():
                if not isinstance(value, Tensor):
                    continue
                if value.shape == parameter.shape:
                    slots[key] = like(value, parameter)
                elif value.shape == _slot(key, parameter):
                    slots[key] = value.clone()
                else:
                    raise ValueError(f"{key!r} of the optimiser is {tuple(value.shape)} for {tuple(parameter.shape)}")
        self._scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            kept, saved = self.average.parameters, state["average"]
            shares = {name: like(tensor, kept[name]) for name, tensor in saved["parameters"].items()}
            self.average.load_state_dict({**saved, "parameters": shares})


def _slot(key: str, parameter: Tensor) -> tuple[int, ...]:
    """The shape of what an optimiser keeps for a parameter under a name, where it is not the parameter's own."""
    shape = tuple(parameter.shape)
    return {"row": shape[:-1], "column": (*shape[:-2], *shape[-1:])}.get(key, ())


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers, each once even if it has several names; of one that adds to another, what it
    adds."""
    return {name: tensor.detach() for name, tensor in own(model).items()}


def load_parameters(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put tensors of `parameters_of` into a model."""
    known = own(model)
    shapes = {name: tensors[name].shape for name in tensors.keys() & known.keys()}
    wrong = [name for name in tensors if name not in known or shapes[name] != known[name].shape]
    wrong += [name for name, _ in model.named_parameters() if name in known and name not in tensors]
    if wrong:
        raise ValueError(f"these are parameters of another model: {wrong[0]!r} does not fit")
    with torch.no_grad():
        for name, tensor in tensors.items():
            known[name].copy_(like(tensor, known[name]))


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    schedule: Callable[[int], float],
    *,
    seed: int = 0,
    smoothing: float = 0.1,
    shards: int | None = None,
    device: torch.device | str = CPU,
) -> Iterator[Report]:
    """Train on each batch in turn with the paper's Adam (§5.3): for data that is never the same twice.

    The model moves to the device and stays there.
    """
    config = TrainConfig(steps=1, seed=seed, optimiser=OptimiserConfig("adam"), smoothing=smoothing, shards=shards)
    with Learner(NextToken(model, smoothing), schedule, config, World(device=torch.device(device))) as learner:
        for batch in batches:
            yield learner.step([batch], batch.count)
