"""Allocations that fail on demand, in a process that runs under `failing_malloc.c`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from faults.preloads import compiled, preloading

#: Smaller memory Python, NumPy and Arrow take for themselves, and do not survive that there is none: a thread's start
#: waits for ever for its condition's `deque`, NumPy raises a `SystemError`, and Arrow ends the process.
SMALLEST = 2560

_NEVER = 2**63


def build_library(folder: Path) -> Path:
    """Compile the library into a folder."""
    return compiled("failing_malloc.c", folder)


def environment(library: Path) -> dict[str, str]:
    """Environment of a process under the library; Arrow's buffers and kernels' arrays come from it, too."""
    return {**preloading(library), "ARROW_DEFAULT_MEMORY_POOL": "system"}


def begin_under_library(module: str, *options: str) -> None:
    """Have this program be run under the library, with these options and its own, unless it is; ends as that does."""
    if "failing_malloc" not in os.environ.get("LD_PRELOAD", ""):
        command = [sys.executable, "-m", module, *options, *sys.argv[1:]]
        with tempfile.TemporaryDirectory() as folder:
            sys.exit(subprocess.run(command, env=environment(build_library(Path(folder)))).returncode)


def spare_numpy() -> None:
    """From now on, of what NumPy allocates only the data of arrays fails.

    It crashes where there is no memory for the buffers in which it converts, part by part, what it indexes with or
    calculates with.
    """
    process = ctypes.CDLL(None)
    (code,) = (line.split()[0] for line in _mapped() if "_multiarray_umath" in line and "r-xp" in line)
    process.failing_malloc_spare(*(ctypes.c_void_p(int(address, 16)) for address in code.split("-")))
    with failing(_NEVER):
        pass
    process.failing_malloc_learn(1)
    some = np.empty(SMALLEST)
    np.zeros(SMALLEST)
    np.concatenate([some, some])
    some.resize(2 * SMALLEST, refcheck=False)
    process.failing_malloc_learn(0)


def _mapped() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


@contextmanager
def failing(first: int, last: int | None = None, *, smallest: int = SMALLEST) -> Iterator[Allocations]:
    """Fail, within the block, allocations `first` to `last` of those of at least `smallest` bytes, in all threads.

    Without `last` only the one fails; `failing(1, ALL)` leaves none.
    """
    process = ctypes.CDLL(None)
    arm, disarm = process.failing_malloc_arm, process.failing_malloc_disarm
    arguments = [ctypes.c_size_t(number) for number in (smallest, first, first if last is None else last)]
    allocations = Allocations()
    arm(*arguments)
    try:
        yield allocations
    finally:
        disarm()


#: As `last` of `failing`: all from `first` on
ALL = _NEVER


class Allocations:
    """What became of the allocations of the last block, or of the one that goes on."""

    def __init__(self) -> None:
        process = ctypes.CDLL(None)
        self._counted, self._failed = process.failing_malloc_counted, process.failing_malloc_failed
        self._size = process.failing_malloc_failed_size
        self._counted.restype = self._failed.restype = self._size.restype = ctypes.c_size_t

    @property
    def counted(self) -> int:
        """How many there were."""
        return int(self._counted())

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return int(self._failed())

    @property
    def failed_size(self) -> int:
        """Of how many bytes the last was that failed."""
        return int(self._size())


@contextmanager
def count_allocations(smallest: int = SMALLEST) -> Iterator[Allocations]:
    """Count those of at least `smallest` bytes within the block; none fails."""
    with failing(_NEVER, smallest=smallest) as allocations:
        yield allocations
