"""What finds areas and clients by where messages are, held to brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from support.distances import has
from support.places import Area, Circle, Place, lists_of, places_of, rows_of, shapes_of

from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas

Entry = tuple[int, int, float]  # group, client, metres


def assert_holding(
    stored: list[tuple[int, Area]],
    group_count: int,
    messages: list[tuple[Place, list[int]]],
    *,
    plane: bool,
    finder: Callable[[FixedAreas], Any] = lambda fixed: fixed,
) -> int:
    """Each message finds what brute force finds, once; how many in all.

    `finder` makes what is asked, which says the same as the areas themselves to the last digit.
    """
    groups = np.array([group for group, _ in stored], np.int64)
    fixed = FixedAreas.of(groups, group_count, shapes_of([area for _, area in stored]), plane=plane)
    columns = places_of([p for p, _ in messages]), lists_of([g for _, g in messages])
    found = rows_of(finder(fixed).holding(*columns))
    assert list(map(sorted, found)) == list(map(sorted, rows_of(fixed.holding(*columns))))
    assert len(found) == len(messages)
    for (place, asked), row in zip(messages, found, strict=True):
        answers = {i: has(area, place, plane=plane) for i, (group, area) in enumerate(stored) if group in asked}
        open_ones = {i for i, answer in answers.items() if answer is None}
        assert len(row) == len(set(row))
        assert set(row) - open_ones == {i for i, answer in answers.items() if answer}
        assert set(row) <= set(answers)
    return sum(map(len, found))


class Modelled:
    """Cells, and a list of where each client is; `finder` makes what is asked who is near."""

    def __init__(
        self,
        entries: list[Entry],
        group_count: int,
        at: list[Place],
        *,
        plane: bool,
        finder: Callable[[ClientCells], Any] = lambda cells: cells,
    ) -> None:
        self.entries, self.at, self.plane = entries, list(at), plane
        groups, clients = (np.array([entry[i] for entry in entries], np.int64) for i in range(2))
        metres = np.array([metres for _, _, metres in entries], np.float64)
        places = places_of(at)
        self.cells = ClientCells.of(groups, group_count, clients, metres, places.lon, places.lat, plane=plane)
        self.finder = finder(self.cells)

    def move(self, moves: list[tuple[int, Place]]) -> None:
        places = places_of([place for _, place in moves])
        self.cells.move(np.array([client for client, _ in moves], np.int64), places.lon, places.lat)
        for client, place in moves:
            self.at[client] = place

    def _answer(self, entry: Entry, area: Area | None, place: Place | None) -> bool | None:
        _, client, metres = entry
        asked = []
        if area is not None:
            asked.append(has(area, self.at[client], plane=self.plane))
        if place is not None:
            here = not math.isnan(sum(self.at[client]))
            asked.append(here and has(Circle(*self.at[client], metres), place, plane=self.plane))
        if False in asked:
            return False
        return None if None in asked else True

    def assert_found(self, messages: list[tuple[Area | None, Place | None, list[int]]]) -> int:
        """Messages all have areas, or none has; likewise places. How many entries they find."""
        areas, places, groups = [a for a, _, _ in messages], [p for _, p, _ in messages], [g for _, _, g in messages]
        where = None if places[0] is None else places_of([place for place in places if place is not None])
        if areas[0] is None:
            assert where is not None
            found = self.finder.near(where, lists_of(groups))
            # to the last digit
            on_cpu = rows_of(self.cells.near(where, lists_of(groups)))
            assert list(map(sorted, rows_of(found))) == list(map(sorted, on_cpu))
        else:
            found = self.cells.inside(shapes_of([area for area in areas if area]), where, lists_of(groups))
        for (area, place, asked), row in zip(messages, rows_of(found), strict=True):
            answers = {i: self._answer(e, area, place) for i, e in enumerate(self.entries) if e[0] in asked}
            assert len(row) == len(set(row))
            assert set(row) <= set(answers)
            open_ones = {i for i, answer in answers.items() if answer is None}
            assert set(row) - open_ones == {i for i, answer in answers.items() if answer}
        return len(found.values)
