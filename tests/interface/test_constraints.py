"""Sets with `where`, and messages with attributes: mistakes in them, and the formats of files that hold conditions."""

import asyncio
import json
import math
import pickle
import struct
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import filters
from support.agreement import index_of
from support.index_files import contents_of

import tagmatch
from tagmatch import FilterError, IndexVersionError, InvalidTypeError, InvalidValueError, TagMatch, Version, Where


def as_dictionary(rows: list[list[str]]) -> pa.Array:
    return pa.array(rows, pa.list_(pa.dictionary(pa.int32(), pa.string())))


@pytest.mark.parametrize("make", [list, lambda rows: pa.array(rows, pa.list_(pa.string())), as_dictionary])
def test_reserved_tags(make):
    for sign in "+-=":
        with TagMatch(device="cpu") as tm:
            rows = make([["a", f"b\0{sign}"], ["a", "\0", f"{sign}"], ["a", f"\0{sign}b"], [f"\0{sign}"]])
            for change in (tm.add_sets, tm.remove_sets):
                with pytest.raises(InvalidValueError, match="tags: row 2 holds a tag that begins as constraints do"):
                    change(rows, range(4))
            for change in (tm.add_set, tm.remove_set):
                with pytest.raises(InvalidValueError, match="tags holds a tag that begins as constraints do"):
                    change([f"\0{sign}b"], 1)
            assert tm.stats()["staged"] == 0
            tm.add_sets(rows[:2], [0, 1])
            tm.consolidate()
            assert sorted(tm.match(["a", f"b\0{sign}", "\0", sign])) == [0, 1]


def test_a_reserved_string_of_a_dictionary_that_no_set_has():
    strings = pa.DictionaryArray.from_arrays(pa.array([0, 2, 2]), pa.array(["a", "\0=", "b"]))
    with index_of(pa.ListArray.from_arrays(pa.array([0, 1, 3]), strings), [1, 2], device="cpu") as tm:
        assert len(tm) == 2


def test_conditions_are_no_tags():
    with TagMatch(device="cpu") as tm:
        with pytest.raises(InvalidTypeError, match="row 1 holds a condition"):
            tm.add_sets([["a"], [Where("a = 1")]], [1, 2])
        tm.add_set(["a", "price < 10"], 1)
        tm.add_set(["a"], 2, where="price<10")
        tm.consolidate()
        assert dict(tm) == {frozenset({"a", "price < 10"}): (1,), frozenset({"a", Where("price < 10")}): (2,)}
        assert {"a", Where("price<10")} in tm
        assert {"a", Where("price < 11")} not in tm
        assert {"a", Where("price = 1 or price = 2")} not in tm
        assert tm.explain(["a"], {"price": 1}) == [(frozenset({"a", Where("price < 10")}), (2,))]


@pytest.mark.parametrize("alike", [511, 512])
def test_paths_are_told(alike):
    """Sets that ask for what all messages have are in lines, if they fill a block; all others in a trie."""
    with TagMatch(device="cpu") as tm:
        assert tm.stats()["with_conditions"] == {"trie": 0, "lines": 0}
        where = [f"price between {key} and {key + alike}" for key in range(alike)]
        tm.add_sets([[]] * alike, range(1000, 1000 + alike), where=where)
        tm.add_sets([["a"], []], [1, 2], where=[None, 'price >= 0 and city = "Rome"'])
        tm.consolidate()
        path, in_lines = ("lines", alike) if alike == 512 else ("trie", 0)
        assert tm.stats()["with_conditions"] == {"trie": alike - in_lines + 1, "lines": in_lines}
        found = tm.explain(["a"], {"price": 0, "city": "Rome"})
        paths = {key: {tag.path for tag in tags if isinstance(tag, Where)} for tags, (key,) in found}
        assert paths == {1: set(), 2: {"trie"}, 1000: {path}}
        copied = pickle.loads(pickle.dumps(found))
        assert {tag.path for tags, _ in copied for tag in tags if isinstance(tag, Where)} == {"trie", path}


