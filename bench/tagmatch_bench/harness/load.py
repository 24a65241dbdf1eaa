"""Load of other threads: queries submitted one by one, and rows added one by one.

Latencies count from when a query was due, not from when it was submitted: otherwise a slow system, by making the next
queries late, would hide its slowness from their latencies (G. Tene's "coordinated omission").
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from tagmatch import Overloaded
from tagmatch.model.arrays import F64Array
from tagmatch.workloads.queries import arrival_times
from tagmatch_bench.harness.timing import without_garbage_collection

#: Queries that a closed loop has outstanding
WINDOW = 8192

_QUANTILES = {"median": 0.5, "p99": 0.99, "p99.9": 0.999, "maximum": 1.0}


@dataclass(frozen=True, slots=True)
class Served:
    """The outcome of queries."""

    latency: F64Array  # of each query that was answered: seconds from when it was due until its future was done
    rejected: int  # queries that were refused as `Overloaded`
    seconds: float  # from the start to the last answer

    @classmethod
    def of(cls, due: F64Array, done: F64Array) -> Served:
        """Of when each query was due and was answered, NaN if it was refused."""
        latency = (done - due)[~np.isnan(done)]
        return cls(latency, len(due) - len(latency), float(np.nanmax(done, initial=0.0)))

    @property
    def throughput(self) -> float:
        """Queries answered a second."""
        return len(self.latency) / self.seconds

    def milliseconds(self) -> dict[str, float]:
        """Return the latency's quantiles by name, in milliseconds."""
        return {name: 1000 * float(np.quantile(self.latency, share)) for name, share in _QUANTILES.items()}


