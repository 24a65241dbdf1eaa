"""Rows of text files: where each begins and ends, and which of them can be used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tagmatch.files.columns import ID, FileColumn, FileRows, InvalidRows, joined, rows_from, with_all_tags
from tagmatch.messages import TAGS
from tagmatch.model.arrays import BoolArray, I64Array, U8Array
from tagmatch.model.errors import InputFileError, InvalidValueError, TagMatchError

# The name of the column, also where it is written with escapes
_ID = re.compile(rb'"id"|\\u')
_BLANK = b" \t\r\n"
_BLANKS = np.zeros(256, np.bool_)
_BLANKS[list(_BLANK)] = True

_GREATEST = 2**63 - 1

# In so small a part, Python may look at each row
_SMALL_BYTES = 1 << 16
# So few rows between such as are looked at one by one are looked at, too, as a part of their own is some work
_FEW_ROWS = 16


class Block(NamedTuple):
    """Some rows of a text file, without lines that are blank, which are none."""

    data: bytes
    begins: I64Array  # Where each row begins, and where the next line does
    ends: I64Array
    lines: I64Array  # The lines on which rows begin, the first one of the block being 0
    odd: BoolArray  # Rows that are to be read one by one, as Arrow's readers have other rules for them, or none
    line_count: int  # Lines of the block

    def part(self, first: int, last: int) -> bytes:
        """The bytes of rows from one to before another."""
        return self.data[self.begins[first] : self.ends[last - 1]]

    def rows(self, chosen: BoolArray | slice) -> Block:
        """The block with some of its rows only."""
        return self._replace(
            begins=self.begins[chosen], ends=self.ends[chosen], lines=self.lines[chosen], odd=self.odd[chosen]
        )


def block_of(data: bytes, begins: I64Array, ends: I64Array, lines: I64Array, odd: BoolArray, line_count: int) -> Block:
    """A block of the rows that are not blank; those with zero bytes are odd."""
    array = np.frombuffer(data, np.uint8)
    if b"\0" in data:
        odd = odd.copy()
        odd[np.searchsorted(ends, np.flatnonzero(array == 0), side="right")] = True
    found = Block(data, begins, ends, lines, odd, line_count)
    is_blank = _BLANKS[array[begins]]
    for place in np.flatnonzero(is_blank).tolist():
        is_blank[place] = not data[begins[place] : ends[place]].strip(_BLANK)
    return found.rows(~is_blank) if is_blank.any() else found


class TextFormat(Protocol):
    """How a row is written."""

    @property
    def name(self) -> str:
        """What messages call a row that is one."""

    @property
    def ids(self) -> type | None:
        """The type that all ids have, where that does not depend on the file."""

    def batch(self, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema that some rows have; no row is odd."""

    def record(self, row: bytes, line: int, /) -> dict[str, Any]:
        """The values of one row by column; `line` is the number of its first line, from 1."""

    def whole(self, record: dict[str, Any], place: str, /) -> dict[str, Any]:
        """A row, which messages call `place`, whose attributes are together in one column."""


