"""Where messages are, in columns; from their tags, if that is where they say it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import F64Array, TagLists, U8Array, frozen
from tagmatch.model.filters.locations import AT, LOCATION_TAG
from tagmatch.model.kernels.area_shapes import MOST_NUMBERS, read_shape
from tagmatch.model.kernels.jit import kernel

_BEGIN = tuple(LOCATION_TAG.encode())
_AT = ord(AT)
_NO_INDICES = frozen(np.zeros(0, np.uint32))


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """Where messages are, and in which area the clients must be that each is for.

    Attributes
    ----------
    lon, lat : float64 arrays
        NaN where a message has no location.
    kinds : uint8 array
        Letters of areas, as of `Shapes`; 0 where a message has none. Empty if none has one.
    values : float64[n, 4] array
        As of `Shapes`; as long as `kinds`.
    """

    lon: F64Array
    lat: F64Array
    kinds: U8Array
    values: F64Array

    def __len__(self) -> int:
        return len(self.lon)

    def part(self, first: int, last: int) -> Locations:
        """Those of messages `first` to `last`."""
        return Locations(self.lon[first:last], self.lat[first:last], self.kinds[first:last], self.values[first:last])


@kernel
def _read(rows, indices, offsets, data, first, last, places, kinds, shapes):
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
            if read_shape(data, at, end, 2 if kind == _AT else 0, numbers):
                if kind == _AT:
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
    if tags.locations is not None:
        return tags.locations.part(first, last)
    count = last - first
    places, shapes = np.full((count, 2), np.nan), np.zeros((count, MOST_NUMBERS), np.uint64)
    kinds = np.zeros(count, np.uint8)
    indices = _NO_INDICES if tags.indices is None else tags.indices
    has_place, has_shape = _read(
        tags.offsets, indices, tags.tags.offsets, tags.tags.data, first, last, places.view(np.uint64), kinds, shapes
    )
    if not (has_place or has_shape):
        return None
    if not has_shape:
        kinds, shapes = kinds[:0], shapes[:0]
    return Locations(places[:, 0].copy(), places[:, 1].copy(), kinds, shapes.view(np.float64))
