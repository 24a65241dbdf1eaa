"""ClickHouse through `chdb`, on tables in memory: one statement for each query, or a join of all queries of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import U64Array
from tagmatch_bench.systems.matcher import ONE_STATEMENT, Plain, lists_by_query, needed

_table_numbers = count()


class _ClickHouse(Plain):
    """A table of distinct sets, sorted tags and their keys.

    All sessions of `chdb` in a process share one database, so each matcher's tables have their own names.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        with needed("chdb"):
            from chdb.session import Session
        new_session: Callable[[], Any] = Session
        self._number = next(_table_numbers)
        self._table = f"sets_{self._number}"
        with ExitStack() as undo:
            self._session = undo.enter_context(new_session())
            self._session.query(f"SET max_threads = {threads}, max_query_size = {1 << 30}")
            with self._dropped(f"given_{self._number}", "(tags Array(String), key UInt64) ENGINE = Memory") as given:
                self._insert(given, sets)
                distinct = f"""SELECT arraySort(arrayDistinct({given}.tags)) AS tags, groupUniqArray(key) AS keys
                    FROM {given} GROUP BY ALL"""
                self._create(undo, distinct)
            self._undo = undo.pop_all()

    def _create(self, undo: ExitStack, distinct: str) -> None:
        """Make the table `self._table` of what a statement selects."""
        undo.enter_context(self._dropped(self._table, f"ENGINE = Memory AS {distinct}"))

    @contextmanager
    def _dropped(self, name: str, definition: str) -> Iterator[str]:
        """Create a table, and drop it at the end; a plain DROP would free the memory minutes later only."""
        self._session.query(f"CREATE TABLE {name} {definition}")
        try:
            yield name
        finally:
            self._session.query(f"DROP TABLE {name} SYNC")

    def _insert(self, table: str, rows: pa.Table) -> None:
        names = ", ".join(rows.column_names)
        with self._session.send_insert(f"INSERT INTO {table} ({names})", "ArrowStream") as insert:
            insert.append(_ipc_stream(rows))
            insert.finish()

    def _select(self, statement: str) -> pa.Table:
        return pa.ipc.open_stream(self._session.query(statement, "ArrowStream").bytes()).read_all()

    def nbytes(self) -> int | None:
        """Bytes of memory of the table."""
        size = f"SELECT total_bytes FROM system.tables WHERE name = '{self._table}' AND database = currentDatabase()"
        return int(self._session.query(size).bytes())

    def close(self) -> None:
        """Drop the table."""
        self._undo.close()


class ClickHouseScan(_ClickHouse):
    """ClickHouse's `hasAll`. Exact.

    One statement for each query: that answers more queries a second than a join of a batch with the stored sets,
    for which `hasAll` cannot prepare a query once.
    """

    def prepare(self, queries: pa.ListArray) -> list[str]:
        """Convert to arrays in ClickHouse's language."""
        return [f"[{','.join(map(_literal, query))}]" for query in queries.to_pylist()]

    def match_many(self, queries: Sequence[str], *, unique: bool = False) -> list[U64Array]:
        """Return the keys of the stored sets that match, for each query in order."""
        select = f"SELECT {'DISTINCT' if unique else ''} arrayJoin(keys) AS key FROM {self._table} WHERE hasAll"
        return [self._select(f"{select}({query}, tags)")["key"].to_numpy() for query in queries]


#: In place of the rarest tag of the empty set, and in each query: not UTF-8, so no tag
_OF_EMPTY = r"'\xff'"


class ClickHouseRarest(_ClickHouse):
    """ClickHouse's join of all queries of a call with a table of sets by their rarest tag, then `hasAll`. Exact.

    The table has the engine `Join`, a hash table that is built once. A join with (tag, set) pairs that are counted
    for each query and set is never better.
    """

    call_size = ONE_STATEMENT

    def _create(self, undo: ExitStack, distinct: str) -> None:
        undo.enter_context(
            self._dropped(
                self._table,
                f"""(rarest String, tags Array(String), keys Array(UInt64)) ENGINE = Join(ALL, INNER, rarest) AS
                WITH sets AS ({distinct}), tag_of AS (SELECT tags, keys, arrayJoin(tags) AS tag FROM sets),
                    frequency AS (SELECT tag, count() AS times FROM tag_of GROUP BY tag)
                SELECT argMin(tag, times) AS rarest, tags, any(keys) AS keys FROM tag_of JOIN frequency USING (tag)
                    GROUP BY tags
                UNION ALL SELECT {_OF_EMPTY} AS rarest, tags, keys FROM sets WHERE empty(tags)""",
            )
        )
        asked = f"asked_{self._number}"
        self._asked = undo.enter_context(self._dropped(asked, "(query UInt32, asked Array(String)) ENGINE = Memory"))

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        numbers = np.arange(len(queries), dtype=np.uint32)
        self._insert(self._asked, pa.table({"query": numbers, "asked": queries}))
        try:
            found = self._select(
                f"""SELECT {"DISTINCT" if unique else ""} query, arrayJoin(keys) AS key FROM (SELECT query, asked,
                    arrayJoin(arrayPushBack(arrayDistinct(asked), {_OF_EMPTY})) AS rarest FROM {self._asked}) AS each
                JOIN {self._table} USING (rarest) WHERE hasAll(asked, tags)"""
            )
        finally:
            self._session.query(f"TRUNCATE TABLE {self._asked}")
        return lists_by_query(found["query"].to_numpy(), found["key"].to_numpy(), len(queries))


def _ipc_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _literal(tag: str) -> str:
    escaped = tag.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"
