"""Areas that stay where they are, against brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.distances import has
from support.finders import assert_holding
from support.places import (
    NOWHERE,
    Area,
    Box,
    Circle,
    areas,
    lists_of,
    message_places,
    place_at_edge,
    places_of,
    random_area,
    random_place,
    rows_of,
    shapes_of,
)

from tagmatch.model.kernels.sphere import boxes_have, circles_have
from tagmatch.pipeline.areas.fixed import FixedAreas

pytestmark = pytest.mark.usefixtures("both_ways")
one_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@one_fixture
@given(data=st.data(), plane=st.booleans(), group_count=st.integers(1, 5))
def test_finds_what_brute_force_finds(data: st.DataObject, plane: bool, group_count: int) -> None:
    """Of few areas, and where others are, so that the tree has several levels."""
    group = st.integers(0, group_count - 1)
    rng = random.Random(1)
    others = [
        (rng.randrange(group_count), random_area(rng, plane)) for _ in range(data.draw(st.sampled_from([0, 400])))
    ]
    stored = others + data.draw(st.lists(st.tuples(group, areas(plane=plane)), max_size=40))
    asked = st.lists(group, unique=True)
    messages = data.draw(st.lists(st.tuples(message_places(plane=plane), asked), max_size=20))
    assert_holding(stored, group_count, messages, plane=plane)


@pytest.mark.parametrize("plane", [True, False], ids=["plane", "sphere"])
@pytest.mark.parametrize("group_count", [1, 3, 400])
def test_thousands_in_groups(rng: random.Random, plane: bool, group_count: int) -> None:
    stored = [(rng.randrange(group_count), random_area(rng, plane)) for _ in range(3000)]
    messages = []
    for _ in range(250):
        group, area = rng.choice(stored)
        others = rng.sample(range(group_count), rng.randint(0, min(group_count, 30)))
        place = rng.choice([random_place(rng, plane), NOWHERE, *(place_at_edge(rng, area) for _ in range(4))])
        messages.append((place, list({group, *others})))
    assert assert_holding(stored, group_count, messages, plane=plane) > 0


@pytest.mark.parametrize("plane", [True, False], ids=["plane", "sphere"])
def test_hot_spots(rng: random.Random, plane: bool) -> None:
    """Thousands at one place, in groups that share chunks, and a few elsewhere."""
    at = (0.5, 0.25)
    stored: list[tuple[int, Area]] = [(rng.randrange(3), Circle(*at, 0.0)) for _ in range(3000)]
    stored += [(rng.randrange(3), Box(*at, *at)) for _ in range(2000)]
    stored += [(rng.randrange(3), random_area(rng, plane)) for _ in range(100)]
    rng.shuffle(stored)
    messages = [(at, [0, 2]), ((0.5, 0.2500001), [0, 1, 2]), (at, [1]), (NOWHERE, [1]), (at, [])]
    assert assert_holding(stored, 3, messages, plane=plane) >= 5000


def test_answers_of_any_length_are_whole(rng: random.Random) -> None:
    """Few messages find nearly all, most nothing: no room is made for that beforehand."""
    everywhere = [(0, Circle(0.0, 0.0, 1e8))] * 20_000
    messages = [((rng.uniform(-180, 180), 0.0), [0] if i % 97 == 50 else [1]) for i in range(500)]
    fixed = FixedAreas.of(
        np.zeros(len(everywhere), np.int64), 2, shapes_of([area for _, area in everywhere]), plane=False
    )
    found = fixed.holding(places_of([p for p, _ in messages]), lists_of([g for _, g in messages]))
    assert found.lengths().tolist() == [20_000 if asked == [0] else 0 for _, asked in messages]
    first = found.values[:20_000]
    assert np.array_equal(np.sort(first), np.arange(20_000))


def test_nothing_stored_and_nobody_asks() -> None:
    none = FixedAreas.of(np.zeros(0, np.int64), 3, shapes_of([]), plane=False)
    assert rows_of(none.holding(places_of([(0.0, 0.0)]), lists_of([[0, 1, 2]]))) == [[]]
    one = FixedAreas.of(np.zeros(1, np.int64), 1, shapes_of([Circle(0.0, 0.0, 1.0)]), plane=False)
    assert rows_of(one.holding(places_of([]), lists_of([]))) == []
    assert one.nbytes > none.nbytes


@pytest.mark.parametrize("plane", [True, False], ids=["plane", "sphere"])
def test_columns_say_the_same(rng: random.Random, plane: bool) -> None:
    """`circles_have` and `boxes_have`, for all else that asks."""
    drawn = [random_area(rng, plane) for _ in range(3000)]
    asked = [rng.choice([random_place(rng, plane), place_at_edge(rng, area)]) for area in drawn]
    for kind, ask in ((Circle, circles_have), (Box, boxes_have)):
        pairs = [(area, place) for area, place in zip(drawn, asked, strict=True) if isinstance(area, kind)]
        values = np.array([area.values[: 3 if kind is Circle else 4] for area, _ in pairs]).T
        columns = [np.ascontiguousarray(column) for column in [*values, *np.array([place for _, place in pairs]).T]]
        got = ask(*columns, plane=plane).tolist()
        want = [has(area, place, plane=plane) for area, place in pairs]
        assert all(w is None or w == g for w, g in zip(want, got, strict=True))


def test_a_million_take_little_memory() -> None:
    """At most 80 bytes each."""
    at = np.random.default_rng(1).uniform(-80, 80, (1_000_000, 2))
    shapes = shapes_of([])
    values = np.column_stack([at, np.full(len(at), 1000.0), np.zeros(len(at))])
    many = FixedAreas.of(np.zeros(len(at), np.int64), 1, type(shapes)(np.zeros(len(at), np.uint8), values), plane=False)
    assert many.nbytes <= 80 * len(at)
