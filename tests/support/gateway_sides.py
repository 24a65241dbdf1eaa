"""All kinds of gateways with their brokers and plain clients, alike for tests of what holds for both."""

import asyncio
import base64
import hashlib
import json
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import confluent_kafka
import nats
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from support.agreement import loaded
from support.brokers import Server, mosquitto, nats_server
from support.certificates import Authority
from support.kafka_cluster import Cluster
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.config import HUB_DEFAULTS, KAFKA, HubOptions, KafkaOptions, MqttOptions, NatsOptions
from tagmatch.broker.gateway import Gateway
from tagmatch.broker.hub import Hub
from tagmatch.broker.kafka import KafkaGateway
from tagmatch.broker.mqtt import MqttGateway
from tagmatch.broker.nats import NatsGateway
from tagmatch.broker.sessions import Sessions


class Came(NamedTuple):
    topic: str
    payload: bytes
    id: bytes | None
    #: For how long it lasts
    seconds: float | None
    #: Whether it says that it may have come before
    again: bool


class Secured:
    """Files of a broker that wants TLS and a password, and what a gateway and a client say there."""

    def __init__(self, folder: Path, password: str = "secret") -> None:
        self.folder, self.password, authority = folder, password, Authority("ours")
        server = authority.certificate("localhost")
        files = {"ca.pem": authority.cert, "server.pem": server.cert, "server.key": server.key}
        for name, data in {**files, "password": password.encode(), "others.pem": Authority("others").cert}.items():
            (folder / name).write_bytes(data)
        self.options = {
            "username": "ana", "password_file": str(folder / "password"), "tls": True, "tls_ca": str(folder / "ca.pem"),
        }  # fmt: skip

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.pem")


class Client:
    """Publishes messages, and keeps notifications; each kind extends this one."""

    def __init__(self) -> None:
        self.got: list[Came] = []

    @property
    def notified(self) -> list[tuple[str, bytes]]:
        return [(each.topic, each.payload) for each in list(self.got)]

    @property
    def payloads(self) -> set[bytes]:
        return {each.payload for each in list(self.got)}

    def wait(self, count: int) -> list[Came]:
        """The notifications, when `count` have come."""
        wait_until(lambda: len(self.got) >= count)
        return list(self.got)

    def rest(self, topic: str) -> list[Came]:
        """The notifications, when all messages have come; this topic is one of a notification."""
        self.publish_to(topic, b"end")
        wait_until(lambda: b"end" in self.payloads)
        return [each for each in list(self.got) if each.payload != b"end"]


class Side:
    name: str
    separator: str
    #: Any topics below
    every: str
    #: Whether the broker keeps messages for who is away
    keeps: bool
    #: What bounds the size of what it takes, as a line of its configuration, and the bytes that are too many
    small: str
    kind: type[Any]
    too_large = 20_000
    #: Further options of its gateways
    more: ClassVar[dict[str, Any]] = {}
    #: Starts a broker in a folder, with more lines of its configuration
    start: Callable[..., Server]
    gateways: tuple[Any, Any]
    #: Where clients publish; and whether notifications of messages of this broker go through the gateway's session
    place, by_session = "", True

    def client(self, port: int, secured: Secured | None = None) -> Any:
        return closing(self.kind(port, secured))

    def gateway(self, tm: TagMatch[Any], hub: Hub, sessions: Sessions, port: int, **options: Any) -> Gateway:
        messages = f"in{self.separator}{self.every}" if self.every else self.place
        places = {"messages": messages, "notifications": "out", "control": "control"}
        own = {"port": port, **places, "retry_first": 0.05, "retry_most": 0.2, **self.more, **options}
        return self.gateways[0](tm, hub, sessions, self.gateways[1](**own))


# -- MQTT --------------------------------------------------------------------------------------------------------------


