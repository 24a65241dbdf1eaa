"""No message ends a gateway or holds up others; each is notified or a dead letter."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.agreement import loaded
from support.brokers import Proxy, Server
from support.gateway_sides import SIDES, letters_in, running_on
from support.notified import is_accounted_for
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.subscriber_options import HubOptions

pytestmark = pytest.mark.slow

POISON = [
    [("attribute:x", "[" * 2_000)],
    [("attribute:x", "[" * 2_000 + "]" * 2_000)],
    [("attribute:x", "9" * 5_000)],
    [("attribute:x", "[[1]]")],
    [("attribute:", "1")],
    [("tags", '"a"')],
    [("tags", '["\\ud800"]')],
    [("lon", "1")],
    [("lon", "1e999"), ("lat", "1")],
    [("channel", "there is none")],
]


@pytest.fixture(params=["mqtt", "nats"])
def side(request: pytest.FixtureRequest) -> Any:
    return SIDES[request.param]


@pytest.fixture
def broker(side: Any, tmp_path: Path) -> Iterator[Server]:
    with side.start(tmp_path) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a broker of a kind, with more lines of its configuration."""
    with contextlib.ExitStack() as started:

        def one(side: Any, more: str = "") -> Server:
            server: Server = side.start(tmp_path, more)
            return started.enter_context(server)

        yield one


@pytest.fixture
def proxy_of() -> Iterator[Callable[[Server], Proxy]]:
    with contextlib.ExitStack() as started:
        yield lambda server: started.enter_context(contextlib.closing(Proxy(server.port)))


def payloads(client: Any) -> set[bytes]:
    return {payload for _, payload in client.notified}


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_what_cannot_be_read_is_given_up_alone(side: Any, broker: Server, tmp_path: Path, guarantee: str) -> None:
    tm, _ = loaded([(["a"], 1)])
    dead = tmp_path / "dead.jsonl"
    options = {"guarantee": guarantee, "dead_letters": str(dead)}
    with tm, running_on(side, tm, broker.port, **options) as (gateway, _), side.client(broker.port) as client:
        for number, properties in enumerate(POISON):
            client.publish(b"good %d" % number, ("tag", "a"))
            client.publish(b"bad %d" % number, ("tag", "a"), *properties)
        client.publish(b"last", ("tag", "a"))
        wait_until(lambda: len(client.notified) > len(POISON))
        assert payloads(client) == {b"last", *(b"good %d" % number for number in range(len(POISON)))}
        wait_until(lambda: gateway.stats()["waiting"] == 0)
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert (counts["refused"], counts["failed"], counts["dead_letters"]) == (len(POISON), 0, len(POISON))
        assert (counts["dead_letters_unwritten"], counts["connections"]) == (0, 1)
        assert gateway._handing_over.is_alive()
    letters = letters_in(dead)
    assert {b64decode(each["payload"]) for each in letters} == {b"bad %d" % row for row in range(len(POISON))}
    assert all(each["way"] == "in" and each["gateway"] == side.name and each["reason"] for each in letters)
    assert {each["topic"] for each in letters} == {f"in{side.separator}x"}
    assert stat.S_IMODE(dead.stat().st_mode) == 0o600


