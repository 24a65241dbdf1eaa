"""What gateways have in common: messages come in and are matched in batches, notifications go out by key."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tagmatch.broker.cloudevents import STRUCTURED, notification
from tagmatch.broker.config import GatewayOptions
from tagmatch.broker.hub import Hub, Published, Tallies
from tagmatch.broker.incoming import DeadLetters, GatewayMessage, MessageRow, Requests, Rows, row_of
from tagmatch.broker.sessions import SessionConnection, Sessions
from tagmatch.model.errors import ClosedError, DeadlineMissed, Overloaded, SlowSubscriberError, TagMatchError

_LOG = logging.getLogger("tagmatch.gateways")
# Between looks whether the gateway is to stop
_LOOK_S = 0.1
# After something that was not foreseen
_PAUSE_S = 1.0
#: Bytes that are sent together, and connections that one notification may end
_MOST_BYTES = 4 << 20
_MOST_TRIES = 5
#: So many times fewer are sent together after a connection has ended
FEWER = 4
#: Whose the sessions of gateways are; no user has that name
SUBSCRIBER = "\0gateway"
#: What docs/subscribers.md describes: of connections, messages, notifications of one key each, dead letters, requests
_COUNTS = (
    "connections", "disconnections",
    "received", "matched", "unmatched", "refused", "dropped", "failed", "waiting", "waiting_bytes",
    "sent", "unsent", "unsendable", "dead_letters", "dead_letters_unwritten",
    "requests", "requests_refused", "consolidations", "consolidations_failed",
)  # fmt: skip
#: Seconds for which a gateway that is required may be without a connection, as its broker may be started again
GRACE_S = 30.0


class NoConnection(Exception):  # noqa: N818 - a state, which ends with the next connection
    """There is no connection, or it has ended."""


class Unsent(Exception):  # noqa: N818 - a state, after which the same is sent again
    """It is not known that the other side has everything."""

    def __init__(self, why: str, *, is_suspect: bool = False) -> None:
        super().__init__(why)
        self.is_suspect = is_suspect


@dataclass(frozen=True, slots=True)
class KeyNotification:
    """One notification for one key."""

    topic: str  # Where it goes: a topic or a subject
    payload: bytes
    id: bytes | None  # What the message had
    seconds_left: float | None  # Until it expires
    redelivered: bool
    content_type: str | None = None  # If it is known
    key: str = ""  # Whose it is, as a text


class Sending:
    """Sends the notifications in the outbox of a gateway, in a separate thread."""

    def __init__(self, gateway: Gateway, letters: DeadLetters, counts: Tallies, connected: threading.Event) -> None:
        self._gateway, self._letters, self._counts = gateway, letters, counts
        self._sessions, self._options = gateway.sessions, gateway.options
        self._connected, self._ending = connected, threading.Event()
        self._lock = threading.Lock()
        self._awaiting: deque[tuple[int, Callable[[], None]]] = deque()
        if self._options.notifications:
            self._session = self._connect()  # where notifications go out
        # Notifications that are taken together; fewer up to an offset, where a connection has ended
        self._most, self._fewer_until = self._options.batch_messages, 0
        # How many times the connection has ended after the notification of this offset and number
        self._suspect, self._tries = (0, 0), 0
        self._thread = threading.Thread(target=self._run, name="tagmatch-gateway-out", daemon=True)

    def start(self) -> None:
        """Begin to send, if notifications go out."""
        if self._options.notifications:
            self._thread.start()

    def end(self, timeout: float) -> bool:
        """End when everything is sent, or without a connection; whether it has ended within `timeout` seconds."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _connect(self) -> SessionConnection:
        options = self._options
        return self._sessions.connect(
            options.session,
            SUBSCRIBER,
            every_key=True,
            guarantee=options.session_guarantee,
            when_full=options.when_full,
        )

    @property
    def session_number(self) -> int | None:
        """The number of the session whose notifications go out, if any do."""
        return self._session.number if self._options.notifications else None

    def when_sent(self, act: Callable[[], None]) -> None:
        """Call this when every notification that is in the outbox by now has left it."""
        if not self._options.notifications or self._options.guarantee == "at_most_once":
            act()
            return
        with self._lock:
            self._awaiting.append((self._session.outbox.progress()[1], act))
        self._settle()

    def _settle(self) -> None:
        done, _ = self._session.outbox.progress()
        while True:
            with self._lock:
                if not self._awaiting or self._awaiting[0][0] > done:
                    return
                _, act = self._awaiting.popleft()
            act()

    def _run(self) -> None:
        while True:
            is_last = self._ending.is_set()
            try:
                if self._send_next() or not is_last:
                    continue
                break
            except SlowSubscriberError:
                pass
            except Unsent as error:
                _LOG.warning("notifications were not sent: %s", str(error))
            except Exception:  # none is foreseen; what it is of comes again, or is gone if it comes at most once
                if is_last:
                    break
                _LOG.exception("notifications were not sent")
                self._ending.wait(_PAUSE_S)
            try:
                self._session = self._connect()  # so that unacknowledged notifications are delivered again
            except Exception as error:  # the service ends
                _LOG.warning("notifications cannot be sent: %s", str(error))
        self._session.close()

    def _send_next(self) -> bool:
        """Send the next notifications; whether there is more to do at once."""
        self._settle()
        most, session = self._most, self._session
        if not self._connected.wait(_LOOK_S) or (taken := session.take(most, timeout=_LOOK_S)) is None:
            return False
        last, outgoing = taken["offset"][-1].as_py(), self._outgoing(taken)
        try:
            if most == 1:
                self._send_one_by_one(outgoing, last)
            else:
                for some in _parts(outgoing, self._options.batch_messages):
                    self._send(some)
        except Unsent as error:
            if error.is_suspect:
                self._most, self._fewer_until = max(most // FEWER, 1), max(self._fewer_until, last)
            raise
        if last >= self._fewer_until:
            self._most = min(2 * most, self._options.batch_messages)
        if session.outbox.guarantee == "at_least_once":
            session.acknowledge(last)
        self._settle()
        return True

    def _send_one_by_one(self, outgoing: Sequence[KeyNotification], offset: int) -> None:
        """Find the key of a notification after which the connection ends, and give it up at last."""
        first = self._suspect[1] if self._suspect[0] == offset else 0  # the keys before are known to be sent
        for number, each in enumerate(outgoing[first:], first):
            if self._suspect != (offset, number):
                self._suspect, self._tries = (offset, number), 0
            if self._tries >= _MOST_TRIES:
                self._give_up([(each, f"the connection ended each of the {self._tries} times after this was sent")])
                continue
            try:
                self._send([each])
            except Unsent as error:
                self._tries += error.is_suspect
                raise

    def _send(self, outgoing: Sequence[KeyNotification]) -> None:
        found = [(each, self._gateway.why_unsendable(each)) for each in outgoing]
        self._give_up([(each, why) for each, why in found if why is not None])
        if sendable := [each for each, why in found if why is None]:
            try:
                refused = self._gateway.send(sendable)
            except Unsent:
                self._counts.add(unsent=len(sendable))
                raise
            self._give_up(refused)
            self._counts.add(sent=len(sendable) - len(refused))

    def _give_up(self, unsendable: Sequence[tuple[KeyNotification, str]]) -> None:
        if unsendable:
            self._letters.add("out", unsendable)
            self._counts.add(unsendable=len(unsendable))

    def _outgoing(self, taken: pa.RecordBatch) -> list[KeyNotification]:
        now, naming, prefix = self._sessions.now(), self._options.naming, self._options.notifications
        found = []
        columns, session = ("offset", "redelivered", "id", "payload", "keys"), self._session
        are_events = self._options.form == "cloudevents"
        expiries = taken["expires"].cast(pa.int64()).to_pylist()
        lists = zip(*(taken[name].to_pylist() for name in columns), expiries, strict=True)
        for offset, redelivered, id_, payload, keys, expires in lists:
            left = None if expires is None else (expires - now) / 1e6
            for key in keys:
                topic = f"{prefix}{naming.separator}{naming.level(str(key))}"
                each = KeyNotification(topic, payload or b"", id_, left, redelivered, key=str(key))
                if are_events:
                    name = f"{session.mark_of(offset)}-{key}"
                    event = notification(payload, [key], name, self._options.session)
                    each = replace(each, payload=event, content_type=STRUCTURED)
                found.append(each)
        return found


def _parts(outgoing: Sequence[KeyNotification], most: int) -> Iterator[Sequence[KeyNotification]]:
    """Parts in order: each has `most` notifications and `_MOST_BYTES` bytes at most, but one notification at least."""
    begin = nbytes = 0
    for place, each in enumerate(outgoing):
        if place > begin and (place - begin >= most or nbytes + len(each.payload) > _MOST_BYTES):
            yield outgoing[begin:place]
            begin, nbytes = place, 0
        nbytes += len(each.payload)
    if begin < len(outgoing):
        yield outgoing[begin:]


# -- from the broker to the hub ---------------------------------------------------------------------------------------

#: Approximate bytes of messages that are handed over together
PART_BYTES = 8 << 20


class HandingOver:
    """Takes messages, and hands them over in a separate thread.

    No message ends it or holds up others: one that cannot be handed over is a dead letter, alone. Each is counted:
    `received = matched + unmatched + refused + dropped + failed + waiting`.
    """

    def __init__(
        self,
        hub: Hub,
        options: GatewayOptions,
        most_bytes: int,
        letters: DeadLetters,
        counts: Tallies,
        when_sent: Callable[[Callable[[], None]], None],
        *,
        plane: bool,
        steady: Callable[[], int],
    ) -> None:
        #: Told the answers by a gateway that sends these itself, instead of by its session, which has this number
        self.answered: Callable[[Rows, pa.ListArray | None], None] | None = None
        self.apart_from: int | None = None
        #: What a message says
        self.row_of: Callable[[GatewayMessage], MessageRow] = partial(row_of, form=options.form, plane=plane)
        self._hub, self._options, self._most_bytes = hub, options, most_bytes
        self._letters, self._counts, self._when_sent, self._steady = letters, counts, when_sent, steady
        self._inbox: deque[GatewayMessage] = deque()
        self._thread = ThreadPoolExecutor(1, "tagmatch-gateway-in")
        self.held = 0  # messages that the other side does not know to be done with; `waiting_bytes` are theirs

    def receive(self, came: GatewayMessage, *, may_drop: bool) -> bool:
        """Take a message; whether it was taken. One for which there is no room is dropped and counted if that may be.

        If it is refused, it is as if it had not come; the caller must make it come again.
        """
        size = came.nbytes
        if size > self._most_bytes:
            self.refuse(came, f"it has {size:,} bytes, more than max_waiting_bytes and outboxes allow")
            return True
        counts = self._counts.now
        with self._counts.changed:
            has_room = self.held < self._options.max_waiting and counts["waiting_bytes"] + size <= self._most_bytes
            if has_room or may_drop:
                counts["received"] += 1
            if not has_room:
                counts["dropped"] += may_drop
                return False
            self._inbox.append(came)
            self.held += 1
            counts["waiting"] += 1
            counts["waiting_bytes"] += size
            is_first = len(self._inbox) == 1
        if is_first:
            self._thread.submit(self._hand_over)
        return True

    def match(self, came: Sequence[GatewayMessage], in_columns: Sequence[Rows] = ()) -> None:
        """Match messages that came together, for a gateway that is told the answers; returns when each has an outcome.

        No room is needed: the next ones are not fetched before.
        """
        count = len(came) + sum(map(len, in_columns))
        self._counts.add(received=count, waiting=count)
        for rows in in_columns:
            self._publish(None, rows)
        begin = nbytes = 0
        for place, each in enumerate(came):
            if nbytes + len(each.payload) > PART_BYTES and place > begin:
                self._publish_all(came[begin:place])
                begin, nbytes = place, 0
            nbytes += len(each.payload)
        self._publish_all(came[begin:])
        with self._counts.changed:
            self._counts.changed.wait_for(lambda: self._counts.now["waiting"] == 0)

    def _publish_all(self, taken: Sequence[GatewayMessage]) -> None:
        for channel, rows in self._by_channel(taken).items():
            self._publish(channel, Rows.of(rows))

    def refuse(self, came: GatewayMessage, why: object) -> None:
        """Count a message that has come just now and cannot be used: a dead letter."""
        self._letters.add("in", [(came, _reason(why))])
        self._counts.add(received=1, refused=1)
        _finish([came])

    def _hand_over(self) -> None:
        """Hand over all that has come, in parts."""
        while True:
            taken: list[GatewayMessage] = []
            nbytes = 0
            with self._counts.changed:
                while self._inbox and len(taken) < self._options.batch_messages:
                    nbytes += self._inbox[0].nbytes
                    if taken and nbytes > PART_BYTES:
                        break
                    taken.append(self._inbox.popleft())
            if not taken:
                return
            self._publish_all(taken)

    def _by_channel(self, taken: Sequence[GatewayMessage]) -> dict[str | None, list[MessageRow]]:
        """Messages of each channel; those that cannot be read are given up."""
        found: dict[str | None, list[MessageRow]] = {}
        for came in taken:
            try:
                row = self.row_of(came)
            except Exception as error:  # an error of this message alone
                self._give_up([came], error)
            else:
                found.setdefault(row.channel, []).append(row)
        return found

    def _publish(self, channel: str | None, rows: Rows) -> None:
        try:
            table, apart_from = rows.published(self._steady()), self.apart_from
            published = self._hub.publish(table, channel=channel, when_busy="wait", apart_from=apart_from)
        except Exception as error:
            self._refused(channel, rows, error, may_be_notified=False)
        else:
            published.add_done_callback(partial(self._published, channel, rows))

    def _published(self, channel: str | None, rows: Rows, future: Future[Published]) -> None:
        """Count messages that were matched; called in the thread of the hub."""
        error = future.exception()
        if error is not None:
            self._refused(channel, rows, error, may_be_notified=not isinstance(error, TagMatchError))
            return
        matched = future.result().matched
        if self.answered is not None:
            self.answered(rows, future.result().answers)
        self._counts.add(waiting=-len(rows), matched=matched, unmatched=len(rows) - matched)
        if self.answered is not None:
            return
        self._release([came for came in rows.came if came.done is None])
        if awaited := [came for came in rows.came if came.done is not None]:
            self._when_sent(lambda: self._release(awaited))

    def _refused(self, channel: str | None, rows: Rows, error: BaseException, *, may_be_notified: bool) -> None:
        """Find the message that causes an error, unless the error is temporary."""
        members, middle = rows.came, 0 if rows.is_whole else len(rows) // 2
        is_late = channel is not None and isinstance(error, DeadlineMissed | Overloaded)
        if isinstance(error, ClosedError):
            # The service ends: the other side keeps what it does not hear of
            self._counts.add(waiting=-len(rows), dropped=len(rows))
            self._release(members, acknowledge=False)
        elif is_late or not middle or (may_be_notified and self._options.guarantee == "at_most_once"):
            self._give_up(members, error, len(rows))
        else:
            for some in (rows.part(0, middle), rows.part(middle, len(rows))):
                self._thread.submit(self._publish, channel, some)

    def _give_up(self, members: Sequence[GatewayMessage], error: BaseException, count: int = 1) -> None:
        if isinstance(error, DeadlineMissed | Overloaded):
            outcome = "dropped"
        elif isinstance(error, TagMatchError):
            outcome = "refused"
        else:
            outcome = "failed"
            _LOG.error("messages were not matched", exc_info=error)
        self._letters.add("in", [(came, _reason(error)) for came in members])
        self._counts.add(waiting=-count, **{outcome: count})
        self._release(members)

    def _release(self, members: Sequence[GatewayMessage], *, acknowledge: bool = True) -> None:
        """Let go of messages, and tell the other side that they need not come again."""
        if self.answered is not None:
            return
        if acknowledge:
            _finish(members)
        with self._counts.changed:
            self.held -= len(members)
            self._counts.now["waiting_bytes"] -= sum(came.nbytes for came in members)

    def wait(self, timeout: float) -> bool:
        """Wait until no message waits to be matched; whether that is so."""
        with self._counts.changed:
            return self._counts.changed.wait_for(lambda: self._counts.now["waiting"] == 0, timeout)


def _finish(members: Sequence[GatewayMessage]) -> None:
    for came in members:
        if came.done is not None:
            try:
                came.done()
            except Exception as error:  # of the connection; the message comes again
                _LOG.warning("a message was not acknowledged: %s", str(error))


def _reason(why: object) -> str:
    return f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)


