"""Redis and its sorted sets of places."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from tagmatch_bench.systems.circles import Circles, Found, joined
from tagmatch_bench.systems.redis_server import RedisServer
from tagmatch_bench.systems.small_square import longitudes_and_latitudes, metres

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array, U32Array

#: Points of a pipeline, and places of a command
_AT_ONCE, _ADDED = 100, 10_000
#: Places are stored in 52 bits: they may be so far from where they are, in metres
_ROUNDED = 1.0

_numbers = count()


class RedisGeo:
    """Redis's GEOSEARCH on the circles' centres: the dual only, as Redis has points, no areas. Exact.

    The unit square is a degree wide on the sphere; what is found there is tested on the plane, in this process.
    Commands go through pipelines of a hundred. One thread, as Redis has.

    Parameters
    ----------
    circles : Circles
        In the unit square, as must points be.
    threads : int
        Not used.
    server : RedisServer, optional
        Where to keep the places; by default, a server is started for it.

    Raises
    ------
    UnavailableError
        See `RedisServer`.
    ValueError
        A circle's centre is outside the unit square.
    """

    def __init__(self, circles: Circles, *, threads: int = 1, server: RedisServer | None = None) -> None:  # noqa: ARG002
        self._circles = Circles(circles.x.copy(), circles.y.copy(), circles.radius)
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
