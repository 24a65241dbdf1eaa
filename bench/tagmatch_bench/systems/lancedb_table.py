"""LanceDB, within the process: a table on disk that takes changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SCHEMA = pa.schema({"tags": pa.list_(pa.string()), "key": pa.uint64()})
_NAME = "sets"


class LanceDBTable:
    """LanceDB's filter `array_has_all`, on a table of Lance. Exact.

    The sets that a query contains are wanted, for which Lance has no index: the one on labels finds those that contain
    a query. Queries are asked one by one. A change makes new files and a new version of the table, and is visible then;
    LanceDB does not sync these files, so that a crash of the machine may lose what was added last.

    Parameters
    ----------
    path
        Folder of the database, which is made if it is not there.
    threads
        Not heeded: Lance takes all cores.
    """

    exact = True
    visible_at_once = True

    def __init__(self, path: Path, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("lancedb"):
            import lancedb
        self._table = lancedb.connect(path).create_table(_NAME, schema=_SCHEMA, exist_ok=True)

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows, in two versions of the table."""
        if removed:
            self._table.delete(f"key IN ({', '.join(map(str, removed['key'].to_pylist()))})")
        if len(added):
            self._table.add(added)

    def adder(self) -> Callable[[list[str], int], object]:
        """Return what adds a row in a version of its own; versions of threads that share it may conflict."""

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

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Queries are taken as they are."""
        return queries

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        answers = [self._match(tags) for tags in queries.to_pylist()]
        return [sorted(set(keys)) for keys in answers] if unique else answers

    def _match(self, tags: list[str]) -> list[int]:
        literals = ", ".join("'" + tag.replace("'", "''") + "'" for tag in tags)
        wanted = self._table.search().where(f"array_has_all(make_array({literals}), tags)")
        keys: list[int] = wanted.select(["key"]).limit(None).to_arrow()["key"].to_pylist()
        return keys

    def nbytes(self) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Let go of the table; it needs no closing."""
