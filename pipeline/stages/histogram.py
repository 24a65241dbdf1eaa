"""Histograms of durations in constant memory."""

from __future__ import annotations

import threading

#: Bucket `i` counts durations from 2**(i - 1) to 2**i microseconds; the last one all that are longer (about 19 hours)
_BUCKETS = 37


class Histogram:
    """Counts durations by powers of two of a microsecond; many threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * _BUCKETS
        self._seconds = 0.0
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        bucket = min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)
        with self._lock:
            self._counts[bucket] += 1
            self._seconds += seconds
            self._longest = max(self._longest, seconds)

    def summary(self) -> dict[str, float]:
        """Return `count`, and in seconds `mean`, `median`, `p99` (ends of buckets: up to twice as long) and `max`."""
        with self._lock:
            counts, seconds, longest = self._counts.copy(), self._seconds, self._longest
        count = sum(counts)
        return {
            "count": count,
            "mean": seconds / count if count else 0.0,
            "median": min(_quantile(counts, 0.5), longest),
            "p99": min(_quantile(counts, 0.99), longest),
            "max": longest,
        }


def _quantile(counts: list[int], share: float) -> float:
    """End, in seconds, of the bucket below whose end that share of the durations lies."""
    wanted = share * sum(counts)
    below = 0
    for bucket, count in enumerate(counts):
        below += count
        if below >= wanted > 0:
            return float(2**bucket) / 1e6
    return 0.0
