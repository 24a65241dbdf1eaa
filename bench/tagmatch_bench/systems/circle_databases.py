"""Databases that find areas: DuckDB by bounds, PostGIS by an index of boxes, Redis by places."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import F64Array, U32Array
from tagmatch_bench.systems.circle_trees import longitudes_and_latitudes, metres
from tagmatch_bench.systems.circles import Circles, Found, joined, lists_of
from tagmatch_bench.systems.databases import PostgresTable, add_extension
from tagmatch_bench.systems.on_disk import DuckDBTable
from tagmatch_bench.systems.servers import PostgresServer, RedisServer

#: A little larger than circles, as `circles.boxes` has them
_WEST_EAST_SOUTH_NORTH = ("west", "east", "south", "north")


class DuckDBBounds(DuckDBTable):
    """DuckDB's join of points with a table of circles in memory, on bounds of their coordinates. Exact.

    Points of a call are joined at once. Without DuckDB's extension `spatial`, and so without its R-tree: package
    registries have the extension for some versions of DuckDB only, and no version loads another one's.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        self._first, self._radius = self._rows(np.arange(len(circles), dtype=np.uint32), circles), circles.radius
        super().__init__(":memory:", threads=threads)

    def _create(self) -> None:
        with self._given(self._first) as database:
            database.execute("CREATE TABLE circles AS SELECT * FROM given")
        del self._first

    def _rows(self, ids: U32Array, circles: Circles) -> pa.Table:
        (west, south), (east, north) = (sides.T for sides in circles.boxes())
        sides = dict(zip(_WEST_EAST_SOUTH_NORTH, (west, east, south, north), strict=True))
        return pa.table({"id": ids, "x": circles.x, "y": circles.y, "radius": circles.radius} | sides)

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        with self._given(pa.table({"point": np.arange(len(x)), "px": x, "py": y})) as database:
            found = database.sql(
                "SELECT point, id FROM given JOIN circles ON px BETWEEN west AND east AND py BETWEEN south AND north"
                " AND (px - x) * (px - x) + (py - y) * (py - y) <= radius * radius"
            ).to_arrow_table()
        return lists_of(found["point"].to_numpy(), found["id"].to_numpy(), len(x))

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        new = ", ".join(f"{name} = given.{name}" for name in ("x", "y", *_WEST_EAST_SOUTH_NORTH))
        moved = self._rows(ids, Circles(x, y, self._radius[ids]))
        with self._given(moved) as database:
            database.execute(f"UPDATE circles SET {new} FROM given WHERE circles.id = given.id")


_EXTENSION = "postgis"

_table_numbers = count()

#: Half of it is free for rows that move
_TABLE = """CREATE UNLOGGED TABLE {} (id bigint PRIMARY KEY, x float8, y float8, radius float8, box geometry(Polygon))
 WITH (fillfactor = 50)"""
_FILL = """INSERT INTO {} SELECT id, x, y, radius, ST_MakeEnvelope(west, south, east, north)
 FROM unnest(%s::bigint[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
 %s::float8[]) AS given (id, x, y, radius, west, south, east, north)"""
#: Boxes of the index have single precision, and are no smaller for that
_STAB = """SELECT point, id FROM unnest(%s::float8[], %s::float8[]) WITH ORDINALITY AS asked (px, py, point)
 JOIN {} ON box && ST_MakePoint(px, py) AND (px - x) * (px - x) + (py - y) * (py - y) <= radius * radius"""
_MOVE = """UPDATE {} AS circles SET x = moved.x, y = moved.y,
 box = ST_MakeEnvelope(moved.west, moved.south, moved.east, moved.north)
 FROM unnest(%s::bigint[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[])
 AS moved (id, x, y, west, south, east, north) WHERE circles.id = moved.id"""


