"""Drivers in their own processes: killed ones, those of Connect, of the command and of documents."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import FORMATS
from support.documents import NEEDS_JAVA
from support.index_files import MANIFEST, contents_as_first, contents_of, make_index, manifest_as_first
from support.jvm import Jvm

from tagmatch import IndexNotFoundError, TagMatch
from tagmatch.spark import SparkUnavailableError, partition
from tagmatch.spark.session import check_java

pytest_plugins = ["support.s3_bucket"]

SCHEMA = "tags array<string>, key long"
ROWS: list[tuple[list[str], Any]] = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4)]


KILLED = """
import logging, os, signal, sys
from tagmatch.spark import partition, spark_session

class Kill(logging.Handler):
    def emit(self, record):
        if record.getMessage() == sys.argv[3]:
            self.spark.range(1).count()  # Spark works
            os.kill(os.getpid(), signal.SIGKILL)

logging.getLogger("tagmatch.partitioner").setLevel(logging.INFO)
logging.getLogger("tagmatch.partitioner").addHandler(handler := Kill())
spark = handler.spark = spark_session("killed", "local[2]")
partition(spark.read.parquet(sys.argv[1]), sys.argv[2], mode=sys.argv[4], sets_per_task=1)  # else there are few steps
"""


def run_killed_job(sets: Path, index: Path | str, step: str, jvm: Jvm, mode: str = "overwrite") -> None:
    """Partition sets in a separate process, whose driver is killed at the beginning of a step."""
    command = [sys.executable, "-c", KILLED, str(sets), str(index), step, mode]
    run = subprocess.run(command, env=jvm.environment, capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    jvm.stop_spark()


def finished(index: Path) -> dict[str, bytes]:
    return {name: found for name, found in contents_of(index).items() if not name.startswith("unfinished-")}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "steps"),
    [("overwrite", ["shards", "keys", "vocabulary", "slices", "index"]), ("append", ["stored", "index"])],
)
def test_a_job_that_is_killed_leaves_the_index_as_it_was(
    tmp_path: Path, free_jvm: Jvm, builder: Any, mode: Any, steps: list[str]
) -> None:
    """At the beginning of a step; the first of them without an index yet."""
    index, sets = tmp_path / "index", tmp_path / "sets.parquet"
    pq.write_table(pa.table({"tags": [["old"], ["new"]], "key": ["bo", "ana"]}), sets)
    for step in steps:
        if existed := step != "shards":
            make_index(index, [(["old"], "cy")])
            before = finished(index)
        run_killed_job(sets, index, step, free_jvm, mode)
        assert any(name.startswith("unfinished-job-") for name in os.listdir(index))
        if existed:
            assert finished(index) == before
        else:
            with pytest.raises(IndexNotFoundError, match="its build did not finish"):
                TagMatch.open(index)
    spark = free_jvm.session(builder)
    stored = [(["old"], "bo"), (["new"], "ana")] + [(["old"], "cy")] * (mode == "append")
    for _ in range(2):
        partition(spark.read.parquet(str(sets)), index, mode=mode)
        assert contents_as_first(index) == contents_as_first(make_index(tmp_path / "local", stored))
        assert sorted(name.partition("-")[0] for name in os.listdir(index)) == ["LOCK", MANIFEST, "segment"]


CONNECTED = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import collect_list
from tagmatch.spark import match_udf, partition, register, subset_join

place, *given = sys.argv[1:]
is_folder = "://" not in place  # on a store the indexes are there
builder = SparkSession.builder.remote("local[2]")
of_server = [pair.split("=", 1) for pair in given if pair.startswith("spark.hadoop.")]
for name, value in of_server:
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert "connect" in type(spark).__module__
for pair in given if not of_server else []:
    spark.conf.set(*pair.split("=", 1))
rows = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4)]
sets = spark.createDataFrame(rows, "tags array<string>, key long")
named = sets.withColumn("key", sets.key.cast("string"))
queries = spark.createDataFrame([(1, ["b", "a"]), (2, ["x"])], "id long, tags array<string>")
queries.createOrReplaceTempView("queries")
register(spark)
for frame, each in ((sets, "rarest"), (named, "balanced")):
    index = f"{place}/{each}"
    if is_folder:
        partition(frame.limit(2), index, layout=each, sets_per_task=1)
        partition(frame, index, mode="append", sets_per_task=1)
    sql = f"SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '{index}') m"
    for found in (
        subset_join(queries, index, strategy="ship", output="lists"),
        subset_join(queries, index, strategy="shuffle", output="lists"),
        spark.sql(sql).groupBy("id").agg(collect_list("key").alias("keys")),
        queries.select("id", match_udf(index)("tags").alias("keys")),
    ):
        print("FOUND", sorted((row.id, sorted(row["keys"])) for row in found.collect()))
source = f"{place}/{'source' if is_folder else 'rarest'}"
for mode, frame in (("overwrite", sets.limit(2)), ("append", sets)) if is_folder else ():
    frame.write.format("tagmatch").mode(mode).save(source)
read = spark.read.format("tagmatch").load(source)
assert sorted((sorted(row.tags), row.key) for row in read.collect()) == sorted(rows)
"""


