"""Messages through a real mosquitto, compared with the oracle, also where the broker is killed meanwhile."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.agreement import loaded
from support.brokers import Proxy, Server, mosquitto
from support.gateways import running
from support.mqtt_client import MqttClient
from support.notified import is_accounted_for, is_balanced
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.gateways.mqtt import MqttGateway
from tagmatch.broker.gateways.options import MqttOptions
from tagmatch.broker.hub import Hub
from tagmatch.broker.sessions import Sessions

pytestmark = pytest.mark.slow

TAGS = "abcdef"
SETS = [(list(tags), key) for key, tags in enumerate(("", "a", "b", "ab", "abc", "ef", "g"))]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    server = mosquitto(tmp_path)
    yield server
    server.kill()


def gateway_of(
    tm: TagMatch[Any], broker: Server, **options: Any
) -> AbstractContextManager[tuple[MqttGateway, Sessions]]:
    options = {
        "port": broker.port,
        "messages": "in/#",
        "notifications": "out",
        "control": "control",
        "retry_first": 0.05,
        "retry_most": 0.2,
        **options,
    }
    return running(tm, lambda *parts: MqttGateway(*parts, MqttOptions(**options)))


@pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
def test_notifications_are_what_the_oracle_says(broker: Server, rng: random.Random, guarantee: str) -> None:
    tm, oracle = loaded(SETS)
    with tm, gateway_of(tm, broker, guarantee=guarantee) as (gateway, sessions):
        client = MqttClient(broker.port, "client", "out/#")
        expected: Counter[tuple[str, bytes, bytes]] = Counter()
        for number in range(500):
            tags, payload = rng.sample(TAGS, rng.randint(0, 4)), b"%d" % number
            client.publish(
                "in/some/where",
                payload,
                CorrelationData=b"id" + payload,
                UserProperty=[("tag", tag) for tag in tags] or [("no", "tag")],
            )
            expected.update((f"out/{key}", payload, b"id" + payload) for key in oracle.match_unique(tags))
        got = client.wait(expected.total())
        assert Counter((each.topic, each.payload, each.properties.CorrelationData) for each in got) == expected
        wait_until(lambda: gateway.stats()["sent"] == expected.total())
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert (counts["received"], counts["waiting"], counts["unsent"]) == (500, 0, 0)
        wait_until(lambda: sessions.stats()["delivered"] == 500)
        assert is_balanced(sessions.stats())
        client.close()


def test_attributes_locations_and_times_come_through(broker: Server) -> None:
    with TagMatch(key_type="string") as tm:
        tm.add_set(["flat"], "cheap/flats", where='price < 900 and city = "Rome"')
        tm.add_set([], "near", where="within circle(9.19, 45.46, 20000)")
        tm.consolidate()
        with gateway_of(tm, broker) as (gateway, _):
            client = MqttClient(broker.port, "client", "out/#")
            client.publish(
                "in/x",
                b"\x00\xff",
                UserProperty=[("tag", "flat"), ("attribute:price", "850"), ("attribute:city", "Rome")],
                MessageExpiryInterval=1000,
            )
            (first,) = client.wait(1)
            assert (first.topic, first.payload) == ("out/cheap%2Fflats", b"\x00\xff")
            assert 500 < first.properties.MessageExpiryInterval <= 1000
            client.publish("in/x", b"here", UserProperty=[("lon", "9.2"), ("lat", "45.5")])
            assert (client.wait(2)[1].topic, client.wait(2)[1].payload) == ("out/near", b"here")
            client.publish("in/x", b"wrong", UserProperty=[("lon", "9.2")])
            client.publish("in/x", b"nothing", UserProperty=[("tag", "flat")])
            wait_until(lambda: gateway.stats()["received"] == 4 and gateway.stats()["waiting"] == 0)
            counts = gateway.stats()
            assert is_accounted_for(counts)
            assert (counts["matched"], counts["unmatched"], counts["refused"]) == (2, 1, 1)
            client.close()


def test_payloads_may_be_messages(broker: Server) -> None:
    with TagMatch() as tm:
        tm.add_set(["flat"], 7, where="price < 900")
        tm.consolidate()
        with gateway_of(tm, broker, form="json"):
            client = MqttClient(broker.port, "client", "out/7")
            payload = json.dumps({"tags": ["flat"], "attributes": {"price": 5}}).encode()
            client.publish("in/x", payload)
            assert client.wait(1)[0].payload == payload
            client.close()


@pytest.mark.parametrize("write", [True, False])
def test_clients_subscribe_by_requests(broker: Server, write: bool) -> None:
    with TagMatch() as tm, gateway_of(tm, broker, write=write, consolidate_interval=0.05):
        client = MqttClient(broker.port, "client", "answers", "out/#")

        def ask(number: int, **request: Any) -> dict[str, Any]:
            body = json.dumps(request).encode()
            client.publish("control", body, ResponseTopic="answers", CorrelationData=b"%d" % number)
            got = [each for each in client.wait(number) if each.topic == "answers"][-1]
            assert got.properties.CorrelationData == b"%d" % number
            found: dict[str, Any] = json.loads(got.payload)
            return found

        answer = ask(1, action="subscribe", tags=["fr"], key=7)
        assert answer["ok"] == write
        assert ask(2, action="subscribe", tags="fr", key=7)["ok"] is False
        if write:
            wait_until(lambda: tm.match(["fr"]) == [7])
            client.publish("in/x", b"hello", UserProperty=[("tag", "fr")])
            assert client.wait(3)[2].topic == "out/7"
            client.publish("control", b'{"action": "unsubscribe", "tags": ["fr"], "key": 7}')
            wait_until(lambda: tm.match(["fr"]) == [])
        else:
            assert "write = true" in answer["error"]
            assert len(tm) == tm.stats()["staged"] == 0
        client.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_that_comes_back_loses_nothing_that_was_acknowledged(
    broker: Server, rng: random.Random, how: str
) -> None:
    """Once it writes down what it keeps; killed, it loses what it had, so that only what came after counts then."""
    tm, oracle = loaded(SETS)
    with tm, gateway_of(tm, broker) as (gateway, sessions):
        client = MqttClient(broker.port, "client", "out/#")
        expected: set[tuple[str, bytes]] = set()
        told = []
        for number in range(600):
            if number in (200, 400):
                if how == "stop":
                    broker.stop()
                else:
                    for each in told:
                        each.wait_for_publish(60)
                    client.wait(len(expected))
                    has_subscribed = client.will_subscribe()
                    broker.kill()
                    wait_until(lambda: gateway.stats()["connected"] == 0)
                broker.start()
                if how == "kill":  # which has forgotten who is subscribed
                    wait_until(lambda: gateway.stats()["connected"] == 1)
                    assert has_subscribed()
            tags, payload = rng.sample(TAGS, rng.randint(0, 4)), b"%d" % number
            told.append(client.publish("in/x", payload, UserProperty=[("tag", tag) for tag in tags] or [("no", "tag")]))
            expected |= {(f"out/{key}", payload) for key in oracle.match_unique(tags)}
        wait_until(lambda: {(each.topic, each.payload) for each in list(client.got)} >= expected)
        assert {(each.topic, each.payload) for each in client.got} == expected
        wait_until(lambda: sessions.stats()["waiting"] == 0)
        assert is_balanced(sessions.stats())
        assert is_accounted_for(gateway.stats())
        assert gateway.stats()["connections"] >= 2
        client.close()


def test_lost_connections_of_the_gateway_lose_nothing(broker: Server, rng: random.Random) -> None:
    """Clients keep theirs. A message that the broker sends again gives its notifications again."""
    tm, oracle = loaded(SETS)
    proxy = Proxy(broker.port)
    with tm, gateway_of(tm, broker, port=proxy.port, batch_messages=50) as (gateway, sessions):
        client = MqttClient(broker.port, "client", "out/#")
        expected: set[tuple[str, bytes]] = set()
        for number in range(3_000):
            tags, payload = rng.sample(TAGS, rng.randint(0, 4)), b"%d" % number
            client.publish("in/x", payload, UserProperty=[("tag", tag) for tag in tags] or [("no", "tag")])
            expected |= {(f"out/{key}", payload) for key in oracle.match_unique(tags)}
            if number % 500 == 250:
                wait_until(lambda: gateway.stats()["connected"] == 1)
                proxy.cut()
        wait_until(lambda: {(each.topic, each.payload) for each in list(client.got)} >= expected)
        assert {(each.topic, each.payload) for each in client.got} == expected
        wait_until(lambda: sessions.stats()["waiting"] == 0)
        assert is_balanced(sessions.stats())
        assert gateway.stats()["connections"] >= 3
        client.close()
    proxy.close()


def test_what_is_lost_on_the_way_to_the_broker_is_sent_again(broker: Server) -> None:
    tm, _ = loaded([(["a"], 1)])
    proxy = Proxy(broker.port)
    with tm, gateway_of(tm, broker, port=proxy.port) as (gateway, sessions):
        client = MqttClient(broker.port, "client", "out/#")
        proxy.pause()
        gateway._hub.publish([["a"]] * 100, [b"%d" % row for row in range(100)])
        wait_until(lambda: sessions.stats()["in_flight"] == 100)
        time.sleep(0.2)
        assert sessions.stats()["delivered"] == 0
        proxy.cut()
        proxy.resume()
        assert {int(each.payload) for each in client.wait(100)} == set(range(100))
        wait_until(lambda: sessions.stats()["delivered"] == 100)
        client.close()
    proxy.close()


def test_a_gateway_that_was_away_gets_what_came_meanwhile(broker: Server) -> None:
    tm, _ = loaded([(["a"], 1)])
    with tm:
        with gateway_of(tm, broker):
            pass
        client = MqttClient(broker.port, "client", "out/#")
        for number in range(20):
            client.publish("in/x", b"%d" % number, UserProperty=[("tag", "a")]).wait_for_publish(60)
        with gateway_of(tm, broker):
            assert sorted(int(each.payload) for each in client.wait(20)) == list(range(20))
        client.close()


def test_a_gateway_waits_for_a_broker(tmp_path: Path) -> None:
    server = mosquitto(tmp_path)
    server.kill()
    tm, _ = loaded([(["a"], 1)])
    sessions = Sessions("integer")
    with tm, Hub(tm, sessions) as hub:
        options = MqttOptions(port=server.port, messages="in", notifications="out", retry_first=0.05, retry_most=0.1)
        gateway = MqttGateway(tm, hub, sessions, options)
        gateway.start()
        hub.publish([["a"]], [b"early"]).result()
        time.sleep(0.2)
        assert gateway.stats()["connected"] == 0
        server.start()
        client = MqttClient(server.port, "client", "out/#")
        hub.publish([["a"]], [b"late"]).result()
        # The first may be gone before the client is there
        assert client.wait(1)[-1].payload in (b"early", b"late")
        assert gateway.stop()
        client.close()
    server.kill()
