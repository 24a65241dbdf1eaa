"""tagmatch on Spark: indexes from DataFrames of sets, and DataFrames of queries joined with an index.

Needs the extra `spark` (`pip install 'tagmatch[spark]'`) and Java 17 or newer, and tagmatch on Spark's workers as well.
Indexes lie in folders that all machines mount, or on stores that Arrow reaches. Works with Spark Connect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tagmatch.spark.session import SparkUnavailableError

if TYPE_CHECKING:
    from tagmatch.spark.join import subset_join as subset_join
    from tagmatch.spark.offline import partition as partition
    from tagmatch.spark.session import spark_session as spark_session

_HOME = {
    "partition": "tagmatch.spark.offline",
    "spark_session": "tagmatch.spark.session",
    "subset_join": "tagmatch.spark.join",
}

__all__ = ["SparkUnavailableError", *_HOME]


def __getattr__(name: str) -> Any:
    # Names load on first use, so that whoever lacks PySpark is told what to do
    if name in _HOME:
        try:
            return getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("pyspark"):
                raise
            raise SparkUnavailableError(f"{error}; pip install 'tagmatch[spark]'") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
