"""Arrow data on its way: record batches as messages of Flight, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import pyarrow as pa

from tagmatch.broker import flight_wire as wire
from tagmatch.broker.config import ServerOptions
from tagmatch.broker.transport import Rpc
from tagmatch.files.ipc import IpcReader
from tagmatch.model.errors import InvalidValueError

# Before the header of a message of Arrow IPC: a mark, and its length
_PREFIX = 8


class Incoming:
    """The stream that a client sends: its descriptor and its schema, and then its batches, which this iterates over.

    Parameters
    ----------
    rpc : Rpc
    options : ServerOptions
        How large batches may be.

    Attributes
    ----------
    descriptor : wire.Descriptor

    Raises
    ------
    InvalidValueError
        What comes is no such stream; also from the methods.
    GoneError
        The client is gone; also from the methods.
    """

    def __init__(self, rpc: Rpc, options: ServerOptions) -> None:
        self._messages = iter(rpc)
        self._reader = IpcReader(most_bytes=options.max_message_bytes, most_rows=options.max_batch_rows)
        first = next(self._messages, None)
        if first is None:
            raise InvalidValueError("the stream ends before its first message, which has the descriptor")
        self._first: wire.Data | None = wire.read_data(first)
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

    def _next(self) -> wire.Data | None:
        if self._first is not None:
            found, self._first = self._first, None
            return found
        message = next(self._messages, None)
        return None if message is None else wire.read_data(message)

    def _feed(self, message: wire.Data) -> pa.RecordBatch | None:
        return self._reader.feed(message.header, message.body) if message.header else None


class Outgoing:
    """Batches of one schema as messages of Flight.

    Parameters
    ----------
    schema : pyarrow.Schema
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._has_dictionaries = any(map(_has_dictionary, schema.types))

    def begin(self) -> bytes:
        """The message that comes first."""
        return wire.data(_parts(self._schema.serialize())[0])

    def batch(self, batch: pa.RecordBatch, metadata: bytes = b"") -> Iterator[bytes]:
        """A batch, after the dictionaries that it needs."""
        if not self._has_dictionaries:
            yield wire.data(*_parts(batch.serialize()), metadata)
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_batch(batch)
        _, *dictionaries, last = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
        for each in dictionaries:
            yield wire.data(each.metadata, each.body)
        yield wire.data(last.metadata, last.body, metadata)


def told(metadata: bytes) -> bytes:
    """A message without data."""
    return wire.data(b"", b"", metadata)


def _parts(message: pa.Buffer) -> tuple[memoryview, memoryview]:
    """Header and body of a message of Arrow IPC."""
    view = memoryview(message).cast("B")
    end = _PREFIX + int.from_bytes(view[4:_PREFIX], "little")
    return view[_PREFIX:end], view[end:]


def _has_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(
        _has_dictionary(kind.field(number).type) for number in range(kind.num_fields)
    )
