"""Arrow IPC messages that come from anyone, as record batches whose every buffer was checked before Arrow saw it.

All that Arrow will follow without a look, such as offsets, is checked before it makes an array.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.files.formats import first_line
from tagmatch.files.ipc_messages import NO_BYTES, Body, DictionaryBatch, RowBatch, Shape, aligned, header_of
from tagmatch.model.arrays import BoolArray, I64Array, IntArray, offsets_of
from tagmatch.model.arrow import numpy_type
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

_is = pa.types

# Of a dictionary, before they are put together
_MOST_PARTS = 1000


class _Dictionary:
    """The values of a dictionary, and the bytes of each and of all, once and as far as they have come."""

    def __init__(self, name: str, kind: pa.DataType, values: _Reader) -> None:
        self.name, self.kind, self.values = name, kind, values
        self.has_come, self.nbytes = False, 0
        self._parts: list[tuple[pa.Array, I64Array]] = []

    def take(self, values: pa.Array, nbytes: int, *, is_delta: bool) -> None:
        """Add values, or have them replace others; those of many messages are put together once."""
        parts, before = (self._parts, self.nbytes) if is_delta else ([], 0)
        self._parts, self.nbytes, self.has_come = [*parts, (values, _sizes_of(values))], before + nbytes, True
        if len(self._parts) > _MOST_PARTS:
            self.joined()

    def joined(self) -> tuple[pa.Array, I64Array]:
        """All of them."""
        if len(self._parts) > 1:
            arrays, sizes = zip(*self._parts, strict=True)
            self._parts = [(pa.concat_arrays(arrays), np.concatenate(sizes))]
        return self._parts[0]


# -- arrays ------------------------------------------------------------------------------------------------------------

#: Where a value is that is a view; if it is short, it is in place of the last three
_VIEW = np.dtype([("size", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])
_VIEW_INLINE = 12
# In the place of all buffers of an empty array
_ZERO = pa.py_buffer(bytes(8))


class _Given(NamedTuple):
    """What an array is made of, which has at least one value."""

    body: Body
    length: int
    validity: Any  # A buffer that marks nulls, or `None`
    buffers: list[pa.Buffer]  # The others, each with the bytes that it must have
    children: list[pa.Array]


class _Reader:
    """Makes the arrays of one field. Arrays of length 0 are made again, without their buffers."""

    def __init__(self, kind: pa.DataType, parts: _Parts, children: list[_Reader]) -> None:
        self.kind, self._parts, self._children = kind, parts, children
        # Of offsets or places, if it has some
        self.width: np.dtype[Any] = np.dtype(np.int64 if str(kind).startswith("large_") else np.int32)
        self.dictionary: _Dictionary | None = None
        self._own_buffers = len(parts.sizes(self, 0))
        self._nodes: int = 1 + sum(child._nodes for child in children)
        self._buffers: int = parts.has_validity + self._own_buffers + sum(child._buffers for child in children)
        self._views: int = parts.has_views + sum(child._views for child in children)

    def read(self, body: Body) -> pa.Array:
        """The next array of a body."""
        parts, (length, nulls) = self._parts, body.node()
        if not length:
            views = sum(body.views() for _ in range(self._views))
            body.leave_aside(buffers=self._buffers + views, nodes=self._nodes - 1)
            return self.nothing()
        validity = body.buffer((length + 7) // 8) if parts.has_validity and nulls else None
        if parts.has_validity and not nulls:
            body.leave_aside(buffers=1)
        sizes = parts.sizes(self, length)
        if not any(sizes):
            body.count(length)
        buffers = [body.buffer(size) for size in sizes]
        if parts.has_views:
            buffers += [body.buffer() for _ in range(body.views())]
        children = [child.read(body) for child in self._children]
        array = parts.make(self, _Given(body, length, validity, buffers, children))
        if validity is not None and array.null_count != nulls:
            raise InvalidValueError(f"it must have the {nulls} nulls that it says, not {array.null_count}")
        return array

    def nothing(self) -> pa.Array:
        """An array of length 0."""
        known = self.dictionary
        if known is not None:
            values = known.joined()[0] if known.has_come else known.values.nothing()
            return self.in_dictionary(pa.array([], self.kind.index_type), values)
        buffers = [None, *[_ZERO] * self._own_buffers]
        return pa.Array.from_buffers(self.kind, 0, buffers, 0, children=[child.nothing() for child in self._children])

    def in_dictionary(self, places: pa.Array, values: pa.Array) -> pa.Array:
        """Values by their places."""
        return pa.DictionaryArray.from_arrays(places, values, ordered=self.kind.ordered, safe=False)


class _ExtensionReader(_Reader):
    """Values of an extension type, which is made of another one."""

    def __init__(self, kind: pa.DataType, storage: _Reader) -> None:
        super().__init__(storage.kind, storage._parts, storage._children)
        self._type, self._storage = kind, storage

    def read(self, body: Body) -> pa.Array:
        """The next array of a body."""
        return pa.ExtensionArray.from_storage(self._type, self._storage.read(body))

    def nothing(self) -> pa.Array:
        """An array of length 0."""
        return pa.ExtensionArray.from_storage(self._type, self._storage.nothing())


class _Parts(NamedTuple):
    """What arrays of some types are made of."""

    is_of: Callable[[Any], bool]
    # `make(reader, given)` checks all that Arrow follows without a look
    make: Callable[[_Reader, _Given], pa.Array]
    # `sizes(reader, length)`: bytes of each buffer besides the validity; `None`: any number
    sizes: Callable[[_Reader, int], tuple[int | None, ...]] = lambda *_: ()
    has_validity: bool = True
    has_views: bool = False


def _plain(reader: _Reader, given: _Given) -> pa.Array:
    """An array of sound buffers, whose nulls Arrow counts."""
    buffers, nulls = [given.validity, *given.buffers], 0 if given.validity is None else -1
    return pa.Array.from_buffers(reader.kind, given.length, buffers, nulls, children=given.children)


def _looked_at(reader: _Reader, given: _Given) -> pa.Array:
    """An array whose values Arrow must look at one by one."""
    array = _plain(reader, given)
    array.validate(full=True)
    return array


def _numbers(reader: _Reader, buffer: pa.Buffer, given: _Given) -> IntArray:
    """Places of values; 0 for nulls, whose places could be anything."""
    found: IntArray = np.frombuffer(buffer, reader.width, given.length)
    return found if given.validity is None else np.where(_bits(given), found, reader.width.type(0))


def _bits(given: _Given) -> BoolArray:
    """What is no null."""
    bytes_of_it = np.frombuffer(given.validity, np.uint8, (given.length + 7) // 8)
    return np.unpackbits(bytes_of_it, count=given.length, bitorder="little").view(np.bool_)


def _check_offsets(reader: _Reader, given: _Given, end: int) -> None:
    offsets: IntArray = np.frombuffer(given.buffers[0], reader.width, given.length + 1)
    if offsets[0] < 0 or offsets[-1] > end or (offsets[1:] < offsets[:-1]).any():
        raise InvalidValueError(f"its offsets must go up from 0 on, to at most {end}")


def _first(values: pa.Array, count: int) -> pa.Array:
    """The first `count` of the values, which are no fewer."""
    if len(values) < count:
        raise InvalidValueError(f"it must have {count} values within it, not {len(values)}")
    return values if len(values) == count else values.slice(0, count)


def _strings(reader: _Reader, given: _Given) -> pa.Array:
    _check_offsets(reader, given, given.buffers[1].size)
    is_text = _is.is_string(reader.kind) or _is.is_large_string(reader.kind)
    return (_looked_at if is_text else _plain)(reader, given)


def _of_views(reader: _Reader, given: _Given) -> pa.Array:
    views, data = np.frombuffer(given.buffers[0], _VIEW, given.length), given.buffers[1:]
    if given.validity is not None:  # else nulls could point anywhere
        views = np.where(_bits(given), views, np.zeros(1, _VIEW))
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
    given.body.count_written_out(sizes)
    return _looked_at(reader, given._replace(buffers=[pa.py_buffer(views), *data]))


def _lists(reader: _Reader, given: _Given) -> pa.Array:
    (values,) = given.children
    if _is.is_map(reader.kind) and (values.null_count or values.field(0).null_count):
        raise InvalidValueError("its entries and their keys must not be null")
    _check_offsets(reader, given, len(values))
    return _plain(reader, given)


def _list_views(reader: _Reader, given: _Given) -> pa.Array:
    offsets, sizes = (_numbers(reader, buffer, given) for buffer in given.buffers)
    count = len(given.children[0])
    if offsets.min() < 0 or sizes.min() < 0 or (sizes > count - offsets).any():
        raise InvalidValueError(f"its lists must be within the {count} values that it has")
    array = _plain(reader, given._replace(buffers=[pa.py_buffer(offsets), pa.py_buffer(sizes)]))
    given.body.count_written_out(_sizes_of(array))
    return array


def _structs(reader: _Reader, given: _Given) -> pa.Array:
    """Structs, or lists of one length."""
    count = given.length * (reader.kind.list_size if _is.is_fixed_size_list(reader.kind) else 1)
    return _plain(reader, given._replace(children=[_first(child, count) for child in given.children]))


def _unions(reader: _Reader, given: _Given) -> pa.Array:
    """Values of several types, with an array for each type: as long as the union (sparse), or with its length."""
    codes = np.frombuffer(given.buffers[0], np.int8, given.length)
    if not np.isin(codes, np.array(reader.kind.type_codes, np.int8)).all():
        raise InvalidValueError("its values must be of the types that it has")
    if reader.kind.mode == "sparse":
        return _structs(reader, given)
    places = np.frombuffer(given.buffers[1], np.int32, given.length)
    for code, child in zip(reader.kind.type_codes, given.children, strict=True):
        mine = places[codes == code]
        if len(mine) and (mine.min() < 0 or mine.max() >= len(child) or (mine[1:] < mine[:-1]).any()):
            raise InvalidValueError(f"its offsets must go up within the {len(child)} values that it has of a type")
    return _plain(reader, given)


def _runs(reader: _Reader, given: _Given) -> pa.Array:
    ends, values = given.children
    places = ends.to_numpy(zero_copy_only=False) if not ends.null_count else np.zeros(0, np.int64)
    if not len(places) or places[0] < 1 or (places[1:] <= places[:-1]).any() or places[-1] < given.length:
        raise InvalidValueError(f"its runs must have ends that go up to its length {given.length}")
    array = _plain(reader, given._replace(children=[ends, _first(values, len(ends))]))
    given.body.count_written_out(_sizes_of(array.values) * _runs_of(ends, given.length))
    return array


def _indices(reader: _Reader, given: _Given) -> pa.Array:
    """Places in a dictionary."""
    known, (buffer,) = reader.dictionary, given.buffers
    assert known is not None
    if not known.has_come:
        raise InvalidValueError("its dictionary must come before it")
    (values, sizes), places = known.joined(), _numbers(reader, buffer, given)
    nothing_is_there = not len(values) and not places.any()
    if not nothing_is_there and (places.min() < 0 or places.max() >= len(values)):
        raise InvalidValueError(f"its indices must be within the {len(values)} values of its dictionary")
    buffers = [given.validity, pa.py_buffer(places)]
    array = reader.in_dictionary(pa.Array.from_buffers(reader.kind.index_type, given.length, buffers), values)
    if nothing_is_there and array.null_count < given.length:
        raise InvalidValueError("its indices must be within its dictionary, which has no values")
    given.body.count_written_out(sizes[:0] if nothing_is_there else sizes[places])
    return array


def _offsets_size(reader: _Reader, length: int) -> int:
    return (length + 1) * reader.width.itemsize


def _bits_size(reader: _Reader, length: int) -> tuple[int]:
    return ((length * reader.kind.bit_width + 7) // 8,)


# Intervals of months, or of days and milliseconds, which Python has nothing for
_WITHOUT_CLASS = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)


def _any_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda kind: any(is_of(kind) for is_of in tests)


_STRINGS = _any_of(_is.is_string, _is.is_large_string, _is.is_binary, _is.is_large_binary)
_VIEWS = _any_of(_is.is_string_view, _is.is_binary_view)
_LIST_VIEWS = _any_of(_is.is_list_view, _is.is_large_list_view)
_LOOKED_AT = _any_of(_is.is_decimal, _is.is_date64, _is.is_time)
_KINDS = [
    _Parts(_is.is_dictionary, _indices, lambda reader, length: (length * reader.width.itemsize,)),
    _Parts(
        _is.is_null, lambda reader, given: pa.Array.from_buffers(reader.kind, given.length, [None]), has_validity=False
    ),
    _Parts(_STRINGS, _strings, lambda reader, length: (_offsets_size(reader, length), None)),
    _Parts(_VIEWS, _of_views, lambda _, length: (_VIEW.itemsize * length,), has_views=True),
    _Parts(
        _any_of(_is.is_list, _is.is_large_list, _is.is_map),
        _lists,
        lambda reader, length: (_offsets_size(reader, length),),
    ),
    _Parts(_LIST_VIEWS, _list_views, lambda reader, length: (length * reader.width.itemsize,) * 2),
    _Parts(_any_of(_is.is_fixed_size_list, _is.is_struct), _structs),
    _Parts(
        _is.is_union,
        _unions,
        lambda reader, length: (length,) if reader.kind.mode == "sparse" else (length, 4 * length),
        has_validity=False,
    ),
    _Parts(_is.is_run_end_encoded, _runs, has_validity=False),
    _Parts(_LOOKED_AT, _looked_at, _bits_size),
    _Parts(lambda kind: _is.is_primitive(kind) and kind.id not in _WITHOUT_CLASS, _plain, _bits_size),
    _Parts(_is.is_fixed_size_binary, _plain, _bits_size),
]


def _reader_of(name: str, kind: pa.DataType, shape: Shape, known: dict[int, _Dictionary]) -> _Reader:
    """The reader of a field, whose dictionaries are added to those that are known."""
    if isinstance(kind, pa.BaseExtensionType):
        return _ExtensionReader(kind, _reader_of(name, kind.storage_type, shape, known))
    parts = next((parts for parts in _KINDS if parts.is_of(kind)), None)
    if _is.is_dictionary(kind):
        if shape.dictionary is None:
            raise InvalidValueError("it must have a dictionary")
        values = _reader_of(name, kind.value_type, shape._replace(dictionary=None), known)
        reader = _Reader(kind, _KINDS[0], [])
        reader.width = numpy_type(kind.index_type)
        reader.dictionary = known.setdefault(shape.dictionary, _Dictionary(name, kind.value_type, values))
        if reader.dictionary.kind != kind.value_type:
            raise InvalidValueError(f"its dictionary {shape.dictionary} must not be one of other values")
        return reader
    if kind.num_fields != len(shape.children):
        raise InvalidValueError(f"it must have {kind.num_fields} fields, not {len(shape.children)}")
    if (_is.is_fixed_size_list(kind) and kind.list_size < 0) or (
        _is.is_fixed_size_binary(kind) and kind.byte_width < 0
    ):
        raise InvalidValueError("its values must have a length from 0 on")
    children = [_reader_of(name, kind.field(i).type, child, known) for i, child in enumerate(shape.children)]
    if parts is None:
        raise InvalidTypeError(f"values of type {kind} cannot be used; send others")
    return _Reader(kind, parts, children)


def _sizes_of(array: pa.Array) -> I64Array:
    """Bytes of each value of a sound array, or a few more, without the bits that mark nulls."""
    kind, length = array.type, len(array)
    sizes: I64Array
    if isinstance(kind, pa.BaseExtensionType):
        sizes = _sizes_of(array.storage)
    elif _is.is_dictionary(kind):
        values, places = _sizes_of(array.dictionary), array.indices.fill_null(0).to_numpy()
        sizes = values[places] if len(values) else np.zeros(length, np.int64)
    elif _is.is_run_end_encoded(kind):
        sizes = np.repeat(_sizes_of(array.values), _runs_of(array.run_ends, length))
    elif _is.is_struct(kind) or _is.is_union(kind):
        fields = [_sizes_of(array.field(i)) for i in range(kind.num_fields)]
        whole = [each if len(each) == length else np.full(length, each.max(initial=0)) for each in fields]
        sizes = np.sum(whole, axis=0, dtype=np.int64) if whole else np.zeros(length, np.int64)
    elif _VIEWS(kind):
        sizes = np.frombuffer(array.buffers()[1], _VIEW, length)["size"].astype(np.int64)
    elif _is.is_nested(kind):
        sizes = _sizes_of_lists(array)
    elif _STRINGS(kind):
        sizes = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    else:
        sizes = np.full(length, 0 if _is.is_null(kind) else (kind.bit_width + 7) // 8)
    return sizes


def _runs_of(ends: pa.Array, length: int) -> I64Array:
    """How many values there are of each run."""
    runs: I64Array = np.diff(np.minimum(ends.to_numpy(), length).astype(np.int64), prepend=0)
    return runs


def _sizes_of_lists(array: pa.Array) -> I64Array:
    kind, begins = array.type, offsets_of(_sizes_of(array.values))
    if _is.is_fixed_size_list(kind):
        first = np.arange(len(array)) * kind.list_size
        last = first + kind.list_size
    elif _LIST_VIEWS(kind):
        first = array.offsets.to_numpy().astype(np.int64)
        last = first + array.sizes.to_numpy()
    else:
        offsets = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int64)
        first, last = offsets[:-1], offsets[1:]
    sizes: I64Array = begins[last] - begins[first]
    return sizes


# -- streams -----------------------------------------------------------------------------------------------------------

# Of an encapsulated message, before its length
_CONTINUED = b"\xff\xff\xff\xff"


class IpcReader:
    """Record batches of an Arrow IPC stream whose bytes come from anyone, message by message.

    What is unsound is an error, and never a crash, now or later: lengths, offsets, nulls, indices, run ends, views and
    texts are checked.
    """

    def __init__(self, *, most_bytes: int | None = None, most_rows: int | None = None) -> None:
        self.schema: pa.Schema | None = None
        self._most_bytes, self._most_rows = most_bytes, most_rows
        self._readers: list[tuple[str, _Reader]] = []
        self._dictionaries: dict[int, _Dictionary] = {}

    def feed(self, header: Any, body: Any = None) -> pa.RecordBatch | None:
        """Take the next message."""
        header = bytes(header)
        found = header_of(header)
        if isinstance(found, list):
            self._take_schema(header, found)
            return None
        if self.schema is None:
            raise InvalidValueError("Arrow data must begin with a schema")
        data = NO_BYTES if body is None else aligned(body if isinstance(body, pa.Buffer) else pa.py_buffer(body))
        if isinstance(found, DictionaryBatch):
            self._take_dictionary(found, data)
            return None
        return self._batch(found, data)

    def _take_schema(self, header: bytes, shapes: list[Shape]) -> None:
        if self.schema is not None:
            raise InvalidValueError("Arrow data must have one schema, at its beginning")
        padded = header + bytes(-len(header) % 8)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(_CONTINUED + struct.pack("<i", len(padded)) + padded))
            names = schema.names
        except (pa.ArrowException, OSError, ValueError, TypeError, NotImplementedError) as error:
            raise InvalidValueError(f"the Arrow schema cannot be read: {first_line(error)[:200]}") from None
        if len(names) != len(shapes):
            raise InvalidValueError("the header of an Arrow message is damaged")
        readers: list[tuple[str, _Reader]] = []
        for name, kind, shape in zip(names, schema.types, shapes, strict=True):
            with _named(name):
                readers.append((name, _reader_of(name, kind, shape, self._dictionaries)))
        self.schema, self._readers = schema, readers

    def _take_dictionary(self, header: DictionaryBatch, data: pa.Buffer) -> None:
        known = self._dictionaries.get(header.number)
        if known is None:
            raise InvalidValueError(f"no column has the dictionary {header.number} that has come")
        with _named(known.name):
            kept = [each for each in self._dictionaries.values() if each is not known or header.is_delta]
            most = None if self._most_bytes is None else self._most_bytes - sum(each.nbytes for each in kept)
            body = Body(header.values, data, most)
            values = known.values.read(body)
            if len(values) != header.values.rows:
                raise InvalidValueError("a dictionary must have the length that it says")
            known.take(values, body.nbytes, is_delta=header.is_delta)

    def _batch(self, header: RowBatch, data: pa.Buffer) -> pa.RecordBatch:
        rows = header.rows
        if rows < 0:
            raise InvalidValueError(f"a batch must have 0 rows or more, not {rows}")
        if self._most_rows is not None and rows > self._most_rows:
            raise InvalidValueError(f"a batch must have at most {self._most_rows:,} rows, not {rows:,}")
        body, columns = Body(header, data, self._most_bytes), []
        for name, reader in self._readers:
            with _named(name):
                column = reader.read(body) if rows else reader.nothing()
                if len(column) != rows:
                    raise InvalidValueError(f"it must have the {rows} rows of its batch, not {len(column)}")
                columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of a column have its name."""
    try:
        yield
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"column {name[:60]!r}: {error}") from None
    except (pa.ArrowException, NotImplementedError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"column {name[:60]!r}: the Arrow data is damaged: {first_line(error)[:200]}") from None
