"""Dropping of keys that have expired, in the background."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tagmatch.background import Background
from tagmatch.model import clock
from tagmatch.model.errors import ClosedError, TagMatchError
from tagmatch.model.tables import NEVER

_log = logging.getLogger(__name__)

# Seconds after which the clock is looked at again, as it may have been set, and the machine may have slept
_LOOK_S = 1.0
# Keys that expire within so many seconds go together
_REST_S = 1.0
# More where it takes long: so many times what it took
_REST_RATIO = 3


class Expiring(Background[int]):
    """Has keys dropped when they expire.

    Parameters
    ----------
    expire : callable
        Bound method; drops the keys that have expired, and returns when the next do, in microseconds since 1970.
    """

    def __init__(self, expire: Callable[[], int]) -> None:
        super().__init__(expire, "tagmatch-expiry", in_forks=True)
        # When keys expire, as of the last call
        self._at = NEVER

    def expect(self, at: int) -> None:
        """See that keys are dropped that expire at a time, in microseconds since 1970; `NEVER` if there are none."""
        if at < NEVER:
            self.begin()

    def once(self, method: Callable[[], int]) -> float | None:
        """As of `Background`: until keys expire, with a rest after each time that some did."""
        began, some_expired = time.monotonic(), self._at <= clock.now_us()
        try:
            self._at = method()
        except ClosedError:
            raise
        except (TagMatchError, MemoryError) as error:
            some_expired = True
            _log.warning("keys that have expired are not dropped yet: %s", error)
        if self._at == NEVER:
            return None
        rest = max(_REST_S, _REST_RATIO * (time.monotonic() - began)) if some_expired else 0.0
        return max(rest, min((self._at - clock.now_us()) / 1e6, _LOOK_S))
