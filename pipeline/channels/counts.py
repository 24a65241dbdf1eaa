"""What became of the messages of a channel: each is counted once."""

from __future__ import annotations

import threading
from typing import Any

from tagmatch.pipeline.channels.cost import CostModel
from tagmatch.pipeline.stages.histogram import Histogram

#: What can become of a message
OUTCOMES = ("answered", "refused", "deserted", "dropped", "cancelled", "failed")


class ChannelCounts:
    """Counts the messages of a channel; many threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered = self._late = 0
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        self._lateness, self._errors = Histogram(), Histogram()

    def offer(self, count: int) -> None:
        """Count messages that were handed in."""
        with self._lock:
            self._offered += count

    def end(self, outcome: str, count: int = 1) -> None:
        """Count what became of messages."""
        with self._lock:
            self._outcomes[outcome] += count

    def answer(self, late_by: float, count: int = 1) -> None:
        """Count answers, given so many seconds after the deadline; before it, less than 0."""
        late = late_by > 0
        with self._lock:
            self._outcomes["answered"] += count
            self._late += count * late
        if late:
            self._lateness.add(late_by)

    def estimated(self, error: float) -> None:
        """Count how far, in seconds, a task was from what it was expected to take."""
        self._errors.add(error)

    def stats(self, cost: CostModel) -> dict[str, Any]:
        """Return the counts and histograms by name."""
        with self._lock:
            outcomes, offered, late = self._outcomes.copy(), self._offered, self._late
        return {
            "offered": offered,
            **outcomes,
            "late": late,
            "in_flight": offered - sum(outcomes.values()),
            "lateness": self._lateness.summary(),
            "estimate_error": self._errors.summary(),
            "cost": {"once": cost.once, "each": cost.each},
        }
