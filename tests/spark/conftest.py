"""One JVM for all tests, with Spark in local mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import tasks
from support.jvm import Jvm
from support.servers import needs_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Also of those that tests start in other processes
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "conf")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.fixture(scope="session")
def jvm() -> Iterator[Jvm]:
    """The one JVM of all drivers; their workers run this very interpreter and import the tests' helpers as well."""
    needs_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with Jvm() as started:
        yield started


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> SparkSession.Builder:
    """Of sessions with two cores."""
    from pyspark.sql import SparkSession

    found = SparkSession.builder.master("local[2]").appName("tests")
    for name in ("spark.local.dir", "spark.sql.warehouse.dir"):
        found = found.config(name, str(tmp_path_factory.mktemp("spark")))
    return found


@pytest.fixture
def session(jvm: Jvm, builder: SparkSession.Builder) -> SparkSession:
    """Return this process's session, which tests share."""
    return jvm.session(builder)


@pytest.fixture(params=["tasks", pytest.param("spark", marks=pytest.mark.nightly)])
def spark(request: pytest.FixtureRequest, seed: int) -> Iterator[Any]:
    """What plays Spark's part without a JVM, and Spark itself."""
    if request.param == "spark":
        yield request.getfixturevalue("session")
    else:
        with tasks.session(seed) as found:
            yield found


@pytest.fixture
def free_jvm(jvm: Jvm) -> Iterator[Jvm]:
    """The JVM without a driver, for drivers in their own processes."""
    jvm.stop_spark()
    yield jvm
    jvm.stop_spark()


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sets are cut into several buckets."""
    monkeypatch.setattr("tagmatch.spark.join.BUCKET_SETS", 40)
