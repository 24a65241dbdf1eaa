"""The Spark that is measured, and the files that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.spark.session import spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.driver.memory": "4g",  # in local mode the driver's is all that there is
    # These two as docs/spark.md has them
    "spark.python.daemon.module": "tagmatch.spark.daemon",
    "spark.shuffle.sort.bypassMergeThreshold": "0",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_FEWEST_FILES, _ROWS_PER_FILE = 4, 250_000


def local_spark(threads: int) -> SparkSession:
    """Return the running session, or start one on some cores of this machine; it ends with the process."""
    return spark_session("tagmatch-bench", f"local[{threads}]", _SETTINGS)


def signed_keys(sets: pa.Table) -> pa.Table:
    """Return the columns `tags` and `key` with keys that Spark reads as `long`; unsigned ones are decimals to it."""
    return pa.table({"tags": sets["tags"], "key": sets["key"].cast(pa.int64())})


def write_parquet(table: pa.Table, folder: Path) -> str:
    """Write a table as several files into a new folder, whose path is returned."""
    folder.mkdir(parents=True)
    step = max(1, min(_ROWS_PER_FILE, -(-len(table) // _FEWEST_FILES)))
    for number, first in enumerate(range(0, len(table), step)):
        pq.write_table(table.slice(first, step), folder / f"part-{number:05}.parquet")
    return str(folder)
