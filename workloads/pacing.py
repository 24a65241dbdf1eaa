"""When queries arrive: due times of a given rate and burstiness, and streams that keep to them."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tagmatch.model.arrays import F64Array

_TIMES_PER_BLOCK = 65_536
# Seconds within which queries that are due wait for each other, as sleeping for each would take longer
_TICK = 0.001
# Seconds; there are numbers of seconds for which the operating system cannot sleep
_LONGEST_SLEEP = 3600.0


def arrival_times(rate: float, burstiness: float = 1.0, seed: int = 1) -> Iterator[F64Array]:
    """Return an endless stream of arrivals whose gaps follow a Gamma distribution."""
    if not 0 < rate < np.inf:
        raise InvalidValueError(f"rate must be greater than 0, not {rate!r}")
    if not 0 <= burstiness < np.inf:
        raise InvalidValueError(f"burstiness must be zero or more, not {burstiness!r}")
    return _even_times(rate) if burstiness == 0 else _random_times(rate, burstiness, seed)


def _even_times(rate: float) -> Iterator[F64Array]:
    numbers = np.arange(1, _TIMES_PER_BLOCK + 1, dtype=np.float64)
    while True:
        yield numbers / rate
        numbers += _TIMES_PER_BLOCK


def _random_times(rate: float, burstiness: float, seed: int) -> Iterator[F64Array]:
    random = np.random.default_rng(seed)
    last = 0.0
    while True:
        times = last + np.cumsum(random.gamma(1 / burstiness, burstiness / rate, _TIMES_PER_BLOCK))
        last = float(times[-1])
        yield times


def paced(batches: Iterable[pa.RecordBatch], times: Iterable[F64Array]) -> Iterator[tuple[F64Array, pa.RecordBatch]]:
    """Join rows and their due times: for each batch, an array of as many seconds from the start."""
    blocks = iter(times)
    waiting = np.zeros(0)
    for batch in batches:
        while len(waiting) < len(batch):
            waiting = np.concatenate([waiting, next(blocks)])
        yield waiting[: len(batch)], batch
        waiting = waiting[len(batch) :]


def when_due(
    pairs: Iterable[tuple[F64Array, pa.RecordBatch]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[F64Array, pa.RecordBatch]]:
    """Give rows, with their due times, once they are due; all that are due at once, however late they are."""
    start = now()
    for due, batch in pairs:
        done = 0
        while done < len(due):
            elapsed = now() - start
            ready = int(np.searchsorted(due, elapsed, side="right"))
            if ready > done:
                yield due[done:ready], batch.slice(done, ready - done)
                done = ready
            else:
                sleep(min(max(due[done] - elapsed, _TICK), _LONGEST_SLEEP))


def by_interval(
    pairs: Iterable[tuple[F64Array, pa.RecordBatch]],
    interval: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[int, pa.Table]]:
    """Give the rows that are due in each interval, of `seconds`, at its end; intervals without rows are left out."""
    start = now()
    current, parts = 0, list[pa.RecordBatch]()

    def whole() -> tuple[int, pa.Table]:
        while (wait := start + (current + 1) * interval - now()) > 0:
            sleep(min(wait, _LONGEST_SLEEP))
        return current, pa.Table.from_batches(parts)

    for due, batch in pairs:
        numbers = np.floor_divide(due, interval).astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for first, last in pairwise(edges):
            if numbers[first] != current:
                if parts:
                    yield whole()
                current, parts = int(numbers[first]), []
            parts.append(batch.slice(first, last - first))
    if parts:
        yield whole()
