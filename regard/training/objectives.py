"""What training minimises. Letters: B batch, T length of what is said, C classes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.losses import linear_cross_entropy, linear_log_likelihood
from regard.core.quantised import whole_matrix
from regard.data.vocabulary import PAD
from regard.training.distributed import gathered

IGNORE = -100  # a label that does not count
CRITIC, MAPS = SCAFFOLDS = ("critic", "maps")  # children of a model that only serve to teach it


class Objective(nn.Module):
    """Σ loss over the labels of a batch, whose tensors it takes by name.

    A sum, not a mean: what adds up over micro-batches, threads and processes. Divide it by the labels of the step.
    """

    separable: bool = True  # the sum over a batch is that over its rows: no shard or process changes it

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def scaffold(model: Any, name: str, module: nn.Module) -> None:
    """Put up something that learns along with a model, is checkpointed with it, and is no part of it in the end."""
    model.add_module(name, module.to(next(model.parameters()).device))
    if (base := getattr(model, "base", None)) is not None:
        model.base = base._replace(own=base.own | {f"{name}.{key}" for key in module.state_dict()})


class Logits(NamedTuple):
    """What a model says: logits (..., C), or, with a weight, that of which they are the last product."""

    hidden: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    features: Tensor | None = None  # of all places, if more is to be told of them


class Telling(Objective):
    """An objective of tokens or classes, in two steps: what is `said`, which another model may be asked as well, and
    what that is `worth`."""

    def forward(self, labels: Tensor, relation: Tensor | None = None, **inputs: Tensor) -> Tensor:
        """labels, relation (B,) -> a number."""
        return self.worth(self.said(self.model, labels, **inputs), labels, relation)

    def said(self, model: Any, labels: Tensor, **inputs: Tensor) -> Logits:
        """What a model says, where these labels ask it."""
        raise NotImplementedError

    def worth(self, said: Logits, labels: Tensor, relation: Tensor | None = None) -> Tensor:
        """Σ loss over the labels."""
        raise NotImplementedError


class NextToken(Telling):
    """The cross-entropy of each label (B, T), given what a model has read (§5.4): translation, a language model,
    captions.

    The model has features(**inputs) (B, T, d), and the output layer that turns them into logits. Labels that are
    `ignore` do not count.
    """

    def __init__(self, model: Any, smoothing: float = 0.0, ignore: int = PAD) -> None:
        super().__init__(model)
        self.smoothing, self.ignore = smoothing, ignore

    def said(self, model: Any, labels: Tensor, **inputs: Tensor) -> Logits:
        hidden, weight, bias = model.features(**inputs), whole_matrix(model.output), model.output.bias
        if torch.is_autocast_enabled(hidden.device.type):
            low = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight, bias = hidden.to(low), weight.to(low), None if bias is None else bias.to(low)
        return Logits(hidden, weight, bias)

    def worth(self, said: Logits, labels: Tensor, relation: Tensor | None = None) -> Tensor:
        assert said.weight is not None
        how = {"bias": said.bias, "smoothing": self.smoothing, "ignore": self.ignore}
        return linear_cross_entropy(said.hidden, said.weight, labels, **how)  # type: ignore[arg-type]


class Masked(NextToken):
    """The tokens that were hidden from a model (BERT), and, if its head says it, what two sentences have to do with
    each other: that counts as much as all the tokens of its row."""

    def said(self, model: Any, labels: Tensor, **inputs: Tensor) -> Logits:
        """Of the N places that were hidden."""
        features, head = model.features(**inputs), model.output
        h = features[labels != self.ignore]
        low = torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype
        h = head.before(h) if hasattr(head, "before") else h
        bias = None if head.bias is None else head.bias.to(low)
        return Logits(h.to(low), whole_matrix(head).to(low), bias, features)

    def worth(self, said: Logits, labels: Tensor, relation: Tensor | None = None) -> Tensor:
        hidden = labels != self.ignore
        loss = super().worth(said, labels[hidden])
        if relation is None:
            return loss
        model: Any = self.model
        each = F.cross_entropy(model.output.relation(said.features).float(), relation, reduction="none")
        return loss + (each * hidden.sum(1)).sum()


class Labelled(Telling):
    """What something is: one class of several, those of several that apply, or a number; of a text, or of each token.

    labels (B,) or (B, T) of classes, or (B, C) their shares; (B, C) of zeros and ones; (B,) of numbers. A class that is
    IGNORE does not count, be it the one or one of several.
    """

    def __init__(self, model: nn.Module, kind: str = "one", smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.kind, self.smoothing = kind, smoothing

    def said(self, model: Any, labels: Tensor, **inputs: Tensor) -> Logits:
        return Logits(model(**inputs).float())

    def worth(self, said: Logits, labels: Tensor, relation: Tensor | None = None) -> Tensor:
        z = said.hidden
        if self.kind == "several":
            z, labels = (z, labels) if (known := labels != IGNORE).all() else (z[known], labels[known])
            return F.binary_cross_entropy_with_logits(z, labels.float(), reduction="sum")
        if self.kind == "number":
            return F.mse_loss(z[..., 0], labels.float(), reduction="sum")
        if labels.is_floating_point():  # shares of several classes
            return F.cross_entropy(z, labels, reduction="sum", label_smoothing=self.smoothing)
        return F.cross_entropy(
            z.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=IGNORE, label_smoothing=self.smoothing
        )


class CTC(Objective):
    """What is said along a sound, wherever in it: the sum over all ways in which the labels may lie along the
    positions, between blanks (CTC; Graves et al., 2006). Labels that are `blank` do not count."""

    def __init__(self, model: nn.Module, blank: int = PAD) -> None:
        super().__init__(model)
        self.blank = blank

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        """labels (B, L), filled up with blanks -> a number."""
        log_p = self.model(**inputs).float().log_softmax(-1).transpose(0, 1)  # (T, B, V)
        sizes = (labels != self.blank).sum(1)
        whole = torch.full_like(sizes, len(log_p))
        return F.ctc_loss(log_p, labels, whole, sizes, blank=self.blank, reduction="sum")


class Spans(Objective):
    """Where something begins and ends: two choices among the places of a row."""

    def forward(self, labels: Tensor, keep: Tensor, **inputs: Tensor) -> Tensor:
        """labels (B, 2), keep (B, T) -> a number."""
        said = self.model(keep=keep, **inputs).float().masked_fill(~keep[:, :, None], float("-inf"))  # (B, T, 2)
        return F.cross_entropy(said, labels, reduction="sum") / 2


class Contrastive(Objective):
    """Which of all second texts belongs to each first one (InfoNCE): those of other rows are wrong, and so are hard
    negatives, if there are any. It looks at a whole batch, of all processes, at once."""

    separable = False

    def __init__(self, model: nn.Module, scale: float = 20.0) -> None:
        super().__init__(model)
        self.scale = scale

    def forward(self, tokens: Tensor, keep: Tensor, group: Tensor) -> Tensor:
        """tokens (N, T) of all texts; group (N,): 0 a first text, 1 its second, 2 a negative -> a number."""
        vectors = _directions(self.model(tokens=tokens, keep=keep))
        first = vectors[group == 0]
        others, before = gathered(torch.cat([vectors[group == 1], vectors[group == 2]]))
        if not (group == 1).any():  # a process that is left without rows keeps step with the others
            return 0.0 * (vectors.sum() + others.sum())
        labels = before + torch.arange(len(first), device=first.device)
        with torch.autocast(first.device.type, enabled=False):  # 20 times a cosine in bf16 has steps of an eighth
            return F.cross_entropy(self.scale * first @ others.T, labels, reduction="sum")


class Matched(Objective):
    """Which of all texts belongs to each picture, and which of all pictures to each text (Radford et al., 2021): half a
    choice each. It looks at a whole batch, of all processes, at once; how sharp the choice is, the model has learnt."""

    separable = False
    sharpest = math.log(100)

    def forward(self, pixels: Tensor, tokens: Tensor, keep: Tensor, row: Tensor) -> Tensor:
        """pixels (B, C, H, W), tokens (B, T) of the texts, keep (B, T), row (B,) a number of its own -> a number.

        What a process is given that is left without rows has the number of another: it is told from nothing.
        """
        model: Any = self.model
        with torch.no_grad():
            model.sharpness.clamp_(max=self.sharpest)
        seen, read = map(_directions, model.features(pixels, tokens, keep))
        (pictures, before), (texts, _), (rows, _) = gathered(seen), gathered(read), gathered(row)
        here = torch.arange(len(rows), device=row.device)
        again = (rows[:, None] == rows).int().argmax(0) != here
        labels = here[before : before + len(row)]
        with torch.autocast(seen.device.type, enabled=False):  # in bf16 a hundred times a cosine has steps of a half
            scale = model.sharpness.to(seen.dtype).exp()
            sides = ((seen, texts), (read, pictures))
            logits = torch.stack([(scale * a @ b.T).masked_fill(again, float("-inf")) for a, b in sides])
            loss = F.cross_entropy(logits.flatten(0, 1), labels.repeat(2), reduction="none") / 2
            return loss.masked_fill(again[labels].repeat(2), 0.0).sum()


class Alike(Objective):
    """How alike two texts are: the cosine of their vectors is to be the label, from 0 to 1."""

    separable = False

    def forward(self, labels: Tensor, tokens: Tensor, keep: Tensor, group: Tensor) -> Tensor:
        """labels (N,), of which the first are those of the pairs; tokens, keep and group as above -> a number."""
        vectors = _directions(self.model(tokens=tokens, keep=keep))
        first, second = vectors[group == 0], vectors[group == 1]
        return F.mse_loss((first * second).sum(-1), labels[: len(first)].float(), reduction="sum")


def _directions(x: Tensor) -> Tensor:
    """Vectors of length one, in fp32 or better."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


