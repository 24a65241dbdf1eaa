"""What answers calls: actions by name, changes, contents, and streams of messages, notifications and publications.

`DoAction` takes and gives JSON objects. `DoPut` has subscriptions to add or to remove, and clients that move; each call
makes all of its changes, or none. `DoGet` gives the stored sets. Options of a call are keywords of its function.
"""

from __future__ import annotations

import inspect
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache, partial
from itertools import islice, pairwise
from queue import Empty, SimpleQueue
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.broker.access import LOOK_S, Call, Incoming
from tagmatch.broker.config import Guarantee, Role, WhenFull
from tagmatch.broker.hub import Published
from tagmatch.broker.incoming import committed
from tagmatch.broker.outbox import KEY_TYPES, schema_of
from tagmatch.broker.wire import (
    Batch,
    answer_field,
    apart,
    area_of,
    batch_of,
    check_schema,
    error_text,
    name_of,
    record_to_json,
    write_json,
)
from tagmatch.contents import pairs
from tagmatch.contents import schema_of as schema_of_rows
from tagmatch.embedded import TagMatch
from tagmatch.model import VERSION
from tagmatch.model.arrays import TagLists
from tagmatch.model.data_types import count_type, plain_type, some_columns, text_of_type
from tagmatch.model.errors import (
    AccessError,
    DeadlineMissed,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    SessionError,
    UnavailableError,
)
from tagmatch.model.input.messages import ID, TAGS, Queries, joined, part_of
from tagmatch.model.names import near_match
from tagmatch.model.options import Missing, Wanted
from tagmatch.model.where.constraints import Where
from tagmatch.partitioner.consolidation import to_merge

Body = Mapping[str, Any]


#: What messages call the types that values of JSON have in Python
KIND_NAMES: dict[type, str] = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string", list: "a list", dict: "an object",
    NoneType: "null",
}  # fmt: skip


def options_of(call: Callable[..., Any], found: Body, what: str) -> dict[str, Any]:
    """Options in JSON, which are keyword arguments of the call; `what` is how messages call them."""
    known = kinds_of(call)
    for name, value in found.items():
        if name not in known:
            raise unknown_option(what, name, [*known])
        kinds = known[name]
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            wanted = " or ".join(KIND_NAMES[kind] for kind in kinds)
            raise InvalidTypeError(f"{what}: {name} must be {wanted}, not {str(value)[:60]!r}")
    return dict(found)


def unknown_option(what: str, name: str, known: list[str]) -> InvalidValueError:
    """An option that a call does not have; where messages have attributes, it is perhaps one of these."""
    near = near_match(name, known)
    if "attributes" in known and "meant" not in near:
        near += (
            f'; an attribute of a message is in "attributes", as in {{"attributes": {{{json.dumps(name[:60])}: …}}}}'
        )
    return InvalidValueError(f"{what} has no option {name[:60]!r}{near}")


@cache
def kinds_of(call: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
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
        "data": {name: text_of_type(kind) for name, kind in call.index._engine.schema().items()},
        "user": call.user.name,
        "role": call.user.role,
        "has_filter": call.user.filter is not None,
        "follows": service.config.index.follow,
    }


#: Most positions of clients that `stats` gives
MOST_POSITIONS = 10_000


def _stats(call: Call, *, details: bool = False, positions: int = 0) -> Body:
    """Figures of the index; with details, of each segment, the snapshots that are kept, and the service.

    Positions are those of some clients, spread over all that have one.
    """
    index = call.index
    if not details and not positions:
        return index.stats()
    if call.user.filter is not None:
        raise AccessError(f"stats: details and positions are not for users with a filter, as {call.user.name!r} has")
    if not 0 <= positions <= MOST_POSITIONS:
        raise InvalidValueError(f"stats: positions must be from 0 to {MOST_POSITIONS:,}, not {positions}")
    found = index.stats()
    if positions:
        keys, lon, lat = index._engine.clients.positions(positions)
        found["clients"] = {"key": keys.to_pylist(), "lon": lon.tolist(), "lat": lat.tolist()}
    if details:
        snapshot, path = index.snapshot, found["path"]
        merged = to_merge(snapshot)
        found["each_segment"] = [
            {"sets": each.live, "deleted": len(each) - each.live, "keys": each.live_keys, "bytes": each.nbytes,
             "merges": any(each is other for other in merged)}
            for each in snapshot.segments
        ]  # fmt: skip
        kept = [] if path is None or found["number"] is None else TagMatch.snapshots(path)
        found["snapshots"] = [
            {"number": each.number, "sets": each.sets, "until": each.until and each.until.isoformat()} for each in kept
        ]
        found["service"] = call.service.figures()
    return found


