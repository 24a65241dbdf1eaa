"""Arrays of Arrow IPC messages: all that Arrow will follow without a look, such as offsets, is checked before.

Bodies of Arrow IPC messages: buffers that lie within them, and which are no larger than they may be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.files.ipc_messages import VIEW, BatchHeader, FieldShape, runs_of, sizes_of
from tagmatch.model.arrays import BoolArray, I64Array, IntArray
from tagmatch.model.arrow import numpy_type
from tagmatch.model.errors import InvalidTypeError, InvalidValueError


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


_is = pa.types
# In the place of all buffers of an empty array
_ZERO = pa.py_buffer(bytes(8))
_VIEW_INLINE = 12


class Reader:
    """Makes the arrays of one field. Arrays of length 0 are made anew, whatever is in their buffers."""

    _has_validity = True
    _own_buffers = 0
    _own_views = 0

    def __init__(self, kind: pa.DataType, children: list[Reader]) -> None:
        self.kind, self.children = kind, children
        self.nodes: int = 1 + sum(child.nodes for child in children)
        self.buffers: int = self._has_validity + self._own_buffers + sum(child.buffers for child in children)
        self.views: int = self._own_views + sum(child.views for child in children)
        self._nothing: pa.Array | None = None

    def read(self, body: Body) -> pa.Array:
        """The next array of a body."""
        length, nulls = body.node()
        if not length:
            body.pass_over(self.nodes - 1, self.buffers, self.views)
            return self.nothing(body.dictionaries)
        validity = body.validity(length, nulls) if self._has_validity else None
        array = self._made(body, length, validity)
        if validity is not None and array.null_count != nulls:
            raise InvalidValueError(f"it must have the {nulls} nulls that it says, not {array.null_count}")
        return array

    def nothing(self, dictionaries: Dictionaries) -> pa.Array:
        """An array of length 0."""
        if self._nothing is None:
            buffers = [None, *[_ZERO] * self._own_buffers]
            self._nothing = self._of(0, buffers, [child.nothing(dictionaries) for child in self.children])
        return self._nothing

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        raise NotImplementedError

    def _of(self, length: int, buffers: list[pa.Buffer | None], children: list[pa.Array] | None = None) -> pa.Array:
        """An array of sound buffers, whose nulls Arrow counts."""
        return pa.Array.from_buffers(self.kind, length, buffers, 0 if buffers[0] is None else -1, children=children)


class Nulls(Reader):
    """Nothing but nulls."""

    _has_validity = False

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        body.count(length)
        return pa.Array.from_buffers(self.kind, length, [validity])


class Fixed(Reader):
    """Values of so many bits each."""

    _own_buffers = 1

    def __init__(self, kind: pa.DataType, children: list[Reader]) -> None:
        super().__init__(kind, children)
        self._bits = kind.bit_width
        # Arrow must look at the values of these
        self._validate = _is.is_decimal(kind) or _is.is_date64(kind) or _is.is_time(kind)

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        if not self._bits:
            body.count(length)
        array = self._of(length, [validity, body.buffer((length * self._bits + 7) // 8)])
        if self._validate:
            array.validate(full=True)
        return array


class Strings(Reader):
    """Strings, or binary."""

    _own_buffers = 2

    def __init__(self, kind: pa.DataType, children: list[Reader]) -> None:
        super().__init__(kind, children)
        self._width = np.dtype(np.int32 if _is.is_string(kind) or _is.is_binary(kind) else np.int64)
        self._is_text = _is.is_string(kind) or _is.is_large_string(kind)

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        offsets, data = _offsets(body, length, self._width), body.buffer()
        _check_offsets(offsets, length, self._width, data.size)
        array = self._of(length, [validity, offsets, data])
        if self._is_text:
            array.validate(full=True)
        return array


class Views(Reader):
    """Strings or binary as views of buffers of data."""

    _own_buffers = 1
    _own_views = 1

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        given, data = body.buffer(16 * length), body.view_buffers()
        views = np.frombuffer(given, VIEW, length)
        if validity is not None:  # else what is null could point anywhere
            views = np.where(bits(validity, length), views, np.zeros(1, VIEW))
            given = pa.py_buffer(views)
        sizes = views["size"]
        if sizes.min() < 0:
            raise InvalidValueError("its lengths must be from 0 on")
        far = views[sizes > _VIEW_INLINE]
        if len(far):
            places = far["buffer"]
            if places.min() < 0 or places.max() >= len(data):
                raise InvalidValueError(f"it must have its data in the {len(data)} buffers that it has")
            ends = far["offset"].astype(np.int64) + far["size"]
            if far["offset"].min() < 0 or (ends > np.array([each.size for each in data])[places]).any():
                raise InvalidValueError("its data must be within its buffers")
        body.count_written_out(sizes.sum(dtype=np.float64))
        array = self._of(length, [validity, given, *data])
        array.validate(full=True)
        return array


class Lists(Reader):
    """Lists, or maps."""

    _own_buffers = 1

    def __init__(self, kind: pa.DataType, children: list[Reader]) -> None:
        super().__init__(kind, children)
        self._width = np.dtype(np.int64 if _is.is_large_list(kind) else np.int32)

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        offsets = _offsets(body, length, self._width)
        values = self.children[0].read(body)
        if _is.is_map(self.kind) and (values.null_count or values.field(0).null_count):
            raise InvalidValueError("its entries and their keys must not be null")
        _check_offsets(offsets, length, self._width, len(values))
        return self._of(length, [validity, offsets], [values])


class ListViews(Reader):
    """Lists of which each has its own place and length."""

    _own_buffers = 2

    def __init__(self, kind: pa.DataType, children: list[Reader]) -> None:
        super().__init__(kind, children)
        self._width = np.dtype(np.int64 if _is.is_large_list_view(kind) else np.int32)

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        given = [body.buffer(length * self._width.itemsize) for _ in range(2)]
        values = self.children[0].read(body)
        offsets, sizes = (np.frombuffer(buffer, self._width, length) for buffer in given)
        if validity is not None:
            there = bits(validity, length)
            offsets, sizes = np.where(there, offsets, 0), np.where(there, sizes, 0)
            given = [pa.py_buffer(offsets), pa.py_buffer(sizes)]
        if offsets.min() < 0 or sizes.min() < 0 or (sizes > len(values) - offsets).any():
            raise InvalidValueError(f"its lists must be within the {len(values)} values that it has")
        array = self._of(length, [validity, *given], [values])
        body.count_written_out(sizes_of(array).sum(dtype=np.float64))
        return array


class FixedLists(Reader):
    """Lists of one length."""

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        body.count(length)
        values = _first(self.children[0].read(body), length * self.kind.list_size)
        return self._of(length, [validity], [values])


class Structs(Reader):
    """Values of several fields."""

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        body.count(length)
        return self._of(length, [validity], [_first(child.read(body), length) for child in self.children])


class SparseUnions(Reader):
    """Values of several types, with an array as long for each type."""

    _has_validity = False
    _own_buffers = 1

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        types = body.buffer(length)
        self._types_of(types, length)
        children = [_first(child.read(body), length) for child in self.children]
        return self._of(length, [validity, types], children)

    def _types_of(self, types: pa.Buffer, length: int) -> Any:
        found = np.frombuffer(types, np.int8, length)
        if not np.isin(found, np.array(self.kind.type_codes, np.int8)).all():
            raise InvalidValueError("its values must be of the types that it has")
        return found


class DenseUnions(SparseUnions):
    """Values of several types, with an array of its own length for each type."""

    _own_buffers = 2

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        types, offsets = body.buffer(length), body.buffer(4 * length)
        codes, places = self._types_of(types, length), np.frombuffer(offsets, np.int32, length)
        children = [child.read(body) for child in self.children]
        for code, child in zip(self.kind.type_codes, children, strict=True):
            mine = places[codes == code]
            if len(mine) and (mine.min() < 0 or mine.max() >= len(child) or (mine[1:] < mine[:-1]).any()):
                raise InvalidValueError(f"its offsets must go up within the {len(child)} values that it has of a type")
        return self._of(length, [validity, types, offsets], children)


class RunEnds(Reader):
    """Values that come several times in a row."""

    _has_validity = False

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        body.count(length)
        ends, values = (child.read(body) for child in self.children)
        places = ends.to_numpy(zero_copy_only=False) if not ends.null_count else np.zeros(0, np.int64)
        if not len(places) or places[0] < 1 or (places[1:] <= places[:-1]).any() or places[-1] < length:
            raise InvalidValueError(f"its runs must have ends that go up to its length {length}")
        array = self._of(length, [validity], [ends, _first(values, len(ends))])
        body.count_written_out((sizes_of(array.values) * runs_of(ends, length)).sum(dtype=np.float64))
        return array


class Indices(Reader):
    """Places in a dictionary, which has come before."""

    _own_buffers = 1

    def __init__(self, kind: pa.DataType, number: int, values: Reader) -> None:
        super().__init__(kind, [])
        self._number, self._values, self._indices = number, values, Fixed(kind.index_type, [])
        self._width = numpy_type(kind.index_type)

    def nothing(self, dictionaries: Dictionaries) -> pa.Array:
        """An array of length 0."""
        known = dictionaries.get(self._number)
        values = self._values.nothing(dictionaries) if known is None else known.joined()[0]
        return self._in_dictionary(self._indices.nothing(dictionaries), values)

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        if self._number not in body.dictionaries:
            raise InvalidValueError("its dictionary must come before it")
        values, sizes = body.dictionaries[self._number].joined()
        given = body.buffer(length * self._width.itemsize)
        places = np.frombuffer(given, self._width, length)
        if validity is not None:  # else what is null could point anywhere
            places = np.where(bits(validity, length), places, self._width.type(0))
            given = pa.py_buffer(places)
        nothing_is_there = not len(values) and not places.any()
        if not nothing_is_there and (places.min() < 0 or places.max() >= len(values)):
            raise InvalidValueError(f"its indices must be within the {len(values)} values of its dictionary")
        array = self._in_dictionary(self._indices._of(length, [validity, given]), values)
        if nothing_is_there and array.null_count < length:
            raise InvalidValueError("its indices must be within its dictionary, which has no values")
        body.count_written_out(0 if nothing_is_there else sizes[places].sum(dtype=np.float64))
        return array

    def _in_dictionary(self, places: pa.Array, values: pa.Array) -> pa.Array:
        return pa.DictionaryArray.from_arrays(places, values, ordered=self.kind.ordered, safe=False)


class Extensions(Reader):
    """Values of a type that somebody has made of another one."""

    def __init__(self, kind: pa.DataType, storage: Reader) -> None:
        super().__init__(kind, [])
        self._storage = storage
        self.nodes, self.buffers, self.views = storage.nodes, storage.buffers, storage.views

    def read(self, body: Body) -> pa.Array:
        """The next array of a body."""
        return pa.ExtensionArray.from_storage(self.kind, self._storage.read(body))

    def nothing(self, dictionaries: Dictionaries) -> pa.Array:
        """An array of length 0."""
        return pa.ExtensionArray.from_storage(self.kind, self._storage.nothing(dictionaries))


# Intervals of months, or of days and milliseconds, which Python has nothing for
_WITHOUT_CLASS = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)

_READERS: list[tuple[Callable[[Any], bool], type[Reader]]] = [
    (_is.is_null, Nulls),
    (lambda kind: _is.is_string(kind) or _is.is_large_string(kind), Strings),
    (lambda kind: _is.is_binary(kind) or _is.is_large_binary(kind), Strings),
    (lambda kind: _is.is_string_view(kind) or _is.is_binary_view(kind), Views),
    (lambda kind: _is.is_list(kind) or _is.is_large_list(kind) or _is.is_map(kind), Lists),
    (lambda kind: _is.is_list_view(kind) or _is.is_large_list_view(kind), ListViews),
    (_is.is_fixed_size_list, FixedLists),
    (_is.is_struct, Structs),
    (lambda kind: _is.is_union(kind) and kind.mode == "sparse", SparseUnions),
    (_is.is_union, DenseUnions),
    (_is.is_run_end_encoded, RunEnds),
    (lambda kind: _is.is_primitive(kind) and kind.id not in _WITHOUT_CLASS, Fixed),
    (lambda kind: _is.is_decimal(kind) or _is.is_fixed_size_binary(kind), Fixed),
]


class Dictionary:
    """What is known of the dictionary of some number, before it comes."""

    def __init__(self, name: str, kind: pa.DataType, values: Reader) -> None:
        self.name, self.kind, self.values = name, kind, values


def reader_of(name: str, kind: pa.DataType, shape: FieldShape, dictionaries: dict[int, Dictionary]) -> Reader:
    """The reader of a field, whose dictionaries are added to those that are known."""
    if isinstance(kind, pa.BaseExtensionType):
        return Extensions(kind, reader_of(name, kind.storage_type, shape, dictionaries))
    if _is.is_dictionary(kind):
        if shape.dictionary is None:
            raise InvalidValueError("it must have a dictionary")
        values = reader_of(name, kind.value_type, shape._replace(dictionary=None), dictionaries)
        known = dictionaries.setdefault(shape.dictionary, Dictionary(name, kind.value_type, values))
        if known.kind != kind.value_type:
            raise InvalidValueError(f"its dictionary {shape.dictionary} must not be one of other values")
        return Indices(kind, shape.dictionary, values)
    if kind.num_fields != len(shape.children):
        raise InvalidValueError(f"it must have {kind.num_fields} fields, not {len(shape.children)}")
    if (_is.is_fixed_size_list(kind) and kind.list_size < 0) or (
        _is.is_fixed_size_binary(kind) and kind.byte_width < 0
    ):
        raise InvalidValueError("its values must have a length from 0 on")
    children = [reader_of(name, kind.field(i).type, child, dictionaries) for i, child in enumerate(shape.children)]
    for is_of, reader in _READERS:
        if is_of(kind):
            return reader(kind, children)
    raise InvalidTypeError(f"values of type {kind} cannot be used; send others")


def _offsets(body: Body, length: int, width: np.dtype[Any]) -> pa.Buffer:
    return body.buffer((length + 1) * width.itemsize)


def _check_offsets(buffer: pa.Buffer, length: int, width: np.dtype[Any], end: int) -> None:
    offsets: IntArray = np.frombuffer(buffer, width, length + 1)
    if offsets[0] < 0 or offsets[-1] > end or (offsets[1:] < offsets[:-1]).any():
        raise InvalidValueError(f"its offsets must go up from 0 on, to at most {end}")


def _first(values: pa.Array, count: int) -> pa.Array:
    """So many of the values, which are no fewer."""
    if len(values) < count:
        raise InvalidValueError(f"it must have {count} values within it, not {len(values)}")
    return values if len(values) == count else values.slice(0, count)
