"""The gateway to Kafka, with the cluster of three brokers that librdkafka plays."""

import gc
import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from support.agreement import loaded
from support.gateway_sides import letters_in, running_on
from support.kafka_cluster import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    PRODUCE,
    Cluster,
)
from support.schema_registry import Registry
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import Unsent
from tagmatch.broker.kafka import KafkaGateway
from tagmatch.model.errors import InvalidTypeError, InvalidValueError


class _Side:
    @staticmethod
    def gateway(tm, hub, sessions, port, **options):
        own = {
            "messages": "in",
            "notifications": "out",
            "retry_first": 0.05,
            "retry_most": 0.2,
            "session_timeout": 6.0,
            **options,
        }
        return KafkaGateway(tm, hub, sessions, KafkaOptions(port=port, **own))


@pytest.fixture
def cluster():
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "ignored"})
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    producer.list_topics("in", timeout=10)
    producer.list_topics("out", timeout=10)
    yield producer, broker.port
    producer.flush(5)


def put(producer, payloads, headers=(("tag", b"a"),)):
    for each in payloads:
        producer.produce("in", each, headers=headers and list(headers))
    assert producer.flush(20) == 0


@contextmanager
def reader(port, *topics):
    group = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([*topics] or ["out"])
    try:
        yield consumer
    finally:
        consumer.close()


def payloads_of(consumer, wanted, seconds=40):
    got, until = [], time.monotonic() + seconds
    while not wanted <= {each.value() for each in got} and time.monotonic() < until:
        got += consumer.consume(1000, 0.2)
    return got


@contextmanager
def gateway(port, **options):
    tm, _ = loaded([(("a",), 7)])
    with tm, running_on(_Side, tm, port, **options) as (found, _):
        yield found


def test_each_message_becomes_a_notification_with_its_key_and_its_id(cluster):
    producer, port = cluster
    sent = {b"%d" % number for number in range(2000)}
    put(producer, sent, [("tag", b"a"), ("id", b"mine")])
    with gateway(port) as found, reader(port) as consumer:
        got = payloads_of(consumer, sent)
        assert Counter(each.value() for each in got) == Counter(sent)
        assert {(each.key(), dict(each.headers())["id"]) for each in got} == {(b"7", b"mine")}
        counts = found.stats()
        assert (counts["received"], counts["matched"], counts["sent"]) == (2000, 2000, 2000)


def test_messages_that_have_expired_are_not_counted_as_sent(cluster):
    producer, port = cluster
    sent = {b"%d" % number for number in range(10)}
    put(producer, [b"late"] * 10, [("tag", b"a"), ("expires-in", b"0")])
    put(producer, sent)
    with gateway(port) as found, reader(port) as consumer:
        assert Counter(each.value() for each in payloads_of(consumer, sent)) == Counter(sent)
        wait_until(lambda: found.stats()["lag"] == 0)
        counts = found.stats()
        assert (counts["matched"], counts["sent"], counts["unsent"]) == (20, 10, 0)


def test_what_cannot_be_read_is_a_dead_letter_and_holds_up_nothing(cluster, tmp_path):
    producer, port = cluster
    put(producer, [b"{", b"[]", b'{"tags": [1]}', b'{"tag": ["a"]}', b"\xff"], [])
    put(producer, [b'{"tags": ["a"]}'], [("id", b"\xff")])
    good = {b'{"tags": ["a"], "attributes": {"n": %d}}' % number for number in range(50)}
    put(producer, [*good, b'{"tags": ["a"], "attributes": {"n": "%s"}}' % (b"x" * 5000)], [])
    letters = tmp_path / "letters"
    options = {"form": "json", "dead_letters": str(letters), "max_waiting_bytes": 4000}
    with gateway(port, **options) as found, reader(port) as consumer:
        assert {each.value() for each in payloads_of(consumer, good)} == good
        wait_until(lambda: found.stats()["refused"] == 7)
        assert len(letters_in(letters)) == 7
        assert all(each["reason"] for each in letters_in(letters))


