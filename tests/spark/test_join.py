"""Both strategies of the join, and both functions, against the oracle: sets with conditions and areas."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from oracle import And, Not, Oracle, Tags, Test
from pyspark.sql import SparkSession, functions
from support.areas import AREAS, FIELDS, PLACES, At, any_at, struct_of
from support.conditions import Expression, Message, any_expression
from support.expiring import set_clock
from support.index_files import make_index
from support.spark_functions import called, settings_of

import tagmatch.spark.answers
from tagmatch import Near, TagMatch
from tagmatch.model.errors import (
    IndexChangedError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    NullError,
    TagMatchError,
)
from tagmatch.partitioner.spark.batches import tasks_of_shuffle
from tagmatch.spark import register
from tagmatch.spark.columns import errors_of_workers
from tagmatch.spark.join import subset_join

ASKED = "price double, city array<string>, others struct<name: string, new: boolean>"
ASKED += f", here {{}}, around struct<kind: string, {', '.join(f'{name}: double' for name in FIELDS)}>"
#: The types of a column of places
PLACE_TYPES = {"integer": "struct<lat: double, lon: double>", "string": "array<double>"}
KEPT = """
    `a.b c` string, amount decimal(10, 2), at timestamp, day date, bytes binary, flag boolean, pairs map<string, int>,
    pair struct<x: bigint, y: array<string>>, nothing int
"""
ATTRIBUTES = ["price", "city", "others"]
#: The key of each type for a number, in the same order
KEYS: dict[str, Any] = {"integer": int, "string": "é{:019}".format}
COMMON = [f"c{number}" for number in range(6)]
TAGS = [f"t{i}" for i in range(40)] + ["é", "日本", "", " ", "a\u0000b", "🐈"]


class Stored(NamedTuple):
    path: Path
    key_type: str
    oracle: Oracle
    messages: list[Message]
    places: list[At]


pytestmark = pytest.mark.usefixtures("small_buckets")


@pytest.fixture(params=["ship", "shuffle"])
def strategy(request: pytest.FixtureRequest) -> Any:
    return request.param


def of(tree: Any) -> Expression:
    return Expression.of(tree, random.Random(0))


def subscriptions(rng: random.Random) -> list[tuple[list[str], Expression | None, Any]]:
    """Far more than a bucket's need a price, or have the same rarest tag; some say only what must not be."""
    found: list[Any] = [([], of(Test("price", "<", (number / 10,)))) for number in range(100)]
    found += [([*some, "hot"], None) for size in range(7) for some in itertools.combinations(COMMON, size)]
    negated = [Test("price", ">", (0,)), Test("price", ">", (5,)), Tags(("t1",)), Test("new", "=", (True,))]
    found += [([], of(Not(each))) for each in negated]
    found += [([], of(And((Not(Test("city", "exists", ())), Not(negated[-1])))))]
    found += [([], of(And((negated[0], Test("name", "prefix", ("a",)), Not(Tags(("c0",)))))))]
    found += [([], of(Test("never given", "exists", ()))), ([], None)]
    found += [(rng.sample(COMMON, rng.choice([0, 0, 1, 2])), any_expression(rng, COMMON)) for _ in range(150)]
    found += [(rng.sample(COMMON, 3) + rng.sample(TAGS, rng.randrange(4)), None) for _ in range(150)]
    areas = [rng.choice(AREAS) if number > 200 and number % 3 == 0 else None for number in range(len(found))]
    return rng.sample([(*each, area) for each, area in zip(found, areas, strict=True)], len(found))


def any_message(rng: random.Random) -> Message:
    """Attributes have one type; they may be null, have no value or several, or a null among these."""
    attributes = {
        "price": rng.choice([None, -1.0, 0.0, 5.0, 7.5, 12.25, math.inf, math.nan]),
        "city": rng.choice([None, [], [None], ["Rome"], ["Oslo", None], ["Milan", "Rome"]]),
        "name": rng.choice([None, "", "a", "ab", "b"]),
        "new": rng.choice([None, True, False]),
    }
    return Message(rng.choices([*COMMON, *TAGS, *COMMON, "hot", "unknown"], k=rng.randrange(14)), attributes)


