"""One data set for all kernels: a snapshot in each layout and one task's worth of queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tagmatch import TagMatch
from tagmatch.model.arrays import TagLists
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import Layout
from tagmatch.model.storage.folder import Folder
from tagmatch.model.tables import Segment
from tagmatch.pipeline.cpu.preprocess import TagIndex
from tagmatch.pipeline.matcher import QueryBatch
from tagmatch.workloads.bench.harness.data import Workload, make_workload

SETS = 200_000
QUERIES = 2048


@pytest.fixture(scope="session")
def workload() -> Workload:
    return make_workload(SETS, QUERIES, seed=1, threads=1)


@pytest.fixture(scope="session")
def stored(workload: Workload) -> TagLists:
    """The tags of all stored sets."""
    (chunk,) = tag_lists(workload.sets["tags"].combine_chunks(), "tags")
    return chunk


@pytest.fixture(scope="session")
def queries(workload: Workload) -> TagLists:
    (chunk,) = tag_lists(workload.queries, "queries")
    return chunk


def segment_of(workload: Workload, layout: Layout, folder: Path) -> Segment:
    with TagMatch(folder, layout=layout) as tm:
        tm.add_sets(workload.sets["tags"], workload.sets["key"])
        tm.consolidate()
    return Folder(folder).open()[1]


@pytest.fixture(scope="session")
def rarest(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return segment_of(workload, "rarest", tmp_path_factory.mktemp("index") / "rarest")


@pytest.fixture(scope="session")
def balanced(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return segment_of(workload, "balanced", tmp_path_factory.mktemp("index") / "balanced")


@pytest.fixture(scope="session")
def query_ranks(rarest: Segment, queries: TagLists) -> QueryBatch:
    """The queries as ranks, which are the same in both layouts."""
    return TagIndex(rarest.vocabulary).ranks(queries, 0, len(queries))