def test_a_service_that_starts_again_loses_nothing_and_repeats_nothing_that_was_committed(cluster):
    producer, port = cluster
    first, second = ({b"%d-%d" % (part, number) for number in range(500)} for part in (1, 2))
    with reader(port) as consumer:
        put(producer, first)
        with gateway(port):
            got = payloads_of(consumer, first)
        put(producer, second)
        with gateway(port) as found:
            got += payloads_of(consumer, second)
            assert found.stats()["received"] == 500
        assert {each.value() for each in got} == first | second


def test_offsets_stay_until_the_brokers_have_the_notifications(cluster, monkeypatch):
    producer, port = cluster
    sent = {b"%d" % number for number in range(200)}
    put(producer, sent)

    def send(*_):
        raise Unsent("not now")

    with monkeypatch.context() as patch:
        patch.setattr(KafkaGateway, "send", send)
        with gateway(port) as found:
            wait_until(lambda: found.stats()["matched"] == len(sent))
            time.sleep(0.5)  # several looks for what may be committed
    with gateway(port), reader(port) as consumer:
        assert {each.value() for each in payloads_of(consumer, sent)} == sent


def test_two_gateways_of_a_group_share_messages_and_one_takes_over_from_the_other(cluster):
    producer, port = cluster
    sent = {b"%d" % number for number in range(3000)}
    with ExitStack() as stack, reader(port) as consumer:
        stack.enter_context(gateway(port))
        with gateway(port):
            put(producer, sorted(sent)[:1500])
            time.sleep(1)
        put(producer, sorted(sent)[1500:])
        assert {each.value() for each in payloads_of(consumer, sent)} == sent


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"messages": "in/a"}, "messages must be"),
        ({"messages": "+"}, "messages must be one topic"),
        ({"messages": "in", "control": "c/d"}, "control must be"),
        ({"messages": "in", "transactional_id": "one"}, "transactional_id needs guarantee = 'exactly_once'"),
        ({"messages": "in", "dead_letter_topic": "in"}, "dead_letter_topic must be another topic"),
        ({"messages": "in", "dead_letter_topic": "a b"}, "dead_letter_topic must be one topic"),
        ({"messages": "in", "options": {"acks": 1}}, "options: 'acks' cannot be given: notifications would be lost"),
        ({"messages": "in", "options": {"group.id": "a"}}, "'group.id' cannot be given: give group"),
        ({"messages": "in", "options": {"sasl.password": "a"}}, "is a secret: write 'env:NAME' or 'file:PATH'"),
        ({"messages": "in", "username": "a", "options": {"sasl.mechanism": "PLAIN"}}, "say how the gateway logs in"),
        ({"messages": "in", "options": {"fetch.min.bytes": [1]}}, "must be a text, a number or a bool"),
        ({"messages": "in", "guarantee": "at_most_once"}, "guarantee must be"),
        ({"messages": "in", "sasl_mechanism": "plain"}, "sasl_mechanism must be"),
    ],
)
def test_wrong_options_are_refused(options, why):
    with pytest.raises((InvalidTypeError, InvalidValueError), match=why):
        KafkaOptions(**options)


def test_events_in_headers_are_messages_and_notifications_are_events(cluster):
    producer, port = cluster
    event = {"ce_specversion": "1.0", "ce_type": "order", "ce_source": "/shop", "ce_id": "n1", "ce_tag": "a"}
    producer.produce("in", b"{}", headers={**event, "content-type": "application/json"})
    assert producer.flush(20) == 0
    with gateway(port, form="cloudevents"), reader(port) as consumer:
        got = []
        wait_until(lambda: got.extend(consumer.consume(10, 0.2)) or got)
    (found,) = got
    assert dict(found.headers())["content-type"].startswith(b"application/cloudevents+json")
    assert json.loads(found.value())["specversion"] == "1.0"


