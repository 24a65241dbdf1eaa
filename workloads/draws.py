"""Random numbers that depend on a seed and a row number alone, so that any row can be drawn anywhere."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined

_U = np.uint64


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
