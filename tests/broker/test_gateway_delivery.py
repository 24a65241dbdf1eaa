"""Messages through real brokers, compared with the oracle, also if connections and brokers end in between."""

import asyncio
import gc
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.agreement import index_of, loaded
from support.brokers import free_port
from support.gateway_sides import SIDES, Between, Secured, between, running_on
from support.notified import is_accounted_for, is_balanced
from support.service import value, written
from support.waiting import wait_until

from tagmatch import Channel, InvalidValueError, TagMatch, connect
from tagmatch.broker.config import Config, HttpOptions, KafkaOptions, MetricsOptions, MqttOptions, ServerOptions
from tagmatch.broker.config_file import read_config
from tagmatch.broker.gateway import Unsent
from tagmatch.broker.hub import Subscribers
from tagmatch.broker.mqtt import MqttGateway
from tagmatch.broker.service import serving

pytestmark = pytest.mark.slow

TAGS = "abcdef"
SETS = [(list(tags), key) for key, tags in enumerate(("", "a", "b", "ab", "abc", "ef", "g"))]
GUARANTEES = pytest.mark.parametrize("guarantee", ["at_most_once", "at_least_once"])
MQTT, NATS = (pytest.mark.parametrize("side", [name], indirect=True) for name in ("mqtt", "nats"))
#: Kafka's messages come at least once at least; the cluster that librdkafka plays has no password, and no restart
EVERY = pytest.mark.parametrize("side", ["mqtt", "nats", "kafka"], indirect=True)
EACH = pytest.mark.parametrize(
    ("side", "guarantee"),
    [
        *((name, guarantee) for name in ("mqtt", "nats") for guarantee in ("at_most_once", "at_least_once")),
        *(("kafka", guarantee) for guarantee in ("at_least_once", "exactly_once")),
    ],
    indirect=["side"],
)
SOME = [b"%d" % row for row in range(20)]


def tagged(tags: list[str]) -> list[tuple[str, str]]:
    return [("tag", tag) for tag in tags]


@EACH
def test_notifications_are_what_the_oracle_says(side, broker, rng, guarantee):
    tm, oracle = loaded(SETS)
    with (
        tm,
        running_on(side, tm, broker.port, guarantee=guarantee) as (gateway, sessions),
        side.client(broker.port) as client,
    ):
        expected: Counter[tuple[str, bytes, bytes]] = Counter()
        for number in range(400):
            tags, payload = rng.sample(TAGS, rng.randint(0, 4)), b"%d" % number
            client.publish(payload, *tagged(tags), own_id=b"id" + payload)
            topics = [f"out{side.separator}{key}" for key in oracle.match_unique(tags)]
            expected.update((topic, payload, b"id" + payload) for topic in topics)
        got = client.wait(expected.total())
        assert Counter((each.topic, each.payload, each.id) for each in got) == expected
        wait_until(lambda: gateway.stats()["sent"] == expected.total())
        wait_until(lambda: sessions.stats()["delivered"] == (400 if side.by_session else 0))
        wait_until(lambda: gateway.stats()["waiting"] == 0)  # which is counted after what it leads to
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert (counts["received"], counts["unsent"]) == (400, 0)
        assert is_balanced(sessions.stats())


@EVERY
def test_attributes_locations_channels_and_times_come_through(side, broker):
    channels = [Channel("alarm", 60.0)]
    where = ['price < 900 and city = "Rome"', "within circle(9.19, 45.46, 20000)"]
    options = {"key_type": "string", "channels": channels, "order": "edf"}
    with (
        index_of([["flat"], []], ["cheap.flats", ""], where=where, **options) as tm,
        running_on(side, tm, broker.port) as (gateway, _),
        side.client(broker.port) as client,
    ):
        attributes = ("attribute:price", "850"), ("attribute:city", "Rome")
        client.publish(b"\x00\xff", ("tag", "flat"), ("channel", "alarm"), *attributes, expires=1000)
        (first,) = client.wait(1)
        topic = "out/cheap.flats" if side.separator == "/" else "out.cheap%2Eflats"
        assert (first.topic, first.payload) == (topic, b"\x00\xff")
        assert 500 < first.seconds <= 1000
        place = ("lon", "9.2"), ("lat", "45.5")
        client.publish(b"here", *place)
        assert client.wait(2)[1] == (f"out{side.separator}%", b"here", None, None, False)
        client.publish(b"wrong", ("lon", "9.2"))
        client.publish(b"wrong", ("channel", "no such"), *place)
        client.publish(b"nothing", ("tag", "flat"))
        times = [] if side.name == "mqtt" else ["soon", "nan", "1e300", "-inf", "-1"]  # which are texts
        for text in times:
            client.publish(b"never", *(place if text == "-1" else ()), ("expires-in", text))
        wait_until(lambda: gateway.stats()["received"] == 5 + len(times) and gateway.stats()["waiting"] == 0)
        counts = gateway.stats()
        assert is_accounted_for(counts)
        refused, matched = (4, 3) if times else (2, 2)
        assert (counts["refused"], counts["matched"], len(client.got)) == (refused, matched, 2)
        assert tm.stats()["channels"]["alarm"]["answered"] == 1


