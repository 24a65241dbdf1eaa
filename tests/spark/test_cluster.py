"""The job and the join on a standalone cluster, of which a machine dies while they run: nothing is lost, nor twice."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from support.jvm import Jvm
from support.standalone_cluster import WAIT, Cluster, cluster
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.spark import partition, subset_join

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

SETS, QUERIES = 30_000, 3_000


@pytest.fixture(scope="module")
def machines(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        jvm.stop_spark()
        yield started


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "spark.executor.memory": "512m",
        "spark.local.dir": str(tmp_path_factory.mktemp("driver")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.host": "127.0.0.1",
        # Many short tasks, so that some are done and some are not when a worker dies
        "spark.sql.shuffle.partitions": "12",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }


def driver(jvm: Jvm, machines: Cluster, settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master(machines.url).appName("cluster")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return jvm.session(builder)


def with_two_executors(machines: Cluster, spark: SparkSession) -> SparkSession:
    """Each on a worker of its own."""
    machines.start_workers(2)
    status = spark.sparkContext._jsc.sc().statusTracker()
    wait_until(lambda: len(status.getExecutorInfos()) == 3, WAIT)  # one is the driver
    return spark


@pytest.fixture(scope="module")
def on_cluster(jvm: Jvm, machines: Cluster, settings: dict[str, str]) -> Iterator[SparkSession]:
    machines.start_workers(2)
    yield driver(jvm, machines, settings)
    jvm.stop_spark()


@pytest.fixture
def spark(machines: Cluster, on_cluster: SparkSession) -> SparkSession:
    return with_two_executors(machines, on_cluster)


@pytest.fixture
def speculating(jvm: Jvm, machines: Cluster, settings: dict[str, str]) -> Iterator[SparkSession]:
    """One that starts a task once more, elsewhere, as soon as half of them are done."""
    jvm.stop_spark()
    machines.start_workers(2)
    soon = {"spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.01"}
    yield with_two_executors(machines, driver(jvm, machines, settings | soon))
    jvm.stop_spark()


def random_sets(rng: random.Random, count: int, tags: int) -> list[list[str]]:
    names = [f"t{i}" for i in range(2_000)]
    return [rng.choices(names, k=rng.randint(1, tags)) for _ in range(count)]


@pytest.fixture(scope="module")
def stored(seed: int, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[str]], Path]:
    rows, path = random_sets(random.Random(seed), SETS, 4), tmp_path_factory.mktemp("sets")
    table = pa.table({"tags": rows, "key": list(range(SETS))})
    for number in range(6):
        pq.write_table(table.slice(number * SETS // 6, SETS // 6), path / f"{number}.parquet")
    return rows, path


@pytest.fixture(scope="module")
def index(stored: tuple[list[list[str]], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the local partitioner makes of the sets."""
    path = tmp_path_factory.mktemp("local") / "index"
    with TagMatch(path, device="cpu", durability="none") as tm:
        tm.add_sets(stored[0], list(range(SETS)))
        tm.consolidate()
    return path


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def gated(rows: DataFrame, gate: Path) -> DataFrame:
    """The rows in six tasks, of which all but the first two wait until there is a file."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ticket in ("first", "second"):
            with contextlib.suppress(FileExistsError):
                gate.with_name(f"{gate.name}-{ticket}").touch(exist_ok=False)
                break
        else:
            wait_until(gate.exists, WAIT)
        yield from batches

    # Spark reads small files, and rows of its driver, in as many tasks as there are cores: two, and none would wait
    return rows.repartition(6).mapInArrow(wait, rows.schema)


def is_in_the_middle(spark: SparkSession) -> bool:
    """Whether some tasks of a stage are done, and each worker has another one."""
    tracker = spark.sparkContext.statusTracker()
    infos = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return any(info is not None and info.numActiveTasks == 2 and info.numCompletedTasks for info in infos)


def kill_in_the_middle(machines: Cluster, spark: SparkSession, running: Future[Any]) -> None:
    wait_until(lambda: is_in_the_middle(spark) or running.done(), WAIT)
    machines.kill_worker()
    assert not running.done(), running.exception() or "there was nothing left to do"


class AtStep(logging.Handler):
    """Does something when the job begins a step, which waits for that."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        super().__init__()
        self._name_of_step, self._action, self.done = name, action, False

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self._name_of_step:
            self._action()
            self.done = True


