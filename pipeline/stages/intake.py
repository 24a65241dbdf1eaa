"""The micro-batcher: queries that are asked one by one become packets."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from tagmatch.pipeline.matcher import Matcher
from tagmatch.pipeline.stages.packets import Caller, Submitted


class Intake:
    """Gathers queries while no thread is free to take them, so that batches grow with the load and nobody waits idly.

    Parameters
    ----------
    packet_queries : int
        Queries of a packet at most.
    announce
        Called by `take` when there is more; must not wait.
    dropped
        Called with those whose futures were cancelled before their queries were taken, or whom `take` has failed.
    """

    def __init__(
        self, packet_queries: int, *, announce: Callable[[], object], dropped: Callable[[list[Caller]], None]
    ) -> None:
        self._packet_queries = packet_queries
        self._announce = announce
        self._dropped = dropped
        self._lock = threading.Lock()
        self._groups: dict[Matcher, list[tuple[list[str], Caller]]] = {}

    def __bool__(self) -> bool:
        """Return whether there is something to take."""
        return bool(self._groups)

    def extend(self, matcher: Matcher, queries: list[tuple[list[str], Caller]]) -> bool:
        """Append queries to which `matcher` has the answers; returns whether their taking must be seen to.

        If not, there are others whose taking has been seen to.
        """
        with self._lock:
            waiting = self._groups.setdefault(matcher, [])
            waiting += queries
            return len(waiting) == len(queries)

    def take(self) -> Submitted | None:
        """Return some of what has been gathered, without what was cancelled; `None` if there is nothing."""
        while True:
            with self._lock:
                if not self._groups:
                    return None
                matcher, waiting = next(iter(self._groups.items()))
                gathered, rest = waiting[: self._packet_queries], waiting[self._packet_queries :]
                if rest:
                    self._groups[matcher] = rest
                else:
                    del self._groups[matcher]
                more = bool(self._groups)
            try:
                packet = self._packet(matcher, gathered)
            except BaseException as error:
                for _, caller in gathered:
                    caller.fail(error)
                self._dropped([caller for _, caller in gathered])
                raise
            if packet is not None:
                if more:
                    self._announce()
                return packet

    def _packet(self, matcher: Matcher, gathered: list[tuple[list[str], Caller]]) -> Submitted | None:
        taken = [pair for pair in gathered if pair[1].future.set_running_or_notify_cancel()]
        if len(taken) < len(gathered):
            self._dropped([caller for _, caller in gathered if caller.future.cancelled()])
        if not taken:
            return None
        rows, callers = map(list, zip(*taken, strict=True))
        unique = np.array([caller.unique for caller in callers])
        return Submitted(matcher=matcher, unique=unique, rows=rows, callers=callers)

    def cancel(self) -> list[Caller]:
        """Cancel all that nobody has taken; returns the callers that wait for it."""
        with self._lock:
            waiting = [caller for group in self._groups.values() for _, caller in group]
            self._groups.clear()
        for caller in waiting:
            caller.future.cancel()
            # Without this, callers that wait for several futures would not learn of it
            caller.future.set_running_or_notify_cancel()
        return waiting
