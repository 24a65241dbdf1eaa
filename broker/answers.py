"""What answers calls: actions by name, changes, contents, and streams of messages, notifications and publications.

`DoAction` takes and gives JSON objects. `DoPut` has subscriptions to add or to remove, and clients that move; each call
makes all of its changes, or none. `DoGet` gives what is stored. Options of a call are keywords of its function.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache, partial
from itertools import islice
from queue import Empty, SimpleQueue
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.broker.access import LOOK_S
from tagmatch.broker.config import Guarantee, Role, WhenFull
from tagmatch.broker.flight import Call
from tagmatch.broker.hub import Published
from tagmatch.broker.outbox import KEY_TYPES, schema_of
from tagmatch.broker.wire import (
    MAX_JSON,
    IncomingStream,
    OutgoingStream,
    area_of,
    check_schema,
    error_text,
    name_of,
    result,
    told,
    write_json,
)
from tagmatch.contents import pairs
from tagmatch.contents import schema_of as schema_of_rows
from tagmatch.embedded import TagMatch
from tagmatch.files.columns import attribute_lists, with_attributes
from tagmatch.files.json import read_json
from tagmatch.messages import ATTRIBUTES, ID, TAGS, Queries, joined, queries_in
from tagmatch.model import VERSION
from tagmatch.model.arrays import TagLists
from tagmatch.model.arrow_input import without_extensions
from tagmatch.model.errors import (
    DeadlineMissed,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    SessionError,
    UnavailableError,
)
from tagmatch.model.names import near_match
from tagmatch.model.options import Missing
from tagmatch.model.where.constraints import Where

Body = Mapping[str, Any]


def options_of(call: Callable[..., Any], found: Body, what: str) -> dict[str, Any]:
    """Options in JSON, which are keyword arguments of the call; `what` is how messages call them."""
    known = _options(call)
    for name, value in found.items():
        if name not in known:
            raise InvalidValueError(f"{what} has no option {name[:60]!r}{near_match(name, [*known])}")
        kinds = known[name]
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
            raise InvalidTypeError(f"{what}: {name} must be {wanted}, not {str(value)[:60]!r}")
    return dict(found)


@cache
def _options(call: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
    """Types that each keyword argument may have which is not given yet."""
    found, given = inspect.signature(call, eval_str=True).parameters, getattr(call, "keywords", ())
    hints = {name: each.annotation for name, each in found.items() if each.kind is each.KEYWORD_ONLY}
    return {
        name: tuple(get_origin(kind) or kind for kind in get_args(hint) or (hint,))
        for name, hint in hints.items()
        if name not in given
    }


# -- actions -----------------------------------------------------------------------------------------------------------


def _ready(call: Call) -> Body:
    service = call.service
    if service.is_draining:
        raise UnavailableError("the service is not ready: it ends")
    gateways = service.subscribers.conditions
    if not service.is_ready:
        lacking = ", ".join(f"{name}: {condition}" for name, condition in gateways.items() if condition != "connected")
        raise UnavailableError(f"the service is not ready: a gateway that is required is missing ({lacking})")
    return {"status": "ready", "gateways": gateways}


def _info(call: Call) -> Body:
    service = call.service
    return {
        "version": VERSION,
        "key_type": service.key_type,
        "plane": service.plane,
        "max_batch_rows": service.config.server.max_batch_rows,
        "max_message_bytes": service.config.server.max_message_bytes,
        "user": call.user.name,
        "role": call.user.role,
    }


def _contains(call: Call, *, tags: list[Any] | None = None, where: list[Any] | None = None) -> Body:
    if not all(isinstance(each, str) for each in where or ()):
        raise InvalidTypeError("contains: where must be a list of strings")
    return {"contains": [*(tags or ()), *map(Where, where or ())] in call.index}


def _explain(
    call: Call,
    *,
    tags: list[Any] | None = None,
    attributes: dict[str, Any] | None = None,
    location: list[Any] | None = None,
    within: dict[str, Any] | None = None,
) -> Body:
    area: Any = area_of(within, "explain: within")
    place: Any = None if location is None else tuple(location)
    found = call.index.explain(tags or [], attributes, location=place, within=area)
    return {
        "sets": [
            {
                "tags": [tag for tag in stored if not isinstance(tag, Where)],
                "where": [[str(tag), tag.path] for tag in stored if isinstance(tag, Where)],
                "keys": list(keys),
            }
            for stored, keys in found
        ]
    }


def _whose(call: Call) -> str | None:
    """The user whose sessions a call is about: an admin's is about those of all."""
    return None if call.user.may("admin") else call.user.name


