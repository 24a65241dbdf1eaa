"""Files of sets, queries and answers: Parquet or JSON Lines by suffix, or folders of Parquet, streamed in batches."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from tagmatch.columns import key_value, key_values, tag_list, tag_lists
from tagmatch.errors import InputFileError, InvalidTypeError, TagMatchError

STANDARD_STREAM = "-"

JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
_BATCH_ROWS = 65_536
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Column:
    """A column of a file and how its values are checked.

    Attributes
    ----------
    name : str
    kinds : tuple of pyarrow.DataType
        Types that the column of a JSON Lines file may have; the first that fits is taken.
    check : callable
        `check(array, name, first_row)` raises a `TagMatchError` for values that cannot be used.
    check_one : callable
        The same for one Python value, `check_one(value, name)`.
    """

    name: str
    kinds: tuple[pa.DataType, ...]
    check: Callable[[pa.Array, str, int], object]
    check_one: Callable[[Any, str], object]


def _check_ids(ids: pa.Array, name: str, _: int) -> None:
    kind = ids.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    ):
        raise InvalidTypeError(f"{name} must be integers or strings, not {kind}")


def _check_id(value: object, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise InvalidTypeError(f"{name} must be an integer or a string, not {value!r}")


_STORED_TAGS = Column(
    "tags",
    (pa.list_(pa.string()),),
    lambda array, name, row: tag_lists(array, name, first_row=row, stored=True),
    tag_list,
)
_QUERY_TAGS = Column(
    "tags", (pa.list_(pa.string()),), lambda array, name, row: tag_lists(array, name, first_row=row), tag_list
)
_KEY = Column("key", (pa.uint64(),), lambda array, name, row: key_values(array, name, first_row=row), key_value)
_ID = Column("id", (pa.int64(), pa.uint64(), pa.string()), _check_ids, _check_id)


def read_sets(path: str) -> Iterator[pa.RecordBatch]:
    """Batches with columns `tags` and `key`, validated.

    Raises
    ------
    InputFileError
        The file cannot be read, or lacks a column; names file, column and row.
    InvalidTypeError, InvalidValueError, NullError
        For values that cannot be used; names file, column and row.
    """
    return _read(path, (_STORED_TAGS, _KEY))


def read_queries(path: str) -> Iterator[pa.RecordBatch]:
    """Batches with columns `tags` and `id`, which is the row number in a file without ids; errors as `read_sets`."""
    first_row = 0
    for batch in _read(path, (_QUERY_TAGS,), _ID):
        ids = batch["id"] if "id" in batch.schema.names else pa.array(np.arange(first_row, first_row + len(batch)))
        first_row += len(batch)
        yield pa.record_batch([ids, batch["tags"]], names=["id", "tags"])


def rows_in(path: str) -> int | None:
    """Rows of a Parquet file or of all in a folder, None where they are not known before reading."""
    with contextlib.suppress(OSError, pa.ArrowException):
        files = _parquet_files_in(Path(path)) if Path(path).is_dir() else [path]
        if all(Path(file).suffix.lower() in PARQUET_SUFFIXES for file in files):
            return sum(int(pq.read_metadata(file).num_rows) for file in files)
    return None


def _parquet_files_in(folder: Path) -> list[str]:
    """Parquet files of a folder by name, without those that readers of folders leave out."""
    names = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in PARQUET_SUFFIXES)
    return [str(folder / name) for name in names if name[0] not in "._"]


def _read(path: str, columns: tuple[Column, ...], optional: Column | None = None) -> Iterator[pa.RecordBatch]:
    if path == STANDARD_STREAM:
        return _read_json(sys.stdin.buffer, "standard input", columns, optional)
    file = Path(path)
    if file.is_dir():
        return _read_folder(file, columns, optional)
    suffix = file.suffix.lower()
    if suffix not in PARQUET_SUFFIXES | JSON_SUFFIXES:
        raise InputFileError(
            f"{path}: cannot tell the format; the name must end in {_one_of(PARQUET_SUFFIXES | JSON_SUFFIXES)}"
        )
    if not file.exists():
        raise InputFileError(f"{path}: no such file")
    if suffix in PARQUET_SUFFIXES:
        return _read_parquet(path, columns, optional)
    return _read_json_file(file, columns, optional)


def _read_folder(folder: Path, columns: tuple[Column, ...], optional: Column | None) -> Iterator[pa.RecordBatch]:
    try:
        files = _parquet_files_in(folder)
        unfinished = [file.name for file in folder.glob("._*.part")]
    except OSError as error:
        raise InputFileError(f"{folder}: cannot be read: {error.strerror or error}") from None
    if unfinished:
        raise InputFileError(f"{folder} is not whole, as {unfinished[0]} tells: its writer was stopped; make it again")
    if not files:
        raise InputFileError(f"{folder}: the folder has no Parquet files")
    return chain.from_iterable(_read_parquet(file, columns, optional) for file in files)


def _one_of(suffixes: frozenset[str]) -> str:
    return ", ".join(sorted(suffixes))


def _label(path: str, column: Column) -> str:
    return f"{path}: column {column.name!r}"


def _read_parquet(path: str, columns: tuple[Column, ...], optional: Column | None) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            schema = file.schema_arrow
            if optional is not None and optional.name in schema.names:
                columns = (*columns, optional)
            for column in columns:
                if column.name not in schema.names:
                    raise InputFileError(
                        f"{path} has no column {column.name!r}; it has {', '.join(map(repr, schema.names)) or 'none'}"
                    )
                column.check(pa.array([], schema.field(column.name).type), _label(path, column), 0)
            first_row = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=[column.name for column in columns]):
                for column in columns:
                    column.check(batch[column.name], _label(path, column), first_row)
                yield batch
                first_row += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise InputFileError(f"{path}: not a whole Parquet file: {_first_line(error)}") from None


def _read_json_file(file: Path, columns: tuple[Column, ...], optional: Column | None) -> Iterator[pa.RecordBatch]:
    try:
        with file.open("rb") as stream:
            yield from _read_json(stream, str(file), columns, optional)
    except OSError as error:
        raise InputFileError(f"{file}: cannot be read: {error.strerror or error}") from None


def _read_json(
    stream: BinaryIO, path: str, columns: tuple[Column, ...], optional: Column | None
) -> Iterator[pa.RecordBatch]:
    first_row = first_line = 0
    for block in _whole_lines(stream):
        lines = block.count(b"\n")
        if block.strip():
            wanted = columns
            if optional is not None and (optional in columns or f'"{optional.name}"'.encode() in block):
                wanted = tuple(dict.fromkeys((*columns, optional)))
            try:
                batch = _parse_json(block, wanted)
                for column in wanted:
                    column.check(batch[column.name], _label(path, column), first_row)
            except (pa.ArrowException, TagMatchError) as error:
                _find_json_fault(block, path, wanted, optional, first_row, first_line)
                raise InputFileError(f"{path}: in the lines after line {first_line}: {_first_line(error)}") from None
            if wanted != columns:
                assert optional is not None
                if batch[optional.name].null_count == len(batch):
                    batch = batch.drop_columns(optional.name)
                elif first_row == 0:
                    columns = wanted
                else:
                    raise InputFileError(
                        f"{path}: a line after line {first_line} has column {optional.name!r}, the lines before have "
                        "none; give it on all lines or on none"
                    )
            yield batch
            first_row += len(batch)
        first_line += lines


def _parse_json(block: bytes, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """One batch; where a column may have several types, the first is taken with which the block can be read."""
    choices = list(product(*(column.kinds for column in columns)))
    names = [column.name for column in columns]
    for kinds in choices:
        options = pa_json.ParseOptions(
            explicit_schema=pa.schema(list(zip(names, kinds, strict=True))), unexpected_field_behavior="ignore"
        )
        try:
            table = pa_json.read_json(pa.BufferReader(block), pa_json.ReadOptions(block_size=len(block) + 1), options)
            return table.combine_chunks().to_batches()[0]
        except pa.ArrowException:
            if kinds == choices[-1]:
                raise
    raise AssertionError("unreachable")


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The stream's bytes in blocks that end where a line ends."""
    rest = b""
    while more := stream.read(_BLOCK_BYTES):
        end = more.rfind(b"\n") + 1
        if end:
            yield rest + more[:end]
            rest = more[end:]
        else:
            rest += more
    if rest:
        yield rest + b"\n"


