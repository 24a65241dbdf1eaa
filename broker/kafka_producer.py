"""What a gateway sends to Kafka: it is delivered when the brokers have it, or one transaction is committed with it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import KeyNotification, Unsent
from tagmatch.broker.hub import Tallies
from tagmatch.broker.incoming import EXPIRES_IN, ID_HEADER
from tagmatch.model.errors import TagMatchError

try:
    from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
except ImportError:
    raise TagMatchError(
        "the Kafka gateway needs confluent-kafka; install it with: pip install 'tagmatch[kafka]'"
    ) from None

Place = tuple[str, int]
Header = tuple[str, bytes]
#: A topic, a payload, a key and headers
Outgoing = tuple[str, bytes, str | bytes | None, list[Header] | None]
#: A key and a payload that cannot be sent, and why
_Poison = dict[tuple[bytes, bytes], str]
# For room in the client's queue
_ROOM_S = 0.05
# Errors of a notification, or of another one in its batch of records, which is what brokers judge
_UNSENDABLE = (
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
)  # fmt: skip
# Errors of the topic of an answer, which a request names
_UNANSWERABLE = (
    KafkaError.TOPIC_EXCEPTION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)  # fmt: skip
# Errors of a missing connection
_DOWN = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION)


class Deliveries:
    """The producer of a gateway; a caller holds `lock`."""

    def __init__(self, options: KafkaOptions, counts: Tallies, ended: threading.Event) -> None:
        self._options, self._counts, self._ended = options, counts, ended
        self._is_exact = options.guarantee == "exactly_once"
        self._failed: list[tuple[Any, Any]] = []  # errors of deliveries, each with the record
        self._producer: Any = None
        self.lock = threading.RLock()
        #: Why the connection has ended
        self.down: str | None = None

    def settings(self) -> dict[str, Any]:
        """Settings of all clients of a gateway."""
        options = self._options
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

    def _producer_settings(self) -> dict[str, Any]:
        options = self._options
        own: dict[str, Any] = {
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
        }
        if self._is_exact:
            name = options.transactional_id or f"tagmatch-{options.group}-{uuid.uuid4().hex}"
            own |= {"transactional.id": name, "transaction.timeout.ms": max(ms(2 * options.flush_timeout), 1000)}
        own["message.timeout.ms"] = ms(options.flush_timeout)
        # That an answer has no topic to go to is known before a message to it is late
        none_ms = max(ms(options.flush_timeout) // 2, 1)
        return {"linger.ms": 1, "topic.metadata.propagation.max.ms": none_ms, **self.settings(), **own}

    def _on_error(self, error: Any) -> None:
        if error.code() in _DOWN or error.fatal():
            self.down = error.str()

    def _on_failure(self, error: Any, record: Any) -> None:
        if error is not None:
            self._failed.append((error, record))

    def connect(self) -> None:
        """Begin anew; KafkaException."""
        self.down, seconds = None, self._options.flush_timeout
        producer = Producer(self._producer_settings())
        producer.list_topics(timeout=seconds)
        if self._is_exact:
            self._until_done(lambda: producer.init_transactions(seconds))
        with self.lock:
            self._producer = producer
            self._failed.clear()

    def end(self) -> None:
        """Let go of the client, which ends with its threads once nothing refers to it: its callbacks refer to this."""
        with self.lock:
            self._producer = None

    def poll(self) -> None:
        """Look for errors."""
        with self.lock:
            self._producer.poll(0)

    def deliver(
        self, make: Callable[[], Iterable[Outgoing]], ends: dict[Place, int] | None = None, consumer: Any = None
    ) -> list[tuple[KeyNotification, str]]:
        """Produce everything, with a consumer's offsets; what cannot be sent, or Unsent.

        What brokers do not take together is sent one by one, and given up if it fails alone.
        """
        if self._producer is None:
            raise Unsent("there is no connection")
        poison, alone = _Poison(), _Poison()
        while True:
            self._failed.clear()
            try:
                if self._is_exact:
                    self._producer.begin_transaction()
                refused = self._produce(make(), poison, alone)
                late = self._unsendable()
                if not self._is_exact:
                    return refused + (self._failing_alone(make(), late) if late else [])
                if not late:
                    self._commit_transaction(ends, consumer)
                    return refused
            except KafkaException as error:
                fault = error.args[0]
                if fault.fatal():
                    self.down = fault.str()
                self._abort()
                raise Unsent(fault.str()) from None
            except SystemError as error:  # the client's form of an error that ends it, within a call
                self.down = str(error.__cause__ or error)
                raise Unsent(self.down) from None
            except Unsent:
                self._abort()
                raise
            self._abort()  # and again without payloads that brokers do not take alone
            payloads = {payload: why for (key, payload), why in late.items() if (key, payload) in alone}
            poison |= {what: payloads[what[1]] for what in alone if what[1] in payloads}
            alone |= late

    def _failing_alone(self, outgoing: Iterable[Outgoing], alone: _Poison) -> list[tuple[KeyNotification, str]]:
        """Send those again that were not taken together; those that are not taken alone either."""
        self._failed.clear()
        self._produce((each for each in outgoing if (_bytes_of(each[2]), each[1]) in alone), {}, alone)
        topic = self._options.notifications
        return [(_notification(topic, *each), why) for each, why in self._unsendable().items()]

    def _flush(self) -> None:
        if self._producer.flush(self._options.flush_timeout + 1.0):
            raise Unsent("the brokers did not answer in time")

    def _produce(
        self, outgoing: Iterable[Outgoing], poison: _Poison, alone: _Poison
    ) -> list[tuple[KeyNotification, str]]:
        """Send everything, some of it alone, until a transaction fails; refused notifications and poison, with reasons.

        After a notification that brokers do not take, the client takes nothing more in a transaction.
        """
        produce, refused = self._producer.produce, []
        for topic, payload, key, headers in outgoing:
            what = (_bytes_of(key), payload) if alone else None
            why, until, is_alone = poison.get(what) if what else None, 0.0, what in alone
            if is_alone:
                self._flush()
            if self._is_exact and self._failed:
                break
            while why is None:
                try:
                    produce(topic, payload, key, headers=headers)
                    break
                except BufferError:  # as long as brokers take some, the others wait for room
                    until = until or time.monotonic() + self._options.flush_timeout
                    if time.monotonic() > until:
                        raise Unsent("the client's queue is full") from None
                    self._producer.poll(_ROOM_S)
                    self._unsendable()
                except KafkaException as error:
                    if self._is_exact and self._failed:
                        break
                    if not self._is_unsendable(error.args[0], topic):
                        raise
                    why = error.args[0].str()
            if why is not None:
                refused.append((_notification(topic, key, payload), why))
            elif is_alone:
                self._flush()
        self._flush()
        return refused

    def _is_unsendable(self, error: Any, topic: str) -> bool:
        """Whether an error would come again; of an answer, also one of its topic."""
        is_answer = topic not in (self._options.notifications, self._options.dead_letter_topic)
        return error.code() in _UNSENDABLE or (is_answer and error.code() in _UNANSWERABLE)

    def _unsendable(self) -> _Poison:
        """What the brokers did not take, and would not take again; Unsent if something else has failed."""
        found, others = _Poison(), list[str]()
        for error, record in self._failed:
            if self._is_unsendable(error, record.topic()):
                found[_bytes_of(record.key()), record.value() or b""] = error.str()
            else:
                others.append(error.str())
        if others and not (found and self._is_exact):
            raise Unsent(others[0])
        return found

    def _commit_transaction(self, ends: dict[Place, int] | None, consumer: Any) -> None:
        producer, seconds = self._producer, self._options.flush_timeout
        if ends:
            offsets, group = offsets_of(ends), consumer.consumer_group_metadata()
            self._until_done(lambda: producer.send_offsets_to_transaction(offsets, group, seconds))
        self._until_done(lambda: producer.commit_transaction(seconds))

    def _abort(self) -> None:
        """End a transaction whose work is done again."""
        if not self._is_exact:
            return
        self._counts.add(aborted=1)
        try:
            self._until_done(lambda: self._producer.abort_transaction(self._options.flush_timeout))
        except KafkaException as error:  # another connection begins anew, which ends the transaction
            self.down = error.args[0].str()

    def _until_done(self, act: Callable[[], object]) -> None:
        """Do something again as long as Kafka says that it may be, or has not heard of its outcome."""
        until = time.monotonic() + 3 * self._options.flush_timeout
        while True:
            try:
                act()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._ended.is_set() or time.monotonic() > until:
                    raise


def ms(seconds: float) -> int:
    """Milliseconds, as settings have them."""
    return max(int(seconds * 1000), 1)


def offsets_of(ends: dict[Place, int]) -> list[Any]:
    """Offsets by partition, as the client takes them."""
    return [TopicPartition(*place, offset) for place, offset in ends.items()]


def _bytes_of(key: str | bytes | None) -> bytes:
    return key.encode() if isinstance(key, str) else key or b""


def _notification(topic: str, key: str | bytes | None, payload: bytes) -> KeyNotification:
    return KeyNotification(topic, payload, None, None, False, key=_bytes_of(key).decode(errors="replace"))


def headers_of(
    id_: bytes | None, seconds_left: float | None, content_type: str | None, *, redelivered: bool = False
) -> list[Header] | None:
    """The headers of a notification."""
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
