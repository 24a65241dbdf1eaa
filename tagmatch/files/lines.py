"""Rows of text files: where each begins and ends, and which of them can be used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tagmatch.files.columns import ID, FileColumn, FileRows, InvalidRows, joined, rows_from, with_all_tags
from tagmatch.model.arrays import BoolArray, I64Array, U8Array
from tagmatch.model.errors import InputFileError, InvalidValueError, TagMatchError

# The name of the column, also where it is written with escapes
_ID = re.compile(rb'"id"|\\u')
_BLANK = b" \t\r\n"
_BLANKS = np.zeros(256, np.bool_)
_BLANKS[list(_BLANK)] = True


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
        begins, ends, lines = (each[chosen] for each in (self.begins, self.ends, self.lines))
        return Block(self.data, begins, ends, lines, self.odd[chosen], self.line_count)


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

    name: str  # What messages call a row that is one
    ids: type | None  # The type that all ids have, where that does not depend on the file

    def batch(self, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema that some rows have; no row is odd."""

    def record(self, row: bytes, line: int, place: str, /) -> dict[str, Any]:
        """The values by column of one row, which messages call `place`; attributes are together in one column.

        `line` is the number of its first line, from 1. ValueError says why these bytes are none.
        """


class TextReader:
    """Rows of text.

    What is a row, and whether it can be used, depends on its own bytes only, and on the ids before it: those of a file
    are all integers or all strings. `TextFormat.record` decides. Arrow's readers, which are fast, only read rows of
    which it would say the same; where they refuse some, each half is read by itself, down to a single row.
    """

    def __init__(
        self, path: str, form: TextFormat, columns: tuple[FileColumn, ...], invalid: InvalidRows, row: int
    ) -> None:
        self._path, self._form, self._columns, self._invalid = path, form, columns, invalid
        self._ids = form.ids
        self.row, self._line = row, 1

    def rows(self, blocks: Iterable[Block]) -> Iterator[FileRows]:
        """The rows of blocks, in parts between those that cannot be used."""
        for block in blocks:
            odd = np.flatnonzero(block.odd)
            edges = np.unique(np.concatenate([odd, odd + 1, [0, len(block.odd)]])).tolist()
            yield from joined(rows for first, last in pairwise(edges) for rows in self._some(block, first, last))
            self.row += len(block.begins)
            self._line += block.line_count

    def _some(self, block: Block, first: int, last: int) -> Iterator[FileRows]:
        """Rows of which none is odd, or one row."""
        row, data = self.row + first, block.part(first, last)
        try:
            if block.odd[first]:
                yield rows_from(self._one(data, row, self._line + int(block.lines[first])), row)
            else:
                yield rows_from(self._together(data, last - first, row), row)
        except (pa.ArrowException, TagMatchError) as error:
            if last - first > 1:
                middle = (first + last) // 2
                yield from self._some(block, first, middle)
                yield from self._some(block, middle, last)
            elif block.odd[first]:
                self._invalid.found(error)
            else:
                block.odd[first] = True
                yield from self._some(block, first, last)

    def _together(self, data: bytes, count: int, first_row: int) -> pa.RecordBatch:
        *others, last = self._schemas(data)
        for schema in others:
            try:
                batch = self._form.batch(data, schema)
                break
            except pa.ArrowException:
                pass
        else:
            batch = self._form.batch(data, last)
        if len(batch) != count:
            raise InvalidValueError("Arrow finds other rows")
        return self._checked(batch, self._path, first_row)

    def _schemas(self, data: bytes) -> list[pa.Schema]:
        """What the columns of these rows may be; only ids have several types."""
        kinds = ID.kinds
        if self._ids is not None:
            kinds = tuple(kind for kind in kinds if pa.types.is_string(kind) == (self._ids is str))
        elif not (ID in self._columns and _ID.search(data)):
            kinds = kinds[:1]
        return [
            pa.schema([(each.name, kind if each is ID else each.kinds[0]) for each in self._columns]) for kind in kinds
        ]

    def _checked(self, batch: pa.RecordBatch, place: str, first_row: int) -> pa.RecordBatch:
        batch = with_all_tags(batch, self._columns, place, first_row)
        for column in self._columns:
            column.check(batch[column.name], column.label(place), first_row=first_row)
        if ID in self._columns and batch[ID.name].null_count < len(batch):
            self._ids = str if pa.types.is_string(batch[ID.name].type) else int
        return batch

    def _one(self, data: bytes, row: int, line: int) -> pa.RecordBatch:
        """One row; if it cannot be used, an error in words that name line, row and column."""
        place = f"{self._path}: line {line}"
        try:
            record = self._form.record(data, line, f"{place} (row {row})")
        except ValueError as fault:
            raise InputFileError(f"{place} (row {row}) is not {self._form.name}: {fault}") from None
        found = {}
        for column in self._columns:
            if column.is_missing(record):
                raise InputFileError(
                    f"{place} (row {row}) has no column {column.choice}; "
                    f"it has {', '.join(map(repr, record)) or 'none'}"
                )
            try:
                found[column.name] = column.one(record.get(column.name), f"{column.label(place)}: row {row}")
            except (pa.ArrowException, OverflowError) as error:
                raise InputFileError(f"{self._path}: row {row} cannot be read: {first_line(error)}") from None
        given = record.get(ID.name) if ID in self._columns else None
        if given is not None and self._ids not in (None, type(given)):
            before = "integers" if self._ids is int else "strings"
            raise InputFileError(f"{ID.label(place)}: row {row} is {given!r}, but the ids before are {before}")
        return self._checked(pa.record_batch(found), place, row)


def lines_of(data: U8Array) -> I64Array:
    """Where lines end that have a line feed."""
    return np.flatnonzero(data == ord("\n")) + 1


def first_line(error: BaseException) -> str:
    """The first line of an error of Arrow, which may go on with where in Arrow it was raised."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
