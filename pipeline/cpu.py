"""The CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.options import Layout, MatchOptions
from tagmatch.model.tables import Snapshot
from tagmatch.pipeline.backend import Matches, PacketSize, PartitionMatch
from tagmatch.pipeline.balanced import BalancedSubsetMatch
from tagmatch.pipeline.key_lookup import look_up_keys
from tagmatch.pipeline.preprocess import QueryBatch, TagIndex
from tagmatch.pipeline.rarest import RarestSubsetMatch

# At 16 threads 8,192 queries are three times as fast as 2,048: the interpreter, which one thread at a time runs between
# kernels, is needed less often
_PACKET_SIZE = PacketSize(queries=8192, tags=65_536, fewest=512)


class SubsetMatch(Protocol):
    """A subset match that takes and gives arrays of the CPU; `nbytes` are those that it has beside the snapshot."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def __call__(self, queries: QueryBatch, /) -> Matches:
        """Sets that each query contains."""


class LayoutMatch(SubsetMatch, Protocol):
    """The subset match of a layout; if it gains from batches of one partition each, it does that as well."""

    @property
    def by_partition(self) -> PartitionMatch | None:
        """As of `Backend`."""


LAYOUTS: dict[Layout, Callable[[Snapshot, MatchOptions], LayoutMatch]] = {
    "rarest": lambda snapshot, options: RarestSubsetMatch(snapshot, threads=options.threads),
    "balanced": lambda snapshot, options: BalancedSubsetMatch(
        snapshot, exact=options.exact, batch_size=options.batch_size, threads=options.threads
    ),
}


class CpuStages:
    """Preprocess and key lookup on the CPU, around a subset match that may be elsewhere. Threads may share it."""

    packet_size = _PACKET_SIZE

    def __init__(self, snapshot: Snapshot, subset_match: SubsetMatch) -> None:
        self.snapshot = snapshot
        self._tag_index = TagIndex(snapshot.vocabulary)
        self._subset_match = subset_match

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot and of what is kept in memory beside it."""
        return self.snapshot.nbytes + self._tag_index.nbytes + self._subset_match.nbytes

    def ranks(self, tags: TagLists, first: int, last: int) -> QueryBatch:
        """Ranks of queries `first` to `last`."""
        return self._tag_index.ranks(tags, first, last)

    def subset_match(self, queries: QueryBatch) -> Matches:
        """Sets that each query contains."""
        return self._subset_match(queries)

    def look_up_keys(self, lists: Lists) -> Lists:
        """Keys of each query's sets."""
        return look_up_keys(lists, self.snapshot.keys)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        ids: Lists = self.subset_match(self.ranks(tags, first, last)).lists
        return ids


class CpuBackend(CpuStages):
    """Matches on the CPU within one snapshot. Immutable, so that any number of threads may share it.

    Parameters
    ----------
    snapshot : Snapshot
    options : MatchOptions
    notes : tuple of str
        Why it is the CPU that matches, where one could expect another device.
    """

    devices = ("cpu",)

    def __init__(self, snapshot: Snapshot, options: MatchOptions, *, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        match = LAYOUTS[snapshot.options.layout](snapshot, options)
        self.by_partition = match.by_partition
        super().__init__(snapshot, match)
