"""Which heads do the same: by where they look, and by what they say.

Letters: N heads of one kind (of all layers of an encoder, say), R rows of their maps, S keys, d_v width of a head.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.inspection.measures import RowTokens

SMOOTH = 1e-3  # of every distribution, before two are compared

Matrix = NDArray[np.float64]


class Likeness:
    """How alike heads are that look at the same keys from the same rows, added up batch by batch.

    `distances()` (N, N): the Jensen-Shannon divergence of two heads' rows, in nats (0 the same, ln 2 ≈ 0.69 nothing in
    common), as the mean over rows (Clark et al., 2019, have the sum). `cka()` (N, N): the linear centred kernel
    alignment of what they say (Kornblith et al., 2019): 1 the same up to a rotation, 0 nothing in common.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._apart: Tensor | float = 0.0  # (N, N): Σ over rows
        self._sum: Tensor | float = 0.0  # (N · d_v,): Σ x
        self._products: Tensor | float = 0.0  # (N · d_v, N · d_v): Σ x xᵀ
        self._heads = 0

    def add(self, weights: Sequence[Tensor], outputs: Sequence[Tensor], rows: RowTokens) -> None:
        """The maps (B, H, T, S) and the results (B, H, T, d_v) of several attentions, in the same order each time."""
        counted = rows.counted
        maps = torch.cat(list(weights), 1).float().transpose(0, 1)[:, counted]  # (N, R, S)
        self._apart = self._apart + divergences(maps, rows.visible[counted])
        said = torch.cat(list(outputs), 1).transpose(1, 2)[counted].double().cpu()  # (R, N, d_v)
        self._heads = said.shape[1]
        said = said.flatten(1)
        self._sum, self._products = self._sum + said.sum(0), self._products + said.T @ said
        self.rows += len(said)

    def distances(self) -> Matrix:
        """The mean Jensen-Shannon divergence of each pair of heads, (N, N)."""
        return np.asarray(self._apart) / max(1, self.rows)

    def cka(self) -> Matrix:
        """The linear CKA of each pair of heads, (N, N); 0 for a head that always says the same."""
        mean = torch.as_tensor(self._sum) / max(1, self.rows)
        spread = torch.as_tensor(self._products) - self.rows * mean.outer(mean)
        N = self._heads
        shared = spread.unflatten(0, (N, -1)).unflatten(2, (N, -1)).square().sum((1, 3))  # ‖Xᵀ Y‖² of each pair
        own = shared.diagonal().sqrt()
        # What always says the same is left with the rounding of its squares, of which no likeness can be told.
        before = torch.as_tensor(self._products).unflatten(0, (N, -1)).unflatten(2, (N, -1)).square().sum((1, 3))
        own = own.where(own > 1e-10 * before.diagonal().sqrt(), 0.0)
        shared = shared.where(own.outer(own) > 0.0, 0.0)
        return np.asarray(torch.nan_to_num(shared / own.outer(own)))


def divergences(maps: Tensor, visible: Tensor) -> Tensor:
    """Σ over rows of the Jensen-Shannon divergence of each pair of heads: (N, N), in nats.

    maps (N, R, S) are rows that sum to 1, visible (R, S) the keys in sight: each becomes 0.999 α + 0.001 / n.

    >>> divergences(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.ones(1, 2, dtype=torch.bool))[0, 1] < 0.6932
    tensor(True)
    """
    n = visible.sum(-1, keepdim=True)
    smooth = ((1 - SMOOTH) * maps + SMOOTH / n).where(visible, 0.0)
    own = torch.special.entr(smooth).sum((1, 2), dtype=torch.double)  # (N,): Σ of entropies
    apart = torch.zeros(len(maps), len(maps), dtype=torch.double)
    for a in range(len(maps)):
        mixed = torch.special.entr((smooth[a] + smooth[a + 1 :]) / 2).sum((1, 2), dtype=torch.double)
        apart[a, a + 1 :] = apart[a + 1 :, a] = (mixed - (own[a] + own[a + 1 :]) / 2).clamp(min=0.0).cpu()
    return apart


def scaling(distances: Matrix) -> Matrix:
    """Places (N, 2) on a plane whose distances come near to those given: classical multidimensional scaling.

    The axes are the two along which the heads differ most; on each, the outermost head is on the positive side.

    >>> scaling(np.array([[0.0, 3.0], [3.0, 0.0]])).round(2).tolist()
    [[1.5, 0.0], [-1.5, 0.0]]
    """
    N = len(distances)
    centre = np.eye(N) - 1 / N
    values, vectors = np.linalg.eigh(-0.5 * centre @ np.square(distances) @ centre)  # rising
    places = np.zeros((N, 2))
    for axis, i in enumerate(range(N - 1, max(N - 3, -1), -1)):
        vector = vectors[:, i] * np.sqrt(max(values[i], 0.0))
        places[:, axis] = vector * (np.sign(_outermost(vector)) or 1.0)
    return places + 0.0  # no negative zeros


def _outermost(vector: Matrix) -> float:
    """The coordinate furthest from 0, and of those as far the first, however they are rounded."""
    far = np.abs(vector)
    return float(vector[int(np.argmax(far > far.max() * (1 - 1e-9) - 1e-300))])
