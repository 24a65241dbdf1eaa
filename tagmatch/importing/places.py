"""Places of Elasticsearch: points in their many forms, and the areas of queries."""

from __future__ import annotations

import re
from typing import Any

from tagmatch.importing.conditions import NotTakenError, Place
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.areas import Area, Box, Circle, check, text_of
from tagmatch.model.where.outlines import Polygon

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
_OTHERS = {"validation_method", "ignore_unmapped", "boost", "_name", "distance_type", "type"}


def area_of(body: Any, place: Place) -> tuple[str, str]:
    """The area that a query asks for, as conditions have it, and the name of its field."""
    given = place.object_of(body)
    own = {"distance"} if place.kind == "geo_distance" else set[str]()
    made = {"geo_polygon": _polygon, "geo_shape": _shape}.get(place.kind, _box)
    fields = [name for name in given if name not in _OTHERS | own]
    if len(fields) != 1:
        raise place.refused(f"one field must be here, not {', '.join(fields) or 'none'}")
    if given.get("distance_type", "arc") != "arc":
        raise place.at("distance_type").refused("distances are those of the sphere: arc")
    if given.get("validation_method", "STRICT") != "STRICT":
        raise place.at("validation_method").refused("places out of the world are not taken: STRICT")
    name = fields[0]
    inside = place.at(name)
    try:
        area: Area = _circle(given, name, place) if own else made(given[name], inside)
        check(area, plane=False)
        return text_of(area), name
    except NotTakenError:
        raise
    except (InvalidTypeError, InvalidValueError) as error:
        raise inside.refused(str(error)) from None


def _circle(given: dict[str, Any], name: str, place: Place) -> Circle:
    distance = place.at("distance")
    found = _DISTANCE.fullmatch(str(given.get("distance")))
    if found is None or (found[2] and found[2] not in _METRES):
        raise distance.refused(f"{given.get('distance')!r:.40} is no distance, such as 12km")
    lon, lat = point(given[name], place.at(name))
    return Circle(lon, lat, float(found[1]) * _METRES[found[2] or "m"])


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


def _polygon(given: Any, place: Place) -> Polygon:
    points = place.at("points")
    corners = [point(*each) for each in points.list_of(place.object_of(given, ("points",)).get("points"))]
    return Polygon([[*corners, *(corners[:1] if corners[-1:] != corners[:1] else [])]])


def _shape(given: Any, place: Place) -> Area:
    """A point is in a shape if both meet, or if it is within it."""
    query = place.object_of(given, ("shape", "relation"))
    if str(query.get("relation", "intersects")).lower() not in ("intersects", "within"):
        raise place.at("relation").refused(
            "use intersects or within, for places inside the shape; or bool with must_not"
        )
    shape, inside = query.get("shape"), place.at("shape")
    if isinstance(shape, str):
        return _box({"wkt": shape}, inside) if shape.lstrip().upper().startswith("BBOX") else Polygon(shape)
    kind, coordinates = (inside.object_of(shape).get(name) for name in ("type", "coordinates"))
    if str(kind).lower() != "envelope":
        return Polygon({"type": kind, "coordinates": coordinates})
    if not isinstance(coordinates, list) or len(coordinates) != 2:
        raise inside.at("coordinates").refused("two corners must be here: the one above on the left, the one below")
    (west, north), (east, south) = (point(*each) for each in inside.at("coordinates").list_of(coordinates))
    return Box(west, south, east, north)


def point(given: Any, place: Place) -> tuple[float, float]:
    """Longitude and latitude of a point: an object, a list, or a text."""
    if isinstance(given, dict) and given.get("type", "").lower() == "point":
        given = given.get("coordinates")
    if isinstance(given, dict):
        return _number(given.get("lon"), place.at("lon")), _number(given.get("lat"), place.at("lat"))
    if isinstance(given, list) and len(given) == 2:
        return _number(given[0], place.at(0)), _number(given[1], place.at(1))
    if isinstance(given, str):
        if found := _PAIR.fullmatch(given):
            return float(found[2]), float(found[1])
        if found := _POINT.fullmatch(given):
            return float(found[1]), float(found[2])
    raise place.refused(f'a point must be here, as {{"lon": …, "lat": …}}, not {given!r:.60}')


def _number(given: Any, place: Place) -> float:
    try:
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            return float(given)
    except ValueError:
        pass
    raise place.refused(f"a number must be here, not {given!r:.60}")