def _end_session(call: Call, *, session: str = "") -> Body:
    return {"ended": call.service.subscribers.sessions.end(session, _whose(call))}


def _consolidate(call: Call, *, full: bool = False) -> Body:
    changes = call.index.consolidate(full=full)
    return {"sets": len(call.index), "changes": changes._asdict()}


def _save_positions(call: Call) -> Body:
    call.index.save_positions()
    return {}


def _check(call: Call) -> Body:
    call.index.check()
    return {"sets": len(call.index)}


def _drain(call: Call) -> Body:
    call.service.drain()
    return {"status": "draining"}


class Action(NamedTuple):
    """Something that a client may ask for by name."""

    role: Role | None  # The least that is needed; `None`: not even a token, and no options
    description: str
    perform: Callable[..., Body]  # `perform(call, **options)` returns what is answered


ACTIONS: dict[str, Action] = {
    "health": Action(None, "Whether the service is alive; needs no token.", lambda _: {"status": "alive"}),
    "ready": Action("read", "Whether the service takes calls, and which gateways are connected.", _ready),
    "info": Action("read", "Version, type of keys, limits, and who the caller is.", _info),
    "stats": Action("read", "Figures of the index, as `TagMatch.stats` gives them.", lambda call: call.index.stats()),
    "contains": Action("read", "Whether exactly a set is stored: `tags`, and `where`, a list.", _contains),
    "explain": Action("read", "Which sets a message matches: `tags`, `attributes`, `location`, `within`.", _explain),
    "sessions": Action(
        "read",
        "One's own sessions of notifications; for an admin, those of all users.",
        lambda call: {"sessions": call.service.subscribers.sessions.listed(_whose(call))},
    ),
    "end_session": Action("read", "End one of these, with all that waits in it: `session`, its name.", _end_session),
    "consolidate": Action("write", "Make staged changes take effect; `full`: lay all sets out anew.", _consolidate),
    "save_positions": Action("write", "Save where clients are.", _save_positions),
    "reload": Action("write", "Take over a newer saved snapshot.", lambda call: {"reloaded": call.index.reload()}),
    "check": Action("admin", "Verify every invariant of the index.", _check),
    "calls": Action("admin", "Calls and bytes of each user.", lambda call: {"users": call.service.limits.by_user()}),
    "drain": Action("admin", "Take no more calls, end streams, and then end the service.", _drain),
}


# -- changes -----------------------------------------------------------------------------------------------------------


def _add(call: Call, incoming: IncomingStream, *, commit: bool = False, match_all: bool = False) -> Generator[bytes]:
    table = _all_of(call, incoming)
    return _changed(call, "add", table, call.index.add_subscriptions(table, match_all=match_all), commit)


def _remove(
    call: Call,
    incoming: IncomingStream,
    *,
    commit: bool = False,
    match_all: bool = False,
    missing: str = "ignore",
) -> Generator[bytes]:
    table = _all_of(call, incoming)
    staged = call.index.remove_subscriptions(table, match_all=match_all, missing=cast("Missing", missing))
    return _changed(call, "remove", table, staged, commit)


def _move(call: Call, incoming: IncomingStream, *, commit: bool = False) -> Generator[bytes]:
    table, names = _all_of(call, incoming), ("client", "lon", "lat")
    if sorted(table.column_names) != sorted(names):
        raise InvalidValueError(f"moves have columns client, lon and lat, not {', '.join(table.column_names)[:200]}")
    call.index.move(*(table.column(name) for name in names))
    return _changed(call, "move", table, 0, commit)


