"""Circles, and tags, constraints and circles together, by brute force: the oracle of all that matches areas.

Distances are those of the plane, in double precision, or great circles of the sphere; a circle's edge belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from support.content import holds

EARTH_METRES = 6_371_008.8

Floats = npt.NDArray[np.float64]


def inside(circles: tuple[Floats, Floats, Floats], x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Which of the circles `x`, `y`, `radius` have each point: a row for each point."""
    of_x, of_y, radius = circles
    across, up = x[:, None] - of_x, y[:, None] - of_y
    within: npt.NDArray[np.bool_] = across * across + up * up <= radius * radius
    return within


def metres(lon: Any, lat: Any, other_lon: Any, other_lat: Any) -> Any:
    """Great-circle distances by the haversine formula."""
    a, b = np.radians(lat), np.radians(other_lat)
    up, across = np.sin((b - a) / 2), np.sin(np.radians(np.asarray(other_lon) - lon) / 2)
    return 2 * EARTH_METRES * np.arcsin(np.minimum(1.0, np.sqrt(up**2 + np.cos(a) * np.cos(b) * across**2)))


def has(area: Mapping[str, float], location: Mapping[str, float]) -> bool:
    """Whether an area has a position: `x`, `y` and `radius`, or `lon`, `lat` and `metres`."""
    if "metres" in area:
        return bool(metres(area["lon"], area["lat"], location["lon"], location["lat"]) <= area["metres"])
    across, up = location["x"] - area["x"], location["y"] - area["y"]
    return across * across + up * up <= area["radius"] * area["radius"]


def matching_rows(subscriptions: Iterable[Mapping[str, Any]], messages: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Places of the subscriptions whose tags, constraints and area each message satisfies, ascending.

    Messages have `location`, `tags` where subscriptions have any, and attributes by name.
    """
    stored = list(enumerate(subscriptions))

    def matches(row: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
        has_tags = set(row.get("tags") or ()) <= set(message.get("tags") or ())
        conditions = (holds(constraint, message) for constraint in row.get("constraints") or ())
        return has_tags and all(conditions) and has(row["area"], message["location"])

    return [[place for place, row in stored if matches(row, message)] for message in messages]
