"""Trees and cells of libraries that find areas: R*-tree, Shapely, SciPy and H3."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import F64Array, U32Array, offsets_of
from tagmatch_bench.systems.circles import Circles, Found, boxes, joined, lists_of
from tagmatch_bench.systems.matcher import COMPARED, Plain, needed
from tagmatch_bench.workloads.location import EARTH_METRES

#: Side of the square, around longitude and latitude 0, where a degree of each is as long
DEGREES = 1.0
#: A distance on the sphere is no longer than on the plane, but by rounding
_ROUNDING = 1e-9

#: The longest radius of the Earth that a system has: that of Redis, rounded up
_MOST_METRES = 6_372_800.0


def longitudes_and_latitudes(x: F64Array, y: F64Array) -> tuple[F64Array, F64Array]:
    """Return where points of the unit square are on the sphere."""
    for name, column in (("x", x), ("y", y)):
        if len(column) and (column.min() < 0.0 or column.max() > 1.0):
            raise ValueError(f"{name} must be from 0 to 1: only the unit square has a place on the sphere here")
    return (x - 0.5) * DEGREES, (y - 0.5) * DEGREES


def metres(radius: F64Array) -> F64Array:
    """Return distances on the sphere, each at least as long there as it may be for points so far apart on the plane."""
    longest: F64Array = radius * (np.radians(DEGREES) * _MOST_METRES * (1 + _ROUNDING))
    return longest


_CAPACITY = 20
#: More than what libspatialindex takes for nothing when it makes the box of a node smaller, which then lacks an entry
_SLACK = 1e-12


class RStarTree(Plain):
    """An R*-tree (N. Beckmann et al., SIGMOD 1990) of the circles' boxes: Python package `rtree`. Exact.

    It is built in bulk (Sort-Tile-Recursive). Candidates are found for many points by one call, and then tested. A move
    is a deletion and an insertion, one by one, as the library has it. libspatialindex does not say how large it is.
    """

    def __init__(self, circles: Circles, *, threads: int = 1, capacity: int = _CAPACITY) -> None:  # noqa: ARG002
        with needed("rtree"):
            from rtree import index
        self._circles = circles.movable()
        options = index.Property(variant=index.RT_Star, leaf_capacity=capacity, index_capacity=capacity)
        if len(circles):
            lowest, highest = _slack_boxes(circles.x, circles.y, circles.radius)
            self._tree: Any = index.Index((np.arange(len(circles)), lowest, highest), properties=options)
        else:
            self._tree = index.Index(properties=options)

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        if not len(x):
            return Found(np.zeros(1, np.int64), np.zeros(0, np.uint32))
        points = np.stack([x, y], axis=1)
        ids, counts = self._tree.intersection_v(points, points)
        return self._circles.keep(Found(offsets_of(counts), ids.astype(np.uint32)), x, y)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give circles new centres, each circle once."""
        before = np.concatenate(
            _slack_boxes(self._circles.x[ids], self._circles.y[ids], self._circles.radius[ids]), axis=1
        )
        after = np.concatenate(_slack_boxes(x, y, self._circles.radius[ids]), axis=1)
        for number, old, new in zip(ids.tolist(), before.tolist(), after.tolist(), strict=True):
            self._tree.delete(number, old)
            self._tree.insert(number, new)
        self._circles.move(ids, x, y)

    def close(self) -> None:
        """Free the tree."""
        self._tree.close()


def _slack_boxes(x: F64Array, y: F64Array, radius: F64Array) -> tuple[F64Array, F64Array]:
    lowest, highest = boxes(x, y, radius)
    return lowest - _SLACK, highest + _SLACK


#: By which share of it, and of coordinates, a distance is longer for the tree, whose rounding may differ
_LONGER = 2.0**-40


class ScipyTree(Plain):
    """`scipy.spatial.cKDTree` of the circles' centres. Exact; takes no moves, and circles must have one radius.

    Such a tree has points and finds those near a point. So circles are found if all have the same radius, and the
    dual with any.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:
        with needed("scipy"):
            from scipy.spatial import cKDTree
        self._circles, self._threads = circles, threads
        self._tree = cKDTree(np.stack([circles.x, circles.y], axis=1))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        radii = self._circles.radius
        if len(radii) and (radii != radii[0]).any():
            raise ValueError("circles have different radii, where a k-d tree of their centres needs one")
        return self.within(x, y, np.full(len(x), radii[0] if len(radii) else 0.0))

    def within(self, x: F64Array, y: F64Array, radius: F64Array) -> Found:
        """Return the circles whose centres are at most `radius` from each point."""
        if not len(x) or not len(self._circles):
            return joined([[]] * len(x))
        reach = radius + (np.abs(x) + np.abs(y) + radius) * _LONGER
        near = self._tree.query_ball_point(np.stack([x, y], axis=1), reach, workers=self._threads)
        return self._circles.keep_centres(joined(list(near)), x, y, radius)


class ShapelyTree(Plain):
    """`shapely.STRtree` of the circles' boxes, packed and asked for many points by one call. Exact; takes no moves."""

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("shapely"):
            import shapely
        self._shapely, self._circles = shapely, circles
        lowest, highest = circles.boxes()
        self._tree = shapely.STRtree(shapely.box(*lowest.T, *highest.T))

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        points, ids = self._tree.query(self._shapely.points(x, y))
        return self._circles.keep(lists_of(points, ids, len(x)), x, y)