class Preferred(Objective):
    """Which of two texts is better (Bradley and Terry, 1952): a head of one number tells more of the chosen one, by a
    margin if there is one. `centre` keeps the two around zero: so many times the square of their sum is added."""

    def __init__(self, model: nn.Module, centre: float = 0.0) -> None:
        super().__init__(model)
        self.centre = centre

    def forward(self, margin: Tensor, **inputs: Tensor) -> Tensor:
        """margin (B,); inputs (B, 2, T), of which the first is the chosen one -> a number."""
        said = self.model(**{name: x.flatten(0, 1) for name, x in inputs.items()}).float()
        chosen, rejected = said.view(len(margin), 2).unbind(1)
        return (-F.logsigmoid(chosen - rejected - margin) + self.centre * (chosen + rejected) ** 2).sum()


class Pairs(NamedTuple):
    """What a policy says of the chosen and the rejected answer of each pair: (B,) each."""

    chosen: Tensor  # log p of all its tokens
    rejected: Tensor
    chosen_size: Tensor  # how many there are
    rejected_size: Tensor
    chosen_before: Tensor  # log p that the reference has given it
    rejected_before: Tensor

    @property
    def gains(self) -> tuple[Tensor, Tensor]:
        """By how much each has become likelier than it was."""
        return self.chosen - self.chosen_before, self.rejected - self.rejected_before

    @property
    def lead(self) -> Tensor:
        """By how much more the chosen one has."""
        chosen, rejected = self.gains
        return chosen - rejected

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """log p of a token of each."""
        return self.chosen / self.chosen_size, self.rejected / self.rejected_size


