"""Matching within one segment: finders say which rows, the segment knows which are deleted and their keys (§3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from tagmatch.model.arrays import Lists, TagLists, U32Array, U64Array, offsets_of, pooled
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Deletions, Segment
from tagmatch.pipeline.matcher import (
    Batches,
    Found,
    PacketSize,
    PartitionMatcher,
    QueryBatch,
    Space,
    added_up,
    no_space,
)
from tagmatch.pipeline.one import OfSeveralTypes, OneQuery, one_of_all
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
        """Answers single queries about the segment."""


#: Gets a segment, and options
MakeSubsetMatch: TypeAlias = Callable[[Segment, MatchOptions], LayoutMatch]


class SegmentMessages:
    """Messages `first` to `last` of some, as a segment looks at them; their ranks are looked up once, if at all."""

    def __init__(self, tags: TagLists, first: int, last: int, index: TagIndex, ranks: QueryBatch | None = None) -> None:
        self.tags, self.first, self.last, self._index, self._ranks = tags, first, last, index, ranks

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def ranks(self) -> QueryBatch:
        """Their tags as ranks of the segment (§3.2)."""
        # `cached_property` of Python 3.11 has all threads wait for one
        if self._ranks is None:
            self._ranks = self._index.ranks(self.tags, self.first, self.last)
        return self._ranks


class RowsFound(NamedTuple):
    """The rows that a finder has for each message."""

    rows: Lists
    rejected: int = 0  # Candidates that exact verification turned away
    key_places: Lists | None = None  # Places in the key table of keys that were found alone, without their row's others


class Finder(ABC):
    """Finds rows of one segment, deleted or not. Any number of threads may share it."""

    by_partition: PartitionSubsetMatch | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Rows among which it finds."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory beside the segment's tables."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not as one would expect."""
        return ()

    @property
    def matched_by(self) -> dict[str, int]:
        """How many messages went to which kind of device, if there are several."""
        return {}

    @abstractmethod
    def prepare(self, messages: SegmentMessages) -> Any:
        """Messages as `find` takes them (stage 1, preprocess)."""

    @abstractmethod
    def find(self, prepared: Any) -> RowsFound:
        """The rows that each message satisfies (stage 2, subset match)."""

    @abstractmethod
    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery | OfSeveralTypes:
        """Answers single messages about these rows of the segment."""


class TagFinder(Finder):
    """Finds sets of tags alone, as their layout does."""

    def __init__(self, segment: Segment, options: MatchOptions) -> None:
        make: MakeSubsetMatch = resolve_name(implementations_of(segment.options).subset_match)
        self._match = make(segment, options)
        self._count = len(segment)
        self.by_partition = self._match.by_partition

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self._match.nbytes

    def prepare(self, messages: SegmentMessages) -> QueryBatch:
        """As `Finder` says."""
        return messages.ranks

    def find(self, prepared: QueryBatch) -> RowsFound:
        """As `Finder` says."""
        found = self._match(prepared)
        return RowsFound(found.sets, found.rejected)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """As `Finder` says."""
        return self._match.one_query(segment, tags)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSets:
    """Sets that were found in a segment, and single keys, of each message."""

    sets: Lists
    key_places: Lists | None
    segment: Segment
    rejected: int = 0

    @property
    def found(self) -> int:
        """Sets and single keys of all messages."""
        return len(self.sets.values) + (0 if self.key_places is None else len(self.key_places.values))

    def key_lookup(self, space: Space = no_space) -> Lists:
        """Keys of each message."""
        keys, places = self.segment.keys, self.key_places
        if places is None:
            return look_up_keys(self.sets, keys, space)
        alone = Lists(places.offsets, keys.keys.values[places.values])
        return side_by_side([look_up_keys(self.sets, keys), alone] if len(self.sets.values) else [alone], space)

    def ids(self) -> Lists:
        """Ids of the sets, of those with single keys, too."""
        if self.key_places is None:
            return self.sets
        rows = _rows_at(self.key_places, self.segment)
        return side_by_side([self.sets, _each_once(Lists(self.key_places.offsets, rows))])


@dataclass(frozen=True, slots=True, eq=False)
class SegmentQueries:
    """Messages as the finders of a segment take them."""

    prepared: Sequence[tuple[Finder, Any]]
    segment: Segment

    def subset_match(self) -> SegmentSets:
        """The sets that each message satisfies."""
        found = [finder.find(prepared) for finder, prepared in self.prepared]
        rows, rejected, places = found[0] if len(found) == 1 else _side_by_side(found)
        deletions = self.segment.deletions
        if places is not None and deletions is not None and len(places.values):
            places = _but_for(places, deletions.among(_rows_at(places, self.segment)))
        return SegmentSets(live_sets(rows, deletions), places, self.segment, rejected)


