"""Which places lie within so far of others, exactly: by fractions on the plane, and by fifty digits on the sphere."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

EARTH = 6371008.8
HALF_WAY = math.pi * EARTH

Place = tuple[float, float]

_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
_DIGITS = 50
# Unit vectors are right to a few units of the sixteenth digit
_NANOMETRES = Decimal("2e-8")
# Between these, squares of doubles have all their digits
_ORDINARY = 1e-140, 1e150
# Numbers that are greater have all their digits
_NORMAL = 1e-300


def within_on_plane(middle: Place, place: Place, radius: float) -> bool | None:
    """Whether a place is in a circle; `None` where the last digits of a radius decide whose square no double is."""
    distance = math.hypot(middle[0] - place[0], middle[1] - place[1])
    if abs(distance - radius) > 1e-9 * max(distance, radius, _NORMAL) or math.isinf(radius):
        return distance <= radius
    dx, dy = (Fraction(one) - Fraction(other) for one, other in zip(middle, place, strict=True))
    square, most = dx * dx + dy * dy, Fraction(radius) ** 2
    if square == most and not (dx and dy):
        return True
    if abs(square - most) > most / 10**14:
        return square < most
    if not _ORDINARY[0] < radius < _ORDINARY[1]:
        return None
    across, up = middle[0] - place[0], middle[1] - place[1]
    return across * across + up * up <= radius * radius


def within_on_sphere(middle: Place, place: Place, metres: float) -> bool | None:
    """Whether a place is in a circle; `None` where nanometres decide, but for a place itself and for its antipode."""
    if metres >= HALF_WAY or _is_one(middle, place):
        return True
    a, b = _unit_vector(middle), _unit_vector(place)
    angle = 2 * math.atan2(math.dist(a, b), math.hypot(*(x + y for x, y in zip(a, b, strict=True))))
    if abs(angle * EARTH - metres) > 1e-6:
        return angle * EARTH < metres
    if _is_one(middle, _antipode(place)):
        return False
    with localcontext() as context:
        context.prec = _DIGITS
        cosine = sum((x * y for x, y in zip(_exact_vector(middle), _exact_vector(place), strict=True)), Decimal(0))
        least, most = (
            radius >= 0 and cosine >= _sine_and_cosine(radius / Decimal(EARTH))[1]
            for radius in (Decimal(metres) - _NANOMETRES, Decimal(metres) + _NANOMETRES)
        )
    return least if least == most else None


def _is_one(a: Place, b: Place) -> bool:
    """Whether two places are one by their names."""
    if abs(a[1]) == 90:
        return a[1] == b[1]
    return a[1] == b[1] and (a[0] == b[0] or abs(a[0]) == abs(b[0]) == 180)


def _antipode(place: Place) -> Place:
    """Where one is whose longitude is a double."""
    lon = place[0] - math.copysign(180, place[0])
    is_exact = Fraction(lon) == Fraction(place[0]) - Fraction(math.copysign(180, place[0]))
    return (lon if is_exact else math.nan), -place[1]


def _unit_vector(place: Place) -> tuple[float, float, float]:
    lon, lat = math.radians(place[0]), math.radians(place[1])
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


def _sine_and_cosine(angle: Decimal) -> tuple[Decimal, Decimal]:
    sine, cosine, term, power = Decimal(0), Decimal(0), Decimal(1), 0
    while abs(term) > Decimal(10) ** -_DIGITS:
        if power % 2:
            sine += term if power % 4 == 1 else -term
        else:
            cosine += term if power % 4 == 0 else -term
        power += 1
        term = term * angle / power
    return sine, cosine


@lru_cache(maxsize=4096)
def _exact_vector(place: Place) -> tuple[Decimal, Decimal, Decimal]:
    (east, ahead), (along, across) = (_sine_and_cosine(Decimal(degrees) * _PI / 180) for degrees in place)
    return across * ahead, across * east, along
