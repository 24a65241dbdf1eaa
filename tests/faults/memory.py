"""Allocations that fail on demand, in a process that runs under `failing_malloc.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

#: Smaller memory Python, NumPy and Arrow take for themselves, and do not survive that there is none: a thread's start
#: waits for ever for its condition's `deque`, NumPy raises a `SystemError`, and Arrow ends the process.
SMALLEST = 2560

#: As `last` of `failing`: all from `first` on
ALL = NEVER = 2**63


def spare_numpy() -> None:
    """From now on, of what NumPy allocates only the data of arrays fails.

    It crashes where there is no memory for the buffers in which it converts, part by part, what it indexes with or
    calculates with.
    """
    process = ctypes.CDLL(None)
    (code,) = (line.split()[0] for line in _mapped() if "_multiarray_umath" in line and "r-xp" in line)
    process.failing_malloc_spare(*(ctypes.c_void_p(int(address, 16)) for address in code.split("-")))
    with failing():
        pass
    process.failing_malloc_learn(1)
    some = np.empty(SMALLEST)
    np.zeros(SMALLEST)
    np.concatenate([some, some])
    some.resize(2 * SMALLEST, refcheck=False)
    process.failing_malloc_learn(0)


def _mapped() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


class Allocations:
    """How many allocations there were in the last block, or the one that goes on, and how many of them failed."""

    counted = property(lambda _: _number("failing_malloc_counted"))
    failed = property(lambda _: _number("failing_malloc_failed"))


def _number(name: str) -> int:
    function = ctypes.CDLL(None)[name]
    function.restype = ctypes.c_size_t
    return int(function())


@contextmanager
def failing(first: int = NEVER, last: int | None = None, *, smallest: int = SMALLEST) -> Iterator[Allocations]:
    """Fail, within the block, allocations `first` to `last` of those of at least `smallest` bytes, in all threads.

    Without `last` only the one fails; `failing(1, ALL)` leaves none, and `failing()` only counts them.
    """
    process = ctypes.CDLL(None)
    process.failing_malloc_arm(*map(ctypes.c_size_t, (smallest, first, first if last is None else last)))
    try:
        yield Allocations()
    finally:
        process.failing_malloc_disarm()
