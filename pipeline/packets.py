"""What goes through the stages: queries in columns, what the stages make of them, and who waits for the answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pipeline.preprocess import QueryBatch
from tagmatch.arrays import Lists, TagLists
from tagmatch.tables import Snapshot


class Backend(Protocol):
    """Where one snapshot's queries are answered; the stages do not ask which device it has."""

    snapshot: Snapshot

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Ranks of queries `first` to `last` (preprocess)."""

    def subset_match(self, queries: QueryBatch) -> Lists:
        """Set ids, uint32, of the sets that match each query."""


class Sink(Protocol):
    """Who waits for answers."""

    def deliver(self, packet: Packet, keys: Lists) -> None:
        """Take the keys, uint64, of a packet's queries."""

    def fail(self, error: BaseException) -> None:
        """Take an error instead."""


class Futures:
    """A future for each query of one packet."""

    def __init__(self, futures: Sequence[Future[Any]] = ()) -> None:
        self._futures = futures

    def deliver(self, packet: Packet, keys: Lists) -> None:
        """Resolve each future to a list of keys, or to a set where they are unique."""
        ends, values = keys.offsets.tolist(), keys.values.tolist()
        for i, future in enumerate(self._futures):
            found = values[ends[i] : ends[i + 1]]
            future.set_result(set(found) if packet.unique else found)

    def fail(self, error: BaseException) -> None:
        """Give each future the error."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)


_NO_LISTS = Lists(np.zeros(1, np.int64), np.zeros(0, np.uint64))
_NO_QUERIES = QueryBatch(np.zeros(1, np.int64), np.zeros(0, np.uint32))


@dataclass(slots=True, eq=False)
class Packet:
    """Queries `first` to `last` of `tags`, a micro-batch.

    Attributes
    ----------
    queries : QueryBatch
        Their ranks, from the preprocess stage on.
    lists : Lists
        Set ids from the subset match on, then keys.
    in_flight, charged
        Whether the packet is counted as on its way, and with how many bytes of results.
    """

    backend: Backend
    tags: TagLists
    first: int
    last: int
    unique: bool
    sink: Sink = field(default_factory=Futures)
    queries: QueryBatch = _NO_QUERIES
    lists: Lists = _NO_LISTS
    in_flight: bool = True
    charged: int = 0

    def __len__(self) -> int:
        return self.last - self.first
