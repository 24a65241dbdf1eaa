"""Headers of Arrow IPC messages, which are flatbuffers, and their bodies: all reads lie within their bytes.

Bytes have bounds: also those of values when they are written out, as those of a dictionary, of runs or of views may
be there many times.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

# Columns, with those that are in others; how deep these may be; and bytes of a header, which has hundreds of each
_MOST_FIELDS, _MOST_DEPTH, _MOST_BYTES = 10_000, 64, 4 << 20
# How deep text in the metadata of a type may be: a reader of such text may call itself for each level
_MOST_BRACKETS = 1000
# Rows with tags in a dictionary are large only when they are written out, which few of them ever are
_MORE = 4

# -- headers -----------------------------------------------------------------------------------------------------------

_BOOL, _I8, _U8, _I16, _U16 = (struct.Struct(f"<{letter}") for letter in "?bBhH")
_I32, _U32, _I64 = (struct.Struct(f"<{letter}") for letter in "iIq")
_V4, _V5 = 3, 4
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_TIMESTAMP, _UNION = 10, 14
_CODECS = ("lz4", "zstd")
_EXTENSION = b"ARROW:extension:metadata"


class Shape(NamedTuple):
    """What Arrow's own reader of schemas does not tell of a field: the number of its dictionary, if it has one."""

    dictionary: int | None
    children: list[Shape]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """A batch of rows: lengths of its arrays, and where their buffers are in the body."""

    rows: int
    nodes: tuple[int, ...]  # Of each array, its length and the nulls in it
    buffers: tuple[int, ...]  # Of each buffer, its place in the body and its bytes there
    codec: str | None  # How buffers are compressed
    view_buffers: tuple[int, ...]  # Of each array of views, how many buffers of data it has


class DictionaryBatch(NamedTuple):
    """A dictionary, or an addition to one."""

    number: int
    values: RowBatch
    is_delta: bool


def header_of(header: bytes) -> list[Shape] | DictionaryBatch | RowBatch:
    """The header of a message; of a schema, only the shape is read here."""
    if len(header) > _MOST_BYTES:
        raise InvalidValueError(f"the header of an Arrow message must have at most {_MOST_BYTES:,} bytes")
    try:
        return _read(header)
    except (struct.error, UnicodeDecodeError):
        raise InvalidValueError("the header of an Arrow message is damaged") from None


def body_length(header: bytes) -> int:
    """How many bytes come behind the header of a message."""
    try:
        found = _Table(header, _U32.unpack_from(header, 0)[0]).number(3, _I64)
    except struct.error:
        raise InvalidValueError("the header of an Arrow message is damaged") from None
    if found < 0:
        raise InvalidValueError("the header of an Arrow message is damaged")
    return found


def _read(header: bytes) -> list[Shape] | DictionaryBatch | RowBatch:
    message = _Table(header, _U32.unpack_from(header, 0)[0])
    version, kind, content = message.number(0, _I16), message.number(1, _U8), message.table(2)
    if version not in (_V4, _V5):
        raise InvalidTypeError(f"Arrow messages must be of version 4 or 5 of the format, not {version + 1}")
    if content is None:
        raise struct.error
    if kind == _BATCH:
        return _batch(content)
    if kind == _DICTIONARY:
        return DictionaryBatch(content.number(0, _I64), _batch(content.table(1)), bool(content.number(2, _BOOL)))
    if kind != _SCHEMA:
        raise InvalidTypeError("an Arrow message must be a schema, a dictionary or a record batch")
    if content.number(0, _I16):
        raise InvalidTypeError("Arrow data must be little-endian")
    fields = _Fields(len(header), version)
    fields.check_metadata(content, 2, "the schema")
    return fields.of(content, 1, 1)


def _batch(table: _Table | None) -> RowBatch:
    if table is None:
        raise struct.error
    codec, compression = None, table.table(3)
    if compression is not None:
        number = compression.number(0, _I8)
        if not 0 <= number < len(_CODECS) or compression.number(1, _I8):
            raise InvalidTypeError("Arrow data must be compressed by lz4 or zstd, buffer by buffer, or not at all")
        codec = _CODECS[number]
    return RowBatch(table.number(0, _I64), table.longs(1, 2), table.longs(2, 2), codec, table.longs(4, 1))


