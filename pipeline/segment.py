"""Matching on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Protocol, TypeAlias

import numpy as np

from tagmatch.model.arrays import Lists, TagLists, U64Array, pooled
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Deletions, KeyTable, Segment
from tagmatch.pipeline.matcher import Batches, Found, PacketSize, PartitionMatcher, QueryBatch, Space, no_space
from tagmatch.pipeline.one import OneQuery
from tagmatch.pipeline.tags import PartitionSubsetMatch, SubsetMatch, TagIndex, Translations, live_sets, look_up_keys

# At 16 threads 8,192 queries are three times as fast as 2,048: the interpreter, which one thread at a time runs between
# kernels, is needed less often
_PACKET_SIZE = PacketSize(queries=8192, tags=65_536, fewest=512)


class LayoutMatch(SubsetMatch, Protocol):
    """The subset match of a layout; if it gains from batches of one partition each, it does that as well."""

    @property
    def by_partition(self) -> PartitionSubsetMatch | None:
        """Itself, or nothing."""

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """What answers single queries about the segment."""


#: Gets a segment, and options
MakeSubsetMatch: TypeAlias = Callable[[Segment, MatchOptions], LayoutMatch]


@dataclass(frozen=True, slots=True, eq=False)
class SetIds:
    """Sets that were found, as ids in the memory of the CPU."""

    sets: Lists  # Those of each query
    keys: KeyTable  # Keys of each set
    rejected: int = 0  # As of `Matched`

    @property
    def found(self) -> int:
        """How many, over all queries."""
        return len(self.sets.values)

    def key_lookup(self, space: Space = no_space) -> Lists:
        """Keys of the sets of each query."""
        return look_up_keys(self.sets, self.keys, space)


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Queries as ranks in the memory of the CPU, with what matches them."""

    queries: QueryBatch
    match: SubsetMatch
    segment: Segment

    def subset_match(self) -> SetIds:
        """Sets that each query contains."""
        matches = self.match(self.queries)
        return SetIds(live_sets(matches.sets, self.segment.deletions), self.segment.keys, matches.rejected)


@dataclass(frozen=True, slots=True, eq=False)
class _ByPartition:
    """The stages around a subset match of batches of one partition each."""

    tag_index: TagIndex
    subset_match: PartitionSubsetMatch
    segment: Segment

    @property
    def partitions(self) -> int:
        return self.subset_match.partitions

    @property
    def batch_size(self) -> int:
        return self.subset_match.batch_size

    @property
    def has_empty(self) -> bool:
        return self.subset_match.has_empty

    def preprocess(self, tags: TagLists, first: int, last: int) -> Batches:
        return self.subset_match.route(self.tag_index.ranks(tags, first, last))

    def match(self, batches: Batches) -> Found:
        return self.subset_match.match(batches)

    def matched(self, sets: Lists) -> SetIds:
        return SetIds(live_sets(sets, self.segment.deletions), self.segment.keys)


class CpuMatcher:
    """Matches on the CPU within one segment. Immutable, so that any number of threads may share it."""

    devices = ("cpu",)
    packet_size = _PACKET_SIZE

    def __init__(self, segment: Segment, options: MatchOptions, *, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        self.tag_index = TagIndex(segment.vocabulary)
        self.translations = Translations(self.tag_index)
        make: MakeSubsetMatch = resolve_name(implementations_of(segment.options).subset_match)
        self._subset_match = make(segment, options)
        self._answer_from(segment)

    def _answer_from(self, segment: Segment) -> None:
        self.keys = segment.keys
        self._segment = segment
        by_partition = self._subset_match.by_partition
        self.by_partition: PartitionMatcher | None = (
            None if by_partition is None else _ByPartition(self.tag_index, by_partition, segment)
        )
        self.one_query = self._subset_match.one_query(segment, self.tag_index)

    def without(self, deletions: Deletions) -> CpuMatcher:
        """As of `SegmentMatcher`."""
        other = copy(self)
        other._answer_from(replace(self._segment, deletions=deletions))
        return other

    def __len__(self) -> int:
        return len(self._segment)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept in memory beside the tables of the sets."""
        return self.tag_index.nbytes + self._subset_match.nbytes

    @property
    def matched_by(self) -> dict[str, int]:
        """Nothing: all queries go to the CPU."""
        return {}

    def memory(self, count: int) -> U64Array:
        """Memory for `count` keys."""
        return pooled(count, np.uint64)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Ranked:
        """Ranks of queries `first` to `last`."""
        return self.ranked(self.tag_index.ranks(tags, first, last))

    def ranked(self, queries: QueryBatch) -> Ranked:
        """Queries that are ranks already."""
        return Ranked(queries, self._subset_match, self._segment)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        return self.preprocess(tags, first, last).subset_match().sets
