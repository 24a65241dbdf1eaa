"""`RemoteTagMatch`: an index that a service has, used as `TagMatch` is."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

import pyarrow as pa

from tagmatch.broker.connection import Connection
from tagmatch.broker.gateways.options import Guarantee, WhenFull
from tagmatch.broker.hub import Published, table_of
from tagmatch.broker.pipelined import SCHEMA, Pipelined
from tagmatch.broker.remote_matching import match_stream
from tagmatch.broker.remote_rows import change_table, one_change, query_batches
from tagmatch.broker.subscriber import Subscriber, listed_keys
from tagmatch.broker.wire import area_row
from tagmatch.messages import message
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.columns import KEY_CHECKS, tag_list
from tagmatch.model.errors import (
    ClosedError,
    InvalidValueError,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.filters.areas import Box, Circle
from tagmatch.model.filters.locations import location_tags
from tagmatch.model.filters.where import Where
from tagmatch.model.options import KeyType, Missing, PipelineOptions
from tagmatch.notebook import Explanation, Stats
from tagmatch.removals import is_error
from tagmatch.subscriptions import columns_of
from tagmatch.subscriptions import table_of as table_of_subscriptions

K = TypeVar("K", int, str)

_MOST_IN_FLIGHT = PipelineOptions().max_queries
# Rows of a batch of many queries: several are on their way at once
_ROWS = 16_384
_AGAIN_S = 0.1


class RemoteTagMatch(Generic[K]):
    """An index that a service has, with the methods of `TagMatch`; `tagmatch.connect` makes one.

    All methods may be called from many threads. They do what those of `TagMatch` do, take the same arguments and raise
    the same errors, and beside them `AccessError` where the token has not the right, and `UnavailableError` where the
    service is gone: then the next call connects anew. Single messages (`match`, `submit`, `amatch`) share a stream.

    `snapshot` and `save` are for programs that have the index themselves, and raise a `TagMatchError`.
    """

    def __init__(self, connection: Connection, wait: float = 0.0) -> None:
        self._connection, self._closed = connection, False
        info = _first_answer(connection, wait)
        self._key_type: KeyType = info["key_type"]
        self._plane = bool(info["plane"])
        self._most_rows, self._most_bytes = int(info["max_batch_rows"]), int(info["max_message_bytes"])
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pipelined: dict[Any, Pipelined] = {unique: self._single(unique, None) for unique in (False, True)}

    def _single(self, unique: bool, channel: str | None) -> Pipelined:
        """What asks single messages of a channel; each has a stream, which opens with the first."""
        command = _matching(unique, channel)
        return Pipelined(
            lambda: self._connection.open_stream(SCHEMA, command),
            set if unique else list,
            self._most_rows,
            _MOST_IN_FLIGHT,
        )

    def _single_of(self, unique: bool, channel: str | None) -> Pipelined:
        found = self._pipelined.get(unique if channel is None else (unique, channel))
        if found is None:
            with self._lock:
                self._check_open()
                found = self._pipelined.setdefault((unique, channel), self._single(unique, channel))
        return found

    # -- changes -----------------------------------------------------------------------------------------------------

    def add_set(
        self, tags: Iterable[str], key: K, *, where: str | None = None, area: Any = None, expires: Any = None
    ) -> int:
        """Stage the addition of a key to a set, as `TagMatch.add_set`."""
        return self._stage("add", one_change(tags, key, self._key_type, where, area, expires))

    def remove_set(
        self,
        tags: Iterable[str],
        key: K,
        *,
        where: str | None = None,
        area: Any = None,
        missing: Missing = "ignore",
    ) -> int:
        """Stage the removal of a key from a set, as `TagMatch.remove_set`."""
        return self._stage("remove", one_change(tags, key, self._key_type, where, area), missing)

    def add_sets(self, tags: Any, keys: Any, *, where: Any = None, area: Any = None, expires: Any = None) -> int:
        """Stage many additions, or none, as `TagMatch.add_sets`."""
        return self._stage("add", change_table(tags, keys, self._key_type, where, area, expires))

    def remove_sets(
        self, tags: Any, keys: Any, *, where: Any = None, area: Any = None, missing: Missing = "ignore"
    ) -> int:
        """Stage many removals, or none, as `TagMatch.remove_sets`."""
        return self._stage("remove", change_table(tags, keys, self._key_type, where, area), missing)

    def add_subscriptions(self, table: Any, *, match_all: bool = False) -> int:
        """Stage the addition of the rows of a table, or none, as `TagMatch.add_subscriptions`."""
        return self._stage("add", _checked(table, match_all=match_all), match_all=match_all)

    def remove_subscriptions(self, table: Any, *, match_all: bool = False, missing: Missing = "ignore") -> int:
        """Stage the removal of the rows of a table, or none, as `TagMatch.remove_subscriptions`."""
        return self._stage("remove", _checked(table, match_all=match_all), missing, match_all=match_all)

    def consolidate(self, *, full: bool = False) -> ChangeCounts:
        """Make all changes that any client has staged take effect, as `TagMatch.consolidate`, and count them all."""
        return ChangeCounts(**self._act("consolidate", {"full": bool(full)})["changes"])

    def reload(self) -> bool:
        """Have the service take over a newer snapshot, as `TagMatch.reload`; needs the role `admin`."""
        return bool(self._act("reload")["reloaded"])

    # -- queries -----------------------------------------------------------------------------------------------------

    def match(
        self,
        tags: Iterable[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        location: tuple[float, float] | None = None,
        within: Circle | Box | None = None,
    ) -> list[K]:
        """Keys of all sets that are contained in `tags`, as `TagMatch.match`."""
        return cast("list[K]", self._submit(tags, attributes, location, within, False, None).result())

    def match_unique(
        self,
        tags: Iterable[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        location: tuple[float, float] | None = None,
        within: Circle | Box | None = None,
    ) -> set[K]:
        """Keys of all sets that are contained in `tags`, as `TagMatch.match_unique`."""
        return cast("set[K]", self._submit(tags, attributes, location, within, True, None).result())

    def match_many(self, queries: Any, *, unique: bool = False, channel: str | None = None) -> pa.ListArray:
        """Answers to many queries, as `TagMatch.match_many`; they go in batches over a stream of their own.

        The deadline of a channel holds for each batch, from when the service has it.
        """
        self._check_open()
        rows = min(self._most_rows, _ROWS)
        schema, batches = query_batches(queries, rows, self._most_bytes)
        kind = pa.list_(pa.large_string() if self._key_type == "string" else pa.uint64())
        command = _matching(bool(unique), channel)
        return match_stream(lambda: self._connection.open_stream(schema, command), list(batches), kind)

    def submit(
        self,
        tags: Iterable[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        location: tuple[float, float] | None = None,
        within: Circle | Box | None = None,
        unique: bool = False,
        block: bool = True,
        timeout: float | None = None,
        channel: str | None = None,
    ) -> Future[Any]:
        """`match` or `match_unique` as a future, as `TagMatch.submit`; many are on their way at once.

        The deadline of a channel counts from when the service has the message.
        """
        return self._submit(tags, attributes, location, within, bool(unique), timeout if block else 0.0, channel)

    async def amatch(
        self,
        tags: Iterable[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        location: tuple[float, float] | None = None,
        within: Circle | Box | None = None,
        unique: bool = False,
        channel: str | None = None,
    ) -> list[K] | set[K]:
        """`match` or `match_unique` for asyncio, as `TagMatch.amatch`."""
        future = self._submit(tags, attributes, location, within, bool(unique), 0.0, channel)
        found: list[K] | set[K] = await asyncio.wrap_future(future)
        return found

    def _submit(
        self,
        tags: Any,
        attributes: Any,
        location: Any,
        within: Any,
        unique: bool,
        timeout: float | None,
        channel: str | None = None,
    ) -> Future[Any]:
        row = tag_list(tags) if attributes is None else message(tags, attributes)
        if location is not None or within is not None:
            place = location_tags(location, within, plane=self._plane)
            if within is not None:
                return self._submit_within(row, location, within, unique, channel)
            row += place
        return self._single_of(unique, channel).submit(row, timeout)

    def _submit_within(
        self, row: list[str], location: Any, within: Circle | Box, unique: bool, channel: str | None
    ) -> Future[Any]:
        """A message for clients within an area: a stream of its own, as its columns are others."""
        columns: dict[str, Any] = {"tags": pa.array([row], pa.list_(pa.string()))}
        if location is not None:
            names = ("x", "y") if self._plane else ("lon", "lat")
            columns["location"] = pa.array([dict(zip(names, map(float, location), strict=True))])
        columns["within"] = pa.array([area_row(within)])
        with self._lock:
            self._check_open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(4, "tagmatch-within")
            pool = self._pool
        return pool.submit(self._keys_within, pa.table(columns), unique, channel)

    def _keys_within(self, table: pa.Table, unique: bool, channel: str | None) -> list[K] | set[K]:
        (keys,) = self.match_many(table, unique=unique, channel=channel).to_pylist()
        return set(keys) if unique else list(keys)

    def explain(
        self,
        tags: Iterable[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        location: tuple[float, float] | None = None,
        within: Circle | Box | None = None,
    ) -> list[tuple[frozenset[str], tuple[K, ...]]]:
        """Every matching set with its keys, as `TagMatch.explain`."""
        if attributes is not None:
            message([], attributes)
        location_tags(location, within, plane=self._plane)
        body = {
            "tags": tag_list(tags),
            "attributes": None if attributes is None else dict(attributes),
            "location": None if location is None else [float(each) for each in location],
            "within": area_row(within),
        }
        found: list[dict[str, Any]] = self._act("explain", body)["sets"]
        return Explanation(
            _stored(each["tags"], itertools.starmap(Where, each["where"]), each["keys"]) for each in found
        )

    # -- subscribers -------------------------------------------------------------------------------------------------

    def publish(
        self, messages: Any, payloads: Iterable[bytes | None] | None = None, *, channel: str | None = None
    ) -> Published:
        """Have the service notify those that follow keys which messages match.

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
        table = table_of(messages, payloads)
        found = self._put("publish", table, {} if channel is None else {"channel": channel})
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
            Its name; it belongs to the user who has begun it.
        keys : iterable of keys, optional
            What it follows from now on. Default: what it followed before, at first nothing.
        every_key : bool
            Follow every key.
        guarantee : {"at_most_once", "at_least_once"}
            Whether what was handed over and not acknowledged is delivered again to the next connection.
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
        """
        self._check_open()
        command = {
            "session": session,
            "keys": None if keys is None else listed_keys(keys),
            "every_key": every_key,
            "guarantee": guarantee,
            "when_full": when_full,
            "linger": linger,
        }
        return Subscriber(self._connection, self._key_type, command)

    def sessions(self) -> list[dict[str, Any]]:
        """Your sessions of notifications; with the role `admin`, those of all users.

        Returns
        -------
        list of dict
            Of each its name (`session`), its `user`, whether it is `connected`, its `guarantee`, how many
            `keys` it follows (`None`: every key), how many notifications are `waiting`, of how many `bytes`, and in how
            many seconds it ends (`ends_in`; `None`: it is connected).
        """
        found: list[dict[str, Any]] = self._act("sessions")["sessions"]
        return found

    def end_session(self, session: str) -> bool:
        """End a session of yours, or with the role `admin` of anyone, with all that waits in it.

        Returns
        -------
        bool
            Whether there was one.
        """
        return bool(self._act("end_session", {"session": session})["ended"])

    # -- clients -----------------------------------------------------------------------------------------------------

    def move(self, clients: Any, lon: Any, lat: Any) -> None:
        """Say where clients are, in effect when this returns, as `TagMatch.move`."""
        from tagmatch.locations import coordinates
        from tagmatch.model.arrays import Strings
        from tagmatch.model.arrow import from_strings

        keys = KEY_CHECKS[self._key_type].many(clients, "clients")
        lons, lats = coordinates(lon, lat, len(keys), plane=self._plane)
        column = from_strings(keys) if isinstance(keys, Strings) else pa.array(keys)
        self._put("move", pa.table({"client": column, "lon": lons, "lat": lats}))

    def save_positions(self) -> None:
        """Have the service save where clients are, as `TagMatch.save_positions`."""
        self._act("save_positions")

    # -- contents ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Distinct stored sets, not counting staged changes."""
        return int(self.stats()["sets"])

    def __bool__(self) -> bool:
        """True, whatever is stored: to ask must not need the service."""
        return True

    def __iter__(self) -> Iterator[tuple[frozenset[str], tuple[K, ...]]]:
        """Every stored set with its keys, as iteration over a `TagMatch`."""
        self._check_open()
        _, batches = self._connection.get("sets")
        for batch in batches:
            columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
            yield from map(_stored, columns[0], (map(Where, each) for each in columns[1]), columns[2])

    def __contains__(self, tags: object) -> bool:
        """Whether exactly the set `tags` is stored, not counting staged changes."""
        row = tag_list(tags)
        where = [str(tag) for tag in row if isinstance(tag, Where)]
        plain = [tag for tag in row if not isinstance(tag, Where)]
        return bool(self._act("contains", {"tags": plain, "where": where})["contains"])

    def to_arrow(self) -> pa.Table:
        """All stored sets and keys as columns, as `TagMatch.to_arrow`."""
        self._check_open()
        schema, batches = self._connection.get("rows")
        return pa.Table.from_batches(batches, schema)

    # -- the object --------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Figures of the index, as `TagMatch.stats`."""
        return Stats(self._act("stats"))

    def check(self) -> None:
        """Have the service verify every invariant, as `TagMatch.check`; needs the role `admin`."""
        self._act("check")

    @property
    def snapshot(self) -> NoReturn:
        """Only who has an index itself has its tables.

        Raises
        ------
        TagMatchError
        """
        raise TagMatchError(
            "the tables of an index are where it is; over a connection, `to_arrow` gives what is stored"
        )

    def save(self, path: object, *, keep_snapshots: int | None = None) -> NoReturn:
        """Only who has an index itself can save it.

        Raises
        ------
        TagMatchError
        """
        del path, keep_snapshots
        raise TagMatchError("a service saves its own index, at `consolidate`; copy it where it is: tagmatch backup")

    def close(self, *, drain: bool = True) -> None:
        """Wait for the answers to what was submitted, or cancel it without `drain`, and end the connection.

        Within a callback of a future this returns at once, and the rest is done in the background.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if any(each.is_at_work() for each in [*self._pipelined.values()]):
            threading.Thread(target=self._end, args=[drain], name="tagmatch-close", daemon=True).start()
        else:
            self._end(drain)

    def _end(self, drain: bool) -> None:
        for each in [*self._pipelined.values()]:
            each.close(drain=drain)
        if self._pool is not None:
            self._pool.shutdown(wait=drain, cancel_futures=not drain)
        self._connection.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        return f"<RemoteTagMatch at {self._connection.url!r}{', closed' if self._closed else ''}>"

    def _act(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._check_open()
        return self._connection.act(name, body)

    def _stage(self, command: str, table: pa.Table, missing: Missing = "ignore", *, match_all: bool = False) -> int:
        options: dict[str, Any] = {"match_all": True} if match_all else {}
        if is_error(missing):
            options["missing"] = missing
        return int(self._put(command, table, options)["staged"])

    def _put(self, command: str, table: pa.Table, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._check_open()
        if table.nbytes > self._most_bytes:
            raise InvalidValueError(
                f"the service takes at most {self._most_bytes:,} bytes at once, not {table.nbytes:,}; send fewer rows"
            )
        return self._connection.put({"command": command, **(options or {})}, table, self._most_rows)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this connection is closed; connect again")


def _first_answer(connection: Connection, wait: float) -> dict[str, Any]:
    """What the service says of itself, when it answers."""
    until = time.monotonic() + wait
    while True:
        try:
            return connection.act("info")
        except UnavailableError:
            if time.monotonic() >= until:
                raise
        time.sleep(_AGAIN_S)


def _matching(unique: bool, channel: str | None) -> dict[str, Any]:
    """What asks for a stream that matches."""
    command = {"command": "match", "unique": unique, "plain": True, "coalesce": True}
    return command if channel is None else {**command, "channel": channel}


def _checked(given: Any, *, match_all: bool) -> pa.Table:
    """A table of subscriptions, with the columns that it must have."""
    table = table_of_subscriptions(given)
    columns_of(table, match_all=match_all)
    return pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table


def _stored(tags: Iterable[str], where: Iterable[Where], keys: Iterable[Any]) -> tuple[frozenset[str], tuple[Any, ...]]:
    """A stored set with its conditions and its keys."""
    return frozenset(itertools.chain(tags, where)), tuple(keys)
