"""Both strategies of the join, and both functions, with an index whose areas are on the plane."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from oracle import Not, Oracle, Within
from pyspark.sql import SparkSession
from support.areas import FIELDS, At, struct_of
from support.conditions import Expression
from support.index_files import make_index
from support.spark_functions import called

from tagmatch import Box, Circle, Near, TagMatch
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.spark import partition, register, subset_join
from tagmatch.spark.columns import errors_of_workers

# Far from degrees, too; the last digits of none decide
PLACES = [(9.0, 45.0), (9.25, 45.0), (1000.0, 2000.0), (1003.0, 2004.0), (-5e5, 7e6), (0.0, 0.0)]
SHAPES = [Circle(9, 45, 0.5), Circle(1000, 2000, 6), Circle(1000, 2000, 4), Circle(0, 0, 2300), Circle(-5e5, 7e6, 0)]
SHAPES += [Box(-1e6, 1000, 1001, 8e6), Box(0, 0, 9.1, 45)]
AREAS = [*SHAPES, Near(0), Near(1), Near(6), Near(2300), Near(1e8), None]
AREA = f"struct<kind: string, {', '.join(f'{name}: double' for name in FIELDS)}>"
COLUMNS = f"id int, tags array<string>, here {{}}, around {AREA}"
WAYS = ["ship", "shuffle", "sql", "column"]

pytestmark = pytest.mark.usefixtures("small_buckets")


class Stored(NamedTuple):
    path: Path
    oracle: Oracle
    messages: list[tuple[list[str], At]]


@pytest.fixture(scope="module")
def stored(seed: int, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Two segments of areas that have messages, or have them not, and of areas near clients."""
    rng, oracle, path = random.Random(seed), Oracle(plane=True), tmp_path_factory.mktemp("plane")
    with TagMatch(path, plane=True, device="cpu", durability="none") as tm:
        for change in (tm, oracle):
            rng.seed(seed)
            for number in range(240):
                where = Expression.of(Not(Within(rng.choice(SHAPES))), rng) if rng.random() < 0.2 else None
                change.add_set(
                    rng.sample("abc", rng.randrange(3)), rng.randrange(60), where=where, area=rng.choice(AREAS)
                )
                if number == 200:
                    change.consolidate()
            change.consolidate()
            change.move(list(range(60)), *map(list, zip(*rng.choices(PLACES, k=60), strict=True)))
            change.save_positions()
    ats = [At(rng.choice([None, *PLACES]), rng.choice([None, *SHAPES])) for _ in range(40)]
    return Stored(path, oracle, [(rng.choices("abcd", k=rng.randrange(5)), at) for at in ats])


def queries_of(spark: Any, stored: Stored, kind: str) -> Any:
    def place(at: At) -> Any:
        if at.location is None:
            return None
        one = dict(zip("xy", at.location, strict=True)) if "struct" in kind else list(at.location)
        return [one] if kind.startswith("array<struct") else one

    rows = [(number, tags, place(at), struct_of(at.within)) for number, (tags, at) in enumerate(stored.messages)]
    return spark.createDataFrame(rows, COLUMNS.format(kind))


def keys_of(way: str, queries: Any, index: Path, *, plane: bool, **places: str) -> list[list[int]]:
    """The keys of each query."""
    with errors_of_workers():
        if way in ("sql", "column"):
            return [keys for _, keys in sorted(called(way, queries, index, plane=plane, **places).items())]
        found = subset_join(queries, index, strategy=way, output="lists", plane=plane, **places)  # type: ignore[arg-type]
        return [sorted(keys) for _, keys in sorted((row.id, row["keys"]) for row in found.collect())]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("struct<y: double, x: double>", {"location": "here", "within": "around"}),
        ("array<double>", {"location": "here"}),
        ("array<struct<x: double, y: double>>", {"location": "here"}),
        ("array<double>", {"within": "around"}),
    ],
    ids=str,
)
def test_answers_are_the_oracles(spark: Any, stored: Stored, way: str, kind: str, asked: dict[str, str]) -> None:
    register(spark)
    wanted = [
        stored.oracle.match(tags, **{name: value for name, value in at.options.items() if name in asked})
        for tags, at in stored.messages
    ]
    assert keys_of(way, queries_of(spark, stored, kind), stored.path, plane=True, **asked) == wanted
    assert sum(map(len, wanted)) > len(wanted)


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_interests_and_what_comes_with_keys(spark: Any, tmp_path: Path, strategy: Any) -> None:
    """Those of the index itself, which is made of a DataFrame: the best keys, some by their data, and their sets."""
    rows = [(["a"] * (n % 2), n, struct_of(area), n * 7 % 10) for n, area in enumerate([*SHAPES, None])]
    sets = spark.createDataFrame(rows, f"tags array<string>, key long, area {AREA}, bid long")
    asked = [(number, ["a", "b"], number - 2.5, place) for number, place in enumerate(PLACES)]
    queries = spark.createDataFrame(
        [(*each, dict(zip("xy", place, strict=True))) for *each, place in asked],
        "id int, tags array<string>, price double, here struct<x: double, y: double>",
    )
    _, tags, prices, places = zip(*asked, strict=True)
    table = pa.table({"tags": tags, "price": prices, "location": [*map(list, places)]})
    given: dict[str, Any] = {"strategy": strategy, "location": "here", "attributes": "price", "plane": True}

    def lists(index: Any, **more: Any) -> list[Any]:
        return [row["keys"] for row in sorted(subset_join(queries, index, output="lists", **given, **more).collect())]

    partition(sets, tmp_path / "index", plane=True, data={"bid": "int64"})
    with TagMatch.open(tmp_path / "index", plane=True, device="cpu") as tm:
        every = [sorted(keys) for keys in tm.match_many(table).to_pylist()]
        some = [sorted(keys) for keys in tm.match_many(table, only="bid > 4").to_pylist()]
        best = tm.match_best(table, limit=2, score="bid * price").to_pylist()
        held = [{each["key"]: each["tests"] for each in found} for found in tm.match_highlights(table).to_pylist()]
    of_frame = subset_join(queries, sets.drop("bid"), folder=tmp_path / "made", output="lists", **given)
    assert [sorted(row["keys"]) for row in sorted(of_frame.collect())] == every
    assert list(map(sorted, lists(tmp_path / "index", only="bid > 4"))) == some
    assert lists(tmp_path / "index", limit=2, score="bid * price") == best
    explained = lists(tmp_path / "index", explain=True)
    assert [{each["key"]: each["set"]["tests"] for each in found} for found in explained] == held
    assert "within circle(1000, 2000, 6)" in str(held)


