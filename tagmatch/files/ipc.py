"""Arrow IPC messages that come from anyone, as record batches whose every buffer was checked before Arrow saw it."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from tagmatch.files.ipc_arrays import Body, Dictionaries, Dictionary, Reader, Values, aligned, reader_of
from tagmatch.files.ipc_messages import BatchHeader, DictionaryHeader, SchemaHeader, header_of, sizes_of
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

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
