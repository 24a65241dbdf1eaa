"""Areas with an outline: polygons, perhaps with holes, and corridors along lines; from WKT, GeoJSON and WKB.

They do not know their geometry. On the sphere, which is the usual one, edges are parts of great circles; on the plane
they are straight. `tagmatch.model.kernels.outlines` says which places they have.

The payload of one is a letter and 16 hexadecimal digits of the bits of each of its numbers, which are doubles: of a
polygon `p`, or `P` on the plane, how many parts it has; of each part how many rings; of each ring how many corners,
and `lon` and `lat` of each, the first one once. Of a corridor `l`, or `L`, its metres, how many lines; of each line how
many points, and these.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.values import finite_number

#: A place: longitude and latitude in degrees, or x and y
Point = tuple[float, float]
Ring = tuple[Point, ...]

# How deep coordinates are nested, by the type of geometry
_DEPTHS = {"linestring": 1, "multilinestring": 2, "polygon": 2, "multipolygon": 3}
_TYPES = {"polygon": ("polygon", "multipolygon"), "line": ("linestring", "multilinestring")}
_WKT = re.compile(r"\s*([a-z]+)\s*(\(.*\))\s*", re.IGNORECASE | re.DOTALL)
_PIECE = re.compile(r"\s*(?:([(),])|([^\s(),]+))")
# Types of WKB, bits of EWKB that say of a third number, of a fourth one, and of a system, and what ISO adds for them
_WKB = {2: "linestring", 3: "polygon", 5: "multilinestring", 6: "multipolygon"}
_MORE_NUMBERS, _HAS_SYSTEM, _WGS84 = 0xC0000000, 0x20000000, 4326
_FEWEST = {"polygon": 3, "line": 2}


@dataclass(frozen=True, slots=True, repr=False)
class Polygon:
    """What lies within an outline, the border included: one polygon or several, perhaps with holes.

    Edges are parts of great circles, or straight on the plane. A ring lies within less than half of the globe, and has
    the smaller side, in either direction of the ring; so poles and the meridian of 180 degrees are nothing special.
    Borders belong to the polygon, those of holes, too, with what lies so near that doubles hardly tell it apart (some
    nanometres for a polygon of a town).

    Parameters
    ----------
    parts : str, bytes, dict or list
        `POLYGON` or `MULTIPOLYGON` as WKT, as WKB, as a geometry of GeoJSON or as an object that has
        `__geo_interface__`, as shapely's; or the coordinates alone, as GeoJSON nests them: a list of rings, where
        the first is the outline and others are holes, or a list of such lists.

    Raises
    ------
    InvalidTypeError
        It is not one of these, or has other coordinates than pairs of numbers.
    InvalidValueError
        A number is NaN or infinite, a ring is not closed, or has fewer than three different corners; or the text cannot
        be read. Where it is given to an index: a number is out of range, a ring crosses itself or another one of the
        same part, does not lie within less than half of the globe, or is a hole outside of its outline.

    Examples
    --------
    >>> Polygon("POLYGON ((9 45, 10 45, 9.5 46, 9 45))")
    Polygon('polygon((9 45, 10 45, 9.5 46, 9 45))')
    """

    parts: Any  # Each with its rings, as tuples, each with its corners, the first one again at the end

    def __post_init__(self) -> None:
        given = _nested(self.parts, "polygon")
        where = " of part {}" if len(given) > 1 else ""
        parts = tuple(_rings(part, where.format(number)) for number, part in enumerate(given, 1))
        object.__setattr__(self, "parts", parts)

    @property
    def text(self) -> str:
        """WKT, in small letters, as expressions have it."""
        parts = [f"({', '.join(map(_text_of_points, part))})" for part in self.parts]
        return f"polygon{parts[0]}" if len(parts) == 1 else f"multipolygon({', '.join(parts)})"

    @property
    def numbers(self) -> list[float]:
        """The numbers of its text."""
        found: list[float] = [len(self.parts)]
        for part in self.parts:
            found.append(len(part))
            for ring in part:
                found.append(len(ring) - 1)
                found += (number for point in ring[:-1] for number in point)
        return found

    @property
    def points(self) -> Iterator[Point]:
        """All corners."""
        return (point for part in self.parts for ring in part for point in ring)

    @property
    def geometry(self) -> dict[str, Any]:
        """The geometry as GeoJSON has it."""
        if len(self.parts) == 1:
            return {"type": "Polygon", "coordinates": self.parts[0]}
        return {"type": "MultiPolygon", "coordinates": self.parts}

    __geo_interface__ = geometry

    def __repr__(self) -> str:
        return f"Polygon({self.text!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Corridor:
    """What lies at most so far from a line, the border included.

    The line's edges are parts of great circles, or straight on the plane.

    Parameters
    ----------
    lines : str, bytes, dict or list
        `LINESTRING` or `MULTILINESTRING` as WKT, WKB, GeoJSON, or as an object that has `__geo_interface__`; or the
        coordinates alone, of one line or of several.
    metres : float
        Zero or more. On the plane: in the units of x and y.

    Raises
    ------
    InvalidTypeError
        It is not one of these.
    InvalidValueError
        A number is NaN or infinite, `metres` is negative, or a line has fewer than two different points; or the text
        cannot be read. Where it is given to an index: a number is out of range, or not all of the corridor lies
        within less than half of the globe.

    Examples
    --------
    >>> Corridor([[9, 45], [10, 45.5]], 500)
    Corridor('linestring(9 45, 10 45.5)', 500)
    """

    lines: Any  # Each with its points, as tuples
    metres: float

    def __post_init__(self) -> None:
        given = _nested(self.lines, "line")
        lines = tuple(
            _points(line, f"line {number + 1}" if len(given) > 1 else "the line", "line")
            for number, line in enumerate(given)
        )
        object.__setattr__(self, "lines", lines)
        object.__setattr__(self, "metres", finite_number("metres", self.metres))
        if self.metres < 0:
            raise InvalidValueError(f"metres must be zero or more, not {self.metres!r}")

    @property
    def line(self) -> str:
        """WKT of the line alone, in small letters."""
        lines = [*map(_text_of_points, self.lines)]
        return f"linestring{lines[0]}" if len(lines) == 1 else f"multilinestring({', '.join(lines)})"

    @property
    def text(self) -> str:
        """As expressions have it."""
        return f"{_number_text(self.metres)} m of {self.line}"

    @property
    def numbers(self) -> list[float]:
        """The numbers of its text."""
        found: list[float] = [self.metres, len(self.lines)]
        for line in self.lines:
            found.append(len(line))
            found += (number for point in line for number in point)
        return found

    @property
    def points(self) -> Iterator[Point]:
        """All points of the lines."""
        return (point for line in self.lines for point in line)

    def __repr__(self) -> str:
        return f"Corridor({self.line!r}, {_number_text(self.metres)})"


Outline = Polygon | Corridor
#: The letter of each in a tag
LETTERS = {Polygon: "p", Corridor: "l"}


def outline_of(letter: str, numbers: Iterator[float]) -> Outline:
    """The outline with this letter and these numbers; an error, also StopIteration, if they are no outline's."""

    def points() -> list[Point]:
        return [(next(numbers), next(numbers)) for _ in range(int(next(numbers)))]

    if letter == "l":
        metres = next(numbers)
        return Corridor([points() for _ in range(int(next(numbers)))], metres)
    parts = [[points() for _ in range(int(next(numbers)))] for _ in range(int(next(numbers)))]
    return Polygon([[[*ring, *ring[:1]] for ring in part] for part in parts])


