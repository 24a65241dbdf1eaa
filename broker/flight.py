"""Messages of Arrow Flight as bytes of Protocol Buffers, read with care: all of them may come from anyone.

Arrow data on its way: record batches as messages of Flight, and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import pyarrow as pa

from tagmatch.broker.config import ServerOptions
from tagmatch.broker.transport import Rpc
from tagmatch.files.ipc import IpcReader
from tagmatch.model.errors import InvalidValueError

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10
_MOST_FIELDS = 64
_COMMAND = 2


class Descriptor(NamedTuple):
    """What a stream or a question is about."""

    is_command: bool  # Whether it is a command, not a path
    command: bytes


class Data(NamedTuple):
    """One message of a stream."""

    descriptor: Descriptor | None  # The first message of a stream has one
    header: memoryview  # A message of Arrow IPC; both are empty in a message of metadata alone
    body: memoryview


def read_data(message: bytes) -> Data:
    """A `FlightData`; InvalidValueError for other bytes."""
    found = _fields(message)
    descriptor = found.get(1)
    return Data(
        None if descriptor is None else read_descriptor(_bytes(descriptor)),
        _bytes(found.get(2)),
        _bytes(found.get(1000)),
    )


def read_descriptor(message: bytes | memoryview) -> Descriptor:
    """A `FlightDescriptor`; InvalidValueError for other bytes."""
    found = _fields(message)
    return Descriptor(found.get(1) == _COMMAND, bytes(_bytes(found.get(2))))


def read_ticket(message: bytes) -> bytes:
    """The bytes of a `Ticket`; InvalidValueError for other bytes."""
    return bytes(_bytes(_fields(message).get(1)))


def read_action(message: bytes) -> tuple[str, bytes]:
    """Name and body of an `Action`; InvalidValueError for other bytes."""
    found = _fields(message)
    try:
        return str(_bytes(found.get(1)), "utf-8"), bytes(_bytes(found.get(2)))
    except UnicodeDecodeError:
        raise InvalidValueError("the name of an action must be UTF-8") from None


def data(header: bytes | memoryview, body: bytes | memoryview = b"", metadata: bytes = b"") -> bytes:
    """A `FlightData`."""
    parts: list[bytes | memoryview] = []
    if header:
        parts += (b"\x12", _varint(len(header)), header)
    if metadata:
        parts += (b"\x1a", _varint(len(metadata)), metadata)
    if body:
        parts += (b"\xc2\x3e", _varint(len(body)), body)
    return b"".join(parts)


def result(body: bytes) -> bytes:
    """A `Result` of an action, or a `PutResult`."""
    return _field(1, body)


def action_type(name: str, description: str) -> bytes:
    """An `ActionType`."""
    return _field(1, name.encode()) + _field(2, description.encode())


def schema_result(schema: bytes | memoryview) -> bytes:
    """A `SchemaResult`, of a schema with the prefix that Arrow IPC has before its messages."""
    return _field(1, schema)


def flight_info(schema: bytes | memoryview, command: bytes) -> bytes:
    """A `FlightInfo` of unknown length: what a command describes is given, at the same place, for it as a ticket."""
    unknown = b"\xff" * 9 + b"\x01"
    endpoint = _field(1, _field(1, command))
    descriptor = b"\x08" + _varint(_COMMAND) + _field(2, command)
    return _field(1, schema) + _field(2, descriptor) + _field(3, endpoint) + b"\x20" + unknown + b"\x28" + unknown


def _field(number: int, data: bytes | memoryview) -> bytes:
    return b"".join((_varint(number << 3 | _BYTES), _varint(len(data)), data))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _bytes(found: int | memoryview | None) -> memoryview:
    if isinstance(found, int):
        raise InvalidValueError("the message is no Protocol Buffer of Arrow Flight: a field is of another type")
    return memoryview(b"") if found is None else found


def _fields(message: bytes | memoryview) -> dict[int, int | memoryview]:
    """Fields by number; of several with one number, the last."""
    found: dict[int, int | memoryview] = {}
    view, place = memoryview(message), 0
    try:
        for _ in range(_MOST_FIELDS):
            if place == len(view):
                return found
            key, place = _read_varint(view, place)
            number, kind = key >> 3, key & 7
            if kind == _BYTES:
                length, place = _read_varint(view, place)
                end = place + length
                found[number] = view[place:end]
            elif kind == _VARINT:
                found[number], end = _read_varint(view, place)
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                end = place + (8 if kind == _EIGHT_BYTES else 4)
            else:
                break
            if end > len(view) or not number:
                break
            place = end
    except IndexError:
        pass
    raise InvalidValueError("the message is no Protocol Buffer of Arrow Flight")


def _read_varint(view: memoryview, place: int) -> tuple[int, int]:
    byte = view[place]
    if byte < 0x80:
        return byte, place + 1
    number = shift = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = view[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, place
    raise IndexError


# Before the header of a message of Arrow IPC: a mark, and its length
_PREFIX = 8


class IncomingStream:
    """The stream that a client sends: its descriptor and its schema, and then its batches, which this iterates over."""

    def __init__(self, rpc: Rpc, options: ServerOptions) -> None:
        self._messages = iter(rpc)
        self._reader = IpcReader(most_bytes=options.max_message_bytes, most_rows=options.max_batch_rows)
        first = next(self._messages, None)
        if first is None:
            raise InvalidValueError("the stream ends before its first message, which has the descriptor")
        self._first: Data | None = read_data(first)
        if self._first.descriptor is None:
            raise InvalidValueError("the first message of a stream must have a descriptor")
        self.descriptor = self._first.descriptor

    @property
    def schema(self) -> pa.Schema:
        """Names and types of columns; waits for it."""
        while self._reader.schema is None:
            message = self._next()
            if message is None:
                raise InvalidValueError("the stream ends before its schema")
            self._feed(message)
        return self._reader.schema

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch, after messages that have only metadata."""
        while (message := self._next()) is not None:
            if (batch := self._feed(message)) is not None:
                return batch
        raise StopIteration

    def _next(self) -> Data | None:
        if self._first is not None:
            found, self._first = self._first, None
            return found
        message = next(self._messages, None)
        return None if message is None else read_data(message)

    def _feed(self, message: Data) -> pa.RecordBatch | None:
        return self._reader.feed(message.header, message.body) if message.header else None


class OutgoingStream:
    """Batches of one schema as messages of Flight."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._has_dictionaries = any(map(_has_dictionary, schema.types))

    def begin(self) -> bytes:
        """The message that comes first."""
        return data(_parts(self._schema.serialize())[0])

    def batch(self, batch: pa.RecordBatch, metadata: bytes = b"") -> Iterator[bytes]:
        """A batch, after the dictionaries that it needs."""
        if not self._has_dictionaries:
            yield data(*_parts(batch.serialize()), metadata)
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_batch(batch)
        _, *dictionaries, last = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
        for each in dictionaries:
            yield data(each.metadata, each.body)
        yield data(last.metadata, last.body, metadata)


def told(metadata: bytes) -> bytes:
    """A message without data."""
    return data(b"", b"", metadata)


def _parts(message: pa.Buffer) -> tuple[memoryview, memoryview]:
    """Header and body of a message of Arrow IPC."""
    view = memoryview(message).cast("B")
    end = _PREFIX + int.from_bytes(view[4:_PREFIX], "little")
    return view[_PREFIX:end], view[end:]


def _has_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(
        _has_dictionary(kind.field(number).type) for number in range(kind.num_fields)
    )
