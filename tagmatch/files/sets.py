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
    """Give a function that writes rows, which `read_sets` reads; a file appears only when it is whole.

    Parameters
    ----------
    path : str
    schema : pyarrow.Schema
        Of all rows: `tags`, `key` and, if some expire, `expires`.
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
            stream.write(f"{','.join(schema.names)}\n".encode())
            yield lambda rows: stream.write(text_of(_joined("", [csv_cells(column) for column in rows.columns], "\n")))
        else:
            yield lambda rows: stream.write(text_of(_json_lines(rows)))


def _json_lines(rows: pa.RecordBatch) -> pa.Array:
    named = zip(rows.schema.names, rows.columns, strict=True)
    cells = [concatenated(f'"{name}":', json_values(column).fill_null("null")) for name, column in named]
    return _joined("{", cells, "}\n")


def _joined(begin: str, cells: list[pa.Array], end: str) -> pa.Array:
    """Cells with commas between."""
    first, *others = cells
    return concatenated(begin, first, *(part for cell in others for part in (",", cell)), end)
