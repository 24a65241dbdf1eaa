"""What time it is, for keys that expire: the one place that asks the system."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since 1970, UTC, as the system's clock has them, which may be set back or on."""
    return time.time_ns() // 1000
