"""Both strategies of the join against the oracle: unique or not, rows or lists, both layouts."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from oracle import Oracle
from pyspark.sql import DataFrame, SparkSession, functions
from support.strategies import COMMON_NAMES

import tagmatch.spark.join
from tagmatch import TagMatch
from tagmatch.model.errors import (
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    NullError,
    TagMatchError,
)
from tagmatch.spark.errors import errors_of_workers
from tagmatch.spark.join import subset_join

STRATEGIES = ("ship", "shuffle")
OUTPUTS = ("rows", "lists")
#: What a number stands for as a key of each type, in the same order
KEYS: dict[str, Any] = {"integer": int, "string": "{:019}".format}
SCHEMA = """
    n int, tags array<string>, `a.b c` string, amount decimal(10, 2), at timestamp, day date, bytes binary,
    real double, flag boolean, pairs map<string, int>, pair struct<x: bigint, y: array<string>>, nothing int
"""


class Stored(NamedTuple):
    path: Path
    key_type: str
    oracle: Oracle
    queries: list[list[str]]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 40)


def save(path: Path, sets: list[list[str]], keys: list[Any], **options: Any) -> TagMatch[Any]:
    tm: TagMatch[Any] = TagMatch(path, **options)
    tm.add_sets(sets, keys)
    tm.consolidate()
    return tm


@pytest.fixture(
    scope="module", params=[("rarest", "integer"), ("balanced", "integer"), ("rarest", "string")], ids="-".join
)
def stored(request: pytest.FixtureRequest, seed: int, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Among others, 63 sets with the same rarest tag, which are spread over several buckets."""
    layout, key_type = request.param
    rng = random.Random(seed)
    common = [f"c{i}" for i in range(6)]
    subsets = [list(some) for size in range(1, 7) for some in itertools.combinations(common, size)]
    others = [f"t{i}" for i in range(40)] + ["é", "日本", "", " ", "a\u0000b", "🐈"]
    sets = [[], *subsets, *([*some, "hot"] for some in subsets)]
    sets += [rng.sample(common, 3) + rng.sample(others, rng.randrange(1, 4)) for _ in range(150)]
    sets += rng.choices(sets, k=60)
    few = list(range(80)) if key_type == "integer" else [*COMMON_NAMES, *(f"user {i}" for i in range(70))]
    keys = [rng.choice(few) for _ in sets]
    queries = [[], ["unknown"], ["hot"], [*common, "hot"], ["é", "é", "c1", "c2", "c3", "e\u0301"]]
    queries += [rng.choices([*common, *others, "hot", "unknown"], k=rng.randrange(20)) for _ in range(120)]
    queries += [sorted(rng.choice(sets)) + rng.sample(others, 3) for _ in range(60)]
    path = tmp_path_factory.mktemp("join") / layout
    oracle = Oracle()
    save(path, sets, keys, layout=layout, key_type=key_type, max_partition_size=20)
    oracle.add_sets(sets, keys)
    oracle.consolidate()
    return Stored(path, key_type, oracle, queries)


@pytest.fixture
def queries(spark: SparkSession, stored: Stored) -> Iterator[DataFrame]:
    def row(n: int, tags: list[str]) -> tuple[Any, ...]:
        day = datetime.datetime(2026, 3, 1, 12) + datetime.timedelta(days=n)
        kept = (f"row {n}", decimal.Decimal(n) / 4, day, day.date(), bytes([n % 7] * (n % 5)), n / 3, n % 2 == 0)
        return (n, tags, *kept, {"n": n} if n % 3 else None, (n, ["y"] * (n % 3)), None)

    rows = list(map(row, range(len(stored.queries)), stored.queries))
    found = spark.createDataFrame(rows, SCHEMA).repartition(3, "n").persist()
    yield found
    found.unpersist()


