"""Both strategies of the join against the oracle, where sets have conditions."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from oracle import Oracle
from pyspark.sql import SparkSession
from support.conditions import Expression, Message, any_expression
from support.trees import And, Not, Tags, Test

import tagmatch.spark.join
from tagmatch import TagMatch
from tagmatch.spark import subset_join

STRATEGIES = ("ship", "shuffle")
KEYS: dict[str, Any] = {"integer": int, "string": "user {}".format}
SCHEMA = """
    n int, `the tags` array<string>, price double, city array<string>, others struct<name: string, new: boolean>,
    unasked int
"""
ATTRIBUTES = ["price", "city", "others"]
TAGS = [f"t{i}" for i in range(6)]


class Stored(NamedTuple):
    path: Path
    oracle: Oracle
    messages: list[Message]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 40)


def any_tags(rng: random.Random) -> list[str]:
    return rng.sample(TAGS, rng.choice([0, 0, 1, 2]))


def of(tree: Any) -> Expression:
    return Expression.of(tree, random.Random(0))


def subscriptions(rng: random.Random) -> list[tuple[list[str], Expression | None]]:
    """With and without tags; far more than a bucket's need a price; some say only what must not be."""
    skewed = [([], of(Test("price", "<", (number / 10,)))) for number in range(150)]
    negated = [of(Not(Test("price", ">", (number,)))) for number in range(5)]
    negated += [of(Not(Tags(("t1",)))), of(And((Not(Test("city", "exists", ())), Not(Test("new", "=", (True,))))))]
    both = of(And((Test("price", ">", (0,)), Test("name", "prefix", ("a",)), Not(Tags(("t0",))))))
    mixed = [(any_tags(rng), any_expression(rng, TAGS)) for _ in range(200)]
    plain = [(any_tags(rng), None) for _ in range(50)]
    found = [*skewed, *(([], where) for where in negated), ([], both), ([], of(Test("nobody has", "exists", ())))]
    return rng.sample([*found, *mixed, *plain, ([], None)], len(found) + len(mixed) + len(plain) + 1)


def any_message(rng: random.Random) -> Message:
    """Attributes have one type; they may be null, have no value or several, or a null among these."""
    attributes = {
        "price": rng.choice([None, -1.0, 0.0, 5.0, 7.5, 12.25, math.inf, math.nan]),
        "city": rng.choice([None, [], [None], ["Rome"], ["Oslo", None], ["Milan", "Rome"]]),
        "name": rng.choice([None, "", "a", "ab", "b"]),
        "new": rng.choice([None, True, False]),
    }
    return Message(rng.choices([*TAGS, "unknown"], k=rng.randrange(4)), attributes)


@pytest.fixture(scope="module", params=[("rarest", "integer"), ("balanced", "string")], ids="-".join)
def stored(request: pytest.FixtureRequest, seed: int, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """An index of several segments, of which sets have been removed."""
    layout, key_type = request.param
    rng, oracle = random.Random(seed), Oracle()
    path = tmp_path_factory.mktemp("conditions") / layout
    rows = [(tags, where, KEYS[key_type](rng.randrange(200))) for tags, where in subscriptions(rng)]
    with TagMatch(path, layout=layout, key_type=key_type, device="cpu", max_partition_size=20) as tm:
        for change in (tm, oracle):
            for number, (tags, where, key) in enumerate(rows):
                change.add_set(tags, key, where=where)
                if number in (300, 350):
                    change.consolidate()
            change.consolidate()
            for tags, where, key in rows[::7]:
                change.remove_set(tags, key, where=where)
            change.consolidate()
    return Stored(path, oracle, [any_message(rng) for _ in range(150)])


def data_frame(spark: SparkSession, messages: list[Message]) -> Any:
    rows = [
        (number, tags, each["price"], each["city"], (each["name"], each["new"]) if number % 9 else None, number)
        for number, (tags, each) in enumerate(messages)
    ]
    return spark.createDataFrame(rows, SCHEMA).repartition(3, "n")


def expected(stored: Stored, names: list[str]) -> list[list[Any]]:
    """The keys of each message, of which only these columns are asked for."""
    asked = {name for column in names for name in (("name", "new") if column == "others" else (column,))}
    found = []
    for number, (tags, attributes) in enumerate(stored.messages):
        there = asked - (set() if number % 9 else {"name", "new"})
        found.append(stored.oracle.match(tags, {name: attributes[name] for name in there}))
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("names", [ATTRIBUTES, ["price"], []], ids=["all", "price", "none"])
def test_answers_are_the_oracles(spark: SparkSession, stored: Stored, strategy: Any, names: list[str]) -> None:
    queries = data_frame(spark, stored.messages)
    joined = subset_join(queries, stored.path, strategy=strategy, tags="the tags", attributes=names)
    assert joined.columns == [*queries.columns, "key"]
    keys: list[list[Any]] = [[] for _ in stored.messages]
    for row in joined.collect():
        assert row.unasked == row.n
        keys[row.n].append(row.key)
    wanted = expected(stored, names)
    assert list(map(sorted, keys)) == wanted
    assert sum(map(len, wanted)) > len(wanted)


@pytest.mark.parametrize("unique", [False, True], ids=["all", "unique"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lists_are_the_oracles(spark: SparkSession, stored: Stored, strategy: Any, unique: bool) -> None:
    queries = data_frame(spark, stored.messages)
    joined = subset_join(
        queries,
        stored.path,
        strategy=strategy,
        tags="the tags",
        attributes=ATTRIBUTES,
        output="lists",
        unique=unique,
    )
    before = {row.n: tuple(row) for row in queries.collect()}
    found = {row.n: sorted(row["keys"]) for row in joined.collect()}
    assert [found[number] for number in range(len(before))] == [
        sorted(set(keys)) if unique else keys for keys in expected(stored, ATTRIBUTES)
    ]
    assert sorted(row.n for row in joined.collect()) == sorted(before)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_queries_or_only_conditions_that_are_negated(spark: SparkSession, tmp_path: Path, strategy: Any) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), where=[f"not price > {number}" for number in range(100)])
        tm.consolidate()
    some = spark.createDataFrame([(1, [], 98.5), (2, ["a"], None)], "n int, tags array<string>, price double")
    for queries, wanted in ((some, [(1, 99), *((2, key) for key in range(100))]), (some.where("n > 2"), [])):
        joined = subset_join(queries, tmp_path / "index", strategy=strategy, attributes="price")
        assert sorted((row.n, row.key) for row in joined.collect()) == wanted


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tag_that_stands_for_a_value(spark: SparkSession, tmp_path: Path, strategy: Any) -> None:
    """As `match_many` takes it."""
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), where=[f"a{number} = true" for number in range(100)])
        tm.consolidate()
    frame = spark.createDataFrame(
        [(i, [f"\0=a{i}\0b1", f"\0=a{i + 1}\0b0"]) for i in range(100)], "n int, tags array<string>"
    )
    joined = subset_join(frame, tmp_path / "index", strategy=strategy)
    assert sorted((row.n, row.key) for row in joined.collect()) == [(number, number) for number in range(100)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_auto_takes_the_shuffle_with_attributes(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: Any
) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_set([], 1, where="price < 10")
        tm.consolidate()
    queries = spark.createDataFrame([(["a"], 9)], "tags array<string>, price int")
    limit = 0 if strategy == "shuffle" else 8 << 30
    joined = subset_join(queries, tmp_path / "index", attributes="price", ship_limit=limit)
    joined.explain()
    assert ("tagmatch_send_sets" in capsys.readouterr().out) == (strategy == "shuffle")
    assert [row.key for row in joined.collect()] == [1]
