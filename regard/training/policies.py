"""What a language model learns from answers that it has drawn itself, each of which is worth a number: GRPO and PPO.

Letters: B answers, T places of a row, N tokens of all answers.

An answer that is worth more than was to be expected, its advantage, becomes likelier, the others less so, by no more
than a little at a time: what counts is the ratio r = p / p_drawn, and beyond 1 ± clip it is worth no more. A reference,
the model as it was, holds the leash: to go from it costs beta for each nat.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.training.objectives import CRITIC, IGNORE, Objective, likelihood, scaffold

Floats = NDArray[np.float64]
SCALES = ("group", "batch", "none")
LOSSES = ("grpo", "dapo", "dr_grpo")
TINY = 1e-4
PULL, FAR = 0.1, 0.2  # of Ziegler's controller: how fast it is, and the largest error that it sees


class Critic(nn.Module):
    """Tells at each token of an answer, from what the policy itself makes of it, what is still to be had; and keeps
    what a nat away from the reference costs by now."""

    beta: Tensor

    def __init__(self, width: int, beta: float) -> None:
        super().__init__()
        self.value = nn.Linear(width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (N, d) -> (N,)."""
        return (hidden.float() * self.value.weight).sum(-1) + self.value.bias

    def adapt(self, kl: float, target: float) -> None:
        """Have a nat cost more where answers have gone further than `target`, less where not (Ziegler et al., 2019)."""
        self.beta *= 1 + PULL * min(FAR, max(-FAR, kl / target - 1))


def critic_of(model: Any, beta: float) -> Critic:
    """The critic of a model: a new one, if it has none yet."""
    if not hasattr(model, CRITIC):
        scaffold(model, CRITIC, Critic(model.config.d_model, beta))
    found: Critic = model.critic
    return found


def in_groups(rewards: Floats, scale: str = "group") -> Floats:
    """The advantage of each answer beside the others to its prompt, (prompts, answers): over their deviation, over
    that of all answers, or as it is (Dr. GRPO).

    >>> in_groups(np.array([[1.0, 3.0], [5.0, 5.0]]), "none").tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    gains = rewards - rewards.mean(1, keepdims=True)
    if scale == "none":
        return gains
    spread = rewards.std(1, ddof=1, keepdims=True) if scale == "group" else rewards.std(ddof=1)
    return np.asarray(gains / (spread + TINY))


def in_time(rewards: Floats, values: Floats, gamma: float, lam: float) -> Floats:
    """The advantage of each token of an answer, (T,): what has come of it beside what was foretold (GAE, Schulman et
    al., 2016).

    >>> in_time(np.array([0.0, 1.0]), np.array([0.5, 0.5]), 1.0, 1.0).tolist()
    [0.5, 0.5]
    """
    found, ahead, after = np.zeros_like(values), 0.0, 0.0
    for t in reversed(range(len(values))):
        ahead = rewards[t] + gamma * after - values[t] + gamma * lam * ahead
        found[t], after = ahead, values[t]
    return found


def distance(log_p: Any, reference: Any) -> Any:
    """An estimate of KL(p, reference) at each token that p has drawn: never negative, and right on average (k3)."""
    gap = reference - log_p
    return (torch if isinstance(gap, Tensor) else np).expm1(gap) - gap


class Reinforced(Objective):
    """Answers of a larger advantage are to become likelier. In eval mode: what draws them knows no dropout.

    `whole` takes one ratio for an answer, the mean of its tokens' (GSPO). `corrected`: the cost of the distance is
    taken times the ratio, by which its gradient, too, is right on average. With a `value` above 0 the model has a
    critic, whose error counts so much; it is clipped as the ratio is.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        clip: tuple[float, float] = (0.2, 0.2),
        beta: float = 0.0,
        corrected: bool = False,
        whole: bool = False,
        temperature: float = 1.0,
        value: float = 0.0,
        value_clip: float = 0.2,
    ) -> None:
        super().__init__(model)
        self.clip, self.beta, self.corrected, self.whole = clip, beta, corrected, whole
        self.temperature, self.value, self.value_clip = temperature, value, value_clip

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor,
        weight: Tensor,
        advantages: Tensor,
        drawn: Tensor,
        reference: Tensor,
        values: Tensor | None = None,
        returns: Tensor | None = None,
    ) -> Tensor:
        """All (B, T) but weight (B,), what a token of a row counts; `drawn` and `reference` are log p -> a number."""
        model: Any = self.model.eval()
        count, hidden = labels != IGNORE, model.features(tokens=tokens)
        rows, log_p = count.nonzero()[:, 0], likelihood(model, hidden, labels, self.temperature)
        gone = log_p - drawn[count]
        if self.whole:
            sums = gone.new_zeros(len(labels)).index_add(0, rows, gone)
            gone = (sums / count.sum(1).clamp(min=1))[rows]
        ratio, gain = gone.exp(), advantages[count]
        low, high = self.clip
        loss = -torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + high) * gain)
        if self.beta:
            loss = loss + self.beta * distance(log_p, reference[count]) * (ratio if self.corrected else 1.0)
        if self.value:
            assert values is not None
            assert returns is not None
            told, before, right = model.critic(hidden[count]), values[count], returns[count]
            near = before + (told - before).clamp(-self.value_clip, self.value_clip)
            loss = loss + self.value / 2 * torch.maximum((told - right) ** 2, (near - right) ** 2)
        return (loss * weight[rows]).sum()


def weighed(lengths: NDArray[np.int64], loss: str, limit: int) -> NDArray[np.float32]:
    """What a token of each answer counts in a mean over all tokens of a batch: as much as any other (dapo), less the
    longer its answer is (grpo), or so that no length counts, but the one that an answer may have (dr_grpo).

    >>> weighed(np.array([1, 3]), "grpo", 4).tolist()
    [2.0, 0.6666666865348816]
    """
    each = {"grpo": len(lengths) * lengths, "dapo": lengths.sum(), "dr_grpo": len(lengths) * limit}[loss]
    return np.asarray(lengths.sum() / np.broadcast_to(each, lengths.shape), np.float32)
