"""Indexes on a store, a private S3: as in a folder, and copied to their users; and keys that only Spark has.

No variable, no file and no URI has these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pyarrow.fs
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support import tasks
from support.index_files import make_index, names
from support.jvm import Jvm
from support.spark_functions import called

from tagmatch import TagMatch
from tagmatch.model.errors import (
    IndexCorruptError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    TagMatchError,
)
from tagmatch.model.storage.folders import ArrowFolder
from tagmatch.model.storage.repository import Repository, location_of
from tagmatch.spark import match_udf, partition, register, subset_join
from tagmatch.spark.columns import errors_of_workers

pytest_plugins = ["support.s3_bucket"]

SCHEMA = "tags array<string>, key long"
ROWS = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4), (["é", "日本"], 5), (["a"], 6)]
QUERIES = [(1, ["b", "a"]), (2, ["x"]), (3, ["日本", "é", "c"])]
ANSWERS = [(1, [1, 2, 4, 6]), (2, [4]), (3, [3, 4, 5])]


def test_jobs_that_fail(spark: Any, bucket: Any, uri: str) -> None:
    """They leave an empty place empty, and an index as it was. Joins find the job before them."""
    bad = spark.createDataFrame([(["a"], 1), (None, 2)], SCHEMA)
    queries = spark.createDataFrame([(["a", "b"],)], "tags array<string>")
    for key in (None, 1, 2):
        if key is None:
            with pytest.raises(IndexNotFoundError, match=rf"no index at s3a://{bucket[1]}/folder/index: it has no MAN"):
                subset_join(queries, uri)
        else:
            partition(spark.createDataFrame([(["a"], key)], SCHEMA), uri)
        before = names(bucket)
        assert len(before) == (5 if key else 0)
        with pytest.raises(InvalidValueError, match="tags is null: 1"):
            partition(bad, uri)
        assert names(bucket) == before
        for strategy in ("ship", "shuffle") if key else ():
            assert [row.key for row in subset_join(queries, uri, strategy=strategy).collect()] == [key]


def test_damage(spark: Any, bucket: Any, uri: str) -> None:
    queries = spark.createDataFrame(QUERIES, "id long, tags array<string>")
    partition(spark.createDataFrame(ROWS, SCHEMA), uri)
    (keys,) = (name for name in names(bucket) if name.endswith("keys.arrow"))
    with bucket[0].open_output_stream(keys) as sink:
        sink.write(b"other bytes")
    index = f"s3a://{bucket[1]}/folder/index"
    message = rf"a copy of {index} is damaged: .*keys.arrow has 11 bytes instead of"
    with pytest.raises(IndexCorruptError, match=message), errors_of_workers():
        subset_join(queries, uri).collect()
    partition(spark.createDataFrame(ROWS, SCHEMA), uri)
    assert len(subset_join(queries, uri, output="lists").collect()) == 3
    with bucket[0].open_output_stream("folder/index/MANIFEST.json") as sink:
        sink.write(b"{}")
    with pytest.raises(IndexCorruptError, match=r"folder/index/MANIFEST.json is damaged"):
        subset_join(queries, uri)


def test_places_that_will_not_do(spark: Any, bucket: Any, uri: str) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    with bucket[0].open_output_stream("folder/notes.txt") as sink:
        sink.write(b"mine")
    with pytest.raises(IndexExistsError, match=rf"^s3a://{bucket[1]}/folder is a folder with other files in it"):
        partition(frame, uri.replace("/index", ""))
    with pytest.raises(IndexExistsError, match=r"folder/notes.txt is a file, not an index folder"):
        partition(frame, uri.replace("index", "notes.txt"))
    assert names(bucket) == ["folder/notes.txt"]
    with pytest.raises(TagMatchError, match=r"cannot read s3a://bucket/index: .*NETWORK_CONNECTION"):
        partition(frame, "s3a://someone:secret@bucket/index?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
    elsewhere = uri.replace(bucket[1], "no-such-bucket")
    with pytest.raises(TagMatchError, match=r"cannot \w+ s3a://no-such-bucket/folder/index") as told:
        partition(frame, elsewhere)
    assert "secret" not in str(told.value)
    with pytest.raises(IndexNotFoundError, match=r"no index at s3a://no-such-bucket/folder/index"):
        subset_join(spark.createDataFrame(QUERIES, "id long, tags array<string>"), elsewhere)


@pytest.mark.parametrize(
    "uri", ["ftp://me:1234@host/x", "s3a://me:12/1234@bucket/x", "s3a://me:1234@bucket/a b?o=1234", "gs://me:1234@["]
)
def test_secrets_are_not_told(uri: str) -> None:
    for call in (partial(location_of, name="index"), TagMatch.open, TagMatch):
        with pytest.raises(TagMatchError) as told:
            call(uri)
        assert "1234" not in "".join(traceback.format_exception(told.value))
    with pytest.raises(InvalidTypeError, match="a URI must be a str, not a PosixPath"):
        location_of(Path("s3a://bucket/index"), "index")


def test_copying_while_a_newer_snapshot_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Any, uri: str
) -> None:
    """It needs two attempts to be saved; saving it again writes nothing."""
    location = location_of(uri, "index")
    snapshot = Repository.at(make_index(tmp_path / "local", ROWS)).open()
    location.save(snapshot)
    newer = Repository.at(make_index(tmp_path / "newer", ROWS, layout="balanced")).open()
    fetch, put, before = ArrowFolder.fetch, ArrowFolder.put, names(bucket)

    def fail(store: ArrowFolder, file: Path, name: str) -> None:
        if name.endswith("partitions.arrow"):
            raise TagMatchError("no room")
        put(store, file, name)

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(ArrowFolder, "fetch", fetch)
        location.save(newer)
        raise TagMatchError("gone while it was read")

    with monkeypatch.context() as patch:
        patch.setattr(ArrowFolder, "put", fail)
        location.save(snapshot)
        with pytest.raises(TagMatchError, match="no room"):
            location.save(newer)
    assert names(bucket) == before
    monkeypatch.setattr(ArrowFolder, "fetch", interrupted)
    assert location.open().name == Repository.at(tmp_path / "newer").manifest()["snapshot"]


def test_a_bucket_stays(bucket: Any, uri: str) -> None:
    location = location_of(uri.replace("/folder/index", "") + "&allow_bucket_deletion=true", "index")

    def fail() -> None:
        with location.scratch() as files, files.new("x") as file:
            file.write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(bucket) == []
    assert bucket[0].get_file_info("").type == pyarrow.fs.FileType.Directory


def test_copies_of_this_process_go_with_it(tmp_path: Path, uri: str) -> None:
    """Those of workers are in folders of their executor, which removes them."""
    location_of(uri, "index").save(Repository.at(make_index(tmp_path / "local", ROWS)).open())
    copies = tmp_path / "temporary"
    copies.mkdir()
    program = "import sys, tagmatch; print(sorted(tagmatch.TagMatch.open(sys.argv[1]).match(['a', 'b'])))"
    environment = os.environ | {"TMPDIR": str(copies)}
    run = subprocess.run([sys.executable, "-c", program, uri], capture_output=True, text=True, env=environment)
    assert (run.stdout, run.returncode) == ("[1, 2, 4, 6]\n", 0), run.stderr
    assert os.listdir(copies) == []


# -- keys --------------------------------------------------------------------------------------------------------------

SECRETS = ("access.key", "secret.key")
# In which Arrow would look for keys
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN")


@pytest.fixture
def keys(port: int, bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings of Spark with the keys of a user; without such keys access is refused, and the machine has none."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
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
    assert sorted(row.key for row in spark.read.format("tagmatch").load(uri).collect()) == [1, 2, 3, 4, 5, 6]
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
    assert [plan.count() for plan in plans[3:]] == [6, 8]
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
    """As Spark's own readers, a session has its own `fs.…`; and the settings of Hadoop's configuration."""
    spark, uri = started({}), f"s3a://{bucket[1]}/folder/index"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in keys.items():
        if name.endswith("secret.key"):
            spark.conf.set(name.removeprefix("spark.hadoop."), value)
        else:
            hadoop.set(name.removeprefix("spark.hadoop."), value)
    frame = spark.createDataFrame(ROWS, SCHEMA)
    partition(frame, uri)
    assert subset_join(frame.select("tags"), uri).count() == 15


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
