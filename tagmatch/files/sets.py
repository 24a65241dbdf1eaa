"""Stored sets, to files and streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.files.csv_lines import csv_cells
from tagmatch.files.formats import Kind, format_of
from tagmatch.files.json_lines import concatenated, json_values, text_of
from tagmatch.files.outputs import open_output

Write = Callable[[pa.RecordBatch], object]


@contextlib.contextmanager
def set_writer(path: str, schema: pa.Schema, form: str | None = None) -> Iterator[Write]:
    """Give a function that writes rows (`tags`, `key`), which `read_sets` reads; a file appears only when it is whole.

    Parameters
    ----------
    path : str
    schema : pyarrow.Schema
        Of all rows.
    form : str, optional
        The format, one of `FormatName`; default: by suffix, JSON Lines for a stream. In CSV, tags are JSON lists.

    Raises
    ------
    TagMatchError
        The format is not known, or writing fails.
    """
    found = format_of(path, form)
    with open_output(path, found.compression) as stream:
        if found.kind == Kind.parquet:
            with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
                yield writer.write_batch
        elif found.kind == Kind.csv:
            stream.write(b"tags,key\n")
            yield lambda rows: stream.write(
                text_of(concatenated(csv_cells(rows["tags"]), ",", csv_cells(rows["key"]), "\n"))
            )
        else:
            yield lambda rows: stream.write(
                text_of(concatenated('{"tags":', json_values(rows["tags"]), ',"key":', json_values(rows["key"]), "}\n"))
            )
