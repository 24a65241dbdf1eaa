"""Spreads work over threads. Kernels release the interpreter lock, so plain threads are enough.

Numba's own parallel loops are not used: one of their threading layers aborts the process when two Python threads
enter it at once, and every method of `TagMatch` may be called from many threads.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, starmap
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import IntArray, SharedWork

T = TypeVar("T")
R = TypeVar("R")

_PAUSE_S = 0.001
_WAIT_S = 0.1

# Of other machines, which answer each request late
_ASKED_AT_ONCE = 16

# To have a thread do these takes longer than to hand them over
_FEWEST_ROWS = 1 << 13


class _Threads:
    """The threads that help, which all callers share. They wait for work until the process ends."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []

    def help(self, work: Callable[[], None], threads: int) -> None:
        """Let `count` threads work together, or as many as the system has room for."""
        if len(self._threads) < threads:
            with self._starting:
                self._start(threads)
        for _ in range(threads):
            self._works.put(work)

    def _start(self, threads: int) -> None:
        while len(self._threads) < threads:
            name = f"tagmatch-worker-{len(self._threads)}"
            thread = threading.Thread(target=_take_works, args=[self._works], name=name, daemon=True)
            try:
                start(thread)
            except MemoryError:
                if self._threads:
                    return
                raise
            self._threads.append(thread)


def _take_works(works: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        works.get()()


_threads = _Threads()


def _begin_anew() -> None:
    global _threads, _starting
    _threads, _starting = _Threads(), threading.Lock()


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_begin_anew)


def start(thread: threading.Thread) -> None:
    """Start a thread that has not begun; of two calls for the same thread, the second does nothing.

    Ctrl-C may come to the main thread at any moment, also within `Thread.start`: then the new thread may wait for ever
    for a lock, or be started twice. So the main thread has another one do it.
    """
    errors: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()
    if threading.current_thread() is threading.main_thread():
        try:
            _thread.start_new_thread(_start, (thread, errors, done))
        except RuntimeError as error:
            raise _no_room(error) from None
        # Not for ever: Ctrl-C that comes just before this waits does not wake it
        while not done.acquire(timeout=_WAIT_S):
            pass
    else:
        _start(thread, errors, done)
    if errors:
        raise errors[0]


# Never taken by the main thread
_starting = threading.Lock()


def _start(thread: threading.Thread, errors: list[BaseException], done: _thread.LockType) -> None:
    try:
        with _starting:
            if thread.ident is None:
                thread.start()
    except RuntimeError as error:
        errors.append(_no_room(error))
    except BaseException as error:
        errors.append(error)
    finally:
        done.release()


@contextlib.contextmanager
def threads_of_arrow() -> Iterator[None]:
    """Within it, a thread of Arrow's own for which the system has no room is a `MemoryError`, as it is for ours.

    Arrow calls that an unknown error, which would be taken for a file that is damaged.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if "Failed to launch worker thread" not in str(error):
            raise
        raise _no_room(error) from None


def _no_room(error: Exception) -> MemoryError:
    return MemoryError(f"{error}: use fewer threads, or allow the process more")


def join(thread: threading.Thread) -> None:
    """Wait until a thread has ended; one whose `start` was interrupted may only be about to begin."""
    while thread.ident is not None:
        try:
            thread.join()
            break
        except RuntimeError:  # it has a number, but has not said yet that it runs
            time.sleep(_PAUSE_S)


class GivenUpError(Exception):
    """Nobody wants any more what a thread was doing."""


_unless = threading.local()


@contextlib.contextmanager
def unless(given_up: Callable[[], bool]) -> Iterator[None]:
    """Within it, `run` and `reject_given_up` raise `GivenUpError` in this thread instead of working once `given_up`."""
    _unless.given_up = given_up
    try:
        yield
    finally:
        del _unless.given_up


def reject_given_up() -> None:
    """Raise `GivenUpError` if this thread is to give up what it does: long work asks now and then."""
    if (given_up := getattr(_unless, "given_up", None)) is not None and given_up():
        raise GivenUpError


def run(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Results of `work` on every item, in the items' order; the first exception is raised after all have ended.

    The threads are shared by all callers. The calling thread is one of those that work, so that it does not depend on
    others which may all be waiting, as when `work` calls `run`. Only the main thread waits, ready for Ctrl-C.
    """
    reject_given_up()
    todo = list(items)
    if threads == 1 or len(todo) <= 1:
        return list(map(work, todo))
    job: SharedWork[T, R] = SharedWork(todo)
    help_with_it = partial(job.help, work)
    works = threading.current_thread() is not threading.main_thread()
    try:
        _threads.help(help_with_it, min(threads, len(todo)) - works)
        if works:
            help_with_it()
        return job.results()
    except BaseException:
        # Nothing may go on in the memory of a caller that has failed
        job.stop()
        raise


def ask_many(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """As `run`, for work that waits for other machines: many at once, in threads that give up as this one does."""
    given_up = getattr(_unless, "given_up", bool)

    def ask(item: T) -> R:
        with unless(given_up):
            reject_given_up()
            return work(item)

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, items))


def in_one_step(work: Callable[[], R]) -> R:
    """The result of work that Ctrl-C does not end half-way: it comes to the main thread, which has another one work."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    job: SharedWork[None, R] = SharedWork([None])
    try:
        _threads.help(partial(job.help, lambda _: work()), 1)
        return job.results()[0]
    except BaseException:
        job.stop()
        raise


def even_ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """`count` rows cut into at most `parts` ranges of nearly equal length, none empty."""
    parts = min(parts, count)
    if parts <= 1:
        return [(0, count)] if count else []
    return list(pairwise(count * part // parts for part in range(parts + 1)))


def even_work(offsets: IntArray, parts: int) -> list[tuple[int, int]]:
    """Rows cut into at most `parts` ranges whose lists hold nearly equally many values; `offsets`: rows + 1."""
    rows, first, values = len(offsets) - 1, int(offsets[0]), int(offsets[-1] - offsets[0])
    if parts <= 1:
        return [(0, rows)] if rows else []
    targets = [first + values * part // parts for part in range(1, parts)]
    edges = [0, *np.searchsorted(offsets, np.array(targets, offsets.dtype)).tolist(), rows]
    edges = sorted({min(edge, rows) for edge in edges})
    return list(pairwise(edges))


def run_evenly(work: Callable[[int, int], R], count: int, threads: int) -> list[R]:
    """`run` for work on ranges of `count` rows, which are about equal, and several only if they are many rows each."""
    if count <= _FEWEST_ROWS:
        return [work(0, count)] if count else []
    return run_rows(work, even_ranges(count, min(threads, count // _FEWEST_ROWS)), threads)


def run_rows(work: Callable[[int, int], R], ranges: Sequence[tuple[int, int]], threads: int) -> list[R]:
    """`run` for work on row ranges."""
    if threads == 1 or len(ranges) <= 1:
        if hasattr(_unless, "given_up"):
            reject_given_up()
        return list(starmap(work, ranges))
    return run(lambda ends: work(*ends), ranges, threads)
