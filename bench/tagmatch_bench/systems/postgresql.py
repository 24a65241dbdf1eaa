"""PostgreSQL: arrays with an index (GIN) and without."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow.compute as pc

from tagmatch_bench.systems.matcher import rows_of
from tagmatch_bench.systems.packages import needed
from tagmatch_bench.systems.postgres_server import PostgresServer
from tagmatch_bench.systems.signed_keys import from_signed, to_signed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import LiteralString

    import pyarrow as pa
    from psycopg.sql import Composed

    from tagmatch.model.arrays import U64Array

_table_numbers = count()


class PostgresScan:
    """PostgreSQL's `tags <@ query`, on a table with a row for each distinct set, scanned for each query. Exact.

    Parameters
    ----------
    sets
        Columns `tags` and `key`. PostgreSQL's strings cannot hold the character NUL.
    threads
        Processes that may work on one query; PostgreSQL's planner uses as many as seem to pay.
    server
        Where to make the table; by default, a server is started for it.

    Raises
    ------
    UnavailableError
        See `PostgresServer`.
    ValueError
        A tag has the character NUL.
    """

    exact = True

    #: Statements that make the index of the table `{}`
    _index: ClassVar[tuple[LiteralString, ...]] = ()

    def __init__(self, sets: pa.Table, *, threads: int = 1, server: PostgresServer | None = None) -> None:
        with needed("psycopg"):
            from psycopg.sql import SQL, Identifier
        _refuse_nul(sets["tags"].combine_chunks(), "tags")
        table = Identifier(f"sets_{next(_table_numbers)}")
        with ExitStack() as undo:
            if server is None:
                server = undo.enter_context(PostgresServer())
            self._connection = undo.enter_context(server.connect())
            self._connection.execute(SQL("SET max_parallel_workers_per_gather = {}").format(threads - 1))
            self._connection.execute(SQL("CREATE UNLOGGED TABLE {} (tags text[], keys bigint[])").format(table))
            undo.callback(self._connection.execute, SQL("DROP TABLE {}").format(table))
            self._load(SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(table), sets)
            for statement in self._index:
                self._connection.execute(SQL(statement).format(table))
            self._connection.execute(SQL("VACUUM (ANALYZE) {}").format(table))
            self._undo = undo.pop_all()
        self._select = SQL("SELECT keys FROM {} WHERE tags <@ %s::text[]").format(table)
        self._explain = SQL("EXPLAIN {}").format(self._select)
        self._size = SQL("SELECT pg_total_relation_size({}::regclass)").format(table.as_string())

    def _load(self, copy_in: Composed, sets: pa.Table) -> None:
        with self._connection.cursor() as cursor, cursor.copy(copy_in) as copy:
            copy.set_types(["text[]", "bigint[]"])
            for tags, keys in rows_of(sets):
                copy.write_row((list(tags), to_signed(keys)))

    def prepare(self, queries: pa.ListArray) -> list[list[str]]:
        """Convert to lists of strings."""
        _refuse_nul(queries, "queries")
        return cast("list[list[str]]", queries.to_pylist())

    def match_many(self, queries: Sequence[list[str]], *, unique: bool = False) -> list[U64Array]:
        """Return the keys of the stored sets that match, for each query in order."""
        answers = []
        for query in queries:
            rows = self._connection.execute(self._select, (query,), prepare=True, binary=True).fetchall()
            answers.append(from_signed((keys for (keys,) in rows), unique=unique))
        return answers

    def plan(self, query: list[str]) -> str:
        """Return how PostgreSQL would answer a query (its `EXPLAIN`)."""
        return "\n".join(line for (line,) in self._connection.execute(self._explain, (query,)))

    def nbytes(self) -> int | None:
        """Bytes on disk of the table and its index (`pg_total_relation_size`)."""
        row = self._connection.execute(self._size).fetchone()
        return None if row is None else int(row[0])

    def close(self) -> None:
        """Drop the table, and stop the server if it was started for it."""
        self._undo.close()


class PostgresGin(PostgresScan):
    """PostgreSQL's `tags <@ query`, by a GIN index on the tags. Exact.

    A GIN index lists the rows of each tag. It does not tell which rows have no other tags than the query's, so
    PostgreSQL looks at all rows that have any of them, and at those of the empty set. The index refuses tags of
    more than some kilobytes.
    """

    _index = ("CREATE INDEX ON {} USING gin (tags)", "SET enable_seqscan = off")


def _refuse_nul(lists: pa.ListArray, column: str) -> None:
    bad = pc.match_substring(lists.flatten(), "\0")
    row = pc.list_parent_indices(lists).filter(bad)[:1].to_pylist()
    if row:
        nul = "a tag has the character NUL, which PostgreSQL's strings cannot hold; leave it out"
        raise ValueError(f"column {column!r}, row {row[0]}: {nul}")
