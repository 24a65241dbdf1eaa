"""DuckDB, within the process: a scan of a column of lists."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import offsets_of
from tagmatch.workloads.systems.packages import needed

if TYPE_CHECKING:
    from tagmatch.model.arrays import U64Array


class DuckDBScan:
    """DuckDB's `list_has_all`, on a table in memory. Exact.

    All queries given at once are joined with the stored sets: that answers more queries a second than one
    statement for each. DuckDB deals out groups of 122 880 rows to its threads, so fewer stored sets keep only
    one busy.

    Parameters
    ----------
    sets
        Columns `tags` and `key`.
    threads
        Threads that work on one batch.
    """

    exact = True

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        with needed("duckdb"):
            import duckdb
        with ExitStack() as undo:
            self._database = undo.enter_context(duckdb.connect(":memory:", config={"threads": threads}))
            self._database.register("given", sets)
            self._database.execute(
                "CREATE TABLE sets AS SELECT list_sort(list_distinct(tags)) AS tags, list(DISTINCT key) AS keys"
                " FROM given GROUP BY ALL"
            )
            self._database.unregister("given")
            self._undo = undo.pop_all()

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Queries are taken as they are."""
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        numbered = pa.table({"query": np.arange(len(queries)), "tags": queries})
        self._database.register("queries", numbered)
        found = self._database.sql(
            f"SELECT {'DISTINCT' if unique else ''} query, unnest(keys) AS key"
            " FROM queries JOIN sets ON list_has_all(queries.tags, sets.tags)"
        ).to_arrow_table()
        self._database.unregister("queries")
        return _lists_of(found["query"].to_numpy(), found["key"].to_numpy(), len(queries))

    def nbytes(self) -> int | None:
        """Bytes of memory of all that is in the database."""
        (row,) = self._database.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(row[0])

    def close(self) -> None:
        """Close the database."""
        self._undo.close()


def _lists_of(queries: U64Array, keys: U64Array, count: int) -> pa.ListArray:
    """Group pairs of a query's number and a key by query."""
    order = np.argsort(queries, kind="stable")
    offsets = offsets_of(np.bincount(queries, minlength=count))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys[order]))
