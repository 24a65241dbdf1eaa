"""No message ends a gateway or holds up others; each is notified or a dead letter."""

import asyncio
import contextlib
import json
import socket
import stat
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from support.agreement import index_of, loaded
from support.brokers import Proxy
from support.gateway_sides import Secured, between, letters_in, running_on
from support.notified import is_accounted_for
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.config import HubOptions
from tagmatch.broker.gateway import KeyNotification
from tagmatch.broker.nats import _Client

pytestmark = pytest.mark.slow

MQTT, NATS = (pytest.mark.parametrize("side", [name], indirect=True) for name in ("mqtt", "nats"))
#: Where a gateway of each kind meets the same trouble in either way
CROSSED = pytest.mark.parametrize(
    ("side", "guarantee"),
    [("mqtt", "at_least_once"), ("nats", "at_most_once"), ("kafka", "exactly_once")],
    indirect=["side"],
)
EVERY = pytest.mark.parametrize("side", ["mqtt", "nats", "kafka"], indirect=True)
#: What is not read, has no UTF-8, and what the hub refuses; `test_gateway_messages.py` has more
POISON = [[("attribute:x", "[" * 2_000)], [("tags", '["\\ud800"]')], [("lon", "1")], [("channel", "unknown")]]


@pytest.fixture
def dead(tmp_path):
    return tmp_path / "dead.jsonl"


def letters(dead: Path) -> list[bytes]:
    return [b64decode(each["payload"]) for each in letters_in(dead)]


@CROSSED
def test_what_cannot_be_read_is_given_up_alone(side, broker, dead, guarantee):
    with between(side, broker, guarantee=guarantee, dead_letters=str(dead)) as found:
        for number, properties in enumerate(POISON):
            found.client.publish(b"good %d" % number, ("tag", "a"))
            found.client.publish(b"bad %d" % number, ("tag", "a"), *properties)
        found.client.publish(b"last", ("tag", "a"))
        found.client.wait(len(POISON) + 1)
        assert found.client.payloads == {b"last", *(b"good %d" % number for number in range(len(POISON)))}
        # Partitions of Kafka come in any order
        wait_until(lambda: found.counts["received"] == 2 * len(POISON) + 1 and found.counts["waiting"] == 0)
        assert is_accounted_for(found.counts)
        names = ("refused", "failed", "dead_letters", "dead_letters_unwritten", "connections")
        assert [found.counts[name] for name in names] == [len(POISON), 0, len(POISON), 0, 1]
    assert sorted(letters(dead)) == [b"bad %d" % row for row in range(len(POISON))]
    for each in letters_in(dead):
        place = ("in", side.name, side.place)
        assert (each["way"], each["gateway"], each["topic"], bool(each["reason"])) == (*place, True)
    assert stat.S_IMODE(dead.stat().st_mode) == 0o600


@EVERY
def test_a_burst_that_is_too_large_in_sum_is_handed_over_in_parts(side, broker, dead):
    """As is one that finds the hub full, also where the hub drops messages."""
    hub = HubOptions(max_waiting=16, max_waiting_bytes=20_000, when_busy="drop")
    with between(side, broker, hub=hub, dead_letters=str(dead)) as found:
        for number in range(100):
            found.client.publish(b"%d " % number + b"x" * (30_000 if number == 50 else 3_000), ("tag", "a"))
        found.client.wait(99)
        assert {int(each.split()[0]) for each in found.client.payloads} == {*range(100)} - {50}
        wait_until(lambda: found.counts["waiting"] == 0)
        assert is_accounted_for(found.counts)
    (letter,) = letters_in(dead)
    assert letters(dead)[0].startswith(b"50 ")
    assert "more than may wait together" in letter["reason"]


