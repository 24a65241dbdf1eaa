"""Sets with areas on Spark: the job makes the files of the local partitioner, and the join answers as the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.areas import FIELDS
from support.areas_and_moves import AREAS, struct_of
from support.index_files import contents_of, make_index

from tagmatch import Circle, FilterError, InvalidTypeError, InvalidValueError, Near, NullError, TagMatch
from tagmatch.model.storage.location import location_of
from tagmatch.spark import partition, subset_join
from tagmatch.spark.buckets import PLACE, buckets_for
from tagmatch.spark.errors import errors_of_workers

STRUCT = f"struct<kind: string, {', '.join(f'{name}: double' for name in FIELDS)}>"
KEYS: dict[str, Callable[[int], Any]] = {"integer": int, "string": "é {}".format}
TAGS = [f"t{number}" for number in range(6)]
CONSTRAINTS = "array<struct<attr: string, op: string, value: double>>"
SCHEMA = f"tags array<string>, key {{}}, where string, constraints {CONSTRAINTS}, area {STRUCT}"
WHERE = [None, None, None, "price < 3", "not within circle(9, 45, 50000) or t1", "within near(60000) and price = 2"]


pytestmark = pytest.mark.usefixtures("small_buckets")


def any_row(rng: random.Random, key_of: Callable[[int], Any]) -> tuple[Any, ...]:
    where = rng.choice(WHERE)
    where = where and where.replace("t1", 'tags {"t1"}')
    constraints = rng.choice([None, None, [{"attr": "price", "op": "<", "value": rng.randrange(4) + 0.0}]])
    tags = rng.sample(TAGS, rng.choice([0, 1, 1, 2, 3]))
    return tags, key_of(rng.randrange(80)), where, constraints, struct_of(rng.choice([None, *AREAS]))


def table_of(rows: list[tuple[Any, ...]], key_type: str) -> pa.Table:
    area = pa.struct({"kind": pa.string(), **dict.fromkeys(FIELDS, pa.float64())})
    constraint = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.float64()})
    kinds = [pa.list_(pa.string()), pa.uint64() if key_type == "integer" else pa.string(), pa.string()]
    columns = [
        pa.array(column, kind)
        for column, kind in zip(zip(*rows, strict=True), [*kinds, pa.list_(constraint), area], strict=True)
    ]
    return pa.table(columns, ["tags", "key", "where", "constraints", "area"])


@pytest.mark.parametrize(("layout", "key_type"), [("rarest", "string"), ("balanced", "integer")])
def test_the_files_of_the_local_partitioner(
    spark: Any, tmp_path: Path, rng: random.Random, layout: Any, key_type: str
) -> None:
    schema = SCHEMA.format("long" if key_type == "integer" else "string")
    options = {"layout": layout, "key_type": key_type, "max_partition_size": 20}
    with TagMatch(tmp_path / "local", device="cpu", durability="none", **options) as tm:
        for mode in ("overwrite", "append"):
            rows = [any_row(rng, KEYS[key_type]) for _ in range(400)]
            tm.add_subscriptions(table_of(rows, key_type))
            tm.consolidate()
            frame = spark.createDataFrame(rows, schema).repartition(3)
            partition(frame, tmp_path / "spark", mode=mode, layout=layout, max_partition_size=20, sets_per_task=100)
            assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")


def test_what_cannot_be_used(spark: Any, tmp_path: Path) -> None:
    def frame(**given: Any) -> Any:
        row = {"tags": ["a"], "key": 1, "where": None, "constraints": None, "area": None} | given
        return spark.createDataFrame([tuple(row.values())], SCHEMA.format("long"))

    far = {"kind": "circle", "lon": 9.0, "lat": 145.0, "metres": 5.0}
    for given, kind, message in (
        ({"area": far}, InvalidValueError, "lat must be from -90 to 90, not 145"),
        ({"area": far | {"lat": None}}, NullError, "field 'lat' is null; a circle has"),
        ({"where": "within circle(9, 145, 5)"}, FilterError, "lat must be from -90 to 90, not 145"),
        ({"constraints": [{"attr": "x", "op": "?", "value": 1.0}]}, InvalidValueError, "constraints: row 0"),
    ):
        with pytest.raises(kind, match=message):
            partition(frame(**given), tmp_path / "index")
    skipped = partition(frame(where="within circle(9, 145, 5)"), tmp_path / "index", skip_invalid=True).skipped
    assert skipped == {"where has a mistake": 1}
    for schema, message in (
        ("area string", "column 'area' must be structs with kind, lon"),
        ("area struct<radius: double>", "column 'area': areas have fields kind, lon, .* not 'radius'"),
        ("constraints string", "column 'constraints' must be lists of structs"),
        ("constraints array<struct<attr: string, op: string, value: timestamp>>", "'value' has values of timestamp"),
    ):
        with pytest.raises(InvalidTypeError, match=message):
            partition(spark.createDataFrame([], f"tags array<string>, key long, {schema}"), tmp_path / "index")
    queries = spark.createDataFrame([], "tags array<string>, here array<double>, n int, location array<double>")
    none, are = "queries must have one column 'there'", "must be structs with kind, lon"
    for asked, kind, message in (
        ({"location": "there"}, InvalidValueError, f"location: {none}"),
        ({"location": "n"}, InvalidTypeError, "location: column 'n' must be a struct or an array of lon, lat, "),
        ({"within": "n"}, InvalidTypeError, f"within: column 'n' {are}"),
        ({"within": "here"}, InvalidTypeError, f"within: column 'here' {are}"),
        ({"attributes": "location", "location": "here"}, InvalidValueError, "none of them 'tags', 'location'"),
    ):
        with pytest.raises(kind, match=message):
            subset_join(queries, tmp_path / "index", **asked)


def test_sets_that_ask_for_a_place_alone_are_in_one_bucket_each(tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), area=[Circle(9, 45, number) for number in range(90)] + [Near(1)] * 10)
        tm.consolidate()
    location = location_of(tmp_path / "index", "index")
    buckets = buckets_for(location.in_place(location.manifest()["snapshot"]), 20)
    assert (buckets.names, buckets.has_others, buckets.count) == ({PLACE}, False, 5)


def test_a_task_goes_on_when_the_index_gets_the_first_areas(spark: Any, tmp_path: Path) -> None:
    """As those of a stream. A place must be one."""
    index = make_index(tmp_path / "index", [(["t1"], 1)])
    frame = spark.createDataFrame([(["t1"], [9.0, 95.0])], "tags array<string>, here array<double>")
    joined = subset_join(frame, index, strategy="ship")
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