def _contains(call: Call, *, tags: list[Any] | None = None, where: list[Any] | None = None) -> Body:
    if not all(isinstance(each, str) for each in where or ()):
        raise InvalidTypeError("contains: where must be a list of strings")
    return {"contains": [*(tags or ()), *map(Where, where or ())] in call.index}


def _explain(
    call: Call,
    *,
    tags: list[Any] | None = None,
    attributes: dict[str, Any] | None = None,
    location: list[Any] | dict[str, Any] | None = None,
    within: dict[str, Any] | str | None = None,
    key: int | str | None = None,
    only: str | None = None,
) -> Body:
    area: Any = area_of(within, "explain: within")
    place: Any = location
    if key is not None:
        return call.index.explain(tags or [], attributes, location=place, within=area, key=key, only=only).to_dict()
    found = call.index.explain(tags or [], attributes, location=place, within=area, only=only)
    sets = ((*apart(stored), keys) for stored, keys in found)
    return {
        "sets": [
            {"tags": plain, "where": [[str(each), each.path] for each in conditions], "keys": list(keys)}
            for plain, conditions, keys in sets
        ]
    }


def _has_key(call: Call, *, key: int | str | None = None) -> Body:
    return {"has_key": key is not None and key in call.index.records}


def _get(call: Call, *, key: int | str | None = None) -> Body:
    found = None if key is None else call.index.get(key)
    return {"record": None if found is None else record_to_json(found)}


def _whose(call: Call) -> str | None:
    """The user whose sessions a call is about: an admin's is about those of all."""
    return None if call.user.may("admin") else call.user.name


def _end_session(call: Call, *, session: str = "") -> Body:
    return {"ended": call.service.subscribers.sessions.end(session, _whose(call))}


def _consolidate(call: Call, *, full: bool = False) -> Body:
    changes = committed(call.index, full=full)
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
    perform: Callable[..., Body]  # `perform(call, **options)` returns the answer