@EVERY
def test_events_come_and_go_in_each_mode(side, broker):
    event = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order", "price": "9"}
    kind, data = "application/json", {"tags": ["a"], "n": 1}
    where = ['type = "order" and source prefix "/s" and price < 10']
    with (
        index_of([["a"]], [7], where=where) as tm,
        running_on(side, tm, broker.port, form="cloudevents") as (gateway, sessions),
        side.client(broker.port) as client,
    ):
        structured = {**event, "datacontenttype": kind, "data": data}
        client.publish(json.dumps(structured).encode(), ("unknown", "x"))
        if side.name == "mqtt":
            client.publish_to(side.place, json.dumps(data).encode(), ContentType=kind, UserProperty=list(event.items()))
        else:
            headers = {"content-type": kind, **{f"ce-{name}": value for name, value in event.items()}}
            client.publish_to(side.place, json.dumps(data).encode(), headers=headers)
        client.publish(b"no event", ("tag", "a"))
        client.wait(2)
        gateway._hub.publish(
            pa.table(
                {"tags": [["a"]] * 2, "type": ["order"] * 2, "source": ["/s"] * 2, "price": [9] * 2}
                | {"payload": [b"1e400", b"plain"]}  # the first one is a number that JSON cannot say again
            )
        )
        got = client.wait(4)
        assert [json.loads(each.payload) for each in got[:2]] == [{**structured, "matchedkeys": "[7]"}] * 2
        assert [each.id for each in got] == [b"e1", b"e1", None, None]
        for each, text in zip(got[2:], ("1e400", "plain"), strict=True):
            made = json.loads(each.payload)
            assert (made["type"], made["source"], made["data"]) == (
                "tagmatch.notification", f"/tagmatch/sessions/{side.name}", text
            )  # fmt: skip
        wait_until(lambda: gateway.stats()["waiting"] == 0)
        counts = gateway.stats()
        assert is_accounted_for(counts)
        assert (counts["received"], counts["matched"], counts["refused"], counts["waiting_bytes"]) == (3, 2, 1, 0)
        wait_until(lambda: sessions.stats()["delivered"] == (4 if side.by_session else 2))


@EVERY
@pytest.mark.parametrize("write", [True, False])
def test_clients_subscribe_by_requests(side, broker, write):
    options = {"write": write, "consolidate_interval": 0.05}
    with TagMatch() as tm, running_on(side, tm, broker.port, **options), side.client(broker.port) as client:
        answer = client.ask(action="subscribe", tags=["fr"], key=7)
        assert (answer["ok"], "write = true" in answer.get("error", "")) == (write, not write)
        assert client.ask(action="subscribe", tags="fr", key=7)["ok"] is False
        if write:
            wait_until(lambda: tm.match(["fr"]) == [7])
            client.publish(b"hello", ("tag", "fr"))
            assert client.wait(1)[0].topic == f"out{side.separator}7"
            assert client.ask(action="unsubscribe", tags=["fr"], key=7)["ok"]
            wait_until(lambda: tm.match(["fr"]) == [])
        assert len(tm) == tm.stats()["staged"] == 0