def _decided(x: Tensor, eps: float) -> Tensor:
    """-log σ(x), where a pair is the wrong way round with probability ε."""
    return -F.logsigmoid(x) * (1 - eps) - F.logsigmoid(-x) * eps


def _ipo(p: Pairs, beta: float) -> Tensor:
    chosen, rejected = p.gains
    return (chosen / p.chosen_size - rejected / p.rejected_size - 0.5 / beta) ** 2


def _exo(p: Pairs, beta: float, eps: float) -> Tensor:
    x = beta * p.lead
    each = ((x, math.log1p(-eps)), (-x, math.log(eps)))
    return sum((torch.sigmoid(z) * (F.logsigmoid(z) - log_p) for z, log_p in each), torch.zeros_like(x))


def _nca(c: Tensor, r: Tensor) -> Tensor:
    return -F.logsigmoid(c) - 0.5 * F.logsigmoid(-c) - 0.5 * F.logsigmoid(-r)


def _kto(p: Pairs, beta: float) -> Tensor:
    (c, r), (kl_c, kl_r) = p.gains, (x.detach().mean().clamp(min=0) for x in p.gains)
    return (2 - torch.sigmoid(beta * (c - kl_r)) - torch.sigmoid(beta * (kl_c - r))) / 2


def _orpo(p: Pairs, beta: float) -> Tensor:
    odds = [x - torch.log(-torch.expm1(x)) for x in p.means]
    return -beta * F.logsigmoid(odds[0] - odds[1])


