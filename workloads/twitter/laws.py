"""Distributions as kernels draw from them: closed-form inverses and tables, fitted to the means that are asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.jit import inlined

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import F64Array, I64Array


class PowerLaw(NamedTuple):
    """Numbers from 0 to `size`, with r about as frequent as (r + shift)^-exponent; see `power_law`."""

    low: float
    high: float
    inverse: float
    shift: float
    size: int


class Followed(NamedTuple):
    """How many publishers users follow: `values[i]` or fewer with probability `sums[i]`."""

    values: I64Array
    sums: F64Array


#: Users follow no publisher
NOBODY = Followed(np.zeros(1, np.int64), np.ones(1))


def power_law(size: int, exponent: float, shift: float) -> PowerLaw:
    """Return the law by which r, from 0 to `size`, has a share proportional to the integral of x^-exponent over
    [r + shift, r + shift + 1).

    With a shift of 1/2 that is Zipf's law for the ranks 1, 2, 3, ... but for 10 % of the first.
    """  # noqa: D205
    rest = 1.0 - exponent
    if abs(rest) < 1e-9:
        return PowerLaw(math.log(shift), math.log(size + shift), 0.0, shift, size)
    return PowerLaw(shift**rest, (size + shift) ** rest, 1.0 / rest, shift, size)


@inlined
def draw_power_law(law, u):
    """Return the number, int64, at `u` in [0, 1) of the law's cumulative distribution."""
    at = law.low + u * (law.high - law.low)
    x = np.exp(at) if law.inverse == 0.0 else at**law.inverse
    return min(max(np.int64(x - law.shift), 0), law.size - 1)


def followed_law(mean: float, exponent: float, most: int) -> Followed:
    """Return the discrete power law from 1 to `most` with P(K > k) proportional to (1 + k / q)^-(exponent - 1) less its
    value at `most`; q is such that the mean is `mean`.

    Raises
    ------
    InvalidValueError
        No q gives that mean.
    """  # noqa: D205
    if not 1 <= mean <= (most + 1) / 2:
        raise InvalidValueError(
            f"mean_followed must be from 1 to {(most + 1) / 2:g}, where users follow at most {most} publishers "
            f"(max_followed, or all there are), not {mean:g}"
        )
    up_to = np.arange(1, most + 1)

    def sums(log_q: float) -> F64Array:
        below: F64Array = -np.expm1((1 - exponent) * np.log1p(up_to * math.exp(-log_q)))
        below /= below[-1]
        return below

    log_q = _root(lambda log_q: most - sums(log_q)[:-1].sum(), mean, -40.0, 40.0)
    return Followed(up_to, sums(log_q))


def tweets_exponent(mean: float, most: int) -> float:
    """Return the exponent b with which min(T, most), P(T >= t) = t^-b for t = 1, 2, ..., has this mean."""
    log_t = np.log(np.arange(1, min(most, _SUMMED) + 1))

    def mean_of(b: float) -> float:
        total = float(np.exp(-b * log_t).sum())
        if most > _SUMMED:  # the rest by an integral
            low, high = math.log(_SUMMED + 0.5), math.log(most + 0.5)
            total += high - low if b == 1 else (math.exp((1 - b) * high) - math.exp((1 - b) * low)) / (1 - b)
        return total

    return -_root(lambda b: mean_of(-b), mean, -60.0, 0.0)


def geometric_ratio(mean: float, most: int) -> float:
    """Return the ratio r with which min(N, most), P(N > n) = r^n for n = 0, 1, ..., has this mean."""
    powers = np.arange(most)
    return _root(lambda r: float((r**powers).sum()), mean, 0.0, 1.0)


_SUMMED = 100_000


def _root(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return where a growing function reaches the target, by bisection."""
    for _ in range(64):
        middle = (low + high) / 2
        if function(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
