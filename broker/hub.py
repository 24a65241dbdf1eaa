"""Messages in, notifications out: messages are matched together, and go to the sessions that follow their keys.

A publisher hands over messages for the matcher with what their notifications carry.
"""

from __future__ import annotations

import logging
import pkgutil
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.broker.config import HUB_DEFAULTS, Config, GatewayOptions, HubOptions, WhenBusy
from tagmatch.broker.outbox import KEY_TYPES, Notifications, lengths_of, notifications_of
from tagmatch.broker.sessions import Sessions
from tagmatch.model.arrays import I64Array
from tagmatch.model.arrow import as_table, from_tag_lists
from tagmatch.model.clock import LATEST, in_microseconds
from tagmatch.model.columns import arrow_chunks, tag_lists
from tagmatch.model.errors import ClosedError, DeadlineMissed, InvalidTypeError, InvalidValueError, Overloaded
from tagmatch.model.input.messages import queries_of
from tagmatch.model.names import PUBLISHED_COLUMNS, check_names
from tagmatch.model.options import KeyType, of_channel
from tagmatch.model.tables import NEVER

if TYPE_CHECKING:
    from tagmatch.broker.gateway import Gateway
    from tagmatch.embedded import TagMatch

_LOG = logging.getLogger("tagmatch.subscribers")
#: Columns that are no attributes: what a message is called, what it carries, and when it expires, by both clocks
ID, PAYLOAD, EXPIRES, UNTIL = "id", "payload", "expires", "\0until"
OWN = [ID, PAYLOAD, EXPIRES, UNTIL]
_BINARY = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.null())


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of messages that were published together."""

    messages: int  # How many, and those that matched at least one key
    matched: int
    #: Their keys, for a publisher whose session is not notified
    answers: pa.ListArray | None = field(default=None, repr=False, compare=False)


def messages_of(
    messages: Any, payloads: Iterable[bytes | None] | None = None, steady: int = 0, expiry: float | None = None
) -> pa.Table:
    """Messages from Arrow, or from lists: what `match_many` takes, and columns `OWN`, as `Notifications` have them.

    A message that does not say when it expires does so after `expiry` seconds.
    """
    table = table_of(messages, payloads)
    check_names(table.column_names, PUBLISHED_COLUMNS)
    own = [name for name in OWN if name in table.column_names]
    if twice := [name for name in own if table.column_names.count(name) > 1]:
        raise InvalidValueError(f"there must be one column {twice[0]!r}, not {table.column_names.count(twice[0])}")
    found = table.drop_columns(own)
    if not found.column_names:
        raise InvalidValueError("messages must have a column 'tags', or a column for an attribute; there is neither")
    expires, until = _times(table, steady)
    if expiry is not None:
        until = np.where((expires == NEVER) & (until == NEVER), steady + int(expiry * 1e6), until)
    columns = _binary(table, ID, pa.binary()), _binary(table, PAYLOAD, pa.large_binary()), expires, until
    return pa.Table.from_arrays([*found.columns, *map(pa.array, columns)], [*found.column_names, *OWN])


def table_of(messages: Any, payloads: Iterable[bytes | None] | None, name: str = "messages") -> pa.Table:
    """Messages as one table; `name` is how errors call them."""
    table = as_table(messages)
    if table is not None:
        if payloads is not None:
            raise InvalidTypeError("payloads of messages in a table are its column 'payload'; give no others")
        return pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    chunks, given = tag_lists(messages, name), arrow_chunks(messages, name)
    lists = list(map(from_tag_lists, chunks)) if given is None else given
    tags = pa.chunked_array(lists, lists[0].type if lists else pa.list_(pa.string()))
    columns: dict[str, Any] = {"tags": tags}
    try:
        if payloads is not None:
            columns[PAYLOAD] = pa.array(payloads, pa.large_binary())
    except (TypeError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidTypeError(f"payloads must be bytes: {error}") from None
    if payloads is not None and len(columns[PAYLOAD]) != len(tags):
        raise InvalidValueError(f"there are {len(tags)} messages and {len(columns[PAYLOAD])} payloads; give one each")
    return pa.table(columns)


def _binary(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(len(table), kind)
    column = table.column(name)
    if column.type not in _BINARY:
        raise InvalidTypeError(f"column {name!r} must be strings or binary, not {column.type}")
    return column.cast(kind).combine_chunks()


def _times(table: pa.Table, steady: int) -> tuple[I64Array, I64Array]:
    """When messages expire: as the system's clock has it, and as `steady_us` has it."""
    never = np.full(len(table), NEVER)
    column = table.column(EXPIRES) if EXPIRES in table.column_names else pa.nulls(len(table))
    if pa.types.is_null(column.type):
        return never, never
    is_duration = pa.types.is_duration(column.type)
    if not is_duration and (not pa.types.is_timestamp(column.type) or column.type.tz is None):
        raise InvalidTypeError(f"column 'expires' must be timestamps with a time zone, or durations, not {column.type}")
    given = column.combine_chunks()
    missing = given.is_null().to_numpy(zero_copy_only=False)
    times = np.minimum(in_microseconds(given), LATEST + 1)  # which is not shown: later ones never come
    if not is_duration:
        return np.where(missing, NEVER, times), never
    return never, np.where(missing, NEVER, times + steady)


