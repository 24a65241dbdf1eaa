"""Both strategies of the join against the oracle: unique or not, rows or lists, both layouts."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from oracle import Oracle
from pyspark.sql import DataFrame, SparkSession, functions
from support.expiring import set_clock
from support.index_files import make_index
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
    queries += [rng.choices([*common, *others, "hot", "unknown"], k=rng.randrange(20)) for _ in range(60)]
    queries += [sorted(rng.choice(sets)) + rng.sample(others, 3) for _ in range(30)]
    oracle = Oracle()
    path = make_index(
        tmp_path_factory.mktemp("join") / layout,
        list(zip(sets, keys, strict=True)),
        layout=layout,
        max_partition_size=20,
    )
    oracle.add_sets(sets, keys)
    oracle.consolidate()
    return Stored(path, key_type, oracle, queries)


@pytest.fixture
def queries(spark: Any, stored: Stored) -> Iterator[DataFrame]:
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
    assert joined.columns[:-1] == queries.columns
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
    spark: Any, tmp_path: Path, strategy: Any, key_type: str
) -> None:
    count, key = 150_000, KEYS[key_type]
    with TagMatch(tmp_path / "index", key_type=key_type) as tm:
        tm.add_sets([["popular"]] * count + [["x"]], list(map(key, [*range(count), 2**63 - 1])))
        tm.consolidate()
    queries = spark.createDataFrame([(0, ["popular"]), (1, ["x", "popular"]), (2, ["y"])], "n int, words array<string>")
    rows = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words").select("n", "key").toArrow()
    assert Counter(rows["n"].to_pylist()) == {0: count, 1: count + 1}
    assert rows["key"].to_pylist().count(key(2**63 - 1)) == 1
    assert set(rows["key"].to_pylist()) == set(map(key, [*range(count), 2**63 - 1]))
    lists = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words", output="lists").toArrow()
    sizes = dict(zip(lists["n"].to_pylist(), map(len, lists["keys"].to_pylist()), strict=True))
    assert sizes == {0: count, 1: count + 1, 2: 0}


@pytest.mark.parametrize("key_type", KEYS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_queries_or_no_sets(spark: Any, tmp_path: Path, strategy: Any, key_type: str) -> None:
    full = make_index(tmp_path / "full", [(["a"], KEYS[key_type](1)), ([], KEYS[key_type](2))])
    empty = make_index(tmp_path / "empty", [], key_type=key_type)
    some, none = (spark.createDataFrame(rows, "tags array<string>") for rows in ([(["a"],), ([],)], []))
    for output in OUTPUTS:
        assert subset_join(none, full, strategy=strategy, output=output).collect() == []
    assert subset_join(some, empty, strategy=strategy).collect() == []
    lists = subset_join(some, empty, strategy=strategy, output="lists").collect()
    assert sorted(map(tuple, lists)) == [([], []), (["a"], [])]


def keys_of(joined: Any) -> list[Any]:
    with errors_of_workers():
        return sorted(row.key for row in joined.collect())


def test_a_newer_snapshot_is_picked_up(spark: Any, tmp_path: Path) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    shipped = subset_join(queries, index, strategy="ship")
    shuffled, late = (subset_join(queries, index, strategy="shuffle") for _ in range(2))
    assert keys_of(shipped) == keys_of(shuffled) == [1]
    make_index(index, [(["b"], 2)], [(["a"], 1)])
    assert keys_of(shipped) == keys_of(subset_join(queries, str(index), strategy="shuffle")) == [2]
    with pytest.raises(IndexNotFoundError, match="newer snapshot"):
        keys_of(late)


def test_keys_that_become_others(spark: Any, tmp_path: Path) -> None:
    """Columns of the join are of a type for good."""
    index = make_index(tmp_path / "index", [(["a"], 1)])
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    joined = subset_join(queries, index, strategy="ship")
    assert keys_of(joined) == [1]
    with TagMatch(key_type="string") as tm:
        tm.add_set(["a"], "ana")
        tm.consolidate()
        tm.save(index)
    with pytest.raises(InvalidValueError, match='had key_type "integer" when the join began, and has "string" now'):
        keys_of(joined)
    assert keys_of(subset_join(queries, index, strategy="ship")) == ["ana"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("key", [int, str], ids=["integers", "strings"])
def test_keys_that_have_expired_are_no_answers(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Any, key: Any
) -> None:
    """Though the files still have them."""
    clock, now = set_clock(monkeypatch), datetime.datetime.now(datetime.UTC)
    with TagMatch(tmp_path / "index", key_type="string" if key is str else "integer", durability="none") as tm:
        times = [
            now - timedelta(hours=1),
            None,
            now - timedelta(hours=2),
            now - timedelta(hours=1),
            now + timedelta(days=1),
        ]
        clock.now = now - timedelta(days=1)
        tm.add_sets([["a"], ["a"], ["b"], [], []], list(map(key, range(5))), expires=times)
        tm.consolidate()
    clock.now = now
    queries = spark.createDataFrame([(1, ["a", "b"]), (2, ["b"])], "id long, tags array<string>")
    found = subset_join(queries, tmp_path / "index", strategy=strategy).collect()
    assert sorted((row.id, row.key) for row in found) == [(1, key(1)), (1, key(4)), (2, key(4))]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("tags", "key", "kind", "message"),
    [
        (None, 1, NullError, r"column 'words'.*where\(col\('words'\).isNotNull\(\)\)"),
        (["a", None], 1, NullError, "column 'words'.*array_compact"),
        (["a"], 2**63, InvalidValueError, f"key {2**63} "),
    ],
    ids=str,
)
def test_what_tasks_cannot_answer(
    spark: Any, tmp_path: Path, strategy: Any, tags: Any, key: int, kind: type[TagMatchError], message: str
) -> None:
    index = make_index(tmp_path / "index", [(["a"], key)])
    queries = spark.createDataFrame([(["b"],), (tags,)], "words array<string>")
    with pytest.raises(kind, match=message):
        keys_of(subset_join(queries, index, strategy=strategy, tags="words"))


@pytest.mark.nightly
def test_every_partition_gets_a_bucket(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 10)
    index = make_index(tmp_path / "index", [([f"t{i}"], i) for i in range(80)])
    queries = session.createDataFrame([([f"t{i}"],) for i in range(80)], "tags array<string>")
    joined = subset_join(queries, index, strategy="shuffle")
    assert joined.select(functions.spark_partition_id()).distinct().count() == 8


def test_auto_goes_by_the_size_of_the_index(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_set([], 1, where="price < 10")
        tm.consolidate()
    queries = spark.createDataFrame([(["a"], 9)], "tags array<string>, price int")
    for limit, ships in ((8 << 30, True), (0, False)):
        joined = subset_join(queries, tmp_path / "index", attributes="price", ship_limit=limit)
        joined.explain()
        assert ("tagmatch_send_sets" not in capsys.readouterr().out) == ships
        assert keys_of(joined) == [1]


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
        ("tags array<string>", {"index": "ftp://host/index"}, InvalidValueError, "Arrow does not reach ftp://host/in"),
        ("tags array<string>", {"index": "no/such/folder"}, IndexNotFoundError, "no such folder"),
        ("tags array<string>", {"folder": "x"}, InvalidValueError, "folder is where the index of interests is made"),
    ],
)
def test_bad_arguments_are_told_at_once(
    spark: Any,
    tmp_path: Path,
    columns: str,
    arguments: dict[str, Any],
    error: type[TagMatchError],
    message: str,
) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    with pytest.raises(error, match=message):
        subset_join(spark.createDataFrame([], columns), **{"index": index, **arguments})


def test_queries_must_be_a_data_frame(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="must be a Spark DataFrame, not list"):
        subset_join([["a"]], tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "key"), [("long", int), ("string", str)], ids=["integers", "strings"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_interests(spark: Any, tmp_path: Path, rng: random.Random, strategy: Any, kind: str, key: Any) -> None:
    """In the place of an index."""
    tags = [f"t{i}" for i in range(15)]
    interests = [(rng.sample(tags, rng.randint(0, 3)), key(rng.randrange(20))) for _ in range(200)]
    tweets = [(number, rng.sample([*tags, "new"], rng.randint(0, 8))) for number in range(30)]
    oracle = Oracle()
    oracle.add_sets(*zip(*interests, strict=True))
    oracle.consolidate()
    stored = spark.createDataFrame(interests, f"tags array<string>, key {kind}")
    queries = spark.createDataFrame(tweets, "id long, tags array<string>")
    for folder in (None, tmp_path / "index"):
        found = subset_join(queries, stored, strategy=strategy, folder=folder).select("id", "key").collect()
        expected = [(number, one) for number, query in tweets for one in oracle.match(query)]
        assert sorted(map(tuple, found)) == sorted(expected)
    with TagMatch.open(tmp_path / "index") as tm:
        assert len(tm) == len(oracle)
    with pytest.raises(InvalidTypeError, match="no column 'key'; there are 'id', 'tags'"):
        subset_join(queries, queries)
