"""The kernels of an index without its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch.model.columns import key_values, tag_lists
from tagmatch.model.options import Layout, LayoutOptions, MatchOptions
from tagmatch.partitioner.local import build_segment
from tagmatch.partitioner.staging import StagedChanges
from tagmatch.pipeline.run.counts import Counts
from tagmatch.pipeline.run.threaded import match_inline
from tagmatch.pipeline.segment import CpuMatcher
from tagmatch_bench.systems.key_answers import list_array

if TYPE_CHECKING:
    import pyarrow as pa


class Kernels:
    """Preprocess, subset match and key lookup of a layout, called one after the other by plain threads. Exact.

    Packets and what is returned are those of `TagMatch.match_many`, so that the difference is its pipeline.
    """

    exact = True

    def __init__(self, sets: pa.Table, *, layout: Layout, threads: int = 1) -> None:
        staged = StagedChanges(threads)
        staged.extend(tag_lists(sets["tags"], "tags", stored=True), key_values(sets["key"]), removed=False)
        options = LayoutOptions(layout)
        snapshot = build_segment([], staged.changes(), options, threads=threads)
        self._matcher = CpuMatcher(snapshot, MatchOptions(threads=threads))
        self._threads = threads

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Queries are taken as they are."""
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        chunks = tag_lists(queries, "queries")
        answers = match_inline(self._matcher, chunks, unique=unique, threads=self._threads, counts=Counts())
        return list_array(answers)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._matcher.nbytes

    def close(self) -> None:
        """Nothing was started."""
