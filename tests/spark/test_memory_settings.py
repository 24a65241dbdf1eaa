"""Settings of Spark: those that bound the memory of workers are compared with what they need; partitions of joins."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import tasks as tasks_module
from support.index_files import make_index

from tagmatch.spark import match_udf, optimize, partition, session, subset_join
from tagmatch.spark.session import WORKER_NBYTES, warn_of_memory


@pytest.fixture(autouse=True)
def nothing_is_told_yet(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(session, "_told", set())
    with caplog.at_level(logging.WARNING):
        yield


def session_of(master: str = "local[2]", **settings: str) -> Any:
    given = {f"spark.executor.{name.replace('_', '.')}": text for name, text in settings.items()}
    return SimpleNamespace(conf=SimpleNamespace(getAll={"spark.master": master, **given}))


@pytest.mark.parametrize("given", ["20g", "20480", "20480m", "", "many"])
def test_enough(given: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_memory(session_of(pyspark_memory=given, cores="2"), (10 << 30) - WORKER_NBYTES)
    warn_of_memory(None, 1 << 50)
    assert not caplog.messages


@pytest.mark.parametrize("given", ["20479m", "20479", "19G"])
def test_too_little(given: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):  # it is told once
        warn_of_memory(session_of(pyspark_memory=given, cores="2"), (10 << 30) - WORKER_NBYTES)
    (message,) = caplog.messages
    assert f"is {19 << 10 if given == '19G' else 20479} MiB for 2 workers" in message
    assert "each takes 6144 MiB for sets and mapped files" in message
    assert message.endswith("leave it out, or set 20480m")


YARN, KUBERNETES = "yarn", "k8s://https://host:443"


@pytest.mark.parametrize(
    ("master", "given", "told"),
    [
        (YARN, {"memoryOverhead": "2g"}, None),
        (YARN, {"memoryOverhead": "2047m"}, "is 2047 MiB for 2 workers of an executor, which .*: set 2048m"),
        (YARN, {"memory": "4g"}, "is 409 MiB by itself for 2 workers .*: set 2048m"),
        (YARN, {}, "is 384 MiB by itself"),
        (YARN, {"memory": "20g"}, None),
        (KUBERNETES, {"memory": "5g"}, None),
        (KUBERNETES, {"memory": "4g"}, "is 1638 MiB by itself"),
        (YARN, {"memory": "4g", "memoryOverheadFactor": "0.5"}, None),
        (YARN, {"pyspark_memory": "20g"}, None),  # which the container gets besides
        ("spark://host:7077", {"memoryOverhead": "1m"}, None),
    ],
)
def test_containers(caplog: pytest.LogCaptureFixture, master: str, given: dict[str, str], told: str | None) -> None:
    warn_of_memory(session_of(master, cores="2", **given), 0)
    assert len(caplog.messages) == (told is not None)
    assert told is None or re.search(f"spark.executor.memoryOverhead {told}", caplog.text)


def test_workers_of_the_daemon_keep_memory(caplog: pytest.LogCaptureFixture) -> None:
    spark = session_of(YARN, memoryOverhead="2g")
    warn_of_memory(spark, 0)
    assert not caplog.messages
    spark.conf.getAll["spark.python.daemon.module"] = "tagmatch.spark.daemon"
    warn_of_memory(spark, 0)
    assert "is 2048 MiB for 1 workers of an executor, which are not part of the JVM: set 3072m" in caplog.text


@pytest.mark.parametrize("call", ["partition", "append", "optimize", "ship", "shuffle", "match_udf"])
def test_jobs_and_joins_warn(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    index = make_index(tmp_path / "index", [(["a"], 1)])
    with tasks_module.session(seed) as spark:
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: spark)
        spark.conf.set("spark.executor.pyspark.memory", "1g")
        sets = spark.createDataFrame([(["a"], 1)], "tags array<string>, key long")
        calls: dict[str, Any] = {
            "partition": lambda: partition(sets, index),
            "append": lambda: partition(sets, index, mode="append"),
            "optimize": lambda: optimize(spark, index),
            "match_udf": lambda: match_udf(index),
        }
        join = lambda: subset_join(sets.select("tags"), index, strategy=call)  # noqa: E731
        calls.get(call, join)()
    (message,) = caplog.messages
    of_sets, needed = {"ship": (0, 4097), "match_udf": (0, 4097), "shuffle": (143, 4240)}.get(call, (500, 4596))
    assert f"each takes {of_sets} MiB for sets" in message
    assert message.endswith(f"set {needed}m")


@pytest.mark.parametrize(("given", "tasks"), [("7", 7), (None, 2), ("auto", 2)])
def test_a_join_has_as_many_tasks_as_the_user_has_set(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, given: str | None, tasks: int
) -> None:
    """Else as run at once: Spark's own 200 partitions are for tables of any size."""
    counted, repartition = list[int](), tasks_module.Frame.repartition

    def seen(frame: Any, count: int, *columns: str) -> Any:
        counted.append(count)
        return repartition(frame, count, *columns)

    monkeypatch.setattr(tasks_module.Frame, "repartition", seen)
    index = make_index(tmp_path / "index", [([f"t{i}"], i) for i in range(80)])
    with tasks_module.session(seed) as spark:
        queries = spark.createDataFrame([([f"t{i}"],) for i in range(80)], "tags array<string>")
        spark.conf.unset("spark.sql.shuffle.partitions")
        if given is not None:
            spark.conf.set("spark.sql.shuffle.partitions", given)
        joined = subset_join(queries, index, strategy="shuffle")
        assert sorted(row.key for row in joined.collect()) == [*range(80)]
    assert counted == [tasks]
