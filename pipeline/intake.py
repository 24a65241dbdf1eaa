"""The micro-batcher: queries that are asked one by one become packets."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from pipeline.backend import Backend
from pipeline.packets import Caller, Submitted


class Intake:
    """Gathers queries while no thread is free to take them, so that batches grow with the load and nobody waits idly.

    Parameters
    ----------
    packet_queries : int
        Queries of a packet at most.
    announce
        Called by `take` when there is more; must not wait.
    dropped
        Called with the number of queries whose futures were cancelled before they were taken.
    """

    def __init__(self, packet_queries: int, *, announce: Callable[[], object], dropped: Callable[[int], None]) -> None:
        self._packet_queries = packet_queries
        self._announce = announce
        self._dropped = dropped
        self._lock = threading.Lock()
        self._groups: dict[Backend, list[tuple[list[str], Caller]]] = {}

    def __bool__(self) -> bool:
        """Return whether there is something to take."""
        return bool(self._groups)

    def add(self, backend: Backend, tags: list[str], caller: Caller) -> bool:
        """Append a query to which `backend` has the answer; returns whether its taking must be seen to.

        If not, there are others whose taking has been seen to.
        """
        with self._lock:
            waiting = self._groups.setdefault(backend, [])
            waiting.append((tags, caller))
            return len(waiting) == 1

    def take(self) -> Submitted | None:
        """Return some of what has been gathered, without what was cancelled; `None` if there is nothing."""
        while True:
            with self._lock:
                if not self._groups:
                    return None
                backend, waiting = next(iter(self._groups.items()))
                del self._groups[backend]
                if rest := waiting[self._packet_queries :]:
                    self._groups[backend] = rest
                more = bool(self._groups)
            gathered = waiting[: self._packet_queries]
            taken = [pair for pair in gathered if pair[1].future.set_running_or_notify_cancel()]
            if len(taken) < len(gathered):
                self._dropped(len(gathered) - len(taken))
            if taken:
                if more:
                    self._announce()
                rows, callers = map(list, zip(*taken, strict=True))
                unique = np.array([caller.unique for caller in callers])
                return Submitted(backend=backend, unique=unique, last=len(taken), rows=rows, callers=callers)

    def cancel(self) -> int:
        """Cancel all that nobody has taken; returns how many that were."""
        with self._lock:
            waiting = [caller.future for group in self._groups.values() for _, caller in group]
            self._groups.clear()
        for future in waiting:
            future.cancel()
            future.set_running_or_notify_cancel()  # without this, who waits for several futures would not be told
        return len(waiting)
