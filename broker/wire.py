"""What goes over the wire: JSON objects, errors, and messages of Flight, with record batches in them.

All of it may come from anyone: it is read with care, and nothing of it is ever run or unpickled. Errors of the engine
become those of Flight, and the same ones again at the client.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import flight

from tagmatch.broker.config import ServerOptions
from tagmatch.files import json as json_values
from tagmatch.files.ipc import IpcReader
from tagmatch.highlights import highlight_type
from tagmatch.model import errors as known_errors
from tagmatch.model.arrays import TagLists
from tagmatch.model.arrow import without_extensions
from tagmatch.model.asked import column_of
from tagmatch.model.columns import repeated
from tagmatch.model.data_types import Schema, as_json, plain_type, type_named
from tagmatch.model.errors import (
    AccessError,
    DeadlineMissed,
    DeviceError,
    IndexChangedError,
    IndexCorruptError,
    IndexLockedError,
    InvalidTypeError,
    InvalidValueError,
    InvariantError,
    NotStoredError,
    Overloaded,
    SessionError,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.input.messages import ATTRIBUTES, ID, queries_in
from tagmatch.model.input.places import KIND, TEXT, area_from
from tagmatch.model.input.values import packed
from tagmatch.model.options import KeyType, Wanted
from tagmatch.model.records import Alternative, Record
from tagmatch.model.where.areas import KINDS, Area
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.outlines import Corridor, Polygon

#: Seconds without a sign of life until the other side is asked for one, and until it is taken for gone then
KEEPALIVE_S, GONE_S = 30.0, 20.0
#: Bytes of a command, a ticket or the body of an action
MAX_JSON = 1 << 20


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """The object that bytes hold; `what` is how messages call them."""
    if len(data) > MAX_JSON:
        raise InvalidValueError(f"{what} must have at most {MAX_JSON:,} bytes, not {len(data):,}")
    found = json_values.read_json(data, what) if data else {}
    if not isinstance(found, dict):
        raise InvalidValueError(f"{what} must be a JSON object, not {json.dumps(found)[:60]}")
    return found


def write_json(value: Mapping[str, Any], *, exact: bool = False) -> bytes:
    """The bytes of an object, also of one with numbers of NumPy, sets, times, bytes and decimals, which are texts.

    NaN and infinities have no form in JSON: they become null, or if `exact`, an error.
    """
    try:
        return _write(value).encode()
    except ValueError:
        if exact:
            why = "NaN and infinities have no form in JSON; over a connection match takes them"
            raise InvalidValueError(why) from None
    return _write(json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)).encode()


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset | tuple | np.ndarray):
        return list(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise InvalidTypeError(f"a value must be a bool, a number or a string, not {type(value).__name__}")


_write = json.JSONEncoder(default=_plain, allow_nan=False).encode


def in_url(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def apart(tags: Iterable[str]) -> tuple[list[str], list[Where]]:
    """Tags, and the conditions that stand among them."""
    listed = list(tags)
    return [tag for tag in listed if not isinstance(tag, Where)], [tag for tag in listed if isinstance(tag, Where)]


def answer_field(wanted: Wanted, key_type: KeyType, data: Schema | None = None) -> pa.Field:
    """The column of answers, with columns of data in addition to the keys if they are given."""
    key = pa.large_string() if key_type == "string" else pa.uint64()
    if data is not None:
        plain = {name: plain_type(kind) for name, kind in data.items()}
        return pa.field("keys", pa.list_(pa.struct({"key": key, **plain})))
    if wanted in (Wanted.keys, Wanted.unique):
        return pa.field("keys", pa.list_(key))
    if wanted is Wanted.highlights:
        return pa.field("highlights", highlight_type(key))
    return pa.field("exists", pa.bool_()) if wanted is Wanted.exists else pa.field("count", pa.uint64())


def area_row(area: Area | None) -> dict[str, Any] | None:
    """An area as a struct of `AREA_COLUMN`, or in JSON, where polygons and corridors are texts."""
    if area is None:
        return None
    if isinstance(area, Polygon | Corridor):
        return {TEXT: area.text}
    (kind,) = (name for name, each in KINDS.items() if isinstance(area, each))
    return {KIND: kind, **asdict(area)}


def area_of(row: object, what: str) -> Area | None:
    """The area that a field of JSON says, such as `area_row` writes; InvalidTypeError, InvalidValueError."""
    return None if row is None else area_from(row, what)


def record_to_json(record: Record[Any]) -> dict[str, Any]:
    """A record in JSON; values of data have their types."""
    types = {name: pa.scalar(value).type for name, value in record.data.items()}
    return record_shown(record) | {"data": {name: as_json(name, value, types) for name, value in record.data.items()}}


def record_shown(record: Record[Any]) -> dict[str, Any]:
    """A record as it may be put again: values of data are plain, as Python has them."""
    return {
        "key": record.key,
        "alternatives": [
            {
                "tags": sorted(each.tags),
                "where": each.where,
                "area": area_row(each.area),
                "expires": None if each.expires is None else each.expires.isoformat(),
            }
            for each in record.alternatives
        ],
        "data": record.data,
    }


def record_of_json(given: Mapping[str, Any]) -> Record[Any]:
    """The record that `record_to_json` has written."""
    alternatives = tuple(
        Alternative(
            frozenset(each["tags"]),
            each["where"],
            area_of(each["area"], "area"),
            None if each["expires"] is None else datetime.fromisoformat(each["expires"]),
        )
        for each in given["alternatives"]
    )
    data = {name: column_of([value], type_named(kind))[0].as_py() for name, (kind, value) in given["data"].items()}
    return Record(given["key"], alternatives, data)


_ROW_OF_ONE = re.compile(r":? line 1 \(row 0\)| line 1:| row 0:?(?= )")


def of_one(error: TagMatchError) -> TagMatchError:
    """The error of one row as that of a subscription, which has no number."""
    text = _ROW_OF_ONE.sub("", str(error), count=2)
    return error if text == str(error) else type(error)(text)


_KINDS: dict[str, type[TagMatchError]] = {
    name: kind
    for name, kind in vars(known_errors).items()
    if isinstance(kind, type) and issubclass(kind, TagMatchError)
}

#: What gRPC says without a connection, and what that means to the caller
_NO_CONNECTION = {
    "wrong version number": "the server there speaks no TLS: connect with grpc://, or give the service tls_cert and "
    "tls_key; and check that this is the port of [server], not that of [metrics]",
    "Failed parsing HTTP/2": "the server there is no such service, but perhaps its metrics: give the port of [server], "
    "by default 8815",
    "certificate verify failed": "its certificate is signed by an authority unknown here: give that as "
    "tls_root_certs, as bytes of PEM",
    "Socket closed": "it has closed the connection at once; if it has TLS, connect with grpc+tls://, and if it has "
    "client_ca, show cert_chain and private_key",
    "Connection refused": "nothing listens there; is the service started, and is the port right?",
}

INTERNAL = "the service has failed; its log says why"
_MOST = 2000


class UnauthenticatedError(AccessError):
    """The token is missing or unknown: an `AccessError` at the client."""


class GoneError(Exception):
    """The client is gone, or its call was ended: nothing more comes or goes."""


#: How kinds of errors are told: over gRPC by a status and by a word of Flight, over HTTP by a status
_STATUSES: tuple[tuple[type[TagMatchError], str, str, int], ...] = (
    (UnauthenticatedError, "UNAUTHENTICATED", "Unauthenticated", 401),
    (AccessError, "PERMISSION_DENIED", "Unauthorized", 403),
    (Overloaded, "UNAVAILABLE", "Unavailable", 429),
    (UnavailableError, "UNAVAILABLE", "Unavailable", 503),
    (DeadlineMissed, "UNKNOWN", "Failed", 504),
    (NotStoredError, "UNKNOWN", "Failed", 404),
    (IndexLockedError, "UNKNOWN", "Failed", 409),
    (IndexChangedError, "UNKNOWN", "Failed", 409),
    (SessionError, "UNKNOWN", "Failed", 409),
    (DeviceError, "UNKNOWN", "Failed", 500),
    (IndexCorruptError, "UNKNOWN", "Failed", 500),
    (InvariantError, "UNKNOWN", "Failed", 500),
    (TagMatchError, "UNKNOWN", "Failed", 400),
)
_IO_ERROR = "5"


def _known(error: BaseException) -> TagMatchError | None:
    """The error that a client is told; `None` for a fault of the service itself, about which only its log says more."""
    if isinstance(error, MemoryError):
        return TagMatchError("the service is out of memory; send less at a time")
    # Arrow's errors of data that it cannot read, which may be Python's own, without a number
    is_io = isinstance(error, OSError) and error.errno is None
    if is_io or isinstance(error, pa.ArrowException | UnicodeDecodeError):
        return InvalidValueError(f"the Arrow data cannot be read: {_line(error)}")
    return error if isinstance(error, TagMatchError) else None


def is_expected(error: BaseException) -> bool:
    """Whether this is no mistake of the service itself."""
    return _known(error) is not None


def error_text(error: BaseException) -> bytes:
    """An error as JSON: one line, and the name of the error, but of nothing that says how the service is made."""
    known = _known(error)
    name, line = ("TagMatchError", INTERNAL) if known is None else (name_of(known), _line(known))
    return json.dumps({"error": name, "message": line}).encode()


def status_of(error: BaseException) -> tuple[str, str, list[tuple[str, str | bytes]]]:
    """How a call ends with an error: the status of gRPC, its details, and headers that Flight's clients read."""
    known = _known(error)
    if known is None:
        code, word, line = "INTERNAL", "Internal", INTERNAL
    else:
        code, word, _ = _told_of(known)
        line = _line(known)
    headers: list[tuple[str, str | bytes]] = [
        ("grpc-status-details-bin", error_text(error)),
        ("x-arrow-status", _IO_ERROR),
        ("x-arrow-status-detail-bin", word.encode()),
        ("x-arrow-status-message-bin", line.encode()),
    ]
    return code, f"{line}. Detail: {word}", headers


