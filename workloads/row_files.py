"""Rows in a file of their own, Parquet or JSON Lines by suffix, or on standard output."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tagmatch.files.formats import JSON_SUFFIXES, PARQUET_SUFFIXES, STANDARD_STREAM
from tagmatch.files.whole import write_whole
from tagmatch.model.errors import TagMatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa


@contextlib.contextmanager
def row_writer(
    path: str, schema: pa.Schema, json_lines: Callable[[pa.RecordBatch], memoryview]
) -> Iterator[Callable[[pa.RecordBatch], object]]:
    """Give a function that writes batches; a file appears under its name only when it is whole.

    Parameters
    ----------
    path
        A file, or - for JSON Lines on standard output.
    json_lines
        Makes JSON Lines of a batch.

    Raises
    ------
    TagMatchError
        The suffix is none that can be written, or writing fails.
    """
    if path == STANDARD_STREAM:
        yield lambda batch: sys.stdout.buffer.write(json_lines(batch))
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in PARQUET_SUFFIXES | JSON_SUFFIXES:
        known = ", ".join(sorted(PARQUET_SUFFIXES | JSON_SUFFIXES))
        raise TagMatchError(f"{path}: the name must end in one of {known}")
    with write_whole(target) as part:
        if suffix in PARQUET_SUFFIXES:
            with pq.ParquetWriter(part, schema, compression="zstd") as writer:
                yield writer.write_batch
        else:
            with part.open("wb") as stream:
                yield lambda batch: stream.write(json_lines(batch))
