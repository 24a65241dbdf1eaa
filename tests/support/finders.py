"""What finds areas and clients by where messages are, held to brute force: how, and tests of the CPU and of devices."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.distances import EARTH, has
from support.places import (
    NOWHERE,
    Area,
    Box,
    Circle,
    Place,
    areas,
    lists_of,
    message_places,
    place_at_edge,
    places_of,
    radii,
    random_area,
    random_place,
    rows_of,
    shapes_of,
)  # fmt: skip
from support.simulator import SIMULATED

from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fine import fine_cells
from tagmatch.pipeline.areas.fixed import FixedAreas

Entry = tuple[int, int, float]  # group, client, metres


class Finders(NamedTuple):
    """What makes that which is asked of areas that stay, and of clients; without, the CPU is asked."""

    areas: Callable[[FixedAreas], Any] = lambda fixed: fixed
    clients: Callable[[ClientCells], Any] = lambda cells: cells


def assert_holding(
    stored: list[tuple[int, Area]], group_count: int, messages: list[tuple[Place, list[int]]], *, plane: bool,
    finder: Callable[[FixedAreas], Any],
) -> int:  # fmt: skip
    """Each message finds what brute force finds, once; how many in all.

    `finder` makes the finder, which says the same as the areas themselves to the last digit.
    """
    groups = np.array([group for group, _ in stored], np.int64)
    fixed = FixedAreas.of(groups, group_count, shapes_of([area for _, area in stored]), plane=plane)
    columns = places_of([p for p, _ in messages]), lists_of([g for _, g in messages])
    found = rows_of(finder(fixed).find(*columns))
    for other in (fixed, without_cells(fixed)):
        assert list(map(sorted, found)) == list(map(sorted, rows_of(other.find(*columns))))
    assert len(found) == len(messages)
    for (place, asked), row in zip(messages, found, strict=True):
        answers = {i: has(area, place, plane=plane) for i, (group, area) in enumerate(stored) if group in asked}
        _assert_right(row, answers)
    return sum(map(len, found))


def _assert_right(row: list[int], answers: dict[int, bool | None]) -> None:
    """What is found is what should be, or what the last digits decide of; each once."""
    assert len(row) == len(set(row))
    sure, possible = ({i for i, answer in answers.items() if answer in kinds} for kinds in ([True], [True, None]))
    assert sure <= set(row) <= possible


def without_cells(fixed: FixedAreas) -> FixedAreas:
    """The same areas, reached by chunks alone."""
    return replace(fixed, fine=fine_cells(fixed.boxes._replace(slots=fixed.boxes.slots[:1]), plane=fixed.plane))


class Modelled:
    """Cells, and a list of each client's place; `finder` makes the finder of clients nearby."""

    def __init__(
        self, entries: list[Entry], group_count: int, at: list[Place], *, plane: bool,
        finder: Callable[[ClientCells], Any] = lambda cells: cells,
    ) -> None:  # fmt: skip
        self.entries, self.at, self.plane = entries, list(at), plane
        groups, clients = (np.array([entry[i] for entry in entries], np.int64) for i in range(2))
        metres = np.array([metres for _, _, metres in entries], np.float64)
        places = places_of(at)
        self.cells = ClientCells(groups, group_count, clients, metres, places, plane=plane)
        self.finder = finder(self.cells)

    def move(self, moves: list[tuple[int, Place]]) -> None:
        places = places_of([place for _, place in moves])
        self.cells.move(np.array([client for client, _ in moves], np.int64), places.lon, places.lat)
        for client, place in moves:
            self.at[client] = place

    def _answer(self, entry: Entry, area: Area | None, place: Place | None) -> bool | None:
        at, asked = self.at[entry[1]], []
        if area is not None:
            asked.append(has(area, at, plane=self.plane))
        if place is not None and (area is None or not math.isnan(sum(place))):
            asked.append(not math.isnan(sum(at)) and has(Circle(*at, entry[2]), place, plane=self.plane))
        return False if False in asked else None if None in asked else True

    def assert_found(self, messages: list[tuple[Area | None, Place | None, list[int]]]) -> int:
        """Messages all have areas, or none has. How many entries they find."""
        areas, places, groups = [a for a, _, _ in messages], [p for _, p, _ in messages], [g for _, _, g in messages]
        where = places_of([place or NOWHERE for place in places])
        if areas[0] is None:
            found = self.finder.find(where, lists_of(groups))
            # to the last digit
            on_cpu = rows_of(self.cells.find(where, lists_of(groups)))
            assert list(map(sorted, rows_of(found))) == list(map(sorted, on_cpu))
        else:
            found = self.cells.find(where, lists_of(groups), shapes_of([area for area in areas if area]))
        for (area, place, asked), row in zip(messages, rows_of(found), strict=True):
            answers = {i: self._answer(e, area, place) for i, e in enumerate(self.entries) if e[0] in asked}
            _assert_right(row, answers)
        return len(found.values)


