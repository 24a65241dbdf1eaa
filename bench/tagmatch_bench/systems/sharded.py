"""One matcher made of several, each holding a share of the stored sets (§4.4 of the TagMatch paper, Figure 11)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Generic

import pyarrow as pa

from tagmatch_bench.systems.matcher import Matcher, Queries, answers_to_pylist, rows_of, unique_lists

if TYPE_CHECKING:
    from collections.abc import Callable


class Sharded(Generic[Queries]):
    """Stored sets dealt out over matchers of one kind, which all answer every query, each in a thread of its own.

    Parameters
    ----------
    build
        Builds a shard from its share of the stored sets; called for one after the other.
    sets
        Columns `tags` and `key`. The keys of a set stay together, so a repeated pair still counts once.
    shards
        How many, at least 1.
    """

    def __init__(self, build: Callable[[pa.Table], Matcher[Queries]], sets: pa.Table, shards: int) -> None:
        if shards < 1:
            raise ValueError(f"shards is {shards}; give at least 1")
        rows = rows_of(sets)
        self._shards: list[Matcher[Queries]] = []
        with ExitStack() as started:
            for first in range(shards):
                shard = build(_table_of(rows[first::shards]))
                started.callback(shard.close)
                self._shards.append(shard)
            self._threads = started.enter_context(ThreadPoolExecutor(shards))
            self._started = started.pop_all()
        self.exact = all(shard.exact for shard in self._shards)

    def prepare(self, queries: pa.ListArray) -> Queries:
        """Convert to the form that the shards take."""
        return self._shards[0].prepare(queries)

    def match_many(self, queries: Queries, *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order: those of all shards."""
        found = self._threads.map(lambda shard: answers_to_pylist(shard.match_many(queries)), self._shards)
        answers = [list(chain.from_iterable(keys)) for keys in zip(*found, strict=True)]
        return unique_lists(answers) if unique else answers

    def nbytes(self) -> int | None:
        """Bytes of all shards."""
        total = 0
        for shard in self._shards:
            taken = shard.nbytes()
            if taken is None:
                return None
            total += taken
        return total

    def close(self) -> None:
        """Close all shards."""
        self._started.close()


def _table_of(rows: list[tuple[frozenset[str], list[int]]]) -> pa.Table:
    pairs = [(list(tags), key) for tags, keys in rows for key in keys]
    tags, keys = [tags for tags, _ in pairs], [key for _, key in pairs]
    return pa.table({"tags": pa.array(tags, pa.list_(pa.string())), "key": pa.array(keys, pa.uint64())})
