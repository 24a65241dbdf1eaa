"""What one thread reads and another takes together: a queue with a bound, in rows and in bytes."""

from __future__ import annotations

import threading
from collections import deque

from tagmatch.broker.messages import Messages


class Gathering:
    """Batches that have come and are not taken yet.

    Parameters
    ----------
    most_rows, most_bytes : int
        With more than these, `put` waits; one batch always fits.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._batches: deque[Messages] = deque()
        self._rows = self._bytes = 0
        self._ended = self._closed = False
        self._lock = threading.Lock()
        self._room, self._some = threading.Condition(self._lock), threading.Condition(self._lock)
        self._error: BaseException | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes in."""
        return self._ended

    def put(self, batch: Messages) -> bool:
        """Add a batch, when there is room; returns whether somebody still takes it."""
        with self._lock:
            while (
                not self._closed
                and self._batches
                and (self._rows + batch.rows > self._most_rows or self._bytes + batch.nbytes > self._most_bytes)
            ):
                self._room.wait()
            if self._closed:
                return False
            self._batches.append(batch)
            self._rows += batch.rows
            self._bytes += batch.nbytes
            self._some.notify()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing more comes, and why, if that is an error."""
        with self._lock:
            self._ended, self._error = True, error
            self._some.notify()

    def close(self) -> int:
        """Say that nothing more is taken; returns how many rows are left behind."""
        with self._lock:
            self._closed, left = True, self._rows
            self._batches.clear()
            self._rows = self._bytes = 0
            self._room.notify_all()
            return left

    def take(self, most_rows: int, timeout: float | None = None) -> list[Messages]:
        """All that has come, up to so many rows but at least one batch; waits for it. Empty at the end, or in time.

        Raises
        ------
        BaseException
            What the stream ended with, after all that came before it was taken.
        """
        with self._lock:
            if not self._batches and not self._ended:
                self._some.wait(timeout)
            taken: list[Messages] = []
            rows = 0
            while self._batches and (not taken or rows + self._batches[0].rows <= most_rows):
                batch = self._batches.popleft()
                rows += batch.rows
                self._bytes -= batch.nbytes
                taken.append(batch)
            self._rows -= rows
            if taken:
                self._room.notify()
            elif self._ended and self._error is not None:
                raise self._error
            return taken
