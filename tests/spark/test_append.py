"""Rows that Spark appends to an index: the files, and the answers, that `add_sets` and `consolidate` come to."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from oracle import Oracle
from pyspark.sql import DataFrame
from support.expiring import set_clock, times_of
from support.index_files import contents_as_first, contents_of, files_of, make_index
from support.spark_functions import settings_of

import tagmatch.partitioner.spark as job
from tagmatch import (
    Circle,
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatch,
)
from tagmatch.model.storage.repository import Repository
from tagmatch.spark import optimize, partition, subset_join

pytest_plugins = ["support.s3_bucket"]

Rows = Sequence[tuple[list[str], Any]]
SCHEMA = "tags array<string>, key long"
NAMED = "tags array<string>, key string"
TAGS = [f"t{i}" for i in range(60)] + ["é", "日本", "", " ", "a\u0000b"]


pytestmark = pytest.mark.usefixtures("small_buckets")


@pytest.fixture(autouse=True)
def nothing_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.changing.Changing._begin_merging", lambda *_: None)


def take_in(monkeypatch: pytest.MonkeyPatch, few: int, most: int) -> None:
    """Take in segments of `few` sets, and as many more that `most` are left at most."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    monkeypatch.setattr("tagmatch.partitioner.consolidation._MOST_SEGMENTS", most)


def rows_of(rng: random.Random, count: int, tags: Sequence[str] = TAGS) -> Rows:
    """Sets of few tags, which share some of them; the empty set, rows twice, large keys."""
    rows = [(rng.sample(tags, rng.randint(1, 3)), rng.randrange(40)) for _ in range(count)]
    rows += [([], rng.randrange(9)), (["t1", "t1", "t2"], 2**63 - 1), (["t2", "t1"], 3), (["t2", "t1"], 3)]
    return rng.sample(rows, len(rows))


def named(rows: Rows) -> Rows:
    """With strings as keys, whose order is not that of the numbers, nor that of UTF-16."""
    return [(tags, f"{'é🦊～ '[key % 4]}{key}") for tags, key in rows]


def frame_of(spark: Any, rows: Rows) -> DataFrame:
    frame = spark.createDataFrame(rows, NAMED if any(isinstance(key, str) for _, key in rows) else SCHEMA)
    found: DataFrame = frame.repartition(3)
    return found


def assert_right(spark: Any, index: Path | str, oracle: Oracle, rng: random.Random) -> None:
    """All answers are the oracle's, here and of both joins."""
    some = [tags for tags, _ in oracle]
    queries = [[], TAGS, ["unknown"], *(rng.sample(TAGS, rng.randint(1, 20)) for _ in range(20))]
    queries += [[*rng.choice(some), *rng.sample(TAGS, 2)] for _ in range(20)]
    expected = [oracle.match(query) for query in queries]
    with TagMatch.open(index, device="cpu") as tm:
        tm.check()
        assert dict(tm) == dict(oracle)
        assert [sorted(keys) for keys in tm.match_many(queries).to_pylist()] == expected
    frame = spark.createDataFrame(list(enumerate(queries)), "id long, tags array<string>")
    for strategy in ("ship", "shuffle"):
        joined = subset_join(frame, index, strategy=strategy, output="lists").collect()
        assert [sorted(row["keys"]) for row in sorted(joined, key=lambda row: row.id)] == expected


#: Few sets, most segments, segments then, layout, keys, and whether these expire; each pair of values once
APPENDED = [
    (0, 100, [2, 3], "rarest", "integer", True),
    (0, 100, [2, 3], "balanced", "string", False),
    (0, 2, [2, 2], "rarest", "string", False),
    (0, 2, [2, 2], "balanced", "integer", False),
    (1 << 14, 8, [1, 1], "rarest", "integer", False),
    (1 << 14, 8, [1, 1], "balanced", "string", True),
]


