"""Systems that keep sets on disk and take changes: what they look like, their names, DuckDB and LanceDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from tagmatch_bench.systems.catalogue import System
from tagmatch_bench.systems.matcher import (
    ONE_STATEMENT,
    Matcher,
    Plain,
    lists_by_query,
    needed,
    rarest_of,
    rows_of,
    table_of_rows,
)

#: Columns of all tables here. No two rows have the same key, so that a row can be named by it
COLUMNS = ("tags", "key")


class OnDisk(Matcher["pa.ListArray"], Protocol):
    """A matcher at a path, which it makes if nothing is there.

    One thread changes it at a time, except through `adder`.
    """

    # whether queries see a row as soon as an adder has returned; if not, `tend` makes them see it
    visible_at_once: bool

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows; at the end queries see the change, which is saved as the system does by default."""

    def adder(self) -> Callable[[list[str], int], object]:
        """Return what adds one row, for one of several threads."""

    def tend(self) -> None:
        """Tidy up after many small additions; other threads may go on to add rows."""


TAGMATCH = "tagmatch"
DUCKDB = "DuckDB"
LANCEDB = "LanceDB"

#: They take the path to be made or opened, in place of sets
SYSTEMS_ON_DISK: Mapping[str, System] = {
    TAGMATCH: System("tagmatch:TagmatchOnDisk"),
    DUCKDB: System("on_disk:DuckDBFile"),
    LANCEDB: System("on_disk:LanceDBTable"),
}


#: Most rows of one INSERT with values, which for few is faster than to register an Arrow table
_FEW_ROWS = 100


class DuckDBTable(Plain):
    """A database of DuckDB."""

    def __init__(self, where: str, *, threads: int) -> None:
        with needed("duckdb"):
            import duckdb
        with ExitStack() as undo:
            self._database = undo.enter_context(duckdb.connect(where, config={"threads": threads}))
            self._create()
            self._undo = undo.pop_all()

    def _create(self) -> None:
        """Make the table, if it is not there."""

    @contextmanager
    def _given(self, given: pa.Table) -> Iterator[Any]:
        """Register an Arrow table as `given` inside this context."""
        self._database.register("given", given)
        try:
            yield self._database
        finally:
            self._database.unregister("given")

    def nbytes(self) -> int | None:
        """Bytes of memory of all that is in the database."""
        (row,) = self._database.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(row[0])

    def close(self) -> None:
        """Close the database."""
        self._undo.close()


class _DuckDB(DuckDBTable):
    """A database with a table `sets`.

    All queries given at once are joined with the stored sets: that answers more queries a second than one
    statement for each. DuckDB deals out groups of 122 880 rows to its threads, so fewer stored sets keep only
    one busy.
    """

    keys_of_row: ClassVar[str]  # SQL expression for the keys of a row of the table
    #: Pairs of a query and a row of the table, for queries of the table `given`
    joined: ClassVar[str] = "SELECT given.query, sets.* FROM given JOIN sets ON list_has_all(given.tags, sets.tags)"

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        with self._given(pa.table({"query": np.arange(len(queries)), "tags": queries})) as database:
            found = database.sql(
                f"SELECT {'DISTINCT' if unique else ''} query, {self.keys_of_row} AS key FROM ({self.joined})"
            ).to_arrow_table()
        return lists_by_query(found["query"].to_numpy(), found["key"].to_numpy(), len(queries))


class DuckDBScan(_DuckDB):
    """DuckDB's `list_has_all`, on a table in memory. Exact."""

    keys_of_row = "unnest(keys)"

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        self._sets = sets
        super().__init__(":memory:", threads=threads)

    def _create(self) -> None:
        with self._given(self._sets) as database:
            database.execute(
                "CREATE TABLE sets AS SELECT list_sort(list_distinct(tags)) AS tags, list(DISTINCT key) AS keys"
                " FROM given GROUP BY ALL"
            )


class DuckDBRarest(DuckDBScan):
    """DuckDB with a column for each set's rarest tag, joined with the queries' tags, as an expert would. Exact."""

    call_size = ONE_STATEMENT
    joined = """
        SELECT asked.query, sets.* FROM (SELECT query, tags, unnest(list_distinct(tags)) AS tag FROM given) AS asked
            JOIN sets ON asked.tag = sets.rarest AND list_has_all(asked.tags, sets.tags)
        UNION ALL SELECT given.query, sets.* FROM given, sets WHERE sets.rarest IS NULL"""  # the empty set

    def _create(self) -> None:
        super()._create()
        self._database.execute(
            """CREATE TABLE ranked AS
            WITH tags_of AS (SELECT rowid AS number, unnest(tags) AS tag FROM sets),
                frequency AS (SELECT tag, count(*) AS times FROM tags_of GROUP BY tag),
                first AS (SELECT number, arg_min(tag, times) AS rarest FROM tags_of JOIN frequency USING (tag)
                    GROUP BY number)
            SELECT sets.*, rarest FROM sets LEFT JOIN first ON sets.rowid = number;
            DROP TABLE sets;
            ALTER TABLE ranked RENAME TO sets"""
        )


