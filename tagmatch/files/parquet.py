"""Rows of Parquet files."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.files.columns import (
    ATTRIBUTES,
    Column,
    Rows,
    attribute_columns,
    beside,
    joined,
    refuse_twice,
    require_columns,
    rows_from,
    with_all_tags,
)
from tagmatch.files.invalid import InvalidRows
from tagmatch.files.lines import first_line
from tagmatch.files.others import OtherColumns
from tagmatch.files.streams import input_descriptor, seekable
from tagmatch.messages import TAGS
from tagmatch.model.errors import InputFileError, TagMatchError
from tagmatch.model.extensions import without_extensions
from tagmatch.model.parallel import threads_of_arrow

_BATCH_ROWS = 65_536


def parquet_rows(
    path: str,
    name: str,
    columns: tuple[Column, ...],
    invalid: InvalidRows,
    first_row: int,
    others: OtherColumns | None = None,
) -> Generator[Rows, None, int]:
    """The rows of the file at a path, which messages call `name`; returns the number of the row after its last.

    Columns that are attributes come after the others.

    Raises
    ------
    InputFileError
        It is no whole Parquet file, lacks a column, or has one that is misspelt.
    InvalidTypeError
        A column has another type.
    """
    try:
        with (
            input_descriptor(path) as descriptor,
            seekable(descriptor) as place,
            threads_of_arrow(),
            pq.ParquetFile(place, memory_map=True, page_checksum_verification=True) as file,
        ):
            schema = without_extensions(file.schema_arrow.empty_table()).schema
            names = frozenset(schema.names)
            columns = tuple(
                column for column in columns if column.name in names or column.name == TAGS or not column.is_optional
            )
            if others is not None:
                others.check(schema.names, name)
                own = others.attributes_in(schema.names)
                columns = beside(attribute_columns(own, name, are_texts=False), columns)
                _check_fields(schema, own, name)
            require_columns(schema.names, name, columns)
            for column in columns:
                if column.name in names:
                    column.check(pa.nulls(0, schema.field(column.name).type), column.label(name), 0)
            wanted = [column.name for column in columns if column.name in names]
            for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
                yield from joined(_usable(without_extensions(batch), first_row, name, columns, invalid))
                first_row += len(batch)
            return first_row
    except MemoryError:
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise InputFileError(f"{name}: not a whole Parquet file: {first_line(error)}") from None


def _check_fields(schema: pa.Schema, own: tuple[str, ...], name: str) -> None:
    """See that no attribute is both a column and a field of the column `attributes`; InputFileError."""
    place = schema.get_field_index(ATTRIBUTES.name)
    if place >= 0 and pa.types.is_struct(schema.types[place]):
        try:
            refuse_twice([field.name for field in schema.types[place]], own)
        except ValueError as error:
            raise InputFileError(f"{name}: {error}") from None


def _usable(
    batch: pa.RecordBatch, first: int, name: str, columns: tuple[Column, ...], invalid: InvalidRows
) -> Iterator[Rows]:
    """The rows that can be used, in parts between those that cannot."""
    try:
        whole = with_all_tags(batch, columns, name, first)
        for column in columns:
            column.check(whole[column.name], column.label(name), first)
    except TagMatchError as error:
        middle = len(batch) // 2
        if middle:
            yield from _usable(batch.slice(0, middle), first, name, columns, invalid)
            yield from _usable(batch.slice(middle), first + middle, name, columns, invalid)
        else:
            invalid.found(error)
        return
    yield rows_from(whole, first)
