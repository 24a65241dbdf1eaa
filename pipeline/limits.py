"""Back-pressure: how many queries, and bytes of their results, may be in the pipeline at once."""

from __future__ import annotations

import threading
import time

from tagmatch.errors import ClosedError, Overloaded


class Limits:
    """Counts queries and bytes of results in flight, and has those wait who would add one too many.

    Parameters
    ----------
    queries : int
        Most queries in flight.
    result_bytes : int
        With so many bytes of answers in flight, no more matching is begun. No more queries are admitted either, while
        answers and the partial results of queries in the partition queues have so many bytes together.
    """

    def __init__(self, queries: int, result_bytes: int) -> None:
        self._most_queries, self._most_bytes = queries, result_bytes
        self._changed = threading.Condition()
        self._closed = self._given_up = False
        self.queries = 0
        self.result_bytes = 0
        self._partial_bytes = 0

    def admit(self, *, timeout: float | None = None) -> None:
        """Count a query in; waits for room, at most `timeout` seconds.

        Raises
        ------
        Overloaded
            There was no room in time.
        ClosedError
            Nothing is admitted any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._closed and (too_much := self._too_much()):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise Overloaded(f"{too_much} allows; try again later, or let the call wait")
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            if self._closed:
                raise ClosedError
            self.queries += 1

    def admit_at_once(self) -> None:
        """Count a query in, though there may be too many."""
        with self._changed:
            if self._closed:
                raise ClosedError
            self.queries += 1

    def leave(self, queries: int, result_bytes: int = 0) -> None:
        """Count queries, and the bytes that were charged for them, out."""
        with self._changed:
            self.queries -= queries
            self.result_bytes -= result_bytes
            self._changed.notify_all()

    def charge(self, result_bytes: int) -> None:
        """Count bytes of results in."""
        with self._changed:
            self.result_bytes += result_bytes

    def wait_for_room(self) -> None:
        """Wait while there are too many bytes of results."""
        with self._changed:
            while self.result_bytes >= self._most_bytes and not self._closed:
                self._changed.wait()

    def hold(self, partial_bytes: int) -> None:
        """Say how many bytes of partial results there are."""
        with self._changed:
            less = partial_bytes < self._partial_bytes
            self._partial_bytes = partial_bytes
            if less:
                self._changed.notify_all()

    def _too_much(self) -> str | None:
        if self.queries >= self._most_queries:
            return f"{self.queries} queries are being answered, as many as max_queries"
        # Where nothing is in flight there is nothing to wait for
        if self.queries and (made := self.result_bytes + self._partial_bytes) >= self._most_bytes:
            return f"answers of {made} bytes are being made, as many as max_result_bytes"
        return None

    def close(self) -> None:
        """Admit nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        """Wait until all queries are out, or somebody would not have others wait for them."""
        with self._changed:
            while self.queries and not self._given_up:
                self._changed.wait()

    def give_up(self) -> None:
        """Have nobody wait for the queries that are not out."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