@pytest.fixture(scope="module", params=[("rarest", "string"), ("balanced", "integer")], ids="-".join)
def stored(request: pytest.FixtureRequest, seed: int, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """An index of several segments with removed sets, and of the places of its clients."""
    layout, key_type = request.param
    rng, oracle = random.Random(seed), Oracle()
    path = tmp_path_factory.mktemp("join") / layout
    rows = [(tags, where, area, KEYS[key_type](rng.randrange(150))) for tags, where, area in subscriptions(rng)]
    with TagMatch(path, layout=layout, key_type=key_type, device="cpu", max_partition_size=20) as tm:
        for change in (tm, oracle):
            for number, (tags, where, area, key) in enumerate(rows):
                change.add_set(tags, key, where=where, area=area)
                if number in (300, 350):
                    change.consolidate()
            change.consolidate()
            for tags, where, area, key in rows[::7]:
                change.remove_set(tags, key, where=where, area=area)
            change.consolidate()
        places = [rng.choice(PLACES) for _ in range(150)]
        for change in (tm, oracle):
            change.move(list(map(KEYS[key_type], range(150))), *map(list, zip(*places, strict=True)))
            change.save_positions()
    messages = [any_message(rng) for _ in range(80)]
    some = [[], ["unknown"], ["hot"], [*COMMON, "hot"], ["é", "é", "c1", "c2", "c3", "e\u0301"]]
    messages += [any_message(rng)._replace(tags=tags) for tags in some]
    return Stored(path, key_type, oracle, messages, [any_at(rng) for _ in messages])


def data_frame(spark: Any, stored: Stored) -> Any:
    """Columns that are asked for, some of them not always, and others of any type, which are kept."""

    def row(n: int, tags: list[str], each: Any) -> tuple[Any, ...]:
        at, here = stored.places[n], stored.places[n].location
        if here:
            here = tuple(map(float, here))
            here = dict(zip(("lon", "lat"), here, strict=True)) if stored.key_type == "integer" else list(here)
        asked = each["price"], each["city"], (each["name"], each["new"]) if n % 9 else None, here, struct_of(at.within)
        day = datetime.datetime(2026, 3, 1, 12) + datetime.timedelta(days=n)
        kept = f"row {n}", decimal.Decimal(n) / 4, day, day.date(), bytes([n % 7] * (n % 5)), n % 2 == 0
        return n, tags, *asked, *kept, {"n": n} if n % 3 else None, (n, ["y"] * (n % 3)), None

    rows = [row(number, *message) for number, message in enumerate(stored.messages)]
    schema = f"n int, `the tags` array<string>, {ASKED.format(PLACE_TYPES[stored.key_type])}, {KEPT}"
    return spark.createDataFrame(rows, schema).repartition(3, "n")


def expected(stored: Stored, names: list[str], *places: str) -> list[list[Any]]:
    """The keys of each message by these columns, with `location` and `within` or not."""
    asked = {name for column in names for name in (("name", "new") if column == "others" else (column,))}
    found = []
    for number, (tags, attributes) in enumerate(stored.messages):
        there = asked - (set() if number % 9 else {"name", "new"})
        where = {name: value for name, value in stored.places[number].options.items() if name in places}
        found.append(stored.oracle.match(tags, {name: attributes[name] for name in there}, **where))
    return found


HERE, AROUND = {"location": "here"}, {"within": "around"}
#: Attributes, places, output, and whether keys come once
ASKED_FOR: list[tuple[list[str], dict[str, str], Any, bool]] = [
    (ATTRIBUTES, HERE | AROUND, "rows", False),
    (["price"], HERE, "rows", True),
    ([], {}, "rows", False),
    (ATTRIBUTES, AROUND, "lists", True),
    ([], HERE | AROUND, "lists", False),
]


@pytest.mark.parametrize("asked", ASKED_FOR, ids=str)
@pytest.mark.parametrize("way", ["ship", "shuffle", "sql", "column"])
def test_answers_are_the_oracles(
    spark: Any, stored: Stored, monkeypatch: pytest.MonkeyPatch, way: Any, asked: Any
) -> None:
    for name, few in (("QUERIES", 7), ("MOST_KEYS", 200)):
        monkeypatch.setattr(tagmatch.spark.answers, name, few)
    names, places, output, unique = asked
    queries = data_frame(spark, stored)
    if way in ("sql", "column"):  # with NULL for arguments not given
        register(spark)
        names, unique = [name for name in names if name != "others"], unique and way == "column"
        given = {"tags": "`the tags`", "attributes": names or None, "location": None, "within": None} | places
        keys = [found for _, found in sorted(called(way, queries, stored.path, unique=unique, **given).items())]
    else:
        given = {"attributes": names[0] if len(names) == 1 else names, **places, "output": output, "unique": unique}
        joined = subset_join(queries, stored.path, strategy=way, tags="the tags", **given)
        kind = "bigint" if stored.key_type == "integer" else "string"
        added = ("key", kind) if output == "rows" else ("keys", f"array<{kind}>")
        assert joined.dtypes == [*queries.dtypes, added]
        before, found = {row.n: repr(row[1:]) for row in queries.collect()}, joined.collect()
        keys = [list[Any]() for _ in before]
        for row in found:
            assert repr(row[1:-1]) == before[row.n]
            keys[row.n] += [row[-1]] if output == "rows" else row[-1]
        assert output == "rows" or len(found) == len(before)
    wanted = expected(stored, names, *places)
    assert list(map(sorted, keys)) == [sorted(set(each)) if unique else each for each in wanted]
    assert sum(map(len, wanted)) > len(wanted)


def test_attributes_in_maps(spark: Any, tmp_path: Path, strategy: str) -> None:
    """Entries of maps are attributes by their own names, as is a column; a map may be null or empty."""
    sets = [(["a"], 1, "price < 10"), (["a"], 2, None), ([], 3, 'city = "Rome" and not new = true')]
    index = make_index(tmp_path / "index", [*sets, ([], 4, "exists(`x y`)")])
    maps = [{"price": [9.5, 12.0], "x y": None}, {"x y": [7.0], "never asked": [1.0]}, None, {}]
    rows = list(zip(range(4), [["a"], ["a"], [], []], maps, [["Rome"], None, ["Oslo"], ["Rome"]], strict=True))
    schema = "id int, tags array<string>, some map<string, array<double>>, city array<string>"
    joined = subset_join(spark.createDataFrame(rows, schema), index, attributes=["some", "city"], strategy=strategy)
    found = sorted((row.id, row.key) for row in joined.collect())
    assert found == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (3, 3)]


