"""The best keys by a column of data: against sorting all keys of a message, in Python."""

import asyncio
import math
import operator
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import done, from_json_lines, tagmatch, write
from support.expiring import set_clock
from support.service import remote
from support.waiting import wait_until

from tagmatch import (
    Channel,
    Circle,
    ClosedError,
    DeadlineMissed,
    FilterError,
    InvalidTypeError,
    InvalidValueError,
    Near,
    TagMatch,
)
from tagmatch.model.data_types import count_type
from tagmatch.model.input.values import packed

TAGS = st.lists(st.sampled_from("abcd"), max_size=3)
VALUES = {
    "size": st.none() | st.integers(-3, 3),
    "name": st.none() | st.sampled_from(["", "a", "ä", "b"]),
    "share": st.none() | st.sampled_from([-1.5, 0.0, -0.0, 2.25]),
}
TYPES = {"size": "int64", "name": "string", "share": "float64"}
SCORES = st.recursive(
    st.sampled_from(["size", "share", "bid", 2, 0.5]),
    lambda each: st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), each, each) | st.tuples(st.just("-"), each),
    max_leaves=5,
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 12), TAGS, st.fixed_dictionaries(VALUES), st.booleans()), min_size=1, max_size=25
)


def ordered(found: list[Any], values: dict[Any, Any], *, descending: bool) -> list[Any]:
    """Keys with values in their order, equal ones by key, then those without."""
    with_value = sorted(key for key in found if values.get(key) is not None)
    with_value.sort(key=lambda key: _plain(values[key]), reverse=descending)
    return with_value + sorted(key for key in found if values.get(key) is None)


def _below(size: int | None) -> bool:
    return size is not None and size < 3


def _plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@given(
    parts=st.lists(CHANGES, min_size=1, max_size=3), queries=st.lists(TAGS, max_size=5),
    names=st.booleans(), over=st.booleans(), limit=st.integers(1, 6),
)  # fmt: skip
@pytest.mark.usefixtures("segments_stay")
def test_the_best_are_the_first_of_all(layout, parts, queries, names, over, limit):
    """Of several segments with deleted rows, also over a connection."""
    index: TagMatch[Any] = TagMatch(
        layout=layout, key_type="string" if names else "integer", data=TYPES, device="cpu", threads=2
    )
    stored: dict[Any, tuple[set[str], dict[str, Any]]] = {}
    with index:
        for part in parts:
            for number, tags, data, deleted in part:
                key: Any = f"key {number}" if names else number
                if deleted:
                    index.delete(key)
                    stored.pop(key, None)
                else:
                    index.put(key, tags, data=data)
                    stored[key] = set(tags), data
            index.consolidate()
        for tm in _ways(index, over):
            every = [[key for key, (tags, _) in stored.items() if tags <= set(query)] for query in queries]
            least = tm.match_best(queries, limit=limit).to_pylist()
            assert least == [sorted(keys)[:limit] for keys in every]
            for column in TYPES:
                values = {key: data[column] for key, (_, data) in stored.items()}
                for way in ("asc", "desc"):
                    found = tm.match_best(queries, limit=limit, order_by=f"{column} {way}")
                    expected = [ordered(keys, values, descending=way == "desc")[:limit] for keys in every]
                    assert found.to_pylist() == expected
                    assert found.type == pa.list_(pa.large_string() if names else pa.uint64())
                    with_data = tm.match_best(
                        queries, limit=limit, order_by=f"{column} {way}", columns=["share", "name"], only="size < 3"
                    )
                    assert with_data.to_pylist() == [
                        [{"key": key} | {name: stored[key][1][name] for name in ("share", "name")} for key in best]
                        for best in (
                            ordered(
                                [key for key in keys if _below(stored[key][1]["size"])],
                                values,
                                descending=way == "desc",
                            )[:limit]
                            for keys in every
                        )
                    ]


