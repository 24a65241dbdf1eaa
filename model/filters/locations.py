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

import struct

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.areas import MAX_LAT, MAX_LON, Near, check, finite_number, payload_of
from tagmatch.model.filters.values import ATTRIBUTE, RESERVED

#: Begins both tags
LOCATION_TAG = ATTRIBUTE + RESERVED
#: What the tag of a location has in the place of an area's letter
AT = "@"


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
        if isinstance(within, Near):
            raise InvalidTypeError("within must be a Circle or a Box: Near is about where a subscriber is")
        try:
            check(within, plane=plane)
        except (InvalidTypeError, InvalidValueError) as error:
            raise type(error)(f"within: {error}") from None
        tags.append(LOCATION_TAG + payload_of(within, plane=plane))  # type: ignore[arg-type]
    return tags


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
    for name, value, limit in (("lon", lon, MAX_LON), ("lat", lat, MAX_LAT)):
        if not plane and not -limit <= value <= limit:
            raise InvalidValueError(f"location: {name} must be from -{limit:.0f} to {limit:.0f}, not {value!r}")
    return lon, lat