class _Fields:
    """Reads fields, and counts what it reads, as a damaged header may have one part of it in many places."""

    def __init__(self, nbytes: int, version: int) -> None:
        self._fields, self._bytes, self._version = _MOST_FIELDS, 2 * nbytes, version

    def of(self, parent: _Table, number: int, depth: int) -> list[Shape]:
        """The fields in a vector."""
        self._fields -= parent.count(number)
        if self._fields < 0:
            raise InvalidValueError(
                f"an Arrow schema must have at most {_MOST_FIELDS:,} fields, with those in others; send fewer columns"
            )
        return [self._read(field, depth) for field in self._tables(parent, number)]

    def _read(self, field: _Table, depth: int) -> Shape:
        column = f"column {self._text(field, 0).decode()[:60]!r}"
        if depth > _MOST_DEPTH:
            raise InvalidValueError(f"{column} must be at most {_MOST_DEPTH} columns deep; send it less nested")
        kind, name = field.table(3), field.number(2, _U8)
        if kind is not None and name == _UNION:
            self._spend(4 * kind.count(1))
            if self._version == _V4:
                raise InvalidTypeError(f"{column}: a union must be of version 5 of the Arrow format")
        if kind is not None and name == _TIMESTAMP:
            self._text(kind, 1).decode()
        self.check_metadata(field, 6, column)
        dictionary = field.table(4)
        number = None if dictionary is None else dictionary.number(0, _I64)
        return Shape(number, self.of(field, 5, depth + 1))

    def check_metadata(self, parent: _Table, number: int, name: str) -> None:
        """See that the metadata of a field, or of a schema, can be read by anybody."""
        for entry in self._tables(parent, number):
            key, value = self._text(entry, 0), self._text(entry, 1)
            if key == _EXTENSION and value.count(b"[") + value.count(b"{") > _MOST_BRACKETS:
                raise InvalidTypeError(f"{name}: the metadata of its type must be less nested")

    def _tables(self, parent: _Table, number: int) -> list[_Table]:
        self._spend(4 * parent.count(number))
        return parent.tables(number)

    def _text(self, parent: _Table, number: int) -> bytes:
        self._spend(parent.count(number))
        return parent.text(number)

    def _spend(self, nbytes: int) -> None:
        self._bytes -= nbytes
        if self._bytes < 0:
            raise struct.error


class _Table:
    """A table of a flatbuffer; anything outside of the bytes raises `struct.error`."""

    __slots__ = ("_data", "_place", "_slots")

    def __init__(self, data: bytes, place: int) -> None:
        slots = place - _I32.unpack_from(data, place)[0]
        count = (_U16.unpack_from(data, slots)[0] - 4) // 2 if slots >= 0 else -1
        if count < 0:
            raise struct.error
        self._data, self._place = data, place
        self._slots: tuple[int, ...] = struct.unpack_from(f"<{count}H", data, slots + 4)

    def number(self, number: int, form: struct.Struct) -> int:
        """A field; those that are not there are 0."""
        found = self._at(number)
        return int(form.unpack_from(self._data, found)[0]) if found else 0

    def table(self, number: int) -> _Table | None:
        found = self._reference(number)
        return _Table(self._data, found) if found else None

    def count(self, number: int) -> int:
        """How many items a vector has, or bytes a text."""
        return self._vector(number)[0]

    def tables(self, number: int) -> list[_Table]:
        """A vector of tables."""
        count, first = self._vector(number)
        places = struct.unpack_from(f"<{count}I", self._data, first)
        return [_Table(self._data, first + 4 * i + place) for i, place in enumerate(places)]

    def longs(self, number: int, each: int) -> tuple[int, ...]:
        """A vector of structs of `each` int64 numbers."""
        count, first = self._vector(number)
        return struct.unpack_from(f"<{count * each}q", self._data, first)

    def text(self, number: int) -> bytes:
        count, first = self._vector(number)
        if first + count > len(self._data):
            raise struct.error
        return self._data[first : first + count]

    def _vector(self, number: int) -> tuple[int, int]:
        found = self._reference(number)
        return (_U32.unpack_from(self._data, found)[0], found + 4) if found else (0, 0)

    def _reference(self, number: int) -> int:
        found = self._at(number)
        return found + int(_U32.unpack_from(self._data, found)[0]) if found else 0

    def _at(self, number: int) -> int:
        slot = self._slots[number] if number < len(self._slots) else 0
        return self._place + slot if slot else 0


# -- bodies ------------------------------------------------------------------------------------------------------------

NO_BYTES = pa.py_buffer(b"")
_RAW = -1  # in place of a length: the buffer is not compressed
_ALIGNMENT = 8


