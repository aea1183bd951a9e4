"""Attention is not explanation: how far it goes along with what a prediction hangs on (Jain & Wallace, 2019).

For each token that a model predicts, its source tokens are ranked in three ways: by the mean of all cross-attention; by
the gradient of the prediction; and by what becomes of the prediction without the token. Kendall's τ says how alike two
rankings are: 1 the same, 0 unrelated, -1 reversed.

Letters: B batch, S source length, T target length, n source tokens that are words or parts of them.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.losses import token_log_probabilities
from regard.core.quantised import is_quantised
from regard.core.stems import Embedding
from regard.inspection.alignment import source_attention


class Agreement(NamedTuple):
    """τ of two rankings: the mean over steps, and each step's.

    None where there is nothing to rank: fewer than two tokens, or all of them alike.
    """

    tau: float | None
    steps: tuple[float | None, ...]


class Faithfulness(NamedTuple):
    """How far attention goes along with two other measures of importance."""

    gradient: Agreement
    leave_one_out: Agreement


def kendall(a: Tensor, b: Tensor) -> float | None:
    """Kendall's τ_b of two rankings (n,): concordant less discordant pairs, over the pairs that are no ties.

    >>> kendall(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
    0.3333333333333333
    >>> kendall(torch.tensor([1.0, 2.0]), torch.tensor([5.0, 5.0])) is None
    True
    """
    over_a, over_b = ((x[:, None] - x).sign().double() for x in (a, b))
    untied = float((over_a.square().sum() * over_b.square().sum()).sqrt())
    return float((over_a * over_b).sum()) / untied if untied else None


def faithfulness(
    model: nn.Module,
    source: Tensor,
    target: Tensor,
    predicted: Sequence[int],
    special: Collection[int],
    *,
    tokens: int = 2048,
) -> Faithfulness:
    """How faithful the mean cross-attention of an encoder-decoder is, for one pair of sentences.

    source (1, S) and target (1, T) as the model reads them, the start symbol first; `predicted` are the T ids that
    follow. `special` ids of the source are left out. About so many `tokens` are computed side by side.
    """
    content = [j for j, token in enumerate(source[0].tolist()) if token not in special]
    if not content:
        nothing = Agreement(None, (None,) * len(predicted))
        return Faithfulness(nothing, nothing)
    attended = source_attention(model, {"source": source, "target": target})[0][:, content].cpu()  # (T, n)
    rows = max(1, tokens // (source.shape[1] + target.shape[1]))
    slopes = gradients(model, source, target, predicted, rows=rows)[:, content]
    changes = leave_one_out(model, source, target, predicted, content, rows=rows)
    return Faithfulness(_agreement(attended, slopes), _agreement(attended, changes))


def _agreement(attended: Tensor, found: Tensor) -> Agreement:
    """Of two measures of each step's tokens, (T, n)."""
    steps = tuple(map(kendall, attended, found))
    known = [tau for tau in steps if tau is not None]
    return Agreement(sum(known) / len(known) if known else None, steps)


@torch.enable_grad()
def gradients(model: nn.Module, source: Tensor, target: Tensor, predicted: Sequence[int], *, rows: int = 32) -> Tensor:
    """|∂ log p(predicted_t) / ∂ e_j · e_j| for each step t and source token j of embedding e_j: (T, S), on the CPU.

    That is the size of the derivative by "how much of token j is there". `rows` steps are computed side by side.
    """
    if is_quantised(model):
        raise ValueError("a model of whole numbers has no gradient: load it with precision='fp32'")
    labels = torch.tensor(list(predicted), device=target.device)
    found = []
    for steps in torch.arange(len(labels), device=target.device).split(rows):
        # One row of a batch for each step: a single backward pass then keeps their gradients apart.
        with _source_vectors(model) as vectors:
            memory = model.encode(source.expand(len(steps), -1))  # type: ignore[operator]
        logits = model.decode(target.expand(len(steps), -1), memory)  # type: ignore[operator]
        log_p = logits[range(len(steps)), steps].float().log_softmax(-1)  # (rows, V)
        (gradient,) = torch.autograd.grad(log_p[range(len(steps)), labels[steps]].sum(), vectors)
        found.append((gradient * vectors[0]).sum(-1).abs().detach().cpu())  # (rows, S)
    return torch.cat(found)


@torch.inference_mode()
def leave_one_out(
    model: nn.Module,
    source: Tensor,
    target: Tensor,
    predicted: Sequence[int],
    content: Sequence[int],
    *,
    rows: int = 32,
) -> Tensor:
    """|Δ log p(predicted_t)| if the source is without token j, for each j in `content`: (T, n), on the CPU."""
    labels = torch.tensor(list(predicted), device=target.device)

    def log_p(sources: Tensor) -> Tensor:
        inputs = {"source": sources, "target": target.expand(len(sources), -1)}
        return token_log_probabilities(model, inputs, labels.expand(len(sources), -1), ignore=-1).cpu()  # (rows, T)

    keep = ~torch.eye(source.shape[1], dtype=torch.bool, device=source.device)[list(content)]  # (n, S)
    without = source.expand(len(content), -1)[keep].unflatten(0, (len(content), -1))  # (n, S - 1)
    return (log_p(source) - torch.cat([log_p(some) for some in without.split(rows)])).abs().T


@contextmanager
def _source_vectors(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, what is looked up for tokens is a leaf of the graph, and in the list: the vectors (B, S, d)."""
    vectors: list[Tensor] = []

    def leaf(_: nn.Module, __: object, out: Tensor) -> Tensor:
        vectors.append(out.detach().requires_grad_())
        return vectors[-1]

    # A table that source and target share is one module, and must be watched once.
    tables = {id(m.tokens): m.tokens for m in model.modules() if isinstance(m, Embedding)}.values()
    hooks = [table.register_forward_hook(leaf) for table in tables]
    try:
        yield vectors
    finally:
        for hook in hooks:
            hook.remove()
