"""Matchers: what answers queries, in the paper's stages (§3, Figure 1), and the one of a segment on the CPU.

A matcher preprocesses queries; the outcome can be matched, and the outcome of that has its keys looked up. Each
payload has a type that only the matcher knows, and only it knows where the data is: arrays of the CPU, or a place
in the memory of a device. Within a segment, finders say which rows; the segment knows which are deleted and their keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, TagLists, U32Array, U64Array, UIntArray, offsets_of, pooled
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import MatchOptions, Wanted
from tagmatch.model.tables import Deletions, KeyTable, Segment
from tagmatch.pipeline.one import ALL, AnswersOne, OfSeveralTypes, OneQuery, one_of_all
from tagmatch.pipeline.tags import (
    QueryBatch,
    Space,
    TagIndex,
    as_numbers,
    key_counts,
    live_sets,
    look_up_keys,
    no_space,
)
from tagmatch.pipeline.unique import look_up_once, merge_all

#: Some messages: those from one row to another
Part: TypeAlias = tuple[TagLists, int, int]


class Keys(Protocol):
    """Turns the numbers of keys into keys; `KeyTable` does."""

    def listed(self, keys: UIntArray) -> list[int] | list[str]:
        """Keys as Python has them."""

    def column(self, keys: UIntArray) -> pa.Array:
        """Keys as Arrow has them: uint64, or large strings."""

    def answers(self, keys: Lists, *, unique: bool) -> tuple[Lists, pa.Array]:
        """Answers to queries: their final lists, and the lists' values as Arrow has them.

        Where `unique`, which no number is twice in a list, no value is twice in one either, and they ascend.
        """


class Matched(Protocol):
    """The sets that a subset match found."""

    @property
    def found(self) -> int:
        """How many, over all queries."""

    @property
    def rejected(self) -> int:
        """Candidates that exact verification turned away."""

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:
        """Keys, uint32 or uint64, of the sets of each query, in `space` if it is asked; can be called once.

        Where keys are wanted unique, they may be so already, which `once` then says. If a number is wanted, each
        query has this one in place of keys; if sets are, their ids, uint32.
        """

    @property
    def once(self) -> bool:
        """Whether keys that are looked up `unique` are, for each query, ascending and each once."""


class Preprocessed(Protocol):
    """Queries, as a matcher's subset match takes them."""

    def subset_match(self, wanted: Wanted = Wanted.keys) -> Matched:
        """Sets that each query contains, or as many as `wanted` asks for, for which keys are then looked up."""


@dataclass(frozen=True, slots=True)
class PacketSize:
    """Of what size the packets should be into which a call with many queries is cut, and how many go at once."""

    queries: int  # The most queries, and tags except for those of one of them
    tags: int
    fewest: int  # Not fewer queries, though more threads would get some
    a_thread: int = 2  # Of a call with many queries, each thread gets some
    at_once: int | None = None  # More threads would only take the interpreter lock from each other


class About(NamedTuple):
    """What statistics say about a matcher."""

    devices: tuple[str, ...]  # Names of the devices that match: `"cpu"`, or `"cuda:0"` and so on
    notes: tuple[str, ...]  # What is not as one would expect, in sentences
    matched_by: dict[str, int]  # How many queries went to which kind of device, if there are several
    nbytes: int  # Of memory besides the tables of the sets


def added_up(matched_by: Iterable[dict[str, int]]) -> dict[str, int]:
    """How many queries went to each kind of device, of all who matched some."""
    counts = Counter[str]()
    for each in matched_by:
        counts.update(each)  # a sum of counters would leave zeros out
    return dict(counts)


class Matcher(Protocol):
    """What answers queries about some sets. Any number of threads may share it."""

    def __len__(self) -> int:
        """Number of sets."""

    @property
    def keys(self) -> Keys:
        """Gives the meaning of the keys that are looked up."""

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be."""

    @property
    def by_partition(self) -> ByPartition | None:
        """For a layout that gains from batches of one partition each."""

    @property
    def one_query(self) -> AnswersOne | None:
        """For a matcher to which a single query need not come in a packet."""

    def about(self) -> About:
        """What there is to say about it."""

    def memory(self, count: int) -> U64Array | None:
        """Memory for `count` keys, best for key lookups to write to; `None` for ordinary memory."""

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` (§3.2)."""


