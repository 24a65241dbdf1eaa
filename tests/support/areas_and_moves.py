"""Areas of sets as the library names them, which say themselves what they have: by `math` alone."""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
from support import areas, oracle, places

from tagmatch import Box, Circle, Near, Where
from tagmatch.model.filters.language import rows_of

Place = tuple[float, float]
Area = Circle | Box | Near

#: Few, so that they meet; the last digits of none decide
PLACES: list[Place] = [(9, 45), (9.01, 45), (9.5, 45.5), (179.9, 0), (-179.9, 5), (0, 90), (0, -90), (20, 0)]
SHAPES: list[Circle | Box] = [
    Circle(9, 45, 1000), Circle(9.005, 45, 50_000), Circle(180, 0, 300_000), Circle(0, 90, 2e6), Circle(0, 0, 3e7),
    Box(8, 44, 10, 46), Box(179, -10, -179, 10), Box(-180, -90, 180, 0),
]  # fmt: skip
NEARS: list[Near] = [Near(0), Near(1000), Near(60_000), Near(600_000), Near(1.9e7)]
AREAS: list[Area] = [*SHAPES, *NEARS]


class AreaCondition(Where):
    """An area as the library names it in a stored set."""

    area: Area

    def holds(self, tags: Any, attributes: Any) -> bool:  # noqa: ARG002
        """Whatever these are; `holds_at` says more."""
        return True

    def holds_at(self, location: Place | None, within: Circle | Box | None, client: Place | None) -> bool:
        """Whether a message there, for clients within an area, is for this client."""
        if not isinstance(self.area, Near):
            return location is not None and has(self.area, location)
        if location is None:
            return within is not None
        return client is not None and has(Circle(*client, self.area.metres), location)

    def __deepcopy__(self, _: Any) -> AreaCondition:
        return self


@cache
def condition_of(area: Area) -> AreaCondition:
    """The condition that stands for an area."""
    ((tags, (named,)),) = rows_of(areas.text_of(area))
    assert not tags
    condition = AreaCondition(Where.of_tag(named))
    condition.area = area
    return condition


@cache
def has(area: Circle | Box, place: Place) -> bool:
    """Whether an area on the sphere has a place."""
    shape = (
        places.Circle(area.lon, area.lat, area.metres)
        if isinstance(area, Circle)
        else places.Box(area.west, area.south, area.east, area.north)
    )
    found = places.holds(shape, place, plane=False)
    assert found is not None, f"the last digits decide whether {area} has {place}"
    return found


class At(NamedTuple):
    """Where a message is, and in which area clients must be."""

    location: Place | None = None
    within: Circle | Box | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What the library gets."""
        return self._asdict()


def any_at(rng: random.Random) -> At:
    return At(rng.choice([None, *PLACES]), rng.choice([None, None, *SHAPES]))


def located_table(asked: list[tuple[list[str], At]]) -> pa.Table:
    """Messages without attributes as a table."""
    lists = pa.list_(pa.float64())
    within = pa.struct({"kind": pa.string(), **dict.fromkeys(areas.FIELDS, pa.float64())})
    return pa.table(
        {
            "tags": pa.array([list(tags) for tags, _ in asked], pa.list_(pa.string())),
            "location": pa.array([at.location and list(at.location) for _, at in asked], lists),
            "within": pa.array([at.within and _struct(at.within) for _, at in asked], within),
        }
    )


def _struct(area: Circle | Box) -> dict[str, Any]:
    fields = {name: getattr(area, name) for name in areas.FIELDS if hasattr(area, name)}
    return {"kind": type(area).__name__.lower(), **fields}


oracle.ask_of_areas(sys.modules[__name__])
