"""A few areas and places that meet, and messages with these."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pyarrow as pa
from support import areas

from tagmatch import Box, Circle, Near

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


#: The type of a column of areas
AREA = pa.struct({"kind": pa.string(), **dict.fromkeys(areas.FIELDS, pa.float64())})


def located_table(asked: list[tuple[list[str], At]]) -> pa.Table:
    """Messages without attributes as a table."""
    lists = pa.list_(pa.float64())
    return pa.table(
        {
            "tags": pa.array([list(tags) for tags, _ in asked], pa.list_(pa.string())),
            "location": pa.array([at.location and list(at.location) for _, at in asked], lists),
            "within": pa.array([struct_of(at.within) for _, at in asked], AREA),
        }
    )


def struct_of(area: Area | None) -> dict[str, Any] | None:
    """An area as a row of a column of areas."""
    return area and {"kind": type(area).__name__.lower()} | {name: getattr(area, name, None) for name in areas.FIELDS}
