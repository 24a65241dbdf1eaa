"""Numbers of workloads: options with limits, random ones that depend on a seed and a row's number alone, and laws.

Kernels draw from closed-form inverses of laws, and from tables.
"""

from __future__ import annotations

import math
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.jit import inlined

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from tagmatch.model.arrays import F64Array, I64Array

_U = np.uint64
#: Messages, moves and users have numbers below this
MAX_ROWS = 2**40


def number(default: float, low: float, high: float, text: str) -> Any:
    """Return a field of a data class: an option from `low` to `high`; `text` is its help, with its source."""
    return field(default=default, metadata={"low": low, "high": high, "text": text})


def check_numbers(options: Any) -> None:
    """Check the fields of a data class that `number` made."""
    for option in fields(options):
        if option.metadata:
            low, high, value = option.metadata["low"], option.metadata["high"], getattr(options, option.name)
            whole = option.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise InvalidTypeError(f"{option.name} must be {'an integer' if whole else 'a number'}, not {value!r}")
            if not low <= value <= high:
                raise InvalidValueError(f"{option.name} must be from {low} to {high}, not {value!r}")


def check_range(options: Any, what: str) -> int:
    """Return `max_` of what rows have some of, which must be no less than its `min_`."""
    low, high = getattr(options, f"min_{what}"), getattr(options, f"max_{what}")
    if low > high:
        raise InvalidValueError(f"min_{what} must be at most max_{what}, {high}, not {low}")
    return int(high)


@inlined
def mix(x):
    """Return a random number, uint64, for each `x`: SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014)."""
    x = _U(x) + _U(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@inlined
def uniform(x):
    """Return a random number in [0, 1) for each `x`."""
    return (mix(x) >> _U(11)) * (1.0 / 9007199254740992.0)


@inlined
def below(random, limit):
    """Return an integer from 0 to `limit` - 1."""
    return min(np.int64(uniform(random) * limit), limit - 1)


@inlined
def random_of(row, seed):
    """Return a row's random number; what it adds a few numbers to gives more of them."""
    return mix(_U(row) ^ mix(seed))


@inlined
def position(sums, value):
    """Return the first place whose running sum is greater than `value`, the last place if none is."""
    low, high = _U(0), _U(len(sums) - 1)
    while low < high:
        middle = (low + high) >> _U(1)
        if sums[middle] > value:
            high = middle
        else:
            low = middle + _U(1)
    return low


def running_sums(shares: npt.ArrayLike) -> F64Array:
    """Return running sums of shares; the last is 1, or 0 if all are."""
    sums: F64Array = np.cumsum(np.asarray(shares, np.float64))
    return sums / sums[-1] if len(sums) and sums[-1] else sums


def check_rows(first: int, last: int, count: int) -> None:
    """Check that a range of rows exists."""
    if not 0 <= first <= last <= count:
        raise InvalidValueError(f"first and last must be ascending and from 0 to {count}, not {first} and {last}")


# -- laws --------------------------------------------------------------------------------------------------------------


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

    With a shift of 1/2 that is Zipf's law for the ranks 1, 2, 3, ... except for 10 % of the first.
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
    """Return the discrete power law from 1 to `most`; its scale q is such that the mean is `mean`.

    P(K > k) is proportional to (1 + k / q)^-(exponent - 1) less its value at `most`.
    """
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
