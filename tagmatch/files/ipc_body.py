"""Bodies of Arrow IPC messages: buffers that lie within them, and which are no larger than they may be."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from tagmatch.files.ipc_messages import BatchHeader
from tagmatch.model.arrays import BoolArray, I64Array
from tagmatch.model.errors import InvalidValueError


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
_LENGTH = struct.Struct("<q")
_RAW = -1  # in the place of a length: the buffer is not compressed
_ALIGNMENT = 8
# Of a dictionary, before they are put together
_MOST_PARTS = 1000
# Rows with tags in a dictionary are large only when they are written out, which few of them ever are
_MORE = 4


class Body:
    """The arrays and buffers of one batch, in their order, each of them checked as it is taken.

    Parameters
    ----------
    header : BatchHeader
    data : pyarrow.Buffer
        The body of the message.
    most_bytes : int, optional
        Bytes of all buffers together, not compressed; elements that have no bytes of their own count as one each.
        Values that are there many times may be four times as large when they are written out.
    dictionaries : dict

    Attributes
    ----------
    nbytes : int
        Those of all that was taken.

    Raises
    ------
    InvalidValueError
        Of all methods: something is missing or out of bounds; the message does not name the column.
    """

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
        if data.size < _LENGTH.size:
            raise InvalidValueError(f"a compressed buffer must begin with its length, not end after {data.size} bytes")
        (length,) = _LENGTH.unpack_from(data)
        packed = data.slice(_LENGTH.size)
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
