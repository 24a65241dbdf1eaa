"""The generator of areas: its statistics, its texts, and that rows depend on the seed and their number alone."""

import re
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.systems import has, holds, matching_rows, metres

from tagmatch import TagMatchError
from tagmatch_bench.workloads.location import PLACES, SCENARIOS, LocationOptions, LocationWorkload, near_me

CLCB = LocationWorkload(SCENARIOS["clcb"])


@st.composite
def options(draw: st.DrawFn) -> LocationOptions:
    topic_names, topics = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    shape: dict[str, Any] = {}
    for what in ("constraints", "attributes"):
        shape[f"min_{what}"], shape[f"max_{what}"] = sorted(draw(st.tuples(*[st.integers(1, topic_names)] * 2)))
    shape |= {
        "seed": draw(st.integers(0, 2**63 - 1)), "subscribers": draw(st.integers(1, 9)),
        "filters_each": draw(st.integers(1, 4)), "names": topics * topic_names, "topic_names": topic_names,
        "values": draw(st.sampled_from([2, 3, 10, 2**31])), "coverage": draw(st.sampled_from([0.0, 0.0001, 0.3])),
        "spots": draw(st.sampled_from([0, 1, 5])), "spot_exponent": draw(st.sampled_from([0.0, 1.0])),
        "spread": draw(st.sampled_from([0.0, 0.01, 1.0])), "together": draw(st.integers(0, 1)),
        "degrees": draw(st.sampled_from([0.0, 0.2])),
    }  # fmt: skip
    for selectivity in draw(st.permutations([0.5, 0.1, 0.01, 0.0001, 1e-9])):
        try:
            return LocationOptions(**shape, selectivity=selectivity)
        except TagMatchError:
            pass
    return LocationOptions(subscribers=9, filters_each=4)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def attributes_of(message: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in message.items() if name not in ("tags", "location") and x is not None}


