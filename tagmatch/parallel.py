"""Spreads work over threads. Kernels release the interpreter lock, so plain threads are enough.

Numba's own parallel loops are not used: one of their threading layers aborts the process when two Python threads
enter it at once, and every method of `TagMatch` may be called from many threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from tagmatch.arrays import IntArray

T = TypeVar("T")
R = TypeVar("R")


@lru_cache(maxsize=8)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="tagmatch-worker")


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises
    ------
    MemoryError
        The system has no room for another one.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise MemoryError(f"{error}: use fewer threads, or allow the process more") from None


def run(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Results of `work` on every item, in the items' order; the first exception is raised after all have ended.

    `work` must not call `run` itself: the threads are shared by all callers and could all be waiting.
    """
    todo = list(items)
    if threads == 1 or len(todo) <= 1:
        return [work(item) for item in todo]
    futures: list[Future[R]] = []
    try:
        for item in todo:
            futures.append(_pool(threads).submit(work, item))  # noqa: PERF401 - those before an error are needed
        wait(futures)
    except BaseException:
        _end(futures)
        raise
    return [future.result() for future in futures]


def _end(futures: list[Future[R]]) -> None:
    """Have nothing go on in the memory of a caller who has failed, not even after another Ctrl-C."""
    for future in futures:
        future.cancel()
    while not all(future.done() for future in futures):
        with contextlib.suppress(KeyboardInterrupt):
            wait(futures)


def even_ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """`count` rows cut into at most `parts` ranges of nearly equal length, none empty."""
    edges = np.linspace(0, count, max(1, min(parts, count)) + 1).astype(np.int64)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)) if count else []


def even_work(offsets: IntArray, parts: int) -> list[tuple[int, int]]:
    """Rows cut into at most `parts` ranges whose lists hold nearly equally many values; `offsets`: rows + 1."""
    rows = len(offsets) - 1
    targets = np.linspace(int(offsets[0]), int(offsets[-1]), max(1, parts) + 1)[1:-1].astype(offsets.dtype)
    edges = [0, *np.searchsorted(offsets, targets).tolist(), rows]
    edges = sorted({min(edge, rows) for edge in edges})
    return list(pairwise(edges))


def run_rows(work: Callable[[int, int], R], ranges: Sequence[tuple[int, int]], threads: int) -> list[R]:
    """`run` for work on row ranges."""
    return run(lambda ends: work(*ends), ranges, threads)
