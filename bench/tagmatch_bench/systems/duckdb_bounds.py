"""DuckDB, within the process: a join on bounds of coordinates."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch_bench.systems.circles import Circles, Found, lists_of
from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tagmatch.model.arrays import F64Array, U32Array

#: A little larger than circles, as `circles.boxes` has them
_WEST_EAST_SOUTH_NORTH = ("west", "east", "south", "north")


class DuckDBBounds:
    """DuckDB's join of points with a table of circles in memory, on bounds of their coordinates. Exact.

    Points of a call are joined at once. Without DuckDB's extension `spatial`, and so without its R-tree: package
    registries have the extension for some versions of DuckDB only, each of which loads no other one.

    Parameters
    ----------
    circles : Circles
    threads : int
        Threads that work on one call.

    Raises
    ------
    UnavailableError
        The package is not installed.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        with needed("duckdb"):
            import duckdb
        self._radius = circles.radius
        with ExitStack() as undo:
            self._database = undo.enter_context(duckdb.connect(":memory:", config={"threads": threads}))
            rows = self._rows(np.arange(len(circles), dtype=np.uint32), circles)
            with self._given(rows) as database:
                database.execute("CREATE TABLE circles AS SELECT * FROM given")
            self._undo = undo.pop_all()

    def _rows(self, ids: U32Array, circles: Circles) -> pa.Table:
        (west, south), (east, north) = (sides.T for sides in circles.boxes())
        sides = dict(zip(_WEST_EAST_SOUTH_NORTH, (west, east, south, north), strict=True))
        return pa.table({"id": ids, "x": circles.x, "y": circles.y, "radius": circles.radius} | sides)

    @contextmanager
    def _given(self, given: pa.Table) -> Iterator[Any]:
        """Have the database know an Arrow table as `given` meanwhile."""
        self._database.register("given", given)
        try:
            yield self._database
        finally:
            self._database.unregister("given")

    def _joined(self, given: pa.Table, condition: str) -> Found:
        with self._given(given) as database:
            found = database.sql(f"SELECT point, id FROM given JOIN circles ON {condition}").to_arrow_table()
        return lists_of(found["point"].to_numpy(), found["id"].to_numpy(), len(given))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        return self._joined(
            pa.table({"point": np.arange(len(x)), "px": x, "py": y}),
            "px BETWEEN west AND east AND py BETWEEN south AND north"
            " AND (px - x) * (px - x) + (py - y) * (py - y) <= radius * radius",
        )

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        asked = self._rows(np.arange(len(x), dtype=np.uint32), Circles(x, y, radius))
        names = ["point", "px", "py", "reach", *(f"p{side}" for side in _WEST_EAST_SOUTH_NORTH)]
        return self._joined(
            asked.rename_columns(names),
            "x BETWEEN pwest AND peast AND y BETWEEN psouth AND pnorth"
            " AND (px - x) * (px - x) + (py - y) * (py - y) <= reach * reach",
        )

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        new = ", ".join(f"{name} = given.{name}" for name in ("x", "y", *_WEST_EAST_SOUTH_NORTH))
        moved = self._rows(ids, Circles(x, y, self._radius[ids]))
        with self._given(moved) as database:
            database.execute(f"UPDATE circles SET {new} FROM given WHERE circles.id = given.id")

    def nbytes(self) -> int | None:
        """Bytes of memory of all that is in the database."""
        (row,) = self._database.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
        return int(row[0])

    def close(self) -> None:
        """Close the database."""
        self._undo.close()
