"""Streams of clients: messages in and keys out, notifications out, and publications in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.broker.access import ClientCall
from tagmatch.broker.actions import CHANGES, Stream
from tagmatch.broker.config import Guarantee, Role, WhenFull
from tagmatch.broker.flight import IncomingStream, OutgoingStream, check_schema, result, told
from tagmatch.broker.hub import Published
from tagmatch.broker.outbox import KEY_TYPES, schema_of
from tagmatch.broker.sessions import SessionConnection
from tagmatch.broker.wire import MAX_JSON, error_text, name_of, write_json
from tagmatch.files.columns import attribute_lists, with_attributes
from tagmatch.files.json import read_json
from tagmatch.messages import ATTRIBUTES, ID, TAGS, Queries, joined, queries_in
from tagmatch.model.arrays import TagLists
from tagmatch.model.arrow_input import without_extensions
from tagmatch.model.errors import (
    DeadlineMissed,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    SessionError,
)

# Seconds between looks whether the service ends
_LOOK_S = 0.2

# -- messages ----------------------------------------------------------------------------------------------------------

KEYS = "keys"
#: The metadata, without data, that asks a client to end a stream
DRAINING = write_json({"draining": True})
# Batches of fewer rows on average are put together, as each is some work of its own
_FEW_ROWS = 256
# Of batches that are answered together, those whose latency is observed
_MOST_OBSERVED = 16


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
        messages = _with_attributes(messages)
    try:
        [rows] = queries_in(messages, plane=plane, first_row=first_row)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidTypeError(f"the columns cannot be read: {error}") from None
    return Batch(rows, ids, arrived, messages.nbytes + (0 if ids is None else ids.nbytes))


def _with_attributes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose column `attributes`, if that has JSON, has become tags that stand for them."""
    given = batch.column(ATTRIBUTES)
    if not (pa.types.is_string(given.type) or pa.types.is_large_string(given.type)):
        return batch
    rest = batch.drop_columns([ATTRIBUTES])
    if TAGS not in rest.schema.names:
        rest = rest.append_column(TAGS, pa.array([[]] * len(rest), pa.list_(pa.string())))
    # As bytes, since Arrow does not see to it that strings are UTF-8
    wide = pa.large_binary() if pa.types.is_large_string(given.type) else pa.binary()
    found = [_attributes_in(text, row) for row, text in enumerate(given.cast(wide).to_pylist())]
    tags = with_attributes(rest.column(TAGS), {"read": attribute_lists(found)})
    return rest.set_column(rest.schema.get_field_index(TAGS), TAGS, tags)


def _attributes_in(text: bytes | None, row: int) -> dict[str, Any] | None:
    what = f"column 'attributes': row {row}"
    if text is None:
        return None
    if len(text) > MAX_JSON:
        raise InvalidValueError(f"{what} has {len(text):,} bytes, more than {MAX_JSON:,}; give attributes as a map")
    value = read_json(text, what)
    if value is not None and not isinstance(value, dict):
        raise InvalidValueError(f"{what} must be a JSON object")
    return value


