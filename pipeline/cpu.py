"""The CPU backend: all stages for a range of queries in one task, tasks spread over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from pipeline.balanced import BalancedSubsetMatch
from pipeline.key_lookup import look_up_keys, merge_unique
from pipeline.preprocess import TagIndex
from pipeline.rarest import RarestSubsetMatch
from tagmatch.arrays import Lists, TagLists, offsets_of
from tagmatch.options import MatchOptions
from tagmatch.parallel import run
from tagmatch.tables import Snapshot

# Queries and tags of one task: enough to hide the cost of a call, few enough to stay in a core's cache
_TASK_QUERIES = 2048
_TASK_TAGS = 16_384


class CpuMatcher:
    """Answers queries from one snapshot. Immutable, so that any number of threads may share it."""

    def __init__(self, snapshot: Snapshot, options: MatchOptions) -> None:
        self.snapshot = snapshot
        self._threads = options.threads
        self._tag_index = TagIndex(snapshot.vocabulary)
        self._subset_match: RarestSubsetMatch | BalancedSubsetMatch
        if snapshot.options.layout == "rarest":
            self._subset_match = RarestSubsetMatch(snapshot, threads=options.threads)
        else:
            self._subset_match = BalancedSubsetMatch(
                snapshot, exact=options.exact, batch_size=options.batch_size, threads=options.threads
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot and of what is kept in memory beside it."""
        return self.snapshot.nbytes + self._tag_index.nbytes + self._subset_match.nbytes

    def set_ids(self, queries: Sequence[TagLists]) -> Lists:
        """Set ids, uint32, of the sets that match each query, over all chunks."""
        return self._run(queries, lambda matches: matches, np.dtype(np.uint32))

    def keys(self, queries: Sequence[TagLists], *, unique: bool) -> Lists:
        """Keys, uint64, of the sets that match each query, over all chunks."""

        def reduce(matches: Lists) -> Lists:
            answers = look_up_keys(matches, self.snapshot.keys)
            return merge_unique(answers) if unique else answers

        return self._run(queries, reduce, np.dtype(np.uint64))

    def _run(
        self,
        queries: Sequence[TagLists],
        reduce: Callable[[Lists], Lists],
        dtype: np.dtype[np.unsignedinteger],
    ) -> Lists:
        def work(task: tuple[TagLists, int, int]) -> Lists:
            return reduce(self._subset_match(self._tag_index.ranks(*task)))

        tasks = [(chunk, first, last) for chunk in queries for first, last in _tasks(chunk)]
        parts = run(work, tasks, self._threads)
        if len(parts) == 1:
            return parts[0]
        offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *(part.lengths() for part in parts)]))
        return Lists(offsets, np.concatenate([np.zeros(0, dtype), *(part.values for part in parts)]))


def _tasks(chunk: TagLists) -> list[tuple[int, int]]:
    """Ranges of queries, each with a bounded number of queries and, unless it is one query, of tags."""
    edges = [0]
    while edges[-1] < len(chunk):
        first = edges[-1]
        by_tags = int(np.searchsorted(chunk.offsets, int(chunk.offsets[first]) + _TASK_TAGS, side="right")) - 1
        edges.append(min(max(by_tags, first + 1), first + _TASK_QUERIES, len(chunk)))
    return list(pairwise(edges))
