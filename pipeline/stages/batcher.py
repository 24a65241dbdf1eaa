"""The batch stage: queries wait in the queues of their partitions until a batch is full, or has waited enough (§3).

A batch leaves when it is full, when its oldest query has waited for the flush timeout, or when a thread has nothing
else to do: one of the subset match, or the one that has brought a packet so small that it stays with its thread. One
timer looks after all queues.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tagmatch.model.parallel import start
from tagmatch.pipeline.matcher import Batches, Found, Matcher
from tagmatch.pipeline.stages.packets import Caller, Submitted
from tagmatch.pipeline.stages.partition_queues import Completed, PartitionQueues, Taken

# A thread that has nothing else to do takes all that waits, or its share where there are more (query, partition) pairs
_FEWEST_PAIRS = 4096

# Bytes of the lists that empty queues keep memory for
_KEPT_BYTES = 1 << 26

_log = logging.getLogger(__name__)


class Batcher:
    """The partition queues of every matcher in use.

    Parameters
    ----------
    flush_timeout : float or None
        Seconds that a query waits at most for others while all threads are busy; `None`: no limit.
    threads : int
        Threads of the subset match.
    hand_over : int
        What is left of a packet of fewer queries does not wait.
    announce : callable
        Called when there is something to `take`; must not wait.
    due : callable
        Called by the timer, with batches that have waited enough.
    held : callable
        Called with the bytes of all lists whenever they have changed.
    lost : callable
        Called with those whose queries are lost, and the error: when something fails halfway, for want of memory say,
        what the queues hold is no longer whole.
    """

    def __init__(
        self,
        flush_timeout: float | None,
        threads: int,
        hand_over: int,
        *,
        announce: Callable[[], object],
        due: Callable[[Taken], None],
        held: Callable[[int], None],
        lost: Callable[[list[Caller], BaseException], None],
    ) -> None:
        self._flush_timeout = np.inf if flush_timeout is None else float(flush_timeout)
        self._threads = threads
        self._hand_over = hand_over
        self._announce = announce
        self._due = due
        self._held = held
        self._lost = lost
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queues: dict[Matcher, PartitionQueues] = {}
        self._timer: threading.Thread | None = None
        self._timer_sleeps = self._stopped = False
        self._batches = self._queries = self._places = 0

    def add(self, packet: Submitted, batches: Batches) -> tuple[list[Taken], Submitted]:
        """Queue a packet's queries; returns batches that leave at once, and the queries that match in no partition."""
        with self._changing() as left:
            queues = self._queues_of(packet.matcher)
            leaving, completed = queues.add(batches, packet.callers, time.monotonic(), self._threads)
            left.append(completed.callers)
            if self._stopped or self._flush_timeout == 0:
                leaving += queues.take()
            elif len(packet) < self._hand_over:
                leaving += queues.take(most=self._share(queues))
            self._count(leaving)
            self._tell_held()
            nowhere = _packet(queues, completed)
            waiting = queues.waiting > 0
            if waiting and self._timer_sleeps:
                self._changed.notify()
        if waiting:
            self._announce()
        return leaving, nowhere

    def take(self) -> Taken | None:
        """Return batches that are not full, for a thread that has nothing else to do; `None` if no query waits."""
        with self._changing():
            found = [queues for queues in self._queues.values() if queues.waiting]
            if not found:
                return None
            (taken,) = found[0].take(most=self._share(found[0]))
            self._count([taken])
            self._tell_held()
            more = found[0].waiting or len(found) > 1
        if more:
            self._announce()
        return taken

    def finish(self, taken: Taken, found: Found | None) -> Submitted:
        """Enter what was found in batches, or that they failed; returns the queries that are now through (§3.4)."""
        queues = taken.queues
        with self._changing() as left:
            completed = queues.finish(taken, found)
            left.append(completed.callers)
            latest = next(reversed(self._queues.values()), None)
            if not queues.in_flight and (queues is not latest or queues.room > _KEPT_BYTES):
                self._queues.pop(queues.matcher, None)
            self._tell_held()
            return _packet(queues, completed)

    def callers(self, taken: Taken) -> list[Caller]:
        """The callers of queries of batches."""
        with self._lock:
            return taken.queues.callers(taken)

    def stop(self) -> None:
        """End the timer; from now on nothing waits."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        if self._timer is not None and self._timer is not threading.current_thread():
            self._timer.join()

    def abandon(self) -> list[Caller]:
        """Forget all queries; returns the callers that wait for them."""
        with self._lock:
            return [caller for queues in self._queues.values() for caller in queues.abandon()]

    def stats(self) -> dict[str, Any]:
        """Return `queued` (query, partition) pairs, `batches` that have left, and how `full` they were in the mean."""
        with self._lock:
            return {
                "queued": sum(queues.waiting for queues in self._queues.values()),
                "batches": self._batches,
                "fill": self._queries / self._places if self._places else 0.0,
            }

    # -- inside ------------------------------------------------------------------------------------------------------

    def _queues_of(self, matcher: Matcher) -> PartitionQueues:
        queues = self._queues.pop(matcher, None)
        if queues is None:
            queues = PartitionQueues(matcher)
            # Those of a snapshot that is no longer asked would keep it alive
            self._queues = {each.matcher: each for each in self._queues.values() if each.in_flight}
            if self._timer is None and 0 < self._flush_timeout < np.inf:
                timer = threading.Thread(target=self._watch, name="tagmatch-batch-timer", daemon=True)
                start(timer)
                self._timer = timer
        self._queues[matcher] = queues  # the last is the one in use
        return queues

    def _share(self, queues: PartitionQueues) -> int:
        """How many (query, partition) pairs one thread should take."""
        return max(_FEWEST_PAIRS, queues.waiting // self._threads)

    def _tell_held(self) -> None:
        self._held(sum(queues.nbytes for queues in self._queues.values()))

    def _count(self, leaving: Iterable[Taken]) -> None:
        for taken in leaving:
            self._batches += len(taken.batches.partitions)
            self._queries += len(taken.batches.queued)
            self._places += len(taken.batches.partitions) * taken.queues.match.batch_size

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[list[Caller]]]:
        """Hold the lock. What fails within loses all queries, those of the callers in the list that it gives as well.

        Queues that something has failed in may not be whole: they are left behind, and later queries get new ones.
        """
        left: list[list[Caller]] = []
        try:
            with self._lock:
                try:
                    yield left
                except BaseException:
                    left += [queues.abandon() for queues in self._queues.values()]
                    self._queues = {}
                    raise
        except BaseException as error:
            for callers in left:
                self._lost(callers, error)
            raise

    def _watch(self) -> None:
        while not self._stopped:
            try:
                self._send_what_is_due()
            except Exception:
                _log.exception("batches that have waited enough could not leave")

    def _send_what_is_due(self) -> None:
        """Send batches that have waited enough; if there are none, wait until there may be some."""
        with self._changing():
            if self._stopped:
                return
            until = time.monotonic() - self._flush_timeout
            oldest = min((queues.oldest for queues in self._queues.values()), default=np.inf)
            if oldest > until:
                # What comes later is due later, so that only the first to come need wake the timer
                self._timer_sleeps = oldest == np.inf
                self._changed.wait(None if self._timer_sleeps else min(oldest - until, threading.TIMEOUT_MAX))
                self._timer_sleeps = False
                return
            leaving = [taken for queues in self._queues.values() for taken in queues.take(until=until)]
            self._count(leaving)
            self._tell_held()
        for taken in leaving:
            self._due(taken)


def _packet(queues: PartitionQueues, completed: Completed) -> Submitted:
    callers = completed.callers
    unique = np.array([caller.unique for caller in callers], np.bool_)
    packet = Submitted(matcher=queues.matcher, unique=unique, callers=callers)
    packet.matched = queues.match.matched(completed.sets)
    return packet
