"""A Spark session where there is none yet, and a clear word where there cannot be one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tagmatch.model.errors import InputFileError, SparkUnavailableError

OLDEST_JAVA = 17


def spark_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running Spark session, or start one.

    Parameters
    ----------
    name : str
        Of the application, for Spark's own pages.
    master : str, optional
        `local[2]`, `spark://…`, or `sc://…` for Spark Connect; default: what Spark is configured to.
    settings : mapping of str to str, optional
        Of a session that is started; a running one and one of a server keep their own.

    Raises
    ------
    SparkUnavailableError
        There is no Java that is new enough, and no server was named that has one.
    """
    builder = SparkSession.builder.appName(name)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    if SparkSession.getActiveSession() is None:
        check_java()
        for setting, value in (settings or {}).items():
            builder = builder.config(setting, value)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the python3 of the PATH
    return builder.getOrCreate()


def read_table(spark: SparkSession, path: str, format: str) -> DataFrame:  # noqa: A002
    """Read a table in any format that Spark knows."""
    try:
        return spark.read.format(format).load(path)
    except AnalysisException as error:
        raise InputFileError(f"{path}: Spark cannot read it: {str(error).strip().splitlines()[0]}") from None


def check_java() -> None:
    """See that there is a Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(java)
    advice = f"install Java {OLDEST_JAVA} or newer (on Debian: openjdk-{OLDEST_JAVA}-jre-headless)"
    if found is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise SparkUnavailableError(f"Spark needs Java: {where}; {advice}")
    found_version = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', found_version)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise SparkUnavailableError(
            f"Spark needs Java {OLDEST_JAVA}, but {found} is {found_version.strip() or 'silent'}; {advice}"
        )