# -- geometries given --------------------------------------------------------------------------------------------------


def _nested(given: Any, what: str) -> Any:
    """Nested coordinates of several parts, from any of the accepted forms."""
    kinds = _TYPES[what]
    if isinstance(given, str):
        given = json_of(given) if given.lstrip().startswith("{") else _from_wkt(given, kinds)
    elif isinstance(given, bytes | bytearray | memoryview):
        given = _from_wkb(bytes(given), kinds)
    if not isinstance(given, Mapping) and hasattr(given, "__geo_interface__"):
        given = given.__geo_interface__
    if isinstance(given, Mapping):
        given = _from_geojson(given, kinds)
    given = _plain(given)
    if isinstance(given, Mapping) or not isinstance(given, Sequence):
        raise InvalidTypeError(f"a {what} must be WKT, WKB, GeoJSON or coordinates, not {type(given).__name__}")
    if len(given) == 0:
        raise InvalidValueError(f"a {what} must have coordinates, not none")
    depth, inner = 0, given
    while isinstance(inner, Sequence) and not isinstance(inner, str):
        if len(inner) == 0:
            raise InvalidValueError(f"a {what} must have coordinates, not none")
        depth, inner = depth + 1, _plain(inner[0])
    # A point is a list, too
    most = _DEPTHS[kinds[1]] + 1
    if depth not in (most - 1, most):
        raise InvalidTypeError(f"coordinates of a {what} are nested {most - 1} or {most} deep, not {depth}")
    return given if depth == most else [given]