# Each pair's loss, by name: of what is said, β, the margin γ and the chance ε that a pair is the wrong way round.
PREFERENCES: dict[str, Callable[[Pairs, float, float, float], Tensor]] = {
    "dpo": lambda p, beta, gamma, eps: _decided(beta * p.lead, eps),
    "robust": lambda p, beta, gamma, eps: (
        (eps * F.logsigmoid(-beta * p.lead) - (1 - eps) * F.logsigmoid(beta * p.lead)) / (1 - 2 * eps)
    ),
    "hinge": lambda p, beta, gamma, eps: torch.relu(1 - beta * p.lead),
    "ipo": lambda p, beta, gamma, eps: _ipo(p, beta),
    "exo": lambda p, beta, gamma, eps: _exo(p, beta, eps),
    "nca": lambda p, beta, gamma, eps: _nca(*(beta * x for x in p.gains)),
    "bco": lambda p, beta, gamma, eps: -F.logsigmoid(beta * p.gains[0]) - F.logsigmoid(-beta * p.gains[1]),
    "sppo": lambda p, beta, gamma, eps: (p.gains[0] - 0.5 / beta) ** 2 + (p.gains[1] + 0.5 / beta) ** 2,
    "kto": lambda p, beta, gamma, eps: _kto(p, beta),
    "apo-zero": lambda p, beta, gamma, eps: torch.sigmoid(-beta * p.gains[0]) + torch.sigmoid(beta * p.gains[1]),
    "apo-down": lambda p, beta, gamma, eps: torch.sigmoid(beta * p.gains[0]) + torch.sigmoid(-beta * p.lead),
    "cpo": lambda p, beta, gamma, eps: _decided(beta * (p.chosen - p.rejected), eps),
    "simpo": lambda p, beta, gamma, eps: _decided(beta * (p.means[0] - p.means[1]) - gamma, eps),
    "orpo": lambda p, beta, gamma, eps: _orpo(p, beta),
}
ALONE = ("cpo", "simpo", "orpo")  # these ask no reference
IMITATE = {"cpo": 1.0, "orpo": 1.0}  # and these teach the chosen answer as well


class Likelier(Objective):
    """Of two answers the chosen one is to become likelier than the rejected one, beside what a reference, the model as
    it was, has said of both (Rafailov et al., 2023), or without one. log p is found in blocks of logits."""

    def __init__(
        self, model: nn.Module, loss: str, beta: float, gamma: float = 0.0, smoothing: float = 0.0, imitate: float = 0.0
    ) -> None:
        super().__init__(model)
        self.of, self.how, self.imitate = PREFERENCES[loss], (beta, gamma, smoothing), imitate
        self.separable = loss != "kto"  # which looks at the mean of a batch

    def forward(self, tokens: Tensor, labels: Tensor, reference: Tensor) -> Tensor:
        """tokens, labels (B, 2, T), the first the chosen one; reference (B, 2) -> a number."""
        pairs = answers(self.model, tokens, labels, reference)
        return (self.of(pairs, *self.how) - self.imitate * pairs.means[0]).sum()


def answers(model: Any, tokens: Tensor, labels: Tensor, reference: Tensor) -> Pairs:
    """What a model says of the answers of some pairs: tokens, labels (B, 2, T), reference (B, 2)."""
    y = labels.flatten(0, 1)
    count = y != IGNORE
    each = likelihood(model, model.features(tokens=tokens.flatten(0, 1)), y)
    sums = each.new_zeros(len(y)).index_add(0, count.nonzero()[:, 0], each).view(-1, 2)
    return Pairs(*sums.unbind(1), *count.sum(1).clamp(min=1).view(-1, 2).unbind(1), *reference.unbind(1))


def likelihood(model: Any, hidden: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """log p of each label that counts, (N,), told from features (B, T, d); logits are divided by the temperature."""
    count, weight, bias = labels != IGNORE, whole_matrix(model.output), model.output.bias
    if torch.is_autocast_enabled(hidden.device.type):
        low = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(low), weight.to(low), None if bias is None else bias.to(low)
    if temperature != 1.0:
        hidden, bias = hidden / temperature, None if bias is None else bias / temperature
    return linear_log_likelihood(hidden[count], weight, labels[count], bias)