def test_patterns_and_comparisons(spark: Any, tmp_path: Path, strategy: str) -> None:
    """Sets that ask for no tag and no attribute by itself go to all buckets; a column says what time it is."""
    sets = [(["a"], 1, "price <= budget"), ([], 2, 'name like "a%b_"'), ([], 3, 'not name matches "x" and price = 1')]
    index = make_index(tmp_path / "index", [*sets, ([], 4, "posted >= now() - 7 days")])
    day = datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)
    rows = [(0, ["a"], 1.0, 1.0, "ab", day, day), (1, [], 1.0, 1.0, "axbx", None, None)]
    rows.append((2, ["a"], 2.0, None, "a b!", day, day + timedelta(days=8)))
    schema = "id int, tags array<string>, price double, budget double, name string, posted timestamp, `now()` timestamp"
    names = ["price", "budget", "name", "posted", "now()"]
    joined = subset_join(spark.createDataFrame(rows, schema), index, attributes=names, strategy=strategy)
    found = sorted((row.id, row.key) for row in joined.collect())
    assert found == [(0, 1), (0, 3), (0, 4), (1, 2), (2, 2)]


@pytest.mark.parametrize("key_type", KEYS)
def test_an_answer_may_be_larger_than_an_arrow_batch_of_spark(
    spark: Any, tmp_path: Path, strategy: Any, key_type: str
) -> None:
    count, key = 150_000, KEYS[key_type]
    keys = list(map(key, [*range(count), 2**63 - 1]))
    with TagMatch(tmp_path / "index", key_type=key_type) as tm:
        tm.add_sets([["popular"]] * count + [["x"]], keys)
        tm.consolidate()
    queries = spark.createDataFrame([(0, ["popular"]), (1, ["x", "popular"]), (2, ["y"])], "n int, words array<string>")
    rows = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words").select("n", "key").toArrow()
    assert Counter(rows["n"].to_pylist()) == {0: count, 1: count + 1}
    assert Counter(rows["key"].to_pylist()) == dict.fromkeys(keys[:-1], 2) | {keys[-1]: 1}
    lists = subset_join(queries, tmp_path / "index", strategy=strategy, tags="words", output="lists").toArrow()
    sizes = dict(zip(lists["n"].to_pylist(), map(len, lists["keys"].to_pylist()), strict=True))
    assert sizes == {0: count, 1: count + 1, 2: 0}


