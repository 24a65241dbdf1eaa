"""One message that is asked alone, and in a packet: values of every kind, long answers, places, and counts."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import And, Not, Oracle, Test, Tree, evaluate
from support import strategies
from support.agreement import index_of
from support.areas import AREA, CLIENTS, messages, moves, struct_of, subscriptions
from support.conditions import Expression
from support.distances import UndecidedError
from support.expressions import text_of
from support.pipelines import TIMEOUT
from support.segments import all_in

from tagmatch import Box, Circle, Near, TagMatch, Where
from tagmatch.pipeline.areas import index
from tagmatch.pipeline.filters.index import Path
from tagmatch.pipeline.service import Pipeline


def test_messages_that_come_by_many_nodes_or_to_many_candidates() -> None:
    """Beside some that do not; also with more values than a message has as a rule."""
    filters = [{"p": -i} for i in range(400)] + [{f"a{i}": 0, f"b{j}": j} for i in range(20) for j in range(20)]
    few = {"a3": 1, "b4": 5, "b6": 6, "unknown": 1}
    many = {**{f"a{i}": 1 for i in range(20)}, **{f"b{j}": 10 for j in range(20)}}
    messages = [few, {"p": 1}, many, {"p": -200}, few | {"p": -398}, many | {"p": 1}]
    with all_in("trie"), TagMatch(device="cpu", threads=1) as tm:
        for key, asked in enumerate(filters):
            tm.add_set([], key, where=" and ".join(f"{name} > {bound}" for name, bound in asked.items()))
        tm.consolidate()
        for message in messages:
            wanted = [
                key
                for key, asked in enumerate(filters)
                if all(message.get(name, bound) > bound for name, bound in asked.items())
            ]
            assert wanted
            assert sorted(tm.match([], message)) == wanted
            assert tm.match_unique([], OrderedDict(message)) == set(wanted)


LONG = "ab" * 40_000
NUMBERS = (0, 5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -1.5, 1e300, math.inf, -math.inf)
TEXTS = ("", "a", "ab", "abc", "é", "\U0010ffff", "nul\0", LONG)
VALUES: list[Any] = [
    *NUMBERS, *TEXTS, True, False, 0.0, -0.0, 5.0, float(2**53), 2.0**63, math.nan, -math.nan, 2**53 - 1, 2**62,
    1 - 2**63, f"{LONG}c", f"c{LONG}", LONG[1:], "b", "nul", None, [], [None], [5, "a", True], (0.5, math.nan), {5},
    frozenset(["ab"]), [2**53, 2**53 + 1, 2.0**53], [None, -0.0], list(range(-50, 50)),
]  # fmt: skip
TREES: list[Tree] = [
    *(Test("p", operator, (number,)) for number in NUMBERS for operator in ("=", "!=", "<", "<=", ">", ">=")),
    *(Test("p", operator, (text,)) for text in TEXTS for operator in ("=", "<", ">=", "prefix", "suffix", "contains")),
    *(Test("p", "=", (flag,)) for flag in (True, False)),
    *(Not(Test("p", operator, (0,))) for operator in ("=", "<", ">")), Test("p", "in", (5, "a", 2**53 + 1)),
    Test("p", "not in", (5, "a", 2**53 + 1)), Test("p", "between", (2**53, 2**53 + 1)), Test("p", "exists", ()),
    Not(Test("p", "exists", ())),
]  # fmt: skip


class Packeted(list[str]):
    """Tags of a message that goes in a packet, as other sequences than those of Python itself do."""


@pytest.fixture
def in_packet() -> Iterator[Any]:
    """Is called with each single message that goes in a packet; one kernel answers all others."""
    method = Pipeline.match_in_packet
    with patch.object(Pipeline, "match_in_packet", autospec=True, side_effect=method) as called:
        yield called


def as_column(value: Any) -> pa.Table | None:
    """The message as a table, if Arrow has a type for its values."""
    if isinstance(value, set | frozenset):
        value = list(value)
    try:
        return pa.table({"p": pa.array([value])}) if value not in (None, [], [None]) else pa.table({"tags": [[""]]})
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


@pytest.mark.slow
@pytest.mark.parametrize("path", get_args(Path))
def test_a_value_of_each_kind(path: Path, in_packet: Any, rng: Any) -> None:
    """As in a table, in a packet, and as the oracle says."""
    with all_in(path), TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([[]] * len(TREES), range(len(TREES)), where=[text_of(tree, rng) for tree in TREES])
        tm.consolidate()
        for value in VALUES:
            expected = [key for key, tree in enumerate(TREES) if evaluate(tree, (), {"p": value})]
            assert sorted(tm.match([], {"p": value, "other": LONG})) == expected
            assert tm.match_unique([], {"p": value}) == set(expected)
            assert not in_packet.called
            assert sorted(tm.match(Packeted(["\0"]), {"p": value})) == expected
            in_packet.reset_mock()
            table = as_column(value)
            if table is not None:
                assert tm.match_many(table, unique=True).to_pylist() == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("path", get_args(Path))
@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_long_answers_in_segments(path: Path, key_type: Any, rng: Any) -> None:
    """Thousands of keys, of sets in several segments, some without constraints, and of single sets."""
    names = (lambda key: key) if key_type == "integer" else (lambda key: f"é{key}" * (1 + key % 7))
    wheres = [Expression.of(Test("p", "<", (number,)), rng) for number in range(40)]
    tm, oracle = TagMatch[Any](key_type=key_type, device="cpu", threads=1), Oracle()
    with all_in(path), tm:
        for first in (0, 9000, 12_000):
            for database in (tm, oracle):
                keys = range(first, first + 3000)
                where = [wheres[key % 40] if key % 3 else None for key in keys]
                tags = [["a"] if key % 5 == 0 else [] for key in keys]
                database.add_sets(tags, list(map(names, keys)), where=where)
                database.add_sets([["b"]] * 2000, [names(key) for key in range(20_000, 22_000)], where=wheres[0])
                database.consolidate()
        for tags in ([], ["a"], ["a", "b"]):
            for value in (-1, 20, [30, 39], 40, None):
                expected = oracle.match(tags, {"p": value})
                assert sorted(tm.match(tags, {"p": value})) == expected
                assert tm.match_unique(tags, {"p": value}) == set(expected)
        assert len(tm.match(["a", "b"], {"p": -1})) == 3 * 3000 + 2000


@pytest.mark.slow
@pytest.mark.parametrize("path", get_args(Path))
def test_more_patterns_than_attributes(path: Path, in_packet: Any, rng: Any) -> None:
    """Of many attributes, when a message has few; of its text hundreds of patterns are found at once."""
    text = LONG[:2000]
    texts = [text[:size] for size in range(1, 120)] + ["b" * 3, "aba", "c", "xa"]
    operators = ("prefix", "suffix", "contains")
    trees: list[Tree] = [Test(name, operator, (each,)) for name in "pq" for operator in operators for each in texts]
    trees += [And((Not(Test("p", "contains", (each,))), Test("q", "suffix", (each,)))) for each in texts]
    with all_in(path), TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([[]] * len(trees), range(len(trees)), where=[text_of(tree, rng) for tree in trees])
        tm.consolidate()
        found = 0
        for attributes in (
            {"p": text}, {"q": text}, {"p": text[:119], "q": f"x{text}c"}, {"p": ["a", text, text]},
            {"p": "c", "q": "ab"}, {"p": 7, "q": text}, {"p": None}, {"p": ""}, {},
        ):  # fmt: skip
            expected = [key for key, tree in enumerate(trees) if evaluate(tree, (), attributes)]
            assert sorted(tm.match([], attributes)) == expected
            table = {name: pa.array([value]) for name, value in attributes.items() if value is not None}
            if table:
                assert tm.match_many(pa.table(table), unique=True).to_pylist() == [expected]
            found = max(found, len(expected))
        assert found > 300
        assert not in_packet.called


# -- places ------------------------------------------------------------------------------------------------------------

COUNTED = ("queries", "matches", "verified", "rejected")


def asked(tm: TagMatch[Any], tags: list[str], attributes: Any = None, **place: Any) -> tuple[Any, ...]:
    before = tm.stats()
    keys, once = sorted(tm.match(tags, attributes, **place)), tm.match_unique(tags, attributes, **place)
    assert sorted(tm.submit(tags, attributes, **place).result(TIMEOUT)) == keys
    after = tm.stats()
    found = tm.explain(tags, attributes, **place)
    sets = sorted((str(sorted(map(str, stored))), sorted(some)) for stored, some in found)
    return keys, once, sets, [after[name] - before[name] for name in COUNTED]


def both_ways(tm: TagMatch[Any], tags: Any, attributes: Any = None, **place: Any) -> list[Any]:
    """The keys of a message, which are the same in a packet."""
    with patch.object(Pipeline, "match_in_packet", autospec=True, side_effect=Pipeline.match_in_packet) as in_packet:
        found = asked(tm, list(tags), attributes, **place)
        has_several = isinstance(place.get("location"), list) and len(place["location"]) > 1
        assert in_packet.called == has_several
        assert found == asked(tm, Packeted(tags), attributes, **place)
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


@pytest.mark.usefixtures("found_first", "segments_stay")
@strategies.fewer(2)
@given(
    data=st.data(),
    plane=st.booleans(),
    layout=strategies.layouts,
    threads=st.sampled_from([1, 2]),
    has_strings=st.booleans(),
)
def test_any_way_to_ask(data: st.DataObject, plane: bool, layout: Any, threads: int, has_strings: bool) -> None:
    """Keys, sets and counts, of segments with deleted rows, while clients move; alone, and in a table."""
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
    located: list[Any] = [message["location"] for message in asked]
    kind: pa.DataType = pa.struct(dict.fromkeys(names, pa.float64()))
    if any(isinstance(each, list) for each in located):
        kind = pa.list_(kind)
        lists = [[each] if isinstance(each, tuple) else each for each in located]
        located = [each and [dict(zip(names, place, strict=True)) for place in each] for each in lists]
    else:
        located = [each and dict(zip(names, each, strict=True)) for each in located]
    return pa.table(
        {
            "tags": pa.array([message["tags"] for message in asked], pa.list_(pa.string())),
            "x": pa.array([message["attributes"].get("x") for message in asked], pa.int64()),
            "location": pa.array(located, kind),
            "within": pa.array([struct_of(message["within"]) for message in asked], AREA),
        }
    )


@pytest.mark.slow
@pytest.mark.usefixtures("segments_stay")
@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_more_than_there_is_room_for_at_first(key_type: Any) -> None:
    """Of each kind of area, in two segments with deleted sets; and of sets without areas."""
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


@pytest.mark.usefixtures("segments_stay")
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