def _told_of(known: TagMatchError) -> tuple[str, str, int]:
    return next(told for kind, *told in _STATUSES if isinstance(known, kind))  # type: ignore[return-value]


def http_status_of(error: BaseException) -> int:
    """The status of HTTP for an error."""
    known = _known(error)
    if known is None:
        return 500
    return 503 if isinstance(error, MemoryError) else _told_of(known)[2]


def line_of(error: BaseException) -> str:
    """What a client is told of an error, in one line."""
    known = _known(error)
    return INTERNAL if known is None else _line(known)


def name_of(error: BaseException) -> str:
    """The name of the nearest kind of error that clients know."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "TagMatchError")


def error_of_text(info: bytes) -> TagMatchError | None:
    """The error that a service has written as JSON; `None` for other text."""
    try:
        found = json.loads(info)
        return _KINDS[found["error"]](str(found["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def error_of_flight(error: BaseException, url: str) -> TagMatchError:
    """The error that a service has raised, or the outcome of the connection to it."""
    if isinstance(error, TagMatchError):
        return error
    known = error_of_text(getattr(error, "extra_info", b"") or b"")
    if known is not None:
        return known
    line = _line(error)
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return AccessError(line)
    if isinstance(error, flight.FlightTimedOutError):
        return UnavailableError(f"the service at {url} has not answered in time")
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | flight.FlightInternalError):
        why = next((why for mark, why in _NO_CONNECTION.items() if mark in line), None)
        return UnavailableError(f"the service at {url} does not answer, or went away: {why or line}")
    if isinstance(error, TypeError | pa.ArrowTypeError):
        return InvalidTypeError(line)
    return TagMatchError(f"the service at {url}: {line}")


def _line(error: BaseException) -> str:
    """The message in one line, without gRPC's own additions."""
    text = str(error)
    for mark in (". gRPC client debug context:", ". Client context:", ". Detail:", " Detail: Python exception"):
        text = text.partition(mark)[0]
    return " ".join(text.split())[:_MOST] or type(error).__name__