@pytest.mark.parametrize("key_type", KEYS)
def test_no_queries_or_no_sets(spark: Any, tmp_path: Path, strategy: Any, key_type: str) -> None:
    """Or only conditions that are negated."""
    full = make_index(tmp_path / "full", [(["a"], KEYS[key_type](1)), ([], KEYS[key_type](2))])
    empty = make_index(tmp_path / "empty", [], key_type=key_type)
    negated = make_index(tmp_path / "negated", [([], number, f"not price > {number}") for number in range(100)])
    some, none = (spark.createDataFrame(rows, "tags array<string>") for rows in ([(["a"],), ([],)], []))
    for index in (full, negated):
        for output in ("rows", "lists"):
            assert subset_join(none, index, strategy=strategy, output=output).collect() == []
    assert subset_join(some, empty, strategy=strategy).collect() == []
    lists = subset_join(some, empty, strategy=strategy, output="lists").collect()
    assert sorted(map(tuple, lists)) == [([], []), (["a"], [])]
    queries = spark.createDataFrame([(1, [], 98.5), (2, ["a"], None)], "n int, tags array<string>, price double")
    joined = subset_join(queries, negated, strategy=strategy, attributes="price")
    assert sorted((row.n, row.key) for row in joined.collect()) == [(1, 99), *((2, key) for key in range(100))]


def keys_of(joined: Any) -> list[Any]:
    with errors_of_workers():
        return sorted(row.key for row in joined.collect())


def test_a_join_asks_the_snapshot_that_was_current_when_it_was_made(spark: Any, tmp_path: Path) -> None:
    """Or one that the index keeps. The newest if asked to, but not if it has keys of the other type."""
    index = make_index(tmp_path / "index", [(["a"], 1)])
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    shipped = subset_join(queries, index, strategy="ship", snapshot="newest")
    fixed, fixed_late = (subset_join(queries, index, strategy="ship") for _ in range(2))
    shuffled, late = (subset_join(queries, index, strategy="shuffle") for _ in range(2))
    assert keys_of(shipped) == keys_of(fixed) == keys_of(shuffled) == [1]
    with TagMatch(index, keep_snapshots=1, device="cpu") as tm:
        tm.add_set(["b"], 2)
        tm.remove_set(["a"], 1)
        tm.consolidate()
        (first, _) = (info.number for info in TagMatch.snapshots(index))
    assert keys_of(shipped) == keys_of(subset_join(queries, str(index), strategy="shuffle")) == [2]
    for strategy in ("ship", "shuffle"):
        assert keys_of(subset_join(queries, str(index), strategy=strategy, snapshot=first)) == [1]
    with pytest.raises(IndexChangedError, match="has another snapshot than when the join, or the function, was made"):
        keys_of(fixed_late)
    with pytest.raises(InvalidValueError, match="snapshot must be the number of a snapshot or 'newest', not 'latest'"):
        subset_join(queries, index, snapshot="latest")  # type: ignore[arg-type]
    with pytest.raises(IndexNotFoundError, match="newer snapshot"):
        keys_of(late)
    with TagMatch.open(make_index(tmp_path / "named", [(["a"], "ana")])) as tm:
        tm.save(index)
    with pytest.raises(InvalidValueError, match='had key_type "integer" when the join began, and has "string" now'):
        keys_of(shipped)
    assert keys_of(subset_join(queries, index, strategy="ship")) == ["ana"]