@pytest.mark.nightly
def test_a_stream(session: SparkSession, stored: Stored, tmp_path: Path) -> None:
    queries = queries_of(session, stored, "struct<x: double, y: double>")
    queries.write.parquet(str(tmp_path / "queries"))
    stream = session.readStream.schema(queries.schema).parquet(str(tmp_path / "queries"))
    joined = subset_join(stream, stored.path, location="here", plane=True)
    written = joined.writeStream.format("memory").queryName("on_plane").trigger(availableNow=True)
    written.start().awaitTermination()
    found = sorted((row.id, row.key) for row in session.sql("SELECT id, key FROM on_plane").collect())
    wanted = [stored.oracle.match(tags, location=at.location) for tags, at in stored.messages]
    assert found == [(number, key) for number, keys in enumerate(wanted) for key in keys]


@pytest.mark.parametrize("plane", [True, False])
@pytest.mark.parametrize("what", ["areas", "positions"])
@pytest.mark.parametrize("way", WAYS)
def test_an_index_that_is_on_the_other_one(spark: Any, tmp_path: Path, *, way: str, what: str, plane: bool) -> None:
    with TagMatch(tmp_path / "index", plane=plane, device="cpu") as tm:
        tm.add_set(["a"], 1, area=Circle(10, 20, 5) if what == "areas" else None)
        tm.consolidate()
        if what == "positions":
            tm.move([1], 10, 20)
            tm.save_positions()
    register(spark)
    queries = spark.createDataFrame([(1, ["a"], [9.0, 45.0])], "id int, tags array<string>, here array<double>")
    message = (
        f"the index .*index: .*{what}.* on the {'plane' if plane else 'sphere'}: open the index with plane={plane}"
    )
    with pytest.raises(InvalidValueError, match=message):
        keys_of(way, queries, tmp_path / "index", plane=not plane, location="here")
    assert keys_of(way, queries, tmp_path / "index", plane=plane, location="here") == [
        [1] if what == "positions" else []
    ]


@pytest.mark.parametrize("way", WAYS)
def test_places_on_the_other_one(spark: Any, tmp_path: Path, way: str) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    register(spark)
    kind = "id int, tags array<string>, here {}"
    for fields, plane in (("lon: double, lat: double", True), ("x: double, y: double", False)):
        queries = spark.createDataFrame([(1, ["a"], (9.0, 45.0))], kind.format(f"struct<{fields}>"))
        with pytest.raises(
            InvalidTypeError, match=f"must have the fields {'x and y' if plane else 'lon and lat'}, not"
        ):
            keys_of(way, queries, index, plane=plane, location="here")
    queries = spark.createDataFrame([(1, ["a"], "x")], kind.format("string"))
    with pytest.raises(InvalidTypeError, match="must be a struct or an array of x, y, not string"):
        keys_of(way, queries, index, plane=True, location="here")


def test_sql_says_true_or_false(spark: Any, stored: Stored) -> None:
    register(spark)
    with pytest.raises(InvalidTypeError, match="argument plane must be a constant, true or false"), errors_of_workers():
        called("sql", queries_of(spark, stored, "array<double>"), stored.path, plane="yes")  # type: ignore[arg-type]