@pytest.mark.parametrize("appended", APPENDED, ids=str)
def test_files_are_those_of_add_sets_and_consolidate(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, appended: Any
) -> None:
    """With old segments that stay, with smaller ones taken in, and with all taken in; with deleted rows in each.

    Keys keep their times, but in sets that get them anew. What has expired goes, also from segments that stay.
    """
    few, most, segments, layout, key_type, expire = appended
    clock = set_clock(monkeypatch)
    take_in(monkeypatch, few, most)
    options = {"layout": layout, "max_partition_size": 30}
    with_keys = named if key_type == "string" else list
    local, on_spark, oracle = tmp_path / "local", tmp_path / "spark", Oracle(clock.tell)

    def change(rows: Rows, gone: Rows, expires: Any = None) -> None:
        make_index(local, rows, gone, expires=expires, **options)
        for some, stage in ((rows, partial(oracle.add_sets, expires=expires)), (gone, oracle.remove_sets)):
            if some:
                stage(*zip(*some, strict=True))
        oracle.consolidate()

    first, short = with_keys(rows_of(rng, 400)), with_keys([([f"short {i}"], i) for i in range(90 * expire)])
    times = [clock.after(5), clock.after(15), clock.after(60)] if expire else [None]
    times = [rng.choice([None] * 6 + times) for _ in first] + [clock.after(5) for _ in short]
    change(first + short, [] if expire else first[::9], times)
    shutil.copytree(local, on_spark)
    # Where there are few rows, Spark else puts partitions together
    settings = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "5"}
    for count, made_segments in zip((60, 20), segments, strict=True):
        clock.pass_by(10)
        more = [*with_keys(rows_of(rng, count, [*TAGS[:40], f"only in {count}"])), *first[:9], *first[-9:]]
        # Rows that expire, too, some of them by now, at first; the latest of a set and a key counts
        new = [rng.choice([clock.after(-1), clock.after(90)]) for _ in more[: 30 * expire * (count == 60)]]
        new = [*sorted(new), *[None] * (len(more) - len(new))]
        change(more, [], new if expire else None)
        frame = frame_of(spark, more)
        if any(new):
            timed = [(*row, at) for row, at in zip(more, new, strict=True)]
            frame = spark.createDataFrame(timed, f"{NAMED if key_type == 'string' else SCHEMA}, expires timestamp")
        with settings_of(spark, settings):
            made = partition(frame.repartition(3), on_spark, mode="append", sets_per_task=50)
        assert contents_of(on_spark) == contents_of(local)
        with TagMatch.open(on_spark, device="cpu") as tm:
            assert tm.stats()["segments"] == made_segments
            assert times_of(tm) == oracle.times()
            assert {at is None for at in oracle.times().values()} == ({True, False} if expire else {True})
            new = tm.snapshot.segments[-1]
            assert (made.sets, made.keys, made.tags) == (len(new), new.live_keys, len(new.vocabulary))
            assert made.partitions == len(new.partitions)
        # Rows are deleted in all segments
        gone = [(sorted(tags), key) for tags, keys in list(oracle)[::60] for key in keys]
        change([], gone)
        make_index(on_spark, [], gone, **options)
    assert contents_of(on_spark) == contents_of(local)
    if not expire:  # workers have their own clocks
        assert_right(spark, on_spark, oracle, rng)