def test_messages_for_which_there_is_no_room_wait_with_the_brokers(cluster):
    producer, port = cluster
    sent = {b"%d" % number for number in range(300)}
    put(producer, sent)
    with gateway(port, max_waiting=7, batch_messages=50) as found, reader(port) as consumer:
        got = payloads_of(consumer, sent)
        assert Counter(each.value() for each in got) == Counter(sent)
        assert found.stats()["dropped"] == 0


@pytest.mark.parametrize(("guarantee", "queue"), [("exactly_once", 20), ("at_least_once", 100_000)])
def test_more_than_brokers_take_in_the_time_for_one_goes_out_all_the_same(guarantee, queue):
    """Whether it waits in the client's queue, or for room there."""
    with closing(Cluster()) as brokers:
        for topic in ("in", "out"):
            brokers.topic(topic, 1)
        sent = {b"%d" % number for number in range(150)}
        put(Producer({"bootstrap.servers": brokers.servers}), sent)
        brokers.answer_after(100)
        slow = {"batch.num.messages": 10, "max.in.flight": 1, "queue.buffering.max.messages": queue}
        more = {"guarantee": guarantee, "flush_timeout": 1.0, "options": slow}
        with gateway(brokers.port, **more) as found, reader(brokers.port) as consumer:
            wait_until(lambda: found.stats()["sent"] == len(sent), 120)
            assert {each.value() for each in payloads_of(consumer, sent)} == sent


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_what_is_too_large_together_is_sent_one_by_one(guarantee):
    """Brokers judge a batch of records, and the client says so of each of them."""
    with closing(Cluster()) as brokers:
        for topic in ("in", "out"):
            brokers.topic(topic, 1)
        sent = {b"%d" % number for number in range(50)}
        options = {"linger.ms": 100, "batch.num.messages": 50}
        with gateway(brokers.port, guarantee=guarantee, options=options) as found, reader(brokers.port) as consumer:
            producer = Producer({"bootstrap.servers": brokers.servers, "linger.ms": 100})
            for payloads, errors, (count, given_up) in (
                ({b"first"}, (), (1, 0)),
                (sent, (TOO_LARGE,), (51, 0)),
                ({b"too large alone"}, (TOO_LARGE, TOO_LARGE), (51, 1)),
                ({b"last"}, (), (52, 1)),
            ):
                with found._deliveries.lock:  # so that no error is of the messages
                    put(producer, payloads)
                    brokers.fail(PRODUCE, *errors)
                names = ("sent", "unsendable")
                wait_until(lambda: [found.stats()[name] for name in names] == [count, given_up])  # noqa: B023
            wanted = {b"first", b"last", *sent}
            assert {each.value() for each in payloads_of(consumer, wanted)} >= wanted


def test_a_round_that_cannot_be_sought_again_comes_by_another_connection(monkeypatch):

    class Deaf(Consumer):
        sought = 0

        def seek(self, partition):
            Deaf.sought += 1
            if Deaf.sought == 1:
                raise KafkaException(KafkaError(KafkaError._STATE))
            super().seek(partition)

    monkeypatch.setattr("tagmatch.broker.kafka.Consumer", Deaf)
    with closing(Cluster()) as brokers:
        for topic in ("in", "out"):
            brokers.topic(topic)
        sent = {b"%d" % number for number in range(100)}
        with gateway(brokers.port, flush_timeout=5.0) as found, reader(brokers.port) as consumer:
            deliver = found._deliveries.deliver

            def refuse(*more):
                if not Deaf.sought:
                    raise Unsent("not now")
                return deliver(*more)

            monkeypatch.setattr(found._deliveries, "deliver", refuse)
            put(Producer({"bootstrap.servers": brokers.servers, "linger.ms": 50}), sent)
            assert {each.value() for each in payloads_of(consumer, sent)} == sent
            assert found.stats()["connections"] == 2


