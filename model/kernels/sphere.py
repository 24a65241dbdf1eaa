"""What it means that an area has a place: on the sphere and on the plane, in float64. All else asks these functions.

On the sphere, places are degrees, and distances metres along the mean sphere of WGS 84. A circle is tested by the chord
through the sphere, as squares of differences, which is right to a few nanometres at the poles, across the
anti-meridian, and for radii of millimetres, and needs no trigonometry but to prepare it. Chords hardly grow near the
antipode: a circle of more than a quarter of a great circle is what lies outside of one around its antipode, and
is tested by the chord from there. On the plane, `lon` and `lat` are x and y, and a radius is in their unit; squares of
the least and the greatest radii underflow or overflow, so these circles are tested by multiples of differences.

A circle's limit says how it is tested. Without a sign, it is the square of the greatest chord or distance. With one,
which zero may have, the circle is *marked*: the limit is, except for its sign, the square of the least chord from the
antipode, or on the plane the radius. Tests of both kinds are differences, products and sums, so that every processor
says the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tagmatch.model.arrays import F64Array
from tagmatch.model.kernels.jit import kernel, lent

#: Mean radius of WGS 84, in metres
EARTH = 6371008.8

#: Letters of areas on the sphere; those of the plane are the same as capitals, without a bit that they have
CIRCLE, BOX, NEAR = tuple(b"cbn")
LOWER = np.uint8(0x20)

_RADIANS = math.pi / 180
# Half of a great circle, as a double and how much is missing; a quarter; pi has more digits than a double
_EXACT_HALF = (Fraction(math.pi) + Fraction(1.2246467991473532e-16)) * Fraction(EARTH)
_HALF, _QUARTER = float(_EXACT_HALF), float(_EXACT_HALF / 2)
_MISSING = float(_EXACT_HALF - Fraction(_HALF))

# Squares of radii from one to the other lose no digit; others are multiplied, those below one and those above
_LEAST, _GREATEST = 2.0**-480, 2.0**510
_UP, _DOWN = 2.0**600, 2.0**-600


@lent
def _sine_and_cosine(degrees):
    """Those of an angle, by how far it is from a multiple of 90 degrees: so antipodes are exactly opposite."""
    turns = np.rint(degrees / 90)
    rest, quarter = (degrees - 90 * turns) * _RADIANS, np.int64(turns)
    one, other = math.sin(rest), math.cos(rest)
    if quarter & 1:
        one, other = other, one
    return (-one if quarter & 2 else one), (-other if (quarter + 1) & 2 else other)


@lent
def unit_vector(lon, lat):
    """Where a place of the sphere lies in space; the same for all names of one place."""
    along, across = _sine_and_cosine(lat)
    east, ahead = _sine_and_cosine(lon)
    return across * ahead, across * east, along


@lent
def point_of(lon, lat, plane):
    """A place as the three numbers by which circles are tested."""
    if plane:
        return lon, lat, 0.0
    return unit_vector(lon, lat)


@lent
def point_like(origin, lon, lat):
    """A place in as many numbers as the origin has: x and y on the plane, else a unit vector."""
    if len(origin) == 2:
        return lon, lat
    return unit_vector(lon, lat)


@lent
def limit_of(metres, plane):
    """By which a circle of this radius is tested; see above."""
    if plane:
        return metres * metres if metres >= _LEAST and metres <= _GREATEST else -metres
    if metres <= _QUARTER:
        half_chord = math.sin(metres / EARTH / 2)
        return 4 * half_chord * half_chord
    left_out = (_HALF - metres) + _MISSING
    if left_out <= 0:
        return np.inf
    half_chord = math.sin(left_out / EARTH / 2)
    return -4 * half_chord * half_chord


@lent
def is_marked(limit):
    """Whether a limit has a sign."""
    return math.copysign(1.0, limit) < 0


@lent
def reach_of(limit, plane):
    """How far from a circle's middle its points are at most, on each axis; except for rounding."""
    if is_marked(limit):
        return -limit if plane else math.inf
    return math.sqrt(limit)


def near_rules(
    times: Callable[..., Any], plus: Callable[..., Any], compiled: Callable[[Callable[..., Any]], Any]
) -> tuple[Any, Any]:
    """The rules by a product and a sum that are rounded one by one, as all must round to say the same."""

    @compiled
    def by_mark(x, y, z, limit, px, py, pz, plane):
        """Whether a point is in a circle around another one that is marked."""
        if plane:
            by = _UP if -limit < 1 else _DOWN
            dx, dy, reach = times(x - px, by), times(y - py, by), times(limit, by)
            return plus(times(dx, dx), times(dy, dy)) <= times(reach, reach)
        dx, dy, dz = x + px, y + py, z + pz
        return plus(plus(times(dx, dx), times(dy, dy)), times(dz, dz)) >= -limit

    @compiled
    def is_near(x, y, z, limit, px, py, pz, plane):
        """Whether a point is in a circle around another one."""
        if is_marked(limit):
            return by_mark(x, y, z, limit, px, py, pz, plane)
        dx, dy, dz = x - px, y - py, z - pz
        return plus(plus(times(dx, dx), times(dy, dy)), times(dz, dz)) <= limit

    return by_mark, is_near


#: In a kernel, `is_near(x, y, z, limit, px, py, pz, plane)`: whether a point is in a circle around another one; and
#: what says it if the limit is marked
near_by_mark, is_near = near_rules(operator.mul, operator.add, lent)


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


@lent
def is_in_area(kind, shape, lon, lat, plane):
    """Whether a box or a circle, of which a row has the numbers, has a place."""
    if kind == BOX:
        return is_in_box(shape[0], shape[2], shape[1], shape[3], lon, lat, plane)
    x, y, z = point_of(shape[0], shape[1], plane)
    px, py, pz = point_of(lon, lat, plane)
    return is_near(x, y, z, limit_of(shape[2], plane), px, py, pz, plane)


@kernel
def _points(lon, lat, plane, x, y, z):
    for i in range(len(lon)):
        x[i], y[i], z[i] = point_of(lon[i], lat[i], plane)


@kernel
def _limits(metres, plane, out):
    for i in range(len(metres)):
        out[i] = limit_of(metres[i], plane)


def points(lon: F64Array, lat: F64Array, *, plane: bool) -> tuple[F64Array, F64Array, F64Array]:
    """Places as points in space, by which circles are tested: unit vectors, or x, y and 0 on the plane."""
    x, y, z = (np.empty(len(lon)) for _ in range(3))
    _points(lon, lat, plane, x, y, z)
    return x, y, z


def limits(metres: F64Array, *, plane: bool) -> F64Array:
    """By which circles with these radii are tested."""
    out = np.empty(len(metres))
    _limits(metres, plane, out)
    return out


def reaches(limits: F64Array, *, plane: bool) -> F64Array:
    """How far from their middles the points of circles with these limits are at most, on each axis."""
    return np.where(np.signbit(limits), -limits if plane else np.inf, np.sqrt(np.abs(limits)))
