"""A gateway to Kafka: messages come in by a consumer group, are matched in rounds, and notifications go to a topic.

A round is what the consumer has: it is matched, its notifications and dead letters are produced, and its offsets are
committed when the brokers have them; exactly once, all of it in one transaction. A round that fails comes again. What
others publish goes out by the gateway's session, as in other gateways.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from tagmatch.broker.cloudevents import STRUCTURED, notification
from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import Gateway, KeyNotification, NoConnection, Unsent
from tagmatch.broker.hub import Hub
from tagmatch.broker.incoming import EXPIRES_IN, ID_HEADER, GatewayMessage, MessageRow, id_and_end
from tagmatch.broker.outbox import lengths_of
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import InvalidValueError, TagMatchError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
except ImportError:
    raise TagMatchError(
        "the Kafka gateway needs confluent-kafka; install it with: pip install 'tagmatch[kafka]'"
    ) from None

_LOG = logging.getLogger("tagmatch.gateways")
Place = tuple[str, int]
Header = tuple[str, bytes]
#: A topic, a payload, a key and headers
Outgoing = tuple[str, bytes, str | None, list[Header] | None]
# A message, its keys, and the seconds until it expires
_Due = tuple[GatewayMessage, list[str], float | None]
# Between looks whether the gateway is to stop, and how far it lags
_LOOK_S, _LAG_S = 0.1, 1.0
# For room in the client's queue; and tries of a round with the same notifications
_ROOM_S, _MOST_TRIES = 0.05, 3
# Errors of a single notification, which would come each time
_UNSENDABLE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD)
# Errors of a missing connection; topics that are missing may be made later
_DOWN = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION)
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class _Round(NamedTuple):
    """What came together: offsets by partition, and its outcome."""

    begins: dict[Place, int]
    ends: dict[Place, int]
    messages: list[GatewayMessage]
    requests: list[Any]
    answers: list[tuple[list[MessageRow], pa.ListArray | None]]
    letters: list[tuple[GatewayMessage, str]]


class KafkaGateway(Gateway):
    """A gateway to Kafka; see `Gateway`."""

    options: KafkaOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: KafkaOptions) -> None:
        super().__init__(index, hub, sessions, options)
        self.counts.now.update(rebalances=0, aborted=0, lag=0)
        self._is_exact = options.guarantee == "exactly_once"
        self._round = _Round({}, {}, [], [], [], [])
        self._handing_over.answered = lambda rows, answers: self._round.answers.append((rows, answers))
        self._letters.keep = self._keep_letters
        # Of the present connection
        self._producer: Any = None
        self._producing = threading.RLock()
        self._assigned: set[Place] = set()
        self._next: dict[Place, int] = {}  # offsets behind the finished records
        self._failed: list[tuple[Any, Any]] = []  # errors of deliveries, each with the record
        self._down: str | None = None
        self._receives = True
        self._looked = 0.0
        try:
            Consumer(self._consumer_settings()).close()  # so that wrong options are an error at once
        except KafkaException as error:
            raise InvalidValueError(f"options: {error.args[0].str()}") from None

    # -- the connection ------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        options = self.options
        found: dict[str, Any] = {"bootstrap.servers": options.address, "error_cb": self._on_error}
        found["security.protocol"] = ("sasl_" if options.username else "") + ("ssl" if options.tls else "plaintext")
        if options.tls_ca is not None:
            found["ssl.ca.location"] = options.tls_ca
        if options.username is not None:
            found |= {
                "sasl.mechanism": options.sasl_mechanism,
                "sasl.username": options.username,
                "sasl.password": options.password or "",
            }
        return found | options.passed_on

    def _consumer_settings(self) -> dict[str, Any]:
        own = {
            "group.id": self.options.group,
            "session.timeout.ms": _ms(self.options.session_timeout),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        return {"auto.offset.reset": "earliest", **self._settings(), **own}

    def _producer_settings(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
        }
        if self._is_exact:
            name = self.options.transactional_id or f"tagmatch-{self.options.group}-{uuid.uuid4().hex}"
            own |= {"transactional.id": name, "transaction.timeout.ms": max(_ms(2 * self.options.flush_timeout), 1000)}
        own["message.timeout.ms"] = _ms(self.options.flush_timeout)
        return {"linger.ms": 1, **self._settings(), **own}

    def _on_error(self, error: Any) -> None:
        if error.code() in _DOWN or error.fatal():
            self._down = error.str()

    def _on_failure(self, error: Any, record: Any) -> None:
        if error is not None:
            self._failed.append((error, record))

    def _run_connection(self) -> None:
        seconds = self.options.flush_timeout
        self._down, self._assigned, self._next = None, set(), {}
        producer = Producer(self._producer_settings())
        consumer = None
        try:
            producer.list_topics(timeout=seconds)
            if self._is_exact:
                self._until_done(lambda: producer.init_transactions(seconds))
            with self._producing:
                self._producer = producer
                self._failed.clear()
            if topics := [topic for topic in (self.options.messages, self.options.control) if topic]:
                consumer = Consumer(self._consumer_settings())
                consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
            self._is_connected(True)
            self._consume(consumer)
        except KafkaException as error:
            raise NoConnection(error.args[0].str()) from None
        finally:
            self._is_connected(False)
            if consumer is not None:
                consumer.close()

    def _consume(self, consumer: Any) -> None:
        most = min(self.options.batch_messages, self.options.max_waiting)
        while not self._ended.is_set():
            if self._down is not None:
                raise NoConnection(self._down)
            if consumer is None or not self._receives:
                self._ended.wait(_LOOK_S)
                with self._producing:
                    self._producer.poll(0)
                continue
            if records := consumer.consume(most, _LOOK_S):
                self._has_gone_on = True
                self._carry_out(consumer, records)
            self._look_at_lag(consumer)

    def _on_assign(self, _: Any, partitions: Sequence[Any]) -> None:
        self._assigned |= {(each.topic, each.partition) for each in partitions}
        self.counts.add(rebalances=1)

    def _on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        with contextlib.suppress(KafkaException):  # their messages come again, to the partition's new owner
            self._commit(consumer, [(each.topic, each.partition) for each in partitions], asynchronous=False)
        self._on_lost(consumer, partitions)

    def _on_lost(self, _: Any, partitions: Sequence[Any]) -> None:
        for each in partitions:
            self._assigned.discard((each.topic, each.partition))
            self._next.pop((each.topic, each.partition), None)

    def _commit(self, consumer: Any, places: Sequence[Place], *, asynchronous: bool) -> None:
        if not self._is_exact and (found := {each: self._next[each] for each in places if each in self._next}):
            consumer.commit(offsets=_offsets(found), asynchronous=asynchronous)

    def _look_at_lag(self, consumer: Any) -> None:
        """How many messages of the gateway's partitions are not done with, as far as the client knows."""
        if time.monotonic() - self._looked < _LAG_S:
            return
        self._looked, lag = time.monotonic(), 0
        with contextlib.suppress(KafkaException):
            for place in list(self._assigned):
                low, high = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                lag += max(high - self._next.get(place, low), 0)
        with self.counts.changed:
            self.counts.now["lag"] = lag

    def _end_receiving(self) -> None:
        self._receives = False

    def _end(self) -> None: ...

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _carry_out(self, consumer: Any, records: Sequence[Any]) -> None:
        """Match the records, and commit them with their notifications; else they come again."""
        self._round = found = _Round({}, {}, [], [], [], [])
        self._handing_over.apart_from = self._sending.session_number
        self._sort(records)
        unread = len(found.letters)
        self._handing_over.match(found.messages)
        if sum(len(rows) for rows, _ in found.answers) + len(found.letters) - unread < len(found.messages):
            self._again(consumer, found)  # the service ends
            self._ended.wait(_LOOK_S)
            return
        replies = [reply for each in found.requests if (reply := self._reply_to(each)) is not None]
        for _ in range(_MOST_TRIES):
            due = self._due()
            count = sum(len(keys) for _, keys, _ in due)
            try:
                with self._producing:
                    refused = self._deliver(partial(self._outgoing, due, replies), found.ends, consumer)
            except Unsent as error:
                _LOG.warning("notifications were not sent: %s", error)
                self.counts.add(unsent=count)
                if self._down is not None or self._ended.wait(self.options.retry_first):
                    break
            else:
                self._next |= found.ends
                self._commit(consumer, list(found.ends), asynchronous=True)
                self.counts.add(sent=count - len(refused), unsendable=len(refused))
                if refused:
                    self._letters.add("out", refused)
                return
        self._again(consumer, found)

    def _again(self, consumer: Any, found: _Round) -> None:
        """Let the messages of a round come again, as far as their partitions are still the gateway's."""
        with contextlib.suppress(KafkaException):
            for place, offset in found.begins.items():
                if place in self._assigned:
                    consumer.seek(TopicPartition(*place, offset))

    def _sort(self, records: Sequence[Any]) -> None:
        """What records are: messages, requests, or what cannot be read."""
        begins, ends, messages, requests, *_ = self._round
        assigned, control, steady = self._assigned, self.options.control, self.sessions.steady()
        for record in records:
            if (error := record.error()) is not None:
                if error.code() in _NO_TOPIC or error.retriable():
                    continue
                raise KafkaException(error)
            topic, offset = record.topic(), record.offset()
            place = topic, record.partition()
            if place not in assigned:  # it is another gateway's now, to which it comes
                continue
            begins.setdefault(place, offset)
            ends[place] = offset + 1
            if topic == control:
                requests.append(record)
                continue
            payload = record.value() or b""
            try:
                headers = [(name, (value or b"").decode()) for name, value in record.headers() or ()]
                id_, until = id_and_end(headers, steady)
                if len(payload) > self._most_bytes:
                    raise InvalidValueError(f"it has {len(payload):,} bytes, more than max_waiting_bytes allow")
            except (UnicodeDecodeError, InvalidValueError) as error:  # of this message alone
                why = error if isinstance(error, InvalidValueError) else f"its headers are no UTF-8: {error}"
                self._handing_over.refuse(GatewayMessage((), payload, topic=topic, record=record), why)
            else:
                messages.append(GatewayMessage(headers, payload, id_, until, None, topic, record))

    def _keep_letters(self, given_up: Sequence[tuple[GatewayMessage, str]]) -> bool:
        """Keep letters until they are sent to their topic with the round; whether there is such a topic."""
        self._round.letters.extend(given_up)
        return bool(self.options.dead_letter_topic)

    def _reply_to(self, record: Any) -> Outgoing | None:
        """Carry a request out; the answer, if it says where that goes."""
        answer, headers = self.requests.answer(record.value() or b""), dict(record.headers() or ())
        topic = (headers.get("reply-to") or b"").decode(errors="replace")
        if not topic or not self._may_answer_to(topic):
            return None
        own = [(ID_HEADER, headers[ID_HEADER])] if headers.get(ID_HEADER) is not None else []
        key = record.key()
        return topic, answer, None if key is None else key.decode(errors="replace"), own

    def _due(self) -> list[_Due]:
        """What the round's answers notify of, without messages that have expired."""
        found, steady = list[_Due](), self.sessions.steady()
        for rows, answers in self._round.answers:
            if answers is None:
                continue
            keys, begin = answers.flatten().cast(pa.large_string()).to_pylist(), 0
            for row, count in zip(rows, lengths_of(answers).tolist(), strict=True):
                sent = row.sent
                left = None if sent.until is None else (sent.until - steady) / 1e6
                if count and (left is None or left > 0):
                    found.append((sent, keys[begin : begin + count], left))
                begin += count
        return found

    def _outgoing(self, due: Sequence[_Due], replies: Sequence[Outgoing]) -> Iterator[Outgoing]:
        """Everything that a round sends: notifications, dead letters and answers to requests."""
        options, content_type = self.options, None
        if are_events := options.form == "cloudevents":
            content_type = STRUCTURED
        for sent, keys, left in due:
            payload, headers = sent.payload, _headers(sent.id, left, content_type)
            for key in keys:
                if are_events:
                    payload = notification(sent.payload, [key], f"{sent.topic}-{key}", options.session)
                yield options.notifications, payload, key, headers
        if options.dead_letter_topic:
            for came, reason in self._round.letters:
                yield self._letter(came.record, reason)
        yield from replies

    def _letter(self, record: Any, reason: str) -> Outgoing:
        origin = {
            "reason": reason, "gateway": self.options.session,
            "topic": record.topic(), "partition": record.partition(), "offset": record.offset(),
        }  # fmt: skip
        headers = [
            *(record.headers() or ()),
            *((f"dead-letter-{name}", str(what).encode()) for name, what in origin.items()),
        ]
        return self.options.dead_letter_topic, record.value() or b"", record.key(), headers

    # -- notifications -------------------------------------------------------------------------------------------------

    def why_unsendable(self, outgoing: KeyNotification) -> str | None:  # noqa: ARG002
        """The client of Kafka says so itself."""
        return None

    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        """Send what others have published, and wait until the brokers have it; exactly once, in a transaction."""
        if not self._connected.is_set():
            raise Unsent("there is no connection")
        topic = self.options.notifications
        with self._producing:
            refused = self._deliver(
                lambda: (
                    (topic, each.payload, each.key,
                     _headers(each.id, each.seconds_left, each.content_type, redelivered=each.redelivered))
                    for each in outgoing
                )
            )  # fmt: skip
        self._has_gone_on = True
        return refused

    def _deliver(
        self, make: Callable[[], Iterator[Outgoing]], ends: dict[Place, int] | None = None, consumer: Any = None
    ) -> list[tuple[KeyNotification, str]]:
        """Produce everything, with a consumer's offsets; what cannot be sent, or Unsent. Under `_producing`."""
        poison: dict[tuple[bytes, bytes], str] = {}
        while True:
            self._failed.clear()
            try:
                if self._is_exact:
                    self._producer.begin_transaction()
                refused = self._produce(make(), poison)
                if self._producer.flush(self.options.flush_timeout + 1.0):
                    raise Unsent("the brokers did not answer in time")
                late = self._unsendable()
                if not self._is_exact:
                    topic = self.options.notifications
                    return refused + [(_notification(topic, *each), why) for each, why in late.items()]
                if not late:
                    self._commit_transaction(ends, consumer)
                    return refused
            except KafkaException as error:
                fault = error.args[0]
                if fault.fatal():
                    self._down = fault.str()
                self._abort()
                raise Unsent(fault.str()) from None
            except SystemError as error:  # the client's form of an error that ends it, within a call
                self._down = str(error.__cause__ or error)
                raise Unsent(self._down) from None
            except Unsent:
                self._abort()
                raise
            self._abort()  # and again without what brokers do not take
            poison |= late

    def _produce(
        self, outgoing: Iterator[Outgoing], poison: dict[tuple[bytes, bytes], str]
    ) -> list[tuple[KeyNotification, str]]:
        """Hand everything to the client of Kafka; returns refused notifications and poison, with the reasons."""
        produce, refused = self._producer.produce, []
        until = time.monotonic() + self.options.flush_timeout
        for topic, payload, key, headers in outgoing:
            why = poison.get((_bytes_of(key), payload)) if poison else None
            while why is None:
                try:
                    produce(topic, payload, key, headers=headers)
                    break
                except BufferError:
                    if time.monotonic() > until:
                        raise Unsent("the client's queue is full") from None
                    self._producer.poll(_ROOM_S)
                except KafkaException as error:
                    if error.args[0].code() not in _UNSENDABLE:
                        raise
                    why = error.args[0].str()
            if why is not None:
                refused.append((_notification(topic, key, payload), why))
        return refused

    def _unsendable(self) -> dict[tuple[bytes, bytes], str]:
        """What the brokers did not take, and would not take again; Unsent if something else has failed."""
        found, others = {}, list[str]()
        for error, record in self._failed:
            if error.code() in _UNSENDABLE:
                found[_bytes_of(record.key()), record.value() or b""] = error.str()
            else:
                others.append(error.str())
        if others and not (found and self._is_exact):
            raise Unsent(others[0])
        return found

    def _commit_transaction(self, ends: dict[Place, int] | None, consumer: Any) -> None:
        producer, seconds = self._producer, self.options.flush_timeout
        if ends:
            offsets, group = _offsets(ends), consumer.consumer_group_metadata()
            self._until_done(lambda: producer.send_offsets_to_transaction(offsets, group, seconds))
        self._until_done(lambda: producer.commit_transaction(seconds))

    def _abort(self) -> None:
        """End a transaction whose work is done again."""
        if not self._is_exact:
            return
        self.counts.add(aborted=1)
        try:
            self._until_done(lambda: self._producer.abort_transaction(self.options.flush_timeout))
        except KafkaException as error:  # another connection begins anew, which ends the transaction
            self._down = error.args[0].str()

    def _until_done(self, act: Callable[[], object]) -> None:
        """Do something again as long as Kafka says that it may be, or has not heard of its outcome."""
        until = time.monotonic() + 3 * self.options.flush_timeout
        while True:
            try:
                act()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._ended.is_set() or time.monotonic() > until:
                    raise


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def _offsets(ends: dict[Place, int]) -> list[Any]:
    return [TopicPartition(*place, offset) for place, offset in ends.items()]


def _bytes_of(key: str | bytes | None) -> bytes:
    return key.encode() if isinstance(key, str) else key or b""


def _notification(topic: str, key: str | bytes | None, payload: bytes) -> KeyNotification:
    return KeyNotification(topic, payload, None, None, False, key=_bytes_of(key).decode(errors="replace"))


def _headers(
    id_: bytes | None, seconds_left: float | None, content_type: str | None, *, redelivered: bool = False
) -> list[Header] | None:
    headers = []
    if id_ is not None:
        headers.append((ID_HEADER, id_))
    if content_type is not None:
        headers.append(("content-type", content_type.encode()))
    if seconds_left is not None:
        headers.append((EXPIRES_IN, f"{max(seconds_left, 0.001):.3f}".encode()))
    if redelivered:
        headers.append(("redelivered", b"true"))
    return headers or None
