"""Polygons and corridors in the form that kernels test, and errors for those that cannot be tested."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.outlines import TOO_WIDE, Areas, Outlines, areas_have, crossing, prepared
from tagmatch.model.where.areas import MAX_LAT, MAX_LON, out_of_range
from tagmatch.model.where.outlines import LETTERS, Outline, Polygon, Ring


def check_outline(area: Outline, *, plane: bool) -> None:
    """InvalidValueError: a place is out of range, the outline is too wide, rings of a part cross, a hole is outside."""
    points = np.array([*area.points])
    wrong = (np.abs(points) > (MAX_LON, MAX_LAT)).any(axis=1)
    if wrong.any() and not plane:
        lon, lat = points[np.argmax(wrong)].tolist()
        name, value, other = ("lon", lon, "lat") if abs(lon) > MAX_LON else ("lat", lat, "lon")
        raise InvalidValueError(out_of_range(name, value, other, lat if name == "lon" else lon))
    ready, state = tested(area, plane=plane)
    if state == TOO_WIDE:
        kind = "polygon" if isinstance(area, Polygon) else "corridor"
        raise InvalidValueError(f"a {kind} must lie within less than half of the globe: make several areas of this one")
    if not isinstance(area, Polygon):
        return
    found = crossing(Outlines(ready.places, ready.numbers), plane=plane)
    if found is not None:
        every = [pair for part in area.parts for ring in part for pair in pairwise(ring)]
        texts = (" to ".join(f"{lon:g} {lat:g}" for lon, lat in every[number]) for number in found)
        raise InvalidValueError(f"edges of the polygon cross each other: {' and '.join(texts)}")
    for number, part in enumerate(area.parts, 1):
        _check_holes(part, f" of part {number}" if len(area.parts) > 1 else "", plane=plane)


def _check_holes(part: tuple[Ring, ...], where: str, *, plane: bool) -> None:
    outline = tested(Polygon([part[:1]]), plane=plane)[0] if len(part) > 1 else None
    for number, hole in enumerate(part[1:], 2):
        assert outline
        lons, lats = np.array(hole).T.copy()
        there = areas_have(outline, np.zeros(len(lons), np.int64), lons, lats, plane=plane)
        # One that only touches the outline has corners on it
        if 2 * np.count_nonzero(there) < len(there):
            lon, lat = hole[int(np.argmin(there))]
            raise InvalidValueError(
                f"ring {number}{where} is a hole, and {lon:g} {lat:g} of it is outside of ring 1: make it a part of a "
                "MULTIPOLYGON, if it belongs to the area"
            )


def tested(area: Outline, *, plane: bool) -> tuple[Areas, int]:
    """A polygon or corridor as kernels test it, alone, and the number of its error."""
    numbers, bounds = np.array(area.numbers, np.float64), np.zeros((1, 4))
    kinds = np.array([ord(LETTERS[type(area)])], np.uint8)
    ready, states = prepared(kinds, numbers, np.array([0, len(numbers)]), bounds, plane=plane)
    return Areas(kinds, bounds, *ready), int(states[0])