def ids_of(matcher: Matcher, tags: TagLists, first: int, last: int) -> Lists:
    """Ids, uint32, of the sets that each of messages `first` to `last` satisfies."""
    return matcher.preprocess(tags, first, last).subset_match(Wanted.sets).key_lookup(wanted=Wanted.sets)


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """Messages in the stages of a matcher whose answers are then changed: `Preprocessed`, then `Matched`."""

    stage: Any
    change: Callable[[Lists], Lists]
    of: Wanted = Wanted.keys  # What is changed: keys, which may be wanted unique, or sets

    def subset_match(self, wanted: Wanted = Wanted.keys) -> Changed:  # noqa: ARG002
        """As `Preprocessed` says."""
        return replace(self, stage=self.stage.subset_match(self.of))

    @property
    def found(self) -> int:
        """As `Matched` says."""
        return int(self.stage.found)

    @property
    def rejected(self) -> int:
        """As `Matched` says."""
        return int(self.stage.rejected)

    @property
    def once(self) -> bool:
        """As `Matched` says."""
        return bool(self.stage.once)

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:
        """As `Matched` says."""
        found = self.change(self.stage.key_lookup(wanted=wanted if wanted is Wanted.unique else self.of))
        if wanted.is_number:
            return as_numbers(found.lengths(), wanted)
        memory = space(len(found.values))
        if memory is None:
            return found
        memory[:] = found.values
        return Lists(found.offsets, memory)


class SegmentMatcher(Matcher, Protocol):
    """Answers queries about one segment."""

    @property
    def keys(self) -> KeyTable:
        """The keys of the segment."""

    @property
    def one_query(self) -> OneQuery | OfSeveralTypes | None:
        """As `Matcher` says; several of these become one."""

    def without(self, deletions: Deletions) -> SegmentMatcher:
        """The matcher of the same tables, which both share, with these rows deleted."""


class DeviceMatcher(SegmentMatcher, Protocol):
    """What answers queries on another device than the CPU."""

    @property
    def match_batches(self) -> MatchBatches | None:
        """For a layout that has partitions."""

    def without(self, deletions: Deletions) -> DeviceMatcher:
        """See `SegmentMatcher`."""


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Queries to be matched within partitions, a batch for each."""

    queries: QueryBatch  # Every query once
    signatures: U64Array
    partitions: I64Array  # The partition of each batch
    offsets: I64Array  # Batch `i` has the queries with the numbers `queued[offsets[i]:offsets[i + 1]]`
    queued: I64Array


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the subset match of batches found."""

    queries: U32Array  # uint32 arrays of the same length: number of a query, and id of a set that it contains
    sets: U32Array
    rejected: int  # See `Matched`


#: Matches batches with their partitions (Algorithm 3)
MatchBatches: TypeAlias = Callable[[Batches], Found]


class SegmentMessages:
    """Messages `first` to `last` of some, as a segment looks at them; their ranks are looked up once, if at all."""

    def __init__(self, tags: TagLists, first: int, last: int, index: TagIndex, numbers: U32Array | None = None) -> None:
        self.tags, self.first, self.last, self._index, self._numbers = tags, first, last, index, numbers
        self._ranks: QueryBatch | None = None

    def __len__(self) -> int:
        return self.last - self.first

    # `cached_property` of Python 3.11 has all threads wait for one

    @property
    def unordered(self) -> QueryBatch:
        """Their tags as ranks of the segment, in the tags' order; UNKNOWN if it does not have the tag (§3.2)."""
        if self._numbers is None:
            self._numbers = self._index.numbers(self.tags, self.first, self.last)
        offsets = self.tags.offsets[self.first : self.last + 1]
        return QueryBatch(np.subtract(offsets, offsets[0], dtype=np.int64), self._numbers)

    @property
    def ranks(self) -> QueryBatch:
        """Those that the segment has, ascending, each once."""
        if self._ranks is None:
            self._ranks = self._index.batch(self.tags, self.first, self.last, self.unordered.ranks.copy())
        return self._ranks


class RowsFound(NamedTuple):
    """The rows that a finder has for each message."""

    rows: Lists
    rejected: int = 0  # Candidates that exact verification turned away
    key_places: Lists | None = None  # Places in the key table of keys that were found alone, without their row's others


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """How many keys messages have in a segment: `Matched`, if numbers are wanted."""

    counts: I64Array
    found: int = 0  # Their sets, and single keys
    rejected: int = 0
    once: ClassVar[bool] = False

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:  # noqa: ARG002
        """The number of each message."""
        return as_numbers(self.counts, wanted)


