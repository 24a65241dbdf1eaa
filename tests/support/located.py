"""Subscriptions with areas that Hypothesis draws, and which messages each is for: by Python's own `math`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from support import places

from tagmatch import Box, Circle, Near

CLIENTS = 5
TAGS = ["a", "b", "c"]
tag_sets = st.sets(st.sampled_from(TAGS), max_size=2)


@dataclass(frozen=True)
class Subscription:
    """What a client asks for: tags, perhaps an expression, areas that have the message, and others that have not."""

    tags: frozenset[str]
    client: int
    tree: Any
    areas: tuple[places.Area, ...]
    without: tuple[places.Area, ...]
    near: float | None

    @property
    def where(self) -> str | None:
        """But for the first of `areas`, which is given as such."""
        parts = [f"within {text_of(area)}" for area in self.areas[1:]]
        parts += [f"not within {text_of(area)}" for area in self.without]
        if self.near is not None and self.areas:
            parts.append(f"within near({self.near!r})")
        if self.tree is not None:
            parts.append(f"({self.tree[0]})")
        return " and ".join(parts) or None

    @property
    def area(self) -> Any:
        if self.areas:
            return public(self.areas[0])
        return None if self.near is None else Near(self.near)


def public(area: places.Area) -> Circle | Box:
    if isinstance(area, places.Box):
        return Box(area.west, area.south, area.east, area.north)
    return Circle(area.lon, area.lat, area.metres)


def text_of(area: places.Area) -> str:
    numbers = (area.lon, area.lat, area.metres) if isinstance(area, places.Circle) else (
        area.west, area.south, area.east, area.north
    )  # fmt: skip
    return f"{'circle' if isinstance(area, places.Circle) else 'box'}({', '.join(map(repr, numbers))})"


def all_of(found: list[bool | None]) -> bool | None:
    """Whether all hold; `None` where the last digits of one decide."""
    return False if False in found else None if None in found else True


def holds(
    each: Subscription,
    tags: set[str],
    attributes: dict[str, Any],
    location: Any,
    within: Any,
    at: dict[int, Any],
    *,
    plane: bool,
) -> bool | None:
    nowhere = location is None
    place = places.NOWHERE if nowhere else location
    client = at.get(each.client, places.NOWHERE)
    found: list[bool | None] = [each.tags <= tags]
    if each.tree is not None:
        found.append(each.tree[1](attributes))
    found += [places.holds(area, place, plane=plane) for area in each.areas]
    found += [not_(places.holds(area, place, plane=plane)) for area in each.without]
    if each.near is not None:
        if not nowhere:
            found.append(
                places.holds(places.Circle(*client, each.near), place, plane=plane)
                if client != places.NOWHERE
                else False
            )
        elif within is None:
            found.append(False)
    if within is not None:
        found.append(places.holds(within, client, plane=plane))
    return all_of(found)


def not_(found: bool | None) -> bool | None:
    return None if found is None else not found


# Expressions with what they mean; tests of conditions have many more
TREES = [("x < 3", lambda given: given.get("x", 9) < 3), ("not x < 3", lambda given: not given.get("x", 9) < 3)]


@st.composite
def subscriptions(draw: st.DrawFn, *, plane: bool) -> Subscription:
    drawn = st.lists(finite_areas(plane=plane), max_size=2).map(tuple)
    return Subscription(
        frozenset(draw(tag_sets)),
        draw(st.integers(0, CLIENTS - 1)),
        draw(st.none() | st.sampled_from(TREES)),
        draw(drawn),
        draw(st.just(()) | drawn),
        draw(st.none() | radii(plane=plane)),
    )


def radii(*, plane: bool) -> st.SearchStrategy[float]:
    return places.radii(plane=plane).filter(math.isfinite)


def finite_areas(*, plane: bool) -> st.SearchStrategy[places.Area]:
    """Those that an index takes."""
    found = places.areas(plane=plane).filter(lambda area: all(map(math.isfinite, area.values)))
    return found.filter(lambda area: not plane or not isinstance(area, places.Box) or area.west <= area.east)


def located(*, plane: bool) -> st.SearchStrategy[Any]:
    return st.none() | places.places(plane=plane)


def keys_of(
    left: list[Subscription], tags, attributes, location, within, at, *, plane: bool
) -> tuple[set[int], set[int]]:
    """Keys that an answer must have, and those that it may have."""
    said = [(each.client, holds(each, tags, attributes, location, within, at, plane=plane)) for each in left]
    return {key for key, each in said if each}, {key for key, each in said if each is not False}