def answers(joined: DataFrame, queries: DataFrame) -> Iterator[tuple[list[str], list[Any]]]:
    """Tags and ascending keys of each query, whose columns have been kept."""
    names = queries.columns
    assert joined.columns[:-1] == names
    rows = {row.n: row for row in queries.collect()}
    keys: dict[int, list[Any]] = {n: [] for n in rows} if joined.columns[-1] == "key" else {}
    for row in joined.collect():
        assert tuple(row[:-1]) == tuple(rows[row.n])
        if joined.columns[-1] == "key":
            keys[row.n].append(row.key)
        else:
            assert row.n not in keys
            keys[row.n] = row["keys"]
    assert keys.keys() == rows.keys()
    for n, found in keys.items():
        yield rows[n].tags, sorted(found)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("unique", [False, True], ids=["all", "unique"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_answers_are_the_oracles(stored: Stored, queries: DataFrame, strategy: Any, unique: bool, output: Any) -> None:
    joined = subset_join(queries, stored.path, strategy=strategy, unique=unique, output=output)
    assert [field.dataType for field in joined.schema.fields[:-1]] == [field.dataType for field in queries.schema]
    kind = "bigint" if stored.key_type == "integer" else "string"
    assert joined.dtypes[-1] == (("key", kind) if output == "rows" else ("keys", f"array<{kind}>"))
    total = 0
    for tags, keys in answers(joined, queries):
        expected = stored.oracle.match(tags)
        assert keys == (sorted(set(expected)) if unique else expected)
        total += len(keys)
    assert total > len(stored.queries)


@pytest.mark.parametrize("key_type", KEYS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_answer_may_be_larger_than_an_arrow_batch_of_spark(
    spark: SparkSession, tmp_path: Path, strategy: Any, key_type: str
) -> None:
    count, key = 150_000, KEYS[key_type]
    keys = list(map(key, [*range(count), 2**63 - 1]))
    save(tmp_path / "index", [["popular"]] * count + [["x"]], keys, key_type=key_type).close()
    queries = spark.createDataFrame([(0, ["popular"]), (1, ["x", "popular"]), (2, ["y"])], "n int, words array<string>")
    rows = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words")
    found = rows.groupBy("n").agg(functions.count("*"), functions.max("key")).collect()
    assert sorted(map(tuple, found)) == [(0, count, key(count - 1)), (1, count + 1, key(2**63 - 1))]
    lists = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words", output="lists")
    assert sorted(map(tuple, lists.select("n", functions.size("keys")).collect())) == [
        (0, count),
        (1, count + 1),
        (2, 0),
    ]


@pytest.mark.parametrize("key_type", KEYS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_queries_or_no_sets(spark: SparkSession, tmp_path: Path, strategy: Any, key_type: str) -> None:
    save(tmp_path / "full", [["a"], []], list(map(KEYS[key_type], [1, 2])), key_type=key_type).close()
    save(tmp_path / "empty", [], [], key_type=key_type).close()
    some, none = (spark.createDataFrame(rows, "tags array<string>") for rows in ([(["a"],), ([],)], []))
    for output in OUTPUTS:
        assert subset_join(none, tmp_path / "full", strategy=strategy, output=output).collect() == []
    assert subset_join(some, tmp_path / "empty", strategy=strategy).collect() == []
    lists = subset_join(some, tmp_path / "empty", strategy=strategy, output="lists").collect()
    assert sorted(map(tuple, lists)) == [([], []), (["a"], [])]


def test_a_newer_snapshot_is_picked_up(spark: SparkSession, tmp_path: Path) -> None:
    tm = save(tmp_path / "index", [["a"]], [1])
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    shipped = subset_join(queries, tmp_path / "index", strategy="ship")
    shuffled, late = (subset_join(queries, tmp_path / "index", strategy="shuffle") for _ in range(2))
    assert [row.key for row in shipped.collect()] == [row.key for row in shuffled.collect()] == [1]
    tm.add_set(["b"], 2)
    tm.remove_set(["a"], 1)
    tm.consolidate()
    assert [row.key for row in shipped.collect()] == [2]
    assert [row.key for row in subset_join(queries, str(tmp_path / "index"), strategy="shuffle").collect()] == [2]
    with pytest.raises(IndexNotFoundError, match="newer snapshot"), errors_of_workers():
        late.collect()


def test_keys_that_become_others(spark: SparkSession, tmp_path: Path) -> None:
    """Columns of the join are of a type for good."""
    save(tmp_path / "index", [["a"]], [1]).close()
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    joined = subset_join(queries, tmp_path / "index", strategy="ship")
    assert [row.key for row in joined.collect()] == [1]
    with TagMatch(key_type="string") as tm:
        tm.add_set(["a"], "ana")
        tm.consolidate()
        tm.save(tmp_path / "index")
    told = 'had key_type "integer" when the join began, and has "string" now'
    with pytest.raises(InvalidValueError, match=told), errors_of_workers():
        joined.collect()
    assert [row.key for row in subset_join(queries, tmp_path / "index", strategy="ship").collect()] == ["ana"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("tags", "hint"), [(None, r"where\(col\('words'\).isNotNull\(\)\)"), (["a", None], "array_compact")], ids=str
)
def test_a_null_is_an_error(spark: SparkSession, tmp_path: Path, strategy: Any, tags: Any, hint: str) -> None:
    save(tmp_path / "index", [["a"]], [1]).close()
    queries = spark.createDataFrame([(["a"],), (tags,)], "words array<string>")
    joined = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words")
    with pytest.raises(NullError, match=f"column 'words'.*{hint}"), errors_of_workers():
        joined.collect()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_key_that_is_no_long_is_an_error(spark: SparkSession, tmp_path: Path, strategy: Any) -> None:
    save(tmp_path / "index", [["a"]], [2**63]).close()
    queries = spark.createDataFrame([(["a"],)], "tags array<string>")
    with pytest.raises(InvalidValueError, match=f"key {2**63} "), errors_of_workers():
        subset_join(queries, tmp_path / "index", strategy=strategy).collect()


def test_every_partition_gets_a_bucket(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 10)
    save(tmp_path / "index", [[f"t{i}"] for i in range(80)], list(range(80))).close()
    queries = spark.createDataFrame([([f"t{i}"],) for i in range(80)], "tags array<string>")
    joined = subset_join(queries, tmp_path / "index", strategy="shuffle")
    assert joined.select(functions.spark_partition_id()).distinct().count() == 8


def test_auto_goes_by_the_size_of_the_index(
    stored: Stored, queries: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    for limit, ships in ((8 << 30, True), (0, False)):
        subset_join(queries, stored.path, ship_limit=limit).explain()
        assert ("tagmatch_send_sets" not in capsys.readouterr().out) == ships


@pytest.mark.parametrize(
    ("columns", "arguments", "error", "message"),
    [
        ("words array<string>", {}, InvalidValueError, "no column 'tags'; its columns are 'words'"),
        ("Tag array<string>", {}, InvalidValueError, "no column 'tags'; its columns are 'Tag'; is 'Tag' meant"),
        ("tags string", {}, InvalidTypeError, "column 'tags' of the queries must be array<string>, not string"),
        ("tags array<int>", {}, InvalidTypeError, "must be array<string>, not array<int>"),
        ("tags array<string>, key int", {}, InvalidValueError, "column 'key' already"),
        ("tags array<string>, Keys int", {"output": "lists"}, InvalidValueError, "column 'Keys' already"),
        ("tags array<string>", {"strategy": "broadcast"}, InvalidValueError, "strategy must be one of 'auto'"),
        ("tags array<string>", {"output": "set"}, InvalidValueError, "output must be one of 'rows'"),
        ("tags array<string>", {"index": 3}, InvalidTypeError, "index must be"),
        ("tags array<string>", {"index": ""}, InvalidValueError, "index is empty; give the path of a folder"),
        (
            "tags array<string>",
            {"index": "ftp://host/index"},
            InvalidValueError,
            "Arrow does not reach ftp://host/index",
        ),
        ("tags array<string>", {"index": "no/such/folder"}, IndexNotFoundError, "no such folder"),
    ],
)
def test_bad_arguments_are_told_at_once(
    spark: SparkSession,
    tmp_path: Path,
    columns: str,
    arguments: dict[str, Any],
    error: type[TagMatchError],
    message: str,
) -> None:
    save(tmp_path / "index", [["a"]], [1]).close()
    with pytest.raises(error, match=message):
        subset_join(spark.createDataFrame([], columns), **{"index": tmp_path / "index", **arguments})


def test_queries_must_be_a_data_frame(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="must be a Spark DataFrame, not list"):
        subset_join([["a"]], tmp_path)  # type: ignore[arg-type]
