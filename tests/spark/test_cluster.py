"""Clusters on this machine: a worker or the driver is killed, a stream appends during a job, and tasks have GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest
from support.index_files import contents_of, make_index

from tagmatch import TagMatch

pytestmark = pytest.mark.nightly

ROWS: list[tuple[list[str], int]] = [([f"a{key % 7}", f"b{key % 5}"], key) for key in range(60)]
MORE: list[tuple[list[str], int]] = [([f"a{key % 7}"], key) for key in range(60, 80)]
STREAMED: list[tuple[list[str], int]] = [([f"b{key % 5}"], key) for key in range(80, 90)]

# The first argument names the step of a job, and the process that is killed then
PROGRAM = """
import json, logging, os, signal, sys
from pathlib import Path
from tagmatch import IndexChangedError
from tagmatch.spark import partition, register, spark_session, subset_join

killed, folder, rows, more = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
index, streamed = str(folder / "index"), folder / "streamed"
sizes = {"spark.executor.memory": "512m", "spark.driver.memory": "1g"}
settings = {"spark.sql.shuffle.partitions": "4", "spark.python.daemon.module": "pyspark.daemon"}
spark = spark_session("cluster", "local-cluster[2,1,1024]", settings | sizes)
port = spark.sparkContext.getConf().get("spark.driver.port")
print(port, flush=True)

def executors():
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and f":{port}".encode() in command:
                found.append(int(each.parent.name))
        except OSError:  # it has ended
            continue
    return found

class Kill(logging.Handler):
    def emit(self, record):
        if record.getMessage() == "vocabulary" and killed == "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        if record.getMessage() == "vocabulary" and killed == "worker":
            first, *_ = executors()
            os.kill(first, signal.SIGKILL)
            print("killed", flush=True)

log = logging.getLogger("tagmatch.partitioner")
log.setLevel(logging.INFO)
log.addHandler(handler := Kill())
schema = "tags array<string>, key long"
partition(spark.createDataFrame(rows, schema).repartition(4), index, sets_per_task=5)
log.removeHandler(handler)

register(spark)
queries = spark.createDataFrame([(n, [f"a{n}", f"b{n}"]) for n in range(5)], "n int, tags array<string>")
for strategy in ("ship", "shuffle"):
    found = subset_join(queries, index, strategy=strategy, output="lists").collect()
    print(json.dumps(sorted([row.n, sorted(row["keys"])] for row in found)), flush=True)

source = spark.readStream.schema(schema).json(str(streamed))
stream = source.writeStream.format("tagmatch").option("path", index).option("checkpointLocation", str(folder / "done"))
running = stream.start()
frame, attempts = spark.createDataFrame(more, schema), 0
while True:  # the stream may save first
    try:
        attempts += 1
        partition(frame, index, mode="append")
        break
    except IndexChangedError:
        assert attempts < 20
running.processAllAvailable()
running.stop()
spark.stop()
"""


def run(folder: Path, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program, in its own JVM, as the driver of a new cluster."""
    gateway = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    own = {name: text for name, text in os.environ.items() if name not in gateway}
    own |= environment | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    home = folder / "spark"  # where workers have their folders, next to Spark's
    if not home.exists():
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            (home / each.name).symlink_to(each)
    own["SPARK_HOME"] = str(home)
    given = [sys.executable, "-c", program, *arguments]
    return subprocess.run(given, cwd=folder, env=own, capture_output=True, text=True, check=False)


def run_with(folder: Path, killed: str) -> subprocess.CompletedProcess[str]:
    """`PROGRAM`, where a process is killed."""
    return run(folder, PROGRAM, killed, str(folder), json.dumps(ROWS), json.dumps(MORE))


# The arguments are the path of an index, and a script that names the worker's GPUs
ON_GPUS = """
import sys
from pyspark.errors import PythonException
from tagmatch.spark import match_udf, partition, spark_session, subset_join

index, script = sys.argv[1:]
gpus = {"spark.worker.resource.gpu.amount": "1", "spark.worker.resource.gpu.discoveryScript": script}
gpus |= {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "0.5"}
sizes = {"spark.executor.memory": "512m", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
spark = spark_session("gpus", "local-cluster[1,2,1024]", gpus | sizes | {"spark.tagmatch.device": "cuda"})
partition(spark.createDataFrame([(["a"], 1), (["a", "b"], 2)], "tags array<string>, key long"), index)
queries = spark.createDataFrame([(["a", "c"],), (["b", "a"],)], "tags array<string>")
for found in (subset_join(queries, index), queries.select(match_udf(index, device="cuda")("tags"))):
    try:
        found.collect()
    except PythonException as error:
        print([line for line in str(error).splitlines() if "DeviceError" in line][-1])
"""


@pytest.mark.usefixtures("free_jvm")
def test_workers_take_the_gpu_that_spark_gives_their_tasks(tmp_path: Path) -> None:
    """The simulated one has number 0, so 5 is an error; `test_gpu_spark.py` has the answers."""
    script = tmp_path / "gpus.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["5"]}\'\n')
    script.chmod(0o755)
    done = run(tmp_path, ON_GPUS, str(tmp_path / "index"), str(script), NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert len(said) == 2
    assert all("there is no CUDA device 5; there are 1, numbered from 0" in each for each in said), said


def joined() -> list[Any]:
    """The keys of each query."""
    return [[n, sorted(key for tags, key in ROWS if {*tags} <= {f"a{n}", f"b{n}"})] for n in range(5)]


@pytest.mark.usefixtures("free_jvm")
def test_two_workers(tmp_path: Path) -> None:
    """One is killed within a job; then joins answer, and a stream and a job append to one index."""
    (tmp_path / "streamed").mkdir()
    lines = "".join(json.dumps({"tags": tags, "key": key}) + "\n" for tags, key in STREAMED)
    (tmp_path / "streamed" / "rows.json").write_text(lines)
    done = run_with(tmp_path, "worker")
    assert done.returncode == 0, done.stderr[-3000:]
    _, killed, *found = done.stdout.splitlines()
    assert killed == "killed"
    assert [json.loads(line) for line in found] == [joined(), joined()]
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        stored = sorted((sorted(tags), key) for tags, keys in tm for key in keys)
        tm.check()
    assert stored == sorted((sorted(tags), key) for tags, key in [*ROWS, *MORE, *STREAMED])
    assert not [name for name in os.listdir(tmp_path / "index") if name.startswith("unfinished-")]


@pytest.mark.usefixtures("free_jvm")
def test_a_driver_is_killed(tmp_path: Path) -> None:
    """The index stays as it was, workers end, and the next job on the index succeeds."""
    (tmp_path / "streamed").mkdir()
    make_index(tmp_path / "index", [(["old"], 1)])
    before = contents_of(tmp_path / "index")
    done = run_with(tmp_path, "driver")
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    port, until = f":{done.stdout.split()[0]}".encode(), time.monotonic() + 60
    while any(
        b"CoarseGrained" in each and port in each for each in map(_command, Path("/proc").glob("[0-9]*/cmdline"))
    ):
        assert time.monotonic() < until, "executors go on without their driver"
        time.sleep(0.2)
    after = contents_of(tmp_path / "index")
    assert {name: text for name, text in after.items() if not name.startswith("unfinished-")} == before
    done = run_with(tmp_path, "nothing")
    assert done.returncode == 0, done.stderr[-3000:]
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert sorted(key for _, keys in tm for key in keys) == sorted(key for _, key in [*ROWS, *MORE])


def _command(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended
        return b""
