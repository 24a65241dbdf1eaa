"""An index that a service has, used as `TagMatch` is, and a subscriber of it: an iterator of notifications."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, NoReturn, Self, TypeAlias

import pyarrow as pa

from tagmatch.broker.config import Guarantee, WhenFull
from tagmatch.broker.connection import (
    TAGS_ONLY,
    WITH_AREA,
    WITH_MORE,
    Connection,
    MessageStream,
    Pipelined,
    match_stream,
    split,
)
from tagmatch.broker.failover import Services
from tagmatch.broker.hub import Published, table_of
from tagmatch.broker.wire import MAX_JSON, answer_field, apart, area_row, of_one, record_of_json, write_json
from tagmatch.files.columns import AREA_COLUMN
from tagmatch.index import Index, K
from tagmatch.model import clock
from tagmatch.model.arrays import Strings, U64Array
from tagmatch.model.arrow import as_table, from_strings, from_tag_lists
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.clock import TIME, expiry_times
from tagmatch.model.columns import KEY_CHECKS, shown, stored_tag_list, tag_list, tag_lists
from tagmatch.model.data_types import count_type, some_columns, type_named
from tagmatch.model.errors import (
    ClosedError,
    InvalidTypeError,
    InvalidValueError,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.input.places import area_column, area_from, checked_locations, coordinates, is_area, packed_place
from tagmatch.model.input.putting import reject_nothing
from tagmatch.model.input.subscriptions import COLUMNS, columns_of, texts_of
from tagmatch.model.input.values import packed
from tagmatch.model.options import KeyType, PipelineOptions, Wanted
from tagmatch.model.records import Record
from tagmatch.model.tables import NEVER
from tagmatch.model.where.areas import AN_AREA, NOWHERE, Place
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.language import text_of_condition
from tagmatch.model.where.types import for_json
from tagmatch.reasons import Reasons

_MOST_IN_FLIGHT = PipelineOptions().max_queries
# Rows of a batch of many queries: several are on their way at once
_ROWS = 16_384
_AGAIN_S = 0.1
# Streams for single messages with an expression of `only`; the oldest one ends for another one
_MOST_ONLY = 16
# Whether answers are sets, the channel, how many columns there are, and the expression of `only`
_Kind: TypeAlias = tuple[bool, str | None, int, str | None]

#: The command for each wanted answer
_COMMANDS: Mapping[Wanted, Mapping[str, Any]] = {
    Wanted.keys: {"command": "match"},
    Wanted.unique: {"command": "match_unique"},
    Wanted.counts: {"command": "match_counts"},
    Wanted.unique_counts: {"command": "match_counts", "unique": True},
    Wanted.exists: {"command": "match_exists"},
    Wanted.highlights: {"command": "match_highlights"},
}

#: What a subscriber sends, in columns: the offset up to which it has everything, keys to follow, keys no longer
_COLUMNS = ("acknowledge", "follow", "unfollow")


def listed_keys(keys: Iterable[K]) -> list[K]:
    """Keys as a list; InvalidTypeError for one string, whose characters would be taken for keys."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InvalidTypeError(f"keys must be an iterable of keys, not {shown(keys)}; give a list, also of one key")
    return list(keys)


class Notification(NamedTuple, Generic[K]):
    """What a message was, for one subscriber.

    Attributes
    ----------
    offset : int
        Its number in the session, from 1 on. A number that is missing is of a notification that was dropped, or has
        expired.
    redelivered : bool
        It was handed over before, to an earlier connection.
    id : bytes, optional
        What its publisher calls the message.
    payload : bytes, optional
    keys : list of int or str
        Those that the session follows and that the message matched.
    expires : datetime, optional
    """

    offset: int
    redelivered: bool
    id: bytes | None
    payload: bytes | None
    keys: list[K]
    expires: datetime | None