def test_tables_of_subscriptions():
    with TagMatch(device="cpu") as tm, TagMatch(device="cpu") as other:
        where = pa.chunked_array([["price < 10", None], ['city = "Rome"']], pa.string())
        tm.add_subscriptions(pa.table({"key": [1, 2, 1], "where": where}), match_all=True)
        tm.consolidate()
        other.add_subscriptions(tm.to_arrow())
        other.consolidate()
        assert dict(other) == dict(tm)
        for bad, message in [
            (pa.table({"tags": [["a"]]}), "need a column 'key'"),
            (pa.table({"key": [1], "price": [2]}), "not 'price'"),
            ([1], "must be a table of Arrow or a DataFrame"),
        ]:
            with pytest.raises((InvalidTypeError, InvalidValueError), match=message):
                tm.add_subscriptions(bad)
        assert tm.stats()["staged"] == 0


ERRORS = (TypeError, ValueError)

#: What the language says of them; tests of the model have many more
EXPRESSIONS = [
    ("", "column 1: expected a test, such as price < 10, found the end"),
    ("x == 5", 'column 4: expected a value (a number, "text", true or false) or an attribute, found "="'),
    ('tags {"\0+a"}', "column 7: a tag must not begin with U+0000 and +, - or =, as constraints do"),
    ("at least 3 of {a = 1, b = 1}", "column 1: there is no 3 of 2: the number is from 1 to 2 here"),
]

ONE, TWO = (["a"], 1), ([["a"], ["b"]], [1, 2])
#: Each way to give one expression: a call, its other arguments, the form of the expression; how a message begins
CALLS: list[tuple[str, Any, Callable[[Any], Any], str]] = [
    ("add_set", ONE, lambda where: where, "where: "), ("remove_set", ONE, lambda where: where, "where: "),
    ("add_sets", TWO, lambda where: where, "where: "), ("add_sets", TWO, lambda where: [None, where], "where: row 1: "),
    ("remove_sets", TWO, lambda where: ["a = 1", where], "where: row 1: "),
    ("add_sets", TWO, lambda where: pa.array(["a = 1", where]), "where: row 1: "),
    ("add_sets", TWO, lambda where: pa.array(["a = 1", where]).dictionary_encode(), "where: row 1: "),
]  # fmt: skip


def said(change: Callable[[TagMatch], Any], *errors: type[Exception]) -> str:
    with TagMatch(device="cpu", threads=1) as tm:
        with pytest.raises(errors) as found:
            change(tm)
        assert tm.stats()["staged"] == 0
    text = str(found.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("name", "arguments", "make", "begin"), CALLS)
def test_expressions(name: str, arguments: Any, make: Any, begin: str) -> None:
    for where, message in EXPRESSIONS:
        told = said(lambda tm, where=where: getattr(tm, name)(*arguments, where=make(where)), FilterError)
        assert told.startswith(begin + message)


def test_no_text() -> None:
    for where in (b"x = 1", 5, 1.5, True, ["x = 1"], {"x": 1}, math.nan, object()):
        for name in ("add_set", "remove_set"):
            told = said(lambda tm, name=name, where=where: getattr(tm, name)(*ONE, where=where), TypeError)
            assert told.startswith("where must be a str, not ")
            assert ("importing.elasticsearch" in told) is isinstance(where, dict)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (5, "where must be a text, or one for each row, not 5 (int)"),
        (b"x = 1", "where must be a text, or one for each row, not b'x = 1'"),
        ({"x = 1"}, "where must be a text, or one for each row, not {'x = 1'} (set)"),
        ({"x": 1}, "where must be a text, or one for each row, not {'x': 1} (dict)"),
        (["x = 1", 5], "where: row 1 must be a text, not 5 (int)"),
        ([math.nan, None], "where: row 0 must be a text, not nan (float)"),
        (["x = 1"], "where must have a text or a null for each of the 2 sets, not 1"),
        (pa.array([1, 2]), "where must be texts, not int64"),
        (pa.array([b"x = 1", None]), "where must be texts, not binary"),
        (pa.table({"where": ["x = 1", None]}), "where must be one column, not a Table; pick one, as in table['tags']"),
    ],
)
def test_columns_of_expressions(where: Any, message: str) -> None:
    for name in ("add_sets", "remove_sets"):
        assert said(lambda tm, name=name: getattr(tm, name)(*TWO, where=where), *ERRORS) == message


