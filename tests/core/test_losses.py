"""The chunked loss equals PyTorch's in value and gradient, at any block size, and never holds all logits."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.core import losses
from regard.core.losses import (
    label_log_probabilities,
    linear_cross_entropy,
    linear_log_likelihood,
    token_log_probabilities,
)

V = 11
Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor]


def problem(dtype: torch.dtype, bias: bool = True, size: float = 1.0) -> Inputs:
    """hidden (3, 7, 5), weight (V, 5), bias (V,) and labels, some of which are to be ignored."""
    g = torch.Generator().manual_seed(0)
    h, W, b = (torch.randn(*shape, generator=g) * size for shape in ((3, 7, 5), (V, 5), (V,)))
    y = torch.randint(V, (3, 7), generator=g).masked_fill(torch.rand(3, 7, generator=g) < 0.2, -100)
    leaves = [x.to(dtype).requires_grad_() for x in (h, W, b)]
    return leaves[0], leaves[1], leaves[2] if bias else None, y


def ours(h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, smoothing: float, ignore: int = -100) -> Tensor:
    return linear_cross_entropy(h, W, y, bias=b, smoothing=smoothing, ignore=ignore)


def theirs(h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, smoothing: float, ignore: int = -100) -> Tensor:
    logits = F.linear(h, W, b).flatten(0, -2)
    return F.cross_entropy(logits, y.flatten(), label_smoothing=smoothing, reduction="sum", ignore_index=ignore)


def value_and_gradients(loss: Callable[..., Tensor], inputs: Inputs, *args: Any) -> list[Tensor]:
    out = loss(*inputs, *args)
    return [out.detach(), *torch.autograd.grad(3 * out, [x for x in inputs[:3] if x is not None])]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("bias", [True, False])
# One row a block, also where a row is larger than the block; two rows; a ragged last block; all in one.
@pytest.mark.parametrize("block", [1, V, 2 * V, 5 * V + 3, 2**23])
def test_equals_pytorchs_in_value_and_gradient(
    block: int, bias: bool, smoothing: float, dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "BLOCK", block)
    inputs = problem(dtype, bias)
    expected = value_and_gradients(theirs, inputs, smoothing)
    for mine, their in zip(value_and_gradients(ours, inputs, smoothing), expected, strict=True):
        assert mine.dtype == their.dtype
        torch.testing.assert_close(mine, their, atol=atol * max(1.0, their.abs().max().item()), rtol=0)


def test_half_precision_is_as_near_to_the_truth_as_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "BLOCK", 4 * V)
    inputs = problem(torch.bfloat16)
    exact = tuple(x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs)
    loss, *gradients = value_and_gradients(ours, inputs, 0.1)
    truth, *expected = value_and_gradients(theirs, exact, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), truth, atol=0, rtol=2**-9)
    for mine, their in zip(gradients, expected, strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine.double(), their, atol=2**-7 * their.abs().max().item(), rtol=0)


@pytest.mark.parametrize("ignore", [-100, 3])
def test_ignored_tokens_count_for_nothing(ignore: int) -> None:
    h, W, b, y = problem(torch.float64)
    y = y.masked_fill(y == -100, ignore)
    kept = y != ignore
    alone = value_and_gradients(ours, (h[kept], W, b, y[kept]), 0.1)  # as if they were not there
    expected = value_and_gradients(theirs, (h, W, b, y), 0.1, ignore)
    mine = value_and_gradients(ours, (h, W, b, y), 0.1, ignore)
    for i in (0, 2, 3):
        torch.testing.assert_close(mine[i], alone[i], atol=1e-10, rtol=0)
        torch.testing.assert_close(mine[i], expected[i], atol=1e-10, rtol=0)
    assert mine[1][~kept].eq(0).all()
    torch.testing.assert_close(mine[1][kept], alone[1], atol=1e-10, rtol=0)


def test_a_batch_without_labels_costs_nothing() -> None:
    h, W, b, y = problem(torch.float64)
    for part in value_and_gradients(ours, (h, W, b, torch.full_like(y, -100)), 0.1):
        assert part.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand_stay_finite(dtype: torch.dtype) -> None:
    inputs = problem(dtype, size=70.0)
    assert F.linear(*inputs[:3]).abs().max() > 1e4
    expected = value_and_gradients(theirs, inputs, 0.1)
    for mine, their in zip(value_and_gradients(ours, inputs, 0.1), expected, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, their, atol=1e-6 * their.abs().max().item(), rtol=0)


def test_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "BLOCK", 4 * V)
    h, W, b, y = problem(torch.float64)
    for smoothing in (0.0, 0.1):
        assert torch.autograd.gradcheck(lambda h, W, b, s=smoothing: ours(h, W, b, y, s), (h, W, b))


def test_a_graph_that_is_kept_goes_back_twice() -> None:
    h, w = torch.randn(6, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
    loss = linear_cross_entropy(h, w, torch.arange(6)) * 3
    first = torch.autograd.grad(loss, [h, w], retain_graph=True)
    copies = [g.clone() for g in first]
    again = torch.autograd.grad(loss, [h, w])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, copies, again, strict=True))


@pytest.mark.parametrize("trained", ["h", "W", "b"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(trained: str) -> None:
    h, W, b, y = problem(torch.float64)
    for name, x in (("h", h), ("W", W), ("b", b)):
        x.requires_grad_(name == trained)
    ours(h, W, b, y, 0.1).backward()
    mine = {name: x.grad for name, x in (("h", h), ("W", W), ("b", b))}
    assert [name for name, gradient in mine.items() if gradient is not None] == [trained]
    x = {"h": h, "W": W, "b": b}[trained]
    (expected,) = torch.autograd.grad(theirs(h, W, b, y, 0.1), x)
    torch.testing.assert_close(mine[trained], expected, atol=1e-10, rtol=0)


class Watch(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made, and how many were matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.products = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        self.products += "mm" in operation.name()
        return out


def test_without_gradients_it_costs_one_product() -> None:
    h, W, b, y = problem(torch.float64)
    with torch.no_grad(), Watch() as watch:
        loss = ours(h, W, b, y, 0.1)
    assert not loss.requires_grad
    assert watch.products == 1
    torch.testing.assert_close(loss, theirs(h, W, b, y, 0.1).detach(), atol=1e-10, rtol=0)


def test_never_holds_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    N, V, d, block = 300, 200, 10, 4096
    monkeypatch.setattr(losses, "BLOCK", block)
    h, W, b = (torch.randn(shape, requires_grad=True) for shape in ((N, d), (V, d), (V,)))
    y = torch.randint(V, (N,))
    with Watch() as watch:
        ours(h, W, b, y, 0.1).backward()
    assert watch.largest <= max(block, N * d, V * d)
    with Watch() as watch:  # the measure does see them where they are
        theirs(h, W, b, y, 0.1).backward()
    assert watch.largest == N * V


H, W, Y = torch.zeros(2, 3, 4), torch.zeros(10, 4), torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((H, W, Y[0]), r"hidden \(2, 3, 4\), weight \(10, 4\) and labels \(3,\) do not fit"),
        ((H, W.T, Y), r"weight \(4, 10\).*do not fit"),
        ((H, W.double(), Y), "dtypes torch.float32, torch.float64: convert"),
        ((H, W, Y + 10), r"labels lie in 0\.\.9 \(or are -100\), got 10\.\.10"),
        ((H, W[0], Y), r"weight \(4,\).*do not fit"),
        ((H, W, Y.float()), "labels are token ids in int64, got torch.float32"),
        ((H, W, Y - 1), r"labels lie in 0\.\.9 \(or are -100\), got -1\.\.-1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(*arguments)


@pytest.mark.parametrize("smoothing", [1.0, -0.1])
def test_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"lies in \[0, 1\), got " + str(smoothing)):
        linear_cross_entropy(H, W, Y, smoothing=smoothing)


@pytest.mark.parametrize("bias", [torch.zeros(1), torch.zeros(3), torch.zeros(10, dtype=torch.float64)])
def test_a_bias_that_does_not_fit_is_refused(bias: Tensor) -> None:
    with pytest.raises(ValueError, match="bias"):
        linear_cross_entropy(H, W, Y, bias=bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_survives_a_large_vocabulary(dtype: torch.dtype) -> None:
    """With flat logits the sum of exponentials is the size of the vocabulary, more than fp16 can hold."""
    V = 70_000
    h, W = torch.zeros(2, 4, dtype=dtype, requires_grad=True), torch.zeros(V, 4, dtype=dtype, requires_grad=True)
    loss = linear_cross_entropy(h, W, torch.tensor([0, 1]), smoothing=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(2 * math.log(V), rel=1e-5)
    assert h.grad is not None
    assert W.grad is not None
    assert h.grad.isfinite().all()
    assert W.grad.isfinite().all()


class Reader(nn.Module):
    """Features of each token by itself, and logits of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(V, 5), nn.Linear(5, V)

    def features(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).tanh()