def serve(
    submit: Callable[[list[str]], Future[Any]],
    queries: Iterable[list[str]],
    due: F64Array,
    *,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Served:
    """Submit queries when they are due, all of them however late it has become; waits until all are answered."""
    done = np.full(len(due), np.nan)
    finished: SimpleQueue[Future[Any]] = SimpleQueue()

    def record(number: int, future: Future[Any]) -> None:
        done[number] = now() - start
        finished.put(future)

    submitted = 0
    with without_garbage_collection():
        start = now()
        for number, (due_at, query) in enumerate(zip(due.tolist(), queries, strict=False)):
            if (wait := start + due_at - now()) > 0:
                sleep(wait)
            try:
                future = submit(query)
            except Overloaded:
                continue
            submitted += 1
            future.add_done_callback(partial(record, number))
        for _ in range(submitted):
            finished.get().result()
    return Served.of(due, done)


def serve_in_order(
    submit: Callable[[list[str]], Future[Any]], queries: Iterable[list[str]], due: F64Array, *, tick: float = 0.0002
) -> Served:
    """As `serve`, for futures that are done in the order in which they were submitted, with less work for each.

    The thread that submits looks every `tick` seconds for due and finished queries, so that latencies are up to that
    much too long; no future has a callback, which would take the interpreter lock from those that answer.
    """
    done, times, source = np.full(len(due), np.nan), due.tolist(), iter(queries)
    outstanding: deque[tuple[int, Future[Any]]] = deque()
    number = 0
    with without_garbage_collection():
        start = time.perf_counter()
        while number < len(times) or outstanding:
            now = time.perf_counter() - start
            while outstanding and outstanding[0][1].done():
                place, future = outstanding.popleft()
                future.result()
                done[place] = now
            while number < len(times) and times[number] <= now:
                with suppress(Overloaded):
                    outstanding.append((number, submit(next(source))))
                number += 1
            time.sleep(tick)
    return Served.of(due, done)


def serve_calls(match: Callable[[list[str]], object], queries: Iterable[list[str]], due: F64Array) -> Served:
    """As `serve`, but the thread that asks is the one that answers; it asks a query when the one before is answered."""
    latency = np.empty(len(due))
    now = time.perf_counter
    with without_garbage_collection():
        start = now()
        for number, (due_at, query) in enumerate(zip(due.tolist(), queries, strict=False)):
            if (wait := start + due_at - now()) > 0:
                time.sleep(wait)
            match(query)
            latency[number] = now() - start - due_at
    return Served(latency, 0, now() - start)


def serve_tasks(ask: Callable[[list[str]], Awaitable[object]], queries: Iterable[list[str]], due: F64Array) -> Served:
    """As `serve`, but each query is asked by its own task of one event loop, which is begun when it is due."""
    done = np.full(len(due), np.nan)
    now = time.perf_counter

    async def all_of_them() -> None:
        start = now()

        async def one(number: int, query: list[str]) -> None:
            with suppress(Overloaded):
                await ask(query)
                done[number] = now() - start

        async with asyncio.TaskGroup() as tasks:
            for number, (due_at, query) in enumerate(zip(due.tolist(), queries, strict=False)):
                if (wait := start + due_at - now()) > 0:
                    await asyncio.sleep(wait)
                tasks.create_task(one(number, query))

    with without_garbage_collection():
        asyncio.run(all_of_them())
    return Served.of(due, done)


def closed_loop_rate(
    submit: Callable[[list[str]], Future[Any]], queries: Sequence[list[str]], seconds: float, *, window: int = WINDOW
) -> float:
    """Measure how many queries a second one caller gets answered that has up to `window` of them outstanding."""
    outstanding: deque[Future[Any]] = deque()
    asked = 0
    with without_garbage_collection():
        start = time.perf_counter()
        for query in cycle(queries):
            if len(outstanding) == window:
                outstanding.popleft().result()
            outstanding.append(submit(query))
            asked += 1
            if time.perf_counter() - start >= seconds:
                break
        for future in outstanding:
            future.result()
        return asked / (time.perf_counter() - start)


def callers_rate(
    match: Callable[[list[str]], object], queries: Sequence[list[str]], callers: int, seconds: float
) -> float:
    """Measure how many queries a second `callers` threads get answered, if each asks one after the other.

    Each begins at another place and goes on from query to query, as a single caller does. Were they to take queries in
    turn, fifty would each read every fiftieth, and wait longer for its strings to come from memory.
    """
    starts: list[float] = []
    together = threading.Barrier(callers, action=lambda: starts.append(time.perf_counter()))

    def call(number: int) -> int:
        first = number * len(queries) // callers
        together.wait()
        for asked in count(1):
            match(queries[(first + asked) % len(queries)])
            if time.perf_counter() - starts[0] >= seconds:
                break
        return asked

    with without_garbage_collection(), ThreadPoolExecutor(callers) as pool:
        asked = sum(pool.map(call, range(callers)))
        return asked / (time.perf_counter() - starts[0])


def gather_rate(
    ask: Callable[[list[str]], Awaitable[object]], queries: Sequence[list[str]], at_once: int, seconds: float
) -> float:
    """Measure how many queries a second one event loop gets answered that asks some together, again and again."""

    async def again() -> float:
        start = time.perf_counter()
        for asked in count(0, at_once):
            elapsed = time.perf_counter() - start
            if asked and elapsed >= seconds:
                break
            await asyncio.gather(*(ask(queries[(asked + i) % len(queries)]) for i in range(at_once)))
        return asked / elapsed

    with without_garbage_collection():
        return asyncio.run(again())


def poisson_times(rate: float, seconds: float, seed: int) -> F64Array:
    """Draw when queries are due that arrive at random: as many as are expected in that time, at least one."""
    count, drawn = max(1, round(rate * seconds)), 0
    blocks: list[F64Array] = []
    for block in arrival_times(rate, burstiness=1.0, seed=seed):
        blocks.append(block)
        drawn += len(block)
        if drawn >= count:
            break
    return np.concatenate(blocks)[:count]


#: Adds one row for one thread
Adder: TypeAlias = "Callable[[list[str], int], object]"

#: When a call began and when it ended
Call: TypeAlias = tuple[float, float]

# A thread that is ahead by less goes on, as no sleep is that short
_SHORTEST_SLEEP = 0.001


@dataclass(frozen=True, slots=True)
class Added:
    """The outcome of additions."""

    rows: int
    seconds: float  # from the start until the last was added
    # the longest time from when an addition returned to the end of the first call of `tend` that began after that
    unseen: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@contextmanager
def repeatedly(work: Callable[[], object], every: float) -> Iterator[list[Call]]:
    """Call `work` in another thread, again and again until the block ends; gives the calls so far.

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
    """Add rows one by one, in their order, for some seconds or until there are no more."""
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
