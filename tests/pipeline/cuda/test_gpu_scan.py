"""The plain GPU scans: what they find is exactly what NumPy finds by signature, and more than the right keys."""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.simulator import EXAMPLES
from support.tables import table_of, tag_rows

from tagmatch.workloads.systems.gpu_scan import BATCH_SIZE, PACKET_BATCHES, GpuBatchScan, GpuScan, ScannedPacket
from tagmatch.workloads.systems.numpy_scan import SignatureScan

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TAGS = st.text("abcdé", max_size=2)
SETS = st.lists(st.tuples(st.lists(TAGS, max_size=4), st.integers(0, 2**64 - 1)), max_size=6)
QUERIES = st.lists(st.lists(TAGS, max_size=8), max_size=4)


def assert_as_numpy(matcher: GpuScan | GpuBatchScan, sets: pa.Table, queries: pa.ListArray) -> None:
    scan = SignatureScan(sets)
    for unique in (False, True):
        found = matcher.match_many(matcher.prepare(queries), unique=unique).to_pylist()
        expected = scan.match_many(scan.prepare(queries), unique=unique).to_pylist()
        assert list(map(Counter, found)) == list(map(Counter, expected))


@pytest.mark.parametrize("system", [GpuScan, GpuBatchScan])
@EXAMPLES
@given(rows=SETS, asked=QUERIES, room=st.integers(1, 8))
def test_small_tables(
    system: type[GpuScan | GpuBatchScan], rows: list[tuple[list[str], int]], asked: list[list[str]], room: int
) -> None:
    sets, queries = table_of(rows), tag_rows(asked)
    matcher = system(sets, block_threads=2, room=room)
    assert_as_numpy(matcher, sets, queries)
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    for query, keys in zip(asked, matcher.match_many(matcher.prepare(queries)).to_pylist(), strict=True):
        assert Counter(oracle.match(query)) <= Counter(keys)


@pytest.mark.parametrize("system", [GpuScan, GpuBatchScan])
@pytest.mark.parametrize("room", [7, 8, 80])
def test_results_that_just_fit_and_just_do_not(system: type[GpuScan | GpuBatchScan], room: int) -> None:
    sets = table_of([([f"t{i}"], i) for i in range(8)])
    queries = tag_rows([[f"t{i}" for i in range(8)]] * 2)
    assert_as_numpy(system(sets, block_threads=4, room=room), sets, queries)


@pytest.mark.parametrize("queries", [BATCH_SIZE, BATCH_SIZE + 1, PACKET_BATCHES * BATCH_SIZE + 1])
def test_more_than_a_batch(queries: int) -> None:
    sets = table_of([(["a"], 1)])
    asked = tag_rows([["a"] if i % 3 else ["b"] for i in range(queries)])
    assert_as_numpy(GpuBatchScan(sets, block_threads=1), sets, asked)


@pytest.mark.parametrize("streams", [1, 2])
def test_packets_of_several_threads(streams: int) -> None:
    """They are on the device together, as many as there are streams, and come back in order."""
    sets = table_of([([f"t{i}"], i) for i in range(6)])
    asked = tag_rows([["t1", "t2"], ["t3"], [], ["t5"]] * PACKET_BATCHES)
    matcher = GpuScan(sets, threads=3, streams=streams, block_threads=2, room=1)
    together, there, most = threading.Barrier(streams), set(), []
    match = ScannedPacket.subset_match

    def all_there(packet: ScannedPacket) -> None:
        there.add(packet)
        most.append(len(there))
        together.wait(30)
        match(packet)
        there.remove(packet)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ScannedPacket, "subset_match", all_there)
        assert_as_numpy(matcher, sets, asked)
    assert max(most) == streams


def test_memory() -> None:
    assert GpuScan(table_of([(["a"], 1), (["b"], 2)])).nbytes() > 2 * 24
