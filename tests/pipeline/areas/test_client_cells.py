"""Clients that move, one thread at a time, against brute force."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.finders import Modelled
from support.places import (
    NOWHERE,
    Place,
    areas,
    lists_of,
    message_places,
    places_of,
    radii,
    random_area,
    random_place,
)

pytestmark = pytest.mark.usefixtures("both_ways")
one_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

WAYS = [(False, True), (True, False), (True, True)]


@one_fixture
@given(data=st.data(), plane=st.booleans(), group_count=st.integers(1, 4), client_count=st.integers(1, 12))
def test_finds_what_brute_force_finds(data: st.DataObject, plane: bool, group_count: int, client_count: int) -> None:
    group, client, place = (
        st.integers(0, group_count - 1),
        st.integers(0, client_count - 1),
        message_places(plane=plane),
    )
    entries = data.draw(st.lists(st.tuples(group, client, radii(plane=plane)), max_size=50))
    at = data.draw(st.lists(place, min_size=client_count, max_size=client_count))
    modelled = Modelled(entries, group_count, at, plane=plane)
    asked = st.lists(group, unique=True)
    for _ in range(data.draw(st.integers(1, 3))):
        for has_area, has_place in WAYS:
            area = areas(plane=plane) if has_area else st.none()
            one = st.tuples(area, place if has_place else st.none(), asked)
            modelled.assert_found(data.draw(st.lists(one, min_size=1, max_size=8)))
        modelled.move(data.draw(st.lists(st.tuples(client, place), max_size=20)))


@pytest.mark.parametrize("plane", [True, False], ids=["plane", "sphere"])
@pytest.mark.parametrize("group_count", [1, 100])
def test_thousands_that_move(rng: random.Random, plane: bool, group_count: int) -> None:
    """Clients with one entry and with many, radii of all sizes, hot spots, and clients that come and go."""
    client_count, spot = 900, random_place(rng, plane)

    def metres() -> float:
        return 10 ** (rng.uniform(-5, 0.5) if plane else rng.uniform(0, 7.5))

    def place() -> Place:
        return rng.choice([random_place(rng, plane), random_place(rng, plane), spot, NOWHERE])

    owners = [rng.randrange(client_count) for _ in range(2500)] + [7] * 500
    entries = [(rng.randrange(group_count), client, metres()) for client in owners]
    modelled = Modelled(entries, group_count, [place() for _ in range(client_count)], plane=plane)
    total = 0
    for _ in range(3):
        for has_area, has_place in WAYS:
            total += modelled.assert_found(
                [
                    (
                        random_area(rng, plane) if has_area else None,
                        place() if has_place else None,
                        rng.sample(range(group_count), rng.randint(0, min(group_count, 40))),
                    )
                    for _ in range(25)
                ]
            )
        modelled.move([(rng.choice([7, rng.randrange(client_count)]), place()) for _ in range(2000)])
    assert total > 0


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


def test_nobody_and_nothing() -> None:
    none = Modelled([], 2, [(0.0, 0.0)], plane=False)
    none.move([(0, (1.0, 1.0))])
    assert none.assert_found([(None, (1.0, 1.0), [0, 1])]) == 0
    assert len(none.cells.near(places_of([]), lists_of([]))) == 0


def test_answers_of_any_length_are_whole() -> None:
    """Few messages find all, most nothing: no room is made for that beforehand."""
    count = 20_000
    cells = Modelled([(0, client, 1.0) for client in range(count)], 2, [(0.0, 0.0)] * count, plane=True).cells
    groups = [[0] if i % 97 == 50 else [1] for i in range(500)]
    found = cells.near(places_of([(0.0, 1.0)] * 500), lists_of(groups))
    assert found.lengths().tolist() == [count if asked == [0] else 0 for asked in groups]
    assert np.array_equal(np.sort(found.values[:count]), np.arange(count))