@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl:pytest.PytestUnraisableExceptionWarning")
def test_tls_and_a_password(side, start, tmp_path):
    secured = Secured(tmp_path)
    broker, (tm, _) = start(side.secured(secured)), loaded([(["a"], 1)])
    (tmp_path / "wrong").write_text("another")
    password, others = ({"password_file": str(tmp_path / "wrong")}, {"tls_ca": str(tmp_path / "others.pem")})
    with tm, side.client(broker.port, secured) as client:
        with running_on(side, tm, broker.port, **secured.options):
            client.publish(b"hello", ("tag", "a"))
            assert client.wait(1)[0].payload == b"hello"
        for wrong in (password, others, {"tls": False, "tls_ca": None}):
            with running_on(side, tm, broker.port, connects=False, **{**secured.options, **wrong}) as (gateway, _):
                wait_until(lambda gateway=gateway: gateway.stats()["disconnections"] >= 2)
                assert gateway.stats()["connections"] == 0
    gc.collect()  # paho leaves the socket open where a handshake fails


@NATS
def test_each_message_goes_to_one_gateway_of_a_queue_group(side, broker):
    with (
        between(side, broker, queue="group") as one,
        running_on(side, one.gateway._index, broker.port, queue="group") as (other, _),
    ):
        for number in range(200):
            one.client.publish(b"%d" % number, ("tag", "a"))
        assert sorted(int(each.payload) for each in one.client.wait(200)) == list(range(200))
        counts = [each.stats()["received"] for each in (one.gateway, other)]
        assert sum(counts) == 200
        assert min(counts) > 0


@NATS
def test_what_a_lost_connection_never_begins_is_sent_by_the_next(side, broker, proxy, monkeypatch):
    schedule, left = asyncio.run_coroutine_threadsafe, []
    tm, _ = loaded([(["a"], 1)])
    with (
        tm,
        running_on(side, tm, proxy.port, guarantee="at_least_once") as (gateway, _),
        side.client(broker.port) as client,
    ):

        def never_begun(coroutine, loop):
            if left or loop is not gateway._loop:
                return schedule(coroutine, loop)
            coroutine.close()
            proxy.cut()
            left.append(Future())
            left[0].cancel()  # as the loop's end does
            return left[0]

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", never_begun)
        gateway._hub.publish([["a"]], [b"hello"])
        assert client.wait(1)[0].payload == b"hello"
    assert left


@NATS
def test_what_begins_as_a_connection_ends_is_done_or_unsent(side, broker):
    """Nothing is left waiting, and no task is left to a loop that has ended, which the fixture `side` sees."""
    connections, asked = 500, 4
    found, ended = Counter[str](), threading.Event()

    async def connection():
        gateway._loop = asyncio.get_running_loop()
        await asyncio.sleep(0.0003)

    async def work():
        await asyncio.sleep(0)

    def ask():
        while not ended.is_set():
            try:
                gateway._do(work())
                found["done"] += 1
            except Unsent:
                found["unsent"] += 1
                time.sleep(0.0001)

    tm, _ = loaded([(["a"], 1)])
    with tm, running_on(side, tm, broker.port) as (gateway, _):
        wait_until(lambda: gateway.stats()["connections"] == 1)
    gateway._connection = connection
    threads = [threading.Thread(target=ask) for _ in range(asked)]
    for each in threads:
        each.start()
    for _ in range(connections):
        gateway._run_connection()
    ended.set()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    gc.collect()
    assert found["done"] > 0 < found["unsent"]


