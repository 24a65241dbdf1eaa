"""The unit square on the sphere, for systems that know longitudes and latitudes only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array

#: Side of the square, around longitude and latitude 0, where a degree of each is as long
DEGREES = 1.0
#: A distance on the sphere is no longer than on the plane, but by rounding
_ROUNDING = 1e-9

#: The longest radius of the Earth that a system has: that of Redis, rounded up
_MOST_METRES = 6_372_800.0


def longitudes_and_latitudes(x: F64Array, y: F64Array) -> tuple[F64Array, F64Array]:
    """Return where points of the unit square are on the sphere.

    Raises
    ------
    ValueError
        A point is outside the square.
    """
    for name, column in (("x", x), ("y", y)):
        if len(column) and (column.min() < 0.0 or column.max() > 1.0):
            raise ValueError(f"{name} must be from 0 to 1: only the unit square has a place on the sphere here")
    return (x - 0.5) * DEGREES, (y - 0.5) * DEGREES


def metres(radius: F64Array) -> F64Array:
    """Return distances on the sphere, each at least as long there as it may be for points so far apart on the plane."""
    longest: F64Array = radius * (np.radians(DEGREES) * _MOST_METRES * (1 + _ROUNDING))
    return longest
