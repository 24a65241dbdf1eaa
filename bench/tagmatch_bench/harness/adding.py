"""Threads that add rows one by one, while another makes them visible."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tagmatch_bench.harness.timing import without_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tagmatch.model.arrays import F64Array

#: Adds one row for one thread
Adder: TypeAlias = "Callable[[list[str], int], object]"

#: When a call began and when it ended
Call: TypeAlias = tuple[float, float]

# A thread that is ahead by less goes on, as no sleep is that short
_SHORTEST_SLEEP = 0.001


@dataclass(frozen=True, slots=True)
class Added:
    """What came of additions.

    Attributes
    ----------
    rows : int
        Added.
    seconds : float
        From the start until the last was added.
    unseen : float
        The longest time from when an addition returned to the end of the first call of `tend` that began after that.
    """

    rows: int
    seconds: float
    unseen: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@contextmanager
def repeatedly(work: Callable[[], object], every: float) -> Iterator[list[Call]]:
    """Have another thread call `work`, again and again until the block ends; gives the calls so far.

    Calls begin `every` seconds after each other, or when the one before has ended, if that is later. What a call raises
    ends them, and is raised when the block ends.
    """
    calls: list[Call] = []
    ended = threading.Event()

    def call_again() -> None:
        while not ended.is_set():
            begin = time.perf_counter()
            work()
            calls.append((begin, time.perf_counter()))
            ended.wait(max(0.0, begin + every - time.perf_counter()))

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call_again)
        try:
            yield calls
        finally:
            ended.set()
        calling.result()


def add_steadily(
    adders: Sequence[Adder],
    rows: Iterable[tuple[list[str], int]],
    *,
    seconds: float,
    rate: float,
    tend: Callable[[], object],
    every: float,
) -> Added:
    """Add rows one by one, in their order, for some seconds or until there are no more.

    Parameters
    ----------
    adders
        For each thread, what adds a row.
    rate : float
        Most rows a second, of all threads.
    tend
        Makes rows visible that were added before; another thread calls it every so many seconds, and once at the end.
    """
    source = iter(rows)  # of all threads, which the interpreter lock makes take turns
    share = rate / len(adders)
    starts: list[float] = []
    together = threading.Barrier(len(adders), action=lambda: starts.append(time.perf_counter()))

    def add_all(add: Adder) -> list[float]:
        returned: list[float] = []
        together.wait()
        start = starts[0]
        while (now := time.perf_counter()) - start < seconds:
            if (ahead := start + len(returned) / share - now) > _SHORTEST_SLEEP:
                time.sleep(ahead)
            if (row := next(source, None)) is None:
                break
            add(*row)
            returned.append(time.perf_counter())
        return returned

    with without_garbage_collection():
        with repeatedly(tend, every) as calls, ThreadPoolExecutor(len(adders)) as pool:
            returned = np.concatenate([np.array(times) for times in pool.map(add_all, adders)])
        begin = time.perf_counter()
        tend()
        calls.append((begin, time.perf_counter()))
    if not len(returned):
        raise ValueError("nothing was added; give rows, and seconds")
    return Added(len(returned), float(returned.max()) - starts[0], longest_unseen(returned, calls))


def longest_unseen(returned: F64Array, calls: Sequence[Call]) -> float:
    """Return the longest time from a moment to the end of the first call that began then or later."""
    begins, ends = np.array(calls).T
    return float(np.max(ends[np.searchsorted(begins, returned)] - returned))
