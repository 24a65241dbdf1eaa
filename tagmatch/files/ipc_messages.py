"""Headers of Arrow IPC messages, which are flatbuffers, and their bodies: what is read of one lies within its bytes.

A body has bounds: also for values when they are written out, as what is in a dictionary, in runs or in views may be
there many times.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, offsets_of
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

#: Columns, with those that are in others; how deep these may be; and bytes of a header, which has hundreds of each
MOST_FIELDS, MOST_DEPTH, MOST_BYTES = 10_000, 64, 4 << 20

# How deep text in the metadata of a type may be: whoever reads such text may call itself for each level
_MOST_BRACKETS = 1000

_BOOL, _I8, _U8, _I16, _U16 = (struct.Struct(f"<{letter}") for letter in "?bBhH")
_I32, _U32, _I64 = (struct.Struct(f"<{letter}") for letter in "iIq")
_V4, _V5 = 3, 4
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_TIMESTAMP, _UNION = 10, 14
_CODECS = ("lz4", "zstd")
_EXTENSION = b"ARROW:extension:metadata"


class FieldShape(NamedTuple):
    """What Arrow's own reader of schemas does not tell of a field: the number of its dictionary, if it has one."""

    dictionary: int | None
    children: tuple[FieldShape, ...]


class SchemaHeader(NamedTuple):
    """A schema, of which only the shape is read here."""

    fields: tuple[FieldShape, ...]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """A batch of rows: lengths of its arrays, and where their buffers are in the body."""

    rows: int
    nodes: tuple[int, ...]  # Of each array, its length and the nulls in it
    buffers: tuple[int, ...]  # Of each buffer, its place in the body and its bytes there
    codec: str | None  # How buffers are compressed
    view_buffers: tuple[int, ...]  # Of each array of views, how many buffers of data it has


class DictionaryHeader(NamedTuple):
    """A dictionary, or what is added to one."""

    number: int
    values: BatchHeader
    is_delta: bool


def header_of(header: bytes) -> SchemaHeader | DictionaryHeader | BatchHeader:
    """Read the header of a message."""
    if len(header) > MOST_BYTES:
        raise InvalidValueError(f"the header of an Arrow message must have at most {MOST_BYTES:,} bytes")
    try:
        return _read(header)
    except (struct.error, UnicodeDecodeError):
        raise InvalidValueError("the header of an Arrow message is damaged") from None


def _read(header: bytes) -> SchemaHeader | DictionaryHeader | BatchHeader:
    message = _root(header)
    version, kind, content = message.number(0, _I16), message.number(1, _U8), message.table(2)
    if version not in (_V4, _V5):
        raise InvalidTypeError(f"Arrow messages must be of version 4 or 5 of the format, not {version + 1}")
    if content is None:
        raise struct.error
    if kind == _BATCH:
        return _batch(content)
    if kind == _DICTIONARY:
        values = content.table(1)
        if values is None:
            raise struct.error
        return DictionaryHeader(content.number(0, _I64), _batch(values), bool(content.number(2, _BOOL)))
    if kind != _SCHEMA:
        raise InvalidTypeError("an Arrow message must be a schema, a dictionary or a record batch")
    if content.number(0, _I16):
        raise InvalidTypeError("Arrow data must be little-endian")
    fields = _Fields(len(header), version)
    fields.check_metadata(content, 2, "the schema")
    return SchemaHeader(fields.of(content, 1, 1))


def _batch(table: _Table) -> BatchHeader:
    codec, compression = None, table.table(3)
    if compression is not None:
        number = compression.number(0, _I8)
        if not 0 <= number < len(_CODECS) or compression.number(1, _I8):
            raise InvalidTypeError("Arrow data must be compressed by lz4 or zstd, buffer by buffer, or not at all")
        codec = _CODECS[number]
    return BatchHeader(table.number(0, _I64), table.longs(1, 2), table.longs(2, 2), codec, table.longs(4, 1))


