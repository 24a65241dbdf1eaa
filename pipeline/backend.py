"""What the stages ask of a backend, and what goes in and out of it; they do not ask which device it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tagmatch.model.arrays import I64Array, Lists, TagLists, U32Array, U64Array
from tagmatch.model.tables import Snapshot
from tagmatch.pipeline.preprocess import QueryBatch


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

    def route(self, queries: Any) -> Batches:
        """Find the partitions in which sets may be that a query contains (Algorithm 2); gets what `ranks` gives."""

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""


@dataclass(frozen=True, slots=True)
class PacketSize:
    """Of what size the packets should be into which a call with many queries is cut, and how many go at once.

    Attributes
    ----------
    queries, tags : int
        The most queries, and tags but for those of the last query.
    fewest : int
        Not fewer queries, though more threads would get some.
    at_once : int, optional
        More threads would only take the interpreter lock from each other.
    per_device : bool
        Whether each of several devices wants `at_once` threads, as they wait for it and not for the interpreter.
    """

    queries: int
    tags: int
    fewest: int
    at_once: int | None = None
    per_device: bool = False


class Backend(Protocol):
    """Where one snapshot's queries are answered. Any number of threads may share it.

    Attributes
    ----------
    snapshot : Snapshot
    """

    snapshot: Snapshot

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be."""

    @property
    def by_partition(self) -> PartitionMatch | None:
        """For a layout that gains from batches of one partition each; then lists of set ids are `Lists`."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that match: `"cpu"`, or `"cuda:0"` and so on."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as one would expect, in sentences."""

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot and of what is kept in memory beside it."""

    def ranks(self, tags: TagLists, first: int, last: int) -> Any:
        """Ranks of queries `first` to `last` (preprocess), as `subset_match` takes them."""

    def subset_match(self, queries: Any) -> Matches:
        """Sets that each query contains."""

    def look_up_keys(self, lists: Any) -> Lists:
        """Keys, uint64, of the sets in `Matches.lists`, for each query."""

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids, uint32, of the sets that each of queries `first` to `last` contains."""


@dataclass(frozen=True, slots=True, eq=False)
class Owned:
    """What one of several backends has made of a packet, and only it understands."""

    backend: Backend
    work: Any
