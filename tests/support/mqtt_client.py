"""A plain client of MQTT 5, for tests of what goes over a broker."""

from __future__ import annotations

import threading
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions


class MqttClient:
    """Connects again by itself; keeps what has come."""

    def __init__(self, port: int, name: str, *topics: str, qos: int = 1) -> None:
        self.got: list[Any] = []
        self._came, self._qos, self._topics = threading.Condition(), qos, topics
        self._ready = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        self._client.on_connect, self._client.on_message = self._on_connect, self._on_message
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.reconnect_delay_set(0.05, 0.2)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        if topics:
            assert self._ready.wait(30)

    def _on_connect(self, client: Any, *_: Any) -> None:
        if self._topics:
            client.subscribe([(topic, SubscribeOptions(qos=self._qos)) for topic in self._topics])

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        with self._came:
            self.got.append(message)
            self._came.notify_all()

    def publish(self, topic: str, payload: bytes, qos: int = 1, **properties: Any) -> Any:
        own = Properties(PacketTypes.PUBLISH)
        for name, value in properties.items():
            setattr(own, name, value)
        return self._client.publish(topic, payload, qos, properties=own)

    def wait(self, count: int, seconds: float = 60) -> list[Any]:
        """What has come, when so many messages have."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.got) >= count, seconds), f"{len(self.got)} of {count} came"
            return list(self.got)

    def will_subscribe(self) -> Any:
        """What to call when it has lost its broker: waits until it has subscribed again."""
        self._ready.clear()
        return lambda: self._ready.wait(60)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