def _find_json_fault(
    block: bytes,
    path: str,
    columns: tuple[Column, ...],
    optional: Column | None,
    first_row: int,
    first_line: int,
) -> None:
    """Raise the error for the first bad line, in words that name line, row and column."""
    row = first_row
    kinds: dict[str, type] = {}
    for line, text in enumerate(block.split(b"\n"), first_line + 1):
        if not text.strip():
            continue
        place = f"{path}: line {line}"
        try:
            record = json.loads(text)
        except ValueError as error:
            raise InputFileError(f"{place} (row {row}) is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise InputFileError(f"{place} (row {row}) is not a JSON object")
        for column in columns:
            if column is not optional and column.name not in record:
                raise InputFileError(f"{place} (row {row}) has no column {column.name!r}")
            value = record.get(column.name)
            column.check_one(value, f"{place}: column {column.name!r}: row {row}")
            if value is not None and kinds.setdefault(column.name, type(value)) is not type(value):
                raise InputFileError(
                    f"{place}: column {column.name!r}: row {row} is {type(value).__name__}, "
                    f"rows before are {kinds[column.name].__name__}"
                )
        row += 1


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class AnswerWriter(Protocol):
    """Takes answers batch by batch."""

    def write(self, ids: pa.Array, keys: pa.ListArray) -> None:
        """Append one row per query."""


class _JsonLines:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, ids: pa.Array, keys: pa.ListArray) -> None:
        if not len(ids):
            return
        joined = pc.binary_join(keys.cast(pa.list_(pa.string())), ",")
        lines = pc.binary_join_element_wise('{"id":', _json_values(ids), ',"keys":[', joined, "]}\n", "")
        _, _, data = lines.buffers()
        self._stream.write(memoryview(data))