# -- messages of Flight, as bytes of Protocol Buffers ------------------------------------------------------------------

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
    """A `FlightData`; InvalidValueError for other bytes, as by the functions below."""
    found = _fields(message)
    descriptor = read_descriptor(_bytes(found, 1)) if 1 in found else None
    return Data(descriptor, _bytes(found, 2), _bytes(found, 1000))


def read_descriptor(message: bytes | memoryview) -> Descriptor:
    """A `FlightDescriptor`."""
    found = _fields(message)
    return Descriptor(found.get(1) == _COMMAND, bytes(_bytes(found, 2)))


def read_ticket(message: bytes) -> bytes:
    """The bytes of a `Ticket`."""
    return bytes(_bytes(_fields(message), 1))


def read_action(message: bytes) -> tuple[str, bytes]:
    """Name and body of an `Action`."""
    found = _fields(message)
    try:
        return str(_bytes(found, 1), "utf-8"), bytes(_bytes(found, 2))
    except UnicodeDecodeError:
        raise InvalidValueError("the name of an action must be UTF-8") from None


def data(header: bytes | memoryview, body: bytes | memoryview = b"", metadata: bytes = b"") -> bytes:
    """A `FlightData`."""
    return _written({2: header, 3: metadata, 1000: body})


def result(body: bytes) -> bytes:
    """A `Result` of an action, or a `PutResult`."""
    return _written({1: body})


