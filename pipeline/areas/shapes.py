"""Areas and places in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import F64Array, U8Array, frozen

#: Kinds of areas
CIRCLE, BOX = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Areas; `tagmatch.model.kernels.sphere` says which places each has.

    Attributes
    ----------
    kinds : uint8 array, length n
        `CIRCLE` or `BOX`.
    values : float64 array, shape (n, 4)
        Of a circle its middle and radius: lon, lat, metres, 0. Of a box: west, south, east, north. Degrees and metres;
        on the plane, x, y and their unit.
    """

    kinds: U8Array
    values: F64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", frozen(self.kinds))
        object.__setattr__(self, "values", frozen(np.ascontiguousarray(self.values)))

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """A place for each message.

    Attributes
    ----------
    lon, lat : float64 arrays, length n
        Degrees, or x and y on the plane; NaN for a message that has no place.
    """

    lon: F64Array
    lat: F64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "lon", frozen(np.ascontiguousarray(self.lon)))
        object.__setattr__(self, "lat", frozen(np.ascontiguousarray(self.lat)))

    def __len__(self) -> int:
        return len(self.lon)
