"""Rows in the bodies of requests and of answers: JSON, JSON Lines and Arrow IPC, perhaps compressed, as they come.

All of it is bounded: a part that is read, a line, a message of Arrow, and the rows that wait.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from tagmatch.broker.access import Incoming
from tagmatch.broker.http.bodies import RefusedError, problem_of
from tagmatch.broker.outbox import KEY_TYPES
from tagmatch.broker.wire import GoneError, write_json
from tagmatch.files.columns import OtherColumns
from tagmatch.files.formats import Read
from tagmatch.files.ipc import IpcReader
from tagmatch.files.ipc_messages import body_length
from tagmatch.files.json import object_lines, read_json
from tagmatch.files.rows import read_queries, read_sets
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.messages import ID
from tagmatch.model.names import near_match

if TYPE_CHECKING:
    from tagmatch.broker.http.call import HttpCall

Form = Literal["json", "lines", "arrow", "events"]
#: What rows of a body are; sets are subscriptions without data
Rows = Literal["messages", "subscriptions", "sets", "keys", "moves"]
KINDS: dict[str, Form] = {
    "application/json": "json",
    "application/x-ndjson": "lines",
    "application/jsonl": "lines",
    "application/vnd.apache.arrow.stream": "arrow",
}
NAMES: dict[Form, bytes] = {
    "json": b"application/json",
    "lines": b"application/x-ndjson",
    "arrow": b"application/vnd.apache.arrow.stream",
    "events": b"text/event-stream",
}
CODECS = ("zstd", "gzip")
#: What a subscription has, besides data
ROW_FIELDS = ("key", "tags", "where", "constraints", "area", "expires")
# Bytes that are read at once, after decompression, and of the header of a message of Arrow
_PART, _HEADER = 1 << 20, 4 << 20
_CONTINUED, _END = b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0\0\0\0"


def form_of(given: str) -> Form:
    """The form that a header `content-type` names; without one it is JSON."""
    kind = given.partition(";")[0].strip().lower()
    if kind in ("", "application/x-www-form-urlencoded"):  # the last one is that of curl -d
        return "json"
    if kind not in KINDS:
        raise RefusedError(415, f"the body must be {', '.join(KINDS)}, not {kind[:60]!r}: give its Content-Type")
    return KINDS[kind]


def form_wanted(accept: str, otherwise: Form) -> Form:
    """The first known form in a header `accept`, or that of the body."""
    kinds = (each.partition(";")[0].strip().lower() for each in accept.split(","))
    return next((KINDS[kind] for kind in kinds if kind in KINDS), otherwise)


def codec_wanted(accept: str) -> str | None:
    """The codec for an answer that a client takes."""
    taken = {
        each.partition(";")[0].strip().lower() for each in accept.split(",") if ";q=0" not in each.replace(" ", "")
    }
    return next((codec for codec in CODECS if codec in taken), None)


# -- requests ----------------------------------------------------------------------------------------------------------


class _Body(io.RawIOBase):
    """The body of a request as a file, for a thread that may wait."""

    def __init__(self, call: HttpCall) -> None:
        self._call, self._left, self._has_more = call, memoryview(b""), True

    def readable(self) -> bool:
        return True

    def some(self, size: int) -> bytes:
        """At most `size` bytes: those that have come, and waits only for the first one."""
        while not self._left and self._has_more:
            asked = asyncio.run_coroutine_threadsafe(self._call.some(), self._call.app.loop)
            part, self._has_more = asked.result()
            self._left = memoryview(part)
        found, self._left = self._left[:size], self._left[size:]
        return bytes(found)

    def readinto(self, buffer: Any) -> int:
        found = self.some(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def reader_of(call: HttpCall) -> Read:
    """What reads a body, decompressed, some at a time."""
    body = _Body(call)
    codec = codec_of(call)
    return _decompressed(body, codec) if codec else lambda size: body.some(min(size, _PART))


def codec_of(call: HttpCall) -> str:
    """The codec of a body, empty if it has none."""
    codec = call.header("content-encoding").strip().lower()
    if codec in ("", "identity"):
        return ""
    if codec not in CODECS:
        raise RefusedError(415, f"Content-Encoding must be {' or '.join(CODECS)}, not {codec[:60]!r}")
    return codec


def unpacked(data: bytes, codec: str, most: int) -> bytes:
    """A body, decompressed, which is of at most `most` bytes then."""
    return whole_of(_decompressed(io.BytesIO(data), codec), most)


def _decompressed(file: Any, codec: str) -> Read:
    stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)

    def read(size: int) -> bytes:
        try:
            found: bytes = stream.read(min(size, _PART))
        except OSError as error:
            if error.errno is None:
                raise InvalidValueError(f"the body is no {codec}: {str(error)[:200]}") from None
            raise
        return found

    return read


def whole_of(read: Read, most: int) -> bytes:
    """All bytes that are read, at most `most`."""
    parts, length = list[bytes](), 0
    while part := read(_PART):
        parts.append(part)
        length += len(part)
        if length > most:
            raise RefusedError(413, f"the body must have at most {most:,} bytes; send JSON Lines, which may have more")
    return b"".join(parts)


def _bounded_lines(read: Read, most: int) -> Read:
    """The same, if no line has more than `most` bytes."""
    length = 0

    def checked(size: int) -> bytes:
        nonlocal length
        found = read(size)
        end = found.rfind(b"\n")
        length = length + len(found) if end < 0 else len(found) - end
        if length > most:
            raise RefusedError(413, f"a line must have at most {most:,} bytes")
        return found

    return checked


def _lines_of_list(data: bytes) -> bytes:
    """JSON Lines of a list of objects, as which they are read."""
    found = read_json(data, "the body")
    if not isinstance(found, list):
        raise InvalidTypeError(f"the body must be a list of JSON objects, not {type(found).__name__}")
    return "".join(f"{json.dumps(each)}\n" for each in found).encode()


class _Rows:
    """Batches as JSON has them: the columns of the first are those of all."""

    def __init__(self, batches: Iterator[pa.RecordBatch], most_rows: int) -> None:
        self._batches, self._most = batches, most_rows
        self._first: pa.RecordBatch | None = None
        self._has_ids = False

    @property
    def schema(self) -> pa.Schema:
        """Names and types of columns; waits for them."""
        if self._first is None:
            self._first = next(self._batches, None)
        if self._first is None:
            raise InvalidValueError("the body has no rows")
        return self._plain(self._first).schema

    def _plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows without their numbers, and without ids if the first ones have none."""
        if "row" in batch.schema.names:
            batch = batch.drop_columns(["row"])
            if self._first is batch or (self._first is not None and self._first[ID].null_count == len(self._first)):
                return batch.drop_columns([ID])
        return batch

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        kind = self.schema
        for batch in chain([self._first], self._batches):
            assert batch is not None
            plain = self._plain(batch)
            if ID in kind.names and plain[ID].type != kind.field(ID).type:
                place = plain.schema.get_field_index(ID)
                plain = plain.set_column(place, ID, plain[ID].cast(kind.field(ID).type))
            for first in range(0, len(plain), self._most):
                yield plain.slice(first, self._most)