def test_own_notifications_do_not_come_back(side, broker):
    with between(side, broker, tags=[], messages=side.every) as found:
        for count in (1, 2):
            found.client.publish(b"%d" % count)
            found.client.wait(count)
        assert len(found.client.rest(f"out{side.separator}end")) == 2
        wait_until(lambda: found.counts["received"] == (3 if side.keeps else 5) and found.counts["waiting"] == 0)
        wait_until(lambda: found.counts["sent"] == 2)  # a client may have a notification before it is counted
        assert (found.counts["matched"], found.counts["sent"]) == (2, 2)


def test_what_the_broker_does_not_take_is_given_up(side, dead, start):
    with between(side, start(side.small), dead_letters=str(dead)) as found:
        sizes = [100, side.too_large - 60, side.too_large - 5, side.too_large, 3 * side.too_large, 100]
        content = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]
        # An id is in headers or properties, which count
        table = pa.table({"tags": [["a"]] * 6, "id": [b"an id"] * 6, "payload": pa.array(content, pa.large_binary())})
        found.gateway._hub.publish(table).result()
        wait_until(lambda: found.sessions.stats()["delivered"] == 6)
        assert {each.payload[:1] for each in found.client.wait(3)} == {b"0", b"1", b"5"}
        counts = found.counts
        assert (counts["sent"], counts["unsendable"], counts["connections"]) == (3, 3, 1)
    assert [each["way"] for each in letters_in(dead)] == ["out"] * 3
    assert [each[:1] for each in letters(dead)] == [b"2", b"3", b"4"]


def test_what_ends_connections_again_and_again_is_given_up(side, broker, proxy, dead):
    with between(side, broker, keys=(1, 2), port=proxy.port, dead_letters=str(dead)) as found:
        proxy.cut_at(b"fatal")
        found.notify([b"fatal" if number == 20 else b"%d" % number for number in range(40)])
        wait_until(lambda: found.sessions.stats()["delivered"] == 40)
        wait_until(lambda: len({*found.client.notified}) == 2 * 39)
        assert b"fatal" not in found.client.payloads
        assert found.counts["unsendable"] == 2
    assert letters(dead) == [b"fatal"] * 2


@EVERY
def test_dead_letters_that_cannot_be_written_hold_up_nothing(side, broker, dead):
    dead.mkdir()
    with between(side, broker, dead_letters=str(dead)) as found:
        found.client.publish(b"bad", ("lon", "1"))
        found.client.publish(b"good", ("tag", "a"))
        assert found.client.wait(1)[0].payload == b"good"
        counts = found.counts
        assert (counts["refused"], counts["dead_letters"], counts["dead_letters_unwritten"]) == (1, 1, 1)


@MQTT
def test_a_message_that_the_client_library_cannot_read(side, broker):
    """U+FEFF is allowed, and passed on; paho's thread ends by it."""
    for row in range(2):
        with between(side, broker) as found:
            if row == 0:
                found.client.publish(b"bad", ("tag", "a"), ("note", "\ufeff"))
            found.client.publish(b"good", ("tag", "a"))
            assert found.client.wait(1)[0].payload == b"good"
            wait_until(lambda row=row: found.counts["refused"] == 1 - row)
            assert (found.counts["connections"], found.counts["received"]) == (1, 2 - row)
        broker.stop()
        broker.start()  # and it does not come again


