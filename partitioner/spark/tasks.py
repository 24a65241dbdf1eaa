"""Work on numbered things, a Spark task for each, and what tasks tell the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")

Batches: TypeAlias = Iterable[pa.RecordBatch]


def for_each(spark: SparkSession, numbers: Sequence[int], work: Callable[[int], Batches], schema: str) -> DataFrame:
    """Return the rows of `work(number)` for every number, each in a task of its own."""
    count = max(1, len(numbers))
    return spark.range(0, len(numbers), 1, count).mapInArrow(partial(_for_each, tuple(numbers), work), schema)


def _for_each(numbers: tuple[int, ...], work: Callable[[int], Batches], batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch["id"].to_pylist():
            yield from work(numbers[place])


def grouped(things: Sequence[_T], sizes: Sequence[int], size: int) -> list[list[_T]]:
    """Things with these sizes, in groups of consecutive ones that have at most `size` together, or are one thing."""
    groups, room = list[list[_T]](), 0
    for thing, own in zip(things, sizes, strict=True):
        if own > room or not groups:
            groups.append([])
            room = max(size, own)
        groups[-1].append(thing)
        room -= own
    return groups


def number_of_task() -> int:
    """Return the number of the partition that the calling task makes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def one_row(**values: object) -> pa.RecordBatch:
    """Return a batch of one row; an array is a list to it, and numbers have 64 bits, as Spark's `long`."""
    return pa.record_batch({name: pa.array([value]) for name, value in values.items()})