class _Fields:
    """Reads fields, and counts what it reads, as a damaged header may have one part of it in many places."""

    def __init__(self, nbytes: int, version: int) -> None:
        self._fields, self._bytes = MOST_FIELDS, 2 * nbytes
        self._version = version

    def of(self, parent: _Table, number: int, depth: int) -> tuple[FieldShape, ...]:
        """The fields in a vector."""
        self._fields -= parent.count(number)
        if self._fields < 0:
            raise InvalidValueError(
                f"an Arrow schema must have at most {MOST_FIELDS:,} fields, with those in others; send fewer columns"
            )
        return tuple([self._read(field, depth) for field in self._tables(parent, number)])

    def _read(self, field: _Table, depth: int) -> FieldShape:
        name = self._text(field, 0).decode()
        column = f"column {name[:60]!r}"
        if depth > MOST_DEPTH:
            raise InvalidValueError(f"{column} must be at most {MOST_DEPTH} columns deep; send it less nested")
        kind = field.table(3)
        if kind is not None and field.number(2, _U8) == _UNION:
            self._spend(4 * kind.count(1))
            if self._version == _V4:
                raise InvalidTypeError(f"{column}: a union must be of version 5 of the Arrow format")
        if kind is not None and field.number(2, _U8) == _TIMESTAMP:
            self._text(kind, 1).decode()
        self.check_metadata(field, 6, column)
        dictionary = field.table(4)
        number = None if dictionary is None else dictionary.number(0, _I64)
        return FieldShape(number, self.of(field, 5, depth + 1))

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


def _root(header: bytes) -> _Table:
    (place,) = _U32.unpack_from(header, 0)
    return _Table(header, place)


class _Table:
    """A table of a flatbuffer; whatever is not within the bytes raises `struct.error`."""

    __slots__ = ("_data", "_place", "_slots")

    def __init__(self, data: bytes, place: int) -> None:
        slots = place - _I32.unpack_from(data, place)[0]
        if slots < 0:
            raise struct.error
        count = (_U16.unpack_from(data, slots)[0] - 4) // 2
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
        """A vector of structs that are so many int64 each."""
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