@pytest.mark.parametrize("key", [int, str], ids=["integers", "strings"])
@pytest.mark.parametrize(
    ("sets", "hours", "expected"),
    [
        ([["a"], ["a"], ["b"], [], []], [-1, 0, -2, -1, 24], {1: [1, 4], 2: [4]}),
        # As many keys are left as there were sets: one set has two, and one none
        ([["a"], ["a"], ["b"]], [0, 0, -1], {1: [0, 1], 2: []}),
        ([["a"], ["a"], ["b"], ["b", "d"], ["a", "b"]], [0, 0, 0, 0, -1], {1: [0, 1, 2], 2: [2]}),
    ],
)
def test_keys_that_have_expired_are_no_answers(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: Any,
    key: Any,
    sets: list[list[str]],
    hours: list[int],
    expected: dict[int, list[int]],
) -> None:
    """Though the files still have them."""
    monkeypatch.setattr("tagmatch.spark.shuffle.tasks_of_shuffle", lambda _: 1)  # one bucket has all sets
    clock, now = set_clock(monkeypatch), datetime.datetime.now(datetime.UTC)
    times = [now + timedelta(hours=each) if each else None for each in hours]
    with TagMatch(tmp_path / "index", key_type="string" if key is str else "integer", durability="none") as tm:
        clock.now = now - timedelta(days=1)
        tm.add_sets(sets, list(map(key, range(len(sets)))), expires=times)
        tm.consolidate()
    clock.now = now
    queries = spark.createDataFrame([(1, ["a", "b"]), (2, ["b"])], "id long, tags array<string>")
    found = subset_join(queries, tmp_path / "index", strategy=strategy).collect()
    wanted = [(id_, key(number)) for id_, numbers in expected.items() for number in numbers]
    assert sorted((row.id, row.key) for row in found) == sorted(wanted)
    counts = subset_join(queries, tmp_path / "index", strategy=strategy, output="counts").collect()
    assert {row.id: row["count"] for row in counts} == {id_: len(numbers) for id_, numbers in expected.items()}


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


