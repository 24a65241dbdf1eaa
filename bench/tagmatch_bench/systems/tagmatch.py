"""tagmatch itself, seen as one of the compared systems; its kernels without the pipeline; and encoded queries."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import DeviceError, TagMatch
from tagmatch.model.columns import key_values, tag_lists
from tagmatch.model.options import Layout, LayoutOptions, MatchOptions, Wanted
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import StagedChanges
from tagmatch.partitioner.local import segment_after
from tagmatch.pipeline.run.counts import Counts, Histogram
from tagmatch.pipeline.run.packets import match_many
from tagmatch.pipeline.run.stage import STAGES
from tagmatch.pipeline.segment import CpuMatcher, tag_finder
from tagmatch_bench.systems.matcher import Answers, CallSize, Matcher, Plain, UnavailableError, kept, list_array


def build_index(sets: pa.Table, **options: Any) -> TagMatch:
    """Build an index of a table with columns `tags` and `key`; `options` are those of `TagMatch`."""
    index = TagMatch(**options)
    index.add_sets(sets["tags"], sets["key"])
    index.consolidate()
    return index


@kept
def _snapshot(sets: pa.Table, options: LayoutOptions, *, threads: int) -> Snapshot:
    layout, size = options.layout, options.max_partition_size
    with build_index(sets, layout=layout, max_partition_size=size, threads=threads, device="cpu") as index:
        return index.snapshot


def open_index(snapshot: Callable[[LayoutOptions], Snapshot], **options: Any) -> TagMatch:
    """Open an index of tables that are there already, and that indexes with other options may share."""
    index = TagMatch(**options)
    current = index._engine.changing
    current.replace(current.prepared(snapshot(current.layout_options)))
    return index


def packets_for_all(index: TagMatch) -> CallSize:
    """Size of a call in which all threads of an index have packets."""
    threads = index.stats()["threads"]
    size = index._engine.changing.answering.matcher.packet_size
    return CallSize(size.a_thread * min(threads, size.at_once or threads) * size.fewest)


class Indexed(Plain):
    """An index of this library, asked as its users ask it."""

    index: TagMatch

    def match_many(self, queries: Any, *, unique: bool = False) -> pa.ListArray:
        """Return the keys that match, for each query, or message, in order."""
        return self.index.match_many(queries, unique=unique)

    @property
    def call_size(self) -> CallSize:
        """So many queries that all threads have packets."""
        return packets_for_all(self.index)

    def nbytes(self) -> int:
        """Bytes of memory, with the stored rows and keys."""
        return int(self.index.stats()["index_bytes"])

    def close(self) -> None:
        """Close the index."""
        self.index.close()


class Tagmatch(Indexed):
    """An index of sets, or of a snapshot in its layout; `options` are those of `TagMatch`.

    Of the same sets in the same layout there is one snapshot, which all indexes share.

    The `balanced` layout with `exact=False` on the CPU is the paper's *CPU-only TagMatch* (Table 1).
    """

    def __init__(self, sets: pa.Table | Snapshot, **options: Any) -> None:
        self.exact: bool = options.get("exact", True) or options.get("layout") != "balanced"

        def snapshot(layout: LayoutOptions) -> Snapshot:
            return sets if isinstance(sets, Snapshot) else _snapshot(sets, layout, threads=options.get("threads", 1))

        self.index = open_index(snapshot, **options)

    def match(self, query: list[str]) -> list[int]:
        """Return the keys of the stored sets that match one query."""
        return self.index.match(query)


class TagmatchOnDisk(Tagmatch):
    """An index in a folder, which takes changes and matches on the CPU; `options` are those of `TagMatch`."""

    visible_at_once = False

    def __init__(self, path: Path, **options: Any) -> None:
        self.exact = True
        make = TagMatch.open if path.exists() else TagMatch
        self.index = make(path, device="cpu", **options)

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows, in one consolidation."""
        if removed:
            self.index.remove_sets(removed["tags"], removed["key"])
        self.index.add_sets(added["tags"], added["key"])
        self.index.consolidate()

    def adder(self) -> Callable[[list[str], int], object]:
        """Return what stages a row, which the next `tend` makes visible."""
        return self.index.add_set

    def tend(self) -> None:
        """Make staged changes take effect."""
        self.index.consolidate()

    def is_merged(self) -> bool:
        """Whether nothing is left to be merged in the background."""
        return self.index.snapshot.is_whole


class TagmatchOnGpu(Tagmatch):
    """The same on CUDA devices.

    The `balanced` layout with `exact=False` is the paper's *TagMatch* (Table 1).
    """

    def __init__(self, sets: pa.Table | Snapshot, **options: Any) -> None:
        try:
            super().__init__(sets, **(options | {"device": "cuda"}))
        except DeviceError as error:
            raise UnavailableError(str(error)) from error

    @property
    def call_size(self) -> CallSize:
        """So many queries that all threads have packets, which are then full."""
        whole = super().call_size.whole
        size = self.index._engine.changing.answering.matcher.packet_size
        return CallSize(whole, whole // size.fewest * size.queries)


class Kernels(Plain):
    """Preprocess, subset match and key lookup of a layout, called one after the other by plain threads. Exact.

    Packets and results are those of `TagMatch.match_many`, so that the difference is its pipeline.
    """

    def __init__(self, sets: pa.Table, *, layout: Layout, threads: int = 1) -> None:
        staged = StagedChanges(threads)
        staged.extend(tag_lists(sets["tags"], "tags", stored=True), key_values(sets["key"]), removed=False)
        options = LayoutOptions(layout)
        snapshot, _ = segment_after([], staged.changes(), options, threads=threads)
        self._matcher = CpuMatcher(snapshot, [tag_finder(snapshot, MatchOptions(threads=threads))])
        self._threads = threads

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        chunks = tag_lists(queries, "queries")
        services = {stage: Histogram() for stage in STAGES}
        wanted = Wanted.unique if unique else Wanted.keys
        answers = match_many(
            self._matcher, chunks, wanted=wanted, threads=self._threads, counts=Counts(), services=services
        )
        return list_array(answers)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._matcher.about().nbytes


def dictionary_encoded(queries: pa.ListArray) -> pa.ListArray:
    """Put the tags of queries in a dictionary that has no others."""
    offsets = pc.subtract(queries.offsets, queries.offsets[0])
    return pa.ListArray.from_arrays(offsets, pc.dictionary_encode(queries.flatten()))


class EncodedQueries:
    """Queries whose slices come with their own dictionaries, made when they are first asked for."""

    def __init__(self, queries: pa.ListArray) -> None:
        self._first: Callable[[int], pa.ListArray] = cache(lambda count: dictionary_encoded(queries[:count]))

    def __getitem__(self, some: slice) -> pa.ListArray:
        """Return the first queries."""
        assert some.start in (None, 0)
        assert some.step is None
        return self._first(some.stop)


class DictionaryEncoded:
    """An index that others use, too, with its own form of queries."""

    def __init__(self, matcher: Matcher[pa.ListArray]) -> None:
        self.exact = matcher.exact
        self._matcher = matcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def prepare(self, queries: pa.ListArray) -> EncodedQueries:
        """Put their tags in a dictionary."""
        return EncodedQueries(queries)

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> Answers:
        """Return the keys of the stored sets that match, for each query in order."""
        return self._matcher.match_many(queries, unique=unique)

    def close(self) -> None:
        """Leave the index open, which is not this one's."""