def json_of(text: str) -> Any:
    """An object of JSON; InvalidValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"this is no JSON: {error}") from None


def _from_geojson(given: Mapping[str, Any], kinds: tuple[str, ...]) -> Any:
    kind, coordinates = given.get("type"), given.get("coordinates")
    if kind == "Feature":
        raise InvalidTypeError("give only the geometry of a Feature")
    if not isinstance(kind, str) or kind.lower() not in kinds:
        raise InvalidTypeError(f"the type of the geometry must be {_names(kinds)}, not {kind!r:.80}")
    if coordinates is None:
        raise InvalidValueError(f"a {kind} must have coordinates, not none")
    return coordinates if _DEPTHS[kind.lower()] == _DEPTHS[kinds[1]] else [coordinates]


def _names(kinds: tuple[str, ...]) -> str:
    return " or ".join(kind.upper() for kind in kinds)


def _from_wkt(text: str, kinds: tuple[str, ...]) -> Any:
    found = _WKT.fullmatch(text)
    kind = found[1].lower() if found else text.split("(")[0].strip()
    if found is None or kind not in kinds:
        raise InvalidValueError(f"the text must begin with {_names(kinds)} and a parenthesis, not {kind!r:.80}")
    stack: list[list[Any]] = [[]]
    numbers: list[float] = []
    for separator, word in _PIECE.findall(found[2]):
        if word:
            try:
                numbers.append(float(word))
            except ValueError:
                raise InvalidValueError(f"expected a number, found {word!r:.40}") from None
            continue
        if separator != "(" and numbers:
            stack[-1].append(_pair(numbers))
            numbers = []
        if separator == "(":
            stack.append([])
        elif separator == ")" and len(stack) > 1:
            stack[-2].append(stack.pop())
    (coordinates,) = stack[0] if len(stack) == 1 and len(stack[0]) == 1 else (None,)
    if coordinates is None or _depth_of(coordinates) != _DEPTHS[kind]:
        raise InvalidValueError(f"parentheses of a {kind.upper()} must be closed, and {_DEPTHS[kind]} deep")
    return coordinates if _DEPTHS[kind] == _DEPTHS[kinds[1]] else [coordinates]


def _depth_of(coordinates: Any) -> int:
    """How many lists are within each other, the same everywhere; 0 if they are not, or if one is empty."""
    if isinstance(coordinates, tuple):
        return 0
    inner = {_depth_of(each) if isinstance(each, list) else 0 for each in coordinates}
    if len(inner) != 1 or (inner == {0} and any(isinstance(each, list) for each in coordinates)):
        return 0
    return inner.pop() + 1


def _pair(numbers: list[float]) -> Point:
    if len(numbers) != 2:
        raise InvalidValueError(f"a place must have two numbers, not {len(numbers)}")
    return numbers[0], numbers[1]


def _from_wkb(data: bytes, kinds: tuple[str, ...]) -> Any:
    try:
        coordinates, kind, end = _read_wkb(data, 0)
    except (struct.error, KeyError, IndexError):
        raise InvalidValueError(f"this is no WKB of a {_names(kinds)} with two numbers a place") from None
    if kind not in kinds or end != len(data):
        raise InvalidValueError(f"this is WKB of a {kind.upper()}, not of a {_names(kinds)}, or more than that")
    return coordinates if _DEPTHS[kind] == _DEPTHS[kinds[1]] else [coordinates]


def _read_wkb(data: bytes, at: int) -> tuple[Any, str, int]:
    """The coordinates of the geometry that begins here, its type, and its end."""
    order = "><"[data[at] & 1]
    (number,) = struct.unpack_from(f"{order}I", data, at + 1)
    at += 5
    if number & _MORE_NUMBERS:
        raise KeyError(number)
    if number & _HAS_SYSTEM:
        (system,) = struct.unpack_from(f"{order}I", data, at)
        if system not in (0, _WGS84):
            raise InvalidValueError(f"its coordinates must be of the system {_WGS84} (WGS 84), not {system}")
        at, number = at + 4, number & ~_HAS_SYSTEM
    kind = _WKB[number]
    if kind.startswith("multi"):
        (count,) = struct.unpack_from(f"{order}I", data, at)
        at, parts = at + 4, []
        for _ in range(count):
            part, _, at = _read_wkb(data, at)
            parts.append(part)
        return parts, kind, at
    count = 1
    if kind == "polygon":
        (count,) = struct.unpack_from(f"{order}I", data, at)
        at += 4
    lists: list[Any] = []
    for _ in range(count):
        (size,) = struct.unpack_from(f"{order}I", data, at)
        if size > len(data):
            raise IndexError
        numbers = struct.unpack_from(f"{order}{2 * size}d", data, at + 4)
        at += 4 + 16 * size
        lists.append([*zip(numbers[::2], numbers[1::2], strict=True)])
    return (lists if kind == "polygon" else lists[0]), kind, at


def _plain(given: Any) -> Any:
    """An array of NumPy or Arrow as a list."""
    return given.tolist() if hasattr(given, "tolist") else given


def _listed(given: Any, wanted: str) -> Sequence[Any]:
    """The members of a list that has some."""
    given = _plain(given)
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidTypeError(f"{wanted}, not {given!r:.80}")
    if len(given) == 0:
        raise InvalidValueError(f"{wanted}, not an empty one")
    return given


def _points(given: Any, name: str, what: str) -> Ring:
    """Pairs of numbers, without repetitions of the one before."""
    found: list[Point] = []
    for point in _listed(given, f"{name} must be a list of places"):
        if isinstance(point, Mapping):  # as GeoArrow has them
            point = tuple(point.get(axis) for axis in "xy") if point.keys() == {"x", "y"} else None
        point = _plain(point)
        if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
            raise InvalidTypeError(f"{name}: a place must have two numbers, not {point!r:.80}")
        lon, lat = (finite_number(f"{name}: a coordinate", each) + 0.0 for each in point)
        if not found or found[-1] != (lon, lat):
            found.append((lon, lat))
    if len(set(found)) < _FEWEST[what]:
        raise InvalidValueError(f"{name} has {len(set(found))} different places, and must have {_FEWEST[what]} or more")
    return tuple(found)


def _rings(given: Any, where: str) -> tuple[Ring, ...]:
    rings = _listed(given, "a part must be a list of rings")
    return tuple(_ring(ring, f"ring {number}{where}") for number, ring in enumerate(rings, 1))


def _ring(given: Any, name: str) -> Ring:
    found = _points(given, name, "polygon")
    if found[0] != found[-1]:
        begins, ends = (f"{lon:g} {lat:g}" for lon, lat in (found[0], found[-1]))
        raise InvalidValueError(f"{name} is not closed: it begins at {begins}, ends at {ends}; repeat the first place")
    return found


def _text_of_points(points: Ring) -> str:
    return f"({', '.join(f'{_number_text(lon)} {_number_text(lat)}' for lon, lat in points)})"


def _number_text(number: float) -> str:
    return repr(number).removesuffix(".0")
