"""Whether areas on the sphere are right: by distances that are computed in another way, with borders everywhere."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch import TagMatch
from tagmatch.model.arrays import Lists
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.packing import CIRCLE, Places, Shapes
from tagmatch_bench.harness.located import great_circle
from tagmatch_bench.harness.results import Answers, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tagmatch.model.arrays import BoolArray, F64Array
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

_NONE_WRONG = Target(0, at_most=True, required=True)
#: Pairs so near to the border are left out: by metres, or by the radius' share, whichever is more
_METRES, _SHARE = 1e-6, 1e-9
_EARTH = 6_371_008.8
#: Radii: from a metre to all the globe
_LEAST, _MOST = 1.0, np.pi * _EARTH
#: Pairs of a batch, of which each has a group of its own
_BATCH = 100_000
#: Of an index, areas for each place
_AREAS = 2_000


class Pairs(NamedTuple):
    """Circles on the sphere and a place for each, in degrees and metres."""

    lon: F64Array
    lat: F64Array
    metres: F64Array
    at_lon: F64Array
    at_lat: F64Array

    def has(self) -> tuple[BoolArray, BoolArray]:
        """Which circles have their place, and which pairs are so near the border that they do not count."""
        away = great_circle(self.lon, self.lat, self.at_lon, self.at_lat)
        off = np.abs(away - self.metres)
        return away <= self.metres, off <= np.maximum(_METRES, _SHARE * self.metres)


def pairs(count: int, random: np.random.Generator) -> Pairs:
    """Draw circles of all sizes, a third at a pole or the anti-meridian, and places most of which are near the border.

    A place's distance from the border is from a millionth of the radius, or a micrometre, to as much as the radius,
    evenly on a logarithmic scale, within and without; one in ten is anywhere.
    """
    lon, lat = _anywhere(count, random)
    special = random.integers(0, 9, count)
    edge = 10 ** random.uniform(-9, 0, count)
    lon = np.where(special == 0, 180 - edge, np.where(special == 1, edge - 180, lon))
    lat = np.where(special == 2, 90 - edge, np.where(special == 3, edge - 90, lat))
    exact = random.random(count) < 0.1
    lon = np.where(exact & (special == 0), 180.0, np.where(exact & (special == 1), -180.0, lon))
    lat = np.where(exact & (special == 2), 90.0, np.where(exact & (special == 3), -90.0, lat))
    metres = np.exp(random.uniform(np.log(_LEAST), np.log(_MOST), count))
    more_than_half = random.random(count) < 0.1
    metres = np.where(more_than_half, random.uniform(0.5 * _MOST, 1.01 * _MOST, count), metres)
    sign = np.where(random.random(count) < 0.5, -1.0, 1.0)
    away = np.clip(metres * (1 + sign * 10 ** random.uniform(-6, 0, count)), 0.0, _MOST)
    at_lon, at_lat = _from(lon, lat, away, random.uniform(0, 2 * np.pi, count))
    other_lon, other_lat = _anywhere(count, random)
    anywhere = random.random(count) < 0.1
    at_lon, at_lat = np.where(anywhere, other_lon, at_lon), np.where(anywhere, other_lat, at_lat)
    # Half of the places on the anti-meridian have its other name
    renamed = (np.abs(at_lon) == 180) & (random.random(count) < 0.5)
    return Pairs(lon, lat, metres, np.where(renamed, -at_lon, at_lon), at_lat)


def _anywhere(count: int, random: np.random.Generator) -> tuple[F64Array, F64Array]:
    return random.uniform(-180, 180, count), np.degrees(np.arcsin(random.uniform(-1, 1, count)))


def _from(lon: F64Array, lat: F64Array, metres: F64Array, bearing: F64Array) -> tuple[F64Array, F64Array]:
    """Where one comes to from places, so many metres in these directions."""
    angle, a = metres / _EARTH, np.radians(lat)
    sine = np.clip(np.sin(a) * np.cos(angle) + np.cos(a) * np.sin(angle) * np.cos(bearing), -1, 1)
    b = np.arcsin(sine)
    across = np.arctan2(np.sin(bearing) * np.sin(angle) * np.cos(a), np.cos(angle) - np.sin(a) * sine)
    return (lon + np.degrees(across) + 180) % 360 - 180, np.degrees(b)


def exact(bench: Bench, result: Result, count: int) -> None:
    """Compare as many pairs of an area and a position with great-circle distances, in each structure and an index."""
    ways: dict[str, Callable[[Pairs], BoolArray]] = {"tagmatch, areas": _fixed, "tagmatch, clients": _of_clients}
    for name, way in ways.items():
        with bench.doing(f"location: {count:,} areas and positions, {name}"):
            _add(result, name, count, _each_pair(bench, count, way))
    with bench.doing(f"location: {count:,} areas and positions, an index"):
        _add(result, "tagmatch, end to end", count, _of_index(bench, count))


#: Which pairs a system says to be in, which are, and which do not count
_Compared = tuple[Any, Any, Any]


def _add(result: Result, name: str, count: int, compared: Iterator[_Compared]) -> None:
    wrong = missing = near = inside = 0
    for given, right, on_border in compared:
        wrong += int(np.count_nonzero(given & ~right & ~on_border))
        missing += int(np.count_nonzero(~given & right & ~on_border))
        near += int(np.count_nonzero(on_border))
        inside += int(np.count_nonzero(given))
    what = f"{count:,} areas and positions"
    result.add(f"{what}, {name}: wrong answers", wrong + missing, "pairs", _NONE_WRONG)
    result.add(f"{what}, {name}: inside", inside, "pairs")
    result.add(f"{what}, {name}: on the border, left out", near, "pairs")
    result.answers.append(Answers(what, name, True, count, inside, wrong, missing))


def _each_pair(bench: Bench, count: int, way: Callable[[Pairs], BoolArray]) -> Iterator[_Compared]:
    random = np.random.default_rng(bench.options.seed)
    for first in range(0, count, _BATCH):
        some = pairs(min(_BATCH, count - first), random)
        yield (way(some), *some.has())


def _one_group_each(count: int) -> Lists:
    return Lists(np.arange(count + 1), np.arange(count, dtype=np.uint32))


def _fixed(some: Pairs) -> BoolArray:
    """By `FixedAreas`: a group for each pair."""
    count = len(some.lon)
    values = np.column_stack([some.lon, some.lat, some.metres, np.zeros(count)])
    shapes = Shapes(np.full(count, CIRCLE, np.uint8), values)
    areas = FixedAreas.of(np.arange(count), count, shapes, plane=False)
    return np.diff(areas.holding(Places(some.at_lon, some.at_lat), _one_group_each(count)).offsets) > 0


def _of_clients(some: Pairs) -> BoolArray:
    """By `ClientCells`: a client for each pair, in a group of its own."""
    count = len(some.lon)
    each = np.arange(count)
    cells = ClientCells.of(each, count, each, some.metres, some.lon, some.lat, plane=False)
    return np.diff(cells.near(Places(some.at_lon, some.at_lat), _one_group_each(count)).offsets) > 0


def _of_index(bench: Bench, count: int) -> Iterator[_Compared]:
    """By an index of some areas, each of which is a pair with each of many places."""
    random = np.random.default_rng(bench.options.seed + 1)
    areas = min(_AREAS, count)
    places = -(-count // areas)
    stored, asked = pairs(areas, random), pairs(places, random)
    columns = [pa.array(column) for column in (stored.lon, stored.lat, stored.metres)]
    area = pa.StructArray.from_arrays(columns, ["lon", "lat", "metres"])
    # Half of the places are those of the areas' own pairs, near their borders
    own = np.arange(places) % 2 == 0
    which = np.arange(places) % areas
    lon, lat = (
        np.where(own, of[which], others)
        for of, others in ((stored.at_lon, asked.at_lon), (stored.at_lat, asked.at_lat))
    )
    with ExitStack() as stack:
        index: TagMatch = stack.enter_context(TagMatch(threads=1, device="cpu"))
        index.add_subscriptions(pa.table({"key": np.arange(areas, dtype=np.uint64), "area": area}))
        index.consolidate()
        location = pa.StructArray.from_arrays([pa.array(lon), pa.array(lat)], ["lon", "lat"])
        found = index.match_many(pa.table({"location": location}))
    offsets, keys, left = found.offsets.to_numpy(), found.values.to_numpy(), count
    for place in range(places):
        some = min(areas, left)
        left -= some
        given = np.bincount(keys[offsets[place] : offsets[place + 1]].astype(np.int64), minlength=areas)[:some] > 0
        at = (np.full(areas, lon[place]), np.full(areas, lat[place]))
        right, near = stored._replace(at_lon=at[0], at_lat=at[1]).has()
        yield given, right[:some], near[:some]
