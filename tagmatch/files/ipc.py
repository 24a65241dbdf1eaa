"""Arrow IPC messages that come from anyone, as record batches whose every buffer was checked before Arrow saw it.

All that Arrow will follow without a look, such as offsets, is checked before it makes an array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.files.ipc_messages import (
    VIEW,
    BatchHeader,
    Body,
    Dictionaries,
    DictionaryHeader,
    FieldShape,
    SchemaHeader,
    Values,
    aligned,
    bits,
    header_of,
    runs_of,
    sizes_of,
)
from tagmatch.model.arrays import IntArray
from tagmatch.model.arrow import numpy_type
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

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
        # Of its offsets, if it has some
        self._width: np.dtype[Any] = np.dtype(np.int64 if str(kind).startswith("large_") else np.int32)

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

    def _check_offsets(self, buffer: pa.Buffer, length: int, end: int) -> None:
        offsets: IntArray = np.frombuffer(buffer, self._width, length + 1)
        if offsets[0] < 0 or offsets[-1] > end or (offsets[1:] < offsets[:-1]).any():
            raise InvalidValueError(f"its offsets must go up from 0 on, to at most {end}")

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

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        kind = self.kind
        if not kind.bit_width:
            body.count(length)
        array = self._of(length, [validity, body.buffer((length * kind.bit_width + 7) // 8)])
        if _is.is_decimal(kind) or _is.is_date64(kind) or _is.is_time(kind):  # Arrow must look at their values
            array.validate(full=True)
        return array


class StringReader(Reader):
    """Strings, or binary."""

    _own_buffers = 2

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        offsets, data = body.buffer((length + 1) * self._width.itemsize), body.buffer()
        self._check_offsets(offsets, length, data.size)
        array = self._of(length, [validity, offsets, data])
        if _is.is_string(self.kind) or _is.is_large_string(self.kind):
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


class ListReader(Reader):
    """Lists, or maps."""

    _own_buffers = 1

    def _made(self, body: Body, length: int, validity: pa.Buffer | None) -> pa.Array:
        offsets = body.buffer((length + 1) * self._width.itemsize)
        values = self.children[0].read(body)
        if _is.is_map(self.kind) and (values.null_count or values.field(0).null_count):
            raise InvalidValueError("its entries and their keys must not be null")
        self._check_offsets(offsets, length, len(values))
        return self._of(length, [validity, offsets], [values])


class ListViews(Reader):
    """Lists of which each has its own place and length."""

    _own_buffers = 2

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
    (lambda kind: _is.is_string(kind) or _is.is_large_string(kind), StringReader),
    (lambda kind: _is.is_binary(kind) or _is.is_large_binary(kind), StringReader),
    (lambda kind: _is.is_string_view(kind) or _is.is_binary_view(kind), Views),
    (lambda kind: _is.is_list(kind) or _is.is_large_list(kind) or _is.is_map(kind), ListReader),
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


def _first(values: pa.Array, count: int) -> pa.Array:
    """So many of the values, which are no fewer."""
    if len(values) < count:
        raise InvalidValueError(f"it must have {count} values within it, not {len(values)}")
    return values if len(values) == count else values.slice(0, count)


_NO_BODY = pa.py_buffer(b"")
# Of an encapsulated message, before its length
_CONTINUED = b"\xff\xff\xff\xff"
_LENGTH = struct.Struct("<i")


class IpcReader:
    """Record batches of an Arrow IPC stream whose bytes come from anyone, message by message.

    What is unsound is an error, and never a crash, now or later: lengths, offsets, nulls, indices, run ends, views and
    texts are checked.
    """

    def __init__(self, *, most_bytes: int | None = None, most_rows: int | None = None) -> None:
        self.schema: pa.Schema | None = None
        self._most_bytes, self._most_rows = most_bytes, most_rows
        self._readers: list[tuple[str, Reader]] = []
        self._known: dict[int, Dictionary] = {}
        self._dictionaries: Dictionaries = {}
        self._held = 0

    def feed(self, header: Any, body: Any = None) -> pa.RecordBatch | None:
        """Take the next message."""
        header = bytes(header)
        found = header_of(header)
        if isinstance(found, SchemaHeader):
            self._take_schema(header, found)
            return None
        if self.schema is None:
            raise InvalidValueError("Arrow data must begin with a schema")
        data = _NO_BODY if body is None else aligned(body if isinstance(body, pa.Buffer) else pa.py_buffer(body))
        if isinstance(found, DictionaryHeader):
            self._take_dictionary(found, data)
            return None
        return self._batch(found, data)

    def _take_schema(self, header: bytes, found: SchemaHeader) -> None:
        if self.schema is not None:
            raise InvalidValueError("Arrow data must have one schema, at its beginning")
        padded = header + bytes(-len(header) % 8)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(_CONTINUED + _LENGTH.pack(len(padded)) + padded))
            names = schema.names
        except (pa.ArrowException, OSError, ValueError, TypeError, NotImplementedError) as error:
            raise InvalidValueError(f"the Arrow schema cannot be read: {_first_line(error)}") from None
        if len(names) != len(found.fields):
            raise InvalidValueError("the header of an Arrow message is damaged")
        readers: list[tuple[str, Reader]] = []
        for name, kind, shape in zip(names, schema.types, found.fields, strict=True):
            with _Named(name):
                readers.append((name, reader_of(name, kind, shape, self._known)))
        self.schema, self._readers = schema, readers

    def _take_dictionary(self, header: DictionaryHeader, data: pa.Buffer) -> None:
        number, known = header.number, self._known.get(header.number)
        if known is None:
            raise InvalidValueError(f"no column has the dictionary {number} that has come")
        with _Named(known.name):
            old = self._dictionaries.get(number)
            new = old if old is not None and header.is_delta else Values()
            freed = 0 if old is None or new is old else old.nbytes
            most = None if self._most_bytes is None else self._most_bytes - self._held + freed
            body = Body(header.values, data, most, self._dictionaries)
            values = known.values.read(body)
            if len(values) != header.values.rows:
                raise InvalidValueError("a dictionary must have the length that it says")
            new.add(values, sizes_of(values), body.nbytes)
            self._dictionaries[number] = new
            self._held += body.nbytes - freed

    def _batch(self, header: BatchHeader, data: pa.Buffer) -> pa.RecordBatch:
        rows = header.rows
        if rows < 0:
            raise InvalidValueError(f"a batch must have 0 rows or more, not {rows}")
        if self._most_rows is not None and rows > self._most_rows:
            raise InvalidValueError(f"a batch must have at most {self._most_rows:,} rows, not {rows:,}")
        body, columns = Body(header, data, self._most_bytes, self._dictionaries), []
        for name, reader in self._readers:
            with _Named(name):
                column = reader.read(body) if rows else reader.nothing(self._dictionaries)
                if len(column) != rows:
                    raise InvalidValueError(f"it must have the {rows} rows of its batch, not {len(column)}")
                columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Named:
    """Errors of a column have its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        place = f"column {self._name[:60]!r}: "
        if isinstance(error, InvalidTypeError):
            raise InvalidTypeError(f"{place}{error}") from None
        if isinstance(error, InvalidValueError):
            raise InvalidValueError(f"{place}{error}") from None
        if isinstance(error, pa.ArrowException | NotImplementedError | UnicodeDecodeError):
            raise InvalidValueError(f"{place}the Arrow data is damaged: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
