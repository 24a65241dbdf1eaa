"""Areas of subscriptions: a circle, a box, the surroundings of the subscriber, or an outline; and their texts.

They do not know their geometry. On the sphere, which is the usual one, `lon` and `lat` are degrees and `metres` is the
distance along the ground; on the plane (`plane=True` of an index), they are x, y and a distance in the same units.

The payload of an area is a letter and 16 hexadecimal digits of the bits of each of its numbers, which are doubles:

======  ========  ==================================
letter  on plane  numbers
======  ========  ==================================
`c`     `C`       `lon`, `lat`, `metres`
`b`     `B`       `west`, `south`, `east`, `north`
`n`     `N`       `metres`
======  ========  ==================================

Those of polygons and corridors are of any length (`tagmatch.model.where.outlines`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.outlines import LETTERS, Corridor, Polygon, outline_of
from tagmatch.model.where.values import finite_number


@dataclass(frozen=True, slots=True)
class Circle:
    """What lies at most so far from a place, the border included.

    Parameters
    ----------
    lon, lat : float
        The middle, in degrees of WGS 84: `lon` from -180 to 180, `lat` from -90 to 90. On the plane: x and y.
    metres : float
        The radius, zero or more: zero is the place itself, and more than half the globe is everywhere. On the plane:
        in the units of x and y.

    Raises
    ------
    InvalidTypeError
        A field is no number.
    InvalidValueError
        A field is NaN or infinite, or `metres` is negative.

    Examples
    --------
    >>> Circle(9.19, 45.46, 5000)
    Circle(lon=9.19, lat=45.46, metres=5000.0)
    """

    lon: float
    lat: float
    metres: float

    def __post_init__(self) -> None:
        _make_floats(self)


@dataclass(frozen=True, slots=True)
class Box:
    """What lies between two meridians and two parallels, the borders included.

    Parameters
    ----------
    west, south, east, north : float
        In degrees of WGS 84. A box whose `west` is greater than its `east` goes across the meridian of 180 degrees. On
        the plane: the least x and y, and the greatest.

    Raises
    ------
    InvalidTypeError
        A field is no number.
    InvalidValueError
        A field is NaN or infinite, or `south` is greater than `north`.

    Examples
    --------
    >>> Box(9, 45, 9.5, 45.75)
    Box(west=9.0, south=45.0, east=9.5, north=45.75)
    """

    west: float
    south: float
    east: float
    north: float

    def __post_init__(self) -> None:
        _make_floats(self)
        if self.south > self.north:
            raise InvalidValueError(f"south must be at most north, which is {self.north!r}, not {self.south!r}")


@dataclass(frozen=True, slots=True)
class Near:
    """What lies at most so far from the subscriber, wherever that is.

    Parameters
    ----------
    metres : float
        Zero or more. On the plane: in the units of x and y.

    Raises
    ------
    InvalidTypeError
        `metres` is no number.
    InvalidValueError
        `metres` is NaN, infinite or negative.

    Examples
    --------
    >>> Near(500)
    Near(metres=500.0)
    """

    metres: float

    def __post_init__(self) -> None:
        _make_floats(self)


Area = Circle | Box | Near | Polygon | Corridor

#: The kinds of areas by their names in the language; the first letter is the kind's letter in a tag
KINDS: dict[str, type[Circle] | type[Box] | type[Near]] = {"circle": Circle, "box": Box, "near": Near}
#: The names of their fields
FIELDS = {name: tuple(field.name for field in fields(kind)) for name, kind in KINDS.items()}

#: The greatest degrees of places on the sphere
MAX_LON, MAX_LAT = 180.0, 90.0

_NAMES = {kind: name for name, kind in KINDS.items()}
_NAMES_BY_LETTER = {name[0]: name for name in KINDS}
#: Of numbers of the sphere, what they are at most, and at least less than zero
LIMITS = {"lon": MAX_LON, "west": MAX_LON, "east": MAX_LON, "lat": MAX_LAT, "south": MAX_LAT, "north": MAX_LAT}
#: The other number of the same place
_OTHERS = {"lon": "lat", "lat": "lon", "west": "south", "south": "west", "east": "north", "north": "east"}
#: Areas in words
AN_AREA = "a Circle, a Box, a Near, a Polygon or a Corridor"


def _make_floats(area: Circle | Box | Near) -> None:
    for field in FIELDS[_NAMES[type(area)]]:
        object.__setattr__(area, field, finite_number(field, getattr(area, field)))
    if not isinstance(area, Box) and area.metres < 0:
        raise InvalidValueError(f"metres must be zero or more, not {area.metres!r}")


def check(area: object, *, plane: bool) -> None:
    """See that an area can be one of this geometry; InvalidTypeError and InvalidValueError name the field."""
    if isinstance(area, Polygon | Corridor):
        # What it is tested by takes as long to import as all else
        from tagmatch.model.where.tested import check_outline

        check_outline(area, plane=plane)
        return
    name = _name_of(area)
    if plane:
        if isinstance(area, Box) and area.west > area.east:
            raise InvalidValueError(
                f"west must be at most east, which is {area.east!r}, on the plane, not {area.west!r}"
            )
        return
    for field in FIELDS[name]:
        value, limit = getattr(area, field), LIMITS.get(field)
        if limit is not None and not -limit <= value <= limit:
            other = _OTHERS[field]
            raise InvalidValueError(out_of_range(field, value, other, getattr(area, other)))


def out_of_range(field: str, value: float, other: str, at_other: float) -> str:
    """The error for a number of degrees; `at_other` is the place's other number, called `other`.

    Examples
    --------
    >>> out_of_range("lat", 145.46, "lon", 9.19)
    'lat must be from -90 to 90, not 145.46; lon and lat seem swapped: lon comes first'
    """
    limit = LIMITS[field]
    names = (other, field) if limit == MAX_LAT else (field, other)
    is_swapped = limit == MAX_LAT and abs(value) <= MAX_LON and abs(at_other) <= MAX_LAT
    hint = f"; {' and '.join(names)} seem swapped: {names[0]} comes first" if is_swapped else ""
    return f"{field} must be from -{limit:.0f} to {limit:.0f}, not {value!r}{hint}"


def _name_of(area: object) -> str:
    name = _NAMES.get(type(area))  # type: ignore[arg-type]
    if name is None:
        raise InvalidTypeError(f"an area must be {AN_AREA}, not {type(area).__name__} {area!r:.80}")
    return name


def payload_of(area: Area, *, plane: bool) -> str:
    """The text of an area in a tag, as in the table above; InvalidTypeError if it is no area."""
    if isinstance(area, Polygon | Corridor):
        letter, numbers = LETTERS[type(area)], area.numbers
    else:
        name = _name_of(area)
        letter, numbers = name[0], [getattr(area, field) for field in FIELDS[name]]
    return (letter.upper() if plane else letter) + struct.pack(f">{len(numbers)}d", *numbers).hex()


def area_in(payload: str) -> Area | None:
    """The area with this text, in either geometry; `None` if it is no area's."""
    letter = payload[:1].lower()
    name = _NAMES_BY_LETTER.get(letter)
    try:
        numbers = struct.unpack(f">{len(payload) // 16}d", bytes.fromhex(payload[1:]))
        area: Area = outline_of(letter, iter(numbers)) if name is None else KINDS[name](*numbers)
    except (ValueError, TypeError, struct.error, StopIteration, OverflowError):
        return None
    return area if payload_of(area, plane=payload[:1].isupper()) == payload else None


def text_of(area: Area) -> str:
    """An area as an expression has it, after `within`."""
    if isinstance(area, Polygon | Corridor):
        return area.text
    name = _name_of(area)
    return f"{name}({', '.join(repr(getattr(area, field)).removesuffix('.0') for field in FIELDS[name])})"


#: An area as callers give it; dicts have the fields of an area, or are GeoJSON
AreaForm: TypeAlias = Area | str | dict[str, Any]
#: A place, or several; dicts have `lon` and `lat`, or `x` and `y`
Location: TypeAlias = tuple[float, float] | dict[str, float] | list[tuple[float, float]] | list[dict[str, float]]


class Place(NamedTuple):
    """Where one message is, and in which area the clients must be that it is for, as callers say it."""

    location: object = None  # two numbers, or a list of such places, which are not checked yet
    within: object = None  # an area, not `Near`

    @property
    def is_given(self) -> bool:
        """Whether there is either."""
        return self.location is not None or self.within is not None


#: Of a message that says nothing of it
NOWHERE = Place()
