"""An S3 that asks for keys, which only Spark's settings have: no variable, no file and no URI does."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow.fs
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.jvm import Jvm

from tagmatch import InvalidValueError, TagMatch, TagMatchError
from tagmatch.spark import match_udf, partition, register, subset_join

pytest_plugins = ["support.s3_bucket"]
pytestmark = pytest.mark.nightly

SCHEMA = "tags array<string>, key long"
ROWS = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4)]
QUERIES = [(1, ["b", "a"]), (2, ["x"])]
ANSWERS = [(1, [1, 2, 4]), (2, [4])]
SECRETS = ("access.key", "secret.key")
# In which Arrow would look for keys
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No keys of the machine's."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def keys(port: int, bucket: Any) -> Iterator[dict[str, str]]:
    """Settings of Spark with the keys of a user; without such keys nobody is let in."""
    url = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "iam", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    name = bucket[1]
    client.create_user(UserName=name)
    policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    client.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=policy)
    made = client.create_access_key(UserName=name)["AccessKey"]

    def let_in_without_keys(requests: str) -> None:
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{url}/moto-api/reset-auth", requests.encode(), headers, method="POST")
        urllib.request.urlopen(request).close()

    let_in_without_keys("0")
    with pytest.raises(OSError, match=r"ACCESS_DENIED|INVALID_ACCESS_KEY"):
        bucket[0].get_file_info(pyarrow.fs.FileSelector(""))
    yield {
        "spark.hadoop.fs.s3a.access.key": made["AccessKeyId"],
        "spark.hadoop.fs.s3a.secret.key": made["SecretAccessKey"],
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    let_in_without_keys("inf")


@pytest.fixture
def started(free_jvm: Jvm, tmp_path: Path) -> Callable[[dict[str, str]], SparkSession]:
    """Start a session with settings."""

    def start(settings: dict[str, str]) -> SparkSession:
        builder = SparkSession.builder.master("local[2]").appName("credentials")
        log = {"enabled": "true", "compress": "false", "rolling.enabled": "false", "dir": str(tmp_path)}
        for name, value in {**settings, **{f"spark.eventLog.{name}": value for name, value in log.items()}}.items():
            builder = builder.config(name, value)
        return free_jvm.session(builder)

    return start


def lists(rows: Any) -> list[tuple[int, list[int]]]:
    return sorted((row.id, sorted(row["keys"])) for row in rows)


def secrets_of(settings: dict[str, str]) -> list[str]:
    return [settings[f"spark.hadoop.fs.s3a.{name}"] for name in SECRETS]


def contents(name: str, keys: dict[str, str]) -> bytes:
    """Of all files of a bucket."""
    access, secret = secrets_of(keys)
    host = keys["spark.hadoop.fs.s3a.endpoint"].removeprefix("http://")
    files = pyarrow.fs.S3FileSystem(access_key=access, secret_key=secret, endpoint_override=host, scheme="http")
    found = files.get_file_info(pyarrow.fs.FileSelector(name, recursive=True))
    return b"".join(files.open_input_file(info.path).readall() for info in found if info.is_file)


def test_keys_that_only_spark_has(
    started: Any, free_jvm: Jvm, bucket: Any, keys: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark = started(keys)
    variables = {row.name for row in spark.range(2).mapInArrow(names_of_variables, "name string").collect()}
    assert "PATH" in variables
    assert variables.isdisjoint(VARIABLES)
    uri = f"s3a://{bucket[1]}/folder/index"
    frame = spark.createDataFrame(ROWS, SCHEMA)
    partition(frame.limit(2), uri)
    partition(frame, uri, mode="append")
    queries = spark.createDataFrame(QUERIES, "id long, tags array<string>")
    plans = []
    for strategy in ("ship", "shuffle"):
        joined = subset_join(queries, uri, strategy=strategy, output="lists")
        assert lists(joined.collect()) == ANSWERS
        plans.append(joined)
    plans.append(queries.select("id", match_udf(uri)("tags").alias("keys")))
    assert lists(plans[-1].collect()) == ANSWERS
    register(spark)
    spark.createDataFrame([(["d"], 5)], SCHEMA).write.format("tagmatch").mode("append").save(uri)
    plans.append(spark.read.format("tagmatch").load(uri))
    assert sorted(row.key for row in plans[-1].collect()) == [1, 2, 3, 4, 5]
    queries.createOrReplaceTempView("queries")
    plans.append(spark.sql(f"SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '{uri}') m"))
    assert sorted((row.id, row.key) for row in plans[-1].collect()) == [(1, 1), (1, 2), (1, 4), (2, 4)]
    for plan in plans:
        plan.explain(extended=True)
    shown = "".join(capfd.readouterr())
    assert "== Physical Plan ==" in shown
    free_jvm.stop_spark()
    (log,) = tmp_path.glob("local-*")  # of all jobs with their plans, as Spark keeps it for its pages
    log_text = log.read_text()
    assert "tagmatch_match" in log_text
    stored = contents(bucket[1], keys)
    assert b'"snapshot"' in stored
    for secret in secrets_of(keys):
        assert secret not in shown
        assert secret not in log_text
        assert secret.encode() not in stored


def names_of_variables(batches: Any) -> Iterator[pyarrow.RecordBatch]:
    for _ in batches:
        yield pyarrow.record_batch({"name": list(os.environ)})


@pytest.mark.parametrize("wrong", SECRETS)
def test_wrong_keys(started: Any, bucket: Any, keys: dict[str, str], wrong: str) -> None:
    wrong_keys = keys | {f"spark.hadoop.fs.s3a.{wrong}": "not-this-1234"}
    spark, uri = started(wrong_keys), f"s3a://{bucket[1]}/folder/index"
    frame = spark.createDataFrame(ROWS, SCHEMA)
    register(spark)
    for call in (
        lambda: partition(frame, uri),
        lambda: subset_join(frame.drop("key"), uri),
        lambda: match_udf(uri),
        lambda: spark.read.format("tagmatch").load(uri),
    ):
        with pytest.raises((TagMatchError, PySparkException), match=rf"{uri}.*fs\.s3a\.access\.key") as told:
            call()
        everything = "".join(traceback.format_exception(told.value))
        assert not any(secret in everything for secret in secrets_of(wrong_keys))


def test_keys_of_a_running_session(started: Any, bucket: Any, keys: dict[str, str]) -> None:
    """As Spark's own readers, a session has `fs.…` of its own; and what is set in the configuration of Hadoop."""
    spark, uri = started({}), f"s3a://{bucket[1]}/folder/index"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in keys.items():
        if name.endswith("secret.key"):
            spark.conf.set(name.removeprefix("spark.hadoop."), value)
        else:
            hadoop.set(name.removeprefix("spark.hadoop."), value)
    frame = spark.createDataFrame(ROWS, SCHEMA)
    partition(frame, uri)
    assert subset_join(frame.select("tags"), uri).count() == 8