class _MqttClient(Client):
    """Connects again by itself."""

    def __init__(self, port: int, secured: Secured | None) -> None:
        super().__init__()
        self._ready, self._told, self._answers = threading.Event(), list[int](), dict[bytes, bytes]()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="client", protocol=mqtt.MQTTv5)
        self._client.on_connect, self._client.on_message = self._on_connect, self._on_message
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._acknowledged = set[int]()
        self._client.on_publish = lambda _client, _data, number, *_: self._acknowledged.add(number)
        self._client.reconnect_delay_set(0.05, 0.2)
        if secured is not None:
            self._client.tls_set_context(secured.context)
            self._client.username_pw_set("ana", secured.password)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        assert self._ready.wait(60)

    def _on_connect(self, client: Any, *_: Any) -> None:
        client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in ("out/#", "answers")])

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        found = message.properties
        id_, seconds = (getattr(found, name, None) for name in ("CorrelationData", "MessageExpiryInterval"))
        if message.topic == "answers":
            self._answers[id_] = message.payload
        else:
            again = ("redelivered", "true") in getattr(found, "UserProperty", [])
            self.got.append(Came(message.topic, message.payload, id_, seconds, again))

    def publish(self, payload: bytes, *properties: tuple[str, str], expires: Any = None, own_id: Any = None) -> None:
        given = {"MessageExpiryInterval": expires, "CorrelationData": own_id}
        more = {name: value for name, value in given.items() if value is not None}
        self.publish_to("in/a/b", payload, UserProperty=list(properties) or [("no", "tag")], **more)

    def publish_to(self, topic: str, payload: bytes, *, retain: bool = False, **more: Any) -> None:
        own = Properties(PacketTypes.PUBLISH)
        for name, value in more.items():
            setattr(own, name, value)
        # Without a connection it is kept and sent later, though its `is_published` would raise an error then
        self._told.append(self._client.publish(topic, payload, 1, retain, properties=own).mid)

    def ask(self, **request: Any) -> dict[str, Any]:
        number = b"%d" % len(self._told)
        self.publish_to("control", json.dumps(request).encode(), ResponseTopic="answers", CorrelationData=number)
        wait_until(lambda: number in self._answers)
        return json.loads(self._answers[number])

    def wait_for_acknowledgements(self, seconds: float = 60) -> None:
        wait_until(lambda: self._acknowledged.issuperset(self._told), seconds)
        self._told.clear()
        self._acknowledged.clear()

    def when_back(self) -> Callable[[], object]:
        self._ready.clear()
        return lambda: wait_until(self._ready.is_set)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class _MqttSide(Side):
    name, separator, every, keeps, small = "mqtt", "/", "#", True, "max_packet_size 20000"
    kind, start, gateways = _MqttClient, staticmethod(mosquitto), (MqttGateway, MqttOptions)
    place = "in/a/b"

    def secured(self, with_: Secured) -> str:
        salt = b"twelve bytes"
        digest = hashlib.pbkdf2_hmac("sha512", with_.password.encode(), salt, 101)
        as_text = "$".join(base64.b64encode(each).decode() for each in (salt, digest))
        (with_.folder / "users").write_text(f"ana:$7$101${as_text}\n")
        files = {"certfile": "server.pem", "keyfile": "server.key", "password_file": "users"}
        return "".join(f"{name} {with_.folder / file}\n" for name, file in files.items())


# -- NATS --------------------------------------------------------------------------------------------------------------


