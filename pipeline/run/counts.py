"""What is counted: durations, answers of the pipeline, what tasks take, and what happened to messages of channels."""

from __future__ import annotations

import threading
from statistics import median_low
from typing import Any

import numpy as np

from tagmatch.model.arrays import I64Array
from tagmatch.pipeline.one import add_counts

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
        bucket = int(seconds * 1e6).bit_length()
        with self._lock:
            self._counts[bucket if bucket < _BUCKETS else -1] += 1
            self._seconds += seconds
            if seconds > self._longest:
                self._longest = seconds

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


class Counts:
    """Counts queries, keys, and sets that were found or turned away; many threads, and kernels, may add."""

    def __init__(self) -> None:
        self.sums: I64Array = np.zeros(4, np.int64)  # As kernels of single queries count

    def add(self, *, queries: int = 0, matches: int = 0, verified: int = 0, rejected: int = 0) -> None:
        """Count what a packet has given."""
        add_counts(self.sums, np.array([queries, matches, verified, rejected], np.int64))

    def stats(self) -> dict[str, int]:
        """Return the sums by name."""
        return dict(zip(("queries", "matches", "verified", "rejected"), self.sums.tolist(), strict=True))


#: How much of a sample's weight is left after the next: about the last hundred count
_KEPT = 0.99
#: A sample counts as at most this multiple of the expected time, so that one pause of the machine spoils no estimate
_MOST_TIMES = 4.0
#: The first samples are judged together: each counts as at most this multiple of a task's, or a message's, time in the
#: median. To compile a kernel takes far longer
_FIRST = 8
_FIRST_TIMES = 32.0
#: Seconds that nothing is faster than
_LEAST = 1e-9
#: How fast the spread follows
_SPREAD_STEP = 0.1
_MOST_SPREAD = 1.0
#: What is left of an estimate each time that it turns a message away
_DOUBTED = 0.9
#: Tasks differ in size if the determinant is more than this share of what it could be
_VARIES = 1e-2


class CostModel:
    """Seconds that a task of `n` messages takes, `once + each * n`, by least squares of the errors as shares.

    A task's distance from the expected time is taken as a share of that, so that no long task outweighs the short ones.
    Older samples count less. One thread at a time may call this.
    """

    def __init__(self) -> None:
        self.once = self.each = self.spread = 0.0
        self.largest = 0
        self._first: list[tuple[int, float]] = []
        # Weighted sums, of x², x·z, z², x·y and z·y, where x, z and y are 1, n and the seconds, as shares of the time
        # expected
        self._sums = [0.0] * 5

    def learn(self, count: int, seconds: float) -> None:
        """Take into account that a task of `count` messages took `seconds`."""
        self.largest = max(self.largest, count)
        expected = self.once + self.each * count
        if expected > 0:
            off = min(abs(seconds - expected) / expected, _MOST_SPREAD)
            self.spread += _SPREAD_STEP * (off - self.spread)
        if len(self._first) < _FIRST:
            self._first.append((count, seconds))
            if len(self._first) == 1:  # alone, it says nothing: it may have compiled a kernel, or loaded one
                return
            of_task = median_low(seconds for _, seconds in self._first)
            of_message = median_low(seconds / count for count, seconds in self._first)
            self._sums = [0.0] * 5
            for count, seconds in self._first:
                taken = min(seconds, _FIRST_TIMES * max(of_task, of_message * count))
                self._add(count, taken, taken)
        else:
            self._add(count, min(seconds, _MOST_TIMES * expected), expected)
        self._fit(count)

    def doubt(self) -> None:
        """Lower the costs a little, as they have turned a message away, which teaches nothing now.

        Without that, an estimate that is too high by far would stay so for ever.
        """
        self._sums[3:] = [each * _DOUBTED for each in self._sums[3:]]
        self._fit(1)

    def seconds(self, count: int) -> float:
        """What a task of `count` messages takes, rather too much than too little; 0 if nothing is known."""
        return (self.once + self.each * count) * (1 + self.spread)

    def expected(self, tasks: int, count: int) -> float:
        """What `tasks` tasks with `count` messages in all take, as likely less as more."""
        return self.once * tasks + self.each * count

    def backlog(self, tasks: int, count: int) -> float:
        """The same, rather too much than too little."""
        return self.expected(tasks, count) * (1 + self.spread)

    def tried(self, limit: int) -> int:
        """`limit`, or twice as many messages as a task had that was measured: further there is no telling."""
        return min(limit, max(1, 2 * self.largest))

    def most(self, seconds: float, limit: int) -> int:
        """How many messages a task may have to take so long at most: 1 at least, `tried(limit)` at most."""
        limit = self.tried(limit)
        left = seconds / (1 + self.spread) - self.once
        if self.each * limit <= left:
            return limit
        return max(1, int(left / self.each)) if self.each > 0 else 1

    def _add(self, count: int, seconds: float, expected: float) -> None:
        whole = max(expected, _LEAST)
        x, z, y = 1 / whole, count / whole, seconds / whole
        new = (x * x, x * z, z * z, x * y, z * y)
        self._sums = [_KEPT * old + each for old, each in zip(self._sums, new, strict=True)]

    def _fit(self, count: int) -> None:
        """Find both costs; then weigh older samples by the expected time of tasks with as many messages as now."""
        before = self.once + self.each * count
        xx, xz, zz, xy, zy = self._sums
        if not zz:
            return
        determinant = xx * zz - xz * xz
        # Tasks of one size say nothing about another: then all is taken for the messages' own
        once = (xy * zz - zy * xz) / determinant if determinant > _VARIES * xx * zz else 0.0
        each = (zy - once * xz) / zz
        if once < 0:
            once, each = 0.0, zy / zz
        elif each < 0:
            once, each = xy / xx, 0.0
        self.once, self.each = once, each
        ratio = before / max(once + each * count, _LEAST) if before else 1.0
        self._sums = [each * ratio * ratio for each in self._sums]


#: Outcomes of a message
OUTCOMES = ("answered", "refused", "deserted", "dropped", "cancelled", "failed")


class ChannelCounts:
    """Counts the messages of a channel; many threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("offered", *OUTCOMES, "late"), 0)
        self._lateness, self._errors = Histogram(), Histogram()

    def offer(self, count: int) -> None:
        """Count messages that were handed in."""
        self.end("offered", count)

    def end(self, outcome: str, count: int = 1) -> None:
        """Count what happened to messages."""
        with self._lock:
            self._counts[outcome] += count

    def answer(self, late_by: float, count: int = 1) -> None:
        """Count answers, given `late_by` seconds after the deadline; before it, less than 0."""
        self.end("answered", count)
        if late_by > 0:
            self.end("late", count)
            self._lateness.add(late_by)

    def estimated(self, error: float) -> None:
        """Count how far, in seconds, a task was from what it was expected to take."""
        self._errors.add(error)

    def stats(self, cost: CostModel) -> dict[str, Any]:
        """Return the counts and histograms by name."""
        with self._lock:
            counts = self._counts.copy()
        return {
            **counts,
            "in_flight": counts["offered"] - sum(counts[outcome] for outcome in OUTCOMES),
            "lateness": self._lateness.summary(),
            "estimate_error": self._errors.summary(),
            "cost": {"once": cost.once, "each": cost.each},
        }
