"""Which places circles have: near antipodes, and of radii and distances whose squares are no doubles."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.distances import HALF_WAY, Place, within_on_plane, within_on_sphere

from tagmatch.model.kernels.sphere import circles_have, points

_any = st.floats(allow_nan=False, allow_infinity=False)
_near_zero = st.floats(-1e-150, 1e-150)
_huge = st.floats(1e150, allow_infinity=False) | st.floats(max_value=-1e150, allow_infinity=False)


def has(middle: Place, place: Place, metres: float, *, plane: bool) -> bool:
    columns = (np.array([value]) for value in (*middle, metres, *place))
    return bool(circles_have(*columns, plane=plane)[0])


@pytest.mark.parametrize("left_out", [10, 1, 0.05, 0.01, 1e-6, math.ulp(HALF_WAY)])
@pytest.mark.parametrize("place", [(0.0, 0.0), (-123.4375, 33.3), (45.0, -45.0), (10.0, 90.0), (179.5, 89.99999)])
def test_an_antipode_is_left_out(place: Place, left_out: float) -> None:
    lon, lat = place
    antipode = (lon - math.copysign(180, lon), -lat)
    assert not has(place, antipode, HALF_WAY - left_out, plane=False)
    assert has(place, antipode, HALF_WAY, plane=False)
    if left_out > 1e-5:  # and no more than that
        degrees = math.degrees(left_out / 6371008.8)
        for part, expected in ((0.99, False), (1.01, True)):
            up = -part * degrees if antipode[1] > 0 else part * degrees
            assert has(place, (antipode[0], antipode[1] + up), HALF_WAY - left_out, plane=False) is expected


@given(
    st.tuples(st.floats(-180, 180), st.floats(-90, 90)),
    st.floats(-1, 1) | st.floats(-1e-6, 1e-6),
    st.floats(-1, 1) | st.floats(-1e-6, 1e-6),
    st.sampled_from([0.0, 1.0, HALF_WAY / 2, HALF_WAY]),
    st.floats(-1, 1) | st.floats(-1e5, 1e5),
)
def test_circles_of_the_sphere(place: Place, east: float, north: float, metres: float, more: float) -> None:
    """Of places near each other, a quarter and half of the way around."""
    lon, lat = place
    lon, lat = {0.0: (lon, lat), 1.0: (lon, lat), HALF_WAY / 2: (lon + 90, 0.0)}.get(metres, (lon + 180, -lat))
    lon, lat = lon + east, max(-90.0, min(90.0, lat + north))
    lon = lon - 360 if lon > 180 else lon + 360 if lon < -180 else lon
    metres = max(metres + more, 0.0)
    expected = within_on_sphere(place, (lon, lat), metres)
    assert expected is None or has(place, (lon, lat), metres, plane=False) is expected


@given(st.floats(-180, 180), st.floats(-90, 90))
def test_antipodes_are_opposite(lon: float, lat: float) -> None:
    other = lon - math.copysign(180, lon)
    if other + math.copysign(180, lon) == lon:
        one, two = (np.array(points(np.array([x]), np.array([y]), plane=False)) for x, y in ((lon, lat), (other, -lat)))
        assert (one == -two).all()


SQUARES = [(1.4e154, 1.5e154), (1e200, 1e250), (1e200, 1e100), (1e308, -1.7e308), (1e-170, 1e-165), (0.0, 5e-324)]


@pytest.mark.parametrize(("radius", "x"), SQUARES)
def test_squares_that_are_no_doubles(radius: float, x: float) -> None:
    for middle, place in (((0.0, 0.0), (x, 0.0)), ((0.0, x), (0.0, 0.0)), ((-x / 2, 1.0), (x / 2, 1.0))):
        expected = within_on_plane(middle, place, radius)
        assert has(middle, place, radius, plane=True) is expected


@given(st.sampled_from([_any, _near_zero, _huge]).flatmap(lambda drawn: st.lists(drawn, min_size=5, max_size=5)))
def test_circles_of_the_plane(numbers: list[float]) -> None:
    x, y, radius, at_x, at_y = numbers
    for reach in (abs(radius), math.hypot(x - at_x, y - at_y), abs(x), 0.0):
        expected = within_on_plane((x, y), (at_x, at_y), reach)
        if expected is not None:
            assert has((x, y), (at_x, at_y), reach, plane=True) is expected