@pytest.mark.parametrize("appended", APPENDED, ids=str)
def test_keys_are_removed(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, appended: Any
) -> None:
    """The files are those of `add_sets`, `remove_sets` and `consolidate`; a key that rows add and remove is removed.

    Of sets in segments that stay and that do not, of sets that keep keys, of unknown sets, in any order of rows.
    """
    few, most, _, layout, key_type, expire = appended
    clock = set_clock(monkeypatch)
    take_in(monkeypatch, few, most)
    options: dict[str, Any] = {"layout": layout, "max_partition_size": 30}
    with_keys = named if key_type == "string" else list
    local, on_spark, kind = tmp_path / "local", tmp_path / "spark", NAMED if key_type == "string" else SCHEMA
    settings = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "5"}
    known: Rows = []
    for count in (0, 200, 30, 20):
        added = with_keys(rows_of(rng, count) if count else [])
        gone = [*known[::3], *added[::4], *with_keys([(["unknown"], 1), (["t1"], 77), (["t1"], 77)])]
        known = [*known, *added]
        times = [clock.after(60)] * len(added) if expire else None
        make_index(local, added, gone, expires=times, key_type=key_type, **options)
        rows = [(*row, rng.choice([False, None]), clock.after(60)) for row in added]
        rows += [(*row, True, rng.choice([None, clock.after(90)])) for row in gone]
        frame = spark.createDataFrame(rng.sample(rows, len(rows)), f"{kind}, removed boolean, expires timestamp")
        with settings_of(spark, settings):
            frame = frame if expire else frame.drop("expires")
            partition(frame.repartition(3), on_spark, mode="append", sets_per_task=50, **options)
        assert contents_of(on_spark) == contents_of(local)
    # All sets, so that no segment is left, or an empty one
    for rest in (known[5:], known[:5]):
        make_index(local, [], rest, key_type=key_type, **options)
        removals = spark.createDataFrame([(*row, True) for row in rest], f"{kind}, gone boolean")
        partition(removals, on_spark, mode="append", removed="gone")
        assert contents_of(on_spark) == contents_of(local)
    with TagMatch.open(on_spark, device="cpu") as tm:
        assert len(tm) == 0


def test_conditions_and_data_of_keys_that_are_removed(spark: Any, tmp_path: Path) -> None:
    """A set with a condition is another one; the data of a key goes with the last of its sets."""
    local, on_spark = tmp_path / "local", tmp_path / "spark"
    with TagMatch(local, data={"name": "string"}, device="cpu", durability="none") as tm:
        for key in range(4):
            tm.put(key, ["a"], data={"name": f"name {key}"})
        tm.add_sets([["a"], ["a"]], [1, 2], where=["x > 1", "x > 1"])
        tm.consolidate()
        shutil.copytree(local, on_spark)
        tm.remove_sets([["a"], ["a"], ["a"]], [0, 1, 2], where=[None, None, "x > 1"])
        tm.consolidate()
    rows = [(["a"], 0, None, True), (["a"], 1, None, True), (["a"], 2, "x > 1", True)]
    schema = f"{SCHEMA}, where string, removed boolean"
    partition(spark.createDataFrame(rows, schema), on_spark, mode="append")
    assert contents_of(on_spark) == contents_of(local)
    with TagMatch.open(on_spark, device="cpu") as tm:
        assert [tm.get(key) is None for key in range(4)] == [True, False, False, False]
        assert sorted(tm.match(["a"], attributes={"x": 2})) == [1, 2, 3]


def test_rows_that_cannot_remove(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(["a"], 1, True, "x")], f"{SCHEMA}, removed boolean, name string")
    for options, message in (
        ({}, "column 'removed': rows that replace an index, or make one with data, cannot remove any"),
        ({"mode": "append", "data": {"name": "string"}}, "column 'removed': rows that replace an index, or make one"),
        ({"mode": "append", "removed": "name"}, "column 'removed' must be boolean, not string"),
        ({"mode": "append", "removed": "gone"}, "there is no column 'gone'"),
    ):
        with pytest.raises((InvalidValueError, InvalidTypeError), match=message):
            partition(frame, tmp_path / "index", **options)
    with pytest.raises(InvalidValueError, match="column 'remove' means nothing here; is 'removed' meant"):
        partition(spark.createDataFrame([], f"{SCHEMA}, remove boolean"), tmp_path / "index", mode="append")


