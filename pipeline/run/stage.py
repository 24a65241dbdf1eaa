"""The stages and their order (§3, Figure 1): each has its threads, which take work from a bounded queue.

The method of a packet that has a stage's name does its work. Before the subset match there is one more stage, `batch`,
for layouts that match partition by partition, and queries that are submitted one by one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar

from tagmatch.model.parallel import join, start
from tagmatch.pipeline.run.counts import Histogram

Work = TypeVar("Work", bound=Sized)


# How often, and how far apart, it is tried to report a failure without memory
_TRIES, _PAUSE_S = 100, 0.01

_of_thread = threading.local()

_log = logging.getLogger(__name__)


def at_work() -> bool:
    """Return whether the calling thread is doing a stage's work: then it must not wait for a stage.

    The callbacks of futures run in such threads, or count as such work.
    """
    return getattr(_of_thread, "at_work", False)


@contextmanager
def working() -> Iterator[None]:
    """Count the calling thread as `at_work`, within it."""
    before = at_work()  # a thread that brings a piece may do it as well
    _of_thread.at_work = True
    try:
        yield
    finally:
        _of_thread.at_work = before


class Workers(Generic[Work]):
    """Threads that do pieces of work until the end."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self.threads = [
            threading.Thread(target=self._run, args=[worker], name=f"tagmatch-{name}-{worker}", daemon=True)
            for worker in range(threads)
        ]

    def start(self) -> None:
        """Start the threads, but those that an earlier call has started, which did not come to the end."""
        for thread in self.threads:
            start(thread)

    def join(self) -> None:
        """Wait until the threads have ended; not for a thread at work."""
        for thread in self.threads:
            join(thread)

    def _run(self, worker: int) -> None:
        while True:
            try:
                work = self._next(worker)
            except Exception:
                # What it was about has failed; the thread goes on for the others
                _log.exception("a thread of %s could not take a piece of work", self.name)
                continue
            if work is None:
                return
            with working():
                self._work_on(work)
            del work

    def _next(self, worker: int) -> Work | None:
        """Wait for a piece of work; `None` at the end."""
        raise NotImplementedError

    def _work_on(self, work: Work) -> None:
        """Do it; nothing is raised."""
        raise NotImplementedError


class StoppedError(Exception):
    """The stage takes no more work."""


class Stage(Workers[Work]):
    """Threads that do one kind of work."""

    def __init__(
        self,
        name: str,
        do: Callable[[Work], Iterable[tuple[Stage[Any], Any]]],
        fail: Callable[[Work, BaseException], None],
        *,
        threads: int,
        bound: int,
        hand_over: int = 0,
        first: Callable[[], Work | None] = lambda: None,
        otherwise: Callable[[], Work | None] = lambda: None,
    ) -> None:
        super().__init__(name, threads)
        self._do = do
        self._fail = fail
        self._bound = bound
        self._hand_over = hand_over
        self._first, self._otherwise = first, otherwise  # Sources of work before the queue, and after
        #: Pieces of work, and when each came, in seconds of `time.perf_counter`
        self._waiting: deque[tuple[float, Work]] = deque()
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._nudged = self._stopped = False
        self._wait, self.service = Histogram(), Histogram()  # In seconds

    def send(self, work: Work) -> None:
        """Do a piece of work: at once, in the calling thread, if it is small; else as `put`."""
        if len(work) < self._hand_over:
            self._work_on(work)
        else:
            self.put(work)

    def put(self, work: Work) -> None:
        """Hand a piece of work to one of the stage's threads; waits while the queue is full."""
        try:
            with self._lock:
                while len(self._waiting) >= self._bound and not self._stopped:
                    self._not_full.wait()
                if self._stopped:
                    raise StoppedError(self.name)
                self._waiting.append((time.perf_counter(), work))
                self._not_empty.notify()
        except BaseException as error:
            self._give_up(work, error)

    def nudge(self) -> bool:
        """Wake a thread that finds nothing queued to ask `otherwise`; returns whether the stage still works."""
        with self._lock:
            self._nudged = True
            self._not_empty.notify()
            return not self._stopped

    def stop(self) -> None:
        """Let threads end after the piece that they are at; pieces that no thread has begun fail."""
        with self._lock:
            self._stopped = True
            left = [work for _, work in self._waiting]
            self._waiting.clear()
            self._not_empty.notify_all()
            self._not_full.notify_all()
        for work in left:
            self._give_up(work, StoppedError(self.name))

    def stats(self) -> dict[str, Any]:
        """Return `threads`, `queued`, and histograms of `wait` and `service` in seconds."""
        return {
            "threads": len(self.threads),
            "queued": len(self._waiting),
            "wait": self._wait.summary(),
            "service": self.service.summary(),
        }

    def _work_on(self, work: Work) -> None:
        begun = time.perf_counter()
        try:
            following = self._do(work)
        except BaseException as error:
            self._give_up(work, error)
        else:
            self.service.add(time.perf_counter() - begun)
            for stage, piece in following:
                stage.send(piece)

    def _give_up(self, work: Work, error: BaseException) -> None:
        """Fail a piece; if even for that memory is short, after a while."""
        for _ in range(_TRIES):
            try:
                return self._fail(work, error)
            except MemoryError:
                time.sleep(_PAUSE_S)
        _log.error("stage %s could not report, for lack of memory: %r", self.name, error)
        return None

    def _next(self, worker: int) -> Work | None:  # noqa: ARG002 - all find the same
        """Wait for a piece of work; `None` at the end."""
        if not self._stopped and (found := self._first()) is not None:
            return found
        while True:
            with self._lock:
                while not (self._waiting or self._nudged or self._stopped):
                    self._not_empty.wait()
                if self._stopped:
                    return None
                if self._waiting:
                    since, work = self._waiting.popleft()
                    self._not_full.notify()
                    break
                self._nudged = False
            if (found := self._otherwise()) is not None:
                return found
        self._wait.add(time.perf_counter() - since)
        return work


StageName = Literal["preprocess", "subset_match", "key_lookup", "merge"]

#: All stages, from the first to the last
STAGES: tuple[StageName, ...] = ("preprocess", "subset_match", "key_lookup", "merge")

#: The stage that follows on each but the last
FOLLOWING: dict[StageName, StageName] = dict(pairwise(STAGES))