class Subscriber(Generic[K]):
    """A connection to a session; `RemoteTagMatch.subscriber` makes it.

    Iteration waits for notifications and ends when the service does, or when another thread closes this. It continues
    at the next notification: all iterators of a subscriber, and `batches`, hand over each one once between them. One
    thread may take notifications while others acknowledge and follow.

    Raises
    ------
    SlowSubscriberError, SessionError, AccessError, UnavailableError
        By iteration: why the service has ended it. Connect again to go on; unacknowledged notifications come again.
    """

    def __init__(self, connection: Connection, key_type: KeyType, command: dict[str, Any]) -> None:
        kind = pa.large_string() if key_type == "string" else pa.uint64()
        self._schema = pa.schema(zip(_COLUMNS, (pa.int64(), kind, kind), strict=True))
        self._key_type = key_type
        self._stream = connection.open_stream(self._schema, {"command": "notify", **command})
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._last, self._closed, self._has_ended = 0, False, False
        # The last batch, the number of its rows that were handed over, and its rows one by one, once one is asked for
        self._batch: pa.RecordBatch | None = None
        self._place = 0
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Notifications in batches, as columns `offset`, `redelivered`, `id`, `payload`, `keys` and `expires`."""
        while (batch := self._next_batch()) is not None:
            yield batch

    def __iter__(self) -> Iterator[Notification[K]]:
        while (row := self._next_row()) is not None:
            yield row

    def _next_batch(self) -> pa.RecordBatch | None:
        """The rest of the last batch, else the next batch; `None` at the end."""
        with self._reading:
            if (came := self._came()) is None:
                return None
            rest = came.slice(self._place)
            self._place, self._last = len(came), rest["offset"][-1].as_py()
            return rest

    def _next_row(self) -> Notification[K] | None:
        with self._reading:
            if (came := self._came()) is None:
                return None
            if self._rows is None:
                self._rows = zip(*(column.to_pylist() for column in came.columns), strict=True)
            row = Notification(*next(self._rows))
            self._place, self._last = self._place + 1, row.offset
            return row

    def _came(self) -> pa.RecordBatch | None:
        """The last batch, if some of it was not handed over, else the next one; `None` at the end."""
        while self._batch is None or self._place == len(self._batch):
            if self._closed or self._has_ended:
                return None
            self._batch, self._place, self._rows = self._stream.read(), 0, None
            self._has_ended = self._batch is None
        return self._batch

    def acknowledge(self, offset: int | None = None) -> None:
        """Say that all notifications up to this offset, default: the last one that was handed over, are done with.

        Iteration hands over single notifications, `batches` batches. Those that have come from the service, but were
        not handed over, are not acknowledged.

        The service finds out whether that can be, so that errors come by iteration.
        """
        self._send(0, [self._last if offset is None else offset])

    def follow(self, keys: Iterable[K]) -> None:
        """Follow more keys, soon; errors as for `acknowledge`."""
        self._send(1, self._checked(keys))

    def unfollow(self, keys: Iterable[K]) -> None:
        """Follow some keys no longer, soon; errors as for `acknowledge`."""
        self._send(2, self._checked(keys))

    def _checked(self, keys: Iterable[K]) -> list[K]:
        listed = listed_keys(keys)
        KEY_CHECKS[self._key_type].many(listed, "keys")
        return listed

    def _send(self, place: int, values: list[Any]) -> None:
        columns = [
            pa.array(values if number == place else [None] * len(values), field.type)
            for number, field in enumerate(self._schema)
        ]
        with self._lock:
            if self._closed:
                raise ClosedError("this subscriber is closed; connect again")
            self._stream.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """End the connection; the session goes on as long as it lingers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # The service ends this stream then, and with it the one that another thread reads: it cannot be closed now
        with contextlib.suppress(TagMatchError):
            self._stream.done_writing()
        with self._reading:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteTagMatch(Index[K]):
    """An index that a service has, with the methods of `TagMatch`; `tagmatch.connect` makes one.

    The methods take the same arguments as those of `TagMatch` and raise the same errors. They also raise `AccessError`
    if the token has not the right, and `UnavailableError` if the service is gone: then the next call connects anew.

    - Single messages (`match`, `submit`, `amatch`) share a stream. `match_many` sends batches over another.
    - Deadlines of channels count from when the service has a message, or a batch. So there is no `waited`.
    - `consolidate` makes the changes of all clients take effect, and counts them all.
    - `reload` and `check` need the role `admin`.
    - `snapshot` and `save` are for programs that have the index themselves, and raise a `TagMatchError`.
    - `close` waits for the answers to all submitted messages.
    """

    _engine: RemoteEngine

    def __init__(self, connection: Connection | Services, wait: float = 0.0) -> None:
        self._engine = RemoteEngine(connection, wait)

    def __bool__(self) -> bool:
        """True, also for an empty index: to ask must not need the service."""
        return True

    def publish(
        self, messages: Any, payloads: Iterable[bytes | None] | None = None, *, channel: str | None = None
    ) -> Published:
        """Let the service notify the sessions that follow keys which messages match.

        Parameters
        ----------
        messages : table, or iterable of iterables of str
            A table as `match_many` takes it, which may have `id` (strings or binary), `payload` (the same) and
            `expires` (timestamps, or durations) as well. Or tags of each message alone.
        payloads : iterable of bytes, optional
            Only with tags alone.
        channel : str, optional
            The channel of these messages: its deadline holds from when the service has them until they are matched.

        Returns
        -------
        Published
            How many messages, and how many of them matched a key. All notifications are in their outboxes then.

        Raises
        ------
        Overloaded
            The service drops what it has no room for; it says so by its options. Or the channel's deadline cannot be
            kept.
        DeadlineMissed
            The messages were late, or could not be in time any more; none of them is matched.
        """
        self._engine.connection.one("sessions")
        table = table_of(messages, payloads)
        found = self._engine.put("publish", table, {} if channel is None else {"channel": channel})
        return Published(int(found["messages"]), int(found["matched"]))

    def subscriber(
        self,
        session: str,
        keys: Iterable[K] | None = None,
        *,
        every_key: bool = False,
        guarantee: Guarantee = "at_most_once",
        when_full: WhenFull | None = None,
        linger: float | None = None,
    ) -> Subscriber[K]:
        """Connect to a session, or begin it, and take its notifications.

        Parameters
        ----------
        session : str
            Its name; it belongs to the user who began it.
        keys : iterable of keys, optional
            What it follows from now on. Default: what it followed before, at first nothing.
        every_key : bool
            Follow every key.
        guarantee : {"at_most_once", "at_least_once"}
            Whether notifications that were delivered and not acknowledged are delivered again to the next connection.
        when_full : {"disconnect", "drop_oldest", "drop_newest"}, optional
            What happens where its outbox has no room. Default: what the service says.
        linger : float, optional
            Seconds for which the session outlives its connection. Default: what the service says.

        Returns
        -------
        Subscriber
            Errors of the service, such as `SessionError`, come by its iteration.

        Raises
        ------
        InvalidTypeError
            `keys` is a single key, not an iterable of keys.
        InvalidValueError
            `keys` are more than can be sent at once; `follow` takes the others.
        """
        self._engine.check_open()
        command = {
            "session": session,
            "keys": None if keys is None else listed_keys(keys),
            "every_key": every_key,
            "guarantee": guarantee,
            "when_full": when_full,
            "linger": linger,
        }
        if (size := len(write_json(command))) > MAX_JSON:
            raise InvalidValueError(
                f"these keys are too many to connect with: {size:,} bytes as JSON, and {MAX_JSON:,} are the most; "
                "connect with fewer keys, and then follow the others"
            )
        return Subscriber(self._engine.connection.one("sessions"), self._engine.key_type, command)

    def sessions(self) -> list[dict[str, Any]]:
        """Your sessions of notifications; with the role `admin`, those of all users.

        Returns
        -------
        list of dict
            Of each its name (`session`), its `user`, whether it is `connected`, its `guarantee`, how many
            `keys` it follows (`None`: every key), how many notifications are `waiting`, of how many `bytes`, and in how
            many seconds it ends (`ends_in`; `None`: it is connected).
        """
        self._engine.connection.one("sessions")
        found: list[dict[str, Any]] = self._engine.act("sessions")["sessions"]
        return found

    def end_session(self, session: str) -> bool:
        """End a session of yours, or with the role `admin` of anyone, with all that waits in it.

        Returns
        -------
        bool
            Whether there was one.
        """
        self._engine.connection.one("sessions")
        return bool(self._engine.act("end_session", {"session": session})["ended"])


