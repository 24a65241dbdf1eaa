"""The same through Spark Connect: ENVIRONMENT is what venv-pack has made, which the server hands to its workers."""

from __future__ import annotations

import sys

from match import run
from pyspark.sql import SparkSession

if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} sc://HOST:PORT ENVIRONMENT.tar.gz FOLDER")
    _, server, environment, folder = sys.argv
    spark = SparkSession.builder.remote(server).getOrCreate()
    spark.addArtifacts(f"{environment}#environment", archive=True)
    spark.conf.set("spark.sql.execution.pyspark.python", "environment/bin/python")
    run(spark, folder)
