"""Power laws of loss: L = E + A / N^a + B / D^b, fitted to what was measured, with confidence.

Kaplan et al. (2020) found that the loss of a language model falls as a power of its parameters N and of its data D;
Hoffmann et al. (2022) added what remains, E, and fitted the sum by least squares in log L with Huber's loss, which a
run that went wrong does not pull away. So it is done here, for any number of sizes: one, for L(N), or two, or more.

Letters: n points, m sizes, K fits at once, P = 1 + 2m numbers of a law.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DELTA = 0.01  # of Huber's loss: deviations of up to 1 % count squared, larger ones in proportion
STEPS = 300  # of Levenberg's and Marquardt's method
LEVEL = 0.95  # of confidence


@dataclass(frozen=True)
class Law:
    """loss = floor + Σ coefficient / size^exponent, over the sizes by name.

    >>> Law(1.69, {"N": 406.4, "D": 410.7}, {"N": 0.34, "D": 0.28})(N=70e9, D=1.4e12)  # Hoffmann et al. (2022)
    1.93...
    """

    floor: float
    coefficients: Mapping[str, float]
    exponents: Mapping[str, float]

    def __call__(self, **sizes: float) -> float:
        return self.floor + sum(self.coefficients[name] / size ** self.exponents[name] for name, size in sizes.items())


@dataclass(frozen=True)
class Fit:
    """The law that fits, and between which values 95 % of its bootstrapped fellows lie, each number for itself."""

    law: Law
    low: Law
    high: Law
    error: float  # median of |measured / law - 1|


def fit(loss: Sequence[float], sizes: Mapping[str, Sequence[float]], *, bootstrap: int = 200, seed: int = 0) -> Fit:
    """The power law of n losses measured at these sizes, such as {"N": parameters, "D": pairs}.

    Confidence is by bootstrap of the residuals, as fits a grid of sizes that were chosen: the law's own losses, with
    deviations drawn from those that were found, are fitted again.

    >>> sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    >>> found = fit([1.5 + 20 / size**0.3 for size in sizes], {"N": sizes})
    >>> round(found.law.floor, 3), round(found.law.exponents["N"], 3)
    (1.5, 0.3)
    """
    y, x, center = _checked(loss, sizes)
    m = x.shape[1]
    theta, cost = _minimise(y[None], x, _starts(y, x))
    theta = theta[cost.argmin()]
    fitted, _ = _model(theta[None], x)
    residuals = (y - fitted[0]) * math.sqrt(len(y) / (len(y) - 1 - 2 * m))  # a fit is nearer to its points than truth
    drawn = np.random.default_rng(seed).choice(residuals - residuals.mean(), (bootstrap, len(y)))
    fellows, _ = _minimise(fitted + drawn, x, np.repeat(theta[None], bootstrap, 0))
    names = list(sizes)
    tails = np.quantile(_natural(fellows, center), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    law, low, high = (_law(numbers, names) for numbers in (_natural(theta[None], center)[0], *tails))
    return Fit(law, low, high, error=float(np.median(np.abs(np.exp(y - fitted[0]) - 1))))


def _checked(loss: Sequence[float], sizes: Mapping[str, Sequence[float]]) -> tuple[Array, Array, Array]:
    """Logarithms of loss (n,) and sizes (n, m), these around their mean (m,)."""
    columns = {"loss": loss, **sizes}
    for name, values in columns.items():
        if len(values) != len(loss):
            raise ValueError(f"{name} has {len(values)} values, loss has {len(loss)}: give one for each")
        if wrong := [value for value in values if not 0 < value < math.inf]:
            raise ValueError(f"{name} = {wrong[0]}: a power law is of numbers above 0")
        if name != "loss" and len(set(values)) < 3:
            raise ValueError(f"{name} has {len(set(values))} different values: a curve takes 3 or more")
    if len(loss) <= 1 + 2 * len(sizes):
        raise ValueError(
            f"{len(loss)} points cannot hold the {1 + 2 * len(sizes)} numbers of a law of {', '.join(sizes)}: measure "
            f"{2 + 2 * len(sizes)} or more"
        )
    x = np.log(np.array([list(values) for values in sizes.values()], np.float64)).T
    return np.log(np.array(loss, np.float64)), x - x.mean(0), x.mean(0)


def _starts(y: Array, x: Array) -> Array:
    """From where to search, (K, P): floors, and exponents of each size, that are all that is usual."""
    starts = []
    for share, *exponents in product((0.1, 0.5, 0.9), *[(0.1, 0.3, 0.6, 1.0)] * x.shape[1]):
        floor = share * math.exp(y.min())
        rest = math.log((math.exp(y.max()) - floor) / x.shape[1])  # at the smallest sizes
        starts.append([math.log(floor), *(rest + a * x.min(0)[j] for j, a in enumerate(exponents)), *exponents])
    return np.array(starts)


def _model(theta: Array, x: Array) -> tuple[Array, Array]:
    """log L (K, n) and its derivatives (K, n, P). theta is log E, then log A of each size, then each exponent."""
    m = x.shape[1]
    c, a = theta[:, None, 1 : 1 + m], theta[:, None, 1 + m :]
    terms = np.concatenate([np.broadcast_to(theta[:, None, :1], (len(theta), len(x), 1)), c - a * x], -1)
    top = terms.max(-1, keepdims=True)
    logs = top + np.log(np.exp(terms - top).sum(-1, keepdims=True))  # (K, n, 1)
    shares = np.exp(terms - logs)  # of each term in the loss: (K, n, 1 + m)
    return logs[..., 0], np.concatenate([shares, -shares[..., 1:] * x], -1)


def _huber(r: Array) -> Array:
    size = np.abs(r)
    return np.where(size < DELTA, r * r / 2, DELTA * (size - DELTA / 2)).sum(-1)


def _minimise(y: Array, x: Array, theta: Array) -> tuple[Array, Array]:
    """Fits (K, P) to y (1 or K, n) from the starts theta, and their costs (K,): damped Gauss-Newton steps."""
    damping = np.full(len(theta), 1e-2)
    logs, J = _model(theta, x)
    cost = _huber(y - logs)
    for _ in range(STEPS):
        r = y - logs
        w = 1 / np.maximum(1, np.abs(r) / DELTA)[..., None]  # weights that make squares of Huber's loss
        J_T = J.swapaxes(1, 2)  # (K, P, n)
        H = J_T @ (w * J)
        scale = np.maximum(np.einsum("kpp->kp", H), 1e-12)
        H = H + (damping[:, None] * scale)[:, :, None] * np.eye(theta.shape[1])
        step = np.linalg.solve(H, J_T @ (w * r[..., None]))[..., 0]
        tried = theta + np.clip(step, -1, 1)
        new_logs, new_J = _model(tried, x)
        new_cost = _huber(y - new_logs)
        better = new_cost < cost
        theta, logs = np.where(better[:, None], tried, theta), np.where(better[:, None], new_logs, logs)
        J, cost = np.where(better[:, None, None], new_J, J), np.where(better, new_cost, cost)
        damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-9, 1e9)
    return theta, cost


def _natural(theta: Array, center: Array) -> Array:
    """E, A of each size, exponents: of sizes themselves, no longer around their mean."""
    m = len(center)
    exponents = theta[:, 1 + m :]
    return np.concatenate([np.exp(theta[:, :1]), np.exp(theta[:, 1 : 1 + m] + exponents * center), exponents], -1)


def _law(numbers: Array, names: Sequence[str]) -> Law:
    m = len(names)
    floor, coefficients, exponents = float(numbers[0]), numbers[1 : 1 + m].tolist(), numbers[1 + m :].tolist()
    return Law(floor, dict(zip(names, coefficients, strict=True)), dict(zip(names, exponents, strict=True)))