class Recording(Producer):
    """Says in a header of each record which transaction it is of, and remembers those that were committed."""

    number, committed = 0, set[bytes]()

    def begin_transaction(self):
        Recording.number += 1
        super().begin_transaction()

    def produce(self, topic, value, key=None, headers=None):
        super().produce(topic, value, key, headers=[*(headers or ()), ("txn", b"%d" % Recording.number)])

    def commit_transaction(self, *more):
        super().commit_transaction(*more)
        Recording.committed.add(b"%d" % Recording.number)


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setattr("tagmatch.broker.kafka_producer.Producer", Recording)
    Recording.committed.clear()
    cluster = Cluster()
    for topic in ("in", "out", "dead"):
        cluster.topic(topic)
    yield cluster
    cluster.close()


#: Errors of a coordinator that is busy, of a rebalance, of rights, and of another producer with this name
BUSY, GENERATION, RIGHTS, FENCED = 14, 22, 29, 90
TOO_LARGE = 10


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [(END, BUSY, BUSY), (ADD_PARTITIONS, BUSY)],
        [(COMMIT_OFFSETS, GENERATION)],
        [(PRODUCE, RIGHTS, RIGHTS)],
        [(ADD_PARTITIONS, FENCED)],
        [(PRODUCE, RIGHTS), (COMMIT_OFFSETS, GENERATION), (ADD_OFFSETS, BUSY)],
    ],
)
def test_exactly_once_each_message_is_in_one_committed_transaction(failing, faults):
    """Also when transactions are aborted, or another gateway has taken the name over."""
    producer = Producer({"bootstrap.servers": failing.servers})
    sent = {b"%d" % number for number in range(600)}
    put(producer, sent)
    put(producer, [b"poison"], [("tag", b"a"), ("expires-in", b"soon")])
    for fault in faults:
        failing.fail(*fault)
    port = int(failing.servers.split(",")[0].rpartition(":")[2])
    options = {
        "guarantee": "exactly_once", "transactional_id": "one", "batch_messages": 100, "dead_letter_topic": "dead",
        "host": failing.servers,
    }  # fmt: skip
    with gateway(port, **options) as found, reader(port, "out", "dead") as consumer:
        came: list[Any] = []

        def committed():
            came.extend(consumer.consume(1000, 0.2))
            return [each for each in came if dict(each.headers())["txn"] in Recording.committed]

        wait_until(lambda: len(committed()) >= len(sent) + 1)
        wait_until(lambda: found.stats()["lag"] == 0)
        counts = Counter(each.value() for each in committed())
        assert counts == Counter([*sent, b"poison"])
        (letter,) = (dict(each.headers()) for each in committed() if each.topic() == "dead")
        assert letter["dead-letter-reason"].startswith(b"InvalidValueError: header 'expires-in' must be seconds")
        assert (letter["dead-letter-topic"], letter["tag"]) == (b"in", b"a")
        stats = found.stats()
        assert stats["sent"] == 600
        assert (stats["dead_letters"], stats["dead_letters_unwritten"]) >= (1, 0)
        errors = {fault[1] for fault in faults}
        assert (stats["aborted"] > 0) >= (not errors.isdisjoint({GENERATION, RIGHTS}))
        assert (stats["connections"] > 1) == (FENCED in errors)


def threads_of_clients():
    """How many threads librdkafka has."""
    count = 0
    for each in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            count += (each / "comm").read_text().startswith("rdk")
    return count


@pytest.mark.parametrize("options", [{}, {"guarantee": "exactly_once"}])
def test_a_gateway_that_has_ended_leaves_no_client_that_still_connects(cluster, options):
    """Also if nothing collects garbage; a client ends its threads only when nothing refers to it."""
    producer, port = cluster
    put(producer, [b"one"])
    gc.collect()
    before = threads_of_clients()
    gc.disable()
    try:
        with gateway(port, **options) as found:
            wait_until(lambda: found.stats()["sent"] == 1)
            assert threads_of_clients() > before
        wait_until(lambda: threads_of_clients() <= before, 10)
    finally:
        gc.enable()