def _all_of(call: Call, incoming: IncomingStream) -> pa.Table:
    """All rows, which together must be no more than a call may bring."""
    schema = incoming.schema
    check_schema(schema)
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in incoming:
        nbytes += batch.nbytes
        if nbytes > (most := call.service.config.server.max_message_bytes):
            raise InvalidValueError(f"at most {most:,} bytes may come at once, not {nbytes:,}")
        call.memory.take(batch.nbytes, waits=False)
        batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    call.service.limits.admit(call.user.name, len(table))
    return table


def _changed(call: Call, kind: str, table: pa.Table, staged: int, commit: bool) -> Generator[bytes]:
    call.service.metrics.changes.labels(kind).inc(len(table))
    found: dict[str, Any] = {"rows": len(table), "staged": staged, "committed": commit}
    if commit and kind != "move":  # moves need none
        found["changes"] = call.index.consolidate()._asdict()
    found["sets"] = len(call.index)
    yield result(write_json(found))


# -- contents ----------------------------------------------------------------------------------------------------------

_SETS_A_BATCH = 4096


def _rows(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows `tags`, `key`, and `where` and `expires` where there are some, as `TagMatch.to_arrow` gives them."""
    snapshot = index.snapshot
    return schema_of_rows(snapshot), iter(pairs(snapshot))


def _sets(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Sets with `tags`, `where`, a list of conditions, and `keys`, as iteration gives them."""
    keys, texts = pa.list_(KEY_TYPES[index.stats()["key_type"]]), pa.list_(pa.string())
    schema = pa.schema({"tags": texts, "where": texts, "keys": keys})

    def batches() -> Iterator[pa.RecordBatch]:
        sets = iter(index)
        while some := list(islice(sets, _SETS_A_BATCH)):
            columns = (
                [[tag for tag in stored if not isinstance(tag, Where)] for stored, _ in some],
                [[str(tag) for tag in stored if isinstance(tag, Where)] for stored, _ in some],
                [found for _, found in some],
            )
            yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)

    return schema, batches()


#: What a ticket `{"get": NAME}` may ask for
CONTENTS = {"rows": _rows, "sets": _sets}


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


