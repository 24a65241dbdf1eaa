"""tagmatch as a system that matches contents and areas, and what a Python user would write, against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.circles import matching_rows

from tagmatch.workloads.content.generate import CONSTRAINT
from tagmatch.workloads.location import Location, LocationOptions
from tagmatch.workloads.location.as_constraints import tags_as_attributes, tags_as_constraints
from tagmatch.workloads.location.generate import SPHERE_AREA, SPHERE_POINT
from tagmatch.workloads.systems.catalogue import ALERTS
from tagmatch.workloads.systems.matcher import answers_to_pylist
from tagmatch.workloads.systems.tagmatch_located import LocatedMatching, LocatedOneByOne, TagmatchLocated


def keys_of(subscriptions: pa.Table, messages: pa.Table) -> list[list[int]]:
    """By brute force, each key once for each row that has it."""
    keys = subscriptions["key"].to_pylist()
    sent = [{name: value for name, value in row.items() if value is not None} for row in messages.to_pylist()]
    return [sorted(keys[row] for row in rows) for rows in matching_rows(subscriptions.to_pylist(), sent)]


def unique(rows: list[list[int]]) -> list[list[int]]:
    return [sorted(set(row)) for row in rows]


@pytest.mark.parametrize("content", ["constraints", "tags", "both"])
@pytest.mark.parametrize("degrees", [0.0, 10.0])
def test_own_systems(content: Any, degrees: float, seed: int) -> None:
    """In all three ways to ask, of any number of the first messages."""
    options = LocationOptions(seed=seed, subscribers=60, coverage=0.3, selectivity=0.02, degrees=degrees)
    made = Location(options)
    stored, sent = made.subscriptions(0, 600, content=content), made.messages(0, 600, content=content)
    right = unique(keys_of(stored, sent))
    whole = TagmatchLocated(stored)
    for system in (whole, LocatedMatching(whole), LocatedOneByOne(whole)):
        prepared: Any = system.prepare(sent)
        for count in (1, 511, 513, 600):
            given = answers_to_pylist(system.match_many(prepared[:count], unique=True))
            assert unique(given) == right[:count]
            assert all(len(set(keys)) == len(keys) for keys in given)
        assert system.nbytes() > 0
    for other in (LocatedMatching(whole), LocatedOneByOne(whole)):
        other.close()
    assert len(whole.index) > 0, "they leave it open"
    whole.close()
    assert sum(map(len, right)) > (3 if content == "both" else 300)


def test_only_the_first_encoded_messages_can_be_had() -> None:
    made = Location(LocationOptions(subscribers=5))
    whole = TagmatchLocated(made.subscriptions(0, 50))
    with pytest.raises(IndexError, match="only the first"):
        LocatedMatching(whole).prepare(made.messages(0, 20))[3:]
    whole.close()


def test_tags_as_constraints(seed: int) -> None:
    made = Location(LocationOptions(seed=seed, subscribers=30, coverage=0.5, selectivity=0.02))
    stored, sent = made.subscriptions(0, 300, content="tags"), made.messages(0, 200, content="tags")
    right = keys_of(stored, sent)
    assert keys_of(tags_as_constraints(stored), tags_as_attributes(sent)) == right
    assert sum(map(len, right)) > 100


longitudes = st.sampled_from([-180.0, 180.0, 0.0, 179.9, -179.9]) | st.floats(-180, 180)
latitudes = st.sampled_from([-90.0, 90.0, 0.0, 89.9, -89.9]) | st.floats(-90, 90)
radii = st.sampled_from([1.0, 20_000.0, 1e7, 2.1e7]) | st.floats(0, 2.1e7)
names = st.lists(st.sampled_from(["a", "b", "c"]), max_size=2, unique=True)


@st.composite
def alerts(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """A few subscriptions and messages, anywhere on the sphere."""
    areas = draw(st.lists(st.tuples(longitudes, latitudes, radii, names, st.integers(0, 3)), max_size=6))
    places = draw(st.lists(st.tuples(longitudes, latitudes, names, st.none() | st.integers(0, 3)), max_size=6))
    none = {"upper": None, "text": None}
    asked = [[{"attr": "population", "op": ">", "value": least, **none}] if least else [] for *_, least in areas]
    stored = {
        "key": pa.array(range(len(areas)), pa.uint64()),
        "tags": pa.array([tags for *_, tags, _ in areas], pa.list_(pa.string())),
        "constraints": pa.array(asked, pa.list_(CONSTRAINT)),
        "area": pa.array([{"lon": lon, "lat": lat, "metres": m} for lon, lat, m, *_ in areas], SPHERE_AREA),
    }
    sent = {
        "tags": pa.array([tags for _, _, tags, _ in places], pa.list_(pa.string())),
        "location": pa.array([{"lon": lon, "lat": lat} for lon, lat, *_ in places], SPHERE_POINT),
        "population": pa.array([people for *_, people in places], pa.int64()),
    }
    return pa.table(stored), pa.table(sent)


@pytest.mark.parametrize("name", ALERTS)
@given(drawn=alerts())
def test_on_the_sphere(name: str, drawn: tuple[pa.Table, pa.Table]) -> None:
    """At poles and across the anti-meridian, with circles up to all the globe."""
    stored, sent = drawn
    system = ALERTS[name].build(stored, 1)
    prepared = system.prepare(sent)
    for each_once in (False, True):
        given_keys = [sorted(keys) for keys in system.match_many(prepared, unique=each_once)]
        assert given_keys == keys_of(stored, sent)
    system.close()


@pytest.mark.parametrize("name", ALERTS)
def test_many_on_the_sphere(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 300

    def places() -> tuple[Any, Any]:
        return random.uniform(-180, 180, count), 90 - np.abs(random.normal(0, 30, count))

    def struct(columns: Any, kind: pa.StructType) -> pa.Array:
        return pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(kind))

    no_tags = pa.array([[]] * count, pa.list_(pa.string()))
    area = struct((*places(), np.exp(random.uniform(5, 16.8, count))), SPHERE_AREA)
    columns = {"key": pa.array(range(count), pa.uint64()), "tags": no_tags, "area": area}
    stored = pa.table(columns | {"constraints": pa.array([[]] * count, pa.list_(CONSTRAINT))})
    sent = pa.table({"tags": no_tags, "location": struct(places(), SPHERE_POINT)})
    system = ALERTS[name].build(stored, 1)
    given_keys = [sorted(keys) for keys in system.match_many(system.prepare(sent))]
    assert given_keys == keys_of(stored, sent)
    assert sum(map(len, given_keys)) > 1000
    system.close()