def test_no_rows_change_nothing(spark: Any, tmp_path: Path, rng: random.Random) -> None:
    make_index(tmp_path / "index", rows_of(rng, 50))
    before = {file: file.stat().st_ino for file in files_of(tmp_path / "index")}
    frame = spark.createDataFrame([(None, 1), (["a"], None)], SCHEMA)
    made = partition(frame, tmp_path / "index", mode="append", skip_invalid=True)
    assert {file: file.stat().st_ino for file in files_of(tmp_path / "index")} == before
    assert (made.sets, made.keys, made.skipped) == (0, 0, {"tags is null": 1, "key is null": 1})
    with pytest.raises(InvalidValueError, match="tags is null: 1, key is null: 1"):
        partition(frame, tmp_path / "index", mode="append")


@pytest.mark.parametrize("with_keys", [list, named, lambda _: []], ids=["integers", "strings", "no rows"])
def test_rows_that_are_stored_already(spark: Any, tmp_path: Path, rng: random.Random, with_keys: Any) -> None:
    """A job that runs again, as after its driver was lost; each lays small segments out anew, or makes the index."""
    rows, oracle, on_spark = with_keys(rows_of(rng, 50)), Oracle(), tmp_path / "index"
    oracle.add_sets(*zip(*rows, strict=True) if rows else ([], []))
    oracle.consolidate()
    options: dict[str, Any] = {"layout": "balanced", "max_partition_size": 7} if with_keys is list else {}
    for number in range(2):
        made = partition(frame_of(spark, rows), on_spark, mode="append", sets_per_task=40, **options)
        make_index(tmp_path / "local", rows, **options)
        assert contents_as_first(on_spark) == contents_as_first(tmp_path / "local")
        assert number or made.sets == len({frozenset(tags) for tags, _ in rows})
    if rows:
        assert_right(spark, on_spark, oracle, rng)


def test_what_the_index_does_not_have(spark: Any, tmp_path: Path, rng: random.Random) -> None:
    index, frame = tmp_path / "index", frame_of(spark, [(["a"], 1)])
    make_index(index, rows_of(rng, 50), max_partition_size=30)
    before, named_rows = contents_of(index), frame_of(spark, [(["a"], "1")])
    told = "so rows cannot be appended with"
    for rows, options, message in (
        (frame, {"layout": "balanced"}, f"has layout='rarest', {told} layout='balanced'"),
        (frame, {"max_partition_size": 31}, f"has max_partition_size=30, {told} max_partition_size=31"),
        (named_rows, {}, 'has key_type "integer", the rows have keys of type "string"'),
    ):
        with pytest.raises(InvalidValueError, match=f"{index} {message}"):
            partition(rows, index, mode="append", **options)
    assert contents_of(index) == before
    partition(frame, index, mode="append", layout="rarest", max_partition_size=30)


def test_areas_and_staged_changes_stay(spark: Any, tmp_path: Path) -> None:
    index = tmp_path / "index"
    for key, area in ((0, None), (1, Circle(9.19, 45.46, 5_000)), (2, None)):  # so that earlier logs no longer count
        with TagMatch(index, device="cpu") as tm:
            tm.add_set(["a"], key, area=area)
            tm.consolidate()
    with TagMatch(index) as tm:
        tm.add_set(["staged"], 10)
    log = Repository.at(index).manifest()["log"]
    logs = {path.name: path.read_bytes() for path in index.glob("staged-*")}
    partition(frame_of(spark, [(["a"], 7), (["b"], 4)]), index, mode="append")
    assert Repository.at(index).manifest()["log"] == log > 1
    assert {path.name: path.read_bytes() for path in index.glob("staged-*")} == logs
    with TagMatch(index) as tm:
        tm.check()
        for location, keys in ((9.19, 45.46), [0, 1, 2, 4, 7]), ((9.19, 46.46), [0, 2, 4, 7]):
            assert sorted(tm.match(["a", "b", "staged"], location=location)) == keys
        tm.add_set(["more"], 11)
        partition(frame_of(spark, [(["a"], 8)]), index, mode="append")
        with pytest.raises(IndexChangedError):
            tm.consolidate()
        tm.reload()
        tm.consolidate()
        assert sorted(tm.match(["a", "staged", "more"])) == [0, 2, 7, 8, 10, 11]