# -- tests, which take a fixture `finders` of the importing module -----------------------------------------------------

both = pytest.mark.parametrize("plane", [True, False], ids=["plane", "sphere"])
_one_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
#: Whether messages have areas, and places
_WAYS = [(False, True), (True, False), (True, True)]


@_one_fixture
@given(data=st.data(), plane=st.booleans(), group_count=st.integers(1, 5))
def test_areas_that_brute_force_finds(finders: Finders, data: st.DataObject, plane: bool, group_count: int) -> None:
    """Of few areas, and where others are, so that the tree has several levels."""
    group, rng = st.integers(0, group_count - 1), random.Random(1)
    others = [
        (rng.randrange(group_count), random_area(rng, plane)) for _ in range(data.draw(st.sampled_from([0, 400])))
    ]
    stored = others + data.draw(st.lists(st.tuples(group, areas(plane=plane)), max_size=40))
    asked = st.lists(group, unique=True)
    messages = data.draw(st.lists(st.tuples(message_places(plane=plane), asked), max_size=20))
    assert_holding(stored, group_count, messages, plane=plane, finder=finders.areas)


@both
@pytest.mark.parametrize("group_count", [1, 3, 400])
def test_thousands_of_areas(finders: Finders, rng: random.Random, plane: bool, group_count: int) -> None:
    """Four levels, and groups that begin and end within chunks and records of others."""
    stored = [(rng.randrange(group_count), random_area(rng, plane)) for _ in range(1000 if SIMULATED else 3000)]
    messages = []
    for _ in range(25 if SIMULATED else 100):
        group, area = rng.choice(stored)
        others = rng.sample(range(group_count), rng.randint(0, min(group_count, 30)))
        place = rng.choice([random_place(rng, plane), NOWHERE, *(place_at_edge(rng, area) for _ in range(4))])
        messages.append((place, list({group, *others})))
    found = assert_holding(stored, group_count, messages, plane=plane, finder=finders.areas)
    assert found > 0 or SIMULATED


@both
def test_hot_spots(finders: Finders, rng: random.Random, plane: bool) -> None:
    """Small areas gather at one place, smaller ones within, and some are anywhere: a grid's cell has another grid."""
    x, y = random_place(rng, plane)
    stored: list[tuple[int, Area]] = [(0, random_area(rng, plane)) for _ in range(100 if SIMULATED else 1000)]
    for spread in (0.1, 1e-4):
        for _ in range(50 if SIMULATED else 1500):
            lon, lat, size = x + rng.gauss(0, spread), y + rng.gauss(0, spread), spread * rng.random() / 30
            if not plane and (abs(lon) > 180 or abs(lat) > 90):
                continue
            area = Circle(lon, lat, size if plane else math.radians(size) * EARTH)
            stored.append((0, rng.choice([area, Box(lon, lat, min(lon + size, 180.0), min(lat + size, 90.0))])))
    edges = [place_at_edge(rng, area) for _, area in rng.sample(stored, 20 if SIMULATED else 200)]
    asked = [(place, [0]) for place in edges if plane or (abs(place[0]) <= 180 and abs(place[1]) <= 90)]
    assert assert_holding(stored, 1, asked, plane=plane, finder=finders.areas) > 0


def test_areas_at_one_place(finders: Finders, rng: random.Random) -> None:
    """In groups that share chunks, and a few elsewhere."""
    at, each = (0.5, 0.25), 100 if SIMULATED else 2500
    stored: list[tuple[int, Area]] = [(rng.randrange(3), Circle(*at, 0.0)) for _ in range(each)]
    stored += [(rng.randrange(3), Box(*at, *at)) for _ in range(each)]
    stored += [(rng.randrange(3), random_area(rng, plane=False)) for _ in range(100)]
    rng.shuffle(stored)
    messages = [(at, [0, 2]), ((0.5, 0.2500001), [0, 1, 2]), (at, [1]), (NOWHERE, [1]), (at, [])]
    assert assert_holding(stored, 3, messages, plane=False, finder=finders.areas) >= 2 * each


