"""What goes through the stages: queries in columns, what the stages make of them, and who waits for the answers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.preprocess import QueryBatch
from tagmatch.arrays import Lists, Strings, TagLists
from tagmatch.tables import Snapshot


class Backend(Protocol):
    """Where one snapshot's queries are answered; the stages do not ask which device it has."""

    snapshot: Snapshot

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Ranks of queries `first` to `last` (preprocess)."""

    def subset_match(self, queries: QueryBatch) -> Lists:
        """Set ids, uint32, of the sets that match each query."""


_NO_TAGS = TagLists(np.zeros(1, np.int64), Strings(np.zeros(1, np.int64), np.zeros(0, np.uint8)))
_NO_LISTS = Lists(np.zeros(1, np.int64), np.zeros(0, np.uint64))
_NO_QUERIES = QueryBatch(np.zeros(1, np.int64), np.zeros(0, np.uint32))


@dataclass(slots=True, eq=False, kw_only=True)
class Packet:
    """Queries `first` to `last` of `tags`, a micro-batch.

    Attributes
    ----------
    queries : QueryBatch
        Their ranks, from the preprocess stage on.
    lists : Lists
        Set ids from the subset match on, then keys.
    """

    backend: Backend
    unique: bool
    tags: TagLists = _NO_TAGS
    first: int = 0
    last: int
    queries: QueryBatch = _NO_QUERIES
    lists: Lists = _NO_LISTS

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(slots=True, eq=False, kw_only=True)
class Submitted(Packet):
    """A packet of queries that were submitted one by one.

    Attributes
    ----------
    rows : list of list of str
        The queries, which become `tags`.
    futures : list of Future
        Who waits for each.
    in_flight, result_bytes
        Whether the packet is counted as on its way, and with how many bytes of results.
    """

    rows: list[list[str]]
    futures: list[Future[Any]]
    in_flight: bool = True
    result_bytes: int = 0

    def deliver(self) -> None:
        """Resolve each future to a list of keys, or to a set where they are unique."""
        ends, values = self.lists.offsets.tolist(), self.lists.values.tolist()
        for i, future in enumerate(self.futures):
            found = values[ends[i] : ends[i + 1]]
            future.set_result(set(found) if self.unique else found)

    def fail(self, error: BaseException) -> None:
        """Give the error to each future that has no answer yet."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