#: Each way to ask with attributes
ASK: dict[str, Callable[[TagMatch, Any, Any], Any]] = {
    "match": TagMatch.match, "match_unique": TagMatch.match_unique, "explain": TagMatch.explain,
    "submit": lambda tm, tags, attributes: tm.submit(tags, attributes).result(60),
    "amatch": lambda tm, tags, attributes: asyncio.run(tm.amatch(tags, attributes)),
}  # fmt: skip


@pytest.mark.parametrize("condition", ['x < "x"', 'x = "x"', 'x prefix ""', 'x >= ""', "x < 5", "x = true"])
def test_what_has_a_type_of_its_own_is_no_text(condition: str) -> None:
    values = [ip_address("10.1.2.3"), date(2026, 11, 28), datetime(2026, 11, 28, tzinfo=UTC), Version("1.2.3")]
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[], []], [1, 2], where=[condition, f"not {condition}"])
        tm.consolidate()
        assert [tm.match([], {"x": value}) for value in values] == [[2]] * len(values)


NO_VALUE = (
    'attribute "x": a value must be a bool, a number, a str, a date, a datetime, an IP address or a Version, not '
)
TOO_GREAT = 'attribute "x": an integer must be from -2**63 to 2**63 - 1'


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        *(({"x": each}, NO_VALUE + type(each).__name__) for each in (b"a", timedelta(1), {"y": "1"})),
        ({"x": datetime(2026, 1, 1)}, 'attribute "x": the time 2026-01-01T00:00:00 has no time zone; give one, as in '),
        ({"x": {"version": "a"}}, 'attribute "x": a version is written as in "1.10.0" or "2.0.0-rc.1", not'),
        ({"x": Decimal("1E-9999")}, 'attribute "x": a decimal must have at most 1100 digits'),
        ({"x": [1, [2]]}, f"{NO_VALUE}list"), ({"x": 1j}, f"{NO_VALUE}complex"),
        ({"x": np.datetime64(1, "ns")}, f"{NO_VALUE}datetime64"), ({"x": np.uint64(2**63)}, TOO_GREAT),
        ({"x": 2**63}, TOO_GREAT), ({"x": -(2**63) - 1}, TOO_GREAT), ({"x": 2**90}, TOO_GREAT),
        ({"x": "\ud800"}, "attribute \"x\": the text '\\ud800' has no UTF-8 form"),
        ({"": 1}, "the name of an attribute must not be empty"),
        ({"a\0": 1}, "the name of an attribute must not contain U+0000"),
        ({"\ud800": 1}, "the name of an attribute '\\ud800' has no UTF-8 form"),
        ({5: 1}, "the name of an attribute must be a str, not int 5"),
        ({"x": 1, ("q",): 2}, "the name of an attribute must be a str, not tuple"),
        ([("x", 1)], "attributes must be a mapping from names to values, not [('x', 1)] (list)"),
        ("x", "attributes must be a mapping from names to values, not 'x'"),
    ],
)  # fmt: skip
def test_attributes(attributes: Any, message: str) -> None:
    for ask in ASK.values():
        assert said(lambda tm, ask=ask: ask(tm, ["a"], attributes), *ERRORS).startswith(message)


