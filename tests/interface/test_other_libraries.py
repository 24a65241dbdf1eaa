"""Tables of other libraries, extension types, missing times, and strings that are no UTF-8."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.agreement import index_of
from support.service import remote

from tagmatch import FilterError, InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.broker.hub import messages_of
from tagmatch.files.columns import InvalidRows
from tagmatch.files.rows import read_queries, read_sets
from tagmatch.model.input.subscriptions import have_mistakes, reject_mistakes


def old_pandas(table: pa.Table) -> pd.DataFrame:
    """With an index that its stream would have as a column."""
    frame = pd.DataFrame({name: table[name].to_pylist() for name in table.column_names})
    frame.index = pd.Index([7 + row for row in range(len(frame))], name="rooms")
    return frame


def relation(table: pa.Table) -> Any:
    frame = table  # which DuckDB finds by its name
    assert frame is table
    return duckdb.sql("SELECT * FROM frame")


#: Some have nothing but Arrow's C stream, or its C array
LIBRARIES: list[Callable[[pa.Table], Any]] = [
    old_pandas, pl.DataFrame, relation, pa.Table.to_reader,
    lambda table: SimpleNamespace(__arrow_c_stream__=table.__arrow_c_stream__),
    lambda table: SimpleNamespace(__arrow_c_array__=table.combine_chunks().to_batches()[0].__arrow_c_array__),
]  # fmt: skip
SUBSCRIPTIONS = pa.table({"key": [1, 2], "tags": [["flat"], ["flat"]], "where": ["price < 900", "rooms = 7"]})
QUERIES = pa.table({"tags": [["flat"], ["house"]], "price": [850.5, 1.0]})


def test_tables_of_any_library() -> None:
    with TagMatch() as here, remote() as (_, there):
        for tm, made in product((here, there), LIBRARIES):
            tm.add_subscriptions(made(SUBSCRIPTIONS))
            tm.consolidate()
            assert tm.match_many(made(QUERIES)).to_pylist() == [[1], []]
            if tm is there:
                assert there.publish(made(QUERIES.append_column("id", [["a", "b"]]))).matched == 1
            tm.remove_subscriptions(made(SUBSCRIPTIONS))
            tm.consolidate()
            assert len(tm) == 0


RECORDS = SUBSCRIPTIONS.append_column("email", [["ana@x", "bo@x"]]).append_column("rank", [[1, 2]])
BOTH = pa.table({"tags": [["flat"]], "price": [850.5], "rooms": [7]})


def test_records_and_answers_of_any_library() -> None:
    """Each call that takes a table, with data of all that hold texts."""
    options: Any = {"data": {"email": "string", "rank": "int64"}}
    with TagMatch(**options) as here, remote(TagMatch(**options)) as (_, there):
        for tm, made in product((here, there), LIBRARIES):
            tm.put_many(made(RECORDS))
            tm.consolidate()
            assert tm.get(2).data == {"email": "bo@x", "rank": 2}
            # pandas has an index of the name `rooms`, which is no column
            assert tm.match_counts(made(BOTH)).to_pylist() == [2]
            assert tm.match_exists_many(made(BOTH)).to_pylist() == [True]
            assert tm.match_best(made(BOTH), limit=1, order_by="rank desc").to_pylist() == [[2]]
            assert {each["key"] for each in tm.match_highlights(made(BOTH)).to_pylist()[0]} == {1, 2}
            found = tm.match_many(made(BOTH), columns=["email"]).to_pylist()[0]
            assert {each["key"]: each["email"] for each in found} == {1: "ana@x", 2: "bo@x"}
            tm.delete_many(RECORDS["key"])
            tm.consolidate()
            assert not tm.records


@pytest.mark.parametrize(
    "emails",
    [pl.Series(["a", None], dtype=pl.Categorical), pd.Series(["a", None], dtype="category"), pl.Series(["a", None])],
)
@pytest.mark.parametrize("kind", ["string", "dictionary"])
def test_texts_of_data_of_any_library(emails: Any, kind: str) -> None:
    library = pl if isinstance(emails, pl.Series) else pd
    frame: Any = library.DataFrame({"key": [1, 2], "where": ["a = 1", "a = 2"], "email": emails})
    with TagMatch(data={"email": kind}) as tm:
        tm.put_many(frame)
        tm.consolidate()
        assert (tm.get(1).data, tm.get(2).data) == ({"email": "a"}, {})
        with pytest.raises(InvalidTypeError, match=f"column 'email' takes values of {kind}, not int64"):
            tm.put_many(library.DataFrame({"key": [1], "where": ["a = 1"], "email": [1]}))


def test_columns_of_any_library() -> None:
    with index_of(pl.Series([["a"], ["b"]]), pd.Series([1, 2])) as tm:
        assert tm.match_many(pl.Series([["a"], ["b"]])).to_pylist() == [[1], [2]]


@pytest.mark.parametrize("given", [{"tags": [["a"]]}, pl.LazyFrame({"tags": [["a"]]}), 7])
def test_other_objects_are_refused_in_words(given: Any) -> None:
    with TagMatch() as tm:
        for call in (tm.match_many, tm.add_subscriptions, tm.remove_subscriptions, messages_of):
            with pytest.raises(InvalidTypeError, match="a table of Arrow or a DataFrame of pandas, polars or DuckDB"):
                call(given)
        with pytest.raises(InvalidTypeError, match="row 0 must be an iterable of strings, not the bare string"):
            messages_of(["fr"])
        with pytest.raises(InvalidTypeError, match="one column, not a DataFrame; pick one, as in table"):
            tm.add_sets(pd.DataFrame({"tags": [["a"]]}), [1])
        with pytest.raises(InvalidTypeError, match="a DataFrame cannot be a table of Arrow"):
            tm.match_many(pd.DataFrame({"price": [1, "a"]}))
        with pytest.raises(InvalidTypeError, match="a DataFrame cannot be read as Arrow: "):
            tm.match_many(pl.DataFrame({"tags": [["a"]], "x": pl.Series([1], dtype=pl.Int128)}))
        with pytest.raises(InvalidValueError, match='attribute "t": the time is NaT'):
            tm.match(["a"], {"t": pd.NaT})


def test_frames_as_users_have_them_say_what_to_change() -> None:
    rows = {"key": [1, 2], "tags": [["a"], ["b"]]}
    for frame in (pd.DataFrame, pl.DataFrame):
        for given, told in [
            (frame(rows | {"tags": ["a|b", "c"]}), 'split texts, as in table["tags"].str.split("|")'),
            (frame(rows | {"expires": ["2030-01-01"] * 2}), "as in pandas.to_datetime(column, utc=True)"),
        ]:
            with TagMatch(threads=1, device="cpu") as tm, pytest.raises(InvalidTypeError, match=re.escape(told)):
                tm.put_many(given)
    with TagMatch(threads=1, device="cpu") as tm:
        with pytest.raises(InvalidValueError, match=r"has it as its index: give reset_index\(\) of it$"):
            tm.put_many(pd.DataFrame(rows).set_index("key"))
        with pytest.raises(InvalidValueError, match=r"there is 'tags'$"):
            tm.put_many(pd.DataFrame({"tags": [["a"]]}))
        right = pd.DataFrame({"key": [1, 2], "tags": ["a|b", "c"], "expires": ["2030-01-01"] * 2}).set_index("key")
        right["tags"], right["expires"] = right["tags"].str.split("|"), pd.to_datetime(right["expires"], utc=True)
        tm.put_many(right.reset_index())
        tm.consolidate()
        assert tm.match(["a", "b"]) == [1]


def test_an_empty_frame_has_no_messages_and_no_subscriptions() -> None:
    with TagMatch() as tm:
        assert tm.match_many(pd.DataFrame({"tags": []})).to_pylist() == []
        assert tm.put_many(pd.DataFrame({"key": pd.Series([], dtype="uint64"), "tags": []})) == 0


MISSING = [None, pd.NaT, pd.NA, np.nan, float("nan"), np.datetime64("NaT"), np.timedelta64("NaT")]
LATE = datetime(9000, 1, 1, tzinfo=UTC)


def test_a_missing_time_is_none():
    seconds = pd.Series([pd.NaT, pd.Timestamp(LATE).as_unit("s")], dtype="datetime64[s, UTC]")
    for value in MISSING:
        columns = [value, [value, LATE], np.array([value, LATE], object), seconds]
        with TagMatch() as tm:
            tm.add_set(["a"], 9, expires=value)
            for key, expires in enumerate(columns):
                tm.add_sets([["a"], ["a"]], [key, 10 + key], expires=expires)
            tm.consolidate()
            found = {row["key"]: row["expires"] for row in tm.to_arrow().to_pylist()}
            assert found == {**dict.fromkeys([*range(4), 9, 10]), 11: LATE, 12: LATE, 13: LATE}


class Own(pa.ExtensionType):
    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "tests.own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, _):
        return cls(storage)


def own(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    storage = pa.array(values, kind)
    return pa.ExtensionArray.from_storage(Own(storage.type), storage)


STORED = {"price": "price = 1", "new": "new = true", "doc": 'doc = "x"', "both": "both = 2"}
EXTENSIONS = {
    "tags": own([["a"]]), "price": own([1]), "doc": pa.array(["x"], pa.json_()),
    "new": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
    "both": pa.ListArray.from_arrays([0, 2], own([1, 2])), "location": own([{"lon": 1.0, "lat": 2.0}]),
}  # fmt: skip


@pytest.fixture
def tm():
    with index_of([["a"]] * len(STORED), range(len(STORED)), where=list(STORED.values())) as tm:
        yield tm


def test_messages_of_extension_types_are_what_is_stored(tm, tmp_path):
    table = pa.table(EXTENSIONS)
    pq.write_table(table, tmp_path / "q.parquet")
    (read,) = read_queries(str(tmp_path / "q.parquet"), attributes=tuple(STORED))
    for messages in (table, table.to_batches()[0], read.drop_columns(["row", "id"])):
        [keys] = tm.match_many(messages).to_pylist()
        assert sorted(keys) == list(range(len(STORED)))


def test_one_that_is_stored_as_nothing_known_is_named(tm):
    for name in ("price", "tags"):
        with pytest.raises(InvalidTypeError, match=f"column '{name}'"):
            tm.match_many(pa.table(EXTENSIONS | {name: pa.array([b"x" * 16], pa.uuid())}))


def test_sets_of_extension_types(tmp_path):
    columns = {"where": own(["v = 1", None]), "expires": own([None, LATE], pa.timestamp("us", "UTC"))}
    table = pa.table({"tags": own([["a"], ["b"]]), "key": own([1, 2], pa.uint64()), **columns})
    pq.write_table(table, tmp_path / "s.parquet")
    (batch,) = read_sets(str(tmp_path / "s.parquet"), expires=True)
    assert batch["key"].to_pylist() == [1, 2]
    with TagMatch() as tm, index_of(table["tags"], table["key"], **columns) as other:
        tm.add_subscriptions(table)
        tm.consolidate()
        for each in (tm, other):
            [keys] = each.match_many(pa.table({"tags": [["a", "b"]], "v": own([1])})).to_pylist()
            assert sorted(keys) == [1, 2]


BAD = pa.array([b"v = 1", b"\xff"], pa.binary()).view(pa.string())
NUMBER = pa.array([1.0, 2.0])
AREA = pa.StructArray.from_arrays(
    [pa.array([b"circle", b"\xff"]).view(pa.string()), NUMBER, NUMBER, NUMBER], ["kind", "lon", "lat", "metres"]
)
TEXTS = pa.array([b"circle(9, 45, 5)", b"\xff"]).view(pa.string())
AREAS = [AREA, TEXTS, TEXTS.dictionary_encode(), pa.StructArray.from_arrays([TEXTS], ["text"])]
VERSIONS = pa.StructArray.from_arrays([pa.array([b"1.0", b"\xff"]).view(pa.string())], ["version"])


def constraints(field: str) -> pa.Array:
    texts = {name: pa.array(["=", "="]) for name in ("attr", "op", "value")}
    texts[field] = pa.array([b"=", b"\xff"]).view(pa.string())
    return pa.ListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([*texts.values()], list(texts)))


BAD_COLUMNS = [("constraints", constraints(field)) for field in ("attr", "op", "value")]


@pytest.mark.parametrize(("name", "column"), [("where", BAD), *(("area", each) for each in AREAS), *BAD_COLUMNS])
def test_sets(tmp_path, name, column):
    table = pa.table({"tags": [["a"], ["b"]], "key": [1, 2], name: column})
    for some in (table, table.slice(1)):
        with TagMatch() as tm, pytest.raises(InvalidValueError, match=f"{name}.* UTF8"):
            tm.add_subscriptions(some)
    pq.write_table(table, tmp_path / "s.parquet")
    invalid = InvalidRows(skip=True)
    rows = list(read_sets(str(tmp_path / "s.parquet"), invalid=invalid))
    assert ([each for batch in rows for each in batch["key"].to_pylist()], invalid.count) == ([1], 1)


@pytest.mark.parametrize(("column", "values"), [("id", BAD), *(("within", each) for each in AREAS), ("app", VERSIONS)])
def test_queries(tmp_path, column: str, values: Any):
    table = pa.table({"tags": [["a"], ["b"]], column: values})
    pq.write_table(table, tmp_path / "q.parquet")
    invalid = InvalidRows(skip=True)
    rows = list(read_queries(str(tmp_path / "q.parquet"), invalid=invalid))
    assert ([each for batch in rows for each in batch["row"].to_pylist()], invalid.count) == ([0], 1)
    if column != "id":
        with TagMatch() as tm, pytest.raises(InvalidValueError, match=rf"{column}.* UTF8"):
            tm.match_many(table)


def test_expressions_of_spark():
    assert have_mistakes(BAD, plane=False).tolist() == [False, True]
    with pytest.raises(FilterError, match="byte 1 is no UTF-8"):
        reject_mistakes(BAD, plane=False)
