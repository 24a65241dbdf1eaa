"""A stage of the pipeline: threads that take work from a bounded queue, in the order in which it came."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pipeline.histogram import Histogram

Work = TypeVar("Work")


class StoppedError(Exception):
    """The stage takes no more work."""


class Stage(Generic[Work]):
    """Threads that do one kind of work.

    Parameters
    ----------
    name : str
    do : callable
        Works on one piece, in one of the threads; may put what comes of it into another stage.
    fail : callable
        `fail(work, error)` is called when `do(work)` has raised; the thread goes on with the next piece.
    threads : int
    bound : int
        Pieces that wait at most; `put` blocks while there are so many.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Work], None],
        fail: Callable[[Work, BaseException], None],
        *,
        threads: int,
        bound: int,
    ) -> None:
        self.name = name
        self._do = do
        self._fail = fail
        self._bound = bound
        self._waiting: deque[tuple[float, Work]] = deque()
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._stopped = False
        self._wait, self._service = Histogram(), Histogram()
        self._threads = [
            threading.Thread(target=self._run, name=f"tagmatch-{name}-{i}", daemon=True) for i in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, work: Work) -> None:
        """Append a piece of work; waits while the queue is full.

        Raises
        ------
        StoppedError
            The stage was stopped.
        """
        with self._lock:
            while len(self._waiting) >= self._bound and not self._stopped:
                self._not_full.wait()
            if self._stopped:
                raise StoppedError(self.name)
            self._waiting.append((time.perf_counter(), work))
            self._not_empty.notify()

    def stop(self) -> list[Work]:
        """Let threads end after the piece that they are at; returns what nobody has begun."""
        with self._lock:
            self._stopped = True
            left = [work for _, work in self._waiting]
            self._waiting.clear()
            self._not_empty.notify_all()
            self._not_full.notify_all()
        return left

    def join(self) -> None:
        """Wait until the threads have ended, but for the one that calls."""
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join()

    def stats(self) -> dict[str, Any]:
        """Return `threads`, `queued`, and histograms of `wait` and `service` in seconds."""
        return {
            "threads": len(self._threads),
            "queued": len(self._waiting),
            "wait": self._wait.summary(),
            "service": self._service.summary(),
        }

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._stopped:
                    self._not_empty.wait()
                if self._stopped:
                    return
                since, work = self._waiting.popleft()
                self._not_full.notify()
            begun = time.perf_counter()
            try:
                self._do(work)
            except BaseException as error:
                self._fail(work, error)
            ended = time.perf_counter()
            self._wait.add(begun - since)
            self._service.add(ended - begun)
            del work