class _ArrowRows:
    """Batches of a stream of Arrow IPC, message by message."""

    def __init__(self, read: Read, call: HttpCall) -> None:
        server = call.service.config.server
        self._read, self._most = read, server.max_message_bytes
        self._reader = IpcReader(most_bytes=self._most, most_rows=server.max_batch_rows)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of columns; waits for them."""
        while self._reader.schema is None:
            if self._next() is None:
                raise InvalidValueError("the body ends before the schema of its Arrow data")
        return self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (found := self._next()) is not None:
            if isinstance(found, pa.RecordBatch):
                yield found

    def _next(self) -> pa.RecordBatch | bool | None:
        """The next batch, or whether there was another message; `None` at the end."""
        begin = self._exactly(8, may_end=True)
        if not begin or begin == _END:
            while self._read(_PART):
                pass
            return None
        length = int.from_bytes(begin[4:], "little")
        if begin[:4] != _CONTINUED or length > _HEADER:
            raise InvalidValueError("the body is no stream of Arrow IPC")
        header = self._exactly(length)
        size = body_length(header)
        if size > self._most + _HEADER:
            raise RefusedError(413, f"a message of Arrow must have at most {self._most:,} bytes, not {size:,}")
        return self._reader.feed(header, self._exactly(size)) or True

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes:
        if not size:
            return b""
        part = self._read(size)
        if len(part) == size or (may_end and not part):
            return part
        parts, got = [part], len(part)
        while got < size:
            if not (part := self._read(size - got)):
                raise InvalidValueError("the body ends within a message of Arrow")
            parts.append(part)
            got += len(part)
        return b"".join(parts)


#: Fields of a single record, and how rows of many say so
_AS_ROWS = {
    "data": " if many come at once; give each column of data as a field",
    "alternatives": " if many come at once; give each alternative as a row with the same key",
}


def _known(batches: Iterator[pa.RecordBatch], others: OtherColumns, known: list[str]) -> Iterator[pa.RecordBatch]:
    """The same batches, if they have no field that has no meaning."""
    for batch in batches:
        for name in others.seen:
            said = _AS_ROWS.get(name) or near_match(name[:60], known)
            raise InvalidValueError(f"a subscription has no field {name[:60]!r}{said}")
        yield batch


def _changes_in(data: bytes, form: Form, kinds: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Rows of JSON with these fields, all of them given."""
    if form == "json":
        rows = read_json(data, "the body")
    else:
        rows = [read_json(line, f"line {number}") for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not isinstance(rows, list):
        raise InvalidTypeError(f"the body must be a list of JSON objects, not {type(rows).__name__}")
    wanted = " and ".join(kinds)
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != kinds.keys():
            raise InvalidValueError(f"row {number} must be an object with {wanted}, and nothing else")
    return pa.record_batch({name: _column_in(rows, name, kind) for name, kind in kinds.items()})


def _column_in(rows: list[dict[str, Any]], name: str, kind: pa.DataType) -> pa.Array:
    try:
        found = pa.array([row[name] for row in rows], kind)
        if found.null_count == 0 and bool not in {type(row[name]) for row in rows}:
            return found
    except (pa.ArrowException, OverflowError):
        pass
    for number, row in enumerate(rows):
        try:
            is_right = not isinstance(row[name], bool) and pa.scalar(row[name], kind).is_valid
        except (pa.ArrowException, OverflowError):
            is_right = False
        if not is_right:
            raise InvalidTypeError(f"{name} of row {number} must be of the type {kind}, not {str(row[name])[:60]!r}")
    raise AssertionError


class _Whole:
    """One batch, which is all that comes."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self.schema = batch, batch.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter((self._batch,))


def rows_in(call: HttpCall, what: Rows = "messages", *, match_all: bool = False) -> Incoming:
    """The rows of a body."""
    server, read, form = call.service.config.server, reader_of(call), form_of(call.header("content-type"))
    if form == "arrow":
        return _ArrowRows(read, call)
    if what in ("keys", "moves"):
        key = KEY_TYPES[call.service.key_type]
        kinds = {"key": key} if what == "keys" else {"client": key, "lon": pa.float64(), "lat": pa.float64()}
        return _Whole(_changes_in(whole_of(read, server.max_message_bytes), form, kinds))
    if form == "json":
        parts = [_lines_of_list(whole_of(read, server.max_message_bytes))]
        read = lambda _: parts.pop() if parts else b""  # noqa: E731
    lines, plane = _bounded_lines(read, server.max_message_bytes), call.service.plane
    if what == "messages":
        batches = read_queries(lines, plane=plane, declared=call.index._engine.declared)
    else:
        data = call.index._engine.schema() if what == "subscriptions" else {}
        known = [*ROW_FIELDS, *data]
        others = OtherColumns(known)
        options: dict[str, Any] = {"plane": plane, "data": data, "match_all": match_all, "others": others}
        options["declared"] = call.index._engine.declared
        batches = _known(read_sets(lines, key_type=call.service.key_type, expires=True, **options), others, known)
    if form == "json":  # it has come as a whole: a mistake in a row is an error before the first answer goes out
        batches = iter([*batches])
    return _Rows(batches, server.max_batch_rows)


# -- answers -----------------------------------------------------------------------------------------------------------


class Answers:
    """Batches of answers in a form."""

    def __init__(self, form: Form, schema: pa.Schema) -> None:
        self._form, self._schema, self._is_first = form, schema, True
        self._is_slow = any(map(_has_others, schema.types))

    def begin(self) -> bytes:
        """Nothing before the first answers, so an error before them has its status."""
        return b""

    def _beginning(self) -> bytes:
        is_first, self._is_first = self._is_first, False
        if self._form == "arrow":
            return memoryview(self._schema.serialize()).tobytes() if is_first else b""
        if self._form == "json":
            return b"[" if is_first else b",\n"
        return b""

    def batch(self, batch: pa.RecordBatch, metadata: bytes = b"") -> Iterator[bytes]:
        """A batch; with metadata, an error, its rows have no answers."""
        if self._form == "arrow":
            yield self._beginning() + memoryview(batch.serialize()).tobytes()
            return
        if not len(batch):
            return
        texts = _lines_of(batch, metadata) if metadata or self._is_slow else bytes(object_lines(batch))
        if self._form == "json":
            texts = texts[:-1].replace(b"\n", b",\n")
        yield self._beginning() + texts

    def told(self, metadata: bytes) -> bytes:  # noqa: ARG002 - of Flight
        """Nothing: an error is told by what ends the answer."""
        return b""

    def end(self) -> bytes:
        """What comes last."""
        if self._form == "lines":
            return b""
        begun = self._beginning() if self._is_first else b""
        return begun + (_END if self._form == "arrow" else b"]\n")


def _has_others(kind: pa.DataType) -> bool:
    """Whether there are times or decimals, which are texts as in records."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or any(map(_has_others, inner)))


def _lines_of(batch: pa.RecordBatch, error: bytes) -> bytes:
    """Rows, perhaps without answers, for an error."""
    more = {"error": json.loads(error)} if error else {}
    return b"".join(write_json({**row, **more}) + b"\n" for row in batch.to_pylist())


class _Sink(io.RawIOBase):
    """Takes what a codec writes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        return len(data)


class Sender:
    """Sends an answer part by part, from a thread that may wait; perhaps compressed."""

    def __init__(self, call: HttpCall, form: Form) -> None:
        self._call, self.form, self.has_begun = call, form, False
        self._codec = None if form == "events" else codec_wanted(call.header("accept-encoding"))
        self._sink, self._stream = _Sink(), None
        if self._codec is not None:
            self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, "w"), self._codec)

    def write(self, data: bytes) -> None:
        """Send some; GoneError if the client does not read, or has gone."""
        if not data:
            return
        if self._stream is not None:
            self._stream.write(data)
            self._stream.flush()
            data = self._compressed()
        self._send(data, has_more=True)

    def end(self) -> None:
        """Send that this was all."""
        data = b""
        if self._stream is not None:
            self._stream.close()
            data = self._compressed()
        self._send(data, has_more=False)

    def fail(self, error: BaseException) -> None:
        """Write the error that ends an answer under way, if it has lines; its connection is cut then."""
        if self.form == "lines":
            self.write(b'{"error":' + problem_of(error).body + b"}\n")
        elif self.form == "events":  # it is told already
            self.end()

    def _compressed(self) -> bytes:
        data = b"".join(self._sink.parts)
        self._sink.parts.clear()
        return data

    def _send(self, data: bytes, *, has_more: bool) -> None:
        call = self._call
        if call.ended.is_set():
            raise GoneError
        headers = [] if self.has_begun else [(b"content-type", NAMES[self.form]), (b"vary", b"accept, accept-encoding")]
        if headers and self.form == "events":
            headers = [headers[0], (b"cache-control", b"no-store")]
        if headers and self._codec is not None:
            headers.append((b"content-encoding", self._codec.encode()))
        self.has_begun = call.has_begun = True
        call.send_and_wait(headers, data, has_more=has_more)
