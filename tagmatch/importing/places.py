"""Places of Elasticsearch: points in their many forms, and the areas of queries."""

from __future__ import annotations

import re
from typing import Any

from tagmatch.importing.conditions import NotTakenError, Place
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.areas import Area, Box, Circle, check, text_of
from tagmatch.model.where.outlines import Corridor, Polygon

#: What every location is in
ANYWHERE = text_of(Box(-180, -90, 180, 90))
_METRES = {
    "m": 1.0, "meters": 1.0, "km": 1000.0, "kilometers": 1000.0, "cm": 0.01, "centimeters": 0.01, "mm": 0.001,
    "millimeters": 0.001, "mi": 1609.344, "miles": 1609.344, "yd": 0.9144, "yards": 0.9144, "ft": 0.3048,
    "feet": 0.3048, "in": 0.0254, "inch": 0.0254, "nmi": 1852.0, "NM": 1852.0, "nauticalmiles": 1852.0,
}  # fmt: skip
_DISTANCE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)
_NUMBER = r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*"
_PAIR = re.compile(f"{_NUMBER},{_NUMBER}", re.ASCII)
_POINT = re.compile(rf"\s*POINT\s*\({_NUMBER}\s{_NUMBER}\)\s*", re.ASCII | re.IGNORECASE)
_ENVELOPE = re.compile(rf"\s*BBOX\s*\({_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\)\s*", re.ASCII | re.IGNORECASE)
#: How near to a line or a point a place lies on it, in metres: places are kept so exactly
_WIDTH = 0.01
_OTHERS = {"validation_method", "ignore_unmapped", "boost", "_name", "distance_type", "type"}


def areas_of(body: Any, place: Place) -> tuple[list[str], str, bool]:
    """The areas of a query, as conditions have them, its field, and whether it excludes all areas or asks for one."""
    given = place.object_of(body)
    own = {"distance"} if place.kind == "geo_distance" else set[str]()
    made = {"geo_polygon": _polygon, "geo_shape": _shapes}.get(place.kind, _boxes)
    fields = [name for name in given if name not in _OTHERS | own]
    if len(fields) != 1:
        raise place.refused(f"one field must be here, not {', '.join(fields) or 'none'}")
    if str(given.get("distance_type", "arc")).lower() != "arc":
        raise place.at("distance_type").refused("distances are those of the sphere: arc")
    if str(given.get("validation_method", "STRICT")).upper() != "STRICT":
        raise place.at("validation_method").refused("places out of the world are not taken: STRICT")
    name = fields[0]
    inside = place.at(name)
    try:
        areas = [_circle(given, name, place)] if own else made(given[name], inside)
        for area in areas:
            check(area, plane=False)
        is_disjoint = place.kind == "geo_shape" and str(given[name].get("relation")).lower() == "disjoint"
        return [*map(text_of, areas)], name, is_disjoint
    except NotTakenError:
        raise
    except (InvalidTypeError, InvalidValueError) as error:
        raise inside.refused(str(error)) from None


def _circle(given: dict[str, Any], name: str, place: Place, length: str = "distance") -> Circle:
    found = _DISTANCE.fullmatch(str(given.get(length)))
    if found is None or (found[2] and found[2] not in _METRES):
        raise place.at(length).refused(f"{given.get(length)!r:.40} is no distance, such as 12km")
    lon, lat = point(given.get(name), place.at(name))
    return Circle(lon, lat, float(found[1]) * _METRES[found[2] or "m"])


def _boxes(given: Any, place: Place) -> list[Area]:
    return [_box(given, place)]


