"""The library does what it says: allocations of every kind are counted, and those fail that are to."""

from __future__ import annotations

import subprocess
import sys

PREAMBLE = """
import contextlib, ctypes
import numba, numpy as np, pyarrow as pa, pyarrow.compute as pc
from concurrent.futures import ThreadPoolExecutor
from faults.memory import ALL, failing, spare_numpy

@numba.njit(nogil=True)
def kernel(count):
    return np.empty(count, np.int64)

column = pa.array(np.arange(1000))
pool = ThreadPoolExecutor(1)
ways = {
    "bytes": lambda: bytes(8000),
    "list": lambda: [None] * 1000,
    "empty": lambda: np.empty(1000),
    "zeros": lambda: np.zeros(1000),
    "resize": lambda: np.empty(10).resize(1000, refcheck=False),
    "arrow": lambda: pc.negate(column),
    "kernel": lambda: kernel(1000),
    "thread": lambda: pool.submit(np.empty, 1000).result(),
}
for do in ways.values():
    do()  # the first time, other things are allocated as well
"""

EACH_WAY = """
for name, do in ways.items():
    with failing() as allocations:
        do()
    assert allocations.counted and not allocations.failed, name
    with failing(1) as allocations, contextlib.suppress(MemoryError):
        do()
        raise AssertionError(f"{name} did not fail")
    assert allocations.failed == 1, name
    do()
"""

EACH_FUNCTION = """
process = ctypes.CDLL(None)
out = ctypes.c_void_p()
ten, alignment, part, size = map(ctypes.c_size_t, (10, 64, 800, 8000))
for name, arguments in {
    "malloc": [size], "calloc": [ten, part], "realloc": [None, size], "reallocarray": [None, ten, part],
    "aligned_alloc": [alignment, size], "memalign": [alignment, size],
}.items():
    function = process[name]
    function.restype = ctypes.c_void_p
    with failing(2) as allocations:
        first, second, third = (function(*arguments) for _ in range(3))
    assert first and third and second is None, name
    assert (allocations.counted, allocations.failed) == (3, 1), name
with failing(1, ALL) as allocations:
    assert process.posix_memalign(ctypes.byref(out), alignment, size) != 0
    assert process.posix_memalign(ctypes.byref(out), alignment, part) == 0
assert (allocations.counted, allocations.failed) == (1, 1)
"""

WHICH = """
def fails():
    try:
        np.empty(1000)
    except MemoryError:
        return True
    return False

for first, last, expected in ((1, None, [1, 0, 0, 0]), (2, 3, [0, 1, 1, 0]), (2, ALL, [0, 1, 1, 1])):
    with failing(first, last):
        found = [fails() for _ in range(4)]
    assert found == list(map(bool, expected)), (first, last, found)
for smallest in (8000, 8001):
    with failing(1, ALL, smallest=smallest):
        assert fails() == (smallest == 8000)
assert not fails()
"""

SPARED = """
spare_numpy()
for name in ("empty", "zeros", "resize"):
    with failing(1, ALL), contextlib.suppress(MemoryError):
        ways[name]()
        raise AssertionError("the data of arrays is spared")
# This crashes NumPy where its buffer does not get memory
indexes, out = np.arange(9000, dtype=np.uint32), np.empty(9000)
with failing(1, ALL) as allocations:
    out[indexes] = 1.0
assert (out == 1.0).all()
"""

# What a thread keeps for itself of a library that was loaded late is made when it first asks for it, by the loader,
# which ends the process where it finds no memory
THREAD_LOCAL = """
import tempfile
from pathlib import Path
from faults.preloads import compiled
with tempfile.TemporaryDirectory() as folder:
    last = ctypes.CDLL(compiled("thread_local.c", Path(folder))).last
with failing(1, ALL) as allocations:
    assert pool.submit(last).result() == 0
assert not allocations.failed
"""


def test_the_allocations_fail_that_are_to(library):
    command = [sys.executable, "-c", "".join((PREAMBLE, EACH_WAY, EACH_FUNCTION, WHICH, THREAD_LOCAL, SPARED))]
    done = subprocess.run(command, env=library, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
