"""How a job is divided: its steps, and tables of several parts, without a step for one task alone."""

from __future__ import annotations

import json
import mmap
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from support.index_files import MANIFEST, contents_of, make_index
from support.segments import cut_every, segments_stay
from support.spark_functions import settings_of
from support.tasks import Session, session

from tagmatch import TagMatch
from tagmatch.model.options import KeyType, Layout
from tagmatch.partitioner.spark.batches import Scratch
from tagmatch.spark import partition

Rows = list[tuple[list[str], Any, str | None]]


@pytest.fixture
def parts_are_small(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of tables and of what else tasks take at once; and Spark puts no small partitions together."""
    monkeypatch.setattr("tagmatch.partitioner.spark.shards._VERIFIED_BYTES", mmap.PAGESIZE)
    settings = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "3"}
    with segments_stay(), settings_of(spark, settings), cut_every():
        yield


def rows_of(rng: random.Random, count: int, key_type: str) -> Rows:
    """A tag in most sets, and many tags; some with constraints; the empty set."""
    tags = ["all", *(f"tag {i}" for i in range(900))]

    def row(some: list[str], where: str | None = None) -> Any:
        return some, f"key é {rng.randrange(2000)}" if key_type == "string" else rng.randrange(2**40), where

    rows = [
        row([*tags[: rng.random() < 0.9], *rng.sample(tags, rng.randint(0, 3))], rng.choice([None, None, "x > 3"]))
        for _ in range(count)
    ]
    return [*rows, row([]), row([])]


def tasks_of_stages(spark: Any, act: Callable[[], Any]) -> dict[str, list[int]]:
    """How many tasks each stage of a job has had, by its name on Spark's pages, which says the step."""
    found = defaultdict[str, list[int]](list)
    if isinstance(spark, Session):
        spark.stages.clear()
        act()
        for step, tasks in spark.stages:
            found[step].append(tasks)
        return found
    status = spark.sparkContext._jsc.sc().statusStore()
    before = {job.jobId() for job in listed(status.jobsList(None))}
    act()
    for job in listed(status.jobsList(None)):
        if job.jobId() not in before and job.description().isDefined():
            stages = listed(job.stageIds())
            found[job.description().get()] += [status.lastStageAttempt(stage).numTasks() for stage in stages]
    return found


def listed(found: Any) -> list[Any]:
    return [found.apply(i) for i in range(found.size())]


@pytest.mark.usefixtures("parts_are_small")
@pytest.mark.parametrize("key_type", get_args(KeyType))
@pytest.mark.parametrize("layout", get_args(Layout))
def test_no_step_is_left_to_one_task(
    spark: Any, tmp_path: Path, rng: random.Random, layout: str, key_type: str
) -> None:
    """Also if all segments stay, with deleted rows, and if the rows are in the segments that stay."""
    schema = f"tags array<string>, key {'string' if key_type == 'string' else 'long'}, where string"
    options: dict[str, Any] = {"layout": layout, "max_partition_size": 9}
    of_keys, index, rows = ["keys"] * (key_type == "string"), tmp_path / "spark", list[Any]()
    for count, mode in ((2500, "overwrite"), (900, "append"), (300, "append")):
        more = [*rows_of(rng, count, key_type), *rows[::40]]
        rows = rows or more
        make_index(tmp_path / "local", more, **options)
        frame, given = spark.createDataFrame(more, schema).repartition(3), options if mode == "overwrite" else {}
        tasks = tasks_of_stages(spark, partial(partition, frame, index, mode=mode, sets_per_task=150, **given))
        assert contents_of(index) == contents_of(tmp_path / "local")
        steps = [*["stored"] * (mode == "append"), "shards", "vocabulary", "slices", "index", *of_keys]
        assert set(tasks) == {f"tagmatch: {step}" for step in steps}
        assert count == 900 or min(map(min, tasks.values())) > 1, tasks  # of one segment that is there, one task
        segments = json.loads((index / MANIFEST).read_text())["segments"]
        if mode == "overwrite":
            files = segments[0]["files"]
            parts = Counter(name.partition(".")[0] for name in files)
            # Of each table except those of the steps before
            written = sum(parts[table] for table in parts if table not in ("vocabulary", "key_names"))
            assert written // 2 <= tasks["tagmatch: index"][0] <= written
            assert set(parts) == {"vocabulary", "tagsets", "keys", "partitions", *["key_names"] * len(of_keys)}
            assert min(count for table, count in parts.items() if (table, layout) != ("partitions", "rarest")) > 2
    assert len(segments) == 3
    with TagMatch.open(index, device="cpu") as tm:
        tm.check()


@pytest.mark.usefixtures("parts_are_small")
def test_files_of_a_job_that_is_damaged_are_replaced(spark: Any, tmp_path: Path, rng: random.Random) -> None:
    """A job that makes the same segment again puts whole files in place of those that are there."""
    rows = [(tags, key) for tags, key, _ in rows_of(rng, 500, "integer")]
    frame = spark.createDataFrame(rows, "tags array<string>, key long")
    partition(frame, tmp_path / "index")
    shutil.copytree(tmp_path / "index", tmp_path / "before")
    for part in (tmp_path / "index").glob("segment-*/tagsets.arrow.0000*"):
        part.write_bytes(part.read_bytes()[:-1] + b"?")
    with cut_every(1 << 26):  # a table of one part is written by one task: more would only take longer
        tasks = tasks_of_stages(spark, lambda: partition(frame, tmp_path / "one"))
    assert set(tasks) == {"tagmatch: shards", "tagmatch: index"}  # with few keys
    assert set(tasks["tagmatch: index"]) == {1}
    partition(frame, tmp_path / "index")
    assert contents_of(tmp_path / "index") == contents_of(tmp_path / "before")


def test_what_shards_find_is_read_once(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the task of each chunk of a segment: there may be as many of these as of shards."""
    monkeypatch.setattr("tagmatch.changing.Changing._begin_merging", lambda *_: None)
    read, scratch_read = Counter[tuple[str, int]](), Scratch.read

    def counted(self: Scratch, name: str, number: int, column: str, *, keep: bool = False) -> Any:
        read[name, number] += 1
        return scratch_read(self, name, number, column, keep=keep)

    rows = [([f"t{i}"], i) for i in range(200)]
    more = [(tags, key + 1000) for tags, key in rows[::3]]
    index = make_index(tmp_path / "spark", rows)
    with session(seed) as spark:
        monkeypatch.setattr(Scratch, "read", counted)
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        spark.loses_tasks = lambda: False  # which would read anew
        frame = spark.createDataFrame(more, "tags array<string>, key long")
        partition(frame, index, mode="append", sets_per_task=20)  # ten chunks
    found = {number: times for (name, number), times in read.items() if name == "stored-found"}
    assert len(found) > 1
    assert set(found.values()) == {1}
    assert contents_of(index) == contents_of(make_index(make_index(tmp_path / "local", rows), more))


@pytest.mark.parametrize(("kind", "keys", "is_one"), [("long", 5, True), ("long", 40, False), ("string", 5, False)])
def test_sets_with_several_keys_are_for_one_task(
    spark: Any, tmp_path: Path, kind: str, keys: int, is_one: bool
) -> None:
    """A key that is a number takes little room next to a set; a string may take as much."""
    rows = [([f"t{i}"], f"{i}-{j}" if kind == "string" else keys * i + j) for i in range(64) for j in range(keys)]
    frame = spark.createDataFrame(rows, f"tags array<string>, key {kind}")
    tasks = tasks_of_stages(spark, lambda: partition(frame, tmp_path / "spark", sets_per_task=100))
    assert ("tagmatch: slices" not in tasks) == is_one
    assert contents_of(tmp_path / "spark") == contents_of(make_index(tmp_path / "local", rows))


@pytest.mark.parametrize(("kind", "key", "second"), [("long", int, []), ("string", str, ["keys"])])
def test_steps_are_told(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, key: Any, second: list[str]
) -> None:
    """In the log, with a line for each pass, and on Spark's pages, where other jobs keep the names that they have."""
    rows = [([f"t{i}", f"u{i % 7}"], key(i)) for i in range(64)]
    schema, expected = f"tags array<string>, key {kind}", ["shards", *second, "vocabulary", "slices", "index"]
    spark.conf.set("spark.job.description", "tagmatch: shards")  # as from a job in another thread
    partition(spark.createDataFrame([], schema), tmp_path / "empty")
    assert spark.conf.get("spark.job.description", None) is None
    frame = spark.createDataFrame(rows, schema)

    def act() -> None:
        spark.conf.set("spark.job.description", "mine")
        with caplog.at_level("INFO", "tagmatch.partitioner"):
            partition(frame, tmp_path / "index", layout="balanced", sets_per_task=20)
        spark.range(0, 1, 1, 1).collect()
        spark.conf.unset("spark.job.description")

    assert {"mine", *(f"tagmatch: {step}" for step in expected)} == set(tasks_of_stages(spark, act))
    steps = [record.getMessage() for record in caplog.records]
    assert [step for step in steps if not step.startswith("pass ")] == expected
    passes = [step for step in steps if step.startswith("pass ")]
    assert passes[0].startswith("pass 1: ")
    assert passes[-1].endswith(" nodes, 0 still to be split")
