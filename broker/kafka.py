"""A gateway to Kafka: a topic of messages comes in by a consumer group, notifications go to a topic, by key.

At least once: an offset is committed when it and all before it in its partition are done with, that is when the
notifications of their messages are acknowledged by the brokers. What is not done with comes again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import Gateway, KeyNotification, NoConnection, Unsent
from tagmatch.broker.hub import Hub
from tagmatch.broker.incoming import GatewayMessage
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import InvalidValueError, TagMatchError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
except ImportError:
    raise TagMatchError(
        "the Kafka gateway needs confluent-kafka; install it with: pip install 'tagmatch[kafka]'"
    ) from None

#: Headers of messages and of notifications, as with NATS
_ID, _EXPIRES_IN = "id", "expires-in"
_LONGEST_S = 2.0**32
# Between looks whether the gateway is to stop, and whether it has room again
_LOOK_S, _ROOM_S = 0.1, 0.005
# Errors of a single notification, which would come each time
_UNSENDABLE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)


class _Offsets:
    """Which messages of one partition are done with, since it was assigned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: deque[int] = deque()
        self._done: set[int] = set()

    def give(self, offset: int) -> None:
        with self._lock:
            self._given.append(offset)

    def done(self, offset: int) -> None:
        with self._lock:
            self._done.add(offset)

    def to_commit(self) -> int | None:
        """The offset behind all that are done with, if that is further than the last time."""
        found = None
        with self._lock:
            while self._given and self._given[0] in self._done:
                offset = self._given.popleft()
                self._done.remove(offset)
                found = offset + 1
        return found