def test_keys_apart_that_cannot_be_read(started: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.jceks").write_text("other bytes")
    place = f"localjceks://file{tmp_path}/keys.jceks"
    spark = started({"spark.hadoop.hadoop.security.credential.provider.path": place})
    frame = spark.createDataFrame(ROWS, SCHEMA)
    with pytest.raises(InvalidValueError, match=r"credential\.provider\.path names cannot be read: .*Exception"):
        partition(frame, "s3a://bucket/folder/index")
    partition(frame, tmp_path / "index")


def test_keys_that_hadoop_keeps_apart(started: Any, bucket: Any, keys: dict[str, str], tmp_path: Path) -> None:
    store = f"localjceks://file{tmp_path}/keys.jceks"
    kept = {name: keys[f"spark.hadoop.fs.s3a.{name}"] for name in SECRETS}
    others = {name: value for name, value in keys.items() if value not in kept.values()}
    spark = started({**others, "spark.hadoop.hadoop.security.credential.provider.path": store})
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    jvm: Any = spark._jvm
    (provider,) = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(configuration)
    for name, value in kept.items():
        letters = spark.sparkContext._gateway.new_array(jvm.char, len(value))
        for place, letter in enumerate(value):
            letters[place] = letter
        provider.createCredentialEntry(f"fs.s3a.{name}", letters)
    provider.flush()
    partition(spark.createDataFrame(ROWS, SCHEMA), f"s3a://{bucket[1]}/folder/index")
    assert b'"snapshot"' in contents(bucket[1], keys)


CONNECTED = """
import os, sys
from pyspark.sql import SparkSession
from tagmatch.spark import match_udf, register, subset_join

uri, of_server, *others = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]")
for pair in others if of_server == "server" else []:
    builder = builder.config(*pair.split("=", 1))
spark = builder.getOrCreate()
assert "connect" in type(spark).__module__
for pair in others if of_server == "session" else []:
    spark.conf.set(*pair.split("=", 1))
queries = spark.createDataFrame([(1, ["b", "a"]), (2, ["x"])], "id long, tags array<string>")
for strategy in ("ship", "shuffle"):
    joined = subset_join(queries, uri, strategy=strategy, output="lists")
    print("FOUND", sorted((row.id, sorted(row["keys"])) for row in joined.collect()))
register(spark)
print("FOUND", sorted(row.key for row in spark.read.format("tagmatch").load(uri).collect()))
lists = queries.select("id", match_udf(uri)("tags").alias("keys"))
print("FOUND", sorted((row.id, sorted(row["keys"])) for row in lists.collect()))
"""


@pytest.mark.parametrize("whose", ["server", "session"])
def test_spark_connect(free_jvm: Jvm, port: int, bucket: Any, uri: str, whose: str) -> None:
    """It tells no keys; all else holds, here that nobody needs one to read."""
    with TagMatch() as tm:
        tm.add_sets(*zip(*ROWS, strict=True))
        tm.consolidate()
        tm.save(uri)
    settings = {
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
        "endpoint": f"http://127.0.0.1:{port}",
        "path.style.access": "true",
    }
    environment = free_jvm.environment | {"SPARK_TESTING": "1"}  # which means any free port
    command = [sys.executable, "-c", CONNECTED, f"s3a://{bucket[1]}/folder/index", whose]
    prefix = {"server": "spark.hadoop.", "session": ""}[whose]
    command += [f"{prefix}fs.s3a.{name}={value}" for name, value in settings.items()]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = [line.removeprefix("FOUND ") for line in run.stdout.splitlines() if line.startswith("FOUND")]
    assert found == [str(ANSWERS), str(ANSWERS), "[1, 2, 3, 4]", str(ANSWERS)]