class Finder(ABC):
    """Finds rows of one segment, deleted or not. Any number of threads may share it."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows among which it finds."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory besides the segment's tables."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about surprises."""
        return ()

    @property
    def matched_by(self) -> dict[str, int]:
        """How many messages went to which kind of device, if there are several."""
        return {}

    def prepare(self, messages: SegmentMessages) -> Any:
        """Messages as `find` takes them (stage 1, preprocess): as ranks, unless a finder asks for more."""
        return messages.ranks

    @abstractmethod
    def find(self, prepared: Any) -> RowsFound:
        """The rows that each message satisfies (stage 2, subset match)."""

    def count(self, prepared: Any, segment: Segment, most: int) -> Counted:  # noqa: ARG002 - others stop there
        """How many keys of the segment each message has, or some number from `most` on."""
        found = SegmentSets.of(self.find(prepared), segment)
        return Counted(found.counts(), found.found, found.rejected)

    @abstractmethod
    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery | OfSeveralTypes | None:
        """Answers single messages about these rows of the segment; `None` if these come in packets."""


class PartitionFinder(Finder):
    """Finds rows partition by partition, for a layout that gains from batches of one partition each."""

    partitions: int
    batch_size: int  # Queries of a batch that is full
    has_empty: bool  # Whether the empty set, whose id is 0 and which is in no partition, is stored

    @abstractmethod
    def route(self, queries: QueryBatch) -> Batches:
        """Find the partitions in which sets may be that a query contains (Algorithm 2)."""

    @abstractmethod
    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""


def tag_finder(segment: Segment, options: MatchOptions) -> Finder:
    """What finds sets of tags alone, as the segment's layout does."""
    make: Callable[[Segment, MatchOptions], Finder] = resolve_name(implementations_of(segment.options).subset_match)
    return make(segment, options)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSets:
    """Sets that were found in a segment, and single keys, of each message."""

    sets: Lists
    key_places: Lists | None
    segment: Segment
    rejected: int = 0
    once: ClassVar[bool] = True  # See `Matched`

    @classmethod
    def of(cls, found: RowsFound, segment: Segment) -> SegmentSets:
        """Of the rows that were found, those that are not deleted."""
        rows, rejected, places = found
        deletions = segment.deletions
        if places is not None and deletions is not None and len(places.values):
            places = _but_for(places, deletions.among(_rows_at(places, segment)))
        return cls(live_sets(rows, deletions), places, segment, rejected)

    @property
    def found(self) -> int:
        """Sets and single keys of all messages."""
        return len(self.sets.values) + (0 if self.key_places is None else len(self.key_places.values))

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:
        """Keys of each message."""
        if wanted is Wanted.sets:
            return self._ids()
        keys, places = self.segment.keys, self.key_places
        if places is None:
            return (look_up_once if wanted is Wanted.unique else look_up_keys)(self.sets, keys, space)
        alone = Lists(places.offsets, keys.keys.values[places.values])
        parts = [look_up_keys(self.sets, keys), alone] if len(self.sets.values) else [alone]
        return merge_all(side_by_side(parts)) if wanted is Wanted.unique else side_by_side(parts, space)

    def counts(self) -> I64Array:
        """How many keys each message has."""
        counts = key_counts(self.sets, self.segment.keys)
        return counts if self.key_places is None else counts + self.key_places.lengths()

    def _ids(self) -> Lists:
        """Of the sets with single keys, too."""
        if self.key_places is None:
            return self.sets
        rows = _rows_at(self.key_places, self.segment)
        return side_by_side([self.sets, _each_once(Lists(self.key_places.offsets, rows))])


