"""CSV: column names in the first row, then values in each.

Where rows of CSV begin and end, and their cells, as RFC 4180 has them.

A cell that begins with a quote ends with one. The text between them may be over several lines, and a quote in it is
written twice. Lines end in CRLF, LF, or CR alone. A quote in another cell is a character as any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tagmatch.files.columns import ATTRIBUTES, FileColumn, refuse_twice
from tagmatch.files.formats import BLOCK_BYTES, Block, Read, block_of
from tagmatch.files.json import MARK, concatenated, json_lists, json_values, read_json, time_texts, utf8_text
from tagmatch.model.arrays import BoolArray, I64Array, U8Array
from tagmatch.model.clock import TIME
from tagmatch.model.columns import shown
from tagmatch.model.errors import InputFileError, InvalidValueError
from tagmatch.model.input.messages import TAGS
from tagmatch.model.input.typed import PARSED
from tagmatch.model.parallel import threads_of_arrow

_LINE_END = r"(?:\r\n?|\n)"
_QUOTED = r'"(?:[^"]++|"")*+"'
_CELL = rf'(?:{_QUOTED}|[^",\r\n][^,\r\n]*+|)'

_A_LINE_END = re.compile(_LINE_END.encode())
_A_QUOTED_CELL = re.compile(_QUOTED.encode())
_CELLS_BEFORE = re.compile(f"(?:{_CELL},)*+".encode())
_ROW = re.compile(f"{_CELL}(?:,{_CELL})*+{_LINE_END}".encode())
# In text
_CELL_AND_BORDER = re.compile(rf"({_CELL})(,|{_LINE_END}?\Z)")

_QUOTE, _LF, _CR = b'"\n\r'
_BORDERS = np.zeros(256, np.bool_)
_BORDERS[list(b'",\n\r')] = True
# Up to here, an unfinished row is looked at again as soon as there is more
_EAGER_BYTES = 1 << 20


def csv_blocks(read: Read) -> Iterator[Block]:
    """The rows of a stream: those that are at hand. The last one may be cut off, in quotes."""
    begun, wanted = [b""], 0
    size = 0
    while more := read(BLOCK_BYTES):
        begun.append(more)
        size += len(more)
        if size < wanted:
            continue
        data = b"".join(begun)
        block = _block(data, is_all=False)
        if block is not None:
            yield block
        begun = [data if block is None else data[len(block.data) :]]
        size = len(begun[0])
        # What goes on for long is not looked at again and again
        wanted = 2 * size if size > _EAGER_BYTES else 0
    if size:
        data = b"".join(begun)
        if not data.endswith((b"\n", b"\r")):
            data += b"\n"
        block = _block(data, is_all=True)
        assert block is not None
        yield block


def _block(data: bytes, *, is_all: bool) -> Block | None:
    """The whole rows. The last row is left out if it may go on, unless these are all bytes."""
    array = np.frombuffer(data, np.uint8)
    lines = ends = _line_ends(data, array, is_all=is_all)
    odd = np.zeros(len(ends), np.bool_)
    if b'"' in data:
        quotes = np.flatnonzero(array == _QUOTE)
        # Whether each other quote begins a cell, or is the second of two, and those between end one, or are the first
        around = np.frombuffer(b"\n" + data + b"\n", np.uint8)
        if _BORDERS[around[quotes[::2]]].all() and _BORDERS[around[quotes[1::2] + 2]].all():
            ends = lines[np.searchsorted(quotes, lines) % 2 == 0]
            odd = np.zeros(len(ends), np.bool_)
            if is_all and len(quotes) % 2:
                ends, odd = np.append(ends, len(data)), np.append(odd, True)
        else:
            ends, odd = _one_by_one(data, int(lines[-1]) if len(lines) else 0, is_all=is_all)
    if not len(ends):
        return None
    data, begins = data[: ends[-1]], np.append(0, ends[:-1])
    count = int(np.searchsorted(lines, len(data), side="right"))
    return block_of(data, begins, ends, np.searchsorted(lines, begins, side="right"), odd, count)


def _line_ends(data: bytes, array: U8Array, *, is_all: bool) -> I64Array:
    ends = np.flatnonzero(array == _LF) + 1
    if b"\r" not in data:
        return ends
    returns = np.flatnonzero(array == _CR)
    if not is_all and returns[-1] == len(data) - 1:  # a line feed may come
        returns = returns[:-1]
    alone = returns[np.append(array, 0)[returns + 1] != _LF]
    return np.union1d(ends, alone + 1)


def _one_by_one(data: bytes, last: int, *, is_all: bool) -> tuple[I64Array, BoolArray]:
    """Where rows end that have quotes in any place, and which are odd; the last line that has come ends at `last`.

    A row in which a cell goes on behind its quotes ends with the line.
    """
    ends: list[int] = []
    odd: list[bool] = []
    place = 0
    while place < len(data):
        found = _ROW.match(data, place)
        is_odd = found is None
        if found is None:
            before = _CELLS_BEFORE.match(data, place)
            quoted = _A_QUOTED_CELL.match(data, before.end() if before else place)
            found = _A_LINE_END.search(data, quoted.end()) if quoted else None
        end = len(data) if found is None else found.end()
        if not is_all and (found is None or end > last):
            break
        ends.append(end)
        odd.append(is_odd)
        place = end
    return np.array(ends, np.int64), np.array(odd, np.bool_)


def cells_of(row: bytes, line: int) -> list[str]:
    """The cells of a row that begins on this line; ValueError says why it is not one."""
    text = utf8_text(row)
    if "\0" in text:
        raise ValueError("it has zero bytes")
    cells: list[str] = []
    place = 0
    while found := _CELL_AND_BORDER.match(text, place):
        cell = found[1]
        cells.append(cell[1:-1].replace('""', '"') if cell.startswith('"') else cell)
        place = found.end()
        if found[2] != ",":
            return cells
    if re.match(_QUOTED, text[place:]):
        raise ValueError(f"cell {len(cells) + 1} goes on behind the quote that ends it")
    opened = line + len(re.findall(_LINE_END, text[:place]))
    raise ValueError(f"the quote that opens on line {opened} is closed nowhere, so that the row has all that follows")


#: Stands between the tags of a cell, unless it is a JSON list
TAG_SEPARATOR = "|"

#: What a cell is read as JSON for: a number, or how a text, a list, or a value of another type begins
_OF_TYPES = "|".join(PARSED)
_JSON = re.compile(rf'["\[]|\{{\s*"(?:{_OF_TYPES})"\s*:|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$')
_BOOLS = {"true": True, "false": False}
_MARK = MARK.encode()
_INTEGER = "-?[0-9]{1,100}"


class CsvLines:
    """Rows of CSV.

    A cell of `tags` that begins with `[` is a JSON list; in others, `|` stands between tags. An empty one cannot be
    used, unless the row has conditions or attributes: a value may be missing, or the empty set may be meant, which
    every query contains. Ids are strings; an empty cell has none, nor a condition or a time. Attributes, areas and
    locations are a JSON object, an area may be a text, constraints a JSON list. Cells of a column that is one attribute
    are as `value_in` says.
    """

    name: str = "a row of CSV"  # what messages call a row
    ids: type | None = str  # the type that all ids have, where that does not depend on the file

    def __init__(self, header: list[str], columns: tuple[FileColumn, ...]) -> None:
        self._header = header
        self._columns = {column.name: column for column in columns if column.name in header}
        self._attributes = [column.name for column in self._columns.values() if column.is_attribute]
        self._tags = next(column for column in columns if column.name == TAGS)

    def batch(self, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of a schema that some rows have, none of them odd; ArrowException if it refuses one."""
        if data.startswith(_MARK):  # which Arrow leaves out, though it stands within the file
            raise pa.ArrowInvalid("a byte order mark")
        wanted = [name for name in schema.names if name in self._columns]
        if len(wanted) < len(self._header):  # Arrow does not look at the others
            try:
                data.decode()
            except UnicodeDecodeError:
                raise pa.ArrowInvalid("a byte that is no UTF-8") from None
        with threads_of_arrow():
            table = pa_csv.read_csv(
                pa.BufferReader(data),
                pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._header),
                pa_csv.ParseOptions(newlines_in_values=True),
                pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(self._header, pa.string()),
                    include_columns=wanted,
                    strings_can_be_null=False,
                ),
            )
        batches = table.combine_chunks().to_batches()
        if not batches:
            raise pa.ArrowInvalid("no rows")
        (cells,) = batches
        if self._attributes and ATTRIBUTES.name in wanted:
            for each in filter(None, cells[ATTRIBUTES.name].to_pylist()):
                refuse_twice(read_json(each, "a cell"), self._attributes)
        return pa.record_batch([self._values(cells, field) for field in schema], schema=schema)

    def _values(self, cells: pa.RecordBatch, field: pa.Field) -> pa.Array:
        """A column of text as one of another type."""
        column = self._columns.get(field.name)
        if column is None:
            return pa.nulls(len(cells), field.type)
        texts = cells[field.name]
        if column.is_attribute:
            encoded = texts.dictionary_encode()
            values = [value_in(text) for text in encoded.dictionary.to_pylist()]
            return column.array(values, field.type).take(encoded.indices)
        if column.make is not None:
            return column.make([_json_of(column, text, "a cell") if text else None for text in texts.to_pylist()])
        if pa.types.is_list(field.type):
            return _tags(texts, field.type)
        if column.is_optional:
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
        if pa.types.is_string(field.type):
            return texts
        texts = pc.utf8_trim_whitespace(texts)
        if pa.types.is_integer(field.type) and not pc.all(pc.match_substring_regex(texts, f"^{_INTEGER}$")).as_py():
            raise pa.ArrowInvalid("not all cells are integers")
        return texts.cast(field.type)

    def record(self, row: bytes, line: int, place: str) -> dict[str, Any]:  # noqa: ARG002 - of JSON, for messages
        """The values by column of a row from a line on, counted from 1; ValueError says why these bytes are none."""
        cells = cells_of(row, line)
        if len(cells) != len(self._header):
            raise ValueError(f"it has {len(cells)} cells, the first row {len(self._header)}")
        record: dict[str, Any] = dict(zip(self._header, cells, strict=True))
        record |= {name: self._value(column, record[name]) for name, column in self._columns.items()}
        needs_none = self._tags.is_optional or any(record.get(name) is not None for name in self._tags.instead)
        if TAGS in record and record[TAGS] is None and not needs_none:
            raise ValueError("its cell of tags is empty; write [] for the empty set")
        if self._attributes and isinstance(given := record.get(ATTRIBUTES.name), dict):
            refuse_twice(given, self._attributes)
        return record

    def _value(self, column: FileColumn, cell: str) -> Any:
        """What a cell has, as JSON has it; ValueError."""
        name, kind = column.name, column.kinds[-1]
        if column.is_attribute:
            try:
                return value_in(cell)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}; --ignore-columns {name!r} leaves it aside") from None
        if name == TAGS:
            return _tags_in(cell)
        if not cell and column.is_optional:
            return None
        if column.make is not None:
            return _json_of(column, cell, f"column {name!r}")
        if pa.types.is_integer(kind):
            text = cell.strip()
            return int(text) if re.fullmatch(_INTEGER, text) else text
        return cell.strip() if kind == TIME else cell