def test_a_burst_that_is_too_large_in_sum_is_handed_over_in_parts(side: Any, broker: Server, tmp_path: Path) -> None:
    """As is one that finds the hub full, also where the hub drops messages."""
    tm, _ = loaded([(["a"], 1)])
    hub = HubOptions(max_waiting=16, max_waiting_bytes=20_000, when_busy="drop")
    dead = tmp_path / "dead.jsonl"
    with (
        tm,
        running_on(side, tm, broker.port, hub, dead_letters=str(dead)) as (gateway, _),
        side.client(broker.port) as client,
    ):
        for number in range(300):
            client.publish(b"%d " % number + b"x" * (30_000 if number == 150 else 3_000), ("tag", "a"))
        wait_until(lambda: len(payloads(client)) == 299)
        assert {int(each.split()[0]) for each in payloads(client)} == {*range(300)} - {150}
        wait_until(lambda: gateway.stats()["waiting"] == 0)
        assert is_accounted_for(gateway.stats())
    (letter,) = letters_in(dead)
    assert b64decode(letter["payload"]).startswith(b"150 ")
    assert "more than may wait together" in letter["reason"]


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_what_nobody_has_foreseen_is_of_one_message(
    side: Any, broker: Server, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """Where a match fails by one of many; at most once it is not known whether others have notified anyone."""
    tm, _ = loaded([(["a"], 1)])
    match_many = tm.match_many

    def failing(queries: Any, **options: Any) -> pa.ListArray:
        if any("cursed" in row for row in queries["tags"].to_pylist()):
            raise RuntimeError("unforeseen")
        return match_many(queries, **options)

    monkeypatch.setattr(tm, "match_many", failing)
    with tm, running_on(side, tm, broker.port, guarantee=guarantee) as (gateway, _), side.client(broker.port) as client:
        for number in range(60):
            client.publish(b"%d" % number, ("tag", "a"), *([("tag", "cursed")] if number == 30 else []))
        wait_until(lambda: gateway.stats()["received"] == 60 and gateway.stats()["waiting"] == 0)
        client.publish(b"later", ("tag", "a"))
        wait_until(lambda: b"later" in payloads(client))
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert counts["failed"] == counts["dead_letters"] >= 1
        if guarantee == "at_least_once":
            assert counts["failed"] == 1
            wait_until(lambda: len(payloads(client)) == 60)


# -- notifications -----------------------------------------------------------------------------------------------------

ODD_KEYS = ["good", "line\nbreak", "\x01", "\x7f", "\x85", "\uffff", "\ufdd0", "\U0010ffff", " ", "\u2028", "é%/.#+*>"]


def test_keys_of_any_characters_go_out(side: Any, broker: Server) -> None:
    with TagMatch(key_type="string") as tm:
        tm.add_sets([[f"t{number}"] for number in range(len(ODD_KEYS))], ODD_KEYS)
        tm.consolidate()
        with running_on(side, tm, broker.port) as (gateway, _), side.client(broker.port) as client:
            for number in range(len(ODD_KEYS)):
                client.publish(b"%d" % number, ("tag", f"t{number}"))
            wait_until(lambda: len(client.notified) == len(ODD_KEYS))
            levels = {topic.removeprefix(f"out{side.separator}") for topic, _ in client.notified}
            assert levels == {gateway.options.naming.level(key) for key in ODD_KEYS}
            assert gateway.stats()["connections"] == 1


def test_what_the_broker_does_not_take_is_given_up(side: Any, tmp_path: Path, start: Callable[..., Server]) -> None:
    tm, _ = loaded([(["a"], 1)])
    broker = start(side, side.small)
    dead = tmp_path / "dead.jsonl"
    with (
        tm,
        running_on(side, tm, broker.port, dead_letters=str(dead)) as (gateway, sessions),
        side.client(broker.port) as client,
    ):
        sizes = [100, side.too_large - 60, side.too_large - 5, side.too_large, 3 * side.too_large, 100]
        content = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]
        # An id is in headers or properties, which count
        table = pa.table({"tags": [["a"]] * 6, "id": [b"an id"] * 6, "payload": pa.array(content, pa.large_binary())})
        gateway._hub.publish(table).result()
        wait_until(lambda: sessions.stats()["delivered"] == 6)
        wait_until(lambda: len(client.notified) == 3)
        assert {each[:1] for each in payloads(client)} == {b"0", b"1", b"5"}
        counts = gateway.stats()
        assert (counts["sent"], counts["unsendable"], counts["connections"]) == (3, 3, 1)
    assert [(each["way"], b64decode(each["payload"])[:1]) for each in letters_in(dead)] == [
        ("out", b"2"),
        ("out", b"3"),
        ("out", b"4"),
    ]


