"""What answers queries: the paper's stages as a protocol, and what goes from one stage to the next (§3, Figure 1).

A matcher preprocesses queries; what comes of that can be matched, and what comes of that has its keys looked up. Each
payload is of a type of the matcher's own, so that nobody else needs to know where it is: arrays of the CPU, or a place
in the memory of a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, TagLists, U32Array, U64Array, UIntArray
from tagmatch.model.columns import joined_tags
from tagmatch.model.input.places import NO_PLACE
from tagmatch.model.input.values import NO_ATTRIBUTES, packed
from tagmatch.model.tables import Deletions, KeyTable

#: Gives memory for a number of keys, not initialized, if there is some; the caller then writes them all
Space: TypeAlias = Callable[[int], U64Array | None]


def no_space(count: int) -> None:
    """Keys go to memory of their own."""


class Keys(Protocol):
    """Says what keys stand for; `KeyTable` is one."""

    def listed(self, keys: UIntArray) -> list[int] | list[str]:
        """Keys as Python has them."""

    def column(self, keys: UIntArray) -> pa.Array:
        """Keys as Arrow has them: uint64, or large strings."""

    def answers(self, keys: Lists, *, unique: bool) -> tuple[Lists, pa.Array]:
        """Answers to queries: the lists as they are to be, and their values as Arrow has them.

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

    def key_lookup(self, space: Space = no_space) -> Lists:
        """Keys, uint32 or uint64, of the sets of each query, in `space` if it is asked; can be called once."""


class Preprocessed(Protocol):
    """Queries, as a matcher's subset match takes them."""

    def subset_match(self) -> Matched:
        """Sets that each query contains."""


@dataclass(frozen=True, slots=True)
class PacketSize:
    """Of what size the packets should be into which a call with many queries is cut, and how many go at once."""

    queries: int  # The most queries, and tags but for those of one of them
    tags: int
    fewest: int  # Not fewer queries, though more threads would get some
    at_once: int | None = None  # More threads would only take the interpreter lock from each other
    # Whether each of several devices wants `at_once` threads, as they wait for it and not for the interpreter
    per_device: bool = False


class Single(NamedTuple):
    """One query as bytes, which kernels read."""

    text: bytes  # Its tags, UTF-8, with a zero byte between each and the next
    tag_count: int  # How many there are
    attributes: bytes  # See `packed`
    place: bytes  # See `packed_place`


class OneQuery(Protocol):
    """Answers single queries in the calling thread, by few calls of kernels."""

    def keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array:
        """Keys of the sets that a query contains, ascending and each once if `unique`.

        To `counts`, int64[4], queries, keys, sets found and candidates turned away are added.
        """

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """As `keys`, where that takes less time than to have another thread do it; else `None`, uncounted."""

    def set_ids(self, query: Single) -> U32Array:
        """Ids of the sets that a query contains."""


class Matcher(Protocol):
    """What answers queries about some sets. Any number of threads may share it."""

    def __len__(self) -> int:
        """Number of sets."""

    @property
    def keys(self) -> Keys:
        """Says what the keys stand for that come of a key lookup."""

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be."""

    @property
    def by_partition(self) -> PartitionMatcher | None:
        """For a layout that gains from batches of one partition each."""

    @property
    def one_query(self) -> OneQuery | None:
        """For a matcher to which a single query need not come in a packet."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that match: `"cpu"`, or `"cuda:0"` and so on."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as one would expect, in sentences."""

    @property
    def matched_by(self) -> dict[str, int]:
        """How many queries went to which kind of device, where there are several."""

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept in memory beside the tables of the sets."""

    def memory(self, count: int) -> U64Array | None:
        """Memory for `count` keys, into which key lookups write best; `None` where that is memory of their own."""

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` (§3.2)."""

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids, uint32, of the sets that each of queries `first` to `last` contains."""


def added_up(matched_by: Iterable[dict[str, int]]) -> dict[str, int]:
    """How many queries went to each kind of device, of all who matched some."""
    counts = Counter[str]()
    for each in matched_by:
        counts.update(each)  # a sum of counters would leave zeros out
    return dict(counts)


class SegmentMatcher(Matcher, Protocol):
    """Answers queries about one segment."""

    @property
    def keys(self) -> KeyTable:
        """The keys of the segment."""

    def without(self, deletions: Deletions) -> SegmentMatcher:
        """The matcher of the same tables, which both share, with these rows deleted."""


#: What answers one query without a packet, and the query as it takes it
Alone: TypeAlias = tuple[OneQuery, Single]


def alone(matcher: Matcher, tags: object, attributes: object = None, place: bytes = NO_PLACE) -> Alone | None:
    """What answers one query without a packet, and the query as it takes it; `None` if it needs a packet."""
    one = matcher.one_query
    joined = None if one is None else joined_tags(tags)
    if one is None or joined is None:
        return None
    given = NO_ATTRIBUTES if attributes is None else packed(attributes)
    return None if given is None else (one, Single(*joined, given, place))


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries as ranks: query `i` has `ranks[offsets[i]:offsets[i + 1]]`, ascending, each rank once."""

    offsets: I64Array  # int64 array, length n + 1
    ranks: U32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


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


class PartitionMatcher(Protocol):
    """The stages partition by partition (§3.2, §3.3): between them, queries wait until a batch is full."""

    @property
    def partitions(self) -> int:
        """How many there are."""

    @property
    def batch_size(self) -> int:
        """Queries of a batch that is full."""

    @property
    def has_empty(self) -> bool:
        """Whether the empty set, whose id is 0 and which is in no partition, is stored."""

    def preprocess(self, tags: TagLists, first: int, last: int) -> Batches:
        """Find the partitions in which sets may be that queries `first` to `last` contain (Algorithm 2)."""

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""

    def matched(self, sets: Lists) -> Matched:
        """Sets, by id, that were found for each query in all partitions."""


#: Matches batches with their partitions (Algorithm 3)
MatchBatches: TypeAlias = Callable[[Batches], Found]


class DeviceMatcher(SegmentMatcher, Protocol):
    """What answers queries on another device than the CPU."""

    @property
    def match_batches(self) -> MatchBatches | None:
        """For a layout that has partitions."""

    def without(self, deletions: Deletions) -> DeviceMatcher:
        """See `SegmentMatcher`."""