def test_requests_come_by_a_topic_and_are_answered_to_another(cluster):
    producer, port = cluster
    for topic in ("control", "answers"):
        producer.list_topics(topic, timeout=10)
    requests = [{"action": "subscribe", "key": 8, "tags": ["b"]}, {"action": "nothing"}]
    for number, each in enumerate(requests):
        headers = [("reply-to", b"answers"), ("id", b"%d" % number)]
        producer.produce("control", json.dumps(each).encode(), headers=headers)
    assert producer.flush(20) == 0
    with gateway(port, control="control", write=True) as found, reader(port, "answers") as consumer:
        got = payloads_of(consumer, {b'{"ok": true, "staged": 1}'})
        wait_until(lambda: found.stats()["requests"] == 2)
        while len(got) < 2:
            got += consumer.consume(10, 0.2)
        answers = {dict(each.headers())["id"]: json.loads(each.value())["ok"] for each in got}
        assert answers == {b"0": True, b"1": False}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_an_answer_that_cannot_go_where_it_is_wanted_holds_up_nothing(cluster, guarantee):
    producer, port = cluster
    producer.list_topics("control", timeout=10)
    put(producer, [b"one"])
    for topic in (b"x" * 600, b"no topic", b"..", b"\xff"):
        producer.produce("control", b'{"action": "nothing"}', headers=[("reply-to", topic)])
    assert producer.flush(20) == 0
    with gateway(port, control="control", guarantee=guarantee) as found, reader(port, "out") as consumer:
        wait_until(lambda: found.stats()["requests"] == 4)
        put(producer, [b"two"])
        got = [each.value() for each in payloads_of(consumer, {b"one", b"two"})]
        stats = found.stats()
    assert sorted(got) == [b"one", b"two"]
    assert (stats["requests"], stats["unsent"], stats["sent"]) == (4, 0, 2)


def test_what_others_publish_goes_out_too_and_messages_from_kafka_reach_other_sessions(cluster):
    producer, port = cluster
    for guarantee in ("at_least_once", "exactly_once"):
        tm, _ = loaded([(("a",), 7)])
        options = {"guarantee": guarantee, "group": guarantee}
        with tm, running_on(_Side, tm, port, **options) as (found, sessions), reader(port) as consumer:
            other = sessions.connect("other", "ana", keys=[7])
            mine, its = guarantee.encode(), b"kafka " + guarantee.encode()
            found._hub.publish([["a"]], [mine])
            put(producer, [its])
            payloads_of(consumer, {mine, its})
            told = set()
            while not {mine, its} <= told:
                told |= set(other.take(10, timeout=20)["payload"].to_pylist())


def test_secrets_of_options_come_from_files_and_the_environment(tmp_path, monkeypatch):
    (tmp_path / "word").write_text("of a file\n")
    monkeypatch.setenv("WORD", "of the environment")
    given = {"ssl.key.password": f"file:{tmp_path}/word", "sasl.password": "env:WORD", "fetch.min.bytes": 2}
    found = KafkaOptions(messages="in", host="a,b:1,::1", options=given)
    assert [*found.passed_on.values()] == ["of a file", "of the environment", 2]
    assert found.address == "a:9092,b:1,[::1]:9092"
    with pytest.raises(InvalidValueError, match="there is no environment variable 'NONE'"):
        _ = KafkaOptions(messages="in", options={"client.id": "env:NONE"}).passed_on


def test_an_option_that_the_client_does_not_know_is_an_error_at_the_start(cluster):
    tm, _ = loaded([(("a",), 7)])
    wrong = {"options": {"no.such": 1}}
    with (
        tm,
        pytest.raises(InvalidValueError, match="options: No such conf"),
        running_on(_Side, tm, cluster[1], **wrong),
    ):
        pass


