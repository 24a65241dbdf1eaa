"""Shapely's tree of boxes on the sphere, and the rest of each subscription in Python."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.workloads.location.generate import EARTH_METRES
from tagmatch_bench.systems.packages import needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
#: By which share of it, and by how many degrees, a box is larger than its circle, so that rounding leaves nothing out
_LARGER, _DEGREES = 1 + 1e-9, 1e-9


class ShapelyFilter:
    """What a Python user would write for alerts near places: `shapely.STRtree`, then tags, constraints and distance.

    The tree has boxes of degrees around circles, two where a circle goes across the anti-meridian, and is asked for all
    messages of a call at once. Of each candidate, Python looks at the tags, at the constraints, and at the great-circle
    distance by the haversine formula, in this order. Exact, but for what rounding does to distances.

    Parameters
    ----------
    subscriptions : pyarrow.Table
        As of `tagmatch.workloads.location` on the sphere.
    threads : int
        Not used.

    Raises
    ------
    UnavailableError
        The package is not installed.
    """

    exact = True

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("shapely"):
            import shapely
        self._shapely: Any = shapely
        self._keys = subscriptions["key"].to_pylist()
        self._tags = [frozenset(tags) for tags in subscriptions["tags"].to_pylist()]
        self._constraints = [
            [(each["attr"], _OPERATORS[each["op"]], each["value"]) for each in some]
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

    def nbytes(self) -> int | None:
        """Unknown, as of all that is made of Python's objects."""
        return None

    def close(self) -> None:
        """Nothing was started."""


def _holds(value: Any, test: Callable[[Any, Any], bool], operand: Any) -> bool:
    return value is not None and test(value, operand)


def _is_near(lon: float, lat: float, metres: float, other_lon: float, other_lat: float) -> bool:
    a, b = math.radians(lat), math.radians(other_lat)
    up, across = math.sin((b - a) / 2), math.sin(math.radians(other_lon - lon) / 2)
    share = up * up + math.cos(a) * math.cos(b) * across * across
    return 2 * EARTH_METRES * math.asin(min(1.0, math.sqrt(share))) <= metres


def _boxes(lon: Any, lat: Any, metres: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Rows of circles, and west, south, east and north of the boxes around them, of some circles two."""
    angle = np.minimum(metres / EARTH_METRES * _LARGER, np.pi)
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
