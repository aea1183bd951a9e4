"""Data parallelism inside one process: a thread for each core, each with its own rows of the batch.

Two threads that share every matrix product wait for each other hundreds of times in a step; two threads that each
carry half of the batch through the whole model wait once. On two cores this trains 1.2 times as fast, measured. A
thread with one processor to itself computes with kernels in C, where there are any and the model has been lent them
(regard/native/lend.py).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor, nn

from regard.checks import at_least
from regard.core.dropout import drawing_from, fresh_seed
from regard.native.lend import lending
from regard.native.training import kernels

MOST = 4


class Shards:
    """Threads that share a batch: `with Shards() as shards: shards.backward(...)`.

    The gradient is the same in every run with as many shards: rows go to shards in order, each shard draws its
    dropout from a generator of its own, seeded from PyTorch's, and the shards' gradients are added in order. Each
    shard holds a gradient of its own meanwhile, so there are no more than MOST unless asked for, and borrows kernels
    in C where it can, unless `lend` is False.
    """

    def __init__(self, count: int | None = None, *, lend: bool = True) -> None:
        cores = torch.get_num_threads()
        self.count = min(cores, MOST) if count is None else count
        at_least(1, shards=self.count)
        threads = max(1, cores // self.count)
        self._lend = lend
        self._pool = ThreadPoolExecutor(self.count, initializer=lambda: torch.set_num_threads(threads))

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()

    def backward(
        self, loss: Callable[..., Tensor], parameters: Sequence[nn.Parameter], batch: Mapping[str, Tensor]
    ) -> Tensor:
        """Σ over shards of loss(**rows): added to the parameters' gradients, and returned.

        `batch` holds tensors with the same first dimension; `loss` takes the rows of each and returns a sum over
        them, not a mean, so that sharding changes nothing.
        """
        columns = zip(*(tensor.chunk(self.count) for tensor in batch.values()), strict=True)
        parts = [dict(zip(batch, rows, strict=True)) for rows in columns]
        seed = fresh_seed()

        def run(shard: int) -> tuple[Tensor, tuple[Tensor | None, ...]]:
            with (
                drawing_from(torch.Generator().manual_seed(seed + shard)),
                lending(kernels(sparse=True) if self._lend else None),
            ):
                value = loss(**parts[shard])
                return value.detach(), torch.autograd.grad(value, parameters, allow_unused=True)

        total: Tensor | None = None
        for value, gradients in self._pool.map(run, range(len(parts))):
            total = value if total is None else total + value
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient.to_dense() if parameter.grad is None else parameter.grad.add_(gradient)
        assert total is not None
        return total
