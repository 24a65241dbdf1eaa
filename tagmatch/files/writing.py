"""Answers, to files and streams.

Stored sets, to files and streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmatch.files.csv import csv_cells
from tagmatch.files.formats import Kind, format_of
from tagmatch.files.json import concatenated, json_values, object_lines, text_of
from tagmatch.files.streams import Stream, open_output
from tagmatch.model.errors import InputFileError, TagMatchError


class AnswerWriter(Protocol):
    """Takes answers batch by batch."""

    def write(self, rows: pa.Array, ids: pa.Array, keys: pa.ListArray) -> None:
        """Append one row per query: its id, or its row number where the id is null, and its keys."""


@contextlib.contextmanager
def answer_writer(path: str, keys: pa.ListType, form: str | None = None) -> Iterator[AnswerWriter]:
    """A writer of rows (`id`, `keys`); a file appears under its name only when it is whole.

    What is written to a stream, such as a pipe or standard output (`-`), goes out with every batch.
    """
    found = format_of(path, form)
    if found.kind == Kind.csv:
        raise InputFileError(f"{path}: answers are lists of keys, which CSV cannot hold; write JSON Lines or Parquet")
    with open_output(path, found.compression) as stream:
        if found.kind == Kind.parquet:
            with contextlib.closing(_Parquet(stream, keys)) as parquet:
                yield parquet
        else:
            yield _JsonLines(stream)


class _JsonLines:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, rows: pa.Array, ids: pa.Array, keys: pa.ListArray) -> None:
        if not len(ids):
            return
        named = pc.coalesce(json_values(ids), json_values(rows))
        self._stream.write(text_of(concatenated('{"id":', named, ',"keys":', json_values(keys), "}\n")))
        self._stream.flush()


class _Parquet:
    """One column of ids: numbers, or strings if the first query's id is one."""

    def __init__(self, stream: Stream, keys: pa.ListType) -> None:
        self._stream = stream
        self._keys = keys
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Array, ids: pa.Array, keys: pa.ListArray) -> None:
        if self._writer is None:
            kind = rows.type if ids.slice(0, 1).null_count else ids.type
            self._writer = pq.ParquetWriter(self._stream, pa.schema([("id", kind), ("keys", self._keys)]))
        kind = self._writer.schema.field("id").type
        try:
            missing = pc.if_else(ids.is_null(), rows, pa.scalar(None, rows.type))
            named = pc.coalesce(ids.cast(kind), missing.cast(kind))
        except pa.ArrowInvalid as error:
            raise TagMatchError(
                f"the ids of the queries do not fit one Parquet column, of {kind} as the first one's: {error}"
            ) from None
        self._writer.write_batch(pa.record_batch([named, keys], names=["id", "keys"]))

    def close(self) -> None:
        if self._writer is None:
            self.write(*(pa.nulls(0, kind) for kind in (pa.int64(), pa.int64(), self._keys)))
        assert self._writer is not None
        self._writer.close()


Write = Callable[[pa.RecordBatch], object]


@contextlib.contextmanager
def row_writer(path: str, schema: pa.Schema, form: str | None = None, *, with_nulls: bool = True) -> Iterator[Write]:
    """Give a function that writes rows; a file appears only when it is whole."""
    found = format_of(path, form)
    with open_output(path, found.compression) as stream:
        if found.kind == Kind.parquet:
            with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
                yield writer.write_batch
        elif found.kind == Kind.csv:
            stream.write(f"{','.join(schema.names)}\n".encode())
            yield lambda rows: stream.write(_csv_lines(rows))
        else:
            yield lambda rows: stream.write(object_lines(rows, with_nulls=with_nulls))


def _csv_lines(rows: pa.RecordBatch) -> memoryview:
    first, *others = map(csv_cells, rows.columns)
    return text_of(concatenated(first, *(part for cell in others for part in (",", cell)), "\n"))
