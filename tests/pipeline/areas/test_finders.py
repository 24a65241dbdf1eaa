"""Areas that stay where they are, and clients that move, one thread at a time, against brute force."""

import random

import numpy as np
import pyarrow as pa
import pytest
from support.distances import has
from support.finders import *  # noqa: F403
from support.finders import Finders, Modelled, both
from support.places import NOWHERE, Place, lists_of, place_at_edge, places_of, random_area, random_place, shapes_of

from tagmatch import TagMatch
from tagmatch.model.kernels.sphere import CIRCLE, areas_have
from tagmatch.pipeline.areas.chunks import Shapes
from tagmatch.pipeline.areas.fixed import FixedAreas


@pytest.fixture
def finders() -> Finders:
    return Finders()


@both
def test_columns_say_the_same(rng: random.Random, plane: bool) -> None:
    """`areas_have`, for all else that asks."""
    drawn = [random_area(rng, plane) for _ in range(3000)]
    asked = [rng.choice([random_place(rng, plane), place_at_edge(rng, area)]) for area in drawn]
    got = areas_have(*shapes_of(drawn), *places_of(asked), plane=plane).tolist()
    want = [has(area, place, plane=plane) for area, place in zip(drawn, asked, strict=True)]
    assert all(w is None or w == g for w, g in zip(want, got, strict=True))


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