@given(chosen=options(), content=st.sampled_from(["constraints", "tags", "both"]))
def test_limits(chosen: LocationOptions, content: Any) -> None:
    location = LocationWorkload(chosen)
    count = min(location.filters, 50)
    stored = rows(location.subscriptions(0, count, content=content))
    sent, moves = rows(location.messages(0, 15, content=content)), rows(location.moves(0, 9))
    assert [row["key"] for row in stored] == [row // chosen.filters_each for row in range(count)]
    names = ("lon", "lat") if chosen.degrees else ("x", "y")
    low, high = (-chosen.degrees / 2, chosen.degrees / 2) if chosen.degrees else (0, 1)
    for place in (*(row["area"] for row in stored), *(row["location"] for row in (*sent, *moves))):
        assert all(low <= place[name] < high or place[name] == high != 1 for name in names)
    for row in stored:
        check_content(chosen, "constraints", content, row["tags"], [each["attr"] for each in row["constraints"]])
        assert all(each["op"] in ("=", "!=", "<", ">") for each in row["constraints"])
        assert all(each["upper"] is each["text"] is None for each in row["constraints"])
        if chosen.together:
            assert row["area"] == stored[row["key"] * chosen.filters_each]["area"]
    for message in sent:
        found = attributes_of(message)
        check_content(chosen, "attributes", content, message["tags"], list(found))
        assert all(0 <= x < chosen.values for x in found.values())
    assert all(0 <= row["filter"] < location.filters for row in moves)
    assert all(row["key"] == row["filter"] // chosen.filters_each for row in moves)


def check_content(chosen: LocationOptions, what: str, content: str, tags: list[str], names: list[str]) -> None:
    """As many as there may be, each once, all of one topic."""
    low, high = getattr(chosen, f"min_{what}"), getattr(chosen, f"max_{what}")
    for given_ones, kind, topics in ((tags, "tags", chosen.tag_topics), (names, "constraints", chosen.topics)):
        if content not in (kind, "both"):
            assert not given_ones
            continue
        numbers = [int(name[1:]) for name in given_ones]
        assert low <= len(set(numbers)) == len(numbers) <= high
        assert len({number // chosen.topic_names for number in numbers}) == 1
        assert max(numbers) < topics * chosen.topic_names


@given(chosen=options(), data=st.data())
def test_rows_depend_on_the_seed_and_their_number_alone(chosen: LocationOptions, data: st.DataObject) -> None:
    location = LocationWorkload(chosen)
    makes = (location.subscriptions, location.filters), (location.messages, 50), (location.moves, 50)
    for make, count in makes:
        cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
        assert pa.concat_tables([make(first, last) for first, last in pairwise(cuts)]).equals(make(0, count))


def test_threads_do_not_change_rows() -> None:
    """Of enough rows for several blocks."""
    other = LocationWorkload(replace(SCENARIOS["clcb"], seed=2))
    for content in ("constraints", "tags"):
        whole = CLCB.subscriptions(0, 90_000, content=content)
        assert CLCB.subscriptions(5, 90_000, content=content, threads=3).equals(whole.slice(5))
    assert CLCB.messages(0, 40_000, threads=3).equals(CLCB.messages(0, 40_000))
    for name in ("subscriptions", "messages", "moves"):
        assert not getattr(CLCB, name)(0, 10).equals(getattr(other, name)(0, 10))


def test_default_scenario() -> None:
    """The numbers of CLCB's Table 1."""
    chosen = SCENARIOS["clcb"]
    assert (chosen.subscribers, chosen.filters_each, chosen.filters) == (250_000, 10, 2_500_000)
    assert pi * chosen.radius**2 == pytest.approx(0.0001)
    assert len(CLCB.attributes) == 100
    stored = rows(CLCB.subscriptions(0, 30_000))
    sizes = Counter(len(row["constraints"]) for row in stored)
    assert sizes == pytest.approx(dict.fromkeys((3, 4, 5), 10_000), rel=0.05)
    assert {each["attr"] for row in stored for each in row["constraints"]} == set(CLCB.attributes)
    assert {each["op"] for row in stored for each in row["constraints"]} == {"=", "!=", "<", ">"}
    assert {row["area"]["radius"] for row in stored} == {chosen.radius}
    on_each_side = Counter((row["area"]["x"] < 0.5, row["area"]["y"] < 0.25) for row in stored)
    assert on_each_side[True, True] == pytest.approx(30_000 / 8, rel=0.1)
    assert on_each_side[False, False] == pytest.approx(30_000 * 3 / 8, rel=0.1)


#: Shares of messages to satisfy a filter, and how messages and filters are made otherwise
SELECTIVITIES: list[tuple[str, dict[str, Any]]] = [
    ("clcb", {}), ("clcb", {"selectivity": 0.02}), ("clcb", {"selectivity": 0.0005, "values": 7}),
    ("clcb", {"topic_names": 10, "names": 50, "min_constraints": 1, "values": 2, "selectivity": 0.015}),
    ("clcb", {"names": 5, "min_attributes": 5, "selectivity": 0.99}), ("every", {}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "changes"), SELECTIVITIES)
def test_selectivity_of_content(scenario: str, changes: dict[str, Any]) -> None:
    """As many messages satisfy a filter as are to, by its constraints, and by its tags."""
    chosen = replace(SCENARIOS[scenario], **changes)
    location = LocationWorkload(chosen)
    stored = rows(location.subscriptions(0, 400, content="both"))
    sent = [(set(row["tags"]), attributes_of(row)) for row in rows(location.messages(0, 1000, content="both"))]
    by_constraints = by_tags = 0
    for row in stored:
        tags = set(row["tags"])
        first = row["constraints"][0]["attr"]
        by_tags += sum(tags <= has_tags for has_tags, _ in sent)
        by_constraints += sum(
            first in has_values and all(holds(each, has_values) for each in row["constraints"])
            for _, has_values in sent
        )
    wanted = chosen.selectivity * len(stored) * len(sent)
    assert by_constraints == pytest.approx(wanted, rel=0.15)
    # A whole number of topics
    assert by_tags == pytest.approx(wanted * (1 + 0.5 / chosen.tag_topics), rel=0.15 + 0.5 / chosen.tag_topics)


def test_places_gather_around_spots() -> None:
    """By Zipf's law, areas and messages around the same ones."""
    location = LocationWorkload(replace(SCENARIOS["zipf"], spread=0.0))
    tables = location.subscriptions(0, 20_000)["area"], location.messages(0, 20_000)["location"]
    of_areas, of_messages = (Counter((each["x"], each["y"]) for each in table.to_pylist()) for table in tables)
    ((first, most),), harmonic = of_areas.most_common(1), sum(1 / (i + 1) for i in range(1000))
    assert [most, of_messages[first]] == pytest.approx([20_000 / harmonic] * 2, rel=0.1)
    assert len(of_areas) > 300
    spread = LocationWorkload(replace(SCENARIOS["zipf"], spots=1, spread=0.01))
    x = np.array([each["x"] for each in spread.messages(0, 5000)["location"].to_pylist()])
    away = (x - np.median(x) + 0.5) % 1 - 0.5
    assert away.std() == pytest.approx(0.01, rel=0.1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"min_constraints": 6}, "min_constraints must be at most max_constraints, 5, not 6"),
    ({"max_attributes": 6}, "max_attributes must be at most topic_names, 5, not 6"),
    ({"names": 99}, "names must be a multiple of topic_names, 5, not 99"),
    ({"min_attributes": 1, "max_attributes": 2}, "min_constraints must be at most max_attributes, 2, not 3"),
    ({"selectivity": 0.0}, "selectivity must be more than 0"),
    ({"selectivity": 0.03}, "selectivity must be at most 0.0206"),
    ({"selectivity": 1e-12}, "constraints would hold for less than one of the values"),
    ({"subscribers": 2**31 - 1}, "subscribers times filters_each must be at most 4294967295"),
    ({"spots": -1}, "spots must be from 0 to 1000000, not -1"),
    ({"together": True}, "together must be an integer, not True"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_options(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TagMatchError, match=message):
        LocationOptions(**wrong)


def test_wrong_rows() -> None:
    for make in (CLCB.subscriptions, CLCB.messages, CLCB.moves):
        with pytest.raises(TagMatchError, match="first and last must be ascending"):
            make(3, 2)
    for make_content in (CLCB.subscriptions, CLCB.messages):
        with pytest.raises(TagMatchError, match="content must be one of constraints, tags, both, not 'all'"):
            make_content(0, 1, content="all")  # type: ignore[arg-type]
    assert all(option.metadata["text"].endswith(".") for option in fields(LocationOptions))


@pytest.fixture(scope="module")
def places() -> pa.Table:
    return pq.read_table(Path(__file__).parents[2] / "examples" / "data" / "cities.parquet")


@pytest.mark.slow
def test_near_me(places: pa.Table) -> None:
    made, again = (near_me(places, 500, 400, 7, moves=50) for _ in range(2))
    assert all(first.equals(second) for first, second in zip(made, again, strict=True))
    assert not near_me(places, 500, 400, 8).subscriptions.equals(made.subscriptions)
    stored, sent, moves = map(rows, made)
    assert (len(stored), len(sent), len(moves)) == (500, 400, 50)
    assert made.subscriptions.schema.equals(LocationWorkload(LocationOptions(degrees=1.0)).subscriptions_schema)
    lon, lat = (places[name].to_numpy() for name in ("lon", "lat"))
    for row in (*(row["area"] for row in stored), *(row["location"] for row in moves)):
        assert metres(row["lon"], row["lat"], lon, lat).min() < 30_000
    assert all(2_000 <= row["area"]["metres"] <= 100_000 for row in stored)
    assert {len(row["tags"]) for row in stored} == {0, 1}
    matched = sum(map(len, matching_rows(stored, sent)))
    assert matched > 50
    known = {(row["lon"], row["lat"]): row for row in places.to_pylist()}
    for message in sent:
        place = known[message["location"]["lon"], message["location"]["lat"]]
        assert message["tags"] == [f"country:{place['country']}", f"timezone:{place['timezone']}"]
        assert message["population"] == place["population"]
    near = sum(has(row["area"], message["location"]) for row in stored for message in sent)
    assert matched < near, "tags and population rule some out"


def test_near_nothing(places: pa.Table) -> None:
    assert [len(table) for table in near_me(places, 0, 0, 1, moves=3)] == [0, 0, 0]
    with pytest.raises(TagMatchError, match="places have no column 'timezone'"):
        near_me(places.drop_columns("timezone"), 1, 1, 1)
    with pytest.raises(TagMatchError, match="places has no rows"):
        near_me(places.slice(0, 0).select(PLACES.names), 1, 1, 1)


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("population", [5, None], "column 'population': row 1 must be there, not None"),
        ("population", ["5", "many"], "column 'population' must be of int64: "),
        ("population", [0.5, 1.0], "column 'population' must be of int64: "),
        ("country", [None, "it"], "column 'country': row 0 must be there"),
        ("timezone", [["x"], ["y"]], "column 'timezone' must be of string: "),
        ("lat", [1.0, float("nan")], "column 'lat': row 1 must be from -90 to 90, not nan"),
        ("lat", [90.5, 1.0], "column 'lat': row 0 must be from -90 to 90, not 90.5"),
        ("lon", [1.0, None], "column 'lon': row 1 must be from -180 to 180, not None"),
    ],
)
def test_places_that_cannot_be_used(places: pa.Table, column: str, values: list[Any], says: str) -> None:
    some = places.slice(0, 2)
    wrong = some.set_column(some.schema.get_field_index(column), column, pa.array(values))
    with pytest.raises(TagMatchError, match=re.escape(f"places: {says}")):
        near_me(wrong, 2, 2, 1)


def test_places_of_other_types(places: pa.Table) -> None:
    some = places.slice(0, 5)
    other = some.set_column(some.schema.get_field_index("country"), "country", some["country"].dictionary_encode())
    population = some["population"].cast(pa.string())
    other = other.set_column(other.schema.get_field_index("population"), "population", population)
    assert all(a.equals(b) for a, b in zip(near_me(other, 4, 4, 1), near_me(some, 4, 4, 1), strict=True))
