"""ClickHouse, within the process: a scan of a column of arrays."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tagmatch.model.arrays import U64Array

_table_numbers = count()


class ClickHouseScan:
    """ClickHouse's `hasAll`, on a table in memory, through `chdb`. Exact.

    One statement for each query: that answers more queries a second than a join of a batch with the stored sets,
    for which `hasAll` cannot prepare a query once. All sessions of `chdb` in a process share one database, so
    each matcher has a table of a name of its own.

    Parameters
    ----------
    sets
        Columns `tags` and `key`.
    threads
        Threads that work on one query.
    """

    exact = True

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        with needed("chdb"):
            from chdb.session import Session
        new_session: Callable[[], Any] = Session
        number = next(_table_numbers)
        self._table, given = f"sets_{number}", f"given_{number}"
        with ExitStack() as undo:
            self._session = undo.enter_context(new_session())
            self._session.query(f"SET max_threads = {threads}, max_query_size = {1 << 30}")
            # A plain DROP would free the memory minutes later only
            undo.callback(self._session.query, f"DROP TABLE IF EXISTS {self._table} SYNC")
            self._session.query(f"CREATE TABLE {given} (tags Array(String), key UInt64) ENGINE = Memory")
            try:
                with self._session.send_insert(f"INSERT INTO {given} (tags, key)", "ArrowStream") as insert:
                    insert.append(_ipc_stream(sets))
                    insert.finish()
                self._session.query(
                    f"CREATE TABLE {self._table} ENGINE = Memory AS SELECT arraySort(arrayDistinct({given}.tags)) AS"
                    f" tags, groupUniqArray(key) AS keys FROM {given} GROUP BY ALL"
                )
            finally:
                self._session.query(f"DROP TABLE {given} SYNC")
            self._undo = undo.pop_all()

    def prepare(self, queries: pa.ListArray) -> list[str]:
        """Convert to arrays in ClickHouse's language."""
        return [f"[{','.join(map(_literal, query))}]" for query in queries.to_pylist()]

    def match_many(self, queries: Sequence[str], *, unique: bool = False) -> list[U64Array]:
        """Return the keys of the stored sets that match, for each query in order."""
        select = f"SELECT {'DISTINCT' if unique else ''} arrayJoin(keys) AS key FROM {self._table} WHERE hasAll"
        answers = []
        for query in queries:
            result = self._session.query(f"{select}({query}, tags)", "ArrowStream")
            answers.append(pa.ipc.open_stream(result.bytes()).read_all()["key"].to_numpy())
        return answers

    def nbytes(self) -> int | None:
        """Bytes of memory of the table."""
        size = f"SELECT total_bytes FROM system.tables WHERE name = '{self._table}' AND database = currentDatabase()"
        return int(self._session.query(size).bytes())

    def close(self) -> None:
        """Drop the table."""
        self._undo.close()


def _ipc_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _literal(tag: str) -> str:
    escaped = tag.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"
