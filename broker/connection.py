"""One client's connection to a service: its calls, its streams, and single messages, which share a stream.

Errors are those that the service has raised. Single messages that gather while others are sent go together, a row each,
in one batch, and so do their answers: to send one costs the interpreter as much as a hundred.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from tagmatch.broker.config_file import check_certificates, check_pair
from tagmatch.broker.wire import GONE_S, KEEPALIVE_S, error_of_flight, error_of_text, read_json, write_json
from tagmatch.files.columns import AREA_COLUMN
from tagmatch.model.columns import shown
from tagmatch.model.errors import (
    ClosedError,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    ResultTooLargeError,
    TagMatchError,
    UnavailableError,
)

#: What Flight raises
FAULTS = (pa.ArrowException, flight.FlightError, OSError)
#: The columns of a stream of single messages; of one with attributes, packed, or locations; of one with areas, too
TAGS_ONLY = pa.schema([("tags", pa.list_(pa.string()))])
WITH_MORE = pa.schema([*TAGS_ONLY, ("attributes", pa.binary()), ("location", pa.list_(pa.list_(pa.float64())))])
WITH_AREA = pa.schema([*WITH_MORE, ("within", AREA_COLUMN)])

_URL = re.compile(r"grpc(\+tls|\+tcp)?://(\[[^\]]+\]|[^:/@?#]+):\d+/?")
_MOST_ROWS = 4096
# Single messages do not wait for others if there are this many, nor for longer
_ENOUGH = 512
_PATIENCE_S = 0.001
# The place of an answer that has not come
_NOT_YET = object()
# The garbage collector may run within it, and any finalizer with it
_MAKING = threading.RLock()


T = TypeVar("T")


class Connection:
    """A connection, which comes back by itself when the service does; its parameters are those of `connect`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        tls_root_certs: bytes | None = None,
        cert_chain: bytes | None = None,
        private_key: bytes | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(url, str):
            raise InvalidTypeError(f"url must be a string, not {shown(url)}")
        if not _URL.fullmatch(url):
            raise InvalidValueError(f"url must be grpc+tls://host:port or grpc://host:port, not {shown(url)}")
        if token is not None and (
            not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token.strip()
        ):
            raise InvalidValueError(
                "token must be a string of one line without spaces around it, as `tagmatch token` makes it; of a file, "
                "take read_text().strip()"
            )
        _check_certificates(url, tls_root_certs, cert_chain, private_key)
        self.url = url
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._streaming = flight.FlightCallOptions(headers=headers)
        self._calling = self._streaming if timeout is None else flight.FlightCallOptions(timeout, headers=headers)
        options = {
            # Where a service is gone, it is looked for again so soon; and for how long it may take to be reached
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 1000,
            "grpc.min_reconnect_backoff_ms": 5000,
            "grpc.max_receive_message_length": -1,
            # Who only reads would not learn that the other machine, or the way to it, is gone
            "grpc.keepalive_time_ms": int(KEEPALIVE_S * 1000),
            "grpc.http2.ping_timeout_ms": int(GONE_S * 1000),
            "grpc.http2.max_pings_without_data": 0,
        }
        with _told(url):
            self._client = flight.FlightClient(
                url,
                tls_root_certs=tls_root_certs,
                cert_chain=cert_chain,
                private_key=private_key,
                generic_options=list(options.items()),
            )

    def asked(self, work: Callable[[], T]) -> T:
        """The result of work that only asks; with several services, the work may be repeated."""
        return work()

    def one(self, what: str) -> Connection:  # noqa: ARG002
        """The connection to the one service that has what a call is about."""
        return self

    def act(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for an action; what it answers."""
        with _told(self.url):
            (result,) = self._client.do_action((name, write_json(body or {}, exact=True)), self._calling)
            return read_json(result.body.to_pybytes(), "the answer")

    def put(self, command: Mapping[str, Any], table: pa.Table, most_rows: int) -> dict[str, Any]:
        """Make changes; what the service counts."""
        descriptor = flight.FlightDescriptor.for_command(write_json(command, exact=True))
        with _told(self.url):
            writer, answers = self._client.do_put(descriptor, table.schema, self._calling)
            with writer:
                writer.write_table(table, most_rows)
                writer.done_writing()
                answer = answers.read()
            return read_json(b"" if answer is None else answer.to_pybytes(), "the answer")

    def get(self, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Ask for the stored sets."""
        with _told(self.url):
            reader = self._client.do_get(flight.Ticket(write_json({"get": name})), self._calling)
            return reader.schema, self._batches(reader)

    def _batches(self, reader: Any) -> Iterator[pa.RecordBatch]:
        with _told(self.url):
            for chunk in reader:
                yield chunk.data

    def open_stream(self, schema: pa.Schema, command: Mapping[str, Any]) -> MessageStream:
        """Begin a stream of messages."""
        descriptor = flight.FlightDescriptor.for_command(write_json(command, exact=True))
        with _told(self.url):
            writer, reader = self._client.do_exchange(descriptor, self._streaming)
            writer.begin(schema)
        return MessageStream(self.url, writer, reader)

    def close(self) -> None:
        """End the connection."""
        self._client.close()


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Raise what Flight raises as the error that the service has raised, or as one that names the fault."""
    try:
        yield
    except FAULTS as error:
        raise error_of_flight(error, url) from None


def _check_certificates(url: str, roots: Any, chain: Any, key: Any) -> None:
    """Check the arguments, as gRPC would only say that it cannot connect."""
    if (chain is None) != (key is None):
        raise InvalidValueError("cert_chain and private_key must be given together")
    given, pems = {"tls_root_certs": roots, "cert_chain": chain, "private_key": key}, dict[str, bytes]()
    for name, each in given.items():
        if each is None:
            continue
        if not isinstance(each, bytes | str):
            raise InvalidTypeError(
                f"{name} must be bytes of PEM, not {type(each).__name__}; take read_bytes() of a file"
            )
        pems[name] = each.encode() if isinstance(each, str) else each
        if b"-----BEGIN " not in pems[name]:
            raise InvalidValueError(f"{name} must be bytes of PEM, not {shown(each)[:60]}; take read_bytes() of a file")
    if pems and not url.startswith("grpc+tls://"):
        raise InvalidValueError(f"{next(iter(pems))} needs encryption: connect to grpc+tls://, not to {url}")
    if roots is not None:
        check_certificates(pems["tls_root_certs"], "tls_root_certs")
    if chain is not None:
        check_pair(pems["cert_chain"], pems["private_key"], "cert_chain", "private_key")


class MessageStream:
    """A stream of messages and their answers. One thread may write while another reads."""

    def __init__(self, url: str, writer: Any, reader: Any) -> None:
        self._url, self._writer, self._reader = url, writer, reader
        # gRPC ends the process where a thread says that all is written while another writes, or says so
        self._writing = threading.Lock()
        self.is_draining = False  # the service asks to end the stream
        # Of single messages: the futures of those on their way, in order, how many of these went in each batch, and
        # whether no more go by this stream
        self.futures: deque[Reply] = deque()
        self.sizes: deque[int] = deque()
        self.has_ended = False
        #: Why the messages of the last batch that was read have no answers, if so
        self.refused: TagMatchError | None = None
        #: Is called as soon as the service is known to be gone
        self.gone: Callable[[], object] = bool

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages; if the service has ended the stream, the error is that of the service."""
        self._do(self._writer.write_batch, batch)

    def done_writing(self) -> None:
        """Say that no more messages come."""
        self._do(self._writer.done_writing)

    def _do(self, act: Callable[..., object], *arguments: Any) -> None:
        try:
            with self._writing:
                act(*arguments)
        except FAULTS as error:
            raise self._why(error) from None

    def read(self) -> pa.RecordBatch | None:
        """The next answers; `None` at the end, or when the service asks to end the stream."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        except FAULTS as error:
            raise self._told(error) from None
        text = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        self.refused = error_of_text(text)
        if chunk.data is not None:
            if text and self.refused is None and (note := read_json(text, "a note").get("note")):
                warnings.warn(str(note), stacklevel=7)
            return chunk.data
        if self.refused is not None:
            raise self.refused
        self.is_draining = True
        return None

    def close(self) -> None:
        """End the stream and drop all that is under way."""
        with contextlib.suppress(*FAULTS), self._writing:
            self._writer.close()

    def _why(self, error: BaseException) -> TagMatchError:
        """Why nothing can be written: closing tells."""
        try:
            with self._writing:
                self._writer.close()
        except FAULTS as found:
            error = found
        known = self._told(error)
        if type(known) is TagMatchError:
            return UnavailableError(f"the service at {self._url} has ended the stream: {known}")
        return known

    def _told(self, error: BaseException) -> TagMatchError:
        known = error_of_flight(error, self._url)
        if isinstance(known, UnavailableError):
            self.gone()
        return known


def split(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Batches that a service takes, half as large as they may be, or of one row."""
    for batch in batches:
        if batch.nbytes <= most_bytes // 2 or len(batch) < 2:
            yield batch
        else:
            half = len(batch) // 2
            yield from split([batch.slice(0, half), batch.slice(half)], most_bytes)


def match_stream(open_stream: partial[MessageStream], batches: Sequence[pa.RecordBatch], kind: Any) -> pa.Array:
    """The answers to all rows, in order: batches go out while answers come in."""
    rows = sum(map(len, batches))
    if not rows:
        return pa.array([], kind)
    with contextlib.closing(open_stream()) as stream:
        if len(batches) == 1:
            _write(stream, batches)
            found = _answers(stream, rows)
        else:
            # What is written waits until it is read, and so must go on by itself
            writer = threading.Thread(target=_write, args=[stream, batches], name="tagmatch-write", daemon=True)
            writer.start()
            try:
                found = _answers(stream, rows)
            finally:
                writer.join()
    if pa.types.is_list(kind) and sum(len(keys.values) for keys in found) >= 2**31:
        raise ResultTooLargeError(f"{rows} queries have more keys than one Arrow list array can hold; ask with fewer")
    return pa.concat_arrays(found) if len(found) > 1 else found[0]


def _write(stream: MessageStream, batches: Sequence[pa.RecordBatch]) -> None:
    try:
        for batch in batches:
            stream.write(batch)
        stream.done_writing()
    except TagMatchError:
        pass  # who reads gets it, too


def _answers(stream: MessageStream, rows: int) -> list[pa.Array]:
    found, count, was_told = [], 0, False
    while count < rows:
        batch = stream.read()
        if batch is None:
            if stream.is_draining and not was_told:
                was_told = True  # all that is sent will still be answered
                continue
            raise UnavailableError(f"the service ended with {rows - count} of {rows} queries not answered; ask again")
        if stream.refused is not None:
            raise stream.refused
        found.append(batch.column(0))
        count += len(batch)
    return found


class Reply(Future[Any]):
    """The future of one message, which is made a future only if a caller needs more than its answer.

    To make one takes longest of all that a message costs here. Any method and attribute that is not below makes it.
    """

    def __init__(self) -> None:
        self._is_made, self._answer = False, _NOT_YET

    def __getattr__(self, name: str) -> Any:
        # Only where the attribute is missing: it is one of those that a future has
        with _MAKING:
            if not self._is_made:
                super().__init__()
                self._is_made = True
                if self._answer is not _NOT_YET:
                    self.set_result(self._answer)
        return object.__getattribute__(self, name)

    def result(self, timeout: float | None = None) -> Any:
        """The answer, when it comes."""
        return super().result(timeout) if self._answer is _NOT_YET else self._answer

    def done(self) -> bool:
        """Whether there is an answer, an error, or it was cancelled."""
        return self._answer is not _NOT_YET or (self._is_made and super().done())


def give(replies: Sequence[Reply], answers: Callable[[int], Any]) -> None:
    """Give the reply at place `i` the answer `answers(i)`; those that were cancelled get none."""
    awaited = []
    with _MAKING:
        for place, reply in enumerate(replies):
            if not reply._is_made:
                reply._answer = answers(place)
            if reply._is_made:  # also if the garbage collector has just had it made
                awaited.append(place)
    for place in awaited:
        with contextlib.suppress(InvalidStateError):
            replies[place].set_result(answers(place))


class Pipelined:
    """Asks single messages over streams with some columns, and gives keys as lists or, if `unique`, as sets.

    A batch has at most `most_rows` messages, and at most `most` messages are on their way at once.
    """

    def __init__(
        self,
        open_stream: Callable[[pa.Schema], MessageStream],
        schema: pa.Schema,
        *,
        unique: bool,
        most_rows: int,
        most: int,
    ) -> None:
        self._open, self._schema, self._unique, self._most = open_stream, schema, unique, most
        self._most_rows = min(most_rows, _MOST_ROWS)
        self._lock = threading.Lock()
        self._some, self._room = threading.Condition(self._lock), threading.Condition(self._lock)
        # What waits, by column: an object for each message would keep Python's garbage collector busy
        self._futures: list[Reply] = []
        self._tags: list[list[str]] = []
        self._others: list[list[Any]] = [[] for _ in schema.names[1:]]
        self._waiting: list[list[Any]] = [self._futures, self._tags, *self._others]
        self._enough = 1  # With this many, the sender wakes: woken sooner, it would send smaller batches
        self._in_flight, self._closed, self._last_sent = 0, False, 0.0
        self._stream: MessageStream | None = None
        self._sender: threading.Thread | None = None
        self._receivers: list[threading.Thread] = []

    def submit(self, tags: list[str], others: Sequence[Any], timeout: float | None) -> Reply:
        """The keys of one message, in a future; Overloaded if there is no room for it within `timeout` seconds."""
        future = Reply()
        with self._lock:
            if self._in_flight >= self._most and not self._room.wait_for(self._has_room, timeout):
                raise Overloaded(f"{self._most:,} messages are on their way to the service; try again later")
            if self._closed:
                raise ClosedError("this connection is closed; connect again")
            self._in_flight += 1
            self._tags.append(tags)
            if others:
                for column, value in zip(self._others, others, strict=True):
                    column.append(value)
            self._futures.append(future)
            if len(self._futures) == self._enough:
                self._some.notify()
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_all, name="tagmatch-send", daemon=True)
                self._sender.start()
        return future

    def _has_room(self) -> bool:
        return self._in_flight < self._most or self._closed

    def _send_all(self) -> None:
        """Send what gathers; the body of a thread, which alone writes."""
        is_last = False
        while not is_last:
            with self._lock:
                while not (self._futures or self._closed or self._is_draining()):
                    self._enough = 1
                    self._some.wait()
                self._gather()
                futures, *columns = (each[: self._most_rows] for each in self._waiting)
                for each in self._waiting:
                    del each[: self._most_rows]
                is_last = self._closed and not futures
            if self._stream is not None and (is_last or self._is_draining()):
                stream, self._stream = self._stream, None
                try:
                    stream.done_writing()
                except Exception as error:
                    self._fail(stream, error)
            if futures:
                self._send(columns, futures)

    def _is_draining(self) -> bool:
        return self._stream is not None and self._stream.is_draining

    def _gather(self) -> None:
        """Let more messages come while answers are awaited: few large batches take less of the processors than many.

        A message that is alone goes at once; others wait for the answers to those before them, at most so long for
        each batch on its way: a service that has much to do besides is sent fewer.
        """
        while (
            self._stream is not None
            and self._stream.futures
            and len(self._futures) < _ENOUGH
            and not self._closed
            and (left := self._last_sent + _PATIENCE_S * len(self._stream.sizes) - time.monotonic()) > 0
        ):
            self._enough = _ENOUGH
            self._some.wait(left)

    def _send(self, columns: list[list[Any]], futures: list[Reply]) -> None:
        try:
            arrays = [pa.array(values, kind) for values, kind in zip(columns, self._schema.types, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            stream = self._stream_for(futures)
        except Exception as error:
            self._give_error(futures, _known(error))
            return
        try:
            self._last_sent = time.monotonic()
            stream.write(batch)
        except Exception as error:
            self._fail(stream, error)

    def _stream_for(self, futures: list[Reply]) -> MessageStream:
        while True:
            if (stream := self._stream) is None:
                self._stream = stream = self._open(self._schema)
                receiver = threading.Thread(target=self._receive, args=[stream], name="tagmatch-receive", daemon=True)
                self._receivers = [*(each for each in self._receivers if each.is_alive()), receiver]
                receiver.start()
            with self._lock:
                if not stream.has_ended:
                    stream.futures.extend(futures)
                    stream.sizes.append(len(futures))
                    return stream
            self._stream = None

    def _receive(self, stream: MessageStream) -> None:
        """Give the answers that come; the body of a thread."""
        try:
            while True:
                batch = stream.read()
                if batch is not None:
                    self._answer(stream, batch)
                elif stream.is_draining and not stream.has_ended:
                    with self._lock:
                        stream.has_ended = True
                        self._some.notify()
                else:
                    raise UnavailableError("the service has ended the stream; ask again")
        except Exception as error:
            self._fail(stream, error)
        stream.close()

    def _answer(self, stream: MessageStream, batch: pa.RecordBatch) -> None:
        column = batch.column("keys")
        with self._lock:
            popleft, sizes, left = stream.futures.popleft, stream.sizes, len(batch)
            futures = [popleft() for _ in range(left)]
            while left:  # several batches may be answered at once
                some = min(left, sizes[0])
                left -= some
                sizes[0] -= some
                if not sizes[0]:
                    sizes.popleft()
            if self._futures and not stream.futures:  # which wait for these answers
                self._some.notify()
        if stream.refused is not None:
            self._give_error(futures, stream.refused)
            return
        offsets, values = column.offsets.to_numpy().tolist(), column.values
        keys = values.to_numpy().tolist() if pa.types.is_uint64(values.type) else values.to_pylist()
        if self._unique:
            give(futures, lambda place: set(keys[offsets[place] : offsets[place + 1]]))
        else:
            give(futures, lambda place: keys[offsets[place] : offsets[place + 1]])
        self._leave(len(futures))

    def _leave(self, count: int) -> None:
        with self._lock:
            self._in_flight -= count
            self._room.notify_all()

    def _fail(self, stream: MessageStream, error: Exception) -> None:
        """Give an error to all that are on a stream, which is over."""
        with self._lock:
            stream.has_ended = True
            futures = list(stream.futures)
            stream.futures.clear()
        known = _known(error)
        if isinstance(known, UnavailableError) and futures:
            known = UnavailableError(f"{known} ({len(futures)} messages were on their way; ask them again)")
        self._give_error(futures, known)

    def _give_error(self, futures: list[Reply], error: TagMatchError) -> None:
        for future in futures:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
        self._leave(len(futures))

    def is_at_work(self) -> bool:
        """Whether the calling thread is one of those that `close` waits for, as in the callback of a future."""
        return threading.current_thread() in (self._sender, *self._receivers)

    def close(self, *, drain: bool) -> None:
        """Wait for all answers, or without `drain` give up; ends the threads."""
        with self._lock:
            self._closed = True
            left = [] if drain else [*self._futures]
            for each in () if drain else self._waiting:
                each.clear()
            self._some.notify()
            self._room.notify_all()
        for future in left:
            future.cancel()
        self._leave(len(left))
        if self._sender is not None:
            self._sender.join()
        if drain:
            with self._lock:
                self._room.wait_for(lambda: not self._in_flight)
        for receiver in self._receivers:
            receiver.join(None if drain else 1.0)


def _known(error: Exception) -> TagMatchError:
    return error if isinstance(error, TagMatchError) else TagMatchError(f"a message could not be sent: {error}")
