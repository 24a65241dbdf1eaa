"""The process whose forks are Spark's Python workers, with all in memory that their tasks import and the kernels.

Spark starts it where `spark.python.daemon.module` is `tagmatch.spark.daemon`. Without it, each worker imports what it
needs, and, after each of its tasks, Python looks for garbage among all of that.
"""

from __future__ import annotations

import gc
from typing import get_args

import pyspark.worker  # noqa: F401 - for the forks, as what follows
from pyspark.daemon import manager

import tagmatch.partitioner.spark.job
import tagmatch.spark.join  # noqa: F401
from tagmatch.interface import TagMatch
from tagmatch.model.options import Layout


def _load_kernels() -> None:
    """Build and ask indexes, in one thread, as this process is forked."""
    for name in get_args(Layout):
        with TagMatch(layout=name, threads=1, device="cpu") as tm:
            tm.add_sets([["a", "b"], ["a"]], [1, 2])
            tm.consolidate()
            tm.match_many([["a", "b"]])


if __name__ == "__main__":
    _load_kernels()
    gc.collect()
    gc.freeze()  # from now on, that garbage is looked for costs nothing, and the memory stays shared
    manager()
