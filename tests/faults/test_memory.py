"""Allocations fail that are to, of every kind; tables that could not grow; and a limit of memory."""

import subprocess
import sys

import pytest
from faults.failing import compiled, preloading

PREAMBLE = """
import contextlib, ctypes
import numba, numpy as np, pyarrow as pa, pyarrow.compute as pc
from concurrent.futures import ThreadPoolExecutor
from faults.failing import ALL, allocations, compiled, failing, spare_numpy

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
    with failing():
        do()
    assert allocations("counted") and not allocations("failed"), name
    with failing(1), contextlib.suppress(MemoryError):
        do()
        raise AssertionError(f"{name} did not fail")
    assert allocations("failed") == 1, name
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
    with failing(2):
        first, second, third = (function(*arguments) for _ in range(3))
    assert first and third and second is None, name
    assert (allocations("counted"), allocations("failed")) == (3, 1), name
with failing(1, ALL):
    assert process.posix_memalign(ctypes.byref(out), alignment, size) != 0
    assert process.posix_memalign(ctypes.byref(out), alignment, part) == 0
assert (allocations("counted"), allocations("failed")) == (1, 1)
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
with failing(1, ALL):
    out[indexes] = 1.0
assert (out == 1.0).all()
"""

# What a thread keeps for itself of a library that was loaded late is made when it first asks for it, by the loader,
# which ends the process if it finds no memory
THREAD_LOCAL = """
import tempfile
from pathlib import Path
with tempfile.TemporaryDirectory() as folder:
    last = ctypes.CDLL(compiled("thread_local.c", Path(folder))).last
with failing(1, ALL):
    assert pool.submit(last).result() == 0
assert not allocations("failed")
"""

GROWTH = """
from faults.failing import failing
from oracle import Oracle
from tagmatch import TagMatch

sets = [[f"tag {i}"] for i in range(1000)]
TagMatch(threads=1).add_sets(sets, range(1000))  # loads the kernels
tm, oracle = TagMatch(threads=1), Oracle()
failed = 0
while True:
    try:
        with failing(failed + 1):
            tm.add_sets(sets, range(1000))
        break
    except MemoryError:
        failed += 1
        assert tm.stats()["staged"] == 0, f"{tm.stats()['staged']} changes are staged of a call that failed"
assert failed > 10, failed
oracle.add_sets(sets, range(1000))
for database in (tm, oracle):
    database.consolidate()
tm.check()
query = [tag for tags in sets for tag in tags]
assert sorted(tm.match(query)) == oracle.match(query)
"""

FULL = """
import resource
import pyarrow as pa
from tagmatch import TagMatch, TagMatchError

MANY = 300_000
sets = pa.array([[f"tag {i}", f"tag {i % 1000}"] for i in range(MANY)])
queries = pa.array([[f"tag {i}" for i in range(j, j + 10)] for j in range(2000)])
def calls(tm):
    return lambda: tm.add_sets(sets, range(MANY)), tm.consolidate, lambda: tm.match_many(queries)

for each in ("rarest", "balanced"):
    with TagMatch(layout=each, threads=2) as warm:
        for call in calls(warm):
            answers = call()
        for _ in range(20):  # the kernels that copy keys depend on the packet that is done first
            warm.match_many(queries)
    expected = [sorted(keys) for keys in answers.to_pylist()]
    failed = 0
    tm = TagMatch(layout=each, threads=2)
    for call in calls(tm):
        for mebibytes in (0, 1, 2, 4, 8, 16, 32):
            before = tm.stats()["staged"], len(tm)
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), resource.RLIM_INFINITY))
            try:
                call()
                break
            except (MemoryError, TagMatchError):
                failed += 1
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert (tm.stats()["staged"], len(tm)) == before, (tm.stats()["staged"], len(tm), before)
        else:
            call()
    tm.check()
    assert [sorted(keys) for keys in tm.match_many(queries).to_pylist()] == expected
    tm.close()
    assert failed, "there was always enough"
"""


# A text in which patterns are found millions of times
REPEATED = """
import resource
import pyarrow as pa
from tagmatch import TagMatch

tm = TagMatch(device="cpu", threads=1)
tm.add_sets([[]] * 3, [1, 2, 3], where=[f't contains "{text}"' for text in ("a", "aaa", "b")])
tm.consolidate()

def asked(length):
    text = "a" * length + "b"
    assert sorted(tm.match([], {"t": text})) == [1, 2, 3]
    assert sorted(tm.match_many(pa.table({"t": [text]}))[0].as_py()) == [1, 2, 3]

asked(500_000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
asked(5_000_000)
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which allocations can fail."""
    return preloading(compiled("failing_malloc.c", tmp_path_factory.mktemp("failing_malloc")))


def run_script(script: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"


def test_a_pattern_that_a_text_has_often_takes_no_more_memory() -> None:
    run_script(REPEATED)


def test_the_allocations_fail_that_are_to(library):
    run_script("".join((PREAMBLE, EACH_WAY, EACH_FUNCTION, WHICH, THREAD_LOCAL, SPARED)), library)


def test_tags_are_numbered_rightly_after_their_table_could_not_grow(library):
    run_script(GROWTH, library)


@pytest.mark.nightly
def test_a_limit_of_memory_ends_no_more_than_calls(library):
    # Without these, a thread takes memory from what the C library kept of another, and meets no limit
    plain = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    run_script(FULL, {**library, **plain, "LD_PRELOAD": ""})
