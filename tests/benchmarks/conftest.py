"""One data set for all kernels: a snapshot in each layout and one task's worth of queries."""

from __future__ import annotations

import pytest
from support.agreement import index_of

from tagmatch.model.arrays import TagLists
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import Layout
from tagmatch.model.tables import Segment
from tagmatch.pipeline.cpu.preprocess import TagIndex
from tagmatch.pipeline.matcher import QueryBatch
from tagmatch.workloads.bench.harness.data import Workload, make_workload


@pytest.fixture(scope="session")
def workload() -> Workload:
    """200,000 sets and 2,048 queries."""
    return make_workload(200_000, 2048, seed=1, threads=1)


@pytest.fixture(scope="session")
def stored(workload: Workload) -> TagLists:
    """The tags of all stored sets."""
    (chunk,) = tag_lists(workload.sets["tags"].combine_chunks(), "tags")
    return chunk


@pytest.fixture(scope="session")
def queries(workload: Workload) -> TagLists:
    (chunk,) = tag_lists(workload.queries, "queries")
    return chunk


def segment_of(workload: Workload, layout: Layout) -> Segment:
    with index_of(workload.sets["tags"], workload.sets["key"], layout=layout) as tm:
        return tm.snapshot.only


rarest = pytest.fixture(scope="session")(lambda workload: segment_of(workload, "rarest"))
balanced = pytest.fixture(scope="session")(lambda workload: segment_of(workload, "balanced"))


@pytest.fixture(scope="session")
def query_ranks(rarest: Segment, queries: TagLists) -> QueryBatch:
    """The queries as ranks, which are the same in both layouts."""
    return TagIndex(rarest.vocabulary).ranks(queries, 0, len(queries))
