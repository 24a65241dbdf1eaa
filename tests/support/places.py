"""Areas and places that Hypothesis draws."""

import itertools
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from support.distances import EARTH, HALF_WAY

from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.sphere import BOX, CIRCLE
from tagmatch.pipeline.areas.chunks import Places, Shapes

Place = tuple[float, float]


class Circle(NamedTuple):
    """On the sphere, or on the plane; unlike those of the library, of any size."""

    lon: float
    lat: float
    metres: float


class Box(NamedTuple):
    west: float
    south: float
    east: float
    north: float


Area = Circle | Box

# Few of them, so that middles, edges and messages meet
_LONS = [-180.0, 180.0, -179.99999, 179.99999, 0.0, -0.0, 90.0, -90.0, 10.0, 10.00001, 10.5, -123.4, -170.0, 56.625]
_LATS = [-90.0, 90.0, -89.99999, 89.99999, 0.0, -0.0, 45.0, 45.00001, 45.5, -33.3, -45.0, -45.00001]
# How much is missing to half of the way around, to which chords grow less and less, and to a quarter
_LEFT_OUT = [1e-8, 1e-3, 0.05, 1.0, 1000.0, HALF_WAY / 2, HALF_WAY / 2 + 0.05, HALF_WAY / 2 - 0.05]
_METRES = [0.0, 1e-6, 1.0, 1.5, 1000.0, 111_195.0, 1e6, 0.9 * HALF_WAY, HALF_WAY, 1e9, math.inf]
_METRES += [math.nextafter(HALF_WAY, 0), *(HALF_WAY - metres for metres in _LEFT_OUT)]
_XS = [0.0, 1.0, 0.5, 0.25, -1.0, 3.0, 4.0, 5.0, 1e-160, 1e-9, 1e9, -1e9, 1e200, 0.1, 0.3]
# Whose squares are no doubles
_XS += [5e-324, -5e-324, 1e-323, 1e-170, 2e-162, 1.4e154, 1.5e154, 1e250, 1e308, -1e308, 1.7976931348623157e308]

_lons = st.sampled_from(_LONS) | st.floats(-180, 180)
_lats = st.sampled_from(_LATS) | st.floats(-90, 90)
_xs = st.sampled_from(_XS) | st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False)


def places(*, plane: bool) -> st.SearchStrategy[Place]:
    return st.tuples(_xs, _xs) if plane else st.tuples(_lons, _lats)


NOWHERE = (math.nan, math.nan)


def message_places(*, plane: bool) -> st.SearchStrategy[Place]:
    """Some have none."""
    return st.sampled_from([NOWHERE, (math.nan, 90.0), (0.0, math.nan)]) | places(plane=plane)


def radii(*, plane: bool) -> st.SearchStrategy[float]:
    return _xs.map(abs) if plane else st.sampled_from(_METRES) | st.floats(0, 1e8)


@st.composite
def areas(draw: st.DrawFn, *, plane: bool) -> Area:
    first = draw(places(plane=plane))
    if draw(st.booleans()):
        return Circle(*first, draw(radii(plane=plane)))
    second = first if draw(st.integers(0, 3)) == 0 else draw(places(plane=plane))
    south, north = sorted((first[1], second[1]))
    return Box(first[0], south, second[0], north)


def random_place(rng: random.Random, plane: bool) -> Place:
    """At and near poles and the anti-meridian more often than elsewhere."""
    if plane:
        return rng.uniform(-1, 1), rng.uniform(-1, 1)
    near = rng.choice([0.0, rng.expovariate(1e3)])
    lon = rng.choice([rng.uniform(-180, 180), rng.uniform(-180, 180), 180 - near, -180 + near])
    anywhere = math.degrees(math.asin(rng.uniform(-1, 1)))
    lat = rng.choice([anywhere, anywhere, anywhere, 90 - 100 * near, -90 + 100 * near])
    return lon, max(-90.0, min(90.0, lat))


def random_area(rng: random.Random, plane: bool) -> Area:
    """Of any size, also across the anti-meridian, and up to it."""
    lon, lat = random_place(rng, plane)
    if rng.random() < 0.5:
        return Circle(lon, lat, 10 ** (rng.uniform(-5, 1) if plane else rng.uniform(0, 7.5)))
    width, height = 10 ** rng.uniform(-4, 0), 10 ** rng.uniform(-4, 0)
    if plane:
        return Box(lon, lat, lon + width, lat + height)
    east = lon + rng.choice([100 * width, rng.uniform(0, 359)])
    box = Box(lon, lat, east - 360 if east > 180 else east, min(lat + 50 * height, 90.0))
    return rng.choice([box, Box(box.west, box.south, 180.0, box.north), Box(-180.0, box.south, box.east, box.north)])


def place_at_edge(rng: random.Random, area: Area) -> Place:
    """On the edge of an area, or almost, in one of four directions."""
    part, direction = rng.choice([1.0, 0.9999, 1.0001]), rng.randrange(4)
    if isinstance(area, Box):
        lon, lat = rng.choice([area.west, area.east]), rng.choice([area.south, area.north])
        return rng.choice([(lon, lat), (-lon, lat)]) if abs(lon) == 180 else (lon, lat)
    reach = part * area.metres if area.metres < 100 else part * math.degrees(area.metres / EARTH)
    if direction < 2:
        return area.lon, max(-90.0, min(90.0, area.lat + (reach, -reach)[direction]))
    lon = area.lon + (reach, -reach)[direction - 2]
    return (lon - 360 * round(lon / 360) if abs(lon) > 180 else lon), area.lat


def shapes_of(drawn: Sequence[Area]) -> Shapes:
    kinds = np.array([BOX if isinstance(area, Box) else CIRCLE for area in drawn], np.uint8)
    return Shapes(kinds, np.array([(*area, 0.0)[:4] for area in drawn], np.float64).reshape(-1, 4))


def places_of(drawn: Sequence[Place]) -> Places:
    columns = np.array(drawn, np.float64).reshape(-1, 2)
    return Places(columns[:, 0].copy(), columns[:, 1].copy())


def lists_of(rows: Sequence[Sequence[int]], dtype: npt.DTypeLike = np.uint32) -> Lists:
    return Lists(np.cumsum([0, *map(len, rows)]), np.array([value for row in rows for value in row], dtype))


def rows_of(lists: Lists) -> list[list[int]]:
    return [lists.values[first:last].tolist() for first, last in itertools.pairwise(lists.offsets)]