class Body:
    """The arrays and buffers of one batch, in their order, each of them checked as it is taken."""

    def __init__(self, header: RowBatch, data: pa.Buffer, most_bytes: int | None) -> None:
        self._data, self._most, self._codec = data, most_bytes, header.codec
        self._nodes = zip(*[iter(header.nodes)] * 2, strict=True)
        self._buffers = zip(*[iter(header.buffers)] * 2, strict=True)
        self._views, self._count = iter(header.view_buffers), len(header.buffers) // 2
        self.nbytes, self._written_out = 0, 0.0

    def node(self) -> tuple[int, int]:
        """The length of the next array, and the nulls in it."""
        length, nulls = next(self._nodes, (None, 0))
        if length is None:
            raise InvalidValueError("the message has no array for it")
        if not 0 <= nulls <= length:
            raise InvalidValueError(f"an array of length {length} must not have {nulls} nulls")
        return length, nulls

    def buffer(self, least: int | None = None) -> pa.Buffer:
        """The next buffer: its first `least` bytes, or all of them."""
        place, nbytes = next(self._buffers, (None, 0))
        if place is None:
            raise InvalidValueError("the message has no buffer for it")
        if nbytes < 0 or place < 0 or place + nbytes > self._data.size or place % _ALIGNMENT:
            raise InvalidValueError(
                f"a buffer of {nbytes} bytes at {place} must be within the {self._data.size} bytes of the message, at "
                f"a multiple of {_ALIGNMENT}"
            )
        data = self._data.slice(place, nbytes) if nbytes else NO_BYTES
        if self._codec is not None and nbytes:
            data = self._decompressed(data, self._codec)
        else:
            self.count(nbytes)
        if least is None or data.size == least:
            return data
        if data.size < least:
            raise InvalidValueError(f"a buffer must have {least} bytes or more, not {data.size}")
        return data.slice(0, least)

    def views(self) -> int:
        """How many buffers the next array of views has its data in."""
        count = next(self._views, None)
        if count is None:
            raise InvalidValueError("the message does not say how many buffers it has")
        if not 0 <= count <= self._count:
            raise InvalidValueError(f"the message does not have {count} buffers for it")
        return count

    def leave_aside(self, *, buffers: int = 0, nodes: int = 0) -> None:
        """Pass over buffers, and over arrays."""
        next(islice(self._buffers, buffers, buffers), None)
        next(islice(self._nodes, nodes, nodes), None)

    def count(self, nbytes: int) -> None:
        """Take note of bytes, before they are made or used."""
        self.nbytes += nbytes
        if self._most is not None and self.nbytes > self._most:
            raise InvalidValueError(f"at most {self._most:,} bytes may come at once, not compressed; send fewer rows")

    def count_written_out(self, sizes: I64Array) -> None:
        """Take note of values that are there many times, by the bytes of each of them."""
        self._written_out += sizes.sum(dtype=np.float64)
        if self._most is not None and self._written_out > _MORE * self._most:
            raise InvalidValueError(
                f"its values must have at most {_MORE * self._most:,} bytes when each is written out; send fewer rows"
            )

    def _decompressed(self, data: pa.Buffer, codec: str) -> pa.Buffer:
        if data.size < _I64.size:
            raise InvalidValueError(f"a compressed buffer must begin with its length, not end after {data.size} bytes")
        (length,) = _I64.unpack_from(data)
        packed = data.slice(_I64.size)
        if length == _RAW:
            self.count(packed.size)
            return aligned(packed)
        if length < 0:
            raise InvalidValueError(f"a compressed buffer must have a length from 0 on, not {length}")
        self.count(length)
        try:
            # The stream, unlike the codec, tells how many bytes there are
            found = pa.CompressedInputStream(pa.BufferReader(packed), codec).read_buffer(length + 1)
        except (pa.ArrowException, OSError, MemoryError, OverflowError) as error:
            raise InvalidValueError(f"a compressed buffer cannot be read: {error}") from None
        if found.size != length:
            raise InvalidValueError(f"a compressed buffer must have the {length} bytes that it says")
        return found


def aligned(data: pa.Buffer) -> pa.Buffer:
    """The bytes where Arrow may read numbers from them: a copy only if they are elsewhere."""
    if data.address % _ALIGNMENT == 0:
        return data
    copy = pa.allocate_buffer(data.size)
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(data, np.uint8)
    return copy
