"""A job whose driver is killed at the beginning of one of its steps."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_KILLED = """
import logging, os, signal, sys
from tagmatch.spark import partition, spark_session

class Kill(logging.Handler):
    def emit(self, record):
        if record.getMessage() == sys.argv[3]:
            self.spark.range(1).count()  # Spark works
            os.kill(os.getpid(), signal.SIGKILL)

logging.getLogger("tagmatch.partitioner").setLevel(logging.INFO)
logging.getLogger("tagmatch.partitioner").addHandler(handler := Kill())
spark = handler.spark = spark_session("killed", "local[2]")
partition(spark.read.parquet(sys.argv[1]), sys.argv[2], mode=sys.argv[4])
"""


def run_killed_job(
    sets: Path, index: Path | str, step: str, environment: Mapping[str, str] | None = None, mode: str = "overwrite"
) -> None:
    """Partition sets in a process of its own, until it is killed."""
    command = [sys.executable, "-c", _KILLED, str(sets), str(index), step, mode]
    run = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()
