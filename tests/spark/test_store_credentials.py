"""An S3 that asks for keys, which only Spark's settings have: no variable, no file and no URI does."""

from __future__ import annotations

import os
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
from support import tasks
from support.jvm import Jvm
from support.spark_functions import called

from tagmatch import InvalidValueError, TagMatchError
from tagmatch.spark import match_udf, partition, register, subset_join

pytest_plugins = ["support.s3_bucket"]

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
    url, name = f"http://127.0.0.1:{port}", bucket[1]
    given = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client("iam", endpoint_url=url, region_name="us-east-1", **given)
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
    settings = {"access.key": made["AccessKeyId"], "secret.key": made["SecretAccessKey"], "endpoint": url}
    yield {f"spark.hadoop.fs.s3a.{name}": text for name, text in {**settings, "path.style.access": "true"}.items()}
    let_in_without_keys("inf")


@pytest.fixture
def started(free_jvm: Jvm, tmp_path: Path) -> Callable[[dict[str, str]], SparkSession]:
    """Start a session with settings."""

    def start(settings: dict[str, str]) -> SparkSession:
        log = {"enabled": "true", "compress": "false", "rolling.enabled": "false", "dir": str(tmp_path)}
        given = {"spark.master": "local[2]", "spark.app.name": "credentials", **settings}
        given |= {f"spark.eventLog.{name}": value for name, value in log.items()}
        return free_jvm.session(SparkSession.builder.config(map=given))

    return start


@pytest.fixture(params=["tasks", pytest.param("spark", marks=pytest.mark.nightly)])
def spark_with(request: pytest.FixtureRequest, seed: int) -> Iterator[Any]:
    """The same, and without a JVM."""
    if request.param == "spark":
        yield request.getfixturevalue("started")
        return
    with tasks.session(seed) as spark:

        def start(settings: dict[str, str]) -> Any:
            for name, value in settings.items():
                spark.conf.set(name, value)
            return spark

        yield start


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


def test_keys_that_only_a_session_has(spark_with: Any, bucket: Any, keys: dict[str, str]) -> None:
    spark, uri = spark_with(keys), f"s3a://{bucket[1]}/folder/index"
    register(spark)
    partition(spark.createDataFrame(ROWS[:2], SCHEMA), uri)
    spark.createDataFrame(ROWS, SCHEMA).write.format("tagmatch").mode("append").save(uri)
    queries = spark.createDataFrame(QUERIES, "id long, tags array<string>")
    for strategy in ("ship", "shuffle"):
        assert lists(subset_join(queries, uri, strategy=strategy, output="lists").collect()) == ANSWERS
    assert sorted(row.key for row in spark.read.format("tagmatch").load(uri).collect()) == [1, 2, 3, 4]
    assert called("sql", queries, uri) == dict(ANSWERS)


@pytest.mark.nightly
def test_keys_are_not_shown(
    started: Any, free_jvm: Jvm, bucket: Any, keys: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spark, uri = started(keys), f"s3a://{bucket[1]}/folder/index"

    def variables(batches: Any) -> Iterator[pyarrow.RecordBatch]:
        for _ in batches:
            yield pyarrow.record_batch({"name": list(os.environ)})

    found = {row.name for row in spark.range(2).mapInArrow(variables, "name string").collect()}
    assert "PATH" in found
    assert found.isdisjoint(VARIABLES)
    partition(spark.createDataFrame(ROWS, SCHEMA), uri)
    register(spark)
    queries = spark.createDataFrame(QUERIES, "id long, tags array<string>")
    queries.createOrReplaceTempView("queries")
    plans = [subset_join(queries, uri, strategy=strategy, output="lists") for strategy in ("ship", "shuffle")]
    plans.append(queries.select("id", match_udf(uri)("tags").alias("keys")))
    for plan in plans:
        assert lists(plan.collect()) == ANSWERS
    plans.append(spark.read.format("tagmatch").load(uri))
    plans.append(spark.sql(f"SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '{uri}') m"))
    assert [plan.count() for plan in plans[3:]] == [4, 4]
    for plan in plans:
        plan.explain(extended=True)
    shown = "".join(capfd.readouterr())
    assert "== Physical Plan ==" in shown
    free_jvm.stop_spark()
    (log,) = tmp_path.glob("local-*")  # of all jobs with their plans, as Spark keeps it for its pages
    logged, stored = log.read_text(), contents(bucket[1], keys)
    assert "tagmatch_match" in logged
    assert b'"snapshot"' in stored
    assert not any(secret in text for secret in secrets_of(keys) for text in (shown, logged, stored.decode("latin-1")))


@pytest.mark.parametrize("wrong", SECRETS)
def test_wrong_keys(spark_with: Any, bucket: Any, keys: dict[str, str], wrong: str) -> None:
    wrong_keys = keys | {f"spark.hadoop.fs.s3a.{wrong}": "not-this-1234"}
    spark, uri = spark_with(wrong_keys), f"s3a://{bucket[1]}/folder/index"
    frame = spark.createDataFrame(ROWS, SCHEMA)
    register(spark)
    calls: list[Callable[[], Any]] = [
        lambda: partition(frame, uri),
        lambda: subset_join(frame.select("tags"), uri),
        lambda: spark.read.format("tagmatch").load(uri),
        *([] if isinstance(spark, tasks.Session) else [lambda: match_udf(uri)]),
    ]
    for call in calls:
        with pytest.raises((TagMatchError, PySparkException), match=rf"{uri}.*fs\.s3a\.access\.key") as told:
            call()
        everything = "".join(traceback.format_exception(told.value))
        assert not any(secret in everything for secret in secrets_of(wrong_keys))


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_keys_that_hadoop_keeps_apart(started: Any, bucket: Any, keys: dict[str, str], tmp_path: Path) -> None:
    """Or that cannot be read."""
    file, uri = tmp_path / "keys.jceks", f"s3a://{bucket[1]}/folder/index"
    kept = {name: keys[f"spark.hadoop.fs.s3a.{name}"] for name in SECRETS}
    others = {name: value for name, value in keys.items() if value not in kept.values()}
    spark = started({**others, "spark.hadoop.hadoop.security.credential.provider.path": f"localjceks://file{file}"})
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    jvm: Any = spark._jvm
    (provider,) = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(configuration)
    for name, value in kept.items():
        letters = spark.sparkContext._gateway.new_array(jvm.char, len(value))
        for place, letter in enumerate(value):
            letters[place] = letter
        provider.createCredentialEntry(f"fs.s3a.{name}", letters)
    provider.flush()
    frame = spark.createDataFrame(ROWS, SCHEMA)
    partition(frame, uri)
    assert b'"snapshot"' in contents(bucket[1], keys)
    file.write_text("other bytes")
    with pytest.raises(InvalidValueError, match=r"credential\.provider\.path names cannot be read: .*Exception"):
        partition(frame, uri)
    partition(frame, tmp_path / "index")