@pytest.mark.parametrize("block", [1, 3 * V, 2**22])
def test_the_likelihood_of_each_label_is_the_cross_entropy_whatever_the_block(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "BLOCK", block)
    torch.manual_seed(0)
    model, tokens = Reader(), torch.randint(V, (3, 7))
    labels = torch.randint(1, V, (3, 7))
    labels[1, 4:] = labels[2] = 0
    logits = model.output(model.features(tokens))
    expected = -F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="none").view(3, 7)
    found = token_log_probabilities(model, {"tokens": tokens}, labels, ignore=0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(label_log_probabilities(logits, labels)[labels != 0], expected[labels != 0])
    mine, theirs = (torch.autograd.grad(x.sum(1)[0], list(model.parameters())) for x in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_where_no_label_counts_nothing_is_likely_or_unlikely() -> None:
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    assert torch.equal(token_log_probabilities(Reader(), {"tokens": tokens}, tokens, ignore=0), torch.zeros(2, 3))


def test_no_more_logits_are_held_than_a_block_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "BLOCK", 4 * V)
    model, held = Reader(), list[int]()
    model.output.register_forward_hook(lambda module, given, out: held.append(out.numel()))
    with torch.inference_mode():
        token_log_probabilities(
            model, {"tokens": torch.ones(5, 6, dtype=torch.int64)}, torch.ones(5, 6).long(), ignore=0
        )
    assert len(held) == 8
    assert max(held) == 4 * V


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("block", [1, 30, 2**22])
def test_the_likelihood_of_each_label_has_the_gradient_of_the_logits(
    biased: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever weighs the labels above it, and however few logits are held."""
    monkeypatch.setattr(losses, "BLOCK", block)
    torch.manual_seed(1)
    h, W, b = (torch.randn(shape, dtype=torch.float64) for shape in ((7, 4), (11, 4), (11,)))
    y, weights = torch.randint(11, (7,)), torch.randn(7, dtype=torch.float64)
    found = []
    for blocked in (True, False):
        given = [x.clone().requires_grad_() for x in ((h, W, b) if biased else (h, W))]
        bias = given[2] if biased else None
        if blocked:
            log_p = linear_log_likelihood(given[0], given[1], y, bias)
        else:
            z = given[0] @ given[1].T + (bias if bias is not None else 0)
            log_p = z.log_softmax(-1).gather(1, y[:, None])[:, 0]
        found.append((log_p, torch.autograd.grad((weights * torch.sigmoid(log_p)).sum(), given)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_a_likelihood_is_exact_to_fp32_where_products_are_halves() -> None:
    torch.manual_seed(1)
    h, W = torch.randn(5, 8).bfloat16().requires_grad_(), torch.randn(9, 8).bfloat16().requires_grad_()
    y = torch.randint(9, (5,))
    log_p = linear_log_likelihood(h, W, y)
    assert log_p.dtype == torch.float32
    expected = (h.float() @ W.float().T).log_softmax(-1).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(log_p, expected, rtol=0.02, atol=0.05)
    gradients = torch.autograd.grad(log_p.sum(), (h, W))
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (h, W)), rtol=0.05, atol=0.05)
    assert linear_log_likelihood(h[:0], W, y[:0]).shape == (0,)
    frozen = linear_log_likelihood(h, W.detach(), y)  # as where only what was added learns
    torch.testing.assert_close(torch.autograd.grad(frozen.sum(), h), gradients[:1])