@MQTT
@pytest.mark.parametrize(
    ("guarantee", "session_expiry"),
    [
        ("at_least_once", 3_600), ("at_most_once", 0),
        pytest.param("at_least_once", 0, marks=pytest.mark.nightly),
        pytest.param("at_most_once", 3_600, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_retained_messages_come_once(side, broker, proxy, guarantee, session_expiry):
    retained, (tm, _) = {"retain": True, "UserProperty": [("tag", "a")]}, loaded([(["a"], 1)])
    options = {"guarantee": guarantee, "session_expiry": session_expiry}
    with side.client(broker.port) as client:
        client.publish_to("in/old", b"kept", **retained)
        client.wait_for_acknowledgements()
        with tm, running_on(side, tm, proxy.port, **options) as (gateway, _):
            client.wait(1)
            client.publish_to("in/new", b"new", **retained)
            client.wait(2)
            for number in range(3):
                connections = gateway.stats()["connections"]
                proxy.cut()
                wait_until(lambda seen=connections: gateway.stats()["connections"] > seen)
                wait_until(lambda: gateway.stats()["connected"] == 1)
                client.publish(b"%d" % number, ("tag", "a"))
                wait_until(lambda payload=b"%d" % number: payload in client.payloads)
            got = [each.payload for each in client.got]
            assert (got.count(b"kept"), got.count(b"new")) == (1, 1)
            if guarantee == "at_least_once":  # the last one comes again if a cut connection took its acknowledgement
                got = [payload for payload, _ in groupby(got)]
            assert got == [b"kept", b"new", b"0", b"1", b"2"]


@MQTT
def test_what_has_no_room_in_bytes_stays_with_the_broker(side, start):
    broker, most = start("max_inflight_messages 0\n"), [0]
    with between(side, broker) as found:
        found.gateway.stop()
        for number in range(200):
            found.client.publish(b"%d " % number + b"x" * 10_000, ("tag", "a"))
        found.client.wait_for_acknowledgements()
        with running_on(side, found.gateway._index, broker.port, max_waiting_bytes=100_000) as (gateway, _):
            wait_until(lambda: most.append(gateway.stats()["waiting_bytes"]) or len(found.client.payloads) == 200)
            wait_until(lambda: gateway._handing_over.held == 0)
            counts = gateway.stats()
            assert is_accounted_for(counts)
            assert (counts["dropped"], counts["refused"], 0 < max(most) <= 100_000) == (0, 0, True)


def users(*which: str) -> str:
    return (
        "authorization { users: [ " + ", ".join((*which, "{user: c, password: c}")) + " ], default_permissions: {} }\n"
    )


@pytest.fixture
def password(tmp_path):
    (tmp_path / "password").write_text("one\n")
    return {"username": "g", "password_file": str(tmp_path / "password")}


@NATS
def test_any_error_of_the_server_leads_to_a_new_connection(side, tmp_path, start, password):
    broker, config, file = start(users("{user: g, password: one}")), tmp_path / "nats.conf", tmp_path / "password"
    text = config.read_text()
    with TagMatch() as tm, running_on(side, tm, broker.port, **password) as (gateway, _):

        def is_refused() -> None:
            count = gateway.stats()["disconnections"]
            wait_until(lambda: gateway.stats()["disconnections"] > count)

        for word in ("two", "three"):
            config.write_text(text.replace("password: one", f"password: {word}"))
            broker.read_again()
            wait_until(lambda: gateway.stats()["connected"] == 0)
            is_refused()
            file.unlink()  # as where a secret is exchanged
            is_refused()
            file.write_text(f"{word}\n")
            wait_until(lambda: gateway.stats()["connected"] == 1)


@MQTT
@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_what_counts_as_sent_is_no_longer_in_memory(side, broker, proxy, guarantee):
    """The client library itself would take any number for a broker that reads slowly."""
    many = [KeyNotification("other", b"x" * 200_000, None, None, redelivered=False)] * 200
    with between(side, broker, port=proxy.port, guarantee=guarantee) as found, ThreadPoolExecutor(1) as thread:
        proxy.pause()
        waiting, sent = found.gateway._client._out_packet, thread.submit(found.gateway.send, many)
        wait_until(lambda: sent.done() or len(waiting) > 0)
        proxy.resume()
        assert sent.result(60) == []
        assert len(waiting) == 0


@NATS
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_password_goes_only_where_it_is_encrypted(side, tmp_path, start, monkeypatch, has_tls):
    """To no server without TLS, and in no plain text to one that leaves it to clients; MQTT has ports for each."""
    secured, came = Secured(tmp_path), list[bytes]()
    lets_choose = side.secured(secured).replace("tls {", "allow_non_tls: true\ntls {")
    broker = start(lets_choose if has_tls else "authorization { user: ana, password: secret }")
    with TagMatch() as tm, contextlib.closing(Proxy(broker.port)) as proxy:
        monkeypatch.setattr(proxy, "_until_cut", lambda data: came.append(data) or data)
        with running_on(side, tm, proxy.port, connects=has_tls, **secured.options) as (gateway, _):
            wait_until(lambda: gateway.stats()["connections" if has_tls else "disconnections"] >= 1)
            assert gateway.stats()["connections"] == has_tls
    assert b"secret" not in b"".join(came)


@NATS
@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_ends_leaves_nothing_behind(side, broker, monkeypatch, hangs):
    """Also while it connects, or if its client never does: the fixture looks for complaints of asyncio."""
    if hangs:
        for name in ("connect", "close"):
            monkeypatch.setattr(_Client, name, lambda *_, **__: asyncio.sleep(600))
    with TagMatch() as tm:
        for connects in [not hangs, False] * (1 if hangs else 15):
            with running_on(side, tm, broker.port, connects=connects) as (gateway, _):
                wait_until(lambda gateway=gateway: gateway._connection_ends is not None)


@NATS
def test_what_the_gateway_may_not_do(side, tmp_path, dead, start, password):
    """What it may not publish is given up; one that may not subscribe is not connected."""
    denied = '{user: g, password: one, permissions: {publish: {deny: ["out.2"]}, subscribe: {deny: ["in.>"]}}}'
    broker, config = start(users(denied)), tmp_path / "nats.conf"
    with index_of([["a"], ["a"]], [1, 2]) as tm:
        with running_on(side, tm, broker.port, connects=False, **password) as (gateway, _):
            wait_until(lambda: gateway.stats()["disconnections"] >= 2)
            assert gateway.stats()["connections"] == 0
        config.write_text(config.read_text().replace("in.>", "x"))
        broker.read_again()
        with running_on(side, tm, broker.port, dead_letters=str(dead), **password) as (gateway, sessions):
            gateway._hub.publish([["a"]] * 3, [b"0", b"1", b"2"]).result()
            wait_until(lambda: sessions.stats()["delivered"] == 3)
            counts = gateway.stats()
            assert (counts["sent"], counts["unsendable"], counts["connections"]) == (3, 3, 1)
    assert [each["topic"] for each in letters_in(dead)] == ["out.2"] * 3


@NATS
def test_bytes_that_the_client_library_cannot_read(side, broker):
    blocks = [b"NATS/1.0\r\ntag: \xff\r\n\r\n", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0", b"\xff" * 20]
    with between(side, broker) as found, socket.create_connection(("127.0.0.1", broker.port)) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        for block in blocks:
            raw.sendall(b"HPUB in.x %d %d\r\n%sbad\r\n" % (len(block), len(block) + 3, block))
        raw.sendall(b"PUB in.\xff\xfe 3\r\nbad\r\nPING\r\n")
        found.client.publish(b"good", ("tag", "a"))
        wait_until(lambda: found.counts["received"] == len(blocks) + 2 and found.counts["waiting"] == 0)
        assert is_accounted_for(found.counts)
        names = ("connections", "failed", "matched")
        assert [found.counts[name] for name in names] == [1, 0, 1]
        assert found.counts["refused"] >= 2
        assert {each.payload for each in found.client.wait(1)} == {b"good"}


@NATS
def test_answers_do_not_go_where_messages_are(side, broker):
    with between(side, broker, tags=[]) as found:
        for count, reply in enumerate(("in.x", "out.1", "control", "in.*"), start=1):
            with socket.create_connection(("127.0.0.1", broker.port)) as raw:
                raw.sendall(b"CONNECT {}\r\nPUB control %s 2\r\n{}\r\nPING\r\n" % reply.encode())
                wait_until(lambda count=count: found.counts["requests"] == count)
        assert json.loads(found.gateway.requests.answer(b"{}"))["ok"] is False
        found.client.publish(b"good", ("tag", "a"))
        assert [each.payload for each in found.client.wait(1)] == [b"good"]
        assert (found.counts["requests"], found.counts["received"]) == (5, 1)
