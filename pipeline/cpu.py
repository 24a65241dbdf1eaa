"""The CPU backend, and how many queries make a packet for it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pipeline.backend import Matches
from pipeline.balanced import BalancedSubsetMatch
from pipeline.preprocess import QueryBatch, TagIndex
from pipeline.rarest import RarestSubsetMatch
from tagmatch.arrays import Lists, TagLists, offsets_of
from tagmatch.options import MatchOptions
from tagmatch.parallel import run
from tagmatch.tables import Snapshot

# Queries and tags of one task at most. At 16 threads 8,192 queries are three times as fast as 2,048: the interpreter,
# which one thread at a time runs between kernels, is needed less often.
_TASK_QUERIES = 8192
_TASK_TAGS = 65_536

# A batch is cut into fewer queries a task so that each thread gets some tasks, but not below this.
_FEWEST_QUERIES = 512
_TASKS_PER_THREAD = 4


class CpuBackend:
    """Matches on the CPU within one snapshot. Immutable, so that any number of threads may share it."""

    def __init__(self, snapshot: Snapshot, options: MatchOptions) -> None:
        self.snapshot = snapshot
        self._tag_index = TagIndex(snapshot.vocabulary)
        self._subset_match: RarestSubsetMatch | BalancedSubsetMatch
        self.by_partition: BalancedSubsetMatch | None = None
        if snapshot.options.layout == "rarest":
            self._subset_match = RarestSubsetMatch(snapshot, threads=options.threads)
        else:
            self._subset_match = self.by_partition = BalancedSubsetMatch(
                snapshot, exact=options.exact, batch_size=options.batch_size, threads=options.threads
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot and of what is kept in memory beside it."""
        return self.snapshot.nbytes + self._tag_index.nbytes + self._subset_match.nbytes

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Ranks of queries `first` to `last`."""
        return self._tag_index.ranks(queries, first, last)

    def subset_match(self, queries: QueryBatch) -> Matches:
        """Sets that each query contains."""
        return self._subset_match(queries)


def packet_ranges(chunk: TagLists, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, each with a bounded number of queries and, but for its last query, of tags."""
    offsets = chunk.offsets
    marks = np.arange(int(offsets[0]), int(offsets[-1]), _TASK_TAGS).astype(offsets.dtype)
    by_tags = np.searchsorted(offsets, marks, side="right") - 1
    step = min(_TASK_QUERIES, max(_FEWEST_QUERIES, len(chunk) // (_TASKS_PER_THREAD * threads)))
    by_queries = np.arange(0, len(chunk), step)
    edges = np.unique(np.concatenate([by_tags, by_queries, [len(chunk)]])).tolist()
    return list(pairwise(edges))


def join_lists(parts: list[Lists], dtype: np.dtype[np.unsignedinteger], threads: int) -> Lists:
    """One column of lists, with values of type `dtype`; every thread copies some of the parts."""
    first_rows = offsets_of(np.array([len(part) for part in parts], np.int64))
    starts = offsets_of(np.array([len(part.values) for part in parts], np.int64))
    offsets = np.zeros(int(first_rows[-1]) + 1, np.int64)
    values = np.empty(int(starts[-1]), dtype)

    def copy(i: int) -> None:
        offsets[first_rows[i] + 1 : first_rows[i + 1] + 1] = parts[i].offsets[1:] + starts[i]
        values[starts[i] : starts[i + 1]] = parts[i].values

    run(copy, range(len(parts)), threads)
    return Lists(offsets, values)