ACTIONS: dict[str, Action] = {
    "health": Action(None, "Whether the service is alive; needs no token.", lambda _: {"status": "alive"}),
    "ready": Action("read", "Whether the service takes calls, and which gateways are connected.", _ready),
    "info": Action("read", "Version, type of keys, limits, and who the caller is.", _info),
    "stats": Action(
        "read",
        "Figures of the index, as `TagMatch.stats` gives them. `details`: also of segments and the service; "
        "`positions`: how many clients to list.",
        _stats,
    ),
    "contains": Action("read", "Whether exactly a set is stored: `tags`, and `where`, a list.", _contains),
    "explain": Action(
        "read",
        "Which sets a message matches, or why `key` does: `tags`, `attributes`, `location`, `within`, `only`.",
        _explain,
    ),
    "get": Action("read", "The record of a key: `key`.", _get),
    "has_key": Action("read", "Whether a key has sets: `key`.", _has_key),
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


def _add(call: Call, incoming: Incoming, *, commit: bool = False, match_all: bool = False) -> Iterator[bytes]:
    return _changed(
        call, "add", incoming, lambda table: call.index.add_subscriptions(table, match_all=match_all), commit
    )


def _remove(
    call: Call, incoming: Incoming, *, commit: bool = False, match_all: bool = False, missing: str = "ignore"
) -> Iterator[bytes]:
    remove = partial(call.index.remove_subscriptions, match_all=match_all, missing=cast("Missing", missing))
    return _changed(call, "remove", incoming, remove, commit)


def _put(call: Call, incoming: Incoming, *, commit: bool = False, match_all: bool = False) -> Iterator[bytes]:
    return _changed(call, "put", incoming, lambda table: call.index.put_many(table, match_all=match_all), commit)


def _delete(call: Call, incoming: Incoming, *, commit: bool = False, missing: str = "ignore") -> Iterator[bytes]:
    def delete(table: pa.Table) -> int:
        if table.column_names != ["key"]:
            raise InvalidValueError(f"deletions have the column key, not {', '.join(table.column_names)[:200]}")
        return call.index.delete_many(table.column("key"), missing=cast("Missing", missing))

    return _changed(call, "delete", incoming, delete, commit)


def _move(call: Call, incoming: Incoming, *, commit: bool = False) -> Iterator[bytes]:
    def move(table: pa.Table) -> int:
        names = ("client", "lon", "lat")
        if sorted(table.column_names) != sorted(names):
            given = ", ".join(table.column_names)[:200]
            raise InvalidValueError(f"moves have columns client, lon and lat, not {given}")
        call.index.move(*map(table.column, names))
        return 0

    return _changed(call, "move", incoming, move, commit)


def _changed(
    call: Call, kind: str, incoming: Incoming, change: Callable[[pa.Table], int], commit: bool
) -> Iterator[bytes]:
    """Change the index by all rows, which together must be no more than a call may bring."""
    schema, most = incoming.schema, call.service.config.server.max_message_bytes
    check_schema(schema)
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in incoming:
        nbytes += batch.nbytes
        if nbytes > most:
            raise InvalidValueError(f"at most {most:,} bytes may come at once, not {nbytes:,}")
        call.memory.take(batch.nbytes, waits=False)
        batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    call.service.limits.admit(call.user.name, len(table))
    found: dict[str, Any] = {"rows": len(table), "staged": change(table), "committed": commit}
    call.service.metrics.changes.labels(kind).inc(len(table))
    if commit and kind != "move":  # moves need none
        found["changes"] = committed(call.index)._asdict()
    found["sets"] = len(call.index)
    yield call.result(found)


# -- contents ----------------------------------------------------------------------------------------------------------

_SETS_A_BATCH = 4096


def _rows(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows as `TagMatch.to_arrow` gives them, with strings for dictionaries, which each batch would send anew."""
    snapshot = index.snapshot
    schema = pa.schema([(each.name, plain_type(each.type)) for each in schema_of_rows(snapshot)])
    return schema, (batch.cast(schema) for batch in pairs(snapshot))


def _sets(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Sets with `tags`, `where`, a list of conditions, and `keys`, as iteration gives them."""
    keys, texts = pa.list_(KEY_TYPES[index.stats()["key_type"]]), pa.list_(pa.string())
    schema = pa.schema({"tags": texts, "where": texts, "keys": keys})

    def batches() -> Iterator[pa.RecordBatch]:
        sets = iter(index)
        while some := list(islice(sets, _SETS_A_BATCH)):
            plain, conditions = zip(*(apart(stored) for stored, _ in some), strict=True)
            columns = plain, [[*map(str, each)] for each in conditions], [found for _, found in some]
            yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)

    return schema, batches()


def _records(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Records as texts of JSON, each as the action `get` gives it."""
    schema = pa.schema({"record": pa.large_string()})

    def batches() -> Iterator[pa.RecordBatch]:
        records = iter(index.records.values())
        while some := list(islice(records, _SETS_A_BATCH)):
            texts = [write_json(record_to_json(each)).decode() for each in some]
            yield pa.record_batch([pa.array(texts, pa.large_string())], schema=schema)

    return schema, batches()


#: What a ticket `{"get": NAME}` may ask for
CONTENTS = {"rows": _rows, "sets": _sets, "records": _records}


# -- messages ----------------------------------------------------------------------------------------------------------

#: The method that answers messages, and its options, by the wanted answer
_ASK: Mapping[Wanted, tuple[str, Body]] = {
    Wanted.keys: ("match_many", {}),
    Wanted.unique: ("match_many", {"unique": True}),
    Wanted.counts: ("match_counts", {}),
    Wanted.unique_counts: ("match_counts", {"unique": True}),
    Wanted.exists: ("match_exists_many", {}),
    Wanted.highlights: ("match_highlights", {}),
}
#: The same with each key once
_ONCE = {Wanted.keys: Wanted.unique, Wanted.counts: Wanted.unique_counts}
#: The metadata, without data, that asks a client to end a stream
DRAINING = write_json({"draining": True})
# Batches of fewer rows on average are put together, as each costs some work
_FEW_ROWS = 256
# Of batches that are answered together, those whose latency is observed
_MOST_OBSERVED = 16


class Exchange(ABC):
    """A stream in both directions: another thread reads what the client sends while that of the call answers."""

    def __init__(self, call: Call, incoming: Incoming) -> None:
        self._call, self._incoming, self._service = call, incoming, call.service
        self._has_ended = False  # the client sends no more
        self._error: BaseException | None = None  # by which reading has ended; the thread of the call raises it

    def _answered(self, schema: pa.Schema) -> Iterator[bytes]:
        """Answers with these columns, until the client ends the stream."""
        self._schema, self._outgoing, was_asked = schema, self._call.outgoing(schema), False
        self._call.begin(self._read)
        try:
            yield self._outgoing.begin()
            while (some := self._taken()) is not None:
                if len(some):
                    yield from self._answer(some)
                if self._service.is_draining and not was_asked and self._may_end(some):
                    was_asked = True
                    yield self._outgoing.told(DRAINING)
                self._call.require()
            if self._error is not None:
                raise self._error
        except Exception as error:
            if not self._has_ended:  # a client that still writes reads it first
                yield self._outgoing.told(error_text(error))
            raise

    def _read(self) -> None:
        try:
            for batch in self._incoming:
                self._obey(batch)
        except BaseException as error:
            self._error = error
        self._has_ended = True
        self._wake()

    @abstractmethod
    def _obey(self, batch: pa.RecordBatch) -> None:
        """Take what the client has sent."""

    @abstractmethod
    def _taken(self) -> Any:
        """The next batches to answer; empty if nothing comes in time, and `None` when nothing comes any more."""

    @abstractmethod
    def _answer(self, some: Any) -> Iterator[bytes]:
        """The answer to the batches taken."""

    @abstractmethod
    def _wake(self) -> None:
        """Let `_taken` return: the client has ended the stream."""

    def _may_end(self, _: Any) -> bool:
        """Whether nothing more comes by itself after these, so that the client may end the stream."""
        return True


class Matching(Exchange):
    """Messages, and the wanted answer to each: its keys, how many they are, or whether there are any."""

    def __init__(
        self,
        call: Call,
        incoming: Incoming,
        wanted: Wanted,
        *,
        unique: bool = False,  # Give, or count, each key of a message once, ascending
        plain: bool = False,  # Answers have no ids
        coalesce: bool = False,  # Answers to several batches may come as one, in the same order
        # The messages are of several callers: one that is a mistake has null for keys, in a batch whose metadata is the
        # error; the others have their answers, and the stream goes on.
        apart: bool = False,
        # The channel of the messages. Those that are not answered in time have nulls for keys, in a batch whose
        # metadata is the error; the stream goes on.
        channel: str | None = None,
        columns: list[Any] | None = None,  # Of data, which are wanted with the keys
        only: str | None = None,
    ) -> None:
        super().__init__(call, incoming)
        self._wanted = _ONCE[wanted] if unique else wanted
        self._plain, self._coalesce, self._apart, self._channel = plain, coalesce, apart, channel
        self._columns = None if columns is None else some_columns(columns, call.index._engine.schema())
        method, given = _ASK[self._wanted]
        self._method, self._given = method, {**given, **({} if only is None else {"only": only})}
        self._came: SimpleQueue[Batch | None] = SimpleQueue()  # `None`: nothing more comes
        self._next: Batch | None = None  # it has come, and is not among those that were taken last
        self._row, self._may_note = 0, False

    def __iter__(self) -> Iterator[bytes]:
        given = self._incoming.schema
        check_schema(given)
        has_tags = TAGS in given.names and not self._call.has_every_column
        self._may_note = not has_tags and self._given.get("score") is None
        place = -1 if self._plain else given.get_field_index(ID)
        ids = [(ID, given.types[place])] if place >= 0 else []
        self._answers = self._field()
        return self._answered(pa.schema([*ids, self._answers]))

    def _field(self) -> pa.Field:
        """The column of answers."""
        return answer_field(self._wanted, self._service.key_type, self._columns)

    def _obey(self, batch: pa.RecordBatch) -> None:
        plane = self._service.plane
        came = batch_of(batch, self._row, plain=self._plain, plane=plane, arrived=time.perf_counter())
        count = len(came.rows)
        self._row += count
        self._call.keep_to_rate(count)
        self._call.require()
        self._call.memory.take(came.nbytes, count, waits=True)
        self._service.metrics.came(count)
        self._came.put(came)

    def _wake(self) -> None:
        self._came.put(None)

    def _taken(self) -> list[Batch] | None:
        """All that has come, up to `max_batch_rows` rows, but at least one batch."""
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
            self._wake()  # it is looked at once more
        return taken or None

    def _answer(self, some: list[Batch]) -> Iterator[bytes]:
        memory, metrics, chunks = self._call.memory, self._service.metrics, [each.rows for each in some]
        rows, nbytes = sum(map(len, chunks)), sum(each.nbytes for each in some)
        memory.give_back(queued=rows)
        if rows < _FEW_ROWS * len(chunks):
            chunks = [joined(chunks)]
        waited, queries = 0.0 if self._channel is None else time.perf_counter() - some[0].arrived, Queries(chunks)
        note = b""
        if self._may_note and (text := self._call.index._engine.note_on(queries)):
            note = self._call.note(text)
        self._may_note = False
        try:
            answers = self._ask(queries, waited)
        except (InvalidTypeError, InvalidValueError):
            if not self._apart:
                raise
            memory.give_back(nbytes)
            first, ids = 0, _ids(some)
            for answers, told in self._each(joined(chunks), waited):
                yield from self._batch(None if ids is None else ids.slice(first, len(answers)), answers, told)
                first += len(answers)
            memory.give_back(in_flight=rows)
            return
        except (DeadlineMissed, Overloaded) as error:
            if self._channel is None:
                raise
            memory.give_back(nbytes, in_flight=rows)
            for each in some:
                metrics.errors.labels(name_of(error)).inc()
                nulls = pa.nulls(len(each.rows), self._schema.types[-1])
                yield from self._batch(each.ids, nulls, error_text(error))
            return
        memory.give_back(nbytes)
        if self._coalesce and len(some) > 1:
            yield from self._batch(_ids(some), answers, note)
        else:
            first = 0
            for each in some:
                yield from self._batch(each.ids, answers.slice(first, len(each.rows)), note)
                first += len(each.rows)
        memory.give_back(in_flight=rows)
        metrics.answered(rows, 0 if pa.types.is_primitive(answers.type) else len(answers.values))
        now = time.perf_counter()
        for each in some if len(some) <= _MOST_OBSERVED else (some[0], some[-1]):
            metrics.latency.observe(now - each.arrived)

    def _each(self, rows: TagLists, waited: float) -> Iterator[tuple[pa.Array, bytes]]:
        """Answers to messages, some of them mistakes: by halves, as most are none."""
        try:
            yield self._ask(Queries([rows]), waited), b""
        except (InvalidTypeError, InvalidValueError, DeadlineMissed, Overloaded) as error:
            if (count := len(rows)) > 1 and isinstance(error, InvalidTypeError | InvalidValueError):
                for first, last in pairwise((0, count // 2, count)):
                    yield from self._each(part_of(rows, first, last), waited)
            else:
                self._service.metrics.errors.labels(name_of(error)).inc()
                yield pa.nulls(count, self._schema.types[-1]), error_text(error)

    def _ask(self, queries: Queries, waited: float) -> pa.Array:
        timed = {} if self._channel is None else {"channel": self._channel, "waited": waited}
        ask = partial(getattr(self._call.index, self._method), queries, **self._given, **timed)
        return ask() if self._columns is None else ask(columns=[*self._columns]).cast(self._answers.type)

    def _batch(self, ids: pa.Array | None, answers: pa.Array, metadata: bytes = b"") -> Iterator[bytes]:
        columns = [answers] if ids is None else [ids, answers]
        return self._outgoing.batch(pa.RecordBatch.from_arrays(columns, schema=self._schema), metadata)


def _ids(some: list[Batch]) -> pa.Array | None:
    return None if some[0].ids is None else pa.concat_arrays([each.ids for each in some])


class Counting(Matching):
    """Messages, and how many keys each has, by the values of a column of data if one is given."""

    def __init__(
        self,
        call: Call,
        incoming: Incoming,
        *,
        unique: bool = False,
        plain: bool = False,
        coalesce: bool = False,
        channel: str | None = None,
        only: str | None = None,
        count_by: str | None = None,
    ) -> None:
        super().__init__(
            call, incoming, Wanted.counts, unique=unique, plain=plain, coalesce=coalesce, channel=channel, only=only
        )
        self._given["count_by"] = count_by

    def _field(self) -> pa.Field:
        column = self._given["count_by"]
        if column is None:
            return Matching._field(self)
        ((_, kind),) = some_columns([column], self._call.index._engine.schema(), "count_by").items()
        return pa.field("counts", count_type(kind))


class MatchingBest(Matching):
    """Messages, and the best keys of each."""

    def __init__(
        self,
        call: Call,
        incoming: Incoming,
        *,
        limit: int | None = None,
        order_by: str | None = None,
        score: str | None = None,
        plain: bool = False,
        coalesce: bool = False,
        channel: str | None = None,
        columns: list[Any] | None = None,
        only: str | None = None,
    ) -> None:
        asked: dict[str, Any] = {"channel": channel, "columns": columns, "only": only}
        super().__init__(call, incoming, Wanted.keys, plain=plain, coalesce=coalesce, **asked)
        self._method = "match_best"
        self._given |= {"limit": limit, "order_by": order_by, "score": score}


# -- notifications and publications ------------------------------------------------------------------------------------

# Of notifications that go together
_MOST_BYTES = 4 << 20


class Notifying(Exchange):
    """Notifications of a session, and what its subscriber acknowledges and follows."""

    def __init__(
        self,
        call: Call,
        incoming: Incoming,
        *,
        session: str = "",
        keys: list[Any] | None = None,
        every_key: bool = False,
        guarantee: str = "at_most_once",
        when_full: str | None = None,
        linger: int | float | None = None,
    ) -> None:
        super().__init__(call, incoming)
        call.keep_to_rate(len(keys or ()))
        self._connection = self._service.subscribers.sessions.connect(
            session,
            call.user.name,
            keys=keys,
            every_key=every_key,
            guarantee=cast("Guarantee", guarantee),
            when_full=cast("WhenFull | None", when_full),
            linger=linger,
        )

    def __iter__(self) -> Iterator[bytes]:
        self._call.check = self._check
        with self._connection:
            yield from self._answered(schema_of(self._service.key_type))

    def _check(self) -> None:
        """See that the subscriber may still get notifications."""
        self._call.require()
        if not self._connection.is_present:
            raise SessionError("this connection has ended, or another one has taken its session over")

    def _taken(self) -> Any:
        server = self._service.config.server
        most_bytes = min(server.max_message_bytes, _MOST_BYTES)
        try:
            taken = self._connection.take(server.max_batch_rows, most_bytes=most_bytes, timeout=LOOK_S)
            return () if taken is None else taken
        except SessionError:
            if self._has_ended:
                return None
            raise

    def _answer(self, some: pa.RecordBatch) -> Iterator[bytes]:
        return self._outgoing.batch(some)

    def _may_end(self, some: Any) -> bool:
        return self._service.subscribers.is_quiet and not len(some)

    def _wake(self) -> None:
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
                changes[name](given.cast(KEY_TYPES[self._service.key_type]))


def _publish(call: Call, incoming: Incoming, *, channel: str | None = None) -> Generator[bytes]:
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
    yield call.result(counts)


#: A stream: `stream(call, incoming, **options)` gives the answers, as `Call.outgoing` or `Call.result` makes them
Stream = Callable[..., Iterable[bytes]]
#: By the name in a descriptor: the role that is needed, and the stream, of `DoExchange` and of `DoPut`
EXCHANGES: dict[str, tuple[Role, Stream]] = {
    "match": ("read", partial(Matching, wanted=Wanted.keys)),
    "match_unique": ("read", partial(Matching, wanted=Wanted.keys, unique=True)),
    "match_counts": ("read", Counting),
    "match_exists": ("read", partial(Matching, wanted=Wanted.exists, unique=False, columns=None)),
    "match_best": ("read", MatchingBest),
    "match_highlights": ("read", partial(Matching, wanted=Wanted.highlights, unique=False, columns=None)),
    "notify": ("read", Notifying),
}
PUTS: dict[str, tuple[Role, Stream]] = {
    "add": ("write", _add),
    "remove": ("write", _remove),
    "put": ("write", _put),
    "delete": ("write", _delete),
    "move": ("write", _move),
    "publish": ("write", _publish),
}
#: What users with a filter may ask for: calls that see, and change, only their keys, and `consolidate`
LIMITED = frozenset((
    "ready", "info", "stats", "contains", "explain", "get", "has_key", "consolidate", "match", "match_unique",
    "match_counts", "match_exists", "match_best", "match_highlights", "put", "delete", "get_schema", "get_flight_info",
    "list_flights", "list_actions",
))  # fmt: skip