class PostGis(PostgresTable):
    """PostGIS's operator `&&` on the circles' boxes, by a GiST index, and the distance. Exact.

    Points of a call are joined with the table by one statement, and moves of a call are one, too; both are what a user
    would write for many. Nothing is vacuumed during that.
    """

    def __init__(self, circles: Circles, *, threads: int = 1, server: PostgresServer | None = None) -> None:
        self._radius = circles.radius
        with ExitStack() as undo:
            on_table = self._open("circles", server, threads, undo)
            add_extension(self._connection, _EXTENSION, "postgresql-postgis")
            self._connection.execute("SET enable_seqscan = off")
            self._connection.execute(on_table(_TABLE))
            given = (np.arange(len(circles)), circles.x, circles.y, circles.radius, *_sides(circles))
            self._connection.execute(on_table(_FILL), [column.tolist() for column in given])
            for statement in ("CREATE INDEX ON {} USING gist (box)", "VACUUM (ANALYZE) {}"):
                self._connection.execute(on_table(statement))
            self._undo = undo.pop_all()
        self._select, self._move = map(on_table, (_STAB, _MOVE))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        asked = [x.tolist(), y.tolist()]
        rows = self._connection.execute(self._select, asked, prepare=True, binary=True).fetchall()
        pairs = np.array(rows, np.int64).reshape(-1, 2)
        return lists_of(pairs[:, 0] - 1, pairs[:, 1], len(x))

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        columns: list[npt.NDArray[Any]] = [ids, x, y, *_sides(Circles(x, y, self._radius[ids]))]
        self._connection.execute(self._move, [column.tolist() for column in columns], prepare=True)


def _sides(circles: Circles) -> list[F64Array]:
    """West, south, east and north of each."""
    return [side for sides in circles.boxes() for side in sides.T]


#: Points of a pipeline, and places of a command
_AT_ONCE, _ADDED = 100, 10_000
#: Places are stored in 52 bits: their error is at most this, in metres
_ROUNDED = 1.0

_numbers = count()


class RedisGeo:
    """Redis's GEOSEARCH on the circles' centres: the dual only, as Redis has points, no areas. Exact.

    The unit square is a degree wide on the sphere; candidates are tested on the plane, in this process.
    Commands go through pipelines of a hundred. One thread, as Redis has.
    """

    def __init__(self, circles: Circles, *, threads: int = 1, server: RedisServer | None = None) -> None:  # noqa: ARG002
        self._circles = circles.movable()
        self._name = f"circles {next(_numbers)}"
        with ExitStack() as undo:
            if server is None:
                server = undo.enter_context(RedisServer())
            self._database = undo.enter_context(server.connect())
            self._database.delete(self._name)
            undo.callback(self._database.delete, self._name)
            self._add(np.arange(len(circles), dtype=np.uint32), circles.x, circles.y)
            self._undo = undo.pop_all()

    def _add(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        longitudes, latitudes = (each.tolist() for each in longitudes_and_latitudes(x, y))
        rows = list(zip(longitudes, latitudes, ids.tolist(), strict=True))
        for first in range(0, len(rows), _ADDED):
            self._database.geoadd(self._name, [value for row in rows[first : first + _ADDED] for value in row])

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        longitudes, latitudes = (each.tolist() for each in longitudes_and_latitudes(x, y))
        asked = list(zip(longitudes, latitudes, (metres(radius) + _ROUNDED).tolist(), strict=True))
        near: list[list[int]] = []
        for first in range(0, len(asked), _AT_ONCE):
            pipeline = self._database.pipeline(transaction=False)
            for longitude, latitude, reach in asked[first : first + _AT_ONCE]:
                pipeline.geosearch(self._name, longitude=longitude, latitude=latitude, radius=reach, unit="m")
            near += [list(map(int, found)) for found in pipeline.execute()]
        return self._circles.keep_centres(joined(near), x, y, radius)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        self._add(ids, x, y)
        self._circles.move(ids, x, y)

    def nbytes(self) -> int | None:
        """Bytes of memory of the server's set, as it says from a sample of it."""
        return int(self._database.memory_usage(self._name) or 0)

    def close(self) -> None:
        """Remove the places, and stop the server if it was started for them."""
        self._undo.close()
