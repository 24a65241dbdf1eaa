"""The process whose forks are Spark's Python workers, with all in memory that their tasks import and the kernels.

Spark starts it where `spark.python.daemon.module` is `tagmatch.spark.daemon`. Without it, each worker imports what it
needs, and, after each of its tasks, Python looks for garbage among all of that. Forks keep memory that tasks had for
later ones, up to some gigabytes: most of what tasks have are large arrays, whose pages cost as much as a sixth of a job
if each task gets them anew from the system.
"""

from __future__ import annotations

import ctypes
import gc
from typing import get_args

import pyarrow as pa
import pyspark.worker  # noqa: F401 - for the forks, as what follows
from pyspark.daemon import manager

import tagmatch.spark.join  # noqa: F401
from tagmatch.embedded import TagMatch
from tagmatch.model.kernels.interpreted import compiling_at_once
from tagmatch.model.options import Layout

# Options of the GNU C library's malloc, as in <malloc.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
#: Bytes that are free at the heap's end before some go back to the system, and by which the heap grows at least
_KEPT_BYTES, _MORE_BYTES = (1 << 31) - 1, 1 << 26


def _keep_memory() -> None:
    """Let this process and its forks reuse memory that they have freed, Arrow's, too."""
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_TOP_PAD, _MORE_BYTES)):
            mallopt(option, value)


def _load_kernels() -> None:
    """Build and ask indexes, in one thread, as this process is forked; by kernels, though there is little to do."""
    for name in get_args(Layout):
        with compiling_at_once(), TagMatch(layout=name, threads=1, device="cpu") as tm:
            tm.add_sets([["a", "b"], ["a"]], [1, 2])
            tm.consolidate()
            tm.match_many([["a", "b"]])


if __name__ == "__main__":
    _keep_memory()
    _load_kernels()
    gc.collect()
    gc.freeze()  # from now on, that garbage is looked for costs nothing, and the memory stays shared
    manager()