def action_type(name: str, description: str) -> bytes:
    """An `ActionType`."""
    return _written({1: name.encode(), 2: description.encode()})


def _written(fields: Mapping[int, bytes | memoryview]) -> bytes:
    parts: list[bytes | memoryview] = []
    for number, value in fields.items():
        if len(value):
            parts += _varint(number << 3 | _BYTES), _varint(len(value)), value
    return b"".join(parts)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _bytes(found: Mapping[int, int | memoryview], number: int) -> memoryview:
    value = found.get(number, memoryview(b""))
    if isinstance(value, int):
        raise InvalidValueError("the message is no Protocol Buffer of Arrow Flight: a field is of another type")
    return value


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
    number = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        byte = view[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, place
    raise IndexError


# -- Arrow data: record batches as messages of Flight, and back --------------------------------------------------------

# Before the header of a message of Arrow IPC: a mark, and its length
_PREFIX = 8
#: Columns of a stream, with the fields of structs: each is some work for each batch
MAX_FIELDS = 4_096


def check_schema(schema: pa.Schema) -> None:
    """See that a stream has columns of messages."""
    if not schema.names:
        raise InvalidValueError("messages need a column 'tags', or one for each attribute")
    if _fields_in(schema) > MAX_FIELDS:
        raise InvalidValueError(
            f"a stream must have at most {MAX_FIELDS:,} columns, fields of structs among them; leave out attributes "
            "that no subscription asks for, or give those that differ from message to message as a map"
        )
    if twice := repeated(schema.names):
        raise InvalidValueError(f"there must be one column {twice[0][:60]!r}, not {twice[1]}")


def _fields_in(fields: Iterable[pa.Field]) -> int:
    """How many fields there are, with those within them; hardly more than `MAX_FIELDS` are counted."""
    count, left = 0, deque(fields)
    while left and count <= MAX_FIELDS:
        kind = left.popleft().type
        count += 1
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            left.append(pa.field("", kind.value_type))
        left.extend(kind.field(number) for number in range(min(kind.num_fields, MAX_FIELDS)))
    return count


class IncomingStream:
    """The stream that a client sends: its descriptor and its schema, and then its batches, which this iterates over."""

    def __init__(self, call: Iterable[bytes], options: ServerOptions) -> None:
        messages = map(read_data, call)
        self._reader = IpcReader(most_bytes=options.max_message_bytes, most_rows=options.max_batch_rows)
        first = next(messages, None)
        if first is None:
            raise InvalidValueError("the stream ends before its first message, which has the descriptor")
        if first.descriptor is None:
            raise InvalidValueError("the first message of a stream must have a descriptor")
        self.descriptor, self._messages = first.descriptor, chain([first], messages)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of columns; waits for it."""
        while self._reader.schema is None:
            message = next(self._messages, None)
            if message is None:
                raise InvalidValueError("the stream ends before its schema")
            self._feed(message)
        return self._reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for message in self._messages if (batch := self._feed(message)) is not None)

    def _feed(self, message: Data) -> pa.RecordBatch | None:
        """What a message of Arrow brings, if that is a batch; some have only metadata."""
        return self._reader.feed(message.header, message.body) if message.header else None


class Batch(NamedTuple):
    """Messages of one batch."""

    rows: TagLists
    ids: pa.Array | None  # What their sender calls them
    arrived: float  # When they came, in seconds of `time.perf_counter`
    nbytes: int  # What they have in memory


def batch_of(
    given: pa.RecordBatch, first_row: int = 0, *, plain: bool = False, plane: bool = False, arrived: float = 0.0
) -> Batch:
    """The messages of a batch whose Arrow data is sound; all that is wrong with them is found here."""
    given = without_extensions(given)
    ids = given.column(ID) if ID in given.schema.names and not plain else None
    messages = given if ids is None else given.drop_columns([ID])
    if ATTRIBUTES in messages.schema.names:
        messages = _without_json(messages)
    try:
        [rows] = queries_in(messages, plane=plane, first_row=first_row)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidTypeError(f"the columns cannot be read: {error}") from None
    return Batch(rows, ids, arrived, messages.nbytes + (0 if ids is None else ids.nbytes))


def _without_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose column `attributes`, if that has JSON, has them packed."""
    given = batch.column(ATTRIBUTES)
    if not (pa.types.is_string(given.type) or pa.types.is_large_string(given.type)):
        return batch
    # As bytes, since Arrow does not check that strings are UTF-8
    wide = pa.large_binary() if pa.types.is_large_string(given.type) else pa.binary()
    found = [_attributes_in(text, row) for row, text in enumerate(given.cast(wide).to_pylist())]
    as_bytes = pa.array([None if row is None else packed(row) for row in found], pa.binary())
    return batch.set_column(batch.schema.get_field_index(ATTRIBUTES), ATTRIBUTES, as_bytes)


def _attributes_in(text: bytes | None, row: int) -> dict[str, Any] | None:
    what = f"column 'attributes': row {row}"
    if text is None:
        return None
    if len(text) > MAX_JSON:
        raise InvalidValueError(f"{what} has {len(text):,} bytes, more than {MAX_JSON:,}; give attributes as a map")
    value = json_values.read_json(text, what)
    if value is not None and not isinstance(value, dict):
        raise InvalidValueError(f"{what} must be a JSON object")
    return value


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

    def told(self, metadata: bytes) -> bytes:
        """A message without data."""
        return data(b"", b"", metadata)


def _parts(message: pa.Buffer) -> tuple[memoryview, memoryview]:
    """Header and body of a message of Arrow IPC."""
    view = memoryview(message).cast("B")
    end = _PREFIX + int.from_bytes(view[4:_PREFIX], "little")
    return view[_PREFIX:end], view[end:]


def _has_dictionary(kind: pa.DataType) -> bool:
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inner))
