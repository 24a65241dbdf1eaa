"""Where rows of CSV begin and end, and their cells, as RFC 4180 has them.

A cell that begins with a quote ends with one. The text between them may be over several lines, and a quote in it is
written twice. Lines end in CRLF, LF, or CR alone. A quote in another cell is a character as any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tagmatch.files.json_values import utf8_text
from tagmatch.files.lines import Block, block_of, lines_of
from tagmatch.files.streams import BLOCK_BYTES, Read
from tagmatch.model.arrays import BoolArray, I64Array, U8Array

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
# Up to here, what has begun is looked at again as soon as there is more
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
        rows = _rows(data, is_all=False)
        whole = int(rows.ends[-1]) if len(rows.ends) else 0
        if whole:
            yield _block(data[:whole], rows)
        begun, size = [data[whole:]], len(data) - whole
        # What goes on for long is not looked at again and again
        wanted = 2 * size if size > _EAGER_BYTES else 0
    if size:
        data = b"".join(begun)
        if not data.endswith((b"\n", b"\r")):
            data += b"\n"
        yield _block(data, _rows(data, is_all=True))


class _Rows(NamedTuple):
    ends: I64Array
    #: Where lines end, also those within a row
    lines: I64Array
    odd: BoolArray


def _block(data: bytes, rows: _Rows) -> Block:
    begins = np.append(0, rows.ends[:-1])
    lines = np.searchsorted(rows.lines, begins, side="right")
    count = int(np.searchsorted(rows.lines, len(data), side="right"))
    return block_of(data, begins, rows.ends, lines, rows.odd, count)


def _rows(data: bytes, *, is_all: bool) -> _Rows:
    """Where rows end. The last row is left out if it may go on, unless these are all bytes."""
    array = np.frombuffer(data, np.uint8)
    lines = _line_ends(data, array, is_all=is_all)
    if b'"' not in data:
        return _Rows(lines, lines, np.zeros(len(lines), np.bool_))
    quotes = np.flatnonzero(array == _QUOTE)
    if not _are_plain(data, quotes):
        return _Rows(*_one_by_one(data, lines, is_all=is_all))
    ends = lines[np.searchsorted(quotes, lines) % 2 == 0]
    odd = np.zeros(len(ends), np.bool_)
    if is_all and len(quotes) % 2:
        ends, odd = np.append(ends, len(data)), np.append(odd, True)
    return _Rows(ends, lines, odd)


def _line_ends(data: bytes, array: U8Array, *, is_all: bool) -> I64Array:
    ends = lines_of(array)
    if b"\r" not in data:
        return ends
    returns = np.flatnonzero(array == _CR)
    if not is_all and returns[-1] == len(data) - 1:  # a line feed may come
        returns = returns[:-1]
    alone = returns[np.append(array, 0)[returns + 1] != _LF]
    return np.union1d(ends, alone + 1)


def _are_plain(data: bytes, quotes: I64Array) -> bool:
    """Whether each other quote begins a cell, or is the second of two, and those between end one, or are the first."""
    around = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    return bool(_BORDERS[around[quotes[::2]]].all() and _BORDERS[around[quotes[1::2] + 2]].all())


def _one_by_one(data: bytes, lines: I64Array, *, is_all: bool) -> tuple[I64Array, I64Array, BoolArray]:
    """The same for quotes in any place. A row in which a cell goes on behind its quotes ends with the line."""
    ends: list[int] = []
    odd: list[int] = []
    last = int(lines[-1]) if len(lines) else 0
    place = 0
    while place < len(data):
        found = _ROW.match(data, place)
        if found is None:
            odd.append(len(ends))
            before = _CELLS_BEFORE.match(data, place)
            quoted = _A_QUOTED_CELL.match(data, before.end() if before else place)
            found = _A_LINE_END.search(data, quoted.end()) if quoted else None
        end = len(data) if found is None else found.end()
        if not is_all and (found is None or end > last):
            break
        ends.append(end)
        place = end
    numbers = np.array(odd, np.int64)
    is_odd = np.zeros(len(ends), np.bool_)
    is_odd[numbers[numbers < len(ends)]] = True
    return np.array(ends, np.int64), lines, is_odd


def cells_of(row: bytes, line: int) -> list[str]:
    r"""The cells of a row that begins on this line.

    Raises
    ------
    ValueError
        It is none; the message says why.

    Examples
    --------
    >>> cells_of(b'1,"a ""b"",\nc",5" pipe\r\n', 1)
    ['1', 'a "b",\nc', '5" pipe']
    """
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