#: Cells so coarse that ten rings of them would have a pentagon are not used; no cells are finer than the last one
_COARSEST, _FINEST = 4, 15
#: Cells that are measured, on each side of the square; others are up to so much smaller or larger
_SAMPLES, _DIFFERENCE = 5, 1.1
#: Two points of the square are no farther from each other
_DIAGONAL = math.sqrt(2.0)


class H3Cells(Plain):
    """What a Python user would write with `h3`: a dict from cells to sets of circles, by their centres. Exact.

    Cells are as large as the largest radius. A point is in one of them, and circles that may have it are in that one
    and in rings around it. The unit square is a degree wide on the sphere, and candidates are tested on the
    plane. One by one, in Python.
    """

    def __init__(self, circles: Circles, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("h3"):
            from h3.api import basic_int
        self._h3: Any = basic_int
        self._circles = circles.movable()
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
        """Circles whose centre may be so far from a point of a cell, in metres."""
        # The centres of ring `k` are on a hexagon, `1.5 * k` edges from the middle at least; a point is an edge from it
        rings = math.ceil((distance + self._longest) / (1.5 * self._shortest))
        circles_of = self._circles_of
        if 3 * rings * (rings + 1) >= len(circles_of):
            return [number for some in circles_of.values() for number in some]
        return [number for each in self._h3.grid_disk(cell, rings) for number in circles_of.get(each, ())]

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point."""
        reach = float(metres(np.array(self._most)))
        return self._circles.keep(joined([self._near(cell, reach) for cell in self._cells(x, y)]), x, y)

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


#: By which share of it, and by how many degrees, a box is larger than its circle, so that rounding leaves nothing out
_MORE, _DEGREES = 1 + 1e-9, 1e-9


class ShapelyFilter(Plain):
    """What a Python user would write for alerts near places: `shapely.STRtree`, then tags, constraints and distance.

    The tree has boxes of degrees around circles, two where a circle goes across the anti-meridian, and is asked for all
    messages of a call at once. Of each candidate, Python looks at the tags, at the constraints, and at the great-circle
    distance by the haversine formula, in this order. Exact, except for the rounding of distances.
    """

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("shapely"):
            import shapely
        self._shapely: Any = shapely
        self._keys = subscriptions["key"].to_pylist()
        self._tags = [frozenset(tags) for tags in subscriptions["tags"].to_pylist()]
        self._constraints = [
            [(each["attr"], COMPARED[each["op"]], each["value"]) for each in some]
            for some in subscriptions["constraints"].to_pylist()
        ]
        area = subscriptions["area"].combine_chunks()
        lon, lat, metres = (area.field(name).to_numpy() for name in ("lon", "lat", "metres"))
        self._circles = list(zip(lon.tolist(), lat.tolist(), metres.tolist(), strict=True))
        boxes = _boxes(lon, lat, metres)
        self._of_boxes = boxes[0]
        self._tree = shapely.STRtree(shapely.box(*boxes[1:]))

    def prepare(self, messages: pa.Table) -> list[dict[str, Any]]:
        """Messages as Python has them."""
        rows: list[dict[str, Any]] = messages.to_pylist()
        return rows

    def match_many(self, messages: list[dict[str, Any]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the subscriptions that each message satisfies."""
        places = [(message["location"]["lon"], message["location"]["lat"]) for message in messages]
        tags = [frozenset(message["tags"]) for message in messages]
        found: list[list[int]] = [[] for _ in messages]
        asked, boxes = self._tree.query(self._shapely.points(np.array(places, np.float64).reshape(-1, 2)))
        # A circle with two boxes may have a message in both
        candidates = np.unique(np.stack([asked, self._of_boxes[boxes]], axis=1), axis=0)
        for number, row in candidates.tolist():
            if (
                self._tags[row] <= tags[number]
                and all(_holds(messages[number].get(name), *asks) for name, *asks in self._constraints[row])
                and _is_near(*self._circles[row], *places[number])
            ):
                found[number].append(self._keys[row])
        return [sorted(set(keys)) for keys in found] if unique else found


def _holds(value: Any, test: Callable[[Any, Any], bool], operand: Any) -> bool:
    return value is not None and test(value, operand)


def _is_near(lon: float, lat: float, metres: float, other_lon: float, other_lat: float) -> bool:
    a, b = math.radians(lat), math.radians(other_lat)
    up, across = math.sin((b - a) / 2), math.sin(math.radians(other_lon - lon) / 2)
    share = up * up + math.cos(a) * math.cos(b) * across * across
    return 2 * EARTH_METRES * math.asin(min(1.0, math.sqrt(share))) <= metres


def _boxes(lon: Any, lat: Any, metres: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Rows of circles, and west, south, east and north of the boxes around them, of some circles two."""
    angle = np.minimum(metres / EARTH_METRES * _MORE, np.pi)
    south, north = lat - np.degrees(angle) - _DEGREES, lat + np.degrees(angle) + _DEGREES
    has_pole = (south <= -90) | (north >= 90)
    across = np.sin(angle) / np.maximum(np.cos(np.radians(lat)), 1e-300)
    reach = np.where(has_pole, 360.0, np.degrees(np.arcsin(np.clip(across, 0, 1))) + _DEGREES)
    west, east = lon - reach, lon + reach
    rows = np.arange(len(lon))
    parts = [(rows, west, east)]
    for some, degrees in ((np.flatnonzero(west < -180), 360.0), (np.flatnonzero(east > 180), -360.0)):
        parts.append((rows[some], west[some] + degrees, east[some] + degrees))
    every, all_west, all_east = (np.concatenate(each) for each in zip(*parts, strict=True))
    return every, all_west, south[every], all_east, north[every]
