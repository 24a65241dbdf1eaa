"""What this project is compared with on a device, both versions of CCM, CLCB and plain scans, against brute force."""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import systems as shared
from support.simulator import EXAMPLES
from support.systems import AREA, KINDS, PLACES, POINT, RADII, cases, check, check_circles, check_located, tables
from support.tables import table_of, tag_rows

from tagmatch_bench.figures.improvement import CCM_COUNTERS, CCM_SHARED_MEMORY
from tagmatch_bench.systems.catalogue import CIRCLES_GPU, CONTENT_GPU, LOCATED_GPU, OWN_CIRCLES_GPU, System
from tagmatch_bench.systems.gpu_scan import BATCH_SIZE, PACKET_BATCHES, GpuBatchScan, GpuScan
from tagmatch_bench.systems.hybrid import Hybrid
from tagmatch_bench.systems.signatures import SignatureMatcher, SignatureScan
from tagmatch_bench.workloads.content import Content, ContentOptions
from tagmatch_bench.workloads.location import SCENARIOS, LocationWorkload

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

CLCB = LOCATED_GPU["CLCB"]
#: Also one by one, which goes through all stages of counters, and in several kernels
SYSTEMS = {
    **CONTENT_GPU,
    "CCM, 3 at once": System("ccm:Ccm", {"at_once": 3}),
    "CCM, 1 at once": System("ccm:Ccm", {"at_once": 1}),
    "CCM, 2011, memset": System("ccm:Ccm2011", {"reset": "memset"}),
    "CCM, counters of 32 bits": CCM_COUNTERS.without,
    "CCM, 2011, Input in global memory": CCM_SHARED_MEMORY.without,
}
VARIANTS = [name for name in SYSTEMS if name not in CONTENT_GPU and name != "CCM, 3 at once"]
named = [pytest.param(each, id=name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name, each in SYSTEMS.items()]
content = pytest.mark.parametrize("system", named)
everything = pytest.mark.parametrize("system", [*named, pytest.param(CLCB, id="CLCB")])

Tables = tuple[pa.Table, pa.Table]


def here(stored: pa.Table, sent: pa.Table) -> Tables:
    """The same with areas that all have the place of all messages."""
    areas, places = [{"x": 0.5, "y": 0.5, "radius": 0.5}] * len(stored), [{"x": 0.5, "y": 0.5}] * len(sent)
    return stored.append_column("area", pa.array(areas, AREA)), sent.append_column("location", pa.array(places, POINT))


def compare(system: System, *workload: pa.Table) -> int:
    return check_located(system, *here(*workload)) if system is CLCB else check(system, *workload)


@content
@pytest.mark.parametrize("kind", KINDS)
@EXAMPLES
@given(data=st.data(), threads=st.sampled_from([1, 3]))
def test_constraints(system: System, kind: str, data: st.DataObject, threads: int) -> None:
    check(system, *data.draw(KINDS[kind]), threads)


@EXAMPLES
@given(workload=shared.located_workloads())
def test_constraints_and_areas(workload: Tables) -> None:
    check_located(CLCB, *workload)


@pytest.mark.parametrize("name", ["CLCB", *OWN_CIRCLES_GPU])
@EXAMPLES
@given(data=st.data())
def test_areas_alone(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(PLACES, RADII) if name == "CLCB" else cases())
    check_circles(lambda circles: (CIRCLES_GPU | OWN_CIRCLES_GPU)[name](circles, 1), case)


def generated(scenario: str, subscribers: int, messages: int, **changes: Any) -> Tables:
    location = LocationWorkload(
        replace(SCENARIOS[scenario], subscribers=subscribers, filters_each=4, coverage=0.5, **changes)
    )
    stored, sent = location.subscriptions(0, location.filters), location.messages(0, messages)
    return shared.on_a_grid(stored, "area", AREA), shared.on_a_grid(sent, "location", POINT)


@pytest.mark.parametrize(("scenario", "changes"), [("clcb", {"names": 5, "selectivity": 0.2}), ("every", {})])
def test_generated_areas(scenario: str, changes: dict[str, Any]) -> None:
    """Enough messages for all bytes of counters, a few times."""
    assert check_located(CLCB, *generated(scenario, 12, 25, **changes)) > 100


def generated_content(messages: int, **sizes: Any) -> Tables:
    made = Content(ContentOptions(interfaces=5, min_filters=8, max_filters=8, names=6, **sizes))
    return made.subscriptions(0, made.filters), made.messages(0, messages)


@content
def test_generated(system: System) -> None:
    """Enough messages for all stages of counters, a few times."""
    assert check(system, *generated_content(25, min_constraints=1, max_constraints=3, between=25)) > 100


def of_size(size: int) -> list[shared.Row]:
    """Constraints; 6 satisfies all but one, and 7 all."""
    return [{"attr": "x", "op": ">", "value": 6 if i == 0 else i % 6, "upper": None} for i in range(size)]


@everything
def test_as_many_constraints_as_counters_hold_and_one_more(system: System) -> None:
    """A counter that is full must not count for the next one's, which is in the same 32 bits."""
    messages = [{"x": value} for value in (7, 7, 6, 7, 3, 7, 7, 7, 7, 6, 7)]
    for size in (255,) if system is CLCB else (16, 256):
        filters = [{"key": key, "constraints": of_size(count)} for key, count in enumerate((1, 2, size - 1, size))]
        assert compare(system, *tables(filters, messages, pa.int64())) > 30


@everything
def test_nothing_stored_or_sent(system: System) -> None:
    filters, messages = [{"key": 1, "constraints": []}], [{"x": 1}, {}]
    assert compare(system, *tables([], messages, pa.int64())) == compare(system, *tables(filters, [], pa.int64())) == 0
    nothing_asked = pa.table({"other": pa.array([None, 2], pa.int64())})
    assert compare(system, tables(filters, [], pa.int64())[0], nothing_asked) >= 2


TAGS = st.text("abcdé", max_size=2)
SETS = st.lists(st.tuples(st.lists(TAGS, max_size=4), st.integers(0, 2**64 - 1)), max_size=6)


def assert_as_numpy(matcher: SignatureMatcher, sets: pa.Table, queries: pa.ListArray) -> None:
    scan = SignatureScan(sets)
    for unique in (False, True):
        found = matcher.match_many(matcher.prepare(queries), unique=unique).to_pylist()
        expected = scan.match_many(scan.prepare(queries), unique=unique).to_pylist()
        assert list(map(Counter, found)) == list(map(Counter, expected))


@pytest.mark.parametrize(
    "build",
    [
        partial(GpuScan, block_threads=2),
        partial(GpuBatchScan, block_threads=2),
        partial(Hybrid, max_partition_size=2, streams=2),
    ],
)
@EXAMPLES
@given(rows=SETS, asked=st.lists(st.lists(TAGS, max_size=8), max_size=4), room=st.integers(1, 8))
def test_small_scans(build: Any, rows: list[tuple[list[str], int]], asked: list[list[str]], room: int) -> None:
    """They find what NumPy finds, and more than the right keys."""
    sets, queries, oracle = table_of(rows), tag_rows(asked), Oracle()
    matcher = build(sets, room=room)
    assert_as_numpy(matcher, sets, queries)
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    for query, keys in zip(asked, matcher.match_many(matcher.prepare(queries)).to_pylist(), strict=True):
        assert Counter(oracle.match(query)) <= Counter(keys)


@pytest.mark.parametrize("queries", [BATCH_SIZE, BATCH_SIZE + 1, PACKET_BATCHES * BATCH_SIZE + 1])
def test_more_than_a_batch(queries: int) -> None:
    """In packets of three threads, which come back in order."""
    sets = table_of([([tag], key) for key, tag in enumerate("acd")])
    asked = tag_rows([["a"] if i % 3 else ["b"] for i in range(queries)])
    assert_as_numpy(GpuBatchScan(sets, block_threads=1, threads=3), sets, asked)
    assert_as_numpy(Hybrid(sets, max_partition_size=1, streams=1), sets, asked)


def test_rows_of_several_blocks_in_several_cycles() -> None:
    """Partitions of more rows than a block of threads has, and results of even and odd cycles; some lack room first."""
    tags = [f"t{number}" for number in range(26)]
    sets = table_of([([one, other], key) for key, (one, other) in enumerate(combinations(tags, 2))])
    asked = tag_rows([tags[i % 20 : i % 20 + 6] for i in range(BATCH_SIZE + 40)])
    for room in (64, 1 << 16):
        matcher = Hybrid(sets, max_partition_size=400, streams=1, room=room)
        for _ in range(2):
            assert_as_numpy(matcher, sets, asked)
