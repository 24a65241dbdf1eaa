"""A job to try an installation with: builds an index on Spark, and joins messages with it.

FOLDER is one that the driver and all workers mount under this path, or the URI of a store that all of them reach.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tagmatch.spark import partition, subset_join


def run(spark: SparkSession, folder: str) -> None:
    """Write the keys that each message gets."""
    index = f"{folder.rstrip('/')}/interests.index"
    interests = spark.createDataFrame([(["cat", "fr"], 7), (["cat"], 8)], "tags array<string>, key long")
    partition(interests, index)
    messages = spark.createDataFrame([(1, ["cat", "fr", "new"]), (2, ["dog"])], "id long, tags array<string>")
    for strategy in ("ship", "shuffle"):
        found = subset_join(messages, index, strategy=strategy, output="lists")
        print(strategy, {row.id: sorted(row["keys"]) for row in found.collect()})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    run(SparkSession.builder.appName("tagmatch").getOrCreate(), sys.argv[1])
