"""What a student learns from a teacher beside its labels (Hinton et al., 2015): how likely that holds each class or
token, and, if layers are named, what it makes of a text on the way (Romero et al., 2015).

Letters: B batch, T places, N labels that count, C classes or tokens, p of the teacher, q of the student, τ temperature.
The loss of a label is (1 - share) of its own and share · τ² KL(p || q), both of logits over τ; the square keeps the
size of the gradient. A DeiT has a token for that, which learns the class that the teacher finds likeliest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.checks import above, at_least, share
from regard.core.blocks import layers_of
from regard.core.generation import EncoderDecoder
from regard.core.losses import BLOCK
from regard.training.objectives import IGNORE, MAPS, Logits, Objective, Telling, scaffold

SIDES = ("student", "teacher")


@dataclass(frozen=True)
class DistilConfig:
    """What a model learns from another one."""

    teacher: str | None = None  # its model directory; left out: labels are all that is learnt from
    share: float = 0.5  # of the teacher in the loss: 0 is none, 1 leaves nothing to the labels
    temperature: float = 2.0  # logits are divided by it: the higher, the more is learnt of what is unlikely
    layers: tuple[tuple[int, int], ...] = ()  # [of the student, of the teacher], from 1: these states, too
    hidden: float = 1.0  # how much that counts: so many times the mean squared error

    def __post_init__(self) -> None:
        share(whole=True, **{"distil.share": self.share})
        above(0, **{"distil.temperature": self.temperature})
        at_least(0, **{"distil.hidden": self.hidden})


def soft(z: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Σ τ² KL(p || q) over all rows of logits, of the student and of the teacher: (..., C) each."""
    exact = torch.promote_types(z.dtype, torch.float32)
    log_q, log_p = (F.log_softmax(x.to(exact) / temperature, -1) for x in (z, taught))
    return temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)


class Watched(local):
    """What some layers have made of a batch, while somebody asks; each thread has its own."""

    noted: dict[tuple[int, int], Tensor] | None = None

    def __deepcopy__(self, memo: Any) -> "Watched":
        return self  # nobody asks a copy of a model

    def watch(self, side: int, model: nn.Module, layers: Iterable[int]) -> None:
        """Note what these layers make, counted from 1."""
        every = layers_of(model)
        for at in layers:
            if not 1 <= at <= len(every):
                raise ValueError(f"distil.layers: the {SIDES[side]} has layers 1 to {len(every)}, and no {at}")
            every[at - 1].register_forward_hook(partial(_note, self, (side, at)))


def _note(states: Watched, at: tuple[int, int], module: nn.Module, read: Any, made: Tensor) -> None:
    if states.noted is not None:
        states.noted[at] = made


class Distilled(Objective):
    """An objective of tokens or classes, shared with a teacher, who is asked the same without gradients. Of both
    vocabularies the first `size` tokens are the same."""

    own: Any
    teacher: nn.Module

    def __init__(self, own: Objective, teacher: nn.Module, config: DistilConfig, size: int | None = None) -> None:
        student: Any = own.model
        super().__init__(student)
        if not isinstance(own, Telling) or getattr(own, "kind", "") == "number":
            raise ValueError("distil.teacher: this task learns neither classes nor tokens: leave it out")
        # No children: what the objective has of parameters is the student's.
        self.__dict__ |= {"own": own, "teacher": teacher.eval().requires_grad_(False)}
        self.config, self.size, self.states = config, size, Watched()
        if config.layers and isinstance(student, EncoderDecoder):
            raise ValueError("distil.layers: they are of one stack, and this model has two: leave them out")
        for side, model in enumerate((student, teacher)):
            self.states.watch(side, model, {pair[side] for pair in config.layers})
        if config.layers and not hasattr(student, MAPS):
            widths = student.config.d_model, teacher.config.d_model  # type: ignore[union-attr]
            scaffold(student, MAPS, nn.ModuleList(nn.Linear(*widths) for _ in config.layers))  # type: ignore[arg-type]

    def forward(self, labels: Tensor, relation: Tensor | None = None, **inputs: Tensor) -> Tensor:
        """What the objective takes -> a number."""
        own, c, model = self.own, self.config, self.model
        self.states.noted = {}
        with torch.no_grad():
            taught = own.said(self.teacher, labels, **inputs)
        head: Any = model.output
        if getattr(head, "other", None) is not None and own.kind == "one":  # a DeiT
            said, second = head.both(model.features(**inputs))  # type: ignore[operator]
            loss = own.worth(Logits(said.float()), labels)
            learnt = F.cross_entropy(second.float(), taught.hidden.argmax(-1), reduction="sum")
        else:
            said = own.said(model, labels, **inputs)
            loss, learnt = own.worth(said, labels, relation), self._soft(said, taught, labels)
        loss = (1 - c.share) * loss + c.share * learnt
        loss = loss + c.hidden * self._apart(labels, inputs.get("keep")) if c.layers else loss
        self.states.noted = None
        return loss

    def _soft(self, said: Logits, taught: Logits, labels: Tensor) -> Tensor:
        own, tau = self.own, self.config.temperature
        if said.weight is None or taught.weight is None:
            known: Any = slice(None) if labels.is_floating_point() else labels != IGNORE
            z, t = said.hidden[known], taught.hidden[known]
            if own.kind == "several":  # each applies or does not, by itself
                z, t = (torch.stack([x, torch.zeros_like(x)], -1) for x in (z, t))
            return soft(z, t, tau)
        counted = [x.hidden if x.hidden.dim() == 2 else x.hidden[labels != own.ignore] for x in (said, taught)]
        blocks = [x.split(max(1, BLOCK // len(said.weight))) for x in counted]
        total = 0.0 * counted[0].sum()
        for h, t in zip(*blocks, strict=True):  # a block of logits is made anew on the way back, and never all of them
            total = total + checkpoint(self._block, h, said, t, taught, use_reentrant=False, preserve_rng_state=False)
        return total

    def _block(self, h: Tensor, said: Logits, t: Tensor, taught: Logits) -> Tensor:
        logits = []
        for x, (_, weight, bias, _) in ((h, said), (t, taught)):
            assert weight is not None
            logits.append(F.linear(x, weight[: self.size], None if bias is None else bias[: self.size]))
        return soft(logits[0], logits[1], self.config.temperature)

    def _apart(self, labels: Tensor, keep: Tensor | None) -> Tensor:
        """Σ over labels of how far the student's states, each through a map of its own, are from the teacher's: of a
        row the mean over all places that are kept, or else have a label."""
        noted, own, total = self.states.noted or {}, self.own, torch.zeros((), device=labels.device)
        each = labels.dim() == 2 and not labels.is_floating_point() and getattr(own, "kind", "one") == "one"
        counts = labels != getattr(own, "ignore", IGNORE) if each else None
        for there, (ours, theirs) in zip(self.model.maps, self.config.layers, strict=True):  # type: ignore[arg-type]
            x, y = noted[0, ours], noted[1, theirs]
            if x.shape[:2] != y.shape[:2]:
                places = f"a row has {x.shape[1]} places in the student, and {y.shape[1]} in the teacher"
                raise ValueError(f"distil.layers = [{ours}, {theirs}]: {places}: leave them out")
            apart = (there(x).float() - y.float()).square().mean(-1)  # (B, T)
            kept = keep if keep is not None else torch.ones_like(apart, dtype=torch.bool) if counts is None else counts
            row = (apart * kept).sum(1) / kept.sum(1).clamp(min=1)
            total = total + (row if counts is None else row * counts.sum(1)).sum()
        return total
