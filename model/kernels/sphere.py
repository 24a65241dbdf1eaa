"""What it means that an area has a place: on the sphere and on the plane, in float64. All else asks these functions.

On the sphere, places are degrees, and distances metres along the mean sphere of WGS 84. A circle is tested by the chord
through the sphere, as squares of differences, which is exact to a few units of the last digit at the poles, across the
anti-meridian, and for radii of millimetres, and needs no trigonometry but to prepare it. On the plane, `lon` and `lat`
are x and y, and a radius is in their unit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array
from tagmatch.model.kernels.jit import kernel, lent

#: Mean radius of WGS 84, in metres
EARTH = 6371008.8

_RADIANS = math.pi / 180


@lent
def unit_vector(lon, lat):
    """Where a place of the sphere lies in space; the same for all names of one place."""
    if abs(lat) >= 90:
        return 0.0, 0.0, 1.0 if lat > 0 else -1.0
    a, b = (180.0 if lon == -180 else lon) * _RADIANS, lat * _RADIANS
    across = math.cos(b)
    return across * math.cos(a), across * math.sin(a), math.sin(b)


@lent
def point_of(lon, lat, plane):
    """A place as the three numbers by which circles are tested."""
    if plane:
        return lon, lat, 0.0
    return unit_vector(lon, lat)


@lent
def limit_of(metres, plane):
    """Square of the largest distance between the points of a circle's middle and of a place in it."""
    if plane:
        return metres * metres
    angle = metres / EARTH
    if angle >= math.pi:
        return np.inf
    half_chord = math.sin(angle / 2)
    return 4 * half_chord * half_chord


def near_rule(times: Callable[..., Any], plus: Callable[..., Any]) -> Callable[..., Any]:
    """The rule `is_near` by a product and a sum that are rounded one by one, as all must round to say the same."""

    def is_near(x, y, z, limit, px, py, pz):
        """Whether two points are no farther apart than the root of a limit."""
        dx, dy, dz = x - px, y - py, z - pz
        return plus(plus(times(dx, dx), times(dy, dy)), times(dz, dz)) <= limit

    return is_near


#: In a kernel, `is_near(x, y, z, limit, px, py, pz)`: whether two points are no farther apart than the root of a limit
is_near = lent(near_rule(operator.mul, operator.add))


@lent
def _spans(west, east, lon):
    return (west <= lon and lon <= east) if west <= east else (west <= lon or lon <= east)


@lent
def longitudes(lon, lat, plane):
    """The two names of a place's meridian, and whether its longitude matters at all."""
    if plane:
        return lon, lon, True
    return lon, (-lon if abs(lon) == 180 else lon), abs(lat) < 90


@lent
def is_in_box(west, east, south, north, lon, lat, plane):
    """Whether a box has a place; one whose west is greater than its east goes across the anti-meridian."""
    if not (south <= lat and lat <= north):
        return False
    one, other, matters = longitudes(lon, lat, plane)
    if not matters:
        return not np.isnan(lon)
    return _spans(west, east, one) or _spans(west, east, other)


@kernel
def _points(lon, lat, plane, x, y, z):
    for i in range(len(lon)):
        x[i], y[i], z[i] = point_of(lon[i], lat[i], plane)


@kernel
def _limits(metres, plane, out):
    for i in range(len(metres)):
        out[i] = limit_of(metres[i], plane)


@kernel
def _circles_have(lon, lat, metres, at_lon, at_lat, plane, out):
    for i in range(len(out)):
        x, y, z = point_of(lon[i], lat[i], plane)
        px, py, pz = point_of(at_lon[i], at_lat[i], plane)
        out[i] = is_near(x, y, z, limit_of(metres[i], plane), px, py, pz)


@kernel
def _boxes_have(west, south, east, north, at_lon, at_lat, plane, out):
    for i in range(len(out)):
        out[i] = is_in_box(west[i], east[i], south[i], north[i], at_lon[i], at_lat[i], plane)


def points(lon: F64Array, lat: F64Array, *, plane: bool) -> tuple[F64Array, F64Array, F64Array]:
    """Places as points in space, by which circles are tested: unit vectors, or x, y and 0 on the plane."""
    x, y, z = (np.empty(len(lon)) for _ in range(3))
    _points(lon, lat, plane, x, y, z)
    return x, y, z


def limits(metres: F64Array, *, plane: bool) -> F64Array:
    """Of circles with these radii, the squares of the greatest distances in space."""
    out = np.empty(len(metres))
    _limits(metres, plane, out)
    return out


def circles_have(
    lon: F64Array, lat: F64Array, metres: F64Array, at_lon: F64Array, at_lat: F64Array, *, plane: bool
) -> BoolArray:
    """Whether circle `i` has place `i`; all columns have one length.

    Examples
    --------
    >>> import numpy as np
    >>> from tagmatch.model.kernels.sphere import circles_have
    >>> lon, lat, metres = np.array([180.0]), np.array([0.0]), np.array([1000.0])
    >>> circles_have(lon, lat, metres, np.array([-179.999]), lat, plane=False)
    array([ True])
    """
    out = np.empty(len(lon), np.bool_)
    _circles_have(lon, lat, metres, at_lon, at_lat, plane, out)
    return out


def boxes_have(
    west: F64Array, south: F64Array, east: F64Array, north: F64Array, at_lon: F64Array, at_lat: F64Array, *, plane: bool
) -> BoolArray:
    """Whether box `i` has place `i`; all columns have one length."""
    out = np.empty(len(west), np.bool_)
    _boxes_have(west, south, east, north, at_lon, at_lat, plane, out)
    return out