def check_made(path: Path, index: Path) -> None:
    assert (path / "MANIFEST.json").read_bytes() == (index / "MANIFEST.json").read_bytes()
    with TagMatch.open(path, device="cpu") as tm:
        tm.check()
    assert not list(path.glob("unfinished-*"))


def test_a_job_whose_rows_are_lost(
    machines: Cluster, spark: SparkSession, stored: Any, index: Path, tmp_path: Path
) -> None:
    """With a worker, shuffled rows of tasks that were done."""
    sets = gated(spark.read.parquet(str(stored[1])), tmp_path / "gate")
    job = in_thread(lambda: partition(sets, tmp_path / "index"))
    kill_in_the_middle(machines, spark, job)
    (tmp_path / "gate").touch()
    assert job.result(WAIT).keys == SETS
    check_made(tmp_path / "index", index)


def test_a_job_that_has_a_worker_less_from_some_step_on(
    machines: Cluster, spark: SparkSession, stored: Any, index: Path, tmp_path: Path
) -> None:
    """The driver learns of it when it has sent tasks there."""
    log, slices = logging.getLogger("tagmatch.partitioner"), AtStep("slices", machines.kill_worker)
    log.addHandler(slices)
    before, _ = log.level, log.setLevel(logging.INFO)
    try:
        made = partition(spark.read.parquet(str(stored[1])), tmp_path / "index", sets_per_task=3_000)
    finally:
        log.removeHandler(slices)
        log.setLevel(before)
    assert slices.done
    assert made.keys == SETS
    check_made(tmp_path / "index", index)


@pytest.mark.parametrize(("strategy", "output"), [("ship", "rows"), ("shuffle", "lists")])
def test_a_join_gives_the_same_answers(
    machines: Cluster,
    spark: SparkSession,
    index: Path,
    tmp_path: Path,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    strategy: Any,
    output: Any,
) -> None:
    monkeypatch.setattr("tagmatch.spark.join.BUCKET_SETS", 8_000)
    rows = random_sets(rng, QUERIES, 60)
    queries = spark.createDataFrame(list(enumerate(rows)), "n int, tags array<string>")
    joined = subset_join(gated(queries, tmp_path / "gate"), index, strategy=strategy, output=output)
    running = in_thread(joined.select("n", joined.columns[-1]).collect)
    kill_in_the_middle(machines, spark, running)
    (tmp_path / "gate").touch()
    found: list[list[int]] = [[] for _ in rows]
    for row in running.result(WAIT):
        found[row[0]] += row[1] if output == "lists" else [row[1]]
    with TagMatch.open(index, device="cpu") as tm:
        expected = tm.match_many(rows).to_pylist()
    assert list(map(sorted, found)) == list(map(sorted, expected))
    assert sum(map(len, expected)) > QUERIES


def slow_once(rows: DataFrame, second: Path) -> DataFrame:
    """The rows, of which the last task, when it runs first, goes on only when Spark has started it once more."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 5:
            if context.attemptNumber():
                second.touch()
            wait_until(second.exists, WAIT)
        yield from batches

    return rows.mapInArrow(wait, rows.schema)


# The last one here: its session replaces that of the others
@pytest.mark.parametrize("way", ["job", "source"])
def test_rows_of_a_task_that_runs_twice_at_once(
    speculating: SparkSession, stored: Any, index: Path, tmp_path: Path, way: str
) -> None:
    sets, path = speculating.read.parquet(str(stored[1])).repartition(6), tmp_path / "index"
    rows = slow_once(sets, tmp_path / "second")
    if way == "job":
        assert partition(rows, path).keys == SETS
    else:
        rows.write.format("tagmatch").mode("overwrite").save(str(path))
    assert (tmp_path / "second").exists()
    check_made(path, index)