#: Where a value is that is a view; if it is short, it is in place of the last three
VIEW = np.dtype([("size", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])

_is = pa.types


def sizes_of(array: pa.Array) -> I64Array:
    """Bytes of each value of a sound array, or a few more, without those that say what is null."""
    kind, length = array.type, len(array)
    sizes: I64Array
    if isinstance(kind, pa.BaseExtensionType):
        sizes = sizes_of(array.storage)
    elif _is.is_dictionary(kind):
        values, places = sizes_of(array.dictionary), array.indices.fill_null(0).to_numpy()
        sizes = values[places] if len(values) else np.zeros(length, np.int64)
    elif _is.is_run_end_encoded(kind):
        sizes = np.repeat(sizes_of(array.values), runs_of(array.run_ends, length))
    elif _is.is_struct(kind) or _is.is_union(kind):
        fields = [sizes_of(array.field(i)) for i in range(kind.num_fields)]
        whole = [each if len(each) == length else np.full(length, each.max(initial=0)) for each in fields]
        sizes = np.sum(whole, axis=0, dtype=np.int64) if whole else np.zeros(length, np.int64)
    elif _is.is_string_view(kind) or _is.is_binary_view(kind):
        sizes = np.frombuffer(array.buffers()[1], VIEW, length)["size"].astype(np.int64)
    elif _is.is_nested(kind):
        sizes = _sizes_of_lists(array)
    elif _is.is_string(kind) or _is.is_large_string(kind) or _is.is_binary(kind) or _is.is_large_binary(kind):
        sizes = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    else:
        sizes = np.full(length, 0 if _is.is_null(kind) else (kind.bit_width + 7) // 8)
    return sizes


def runs_of(ends: pa.Array, length: int) -> I64Array:
    """How many values there are of each run."""
    runs: I64Array = np.diff(np.minimum(ends.to_numpy(), length).astype(np.int64), prepend=0)
    return runs


def _sizes_of_lists(array: pa.Array) -> I64Array:
    kind, begins = array.type, offsets_of(sizes_of(array.values))
    if _is.is_fixed_size_list(kind):
        first = np.arange(len(array)) * kind.list_size
        last = first + kind.list_size
    elif _is.is_list_view(kind) or _is.is_large_list_view(kind):
        first = array.offsets.to_numpy().astype(np.int64)
        last = first + array.sizes.to_numpy()
    else:
        offsets = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int64)
        first, last = offsets[:-1], offsets[1:]
    sizes: I64Array = begins[last] - begins[first]
    return sizes


class Values:
    """The values of a dictionary, and the bytes of each and of all, as far as they have come."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._sizes: list[I64Array] = []
        self.nbytes = 0

    def add(self, values: pa.Array, sizes: I64Array, nbytes: int) -> None:
        """Add values, which costs no copy of all: those of many messages are put together once."""
        self._arrays.append(values)
        self._sizes.append(sizes)
        self.nbytes += nbytes
        if len(self._arrays) > _MOST_PARTS:
            self.joined()

    def joined(self) -> tuple[pa.Array, I64Array]:
        """All of them."""
        if len(self._arrays) > 1:
            self._arrays, self._sizes = [pa.concat_arrays(self._arrays)], [np.concatenate(self._sizes)]
        return self._arrays[0], self._sizes[0]


#: Dictionaries that have come, by number
Dictionaries = dict[int, Values]

_NO_BYTES = pa.py_buffer(b"")
_RAW = -1  # in place of a length: the buffer is not compressed
_ALIGNMENT = 8
# Of a dictionary, before they are put together
_MOST_PARTS = 1000
# Rows with tags in a dictionary are large only when they are written out, which few of them ever are
_MORE = 4


class Body:
    """The arrays and buffers of one batch, in their order, each of them checked as it is taken."""

    def __init__(
        self, header: BatchHeader, data: pa.Buffer, most_bytes: int | None, dictionaries: Dictionaries
    ) -> None:
        self._header, self._data, self.dictionaries = header, data, dictionaries
        self._node = self._buffer = self._view = 0
        self._most = most_bytes
        self.nbytes, self._written_out = 0, 0.0

    def node(self) -> tuple[int, int]:
        """The length of the next array, and the nulls in it."""
        self._node += 2
        if self._node > len(self._header.nodes):
            raise InvalidValueError("the message has no array for it")
        length, nulls = self._header.nodes[self._node - 2 : self._node]
        if not 0 <= nulls <= length:
            raise InvalidValueError(f"an array of length {length} must not have {nulls} nulls")
        return length, nulls

    def validity(self, length: int, nulls: int) -> pa.Buffer | None:
        """The next buffer, which says what of an array is null; None if nothing is."""
        if not nulls:
            self._buffer += 1
            return None
        return self.buffer((length + 7) // 8)

    def buffer(self, least: int | None = None) -> pa.Buffer:
        """The next buffer: its first so many bytes, or all of them."""
        self._buffer += 1
        if 2 * self._buffer > len(self._header.buffers):
            raise InvalidValueError("the message has no buffer for it")
        place, nbytes = self._header.buffers[2 * self._buffer - 2 : 2 * self._buffer]
        if nbytes < 0 or place < 0 or place + nbytes > self._data.size or place % _ALIGNMENT:
            raise InvalidValueError(
                f"a buffer of {nbytes} bytes at {place} must be within the {self._data.size} bytes of the message, at "
                f"a multiple of {_ALIGNMENT}"
            )
        data = self._data.slice(place, nbytes) if nbytes else _NO_BYTES
        if self._header.codec is not None and nbytes:
            data = self._decompressed(data, self._header.codec)
        else:
            self.count(nbytes)
        if least is None or data.size == least:
            return data
        if data.size < least:
            raise InvalidValueError(f"a buffer must have {least} bytes or more, not {data.size}")
        return data.slice(0, least)

    def view_buffers(self) -> list[pa.Buffer]:
        """The next buffers, which an array of views has its data in."""
        return [self.buffer() for _ in range(self._count_of_views())]

    def pass_over(self, nodes: int, buffers: int, views: int) -> None:
        """Leave arrays aside, with their buffers, of which some are arrays of views."""
        self._node += 2 * nodes
        self._buffer += buffers + sum(self._count_of_views() for _ in range(views))

    def count(self, nbytes: int) -> None:
        """Take note of bytes, before they are made or used."""
        self.nbytes += nbytes
        if self._most is not None and self.nbytes > self._most:
            raise InvalidValueError(f"at most {self._most:,} bytes may come at once, not compressed; send fewer rows")

    def count_written_out(self, nbytes: float) -> None:
        """Take note of values that are there many times, by the bytes of all of them."""
        self._written_out += nbytes
        if self._most is not None and self._written_out > _MORE * self._most:
            raise InvalidValueError(
                f"its values must have at most {_MORE * self._most:,} bytes when each is written out; send fewer rows"
            )

    def _count_of_views(self) -> int:
        self._view += 1
        if self._view > len(self._header.view_buffers):
            raise InvalidValueError("the message does not say how many buffers it has")
        count = self._header.view_buffers[self._view - 1]
        if not 0 <= count <= len(self._header.buffers) // 2:
            raise InvalidValueError(f"the message does not have {count} buffers for it")
        return count

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


def bits(validity: pa.Buffer, length: int) -> BoolArray:
    """A bitmap as an array."""
    bytes_of_it = np.frombuffer(validity, np.uint8, (length + 7) // 8)
    return np.unpackbits(bytes_of_it, count=length, bitorder="little").view(np.bool_)
