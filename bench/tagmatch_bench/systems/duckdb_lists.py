"""DuckDB, within the process: a scan of a column of lists, in memory or in a file that takes changes."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import offsets_of
from tagmatch_bench.systems.on_disk import COLUMNS
from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tagmatch.model.arrays import U64Array

#: Most rows of one INSERT with values, which for few is faster than to register an Arrow table
_FEW_ROWS = 100


class _DuckDB:
    """A database with a table `sets`.

    All queries given at once are joined with the stored sets: that answers more queries a second than one
    statement for each. DuckDB deals out groups of 122 880 rows to its threads, so fewer stored sets keep only
    one busy.

    Attributes
    ----------
    keys_of_row : str
        SQL expression for the keys of a row of the table.
    """

    exact = True
    keys_of_row: ClassVar[str]

    def __init__(self, where: str, *, threads: int) -> None:
        with needed("duckdb"):
            import duckdb
        with ExitStack() as undo:
            self._database = undo.enter_context(duckdb.connect(where, config={"threads": threads}))
            self._create()
            self._undo = undo.pop_all()

    def _create(self) -> None:
        """Make the table, if it is not there."""

    def _execute_on(self, given: pa.Table, statement: str) -> None:
        """Run a statement that knows an Arrow table as `given`."""
        self._database.register("given", given)
        try:
            self._database.execute(statement)
        finally:
            self._database.unregister("given")

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Queries are taken as they are."""
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        numbered = pa.table({"query": np.arange(len(queries)), "tags": queries})
        self._database.register("queries", numbered)
        found = self._database.sql(
            f"SELECT {'DISTINCT' if unique else ''} query, {self.keys_of_row} AS key"
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


class DuckDBScan(_DuckDB):
    """DuckDB's `list_has_all`, on a table in memory. Exact.

    Parameters
    ----------
    sets
        Columns `tags` and `key`.
    threads
        Threads that work on one batch.
    """

    keys_of_row = "unnest(keys)"

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        self._sets = sets
        super().__init__(":memory:", threads=threads)

    def _create(self) -> None:
        self._execute_on(
            self._sets,
            "CREATE TABLE sets AS SELECT list_sort(list_distinct(tags)) AS tags, list(DISTINCT key) AS keys"
            " FROM given GROUP BY ALL",
        )


class DuckDBFile(_DuckDB):
    """DuckDB's `list_has_all`, on a table in a file, which takes changes. Exact.

    Each change is a transaction, and its commit ends with a sync of the log, as is the default. A few rows come as
    values of one statement, many as an Arrow table, whichever is the faster; there is no index, which would serve no
    such query and make changes slower.

    Parameters
    ----------
    path
        Folder of the database, which is made if it is not there.
    threads
        Threads that work on one batch.
    """

    keys_of_row = "key"
    visible_at_once = True

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        path.mkdir(exist_ok=True)
        super().__init__(str(path / "sets.duckdb"), threads=threads)

    def _create(self) -> None:
        self._database.execute("CREATE TABLE IF NOT EXISTS sets (tags VARCHAR[], key UBIGINT)")

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows in one transaction."""
        self._database.begin()
        if removed:
            self._execute_on(removed, "DELETE FROM sets WHERE key IN (SELECT key FROM given)")
        if 0 < len(added) <= _FEW_ROWS:
            rows = zip(*(added[name].to_pylist() for name in COLUMNS), strict=True)
            places = ", ".join(["(?, ?)"] * len(added))
            self._database.execute(f"INSERT INTO sets VALUES {places}", list(chain.from_iterable(rows)))
        else:
            self._execute_on(added, "INSERT INTO sets SELECT tags, key FROM given")
        self._database.commit()

    def adder(self) -> Callable[[list[str], int], object]:
        """Return what adds a row, in a transaction of its own, for one thread."""
        cursor = self._undo.enter_context(self._database.cursor())
        return lambda tags, key: cursor.execute("INSERT INTO sets VALUES (?, ?)", [tags, key])

    def tend(self) -> None:
        """Nothing: DuckDB itself moves its log into the table from time to time."""


def _lists_of(queries: U64Array, keys: U64Array, count: int) -> pa.ListArray:
    """Group pairs of a query's number and a key by query."""
    order = np.argsort(queries, kind="stable")
    offsets = offsets_of(np.bincount(queries, minlength=count))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys[order]))
