"""tagmatch on Spark: indexes from DataFrames of sets, and DataFrames of queries joined with an index.

Needs the extra `spark` (`pip install 'tagmatch[spark]'`) and Java 17 or newer, tagmatch on Spark's workers as well, and
folders that all machines see under the same path. Works with Spark Connect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tagmatch.spark.join import subset_join as subset_join
    from tagmatch.spark.offline import partition as partition
    from tagmatch.spark.session import SparkUnavailableError as SparkUnavailableError
    from tagmatch.spark.session import spark_session as spark_session

_HOME = {
    "SparkUnavailableError": "tagmatch.spark.session",
    "partition": "tagmatch.spark.offline",
    "spark_session": "tagmatch.spark.session",
    "subset_join": "tagmatch.spark.join",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    # Names load on first use, so that whoever lacks PySpark is told so by `spark_session`
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
