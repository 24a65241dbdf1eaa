"""By the name of this package, Spark finds the data source `tagmatch` without a registration."""

from __future__ import annotations

from tagmatch.spark.source import TagMatchSource as DefaultSource

__all__ = ["DefaultSource"]
