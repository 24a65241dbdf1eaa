"""What gateways have in common: messages come in and are matched in batches, notifications go out by key."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tagmatch.broker.gateways.incoming import Incoming, Row, row_of, tables_of
from tagmatch.broker.gateways.options import GatewayOptions
from tagmatch.broker.gateways.requests import Requests
from tagmatch.broker.hub import Hub
from tagmatch.broker.publications import Published
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import (
    ClosedError,
    DeadlineMissed,
    InvalidValueError,
    Overloaded,
    SlowSubscriberError,
    TagMatchError,
)

_LOG = logging.getLogger("tagmatch.gateways")
# Between looks whether the gateway is to stop
_LOOK_S = 0.1
#: Whose the sessions of gateways are; no user has that name
SUBSCRIBER = "\0gateway"
_COUNTS = (
    "connections", "received", "matched", "unmatched", "refused", "dropped", "failed", "sent", "unsent", "unsendable",
)  # fmt: skip


class Unsent(Exception):  # noqa: N818 - a state, after which the same is sent again
    """The connection was lost before the other side had everything."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One notification for one key.

    Attributes
    ----------
    key : str
    payload : bytes
    id : bytes, optional
        What the message had.
    seconds_left : float, optional
        Until it expires.
    redelivered : bool
    """

    key: str
    payload: bytes
    id: bytes | None
    seconds_left: float | None
    redelivered: bool


class Gateway(ABC):
    """Between a hub and another broker; subclasses know how to talk with that one.

    Each message that came is counted: `received = matched + unmatched + refused + dropped + failed + waiting`.

    Parameters
    ----------
    index : TagMatch
        What requests change.
    hub : Hub
        Where messages go.
    sessions : Sessions
        Where the gateway has the session whose notifications go out.
    options : GatewayOptions
    """

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: GatewayOptions) -> None:
        self._index, self._hub, self._sessions, self.options = index, hub, sessions, options
        self._plane = bool(index.stats()["plane"])
        self.requests = Requests(index, options.write, options.consolidate_interval)
        self._lock = threading.Lock()
        self._came, self._went = threading.Condition(self._lock), threading.Condition(self._lock)
        self._inbox: deque[Incoming] = deque()
        self._waiting = 0
        self._counts: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self._handing_over = threading.Thread(target=self._hand_over_all, name="tagmatch-gateway-in", daemon=True)
        self._sending = threading.Thread(target=self._send_all, name="tagmatch-gateway-out", daemon=True)

    # -- what subclasses do ------------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self) -> None:
        """Begin to connect, again and again, in threads of its own, and to call `receive`; see `_is_connected`."""

    @abstractmethod
    def _end_receiving(self) -> None:
        """Have no more messages come; the connection stays."""

    @abstractmethod
    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        """Send notifications, and wait until the other side has them.

        Raises
        ------
        Unsent
            It is not known that it has; they are sent again, if that is what `guarantee` says.
        """

    @abstractmethod
    def _end(self) -> None:
        """End the connection."""

    def _is_connected(self, connected: bool) -> None:
        """Called by the subclass whenever the connection comes or goes."""
        if connected:
            self._count("connections")
            self._connected.set()
        else:
            self._connected.clear()

    # -- messages come in --------------------------------------------------------------------------------------------

    def receive(self, came: Incoming, *, may_drop: bool) -> bool:
        """Take a message; whether it was taken, as with `may_drop` it is dropped where too many wait."""
        with self._lock:
            self._counts["received"] += 1
            if may_drop and self._waiting >= self.options.max_waiting:
                self._counts["dropped"] += 1
                return False
            self._inbox.append(came)
            self._waiting += 1
            self._came.notify()
            return True

    def refuse(self, why: object) -> None:
        """Count a message that came and cannot be used."""
        _LOG.warning("a message was refused: %s", why)
        self._count("received")
        self._count("refused")

    def _hand_over_all(self) -> None:
        while True:
            with self._lock:
                self._came.wait_for(lambda: self._inbox or self._stopping.is_set())
                if not self._inbox:
                    return
                count = min(len(self._inbox), self.options.batch_messages)
                taken = [self._inbox.popleft() for _ in range(count)]
            self._hand_over(taken)

    def _hand_over(self, taken: list[Incoming]) -> None:
        rows: list[Row] = []
        for came in taken:
            try:
                rows.append(row_of(came, self.options.form, plane=self._plane))
            except TagMatchError as error:
                _LOG.warning("a message was refused: %s", error)
                self._done([came], refused=1)
        by_channel: dict[str | None, list[Row]] = {}
        for row in rows:
            by_channel.setdefault(row.channel, []).append(row)
        for channel, own in by_channel.items():
            try:
                tables = tables_of(own)
            except Exception as error:  # none that is foreseen; the thread goes on
                _LOG.exception("messages were not matched: %s", error)
                self._done([row.came for row in own], failed=len(own))
                continue
            for table, members in tables:
                self._publish(table, [row.came for row in members], channel)

    def _publish(self, table: pa.Table, members: list[Incoming], channel: str | None) -> None:
        def done(future: Future[Published]) -> None:
            error = future.exception()
            if isinstance(error, ClosedError | DeadlineMissed | Overloaded):
                self._dropped(members, error)
            elif error is not None:
                _LOG.error("messages were not matched: %s", error)
                self._done(members, failed=len(members))
            else:
                matched = future.result().matched
                self._done(members, matched=matched, unmatched=len(members) - matched)

        try:
            self._hub.publish(table, channel=channel).add_done_callback(done)
        except InvalidValueError as error:  # there is no such channel
            _LOG.warning("messages were refused: %s", error)
            self._done(members, refused=len(members))
        except TagMatchError as error:
            self._dropped(members, error)

    def _dropped(self, members: list[Incoming], error: TagMatchError) -> None:
        _LOG.error("messages were dropped: %s", error)
        # Where the service ends, the other side keeps what it does not hear of
        self._done(members, acknowledge=not isinstance(error, ClosedError), dropped=len(members))

    def _done(self, members: list[Incoming], *, acknowledge: bool = True, **counts: int) -> None:
        for came in members if acknowledge else ():
            if came.done is not None:
                came.done()
        with self._lock:
            self._counts.update(counts)
            self._waiting -= len(members)
            self._went.notify_all()

    # -- notifications go out ----------------------------------------------------------------------------------------

    def _connect_session(self) -> Any:
        options = self.options
        return self._sessions.connect(
            options.session, SUBSCRIBER, every_key=True, guarantee=options.guarantee, when_full=options.when_full
        )

    def _send_all(self) -> None:
        connection = self._connect_session()
        try:
            while True:
                is_last = self._stopping.is_set()
                if not self._connected.wait(_LOOK_S):
                    if is_last:
                        return
                    continue
                try:
                    taken = connection.take(self.options.batch_messages, timeout=_LOOK_S)
                except SlowSubscriberError:
                    connection = self._connect_session()
                    continue
                if taken is None:
                    if is_last:
                        return
                elif not self._send_batch(taken):
                    # Has what was not acknowledged delivered again
                    connection = self._connect_session()
                elif connection.guarantee == "at_least_once":
                    connection.acknowledge(taken["offset"][-1].as_py())
        except TagMatchError as error:
            _LOG.error("no more notifications go out: %s", error)
        finally:
            connection.close()

    def _send_batch(self, taken: pa.RecordBatch) -> bool:
        outgoing = _outgoing(taken, self._sessions.now())
        try:
            self._send(outgoing)
        except Unsent as error:
            _LOG.warning("notifications were not sent: %s", error)
            self._count("unsent", len(outgoing))
            return False
        self._count("sent", len(outgoing))
        return True

    def _cannot_send(self, why: object) -> None:
        """Count a notification that the other side does not take, and never will."""
        _LOG.error("a notification cannot be sent: %s", why)
        self._count("unsendable")

    # -- the object --------------------------------------------------------------------------------------------------

    def _count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self._counts[name] += more

    def start(self) -> None:
        """Begin; returns at once, also where the other broker cannot be reached yet."""
        self.requests.start()
        self._handing_over.start()
        if self.options.notifications:
            self._sending.start()
        self._start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Take no more messages, send what is to be sent, and end; whether that was done in so many seconds."""
        until = time.monotonic() + timeout
        self._end_receiving()
        with self._lock:
            is_whole = self._went.wait_for(lambda: self._waiting == 0, timeout)
            self._stopping.set()
            self._came.notify_all()
        if self._sending.ident is not None:
            self._sending.join(max(until - time.monotonic(), 0.0))
            is_whole &= not self._sending.is_alive()
        self._end()
        self.requests.stop()
        return is_whole

    def stats(self) -> dict[str, int]:
        """Counts, of one moment.

        Returns
        -------
        dict
            `connected`: 1 or 0; `connections` made; messages `received`, and of these `matched`, `unmatched`,
            `refused`, `dropped`, `failed` and still `waiting`; notifications for one key each that were `sent`, or
            `unsent` as the connection was lost, or are `unsendable`, as the other side refuses them; and what
            `Requests.stats` gives.
        """
        with self._lock:
            counts = {name: self._counts[name] for name in _COUNTS}
            counts |= {"waiting": self._waiting, "connected": int(self._connected.is_set())}
        return counts | self.requests.stats()


def _outgoing(taken: pa.RecordBatch, now: int) -> list[Outgoing]:
    """A notification for each key of each of these."""
    found = []
    columns = ("redelivered", "id", "payload", "keys")
    expiries = taken["expires"].cast(pa.int64()).to_pylist()
    lists = zip(*(taken[name].to_pylist() for name in columns), expiries, strict=True)
    for redelivered, id_, payload, keys, expires in lists:
        left = None if expires is None else (expires - now) / 1e6
        found += [Outgoing(str(key), payload or b"", id_, left, redelivered) for key in keys]
    return found


def as_level(key: str, separators: str) -> str:
    """A key as one level of a topic or subject: what would separate levels, and `%`, is written as `%2F`, `%25`, ...

    Examples
    --------
    >>> as_level("a/b", "/+#"), as_level("", "/+#")
    ('a%2Fb', '%')
    """
    special = {ord(character): f"%{ord(character):02X}" for character in f"%{separators}"}
    return key.translate(special) if key else "%"