def test_attributes_may_have_any_name(spark: Any, tmp_path: Path, strategy: str) -> None:
    """Also names that are nearly those of columns with a meaning, where a table of queries must not have them."""
    names = ["Tag", "id", "locations", "attribute"]
    sets = [([], key, f"`{name}` = 1") for key, name in enumerate([*names, "within"])]
    index = make_index(tmp_path / "index", sets)
    schema = ", ".join(["tags array<string>", *(f"{name} int" for name in names), "of map<string, int>"])
    queries = spark.createDataFrame([([], 1, 1, 1, 1, {"within": 1})], schema)
    assert keys_of(subset_join(queries, index, attributes=[*names, "of"], strategy=strategy)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("large", ["false", "true"])
def test_columns_of_one_name(session: SparkSession, tmp_path: Path, strategy: str, large: str) -> None:
    """A struct is attributes and a place at once; columns that only come along share a name, as after a join."""
    index = make_index(tmp_path / "index", [(["a"], 1, "lon > 5")])
    frame = session.createDataFrame(
        [(["a"], (9.0, 45.0))], "tags array<string>, place struct<lon: double, lat: double>"
    )
    twice = frame.select("tags", "place", functions.lit(1).alias("id"), functions.lit(2).alias("id"))
    with settings_of(session, {"spark.sql.execution.arrow.useLargeVarTypes": large}):
        for how, row in (("left", (["a"], (9.0, 45.0), 1, 2, 1)), ("semi", (["a"], (9.0, 45.0), 1, 2))):
            given: dict[str, Any] = {"attributes": "place", "location": "place", "strategy": strategy, "how": how}
            found = subset_join(twice, index, **given)
            assert found.columns == ["tags", "place", "id", "id", "key"][: len(row)]
            assert [tuple(each) for each in found.collect()] == [row]
        plain = frame.select(
            "tags", functions.col("place.lon").alias("lon"), functions.lit(1).alias("id"), functions.lit(2).alias("id")
        )
        found = subset_join(plain, index, attributes="lon", strategy=strategy)
        assert [tuple(each) for each in found.collect()] == [(["a"], 9.0, 1, 2, 1)]


def test_a_task_knows_where_clients_have_moved_since_the_one_before(spark: Any, tmp_path: Path) -> None:
    index = tmp_path / "index"
    frame = spark.createDataFrame([(["a"], [9.0, 45.0])], "tags array<string>, here array<double>")
    with TagMatch(index, device="cpu") as tm:
        tm.add_set(["a"], 1, area=Near(500))
        tm.consolidate()
        tm.move([1], 9, 45)
        tm.save_positions()
    for lon in (9, 10, 9):
        with TagMatch(index, device="cpu") as tm:  # the snapshot stays as it is
            tm.move([1], lon, 45)
            tm.save_positions()
        for strategy in ("ship", "shuffle"):
            joined = subset_join(frame, index, location="here", strategy=strategy)
            assert [row.key for row in joined.collect()] == [1] * (lon == 9)


def test_a_task_goes_on_when_the_index_gets_the_first_areas(spark: Any, tmp_path: Path) -> None:
    """As those of a stream. A place must be one."""
    index = make_index(tmp_path / "index", [(["t1"], 1)])
    frame = spark.createDataFrame([(["t1"], [9.0, 95.0])], "tags array<string>, here array<double>")
    joined = subset_join(frame, index, strategy="ship", snapshot="newest")
    for keys in ([1], [1, 3]):
        assert sorted(row.key for row in joined.collect()) == keys
        with TagMatch(index, device="cpu") as tm:
            tm.add_set(["t1"], 2, area=Near(5))
            tm.add_set(["t1"], 3)
            tm.consolidate()
    for strategy in ("ship", "shuffle"):
        joined = subset_join(frame, index, strategy=strategy, location="here")
        wrong = "column 'location': row 0: lat must be from -90 to 90, not 95"
        with pytest.raises(InvalidValueError, match=wrong), errors_of_workers():
            joined.collect()


@pytest.mark.nightly
def test_every_partition_gets_a_bucket(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagmatch.spark.join, "BUCKET_SETS", 10)
    index = make_index(tmp_path / "index", [([f"t{i}"], i) for i in range(80)])
    queries = session.createDataFrame([([f"t{i}"],) for i in range(80)], "tags array<string>")
    joined = subset_join(queries, index, strategy="shuffle")
    assert joined.select(functions.spark_partition_id()).distinct().count() == 8
    monkeypatch.undo()  # so few sets are a bucket; but the tests' configuration asks for four
    joined = subset_join(queries, index, strategy="shuffle")
    assert joined.select(functions.spark_partition_id()).distinct().count() == tasks_of_shuffle(session) == 4


@pytest.mark.parametrize(("kind", "key"), [("long", int), ("string", str)], ids=["integers", "strings"])
def test_interests(spark: Any, tmp_path: Path, rng: random.Random, strategy: Any, kind: str, key: Any) -> None:
    """In the place of an index."""
    interests = [
        (rng.sample(TAGS, rng.randint(0, 3)), key(rng.randrange(20)), rng.choice([None, "x = 1"])) for _ in range(200)
    ]
    tweets = [(number, rng.sample([*TAGS, "new"], rng.randint(0, 20))) for number in range(30)]
    oracle = Oracle()
    oracle.add_sets(*zip(*(row[:2] for row in interests if row[2] is None), strict=True))
    oracle.consolidate()
    expected = [(number, one) for number, query in tweets for one in oracle.match(query)]
    stored = spark.createDataFrame(interests, f"tags array<string>, key {kind}, where string")
    queries = spark.createDataFrame(tweets, "id long, tags array<string>")
    for folder in (None, tmp_path / "index"):
        found = subset_join(queries, stored, strategy=strategy, folder=folder).select("id", "key").collect()
        assert sorted(map(tuple, found)) == sorted(expected)
    with TagMatch.open(tmp_path / "index") as tm:
        assert len(tm) > len(oracle)
    with pytest.raises(InvalidTypeError, match="no column 'key'; there are 'id', 'tags'"):
        subset_join(queries, queries)
    for snapshot in (1, "latest"):
        with pytest.raises(InvalidValueError, match=f"snapshot {snapshot!r} is one of an index"):
            subset_join(queries, stored, snapshot=snapshot)  # type: ignore[arg-type]
