"""The paper's division of work (§3): the device matches batches with partitions, the CPU does all before and after."""

from __future__ import annotations

from pipeline.backend import Matches
from pipeline.balanced import grouped_by_query
from pipeline.cpu import CpuBackend
from pipeline.cuda.published import PublishedSubsetMatch
from pipeline.cuda.published_kernels import MOST_QUERIES
from pipeline.key_lookup import look_up_keys
from pipeline.preprocess import QueryBatch, TagIndex
from tagmatch.arrays import Lists, TagLists
from tagmatch.options import MatchOptions
from tagmatch.tables import Snapshot


class PublishedBackend:
    """Matches the `balanced` layout on one device as published. Any number of threads may share it.

    Raises
    ------
    DeviceError
        From all that matches, when the device has failed; `DeviceMemoryError` when its memory does not suffice.
    """

    packet_size = CpuBackend.packet_size
    notes: tuple[str, ...] = ()

    def __init__(self, snapshot: Snapshot, options: MatchOptions, device: int = 0) -> None:
        self.snapshot = snapshot
        self.devices: tuple[str, ...] = (f"cuda:{device}",)
        self._tag_index = TagIndex(snapshot.vocabulary)
        self.by_partition = PublishedSubsetMatch(
            snapshot,
            exact=options.exact,
            batch_size=min(options.batch_size, MOST_QUERIES),
            streams=options.cuda.streams,
            device=device,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot, and of what is kept beside it in both memories."""
        return self.snapshot.nbytes + self._tag_index.nbytes + self.by_partition.nbytes

    def ranks(self, tags: TagLists, first: int, last: int) -> QueryBatch:
        """Ranks of queries `first` to `last`."""
        return self._tag_index.ranks(tags, first, last)

    def subset_match(self, queries: QueryBatch) -> Matches:
        """Sets that each query contains."""
        match = self.by_partition
        return grouped_by_query(match.match(match.route(queries)), len(queries), match.has_empty)

    def look_up_keys(self, lists: Lists) -> Lists:
        """Keys of each query's sets."""
        return look_up_keys(lists, self.snapshot.keys)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        ids: Lists = self.subset_match(self.ranks(tags, first, last)).lists
        return ids
