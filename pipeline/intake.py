"""The micro-batcher: queries that are asked one by one become packets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pipeline.packets import Backend, Submitted

# Queries of a packet at most
_PACKET_QUERIES = 8192


class Intake:
    """Gathers queries while no thread is free to take them, so that batches grow with the load and nobody waits idly.

    Parameters
    ----------
    announce
        Called when a group has something to `take` that had nothing; may wait, so it is not called by `take`.
    dropped
        Called with the number of queries whose futures were cancelled before they were taken.
    """

    def __init__(self, announce: Callable[[], None], dropped: Callable[[int], None]) -> None:
        self._announce = announce
        self._dropped = dropped
        self._lock = threading.Lock()
        self._groups: dict[tuple[Backend, bool], list[tuple[list[str], Future[Any]]]] = {}

    def add(self, backend: Backend, tags: list[str], future: Future[Any], *, unique: bool) -> None:
        """Append a query; an answer is wanted from `backend`."""
        group = (backend, unique)
        with self._lock:
            waiting = self._groups.setdefault(group, [])
            waiting.append((tags, future))
            first = len(waiting) == 1
        if first:
            self._announce()

    def take(self) -> Submitted | None:
        """Return some of what one group has gathered, without what was cancelled; `None` once nothing is left.

        What was announced once is taken by calling this until it returns `None`.
        """
        while True:
            with self._lock:
                if not self._groups:
                    return None
                (backend, unique), waiting = next(iter(self._groups.items()))
                del self._groups[backend, unique]
                if rest := waiting[_PACKET_QUERIES:]:
                    self._groups[backend, unique] = rest
            gathered = waiting[:_PACKET_QUERIES]
            taken = [pair for pair in gathered if pair[1].set_running_or_notify_cancel()]
            if len(taken) < len(gathered):
                self._dropped(len(gathered) - len(taken))
            if taken:
                rows, futures = map(list, zip(*taken, strict=True))
                return Submitted(backend=backend, unique=unique, last=len(taken), rows=rows, futures=futures)

    def cancel(self) -> int:
        """Cancel all that nobody has taken; returns how many that were."""
        with self._lock:
            waiting = [future for group in self._groups.values() for _, future in group]
            self._groups.clear()
        for future in waiting:
            future.cancel()
        return len(waiting)
