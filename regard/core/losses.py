"""The loss of §5.4, and the likelihood of each label, without the (tokens x vocabulary) table of logits.

Letters: N tokens, V vocabulary, d width. With logits z = h Wᵀ + b, smoothing ε and label y the loss of a token is

    logsumexp(z) - (1 - ε) z_y - ε mean(z)        and its gradient        softmax(z) - (1 - ε) onehot(y) - ε / V.

The soft-max is the only part that needs every logit. A block of tokens at a time goes through the three products
(logits, gradient of h, gradient of W) in the forward pass while it is in the cache; the backward pass only scales
the result. mean(z) is h · mean(W) + mean(b), and the other two terms of the gradient are sums of rows.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.ways import Ways

BLOCK = 2**22  # logits held at a time


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> Tensor:
    """Σ over tokens of the label-smoothed cross-entropy of softmax(hidden weightᵀ + bias): a number.

    hidden (..., d), weight (V, d), bias (V,), labels (...); labels equal to `ignore` do not count. Divide by the
    number of tokens of the whole step yourself: the sum is what adds up over micro-batches and processes.

    >>> h, w = torch.zeros(3, 4), torch.zeros(10, 4)
    >>> linear_cross_entropy(h, w, torch.tensor([1, 2, 3])).item() / 3  # ln 10
    2.302585...
    """
    V, d = weight.shape if weight.dim() == 2 else (0, 0)
    if V == 0 or hidden.shape != (*labels.shape, d) or (bias is not None and bias.shape != (V,)):
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and labels {tuple(labels.shape)} do not fit: "
            f"they are (..., d), (vocabulary, d) and (...); a bias{'' if bias is None else f' {tuple(bias.shape)}'} is "
            "(vocabulary,)"
        )
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"label smoothing lies in [0, 1), got {smoothing}")
    if hidden.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        kinds = ", ".join(str(x.dtype) for x in (hidden, weight, bias) if x is not None)
        raise ValueError(f"hidden, weight and bias have dtypes {kinds}: convert them to one with .to()")
    if labels.dtype != torch.int64:
        raise ValueError(f"labels are token ids in int64, got {labels.dtype}")
    count = labels != ignore
    y = labels[count]
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(weight):
        raise ValueError(f"labels lie in 0..{len(weight) - 1} (or are {ignore}), got {int(y.min())}..{int(y.max())}")
    if not torch.is_grad_enabled():  # nobody will ask for gradients: do not compute them
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    return _LinearCrossEntropy.apply(hidden[count], weight, bias, y, smoothing)


def linear_log_likelihood(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> Tensor:
    """log p of each label under softmax(hidden weightᵀ + bias), with its gradient: hidden (N, d), weight (V, d), bias
    (V,), labels (N,) -> (N,), in fp32 or more.

    What stands above it may weigh each label, as it only turns out in the end: so the way back computes the logits
    anew, and a block of them at a time is all that is ever held.

    >>> linear_log_likelihood(torch.zeros(2, 4), torch.zeros(10, 4), torch.tensor([1, 2])).exp().round(decimals=3)
    tensor([0.1000, 0.1000])
    """
    return _LinearLogLikelihood.apply(hidden, weight, bias, labels)


class _LinearLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, y: Tensor) -> Tensor:
        exact = torch.promote_types(h.dtype, torch.float32)
        found, every = h.new_empty(len(h), dtype=exact), h.new_empty(len(h), dtype=exact)
        for rows, z in _logits(h, W, b, exact):
            torch.logsumexp(z, 1, out=every[rows])
            found[rows] = z.gather(1, y[rows, None])[:, 0] - every[rows]
        ctx.save_for_backward(h, W, b, y, every)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        h, W, b, y, every = ctx.saved_tensors
        exact = every.dtype
        need_h, need_W, need_b = ctx.needs_input_grad[:3]
        dh = torch.empty_like(h) if need_h else None
        dW = torch.zeros_like(W, dtype=exact) if need_W else None
        db = torch.zeros_like(b, dtype=exact) if need_b else None
        for rows, z in _logits(h, W, b, exact):
            e = z.sub_(every[rows, None]).exp_().neg_()  # onehot - softmax, times what stands above
            e.scatter_add_(1, y[rows, None], torch.ones_like(e[:, :1]))
            e = e.mul_(g[rows, None])
            if db is not None:
                db += e.sum(0)
            e = e.to(h.dtype)
            if dh is not None:
                torch.mm(e, W, out=dh[rows])
            if dW is not None and h.dtype == exact:
                dW.addmm_(e.T, h[rows])
            elif dW is not None:
                dW += e.T @ h[rows]
        return dh, None if dW is None else dW.to(W.dtype), None if db is None else db.to(b.dtype), None


def _logits(h: Tensor, W: Tensor, b: Tensor | None, exact: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """A block of rows, and their logits (n, V), which the next block overwrites."""
    n = max(1, BLOCK // len(W))
    buffer = h.new_empty(min(n, len(h)), len(W))
    for start in range(0, len(h), n):
        rows = slice(start, min(start + n, len(h)))
        z = torch.mm(h[rows], W.T, out=buffer[: rows.stop - start]).to(exact)
        yield rows, z if b is None else z.add_(b)


def label_log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """log p of each label: logits (..., V), labels (...) -> (...), in fp32. What every faster way is held to."""
    z = logits.float()
    return z.gather(-1, labels[..., None])[..., 0] - z.logsumexp(-1)


def logits_in_blocks(
    model: Any, inputs: Mapping[str, Tensor], labels: Tensor, *, ignore: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The logits (n, V) that a model gives for its inputs where labels (B, T) count, and these labels (n,), in order.

    The model has features(**inputs) (B, T, d), and an `output` layer that makes logits of them; so many are held at a
    time as a block has.
    """
    count = labels != ignore
    rows = max(1, BLOCK // len(model.output.weight))
    for h, y in zip(model.features(**inputs)[count].split(rows), labels[count].split(rows), strict=True):
        yield model.output(h), y


def token_log_probabilities(model: Any, inputs: Mapping[str, Tensor], labels: Tensor, *, ignore: int) -> Tensor:
    """log p of each label (B, T), given what a model reads -> (B, T), in fp32; 0 where a label is `ignore`."""
    found = [label_log_probabilities(z, y) for z, y in logits_in_blocks(model, inputs, labels, ignore=ignore)]
    every = torch.zeros(labels.shape, device=labels.device)
    return every.masked_scatter(labels != ignore, torch.cat(found)) if found else every


class LossAndGradients(NamedTuple):
    """A loss and its gradients by h, W and b, as far as they were asked for."""

    loss: Tensor
    h: Tensor | None
    W: Tensor | None
    b: Tensor | None


@Ways
def cross_entropy_in_blocks(
    h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, hit: float, needs: tuple[bool, bool, bool]
) -> LossAndGradients:
    """Σ logsumexp(z) - hit · z_y over tokens, z = h Wᵀ + b, with its gradients by h, W and b where `needs` says."""
    need_h, need_W, need_b = needs
    N, V = len(h), len(W)
    n = max(1, BLOCK // V)
    exact = torch.promote_types(h.dtype, torch.float32)  # exponentials and sums: never in half precision
    buffer = h.new_empty(min(n, N), V)
    dh = torch.empty_like(h, dtype=exact) if need_h else None
    dW = torch.zeros_like(W, dtype=exact) if need_W else None
    db = torch.zeros_like(b, dtype=exact) if need_b and b is not None else None
    loss = h.new_zeros((), dtype=exact)
    for start in range(0, N, n):
        rows = slice(start, start + n)
        x, label = h[rows], y[rows, None]
        z = torch.mm(x, W.T, out=buffer[: len(x)]).to(exact)  # (n, V) logits
        if b is not None:
            z += b
        z_y, top = z.gather(1, label), z.amax(1, keepdim=True)
        e = z.sub_(top).exp_()
        s = e.sum(1, keepdim=True)  # softmax = e / s
        loss += (top + s.log() - hit * z_y).sum()
        e.scatter_add_(1, label, -hit * s)  # s · (softmax - hit · onehot)
        if h.dtype != exact:
            e, s = e.div_(s).to(h.dtype), torch.ones((), dtype=h.dtype, device=h.device)
        if dh is not None:
            dh[rows] = (e @ W) / s
        if dW is not None and h.dtype == exact:
            dW.addmm_(e.T, x / s)
        elif dW is not None:
            dW += e.T @ x
        if db is not None:
            db += (e / s).sum(0)
    return LossAndGradients(loss, dh, dW, db)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, eps: float) -> Tensor:
        loss, dh, dW, db = cross_entropy_in_blocks(h, W, b, y, 1 - eps, ctx.needs_input_grad[:3])
        # The rest, - ε mean(z), and its gradients.
        N, V, exact = len(h), len(W), loss.dtype
        mean_W, mean_b = W.mean(0, dtype=exact), 0.0 if b is None else b.mean(dtype=exact)
        sum_h = h.sum(0, dtype=exact)
        loss = loss - eps * (sum_h @ mean_W + N * mean_b)
        dh = None if dh is None else dh.sub_(eps * mean_W).to(h.dtype)
        dW = None if dW is None else dW.sub_(sum_h * (eps / V)).to(W.dtype)
        db = None if b is None or db is None else db.sub_(eps * N / V).to(b.dtype)
        ctx.save_for_backward(dh, dW, db)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        scale = Tensor.mul if _will_be_back() else Tensor.mul_
        return *(None if d is None else scale(d, g.to(d.dtype)) for d in ctx.saved_tensors), None, None


def _will_be_back() -> bool:
    """Whether the graph is kept for another way back, for all we know: if not, its gradients may be scaled in place."""
    known = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return known is None or bool(known())
