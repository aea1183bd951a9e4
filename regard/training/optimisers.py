"""What makes a step of a gradient: Adam (§5.3), AdamW, Adafactor, Muon; and the moving average of the steps.

Each is a `torch.optim.Optimizer` whose state is tensors and numbers. The learning rate belongs to the schedule: it is 0
until `set_learning_rate`.
"""

import fnmatch
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from regard.checks import above, at_least, one_of, share
from regard.core.added import Added, own
from regard.core.blocks import layers_of
from regard.core.positions import Positions
from regard.core.stems import Convolutions, Frames, ResNet

OPTIMISERS = ("adam", "adamw", "adafactor", "muon")


@dataclass(frozen=True)
class OptimiserConfig:
    """Which optimiser, and all of it but the learning rate; Adam's numbers are the paper's (§5.3)."""

    name: str = "muon"  # adam, adamw, adafactor
    betas: tuple[float, float] = (0.9, 0.98)  # of adam, adamw, and of what muon leaves to Adam
    eps: float = 1e-9  # of the same
    weight_decay: float = 0.0  # of matrices, decoupled from the gradient; not for adam
    momentum: float = 0.95  # of muon
    adam_ratio: float = 0.6  # muon: the learning rate of what Adam trains, as a share of the matrices'
    scale_parameter: bool = False  # adafactor: steps in proportion to the size of the parameter
    relative_step: bool = False  # adafactor: min(0.01, 1/√step) in place of the schedule
    layer_decay: float = 1.0  # adamw: the learning rate of each layer, as a share of that above; 1: all alike

    def __post_init__(self) -> None:
        one_of(OPTIMISERS, optimiser=self.name)
        share(whole=False, momentum=self.momentum, **{f"betas[{i}]": beta for i, beta in enumerate(self.betas)})
        above(0, eps=self.eps, adam_ratio=self.adam_ratio)
        at_least(0, weight_decay=self.weight_decay)
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay = {self.layer_decay}: it is above 0 and at most 1")
        if self.layer_decay != 1 and self.name != "adamw":
            raise ValueError(f"layer_decay = {self.layer_decay} is for adamw: set it to 1 for {self.name}")
        if self.name == "adam" and self.weight_decay:
            raise ValueError(f"weight_decay = {self.weight_decay} does nothing in adam: use adamw, or set it to 0")


def build(model: nn.Module, config: OptimiserConfig) -> torch.optim.Optimizer:
    """The optimiser of everything in `model` that requires a gradient.

    >>> optimiser = build(nn.Linear(3, 2), OptimiserConfig("adamw", weight_decay=0.1))
    >>> [(group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in optimiser.param_groups]
    [(0.1, [(2, 3)]), (0.0, [(2,)])]
    """
    c, trained = config, [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("nothing to train: no parameter of this model requires a gradient")
    if c.name in ("adam", "adamw") and any(p.dtype == torch.float16 for p in trained):  # their state would be, too
        raise ValueError(
            f"fp16 cannot hold the squares of gradients that {c.name} needs: keep parameters in fp32 or bf16"
        )
    if c.name == "adam":
        return torch.optim.Adam(trained, lr=0.0, betas=c.betas, eps=c.eps, fused=True)
    hidden = hidden_matrices(model) if c.name == "muon" else {}
    if c.name == "muon" and not hidden:
        raise ValueError(
            "muon trains the matrices in the layers of a stack, and this model has none to train: use adamw"
        )
    tables = _tables(model)
    rest = [p for p in trained if p not in hidden]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.dim() > 1 and p not in tables], "weight_decay": c.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1 or p in tables], "weight_decay": 0.0},
    ]
    if c.layer_decay != 1:
        groups = [part for group in groups for part in _by_depth(model, group, c.layer_decay)]
    if c.name == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, betas=c.betas, eps=c.eps, fused=True)
    if c.name == "adafactor":
        return Adafactor(groups, scale_parameter=c.scale_parameter, relative_step=c.relative_step)
    return Muon(hidden, groups, c)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the steps to come; a group with a `ratio` gets that share of it."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("ratio", 1.0)


