"""Both kinds of gateways with their brokers and plain clients, alike for tests of what holds for both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from support.brokers import Server, mosquitto, nats_server
from support.gateways import running
from support.mqtt_client import MqttClient
from support.nats_client import NatsClient
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.gateways.gateway import Gateway
from tagmatch.broker.gateways.mqtt import MqttGateway
from tagmatch.broker.gateways.nats import NatsGateway
from tagmatch.broker.gateways.options import MqttOptions, NatsOptions
from tagmatch.broker.sessions import Sessions
from tagmatch.broker.subscriber_options import HUB_DEFAULTS, HubOptions

Properties = Sequence[tuple[str, str]]


class Side(Protocol):
    """One kind of broker."""

    name: str
    separator: str
    #: What bounds the size of what it takes, as a line of its configuration, and the bytes that are too many
    small: str
    too_large: int

    def start(self, folder: Path, more: str = "") -> Server: ...

    def options(self, port: int, **options: Any) -> Any: ...

    def client(self, port: int) -> AbstractContextManager[Client]: ...

    def gateway(self, tm: TagMatch[Any], options: Any) -> Any: ...


class Client(Protocol):
    """Publishes messages, and keeps notifications."""

    def publish(self, payload: bytes, *properties: tuple[str, str], expires: int | None = None) -> None: ...

    def wait_for_acknowledgements(self, seconds: float) -> None:
        """Wait until the broker has all that was published."""

    def when_back(self) -> Callable[[], object]:
        """What to call when the broker has ended: waits until the client has subscribed again."""

    @property
    def notified(self) -> list[tuple[str, bytes]]: ...


class _MqttSide:
    name, separator, small, too_large = "mqtt", "/", "max_packet_size 20000", 20_000

    def start(self, folder: Path, more: str = "") -> Server:
        return mosquitto(folder, more)

    def options(self, port: int, **options: Any) -> MqttOptions:
        found = {"messages": "in/#", "notifications": "out", "retry_first": 0.05, "retry_most": 0.2, **options}
        return MqttOptions(port=port, **found)

    def gateway(self, *parts: Any) -> Gateway:
        return MqttGateway(*parts)

    @contextmanager
    def client(self, port: int) -> Iterator[Client]:
        found = _OfMqtt(MqttClient(port, "client", "out/#"))
        yield found
        found.client.close()


class _OfMqtt:
    def __init__(self, client: MqttClient) -> None:
        self.client = client
        self._told: list[Any] = []

    def publish(self, payload: bytes, *properties: tuple[str, str], expires: int | None = None) -> None:
        more = {} if expires is None else {"MessageExpiryInterval": expires}
        own = list(properties) or [("no", "tag")]
        self._told.append(self.client.publish("in/x", payload, UserProperty=own, **more))

    def wait_for_acknowledgements(self, seconds: float) -> None:
        wait_until(lambda: all(each._published for each in self._told), seconds)
        self._told.clear()

    def when_back(self) -> Callable[[], object]:
        found: Callable[[], object] = self.client.will_subscribe()
        return found

    @property
    def notified(self) -> list[tuple[str, bytes]]:
        return [(each.topic, each.payload) for each in list(self.client.got)]


class _NatsSide:
    name, separator, small, too_large = "nats", ".", "max_payload: 20000", 20_000

    def start(self, folder: Path, more: str = "") -> Server:
        return nats_server(folder, more)

    def options(self, port: int, **options: Any) -> NatsOptions:
        found = {"messages": "in.>", "notifications": "out", "retry_first": 0.05, "retry_most": 0.2, **options}
        return NatsOptions(port=port, **found)

    def gateway(self, *parts: Any) -> Gateway:
        return NatsGateway(*parts)

    @contextmanager
    def client(self, port: int) -> Iterator[Client]:
        found = _OfNats(NatsClient(port, "out.>"))
        yield found
        found.client.close()


class _OfNats:
    def __init__(self, client: NatsClient) -> None:
        self.client = client

    def publish(self, payload: bytes, *properties: tuple[str, str], expires: int | None = None) -> None:
        headers = {name.replace(":", "-"): value for name, value in properties if name != "tag"}
        if expires is not None:
            headers["expires-in"] = str(expires)
        tags = [value for name, value in properties if name == "tag"]
        self.client.publish(("in.x", payload, {"tags": json.dumps(tags), **headers} if properties else None))

    def wait_for_acknowledgements(self, seconds: float) -> None: ...

    def when_back(self) -> Callable[[], object]:
        return lambda: wait_until(self.client.is_connected)

    @property
    def notified(self) -> list[tuple[str, bytes]]:
        return [(each.subject, each.data) for each in list(self.client.got)]


SIDES: dict[str, Any] = {"mqtt": _MqttSide(), "nats": _NatsSide()}


def running_on(
    side: Any, tm: TagMatch[Any], port: int, hub: HubOptions = HUB_DEFAULTS, seconds: float = 60, **options: Any
) -> AbstractContextManager[tuple[Any, Sessions]]:
    """A gateway of this kind that has connected, and the sessions of its hub."""
    return running(tm, lambda *parts: side.gateway(*parts, side.options(port, **options)), hub, seconds)


def letters_in(path: Path) -> list[dict[str, Any]]:
    """What a file of dead letters has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
