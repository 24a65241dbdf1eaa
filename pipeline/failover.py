"""When a device fails, the batches that are on it fail, and the CPU answers all later queries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.errors import DeviceError
from tagmatch.pipeline.backend import Backend, Batches, Found, Matches, Owned, PacketSize, PartitionMatch

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Failover:
    """A device's backend and, from the moment when the device fails, the CPU's.

    Parameters
    ----------
    backend : Backend
        Raises `DeviceError` when it can do no more.
    on_cpu : callable
        Gets the reason and returns the CPU's backend for the same snapshot, in seconds; not called before it is needed.
    """

    def __init__(self, backend: Backend, on_cpu: Callable[[str], Backend]) -> None:
        self.snapshot = backend.snapshot
        match = backend.by_partition
        self.by_partition = None if match is None else _ByPartition(self, match)
        self._on_cpu = on_cpu
        self._moving = threading.Lock()
        self._backend: Backend | None = backend
        self._reason = ""

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be now."""
        return self.in_use().packet_size

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that match now."""
        return self.in_use().devices

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the devices are not those that were asked for."""
        return self.in_use().notes

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot and of what is kept in memory beside it."""
        return self.in_use().nbytes

    def ranks(self, tags: TagLists, first: int, last: int) -> Owned:
        """Ranks of queries `first` to `last`."""
        backend = self.in_use()
        return Owned(backend, self.ask(backend, lambda: backend.ranks(tags, first, last)))

    def subset_match(self, queries: Owned) -> Matches:
        """Sets that each query contains."""
        backend = queries.backend
        matches = self.ask(backend, lambda: backend.subset_match(queries.work))
        return Matches(Owned(backend, matches.lists), matches.found, matches.rejected)

    def look_up_keys(self, lists: Owned | Lists) -> Lists:
        """Keys of each query's sets; those from partition queues are in the memory of the CPU."""
        if isinstance(lists, Lists):
            return self.in_use().look_up_keys(lists)
        return self.ask(lists.backend, lambda: lists.backend.look_up_keys(lists.work))

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        backend = self.in_use()
        return self.ask(backend, lambda: backend.set_ids(tags, first, last))

    def in_use(self) -> Backend:
        """Return the device's backend or, after it has failed, the CPU's."""
        backend = self._backend
        if backend is None:
            with self._moving:
                backend = self._backend = self._backend or self._on_cpu(self._reason)
        return backend

    def ask(self, backend: Backend, do: Callable[[], Result]) -> Result:
        """Return what a backend gives; if it fails, the CPU is in use from then on."""
        try:
            return do()
        except DeviceError as error:
            with self._moving:
                if self._backend is backend:
                    self._backend, self._reason = None, str(error)
                    _log.error("%s; the CPU goes on", error)
            raise


class _ByPartition:
    """Batches of one partition each, on the device or on the CPU: both have the same partitions."""

    def __init__(self, failover: Failover, match: PartitionMatch) -> None:
        self.partitions, self.batch_size, self.has_empty = match.partitions, match.batch_size, match.has_empty
        self._failover = failover

    def route(self, queries: Owned) -> Batches:
        """Find the partitions in which sets may be that a query contains."""
        match = self._failover.in_use().by_partition
        assert match is not None
        return match.route(queries.work)

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions."""
        backend = self._failover.in_use()
        match = backend.by_partition
        assert match is not None
        return self._failover.ask(backend, lambda: match.match(batches))
