"""The data source `tagmatch`: what an index has as rows, rows as an index, and changes that a stream brings once."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support import tasks
from support.index_files import contents_of, make_index
from support.tasks import Session, type_of

from tagmatch import (
    Circle,
    IndexChangedError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatch,
    TagMatchError,
)
from tagmatch.model.storage.format import manifest_text
from tagmatch.model.storage.repository import Repository
from tagmatch.spark import partition
from tagmatch.spark.columns import errors_of_workers
from tagmatch.spark.source import TagMatchSource

SCHEMA = "tags array<string>, key long"
NAMED = "tags array<string>, key string"
CHANGES = f"{SCHEMA}, removed boolean"


def random_rows(rng: random.Random, count: int) -> list[tuple[list[str], int]]:
    tags = [*(f"t{i}" for i in range(30)), "é", "日本", ""]
    return [(rng.choices(tags, k=rng.randrange(6)), rng.randrange(50)) for _ in range(count)]


def as_pairs(rows: Any) -> set[tuple[frozenset[str], Any]]:
    """Each comes once."""
    found = {(frozenset(row[0]), row[1]) for row in rows}
    assert len(found) == len(rows)
    return found


def manifest(index: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((index / "MANIFEST.json").read_bytes())
    return found


def load(spark: Any, index: object) -> Any:
    return spark.read.format("tagmatch").load(str(index))


def save(frame: Any, index: object, mode: str = "overwrite", **options: Any) -> None:
    frame.write.format("tagmatch").mode(mode).options(**options).save(str(index))


# -- reading and writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["rarest", "balanced"])
@pytest.mark.parametrize("named", [False, True], ids=["integers", "strings"])
def test_what_is_written_is_what_the_job_makes(
    spark: Any, tmp_path: Path, rng: random.Random, layout: str, named: bool
) -> None:
    rows = [(tags, f"é {key}" if named else key) for tags, key in random_rows(rng, 400)]
    frame = spark.createDataFrame(rows, NAMED if named else SCHEMA).repartition(3)
    save(frame, tmp_path / "written", layout=layout, maxPartitionSize="20")
    partition(frame, tmp_path / "job", layout=layout, max_partition_size=20)
    assert manifest(tmp_path / "written") == manifest(tmp_path / "job")
    read = load(spark, tmp_path / "written")
    assert read.dtypes == [("tags", "array<string>"), ("key", "string" if named else "bigint")]
    assert as_pairs(read.collect()) == {(frozenset(tags), key) for tags, key in rows}


def test_an_index_without_sets_has_no_rows(spark: Any, tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.consolidate()
    assert spark.read.format("tagmatch").load(str(tmp_path / "index")).collect() == []
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        for change in (tm.add_set, tm.remove_set):
            change(["a"], 1)
            tm.consolidate()
    assert spark.read.format("tagmatch").load(str(tmp_path / "index")).collect() == []


def test_rows_that_are_added_and_removed(spark: Any, tmp_path: Path, rng: random.Random) -> None:
    index, expected = tmp_path / "index", set[Any]()
    for _ in range(3):
        rows = random_rows(rng, 150)
        removed = rng.sample(sorted(expected, key=repr), len(expected) // 3)
        expected = (expected - set(removed)) | {(frozenset(tags), key) for tags, key in rows}
        # Rows of one task take effect in their order
        changes = [(sorted(tags), key, True) for tags, key in removed] + [(*row, None) for row in rows]
        save(spark.createDataFrame(changes, CHANGES).coalesce(1), index, "append")
        assert as_pairs(load(spark, index).collect()) == expected
    with TagMatch.open(index) as tm:
        tm.check()


def test_a_task_reads_some_rows_of_a_segment(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this snapshot, or an earlier one."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    index, stored = str(tmp_path / "index"), list[set[Any]]()
    with TagMatch(index, device="cpu", durability="none", keep_snapshots=4) as tm:
        for number in range(4):
            rows = random_rows(rng, 100)
            if number == 3:
                tm.remove_set(*rows[0])
            tm.add_sets([tags for tags, _ in rows[number // 3 :]], [key for _, key in rows[number // 3 :]])
            tm.consolidate()
            stored.append({(tags, key) for tags, keys in tm for key in keys})
        assert tm.stats()["segments"] > 1
    read = spark.read.format("tagmatch").option("setsPerPartition", 7)
    source = TagMatchSource({"path": index, "setsPerPartition": "7"})
    assert len(source.reader(source.schema()).partitions()) > 10
    assert as_pairs(read.load(index).collect()) == stored[3]
    assert as_pairs(spark.read.format("tagmatch").option("snapshot", 2).load(index).collect()) == stored[1]
    only = spark.read.format("tagmatch").schema("key long").load(index)
    assert sorted(row.key for row in only.collect()) == sorted(key for _, key in stored[3])


def test_conditions_areas_and_keys_that_expire_go_through(spark: Any, tmp_path: Path) -> None:
    until = datetime.datetime(2126, 1, 1, tzinfo=datetime.UTC)
    schema = (
        "tags array<string>, key string, where string, expires timestamp,"
        "constraints array<struct<attr: string, op: string, value: struct<int: bigint, text: string>>>,"
        "area struct<kind: string, lon: double, lat: double, metres: double>"
    )
    rows = [
        (["flat"], "ana", 'price < 900 or tags {"new"}', until, None, None),
        (["flat"], "bo", None, None, [("city", "=", (None, "Milan")), ("price", ">", (500, None))], None),
        (None, "cy", None, None, None, ("circle", 9.19, 45.46, 5000.0)),
    ]
    save(spark.createDataFrame(rows, schema), tmp_path / "index")
    with TagMatch(key_type="string") as tm:
        tm.add_set(["flat"], "ana", where='price < 900 or tags {"new"}', expires=until)
        tm.add_set(["flat"], "bo", where='city = "Milan" and price > 500')
        tm.add_set([], "cy", area=Circle(9.19, 45.46, 5000))
        tm.consolidate()
        expected = tm.to_arrow().to_pylist()
    read = load(spark, tmp_path / "index")
    assert read.columns == ["tags", "key", "where", "expires"]
    found = read.toArrow().to_pylist()
    assert {row["key"]: row["expires"] for row in found} == {"ana": until, "bo": None, "cy": None}
    as_text = [sorted((row["key"], sorted(row["tags"]), row["where"]) for row in rows) for rows in (found, expected)]
    assert as_text[0] == as_text[1]
    # What was read can be written, and is the same
    save(read, tmp_path / "copy")
    assert manifest(tmp_path / "copy")["segments"] == manifest(tmp_path / "index")["segments"]


def test_unsigned_keys(spark: Any, tmp_path: Path) -> None:
    """Spark has them as decimals."""
    schema = "tags array<string>, key decimal(20, 0)"
    save(spark.createDataFrame([(["a"], Decimal(2**64 - 1))], schema), tmp_path / "index")
    with TagMatch.open(tmp_path / "index") as tm:
        assert tm.match(["a"]) == [2**64 - 1]
    for key in (2**64, -1):
        with pytest.raises(InvalidValueError, match="keys below 0 or above"), errors_of_workers():
            save(spark.createDataFrame([(["a"], Decimal(key))], schema), tmp_path / "index", "append")


def test_a_task_with_too_many_rows_for_the_driver(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.spark.source._MOST_BYTES", 1000)
    message = r"a task has more than 1000 bytes of rows, .* repartition them"
    rows = [([f"t{key}"], key) for key in range(1000)]
    with tasks.session(seed) as spark, pytest.raises(InvalidValueError, match=message), errors_of_workers():
        save(spark.createDataFrame(rows, SCHEMA), tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_tables_of_the_catalog_say_what_to_do_instead(tmp_path: Path) -> None:
    """Spark gives no options of such a table when it is read, and its own property when it is made."""
    index = str(make_index(tmp_path / "index", [(["a"], 1)]))
    for options in ({}, {"path": index, "owner": "me"}, {"path": index, "Owner": ""}):
        with pytest.raises(InvalidValueError, match=r"WITH \(path = '…'\), or CREATE TEMPORARY"):
            TagMatchSource(options).schema()


@pytest.mark.nightly
def test_tables_of_the_catalog_with_a_path_in_each_statement(session: Any, tmp_path: Path) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    session.sql(f"CREATE TABLE named (tags array<string>, key bigint) USING tagmatch LOCATION '{tmp_path / 'own'}'")
    try:
        session.sql(f"INSERT INTO named WITH (path = '{index}') VALUES (array('b'), 2L)")
        found = session.sql(f"SELECT * FROM named WITH (path = '{index}')").collect()
        assert as_pairs(found) == as_pairs([(["a"], 1), (["b"], 2)])
        assert [row.col_name for row in session.sql("DESCRIBE named").collect()] == ["tags", "key"]
    finally:
        session.sql("DROP TABLE named")


@pytest.mark.nightly
def test_what_was_planned_before_a_change_says_so(session: Any, tmp_path: Path) -> None:
    """Spark keeps what a plan has been told; it is never of two snapshots."""
    index = make_index(tmp_path / "index", [(["a"], 1)])
    read = load(session, index)
    assert as_pairs(read.collect()) == as_pairs([(["a"], 1)])
    save(session.createDataFrame([(["b"], 2)], SCHEMA), index, "append")
    with pytest.raises(IndexChangedError, match="load it, or create it, again"), errors_of_workers():
        read.collect()
    assert as_pairs(load(session, index).collect()) == as_pairs([(["a"], 1), (["b"], 2)])


# -- what fails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("message", ["no", "-1"], ids=["in a task", "in the end"])
def test_a_job_that_fails_leaves_the_index_as_it_was(spark: Any, tmp_path: Path, mode: str, message: str) -> None:
    """Nor are rows there twice, of tasks that were done when it runs again."""
    index, rows = tmp_path / "index", [(["b"], key) for key in range(100)]
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), index)
    before, mark = contents_of(index), str(tmp_path / "mark")

    def fail_once(batches: Any) -> Iterator[pa.RecordBatch]:
        yield from batches
        if message == "no" and not Path(mark).exists():
            Path(mark).touch()
            raise RuntimeError(message)

    bad = rows if message == "no" else [*rows, (["b"], -1)]
    with pytest.raises(Exception, match=message):
        save(spark.createDataFrame(bad, SCHEMA).mapInArrow(fail_once, SCHEMA), index, mode)
    assert contents_of(index) == before
    save(spark.createDataFrame(rows, SCHEMA).mapInArrow(fail_once, SCHEMA), index, mode)
    right = as_pairs(rows + [(["a"], 1)] * (mode == "append"))
    assert as_pairs(load(spark, index).collect()) == right


def test_what_is_saved_meanwhile_is_not_replaced(spark: Any, tmp_path: Path) -> None:
    index, mark = str(tmp_path / "index"), tmp_path / "mark"
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), index)

    def late(batches: Any) -> Iterator[pa.RecordBatch]:
        if not mark.exists():
            mark.touch()
            with TagMatch(index, device="cpu") as tm:
                tm.add_set(["c"], 3)
                tm.consolidate()
        yield from batches

    frame = spark.createDataFrame([(["b"], 2)], SCHEMA).coalesce(1).mapInArrow(late, SCHEMA)
    with pytest.raises(IndexChangedError, match="another program has saved changes to the index"), errors_of_workers():
        save(frame, index)
    assert as_pairs(load(spark, index).collect()) == as_pairs([(["a"], 1), (["c"], 3)])
    save(frame, index)
    assert as_pairs(load(spark, index).collect()) == as_pairs([(["b"], 2)])


WRONG: list[tuple[str, dict[str, str], type[TagMatchError], str]] = [
    (SCHEMA, {"layot": "rarest"}, InvalidValueError, "no option of the data source 'layot'; there are "),
    (SCHEMA, {"layout": "best"}, InvalidValueError, "'layout' is 'best': it must be one of rarest, bal"),
    (SCHEMA, {"maxPartitionSize": "0"}, InvalidValueError, "must be an integer from 1 on"),
    (SCHEMA, {"plane": "yes"}, InvalidValueError, "it must be true or false"),
    (SCHEMA, {"layout": "balanced"}, InvalidValueError, "has layout='rarest'"),
    (NAMED, {}, InvalidValueError, 'has key_type "integer"'),
    (CHANGES, {"mode": "overwrite"}, InvalidValueError, "rows that replace an index, .* cannot remove any"),
    (f"{SCHEMA}, removed int", {}, InvalidTypeError, "column 'removed' must be boolean"),
    (f"{SCHEMA}, colour int", {}, InvalidValueError, "not 'colour'"),
    (f"{SCHEMA}, wher string", {}, InvalidValueError, "is 'where' meant"),
    ("key long", {}, InvalidValueError, "each would match every message"),
    ("tags array<string>", {}, InvalidTypeError, "no column 'key'; there are 'tags'"),
    ("tags array<string>, key double", {}, InvalidTypeError, "column 'key' must be a string"),
]


@pytest.mark.parametrize(("columns", "options", "error", "message"), WRONG)
def test_mistakes_of_writers(
    spark: Any, tmp_path: Path, columns: str, options: Any, error: type[TagMatchError], message: str
) -> None:
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), tmp_path / "index")
    before = manifest(tmp_path / "index")
    with pytest.raises(error, match=message), errors_of_workers():
        save(spark.createDataFrame([], columns), tmp_path / "index", **{"mode": "append"} | options)
    assert manifest(tmp_path / "index") == before


def test_mistakes_of_readers(spark: Any, tmp_path: Path) -> None:
    index, large = str(tmp_path / "index"), make_index(tmp_path / "large", [(["a"], 2**63)])
    save(spark.createDataFrame([(["a"], 1)], SCHEMA), index)
    wrong: list[tuple[Callable[[Any], Any], type[TagMatchError], str]] = [
        (lambda read: read.load(str(tmp_path / "nowhere")), IndexNotFoundError, "no such folder"),
        (lambda read: read.schema("key string").load(index), InvalidTypeError, "no column key string; it has tags a"),
        (lambda read: read.option("layout", "rarest").load(index), InvalidValueError, "for reading 'layout'"),
        (lambda read: read.load(), InvalidValueError, "say where the index is"),
        (lambda read: read.load(str(large)), InvalidValueError, f"key {2**63} "),
    ]
    for ask, error, message in wrong:
        with pytest.raises(error, match=message), errors_of_workers():
            ask(spark.read.format("tagmatch")).collect()


# -- streams ---------------------------------------------------------------------------------------------------------


class Stream:
    """A query that takes changes to an index, an epoch at a time."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder, self._epoch, self._frame = spark, folder, -1, None
        (folder / "changes").mkdir()

    def take(self, changes: list[tuple[list[str], int, bool | None]]) -> None:
        self._epoch += 1
        self._frame = self._spark.createDataFrame(changes, CHANGES)
        if not isinstance(self._spark, Session):
            self._frame.write.mode("append").parquet(str(self._folder / "changes"))
        self._run()

    def take_again(self) -> None:
        """As Spark was stopped before it knew that the last epoch was over."""
        for log in (self._folder / "checkpoint" / "commits").glob(f"*{self._epoch}*"):
            log.unlink()
        self._run()

    def _run(self) -> None:
        index, checkpoint = str(self._folder / "index"), str(self._folder / "checkpoint")
        if isinstance(self._spark, Session):
            return self._spark.save_epoch(self._frame, self._epoch, index, checkpointLocation=checkpoint)
        stream = self._spark.readStream.schema(CHANGES).parquet(str(self._folder / "changes")).writeStream
        stream = stream.format("tagmatch").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = stream.start(index)
        with errors_of_workers():
            query.awaitTermination()
        return None


