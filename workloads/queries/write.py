"""Queries as rows `id`, `tags` in Parquet or JSON Lines, at once or as they become due."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.files.json_lines import concatenated, json_values, text_of
from tagmatch.files.whole import write_whole
from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.pacing import by_interval, when_due

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tagmatch.model.arrays import F64Array

SCHEMA = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())})


def rows(make: Callable[[int, int], pa.ListArray], count: int | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Give queries 0 to `count`, or without end, in batches; `make(first, count)` makes some of them."""
    first = 0
    while count is None or first < count:
        some = batch_rows if count is None else min(batch_rows, count - first)
        yield pa.record_batch([pa.array(np.arange(first, first + some)), make(first, some)], schema=SCHEMA)
        first += some


def json_lines(batch: pa.RecordBatch) -> memoryview:
    """Return rows as JSON Lines in UTF-8."""
    return text_of(concatenated('{"id":', json_values(batch["id"]), ',"tags":', json_values(batch["tags"]), "}\n"))


def stream_to_stdout(pairs: Iterable[tuple[F64Array, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Write rows to standard output when they are due; yields what has been written."""
    for _, batch in when_due(pairs):
        sys.stdout.buffer.write(json_lines(batch))
        sys.stdout.buffer.flush()
        yield batch


def stream_to_folder(
    pairs: Iterable[tuple[F64Array, pa.RecordBatch]], folder: Path, interval: float
) -> Iterator[pa.Table]:
    """Write one Parquet file for the rows of every interval of `seconds`, at its end; yields what it has.

    Raises
    ------
    TagMatchError
        The folder is not empty, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise TagMatchError(f"{folder} is not empty; name a new folder for the stream")
    except FileExistsError:
        raise TagMatchError(f"{folder} is a file; name a folder") from None
    except OSError as error:
        raise TagMatchError(f"{folder}: cannot be written: {error.strerror or error}") from None
    for number, table in by_interval(pairs, interval):
        with write_whole(folder / f"queries-{number:08d}.parquet") as part:
            pq.write_table(table, part, compression="zstd")
        yield table
