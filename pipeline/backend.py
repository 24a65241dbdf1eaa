"""What the stages ask of a backend, and what goes in and out of it; they do not ask which device it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.preprocess import QueryBatch
from tagmatch.arrays import I64Array, TagLists, U32Array, U64Array
from tagmatch.tables import Snapshot


@dataclass(frozen=True, slots=True)
class Matches:
    """What a subset match found.

    Attributes
    ----------
    lists : Lists of uint32
        Set ids of each query, or what else the backend's key lookup takes.
    found : int
        Set ids in all.
    rejected : int
        Candidates that exact verification turned away.
    """

    lists: Any
    found: int
    rejected: int


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Queries to be matched within partitions, a batch for each.

    Attributes
    ----------
    queries : QueryBatch
        Every query once.
    signatures : uint64 array, queries x 3
    partitions : int64 array
        The partition of each batch.
    offsets, queued : int64 arrays
        Batch `i` has the queries with the numbers `queued[offsets[i]:offsets[i + 1]]`.
    """

    queries: QueryBatch
    signatures: U64Array
    partitions: I64Array
    offsets: I64Array
    queued: I64Array


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the subset match of batches found.

    Attributes
    ----------
    queries, sets : uint32 arrays of the same length
        Number of a query, and id of a set that it contains.
    rejected : int
        As of `Matches`.
    """

    queries: U32Array
    sets: U32Array
    rejected: int


class PartitionMatch(Protocol):
    """Subset match partition by partition (§3.2, §3.3), for which queries wait until a batch is full.

    Attributes
    ----------
    partitions : int
        How many there are.
    batch_size : int
        Queries of a batch that is full.
    has_empty : bool
        Whether the empty set, whose id is 0 and which is in no partition, is stored.
    """

    partitions: int
    batch_size: int
    has_empty: bool

    def route(self, queries: QueryBatch) -> Batches:
        """Find the partitions in which sets may be that a query contains (Algorithm 2)."""

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""


class Backend(Protocol):
    """Where one snapshot's queries are answered.

    Attributes
    ----------
    snapshot : Snapshot
    """

    snapshot: Snapshot

    @property
    def by_partition(self) -> PartitionMatch | None:
        """For a layout that gains from batches of one partition each."""

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Ranks of queries `first` to `last` (preprocess)."""

    def subset_match(self, queries: QueryBatch) -> Matches:
        """Sets that each query contains."""