# -- both --------------------------------------------------------------------------------------------------------------


class Gateway(ABC):
    """Between a hub and another broker; subclasses know how to talk with that one.

    Its session begins with its construction, so that it has all that is published from then on.
    """

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: GatewayOptions) -> None:
        self._index, self._hub, self.sessions, self.options = index, hub, sessions, options
        self.counts = Tallies(*_COUNTS)
        self.requests = Requests(index, self.counts, write=options.write, interval=options.consolidate_interval)
        self._letters = letters = DeadLetters(options.dead_letters, options.session, self.counts)
        self._connected, self._ended = threading.Event(), threading.Event()
        self._sending = Sending(self, letters, self.counts, self._connected)
        most_bytes = options.max_waiting_bytes
        if options.notifications:
            most_bytes = min(most_bytes, sessions.options.max_bytes // 2)
        self._handing_over = HandingOver(
            hub, options, most_bytes, letters, self.counts, self._sending.when_sent,
            plane=bool(index.stats()["plane"]), steady=sessions.steady,
        )  # fmt: skip
        self._most_bytes = most_bytes
        self._is_new, self._since = True, time.monotonic()
        self._has_gone_on = False  # whether anything came or went by the present connection
        self._connecting = threading.Thread(target=self._keep_connected, name="tagmatch-gateway", daemon=True)

    @abstractmethod
    def _run_connection(self) -> None:
        """Connect, call `_is_connected`, and raise when that connection has ended; return to have another at once."""

    @abstractmethod
    def _end_receiving(self) -> None:
        """Stop receiving messages; the connection stays."""

    @abstractmethod
    def _end(self) -> None:
        """End the connection."""

    @abstractmethod
    def why_unsendable(self, outgoing: KeyNotification) -> str | None:
        """Why the other side would not take a notification; `None` if nothing is known against it."""

    @abstractmethod
    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        """Send notifications, and wait until the other side has them; those that it refuses, each with the reason."""

    def _is_connected(self, connected: bool) -> None:
        """Called whenever the connection comes or goes."""
        if connected == self._connected.is_set():
            return
        self._since = time.monotonic()
        if connected:
            self.counts.add(connections=1)
            self._is_new = False
            self._connected.set()
            _LOG.info("connected", extra={"fields": self._named()})
        else:
            self._connected.clear()

    def _keep_connected(self) -> None:
        delay = self.options.retry_first
        while not self._ended.is_set():
            self._has_gone_on = False
            try:
                self._run_connection()
                self._is_connected(False)
                continue
            except Exception as error:
                if not isinstance(error, NoConnection | OSError | TagMatchError):
                    _LOG.exception("a connection has failed")
                why = str(error) or type(error).__name__  # its frames keep the connection
            self._is_connected(False)
            if self._ended.is_set():
                return
            self.counts.add(disconnections=1)
            fields = {**self._named(), "reason": why}
            _LOG.warning("no connection", extra={"fields": fields})
            if self._has_gone_on:
                delay = self.options.retry_first
            self._ended.wait(delay)
            delay = min(2 * delay, self.options.retry_most)

    def _named(self) -> dict[str, object]:
        return {"gateway": self.options.session, "broker": self.options.address}

    @property
    def is_ready(self) -> bool:
        """Whether nothing is against the service's being ready: a gateway that is required has a connection."""
        if not self.options.required or self._connected.is_set():
            return True
        return not self._is_new and time.monotonic() - self._since < GRACE_S

    @property
    def condition(self) -> str:
        """Whether there is a connection, in words."""
        if self._connected.is_set():
            return "connected"
        return f"not connected for {time.monotonic() - self._since:.0f} s"

    def receive(self, came: GatewayMessage, *, may_drop: bool) -> bool:
        """Take a message, as `HandingOver.receive` does; one of the gateway's own notifications is refused."""
        self._has_gone_on = True
        own = self.options.places.get("notifications")
        if own is not None and self.options.naming.overlap(own, came.topic):
            self._handing_over.refuse(came, "it is a notification of this gateway, which would come back for ever")
            return True
        return self._handing_over.receive(came, may_drop=may_drop)

    def _may_answer_to(self, place: str) -> bool:
        """Whether an answer to a request may go there: not to where messages, requests or notifications are."""
        naming = self.options.naming
        if self.options.is_place(place) and not any(
            naming.overlap(taken, place) for taken in self.options.places.values()
        ):
            return True
        fields = {"gateway": self.options.session, "topic": place[:200]}
        _LOG.warning("a request is not answered, as its answer cannot go there", extra={"fields": fields})
        return False

    def start(self) -> None:
        """Begin; returns at once, also where the other broker cannot be reached yet."""
        self._sending.start()
        self.requests.start()
        self._connecting.start()

    def stop_receiving(self, timeout: float) -> bool:
        """Take no more messages, and match those that wait; whether that was done within `timeout` seconds."""
        self._end_receiving()
        return self._handing_over.wait(timeout)

    def stop(self, timeout: float = 10.0) -> bool:
        """Take no more messages, send all notifications, and end; whether that was done within `timeout` seconds."""
        until = time.monotonic() + timeout
        is_whole = self.stop_receiving(timeout)
        is_whole &= self._sending.end(max(until - time.monotonic(), 0.0))
        self._ended.set()
        self._end()
        if self._connecting.is_alive():
            self._connecting.join(max(until - time.monotonic(), 1.0))
        self.requests.stop()
        return is_whole

    def stats(self) -> dict[str, int]:
        """Counts: docs/subscribers.md says of what."""
        return {"connected": int(self._connected.is_set()), **self.counts.stats()}
