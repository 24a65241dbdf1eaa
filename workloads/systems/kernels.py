"""The kernels of an index without its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch.model.columns import key_values, tag_lists
from tagmatch.model.empty import empty_snapshot
from tagmatch.model.options import Layout, LayoutOptions, MatchOptions
from tagmatch.model.parallel import run
from tagmatch.partitioner.local import build_snapshot
from tagmatch.partitioner.staging import StagedChanges
from tagmatch.pipeline.cpu import CpuBackend
from tagmatch.pipeline.packets import packet_ranges
from tagmatch.workloads.systems.key_answers import keys_of, list_array

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.arrays import Lists, TagLists


class Kernels:
    """Preprocess, subset match and key lookup of a layout, called one after the other by plain threads. Exact.

    Packets and what is returned are those of `TagMatch.match_many`, so that the difference is its pipeline.
    """

    exact = True

    def __init__(self, sets: pa.Table, *, layout: Layout, threads: int = 1) -> None:
        staged = StagedChanges(threads)
        staged.extend(tag_lists(sets["tags"], "tags", stored=True), key_values(sets["key"]), removed=False)
        options = LayoutOptions(layout)
        snapshot = build_snapshot(empty_snapshot(options), staged.changes(), options, threads=threads)
        self._backend = CpuBackend(snapshot, MatchOptions(threads=threads))
        self._threads = threads

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Queries are taken as they are."""
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        backend = self._backend

        def work(part: tuple[TagLists, int, int]) -> Lists:
            matches = backend.subset_match(backend.ranks(*part)).lists
            return keys_of(matches, backend.snapshot.keys, unique=unique)

        chunks = tag_lists(queries, "queries")
        packets = [
            (chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk, backend.packet_size, self._threads)
        ]
        return list_array(run(work, packets, self._threads), self._threads)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._backend.nbytes

    def close(self) -> None:
        """Nothing was started."""
