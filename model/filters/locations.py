r"""Where a message is, and where the clients must be that it is for, as tags beside its own.

Both are written as values of an attribute without a name, which no other attribute can have: U+0000, `=`, U+0000, and

============  ==================================================================================================
what          how
============  ==================================================================================================
its location  `@`, and 16 hexadecimal digits of the bits of each of two doubles, `lon` and `lat`
within        the payload of the area (`tagmatch.model.filters.areas`)
============  ==================================================================================================
"""

from __future__ import annotations

import math
import struct

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.areas import (
    MAX_LAT,
    MAX_LON,
    Box,
    Circle,
    Near,
    check,
    finite_number,
    out_of_range,
    payload_of,
)
from tagmatch.model.filters.values import ATTRIBUTE, RESERVED

#: Begins both tags
LOCATION_TAG = ATTRIBUTE + RESERVED
#: What the tag of a location has in the place of an area's letter
AT = "@"
#: A packed place of a message that says nothing of it
NO_PLACE = b""

_NUMBERS = struct.Struct("7d")
_NOWHERE, _ANYWHERE = (math.nan, math.nan), (0.0, 0.0, 0.0, 0.0, 0.0)
_CIRCLE, _BOX = map(float, b"cb")


def location_tags(location: object, within: object, *, plane: bool) -> list[str]:
    r"""The tags by which a message says where it is, and where the clients are that it is for.

    Parameters
    ----------
    location : tuple or list of two numbers, or None
    within : Circle or Box, or None
    plane : bool
        Whether these are x and y on a plane, and not degrees.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        They are of another type, no finite numbers, or out of range.

    Examples
    --------
    >>> location_tags((9.25, 45.5), None, plane=False)
    ['\x00=\x00@40228000000000004046c00000000000']
    """
    tags = []
    if location is not None:
        lon, lat = checked_location(location, plane=plane)
        tags.append(LOCATION_TAG + AT + struct.pack(">2d", lon, lat).hex())
    if within is not None:
        tags.append(LOCATION_TAG + payload_of(_checked_area(within, plane=plane), plane=plane))
    return tags


def packed_place(location: object, within: object, *, plane: bool) -> bytes:
    """Where one message is, and where the clients are that it is for, as seven doubles, which a kernel reads.

    These are `lon` and `lat`, NaN if the message has no location; the letter of the area, 0 if it has none; and four
    numbers of the area, as of `Shapes`. Of a message that says nothing of it there are none. Arguments and errors are
    those of `location_tags`.

    Examples
    --------
    >>> struct.unpack("7d", packed_place((9.25, 45.5), Circle(9, 45, 800), plane=False))
    (9.25, 45.5, 99.0, 9.0, 45.0, 800.0, 0.0)
    """
    if location is None and within is None:
        return NO_PLACE
    place = _NOWHERE if location is None else checked_location(location, plane=plane)
    if within is None:
        return _NUMBERS.pack(*place, *_ANYWHERE)
    area = _checked_area(within, plane=plane)
    if isinstance(area, Box):
        return _NUMBERS.pack(*place, _BOX, area.west, area.south, area.east, area.north)
    return _NUMBERS.pack(*place, _CIRCLE, area.lon, area.lat, area.metres, 0.0)


def _checked_area(within: object, *, plane: bool) -> Circle | Box:
    """The area that clients must be in; arguments and errors as of `location_tags`."""
    if isinstance(within, Near):
        raise InvalidTypeError("within must be a Circle or a Box: Near is about where a subscriber is")
    try:
        check(within, plane=plane)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"within: {error}") from None
    return within  # type: ignore[return-value]


def checked_location(location: object, *, plane: bool) -> tuple[float, float]:
    """The two numbers of a location; arguments and errors as of `location_tags`."""
    if not isinstance(location, tuple | list) or len(location) != 2:
        raise InvalidTypeError(
            f"location must be two numbers, {'(x, y)' if plane else '(lon, lat)'}, "
            f"not {type(location).__name__} {location!r:.80}"
        )
    names = ("x", "y") if plane else ("lon", "lat")
    try:
        lon, lat = (finite_number(name, value) for name, value in zip(names, location, strict=True))
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"location: {error}") from None
    for name, value, limit, other, beside in (("lon", lon, MAX_LON, "lat", lat), ("lat", lat, MAX_LAT, "lon", lon)):
        if not plane and not -limit <= value <= limit:
            raise InvalidValueError(f"location: {out_of_range(name, value, other, beside)}")
    return lon, lat
