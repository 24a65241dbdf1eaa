"""Tables that users bring along: Parquet, CSV or JSON Lines by suffix, streamed in Arrow batches."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from tagmatch.files.formats import JSON_SUFFIXES, PARQUET_SUFFIXES
from tagmatch.model.errors import InputFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CSV_SUFFIXES = frozenset({".csv"})
_SUFFIXES = PARQUET_SUFFIXES | _CSV_SUFFIXES | JSON_SUFFIXES
_BATCH_ROWS = 65_536
_BLOCK_BYTES = 8 << 20


class Table:
    """An open table.

    Parameters
    ----------
    path : str
    columns : iterable of str
        Columns that are of use; of these, `names` has those that the file has.
    strings : iterable of str
        Columns whose text in CSV files is not to be taken for numbers.

    Raises
    ------
    InputFileError
        The file cannot be read; the message names it.
    """

    def __init__(self, path: str, columns: Iterable[str], *, strings: Iterable[str] = ()) -> None:
        self.path = path
        self._strings = tuple(strings)
        suffix = Path(path).suffix.lower()
        if suffix not in _SUFFIXES:
            known = ", ".join(sorted(_SUFFIXES))
            raise InputFileError(f"{path}: cannot tell the format; the name must end in one of {known}")
        self._open = (
            self._parquet if suffix in PARQUET_SUFFIXES else self._csv if suffix in _CSV_SUFFIXES else self._json
        )
        with self._errors():
            schema, _ = self._open(())
        self._all = schema.names
        self.names = [name for name in columns if name in schema.names]

    def require(self, *columns: str) -> None:
        """Raise an `InputFileError` unless the table has one of these columns at least."""
        if not any(column in self.names for column in columns):
            has = ", ".join(map(repr, self._all)) or "none"
            raise InputFileError(f"{self.path} has no column {' or '.join(map(repr, columns))}; it has {has}")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the columns `names`."""
        with self._errors():
            _, batches = self._open(self.names)
            for batch in batches:
                yield batch.select(self.names)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            text = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
            raise InputFileError(f"{self.path}: cannot be read: {text}") from None

    def _parquet(self, columns: Iterable[str]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        file = pq.ParquetFile(self.path, memory_map=True)
        return file.schema_arrow, file.iter_batches(_BATCH_ROWS, columns=list(columns))

    def _csv(self, columns: Iterable[str]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        convert = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(self._strings, pa.string()), include_columns=list(columns)
        )
        reader = pa_csv.open_csv(self.path, pa_csv.ReadOptions(block_size=_BLOCK_BYTES), _CSV_SYNTAX, convert)
        return reader.schema, reader

    def _json(self, columns: Iterable[str]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        options = pa_json.ReadOptions(block_size=_BLOCK_BYTES)
        schema = pa_json.open_json(self.path, options).schema
        kept = [_settled(schema.field(name)) for name in columns]
        explicit = pa_json.ParseOptions(explicit_schema=pa.schema(kept), unexpected_field_behavior="ignore")
        return schema, pa_json.open_json(self.path, options, explicit) if kept else iter(())


_CSV_SYNTAX = pa_csv.ParseOptions(newlines_in_values=True)


def _settled(field: pa.Field) -> pa.Field:
    """A column of the first block, in which there may have been nulls or empty lists only."""
    kind = field.type
    if pa.types.is_null(kind):
        return field.with_type(pa.string())
    if pa.types.is_list(kind) and pa.types.is_null(kind.value_type):
        return field.with_type(pa.list_(pa.string()))
    if pa.types.is_timestamp(kind):  # text that happens to look like a date
        return field.with_type(pa.string())
    return field
