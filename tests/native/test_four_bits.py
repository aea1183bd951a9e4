"""The kernel for groups of four bits: the definition's numbers, and to each row the same bits in any company."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.core.quantised import quantise
from regard.native import build
from regard.native.layout import Layout

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.mark.parametrize(("K", "N"), [(32, 1), (96, 37), (576, 64), (1536, 100)])
def test_a_product_is_that_of_the_definition(K: int, N: int) -> None:
    torch.manual_seed(K)
    layer: Any = quantise(nn.Sequential(nn.Linear(K, N)), 4)[0]  # type: ignore[index]
    library, layout = build.library(), Layout(K)
    product, team = layout.product(layer, N, K), library.gather(2)
    x = (torch.randn(29, K) * torch.logspace(-3, 3, 29)[:, None]).numpy()
    x[7] = 0.0
    expected = layer(torch.from_numpy(x)).detach().numpy()

    def run(rows: Any, helped: Any = None) -> Any:
        out = np.full((len(rows), N), np.nan, np.float32)
        space = np.empty(len(rows) * (2 * K + 16), np.uint8)
        library.logits(product, len(rows), np.ascontiguousarray(rows), out, helped, space.ctypes.data)
        return out

    together = run(x)
    size = np.abs(x).max(1, keepdims=True) * np.sqrt(K)  # the last operations may be rounded together
    assert (np.abs(together - expected) <= 1e-6 * size + 1e-6 * np.abs(expected)).all()
    for first, last in ((0, 1), (28, 29), (3, 5), (3, 6), (1, 13), (1, 14), (0, 25)):
        assert np.array_equal(run(x[first:last]), together[first:last])
    assert np.array_equal(run(x, team), together)
    x[7, K - 1] = np.nan
    assert np.isnan(run(x[7:8])).all()
    library.dismiss(team)