def test_what_ends_connections_again_and_again_is_given_up(
    side: Any, broker: Server, tmp_path: Path, proxy_of: Callable[[Server], Proxy]
) -> None:
    tm, _ = loaded([(["a"], 1), (["a"], 2)])
    proxy, dead = proxy_of(broker), tmp_path / "dead.jsonl"
    with (
        tm,
        running_on(side, tm, proxy.port, dead_letters=str(dead)) as (gateway, sessions),
        side.client(broker.port) as client,
    ):
        proxy.cut_at(b"fatal")
        content = [b"fatal" if number == 20 else b"%d" % number for number in range(40)]
        gateway._hub.publish([["a"]] * 40, content)
        wait_until(lambda: sessions.stats()["delivered"] == 40)
        wait_until(lambda: len({*client.notified}) == 2 * 39)
        assert b"fatal" not in payloads(client)
        assert gateway.stats()["unsendable"] == 2
    assert [each["payload"] for each in letters_in(dead)] == ["ZmF0YWw="] * 2


def test_dead_letters_that_cannot_be_written_hold_up_nothing(side: Any, broker: Server, tmp_path: Path) -> None:
    tm, _ = loaded([(["a"], 1)])
    (tmp_path / "there").mkdir()
    with (
        tm,
        running_on(side, tm, broker.port, dead_letters=str(tmp_path / "there")) as (gateway, _),
        side.client(broker.port) as client,
    ):
        client.publish(b"bad", ("lon", "1"))
        client.publish(b"good", ("tag", "a"))
        wait_until(lambda: payloads(client) == {b"good"})
        counts = gateway.stats()
        assert (counts["refused"], counts["dead_letters"], counts["dead_letters_unwritten"]) == (1, 1, 1)


def test_own_notifications_do_not_come_back(side: Any, broker: Server) -> None:
    tm, _ = loaded([([], 1)])
    every = "#" if side.name == "mqtt" else ">"
    with tm, running_on(side, tm, broker.port, messages=every) as (gateway, _), side.client(broker.port) as client:
        client.publish(b"one")
        wait_until(lambda: len(client.notified) == 1)
        client.publish(b"two")
        wait_until(lambda: len(client.notified) == 2)
        wait_until(lambda: gateway.stats()["sent"] == 2)
        assert gateway.stats()["matched"] == 2


# -- MQTT --------------------------------------------------------------------------------------------------------------


def test_a_message_that_the_client_library_cannot_read(start: Callable[..., Server]) -> None:
    """U+FEFF is allowed, and passed on; paho's thread ends by it."""
    side = SIDES["mqtt"]
    broker = start(side)
    tm, _ = loaded([(["a"], 1)])
    with tm, running_on(side, tm, broker.port) as (gateway, _), side.client(broker.port) as client:
        client.publish(b"bad", ("tag", "a"), ("note", "\ufeff"))
        client.publish(b"good", ("tag", "a"))
        wait_until(lambda: payloads(client) == {b"good"})
        wait_until(lambda: gateway.stats()["refused"] == 1)
        assert gateway.stats()["connections"] == 1
    broker.stop()
    broker.start()  # and it does not come again
    with (
        loaded([(["a"], 1)])[0] as tm,
        running_on(side, tm, broker.port) as (gateway, _),
        side.client(broker.port) as client,
    ):
        client.publish(b"good", ("tag", "a"))
        wait_until(lambda: payloads(client) == {b"good"})
        assert gateway.stats()["received"] == 1


