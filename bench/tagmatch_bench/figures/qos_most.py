"""Searches for the most messages of which few enough fail."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Rates that are tried go down from a little over what the cores can do, in coarse steps, then up again in fine ones
_OVER, _FINE_STEPS = 1.05, 4
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
    coarse, fine : float
        Steps down, and up again.
    """

    def __init__(
        self, fails: Callable[[float], dict[str, float]], capacity: float, *, coarse: float = 0.92, fine: float = 1.02
    ) -> None:
        self._fails = cache(fails)
        self._capacity = capacity
        self._coarse, self._fine = coarse, fine

    def most(self, good: Callable[[dict[str, float]], bool]) -> float:
        """Return the greatest factor that was tried at which failures are good, to a fine step; 0 without one."""
        factor = _OVER * self._capacity
        while not good(self._fails(factor)):
            factor *= self._coarse
            if factor < _LEAST * self._capacity:
                return 0.0
        for step in range(_FINE_STEPS - 1, 0, -1):
            if good(self._fails(factor * self._fine**step)):
                return factor * self._fine**step
        return factor
