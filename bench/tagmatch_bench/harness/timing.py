"""Timing of systems side by side: warm-up, alternating rounds, medians."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from tagmatch_bench.systems.matcher import CallSize

# How many times as long a call may take, so that batches are full
_LONGER = 10


@dataclass(frozen=True, slots=True)
class Samples:
    """Repeated measurements of one thing."""

    values: tuple[float, ...]
    items: int = 1  # items that each measured call worked on

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    def over(self, other: Samples) -> float:
        """The ratio of the medians."""
        return self.median / other.median

    def ratios(self, other: Samples) -> Samples:
        """The ratios round by round, so that what slows the machine down for a while counts on both sides."""
        return Samples(tuple(one / another for one, another in zip(self.values, other.values, strict=True)))

    def times(self, factor: float) -> Samples:
        """The values in another unit."""
        return Samples(tuple(factor * value for value in self.values))

    def per(self, amount: float) -> Samples:
        """An amount divided by each value, such as microseconds an item from items a second."""
        return Samples(tuple(amount / value for value in self.values), self.items)


def by_name(rounds: Sequence[Mapping[str, float]]) -> dict[str, Samples]:
    """Measurements of the same things, round by round."""
    return {name: Samples(tuple(each[name] for each in rounds)) for name in (rounds[0] if rounds else ())}


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep the collector of cycles from interrupting, as `timeit` does; within another such block, until that ends."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def seconds_of(
    work: Callable[[], object], clock: Callable[[], float] = time.perf_counter, *, at_least: float = 0.0
) -> float:
    """Time one call, without garbage collection; its result is freed after the clock stops.

    Or time as many calls as take `at_least` seconds together, and return their mean.
    """
    calls, elapsed = 0, -1.0
    with without_garbage_collection():
        start = clock()
        while elapsed < at_least:
            result = work()
            calls, elapsed = calls + 1, clock() - start
    del result
    return elapsed / calls


def alternate(
    works: Mapping[str, Callable[[], object]], rounds: int, *, most_seconds: float = math.inf
) -> dict[str, Samples]:
    """Seconds of each work, in turns."""
    return in_turns({name: partial(seconds_of, work) for name, work in works.items()}, rounds, most_seconds)


def in_turns(
    works: Mapping[str, Callable[[], float]], rounds: int, most_seconds: float = math.inf, *, swapped: bool = False
) -> dict[str, Samples]:
    """What each work returns; in every round each runs once, so that all meet the machine in the same states.

    After `most_seconds` no round is begun, but the first. If `swapped`, every second round goes the other way: what one
    work leaves in the caches is not always for the same one.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    start = time.perf_counter()
    for number in range(rounds):
        if number and time.perf_counter() - start >= most_seconds:
            break
        order = [*works.items()]
        for name, work in order[::-1] if swapped and number % 2 else order:
            taken[name].append(work())
    return {name: Samples(tuple(values)) for name, values in taken.items()}


def rates(
    works: Mapping[str, Callable[[int], object]],
    items: int,
    *,
    rounds: int,
    seconds: float,
    sizes: Mapping[str, CallSize] = MappingProxyType({}),
) -> dict[str, Samples]:
    """Items per second of each work, in alternating rounds."""
    counts = {name: _count_for(work, items, seconds, sizes.get(name, CallSize())) for name, work in works.items()}
    taken = alternate({name: partial(work, counts[name]) for name, work in works.items()}, rounds)
    return {name: Samples(taken[name].per(counts[name]).values, counts[name]) for name in works}


def _count_for(work: Callable[[int], object], items: int, seconds: float, size: CallSize) -> int:
    """Find how many items a call should have; the calls made for it are the warm-up."""
    items = min(items, size.most)
    count = 1
    work(count)  # compiles, where that is still to be done
    while True:
        elapsed = _fastest(work, count)
        if count == items or elapsed >= seconds / 4:
            break
        count = min(items, 4 * count)
    found = _wanted(count * seconds / elapsed, items, size)
    # More take their own memory; and if small calls do not use a device, larger ones may be much faster
    while found > count:
        count = found
        found = _wanted(count * seconds / _fastest(work, count), items, size)
    return found


def _fastest(work: Callable[[int], object], count: int) -> float:
    return min(seconds_of(partial(work, count)) for _ in range(2))


def _wanted(in_time: float, items: int, size: CallSize) -> int:
    """How many items a call should have, if `in_time` items are done in the time that it should take."""
    wanted = int(max(in_time, min(_LONGER * in_time, size.full)))
    return min(items, max(1, wanted // size.whole) * size.whole)