class KafkaGateway(Gateway):
    """A gateway to Kafka; see `Gateway`."""

    options: KafkaOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: KafkaOptions) -> None:
        super().__init__(index, hub, sessions, options)
        self.counts.now["rebalances"] = 0
        # Of the present connection
        self._producer: Any = None
        self._offsets: dict[tuple[str, int], _Offsets] = {}  # of the partitions that are assigned
        self._waiting: deque[Any] = deque()  # records for which there is no room yet
        self._down: str | None = None
        self._receives = True

    def _settings(self) -> dict[str, Any]:
        options = self.options
        found: dict[str, Any] = {"bootstrap.servers": options.address, "error_cb": self._on_error}
        if options.tls_ca is not None:
            found["ssl.ca.location"] = options.tls_ca
        found["security.protocol"] = ("sasl_" if options.username else "") + ("ssl" if options.tls else "plaintext")
        if options.username is not None:
            found |= {
                "sasl.mechanism": options.sasl_mechanism,
                "sasl.username": options.username,
                "sasl.password": options.password or "",
            }
        return found

    def _on_error(self, error: Any) -> None:
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION) or error.fatal():
            self._down = error.str()

    def _run_connection(self) -> None:
        settings, seconds = self._settings(), self.options.flush_timeout
        self._down, self._offsets = None, {}
        self._waiting.clear()
        timeout = {"message.timeout.ms": max(int(seconds * 1000), 1)}
        producer = Producer({**settings, **timeout, "enable.idempotence": True, "linger.ms": 1})
        consumer = None
        try:
            producer.list_topics(timeout=seconds)
            self._producer = producer
            if self.options.messages:
                consumer = Consumer(
                    {
                        **settings,
                        "group.id": self.options.group,
                        "session.timeout.ms": max(int(self.options.session_timeout * 1000), 1),
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "auto.offset.reset": "earliest",
                    }
                )
                consumer.subscribe(
                    [self.options.messages],
                    on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost,
                )  # fmt: skip
            self._is_connected(True)
            self._consume(consumer)
        except KafkaException as error:
            raise NoConnection(error.args[0].str()) from None
        finally:
            self._is_connected(False)
            if consumer is not None:
                consumer.close()

    def _consume(self, consumer: Any) -> None:
        was_full = False
        while not self._ended.is_set():
            if self._down is not None:
                raise NoConnection(self._down)
            if consumer is None:
                self._ended.wait(_LOOK_S)
                self._producer.poll(0)
                continue
            # A consumer that is paused lives on in its group; partitions that are assigned then are not paused yet
            is_full = bool(self._waiting) or not self._receives
            if is_full or was_full:
                (consumer.pause if is_full else consumer.resume)(consumer.assignment())
            was_full = is_full
            self._waiting.extend(consumer.consume(self.options.batch_messages, _ROOM_S if is_full else _LOOK_S))
            while self._waiting and self._receives and self._take(self._waiting[0]):
                self._waiting.popleft()
            self._commit(consumer, list(self._offsets), asynchronous=True)

    def _take(self, record: Any) -> bool:
        """Hand a record over; whether there was room for it."""
        if (error := record.error()) is not None:
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # it may come to be
                return True
            raise KafkaException(error)
        offset = record.offset()
        offsets = self._offsets.get((record.topic(), record.partition()))
        if offsets is None:  # its partition is another gateway's now, to which it comes
            return True
        done = partial(offsets.done, offset)
        try:
            came = self._incoming(record, done)
        except Exception as error:  # an error of this message alone
            came = GatewayMessage((), record.value() or b"", done=done, topic=record.topic())
            self._handing_over.refuse(came, error)
        else:
            if not self.receive(came, may_drop=False):
                return False
        offsets.give(offset)
        return True

    def _incoming(self, record: Any, done: Any) -> GatewayMessage:
        try:
            headers = [(name, (value or b"").decode()) for name, value in record.headers() or ()]
        except UnicodeDecodeError as error:
            raise InvalidValueError(f"its headers are no UTF-8: {error}") from None
        of_name, until = dict(headers), None
        if (text := of_name.get(_EXPIRES_IN)) is not None:
            try:
                seconds = min(max(float(text), 0.0), _LONGEST_S)
                until = self.sessions.steady() + int(seconds * 1e6)
            except ValueError:
                raise InvalidValueError(f"header {_EXPIRES_IN!r} must be seconds, not {text[:60]!r}") from None
        id_ = of_name.get(_ID)
        own = None if id_ is None else id_.encode()
        return GatewayMessage(headers, record.value() or b"", own, until, done, record.topic())

    def _commit(self, consumer: Any, places: Sequence[tuple[str, int]], *, asynchronous: bool) -> None:
        found = {place: self._offsets[place].to_commit() for place in places if place in self._offsets}
        if offsets := [TopicPartition(*place, offset) for place, offset in found.items() if offset is not None]:
            consumer.commit(offsets=offsets, asynchronous=asynchronous)

    def _on_assign(self, _: Any, partitions: Sequence[Any]) -> None:
        self._offsets |= {(each.topic, each.partition): _Offsets() for each in partitions}
        self.counts.add(rebalances=1)

    def _on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        with contextlib.suppress(KafkaException):  # their messages come again, to the partition's new owner
            self._commit(consumer, places, asynchronous=False)
        self._on_lost(consumer, partitions)

    def _on_lost(self, _: Any, partitions: Sequence[Any]) -> None:
        lost = {(each.topic, each.partition) for each in partitions}
        for place in lost:
            self._offsets.pop(place, None)
        kept = [each for each in self._waiting if (each.topic(), each.partition()) not in lost]
        self._waiting.clear()
        self._waiting.extend(kept)

    def _end_receiving(self) -> None:
        self._receives = False

    def _end(self) -> None: ...

    def why_unsendable(self, outgoing: KeyNotification) -> str | None:  # noqa: ARG002
        """The client of Kafka says so itself."""
        return None

    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        """Send these, and wait until the brokers have them."""
        if not self._connected.is_set():
            raise Unsent("there is no connection")
        producer, refused, unsent, left = self._producer, [], list[str](), len(outgoing)

        def on_delivery(each: KeyNotification, error: Any, _: Any) -> None:
            nonlocal left
            left -= 1
            if error is None:
                return
            if error.code() in _UNSENDABLE:
                refused.append((each, error.str()))
            else:
                unsent.append(error.str())

        for each in outgoing:
            heard = partial(on_delivery, each)
            try:
                producer.produce(
                    self.options.notifications, each.payload, each.key, headers=_headers(each), on_delivery=heard
                )
            except BufferError:
                raise Unsent("the client's queue is full") from None
            except KafkaException as error:
                heard(error.args[0], None)
        producer.flush(self.options.flush_timeout + 1.0)
        if unsent or left:
            raise Unsent(unsent[0] if unsent else "the brokers did not answer in time")
        self._has_gone_on = True
        return refused


def _headers(each: KeyNotification) -> list[tuple[str, bytes]]:
    headers = []
    if each.id is not None:
        headers.append((_ID, each.id))
    if each.content_type is not None:
        headers.append(("content-type", each.content_type.encode()))
    if each.seconds_left is not None:
        headers.append((_EXPIRES_IN, f"{max(each.seconds_left, 0.001):.3f}".encode()))
    if each.redelivered:
        headers.append(("redelivered", b"true"))
    return headers
