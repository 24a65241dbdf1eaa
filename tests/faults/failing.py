"""Failures on demand: of memory, of the disk, and by Ctrl-C, at every possible place."""

import ctypes
import dis
import errno
import functools
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from support.servers import needs

from tagmatch.model.storage import folders

#: As `last`: all from `first` on
ALL = NEVER = 2**63

# -- the disk ----------------------------------------------------------------------------------------------------------

_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"), (os, "ftruncate"), (os, "mkdir"), (os, "open"), (os, "pwritev"), (os, "rename"), (os, "replace"),
    (os, "rmdir"), (os, "unlink"), (pa, "OSFile"), (pa.ipc, "new_file"), (folders, "_Log"),
)  # fmt: skip


@contextmanager
def disk_full(
    first: int, last: int | None = None, code: int = errno.ENOSPC, *, made: list[str] | None = None
) -> Iterator[None]:
    """Raise an error at calls `first` to `last`, in the block, of those that change the disk.

    Without `last` only at the one. The name of each call is added to `made`, also of those that do not fail.
    """
    made = [] if made is None else made
    last = first if last is None else last

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if first <= len(made) <= last:
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return called

    with ExitStack() as patches:
        for owner, name in _CALLS:
            patches.enter_context(patch.object(owner, name, counted(name, getattr(owner, name))))
        yield


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let no file grow beyond a size in the block; Python ignores the signal for it, so that writes fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

# The interpreter looks for signals when a function begins, a loop goes round, or a call of a function that is not
# Python's has ended; between such places, code is not interrupted
_PACKAGES = ("tagmatch.", "partitioner.", "pipeline.")
_LOOKS = frozenset({"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"})


@functools.cache
def _places(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Offsets of the instructions after which signals are looked for, and of those that begin the end of a `with`.

    The call at the end of a `with` comes before the next look, but is no longer within the block for Python's tracing.
    """
    found = list(dis.get_instructions(code))
    looks = {each.offset for each in found if each.opname in _LOOKS}
    ends = set()
    for first in range(len(found) - 3):
        at = first + (found[first].opname == "SWAP")
        if all(each.opname == "LOAD_CONST" and each.argval is None for each in found[at : at + 3]):
            ends.add(found[first].offset)
    return frozenset(looks), frozenset(ends)


class Interrupt:
    """KeyboardInterrupt at place number `at` to which a thread comes, counted from 1; 0: only count."""

    def __init__(self, at: int = 0) -> None:
        self._at = at
        self._last: dict[FrameType, int] = {}
        self.count = 0

    def begin(self, frame: FrameType, _: str, __: Any) -> Any:
        """Follow a frame, if it is the library's; for `sys.settrace`."""
        if frame.f_back is not None:
            self._last.pop(frame.f_back, None)  # the call does not look when a function of Python's has ended
        if not frame.f_globals.get("__name__", "").startswith(_PACKAGES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, _: Any) -> Any:
        """Interrupt before an instruction, if the one before it has looked for signals."""
        if event == "return":
            self._last.pop(frame, None)
        if event != "opcode":
            return self.step
        looks, ends = _places(frame.f_code)
        looked = self._last.get(frame) in looks
        self._last[frame] = frame.f_lasti
        if looked and frame.f_lasti not in ends:
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt(f"{frame.f_globals['__name__']}:{frame.f_lineno} {frame.f_code.co_name}")
        return self.step


@contextmanager
def interrupted(interrupt: Interrupt) -> Iterator[None]:
    """Interrupt the calling thread in the block."""
    before = sys.gettrace()
    sys.settrace(interrupt.begin)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def signalled(rng: random.Random, most_s: float) -> Iterator[None]:
    """Interrupt the block by a real signal at a random moment, if it lasts until then."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, most_s * rng.random() ** 3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)


# -- memory, in a process that runs under `failing_malloc.c` -----------------------------------------------------------

#: Smaller memory Python, NumPy and Arrow take for themselves, and do not survive without it: a thread's start
#: waits for ever for its condition's `deque`, NumPy raises a `SystemError`, and Arrow ends the process.
SMALLEST = 2560


def spare_numpy() -> None:
    """From now on, of what NumPy allocates only the data of arrays fails.

    It crashes without memory for the buffers in which it converts, part by part, the arrays that it indexes with or
    calculates with.
    """
    process = ctypes.CDLL(None)
    maps = Path("/proc/self/maps").read_text().splitlines()
    (code,) = (line.split()[0] for line in maps if "_multiarray_umath" in line and "r-xp" in line)
    process.failing_malloc_spare(*(ctypes.c_void_p(int(address, 16)) for address in code.split("-")))
    with failing():
        pass
    process.failing_malloc_learn(1)
    some = np.empty(SMALLEST)
    np.zeros(SMALLEST)
    np.concatenate([some, some])
    some.resize(2 * SMALLEST, refcheck=False)
    process.failing_malloc_learn(0)


def allocations(what: str) -> int:
    """How many allocations were `counted` in the last block, or the one that goes on, and how many of them `failed`."""
    function = ctypes.CDLL(None)[f"failing_malloc_{what}"]
    function.restype = ctypes.c_size_t
    return int(function())


@contextmanager
def failing(first: int = NEVER, last: int | None = None, *, smallest: int = SMALLEST) -> Iterator[None]:
    """Fail, within the block, allocations `first` to `last` of those of at least `smallest` bytes, in all threads.

    Without `last` only the one fails; `failing(1, ALL)` leaves none, and `failing()` only counts them.
    """
    process = ctypes.CDLL(None)
    process.failing_malloc_arm(*map(ctypes.c_size_t, (smallest, first, first if last is None else last)))
    try:
        yield
    finally:
        process.failing_malloc_disarm()


# -- libraries in C that are loaded before the C library, and so take its functions' place -----------------------------


def compiled(name: str, folder: Path) -> Path:
    """Compile the library whose source is a file here, `name`, into a folder."""
    source = Path(__file__).with_name(name)
    library = folder / source.with_suffix(".so").name
    options = ["-std=c11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([needs("cc", "gcc libc6-dev"), *options, str(source)], check=True)
    return library


def preloading(library: Path | None) -> dict[str, str]:
    """Environment of a Python process, under the library if one is given; it finds the tests' modules."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    # Arrow's buffers come from the C library, too
    preload = {"LD_PRELOAD": str(library), "ARROW_DEFAULT_MEMORY_POOL": "system"} if library else {}
    return {**os.environ, **preload, "PYTHONPATH": path}
