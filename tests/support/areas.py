"""Areas that Hypothesis draws."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tagmatch import Box, Circle, Near

#: Names of all numbers of circles and boxes
FIELDS = ("lon", "lat", "metres", "west", "south", "east", "north")
#: Also what doubles and text have trouble with
finite = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 5e-324, 1e16, 1e22, 0.1, -180.0])
metres = st.floats(0, allow_infinity=False) | st.sampled_from([0.0, 500.0, 30e6])
lons = st.floats(-180, 180) | st.integers(-180, 180).map(float)
lats = st.floats(-90, 90) | st.integers(-90, 90).map(float)

#: On the sphere
areas = st.one_of(
    st.builds(Circle, lons, lats, metres),
    st.builds(lambda west, east, ends: Box(west, min(ends), east, max(ends)), lons, lons, st.tuples(lats, lats)),
    st.builds(Near, metres),
)
#: On the plane
plane_areas = st.one_of(
    st.builds(Circle, finite, finite, metres),
    st.builds(lambda x, y: Box(min(x), min(y), max(x), max(y)), st.tuples(finite, finite), st.tuples(finite, finite)),
    st.builds(Near, metres),
)
#: Of either
any_areas = areas | plane_areas


def numbers_of(area: Box | Circle | Near) -> tuple[float, ...]:
    match area:
        case Circle(lon, lat, radius):
            return lon, lat, radius
        case Box(west, south, east, north):
            return west, south, east, north
        case Near(radius):
            return (radius,)


def text_of(area: Box | Circle | Near, *, is_exact: bool = True) -> str:
    """An expression for it, with the numbers written as Python does, or with many digits."""
    numbers = [repr(number) if is_exact else f"{number:.1100g}" for number in numbers_of(area)]
    assert all(map(math.isfinite, numbers_of(area)))
    return f"within {type(area).__name__.lower()}({', '.join(numbers)})"