def _by_depth(model: nn.Module, group: dict[str, Any], decay: float) -> Iterator[dict[str, Any]]:
    """The parameters of a group by how deep they lie: embeddings below the first layer, the head above the last."""
    held = [getattr(module, "layers", None) for module in model.modules()]
    stacks = [layers for layers in held if isinstance(layers, nn.ModuleList)]
    top = max(map(len, stacks), default=0) + 1
    depths: dict[Tensor, int] = {p: 0 for p in model.parameters() if p in _tables(model)}
    for stack in stacks:
        for i, layer in enumerate(stack, start=1):
            depths |= {p: i for p in layer.parameters() if p not in depths}
    stem = {
        p for name, p in model.named_parameters() if name.startswith(("stem.", "source_embedding", "target_embedding"))
    }
    for depth in range(top + 1):
        some = [p for p in group["params"] if depths.get(p, 0 if p in stem else top) == depth]
        if some:
            yield {**group, "params": some, "ratio": decay ** (top - depth)}


def named_like(model: nn.Module, patterns: Sequence[str]) -> list[nn.Parameter]:
    """The parameters whose names are like these: stem.*, encoder.layers.[0-3].*

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> [tuple(p.shape) for p in named_like(model, ["0.*"])]
    [(2, 2), (2,)]
    """
    names = dict(model.named_parameters())
    chosen = dict[str, nn.Parameter]()
    for pattern in patterns:
        if not (found := fnmatch.filter(names, pattern)):
            raise ValueError(
                f"train.freeze = {pattern!r}: no parameter is called so; there are {', '.join(list(names)[:3])}, ..."
            )
        chosen |= {name: names[name] for name in found}
    return list(chosen.values())


def _tables(model: nn.Module) -> set[Tensor]:
    """Parameters whose rows are looked up: token embeddings (tied or not) and positions."""
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding | Positions)]
    return {p for module in modules for p in module.parameters()}


