"""What time it is: the one place that asks the system."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since 1970, UTC, as the system's clock has them, which may be set back or on."""
    return time.time_ns() // 1000


def steady_us() -> int:
    """Microseconds since some moment, which do not jump with the system's clock.

    They are for durations that a user has given; the system's clock is for times of day. A machine that sleeps does not
    count them.
    """
    return time.monotonic_ns() // 1000
