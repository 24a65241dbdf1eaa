"""What goes through the stages: queries in columns, what the stages make of them, and the callers that wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, Lists, Strings, TagLists
from tagmatch.pipeline.backend import Backend, PacketSize
from tagmatch.pipeline.preprocess import QueryBatch

# A call with many queries is cut so that each thread gets some packets
_PACKETS_PER_THREAD = 4

#: Integers or strings
Keys = list[Any] | set[Any]

_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """The future of a query that was submitted, and whether its answer is a set of keys."""

    future: Future[Any]
    unique: bool

    def answer(self, keys: Keys) -> None:
        """Give the keys, where there is no error yet."""
        self._end(self.future.set_result, keys)

    def fail(self, error: BaseException) -> None:
        """Give the error, where there is no answer yet."""
        self._end(self.future.set_exception, error)

    def _end(self, give: Callable[[Any], None], outcome: Any) -> None:
        try:
            give(outcome)
        except InvalidStateError:
            pass  # two batches of one query may fail at once
        except BaseException:
            # Futures let through what is no `Exception`; other queries must not suffer from it
            _log.exception("exception calling callback for %r", self.future)


_NO_TAGS = TagLists(np.zeros(1, np.int64), Strings(np.zeros(1, np.int64), np.zeros(0, np.uint8)))
_NO_LISTS = Lists(np.zeros(1, np.int64), np.zeros(0, np.uint64))
_NO_QUERIES = QueryBatch(np.zeros(1, np.int64), np.zeros(0, np.uint32))


@dataclass(slots=True, eq=False, kw_only=True)
class Packet:
    """A micro-batch: queries `first` to `last` of `tags`.

    Attributes
    ----------
    unique : bool array
        Of each query: whether its keys are wanted once each.
    queries
        Their ranks, from the preprocess stage on, as the backend has them.
    lists
        Set ids from the subset match on, as the backend has them, then `Lists` of keys.
    verified, rejected : int
        Sets that were found, and candidates that exact verification turned away.
    """

    backend: Backend
    unique: BoolArray
    tags: TagLists = _NO_TAGS
    first: int = 0
    last: int
    queries: Any = _NO_QUERIES
    lists: Any = _NO_LISTS
    verified: int = 0
    rejected: int = 0

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(slots=True, eq=False, kw_only=True)
class Submitted(Packet):
    """A packet of queries that were submitted one by one.

    Attributes
    ----------
    callers : list of Caller
        The caller of each.
    rows : list of list of str
        The queries, which become `tags`.
    result_bytes : int
        With how many bytes of results the packet is counted as on its way.
    """

    callers: list[Caller]
    rows: list[list[str]] = field(default_factory=list)
    result_bytes: int = 0

    def answers(self) -> list[Keys]:
        """List each query's keys, or give them as a set where they are unique."""
        ends, values = self.lists.offsets.tolist(), self.backend.snapshot.keys.listed(self.lists.values)
        parts = [values[first:last] for first, last in pairwise(ends)]
        return [set(keys) if caller.unique else keys for caller, keys in zip(self.callers, parts, strict=True)]


def packet_ranges(chunk: TagLists, size: PacketSize, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, each of which is to be a packet."""
    offsets = chunk.offsets
    marks = np.arange(int(offsets[0]), int(offsets[-1]), size.tags).astype(offsets.dtype)
    by_tags = np.searchsorted(offsets, marks, side="right") - 1
    step = min(size.queries, max(size.fewest, len(chunk) // (_PACKETS_PER_THREAD * threads)))
    by_queries = np.arange(0, len(chunk), step)
    edges = np.unique(np.concatenate([by_tags, by_queries, [len(chunk)]])).tolist()
    return list(pairwise(edges))
