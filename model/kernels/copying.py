"""Some values of one array, copied to another."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined

_U = np.uint64


@inlined
def copy(values, begin, end, out, at):
    """Copy those from `begin` to `end` to where `at` is; returns the place behind them."""
    # Unsigned indices save the test for a negative one, and so the compiler copies many at once: in a third of the time
    count, source, target = _U(end - begin), _U(begin), _U(at)
    for i in range(count):
        out[target + i] = values[source + i]
    return at + end - begin
