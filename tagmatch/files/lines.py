"""Rows of text files that have one on each line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product
from typing import Any, Protocol

import pyarrow as pa

from tagmatch.files.columns import ID, Column, Rows, joined, rows_from, with_all_tags
from tagmatch.files.invalid import InvalidRows
from tagmatch.messages import TAGS
from tagmatch.model.errors import InputFileError, InvalidValueError, TagMatchError

# The name of the column, also where it is written with escapes
_ID = re.compile(rb'"id"|\\u')
_BLANK_LINES = re.compile(rb"^[ \t\r]*\n", re.MULTILINE)

# In so small a block, Python may look at each line
_SMALL_BYTES = 1 << 16


class LineFormat(Protocol):
    """How a row is written on a line."""

    @property
    def name(self) -> str:
        """What messages call a line that is one."""

    @property
    def ids(self) -> type | None:
        """The type that all ids have, where that does not depend on the file."""

    def batch(self, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema that lines have.

        Raises
        ------
        pyarrow.ArrowException, TagMatchError
            A line is none, or a value does not have the type of its column.
        """

    def record(self, line: bytes) -> dict[str, Any]:
        """The values of one line by column.

        Raises
        ------
        ValueError
            It is none.
        """

    def check_names(self, record: dict[str, Any], place: str) -> None:
        """See that no column of one line, which messages call `place`, is misspelt.

        Raises
        ------
        InputFileError
            One is.
        """


class LineReader:
    """Rows of lines; blank lines are none.

    What is a row, and whether it can be used, depends on its own line only, and on the ids before it: those of a file
    are all integers or all strings.

    Parameters
    ----------
    path : str
        What messages call the file.
    form : LineFormat
    columns : tuple of Column
        What a row must have, unless they are optional.
    invalid : InvalidRows
        Takes the rows that cannot be used.
    row, line : int
        Rows and lines before.

    Attributes
    ----------
    row : int
        Rows so far, also those that cannot be used.
    """

    def __init__(
        self, path: str, form: LineFormat, columns: tuple[Column, ...], invalid: InvalidRows, row: int, line: int
    ) -> None:
        self._path = path
        self._form = form
        self._columns = columns
        self._invalid = invalid
        self._ids = form.ids
        self.row = row
        self._line = line

    def rows(self, blocks: Iterable[bytes]) -> Iterator[Rows]:
        """The rows of blocks of whole lines."""
        for block in blocks:
            yield from joined(self._rows(block))

    def _rows(self, block: bytes) -> Iterator[Rows]:
        """Rows of a block, in parts between those that cannot be used."""
        lines, rows = block.count(b"\n"), 0
        if block.strip():
            try:
                batch = self._parse(block, lines)
            except (pa.ArrowException, TagMatchError) as error:
                parts = self._parts(block)
                if len(parts) > 1:
                    for part in parts:
                        yield from self._rows(part)
                    return
                self._invalid.found(self._fault(block) or self._unknown_fault(error))
                rows = 1
            else:
                yield rows_from(batch, self.row)
                rows = len(batch)
        self.row += rows
        self._line += lines

    def _parts(self, block: bytes) -> list[bytes]:
        """A block that cannot be read, cut between lines: a small one where lines seem to be at fault, else in two."""
        if len(block) <= _SMALL_BYTES:
            lines = [line + b"\n" for line in block.split(b"\n")[:-1]]
            parts: list[bytes] = []
            for bad, group in groupby(lines, lambda line: bool(line.strip()) and self._fault(line) is not None):
                some = list(group)
                parts += some if bad else [b"".join(some)]
            if len(parts) > 1:
                return parts
        middle = _middle(block)
        return [block[:middle], block[middle:]] if middle else [block]

    def _parse(self, block: bytes, lines: int) -> pa.RecordBatch:
        batch = self._read(block)
        if len(batch) != lines - len(_BLANK_LINES.findall(block)):
            raise InvalidValueError("a row must be on one line, and alone on it")
        batch = with_all_tags(batch, self._columns, self._path, self.row)
        for column in self._columns:
            column.check(batch[column.name], column.label(self._path), self.row)
        if ID in self._columns and batch[ID.name].null_count < len(batch):
            self._ids = str if pa.types.is_string(batch[ID.name].type) else int
        return batch

    def _read(self, block: bytes) -> pa.RecordBatch:
        """Columns of the first types with which the block can be read."""
        names = [column.name for column in self._columns]
        *others, last = product(*(self._kinds(column, block) for column in self._columns))
        for kinds in others:
            try:
                return self._form.batch(block, pa.schema(list(zip(names, kinds, strict=True))))
            except pa.ArrowException:
                pass
        return self._form.batch(block, pa.schema(list(zip(names, last, strict=True))))

    def _kinds(self, column: Column, block: bytes) -> list[pa.DataType]:
        if column is not ID:
            return list(column.kinds)
        if self._ids is None:
            return list(column.kinds) if _ID.search(block) else list(column.kinds[:1])
        return [kind for kind in column.kinds if pa.types.is_string(kind) == (self._ids is str)]

    def _fault(self, line: bytes) -> TagMatchError | None:
        """What is wrong with the next line, in words that name line, row and column; `None` if that is not known."""
        place = f"{self._path}: line {self._line + 1}"
        try:
            record = self._form.record(line)
        except ValueError as fault:
            return InputFileError(f"{place} (row {self.row}) is not {self._form.name}: {fault}")
        for column in self._columns:
            where = f"{column.label(place)}: row {self.row}"
            if column.is_missing(record):
                return InputFileError(
                    f"{place} (row {self.row}) has no column {column.choice}; "
                    f"it has {', '.join(map(repr, record)) or 'none'}"
                )
            value = record.get(column.name)
            if value is None and column.name == TAGS:
                if column.is_optional or any(record.get(name) is not None for name in column.instead):
                    continue
                return column.null(where)
            try:
                column.check_one(value, where)
            except TagMatchError as fault:
                return fault
            if column is ID and value is not None and self._ids not in (None, type(value)):
                before = "integers" if self._ids is int else "strings"
                return InputFileError(f"{where} is {value!r}, but the ids before are {before}")
        try:
            self._form.check_names(record, f"{place} (row {self.row})")
        except InputFileError as fault:
            return fault
        return None

    def _unknown_fault(self, error: Exception) -> TagMatchError:
        return InputFileError(
            f"{self._path}: line {self._line + 1} (row {self.row}) cannot be read: {first_line(error)}"
        )


def _middle(block: bytes) -> int:
    """Where to cut a block between lines; 0 if it is one line."""
    end = block.find(b"\n", len(block) // 2) + 1
    return block.rfind(b"\n", 0, -1) + 1 if end == len(block) else end


def first_line(error: BaseException) -> str:
    """The first line of an error of Arrow, which may go on with where in Arrow it was raised."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
