"""A gateway to Kafka: messages come in by a consumer group, are matched in rounds, and notifications go to a topic.

A round is what the consumer has: it is matched, its notifications and dead letters are produced, and its offsets are
committed when the brokers have them; exactly once, all of it in one transaction. A round that fails comes again. What
others publish goes out by the gateway's session, as in other gateways.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.broker.cloudevents import STRUCTURED, notification
from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import FEWER, Gateway, KeyNotification, NoConnection, Unsent
from tagmatch.broker.hub import Hub
from tagmatch.broker.incoming import ID_HEADER, GatewayMessage, Rows
from tagmatch.broker.kafka_producer import Deliveries, Outgoing, Place, headers_of, ms, offsets_of
from tagmatch.broker.kafka_values import Values, with_headers
from tagmatch.broker.outbox import lengths_of
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import InvalidValueError, TagMatchError

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
except ImportError:
    raise TagMatchError(
        "the Kafka gateway needs confluent-kafka; install it with: pip install 'tagmatch[kafka]'"
    ) from None

_LOG = logging.getLogger("tagmatch.gateways")
# Between looks whether the gateway is to stop, and how far it lags
_LOOK_S, _LAG_S = 0.1, 1.0
# Tries of a round with the same notifications; and by which part rounds grow again
_MOST_TRIES, _SLOWLY = 3, 16
# Errors of topics that are missing, which may be made later
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class _Round(NamedTuple):
    """What came together: offsets by partition, and its outcome."""

    begins: dict[Place, int]
    ends: dict[Place, int]
    answers: list[tuple[Rows, pa.ListArray | None]]
    letters: list[tuple[GatewayMessage, str]]


class KafkaGateway(Gateway):
    """A gateway to Kafka; see `Gateway`."""

    options: KafkaOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: KafkaOptions) -> None:
        super().__init__(index, hub, sessions, options)
        self.counts.now.update(rebalances=0, aborted=0, lag=0, paused=0)
        self._deliveries = Deliveries(options, self.counts, self._ended)
        self._values = Values(options, self._most_bytes, sessions.steady, plane=bool(index.stats()["plane"]))
        self._round = _Round({}, {}, [], [])
        self._handing_over.answered = lambda rows, answers: self._round.answers.append((rows, answers))
        self._handing_over.row_of = self._values.row_of
        self._letters.keep = self._keep_letters
        # Of the present connection
        self._assigned: set[Place] = set()
        self._next: dict[Place, int] = {}  # offsets behind the finished records
        self._paused: dict[Place, float] = {}  # until when the registry is not asked for their schemas
        self._delay = options.retry_first
        self._receives = True
        # Messages of a round: fewer after one that could not be sent, then slowly more
        self._limit = self._most = min(options.batch_messages, options.max_waiting)
        self._looked = 0.0
        try:
            Consumer(self._consumer_settings()).close()  # so that wrong options are an error at once
        except KafkaException as error:
            raise InvalidValueError(f"options: {error.args[0].str()}") from None

    # -- the connection ------------------------------------------------------------------------------------------------

    def _consumer_settings(self) -> dict[str, Any]:
        own = {
            "group.id": self.options.group,
            "session.timeout.ms": ms(self.options.session_timeout),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        return {"auto.offset.reset": "earliest", **self._deliveries.settings(), **own}

    def _run_connection(self) -> None:
        self._assigned, self._next, self._paused = set(), {}, {}
        consumer = None
        try:
            self._deliveries.connect()
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
            self._deliveries.end()

    def _consume(self, consumer: Any) -> None:
        while not self._ended.is_set():
            if self._deliveries.down is not None:
                raise NoConnection(self._deliveries.down)
            if consumer is None or not self._receives:
                self._ended.wait(_LOOK_S)
                self._deliveries.poll()
                continue
            if records := consumer.consume(self._most, _LOOK_S):
                self._has_gone_on = True
                self._carry_out(consumer, records)
            if self._paused:
                self._resume(consumer, [place for place, until in self._paused.items() if until <= time.monotonic()])
            self._look_at_lag(consumer)

    def _on_assign(self, _: Any, partitions: Sequence[Any]) -> None:
        self._assigned |= {(each.topic, each.partition) for each in partitions}
        self.counts.add(rebalances=1)

    def _on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        with contextlib.suppress(KafkaException):  # their messages come again, to the partition's new owner
            self._commit(consumer, [(each.topic, each.partition) for each in partitions], asynchronous=False)
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Any, partitions: Sequence[Any]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self._resume(consumer, [place for place in places if place in self._paused])
        for place in places:
            self._assigned.discard(place)
            self._next.pop(place, None)

    def _commit(self, consumer: Any, places: Sequence[Place], *, asynchronous: bool) -> None:
        found = {each: self._next[each] for each in places if each in self._next}
        if found and self.options.guarantee != "exactly_once":
            consumer.commit(offsets=offsets_of(found), asynchronous=asynchronous)

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
        records = self._readable(consumer, [*map(with_headers, self._own(records))])
        places = [(record.topic(), record.partition()) for record in records]
        offsets = [record.offset() for record in records]
        begins = dict(zip(reversed(places), reversed(offsets), strict=True))
        ends = {place: offset + 1 for place, offset in zip(places, offsets, strict=True)}
        self._round = found = _Round(begins, ends, [], [])
        self._handing_over.apart_from = self._sending.session_number
        control = self.options.control
        requests = [record for record in records if record.topic() == control] if control else []
        read = self._values.read([record for record in records if record.topic() != control] if requests else records)
        for came, why in read.refused:
            self._handing_over.refuse(came, why)
        unread, count = len(found.letters), len(read.messages) + sum(map(len, read.rows))
        self._handing_over.match(read.messages, read.rows)
        answered = sum(len(rows) for rows, _ in found.answers)
        if answered + self._given_up(found.letters[unread:], read.rows) < count:
            self._again(consumer, found)  # the service ends
            self._ended.wait(_LOOK_S)
            return
        replies = [reply for each in requests if (reply := self._reply_to(each)) is not None]
        for _ in range(_MOST_TRIES):
            due = [*self._due()]
            try:
                with self._deliveries.lock:
                    refused = self._deliveries.deliver(partial(self._outgoing, due, replies), found.ends, consumer)
            except Unsent as error:
                # A handler of logs may keep what it gets, and an error has the frames that have the client
                _LOG.warning("notifications were not sent: %s", str(error))
                self.counts.add(unsent=len(due))
                if self._deliveries.down is not None or self._ended.wait(self.options.retry_first):
                    break
            else:
                self._most = min(self._most + self._most // _SLOWLY + 1, self._limit)
                self._next |= found.ends
                self._commit(consumer, list(found.ends), asynchronous=True)
                self.counts.add(sent=len(due) - len(refused), unsendable=len(refused))
                if refused:
                    self._letters.add("out", refused)
                return
        self._most = max(min(self._most, len(records)) // FEWER, 1)
        self._again(consumer, found)

    @staticmethod
    def _given_up(letters: Sequence[tuple[GatewayMessage, str]], rows: Sequence[Rows]) -> int:
        """How many messages were given up: all those that one record has, with it."""
        counts = {id(each.came[0].record): len(each) for each in rows if each.is_whole}
        return sum(counts.get(id(came.record), 1) for came, _ in letters)

    def _again(self, consumer: Any, found: _Round) -> None:
        """Let the messages of a round come again, as far as their partitions are still the gateway's."""
        for place, offset in found.begins.items():
            if place in self._assigned:
                consumer.seek(TopicPartition(*place, offset))  # if that fails, another connection begins anew

    def _own(self, records: Sequence[Any]) -> Sequence[Any]:
        """The records that are no errors, and of the gateway's partitions: others come to other gateways."""
        errors = [error for record in records if (error := record.error()) is not None]
        for error in errors:
            if error.code() not in _NO_TOPIC and not error.retriable():
                raise KafkaException(error)
        if not errors and {(record.topic(), record.partition()) for record in records} <= self._assigned:
            return records
        return [
            record
            for record in records
            if record.error() is None and (record.topic(), record.partition()) in self._assigned
        ]

    def _readable(self, consumer: Any, records: Sequence[Any]) -> Sequence[Any]:
        """The records before those whose schema cannot be had now; their partitions wait."""
        if not self.options.registry:
            return records
        waiting, why = self._values.waiting([each for each in records if each.topic() != self.options.control])
        if not waiting:
            self._delay = self.options.retry_first if records else self._delay
            return records
        firsts = {(record.topic(), record.partition()): record.offset() for record in reversed(waiting)}
        until = time.monotonic() + self._delay
        _LOG.warning("%d partitions wait for %.1f s: %s", len(firsts), self._delay, why)
        self._delay = min(2 * self._delay, self.options.retry_most)
        for place, offset in firsts.items():
            consumer.pause([TopicPartition(*place)])
            consumer.seek(TopicPartition(*place, offset))
            self._paused[place] = until
        self._count_paused()
        return [
            record
            for record in records
            if record.offset() < firsts.get((record.topic(), record.partition()), record.offset() + 1)
        ]

    def _resume(self, consumer: Any, places: Sequence[Place]) -> None:
        with contextlib.suppress(KafkaException):
            consumer.resume([TopicPartition(*place) for place in places])
        for place in places:
            del self._paused[place]
        self._count_paused()

    def _count_paused(self) -> None:
        with self.counts.changed:
            self.counts.now["paused"] = len(self._paused)

    # -- what a round sends --------------------------------------------------------------------------------------------

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
        return topic, answer, record.key(), own

    def _due(self) -> Iterator[Outgoing]:
        """What the round's answers notify of, without messages that have expired."""
        for rows, answers in self._round.answers:
            if answers is not None:
                places = np.repeat(np.arange(len(rows)), lengths_of(answers)).tolist()
                yield from self._notifications(rows, places, answers.flatten())

    def _notifications(self, rows: Rows, places: Sequence[int], given: pa.Array) -> Iterable[Outgoing]:
        """A notification for each key, each of the message at a place."""
        topic, payloads, are_events = self.options.notifications, rows.payloads, self.options.form == "cloudevents"
        keys = given.cast(pa.large_string()).to_pylist()
        if rows.until is None and not are_events and not any(rows.ids):
            return zip(repeat(topic), map(payloads.__getitem__, places), keys, repeat(None))
        found, steady, headers, last = list[Outgoing](), self.sessions.steady(), None, -1
        for place, key, own in zip(places, keys, given.to_pylist() if are_events else keys, strict=True):
            until, payload = None if rows.until is None else rows.until[place], payloads[place]
            if until is not None and until <= steady:
                continue
            if place != last:
                left = None if until is None else (until - steady) / 1e6
                headers, last = headers_of(rows.ids[place], left, STRUCTURED if are_events else None), place
            if are_events:
                payload = notification(payload, [own], f"{self.options.messages}-{key}", self.options.session)
            found.append((topic, payload, key, headers))
        return found

    def _outgoing(self, due: Sequence[Outgoing], replies: Sequence[Outgoing]) -> Iterator[Outgoing]:
        """Everything that a round sends: notifications, dead letters and answers to requests."""
        return chain(due, self._letters_out(), replies)

    def _letters_out(self) -> Iterator[Outgoing]:
        """Dead letters for their topic."""
        if not self.options.dead_letter_topic:
            return
        for came, reason in self._round.letters:
            record = came.record
            origin = {
                "reason": reason, "gateway": self.options.session,
                "topic": record.topic(), "partition": record.partition(), "offset": record.offset(),
            }  # fmt: skip
            own = ((f"dead-letter-{name}", str(what).encode()) for name, what in origin.items())
            headers = [*(record.headers() or ()), *own]
            yield self.options.dead_letter_topic, record.value() or b"", record.key(), headers

    # -- notifications of others ---------------------------------------------------------------------------------------

    def why_unsendable(self, outgoing: KeyNotification) -> str | None:  # noqa: ARG002
        """The client of Kafka says so itself."""
        return None

    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        """Send what others have published, and wait until the brokers have it; exactly once, in a transaction."""
        topic = self.options.notifications
        with self._deliveries.lock:
            refused = self._deliveries.deliver(
                lambda: (
                    (topic, each.payload, each.key,
                     headers_of(each.id, each.seconds_left, each.content_type, redelivered=each.redelivered))
                    for each in outgoing
                )
            )  # fmt: skip
        self._has_gone_on = True
        return refused
