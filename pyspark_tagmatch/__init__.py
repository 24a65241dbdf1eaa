"""By its name, Spark finds the data source `tagmatch` here, so that nobody has to register it."""

from __future__ import annotations

from tagmatch.spark.source import TagMatchSource as DefaultSource

__all__ = ["DefaultSource"]
