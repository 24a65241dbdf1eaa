"""Joins of each kind, `on`, nulls and names of columns, compared with plain Python; and what Spark's plans read."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions
from support.index_files import make_index
from support.spark_functions import settings_of

from tagmatch import InvalidTypeError, InvalidValueError, NullError, TagMatch
from tagmatch.spark import match_udf, subset_join
from tagmatch.spark.columns import errors_of_workers

SETS: list[tuple[list[str], int]] = [(["a"], 1), (["a", "b"], 1), (["b"], 2), (["a"], 3), (["c", "d"], 4)]
QUERIES: list[Any] = [["a"], ["a", "b"], None, ["x"], ["a"], ["b", None], [], ["c", "a", "d"], None, ["a"]]
SCHEMA = "n int, tags array<string>, area string, where string, constraints int"
HOW = ["inner", "left", "semi", "anti"]


def matching(tags: Any) -> list[int]:
    """The keys of the sets that tags contain; none if these are no set."""
    return [] if tags is None or None in tags else [key for stored, key in SETS if {*stored} <= {*tags}]


def asked(spark: Any, queries: list[Any]) -> Any:
    """Each query twice."""
    rows = [(number // 2, queries[number // 2], "x", "price <", 3) for number in range(2 * len(queries))]
    return spark.createDataFrame(rows, SCHEMA).repartition(3, "n")


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
@pytest.mark.parametrize("unique", [False, True])
def test_kinds(spark: Any, tmp_path: Path, strategy: Any, unique: bool) -> None:
    """With nulls and equal rows among the queries, whose other columns are carried under any names."""
    index, frame = make_index(tmp_path / "index", SETS), asked(spark, QUERIES)
    wanted = [sorted({*keys} if unique else keys) for keys in map(matching, QUERIES)]
    given: dict[str, Any] = {"strategy": strategy, "unique": unique, "skip_invalid": True}
    expected = {
        "inner": [(n, key) for n, keys in enumerate(wanted) for key in keys],
        "left": [(n, key) for n, keys in enumerate(wanted) for key in keys or [None]],
        "semi": [(n,) for n, keys in enumerate(wanted) if keys],
        "anti": [(n,) for n, keys in enumerate(wanted) if not keys],
    }
    for how, rows in expected.items():
        joined = subset_join(frame, index, how=how, **given)  # type: ignore[arg-type]
        assert joined.columns == [*frame.columns, *(["key"] if len(rows[0]) > 1 else [])]
        found = Counter((row.n, *row[5:]) for row in joined.collect())
        assert found == Counter(rows * 2), how
    valid = [None if tags is None or None in tags else keys for tags, keys in zip(QUERIES, wanted, strict=True)]
    for output, answers in (
        ("lists", valid),
        ("counts", [keys if keys is None else len(keys) for keys in valid]),
        ("exists", [keys if keys is None else bool(keys) for keys in valid]),
    ):
        joined = subset_join(frame, index, output=output, **given)  # type: ignore[arg-type]
        found_lists = {row.n: sorted(row[5]) if isinstance(row[5], list) else row[5] for row in joined.collect()}
        assert found_lists == dict(enumerate(answers))
    for how in HOW:
        with pytest.raises(NullError, match=r"^column 'tags'") as raised, errors_of_workers():
            subset_join(frame, index, how=how, strategy=strategy).collect()  # type: ignore[arg-type]
        assert "\n" not in str(raised.value)  # Spark's error, with its traces, is the cause
        assert "\n" in str(raised.value.__cause__)


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_on(spark: Any, tmp_path: Path, strategy: Any) -> None:
    """Columns of data that have to be equal to those of the queries, which may be null, or of another width."""
    data = {1: ("acme", 1), 2: ("acme", 2), 3: ("other", 1), 4: (None, 2)}
    with TagMatch(tmp_path / "index", data={"tenant": "dictionary", "level": "uint64"}) as tm:
        for key, (tenant, level) in data.items():
            tm.put(key, next(tags for tags, of in SETS if of == key), data={"tenant": tenant, "level": level})
        tm.consolidate()
    stored = {key: {*tags} for tags, key in reversed(SETS)}
    queries = [["a", "b", "c", "d"], ["a"], ["b"], ["c", "d"]] * 3
    tenants = ["acme", "other", None, "none", "acme", "acme"] * 2
    rows = [(n, tags, tenants[n], n % 3) for n, tags in enumerate(queries)]
    frame = spark.createDataFrame(rows, "n int, tags array<string>, tenant string, level int")
    for on in (["tenant"], "level", ["tenant", "level"]):
        wanted = [
            sorted(
                key
                for key, tags in stored.items()
                if tags <= {*query}
                and all(
                    own is not None and own == value
                    for name, own, value in zip(["tenant", "level"], (tenant, level), data[key], strict=True)
                    if name in on
                )
            )
            for _, query, tenant, level in rows
        ]
        assert 0 < sum(map(len, wanted)) < 30
        given: dict[str, Any] = {"on": on, "strategy": strategy}
        rows_of = subset_join(frame, tmp_path / "index", how="left", **given).collect()
        assert sorted((row.n, row.key or 0) for row in rows_of) == [
            (n, key) for n, keys in enumerate(wanted) for key in keys or [0]
        ]
        lists = subset_join(frame, tmp_path / "index", output="lists", **given).collect()
        assert [sorted(row["keys"]) for row in sorted(lists)] == wanted
        counts = subset_join(frame, tmp_path / "index", output="counts", **given).collect()
        assert [row["count"] for row in sorted(counts)] == list(map(len, wanted))
        anti = subset_join(frame, tmp_path / "index", how="anti", **given).collect()
        assert sorted(row.n for row in anti) == [n for n, keys in enumerate(wanted) if not keys]
        best = subset_join(frame, tmp_path / "index", output="lists", limit=1, order_by="level desc", **given)
        of_keys = [sorted(keys, key=lambda key: (-data[key][1], key))[:1] for keys in wanted]
        assert [row["keys"] for row in sorted(best.collect())] == of_keys
    some = subset_join(
        frame.drop("level"), tmp_path / "index", on="tenant", columns=["level"], only="level = 1", strategy=strategy
    )
    assert sorted((row.n, row.key, int(row.level)) for row in some.collect())[:2] == [(0, 1, 1), (1, 3, 1)]
    for given, kind, message in (
        ({"on": "tags"}, InvalidValueError, "no column"),
        ({"on": "n"}, InvalidValueError, "no column 'n'"),
        ({"on": "tenannt"}, InvalidValueError, "on: queries must have one column 'tenannt'.*'tenant' meant"),
        ({"on": "tenant", "limit": 1, "score": "level"}, InvalidValueError, "score does not go with on"),
    ):
        with pytest.raises(kind, match=message):
            subset_join(frame, tmp_path / "index", **given)  # type: ignore[arg-type]
    texts = spark.createDataFrame([(["a"], "1")], "tags array<string>, level string")
    with pytest.raises(InvalidTypeError, match=r"on: column 'level' .* is string, and the index has decimal\(20,0\)"):
        subset_join(texts, tmp_path / "index", on="level")


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_on_in_other_forms(session: SparkSession, tmp_path: Path, strategy: Any) -> None:
    """Strings, times and decimals of queries may be of other types of Arrow than the data."""
    moment = "timestamp '2026-01-01T00:00:00Z'"
    columns = f"array('a') tags, '7' tenant, {moment} since, 2 rate"
    index = tmp_path / "index"
    with TagMatch(index, data={"tenant": "string", "since": "timestamp[us, UTC]", "rate": "decimal(10, 2)"}) as tm:
        since = datetime(2026, 1, 1, tzinfo=UTC)
        for key, tenant, rate in ((1, "7", "2.00"), (2, "acme", "2.50")):
            tm.put(key, ["a"], data={"tenant": tenant, "since": since, "rate": Decimal(rate)})
        tm.consolidate()
    for large, zone in itertools.product(("false", "true"), ("UTC", "Europe/Rome")):
        own = {"spark.sql.execution.arrow.useLargeVarTypes": large, "spark.sql.session.timeZone": zone}
        with settings_of(session, own):
            frame = session.sql(f"SELECT {columns} UNION ALL SELECT array('a'), '007', {moment} + interval 1 second, 3")
            for on, keys in (("tenant", [1]), ("since", [1, 2]), ("rate", [1]), (["tenant", "since", "rate"], [1])):
                found = subset_join(frame, index, on=on, strategy=strategy).collect()
                assert sorted(row.key for row in found) == keys


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"how": "outer"}, "how must be one of 'inner', 'left', 'semi'"),
        ({"how": "left", "output": "lists"}, "output 'lists' has a row for each query, so how must be 'inner'"),
        ({"how": "semi", "columns": ["x"]}, "how='semi' gives columns of the queries alone"),
        ({"how": "anti", "limit": 1, "order_by": "x"}, "how='anti' gives columns of the queries alone"),
    ],
    ids=str,
)
def test_kinds_that_will_not_do(spark: Any, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    frame = spark.createDataFrame([(["a"],)], "tags array<string>")
    with pytest.raises(InvalidValueError, match=message):
        subset_join(frame, make_index(tmp_path / "index", SETS), **given)
    with pytest.raises(InvalidTypeError, match="tags must be the name of a column of the queries, or a Column"):
        subset_join(frame, tmp_path / "index", tags=3)  # type: ignore[arg-type]


def plan_of(frame: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain()
    return printed.getvalue()


@pytest.mark.nightly
def test_names_plans_and_watermarks(session: SparkSession, tmp_path: Path) -> None:
    """Spark reads only the needed columns of the queries, and asks the index once for each."""
    index = make_index(tmp_path / "index", [(["a"], 1, None), (["b"], 2, None), (["a"], 3, "price < 5")])
    rows = [(1, "x", (["A", "b"], 3.0), "2026"), (2, "y", (["A"], 9.0), "2027")]
    frame = session.createDataFrame(
        rows, "id int, junk string, `of` struct<words array<string>, price double>, date string"
    )
    lower = functions.transform("of.words", functions.lower)
    frame.withColumn("tags", lower).write.partitionBy("date").parquet(str(tmp_path / "queries"))
    queries = session.read.parquet(str(tmp_path / "queries"))
    for strategy in ("ship", "shuffle"):
        for tags, attributes in (
            ("TAGS", "of.price"),
            (lower, "OF"),
            (functions.col("tags"), functions.col("of.price")),
        ):
            joined = subset_join(queries, index, tags=tags, attributes=attributes, strategy=strategy)  # type: ignore[arg-type]
            assert joined.columns == [*queries.columns, "key"]
            assert sorted((row.id, row.key) for row in joined.collect()) == [(1, 1), (1, 2), (1, 3), (2, 1)]
    with pytest.raises(InvalidValueError, match=r"queries: Spark finds no such column: .*such struct field `nothing`"):
        subset_join(queries, index, tags="of.nothing")
    for how in HOW:
        plan = plan_of(subset_join(queries, index, how=how).where("date = '2026'").select("id"))  # type: ignore[arg-type]
        assert "ReadSchema: struct<id:int,tags:array<string>>" in plan
        assert "(date" in plan.partition("PartitionFilters: ")[2].partition("]")[0]
        assert plan.count("tagmatch_ship") == 1
    for output, name in (("lists", "size(keys)"), ("counts", "count"), ("exists", "int(exists)")):
        plan = plan_of(subset_join(queries, index, output=output).where(f"id = 1 and {name} > 0"))  # type: ignore[arg-type]
        assert plan.count("tagmatch_ship") == 1
        assert "PushedFilters: [IsNotNull(id), EqualTo(id,1)]" in plan
    exploded = queries.select("id", functions.explode(match_udf(index)("tags")).alias("key"))
    assert plan_of(exploded).count("tagmatch_match(") == 1
    stream = session.readStream.schema(queries.schema).parquet(str(tmp_path / "queries"))
    stream = stream.withColumn("at", functions.timestamp_seconds("id")).withWatermark("at", "1 minute")
    counted = subset_join(stream, index).groupBy(functions.window("at", "1 minute"), "key").count()
    counted.writeStream.format("memory").queryName("counted").outputMode("append").trigger(
        availableNow=True
    ).start().awaitTermination()
    with pytest.raises(InvalidValueError, match="a join cannot index a stream of interests"):
        subset_join(queries, stream)


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_explain_and_the_least_keys(spark: Any, tmp_path: Path, strategy: Any) -> None:
    """Which set a key is of, and what of its condition held; a limit without an order."""
    index = tmp_path / "index"
    with TagMatch(index) as tm:
        tm.add_set(["a"], 7, where='price < 10 or city = "x"')
        tm.add_sets([["b", "a"], []], [3, 9])
        tm.consolidate()
    rows = [(0, ["a"], 20.0, "x"), (1, ["a", "b"], 5.0, None), (2, ["c"], None, "x")]
    frame = spark.createDataFrame(rows, "n int, tags array<string>, price double, city string")
    every = [[(7, ["a"], ['city = "x"'])], [(3, ["a", "b"], []), (7, ["a"], ["price < 10"])], []]
    wanted = [sorted([*each, (9, [], [])]) for each in every]
    given: dict[str, Any] = {"attributes": ["price", "city"], "explain": True, "strategy": strategy}
    joined = subset_join(frame, index, **given)
    assert joined.dtypes[4:] == [("key", "bigint"), ("set", "struct<tags:array<string>,tests:array<string>>")]
    found: list[list[Any]] = [[], [], []]
    for row in joined.collect():
        found[row.n].append((row.key, sorted(row.set["tags"]), row.set["tests"]))
    assert [*map(sorted, found)] == wanted
    lists = subset_join(frame, index, output="lists", **given)
    for row in lists.collect():
        own = [(each["key"], sorted(each["set"]["tags"]), each["set"]["tests"]) for each in row["keys"]]
        assert sorted(own) == wanted[row.n]
    outer = subset_join(frame, index, how="left", **given)
    assert sorted((row.n, row.key) for row in outer.collect()) == [
        (n, own[0]) for n, row in enumerate(wanted) for own in row
    ]
    assert "set" in str(match_udf(index, explain=True).returnType)
    least = subset_join(frame, index, attributes=["price", "city"], output="lists", limit=2, strategy=strategy)
    assert {row.n: row["keys"] for row in least.collect()} == {0: [7, 9], 1: [3, 7], 2: [9]}
    with pytest.raises(InvalidValueError, match="how='semi' gives columns of the queries alone"):
        subset_join(frame, index, how="semi", explain=True)