class TextReader:
    """Rows of text.

    What is a row, and whether it can be used, depends on its own bytes only, and on the ids before it: those of a file
    are all integers or all strings. `TextFormat.record` decides. Arrow's readers, which are fast, only read rows of
    which it would say the same; where they refuse some, each of these is read by itself.
    """

    def __init__(
        self, path: str, form: TextFormat, columns: tuple[FileColumn, ...], invalid: InvalidRows, row: int
    ) -> None:
        self._path = path
        self._form = form
        self._columns = columns
        self._invalid = invalid
        self._ids = form.ids
        self.row = row
        self._line = 1

    def rows(self, blocks: Iterable[Block]) -> Iterator[FileRows]:
        """The rows of blocks."""
        for block in blocks:
            yield from joined(self._rows(block))
            self.row += len(block.begins)
            self._line += block.line_count

    def _rows(self, block: Block) -> Iterator[FileRows]:
        """Rows of a block, in parts between those that cannot be used."""
        for first, last, odd in _runs(block.odd):
            yield from (self._one_by_one if odd else self._together)(block, first, last)

    def _together(self, block: Block, first: int, last: int) -> Iterator[FileRows]:
        data = block.part(first, last)
        try:
            batch = self._parse(data, last - first, self.row + first)
        except (pa.ArrowException, TagMatchError):
            if len(data) <= _SMALL_BYTES or last - first == 1:
                yield from self._one_by_one(block, first, last)
            else:
                middle = (first + last) // 2
                yield from self._together(block, first, middle)
                yield from self._together(block, middle, last)
        else:
            yield rows_from(batch, self.row + first)

    def _parse(self, data: bytes, count: int, first_row: int) -> pa.RecordBatch:
        names = [column.name for column in self._columns]
        *others, last = product(*(self._kinds(column, data) for column in self._columns))
        for kinds in others:
            try:
                batch = self._form.batch(data, pa.schema(list(zip(names, kinds, strict=True))))
                break
            except pa.ArrowException:
                pass
        else:
            batch = self._form.batch(data, pa.schema(list(zip(names, last, strict=True))))
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

    def _kinds(self, column: FileColumn, data: bytes) -> list[pa.DataType]:
        if column is not ID:
            return list(column.kinds)
        if self._ids is None:
            return list(column.kinds) if _ID.search(data) else list(column.kinds[:1])
        return [kind for kind in column.kinds if pa.types.is_string(kind) == (self._ids is str)]

    # -- one by one ----------------------------------------------------------------------------------------------------

    def _one_by_one(self, block: Block, first: int, last: int) -> Iterator[FileRows]:
        records: list[dict[str, Any]] = []
        for place in range(first, last):
            row = self.row + place
            try:
                record = self._record(block.part(place, place + 1), row, self._line + int(block.lines[place]))
            except TagMatchError as fault:
                yield from self._of(records, row - len(records))
                records = []
                self._invalid.found(fault)
            else:
                records.append(record)
        yield from self._of(records, self.row + last - len(records))

    def _of(self, records: list[dict[str, Any]], first_row: int) -> Iterator[FileRows]:
        """Rows that can be used."""
        if not records:
            return
        try:
            found = {}
            for column in self._columns:
                values = [record.get(column.name) for record in records]
                found[column.name] = column.array(values, _kind_of(values) if column is ID else column.kinds[0])
            batch = self._checked(pa.record_batch(found), first_row)
        except (pa.ArrowException, TagMatchError, OverflowError) as error:
            middle = len(records) // 2
            if middle:
                yield from self._of(records[:middle], first_row)
                yield from self._of(records[middle:], first_row + middle)
            else:
                message = f"{self._path}: row {first_row} cannot be read: {first_line(error)}"
                self._invalid.found(InputFileError(message))
        else:
            yield rows_from(batch, first_row)

    def _record(self, data: bytes, row: int, line: int) -> dict[str, Any]:
        """The values of the row; if it cannot be used, an error in words that name line, row and column."""
        place = f"{self._path}: line {line}"
        try:
            record = self._form.record(data, line)
        except ValueError as fault:
            raise InputFileError(f"{place} (row {row}) is not {self._form.name}: {fault}") from None
        record = self._form.whole(record, f"{place} (row {row})")
        for column in self._columns:
            where = f"{column.label(place)}: row {row}"
            if column.is_missing(record):
                raise InputFileError(
                    f"{place} (row {row}) has no column {column.choice}; "
                    f"it has {', '.join(map(repr, record)) or 'none'}"
                )
            value = record.get(column.name)
            if value is None and column.name == TAGS:
                if column.is_optional or any(record.get(name) is not None for name in column.instead):
                    continue
                raise column.null(where)
            if value is not None or not column.is_optional:
                column.check_value(value, where)
        found = record.get(ID.name) if ID in self._columns else None
        if found is not None:
            if self._ids not in (None, type(found)):
                before = "integers" if self._ids is int else "strings"
                raise InputFileError(f"{ID.label(place)}: row {row} is {found!r}, but the ids before are {before}")
            self._ids = type(found)
        return record


def _kind_of(ids: list[int | str | None]) -> pa.DataType:
    """The type of a column of these ids, all integers or all strings; there may be none for all integers at once."""
    if any(isinstance(each, str) for each in ids):
        return pa.string()
    return pa.uint64() if any(isinstance(each, int) and each > _GREATEST for each in ids) else pa.int64()


def _runs(odd: BoolArray) -> Iterator[tuple[int, int, bool]]:
    """Runs of rows that are odd, or are not: where each begins and ends, and which it is."""
    if not odd.any():
        if len(odd):
            yield 0, len(odd), False
        return
    borders = np.flatnonzero(np.diff(odd)) + 1
    begins, ends = np.append(0, borders), np.append(borders, len(odd))
    alone = odd[begins] | (ends - begins < _FEW_ROWS)
    firsts = np.flatnonzero(np.append(True, alone[1:] != alone[:-1]))
    for first, after in zip(firsts.tolist(), [*firsts[1:].tolist(), len(begins)], strict=True):
        yield int(begins[first]), int(ends[after - 1]), bool(alone[first])


def lines_of(data: U8Array) -> I64Array:
    """Where lines end that have a line feed."""
    return np.flatnonzero(data == ord("\n")) + 1


def first_line(error: BaseException) -> str:
    """The first line of an error of Arrow, which may go on with where in Arrow it was raised."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