@GUARANTEES
def test_lost_connections_lose_nothing_or_give_nothing_twice(side, broker, proxy, rng, guarantee):
    """Messages come from a broker that keeps them, or not: those that it sends again are notified again."""
    surely = guarantee == "at_least_once"
    from_broker = side.keeps and surely
    tm, oracle = loaded(SETS)
    with (
        tm,
        running_on(side, tm, proxy.port, guarantee=guarantee, batch_messages=20) as (gateway, sessions),
        side.client(broker.port) as client,
    ):
        expected: set[tuple[str, bytes]] = set()
        for number in range(1_200):
            tags, payload = rng.sample(TAGS, rng.randint(0, 4)), b"%d" % number
            if from_broker:
                client.publish(payload, *tagged(tags))
            else:
                gateway._hub.publish([tags], [payload])
            expected |= {(f"out{side.separator}{key}", payload) for key in oracle.match_unique(tags)}
            if number % 200 == 100:
                wait_until(lambda least=number // 200 + 1: gateway.stats()["connections"] >= least)
                proxy.cut()
        if surely:  # the last messages may not be matched yet
            wait_until(lambda: {*client.notified} >= expected)
        wait_until(lambda: sessions.stats()["waiting"] == 0)
        came = client.rest(f"out{side.separator}end")
        got, firsts = Counter(each[:2] for each in came), Counter(each[:2] for each in came if not each.again)
        assert got.keys() == expected if surely else got.keys() <= expected
        assert from_broker or max(firsts.values()) == 1  # repeated messages say so
        assert surely or max(got.values()) == 1
        assert is_balanced(sessions.stats())
        assert gateway.stats()["connections"] >= 6


def test_a_gateway_waits_for_a_broker_and_gets_what_came_while_it_was_away(side, broker):
    with between(side, broker) as found:
        found.gateway.stop()
        if side.keeps:
            for payload in SOME:
                found.client.publish(payload, ("tag", "a"))
            found.client.wait_for_acknowledgements()
        ready = found.client.when_back()
        broker.stop()
        with running_on(side, found.gateway._index, broker.port, connects=False) as (gateway, _):
            wait_until(lambda: gateway.stats()["disconnections"] > 0)
            assert gateway.stats()["connected"] == 0
            broker.start()
            ready()
            wait_until(lambda: gateway.stats()["connected"] == 1)
            gateway._hub.publish([["a"]], [b"late"]).result()
            wait_until(lambda: found.client.payloads == {b"late", *(SOME if side.keeps else [])})


@EVERY
def test_what_has_come_is_sent_before_the_gateway_ends(side, broker):
    with between(side, broker) as found:
        for number in range(300):
            found.client.publish(b"%d" % number, ("tag", "a"))
        found.client.wait_for_acknowledgements()
        wait_until(lambda: side.name == "nats" or found.counts["received"] == 300)
        assert found.gateway.stop()
        assert is_accounted_for(found.counts)
        assert found.counts["sent"] == found.counts["received"] == 300
        assert found.sessions.stats()["delivered"] == (300 if side.by_session else 0)
        assert len(found.client.wait(300)) == 300


def assert_all_come(found: Between, payloads: list[bytes]) -> None:
    found.notify(payloads)
    wait_until(lambda: found.sessions.stats()["delivered"] == len(payloads))
    came, expected = Counter(each.payload for each in found.client.rest("out.end")), Counter(payloads)
    assert came.keys() == expected.keys()
    assert came >= expected


#: Of a notification without headers, which is two lines; what asks the server whether it has all comes after them
SMALL = [(lines, SOME) for lines in (1, 40, 41, 2, 3, 4, 5, 20, 38, 39, 60)]
#: The client library has a publisher wait where two megabytes wait to be written
LARGE = [(pieces, [b"%d" % row * 200_000 for row in range(1, 10)] * 3) for pieces in (5, 1, 20, 60)]


@NATS
@pytest.mark.parametrize(
    ("lines", "payloads"),
    [*SMALL[:3], LARGE[0], *(pytest.param(*each, marks=pytest.mark.nightly) for each in (*SMALL[3:], *LARGE[1:]))],
    ids=lambda given: str(given if isinstance(given, int) else len(given)),
)
def test_no_line_after_which_a_connection_ends_loses_what_counts_as_sent(side, broker, proxy, lines, payloads):
    with between(side, broker, port=proxy.port, flush_timeout=1.0) as found:
        proxy.cut_after(lines)
        assert_all_come(found, payloads)


@NATS
def test_a_new_connection_while_notifications_are_published_says_nothing_of_the_first(side, broker, proxy, monkeypatch):
    with between(side, broker, port=proxy.port) as found:
        publish, published = found.gateway._client.publish, 0

        async def interrupted(*args: Any, **options: Any) -> None:
            nonlocal published
            await publish(*args, **options)
            published += 1
            if published == 1:
                await asyncio.sleep(0.1)  # it is written, and kept by the proxy
                proxy.cut()
                proxy.resume()
                while found.counts["connections"] < 2:
                    await asyncio.sleep(0.01)

        monkeypatch.setattr(found.gateway._client, "publish", interrupted)
        proxy.pause()
        assert_all_come(found, SOME)


@NATS
def test_a_gateway_goes_on_after_a_server_that_answers_late(side, broker, proxy):
    with between(side, broker, port=proxy.port, flush_timeout=0.5) as found:
        proxy.pause()
        found.notify(SOME)
        wait_until(lambda: found.counts["unsent"] >= 40)
        proxy.resume()
        wait_until(lambda: found.sessions.stats()["delivered"] == 20)
        found.client.publish(b"later", ("tag", "a"))  # the gateway still listens
        wait_until(lambda: b"later" in found.client.payloads)
        assert found.client.payloads == {b"later", *SOME}
        assert found.counts["connections"] == 1


def test_a_service_has_gateways(tmp_path):
    mqtt, nats = SIDES["mqtt"], SIDES["nats"]
    with mqtt.start(tmp_path) as broker, nats.start(tmp_path) as server, loaded(SETS)[0] as tm:
        text = f"""
            [server]\nport = 0\n[metrics]\nenabled = false
            [[mqtt]]\nport = {broker.port}\nmessages = 'in/#'\nnotifications = 'out'
            [[nats]]\nport = {server.port}\nnotifications = 'out'
        """
        with (
            serving(tm, read_config(written(tmp_path, text))) as service,
            mqtt.client(broker.port) as client,
            connect(service.url) as remote,
            remote.subscriber("phone", [1]) as phone,
        ):
            stats = service.subscribers.stats
            wait_until(lambda: all(stats()[name]["connected"] for name in ("mqtt", "nats")))
            wait_until(lambda: stats()["sessions"]["connected"] == 3)
            client.publish(b"hello", ("tag", "a"))
            assert next(iter(phone)).payload == b"hello"
            assert {each.topic for each in client.wait(2)} == {"out/0", "out/1"}
            wait_until(lambda: stats()["nats"]["sent"] == 2)
            found = {("hub_in_total", ""): 1, ("sessions_sessions", ""): 3}
            found |= {("gateway_sent_total", "nats"): 2, ("gateway_received_total", "mqtt"): 1}
            for (name, session), expected in found.items():
                assert value(service, f"tagmatch_{name}", **({"session": session} if session else {})) == expected


@MQTT
def test_what_is_published_before_gateways_connect_is_notified(side, broker):
    options = MqttOptions(port=broker.port, notifications="out")
    with loaded([(["a"], 1)])[0] as tm, side.client(broker.port) as client:
        subscribers = Subscribers(tm, Config(mqtt=(options,)), "integer")
        subscribers.hub.publish([["a"]], [b"first"]).result()
        subscribers.start()
        assert client.wait(1)[0].payload == b"first"
        subscribers.begin_to_end()
        subscribers.end(60)


@MQTT
def test_a_service_whose_gateway_cannot_begin_listens_nowhere_and_connects_nothing(broker, monkeypatch):
    ports = [free_port(), free_port()]
    began = list[MqttOptions]()
    start = MqttGateway.start
    monkeypatch.setattr(MqttGateway, "start", lambda gateway: began.append(gateway.options) or start(gateway))
    config = Config(
        ServerOptions(port=ports[0]),
        http=HttpOptions(port=ports[1]),
        metrics=MetricsOptions(enabled=False),
        mqtt=(MqttOptions(port=broker.port, notifications="out"),),
        kafka=(KafkaOptions(notifications="out", options={"no.such": "x"}),),
    )
    with TagMatch() as tm, pytest.raises(InvalidValueError, match=r"no\.such"), serving(tm, config):
        pass
    assert began == []
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)