class _NatsClient(Client):
    """Runs in a separate thread; headers that would repeat are one, of JSON."""

    def __init__(self, port: int, secured: Secured | None) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        security = {} if secured is None else {"user": "ana", "password": secured.password, "tls": secured.context}
        self._do(self._connect(port, security))

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _connect(self, port: int, security: dict[str, Any]) -> None:
        async def quiet(_: Exception) -> None: ...

        again = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.05}
        self._client = await nats.connect(f"nats://127.0.0.1:{port}", error_cb=quiet, **again, **security)
        await self._client.subscribe("out.>", cb=self._keep)
        await self._client.flush()

    async def _keep(self, message: Any) -> None:
        found = message.headers or {}
        id_, seconds = found.get("id"), found.get("expires-in")
        more = None if id_ is None else id_.encode(), None if seconds is None else float(seconds)
        self.got.append(Came(message.subject, message.data, *more, "redelivered" in found))

    def publish(self, payload: bytes, *properties: tuple[str, str], expires: Any = None, own_id: Any = None) -> None:
        headers = {name.replace(":", "-"): value for name, value in properties if name != "tag"}
        if tags := [value for name, value in properties if name == "tag"]:
            headers = {"tags": json.dumps(tags), **headers}
        if expires is not None:
            headers["expires-in"] = str(expires)
        if own_id is not None:
            headers["id"] = own_id.decode()
        self.publish_to("in.a.b", payload, headers=headers or None)

    def publish_to(self, topic: str, payload: bytes, **more: Any) -> None:
        async def publish() -> None:
            await self._client.publish(topic, payload, **more)
            await self._client.flush()

        self._do(publish())

    def ask(self, **request: Any) -> dict[str, Any]:
        return json.loads(self._do(self._client.request("control", json.dumps(request).encode(), timeout=60)).data)

    def wait_for_acknowledgements(self, seconds: float = 60) -> None:
        """The server has all that was published before a message that it gives back; a ping may overtake them."""

        async def come_back() -> None:
            mark = await self._client.subscribe(self._client.new_inbox())
            await self._client.publish(mark.subject)
            await mark.next_msg(seconds)
            await mark.unsubscribe()

        self._do(come_back())

    def when_back(self) -> Callable[[], object]:
        return lambda: wait_until(lambda: self._client.is_connected)

    def close(self) -> None:
        self._do(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class _NatsSide(Side):
    name, separator, every, keeps, small = "nats", ".", ">", False, "max_payload: 20000"
    kind, start, gateways = _NatsClient, staticmethod(nats_server), (NatsGateway, NatsOptions)
    place = "in.a.b"

    def secured(self, with_: Secured) -> str:
        files = f'cert_file: "{with_.folder}/server.pem", key_file: "{with_.folder}/server.key"'
        return f"tls {{ {files} }}\nauthorization {{ user: ana, password: {with_.password} }}\n"


# -- Kafka -------------------------------------------------------------------------------------------------------------


class _KafkaClient(Client):
    """Reads in a separate thread; the key of a notification is the last level of its topic, as elsewhere."""

    def __init__(self, port: int, secured: Secured | None) -> None:
        super().__init__()
        assert secured is None
        servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
        self._producer = confluent_kafka.Producer(servers)
        group = {"group.id": "client", "auto.offset.reset": "earliest", "session.timeout.ms": 6_000}
        self._consumer = confluent_kafka.Consumer({**servers, **group})
        self._consumer.subscribe(["out", "answers"])
        self._answers, self._asked, self._ends = dict[bytes, bytes](), 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            for record in self._consumer.consume(1_000, 0.05):
                found = dict(record.headers() or ())
                if record.topic() == "answers":
                    self._answers[found["id"]] = record.value()
                    continue
                seconds = None if "expires-in" not in found else float(found["expires-in"])
                topic = f"out/{KAFKA.level((record.key() or b'').decode())}"
                self.got.append(Came(topic, record.value() or b"", found.get("id"), seconds, "redelivered" in found))
        self._consumer.close()

    def publish(self, payload: bytes, *properties: tuple[str, str], expires: Any = None, own_id: Any = None) -> None:
        given = {"expires-in": expires, "id": own_id}
        self.publish_to(
            "in", payload, [*properties, *((name, each) for name, each in given.items() if each is not None)]
        )

    def publish_to(self, topic: str, payload: bytes, headers: Any = ()) -> None:
        pairs = headers.items() if isinstance(headers, dict) else headers
        self._producer.produce(
            topic, payload, headers=[(name, each if isinstance(each, bytes) else str(each)) for name, each in pairs]
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        self._asked += 1
        number = b"%d" % self._asked
        self.publish_to("control", json.dumps(request).encode(), {"reply-to": "answers", "id": number})
        wait_until(lambda: number in self._answers)
        return json.loads(self._answers[number])

    def wait_for_acknowledgements(self, seconds: float = 60) -> None:
        assert self._producer.flush(seconds) == 0

    def close(self) -> None:
        self._ends.set()
        self._thread.join(60)
        self._producer.flush(10)


@contextmanager
def _cluster(_folder: Path, _more: str = "") -> Iterator[Cluster]:
    with closing(Cluster()) as found:
        for topic in ("in", "out", "control", "answers"):
            found.topic(topic)
        yield found


class _KafkaSide(Side):
    name, separator, every, keeps, place, by_session = "kafka", "/", "", True, "in", False
    kind, start, gateways = _KafkaClient, staticmethod(_cluster), (KafkaGateway, KafkaOptions)
    more: ClassVar[dict[str, Any]] = {"session_timeout": 6.0}


SIDES: dict[str, Any] = {"mqtt": _MqttSide(), "nats": _NatsSide(), "kafka": _KafkaSide()}


# -- gateways ----------------------------------------------------------------------------------------------------------


@contextmanager
def running_on(
    side: Any, tm: TagMatch[Any], port: int, hub: HubOptions = HUB_DEFAULTS, connects: bool = True, **options: Any
) -> Iterator[tuple[Any, Sessions]]:
    """A gateway of this kind, which has connected if it can, and the sessions of its hub."""
    sessions = Sessions(tm.stats()["key_type"])
    with Hub(tm, sessions, hub, channels=list(tm.stats()["channels"])) as found:
        gateway = side.gateway(tm, found, sessions, port, **options)
        gateway.start()
        try:
            if connects:
                wait_until(lambda: gateway.stats()["connected"] == 1)
            yield gateway, sessions
        finally:
            gateway.stop()


@dataclass
class Between:
    """A gateway that has connected, the sessions of its hub, and a client of the broker."""

    gateway: Any
    sessions: Sessions
    client: Any

    @property
    def counts(self) -> dict[str, int]:
        return self.gateway.stats()

    def notify(self, payloads: Sequence[bytes]) -> None:
        """Publish messages with the tag `a` in the hub."""
        self.gateway._hub.publish([["a"]] * len(payloads), payloads)


@contextmanager
def between(
    side: Any, broker: Server, *, keys: Any = (1,), tags: Any = ("a",), port: int | None = None, **options: Any
) -> Iterator[Between]:
    """A gateway of an index that has one set, of these tags, with these keys."""
    tm, _ = loaded([(tags, key) for key in keys])
    with tm, running_on(side, tm, port or broker.port, **options) as parts, side.client(broker.port) as client:
        yield Between(*parts, client)


def letters_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