class _Queue:
    """Batches that have come and are not taken yet, with a bound in rows and in bytes."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._batches: deque[Batch] = deque()
        self._rows = self._bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._error: BaseException | None = None
        self.has_ended = False  # nothing more comes in

    def put(self, batch: Batch) -> bool:
        """Add a batch, when there is room; returns whether somebody still takes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(batch))
            if self._is_closed:
                return False
            self._batches.append(batch)
            self._rows += len(batch.rows)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True

    def _has_room(self, batch: Batch) -> bool:
        rows, nbytes = self._rows + len(batch.rows), self._bytes + batch.nbytes
        return not self._batches or (rows <= self._most_rows and nbytes <= self._most_bytes)

    def end(self, error: BaseException | None) -> None:
        """Say that nothing more comes, and why, if that is an error."""
        with self._changed:
            self.has_ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> int:
        """Say that nothing more is taken; returns how many rows are left behind."""
        with self._changed:
            self._is_closed, left = True, self._rows
            self._batches.clear()
            self._changed.notify_all()
            return left

    def take(self, most_rows: int, timeout: float) -> list[Batch]:
        """All that has come, up to so many rows but at least one batch; waits for it. Empty at the end, or in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self.has_ended, timeout)
            taken: list[Batch] = []
            rows = 0
            while self._batches and (not taken or rows + len(self._batches[0].rows) <= most_rows):
                taken.append(self._batches.popleft())
                rows += len(taken[-1].rows)
                self._bytes -= taken[-1].nbytes
            self._rows -= rows
            if taken:
                self._changed.notify_all()
            elif self.has_ended and self._error is not None:
                raise self._error
            return taken


def _match(
    call: ClientCall,
    incoming: IncomingStream,
    *,
    unique: bool = False,  # Give each key of a message once, ascending
    plain: bool = False,  # Answers have no ids
    coalesce: bool = False,  # Answers to several batches may come as one, in the same order
    # The channel of the messages. Those that are not answered in time have nulls for keys, in a batch whose metadata is
    # the error; the stream goes on.
    channel: str | None = None,
) -> Generator[bytes]:
    return _Matching(call, incoming, unique, plain, coalesce, channel).run()


def _match_unique(
    call: ClientCall,
    incoming: IncomingStream,
    *,
    plain: bool = False,
    coalesce: bool = False,
    channel: str | None = None,
) -> Generator[bytes]:
    return _Matching(call, incoming, True, plain, coalesce, channel).run()


class _Matching:
    def __init__(
        self, call: ClientCall, incoming: IncomingStream, unique: bool, plain: bool, coalesce: bool, channel: str | None
    ) -> None:
        self._call, self._incoming, self._service, self._metrics = call, incoming, call.service, call.service.metrics
        self._unique, self._plain, self._coalesce, self._channel = unique, plain, coalesce, channel
        server = call.service.config.server
        self._most_rows = server.max_batch_rows
        self._queue = _Queue(server.queue_rows, 2 * server.max_message_bytes)

    def run(self) -> Generator[bytes]:
        """Answer until the client ends the stream."""
        given = self._incoming.schema
        check_schema(given)
        place = -1 if self._plain else given.get_field_index(ID)
        ids = [(ID, given.types[place])] if place >= 0 else []
        self._schema = pa.schema([*ids, (KEYS, pa.list_(KEY_TYPES[self._service.key_type]))])
        self._outgoing = OutgoingStream(self._schema)
        self._call.rpc.begin(self._read)
        try:
            yield self._outgoing.begin()
            yield from self._answer_all()
        except Exception as error:
            if not self._queue.has_ended:  # a client that still writes reads it first
                yield told(error_text(error))
            raise
        finally:
            self._count_waiting(-self._queue.close())

    def _count_waiting(self, rows: int) -> None:
        self._metrics.in_flight.inc(rows)
        self._metrics.queued.inc(rows)

    def _read(self) -> None:
        """Read batches until there are no more, in another thread."""
        error, row, plane = None, 0, self._service.plane
        try:
            for given in self._incoming:
                batch = batch_of(given, row, plain=self._plain, plane=plane, arrived=time.perf_counter())
                count = len(batch.rows)
                row += count
                self._call.keep_to_rate(count)
                self._call.require()
                self._call.memory.take(batch.nbytes, waits=True)
                self._metrics.messages.inc(count)
                self._count_waiting(count)
                if not self._queue.put(batch):
                    self._count_waiting(-count)
        except BaseException as found:  # the thread of the call raises it
            error = found
        self._queue.end(error)

    def _answer_all(self) -> Iterator[bytes]:
        was_asked = False
        while True:
            self._call.require()
            has_ended = self._queue.has_ended
            if some := self._queue.take(self._most_rows, _LOOK_S):
                yield from self._answer(some)
            elif has_ended:
                return
            elif self._service.is_draining and not was_asked:
                was_asked = True
                yield told(DRAINING)

    def _answer(self, some: list[Batch]) -> Iterator[bytes]:
        metrics, chunks = self._metrics, [each.rows for each in some]
        rows = sum(map(len, chunks))
        metrics.queued.dec(rows)
        if rows < _FEW_ROWS * len(chunks):
            chunks = [joined(chunks)]
        of_channel: dict[str, Any] = {}
        if self._channel is not None:
            of_channel = {"channel": self._channel, "waited": time.perf_counter() - some[0].arrived}
        try:
            keys = self._service.index.match_many(Queries(chunks), unique=self._unique, **of_channel)
            self._call.memory.give_back(sum(each.nbytes for each in some))
            if self._coalesce and len(some) > 1:
                ids = None if some[0].ids is None else pa.concat_arrays([each.ids for each in some])
                yield from self._batch(ids, keys)
            else:
                first = 0
                for each in some:
                    yield from self._batch(each.ids, keys.slice(first, len(each.rows)))
                    first += len(each.rows)
        except (DeadlineMissed, Overloaded) as error:
            if not of_channel:
                raise
            for each in some:
                self._call.memory.give_back(each.nbytes)
                metrics.errors.labels(name_of(error)).inc()
                no_keys = pa.nulls(len(each.rows), self._schema.field(KEYS).type)
                yield from self._batch(each.ids, no_keys, error_text(error))
            return
        finally:
            metrics.in_flight.dec(rows)
        metrics.answers.inc(rows)
        metrics.keys.inc(len(keys.values))
        now = time.perf_counter()
        for each in some if len(some) <= _MOST_OBSERVED else (some[0], some[-1]):
            metrics.latency.observe(now - each.arrived)

    def _batch(self, ids: pa.Array | None, keys: pa.ListArray, metadata: bytes = b"") -> Iterator[bytes]:
        columns = [keys] if ids is None else [ids, keys]
        return self._outgoing.batch(pa.RecordBatch.from_arrays(columns, schema=self._schema), metadata)


# -- notifications -----------------------------------------------------------------------------------------------------

# Of notifications that go together
_MOST_BYTES = 4 << 20


def _notify(
    call: ClientCall,
    incoming: IncomingStream,
    *,
    session: str = "",
    keys: list[Any] | None = None,
    every_key: bool = False,
    guarantee: str = "at_most_once",
    when_full: str | None = None,
    linger: int | float | None = None,
) -> Generator[bytes]:
    call.keep_to_rate(len(keys or ()))
    connection = call.service.subscribers.sessions.connect(
        session,
        call.user.name,
        keys=keys,
        every_key=every_key,
        guarantee=cast("Guarantee", guarantee),
        when_full=cast("WhenFull | None", when_full),
        linger=None if linger is None else float(linger),
    )
    return _Notifying(call, connection, incoming).run()


class _Notifying:
    def __init__(self, call: ClientCall, connection: SessionConnection, incoming: IncomingStream) -> None:
        self._call, self._connection, self._incoming = call, connection, incoming
        self._has_ended = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> Generator[bytes]:
        self._call.rpc.check = self._check
        self._call.rpc.begin(self._read)
        try:
            self._outgoing = OutgoingStream(schema_of(self._call.service.key_type))
            yield self._outgoing.begin()
            yield from self._give_all()
        except Exception as error:
            if self._has_ended.is_set() and isinstance(error, SessionError):
                if self._error is not None:
                    raise self._error from None
                return
            yield told(error_text(error))
            raise
        finally:
            self._connection.close()

    def _check(self) -> None:
        """See that the subscriber may still get notifications."""
        self._call.require()
        if not self._connection.is_present:
            raise SessionError("this connection has ended, or another one has taken its session over")

    def _give_all(self) -> Iterator[bytes]:
        service, asked = self._call.service, False
        most = service.config.server.max_batch_rows
        most_bytes = min(service.config.server.max_message_bytes, _MOST_BYTES)
        while True:
            self._call.require()
            taken = self._connection.take(most, most_bytes=most_bytes, timeout=_LOOK_S)
            if taken is not None:
                yield from self._outgoing.batch(taken)
            elif service.is_draining and service.subscribers.is_quiet and not asked:
                asked = True
                yield told(DRAINING)

    def _read(self) -> None:
        """Read what the subscriber sends; at the end, `take` is woken by the end of the connection."""
        try:
            for batch in self._incoming:
                self._obey(batch)
        except BaseException as error:  # the thread of the call raises it
            self._error = error
        self._has_ended.set()
        self._connection.close()

    def _obey(self, batch: pa.RecordBatch) -> None:
        """Take the offset up to which a subscriber has everything, keys to follow, and keys to follow no longer."""
        changes = {"follow": self._connection.follow, "unfollow": self._connection.unfollow}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            given = column.drop_null()
            if name == "acknowledge":
                if len(given):
                    self._connection.acknowledge(pc.max(given.cast(pa.int64())).as_py())
            elif name not in changes:
                raise InvalidValueError(f"columns must be acknowledge, follow and unfollow, not {name[:60]!r}")
            elif len(given):
                self._call.keep_to_rate(len(given))
                changes[name](given.cast(KEY_TYPES[self._call.service.key_type]))


def _publish(call: ClientCall, incoming: IncomingStream, *, channel: str | None = None) -> Generator[bytes]:
    check_schema(incoming.schema)
    hub = call.service.subscribers.hub
    waiting: deque[Future[Published]] = deque()
    counts = {"messages": 0, "matched": 0}

    def count(done: Future[Published]) -> None:
        published = done.result()
        counts["messages"] += published.messages
        counts["matched"] += published.matched

    for batch in incoming:
        call.keep_to_rate(len(batch))
        call.require()
        call.memory.take(batch.nbytes, waits=True)
        waiting.append(hub.publish(batch, channel=channel))
        waiting[-1].add_done_callback(lambda _, nbytes=batch.nbytes: call.memory.give_back(nbytes))  # type: ignore[misc]
        while waiting and waiting[0].done():
            count(waiting.popleft())
    for future in waiting:
        count(future)
    yield result(write_json(counts))


#: By the name in a descriptor: the role that is needed, and the stream, of `DoExchange` and of `DoPut`
EXCHANGES: dict[str, tuple[Role, Stream]] = {
    "match": ("read", _match),
    "match_unique": ("read", _match_unique),
    "notify": ("read", _notify),
}
PUTS: dict[str, tuple[Role, Stream]] = {name: ("write", put) for name, put in {**CHANGES, "publish": _publish}.items()}
