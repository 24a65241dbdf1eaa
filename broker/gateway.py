"""What gateways have in common: messages come in and are matched in batches, notifications go out by key."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tagmatch.broker.config import GatewayOptions
from tagmatch.broker.hub import Hub
from tagmatch.broker.incoming import DeadLetters, GatewayMessage, HandingOver, Requests
from tagmatch.broker.sessions import SessionConnection, Sessions
from tagmatch.model.errors import SlowSubscriberError, TagMatchError

_LOG = logging.getLogger("tagmatch.gateways")
# Between looks whether the gateway is to stop
_LOOK_S = 0.1
# After something that was not foreseen
_PAUSE_S = 1.0
#: Bytes that are sent together, and connections that one notification may end
_MOST_BYTES = 4 << 20
_MOST_TRIES = 5
#: So many times fewer are sent together after a connection has ended
_FEWER = 4
#: Whose the sessions of gateways are; no user has that name
SUBSCRIBER = "\0gateway"
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


class Sending:
    """Sends the notifications in the outbox of a gateway, in a separate thread."""

    def __init__(self, gateway: Gateway, letters: DeadLetters, connected: threading.Event) -> None:
        self._gateway, self._letters = gateway, letters
        self._sessions, self._options = gateway.sessions, gateway.options
        self._connected, self._ending = connected, threading.Event()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._awaiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._session: SessionConnection  # where notifications go out
        # Notifications that are taken together; fewer up to an offset, where a connection has ended
        self._most, self._fewer_until = self._options.batch_messages, 0
        # How many times the connection has ended after the notification of this offset and number
        self._suspect, self._tries = (0, 0), 0
        self._thread = threading.Thread(target=self._run, name="tagmatch-gateway-out", daemon=True)

    def start(self) -> None:
        """Begin the session, if notifications go out, and send; SessionError if the session cannot be had."""
        if self._options.notifications:
            self._session = self._connect()
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
            options.session, SUBSCRIBER, every_key=True, guarantee=options.guarantee, when_full=options.when_full
        )

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
                _LOG.warning("notifications were not sent: %s", error)
            except Exception:  # none is foreseen; what it is of comes again, or is gone if it comes at most once
                if is_last:
                    break
                _LOG.exception("notifications were not sent")
                self._ending.wait(_PAUSE_S)
            try:
                self._session = self._connect()  # so that unacknowledged notifications are delivered again
            except Exception as error:  # the service ends
                _LOG.warning("notifications cannot be sent: %s", error)
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
                self._most, self._fewer_until = max(most // _FEWER, 1), max(self._fewer_until, last)
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
                self._count(unsent=len(sendable))
                raise
            self._give_up(refused)
            self._count(sent=len(sendable) - len(refused))

    def _give_up(self, unsendable: Sequence[tuple[KeyNotification, str]]) -> None:
        if unsendable:
            self._letters.add("out", unsendable)
            self._count(unsendable=len(unsendable))

    def _outgoing(self, taken: pa.RecordBatch) -> list[KeyNotification]:
        now, naming, prefix = self._sessions.now(), self._options.naming, self._options.notifications
        found = []
        columns = ("redelivered", "id", "payload", "keys")
        expiries = taken["expires"].cast(pa.int64()).to_pylist()
        lists = zip(*(taken[name].to_pylist() for name in columns), expiries, strict=True)
        for redelivered, id_, payload, keys, expires in lists:
            left = None if expires is None else (expires - now) / 1e6
            for key in keys:
                topic = f"{prefix}{naming.separator}{naming.level(str(key))}"
                found.append(KeyNotification(topic, payload or b"", id_, left, redelivered))
        return found

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def stats(self) -> dict[str, int]:
        """Counts: notifications of one key each that were `sent`, `unsent` as the connection ended, `unsendable`."""
        with self._lock:
            return {name: self._counts[name] for name in ("sent", "unsent", "unsendable")}


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


class Gateway(ABC):
    """Between a hub and another broker; subclasses know how to talk with that one."""

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: GatewayOptions) -> None:
        self._index, self._hub, self.sessions, self.options = index, hub, sessions, options
        self.requests = Requests(index, options.write, options.consolidate_interval)
        self._letters = DeadLetters(options.dead_letters, options.session)
        self._connected, self._ended = threading.Event(), threading.Event()
        self._sending = Sending(self, self._letters, self._connected)
        most_bytes = options.max_waiting_bytes
        if options.notifications:
            most_bytes = min(most_bytes, sessions.options.max_bytes // 2)
        self._handing_over = HandingOver(
            hub, options, most_bytes, self._letters, self._sending.when_sent,
            plane=bool(index.stats()["plane"]), steady=sessions.steady,
        )  # fmt: skip
        self._most_bytes = most_bytes
        self._connections = self._failures = 0
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
            self._connections += 1
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
            except (NoConnection, OSError, TagMatchError) as error:
                why: object = error
            except Exception as error:
                _LOG.exception("a connection has failed")
                why = error
            self._is_connected(False)
            if self._ended.is_set():
                return
            self._failures += 1
            fields = {**self._named(), "reason": str(why) or type(why).__name__}
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
        if naming.is_usable(place, wildcards=False) and not any(
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
        self._handing_over.start()
        self._connecting.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Take no more messages, send all notifications, and end; whether that was done within `timeout` seconds."""
        until = time.monotonic() + timeout
        self._end_receiving()
        is_whole = self._handing_over.wait(timeout)
        self._handing_over.end()
        is_whole &= self._sending.end(max(until - time.monotonic(), 0.0))
        self._ended.set()
        self._end()
        self._connecting.join(max(until - time.monotonic(), 1.0))
        self.requests.stop()
        return is_whole

    def stats(self) -> dict[str, int]:
        """Counts."""
        return {
            "connected": int(self._connected.is_set()),
            "connections": self._connections,
            "disconnections": self._failures,
            **self._handing_over.stats(),
            **self._sending.stats(),
            **self._letters.stats(),
            **self.requests.stats(),
        }
