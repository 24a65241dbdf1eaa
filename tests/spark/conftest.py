"""One Spark for all tests, in local mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.jvm import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Also of those that tests start in processes of their own
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "conf")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; workers run this very interpreter and import the tests' helpers as well."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name in ("spark.local.dir", "spark.sql.warehouse.dir"):
        builder = builder.config(name, str(tmp_path_factory.mktemp("spark")))
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def jvm() -> Iterator[Jvm]:
    """One more JVM, in which drivers that are processes of their own find a Spark that is warm."""
    with Jvm() as started:
        yield started
