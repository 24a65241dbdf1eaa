"""Areas as the library has them: a few that meet, with places and messages, and any that Hypothesis draws."""

import dataclasses
import math
import random
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from oracle import And, Not, Test, Within
from support import places
from support.conditions import Expression
from support.places import Place

from tagmatch import Box, Circle, Near

#: Names of all numbers of circles and boxes
FIELDS = ("lon", "lat", "metres", "west", "south", "east", "north")
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

    location: Place | list[Place] | None = None
    within: Circle | Box | None = None

    #: What the library gets
    options = property(lambda self: self._asdict())


def any_at(rng: random.Random) -> At:
    return At(rng.choice([None, *PLACES]), rng.choice([None, None, *SHAPES]))


#: The type of a column of areas
AREA = pa.struct({"kind": pa.string(), **dict.fromkeys(FIELDS, pa.float64())})


def located_table(asked: list[tuple[list[str], At]]) -> pa.Table:
    """Messages as a table, whose locations are lists of places if one has such a list."""
    lists = pa.list_(pa.float64())
    given: list[Any] = [at.location and list(at.location) for _, at in asked]
    if any(isinstance(at.location, list) for _, at in asked):
        lists = pa.list_(lists)
        given = [[at] if at and not isinstance(at[0], tuple) else at for at in given]
    return pa.table(
        {
            "tags": pa.array([list(tags) for tags, _ in asked], pa.list_(pa.string())),
            "location": pa.array(given, lists),
            "within": pa.array([struct_of(at.within) for _, at in asked], AREA),
        }
    )


def struct_of(area: Area | None) -> dict[str, Any] | None:
    """A row of such a column, with floats, as Spark takes no others."""
    numbers = area and {name: float(value) for name, value in dataclasses.asdict(area).items()}
    return area and {"kind": type(area).__name__.lower(), **dict.fromkeys(FIELDS), **numbers}


# -- any ---------------------------------------------------------------------------------------------------------------


def shapes(*, plane: bool) -> st.SearchStrategy[Circle | Box]:
    """Those that an index takes."""
    found = places.areas(plane=plane).filter(lambda area: all(map(math.isfinite, area)))
    kept = found.filter(lambda area: not plane or not isinstance(area, places.Box) or area.west <= area.east)
    return kept.map(lambda area: Box(*area) if isinstance(area, places.Box) else Circle(*area))


def nears(*, plane: bool) -> st.SearchStrategy[Near]:
    return places.radii(plane=plane).filter(math.isfinite).map(Near)


areas, plane_areas = (shapes(plane=plane) | nears(plane=plane) for plane in (False, True))


def numbers_of(area: Area) -> tuple[float, ...]:
    return tuple(getattr(area, name) for name in FIELDS if hasattr(area, name))


def text_of(area: Area, *, is_exact: bool = True) -> str:
    """An expression for it, with the numbers written as Python does, or with many digits."""
    numbers = [repr(number) if is_exact else f"{number:.1100g}" for number in numbers_of(area)]
    return f"within {type(area).__name__.lower()}({', '.join(numbers)})"


# -- subscriptions of clients that move, and messages with places ------------------------------------------------------

CLIENTS = 5
TAGS = ["a", "b", "c"]
tag_sets = st.sets(st.sampled_from(TAGS), max_size=2)
_TREES = [Test("x", "<", (3,)), Not(Test("x", "<", (3,)))]


class Subscription(NamedTuple):
    """What a client asks for: tags, perhaps an expression, also of areas that have the message or not, and an area."""

    tags: frozenset[str]
    client: int
    where: Expression | None
    area: Area | None


@st.composite
def subscriptions(draw: st.DrawFn, *, plane: bool) -> Subscription:
    drawn = st.lists(shapes(plane=plane), max_size=2)
    having, without, near = draw(drawn), draw(st.just([]) | drawn), draw(st.none() | nears(plane=plane))
    areas = having if near is None else [*having, near]
    # The first one is given as such
    parts = [*map(Within, areas[1:]), *(Not(Within(area)) for area in without)]
    parts += draw(st.just([]) | st.sampled_from(_TREES).map(lambda tree: [tree]))
    where = Expression.of(And(tuple(parts)), random.Random(0)) if parts else None
    tags, client = frozenset(draw(tag_sets)), draw(st.integers(0, CLIENTS - 1))
    return Subscription(tags, client, where, areas[0] if areas else None)


def located(*, plane: bool) -> st.SearchStrategy[Any]:
    """One place, several or none."""
    one = places.places(plane=plane)
    return st.none() | one | st.lists(one, max_size=3)


def moves(*, plane: bool) -> st.SearchStrategy[dict[int, places.Place]]:
    somewhere = places.places(plane=plane).filter(lambda place: all(map(math.isfinite, place)))
    return st.dictionaries(st.integers(0, CLIENTS - 1), somewhere)


@st.composite
def messages(draw: st.DrawFn, *, plane: bool) -> dict[str, Any]:
    """What `match` gets."""
    return {
        "tags": sorted(draw(st.just(set(TAGS)) | tag_sets)),
        "attributes": draw(st.fixed_dictionaries({}, optional={"x": st.integers(0, 5)})),
        "location": draw(located(plane=plane)),
        "within": draw(st.none() | shapes(plane=plane)),
    }