def _json_values(ids: pa.Array) -> pa.Array:
    """JSON text of integers or strings; null for nulls."""
    if pa.types.is_integer(ids.type):
        return ids.cast(pa.string()).fill_null("null")
    return pa.array([json.dumps(value) for value in ids.to_pylist()], pa.string())


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def write(self, ids: pa.Array, keys: pa.ListArray) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, pa.schema([("id", ids.type), ("keys", keys.type)]))
        try:
            ids = ids.cast(self._writer.schema.field("id").type)
        except pa.ArrowInvalid as error:
            raise TagMatchError(f"the ids of the queries do not fit one Parquet column: {error}") from None
        self._writer.write_batch(pa.record_batch([ids, keys], names=["id", "keys"]))

    def close(self) -> None:
        if self._writer is None:
            self.write(pa.array([], pa.int64()), pa.array([], pa.list_(pa.uint64())))
        assert self._writer is not None
        self._writer.close()


@contextlib.contextmanager
def answer_writer(path: str) -> Iterator[AnswerWriter]:
    """A writer of rows (`id`, `keys`); a file appears under its name only when it is whole.

    Raises
    ------
    TagMatchError
        The suffix is none that can be written, or writing fails.
    """
    if path == STANDARD_STREAM:
        yield _JsonLines(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in PARQUET_SUFFIXES | JSON_SUFFIXES:
        raise TagMatchError(f"{path}: the name must end in {_one_of(PARQUET_SUFFIXES | JSON_SUFFIXES)}")
    with write_whole(target) as part:
        if suffix in PARQUET_SUFFIXES:
            writer = _Parquet(part)
            yield writer
            writer.close()
        else:
            with part.open("wb") as stream:
                yield _JsonLines(stream)


@contextlib.contextmanager
def write_whole(target: Path) -> Iterator[Path]:
    """A hidden path to write to, which gets the name `target` at the end, or is removed after an error.

    Raises
    ------
    TagMatchError
        For an `OSError` in between; the message names `target`.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise TagMatchError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