def test_values_of_numpy() -> None:
    """As those of Python: integers are exact, which floats of 64 bits are not."""
    where = ["x = 9007199254740993", "x = 9.5", "x = true", 'x = "Rome"', "x > 0"]
    of_numpy = [
        (2**53 + 1, np.int64(2**53 + 1)), (9.5, np.float32(9.5)), (True, np.bool_(True)), ("Rome", np.str_("Rome")),
        ([2**53 + 1, True], [np.uint64(2**53 + 1), np.True_]),
    ]  # fmt: skip
    with index_of([[]] * 5, range(5), where=[np.str_(text) for text in where], device="cpu", threads=1) as tm:
        for ask, (value, same) in product(ASK.values(), of_numpy):
            found = ask(tm, [], {"x": value})
            assert found
            # In no particular order
            assert Counter(ask(tm, [], {np.str_("x"): same})) == Counter(found)


@pytest.mark.parametrize("make", [dict, MappingProxyType])
def test_attributes_in_the_place_of_tags(make: Any) -> None:
    for ask, attributes in product(ASK.values(), (None, {})):
        found = said(lambda tm, ask=ask, also=attributes: ask(tm, make({"price": 9}), also), TypeError)
        assert found.startswith("tags must be an iterable of strings, not the mapping ")
        assert found.endswith("; values of attributes go into attributes=, or into columns of a table")


OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
LATE = datetime(9000, 1, 1, tzinfo=UTC)


def format_of(index: Path, manifest: str = "MANIFEST.json") -> int:
    found: int = json.loads((index / manifest).read_text())["format"]
    return found


def log_formats(index: Path, kind: str = "staged") -> list[int]:
    return [struct.unpack_from("<I", file.read_bytes(), 4)[0] for file in sorted(index.glob(f"{kind}-*.log"))]


AREA, SHOWN, BOX = tagmatch.Circle(1, 2, 3), Where("within circle(1, 2, 3)"), "not within box(1, 2, 3, 4)"
#: Changes one after the other, and the formats of the index and its logs after each
CHANGES: list[list[tuple[Any, int, list[int]]]] = [
    [
        (lambda tm: tm.add_set(["a"], 1), 3, [1]),
        (lambda tm: tm.add_set(["a"], 2, where="x < 1 or x > 5"), 5, [3]),
        (lambda tm: tm.add_set(["b"], 3, expires=LATE), 5, [2]),
        (lambda tm: tm.remove_set(["a"], 2, where="x < 1 or x > 5"), 4, [3]),
        (lambda tm: tm.remove_sets([["b"]], [3]), 3, [1]),
    ],
    [
        (lambda tm: tm.add_set(["a"], 1), 3, [1]),
        (lambda tm: tm.add_set(["a"], 2, where="x = 1"), 5, [3]),
        (lambda tm: tm.add_set(["a"], 2, area=AREA, expires=LATE), 6, [4]),
        (lambda tm: tm.add_sets([["b"]], [3], where=[f"x = 1 or {BOX}"]), 6, [4]),
        (lambda tm: tm.remove_sets([["b"]], [3], where=BOX), 6, [4]),
        (lambda tm: tm.remove_sets([["a"]], [2], area=[AREA]), 5, [4]),
        (lambda tm: tm.remove_sets([["a"], ["b"]], [2, 3], where="x = 1"), 3, [3]),
    ],
]


@pytest.mark.parametrize("changes", CHANGES, ids=["conditions", "areas"])
def test_only_indexes_with_conditions_have_formats_of_their_own(tmp_path: Path, changes: Any) -> None:
    """Also with keys that expire, and only as long as there are some."""
    index = tmp_path / "i"
    for change, *formats in changes:
        with TagMatch(index, **OPTIONS) as tm:
            change(tm)
            logs = log_formats(index)
            tm.consolidate(full=True)
            assert [format_of(index), logs] == formats
    index_of([["a"]], [1], path=tmp_path / "plain", **OPTIONS).close()
    files, plain = contents_of(index), contents_of(tmp_path / "plain")
    assert {name for name in files if files[name] != plain.get(name)} == {"MANIFEST.json"}