def _json_of(column: FileColumn, cell: str, name: str) -> Any:
    """What a cell of JSON has, or a text, if the column takes one."""
    return cell if column.takes_text and not cell.lstrip().startswith("{") else read_json(cell, name)


def value_in(cell: str) -> Any:
    """The value of an attribute that a cell has: a number, a bool, a text; several in a JSON list; or none."""
    text = cell.strip()
    if _JSON.match(text):
        return read_json(text, shown(cell))
    return _BOOLS.get(text.lower(), cell) if text else None


def _tags(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    as_json = pc.starts_with(texts, "[")
    if pc.all(as_json).as_py():
        return json_lists(texts, kind)
    if pc.any(as_json).as_py():
        return pa.array([_tags_in(text) for text in texts.to_pylist()], kind)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, kind), pc.split_pattern(texts, TAG_SEPARATOR).cast(kind))


def _tags_in(cell: str) -> Any:
    """The tags that a cell has, `None` if it is empty."""
    if cell.startswith("["):
        return read_json(cell, f"column {TAGS!r}")
    return cell.split(TAG_SEPARATOR) if cell else None


def csv_cells(values: pa.Array) -> pa.Array:
    """Cells with integers, times, strings, lists of strings as JSON, or the texts of other values; nulls are empty."""
    if pa.types.is_integer(values.type):
        return json_values(values).fill_null("")
    if values.type == TIME:
        return time_texts(values).fill_null("")
    texts = json_values(values) if pa.types.is_list(values.type) else values.cast(pa.large_string())
    broken = pc.match_substring(texts, "\0").fill_null(False).to_numpy(zero_copy_only=False)
    if broken.any():
        text = texts[int(np.argmax(broken))].as_py()
        raise InvalidValueError(f"{shown(text)} has U+0000, which CSV has no form for; write JSON Lines or Parquet")
    return concatenated('"', pc.replace_substring(texts, '"', '""'), '"').fill_null("")


def header_of(blocks: Iterator[Block], path: str) -> tuple[list[str], list[Block]]:
    """The column names in the first row, and the blocks up to its own, without it; InputFileError."""
    before: list[Block] = []
    for block in blocks:
        if not len(block.begins):
            before.append(block)
            continue
        line = sum(each.line_count for each in before) + int(block.lines[0]) + 1
        try:
            cells = cells_of(block.part(0, 1).removeprefix(_MARK), line)
        except ValueError as error:
            raise InputFileError(f"{path}: line {line} does not name the columns: {error}") from None
        _check_header(cells, f"{path}: line {line}")
        return cells, [*before, block.rows(slice(1, None))]
    return [], before


def _check_header(names: list[str], place: str) -> None:
    """See that names of columns are between commas, and have no spaces around them; InputFileError."""
    if len(names) == 1 and (found := re.search("[;\t]", names[0])):
        raise InputFileError(
            f"{place} names one column, {names[0]!r:.80}; a comma goes between columns, not {found[0]!r}"
        )
    for name in names:
        if name != name.strip():
            raise InputFileError(f"{place} has a column {name!r:.80}; there must be no spaces around its name")