def _box(given: Any, place: Place) -> Box:
    corners = place.object_of(given)
    if "wkt" in corners:
        found = _ENVELOPE.fullmatch(place.at("wkt").text_of(corners["wkt"]))
        if found is None:
            raise place.at("wkt").refused("a box must be here: BBOX (west, east, north, south)")
        west, east, north, south = map(float, found.groups())
        return Box(west, south, east, north)
    ends: dict[str, float] = {}
    for name, each in corners.items():
        inside = place.at(name)
        if name in ("top", "left", "bottom", "right"):
            ends[name] = _number(each, inside)
            continue
        sides = name.split("_")
        if len(sides) != 2 or sides[0] not in ("top", "bottom") or sides[1] not in ("left", "right"):
            raise inside.refused(f"{name!r:.40} is no corner")
        ends[sides[1]], ends[sides[0]] = point(each, inside)
    for side in ("left", "bottom", "right", "top"):
        if side not in ends:
            raise place.refused(f"the box has no {side}")
    return Box(ends["left"], ends["bottom"], ends["right"], ends["top"])


def _polygon(given: Any, place: Place) -> list[Area]:
    points = place.at("points")
    corners = [point(*each) for each in points.list_of(place.object_of(given, ("points",)).get("points"))]
    return [Polygon([[*corners, *(corners[:1] if corners[-1:] != corners[:1] else [])]])]


def _shapes(given: Any, place: Place) -> list[Area]:
    """A point is in a shape if both meet, or if it is within it."""
    query = place.object_of(given, ("shape", "relation"))
    if str(query.get("relation", "intersects")).lower() not in ("intersects", "within", "disjoint"):
        raise place.at("relation").refused("a place is in a shape or not: intersects, within and disjoint are taken")
    return _shape(query.get("shape"), place.at("shape"))


def _shape(shape: Any, place: Place) -> list[Area]:
    if isinstance(shape, str):
        if shape.lstrip().upper().startswith("BBOX"):
            return [_box({"wkt": shape}, place)]
        return [Corridor(shape, _WIDTH) if "LINESTRING" in shape[:20].upper() else Polygon(shape)]
    given = place.object_of(shape)
    kind, coordinates, inside = str(given.get("type")).lower(), given.get("coordinates"), place.at("coordinates")
    match kind:
        case "geometrycollection":
            parts = place.at("geometries")
            return [area for each, at in parts.list_of(given.get("geometries")) for area in _shape(each, at)]
        case "circle":
            return [_circle(given, "coordinates", place, "radius")]
        case "point" | "multipoint":
            points = [(coordinates, inside)] if kind == "point" else inside.list_of(coordinates)
            return [Circle(*point(*each), _WIDTH) for each in points]
        case "linestring" | "multilinestring":
            return [Corridor({"type": given["type"], "coordinates": coordinates}, _WIDTH)]
        case "envelope":
            if not isinstance(coordinates, list) or len(coordinates) != 2:
                raise inside.refused("two corners must be here: the one above on the left, the one below")
            (west, north), (east, south) = (point(*each) for each in inside.list_of(coordinates))
            return [Box(west, south, east, north)]
    return [Polygon({"type": given.get("type"), "coordinates": coordinates})]


def point(given: Any, place: Place) -> tuple[float, float]:
    """Longitude and latitude of a point: an object, a list, or a text."""
    if isinstance(given, dict) and str(given.get("type")).lower() == "point":
        given = given.get("coordinates")
    if isinstance(given, dict):
        return _number(given.get("lon"), place.at("lon")), _number(given.get("lat"), place.at("lat"))
    if isinstance(given, list) and len(given) in (2, 3):  # A height is not asked for
        return _number(given[0], place.at(0)), _number(given[1], place.at(1))
    if isinstance(given, str):
        if found := _PAIR.fullmatch(given):
            return float(found[2]), float(found[1])
        if found := _POINT.fullmatch(given):
            return float(found[1]), float(found[2])
    raise place.refused(f'a point must be here, as {{"lon": …, "lat": …}}, not {given!r:.60}; a geohash is not taken')


def _number(given: Any, place: Place) -> float:
    try:
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            return float(given)
    except (ValueError, OverflowError):
        pass
    raise place.refused(f"a number must be here, not {given!r:.60}")
