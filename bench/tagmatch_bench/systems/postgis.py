"""PostGIS: circles in a table of PostgreSQL, by an index of their boxes."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch_bench.systems.circles import Circles, Found, lists_of
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.packages import needed
from tagmatch_bench.systems.postgres_server import PostgresServer

if TYPE_CHECKING:
    from typing import LiteralString

    import numpy.typing as npt

    from tagmatch.model.arrays import F64Array, U32Array

_EXTENSION = "postgis"

_table_numbers = count()

#: Half of it is free for rows that move
_TABLE = """CREATE UNLOGGED TABLE {} (id bigint PRIMARY KEY, x float8, y float8, radius float8, box geometry(Polygon))
 WITH (fillfactor = 50)"""
_FILL = "INSERT INTO {} SELECT id, x, y, radius, ST_MakeEnvelope(west, south, east, north) FROM given"
_GIVEN = """CREATE TEMPORARY TABLE given (id bigint, x float8, y float8, radius float8, west float8, south float8,
 east float8, north float8)"""
#: Boxes of the index have single precision, and are no smaller for that
_STAB = """SELECT point, id FROM unnest(%s::float8[], %s::float8[]) WITH ORDINALITY AS asked (px, py, point)
 JOIN {} ON box && ST_MakePoint(px, py) AND (px - x) * (px - x) + (py - y) * (py - y) <= radius * radius"""
_WITHIN = """SELECT point, id FROM unnest(%s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
 %s::float8[], %s::float8[]) WITH ORDINALITY AS asked (px, py, reach, west, south, east, north, point)
 JOIN {} ON box && ST_MakeEnvelope(west, south, east, north)
 AND (px - x) * (px - x) + (py - y) * (py - y) <= reach * reach"""
_MOVE = """UPDATE {} AS circles SET x = moved.x, y = moved.y,
 box = ST_MakeEnvelope(moved.west, moved.south, moved.east, moved.north)
 FROM unnest(%s::bigint[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[])
 AS moved (id, x, y, west, south, east, north) WHERE circles.id = moved.id"""


class PostGis:
    """PostGIS's operator `&&` on the circles' boxes, by a GiST index, and the distance. Exact.

    Points of a call are joined with the table by one statement, and moves of a call are one, too; both are what a user
    would write for many. Nothing is vacuumed meanwhile.

    Parameters
    ----------
    circles : Circles
    threads : int
        Processes that may work on one call; PostgreSQL's planner uses as many as seem to pay.
    server : PostgresServer, optional
        Where to make the table; by default, a server is started for it.

    Raises
    ------
    UnavailableError
        See `PostgresServer`; or it has no PostGIS.
    """

    def __init__(self, circles: Circles, *, threads: int = 1, server: PostgresServer | None = None) -> None:
        with needed("psycopg"):
            from psycopg.sql import SQL, Identifier
        table = Identifier(f"circles_{next(_table_numbers)}")

        def on_table(statement: LiteralString) -> Any:
            return SQL(statement).format(table)

        self._radius = circles.radius
        with ExitStack() as undo:
            if server is None:
                server = undo.enter_context(PostgresServer())
            self._connection = undo.enter_context(server.connect())
            _add_postgis(self._connection)
            self._connection.execute(SQL("SET max_parallel_workers_per_gather = {}").format(threads - 1))
            self._connection.execute("SET enable_seqscan = off")
            self._connection.execute(on_table(_TABLE))
            undo.callback(self._connection.execute, on_table("DROP TABLE {}"))
            self._load(circles)
            for statement in (_FILL, "CREATE INDEX ON {} USING gist (box)", "VACUUM (ANALYZE) {}"):
                self._connection.execute(on_table(statement))
            self._connection.execute("DROP TABLE given")
            self._undo = undo.pop_all()
        self._stab, self._within, self._move = map(on_table, (_STAB, _WITHIN, _MOVE))
        self._explain = SQL("EXPLAIN {}").format(self._stab)
        self._size = SQL("SELECT pg_total_relation_size({}::regclass)").format(table.as_string())

    def _load(self, circles: Circles) -> None:
        self._connection.execute(_GIVEN)
        columns: list[npt.NDArray[Any]] = [
            np.arange(len(circles)),
            circles.x,
            circles.y,
            circles.radius,
            *_sides(circles),
        ]
        with self._connection.cursor() as cursor, cursor.copy("COPY given FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", *["float8"] * (len(columns) - 1)])
            for row in zip(*(column.tolist() for column in columns), strict=True):
                copy.write_row(row)

    def _found(self, statement: Any, columns: list[F64Array]) -> Found:
        lists = [column.tolist() for column in columns]
        rows = self._connection.execute(statement, lists, prepare=True, binary=True).fetchall()
        pairs = np.array(rows, np.int64).reshape(-1, 2)
        return lists_of(pairs[:, 0] - 1, pairs[:, 1], len(lists[0]))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        return self._found(self._stab, [x, y])

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        return self._found(self._within, [x, y, radius, *_sides(Circles(x, y, radius))])

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        columns: list[npt.NDArray[Any]] = [ids, x, y, *_sides(Circles(x, y, self._radius[ids]))]
        self._connection.execute(self._move, [column.tolist() for column in columns], prepare=True)

    def plan(self, x: F64Array, y: F64Array) -> str:
        """Return how PostgreSQL would find the circles of points (its `EXPLAIN`)."""
        return "\n".join(line for (line,) in self._connection.execute(self._explain, (x.tolist(), y.tolist())))

    def nbytes(self) -> int | None:
        """Bytes on disk of the table and its indexes (`pg_total_relation_size`)."""
        row = self._connection.execute(self._size).fetchone()
        return None if row is None else int(row[0])

    def close(self) -> None:
        """Drop the table, and stop the server if it was started for it."""
        self._undo.close()


def _sides(circles: Circles) -> list[F64Array]:
    """West, south, east and north of each."""
    return [side for sides in circles.boxes() for side in sides.T]


def _add_postgis(connection: Any) -> None:
    """Raise `UnavailableError` if there is none."""
    import psycopg

    try:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS {_EXTENSION}")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
        raise UnavailableError("needs PostGIS for PostgreSQL's server (Debian package postgresql-postgis)") from error