class RemoteEngine:
    """Lets a service do the work of an index; `Index` says what methods do."""

    def __init__(self, connection: Connection | Services, wait: float) -> None:
        self.connection, self._ended, self._only = connection, threading.Event(), dict[str, Any]()
        until = time.monotonic() + wait
        while True:
            try:
                info = connection.act("info")
                break
            except UnavailableError:
                if time.monotonic() >= until:
                    raise
            time.sleep(_AGAIN_S)
        self.key_type: KeyType = info["key_type"]
        self._plane = bool(info["plane"])
        self._most_rows, self._most_bytes = int(info["max_batch_rows"]), int(info["max_message_bytes"])
        self._lock, self._process = threading.Lock(), os.getpid()
        # Streams of single messages by form (lists or sets), channel and number of columns
        self._singles: dict[_Kind, Pipelined] = {}

    def only(self, expression: object) -> Self:
        if not isinstance(expression, str):
            raise InvalidTypeError(f"only must be a string, not {shown(expression)}")
        own = copy(self)
        own._only = {"only": expression}
        return own

    def stage_one(
        self,
        tags: object,
        key: object,
        *,
        where: object = None,
        area: object = None,
        expires: object = None,
        removed: bool = False,
        must_exist: bool = False,
    ) -> int:
        columns = self._columns_of_one(tags, key, where=where, area=area, expires=expires)
        try:
            return self.stage(columns, removed=removed, must_exist=must_exist)
        except TagMatchError as error:
            raise of_one(error) from None

    def _columns_of_one(
        self, tags: object, key: object, *, where: object, area: object, expires: object
    ) -> dict[str, Any]:
        plain, conditions = apart(stored_tag_list(tags))
        texts = list(map(str, conditions))
        if where is not None:
            texts.append(text_of_condition(where))
        value = KEY_CHECKS[self.key_type].one(key, "key")
        if area is not None and not is_area(area):
            raise InvalidTypeError(f"area must be {AN_AREA}, not {shown(area)}")
        joined = texts[0] if len(texts) == 1 else " and ".join(f"({each})" for each in texts)
        columns = {"tags": [plain], "key": [value], "where": joined if texts else None, "area": area}
        return columns | {"expires": expires}

    def put_one(self, key: object, tags: object, *, where: object, area: object, expires: object, data: object) -> int:
        reject_nothing(tags, where, area)
        columns = self._columns_of_one([] if tags is None else tags, key, where=where, area=area, expires=expires)
        table = change_table(columns, self.key_type)
        if data is not None and not isinstance(data, Mapping):
            raise InvalidTypeError(f"data must map names of columns to values, not {shown(data)}")
        for name, value in (data or {}).items():
            try:
                table = table.append_column(name, pa.array([value]))
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise InvalidTypeError(f"data: column {name!r} takes no {shown(value)}: {error}") from None
        try:
            return int(self.put("put", table)["staged"])
        except TagMatchError as error:
            raise of_one(error) from None

    def put_table(self, table: Any, *, match_all: bool) -> int:
        given = as_table(table)
        names = [] if given is None else [name for name in given.schema.names if name not in COLUMNS]
        # A stream gives its rows once
        columns = columns_of(table if given is None else given, match_all=match_all, data=names)
        sent = change_table(columns, self.key_type)
        for name in names:
            sent = sent.append_column(name, columns[name])
        return int(self.put("put", sent, {"match_all": match_all})["staged"])

    def delete(self, keys: Any, *, must_exist: bool, is_single: bool) -> int:
        checks = KEY_CHECKS[self.key_type]
        own = checks.many([checks.one(keys, "key")], "keys") if is_single else checks.many(keys, "keys")
        table = pa.table({"key": _key_column(own)})
        return int(self.put("delete", table, {"missing": "error"} if must_exist else None)["staged"])

    def get(self, key: object) -> Record[Any] | None:
        value = KEY_CHECKS[self.key_type].one(key, "key")
        found = self.act("get", {"key": value})["record"]
        return None if found is None else record_of_json(found)

    def has_key(self, key: object) -> bool:
        return bool(self.act("has_key", {"key": KEY_CHECKS[self.key_type].one(key, "key")})["has_key"])

    def every_key(self) -> Iterator[Any]:
        return (record.key for record in self.every_record())

    def every_record(self) -> Iterator[Record[Any]]:
        self.check_open()
        _, batches = self.connection.get("records")
        for batch in batches:
            yield from (record_of_json(json.loads(text)) for text in batch.column("record").to_pylist())

    def stage(self, columns: Mapping[str, Any], *, removed: bool = False, must_exist: bool = False) -> int:
        table = change_table(columns, self.key_type)
        options = {"missing": "error"} if must_exist else None
        return int(self.put("remove" if removed else "add", table, options)["staged"])

    def consolidate(self, *, full: bool) -> ChangeCounts:
        return ChangeCounts(**self.act("consolidate", {"full": bool(full)})["changes"])

    def reload(self) -> bool:
        return bool(self.act("reload")["reloaded"])

    def match(self, tags: Iterable[str], attributes: object, place: Place, unique: bool) -> Any:
        return self.connection.asked(lambda: self.submit(tags, attributes, place, unique=unique).result())

    def match_data(
        self, tags: Iterable[str], attributes: object, place: Place, columns: Sequence[str]
    ) -> list[dict[str, Any]]:
        return self._match_data(tags, attributes, place, columns, None)

    def _match_data(
        self, tags: Iterable[str], attributes: object, place: Place, columns: Sequence[str], channel: str | None
    ) -> list[dict[str, Any]]:
        asked = self.one_query(tags, attributes, place)
        found: list[dict[str, Any]] = self.match_many(asked, channel=channel, columns=columns)[0].as_py()
        return found

    def match_many(
        self,
        queries: Any,
        *,
        wanted: Wanted = Wanted.keys,
        channel: str | None = None,
        waited: float = 0.0,
        columns: Sequence[str] | None = None,
    ) -> pa.Array:
        names = None if columns is None else [*columns]
        return self._stream_of(queries, wanted, channel, waited, {"columns": names})

    def best(
        self,
        queries: Any,
        limit: object,
        order_by: object,
        score: object,
        *,
        channel: str | None,
        waited: float,
        columns: Sequence[str] | None,
    ) -> pa.ListArray:
        names = None if columns is None else [*columns]
        by = {"command": "match_best", "limit": limit, "order_by": order_by, "score": score, "columns": names}
        return self._stream_of(queries, Wanted.keys, channel, waited, by)

    def counts_by(
        self, queries: Any, column: object, *, unique: bool, channel: str | None, waited: float
    ) -> pa.ListArray:
        wanted = Wanted.unique_counts if unique else Wanted.counts
        return self._stream_of(queries, wanted, channel, waited, {"count_by": column})

    def _stream_of(
        self, queries: Any, wanted: Wanted, channel: str | None, waited: float, more: Mapping[str, Any]
    ) -> pa.Array:
        """The answers to many queries; `more` is what the command says besides, except `None`."""
        if waited:
            raise InvalidValueError("over a connection, deadlines count from when the service has queries: no waited")
        self.check_open()
        more = {"channel": channel, **more}
        command = {**_COMMANDS[wanted], **{name: own for name, own in more.items() if own is not None}}
        table = table_of(queries, None, "queries")
        batches = split(table.to_batches(min(self._most_rows, _ROWS)), self._most_bytes)
        names, by, data = command.get("columns"), command.get("count_by"), None
        if (names is not None or by is not None) and not len(table):  # else the answers have their types
            known = {name: type_named(text) for name, text in self.act("info")["data"].items()}
            data = some_columns([by], known, "count_by") if names is None else some_columns(names, known)
        if by is not None and data is not None:
            return pa.array([], count_type(data[by]))
        kind = answer_field(wanted, self.key_type, data).type
        open_stream, rows = partial(self._matching, table.schema, command), list(batches)
        return self.connection.asked(lambda: match_stream(open_stream, rows, kind))

    def number(self, tags: Iterable[str], attributes: object, place: Place, *, wanted: Wanted) -> int:
        return int(self.match_many(self.one_query(tags, attributes, place), wanted=wanted)[0].as_py())

    def one_query(self, tags: Iterable[str], attributes: object, place: Place) -> pa.RecordBatch:
        """One message as a batch."""
        row, others = tag_list(tags), self._others(attributes, place)
        schema = _columns_for(others)
        return pa.record_batch(
            [pa.array([each], kind) for each, kind in zip([row, *others], schema.types, strict=True)], schema=schema
        )

    def submit(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        *,
        unique: bool,
        timeout: float | None = None,
        channel: str | None = None,
    ) -> Future[Any]:
        row, others = tag_list(tags), self._others(attributes, place)
        self.check_open()
        while True:
            singles = self._singles_of((unique, channel, len(others), self._only.get("only")), _columns_for(others))
            try:
                return singles.submit(row, others, timeout)
            except ClosedError:  # another thread has let them go just now, or this connection is closed
                self.check_open()

    def _singles_of(self, kind: _Kind, schema: pa.Schema) -> Pipelined:
        """What asks single messages of a kind."""
        if (known := self._singles.get(kind)) is not None:
            return known
        unique, channel, _, only = kind
        with self._lock:
            self.check_open()
            limited = [each for each in self._singles if each[-1] is not None]
            if only is not None and len(limited) >= _MOST_ONLY:
                gone = self._singles.pop(limited[0])
                threading.Thread(target=gone.close, kwargs={"drain": True}, name="tagmatch-close", daemon=True).start()
            command = dict(_COMMANDS[Wanted.unique if unique else Wanted.keys])
            command |= {"apart": True} | ({} if channel is None else {"channel": channel})
            open_stream = partial(self._matching, command=command)
            singles = Pipelined(open_stream, schema, unique=unique, most_rows=self._most_rows, most=_MOST_IN_FLIGHT)
            return self._singles.setdefault(kind, singles)

    def _others(self, attributes: object, place: Place) -> list[Any]:
        """The columns of a message besides its tags, in order; none if it has only tags."""
        others: list[Any] = []
        if attributes is not None or place is not NOWHERE:
            packed_place(place.location, place.within, plane=self._plane)
            others.append(None if attributes is None else packed(attributes))
            others.append(checked_locations(place.location, plane=self._plane))
            if place.within is not None:
                within: Any = place.within
                others.append(area_row(within))
        return others

    def awaited(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        *,
        unique: bool,
        channel: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Awaitable[Any]:
        if columns is not None:
            return asyncio.to_thread(self._match_data, tags, attributes, place, columns, channel)
        future = self.submit(tags, attributes, place, unique=unique, timeout=0.0, channel=channel)
        return asyncio.wrap_future(future)

    def explain(
        self, tags: Iterable[str], attributes: object, place: Place
    ) -> Iterator[tuple[frozenset[str], tuple[Any, ...]]]:
        found: list[dict[str, Any]] = self.act("explain", self._message_body(tags, attributes, place))["sets"]
        return (_stored(each["tags"], itertools.starmap(Where, each["where"]), each["keys"]) for each in found)

    def reasons(self, tags: Iterable[str], attributes: Any, place: Place, key: object) -> Reasons:
        KEY_CHECKS[self.key_type].one(key, "key")
        return Reasons.of_dict(self.act("explain", self._message_body(tags, attributes, place) | {"key": key}))

    def _message_body(self, tags: Iterable[str], attributes: Any, place: Place) -> dict[str, Any]:
        """A message as the body of an action."""
        if attributes is not None:
            packed(attributes)
        within: Any = place.within
        packed_place(place.location, within, plane=self._plane)
        return self._only | {
            "tags": tag_list(tags),
            "attributes": None if attributes is None else {name: for_json(each) for name, each in attributes.items()},
            "location": checked_locations(place.location, plane=self._plane) or None,
            "within": area_row(within),
        }

    def move(self, clients: Any, lon: Any, lat: Any) -> None:
        keys = KEY_CHECKS[self.key_type].many(clients, "clients")
        lons, lats = coordinates(lon, lat, len(keys), plane=self._plane)
        self.connection.one("positions of clients")
        self.put("move", pa.table({"client": _key_column(keys), "lon": lons, "lat": lats}))

    def save_positions(self) -> None:
        self.connection.one("positions of clients")
        self.act("save_positions")

    def count(self) -> int:
        return int(self.stats()["sets"])

    def every_set(self) -> Iterator[tuple[frozenset[str], tuple[Any, ...]]]:
        self.check_open()
        _, batches = self.connection.get("sets")
        for batch in batches:
            columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
            yield from map(_stored, columns[0], (map(Where, each) for each in columns[1]), columns[2])

    def contains(self, tags: object) -> bool:
        plain, where = apart(tag_list(tags))
        return bool(self.act("contains", {"tags": plain, "where": [*map(str, where)]})["contains"])

    def to_arrow(self) -> pa.Table:
        self.check_open()

        def rows() -> pa.Table:
            schema, batches = self.connection.get("rows")
            return pa.Table.from_batches(batches, schema)

        return self.connection.asked(rows)

    @property
    def snapshot(self) -> NoReturn:
        raise TagMatchError("a connection cannot give the tables of an index; `to_arrow` gives its rows")

    def stats(self) -> dict[str, Any]:
        return self.act("stats")

    def check(self) -> None:
        self.act("check")

    def save(self, path: object, keep_snapshots: int | None) -> NoReturn:  # noqa: ARG002
        raise TagMatchError("a service saves its own index, at `consolidate`; to copy it there, use tagmatch backup")

    def close(self, *, drain: bool = True) -> None:
        if os.getpid() != self._process:  # it is that of the parent
            return
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        if any(each.is_at_work() for each in self._singles.values()):
            threading.Thread(target=self._end, args=[drain], name="tagmatch-close", daemon=True).start()
        else:
            self._end(drain)

    def _end(self, drain: bool) -> None:
        for each in self._singles.values():
            each.close(drain=drain)
        self.connection.close()

    def check_open(self) -> None:
        if self._ended.is_set():
            raise ClosedError("this connection is closed; connect again")
        if os.getpid() != self._process:  # whose threads, and those of gRPC, are not here
            raise ClosedError("this connection was made before fork(); connect in each child process, too")

    def leave(self, *, failed: bool) -> None:
        self.close(drain=not failed)

    def described(self) -> str:
        return f"<RemoteTagMatch at {self.connection.url!r}{', closed' if self._ended.is_set() else ''}>"

    def act(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for an action."""
        self.check_open()
        return self.connection.act(name, body)

    def put(self, command: str, table: pa.Table, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a table."""
        self.check_open()
        if table.nbytes > self._most_bytes:
            raise InvalidValueError(
                f"the service takes at most {self._most_bytes:,} bytes at once, not {table.nbytes:,}; send fewer rows"
            )
        return self.connection.put({"command": command, **(options or {})}, table, self._most_rows)

    def _matching(self, schema: pa.Schema, command: Mapping[str, Any]) -> MessageStream:
        return self.connection.open_stream(schema, {**command, **self._only, "plain": True, "coalesce": True})


def _stored(tags: Iterable[str], where: Iterable[Where], keys: Iterable[Any]) -> tuple[frozenset[str], tuple[Any, ...]]:
    return frozenset(itertools.chain(tags, where)), tuple(keys)


def _columns_for(others: list[Any]) -> pa.Schema:
    """The columns of messages with tags and these."""
    (schema,) = (each for each in (TAGS_ONLY, WITH_MORE, WITH_AREA) if len(each) == 1 + len(others))
    return schema


# -- columns -----------------------------------------------------------------------------------------------------------


def change_table(columns: Mapping[str, Any], key_type: KeyType) -> pa.Table:
    """Columns of subscriptions as a table that goes over the wire; the service finds mistakes in expressions."""
    chunks, keys = tag_lists(columns["tags"], "tags", stored=True), KEY_CHECKS[key_type].many(columns["key"], "keys")
    rows = sum(map(len, chunks))
    if rows != len(keys):
        raise InvalidValueError(f"tags and keys must have the same length; there are {rows} sets, {len(keys)} keys")
    table = {
        "tags": pa.chunked_array(map(from_tag_lists, chunks), pa.large_list(pa.large_string())),
        "key": _key_column(keys),
    }
    if (where := columns.get("where")) is not None:
        table["where"] = pa.repeat(where, rows) if isinstance(where, str) else texts_of(where, rows)
    if (constraints := columns.get("constraints")) is not None:
        table["constraints"] = constraints
    if (area := columns.get("area")) is not None:
        table["area"] = _one_area(area, rows) if is_area(area) else _areas(area, rows)
    times = expiry_times(columns.get("expires"), rows, clock.now_us())
    if times is not None:
        table["expires"] = pa.array(times, pa.int64(), mask=times == NEVER).cast(TIME)
    return pa.table(table)


def _key_column(keys: U64Array | Strings) -> pa.Array:
    return from_strings(keys) if isinstance(keys, Strings) else pa.array(keys)


def _one_area(area: Any, rows: int) -> Any:
    return pa.repeat(pa.array([area_row(area_from(area, "area"))], AREA_COLUMN)[0], rows)


def _areas(area: Any, rows: int) -> Any:
    column = area_column(area, rows)
    if not isinstance(column, list):
        return column
    given = [None if each is None else area_from(each, f"area: row {row}") for row, each in enumerate(column)]
    return pa.array([*map(area_row, given)], AREA_COLUMN)