def hidden_matrices(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """The matrices that lead from one hidden state to another, each with the heights of those it holds stacked up.

    >>> from regard.core.blocks import Stack
    >>> from regard.core.layers import linear
    >>> model = nn.Sequential(nn.Embedding(9, 4), Stack([linear(4, 4, 2, 2)]), nn.Linear(4, 9))
    >>> list(hidden_matrices(model).values())  # query, key and value
    [(4, 2, 2)]
    """
    # The layers of its stacks are the inside of every model here. What makes words of the last lies outside of them, so
    # this holds for output layers of their own as well as for tied ones, and no name need be known.
    inside = [module for layer in layers_of(model) for module in layer.modules()]
    found = {m.weight: getattr(m, "parts", (m.out_features,)) for m in inside if isinstance(m, nn.Linear)}
    for module in inside:
        if isinstance(module, nn.RNNBase):  # a matrix for each gate: three of a GRU, four of an LSTM
            for weight in (p for p in module.parameters() if p.dim() == 2):
                found[weight] = (module.hidden_size,) * (len(weight) // module.hidden_size)
        elif isinstance(module, Added):
            found |= {matrix: (len(matrix),) for matrix in module.matrices()}
    for stem in (m for m in model.modules() if isinstance(m, Convolutions | Frames | ResNet)):
        kernels = [m.weight for m in stem.modules() if isinstance(m, nn.Conv1d | nn.Conv2d)]
        found |= {kernel: (len(kernel),) for kernel in kernels[1:]}  # the first one reads pixels, or bands of a sound
    tables = _tables(model)
    return {weight: parts for weight, parts in found.items() if weight.requires_grad and weight not in tables}


class _Optimiser(torch.optim.Optimizer):
    """One whose state is in fp32 or better, whatever its parameters are in, and stays so when it is loaded."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()` of the same optimiser, exactly."""
        super().load_state_dict(state_dict)  # it checks, and rounds the state to its parameter's dtype: take it anew
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for name, p in zip(names, parameters, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                self.state[p][key] = value.to(p.device, copy=True) if isinstance(value, Tensor) else value


def _exact(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)


class Adafactor(_Optimiser):
    """Adam without momentum whose second moment of a matrix is a row and a column (Shazeer & Stern 2018).

    A parameter of more dimensions is a batch of matrices, its last two. A matrix costs rows + columns numbers, where
    Adam's costs twice rows · columns.
    """

    def __init__(self, parameters: Any, *, scale_parameter: bool = False, relative_step: bool = False) -> None:
        defaults = {"lr": 0.0, "weight_decay": 0.0, "scale_parameter": scale_parameter, "relative_step": relative_step}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, p.grad.to(_exact(p)), self.state[p], group)

    def _step(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["step"] = 0
            if p.dim() > 1:
                state["row"], state["column"] = g.new_zeros(g.shape[:-1]), g.new_zeros(*g.shape[:-2], g.shape[-1])
            else:
                state["square"] = torch.zeros_like(g)
        state["step"] += 1
        fresh = state["step"] ** -0.8  # the share of this gradient in the moment: all of it at first, ever less
        square = g.square() + 1e-30
        if p.dim() > 1:
            row, column = state["row"].lerp_(square.mean(-1), fresh), state["column"].lerp_(square.mean(-2), fresh)
            update = g * (row / row.mean(-1, keepdim=True)).rsqrt()[..., None] * column.rsqrt()[..., None, :]
        else:
            update = g * state["square"].lerp_(square, fresh).rsqrt()
        x = p.to(g.dtype)
        rate = min(0.01, state["step"] ** -0.5) if group["relative_step"] else group["lr"]
        if group["scale_parameter"]:
            rate = rate * _rms(x).clamp(min=1e-3)  # a parameter of zeros must be able to leave them
        update = update / _rms(update).clamp(min=1.0) + group["weight_decay"] * x
        p.copy_(x - rate * update)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt()


BLOCK = 2**22  # numbers made orthogonal at a time, so that a step needs little memory beside its state


def orthogonalise(x: Tensor) -> Tensor:
    """Each matrix with its singular values brought to about 0.7..1.2: (n, rows, columns >= rows) -> the same.

    A step of Newton and Schulz takes every singular value s to a s + b s³ + c s⁵; these are five.

    >>> lopsided = torch.tensor([[[3.0, 0.0, 0.0], [0.0, 0.1, 0.0]]])
    >>> [round(s, 2) for s in torch.linalg.svdvals(orthogonalise(lopsided))[0].tolist()]
    [1.13, 0.7]
    """
    a, b, c = 3.4445, -4.7750, 2.0315  # steep at 0, at the price of never settling at 1 (Jordan 2024)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(_Optimiser):
    """Momentum whose steps are made orthogonal, for hidden matrices (Jordan 2024); Adam for everything else.

    `hidden` gives each matrix with the heights of those stacked up in it (`hidden_matrices`): a projection to
    queries, keys and values is three. Their steps are scaled by 0.2 √(longer side), to the size of Adam's (Liu et al.
    2025). `rest` are groups of parameters for Adam, at `adam_ratio` times the learning rate.
    """

    def __init__(
        self, hidden: Mapping[Tensor, Sequence[int]], rest: Iterable[dict[str, Any]], config: OptimiserConfig
    ) -> None:
        c, self.parts = config, {p: list(parts) for p, parts in hidden.items()}
        matrices = {"params": list(hidden), "orthogonal": True, "ratio": 1.0}
        others = [{**group, "orthogonal": False, "ratio": c.adam_ratio} for group in rest]
        defaults = {"lr": 0.0, "weight_decay": c.weight_decay, "betas": c.betas, "eps": c.eps, "momentum": c.momentum}
        super().__init__([matrices, *others], defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if group["weight_decay"]:
                for p in trained:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
            (self._orthogonal if group["orthogonal"] else self._adam)(trained, group)

    def _orthogonal(self, trained: list[Tensor], group: dict[str, Any]) -> None:
        # Matrices of one shape, lying or standing, are made orthogonal together: many small products in one large one.
        momentum, batches = group["momentum"], defaultdict(list)
        for p in trained:
            assert p.grad is not None
            g, state, parts = p.grad.to(_exact(p)), self.state[p], self.parts[p]
            if not state:
                state["momentum"] = torch.zeros_like(g)
            m = state["momentum"].lerp_(g, 1 - momentum)
            # Of a kernel a row is what makes one of its channels.
            for matrix in zip(*(x.flatten(1).split(parts) for x in (p.detach(), g, m)), strict=True):
                rows, columns = matrix[0].shape
                key = min(rows, columns), max(rows, columns), g.dtype, g.device
                batches[key].append([x.mT if rows > columns else x for x in matrix])
        for (short, long, *_), batch in batches.items():
            n = max(1, BLOCK // (short * long))
            for some in (batch[i : i + n] for i in range(0, len(batch), n)):
                ahead = torch.stack([g.lerp(m, momentum) for _, g, m in some])  # Nesterov's
                for (weight, _, _), update in zip(some, orthogonalise(ahead), strict=True):
                    weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(long))

    def _adam(self, trained: list[Tensor], group: dict[str, Any]) -> None:
        for p in trained:
            if not self.state[p]:
                zeros = torch.zeros_like(p, dtype=_exact(p))
                step = torch.zeros((), dtype=torch.float32, device=p.device)
                self.state[p] = {"step": step, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        means, squares, steps = ([self.state[p][key] for p in trained] for key in ("exp_avg", "exp_avg_sq", "step"))
        weights = [p.to(_exact(p)) for p in trained]  # the parameters themselves, unless they are in half precision
        gradients = [p.grad.to(_exact(p)) for p in trained if p.grad is not None]
        (beta1, beta2), lr, eps = group["betas"], group["lr"], group["eps"]
        options: dict[str, Any] = {"weight_decay": 0.0, "amsgrad": False, "maximize": False, "fused": True}
        adam(weights, gradients, means, squares, [], steps, beta1=beta1, beta2=beta2, lr=lr, eps=eps, **options)
        for p, weight in zip(trained, weights, strict=True):
            if weight is not p:
                p.copy_(weight)


def _learning(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a model by name; of one that adds to another, those that it adds."""
    return [(name, p) for name, p in own(model).items() if isinstance(p, nn.Parameter)]


class Average:
    """The exponential moving average of a model's parameters; tied ones count once.

    The t-th update keeps the share min(decay, (1 + t) / (10 + t)) of the average, so that the first weights, far from
    good, are soon forgotten. It is held in fp32 or better.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = Average(model, decay=0.99)
    >>> _ = nn.init.zeros_(average.parameters["weight"]), nn.init.ones_(model.weight)
    >>> average.update(model)
    >>> average.parameters["weight"].item()  # 1 - 2/11
    0.818181...
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        share(whole=False, decay=decay)
        self.decay, self.updates = decay, 0
        self.parameters = {name: p.detach().to(_exact(p), copy=True) for name, p in _learning(model)}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the parameters as they are now."""
        self.updates += 1
        keep = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, p in _learning(model):
            mean = self.parameters[name]
            mean.lerp_(p.to(mean.dtype), 1 - keep)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Write the average over a model's parameters."""
        for name, p in _learning(model):
            p.copy_(self.parameters[name])

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """`with average.swapped(model):` the model is the average; afterwards it is itself again, bit for bit."""
        before = [p.detach().clone() for _, p in _learning(model)]
        self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for (_, p), value in zip(_learning(model), before, strict=True):
                    p.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and the averages by name."""
        return {"updates": self.updates, "parameters": dict(self.parameters)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict()` of an average of the same model."""
        given = state_dict["parameters"]
        for name in sorted(given.keys() ^ self.parameters.keys()):
            where = "the saved average" if name in self.parameters else "this model"
            raise ValueError(f"{where} has no parameter {name!r}: was it saved for another model?")
        for name, mean in self.parameters.items():
            if given[name].shape != mean.shape:
                raise ValueError(
                    f"{name} is {tuple(given[name].shape)} in the saved average and {tuple(mean.shape)} in this model"
                )
            mean.copy_(given[name])
        self.updates = state_dict["updates"]
