"""Learning rates as functions of the step, which counts from 1."""


def inverse_sqrt(step: int, d_model: int, warmup: int = 4000) -> float:
    """The paper's: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), eq. 3.

    >>> round(inverse_sqrt(4000, 512), 6)  # the peak of the base model
    0.000699
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"steps count from 1 and warmup is at least 1, got step {step}, warmup {warmup}")
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


def linear_to_zero(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Up linearly to `peak` at step `warmup`, down linearly to zero just after step `total`.

    >>> [linear_to_zero(step, peak=1.0, warmup=2, total=5) for step in (1, 2, 3, 5)]
    [0.5, 1.0, 0.75, 0.25]
    """
    if not 1 <= step <= total or not 1 <= warmup <= total:
        raise ValueError(f"need 1 <= step, warmup <= total, got step {step}, warmup {warmup}, total {total}")
    return peak * min(step / warmup, (total + 1 - step) / (total + 1 - warmup))
