"""The gateway to Kafka, with the cluster of three brokers that librdkafka plays."""

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from support.agreement import loaded
from support.gateway_sides import letters_in, running_on
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import Unsent
from tagmatch.broker.kafka import KafkaGateway
from tagmatch.model.errors import InvalidValueError


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
        producer.produce("in", each, headers=list(headers))
    assert producer.flush(20) == 0


@contextmanager
def reader(port):
    group = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["out"])
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
        ({"messages": "in", "control": "c"}, "control is not for Kafka"),
        ({"messages": "in", "guarantee": "at_most_once"}, "guarantee must be"),
        ({"messages": "in", "sasl_mechanism": "plain"}, "sasl_mechanism must be"),
    ],
)
def test_wrong_options_are_refused(options, why):
    with pytest.raises(InvalidValueError, match=why):
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


@pytest.mark.slow
def test_a_service_that_is_killed_loses_no_message(cluster, tmp_path):
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
        for count in (1, len(sent)):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
                try:
                    wait_until(lambda count=count: has(count))
                    assert count > 1 or len({*got}) < len(sent)  # else it would be killed too late
                finally:
                    service.kill()
    assert {*got} == sent