def make_public(port: int, bucket: str) -> None:
    """Let all read a bucket's objects, with no key."""
    keys = {"aws_access_key_id": "someone", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **keys)
    for each in client.list_objects_v2(Bucket=bucket).get("Contents", ()):
        client.put_object_acl(Bucket=bucket, Key=each["Key"], ACL="public-read")


@pytest.mark.nightly
@pytest.mark.parametrize("prefix", [None, "spark.hadoop.", ""], ids=["folder", "of the server", "of the session"])
def test_spark_connect(tmp_path: Path, free_jvm: Jvm, port: int, uri: str, prefix: str | None) -> None:
    """Of a store it tells no keys; all else holds, here that no key is needed to read."""
    settings = {
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
        "endpoint": f"http://127.0.0.1:{port}",
        "path.style.access": "true",
    }
    place = str(tmp_path) if prefix is None else f"s3a://{uri.partition('@')[2].partition('/index')[0]}"
    given = [] if prefix is None else [f"{prefix}fs.s3a.{name}={value}" for name, value in settings.items()]
    for layout, key in (("rarest", int), ("balanced", str)):
        rows = [(tags, key(each)) for tags, each in ROWS]
        with TagMatch.open(make_index(tmp_path / f"local-{layout}", rows, layout=layout)) as tm:
            tm.save(uri.replace("/index?", f"/{layout}?"))
    make_public(port, uri.partition("@")[2].partition("/")[0])
    environment = free_jvm.environment | {"SPARK_TESTING": "1"}  # which means any free port
    command = [sys.executable, "-c", CONNECTED, place, *given]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = [line.removeprefix("FOUND ") for line in run.stdout.splitlines() if line.startswith("FOUND")]
    assert found == ["[(1, [1, 2, 4]), (2, [4])]"] * 4 + ["[(1, ['1', '2', '4']), (2, ['4'])]"] * 4
    for each in ("rarest", "balanced") if prefix is None else ():
        assert contents_as_first(tmp_path / each) == contents_as_first(tmp_path / f"local-{each}")