@dataclass(frozen=True, slots=True, eq=False)
class SegmentQueries:
    """Messages as the finders of a segment take them."""

    prepared: Sequence[tuple[Finder, Any]]
    segment: Segment

    def subset_match(self, wanted: Wanted = Wanted.keys) -> SegmentSets | Counted:
        """The sets that each message satisfies."""
        if wanted.is_number:
            return self._count(1 if wanted is Wanted.exists else ALL)
        found = [finder.find(prepared) for finder, prepared in self.prepared]
        return SegmentSets.of(found[0] if len(found) == 1 else rows_beside(found), self.segment)

    def _count(self, most: int) -> Counted:
        counts, found, rejected = np.zeros(1, np.int64), 0, 0
        for number, (finder, prepared) in enumerate(self.prepared):
            if number == 0 or counts.min(initial=most) < most:
                own = finder.count(prepared, self.segment, most)
                counts, found, rejected = counts + own.counts, found + own.found, rejected + own.rejected
        return Counted(counts, found, rejected)


def rows_beside(found: Sequence[RowsFound]) -> RowsFound:
    """What several finders have for each message; one of them at most has single keys."""
    rows, rejected, places = zip(*found, strict=True)
    return RowsFound(side_by_side(rows), sum(rejected), next(filter(None, places), None))


def _rows_at(places: Lists, segment: Segment) -> U32Array:
    """The rows whose keys are at these places of the key table."""
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
class ByPartition:
    """The stages partition by partition (§3.2, §3.3): between them, queries wait until a batch is full."""

    finder: PartitionFinder
    segment: Segment
    tag_index: TagIndex
    elsewhere: MatchBatches | None = None  # Matches batches instead of the finder

    def preprocess(self, tags: TagLists, first: int, last: int) -> Batches:
        """Find the partitions in which sets may be that queries `first` to `last` contain (Algorithm 2)."""
        return self.finder.route(self.tag_index.ranks(tags, first, last))

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""
        return (self.elsewhere or self.finder.match)(batches)

    def matched(self, sets: Lists) -> SegmentSets:
        """Sets, by id, that were found for each query in all partitions."""
        return SegmentSets(live_sets(sets, self.segment.deletions), None, self.segment)


# One thread at a time runs the interpreter between kernels. On 16 cores, calls of 200,000 queries with 2 packets a
# thread are 1.2 times as fast as with 4, and twice as fast as with 8. One thread is up to 1.25 times as fast with
# packets of 32,768 as with half of them; larger ones take the more memory
_PACKET_SIZE = PacketSize(queries=1 << 15, tags=1 << 18, fewest=512)


class CpuMatcher:
    """Matches on the CPU within one segment. Any number of threads may share it."""

    packet_size = _PACKET_SIZE

    def __init__(self, segment: Segment, finders: Sequence[Finder], *, notes: tuple[str, ...] = ()) -> None:
        self._finders = finders
        self._notes = notes
        self.tag_index = TagIndex(segment.vocabulary)
        self._answer_from(segment)

    def _answer_from(self, segment: Segment) -> None:
        self.keys = segment.keys
        self._segment = segment
        self.by_partition: ByPartition | None = None
        # Queries wait by partition if no finder but that of a layout has a part in them
        match self._finders:
            case [PartitionFinder() as finder]:
                self.by_partition = ByPartition(finder, segment, self.tag_index)
        each = [finder.one_query(segment, self.tag_index) for finder in self._finders]
        alone = [one for one in each if one is not None]
        some_first = [0] * len(alone)
        self.one_query = one_of_all(alone, some_first, some_first) if len(alone) == len(each) else None

    def without(self, deletions: Deletions) -> CpuMatcher:
        """The matcher of the same tables with these rows deleted."""
        other = copy(self)
        other._answer_from(replace(self._segment, deletions=deletions))
        return other

    def __len__(self) -> int:
        return len(self._segment)

    def about(self) -> About:
        """As `Matcher` says."""
        notes = (*self._notes, *(note for finder in self._finders for note in finder.notes))
        nbytes = self.tag_index.nbytes + sum(finder.nbytes for finder in self._finders)
        return About(("cpu",), notes, added_up(finder.matched_by for finder in self._finders), nbytes)

    def memory(self, count: int) -> U64Array:
        """Memory for `count` keys."""
        return pooled(count, np.uint64)

    def preprocess(self, tags: TagLists, first: int, last: int, numbers: U32Array | None = None) -> SegmentQueries:
        """Messages `first` to `last` as all finders take them; their ranks are looked up once, if not given."""
        messages = SegmentMessages(tags, first, last, self.tag_index, numbers)
        return SegmentQueries([(finder, finder.prepare(messages)) for finder in self._finders], self._segment)