class Matching:
    """A stream of messages, which is answered until the client ends it."""

    def __init__(
        self,
        call: Call,
        incoming: IncomingStream,
        *,
        unique: bool = False,  # Give each key of a message once, ascending
        plain: bool = False,  # Answers have no ids
        coalesce: bool = False,  # Answers to several batches may come as one, in the same order
        # The channel of the messages. Those that are not answered in time have nulls for keys, in a batch whose
        # metadata is the error; the stream goes on.
        channel: str | None = None,
    ) -> None:
        self._call, self._incoming, self._service, self._metrics = call, incoming, call.service, call.service.metrics
        self._unique, self._plain, self._coalesce, self._channel = unique, plain, coalesce, channel
        self._came: SimpleQueue[Batch | None] = SimpleQueue()  # `None`: nothing more comes
        self._next: Batch | None = None  # it has come, and is not among those that were answered last
        self._has_ended = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        given = self._incoming.schema
        check_schema(given)
        place = -1 if self._plain else given.get_field_index(ID)
        ids = [(ID, given.types[place])] if place >= 0 else []
        self._schema = pa.schema([*ids, (KEYS, pa.list_(KEY_TYPES[self._service.key_type]))])
        self._outgoing = OutgoingStream(self._schema)
        self._call.begin(self._read)
        try:
            yield self._outgoing.begin()
            yield from self._answer_all()
        except Exception as error:
            if not self._has_ended:  # a client that still writes reads it first
                yield told(error_text(error))
            raise

    def _read(self) -> None:
        """Read batches until there are no more, in another thread."""
        row, plane = 0, self._service.plane
        try:
            for given in self._incoming:
                batch = batch_of(given, row, plain=self._plain, plane=plane, arrived=time.perf_counter())
                count = len(batch.rows)
                row += count
                self._call.keep_to_rate(count)
                self._call.require()
                self._call.memory.take(batch.nbytes, count, waits=True)
                self._metrics.messages.inc(count)
                self._came.put(batch)
        except BaseException as error:  # the thread of the call raises it
            self._error = error
        self._has_ended = True
        self._came.put(None)

    def _answer_all(self) -> Iterator[bytes]:
        was_asked = False
        while True:
            self._call.require()
            if some := self._taken():
                yield from self._answer(some)
            elif some is None:
                if self._error is not None:
                    raise self._error
                return
            elif self._service.is_draining and not was_asked:
                was_asked = True
                yield told(DRAINING)

    def _taken(self) -> list[Batch] | None:
        """All that has come, up to so many rows but at least one batch; empty if nothing comes in time, else `None`."""
        taken: list[Batch] = []
        left = self._service.config.server.max_batch_rows
        try:
            batch = self._next or self._came.get(timeout=LOOK_S)
            while batch is not None and (not taken or len(batch.rows) <= left):
                taken.append(batch)
                left -= len(batch.rows)
                batch = self._next = None
                batch = self._came.get_nowait()
        except Empty:
            return taken
        self._next = batch
        if batch is None:
            self._came.put(None)  # it is looked at once more
        return taken or None

    def _answer(self, some: list[Batch]) -> Iterator[bytes]:
        memory, metrics, chunks = self._call.memory, self._metrics, [each.rows for each in some]
        rows, nbytes = sum(map(len, chunks)), sum(each.nbytes for each in some)
        memory.give_back(queued=rows)
        if rows < _FEW_ROWS * len(chunks):
            chunks = [joined(chunks)]
        of_channel: dict[str, Any] = {}
        if self._channel is not None:
            of_channel = {"channel": self._channel, "waited": time.perf_counter() - some[0].arrived}
        try:
            keys = self._service.index.match_many(Queries(chunks), unique=self._unique, **of_channel)
        except (DeadlineMissed, Overloaded) as error:
            if not of_channel:
                raise
            memory.give_back(nbytes, in_flight=rows)
            for each in some:
                metrics.errors.labels(name_of(error)).inc()
                no_keys = pa.nulls(len(each.rows), self._schema.field(KEYS).type)
                yield from self._batch(each.ids, no_keys, error_text(error))
            return
        memory.give_back(nbytes)
        if self._coalesce and len(some) > 1:
            ids = None if some[0].ids is None else pa.concat_arrays([each.ids for each in some])
            yield from self._batch(ids, keys)
        else:
            first = 0
            for each in some:
                yield from self._batch(each.ids, keys.slice(first, len(each.rows)))
                first += len(each.rows)
        memory.give_back(in_flight=rows)
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


class Notifying:
    """A stream of the notifications of a session, which the subscriber ends."""

    def __init__(
        self,
        call: Call,
        incoming: IncomingStream,
        *,
        session: str = "",
        keys: list[Any] | None = None,
        every_key: bool = False,
        guarantee: str = "at_most_once",
        when_full: str | None = None,
        linger: int | float | None = None,
    ) -> None:
        call.keep_to_rate(len(keys or ()))
        self._connection = call.service.subscribers.sessions.connect(
            session,
            call.user.name,
            keys=keys,
            every_key=every_key,
            guarantee=cast("Guarantee", guarantee),
            when_full=cast("WhenFull | None", when_full),
            linger=None if linger is None else float(linger),
        )
        self._call, self._incoming = call, incoming
        self._has_ended = threading.Event()
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        self._call.check = self._check
        self._call.begin(self._read)
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
            taken = self._connection.take(most, most_bytes=most_bytes, timeout=LOOK_S)
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


def _publish(call: Call, incoming: IncomingStream, *, channel: str | None = None) -> Generator[bytes]:
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


#: A stream: `stream(call, incoming, **options)` gives the messages of Flight to send
Stream = Callable[..., Iterable[bytes]]
#: By the name in a descriptor: the role that is needed, and the stream, of `DoExchange` and of `DoPut`
EXCHANGES: dict[str, tuple[Role, Stream]] = {
    "match": ("read", Matching),
    "match_unique": ("read", partial(Matching, unique=True)),
    "notify": ("read", Notifying),
}
PUTS: dict[str, tuple[Role, Stream]] = {
    "add": ("write", _add),
    "remove": ("write", _remove),
    "move": ("write", _move),
    "publish": ("write", _publish),
}
