"""Areas that stay, and clients that move, one thread at a time, against brute force."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest
from support.distances import EARTH, has
from support.finders import *  # noqa: F403
from support.finders import Finders, Modelled, assert_holding, both, without_cells
from support.places import (
    NOWHERE,
    Area,
    Circle,
    Place,
    lists_of,
    place_at_edge,
    places_of,
    random_area,
    random_place,
    shapes_of,
)

from tagmatch import TagMatch
from tagmatch.model.input.places import NO_OUTLINES
from tagmatch.model.kernels.outlines import Areas, areas_have
from tagmatch.model.kernels.sphere import CIRCLE
from tagmatch.pipeline.areas.chunks import Shapes
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.grids import EMPTY


@pytest.fixture
def finders() -> Finders:
    return Finders()


@both
def test_columns_say_the_same(rng: random.Random, plane: bool) -> None:
    """`areas_have`, for all else that asks."""
    drawn = [random_area(rng, plane) for _ in range(3000)]
    asked = [rng.choice([random_place(rng, plane), place_at_edge(rng, area)]) for area in drawn]
    areas = Areas(*shapes_of(drawn), *NO_OUTLINES)
    got = areas_have(areas, np.arange(len(drawn)), *places_of(asked), plane=plane).tolist()
    want = [has(area, place, plane=plane) for area, place in zip(drawn, asked, strict=True)]
    assert all(w is None or w == g for w, g in zip(want, got, strict=True))


def _small(rng: random.Random, plane: bool, count: int, groups: int) -> list[tuple[int, Area]]:
    """Circles of nearly one size; a place is in a few. On the sphere, some are where its sides meet."""
    reach = math.sqrt(2 * groups / count)
    found: list[tuple[int, Area]] = []
    for _ in range(count):
        x, y = random_place(rng, plane)
        if not plane and rng.random() < 0.3:
            x, y = rng.choice([45, -135, 90 * rng.random()]) + rng.gauss(0, 1), rng.choice([35.26, 0]) + rng.gauss(0, 1)
        size = reach * rng.uniform(0.8, 1.25)
        found.append((rng.randrange(groups), Circle(x, y, size if plane else size * EARTH / 2)))
    return found


@both
@pytest.mark.parametrize("group_count", [1, 3])
def test_small_circles_are_decided_by_cells(rng: random.Random, plane: bool, group_count: int) -> None:
    """Most messages; those with a place nearly at an edge are not, and go by chunks."""
    stored = _small(rng, plane, 1500, group_count)
    edges = [(group, place_at_edge(rng, area)) for group, area in rng.choices(stored, k=300)]
    messages = [(place, list({group, rng.randrange(group_count)})) for group, place in edges]
    messages += [(random_place(rng, plane), list(range(group_count))) for _ in range(100)]
    numbers = np.array([group for group, _ in stored], np.int64)
    fixed = FixedAreas.of(numbers, group_count, shapes_of([area for _, area in stored]), plane=plane)
    assert (fixed.fine.sides[2::3] >= 0).all()
    assert assert_holding(stored, group_count, messages, plane=plane, finder=lambda areas: areas) > len(messages)


@both
def test_cells_that_list_nothing(rng: random.Random, plane: bool) -> None:
    """Too many circles are at one place, of no size and of one, and some circles are too large for their cells."""
    stored = _small(rng, plane, 2000, 1)
    at = stored[0][1]
    assert isinstance(at, Circle)
    stored += [(0, at)] * 200 + [(0, at._replace(metres=0.0))] * 20
    stored += [(0, Circle(*random_place(rng, plane), 6 * at.metres)) for _ in range(3)]
    rng.shuffle(stored)
    fixed = FixedAreas.of(np.zeros(len(stored), np.int64), 1, shapes_of([area for _, area in stored]), plane=plane)
    of_cells = fixed.fine.cells[:-1]
    assert 0 < np.count_nonzero(of_cells >= 1 << 31) < len(of_cells) // 2
    places = [(at.lon, at.lat), *(place_at_edge(rng, area) for _, area in rng.choices(stored, k=200))]
    found = assert_holding(stored, 1, [(place, [0]) for place in places], plane=plane, finder=lambda areas: areas)
    assert found > 220


def test_cells_of_chunks_without_a_point_of_the_sphere_are_empty(rng: random.Random) -> None:
    """And no others that a chunk reaches into."""
    anywhere = [(rng.uniform(-180, 180), math.degrees(math.asin(rng.uniform(-1, 1)))) for _ in range(60_000)]
    stored: list[tuple[int, Area]] = [(0, Circle(*place, 6e4)) for place in anywhere]
    fixed = FixedAreas.of(np.zeros(len(stored), np.int64), 1, shapes_of([area for _, area in stored]), plane=False)
    grids = fixed.circles
    side, first = grids.sides[:2].tolist()
    axes = []
    for low, by in grids.frames[:6].reshape(3, 2).tolist():
        ends = low + np.arange(side + 1) / by
        ends[0], ends[-1] = -np.inf, np.inf
        least = np.where((ends[:-1] <= 0) & (ends[1:] >= 0), 0.0, np.minimum(ends[:-1] ** 2, ends[1:] ** 2))
        axes.append((least, np.maximum(ends[:-1] ** 2, ends[1:] ** 2)))
    least, most = (axes[0][i][:, None, None] + axes[1][i][:, None] + axes[2][i] for i in range(2))
    has_none = ((least > 1 + 1e-9) | (most < 1 - 1e-9)).ravel()
    assert side > 3
    assert np.count_nonzero(has_none) > side
    assert (grids.cells[first : first + side**3][has_none] == EMPTY).all()
    # Also in cells at a corner of the sphere: cells of small circles know the answers
    count = 30_000
    lat = np.degrees(np.arcsin(np.random.default_rng(rng.randrange(1000)).uniform(-1, 1, count)))
    asked = places_of(list(zip(np.linspace(-180, 180, count), lat, strict=True))), lists_of([[0]] * count)
    by_chunks, by_cells = without_cells(fixed).find(*asked), fixed.find(*asked)
    assert by_chunks.lengths().sum() > count
    assert np.array_equal(by_chunks.offsets, by_cells.offsets)


@pytest.mark.slow
def test_a_million_take_little_memory() -> None:
    """At most 80 bytes each."""
    at = np.random.default_rng(1).uniform(-80, 80, (1_000_000, 2))
    values = np.column_stack([at, np.full(len(at), 1000.0), np.zeros(len(at))])
    circles = Shapes(np.full(len(at), CIRCLE, np.uint8), values)
    assert FixedAreas.of(np.zeros(len(at), np.int64), 1, circles, plane=False).nbytes <= 80 * len(at)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [NOWHERE, (3.0, 4.0)])
def test_cells_are_made_anew_where_clients_gather(rng: random.Random, begin: Place) -> None:
    """All begin nowhere, or at one place, which tells nothing, then come to one town, then spread."""
    count, group = 3000, [0]
    modelled = Modelled([(0, client, 0.01) for client in range(count)], 1, [begin] * count, plane=True)
    in_one_chain = count // 16 * 576
    for size in (1e-3, 10.0, 1e-3):
        for _ in range(2):
            modelled.move([(c, (rng.uniform(0, size), rng.uniform(0, size))) for c in range(count)])
            asked = [(rng.uniform(0, size), rng.uniform(0, size)) for _ in range(20)]
            modelled.assert_found([(None, place, group) for place in asked])
        evened_out = modelled.cells.nbytes
        modelled.move([(c, begin) for c in range(count)])
        assert begin == NOWHERE or modelled.cells.nbytes > evened_out + in_one_chain // 2
        modelled.move([(c, (0.0, 0.0)) for c in range(count)])


def test_a_client_that_is_not_there() -> None:
    modelled = Modelled([(0, 0, 1.0)], 1, [(0.0, 0.0)], plane=True)
    for client in (-1, 1):
        with pytest.raises(IndexError, match="numbered from 0 to 0"):
            modelled.move([(0, (5.0, 5.0)), (client, (0.0, 0.0))])
    assert modelled.assert_found([(None, (0.0, 0.0), [0])]) == 1


def test_answers_of_any_length_are_whole() -> None:
    """Few messages find all, most nothing: no room is made for that beforehand."""
    count = 20_000
    cells = Modelled([(0, client, 1.0) for client in range(count)], 2, [(0.0, 0.0)] * count, plane=True).cells
    groups = [[0] if i % 97 == 50 else [1] for i in range(500)]
    found = cells.find(places_of([(0.0, 1.0)] * 500), lists_of(groups))
    assert found.lengths().tolist() == [count if asked == [0] else 0 for asked in groups]
    assert np.array_equal(np.sort(found.values[:count]), np.arange(count))


SETS = 3000
SMALL, HALF = 0.001, 0.4


@pytest.mark.parametrize(
    ("name", "tags", "radius", "where", "first"),
    [
        ("few share a content", [["a", str(i)] for i in range(SETS)], SMALL, None, SETS),
        ("many share one, whose areas are small", [["a"]] * SETS, SMALL, None, SETS),
        ("many share one, whose areas are large", [["a"]] * SETS, HALF, None, 0),
        ("nothing is asked", [[]] * SETS, SMALL, None, 0),
        # A message with `all` has hardly any of the others, and is in half of the areas
        ("rare contents, large areas", [[f"{i % 50} a", f"{i // 50} b"] for i in range(SETS)], HALF, None, 0),
        ("no token", [[]] * SETS, SMALL, [f"x != {i}" for i in range(SETS)], SETS),
    ],
)  # fmt: skip
def test_what_comes_first(name: str, tags: list[list[str]], radius: float, where: list[str] | None, first: int) -> None:
    """Contents or areas, of sets with circles anywhere in a square; users find the same either way."""
    x, y = np.random.default_rng(1).random((2, len(tags)))
    numbers = [pa.array(each) for each in (x, y, np.full(len(tags), radius))]
    circles = pa.StructArray.from_arrays(numbers, ["lon", "lat", "metres"])
    columns = {"tags": pa.array(tags, pa.list_(pa.string())), "key": np.arange(len(tags)), "area": circles}
    with TagMatch(device="cpu", plane=True) as tm:
        tm.add_subscriptions(pa.table(columns if where is None else {**columns, "where": where}))
        tm.consolidate()
        (part,) = tm._engine.changing.answering[1]
        assert np.count_nonzero(part.areas.sets.of_rows >= 0) == first, name