@pytest.mark.parametrize("is_bulk", [False, True])
@pytest.mark.parametrize(
    ("options", "stored", "log", "version"),
    [
        ({"expires": LATE}, "b", 2, 4),
        ({"where": "x = 1"}, ["b", Where("x = 1")], 3, 5),
        ({"area": AREA}, ["b", SHOWN], 4, 6),
    ],
)
def test_older_versions_refuse_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bulk: bool, options: Any, stored: Any, log: int, version: int
) -> None:
    """In the log, where those before can be read, and in the index."""
    index = tmp_path / "i"
    with TagMatch(index, durability="os", **OPTIONS) as tm:
        tm.add_set(["a"], 1)
        if is_bulk:
            tm.add_sets([["a"], ["b"]], [3, 4], **{name: [None, value] for name, value in options.items()})
        else:
            tm.add_set(["b"], 4, **options)
    assert log_formats(index) == [1, log]
    with monkeypatch.context() as older:
        older.setattr("tagmatch.model.storage.log.LOG_VERSION", log - 1)
        with pytest.raises(IndexVersionError, match=rf"staged-\d*2\.log has format {log}, .* up to {log - 1}; upgrade"):
            TagMatch(index, **OPTIONS)
    with TagMatch(index, **OPTIONS) as tm:
        tm.consolidate()
        assert dict(tm)[frozenset(stored)] == (4,)
    monkeypatch.setattr("tagmatch.model.storage.format.FORMAT_VERSION", version - 1)
    with pytest.raises(IndexVersionError, match=rf"has format {version}, .* up to {version - 1}; upgrade tagmatch"):
        TagMatch.open(index, **OPTIONS)


@pytest.mark.usefixtures("segments_stay")
def test_small_segments_earlier_snapshots_and_copies(tmp_path: Path) -> None:
    """In any segment; a snapshot that is kept has its own format, and so have staged changes in a copy."""
    index, copy = tmp_path / "i", tmp_path / "copy"
    with index_of([[f"t{i}"] for i in range(100)], range(100), path=index, keep_snapshots=1, **OPTIONS) as tm:
        tm.add_set(["b"], 4, where="x = 1")
        tm.consolidate()
        assert (tm.stats()["segments"], format_of(index)) == (2, 5)
        tm.add_set(["c"], 5)
        tm.remove_set(["b"], 4, where="x = 1")
        tm.consolidate(full=True)
        assert (format_of(index), format_of(index, "MANIFEST-2.json")) == (3, 5)
        tm.add_set(["d"], 6, where="x = 2")
        tagmatch.backup(index, copy)
    assert (format_of(copy), log_formats(copy, "changes")) == (3, [3])
    with TagMatch(copy, **OPTIONS) as tm:
        tm.consolidate()
        assert tm.match(["d"], {"x": 2}) == [6]
    assert format_of(copy) == 5
    with TagMatch.open(index, snapshot=2, **OPTIONS) as tm:
        assert tm.match(["b"], {"x": 1}) == [4]


@given(st.lists(filters.versions, min_size=2, max_size=5))
def test_python_compares_versions_as_the_index_does(versions):
    one, two = versions[:2]
    operators = {"=": one == two, "!=": one != two, "<": one < two, "<=": one <= two, ">": one > two, ">=": one >= two}
    with TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([[]] * 6, range(6), where=[f"v {sign} version {json.dumps(two)}" for sign in operators])
        tm.consolidate()
        assert sorted(tm.match([], {"v": one})) == [key for key, holds in enumerate(operators.values()) if holds]
    assert one != two or hash(one) == hash(two)
    assert len({*versions}) == sum(all(each != other for other in versions[:at]) for at, each in enumerate(versions))


def test_a_version_is_no_text():
    """It would be compared by its letters: 1.10 before 1.9."""
    assert Version("1.10.0") == Version("v1.10") > Version("1.9") > Version("1.9-rc.1")
    assert Version("1.9") != "1.9"
    for wrong in (lambda: Version("1.10") < "1.9", lambda: Version("1.10") < "1.9", lambda: max("2", Version("1"))):
        with pytest.raises(InvalidTypeError, match="a Version is compared with a Version, not with str"):
            wrong()
    for value in (1.10, None, ["1.10"]):
        with pytest.raises(InvalidTypeError, match="a version is a text"):
            Version(value)
