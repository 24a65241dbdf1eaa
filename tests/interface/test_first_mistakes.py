"""What those try who use an index for the first time: forms that work elsewhere, and mistakes that are told."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from support.command import ended, write
from support.service import command, config, fetched, options, posted

from tagmatch import Box, Circle, FilterError, InvalidTypeError, InvalidValueError, NullError, TagMatch
from tagmatch.broker.service import serving

HOME = (9.0, 45.0)


@pytest.fixture
def tm(reached: Callable[[Any], Any]) -> Any:
    """Sets with conditions, areas and data; in this process, or over a connection."""
    index: TagMatch[int] = TagMatch(data={"size": "int64"}, device="cpu", threads=2)
    index.add_sets([["a"], []], [1, 2], where=[None, "price < 10"])
    index.add_set([], 3, area=Circle(*HOME, 10))
    for key, size in ((4, 5), (5, 7), (6, None)):
        index.put(key, ["b"], data={"size": size})
    index.consolidate()
    return reached(index)


def test_a_message_need_have_no_tags(tm: TagMatch[int]) -> None:
    cheap: Any = {"price": 9}
    assert tm.match(attributes=cheap) == [2]
    assert tm.match_unique(attributes=cheap) == {2}
    assert tm.match_count(attributes=cheap) == 1
    assert tm.match_exists(location=HOME)
    assert tm.submit(attributes=cheap).result() == [2]
    assert asyncio.run(tm.amatch(attributes=cheap)) == [2]
    assert [keys for _, keys in tm.explain(attributes=cheap)] == [(2,)]
    assert tm.explain(attributes=cheap, key=2).matches
    assert tm.match() == []


def test_the_best_keys_of_one_message_are_those_of_many(tm: TagMatch[int]) -> None:
    for order in ("size", "size desc"):
        best = tm.match_best([["b"]], limit=2, order_by=order).to_pylist()[0]
        assert (
            tm.match(["b"], limit=2, order_by=order) == asyncio.run(tm.amatch(["b"], limit=2, order_by=order)) == best
        )
    assert tm.match(["b"], {"bid": -1}, limit=1, score="size * bid", columns=["size"]) == [{"key": 4, "size": 5}]
    assert tm.match(["b"], limit=3) == [4, 5, 6]
    with pytest.raises(InvalidValueError, match="order_by and score need limit"):
        tm.match(["b"], order_by="size")


def test_best_keys_are_within_an_area(tm: TagMatch[int]) -> None:
    tm.move([4], *HOME)
    assert tm.match(["b"], within=Circle(*HOME, 5), limit=3, order_by="size desc") == [4]


def test_awaited_keys_come_with_data(tm: TagMatch[int]) -> None:
    found = asyncio.run(tm.amatch(["b"], columns=["size"]))
    assert sorted(found, key=lambda row: row["key"]) == [
        {"key": 4, "size": 5}, {"key": 5, "size": 7}, {"key": 6, "size": None}
    ]  # fmt: skip
    for mistake in ({"unique": True, "columns": ["size"]}, {"unique": True, "limit": 1}, {"columns": ["sise"]}):
        with pytest.raises(InvalidValueError, match=r"without unique|is 'size' meant"):
            asyncio.run(tm.amatch(["b"], **mistake))


@pytest.mark.parametrize("columns", [5, "size", b"size", True])
def test_columns_are_a_list_of_names(tm: TagMatch[int], columns: Any) -> None:
    for ask in (lambda: tm.match(["b"], columns=columns), lambda: tm.match_many([["b"]], columns=columns)):
        with pytest.raises(InvalidTypeError, match="columns must be a list of names, not"):
            ask()


#: Forms of one circle of 10 m, and of one box
CIRCLES = [
    Circle(*HOME, 10), "circle(9, 45, 10)", {"kind": "circle", "lon": 9, "lat": 45, "metres": 10},
    {"lon": 9, "lat": 45.0, "metres": 10}, {"text": "circle(9, 45, 10)"},
    {"lon": 9, "lat": 45, "metres": 10, "west": None, "kind": None}, '{"lon": 9, "lat": 45, "metres": 10}',
]  # fmt: skip
BOXES = [Box(8, 44, 10, 46), {"west": 8, "south": 44, "east": 10, "north": 46}]
PLACES = [HOME, [9, 45], {"lon": 9, "lat": 45}, {"lat": 45, "lon": 9}, [{"lon": 9, "lat": 45}, (1, 1)], [[9, 45]]]


@pytest.mark.parametrize("area", [*CIRCLES, *BOXES], ids=str)
def test_an_area_has_its_forms_everywhere(tm: TagMatch[int], area: Any) -> None:
    tm.add_set(["c"], 10, area=area)
    tm.add_sets([["c"]], [11], area=area)
    tm.add_sets([["c"]], [12], area=[area])
    tm.put(13, ["c"], area=area)
    tm.consolidate()
    assert sorted(tm.match(["c"], location=HOME)) == [3, 10, 11, 12, 13]
    assert tm.match_unique(["c"], location=(20, 20)) == set()
    tm.move([1], *HOME)
    assert tm.match(["a"], within=area) == [1]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_location_has_its_forms_everywhere(tm: TagMatch[int], place: Any) -> None:
    assert tm.match(location=place) == [3]
    assert asyncio.run(tm.amatch(location=place)) == [3]
    assert tm.explain(location=place, key=3).matches


_PLAIN = [form for form in (*CIRCLES, *BOXES) if isinstance(form, str | dict)]


def test_areas_and_locations_have_their_forms_over_http() -> None:
    index: TagMatch[int] = TagMatch(device="cpu", threads=2, data={"size": "int64"})
    with index, serving(index, config()) as service:
        assert service.http is not None
        url = service.http.url
        posted(f"{url}/subscriptions", [{"key": key, "tags": ["a"], "area": form} for key, form in enumerate(_PLAIN)])
        index.put(100, ["b"], data={"size": 1})
        index.consolidate()
        index.move([100], *HOME)
        every = [*range(len(_PLAIN))]
        for place in PLACES:
            message = {"tags": ["a"], "location": place}
            assert sorted(posted(f"{url}/match", message)["keys"]) == every
            assert posted(f"{url}/count", message) == {"count": len(every)}
            assert sorted(posted(f"{url}/match_many", [message])[0]["keys"]) == every
            assert posted(f"{url}/explain", {**message, "key": 0})["matches"]
        for form in _PLAIN:
            message = {"tags": ["b"], "within": form}
            assert posted(f"{url}/match", message) == {"keys": [100]}
            assert posted(f"{url}/match", {**message, "limit": 1, "order_by": "size"}) == {"keys": [100]}
            assert posted(f"{url}/match_many", [message])[0]["keys"] == [100]
            assert posted(f"{url}/explain", {**message, "key": 100})["matches"]


def test_places_in_a_dictionary() -> None:
    with TagMatch(device="cpu") as tm:
        tm.add_set(["a"], 1, area=Circle(9, 45, 10))
        tm.consolidate()
        indices = pa.array([0, None, 1, 0], pa.int8())
        for places in (
            pa.array([{"lon": 9.0, "lat": 45.0}, None]),
            pa.array([[9.0, 45.0], None], pa.list_(pa.float64(), 2)),
            pa.array([[[0.0, 0.0], [9.0, 45.0]], []], pa.list_(pa.list_(pa.float64()))),
        ):
            column = pa.DictionaryArray.from_arrays(indices, places)
            table = pa.table({"tags": [["a"]] * 4, "location": column})
            assert tm.match_many(table[1:]).to_pylist() == [[], [], [1]]
            assert tm.match_many(table).to_pylist() == [[1], [], [], [1]]


# -- messages without tags ---------------------------------------------------------------------------------------------

_TOPICS = {"key": [1], "topics": [["a", "b"]]}
_NOTE = r"no tags, and attributes that no condition of the index asks for \('key', 'topics'\): tags go into a column"


@pytest.mark.parametrize("shape", ["columns", "attributes"])
def test_messages_without_tags_are_told(tm: TagMatch[int], shape: str) -> None:
    """If no condition asks for what they have; the answers are as before."""
    rows = [dict(zip(_TOPICS, each, strict=True)) for each in zip(*_TOPICS.values(), strict=True)]
    table = pa.table(_TOPICS) if shape == "columns" else pa.table({"attributes": rows})
    with pytest.warns(UserWarning, match=_NOTE):
        assert tm.match_many(table).to_pylist() == [[]]
    with pytest.warns(UserWarning, match=_NOTE):
        assert tm.match_counts(table).to_pylist() == [0]


@pytest.mark.filterwarnings("error")
def test_messages_that_something_asks_for_are_not(tm: TagMatch[int]) -> None:
    for table in (
        {**_TOPICS, "tags": [["a"]]}, {**_TOPICS, "price": [3]}, {**_TOPICS, "location": [HOME]}, {"tags": [[]]},
    ):  # fmt: skip
        tm.match_many(pa.table(table))
    tm.match_many([[], []])
    tm.match(attributes={"topics": "a"})
    # Of each kind of condition
    for where in ("a < b", "at least 2 of {c = 1, d < 3, exists(e)}", "f >= now() - 5 days", 'g matches "x"'):
        tm.add_set([], 9, where=where)
        tm.add_set([], 9, where=f"not ({where})")
    tm.consolidate()
    for name in "abcdefg":
        tm.match_many(pa.table({name: [1], "key": [2]}))
    with TagMatch(device="cpu") as other:  # whose only tests look at two attributes
        other.add_set([], 9, where="a < b")
        other.consolidate()
        other.match_many(pa.table({"a": [1], "b": [2]}))


@pytest.mark.filterwarnings("error")
def test_an_empty_index_says_nothing_of_messages() -> None:
    with TagMatch(device="cpu", attributes={"x": "int64"}) as tm:
        tm.match_many(pa.table(_TOPICS))
        tm.add_set(["a"], 1)
        tm.consolidate()
        tm.match_many(pa.table({"x": [1]}))  # it is declared


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_the_command_tells_of_messages_without_tags(tmp_path: Path, suffix: str) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([["a"], ["b"]], [1, 2], where=[None, "price < 3"])
        tm.consolidate()
    path = tmp_path / f"messages.{suffix}"
    rows = [{"key": 1, "topics": "a"}, {"key": 2, "topics": "b"}]

    def asked(more: dict[str, Any]) -> str:
        write(path, [{**row, **more} for row in rows])
        return ended("match", tmp_path / "index", path).stderr

    assert "tagmatch: these messages have no tags, and attributes that no condition" in asked({})
    assert asked({"price": 4}) == ""


@pytest.mark.parametrize("form", ["json", "lines", "arrow"])
def test_http_tells_of_messages_without_tags(form: str) -> None:
    """By a header, which has a form for any name of an attribute; the answers are as before."""

    def asked(row: dict[str, Any], query: str = "") -> tuple[str | None, bytes]:
        body, kind = json.dumps(row).encode() + b"\n", "application/x-ndjson"
        if form == "json":
            body, kind = b"[" + body + b"]", "application/json"
        elif form == "arrow":
            sink, table = pa.BufferOutputStream(), pa.Table.from_pylist([row])
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write(table)
            body, kind = sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream"
        request = urllib.request.Request(f"{url}/match_many{query}", body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers["Tagmatch-Note"], answer.read()

    with TagMatch(device="cpu", threads=2, data={"size": "int64"}) as index, serving(index, config()) as service:
        assert service.http is not None
        url = service.http.url
        index.add_sets([["a"], ["b"]], [1, 2], where=[None, "price < 3"])
        index.consolidate()
        told, answer = asked({"topics": "a", "a\r\nb: \u00e9": 1})
        assert told == (
            "these messages have no tags, and attributes that no condition of the index asks for "
            r"('topics', 'a\r\nb: \xe9'): tags go into a column 'tags'"
        )
        assert answer == asked({"topics": "a", "tags": ["c"]})[1]
        for query in ("?limit=1", "?columns=size", "?unique=true"):
            assert "asks for ('topics')" in (asked({"topics": "a"}, query)[0] or "")
        for row, query in (
            ({"price": 4}, ""), ({"topics": "a", "tags": ["c"]}, ""), ({"topics": 1}, "?limit=1&score=topics"),
        ):  # fmt: skip
            assert asked(row, query)[0] is None


def test_any_client_of_flight_is_told_of_messages_without_tags() -> None:
    with TagMatch(device="cpu", threads=2) as index, serving(index, config()) as service:
        index.add_set(["a"], 1)
        index.consolidate()
        with flight.connect(service.url) as client:
            writer, reader = client.do_exchange(command(command="match"), options())
            with writer:
                rows = pa.record_batch({"id": [1], "topics": ["a"]})
                writer.begin(rows.schema)
                writer.write(rows)
                chunk = reader.read_chunk()
                assert chunk.data.to_pylist() == [{"id": 1, "keys": []}]
                assert json.loads(chunk.app_metadata.to_pybytes())["note"].startswith("these messages have no tags")
                writer.write(rows)  # it is told once
                assert reader.read_chunk().app_metadata is None


# -- one subscription --------------------------------------------------------------------------------------------------


def test_errors_of_one_subscription_have_no_row(tm: TagMatch[int]) -> None:
    for wrong in ({"where": "x >"}, {"area": {"lon": 1000, "lat": 3, "metres": 4}}):
        for change in (lambda: tm.add_set(["a"], 1, **wrong), lambda: tm.put(1, ["a"], **wrong)):  # noqa: B023
            with pytest.raises((InvalidValueError, FilterError)) as told:
                change()
            assert "row" not in str(told.value)
            assert str(told.value).startswith(("where: column 4: expected", "area: lon must be from"))


def test_data_alone_is_not_put(tm: TagMatch[int]) -> None:
    """It would take the place of the subscription."""
    with pytest.raises(NullError, match="it replaces all that the key had: to change its data alone"):
        tm.put(4, data={"size": 1})
    with pytest.raises(InvalidValueError, match="a put replaces all that a key had"):
        tm.put_many(pa.table({"key": [4], "size": [1]}))
    tm.consolidate()
    assert tm.get(4).data == {"size": 5}  # type: ignore[union-attr]


def test_one_subscription_over_http() -> None:
    kinds = {"at": "timestamp", "price": "decimal(10, 2)", "day": "date", "size": "int64"}
    with TagMatch(device="cpu", threads=2, data=kinds) as index, serving(index, config()) as service:
        assert service.http is not None
        url = service.http.url
        data = {"at": "2026-01-02T03:04:05+00:00", "price": "1.50", "day": "2026-01-02", "size": 3}
        path = f"{url}/subscriptions/1"
        posted(path, {"tags": ["a"], "data": data}, method="PUT")
        assert json.loads(fetched(path))["data"] == data
        wanted, query = ["at", "day", "price", "size"], "columns=at&columns=day&columns=price&columns=size"
        answer = posted(f"{url}/match", {"tags": ["a"], "columns": wanted})
        assert answer == {"keys": [{"key": 1, **data}]}
        assert posted(f"{url}/match_many?{query}", [{"tags": ["a"]}]) == [answer]
        lines = posted(f"{url}/match_many?{query}", b'{"tags": ["a"]}\n', "application/x-ndjson")
        assert json.loads(lines) == answer
        for wrong, told in (
            ({"data": {"size": 4}}, "it replaces all that the key had"),
            ({"tags": [], "where": "x >"}, "the body: column 'where': column 4: expected"),
            ({"tags": "a"}, "the body: column 'tags': must be an iterable of strings"),
        ):
            with pytest.raises(ValueError, match=told):
                posted(path, wrong, method="PUT")
        assert json.loads(fetched(path))["data"] == data


@pytest.mark.parametrize("key", ["beta", 5])
def test_a_key_is_no_set(reached: Any, key: Any) -> None:
    tm = reached(TagMatch(device="cpu", threads=1, key_type="string" if key == "beta" else "integer"))
    tm.add_set(["a"], key)
    tm.consolidate()
    with pytest.raises(InvalidTypeError, match="whether it has a key, ask `records`"):
        assert key in tm
    assert key in tm.records