def test_modes(spark: Any, tmp_path: Path) -> None:
    frame, other = frame_of(spark, [(["a"], 1)]), frame_of(spark, [(["b"], 2)])
    partition(frame, tmp_path / "index", mode="error")
    before = contents_of(tmp_path / "index")
    with pytest.raises(IndexExistsError, match=r"there is an index at .*/index already; choose another mode"):
        partition(other, tmp_path / "index", mode="error")
    with pytest.raises(InvalidValueError, match="mode must be one of 'overwrite', 'append', 'error', not 'ignore'"):
        partition(other, tmp_path / "index", mode="ignore")  # type: ignore[arg-type]
    assert contents_of(tmp_path / "index") == before
    for rows in (other, frame):
        partition(rows, tmp_path / "index", mode="overwrite")
    assert contents_as_first(tmp_path / "index") == contents_as_first(make_index(tmp_path / "local", [(["a"], 1)]))


def test_more_than_an_index_holds(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in(monkeypatch, 0, 100)
    make_index(tmp_path / "index", [([f"t{i}"], i) for i in range(40)])
    before = contents_of(tmp_path / "index")
    frame = frame_of(spark, [([f"u{i}"], i) for i in range(5)])
    monkeypatch.setattr(job, "MAX_ROWS", 44)
    with pytest.raises(InvalidValueError, match="an index holds at most 44 sets, not 45"):
        partition(frame, tmp_path / "index", mode="append")
    assert contents_of(tmp_path / "index") == before
    monkeypatch.setattr(job, "MAX_ROWS", 45)
    assert partition(frame, tmp_path / "index", mode="append").sets == 5


# -- other programs --------------------------------------------------------------------------------------------------


STEPS: dict[str, tuple[Any, str]] = {
    "before all": (job, "make_shards"),
    "before stored sets are read": (job, "Appending"),
    "before files are written": (job, "_make_in_one_task"),
    "before the end": (Repository, "switch"),
    "before the end, on a store": (Repository, "switch"),
    "before it is replaced": (Repository, "replace"),
    "before it is replaced, on a store": (Repository, "replace"),
}


@pytest.mark.parametrize(
    ("step", "is_there"),
    [(step, step != "before all") for step in STEPS] + [("before the end", False), ("before it is replaced", False)],
)
def test_another_program_saves_meanwhile(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, step: str, is_there: bool
) -> None:
    """What it has saved stays, and nothing else; to append or to replace once more then does."""
    on_store = step.endswith("store")
    index: Any = uri if on_store else tmp_path / "index"

    def save(rows: Rows) -> None:
        with TagMatch.open(make_index(tmp_path / "index", rows)) as tm:
            if on_store:
                tm.save(uri)

    owner, name = STEPS[step]
    call = getattr(owner, name)

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        save(other)
        return call(*arguments, **options)

    mode: Any = "overwrite" if "replaced" in step else "append"
    first: Rows = [(["a"], 1)] * is_there
    other: Rows = [(["b"], 2), (["c"], 3)]
    if is_there:
        save(first)
    monkeypatch.setattr(owner, name, late)
    frame = frame_of(spark, [(["a"], 7), (["b"], 8)])
    with pytest.raises(IndexChangedError, match="another program has saved changes to the index"):
        partition(frame, index, mode=mode)
    stored: dict[Any, Any] = {frozenset(tags): (key,) for tags, key in [*other, *first]}
    with TagMatch.open(index) as tm:
        assert dict(tm) == stored
    partition(frame, index, mode=mode)
    appended = {**stored, frozenset("a"): (1, 7) if is_there else (7,), frozenset("b"): (2, 8)}
    with TagMatch.open(index) as tm:
        assert dict(tm) == ({frozenset("a"): (7,), frozenset("b"): (8,)} if "replaced" in step else appended)
        assert tm.stats()["segments"] == 1


@pytest.mark.parametrize("key", [1, "ana"])
def test_damage_is_not_taken_over(spark: Any, tmp_path: Path, key: Any) -> None:
    index, rows = tmp_path / "index", [(["t1"], key), (["t2"], key)]
    make_index(index, rows)
    (keys,) = index.glob("segment-*/keys.arrow")
    damaged = bytearray(keys.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    keys.write_bytes(damaged)
    before = contents_of(index)
    with pytest.raises(IndexCorruptError, match=r"keys.arrow does not have the checksum"):
        partition(frame_of(spark, rows[:1]), index, mode="append")
    assert contents_of(index) == before


# -- stores ----------------------------------------------------------------------------------------------------------


def test_same_files_on_a_store(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, bucket: Any, uri: str
) -> None:
    take_in(monkeypatch, 0, 100)
    index, oracle, written = tmp_path / "index", Oracle(), dict[str, Any]()
    for count in (50, 20):
        more = rows_of(rng, count)
        make_index(index, more)
        partition(frame_of(spark, more), uri, mode="append")
        oracle.add_sets(*zip(*more, strict=True))
        oracle.consolidate()
        found = bucket[0].get_file_info(fs.FileSelector("folder/index", recursive=True))
        files = {info.path.removeprefix("folder/index/"): info.mtime for info in found if info.is_file}
        contents = {name: bucket[0].open_input_file(f"folder/index/{name}").readall() for name in files}
        assert contents == contents_of(index)
        # Segments that were there are not written again
        assert all(files[name] == mtime for name, mtime in written.items() if name.startswith("segment-"))
        written = files
    assert_right(spark, uri, oracle, rng)


@pytest.mark.parametrize("appended", [(50, "rarest", "integer", True), (1 << 20, "balanced", "string", False)], ids=str)
def test_segments_are_merged(
    spark: Any, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, appended: Any
) -> None:
    """The files are those that `consolidate(full=True)` makes, without deleted rows and keys that have expired."""
    sets_per_task, layout, key_type, expire = appended
    options: dict[str, Any] = {"layout": layout, "max_partition_size": 30}
    clock = set_clock(monkeypatch)
    take_in(monkeypatch, 0, 100)
    with_keys = named if key_type == "string" else list
    index, local = tmp_path / "spark", tmp_path / "local"
    for count in (200, 60, 20):
        rows = with_keys(rows_of(rng, count))
        times = [rng.choice([None, clock.after(5), clock.after(60)]) for _ in rows] if expire else None
        make_index(index, rows, rows[::7], expires=times, **options)
    key = rows[0][1]
    with TagMatch(index, data={"name": "string"}, device="cpu", **options) as tm:
        assert tm.stats()["segments"] == 3
        tm.put(key, ["t1", "t7"], data={"name": "x"})
        tm.consolidate()
    shutil.copytree(index, local)
    clock.pass_by(10)
    with TagMatch(local, device="cpu", **options) as tm:
        tm.consolidate(full=True)
        assert tm.get(key).data == {"name": "x"}  # type: ignore[union-attr]
    with settings_of(spark, {"spark.sql.shuffle.partitions": "5"}):
        optimize(spark, index, sets_per_task=sets_per_task)
    assert contents_of(index) == contents_of(local)
    before = {file: file.stat().st_ino for file in files_of(index)}
    optimize(spark, index, sets_per_task=sets_per_task)
    assert expire or {file: file.stat().st_ino for file in files_of(index)} == before
    with pytest.raises(IndexNotFoundError):
        optimize(spark, tmp_path / "nothing")
    with pytest.raises(InvalidValueError, match="sets_per_task must be an integer from 1 on, not 0"):
        optimize(spark, index, sets_per_task=0)
