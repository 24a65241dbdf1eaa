"""Messages through a real nats-server, compared with the oracle, also where the server is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.agreement import loaded
from support.brokers import Proxy, Server, nats_server
from support.gateways import running
from support.nats_client import NatsClient
from support.notified import is_accounted_for, is_balanced
from support.waiting import wait_until

from tagmatch import Channel, TagMatch
from tagmatch.broker.gateways.nats import NatsGateway
from tagmatch.broker.gateways.options import NatsOptions
from tagmatch.broker.sessions import Sessions

pytestmark = pytest.mark.slow

TAGS = "abcdef"
SETS = [(list(tags), key) for key, tags in enumerate(("", "a", "b", "ab", "abc", "ef", "g"))]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = nats_server(tmp_path)
    yield found
    found.kill()


@contextmanager
def client_of(server: Server, *subjects: str) -> Iterator[NatsClient]:
    client = NatsClient(server.port, *subjects)
    try:
        yield client
    finally:
        client.close()


def gateway_of(
    tm: TagMatch[Any], server: Server, **options: Any
) -> AbstractContextManager[tuple[NatsGateway, Sessions]]:
    options = {
        "port": server.port,
        "messages": "in.>",
        "notifications": "out",
        "control": "control",
        "retry_first": 0.05,
        **options,
    }
    return running(tm, lambda *parts: NatsGateway(*parts, NatsOptions(**options)))


def test_a_header_names_the_channel_of_a_message(server: Server) -> None:
    tm, _ = loaded(SETS, channels=[Channel("alarm", 60.0), Channel("bulk", 60.0)], order="edf")
    with tm, gateway_of(tm, server) as (gateway, _), client_of(server, "out.>") as client:
        client.publish(
            *[("in.x", b"now", {"tag": "g", "channel": "alarm"})] * 3,
            ("in.x", b"later", {"tag": "g", "channel": "bulk"}),
            ("in.x", b"never", {"tag": "g", "channel": "no such"}),
            ("in.x", b"any", {"tag": "g"}),
        )
        # Key 0 is of the empty set, which every message contains
        got = client.wait(2 * 5)
        assert Counter((each.subject, each.data) for each in got) == {
            (f"out.{key}", payload): count
            for key in (0, 6)
            for payload, count in ((b"now", 3), (b"later", 1), (b"any", 1))
        }
        wait_until(lambda: gateway.stats()["waiting"] == 0)
        assert (gateway.stats()["received"], gateway.stats()["refused"]) == (6, 1)
        channels = tm.stats()["channels"]
        assert (channels["alarm"]["answered"], channels["bulk"]["answered"]) == (3, 1)


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_notifications_by_subject_are_what_the_oracle_says(server: Server, rng: random.Random, guarantee: str) -> None:
    tm, oracle = loaded(SETS)
    with (
        tm,
        gateway_of(tm, server, guarantee=guarantee) as (gateway, sessions),
        client_of(server, "out.>") as client,
    ):
        expected: Counter[tuple[str, bytes, str]] = Counter()
        for number in range(0, 2_000, 50):
            batch = []
            for row in range(50):
                tags, payload = rng.sample(TAGS, rng.randint(0, 4)), b"%d" % (number + row)
                name = f"id{number + row}"
                batch.append(("in.some.where", payload, {"tags": json.dumps(tags), "id": name}))
                expected.update((f"out.{key}", payload, name) for key in oracle.match_unique(tags))
            client.publish(*batch)
        got = client.wait(expected.total())
        assert Counter((each.subject, each.data, each.headers["id"]) for each in got) == expected
        wait_until(lambda: sessions.stats()["delivered"] == 2_000)
        wait_until(lambda: gateway.stats()["sent"] == expected.total())  # counted after it is sent
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert (counts["received"], counts["sent"], counts["unsent"]) == (2_000, expected.total(), 0)
        assert is_balanced(sessions.stats())


def test_headers_are_read_and_written(server: Server) -> None:
    with TagMatch(key_type="string") as tm:
        tm.add_set(["flat"], "cheap flats.*", where='price < 900 and city = "Rome"')
        tm.add_set([], "", where="within circle(9.19, 45.46, 20000)")
        tm.consolidate()
        with gateway_of(tm, server) as (gateway, _), client_of(server, "out.>") as client:
            headers = {"tag": "flat", "attribute-price": "850", "attribute-city": "Rome", "expires-in": "100"}
            client.publish(("in.x", b"\x00\xff", headers))
            (first,) = client.wait(1)
            assert (first.subject, first.data) == ("out.cheap%20flats%2E%2A", b"\x00\xff")
            assert 90 < float(first.headers["expires-in"]) <= 100
            client.publish(("in.x", b"here", {"lon": "9.2", "lat": "45.5"}))
            assert (client.wait(2)[1].subject, client.wait(2)[1].headers) == ("out.%", None)
            client.publish(("in.x", b"wrong", {"lat": "45.5"}), ("in.x", b"nothing", None))
            client.publish(("in.x", b"late", {"lon": "9.2", "lat": "45.5", "expires-in": "-1"}))
            client.publish(*(("in.x", b"never", {"expires-in": text}) for text in ("soon", "nan", "1e300", "-inf")))
            wait_until(lambda: gateway.stats()["received"] == 9 and gateway.stats()["waiting"] == 0)
            counts = gateway.stats()
            assert is_accounted_for(counts)
            assert (counts["matched"], counts["unmatched"], counts["refused"]) == (3, 3, 3)
            assert len(client.got) == 2


@pytest.mark.parametrize("write", [True, False])
def test_clients_subscribe_by_asking(server: Server, write: bool) -> None:
    with (
        TagMatch() as tm,
        gateway_of(tm, server, write=write, consolidate_interval=0.05),
        client_of(server, "out.>") as client,
    ):
        answer = client.ask("control", action="subscribe", tags=["fr"], key=7)
        assert answer["ok"] == write
        if write:
            wait_until(lambda: tm.match(["fr"]) == [7])
            client.publish(("in.x", b"hello", {"tag": "fr"}))
            assert client.wait(1)[0].subject == "out.7"
            assert client.ask("control", action="unsubscribe", tags=["fr"], key=7)["ok"]
            wait_until(lambda: tm.match(["fr"]) == [])
        else:
            assert "write = true" in answer["error"]
        assert "action" in client.ask("control", tags=["fr"], key=7)["error"] or not write


def test_each_message_goes_to_one_gateway_of_a_queue_group(server: Server) -> None:
    tm, _ = loaded([(["a"], 1)])
    with (
        tm,
        gateway_of(tm, server, queue="group") as (one, _sessions),
        gateway_of(tm, server, queue="group") as (other, _others),
        client_of(server, "out.>") as client,
    ):
        client.publish(*(("in.x", b"%d" % number, {"tag": "a"}) for number in range(400)))
        got = client.wait(400)
        assert sorted(int(each.data) for each in got) == list(range(400))
        counts = [each.stats()["received"] for each in (one, other)]
        assert sum(counts) == 400
        assert min(counts) > 0


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_lost_connections_lose_nothing_or_give_nothing_twice(
    server: Server, rng: random.Random, guarantee: str
) -> None:
    tm, oracle = loaded(SETS)
    proxy = Proxy(server.port)
    with (
        tm,
        gateway_of(tm, server, port=proxy.port, guarantee=guarantee, batch_messages=20) as (gateway, sessions),
        client_of(server, "out.>") as client,
    ):
        expected: Counter[tuple[str, bytes]] = Counter()
        hub = gateway._hub
        for number in range(0, 3_000, 10):
            tags = [rng.sample(TAGS, rng.randint(0, 4)) for _ in range(10)]
            payloads = [b"%d" % (number + row) for row in range(10)]
            hub.publish(tags, payloads)
            for each, payload in zip(tags, payloads, strict=True):
                expected.update((f"out.{key}", payload) for key in oracle.match_unique(each))
            time.sleep(0.001)
            if number % 500 == 250:
                wait_until(lambda: gateway.stats()["connected"] == 1)
                proxy.cut()
        wait_until(lambda: sessions.stats()["waiting"] == 0)
        # What was sent is there soon; what has no acknowledgement may be on its way still
        client.publish(("out.end", b"end", None))
        wait_until(lambda: any(each.data == b"end" for each in list(client.got)))
        came = [each for each in list(client.got) if each.data != b"end"]
        got = Counter((each.subject, each.data) for each in came)
        assert got.keys() <= expected.keys()
        if guarantee == "at_least_once":
            assert got.keys() == expected.keys()
            firsts = Counter((each.subject, each.data) for each in came if not each.headers)
            assert max(firsts.values()) == 1  # what comes again says so
        else:
            assert max(got.values()) == 1
        assert is_balanced(sessions.stats())
        assert gateway.stats()["connections"] >= 3
    proxy.close()


@contextmanager
def behind_proxy(server: Server, **options: Any) -> Iterator[tuple[Proxy, NatsGateway, Sessions, NatsClient]]:
    """A gateway of an index with one set, of the tag `a`, that reaches the server through a proxy; and a client."""
    tm, _ = loaded([(["a"], 1)])
    proxy = Proxy(server.port)
    with (
        tm,
        gateway_of(tm, server, port=proxy.port, **options) as (gateway, sessions),
        client_of(server, "out.>") as client,
    ):
        yield proxy, gateway, sessions, client
    proxy.close()


def test_what_is_lost_on_the_way_is_sent_again(server: Server) -> None:
    with behind_proxy(server, flush_timeout=1.0) as (proxy, gateway, sessions, client):
        proxy.pause()
        gateway._hub.publish([["a"]] * 100, [b"%d" % row for row in range(100)])
        wait_until(lambda: sessions.stats()["in_flight"] == 100)
        time.sleep(0.2)
        assert sessions.stats()["delivered"] == 0
        proxy.cut()
        proxy.resume()
        assert {int(each.data) for each in client.wait(100)} == set(range(100))
        wait_until(lambda: sessions.stats()["delivered"] == 100)
        assert gateway.stats()["unsent"] >= 100


@pytest.mark.parametrize("lines", [*range(1, 6), 20, 38, 39, 40, 41, 60])
def test_no_line_after_which_a_connection_ends_loses_what_counts_as_sent(server: Server, lines: int) -> None:
    """A notification without headers is two lines, and what asks the server whether it has all comes after them."""
    with behind_proxy(server, flush_timeout=1.0) as (proxy, gateway, sessions, client):
        proxy.cut_after(lines)
        gateway._hub.publish([["a"]] * 20, [b"%d" % row for row in range(20)])
        wait_until(lambda: sessions.stats()["delivered"] == 20)
        client.publish(("out.end", b"end", None))
        wait_until(lambda: any(each.data == b"end" for each in list(client.got)))
        assert {each.data for each in client.got} == {b"end", *(b"%d" % row for row in range(20))}


@pytest.mark.parametrize("pieces", [1, 5, 20, 60])
def test_a_connection_that_ends_while_large_notifications_wait_to_be_written(server: Server, pieces: int) -> None:
    """The client library has a publisher wait where two megabytes wait to be written."""
    with behind_proxy(server, flush_timeout=5.0) as (proxy, gateway, sessions, client):
        payloads = [b"%d" % row * 200_000 for row in range(1, 10)] * 3
        proxy.cut_after(pieces)
        gateway._hub.publish([["a"]] * len(payloads), payloads)
        wait_until(lambda: sessions.stats()["delivered"] == len(payloads))
        client.publish(("out.end", b"end", None))
        wait_until(lambda: any(each.data == b"end" for each in list(client.got)))
        came = Counter(each.data for each in client.got)
        assert came.keys() == {b"end", *payloads}
        assert all(came[payload] >= 3 for payload in payloads)


def test_a_new_connection_while_notifications_are_published_says_nothing_of_the_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind_proxy(server) as (proxy, gateway, sessions, client):
        publish, published = gateway._client.publish, 0

        async def interrupted(*args: Any, **options: Any) -> None:
            nonlocal published
            await publish(*args, **options)
            published += 1
            if published == 1:
                await asyncio.sleep(0.1)  # it is written, and kept by the proxy
                proxy.cut()
                proxy.resume()
                while gateway.stats()["connections"] < 2:
                    await asyncio.sleep(0.01)

        monkeypatch.setattr(gateway._client, "publish", interrupted)
        proxy.pause()
        gateway._hub.publish([["a"]] * 20, [b"%d" % row for row in range(20)])
        wait_until(lambda: sessions.stats()["delivered"] == 20)
        client.publish(("out.end", b"end", None))
        wait_until(lambda: any(each.data == b"end" for each in list(client.got)))
        assert {each.data for each in client.got} == {b"end", *(b"%d" % row for row in range(20))}


def test_a_gateway_goes_on_after_a_server_that_answers_late(server: Server) -> None:
    with behind_proxy(server, flush_timeout=0.5) as (proxy, gateway, sessions, client):
        proxy.pause()
        gateway._hub.publish([["a"]] * 20, [b"%d" % row for row in range(20)])
        wait_until(lambda: gateway.stats()["unsent"] >= 40)
        proxy.resume()
        wait_until(lambda: sessions.stats()["delivered"] == 20)
        client.publish(("in.x", b"later", {"tag": "a"}))  # the gateway still listens
        wait_until(lambda: any(each.data == b"later" for each in list(client.got)))
        assert {each.data for each in client.got} == {b"later", *(b"%d" % row for row in range(20))}
        assert gateway.stats()["connections"] == 1


def test_a_gateway_connects_again_to_a_server_that_was_killed(server: Server) -> None:
    tm, _ = loaded([(["a"], 1)])
    with tm, gateway_of(tm, server) as (gateway, _sessions):
        for number in range(3):
            with client_of(server, "out.>") as client:
                client.publish(*(("in.x", b"%d" % number, {"tag": "a"}) for number in range(100)))
                client.wait(100)
            server.kill()
            wait_until(lambda: gateway.stats()["connected"] == 0)
            server.start()
            wait_until(lambda seen=number: gateway.stats()["connections"] == seen + 2)


def test_what_has_come_is_sent_before_the_gateway_ends(server: Server) -> None:
    tm, _ = loaded([(["a"], 1)])
    with tm, client_of(server, "out.>") as client:
        with gateway_of(tm, server) as (gateway, sessions):
            client.publish(*(("in.x", b"%d" % number, {"tag": "a"}) for number in range(1_000)))
            assert gateway.stop()
            counts = gateway.stats()
            assert is_accounted_for(counts)
            assert counts["sent"] == counts["received"] == 1_000
            assert sessions.stats()["delivered"] == 1_000
        assert len(client.wait(1_000)) == 1_000
