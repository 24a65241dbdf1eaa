"""Searches for the most messages of which few enough fail."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Rates that are tried go down from a little over what the cores can do: first by this, then up again in finer steps
_OVER, _COARSE, _FINE, _FINE_STEPS = 1.05, 0.92, 1.02, 4
#: Rates under this share of what the cores can do are not tried
_LEAST = 1e-3


class MostMessages:
    """Searches among rates, as factors of a scenario's.

    It comes from above, as failures need not grow with the rate where messages are periodic: what is found is the most,
    though there may be lower rates at which more fail. Rates that were tried are not simulated again.

    Parameters
    ----------
    fails : callable
        Simulates a factor; returns the percent that fail by channel.
    capacity : float
        The factor at which all cores are busy all the time.
    """

    def __init__(self, fails: Callable[[float], dict[str, float]], capacity: float) -> None:
        self._fails = cache(fails)
        self._capacity = capacity

    def most(self, good: Callable[[dict[str, float]], bool]) -> float:
        """Return the greatest factor that was tried at which failures are good, to 2 %; 0 without one."""
        factor = _OVER * self._capacity
        while not good(self._fails(factor)):
            factor *= _COARSE
            if factor < _LEAST * self._capacity:
                return 0.0
        for step in range(_FINE_STEPS - 1, 0, -1):
            if good(self._fails(factor * _FINE**step)):
                return factor * _FINE**step
        return factor