@pytest.mark.parametrize("session_expiry", [0, 3_600])
@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_retained_messages_come_once(
    guarantee: str, session_expiry: int, start: Callable[..., Server], proxy_of: Callable[[Server], Proxy]
) -> None:
    side = SIDES["mqtt"]
    broker = start(side)
    tm, _ = loaded([(["a"], 1)])
    proxy = proxy_of(broker)
    with side.client(broker.port) as client:
        own = Properties(PacketTypes.PUBLISH)
        own.UserProperty = [("tag", "a")]
        client.client._client.publish("in/old", b"kept", 1, retain=True, properties=own).wait_for_publish(60)
        options = {"guarantee": guarantee, "session_expiry": session_expiry}
        with tm, running_on(side, tm, proxy.port, **options) as (gateway, _):
            wait_until(lambda: payloads(client) == {b"kept"})
            client.client._client.publish("in/new", b"new", 1, retain=True, properties=own)
            wait_until(lambda: payloads(client) == {b"kept", b"new"})
            for number in range(3):
                connections = gateway.stats()["connections"]
                proxy.cut()
                wait_until(lambda seen=connections: gateway.stats()["connections"] > seen)
                wait_until(lambda: gateway.stats()["connected"] == 1)
                client.publish(b"%d" % number, ("tag", "a"))
                wait_until(lambda payload=b"%d" % number: payload in payloads(client))
            assert [payload for _, payload in client.notified] == [b"kept", b"new", b"0", b"1", b"2"]


def test_what_has_no_room_in_bytes_stays_with_the_broker(start: Callable[..., Server]) -> None:
    side = SIDES["mqtt"]
    broker = start(side, "max_inflight_messages 0\n")
    tm, _ = loaded([(["a"], 1)])
    with side.client(broker.port) as client, tm:
        with running_on(side, tm, broker.port):
            pass
        for number in range(400):
            client.publish(b"%d " % number + b"x" * 10_000, ("tag", "a"))
        most = 0
        with running_on(side, tm, broker.port, max_waiting_bytes=200_000) as (gateway, _):

            def has_all() -> bool:
                nonlocal most
                most = max(most, gateway.stats()["waiting_bytes"])
                return len(payloads(client)) == 400

            wait_until(has_all)
            wait_until(lambda: gateway._handing_over.held == 0)
            counts = gateway.stats()
            assert is_accounted_for(counts)
            assert (counts["dropped"], counts["refused"]) == (0, 0)
            assert 0 < most <= 200_000


# -- NATS --------------------------------------------------------------------------------------------------------------


def users(*which: str) -> str:
    return "authorization { users: [ " + ", ".join(which) + " ] }\n"


def test_any_error_of_the_server_leads_to_a_new_connection(tmp_path: Path, start: Callable[..., Server]) -> None:
    """Users are read again, with another password for the gateway, whose file changes, too."""
    side = SIDES["nats"]
    client_of = "{user: c, password: c}"
    broker = start(side, users("{user: g, password: one}", client_of))
    config, password = tmp_path / "nats.conf", tmp_path / "password"
    text = config.read_text()
    password.write_text("one\n")
    tm, _ = loaded([(["a"], 1)])
    with tm, running_on(side, tm, broker.port, username="g", password_file=str(password)) as (gateway, _):
        for number, word in enumerate(("two", "three")):
            config.write_text(text.replace("password: one", f"password: {word}"))
            broker.read_again()
            wait_until(lambda: gateway.stats()["connected"] == 0)
            count = gateway.stats()["disconnections"]
            wait_until(lambda seen=count: gateway.stats()["disconnections"] > seen)  # it is refused
            if number:
                password.unlink()  # as where a secret is exchanged
                count = gateway.stats()["disconnections"]
                wait_until(lambda seen=count: gateway.stats()["disconnections"] > seen)
            password.write_text(f"{word}\n")
            wait_until(lambda: gateway.stats()["connected"] == 1)
        gateway._hub.publish([["a"]], [b"later"]).result()
        wait_until(lambda: gateway.stats()["sent"] == 1)


