"""tagmatch on Spark: indexes from DataFrames of sets, and DataFrames of queries joined with an index.

Needs the extra `spark` (`pip install 'tagmatch[spark]'`) and Java 17 or newer, and tagmatch on Spark's workers as well.
Indexes lie in folders that all machines mount, or on stores that Arrow reaches. Works with Spark Connect.
"""

from __future__ import annotations

from tagmatch.model.errors import SparkUnavailableError

try:
    from tagmatch.spark.columns import errors_of_workers
    from tagmatch.spark.functions import match_udf, register
    from tagmatch.spark.join import optimize, partition, subset_join
    from tagmatch.spark.session import spark_session
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("pyspark"):
        raise
    raise SparkUnavailableError(f"{error}; pip install 'tagmatch[spark]'") from None

__all__ = [
    "SparkUnavailableError",
    "errors_of_workers",
    "match_udf",
    "optimize",
    "partition",
    "register",
    "spark_session",
    "subset_join",
]
