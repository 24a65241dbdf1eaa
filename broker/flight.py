"""Arrow Flight over gRPC: connections and calls of clients, which can be ended at any time, and what goes over them."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from tagmatch.broker.access import token_of
from tagmatch.broker.config import ServerOptions, read_file
from tagmatch.broker.wire import GoneError, status_of
from tagmatch.files.ipc import IpcReader
from tagmatch.model.columns import repeated
from tagmatch.model.errors import InvalidValueError, TagMatchError, UnavailableError

# What it logs is for its developers; read once, when it is imported
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import grpc
except ImportError:
    raise TagMatchError("the service needs grpcio; install it with: pip install 'tagmatch[serve]'") from None

#: Seconds for which a call waits for its first message, and for which a client may leave a message unread
FIRST_S, UNREAD_S = 20.0, 120.0
#: Seconds without a sign of life until a client is asked for one, and until it is taken for gone then
KEEPALIVE_S, GONE_S = 30.0, 20.0
#: Seconds until a connection must have begun as gRPC wants it, and for which it may be without calls
HANDSHAKE_S, IDLE_S = 10.0, 300.0

_LOOK_S = 0.2
# Of a message, besides its Arrow data: the descriptor or ticket, and headers of columns
_BESIDE = 2 << 20
_IDENTITY = 1
# Until a thread without work ends
_IDLE_S = 5.0

# -- calls -------------------------------------------------------------------------------------------------------------


class Threads(Executor):
    """Threads for submitted work, up to a number; the program's end does not wait for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._count = self._idle = 0

    def submit(self, act: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call `act(*arguments, **keywords)` in a thread."""
        future: Future[Any] = Future()
        with self._lock:
            self._work.append((future, partial(act, *arguments, **keywords)))
            if self._idle >= len(self._work):
                self._some.notify()
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._run, name="tagmatch-call", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                is_needed = self._some.wait_for(lambda: self._work, _IDLE_S)
                self._idle -= 1
                if not is_needed:
                    self._count -= 1
                    return
                future, act = self._work.popleft()
            try:
                future.set_result(act())
            except BaseException as error:
                future.set_exception(error)
            del future, act


class Rpc:
    """One call on its way: what the client sends, and its end."""

    def __init__(self, context: Any, messages: Iterator[bytes], threads: Threads) -> None:
        self._context, self._messages, self._threads = context, messages, threads
        self.peer: str = context.peer()
        self.token = token_of(context.invocation_metadata())
        self.check: Callable[[], object] = lambda: None
        self.ended = threading.Event()
        self.until: float | None = time.monotonic() + FIRST_S
        if not context.add_callback(self.ended.set):
            self.ended.set()

    def __iter__(self) -> Iterator[bytes]:
        """All messages that come; GoneError if the client goes."""
        try:
            for message in self._messages:
                self.until = None
                yield message
        except grpc.RpcError:
            raise GoneError from None

    def only(self) -> bytes:
        """The one message of a call that has one; GoneError if the client goes."""
        return next(iter(self), b"")

    def wait(self, seconds: float) -> None:
        """Wait; GoneError if the call ends before."""
        if self.ended.wait(seconds):
            raise GoneError

    def begin(self, act: Callable[[], None]) -> None:
        """Call `act` in another thread."""
        self._threads.submit(act)

    def end(self, error: BaseException) -> None:
        """End the call with an error at once, also while something is being sent."""
        code, line, _ = status_of(error)
        # `ServicerContext.cancel` does the same, but cannot say why; pyarrow takes its status for Ctrl-C
        self._context._rpc_event.call.cancel(grpc.StatusCode[code].value[0], line)


#: What answers a kind of call: gives the messages that are sent, and raises what it ends with
Method = Callable[[Rpc], Generator[bytes]]


class Transport(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server of gRPC."""

    def __init__(
        self,
        server: ServerOptions,
        address: str,
        methods: Mapping[str, Method],
        calls: int,
        ended: Callable[[Rpc, TagMatchError], None],
    ) -> None:
        self._threads, self._ended = Threads(2 * calls), ended
        self._methods = {
            path: grpc.stream_stream_rpc_method_handler(self._answering(method)) for path, method in methods.items()
        }
        self._rpcs: set[Rpc] = set()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        options = {
            "grpc.max_receive_message_length": server.max_message_bytes + _BESIDE,
            "grpc.max_send_message_length": -1,
            "grpc.max_concurrent_streams": 2 * calls,
            "grpc.max_allowed_incoming_connections": _most_connections(server),
            "grpc.so_reuseport": 0,
            # a few bytes could become as many as one likes
            "grpc.compression_enabled_algorithms_bitset": _IDENTITY,
            "grpc.keepalive_time_ms": int(KEEPALIVE_S * 1000),
            "grpc.keepalive_timeout_ms": int(GONE_S * 1000),
            "grpc.http2.ping_timeout_ms": int(GONE_S * 1000),
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.max_pings_without_data": 0,
            "grpc.server_handshake_timeout_ms": int(HANDSHAKE_S * 1000),
            "grpc.max_connection_idle_ms": int(IDLE_S * 1000),
        }
        self._server = grpc.server(self._threads, [self], options=list(options.items()))
        self.port = self._listen(server, address)
        self._server.start()
        threading.Thread(target=self._look_after, name="tagmatch-calls", daemon=True).start()

    def _listen(self, server: ServerOptions, address: str) -> int:
        try:
            if server.tls_cert is None:
                return int(self._server.add_insecure_port(address))
            files = {name: getattr(server, name) for name in ("tls_key", "tls_cert", "client_ca")}
            key, cert, root = (None if path is None else read_file(name, path) for name, path in files.items())
            credentials = grpc.ssl_server_credentials([(key, cert)], root, require_client_auth=root is not None)
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            raise TagMatchError(f"{address}: cannot listen: {_why_not(server)}") from None

    def service(self, details: Any) -> Any:
        """What answers a call, by its path; gRPC calls this."""
        return self._methods.get(details.method)

    def _answering(self, method: Method) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
        def answer(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            rpc = Rpc(context, messages, self._threads)
            with self._lock:
                self._rpcs.add(rpc)
            try:
                with contextlib.closing(method(rpc)) as answers:
                    for message in answers:
                        rpc.until = time.monotonic() + UNREAD_S
                        yield message
                        rpc.until = None
            except GoneError:
                pass
            except Exception as error:
                code, details, headers = status_of(error)
                context.set_code(grpc.StatusCode[code])
                context.set_details(details)
                context.set_trailing_metadata(headers)
            finally:
                with self._lock:
                    self._rpcs.discard(rpc)

        return answer

    def _look_after(self) -> None:
        """End calls that wait for a client in vain; the body of a thread."""
        while not self._stopped.wait(_LOOK_S):
            now = time.monotonic()
            with self._lock:
                waiting = [rpc for rpc in self._rpcs if rpc.until is not None]
            for rpc in waiting:
                try:
                    rpc.check()
                    if rpc.until is not None and rpc.until < now:
                        raise UnavailableError("the client has not sent or read anything for too long; ask again")
                except TagMatchError as error:
                    rpc.until = None
                    self._ended(rpc, error)
                    rpc.end(error)

    def stop(self) -> None:
        """End all calls, and listen no more; returns at once."""
        self._stopped.set()
        self._server.stop(0)


def _most_connections(server: ServerOptions) -> int:
    """How many clients may be connected, most of them without a call; the index needs files, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 4 * server.max_connections
    return most if files == resource.RLIM_INFINITY else max(1, min(most, files // 2))


def _why_not(server: ServerOptions) -> str:
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as attempt:
                attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                attempt.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return "its certificates cannot be used"


# -- messages of Flight as bytes of Protocol Buffers, read with care: all of them may come from anyone -----------------

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
    parts = ((2, header), (3, metadata), (1000, body))
    return b"".join(part for number, data in parts if len(data) for part in _parts_of(number, data))


def result(body: bytes) -> bytes:
    """A `Result` of an action, or a `PutResult`."""
    return _field(1, body)


def action_type(name: str, description: str) -> bytes:
    """An `ActionType`."""
    return _field(1, name.encode()) + _field(2, description.encode())


def _field(number: int, data: bytes | memoryview) -> bytes:
    return b"".join(_parts_of(number, data))


def _parts_of(number: int, data: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    return _varint(number << 3 | _BYTES), _varint(len(data)), data


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

    def __init__(self, rpc: Rpc, options: ServerOptions) -> None:
        messages = map(read_data, rpc)
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
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inner))
