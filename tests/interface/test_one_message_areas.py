"""One message that says where it is, or where the clients are that it is for: asked alone, and in a packet."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import index_of
from support.areas import AREA, struct_of
from support.distances import UndecidedError
from support.located import CLIENTS, messages, moves, subscriptions
from support.segments import segments_stay

from tagmatch import Box, Circle, Near, TagMatch, Where
from tagmatch.pipeline.areas import index
from tagmatch.pipeline.service import Pipeline

COUNTED = ("queries", "matches", "verified", "rejected")


@pytest.fixture(autouse=True, scope="module")
def small_segments() -> Iterator[None]:
    """Even few sets stay in a segment of their own, and are deleted there."""
    with segments_stay():
        yield


def asked(tm: TagMatch[Any], tags: list[str], attributes: Any = None, **place: Any) -> tuple[Any, ...]:
    before = tm.stats()
    keys, once = sorted(tm.match(tags, attributes, **place)), tm.match_unique(tags, attributes, **place)
    after = tm.stats()
    found = tm.explain(tags, attributes, **place)
    sets = sorted((str(sorted(map(str, stored))), sorted(some)) for stored, some in found)
    return keys, once, sets, [after[name] - before[name] for name in COUNTED]


def both_ways(tm: TagMatch[Any], tags: Any, attributes: Any = None, **place: Any) -> list[Any]:
    """The keys of a message, which are the same in a packet: there goes what has a tag with a zero byte."""
    with patch.object(Pipeline, "match_in_packet", autospec=True, side_effect=Pipeline.match_in_packet) as in_packet:
        found = asked(tm, list(tags), attributes, **place)
        assert not in_packet.called
        assert found == asked(tm, [*tags, "\0"], attributes, **place)
        assert in_packet.called
    keys: list[Any] = found[0]
    assert set(keys) == found[1]
    return keys


@pytest.fixture(scope="module", params=["contents", "areas", "either"])
def found_first(request):
    """What of sets with areas is looked for first: all contents, all areas, or what takes less time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "either":
            areas = request.param == "areas"
            patch.setattr(index, "areas_come_first", lambda required, _: np.full(len(required), areas))
        yield request.param


@pytest.mark.usefixtures("found_first")
@strategies.fewer(2)
@given(
    data=st.data(),
    plane=st.booleans(),
    layout=strategies.layouts,
    threads=st.sampled_from([1, 2]),
    has_strings=st.booleans(),
)
def test_any_way_to_ask(data: st.DataObject, plane: bool, layout: Any, threads: int, has_strings: bool) -> None:
    """Keys, sets and counts, of segments of which some rows are deleted, while clients move; alone, and in a table."""
    drawn = data.draw(st.lists(subscriptions(plane=plane), min_size=1, max_size=8))
    removed = data.draw(st.sets(st.sampled_from(drawn), min_size=1))
    name = str if has_strings else int
    options: dict[str, Any] = {"key_type": "string" if has_strings else "integer", "layout": layout, "plane": plane}
    oracle = Oracle(plane=plane)
    with TagMatch[Any](device="cpu", threads=threads, **options) as tm:
        both: tuple[Any, ...] = (tm, oracle)
        for place, (tags, client, where, area) in enumerate(drawn):
            for each in both:
                each.add_set(tags, name(client), where=where, area=area)
                # Another subscriber of every other set, and one whose set has no area, in the same segment
                if place % 2:
                    each.add_set(tags, name(CLIENTS), where=where, area=area)
                    each.add_set(tags, name(CLIENTS + 1))
                if place % 3 == 2:
                    each.consolidate()
        for gone in ([], removed):
            for each in both:
                for tags, client, where, area in gone:
                    each.remove_set(tags, name(client), where=where, area=area)
                    each.remove_set(tags, name(CLIENTS), where=where, area=area)
                each.consolidate()
            asked = []
            for _ in range(2):
                moved = data.draw(moves(plane=plane))
                lon, lat = ([place[axis] for place in moved.values()] for axis in (0, 1))
                for each in both:
                    each.move([name(key) for key in moved], lon, lat)
                asked.append(data.draw(messages(plane=plane)))
                found = both_ways(tm, **asked[-1])
                with suppress(UndecidedError):
                    expected = oracle.match(**asked[-1])
                    assert sorted(found) == expected
                    assert sorted(tm.submit(**asked[-1]).result()) == expected
                    assert asyncio.run(tm.amatch(**asked[-1], unique=True)) == set(expected)
                    assert sorted(key for _, keys in tm.explain(**asked[-1]) for key in keys) == expected
            answers = tm.match_many(table_of(asked, plane=plane), unique=True).to_pylist()
            for message, keys in zip(asked, answers, strict=True):
                with suppress(UndecidedError):
                    assert keys == sorted(oracle.match_unique(**message))


