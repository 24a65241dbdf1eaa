"""Which places areas have, exactly: by fractions on the plane, and by fifty digits on the sphere."""

import math
import operator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

Place = tuple[float, float]

HALF_WAY = math.pi * (EARTH := 6371008.8)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
# Unit vectors of doubles are right to a few units of the sixteenth digit
_NANOMETRES = Decimal("2e-8")


class UndecidedError(Exception):
    """The last digits of a distance decide."""


class Around(NamedTuple):
    lon: float
    lat: float
    metres: float


def has(area: Any, place: Place, *, plane: bool = False) -> bool | None:
    """Whether a circle or a box has a place; `None` where the last digits decide."""
    lon, lat = place
    if math.isnan(lon) or math.isnan(lat):
        return False
    if not hasattr(area, "west"):
        return (within_on_plane if plane else within_on_sphere)((area.lon, area.lat), place, area.metres)
    if not area.south <= lat <= area.north:
        return False
    if not plane and abs(lat) == 90:
        return True
    names = {lon, -lon} if not plane and abs(lon) == 180 else {lon}
    both = all if area.west <= area.east else any
    return any(both([area.west <= name, name <= area.east]) for name in names)


def surely_has(area: Any, place: Place | None, *, plane: bool) -> bool:
    """Whether an area has a place, if one is given; an error if the last digits decide."""
    found = place is not None and has(area, place, plane=plane)
    if found is None:
        raise UndecidedError(f"the last digits decide whether {area} has {place}")
    return found


def within_on_plane(middle: Place, place: Place, radius: float) -> bool | None:
    """Whether a place is in a circle; `None` where the last digits of a radius decide whose square no double is."""
    across, up = middle[0] - place[0], middle[1] - place[1]
    distance = math.hypot(across, up)
    if abs(distance - radius) > 1e-9 * max(distance, radius, 1e-300) or math.isinf(radius):
        return distance <= radius
    dx, dy = (Fraction(one) - Fraction(other) for one, other in zip(middle, place, strict=True))
    square, most = dx * dx + dy * dy, Fraction(radius) ** 2
    if abs(square - most) > most / 10**14 or (square == most and not (dx and dy)):
        return square <= most
    return across * across + up * up <= radius * radius if 1e-140 < radius < 1e150 else None


def within_on_sphere(middle: Place, place: Place, metres: float) -> bool | None:
    """Whether a place is in a circle; the middle always is; `None` where nanometres decide."""
    one, other = _named(middle), _named(place)
    if metres >= HALF_WAY or one == other:
        return True
    a, b = _unit_vector(one), _unit_vector(other)
    distance = 2 * EARTH * math.atan2(math.dist(a, b), math.hypot(*map(operator.add, a, b)))
    if abs(distance - metres) > 1e-6:
        return distance < metres
    with localcontext(prec=50):
        cosine = sum((x * y for x, y in zip(_vector(one), _vector(other), strict=True)), Decimal(0))
        radii = [Decimal(metres) - _NANOMETRES, Decimal(metres) + _NANOMETRES]
        least, most = (radius >= 0 and cosine >= _sine_and_cosine(radius / Decimal(EARTH))[1] for radius in radii)
    return least if least == most else None


def _named(place: Place) -> Place:
    """One name for all names of a place."""
    lon, lat = place
    return 0.0 if abs(lat) == 90 else 180.0 if abs(lon) == 180 else lon, lat


def _unit_vector(place: Place) -> tuple[float, float, float]:
    lon, lat = map(math.radians, place)
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


@lru_cache(maxsize=4096)
def _vector(place: Place) -> tuple[Decimal, Decimal, Decimal]:
    with localcontext(prec=50):
        (east, ahead), (along, across) = (_sine_and_cosine(Decimal(degrees) * _PI / 180) for degrees in place)
        return across * ahead, across * east, along


@lru_cache(maxsize=4096)
def _sine_and_cosine(angle: Decimal) -> tuple[Decimal, Decimal]:
    sums, term, power = [Decimal(0), Decimal(0)], Decimal(1), 0
    while abs(term) > Decimal("1e-50"):
        sums[power % 2] += term if power % 4 < 2 else -term
        power += 1
        term = term * angle / power
    cosine, sine = sums
    return sine, cosine
