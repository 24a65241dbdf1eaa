"""Both strategies of the join where sets have conditions, and queries attributes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from oracle import Oracle
from support.conditions import Expression, Message, any_expression
from support.trees import And, Not, Tags, Test

import tagmatch.spark.join
from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
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
    return Stored(path, oracle, [any_message(rng) for _ in range(100)])


def data_frame(spark: Any, messages: list[Message]) -> Any:
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
@pytest.mark.parametrize(
    ("names", "output", "unique"),
    [
        (ATTRIBUTES, "rows", False),
        (["price"], "rows", False),
        ([], "rows", False),
        (ATTRIBUTES, "lists", False),
        (ATTRIBUTES, "lists", True),
    ],
)
def test_answers_are_the_oracles(
    spark: Any, stored: Stored, strategy: Any, names: list[str], output: Any, unique: bool
) -> None:
    queries = data_frame(spark, stored.messages)
    joined = subset_join(
        queries, stored.path, strategy=strategy, tags="the tags", attributes=names, output=output, unique=unique
    )
    assert joined.columns == [*queries.columns, "key" if output == "rows" else "keys"]
    keys: list[list[Any]] = [[] for _ in stored.messages]
    found = joined.collect()
    for row in found:
        assert row.unasked == row.n
        keys[row.n] += [row.key] if output == "rows" else row["keys"]
    wanted = expected(stored, names)
    assert list(map(sorted, keys)) == [sorted(set(each)) if unique else each for each in wanted]
    assert sum(map(len, wanted)) > len(wanted)
    assert output == "rows" or len(found) == len(stored.messages)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_queries_or_only_conditions_that_are_negated(spark: Any, tmp_path: Path, strategy: Any) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), where=[f"not price > {number}" for number in range(100)])
        tm.consolidate()
    rows, wanted = [(1, [], 98.5), (2, ["a"], None)], [(1, 99), *((2, key) for key in range(100))]
    for some in (rows, []):
        queries = spark.createDataFrame(some, "n int, tags array<string>, price double")
        joined = subset_join(queries, tmp_path / "index", strategy=strategy, attributes="price")
        assert sorted((row.n, row.key) for row in joined.collect()) == (wanted if some else [])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tag_that_stands_for_a_value(spark: Any, tmp_path: Path, strategy: Any) -> None:
    """As `match_many` takes it."""
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), where=[f"a{number} = true" for number in range(100)])
        tm.consolidate()
    frame = spark.createDataFrame(
        [(i, [f"\0=a{i}\0b1", f"\0=a{i + 1}\0b0"]) for i in range(100)], "n int, tags array<string>"
    )
    joined = subset_join(frame, tmp_path / "index", strategy=strategy)
    assert sorted((row.n, row.key) for row in joined.collect()) == [(number, number) for number in range(100)]


# -- columns, structs and maps -----------------------------------------------------------------------------------------

SETS = [
    (["a"], 1, "price < 10"),
    (["a"], 2, None),
    ([], 3, 'city = "Rome" and not new = true'),
    ([], 4, "exists(`x y`)"),
]
#: With `city` twice, or with no value
QUERIES = [
    (0, ["a"], 9.5, (["Rome", "Oslo"], None)),
    (1, ["a"], None, (None, 7)),
    (2, [], 10.0, (["Rome"], 0)),
    (3, [], 1.0, None),
]
OTHERS = "id int, tags array<string>, price double, others struct<city: array<string>, `x y`: int>"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tags, keys, where = zip(*SETS, strict=True)
        tm.add_sets(tags, keys, where=where)
        tm.consolidate()
    return tmp_path / "index"


def answers(attributes: list[dict[str, Any]]) -> list[tuple[int, int]]:
    with TagMatch(device="cpu") as tm:
        for tags, key, where in SETS:
            tm.add_set(tags, key, where=where)
        tm.consolidate()
        pairs = zip(QUERIES, attributes, strict=True)
        return sorted((query[0], key) for query, row in pairs for key in tm.match(query[1], row))


def test_attributes_are_columns_and_fields(spark: Any, index: Path) -> None:
    """An index is a path, or made of interests with conditions; without attributes, no condition on them holds."""
    queries = spark.createDataFrame(QUERIES, OTHERS)
    interests = spark.createDataFrame(SETS, "tags array<string>, key long, where string")
    fields = [dict(zip(("city", "x y"), row[3] or (None, None), strict=True)) for row in QUERIES]
    prices = [{"price": row[2]} for row in QUERIES]
    both = [{**one, **others} for one, others in zip(fields, prices, strict=True)]
    assert answers(both) != answers(prices)
    for stored in (index, interests):
        for names, rows in ((["price", "others"], both), ("price", prices), ("others", fields), ((), [{}] * 4)):
            joined = subset_join(queries, stored, attributes=names)
            assert joined.columns == [*queries.columns, "key"]
            assert sorted((row.id, row.key) for row in joined.collect()) == answers(rows)
    lists = subset_join(queries, index, attributes=["price", "others"], output="lists", unique=True)
    found = {row.id: sorted(row["keys"]) for row in lists.collect()}
    assert found == {number: sorted({key for row, key in answers(both) if row == number}) for number in range(4)}


@pytest.mark.parametrize("strategy", [*STRATEGIES])
def test_attributes_in_maps(spark: Any, index: Path, strategy: str) -> None:
    """Entries of maps are attributes by their own names, beside a column that is one; a map may be null or empty."""
    maps = [{"price": [9.5, 12.0], "x y": None}, {"x y": [7.0], "nobody asks": [1.0]}, None, {}]
    cities = [["Rome"], None, ["Oslo"], ["Rome"]]
    rows = [(*query[:2], of_map, of_city) for query, of_map, of_city in zip(QUERIES, maps, cities, strict=True)]
    schema = "id int, tags array<string>, some map<string, array<double>>, city array<string>"
    queries = spark.createDataFrame(rows, schema)
    attributes = [{**(of_map or {}), "city": of_city} for of_map, of_city in zip(maps, cities, strict=True)]
    joined = subset_join(queries, index, attributes=["some", "city"], strategy=strategy)
    assert sorted((row.id, row.key) for row in joined.collect()) == answers(attributes)
    assert answers(attributes) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (3, 3)]


@pytest.mark.parametrize("strategy", [*STRATEGIES])
def test_attributes_may_have_any_name(spark: Any, tmp_path: Path, strategy: str) -> None:
    """Also names that are nearly those of columns with a meaning, where a table of queries must not have them."""
    names = ["Tag", "id", "locations", "attribute"]
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([[]] * 5, range(5), where=[f"`{name}` = 1" for name in [*names, "within"]])
        tm.consolidate()
    schema = ", ".join(["tags array<string>", *(f"{name} int" for name in names), "of map<string, int>"])
    queries = spark.createDataFrame([([], 1, 1, 1, 1, {"within": 1})], schema)
    joined = subset_join(queries, tmp_path / "index", attributes=[*names, "of"], strategy=strategy)
    assert sorted(row.key for row in joined.collect()) == [0, 1, 2, 3, 4]


def test_what_will_not_do(spark: Any, index: Path) -> None:
    queries = spark.createDataFrame(QUERIES, OTHERS)
    with pytest.raises(InvalidValueError, match="one column 'cost'; its columns are 'id', 'tags'"):
        subset_join(queries, index, attributes=["cost"])
    with pytest.raises(InvalidTypeError, match="column 'day' is of date32"):
        subset_join(spark.createDataFrame([], "tags array<string>, day date"), index, attributes="day")
    with pytest.raises(InvalidValueError, match="different names, none of them 'tags'"):
        subset_join(queries, index, attributes=["price", "price"])
