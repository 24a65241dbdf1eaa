"""Subscriptions with areas that Hypothesis draws, of clients that move, and messages that say where they are."""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

from hypothesis import strategies as st
from support import places
from support.areas import Area, nears, shapes
from support.conditions import Expression
from support.trees import And, Not, Test, Within

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
    return st.none() | places.places(plane=plane)


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
