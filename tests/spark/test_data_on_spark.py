"""Data of keys, the best keys and numbers of keys in joins and functions, against the answers of the index itself."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.index_files import contents_of, make_index
from support.spark_functions import called, settings_of
from support.tasks import Frame

from tagmatch import FilterError, InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.spark import match_udf, partition, register, subset_join

TAGS = list("abcdef")
DATA = {
    "priority": "int64",
    "segment": "dictionary",
    "large": "uint64",
    "small": "uint8",
    "price": "decimal(10, 2)",
    "day": "date",
    "at": "timestamp",
}
#: What Spark has for each
KINDS = ["bigint", "string", "decimal(20,0)", "smallint", "decimal(10,2)", "date", "timestamp"]
ZONE = datetime.UTC


def data_of(key: int) -> dict[str, Any]:
    at = datetime.datetime(2026, 1, 1, tzinfo=ZONE) + datetime.timedelta(days=key)
    known = (key % 7, ["new", "old", None][key % 3], 2**63 + key, key, Decimal(key) / 4, at.date(), at)
    return dict(zip(DATA, known, strict=True)) if key % 5 else {}


@pytest.fixture(params=["integer", "string"])
def index(request: pytest.FixtureRequest, rng: random.Random, tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "index", key_type=request.param, data=DATA, device="cpu", threads=1) as tm:
        for key in range(60):
            name = key if request.param == "integer" else f"k{key:03}"
            tags, where = rng.sample(TAGS, rng.randrange(3)), rng.choice([None, "bid > 5", 'bid > 2 or city = "x"'])
            tm.put(name, tags, where=where, data=data_of(key))
            if key == 40:
                tm.consolidate()
        tm.consolidate()
    return tmp_path / "index"


def asked(spark: Any, rng: random.Random) -> tuple[Any, pa.Table]:
    rows = [(n, rng.sample(TAGS, rng.randrange(6)), rng.choice([None, 1.0, 3.0, 7.0]), "x") for n in range(40)]
    frame = spark.createDataFrame(rows, "n int, tags array<string>, bid double, city string").repartition(3, "n")
    ns, tags, bid, city = (list(column) for column in zip(*rows, strict=True))
    assert ns == sorted(ns)
    return frame, pa.table({"tags": tags, "bid": pa.array(bid, pa.float64()), "city": city})


def in_order(lists: list[Any]) -> list[Any]:
    return [sorted(each, key=repr) if isinstance(each, list) else each for each in lists]


def by_row(joined: Any) -> list[Any]:
    found = {row.n: row[-1] for row in joined.collect()}
    return [found[n] for n in sorted(found)]


ONLY = 'segment = "new" or priority > 4'


@pytest.mark.parametrize("strategy", ["auto", "shuffle"])
@pytest.mark.parametrize("unique", [False, True])
def test_numbers(
    spark: Any, index: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, strategy: Any, unique: bool
) -> None:
    """Of keys; one may have several sets that match."""
    monkeypatch.setattr("tagmatch.spark.join.BUCKET_SETS", 10)
    frame, messages = asked(spark, rng)
    given = {"attributes": ["bid", "city"], "strategy": strategy, "unique": unique}
    counts = subset_join(frame, index, output="counts", **given)
    exists = subset_join(frame, index, output="exists", **given)
    assert (counts.dtypes[-1], exists.dtypes[-1]) == (("count", "bigint"), ("exists", "boolean"))
    with TagMatch.open(index, device="cpu", threads=1) as tm:
        wanted = tm.match_counts(messages, unique=unique).to_pylist()
        assert by_row(counts) == wanted
        assert by_row(exists) == tm.match_exists_many(messages).to_pylist()
        assert (wanted == tm.match_counts(messages).to_pylist()) != unique


def test_the_data_source_has_columns_of_data(spark: Any, index: Path) -> None:
    register(spark)
    read = spark.read.format("tagmatch").load(str(index))
    assert read.dtypes[3:] == sorted(zip(DATA, KINDS, strict=True))
    with TagMatch.open(index) as tm:
        stored = tm.to_arrow().to_pylist()
    found = [(sorted(row.tags), *map(_at_utc, row[1:])) for row in read.collect()]
    wanted = [(sorted(row["tags"]), *[*row.values()][1:]) for row in stored]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    days = spark.read.format("tagmatch").schema("day date, key " + read.dtypes[1][1]).load(str(index))
    assert sorted(map(tuple, days.collect()), key=repr) == sorted(
        ((row["day"], row["key"]) for row in stored), key=repr
    )


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_data(spark: Any, index: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, strategy: Any) -> None:
    """Of any type, with keys and alone."""
    monkeypatch.setattr("tagmatch.spark.join.BUCKET_SETS", 10)
    frame, messages = asked(spark, rng)
    columns: list[str] = [*DATA]
    given: dict[str, Any] = {"attributes": ["bid", "city"], "only": ONLY, "strategy": strategy}
    rows = subset_join(frame, index, columns=columns, **given)
    lists = subset_join(frame, index, columns=columns, output="lists", **given)
    assert rows.dtypes[5:] == [*zip(DATA, KINDS, strict=True)]
    with TagMatch.open(index, device="cpu", threads=1) as tm:
        wanted = tm.match_many(messages, only=ONLY, columns=columns).to_pylist()
        ones = tm.match_many(messages, only=ONLY).to_pylist()
        counts = tm.match_counts(messages, only=ONLY).to_pylist()
        orders = [{}, *({"order_by": f"{name}{way}"} for name in DATA for way in ("", " desc"))]
        scores = [{"score": text} for text in ("priority * bid", "price - small", "0 - bid", "large * 1e-18 + bid")]
        best = [
            (of, tm.match_best(messages, limit=3, only=ONLY, columns=names, **of).to_pylist())  # type: ignore[arg-type]
            for number, of in enumerate([*orders, *scores])
            for names in [[None, ["day", "segment"]][number % 2]]
        ]
    plain = [[tuple(row.values()) for row in each] for each in wanted]
    found = [list[Any]() for _ in wanted]
    for row in rows.collect():
        found[row.n].append(tuple(_at_utc(value) for value in row[4:]))
    assert in_order(found) == in_order(plain)
    assert in_order([[tuple(map(_at_utc, row)) for row in each] for each in by_row(lists)]) == in_order(plain)
    assert sum(map(len, plain)) > 40
    assert in_order(by_row(subset_join(frame, index, output="lists", **given))) == in_order(ones)
    assert by_row(subset_join(frame, index, output="counts", **given)) == counts
    distinct = in_order(by_row(subset_join(frame, index, columns=["price"], output="lists", unique=True, **given)))
    assert [len(each) for each in distinct] == [len({row["key"] for row in each}) for each in wanted]
    for number, (of, lists) in enumerate(best if isinstance(frame, Frame) else best[::5]):
        named = isinstance(next(filter(None, lists))[0], dict)
        with_best = {"limit": 3, "columns": ["day", "segment"] if named else None, **of, **given}
        ordered = by_row(subset_join(frame, index, output="lists", **with_best))
        assert [[tuple(row) for row in each] if named else each for each in ordered] == [
            [tuple(row.values()) for row in each] if named else each for each in lists
        ], of
        spread = subset_join(frame, index, how=["inner", "left"][number % 2], **with_best).collect()
        of_rows = [(row.n, *row[4:]) for row in spread if row.key is not None]
        keys = [(n, *(row.values() if named else [row])) for n, each in enumerate(lists) for row in each]
        assert sorted(of_rows, key=repr) == sorted(keys, key=repr)
        assert len(spread) - len(of_rows) == (number % 2) * lists.count([])
    register(spark)
    struct = {"attributes": ("bid", "city")}
    for way in ("sql", "column"):
        by_query = called(way, frame, index, only=ONLY, **struct)
        assert in_order([by_query[n] for n in sorted(by_query)]) == in_order(ones)


def _at_utc(value: Any) -> Any:
    """Spark gives times without a zone, in that of this machine."""
    return value.astimezone(ZONE) if isinstance(value, datetime.datetime) else value


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"only": "segmnt = 1"}, InvalidValueError, "no column 'segmnt'"),
        ({"only": "segment ="}, FilterError, "only: "),
        ({"columns": ["prioritty"]}, InvalidValueError, "no column 'prioritty'.*priority"),
        ({"columns": "priority"}, InvalidTypeError, "columns must be names"),
        ({"limit": "3"}, InvalidTypeError, "limit must be an int"),
        ({"order_by": "priority"}, InvalidValueError, "which keys are the best: give limit, too"),
        ({"explain": True, "columns": ["priority"]}, InvalidValueError, "explain does not go with columns"),
        ({"explain": True, "unique": True}, InvalidValueError, "explain does not go with unique"),
        ({"explain": True, "limit": 3}, InvalidValueError, "explain does not go with limit"),
        ({"explain": True, "output": "counts"}, InvalidValueError, "explain comes with keys, not with output 'counts'"),
        ({"limit": 3, "order_by": "nothing"}, InvalidValueError, "no column of data 'nothing'"),
        ({"limit": 0, "order_by": "priority"}, InvalidValueError, "limit must be from 1"),
        ({"limit": 3, "score": "priority +"}, FilterError, "score: column"),
        ({"output": "counts", "columns": ["priority"]}, InvalidValueError, "columns comes with keys, not with"),
        ({"output": "exists", "limit": 3, "order_by": "priority"}, InvalidValueError, "limit goes with keys"),
    ],
    ids=str,
)
def test_mistakes_about_data(spark: Any, tmp_path: Path, given: dict[str, Any], kind: Any, message: str) -> None:
    """Found before any task begins."""
    with TagMatch(tmp_path / "index", data=DATA) as tm:
        tm.put(1, ["a"], data={"priority": 1})
        tm.consolidate()
    frame = spark.createDataFrame([(1, ["a"])], "n int, tags array<string>")
    with pytest.raises(kind, match=message):
        subset_join(frame, tmp_path / "index", **given)
    with pytest.raises(kind, match=message):
        match_udf(tmp_path / "index", **given)


def test_what_is_added_has_names_of_its_own(spark: Any, tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", data={"Priority": "int8"}) as tm:
        tm.put(1, ["a"], data={"Priority": 1})
        tm.consolidate()
    frame = spark.createDataFrame([(1, ["a"])], "priority int, tags array<string>")
    with pytest.raises(InvalidValueError, match="has a column 'priority' already"):
        subset_join(frame, tmp_path / "index", columns=["Priority"])
    with pytest.raises(InvalidValueError, match="one answer for each row"):
        match_udf(tmp_path / "index", output="rows")


def test_types_of_functions(tmp_path: Path) -> None:
    index = make_index(tmp_path / "index", [(["a"], "ana")])
    assert match_udf(index, output="counts").returnType == t.LongType()
    assert match_udf(index, output="exists").returnType == t.BooleanType()
    assert match_udf(index).returnType == t.ArrayType(t.StringType(), containsNull=False)


@pytest.mark.parametrize("key_type", ["integer", "string"])
@pytest.mark.parametrize("sets_per_task", [20, 1 << 20])
def test_partition_stores_data(
    spark: Any, tmp_path: Path, rng: random.Random, key_type: Any, sets_per_task: int
) -> None:
    """The files are those that `put_many` makes; appended rows leave the data of keys, or bring keys without any."""
    rows = []
    for key in range(90):
        name = key if key_type == "integer" else f"é {key:03}"
        data = data_of(key)
        data = data | {"large": Decimal(data["large"])} if data else data
        for _ in range(rng.choice([1, 1, 2])):
            tags, where = rng.sample(TAGS, rng.randrange(3)), rng.choice([None, "bid > 5", 'bid > 2 or city = "x"'])
            rows.append((tags, name, where, *(data.get(column) for column in DATA)))
    kinds = ", ".join(f"{name} {kind}" for name, kind in zip(DATA, KINDS, strict=True)).replace("smallint", "short")
    schema = f"tags array<string>, key {'long' if key_type == 'integer' else 'string'}, where string"
    bad = [(None, rows[0][1], None, *[None] * len(DATA)), (["a"], None, None, *[None] * len(DATA))]
    frame = spark.createDataFrame(rng.sample(rows + bad, len(rows) + 2), f"{schema}, {kinds}").repartition(3)
    with settings_of(spark, {"spark.sql.adaptive.coalescePartitions.enabled": "false"}):
        made = partition(frame, tmp_path / "spark", data=DATA, sets_per_task=sets_per_task, skip_invalid=True)
    assert made.skipped == {"tags is null": 1, "key is null": 1}
    options: Any = {"key_type": key_type, "device": "cpu", "threads": 1, "durability": "none"}
    with TagMatch(tmp_path / "local", data=DATA, **options) as tm:
        names = ["tags", "key", "where", *DATA]
        kept = spark.createDataFrame(rows, f"{schema}, {kinds}").toArrow()
        assert kept.column_names == names
        tm.put_many(kept)
        tm.consolidate()
        assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
        more = [(["a"], rows[0][1]), (["zz"], rows[5][1]), (["zz"], 1000 if key_type == "integer" else "new")]
        tm.add_sets(*zip(*more, strict=True))
        tm.consolidate()
        records = dict(tm.records)
    frame = spark.createDataFrame(more, schema.removesuffix(", where string"))
    partition(frame, tmp_path / "spark", mode="append", sets_per_task=sets_per_task)
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    with TagMatch.open(tmp_path / "spark", device="cpu") as tm:
        assert dict(tm.records) == records
        assert sum(bool(each.data) for each in records.values()) == 72


def test_data_that_will_not_do(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(["a"], 1, "x", 2)], "tags array<string>, key long, email string, n int")
    for data, kind, message in (
        ({"mail": "string"}, InvalidTypeError, "there is no column 'mail'"),
        ({"email": "text"}, InvalidValueError, "there is no type 'text' of data"),
        ({"email": "int64"}, InvalidTypeError, "column 'email' is string, which is no int64"),
        ({"key": "int64"}, InvalidValueError, "a column cannot be called 'key'"),
        (["email"], InvalidTypeError, "data must be a schema of Arrow, or map names to types"),
    ):
        with pytest.raises(kind, match=message):
            partition(frame, tmp_path / "index", data=data)  # type: ignore[arg-type]
    partition(frame, tmp_path / "index", data={"email": "string", "n": "int64"})
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert tm.get(1).data == {"email": "x", "n": 2}  # type: ignore[union-attr]
    with pytest.raises(InvalidValueError, match="data goes with a new index, and there is one"):
        partition(frame, tmp_path / "index", mode="append", data={"email": "string"})
