"""Back-pressure: how many queries, and bytes of their results, may be in the pipeline at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from tagmatch.model.errors import ClosedError, Overloaded
from tagmatch.pipeline.stages.packets import Caller


class Limits:
    """Counts queries and bytes of results in flight, and has callers wait that would add one too many.

    Parameters
    ----------
    queries : int
        Most queries in flight.
    result_bytes : int
        Bytes of answers in flight; with more, no more matching is begun. No more queries are admitted either, while
        answers and the partial results of queries in the partition queues have more bytes together.
    """

    def __init__(self, queries: int, result_bytes: int) -> None:
        self._most_queries, self._most_bytes = queries, result_bytes
        # Entered as it is: a condition's own `__enter__` is Python, which Ctrl-C may interrupt with the lock taken
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = self._given_up = False
        # Not a count, so that queries that are let out twice, after an error, count once
        self._inside: set[Caller] = set()
        self.result_bytes = 0
        self._partial_bytes = 0

    @property
    def queries(self) -> int:
        """Queries in flight."""
        return len(self._inside)

    def admit(self, caller: Caller, *, timeout: float | None = None) -> None:
        """Let a query in; waits for room, at most `timeout` seconds.

        Raises
        ------
        Overloaded
            There was no room in time.
        ClosedError
            Nothing is admitted any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._closed and (too_much := self._too_much()):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise _overloaded(too_much)
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            if self._closed:
                raise ClosedError
            self._inside.add(caller)

    def admit_some(self, callers: Sequence[Caller]) -> list[Overloaded]:
        """Let queries in, the first ones first, while there is room; returns an error for each of the others.

        Raises
        ------
        ClosedError
            Nothing is admitted any more.
        """
        with self._lock:
            if self._closed:
                raise ClosedError
            for at, caller in enumerate(callers):
                if too_much := self._too_much():
                    return [_overloaded(too_much) for _ in callers[at:]]
                self._inside.add(caller)
        return []

    def admit_at_once(self, caller: Caller) -> None:
        """Let a query in, though there may be too many."""
        with self._lock:
            if self._closed:
                raise ClosedError
            self._inside.add(caller)

    def leave(self, callers: Iterable[Caller]) -> None:
        """Let queries out; those that are out already stay out."""
        with self._lock:
            self._inside.difference_update(callers)
            self._changed.notify_all()

    def release(self, result_bytes: int) -> None:
        """Count bytes that were charged out."""
        with self._lock:
            self.result_bytes -= result_bytes
            self._changed.notify_all()

    def charge(self, result_bytes: int) -> None:
        """Count bytes of results in."""
        with self._lock:
            self.result_bytes += result_bytes

    def wait_for_room(self) -> None:
        """Wait while there are too many bytes of results."""
        with self._lock:
            while self.result_bytes >= self._most_bytes and not self._closed:
                self._changed.wait()

    def hold(self, partial_bytes: int) -> None:
        """Say how many bytes of partial results there are."""
        with self._lock:
            less = partial_bytes < self._partial_bytes
            self._partial_bytes = partial_bytes
            if less:
                self._changed.notify_all()

    def _too_much(self) -> str | None:
        queries = len(self._inside)
        if queries >= self._most_queries:
            return f"{queries} queries are being answered, as many as max_queries"
        # Where nothing is in flight there is nothing to wait for
        if queries and (made := self.result_bytes + self._partial_bytes) >= self._most_bytes:
            return f"answers of {made} bytes are being made, as many as max_result_bytes"
        return None

    def close(self) -> None:
        """Admit nothing more."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        """Wait until all queries are out, or somebody would not have others wait for them."""
        with self._lock:
            while self.queries and not self._given_up:
                self._changed.wait()

    def give_up(self) -> None:
        """Have nobody wait for the queries that are not out."""
        with self._lock:
            self._given_up = True
            self._changed.notify_all()


def _overloaded(too_much: str) -> Overloaded:
    return Overloaded(f"{too_much} allows; try again later, or use `submit`, which waits")