def _side_by_side(found: Sequence[RowsFound]) -> RowsFound:
    """What several finders have for each message; one of them at most has single keys."""
    places = next((each.key_places for each in found if each.key_places is not None), None)
    return RowsFound(side_by_side([each.rows for each in found]), sum(each.rejected for each in found), places)


def _rows_at(places: Lists, segment: Segment) -> U32Array:
    """The rows whose keys stand at these places of the key table."""
    offsets = segment.keys.keys.offsets
    return np.searchsorted(offsets, places.values.astype(offsets.dtype), side="right").astype(np.uint32) - np.uint32(1)


def _but_for(lists: Lists, left_out: Any) -> Lists:
    """Lists without the values at some places."""
    kept = np.ones(len(lists.values), np.bool_)
    kept[left_out] = False
    before = np.append(0, np.cumsum(kept))
    return Lists(before[lists.offsets], lists.values[kept])


def _each_once(lists: Lists) -> Lists:
    """The values of each list, ascending, each once."""
    owners = np.repeat(np.arange(len(lists)), lists.lengths())
    pairs = np.stack([owners, lists.values.astype(np.int64)], axis=1)
    if len(pairs):
        pairs = np.unique(pairs, axis=0)
    return Lists(offsets_of(np.bincount(pairs[:, 0], minlength=len(lists))), pairs[:, 1].astype(np.uint32))


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

    def matched(self, sets: Lists) -> SegmentSets:
        return SegmentSets(live_sets(sets, self.segment.deletions), None, self.segment)


class CpuMatcher:
    """Matches on the CPU within one segment. Any number of threads may share it."""

    devices = ("cpu",)
    packet_size = _PACKET_SIZE

    def __init__(self, segment: Segment, finders: Sequence[Finder], *, notes: tuple[str, ...] = ()) -> None:
        self._finders = finders
        self._notes = notes
        self.tag_index = TagIndex(segment.vocabulary)
        self.translations = Translations(self.tag_index)
        self._answer_from(segment)

    def _answer_from(self, segment: Segment) -> None:
        self.keys = segment.keys
        self._segment = segment
        # Queries wait by partition if no finder but that of a layout has a part in them
        alone = self._finders[0].by_partition if len(self._finders) == 1 else None
        self.by_partition: PartitionMatcher | None = (
            None if alone is None else _ByPartition(self.tag_index, alone, segment)
        )
        each = [finder.one_query(segment, self.tag_index) for finder in self._finders]
        self.one_query = one_of_all(each, [0] * len(each), [0] * len(each))

    def without(self, deletions: Deletions) -> CpuMatcher:
        """The matcher of the same tables with these rows deleted."""
        other = copy(self)
        other._answer_from(replace(self._segment, deletions=deletions))
        return other

    def __len__(self) -> int:
        return len(self._segment)

    @property
    def notes(self) -> tuple[str, ...]:
        """As `Matcher` says."""
        return (*self._notes, *(note for finder in self._finders for note in finder.notes))

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept in memory beside the tables of the sets."""
        return self.tag_index.nbytes + sum(finder.nbytes for finder in self._finders)

    @property
    def matched_by(self) -> dict[str, int]:
        """As `Matcher` says."""
        return added_up(finder.matched_by for finder in self._finders)

    def memory(self, count: int) -> U64Array:
        """Memory for `count` keys."""
        return pooled(count, np.uint64)

    def preprocess(self, tags: TagLists, first: int, last: int) -> SegmentQueries:
        """Messages `first` to `last` as all finders take them; ranks are looked up once."""
        return self._prepared(SegmentMessages(tags, first, last, self.tag_index))

    def ranked(self, tags: TagLists, first: int, last: int, ranks: QueryBatch) -> SegmentQueries:
        """As `preprocess`, of messages whose ranks are known already."""
        return self._prepared(SegmentMessages(tags, first, last, self.tag_index, ranks))

    def _prepared(self, messages: SegmentMessages) -> SegmentQueries:
        return SegmentQueries([(finder, finder.prepare(messages)) for finder in self._finders], self._segment)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of messages `first` to `last` satisfies."""
        return self.preprocess(tags, first, last).subset_match().ids()