@given(
    parts=st.lists(CHANGES, min_size=1, max_size=3),
    messages=st.lists(st.tuples(TAGS, st.lists(st.integers(-3, 3), max_size=2)), max_size=5),
    score=SCORES, form=st.sampled_from(["lists", "map", "bytes"]), over=st.booleans(), limit=st.integers(1, 6),
)  # fmt: skip
@pytest.mark.usefixtures("segments_stay")
def test_scores_and_counts_by_value(layout, parts, messages, score, form, over, limit):
    """Of data and of what messages have, in each form of these."""
    with TagMatch(layout=layout, data=TYPES, device="cpu", threads=2) as index:
        stored: dict[int, tuple[set[str], dict[str, Any]]] = {}
        for part in parts:
            for number, tags, data, with_other_set in part:
                index.put(number, tags, data=data)
                if with_other_set:
                    index.add_set([], number)
                stored[number] = set(tags), {**data, "sets": [set(tags), *[set()] * (with_other_set and bool(tags))]}
            index.consolidate()
        table = pa.table(
            {"tags": pa.array([tags for tags, _ in messages], pa.list_(pa.string())), **_bids(messages, form)}
        )
        found = [
            [key for key, (_, data) in stored.items() for own in data["sets"] if own <= set(tags)]
            for tags, _ in messages
        ]
        for tm in _ways(index, over):
            best = tm.match_best(table, limit=limit, score=_text(score)).to_pylist()
            for keys, (_, bids), own in zip(found, messages, best, strict=True):
                values = {key: _value(score, {**stored[key][1], "bid": max(bids, default=None)}) for key in keys}
                assert own == ordered([*set(keys)], values, descending=True)[:limit]
            for unique in (False, True):
                for column in TYPES:
                    counts = tm.match_counts(table, count_by=column, unique=unique)
                    assert counts.type == count_type(pa.type_for_alias(TYPES[column]))
                    for keys, own in zip(found, counts.to_pylist(), strict=True):
                        each = Counter(stored[key][1][column] for key in (set(keys) if unique else keys))
                        order = sorted((value for value in each if value is not None), key=_plain)
                        assert own == [
                            {"value": value, "count": each[value]} for value in [*order, *[None] * (None in each)]
                        ]


def _bids(messages: list[tuple[list[str], list[int]]], form: str) -> dict[str, Any]:
    if form == "lists":
        return {"bid": pa.array([bids for _, bids in messages], pa.list_(pa.int64()))}
    if form == "map":
        pairs = [[("other", 9.0), *(("bid", float(each)) for each in bids)] for _, bids in messages]
        return {"attributes": pa.array(pairs, pa.map_(pa.string(), pa.float64()))}
    return {"attributes": pa.array([packed({"other": 9, "bid": bids, "bi": 7}) for _, bids in messages], pa.binary())}


def _text(score: Any) -> str:
    match score:
        case ("min" | "max") as word, left, right:
            return f"{word}({_text(left)}, {_text(right)})"
        case "-", only:
            return f"-({_text(only)})"
        case operation, left, right:
            return f"({_text(left)} {operation} {_text(right)})"
    return f"`{score}`" if score == "share" else str(score)


def _value(score: Any, values: dict[str, Any]) -> float | None:
    if not isinstance(score, tuple):
        return values[score] if isinstance(score, str) else score
    parts = [_value(each, values) for each in score[1:]]
    if None in parts:
        return None
    if len(parts) == 1:
        return -parts[0]
    return {"+": operator.add, "-": operator.sub, "*": operator.mul, "min": min, "max": max}[score[0]](*parts)


def _ways(index: TagMatch[Any], over: bool) -> Iterator[Any]:
    if over:
        with remote(index) as (_, tm):
            yield tm
    else:
        yield index


def test_the_best_of_one_message_are_those_that_it_matches():
    """Words of attributes are declared once: phrases hold, and do not hold, as without a limit."""
    attributes = {"title": "string", "price": "decimal(10, 2)"}
    with TagMatch(attributes=attributes, analyzers={"title": "casefold(words())"}, device="cpu") as tm:
        for key, where in enumerate(['title phrase "red bike"', 'not title phrase "red bike"', "price = 2.5", "a = 1"]):
            tm.add_set([], key, where=where)
        tm.consolidate()
        with remote(tm) as (_, over):
            for message in ({"title": "A red bike"}, {"title": ["bike", "red"], "price": 2.5}, {"a": 1}):
                expected = sorted(tm.match([], message))
                for way in (tm, over):
                    assert way.match([], message, limit=9) == expected
                    assert (
                        way.match_best(pa.table({"tags": [[]], "attributes": [packed(message)]}), limit=9)[0].as_py()
                        == expected
                    )
                    assert asyncio.run(way.amatch([], message, limit=9)) == expected


