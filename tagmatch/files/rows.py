"""Sets and queries from files, folders of files and streams, in batches; and rows and answers to files and streams."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tagmatch.files import formats
from tagmatch.files.columns import (
    ATTRIBUTES,
    EVERY_OTHER,
    ID,
    FileColumn,
    FileRows,
    InvalidRows,
    OtherColumns,
    attribute_columns,
    columns_of_data,
    columns_of_queries,
    columns_of_sets,
    joined,
    refuse_twice,
    require_columns,
    rows_from,
    with_all_tags,
)
from tagmatch.files.csv import CsvLines, csv_blocks, csv_cells, header_of
from tagmatch.files.json import (
    JsonLines,
    Translate,
    TranslatedLines,
    concatenated,
    json_blocks,
    json_values,
    object_lines,
    text_of,
)
from tagmatch.model.arrays import BoolArray
from tagmatch.model.arrow import is_text, plain_strings, without_extensions
from tagmatch.model.columns import shown
from tagmatch.model.data_types import Schema
from tagmatch.model.errors import InputFileError, InvalidValueError, TagMatchError
from tagmatch.model.input.messages import TAGS
from tagmatch.model.options import KeyType
from tagmatch.model.parallel import threads_of_arrow
from tagmatch.model.storage.format import MANIFEST
from tagmatch.model.where.declared import NOTHING, Declared

_BATCH_ROWS = 65_536
# What messages call what a function reads
_BODY = "the body"
# In so small a part, Python may look at each row
_SMALL_BYTES = 1 << 16
# This few rows between rows that are read one by one are read so, too, as a separate part is some work
_FEW_ROWS = 16
_LEFT = "and all files with such suffixes are left out: their format is not known"
# The name of the column, also with escapes
_ID = re.compile(rb'"id"|\\u')


class TextReader:
    """Rows of text.

    What is a row, and whether it can be used, depends on its own bytes only, and on the ids before it: those of a file
    are all integers or all strings. `record` of the format decides. Arrow's readers, which are fast, only read rows of
    which it would say the same; if they refuse some, each of these is read by itself.
    """

    def __init__(
        self,
        path: str,
        form: CsvLines | JsonLines | TranslatedLines,
        columns: tuple[FileColumn, ...],
        invalid: InvalidRows,
        row: int,
    ) -> None:
        self._path, self._form, self._columns, self._invalid = path, form, columns, invalid
        self._ids = form.ids
        self.row, self._line = row, 1

    def rows(self, blocks: Iterable[formats.Block]) -> Iterator[FileRows]:
        """The rows of blocks, in parts between those that cannot be used."""
        for block in blocks:
            yield from joined(rows for run in _runs(block.odd) for rows in self._some(block, *run))
            self.row += len(block.begins)
            self._line += block.line_count

    def _some(self, block: formats.Block, first: int, last: int, odd: bool) -> Iterator[FileRows]:
        """Rows, in parts between those that cannot be used."""
        data = block.part(first, last)
        if not odd:
            try:
                yield rows_from(self._together(data, last - first, self.row + first), self.row + first)
            except (pa.ArrowException, TagMatchError):
                odd = len(data) <= _SMALL_BYTES or last - first == 1
            else:
                return
        if not odd:
            middle = (first + last) // 2
            yield from self._some(block, first, middle, False)
            yield from self._some(block, middle, last, False)
            return
        records: dict[int, dict[str, Any]] = {}
        try:
            for place in range(first, last):
                row, line = self.row + place, self._line + int(block.lines[place])
                try:
                    records[row] = self._record(block.part(place, place + 1), row, line)
                except TagMatchError as fault:
                    self._invalid.found(fault)
        except TagMatchError:
            yield from self._of(records)
            raise
        yield from self._of(records)

    def _together(self, data: bytes, count: int, first_row: int) -> pa.RecordBatch:
        """Rows as Arrow's readers read them; of all columns, only ids may have several types."""
        kinds = ID.kinds
        if self._ids is not None:
            kinds = tuple(kind for kind in kinds if pa.types.is_string(kind) == (self._ids is str))
        elif not (ID in self._columns and _ID.search(data)):
            kinds = kinds[:1]
        for kind in kinds:
            schema = pa.schema([(each.name, kind if each is ID else each.kinds[0]) for each in self._columns])
            try:
                batch = self._form.batch(data, schema)
                break
            except pa.ArrowException:
                if kind == kinds[-1]:
                    raise
        if len(batch) != count:
            raise InvalidValueError("Arrow finds other rows")
        return self._checked(batch, first_row)

    def _checked(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        batch = with_all_tags(batch, self._columns, self._path, first_row)
        for column in self._columns:
            column.check(batch[column.name], column.label(self._path), first_row=first_row)
        if ID in self._columns and batch[ID.name].null_count < len(batch):
            self._ids = str if pa.types.is_string(batch[ID.name].type) else int
        return batch

    # -- one by one ----------------------------------------------------------------------------------------------------

    def _record(self, data: bytes, row: int, line: int) -> dict[str, Any]:
        """The values of one row; if it cannot be used, an error in words that name line, row and column."""
        place = f"{self._path}: line {line}"
        try:
            record = self._form.record(data, line, f"{place} (row {row})")
        except ValueError as fault:
            raise InputFileError(f"{place} (row {row}) is not {self._form.name}: {fault}") from None
        for column in self._columns:
            if column.is_missing(record):
                remedy = ": give [] for no tags" if ATTRIBUTES.name in column.instead else ""
                raise InputFileError(
                    f"{place} (row {row}) has no column {column.choice}; "
                    f"it has {', '.join(map(repr, record)) or 'none'}{remedy}"
                )
            value, label = record.get(column.name), column.label(place)
            if value is not None or not (column.is_optional or column.instead):
                column.check_value(value, label, row)
            elif not column.is_optional and all(record.get(name) is None for name in column.instead):
                raise column.null(f"{label}: row {row}")
        given = record.get(ID.name) if ID in self._columns else None
        if given is not None:
            if self._ids not in (None, type(given)):
                before = "integers" if self._ids is int else "strings"
                raise InputFileError(f"{ID.label(place)}: row {row} is {given!r}, but the ids before are {before}")
            self._ids = type(given)
        return record

    def _of(self, records: dict[int, dict[str, Any]]) -> Iterator[FileRows]:
        """Rows by their numbers, which all can be used."""
        if not records:
            return
        numbers, rows = np.array(list(records)), list(records.values())
        try:
            found = {each.name: each.array_of([row.get(each.name) for row in rows]) for each in self._columns}
            yield FileRows(self._checked(pa.record_batch(found), int(numbers[0])), numbers)
        except (pa.ArrowException, TagMatchError, OverflowError) as error:
            if middle := len(rows) // 2:
                for half in (slice(middle), slice(middle, None)):
                    yield from self._of(dict(zip(numbers[half].tolist(), rows[half], strict=True)))
            else:
                text = f"{self._path}: row {numbers[0]} cannot be read: {formats.first_line(error)}"
                self._invalid.found(InputFileError(text))


def _runs(odd: BoolArray) -> list[tuple[int, int, bool]]:
    """Runs of rows that are odd, or few between such, or are not: where each begins and ends, and which it is."""
    if not odd.any():
        return [(0, len(odd), False)] if len(odd) else []
    edges = np.flatnonzero(np.diff(odd, prepend=~odd[:1], append=~odd[-1:]))
    alone = odd[edges[:-1]] | (np.diff(edges) < _FEW_ROWS)
    firsts = np.flatnonzero(np.diff(alone, prepend=~alone[:1]))
    ends = edges[np.append(firsts[1:], len(alone))]
    return list(zip(edges[firsts].tolist(), ends.tolist(), alone[firsts].tolist(), strict=True))


class _Reading(NamedTuple):
    """How files are read: the meaning of columns, and the rules for other columns and for rows that cannot be used."""

    columns: tuple[FileColumn, ...]
    invalid: InvalidRows
    others: OtherColumns
    row_of: Translate | None = None  # Makes rows of the objects of JSON Lines, if these are others

    def rows(self, path: str | formats.Read, form: str | None) -> Iterator[FileRows]:
        """The rows of a file, a folder of files, or a stream; of what reads a body, JSON Lines."""
        if not isinstance(path, str):
            yield from self._lines(_BODY, 0).rows(json_blocks(formats.text_only(path, _BODY)))
            return
        if not (path and Path(path).is_dir()):
            yield from self._file(path, formats.format_of(path, form), 0)
            return
        first = 0
        for file, found in _files_in(Path(path), form):
            first = yield from self._file(file, found, first)

    def _file(self, path: str, form: formats.Format, first_row: int) -> Generator[FileRows, None, int]:
        """The rows of one file; returns the number of the row after its last."""
        name, columns = formats.input_name(path), self.columns
        if not (formats.is_stream(path) or Path(path).exists()):
            raise InputFileError(f"{name}: no such file")
        if self.row_of is not None and form.kind != formats.Kind.json_lines:
            raise InputFileError(f"{name}: documents are JSON Lines, one object on a line; this is {form.kind}")
        if form.kind == formats.Kind.parquet:
            return (yield from self._parquet(path, name, first_row))
        try:
            with formats.input_descriptor(path) as descriptor:
                if form.compression:
                    source = pa.PythonFile(os.fdopen(os.dup(descriptor), "rb"), "r")
                    read: formats.Read = pa.CompressedInputStream(source, form.compression).read
                else:
                    read = formats.at_hand(descriptor, name)
                read = formats.text_only(read, name)
                if form.kind == formats.Kind.csv:
                    blocks = csv_blocks(read)
                    header, first_blocks = header_of(blocks, name)
                    columns = self.others.with_attributes(columns, header, name)
                    require_columns(header, name, columns)
                    reader = TextReader(name, CsvLines(header, columns), columns, self.invalid, first_row)
                    blocks = chain(first_blocks, blocks)
                else:
                    blocks, reader = json_blocks(read), self._lines(name, first_row)
                yield from reader.rows(blocks)
                return reader.row
        except OSError as error:
            raise InputFileError(f"{name}: cannot be read: {error.strerror or formats.first_line(error)}") from None

    def _lines(self, name: str, first_row: int) -> TextReader:
        lines = JsonLines(self.columns, self.others) if self.row_of is None else TranslatedLines(self.row_of)
        return TextReader(name, lines, self.columns, self.invalid, first_row)

    def _parquet(self, path: str, name: str, first_row: int) -> Generator[FileRows, None, int]:
        """The rows of a Parquet file, which messages call `name`; columns that are attributes come after the others."""
        try:
            with (
                formats.input_descriptor(path) as descriptor,
                formats.seekable(descriptor) as place,
                threads_of_arrow(),
                pq.ParquetFile(
                    place, memory_map=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
                ) as file,
            ):
                schema = without_extensions(file.schema_arrow.empty_table()).schema
                names = frozenset(schema.names)
                columns = self.others.with_attributes(self.columns, schema.names, name)
                columns = tuple(each for each in columns if each.name in {*names, TAGS} or not each.is_optional)
                place = schema.get_field_index(ATTRIBUTES.name)
                if place >= 0 and pa.types.is_struct(schema.types[place]):
                    own = [column.name for column in columns if column.is_attribute]
                    try:
                        refuse_twice([field.name for field in schema.types[place]], own)
                    except InvalidValueError as error:
                        raise InputFileError(f"{name}: {error}") from None
                require_columns(schema.names, name, columns)
                there = [column for column in columns if column.name in names]
                for column in there:
                    column.check(pa.nulls(0, schema.field(column.name).type), column.label(name), first_row=0)
                for batch in _batches(file, [column.name for column in there]):
                    yield from joined(self._usable(without_extensions(batch), first_row, name, columns))
                    first_row += len(batch)
                return first_row
        except MemoryError:
            raise
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            said = f"not a whole Parquet file: {formats.first_line(error)}"
            if isinstance(error, OSError) and error.errno is not None:
                said = f"cannot be read: {error.strerror or formats.first_line(error)}"
            raise InputFileError(f"{name}: {said}") from None

    def _usable(
        self, batch: pa.RecordBatch, first: int, name: str, columns: tuple[FileColumn, ...]
    ) -> Iterator[FileRows]:
        """The rows that can be used, in parts between those that cannot."""
        try:
            whole = with_all_tags(batch, columns, name, first)
            for column in columns:
                column.check(whole[column.name], column.label(name), first_row=first)
        except TagMatchError as error:
            middle = len(batch) // 2
            if middle:
                yield from self._usable(batch.slice(0, middle), first, name, columns)
                yield from self._usable(batch.slice(middle), first + middle, name, columns)
            else:
                self.invalid.found(error)
            return
        yield rows_from(whole, first)


def _batches(file: pq.ParquetFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns of a file; a batch with dictionaries within lists or structs cannot be of several row groups."""
    apart = any(map(_has_dictionary_within, map(file.schema_arrow.field, names)))
    for groups in [[each] for each in range(file.num_row_groups)] if apart else [None]:
        yield from file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names)


def _has_dictionary_within(field: pa.Field) -> bool:
    within = [field.type.field(place) for place in range(field.type.num_fields)]
    return any(pa.types.is_dictionary(each.type) or _has_dictionary_within(each) for each in within)


def read_sets(
    path: str | formats.Read,
    form: str | None = None,
    invalid: InvalidRows | None = None,
    key_type: KeyType = "integer",
    *,
    others: OtherColumns | None = None,
    expires: bool = False,
    plane: bool = False,
    match_all: bool = False,
    data: Schema = MappingProxyType({}),
    declared: Declared = NOTHING,
    row_of: Translate | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches with columns `tags` and `key`, and what there is of `where`, `constraints` and `area`, validated.

    `data` has the columns of data, which sets that are put may have. Conditions and attributes are as `declared`.
    `row_of` makes a row, its values by column, of each object of JSON Lines that is no row itself. `path` may be a
    function that reads JSON Lines, instead.
    """
    columns = columns_of_sets(key_type, expires=expires, plane=plane, match_all=match_all, declared=declared)
    columns += columns_of_data(data)
    reading = _Reading(columns, invalid or InvalidRows(), others or OtherColumns((), EVERY_OTHER), row_of)
    return (rows.batch for rows in reading.rows(path, form))


def read_queries(
    path: str | formats.Read,
    form: str | None = None,
    invalid: InvalidRows | None = None,
    attributes: tuple[str, ...] = EVERY_OTHER,
    ignored: tuple[str, ...] = (),
    *,
    plane: bool = False,
    declared: Declared = NOTHING,
    has_score: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Batches with columns `row`, the number of the row from 0, `id`, null without one, and `tags`.

    If some rows have attributes or places, there are columns of these as well, as `TagMatch.match_many`
    takes them. Queries that have attributes need have no tags.

    Batches of a stream hold the lines that have arrived. `attributes` names columns that are an attribute each, besides
    those of a column `attributes`; `EVERY_OTHER` is all that have no meaning. Those that are `ignored` are left aside,
    without a word. With a score, which may need attributes, all batches have these, perhaps as nulls.
    """
    columns = columns_of_queries(attributes, plane=plane, declared=declared)
    names = [column.name for column in columns]
    own = [name for name in names if name != ATTRIBUTES.name]
    others = OtherColumns(names, ignored, attributes, declared)
    for batch, numbers in _Reading(columns, invalid or InvalidRows(), others).rows(path, form):
        there = {
            name: column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name == TAGS or (has_score and name not in own) or column.null_count < len(batch)
        }
        ids = there.get(ID.name, pa.nulls(len(batch), pa.int64()))
        found = {"row": pa.array(numbers), ID.name: plain_strings(ids, "") if is_text(ids.type) else ids}
        found |= {name: there[name] for name in own if name in there and name != ID.name}
        if given := {name: column for name, column in there.items() if name not in own}:
            found |= attribute_columns(given)
        yield pa.record_batch(found)


def rows_in(path: str, form: str | None = None) -> int | None:
    """Rows of a Parquet file or of all in a folder, None if they are not known before reading."""
    with contextlib.suppress(OSError, pa.ArrowException, InputFileError):
        files = _files_in(Path(path), form) if path and Path(path).is_dir() else [(path, formats.format_of(path, form))]
        if not any(formats.is_stream(file) or found.kind != formats.Kind.parquet for file, found in files):
            return sum(map(_rows_of_parquet, (file for file, _ in files)))
    return None


def _rows_of_parquet(file: str) -> int:
    with open(file, "rb") as opened:  # Arrow takes no path that is no UTF-8
        return int(pq.read_metadata(opened).num_rows)


def _files_in(folder: Path, form: str | None) -> list[tuple[str, formats.Format]]:
    """Files of a folder by name, all of one kind, without those that readers of folders leave out."""
    if (folder / MANIFEST).is_file():
        raise InputFileError(f"{folder} is an index, not a file of rows; `tagmatch export` makes one of it")
    try:
        # A link to nothing is a file that is missing
        names = sorted(file.name for file in folder.iterdir() if file.is_file() or not file.exists())
    except OSError as error:
        raise InputFileError(f"{folder}: cannot be read: {error.strerror or error}") from None
    unfinished = [name for name in names if name.startswith("._") and name.endswith(".part")]
    if unfinished:
        raise InputFileError(f"{folder} is not whole, as {unfinished[0]} tells: its writer was stopped; make it again")
    known = [(name, formats.format_of_suffix(Path(name))) for name in names if name[0] not in "._"]
    wanted = None if form is None else formats.format_of("", form)
    files = [(str(folder / name), found) for name, found in known if found and wanted in (None, found)]
    kinds = sorted({found.kind for _, found in files})
    if len(kinds) > 1:
        raise InputFileError(f"{folder}: the folder has files of {' and '.join(kinds)}; give the format of those meant")
    if not files:
        raise InputFileError(f"{folder}: the folder has no files of {form or 'a known format'}")
    if others := [name for name, found in known if not found]:
        warnings.warn(f"{folder}: {', '.join(others[:3])[:200]} {_LEFT}", stacklevel=1)
    return files


def _head_cell(name: str) -> str:
    """A name as the first line of CSV has it: in quotes if it is not as plain as most are."""
    if name != name.strip() or {*"\r\n"} & {*name}:
        raise InvalidValueError(f"the column {shown(name)} has no form in CSV; write JSON Lines or Parquet")
    return name if name.isidentifier() else csv_cells(pa.array([name]))[0].as_py()


WriteAnswers = Callable[[pa.Array, pa.Array, pa.Array], None]


@contextlib.contextmanager
def answer_writer(path: str, answers: pa.Field, form: str | None = None) -> Iterator[WriteAnswers]:
    """Give a function that writes a row per query, its id and its answer, for its row number, its id if any, and that.

    A file appears only when it is whole. What is written to a stream goes out with every batch.
    """
    found = formats.format_of(path, form)
    is_csv = found.kind == formats.Kind.csv
    if is_csv and pa.types.is_list(answers.type):
        raise InputFileError(f"{path}: answers are lists of keys, which CSV cannot hold; write JSON Lines or Parquet")
    with formats.open_output(path, found.compression) as stream:
        if found.kind == formats.Kind.parquet:
            with _parquet_answers(stream, answers) as write_parquet:
                yield write_parquet
            return
        texts = csv_cells if is_csv else json_values
        before, between, after = ("", ",", "\n") if is_csv else ('{"id":', f',"{answers.name}":', "}\n")
        if is_csv:
            stream.write(f"id,{answers.name}\n".encode())

        def write(rows: pa.Array, ids: pa.Array, given: pa.Array) -> None:
            if len(ids):
                named = pc.if_else(ids.is_null(), texts(rows), texts(ids))
                stream.write(text_of(concatenated(before, named, between, json_values(given), after)))
                stream.flush()

        yield write


@contextlib.contextmanager
def _parquet_answers(stream: formats.Stream, answers: pa.Field) -> Iterator[WriteAnswers]:
    """One column of ids: numbers, or strings if the first query's id is one."""
    writer: pq.ParquetWriter | None = None
    with contextlib.ExitStack() as stack:

        def write(rows: pa.Array, ids: pa.Array, given: pa.Array) -> None:
            nonlocal writer
            if writer is None:
                kind = rows.type if ids.slice(0, 1).null_count else ids.type
                writer = stack.enter_context(pq.ParquetWriter(stream, pa.schema([("id", kind), answers])))
            kind = writer.schema.field("id").type
            try:
                missing = pc.if_else(ids.is_null(), rows, pa.scalar(None, rows.type))
                named = pc.coalesce(ids.cast(kind), missing.cast(kind))
            except pa.ArrowInvalid as error:
                raise TagMatchError(
                    f"the ids of the queries do not fit one Parquet column, of {kind} as the first one's: {error}"
                ) from None
            writer.write_batch(pa.record_batch([named, given], schema=writer.schema))

        yield write
        if writer is None:
            write(*(pa.nulls(0, kind) for kind in (pa.int64(), pa.int64(), answers.type)))


Write = Callable[[pa.RecordBatch], object]


@contextlib.contextmanager
def row_writer(path: str, schema: pa.Schema, form: str | None = None, *, with_nulls: bool = True) -> Iterator[Write]:
    """Give a function that writes rows; a file appears only when it is whole."""
    found = formats.format_of(path, form)
    with formats.open_output(path, found.compression) as stream:
        if found.kind == formats.Kind.parquet:
            with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
                yield writer.write_batch
        elif found.kind == formats.Kind.csv:
            stream.write(f"{','.join(map(_head_cell, schema.names))}\n".encode())

            def write_csv(rows: pa.RecordBatch) -> None:
                first, *others = map(csv_cells, rows.columns)
                parts = (part for cell in others for part in (",", cell))
                stream.write(text_of(concatenated(first, *parts, "\n")))

            yield write_csv
        else:
            yield lambda rows: stream.write(object_lines(rows, with_nulls=with_nulls))