def table_of(asked: list[dict[str, Any]], *, plane: bool) -> pa.Table:
    names = ("x", "y") if plane else ("lon", "lat")
    located = [message["location"] and dict(zip(names, message["location"], strict=True)) for message in asked]
    return pa.table(
        {
            "tags": pa.array([message["tags"] for message in asked], pa.list_(pa.string())),
            "x": pa.array([message["attributes"].get("x") for message in asked], pa.int64()),
            "location": pa.array(located, pa.struct(dict.fromkeys(names, pa.float64()))),
            "within": pa.array([struct_of(message["within"]) for message in asked], AREA),
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_more_than_there_is_room_for_at_first(key_type: Any) -> None:
    """Of each kind of area, in two segments, of which some sets are deleted; and of sets without areas."""
    name = (lambda key: key) if key_type == "integer" else (lambda key: f"é{key}" * (1 + key % 7))
    count = 600
    keys = [name(key) for key in range(count)]
    with TagMatch[Any](key_type=key_type, device="cpu", threads=1) as tm:
        for _ in range(2):
            tags = [[f"{_}"]] * count
            tm.add_sets(tags, keys, area=Near(1000))
            tm.add_sets([["a", *row] for row in tags], keys, area=Near(10))
            tm.add_sets(tags, keys, area=[Circle(9, 45, key) for key in range(count)])
            tm.add_sets(tags, keys, area=[Box(9, 45, 10, 46 + key / count) for key in range(count)])
            without = [f"not within circle(7, 7, {key})" for key in range(count)]
            tm.add_sets([[f"{_}", f"{key % 50}"] for key in range(count)], keys, where=without)
            tm.add_sets([["a", *row] for row in tags], keys)
            tm.consolidate()
        tm.remove_sets([["1"]] * 7, keys[:7], area=Near(1000))
        for key in range(20, 30):
            tm.remove_set(["0"], keys[key], area=Circle(9, 45, key))
        tm.consolidate()
        tm.move(keys, [9 + key / 100 for key in range(count)], [45] * count)
        assert tm.stats()["segments"] == 2
        assert tm.stats()["deleted"] > 0
        all_tags = ["0", "1", "a", *map(str, range(2, 50))]
        found = both_ways(tm, all_tags, location=(9, 45))
        assert len(found) > 7 * count
        assert len(both_ways(tm, all_tags, location=(9, 45), within=Circle(9, 45, 50_000))) > 300
        assert len(both_ways(tm, all_tags, within=Box(8.9, 44, 15, 46))) > 1000
        assert len(both_ways(tm, all_tags)) > 2 * count
        assert both_ways(tm, ["b"], location=(9, 45)) == []


@pytest.mark.slow
def test_clients_that_move_much_are_found_where_they_are() -> None:
    """So often that their cells are made anew, and all to few places."""
    count = 3000
    with index_of([["a"]] * count, range(count), area=Near(1000), device="cpu", threads=1) as tm:
        for turn in range(8):
            lon = [(key * (turn + 1)) % 40 if turn % 3 else 0 for key in range(count)]
            tm.move(range(count), lon, 45)
            for place in (0, 1, 7, 39):
                expected = [key for key in range(count) if lon[key] == place]
                assert both_ways(tm, ["a"], location=(place, 45)) == expected
                assert both_ways(tm, ["a"], within=Circle(place, 45, 1000)) == expected


def test_sets_with_areas_say_so() -> None:
    with TagMatch(device="cpu", threads=1) as tm:
        for area in (Circle(9, 45, 10), Box(8, 44, 10, 46), Near(10)):
            tm.add_set(["a"], 1, area=area)
            tm.add_set(["b"], 1, where="x < 3")
        tm.add_set(["c"], 1, where="not within circle(7, 7, 1)")
        tm.consolidate()
        tm.move([1], 9, 45)
        explained = tm.explain(["a", "b", "c"], {"x": 1}, location=(9, 45))
        paths = {tag: tag.path for tags, _ in explained for tag in tags if isinstance(tag, Where)}
        assert sorted(map(str, paths.values())) == ["areas"] * 4 + ["trie"]
