"""Spark's Python workers as forks of a process that has loaded what they need; all tests of Spark run in such."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa


def test_workers_have_all_and_no_garbage_is_looked_for_among_it(spark: Any) -> None:
    def told(_: Any) -> Iterator[pa.RecordBatch]:
        from numba.core import event

        with event.install_recorder("numba:compile") as compiled:
            from tagmatch import TagMatch

            loaded = len(sys.modules)
            with TagMatch(threads=1) as tm:
                tm.add_sets([["a"]], [1])
                tm.consolidate()
        modules = {"tagmatch.partitioner.spark.job", "tagmatch.spark.join"} <= sys.modules.keys()
        yield pa.record_batch({
            "frozen": [gc.get_freeze_count()], "living": [len(gc.get_objects())],
            "modules": [modules], "more": [len(sys.modules) - loaded], "compiled": [len(compiled.buffer)],
        })  # fmt: skip

    schema = "frozen long, living long, modules boolean, more long, compiled long"
    (row,) = spark.range(1).repartition(1).mapInArrow(told, schema).collect()
    assert row.modules
    assert row.more == row.compiled == 0
    assert row.frozen > 100_000 > row.living


def test_workers_use_memory_again_that_they_have_freed(spark: Any) -> None:
    def told(_: Any) -> Iterator[pa.RecordBatch]:
        faults, mib = [], 1 << 20
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            arrays = [np.ones(64 * mib, np.uint8), pa.array(np.ones(8 * mib)).cast(pa.int64())]
            del arrays
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        yield pa.record_batch({"faults": [faults], "pool": [pa.default_memory_pool().backend_name]})

    (row,) = spark.range(1).repartition(1).mapInArrow(told, "faults array<long>, pool string").collect()
    assert row.pool == "system"
    # Where an array is a few bytes too long for what is free, the heap grows once more
    assert min(row.faults) < 100