@pytest.mark.nightly
@pytest.mark.parametrize("keys", [(1, 2), ("ana", "bo")], ids=["integers", "strings"])
def test_command(tmp_path: Path, free_jvm: Jvm, keys: tuple[Any, Any]) -> None:
    sets, index = tmp_path / "sets.jsonl", tmp_path / "index"
    rows = [{"tags": ["a", "b"], "key": keys[0]}, {"tags": None, "key": keys[1]}]
    sets.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-c",
        "from tagmatch.cli.app import main_of_partition; main_of_partition()",
        str(sets),
        str(index),
    ]
    command += ["--master", "local[2]", "--layout", "balanced"]

    def run(*more: str) -> tuple[int, str]:
        done = subprocess.run([*command, *more], env=free_jvm.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.splitlines()[-1]

    code, told = run()
    assert code == 1
    assert told.startswith("tagmatch: there are rows that cannot be stored: tags is null: 1; filter them")
    code, told = run("--skip-invalid")
    assert (code, told) == (0, "tagmatch-partition: skipped rows: tags is null: 1")
    first = make_index(tmp_path / "local", [(["a", "b"], keys[0])], layout="balanced")
    assert manifest_as_first(index) == manifest_as_first(first)
    assert run()[1].endswith("already; give --overwrite to replace it, or --append to add to it")
    assert run("--append", "--overwrite")[0] == 2
    sets.write_text(json.dumps({"tags": ["c"], "key": keys[1], "wher": "x = 1"}) + "\n")
    assert run("--append", "--ignore-columns", "*")[0] == 0
    more = [(["a", "b"], keys[0]), (["c"], keys[1])]
    assert manifest_as_first(index) == manifest_as_first(make_index(tmp_path / "more", more, layout="balanced"))
    command.extend(["--max-partition-size", "5"])
    assert "so rows cannot be appended with max_partition_size=5" in run("--append", "--ignore-columns", "wher")[1]
    command[3] = f"{sets}.gz"
    Path(command[3]).write_bytes(FORMATS["jsonl.gz"]([{"tags": ["c"], "key": keys[1], "email": "bo@a.com"}]))
    data = ["--data", "email=string"]
    assert run("--overwrite", *data)[0] == 0
    with TagMatch.open(index) as tm:
        assert tm.get(keys[1]).data == {"email": "bo@a.com"}
    assert run("--append", *data)[1].startswith("tagmatch: data goes with a new index, and there is one at")


@pytest.mark.nightly
def test_examples_of_the_guide(tmp_path: Path, free_jvm: Jvm) -> None:
    """They run as printed, and give what they say; the tutorial: test_newcomer.py."""
    runner = Path(__file__).parents[1] / "support" / "documents.py"
    # As without settings; commands among the examples have their own JVM
    daemon = {"spark.python.daemon.module": "pyspark.daemon"}
    submit = "".join(f"--conf {name}={value} " for name, value in daemon.items()) + "pyspark-shell"
    environment = free_jvm.environment | {"PYSPARK_SUBMIT_ARGS": submit}
    command = [sys.executable, str(runner), "docs/spark.md", NEEDS_JAVA]
    with free_jvm.as_started_in(tmp_path, daemon):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        free_jvm.stop_spark()
    assert done.returncode == 0, done.stderr
    with TagMatch.open(tmp_path / "interests.index") as tm:
        assert sorted(tm.match(["cat", "fr"])) == [7, 8]


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tagmatch.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkUnavailableError, match=r"pyspark.*; pip install 'tagmatch\[spark\]'"):
        importlib.import_module("tagmatch.spark")


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="which has no bin/java; install Java 17 or newer"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="there is no java on the PATH; install Java 17 or newer"):
        check_java()
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(SparkUnavailableError, match=r'Spark needs Java 17, but .*java is openjdk version "1.8.0_402"'):
        check_java()


LACKING = """
import sys
from tagmatch import SparkUnavailableError
from tagmatch.spark import match_udf, partition, spark_session, subset_join

spark = spark_session("lacking", "local[1]")
sets = spark.createDataFrame([(["a"], 1)], "tags array<string>, key long")
for call in (partition, subset_join):
    try:
        call(sets, sys.argv[1])
    except SparkUnavailableError as error:
        print(error)
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("free_jvm")
def test_workers_whose_python_lacks_what_they_need(tmp_path: Path) -> None:
    """The call says so, before a task fails."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    make_index(tmp_path / "index", ROWS)
    own = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    own |= {"PYSPARK_PYTHON": str(tmp_path / "bare/bin/python"), "PYTHONPATH": str(Path(__file__).parents[2])}
    own |= {"PYSPARK_SUBMIT_ARGS": "--conf spark.python.daemon.module=pyspark.daemon pyspark-shell"}
    command = [sys.executable, "-c", LACKING, str(tmp_path / "index")]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "Spark's workers" in line]
    assert len(told) == 2
    assert all("lacks pyarrow, pandas; set PYSPARK_PYTHON, or spark.pyspark.python" in line for line in told)
