"""Tables that could not grow, and a limit of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROWTH = """
from faults.memory import failing
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
        for _ in range(20):  # which kernels copy keys is a matter of which packet is done first
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


def run_script(script: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"


def test_tags_are_numbered_rightly_after_their_table_could_not_grow(library):
    run_script(GROWTH, library)


@pytest.mark.nightly
def test_a_limit_of_memory_ends_no_more_than_calls(library):
    # Without these, a thread takes memory from what the C library kept of another, and meets no limit
    plain = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    run_script(FULL, {**library, **plain, "LD_PRELOAD": ""})