class _Late:
    """A gateway that takes its time to end, in which a message comes to another one."""

    options = SimpleNamespace(session="late")

    def __init__(self, come: Callable[[], object]) -> None:
        self._come = come

    def start(self) -> None: ...

    def stop_receiving(self, _: float) -> None: ...

    def stop(self, _: float) -> bool:
        self._come()
        return True

    def stats(self) -> dict[str, int]:
        return {}


@MQTT
def test_no_gateway_takes_messages_when_another_one_has_ended(side, broker):
    """Else they would be done with, and those who follow by the gateway that has ended would not hear of them."""
    both = (
        MqttOptions(port=broker.port, notifications="out"),
        MqttOptions(port=broker.port, messages="in/#", session="second", client_id="second"),
    )
    with loaded([(["a"], 1)])[0] as tm, side.client(broker.port) as client:
        subscribers = Subscribers(tm, Config(mqtt=both), "integer")
        one, other = subscribers.gateways

        def come() -> None:
            client.publish(b"late", ("tag", "a"))
            client.wait_for_acknowledgements()
            with suppress(AssertionError):
                wait_until(lambda: other.stats()["matched"] == 1, 1)

        subscribers.gateways = [one, _Late(come), other]
        subscribers.start()
        wait_until(lambda: all(each.stats()["connected"] for each in (one, other)))
        subscribers.begin_to_end()
        subscribers.end(60)
        assert other.stats()["matched"] == one.stats()["sent"]
