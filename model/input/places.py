r"""Where messages are, and where the clients must be that they are for, as tags beside their own and in columns.

Both are written as values of an attribute without a name, which no other attribute can have: U+0000, `=`, U+0000, and

============  ==================================================================================================
what          how
============  ==================================================================================================
its location  `@`, and 16 hexadecimal digits of the bits of each of two doubles, `lon` and `lat`
within        the payload of the area (`tagmatch.model.where.areas`)
============  ==================================================================================================
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import F64Array, TagLists, U8Array, frozen
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.where.areas import (
    MAX_LAT,
    MAX_LON,
    Box,
    Circle,
    Near,
    check,
    out_of_range,
    payload_of,
)
from tagmatch.model.where.tag_columns import MOST_NUMBERS, read_shape
from tagmatch.model.where.values import ATTRIBUTE, RESERVED, finite_number

#: Begins both tags
LOCATION_TAG = ATTRIBUTE + RESERVED
#: What the tag of a location has in place of an area's letter
AT = "@"
#: A packed place of a message that says nothing of it
NO_PLACE = b""

_BEGIN = tuple(LOCATION_TAG.encode())
_LETTER_OF_PLACE = ord(AT)
_NO_INDICES = frozen(np.zeros(0, np.uint32))

_NUMBERS = struct.Struct("7d")
_NOWHERE, _ANYWHERE = (math.nan, math.nan), (0.0, 0.0, 0.0, 0.0, 0.0)
_CIRCLE, _BOX = map(float, b"cb")


def location_tags(location: object, within: object, *, plane: bool) -> list[str]:
    """The tags by which a message says where it is, and where the clients are that it is for, if it does.

    InvalidTypeError, InvalidValueError: they are no two numbers, no circle or box, or out of range.
    """
    tags = []
    if location is not None:
        lon, lat = checked_location(location, plane=plane)
        tags.append(LOCATION_TAG + AT + struct.pack(">2d", lon, lat).hex())
    if within is not None:
        tags.append(LOCATION_TAG + payload_of(_checked_area(within, plane=plane), plane=plane))
    return tags


def packed_place(location: object, within: object, *, plane: bool) -> bytes:
    """The same of one message as seven doubles, which a kernel reads; nothing, if there is neither.

    These are `lon` and `lat`, NaN if the message has no location; the letter of the area, 0 if it has none; and four
    numbers of the area (see `Shapes`).
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
    """The area that clients must be in; errors (see `location_tags`)."""
    if isinstance(within, Near):
        raise InvalidTypeError("within must be a Circle or a Box: Near is about where a subscriber is")
    try:
        check(within, plane=plane)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"within: {error}") from None
    return within  # type: ignore[return-value]


def checked_location(location: object, *, plane: bool) -> tuple[float, float]:
    """The two numbers of a location; errors (see `location_tags`)."""
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


# -- in columns --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """Where messages are, and in which area the clients must be that each is for."""

    lon: F64Array  # NaN where a message has no location
    lat: F64Array
    kinds: U8Array  # letters of areas (see `Shapes`); 0 where a message has none, empty if none has one
    values: F64Array  # [n, 4] (see `Shapes`); as long as `kinds`

    def __len__(self) -> int:
        return len(self.lon)

    def part(self, first: int, last: int) -> Locations:
        """Those of messages `first` to `last`."""
        return Locations(self.lon[first:last], self.lat[first:last], self.kinds[first:last], self.values[first:last])


@kernel
def _read(row_tags, strings, first, last, out):
    (rows, indices), (offsets, data), (places, kinds, shapes) = row_tags, strings, out
    has_place = has_shape = False
    numbers = np.zeros(MOST_NUMBERS, np.uint64)
    for row in range(first, last):
        for i in range(rows[row], rows[row + 1]):
            string = np.int64(indices[i]) if len(indices) else np.int64(i)
            if string >= len(offsets) - 1:
                continue
            start, end = np.int64(offsets[string]), np.int64(offsets[string + 1])
            if end - start < 4 or data[start] != _BEGIN[0] or data[start + 1] != _BEGIN[1]:
                continue
            if data[start + 2] != _BEGIN[2]:
                continue
            at, kind = start + 3, data[start + 3]
            if read_shape(data, at, end, 2 if kind == _LETTER_OF_PLACE else 0, numbers):
                if kind == _LETTER_OF_PLACE:
                    has_place = True
                    places[row - first, :] = numbers[:2]
                else:
                    has_shape = True
                    kinds[row - first] = kind
                    shapes[row - first, :] = numbers
    return has_place, has_shape


def locations_in(place: bytes) -> Locations:
    """Where the one message is of which this is the packed place."""
    numbers = np.frombuffer(place)
    return Locations(numbers[0:1], numbers[1:2], numbers[2:3].astype(np.uint8), numbers[3:].reshape(1, MOST_NUMBERS))


def locations_of(tags: TagLists, first: int, last: int) -> Locations | None:
    """Where messages `first` to `last` are; `None` if no message says anything of it."""
    given: Locations | None = tags.locations
    if given is not None:
        return given.part(first, last)
    count = last - first
    places, shapes = np.full((count, 2), np.nan), np.zeros((count, MOST_NUMBERS), np.uint64)
    kinds = np.zeros(count, np.uint8)
    indices = _NO_INDICES if tags.indices is None else tags.indices
    strings, out = (tags.tags.offsets, tags.tags.data), (places.view(np.uint64), kinds, shapes)
    has_place, has_shape = _read((tags.offsets, indices), strings, first, last, out)
    if not (has_place or has_shape):
        return None
    if not has_shape:
        kinds, shapes = kinds[:0], shapes[:0]
    return Locations(places[:, 0].copy(), places[:, 1].copy(), kinds, shapes.view(np.float64))