NUMBERS: list[tuple[Any, str | None]] = [
    (2, None), (2.5, None), (Decimal("2.5"), None), (2**62 + 1, None), (Decimal("1e30"), None),
    ([1, Decimal("2.5")], None),
    (2.5, "decimal(10, 2)"), (2, "decimal(10, 2)"), ("2.5", "decimal(10, 2)"), ("2.5", "float64"), ("2", "int64"),
    (["1", "2"], "int64"), (Decimal("2.5"), "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("bid", "declared"), NUMBERS)
def test_a_score_takes_each_number_of_messages(bid: Any, declared: str | None) -> None:
    """As Python has it, packed, in a column and in a map, declared or not: the key with the greatest product is it."""
    attributes = {} if declared is None else {"bid": declared}
    with TagMatch(attributes=attributes, data={"size": "int64"}, device="cpu") as tm:
        for key, size in ((7, 1), (8, 3)):
            tm.put(key, ["a"], data={"size": size})
        tm.consolidate()
        given: dict[str, Any] = {"limit": 1, "score": "size * bid"}
        tables = [pa.table({"tags": [["a"]], "attributes": pa.array([packed({"bid": bid})], pa.binary())})]
        if not isinstance(bid, list):
            own = [pa.array([bid]), pa.array([[bid]]), pa.array([bid]).dictionary_encode()]
            tables += [pa.table({"tags": [["a"]], "bid": values}) for values in own]
            maps = [pa.MapArray.from_arrays([0, 1], pa.array(["bid"]), values) for values in own]
            tables += [pa.table({"tags": [["a"]], "m": values}) for values in maps]
        with remote(tm) as (_, over):
            for way in (tm, over):
                assert way.match(["a"], {"bid": bid}, **given) == [8]
                for table in tables:
                    assert way.match_best(table, **given).to_pylist() == [[8]]


def test_a_score_is_a_text():
    with TagMatch(device="cpu") as tm, pytest.raises(InvalidTypeError, match="score must be a str"):
        tm.match_best([["a"]], limit=1, score=["size"])


def test_clients_and_keys_that_expire(layout, monkeypatch):
    clock = set_clock(monkeypatch)
    with TagMatch(layout=layout, data={"size": "int64"}, device="cpu") as tm:
        tm.put(1, ["a"], area=Near(100), data={"size": 1})
        tm.put(2, ["a"], area=Near(100), data={"size": 2})
        tm.put(3, ["a"], area=Circle(0, 0, 100), data={"size": 3})
        tm.put(4, ["a"], data={"size": 4}, expires=clock.after(5))
        tm.add_set(["a"], 5)
        tm.consolidate()
        tm.move([1, 2, 5], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0])
        places = [{"lon": 0.0, "lat": 0.0}, {"lon": 1.0, "lat": 0.0}, None]
        messages = pa.table({"tags": [["a"]] * 3, "location": places})

        def best(table: pa.Table, limit: int = 9) -> list[list[int]]:
            return tm.match_best(table, limit=limit, order_by="size desc").to_pylist()

        assert best(messages) == [[4, 3, 1, 5], [4, 2, 5], [4, 5]]
        assert best(messages, 2) == [[4, 3], [4, 2], [4, 5]]
        within = pa.table({"tags": [["a"]], "within": [{"kind": "circle", "lon": 0.0, "lat": 0.0, "metres": 5.0}]})
        assert best(within) == [[1, 5]]
        by_size = tm.match_counts(within, count_by="size").to_pylist()
        assert by_size == [[{"value": 1, "count": 1}, {"value": None, "count": 1}]]
        bids = within.append_column("bid", pa.array([-1]))
        assert tm.match_best(bids, limit=1, score="size * bid").to_pylist() == [[1]]
        clock.pass_by(5)
        wait_until(lambda: best(messages) == [[3, 1, 5], [2, 5], [5]])
        found = tm.match_best(messages, limit=2, order_by="size desc", columns=["size"]).to_pylist()
        three, one, two, last = ({"key": key, "size": size} for key, size in ((3, 3), (1, 1), (2, 2), (5, None)))
        assert found == [[three, one], [two, last], [last]]


CALLS = {
    "best": lambda tm, messages, **own: tm.match_best(messages, limit=2, order_by="size desc", **own),
    "score": lambda tm, messages, **own: tm.match_best(messages, limit=2, score="size * bid", **own),
    "counts": lambda tm, messages, **own: tm.match_counts(messages, count_by="size", **own),
    "highlights": lambda tm, messages, **own: tm.match_highlights(messages, **own),
}


@pytest.mark.parametrize("name", CALLS)
def test_they_wait_in_channels_as_other_calls_do(layout, name):
    """Answers are the same, in packets of few messages; late messages fail, and both are counted."""
    call, count = CALLS[name], 700
    channels = [Channel("sure"), Channel("soon", deadline=0.5, expiry=0.5)]
    tm = TagMatch(layout=layout, data={"size": "int64"}, device="cpu", threads=2, channels=channels)
    with remote(tm) as (_, over):
        tm.put_many(
            pa.table({"key": range(50), "tags": [["a"], ["b"]] * 25, "size": [number % 7 for number in range(50)]})
        )
        tm.consolidate()
        messages = pa.table({"tags": [["a"], ["b"], ["a", "b"], []] * (count // 4), "bid": [1, -1] * (count // 2)})
        expected = call(tm, messages)
        assert len(expected) == count
        for way in (tm, over):
            assert call(way, messages, channel="sure").equals(expected)
            assert call(way, messages.slice(0, 0), channel="sure").equals(expected.slice(0, 0))
        with pytest.raises(DeadlineMissed):
            call(tm, messages, channel="soon", waited=9.0)
        with pytest.raises(InvalidTypeError, match="waited"):
            call(tm, messages, channel="sure", waited="9")
        stats = tm.stats()
        assert (stats["channels"]["sure"]["answered"], stats["channels"]["soon"]["answered"]) == (2 * count, 0)
        assert stats["queries"] == 3 * count
        with pytest.raises(InvalidValueError, match="over a connection, deadlines count"):
            call(over, messages, channel="sure", waited=1.0)
    with pytest.raises(ClosedError):
        call(tm, messages)


def test_what_cannot_be_asked(tmp_path):
    with TagMatch(tmp_path / "index", data={"size": "float64", "other": "int64"}, device="cpu") as tm:
        for key, size in enumerate([1.0, math.nan, None, 2.0]):
            tm.put(key, ["a"], data={"size": size})
        tm.consolidate()
        assert tm.match_best([["a"]], limit=9, order_by="size").to_pylist() == [[0, 3, 1, 2]]
        assert tm.match_best([["a"]], limit=9, order_by="size DESC").to_pylist() == [[3, 0, 1, 2]]
        assert tm.match_best([], limit=9, order_by="size").to_pylist() == []
        for limit, order_by, error, message in (
            (0, "size", InvalidValueError, "limit must be from 1 to 10,000, not 0"),
            ("1", "size", InvalidTypeError, "limit must be an int"),
            (1, "sise", InvalidValueError, "the index has no column of data 'sise'.*size"),
            (1, "", InvalidValueError, "the index has no column of data ''"),
            (1, 5, InvalidTypeError, "order_by must be a str"),
        ):
            with pytest.raises(error, match=message):
                tm.match_best([["a"]], limit=limit, order_by=order_by)
    queries = write(tmp_path / "q.jsonl", [{"tags": ["a"]}])
    found = done("match", tmp_path / "index", queries, "--limit", "2", "--order-by", "size desc")
    assert from_json_lines(found) == [{"id": 0, "keys": [3, 0]}]
    assert from_json_lines(done("match", tmp_path / "index", queries, "--limit", "2")) == [{"id": 0, "keys": [0, 1]}]
    found = done("match", tmp_path / "index", queries, "--limit", "1", "--order-by", "size desc", "--columns", "size")
    assert from_json_lines(found) == [{"id": 0, "keys": [{"key": 3, "size": 2.0}]}]
    assert "give --limit, too" in tagmatch("match", tmp_path / "index", queries, "--order-by", "size", code=2)
    told = tagmatch("match", tmp_path / "index", queries, "--limit", "2", "--count", code=2)
    assert "is another answer than --count" in told


def test_mistakes_of_scores_and_counts(tmp_path):
    with TagMatch(tmp_path / "index", data={"size": "float64", "name": "string"}, device="cpu") as tm:
        for key, (size, name) in enumerate([(1.0, "x"), (math.nan, "y"), (None, None), (2.0, "x")]):
            tm.put(key, ["a"], data={"size": size, "name": name})
        tm.consolidate()
        messages = pa.table({"tags": [["a"]], "bid": [2], "city": ["Rome"]})
        assert tm.match_best(messages, limit=9, score="size - 3").to_pylist() == [[3, 0, 1, 2]]
        assert tm.match_best(messages, limit=9, score="-size * bid").to_pylist() == [[0, 3, 1, 2]]
        assert tm.match_best(messages, limit=9, score="1").to_pylist() == [[0, 1, 2, 3]]
        assert tm.match_best([], limit=9, score="bid").to_pylist() == []
        for score, error, message in (
            ("size * bit", InvalidValueError, "score: 'bit' is no column of data and no attribute of these .*bid"),
            ("size + name", InvalidTypeError, "score: column 'name' of data has the type string"),
            ("size + city", InvalidTypeError, "score: attribute 'city' of messages is of string"),
            ("size +", FilterError, "score: column 7: expected a number, a name, .*, found the end"),
            ("size bid", FilterError, 'score: column 6: expected an operator .*, found "bid"'),
            ("size / 2", FilterError, 'score: column 6: expected an operator .*, found "/"; there is no division'),
            (
                "size +\n é",
                FilterError,
                "score: line 2, column 2: .*; put a name that is no plain word in backquotes",
            ),
            ("size + `bid", FilterError, "score: column 8: expected a ` that closes this name, found the end"),
            ("+" * 10_001, FilterError, "score has 10,001 characters, and may have 10,000"),
            (5, InvalidTypeError, "score must be a str"),
        ):
            with pytest.raises(error, match=message):
                tm.match_best(messages, limit=1, score=score)
        with pytest.raises(InvalidValueError, match="give one of the two"):
            tm.match_best(messages, limit=1, score="size", order_by="size")
        with pytest.raises(InvalidValueError, match=r"count_by: there is no column 'nam'.*name"):
            tm.match_counts(messages, count_by="nam")
        with pytest.raises(InvalidTypeError, match="count_by must be the name"):
            tm.match_counts(messages, count_by=5)
        with pytest.raises(InvalidValueError, match="channel"):
            tm.match_counts(messages, count_by="name", channel="sure")
        with remote(tm) as (_, over):
            assert over.match_counts([], count_by="name").type == tm.match_counts([], count_by="name").type
            with pytest.raises(InvalidValueError, match="score: 'bit' is no column"):
                over.match_best(messages, limit=1, score="bit")
    queries = write(tmp_path / "q.jsonl", [{"tags": ["a"], "bid": 2}])

    def answers(*options: str) -> Any:
        (found,) = from_json_lines(done("match", tmp_path / "index", queries, *options))
        return found

    assert answers("--limit", "2", "--score", "bid - size") == {"id": 0, "keys": [0, 3]}
    counts = [{"value": "x", "count": 2}, {"value": "y", "count": 1}, {"count": 1}]
    assert answers("--count-by", "name") == {"id": 0, "counts": counts}
    assert answers("--columns", "name")["keys"][0] == {"key": 0, "name": "x"}
    assert answers("--highlights")["highlights"][0] == {"key": 0, "tags": ["a"], "tests": []}
    assert "is another answer than --count" in tagmatch(
        "match", tmp_path / "index", queries, "--count", "--count-by", "name", code=2
    )
    assert "is another answer than --count" in tagmatch(
        "match", tmp_path / "index", queries, "--count", "--columns", "name", code=2
    )
