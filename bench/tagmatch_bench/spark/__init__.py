"""Benchmarks of tagmatch on Spark, in local mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.driver.memory": "4g",  # in local mode there is only the driver's
    # These as docs/howto/spark_deployment.md has them
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.python.daemon.module": "tagmatch.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.sort.bypassMergeThreshold": "0",
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_spark(threads: int) -> SparkSession:
    """Return the running session, or start one on some cores of this machine; it ends with the process."""
    return spark_session("tagmatch-bench", f"local[{threads}]", _SETTINGS)
