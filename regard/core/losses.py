"""The loss of §5.4 without the (tokens x vocabulary) table of logits.

Letters: N tokens, V vocabulary, d width. With logits z = h Wᵀ + b, smoothing ε and label y the loss of a token is

    logsumexp(z) - (1 - ε) z_y - ε mean(z)        and its gradient        softmax(z) - (1 - ε) onehot(y) - ε / V.

The soft-max is the only part that needs every logit. A block of tokens at a time goes through the three products
(logits, gradient of h, gradient of W) in the forward pass while it is in the cache; the backward pass only scales
the result. mean(z) is h · mean(W) + mean(b), and the other two terms of the gradient are sums of rows.
"""

from typing import Any

import torch
from torch import Tensor

BLOCK = 2**23  # logits held at a time


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
    if hidden.shape[:-1] != labels.shape or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and labels {tuple(labels.shape)} do not fit: "
            "they are (..., d), (vocabulary, d) and (...)"
        )
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"label smoothing lies in [0, 1), got {smoothing}")
    if hidden.dtype != weight.dtype:
        raise ValueError(f"hidden is {hidden.dtype} and weight is {weight.dtype}: convert one of them with .to()")
    count = labels != ignore
    y = labels[count]
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(weight):
        raise ValueError(f"labels lie in 0..{len(weight) - 1} (or are {ignore}), got {int(y.min())}..{int(y.max())}")
    if not torch.is_grad_enabled():  # nobody will ask for gradients: do not compute them
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    return _LinearCrossEntropy.apply(hidden[count], weight, bias, y, smoothing)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, eps: float) -> Tensor:
        need_h, need_W, need_b, _, _ = ctx.needs_input_grad
        N, V = len(h), len(W)
        n = max(1, BLOCK // V)
        exact = torch.promote_types(h.dtype, torch.float32)  # exponentials and sums: never in half precision
        mean_W, mean_b = W.mean(0), 0.0 if b is None else b.mean()
        buffer = h.new_empty(min(n, N), V)
        dh, dW = torch.empty_like(h) if need_h else None, torch.zeros_like(W) if need_W else None
        db = torch.zeros_like(b) if need_b and b is not None else None
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
            loss += (top + s.log() - (1 - eps) * z_y).sum() - eps * (x @ mean_W + mean_b).sum()
            e = e.scatter_add_(1, label, (eps - 1) * s).to(h.dtype)  # s · (softmax - (1 - ε) onehot)
            s = s.to(h.dtype)
            if dh is not None:
                dh[rows] = (e @ W) / s - eps * mean_W
            if dW is not None:
                dW.addmm_(e.T, x / s)
            if db is not None:
                db += (e / s).sum(0) - eps * len(x) / V
        if dW is not None:
            dW -= h.sum(0) * (eps / V)
        ctx.save_for_backward(dh, dW, db)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return *(None if d is None else d * g.to(d.dtype) for d in ctx.saved_tensors), None, None