class Tallies:
    """Outcomes of all that a hub or a gateway takes and gives, by name; `changed` is called at every change."""

    def __init__(self, *names: str) -> None:
        self.changed = threading.Condition()
        self.now: Counter[str] = Counter(dict.fromkeys(names, 0))

    def add(self, **more: int) -> None:
        """Count more, or less, of several at one moment."""
        with self.changed:
            self.now.update(more)
            self.changed.notify_all()

    def stats(self) -> dict[str, int]:
        """All counts, of one moment."""
        with self.changed:
            return dict(self.now)


class _Waiting(NamedTuple):
    messages: pa.Table
    nbytes: int
    published: Future[Published]
    since: float  # in seconds of `time.perf_counter`
    apart_from: int | None


class Hub:
    """Queues of messages, one for each channel and one for those without, and a thread for each.

    A thread matches messages and notifies sessions. So none of one channel waits for those of another to be matched.

    Every message is counted: `in = matched + unmatched + dropped + failed + waiting`, always.
    """

    def __init__(
        self, index: TagMatch[Any], sessions: Sessions, options: HubOptions = HUB_DEFAULTS, channels: Sequence[str] = ()
    ) -> None:
        self._index, self._sessions, self._options = index, sessions, options
        self._plane = bool(index.stats()["plane"])
        self._counts = Tallies(
            "in", "matched", "unmatched", "dropped", "failed", "notifications", "waiting", "waiting_bytes"
        )
        self._queues: dict[str | None, deque[_Waiting]] = {channel: deque() for channel in (None, *channels)}
        self._threads = {channel: ThreadPoolExecutor(1, "tagmatch-hub") for channel in self._queues}
        self._is_closed = False

    def checked_channel(self, channel: str | None) -> str | None:
        """The channel; InvalidValueError for the name of none."""
        return channel if channel is None else of_channel(channel, [*filter(None, self._queues)])

    def publish(
        self,
        messages: Any,
        payloads: Iterable[bytes | None] | None = None,
        *,
        timeout: float | None = None,
        channel: str | None = None,
        when_busy: WhenBusy | None = None,
        apart_from: int | None = None,
    ) -> Future[Published]:
        """Match messages, and notify sessions, except the one with the number `apart_from`, which gets the answers."""
        queue = self._queues[self.checked_channel(channel)]
        expiry = self._sessions.options.message_expiry
        table, published = messages_of(messages, payloads, self._sessions.steady(), expiry), Future[Published]()
        published.set_running_or_notify_cancel()  # so that it cannot be cancelled: queued messages are matched
        one = _Waiting(table, int(table.nbytes), published, time.perf_counter(), apart_from)
        count, options = len(one.messages), self._options
        if count > options.max_waiting or one.nbytes > options.max_waiting_bytes:
            raise InvalidValueError(
                f"{count} messages of {one.nbytes} bytes are more than may wait together, {options.max_waiting} of "
                f"{options.max_waiting_bytes} bytes; publish fewer at a time"
            )
        if not count:
            one.published.set_result(Published(0, 0))
            return one.published
        now = self._counts.now
        with self._counts.changed:
            if (when_busy or options.when_busy) == "wait":
                self._counts.changed.wait_for(lambda: self._is_closed or self._has_room(one), timeout)
            if self._is_closed:
                raise ClosedError("the hub is closed; publish to another service")
            now["in"] += count
            if not self._has_room(one):
                now["dropped"] += count
                raise Overloaded(
                    f"{now['waiting']} messages wait to be matched, and there is no room for {count} more, which are "
                    "dropped; publish again later"
                )
            queue.append(one)
            now.update(waiting=count, waiting_bytes=one.nbytes)
            if len(queue) == 1:
                self._threads[channel].submit(self._match_all, channel)
        return one.published

    def _has_room(self, one: _Waiting) -> bool:
        now, options = self._counts.now, self._options
        return (
            now["waiting"] + len(one.messages) <= options.max_waiting
            and now["waiting_bytes"] + one.nbytes <= options.max_waiting_bytes
        )

    def _match_all(self, channel: str | None) -> None:
        """Match all that waits; those that came one after the other with the same columns, together."""
        queue = self._queues[channel]
        while True:
            taken: list[_Waiting] = []
            count = 0
            with self._counts.changed:
                while queue and (not taken or count + len(queue[0].messages) <= self._options.batch_messages):
                    taken.append(queue.popleft())
                    count += len(taken[-1].messages)
            if not taken:
                return
            for _, group in groupby(taken, lambda one: (one.messages.schema, one.apart_from)):
                self._match(list(group), channel)

    def _match(self, group: list[_Waiting], channel: str | None) -> None:
        try:
            messages = pa.concat_tables([one.messages for one in group])
            waited = 0.0 if channel is None else time.perf_counter() - group[0].since
            asked = queries_of(messages.drop_columns(OWN), plane=self._plane)
            answers = self._index.match_many(asked, unique=True, channel=channel, waited=waited)
        except Exception as error:
            if len(group) > 1:  # the fault of one is not that of the others
                for one in group:
                    self._match([one], channel)
            else:
                self._done(group, None, error)
            return
        try:
            self._notify(messages, answers, group[0].apart_from)
        except Exception as error:  # not again, as some may be notified already
            self._done(group, None, error)
        else:
            self._done(group, answers, None)

    def _done(self, group: list[_Waiting], answers: pa.ListArray | None, error: BaseException | None) -> None:
        """Count messages, let publishers in, and tell those of these messages."""
        counts = [len(one.messages) for one in group]
        found = [0] * len(group)
        if answers is not None:
            ends = np.cumsum(counts)
            totals = np.concatenate([[0], np.cumsum(lengths_of(answers) > 0)])
            found = (totals[ends] - totals[ends - counts]).tolist()
        if error is None:
            outcome = {"matched": sum(found), "unmatched": sum(counts) - sum(found)}
        else:
            outcome = {"dropped" if isinstance(error, DeadlineMissed | Overloaded) else "failed": sum(counts)}
        self._counts.add(waiting=-sum(counts), waiting_bytes=-sum(one.nbytes for one in group), **outcome)
        begins = np.cumsum([0, *counts[:-1]]).tolist()
        for one, begin, count, matched in zip(group, begins, counts, found, strict=True):
            if error is None:
                own = None if one.apart_from is None or answers is None else answers.slice(begin, count)
                one.published.set_result(Published(count, matched, own))
            else:
                one.published.set_exception(error)

    def _notify(self, messages: pa.Table, answers: pa.ListArray, apart_from: int | None) -> None:
        self._sessions.end_expired()
        (own,) = messages.select(OWN).combine_chunks().to_batches()
        lengths, keys = lengths_of(answers), answers.flatten().cast(KEY_TYPES[self._sessions.key_type])
        offered = 0
        rows = np.flatnonzero(lengths)
        if len(rows) and (followers := [each for each in self._sessions.following_all() if each != apart_from]):
            whole = _made(own, rows, np.concatenate([[0], np.cumsum(lengths[rows])]), keys)
            offered += sum(self._sessions.offer(number, whole) for number in followers)
        places, numbers = self._sessions.followers.lookup(keys)
        if len(places):
            # By session, then by message: one notification for each message, with all keys of the session
            order = np.argsort(numbers, kind="stable")
            places, numbers = places[order], numbers[order]
            rows = np.repeat(np.arange(len(lengths)), lengths)[places]
            is_first = np.ones(len(places), bool)
            is_first[1:] = (numbers[1:] != numbers[:-1]) | (rows[1:] != rows[:-1])
            begins = np.flatnonzero(is_first)
            whole = _made(own, rows[begins], np.append(begins, len(places)), keys.take(pa.array(places)))
            numbers = numbers[begins]
            # A loop over sessions that are notified: each gets its part
            firsts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
            ends = [*firsts[1:].tolist(), len(numbers)]
            for number, begin, end in zip(numbers[firsts].tolist(), firsts.tolist(), ends, strict=True):
                offered += self._sessions.offer(number, whole.part(begin, end))
        self._counts.add(notifications=offered)

    def stats(self) -> dict[str, int]:
        """Counts of messages, of one moment."""
        return self._counts.stats()

    def close(self, timeout: float | None = None) -> bool:
        """Take no more messages, match those that wait, or drop them after a time, and end the threads."""
        until = None if timeout is None else time.monotonic() + timeout
        changed = self._counts.changed
        with changed:
            self._is_closed = True
            changed.notify_all()
            changed.wait_for(lambda: not any(self._queues.values()), timeout)
            left = [*chain.from_iterable(self._queues.values())]
            for queue in self._queues.values():
                queue.clear()
            dropped = sum(len(one.messages) for one in left)
            self._counts.add(dropped=dropped, waiting=-dropped, waiting_bytes=-sum(one.nbytes for one in left))
        for one in left:
            one.published.set_exception(ClosedError("the hub was closed before these messages were matched"))
        with changed:
            seconds = None if until is None else max(until - time.monotonic(), 0.0)
            is_idle = changed.wait_for(lambda: not self._counts.now["waiting"], seconds)
        for thread in self._threads.values():
            thread.shutdown(wait=is_idle)
        return is_idle and not dropped

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _made(own: pa.RecordBatch, rows: Any, offsets: Any, keys: pa.Array) -> Notifications:
    """Notifications of the messages in these rows, and the keys of each."""
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), keys)
    ids, payloads, expires, until = own.take(pa.array(rows)).columns
    return notifications_of(ids, payloads, lists, expires.to_numpy(), until.to_numpy())