def test_a_stream_of_changes_has_each_epoch_once(spark: Any, tmp_path: Path) -> None:
    index, stream = tmp_path / "index", Stream(spark, tmp_path)

    def stored() -> set[Any]:
        return {(*tags, key) for tags, key in as_pairs(load(spark, index).collect())}

    stream.take([(["a"], 1, None), (["b"], 2, False)])
    stream.take([(["b"], 2, True), (["c"], 3, None)])
    assert stored() == {("a", 1), ("c", 3)}
    ((query, epoch),) = manifest(index)["epochs"].items()
    assert epoch == 1
    # Another program removes what the epoch added, and keeps what the index knows of the stream
    make_index(index, [], [(["c"], 3)])
    assert manifest(index)["epochs"] == {query: 1}
    stream.take_again()
    assert stored() == {("a", 1)}
    stream.take([(["d"], 4, None)])
    assert stored() == {("a", 1), ("d", 4)}
    # Of an index that knows nothing of the stream, as after a new start of the stream, rows come in any case
    known = manifest(index)
    del known["epochs"], known["checksum"]
    (index / "MANIFEST.json").write_bytes(manifest_text(known))
    stream.take([(["e"], 5, None)])
    assert stored() == {("a", 1), ("d", 4), ("e", 5)}
    # One with a mistake ends, and leaves the index
    before = manifest(index)
    with pytest.raises(InvalidValueError, match="-1"):
        stream.take([(["b"], 2, None), (["b"], -1, None)])
    assert manifest(index) == before
    with pytest.raises(InvalidValueError, match=r"^output mode 'complete' would write"):
        TagMatchSource({"path": str(index)}).streamWriter(type_of(SCHEMA), True)


def test_an_epoch_comes_after_what_another_program_saves(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Repository.append

    def once_late(*arguments: Any) -> None:
        monkeypatch.setattr(Repository, "append", append)
        make_index(tmp_path / "index", [(["b"], 2)])
        append(*arguments)

    with tasks.session(seed) as spark:
        monkeypatch.setattr(Repository, "append", once_late)
        Stream(spark, tmp_path).take([(["a"], 1, None)])
        assert as_pairs(load(spark, tmp_path / "index").collect()) == {(frozenset("a"), 1), (frozenset("b"), 2)}
