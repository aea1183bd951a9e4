"""Which heads a model can do without, learned: a gate before each, and a price for every gate that is not shut.

A gate is hard-concrete (Louizos et al., 2018): a number from 0 to 1 that is exactly 0 or 1 with some probability, drawn
so that a gradient reaches log a, which the optimiser moves. Voita et al. (2019) put one on each head of a converged
model; as the price pushes, most of them shut, and little is lost.

Letters: B sentences, H heads, u uniform noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from regard.checks import above, at_least
from regard.core.quantised import is_quantised
from regard.inspection.axes import Taught
from regard.inspection.importance import scaled, sentence_losses
from regard.inspection.taps import attentions, edit

TEMPERATURE = 0.33
LOW, HIGH = -0.1, 1.1  # a gate is stretched to here, then cut to [0, 1]: so 0 and 1 have weight


def draw(log_a: Tensor, u: Tensor) -> Tensor:
    """Gates for noise u in (0, 1): in [0, 1], with a gradient where they are neither.

    >>> draw(torch.tensor([-3.0, 0.0, 3.0]), torch.tensor(0.5)).tolist()
    [0.0, 0.5, 1.0]
    """
    return _stretched(torch.sigmoid((u.logit() + log_a) / TEMPERATURE))


def settled(log_a: Tensor) -> Tensor:
    """The gates without noise, for use."""
    return _stretched(torch.sigmoid(log_a))


def _stretched(s: Tensor) -> Tensor:
    return (s * (HIGH - LOW) + LOW).clamp(0.0, 1.0)


def chance_open(log_a: Tensor) -> Tensor:
    """The probability that a gate that is drawn is not 0: σ(log a - τ ln(0.1/1.1))."""
    return torch.sigmoid(log_a - TEMPERATURE * math.log(-LOW / HIGH))


@dataclass(frozen=True)
class GateConfig:
    """How gates are learned."""

    price: float = 0.02  # λ: nats per label that a head must be worth to stay
    steps: int = 150
    rate: float = 0.2  # of learning, for the gates
    weights_rate: float | None = None  # and for the model's weights, which stay as they are if it is left out
    start: float = 2.0  # log a: nine gates in ten are not shut
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)
        above(0, price=self.price, rate=self.rate, weights_rate=self.weights_rate)


@dataclass(frozen=True)
class GateStep:
    """One step of the learning."""

    loss: float  # of a label, in nats, under the gates drawn
    open: float  # heads, expected


@dataclass(frozen=True, eq=False)
class Gates:
    """What was learned: of each attention by name, and step by step."""

    log_a: dict[str, Tensor]  # (H,): the larger, the more a head is worth
    history: list[GateStep]

    @property
    def shut(self) -> dict[str, list[int]]:
        """The heads whose gates are 0."""
        shut = {name: settled(log_a).eq(0.0).nonzero()[:, 0].tolist() for name, log_a in self.log_a.items()}
        return {name: heads for name, heads in shut.items() if heads}


def learn_gates(model: nn.Module, batches: Sequence[Taught], *, pad: int, config: GateConfig | None = None) -> Gates:
    """Gates for all heads of a trained encoder-decoder, on batches in an order drawn by the seed.

    The model is left as it was, unless `weights_rate` has its weights learn along, in place and with their dropout.
    """
    c = config or GateConfig()
    if is_quantised(model):
        raise ValueError("no gradient flows through whole numbers: load the model with precision fp32")
    if not batches:
        raise ValueError("gates are learned on sentences: there are none")
    known, device, training = attentions(model), batches[0]["labels"].device, model.training
    log_a = {name: torch.full((a.heads,), c.start, device=device, requires_grad=True) for name, a in known.items()}
    adam = torch.optim.Adam(log_a.values(), c.rate, betas=(0.9, 0.98))
    if c.weights_rate is not None:
        adam.add_param_group({"params": [p for p in model.parameters() if p.requires_grad], "lr": c.weights_rate})
    learned = [tensor for group in adam.param_groups for tensor in group["params"]]
    history = []
    model.train(c.weights_rate is not None)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(c.seed)
            order: list[int] = []
            for _ in range(c.steps):
                order = order or torch.randperm(len(batches)).tolist()
                batch = batches[order.pop()]
                # A draw for each sentence: all see other gates, and their mean is a better guide.
                noise = {name: torch.rand(len(batch["labels"]), len(a)).to(device) for name, a in log_a.items()}
                gates = {name: draw(a, noise[name].clamp(1e-6, 1 - 1e-6)) for name, a in log_a.items()}
                with edit(model, {name: partial(scaled, gate) for name, gate in gates.items()}):
                    loss = sentence_losses(model, batch, pad).sum() / (batch["labels"] != pad).sum()
                opened = torch.stack([chance_open(a).sum() for a in log_a.values()]).sum()
                adam.zero_grad()
                (loss + c.price * opened).backward(inputs=learned)
                adam.step()
                history.append(GateStep(loss.item(), opened.item()))
    finally:
        model.train(training)
        adam.zero_grad()
    return Gates({name: a.detach().cpu() for name, a in log_a.items()}, history)