class DuckDBFile(_DuckDB):
    """DuckDB's `list_has_all`, on a table in a file, which takes changes. Exact.

    Each change is a transaction, and its commit ends with a sync of the log, as is the default. A few rows come as
    values of one statement, many as an Arrow table, as is faster; there is no index, which would serve no
    such query and make changes slower.
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
            with self._given(removed) as database:
                database.execute("DELETE FROM sets WHERE key IN (SELECT key FROM given)")
        if 0 < len(added) <= _FEW_ROWS:
            rows = zip(*(added[name].to_pylist() for name in COLUMNS), strict=True)
            places = ", ".join(["(?, ?)"] * len(added))
            self._database.execute(f"INSERT INTO sets VALUES {places}", list(chain.from_iterable(rows)))
        else:
            with self._given(added) as database:
                database.execute("INSERT INTO sets SELECT tags, key FROM given")
        self._database.commit()

    def adder(self) -> Callable[[list[str], int], object]:
        """Return a function that adds a row in its own transaction, for one thread."""
        cursor = self._undo.enter_context(self._database.cursor())
        return lambda tags, key: cursor.execute("INSERT INTO sets VALUES (?, ?)", [tags, key])

    def tend(self) -> None:
        """Nothing: DuckDB itself moves its log into the table from time to time."""


_SCHEMA = pa.schema({"tags": pa.list_(pa.string()), "key": pa.uint64()})
_NAME = "sets"


class LanceDBTable(Plain):
    """LanceDB's filter `array_has_all`, on a table of Lance. Exact.

    The sets that a query contains are wanted, for which Lance has no index: the one on labels finds those that contain
    a query. Queries are asked one by one. A change makes new files and a new version of the table, and is visible then;
    LanceDB does not sync these files, so that a crash of the machine may lose the last additions.
    """

    visible_at_once = True
    _schema = _SCHEMA

    def __init__(self, path: Path, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("lancedb"):
            import lancedb
        self._table = lancedb.connect(path).create_table(_NAME, schema=self._schema, exist_ok=True)

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows, in two versions of the table."""
        if removed:
            self._table.delete(f"key IN ({', '.join(map(str, removed['key'].to_pylist()))})")
        if len(added):
            self._table.add(added)

    def adder(self) -> Callable[[list[str], int], object]:
        """Return a function that adds a row in its own version; versions of threads that share it may conflict."""

        def add(tags: list[str], key: int) -> None:
            row = pa.table({"tags": pa.array([tags], _SCHEMA.field("tags").type), "key": pa.array([key], pa.uint64())})
            while True:
                try:
                    self._table.add(row)
                    return
                except RuntimeError as error:
                    if "conflict" not in str(error):
                        raise

        return add

    def tend(self) -> None:
        """Merge small files into larger ones, as is recommended; that may write the whole table anew."""
        self._table.optimize()

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        answers = [self._match(tags) for tags in queries.to_pylist()]
        return [sorted(set(keys)) for keys in answers] if unique else answers

    def _match(self, tags: list[str]) -> list[int]:
        wanted = self._table.search().where(self._filter(["'" + tag.replace("'", "''") + "'" for tag in tags]))
        keys: list[int] = wanted.select(["key"]).limit(None).to_arrow()["key"].to_pylist()
        return keys

    def _filter(self, literals: list[str]) -> str:
        return f"array_has_all(make_array({', '.join(literals)}), tags)"


class LanceDBRarest(LanceDBTable):
    """LanceDB with a column for each set's rarest tag, which has an index, in a folder that goes at the end. Exact."""

    _schema = _SCHEMA.append(pa.field("rarest", pa.string()))

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        with needed("lancedb"):
            from lancedb.index import BTree
        distinct = table_of_rows(rows_of(sets))
        rarest = pa.array(rarest_of(distinct["tags"].to_pylist()), pa.string())
        with ExitStack() as undo:
            folder = undo.enter_context(TemporaryDirectory(prefix="tagmatch-bench-"))
            super().__init__(Path(folder), threads=threads)
            self.change(distinct.append_column("rarest", rarest))
            if len(distinct):
                self._table.create_index("rarest", config=BTree())
            self._undo = undo.pop_all()

    def _filter(self, literals: list[str]) -> str:
        rarest = f"(rarest IS NULL OR rarest IN ({', '.join(literals)}))" if literals else "rarest IS NULL"
        return f"{rarest} AND {super()._filter(literals)}"

    def close(self) -> None:
        """Remove the folder."""
        self._undo.close()