OFFER = {"type": "record", "name": "Offer", "fields": [{"name": "tags", "type": {"type": "array", "items": "string"}}]}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_messages_wait_while_the_registry_is_away_and_others_go_on(cluster, guarantee):
    producer, port = cluster
    producer.list_topics("dead", timeout=10)
    with closing(Registry()) as registry:
        first, second = (registry.avro(number, {**OFFER, "doc": str(number)}) for number in (1, 2))
        known = [first({"tags": ["a", str(number)]}) for number in range(400)]
        new = [second({"tags": ["a", str(number)]}) for number in range(400)]
        options = {"form": "json", "registry": registry.url, "guarantee": guarantee, "dead_letter_topic": "dead"}
        with gateway(port, **options) as found, reader(port) as consumer, reader(port, "dead") as dead:
            put(producer, known[:100], None)
            got = payloads_of(consumer, {*known[:100]})
            registry.is_up = False
            for number in range(50):
                producer.produce("in", known[100 + number], partition=0)
                producer.produce("in", new[number], partition=1)
            producer.produce("in", b"bad", partition=0)
            assert producer.flush(20) == 0
            got += payloads_of(consumer, {*known[100:150]})
            wait_until(lambda: found.stats()["paused"] == 1)
            assert {each.value() for each in got} == {*known[:150]}
            wait_until(lambda: found.stats()["refused"] == 1)
            registry.is_up = True
            put(producer, known[150:] + new[50:], None)
            got += payloads_of(consumer, {*known[150:], *new})
            wait_until(lambda: found.stats()["lag"] == 0)
            assert Counter(each.value() for each in got) == Counter([*known, *new])
            assert (found.stats()["refused"], found.stats()["paused"]) == (1, 0)
            (letter,) = payloads_of(dead, {b"bad"})
            reason = dict(letter.headers())["dead-letter-reason"]
            assert reason.startswith(b"InvalidValueError: the value must begin with a zero byte")


def test_a_value_of_arrow_has_many_messages_and_is_given_up_as_a_whole(cluster):
    producer, port = cluster
    producer.list_topics("dead", timeout=10)

    def stream(tags, **more):
        table = pa.table({"tags": tags, "payload": [str(number) for number in range(len(tags))], **more})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    # Of the second message, an attribute is too great
    wrong = stream([["a"], ["a"]], n=pa.array([1, 2**64 - 1], pa.uint64()))
    put(producer, [wrong, b"ARROW", stream([["a"], ["b"], ["a", "b"]] * 100)], None)
    with gateway(port, form="arrow", dead_letter_topic="dead") as found, reader(port, "out", "dead") as consumer:
        sent = {b"%d" % number for number in range(300) if number % 3 != 1}
        got = payloads_of(consumer, {*sent, wrong, b"ARROW"})
        assert Counter(each.value() for each in got) == Counter([*sent, wrong, b"ARROW"])
        counts = found.stats()
        assert (counts["matched"], counts["unmatched"], counts["sent"]) == (200, 100, 200)
        assert (counts["refused"], counts["dead_letters"], counts["waiting"]) == (3, 2, 0)


@pytest.mark.slow
def test_a_service_that_is_killed_again_and_again_loses_no_message(cluster, tmp_path):
    producer, port = cluster
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 7)
        tm.consolidate()
    (tmp_path / "c.toml").write_text(
        f'[server]\nport = 0\n[http]\nenabled = false\n[[kafka]]\nport = {port}\nmessages = "in"\n'
        'notifications = "out"\nsession_timeout = 6.0\nbatch_messages = 16\nmax_waiting = 64\n'
    )
    command = [sys.executable, "-m", "tagmatch", "serve", tmp_path / "index", "--config", tmp_path / "c.toml"]
    sent = {b"%d" % number for number in range(4_000)}
    put(producer, sent)
    got: list[bytes] = []

    def has(count):
        got.extend(each.value() for each in consumer.consume(500, 0.2))
        return len({*got}) >= count

    with reader(port) as consumer:
        for count in (1, 900, 1800, 2700, len(sent)):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
                try:
                    wait_until(lambda count=count: has(count))
                    assert count == len(sent) or len({*got}) < len(sent)  # else it would be killed too late
                finally:
                    service.kill()
    assert {*got} == sent