def test_what_the_gateway_may_not_publish_is_given_up(tmp_path: Path, start: Callable[..., Server]) -> None:
    side = SIDES["nats"]
    permissions = '{user: g, password: g, permissions: {publish: {deny: ["out.2"]}}}'
    broker = start(side, users(permissions))
    (tmp_path / "password").write_text("g")
    tm, _ = loaded([(["a"], 1), (["a"], 2)])
    dead = tmp_path / "dead.jsonl"
    options = {"username": "g", "password_file": str(tmp_path / "password"), "dead_letters": str(dead)}
    with tm, running_on(side, tm, broker.port, **options) as (gateway, sessions):
        gateway._hub.publish([["a"]] * 3, [b"0", b"1", b"2"]).result()
        wait_until(lambda: sessions.stats()["delivered"] == 3)
        counts = gateway.stats()
        assert (counts["sent"], counts["unsendable"], counts["connections"]) == (3, 3, 1)
    assert [each["topic"] for each in letters_in(dead)] == ["out.2"] * 3


def test_a_gateway_that_may_not_subscribe_is_not_connected(tmp_path: Path, start: Callable[..., Server]) -> None:
    side = SIDES["nats"]
    denied = '{user: g, password: g, permissions: {subscribe: {deny: ["in.>"]}}}'
    broker = start(side, users(denied))
    (tmp_path / "password").write_text("g")
    config = tmp_path / "nats.conf"
    tm, _ = loaded([(["a"], 1)])
    with tm:
        options = {"username": "g", "password_file": str(tmp_path / "password")}
        with pytest.raises(AssertionError, match="vain"), running_on(side, tm, broker.port, seconds=2, **options):
            pass
        config.write_text(config.read_text().replace("in.>", "x"))
        broker.read_again()
        with running_on(side, tm, broker.port, **options) as (gateway, _):
            assert gateway.stats()["connected"] == 1


def test_bytes_that_the_client_library_cannot_read(start: Callable[..., Server]) -> None:
    """Headers and subjects that are no UTF-8, statuses, and blocks of headers that have nothing of one."""
    side = SIDES["nats"]
    broker = start(side)
    tm, _ = loaded([(["a"], 1)])
    blocks = [
        b"NATS/1.0\r\ntag: \xff\r\n\r\n",
        b"NATS/1.0\r\nt\xe9g: a\r\n\r\n",
        b"NATS/1.0 \xff\xff\xff\xff\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0",
        b"\xff" * 20,
        b"NATS/1.0\r\nexpires-in: soon\r\n\r\n",
    ]
    with tm, running_on(side, tm, broker.port) as (gateway, _), side.client(broker.port) as client:
        with socket.create_connection(("127.0.0.1", broker.port)) as raw:
            raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
            for block in blocks:
                raw.sendall(b"HPUB in.x %d %d\r\n%sbad\r\n" % (len(block), len(block) + 3, block))
            raw.sendall(b"PUB in.\xff\xfe 3\r\nbad\r\nPING\r\n")
            client.publish(b"good", ("tag", "a"))
            wait_until(lambda: payloads(client) == {b"good"})
            wait_until(lambda: gateway.stats()["received"] == len(blocks) + 2 and gateway.stats()["waiting"] == 0)
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert (counts["connections"], counts["failed"], counts["matched"]) == (1, 0, 1)
        assert counts["refused"] >= 5


@pytest.mark.parametrize("reply", ["in.x", "out.1", "control", "in.*"])
def test_answers_do_not_go_where_messages_are(reply: str, start: Callable[..., Server]) -> None:
    side = SIDES["nats"]
    broker = start(side)
    tm, _ = loaded([([], 1)])
    with tm, running_on(side, tm, broker.port, control="control") as (gateway, _), side.client(broker.port) as client:
        with socket.create_connection(("127.0.0.1", broker.port)) as raw:
            raw.sendall(b"CONNECT {}\r\nPUB control %s 2\r\n{}\r\nPING\r\n" % reply.encode())
            wait_until(lambda: gateway.stats()["requests"] == 1)
        assert json.loads(gateway.requests.answer(b"{}"))["ok"] is False
        client.publish(b"good", ("tag", "a"))
        wait_until(lambda: payloads(client) == {b"good"})
        assert gateway.stats()["requests"] == 2
