"""Tables of several parts: no step of the job is left to one task, and the files are those that one process writes."""

from __future__ import annotations

import json
import mmap
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from support.index_files import MANIFEST, contents_of
from support.parts import cut_every
from support.spark_settings import settings_of

from tagmatch import TagMatch
from tagmatch.model.options import KeyType, Layout
from tagmatch.spark import partition

Rows = list[tuple[list[str], Any, str | None]]
SETTINGS = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "3"}
SETS_PER_TASK = 150


@pytest.fixture(autouse=True)
def parts_are_small(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of tables and of what else tasks take at once; and Spark puts no small partitions together."""
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda *_: None)
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.partitioner.spark.stored._VERIFIED_BYTES", mmap.PAGESIZE)
    with settings_of(spark, SETTINGS), cut_every():
        yield


def rows_of(rng: random.Random, count: int, key_type: str) -> Rows:
    """A tag in most sets, and many tags; some with constraints; the empty set."""
    tags = ["all", *(f"tag {i}" for i in range(900))]
    key = (lambda: f"key é {rng.randrange(2000)}") if key_type == "string" else (lambda: rng.randrange(2**40))
    rows = [
        ([*tags[: rng.random() < 0.9], *rng.sample(tags, rng.randint(0, 3))], key(), rng.choice([None, None, "x > 3"]))
        for _ in range(count)
    ]
    return [*rows, ([], key(), None), ([], key(), None)]


def change(index: Path, rows: Rows, **options: Any) -> None:
    """As a program on one machine does."""
    with TagMatch(index, threads=1, device="cpu", durability="none", **options) as tm:
        tags, keys, where = zip(*rows, strict=True)
        tm.add_sets(tags, keys, where=where)
        tm.consolidate()


def tasks_of_stages(spark: Any, act: Callable[[], Any]) -> dict[str, list[int]]:
    """How many tasks each stage of a job has had, by the step of which it was."""
    status = spark.sparkContext._jsc.sc().statusStore()
    before = {job.jobId() for job in listed(status.jobsList(None))}
    act()
    found = defaultdict[str, list[int]](list)
    for job in listed(status.jobsList(None)):
        if job.jobId() not in before:
            step = job.description().get().removeprefix("tagmatch: ")
            found[step] += [status.lastStageAttempt(stage).numTasks() for stage in listed(job.stageIds())]
    return found


def listed(found: Any) -> list[Any]:
    return [found.apply(i) for i in range(found.size())]


@pytest.mark.parametrize("key_type", get_args(KeyType))
@pytest.mark.parametrize("layout", get_args(Layout))
def test_no_step_is_left_to_one_task(
    spark: Any, tmp_path: Path, rng: random.Random, layout: str, key_type: str
) -> None:
    rows = rows_of(rng, 2500, key_type)
    schema = f"tags array<string>, key {'string' if key_type == 'string' else 'long'}, where string"
    options: dict[str, Any] = {"layout": layout, "max_partition_size": 9}
    change(tmp_path / "local", rows, key_type=key_type, **options)

    def add(some: Rows, **options: Any) -> Callable[[], Any]:
        frame = spark.createDataFrame(some, schema).repartition(3)
        return lambda: partition(frame, tmp_path / "spark", sets_per_task=SETS_PER_TASK, **options)

    tasks = tasks_of_stages(spark, add(rows, **options))
    assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    names = {"keys"} if key_type == "string" else set()
    assert set(tasks) == {"shards", "vocabulary", "slices", "index"} | names
    assert min(map(min, tasks.values())) > 1, tasks
    (segment,) = json.loads((tmp_path / "spark" / MANIFEST).read_text())["segments"]
    written = [name for name in segment["files"] if not name.startswith(("vocabulary", "key_names"))]
    parts = defaultdict[str, int](int)
    for name in segment["files"]:
        parts[name.partition(".")[0]] += 1
    assert set(parts) == {"vocabulary", "tagsets", "keys", "partitions"} | ({"key_names"} if names else set())
    assert min(count for table, count in parts.items() if (table, layout) != ("partitions", "rarest")) > 2, parts
    # Of each table but for those of the steps before
    assert len(written) // 2 <= tasks["index"][0] <= len(written)

    # Where all segments stay, of which rows are deleted, and where the rows are in the segments that stay
    for count in (900, 300):
        more = [*rows_of(rng, count, key_type), *rows[::40]]
        change(tmp_path / "local", more, key_type=key_type, **options)
        tasks = tasks_of_stages(spark, add(more, mode="append"))
        assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
    assert len(json.loads((tmp_path / "spark" / MANIFEST).read_text())["segments"]) == 3
    assert set(tasks) == {"shards", "stored", "vocabulary", "slices", "index"} | names
    assert min(map(min, tasks.values())) > 1, tasks
    with TagMatch.open(tmp_path / "spark", device="cpu") as tm:
        tm.check()


def test_a_table_of_one_part_is_written_by_one_task(spark: Any, tmp_path: Path, rng: random.Random) -> None:
    """Where there is little, more tasks would only take longer."""
    rows = [(tags, key) for tags, key, _ in rows_of(rng, 500, "integer")]
    frame = spark.createDataFrame(rows, "tags array<string>, key long")
    with cut_every(1 << 26):
        tasks = tasks_of_stages(spark, lambda: partition(frame, tmp_path / "index"))
    assert tasks["index"] == [1]


def test_files_of_a_job_that_is_damaged_are_replaced(spark: Any, tmp_path: Path, rng: random.Random) -> None:
    """A job that makes the same segment again puts whole files in the place of those that are there."""
    rows = [(tags, key) for tags, key, _ in rows_of(rng, 500, "integer")]
    frame = spark.createDataFrame(rows, "tags array<string>, key long")
    partition(frame, tmp_path / "index")
    shutil.copytree(tmp_path / "index", tmp_path / "before")
    for part in (tmp_path / "index").glob("segment-*/tagsets.arrow.0000*"):
        part.write_bytes(part.read_bytes()[:-1] + b"?")
    partition(frame, tmp_path / "index")
    assert contents_of(tmp_path / "index") == contents_of(tmp_path / "before")