@both
def test_more_areas_than_there_is_room_for(finders: Finders, rng: random.Random, plane: bool) -> None:
    """Few messages find nearly all, most nothing; the next packet finds room."""
    count, messages = (300, 9) if SIMULATED else (8_000, 500)
    stored: list[Area] = [*[Circle(0.0, 0.0, 1e8)] * count, *[Box(-180, -90, 180, 90)] * count]
    asked = [((rng.uniform(-80, 80), 0.0), [0] if i % 97 == 5 else [1]) for i in range(messages)]
    there = finders.areas(FixedAreas.of(np.zeros(2 * count, np.int64), 2, shapes_of(stored), plane=plane))
    for _ in range(2):
        found = there.find(places_of([place for place, _ in asked]), lists_of([groups for _, groups in asked]))
        assert found.lengths().tolist() == [2 * count if groups == [0] else 0 for _, groups in asked]
        assert all(sorted(row) in ([], list(range(2 * count))) for row in rows_of(found))


def test_no_areas_and_nobody_asks(finders: Finders) -> None:
    none = finders.areas(FixedAreas.of(np.zeros(0, np.int64), 3, shapes_of([]), plane=False))
    assert rows_of(none.find(places_of([(0.0, 0.0)]), lists_of([[0, 1, 2]]))) == [[]]
    one = finders.areas(FixedAreas.of(np.zeros(1, np.int64), 1, shapes_of([Circle(0.0, 0.0, 1.0)]), plane=False))
    for groups in ([], [[], [0]]):
        assert rows_of(one.find(places_of([(0.0, 0.0)] * len(groups)), lists_of(groups))) == groups
    assert one.nbytes > none.nbytes
    unasked = Modelled([], 2, [(0.0, 0.0)], plane=False, finder=finders.clients)
    unasked.move([(0, (1.0, 1.0))])
    assert unasked.assert_found([(None, (1.0, 1.0), [0, 1])]) == 0
    assert len(unasked.finder.find(places_of([]), lists_of([]))) == 0


@_one_fixture
@given(data=st.data(), plane=st.booleans(), group_count=st.integers(1, 4), client_count=st.integers(1, 12))
def test_clients_are_where_they_moved_last(
    finders: Finders, data: st.DataObject, plane: bool, group_count: int, client_count: int
) -> None:
    """Some come, some leave, some move several times at once, or more often than a log keeps."""
    group, client = st.integers(0, group_count - 1), st.integers(0, client_count - 1)
    place, asked = message_places(plane=plane), st.lists(group, unique=True)
    entries = data.draw(st.lists(st.tuples(group, client, radii(plane=plane)), max_size=50))
    at = data.draw(st.lists(place, min_size=client_count, max_size=client_count))
    modelled = Modelled(entries, group_count, at, plane=plane, finder=finders.clients)
    for _ in range(data.draw(st.integers(1, 3))):
        for has_area, has_place in _WAYS:
            area = areas(plane=plane) if has_area else st.none()
            one = st.tuples(area, place if has_place else st.none(), asked)
            modelled.assert_found(data.draw(st.lists(one, min_size=1, max_size=8)))
        for _ in range(data.draw(st.integers(0, 2))):
            modelled.move(data.draw(st.lists(st.tuples(client, place), max_size=20)))


@both
@pytest.mark.parametrize("group_count", [1, 100])
def test_thousands_that_move(finders: Finders, rng: random.Random, plane: bool, group_count: int) -> None:
    """Clients with one entry and with many, radii of all sizes, hot spots, and clients that come and go."""
    client_count, spot = 60 if SIMULATED else 900, random_place(rng, plane)

    def place() -> Place:
        return rng.choice([random_place(rng, plane), random_place(rng, plane), spot, NOWHERE])

    owners = [rng.randrange(client_count) for _ in range(300 if SIMULATED else 1200)] + [7] * 100
    entries = [
        (rng.randrange(group_count), client, 10 ** (rng.uniform(-5, 0.5) if plane else rng.uniform(0, 7.5)))
        for client in owners
    ]
    at = [place() for _ in range(client_count)]
    modelled, total = Modelled(entries, group_count, at, plane=plane, finder=finders.clients), 0
    for moves in (0, client_count // 2, 3 * client_count):
        modelled.move([(rng.choice([7, rng.randrange(client_count)]), place()) for _ in range(moves)])
        for has_area, has_place in _WAYS:
            messages = [
                (
                    random_area(rng, plane) if has_area else None,
                    place() if has_place else None,
                    rng.sample(range(group_count), rng.randint(1, min(group_count, 40))),
                )
                for _ in range(6 if SIMULATED else 12)
            ]
            total += modelled.assert_found(messages)
    assert total > 0