class Subscribers:
    """Sessions, hub and gateways of one service; TagMatchError if a gateway lacks its package or a file."""

    def __init__(self, index: TagMatch[Any], config: Config, key_type: KeyType) -> None:
        self._index, self._config = index, config
        self.sessions = Sessions(key_type, config.sessions)
        self.hub = Hub(index, self.sessions, config.hub, [each.name for each in config.channel])
        self.gateways = [self._gateway(options) for _, _, options in config.gateways]
        self.is_quiet = False  # the service ends, and no new notifications come
        self._ending: threading.Thread | None = None

    def _gateway(self, options: GatewayOptions) -> Gateway:
        kind: type[Gateway] = pkgutil.resolve_name(options.gateway)
        return kind(self._index, self.hub, self.sessions, options)

    def start(self) -> None:
        """Begin to connect gateways."""
        for gateway in self.gateways:
            gateway.start()

    @property
    def is_ready(self) -> bool:
        """Whether all gateways that are required have connections, or have had them until just now."""
        return all(gateway.is_ready for gateway in self.gateways)

    @property
    def conditions(self) -> dict[str, str]:
        """Of each gateway, by its session, whether it is connected, in words."""
        return {gateway.options.session: gateway.condition for gateway in self.gateways}

    def begin_to_end(self) -> None:
        """End gateways and the hub, when they have done what they can; returns at once."""
        self._ending = threading.Thread(target=self._end, name="tagmatch-subscribers-end", daemon=True)
        self._ending.start()

    def _end(self) -> None:
        seconds = self._config.server.drain_seconds
        for gateway in self.gateways:  # all of them first, as messages of one may notify those who follow by another
            gateway.stop_receiving(seconds)
        for gateway in self.gateways:
            if not gateway.stop(seconds):
                _LOG.warning("a gateway has not sent everything in time")
        if not self.hub.close(seconds):
            _LOG.warning("messages were dropped, as they were not matched in time")
        self.is_quiet = True

    def end(self, timeout: float) -> None:
        """Wait `timeout` seconds for gateways and for published messages, and end all sessions."""
        if self._ending is not None:
            self._ending.join(timeout)
        self.sessions.close()

    def stats(self) -> dict[str, dict[str, int]]:
        """Figures of `sessions`, the `hub`, and each gateway by its session."""
        gateways = {gateway.options.session: gateway.stats() for gateway in self.gateways}
        return {"sessions": self.sessions.stats(), "hub": self.hub.stats(), **gateways}
