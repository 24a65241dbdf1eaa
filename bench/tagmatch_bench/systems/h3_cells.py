"""A dictionary of H3's hexagons."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch_bench.systems.circles import Circles, Found, joined
from tagmatch_bench.systems.packages import needed
from tagmatch_bench.systems.small_square import longitudes_and_latitudes, metres

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tagmatch.model.arrays import F64Array, U32Array

#: Cells so coarse that ten rings of them would have a pentagon are not used; no cells are finer than the last one
_COARSEST, _FINEST = 4, 15
#: Cells that are measured, on each side of the square; others are up to so much smaller or larger
_SAMPLES, _DIFFERENCE = 5, 1.1
#: Two points of the square are no farther from each other
_DIAGONAL = math.sqrt(2.0)


class H3Cells:
    """What a Python user would write with `h3`: a dict from cells to sets of circles, by their centres. Exact.

    Cells are as large as the largest radius. A point is in one of them, and circles that may have it are in that one
    and in rings around it. The unit square is a degree wide on the sphere, and what is found there is tested on the
    plane. One by one, in Python.

    Parameters
    ----------
    circles : Circles
        In the unit square, as must points be.
    threads : int
        Not used.

    Raises
    ------
    UnavailableError
        The package is not installed.
    ValueError
        A circle's centre is outside the unit square.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("h3"):
            from h3.api import basic_int
        self._h3: Any = basic_int
        self._circles = Circles(circles.x.copy(), circles.y.copy(), circles.radius)
        self._most = min(_DIAGONAL, float(circles.radius.max(initial=0.0)))
        reach = float(metres(np.array(self._most)))
        resolutions = range(_FINEST, _COARSEST, -1)
        edges = ((each, basic_int.average_hexagon_edge_length(each, unit="m")) for each in resolutions)
        self._resolution = next((each for each, edge in edges if 1.5 * edge > reach), _COARSEST)
        self._shortest, self._longest = self._edges()
        self._cell_of = list(self._cells(circles.x, circles.y))
        self._circles_of: dict[int, set[int]] = {}
        for number, cell in enumerate(self._cell_of):
            self._circles_of.setdefault(cell, set()).add(number)

    def _edges(self) -> tuple[float, float]:
        """The lengths that edges have at least and at most, in metres."""
        places = np.linspace(0.0, 1.0, _SAMPLES)
        cells = self._cells(np.repeat(places, _SAMPLES), np.tile(places, _SAMPLES))
        lengths = [
            self._h3.edge_length(edge, unit="m") for cell in cells for edge in self._h3.origin_to_directed_edges(cell)
        ]
        return min(lengths) / _DIFFERENCE, max(lengths) * _DIFFERENCE

    def _cells(self, x: F64Array, y: F64Array) -> Iterable[int]:
        longitudes, latitudes = longitudes_and_latitudes(x, y)
        cell = self._h3.latlng_to_cell
        return (
            cell(lat, lon, self._resolution) for lat, lon in zip(latitudes.tolist(), longitudes.tolist(), strict=True)
        )

    def _near(self, cell: int, distance: float) -> list[int]:
        """Circles whose centre may be so far from a point of a cell, in metres.

        The centres of ring `k` are on a hexagon, `1.5 * k` edges from the middle where it is nearest; the point is an
        edge from there at most. Where rings have more cells than circles have, these are all looked at.
        """
        rings = math.ceil((distance + self._longest) / (1.5 * self._shortest))
        circles_of = self._circles_of
        if 3 * rings * (rings + 1) >= len(circles_of):
            return [number for some in circles_of.values() for number in some]
        return [number for each in self._h3.grid_disk(cell, rings) for number in circles_of.get(each, ())]

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        reach = float(metres(np.array(self._most)))
        return self._circles.keep(joined([self._near(cell, reach) for cell in self._cells(x, y)]), x, y)

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        reaches = metres(np.minimum(radius, _DIAGONAL)).tolist()
        near = [self._near(cell, reach) for cell, reach in zip(self._cells(x, y), reaches, strict=True)]
        return self._circles.keep_centres(joined(near), x, y, radius)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        for number, cell in zip(ids.tolist(), self._cells(x, y), strict=True):
            before = self._cell_of[number]
            if cell != before:
                self._circles_of[before].discard(number)
                if not self._circles_of[before]:
                    del self._circles_of[before]
                self._circles_of.setdefault(cell, set()).add(number)
                self._cell_of[number] = cell
        self._circles.move(ids, x, y)

    def nbytes(self) -> int | None:
        """Unknown, as of all that is made of Python's objects."""
        return None

    def close(self) -> None:
        """Nothing was started."""
