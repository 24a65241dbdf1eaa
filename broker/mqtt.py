"""A gateway to a broker of MQTT 5: tags as user properties, notifications by key.

A message with QoS 1 is acknowledged when its notifications are in their outboxes, and those of the gateway with the
broker, or when it is a dead letter; a notification is done with when the broker has acknowledged it. Each connection
has a separate client object, so that an ended connection leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tagmatch.broker.config import MqttOptions
from tagmatch.broker.gateway import Gateway, KeyNotification, NoConnection, Unsent
from tagmatch.broker.hub import Hub
from tagmatch.broker.incoming import GatewayMessage
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import TagMatchError

try:
    import paho.mqtt.client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError:
    raise TagMatchError("the MQTT gateway needs paho-mqtt; install it with: pip install 'tagmatch[mqtt]'") from None

_LOG = logging.getLogger("tagmatch.gateways")
#: The most unacknowledged messages under way to a client, and the most bytes of any text
_MOST_RECEIVED = _LONGEST = 65_535
#: The most bytes of any packet, and bytes of a packet without its topic, properties and payload
_MOST_PACKET, _HEAD = 268_435_455, 16
# Between looks whether the gateway is to stop; for a connection to begin; and for an acknowledgement to come
_LOOK_S, _BEGIN_S, _ACKNOWLEDGE_S = 0.1, 20.0, 60.0
#: Of a broker that cannot take more just now
_QUOTA_EXCEEDED = 0x97
#: Retained messages come where a subscription is new, or never
_RETAINED_IF_NEW, _RETAINED_NEVER = 1, 2


class _Client(mqtt.Client):
    """A client for one connection."""

    def __init__(self, client_id: str, unreadable: Callable[[bytes, int, int, Exception], None]) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, manual_ack=True, reconnect_on_failure=False
        )
        self.ended, self._unreadable = threading.Event(), unreadable
        self.failure: Exception | None = None

    def loop_forever(self, *arguments: Any, **options: Any) -> Any:
        """Run the loop in the thread of `loop_start`, and set `ended` afterwards."""
        try:
            return super().loop_forever(*arguments, **options)
        except Exception as error:
            self.failure = error
            return mqtt.MQTT_ERR_UNKNOWN
        finally:
            self.ended.set()

    def _handle_publish(self) -> Any:
        """Handle a message; without this, one that paho cannot read, but brokers pass on, would end the thread."""
        packet, kind = bytes(self._in_packet["packet"]), int(self._in_packet["command"])
        try:
            return super()._handle_publish()
        except Exception as error:
            qos, end = kind >> 1 & 3, 2 + int.from_bytes(packet[:2])
            self._unreadable(packet, int.from_bytes(packet[end : end + 2]) if qos else 0, qos, error)
            return mqtt.MQTT_ERR_SUCCESS


@dataclass(slots=True)
class _Unacknowledged:
    """A message that the broker has not heard of, the connection that it came by last, and whether it is done with."""

    client: _Client
    mid: int
    came: GatewayMessage
    is_done: bool = False


class MqttGateway(Gateway):
    """A gateway to MQTT 5; see `Gateway`."""

    options: MqttOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: MqttOptions) -> None:
        super().__init__(index, hub, sessions, options)
        self._qos = 1 if options.guarantee == "at_least_once" else 0
        self._client: _Client | None = None
        self._ending = False
        self._has_subscribed = False  # since the gateway began, so that retained messages have come
        # What the broker takes: bytes of a packet, and notifications that it has not acknowledged
        self._most_packet, self._send_most = _MOST_PACKET, 1
        self._refused: dict[int, ReasonCode] = {}
        # So many unacknowledged messages the broker may send; fewer, where these had more bytes than there is room for
        self._receive_most = self._receive_now = min(options.max_waiting, _MOST_RECEIVED)
        self._left_now = self._sizes = self._came = 0
        # What is not acknowledged yet, by its number, so that it is not taken again if the broker sends it again
        self._unacknowledged: dict[int, _Unacknowledged] = {}
        self._acknowledging = threading.Lock()

    def _run_connection(self) -> None:
        options, client = self.options, self._new_client()
        properties = _new_properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = options.session_expiry
        properties.ReceiveMaximum = self._receive_now
        self._left_now = self._sizes = self._came = 0
        client.connect(options.host, options.port, options.keepalive, clean_start=False, properties=properties)
        self._client = client
        client.loop_start()
        began = time.monotonic()
        while not client.ended.wait(_LOOK_S):
            if not self._connected.is_set() and time.monotonic() - began > _BEGIN_S:
                self._why = f"the broker has not let the gateway in within {_BEGIN_S:.0f} s"
                client.disconnect()
            elif self._left_now and not self._handing_over.held:
                self._fetch_what_is_left(client)
        self._is_connected(False)
        client.loop_stop()
        if self._left_now:
            return
        raise NoConnection(self._why or client.failure or "the connection was lost")

    def _new_client(self) -> _Client:
        options = self.options
        client = _Client(options.client_id, self._on_unreadable)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message, client.on_publish = self._on_message, self._on_publish
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        if (context := options.tls_context) is not None:
            client.tls_set_context(context)
        client.max_inflight_messages_set(_MOST_RECEIVED)
        self._why = ""
        return client

    def _on_connect(self, client: Any, _data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        if reason.is_failure:
            self._why = f"the broker refuses the connection: {reason}"
            return
        self._most_packet = getattr(properties, "MaximumPacketSize", _MOST_PACKET)
        self._send_most = min(self.options.batch_messages, getattr(properties, "ReceiveMaximum", _MOST_RECEIVED))
        if not flags.session_present:
            self._unacknowledged.clear()
        topics = [topic for topic in (self.options.messages, self.options.control) if topic]
        if not topics or (flags.session_present and self._has_subscribed):
            self._is_connected(True)
            return
        retained = _RETAINED_NEVER if self._has_subscribed else _RETAINED_IF_NEW
        client.subscribe(
            [
                # The protocol forbids No Local in shared subscriptions
                (topic, SubscribeOptions(self._qos, not topic.startswith("$share/"), retainHandling=retained))
                for topic in topics
            ]
        )

    def _on_subscribe(self, client: Any, _data: Any, _mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        refused = [str(reason) for reason in reasons if reason.is_failure]
        if refused:
            self._why = f"the broker refuses a subscription: {', '.join(refused)}"
            client.disconnect()
        else:
            self._has_subscribed = True
            self._is_connected(True)

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if not self._why and reason.is_failure:
            self._why = f"the connection has ended: {reason}"
        self._is_connected(False)

    def _end_receiving(self) -> None:
        # It stays subscribed: what it does not acknowledge any more, the broker keeps for when it is back
        self._ending = True

    def _end(self) -> None:
        if self._client is not None:
            self._client.disconnect()

    def _on_message(self, client: Any, _data: Any, message: Any) -> None:
        if self._ending:
            return
        try:
            came = self._incoming(message)
        except Exception as error:  # an error of this message alone
            self._on_unreadable(message.payload, message.mid, message.qos, error)
            return
        if self.options.control and self.options.naming.overlap(self.options.control, came.topic):
            answer = self.requests.answer(came.payload)
            if (topic := getattr(message.properties, "ResponseTopic", None)) is not None:
                self._answer(client, topic, answer, came.id)
            if message.qos:
                client.ack(message.mid, message.qos)
        elif message.qos == 0:
            self.receive(came, may_drop=True)
        elif not self._is_held(client, message, came):
            self._take(client, message.mid, came)

    def _take(self, client: Any, mid: int, came: GatewayMessage) -> None:
        """Take a message that needs an acknowledgement, or leave it and all later ones with the broker."""
        self._came += 1
        self._sizes += came.nbytes
        held = _Unacknowledged(client, mid, came)
        with self._acknowledging:
            self._unacknowledged[mid] = held
        awaited = came._replace(done=lambda: self._acknowledge(held))
        if self._left_now or not self.receive(awaited, may_drop=False):
            self._left_now += 1
            with self._acknowledging:
                del self._unacknowledged[mid]

    def _incoming(self, message: Any) -> GatewayMessage:
        properties = message.properties
        seconds = getattr(properties, "MessageExpiryInterval", None)
        given, kind = getattr(properties, "UserProperty", ()), getattr(properties, "ContentType", None)
        if kind is not None and self.options.form == "cloudevents":
            given = [*given, ("content-type", kind)]
        return GatewayMessage(
            given,
            message.payload,
            getattr(properties, "CorrelationData", None),
            None if seconds is None else self.sessions.steady() + int(seconds * 1e6),
            topic=message.topic,
        )

    def _is_held(self, client: Any, message: Any, came: GatewayMessage) -> bool:
        """Whether the broker sends a message again that the gateway has, as it has not heard of it."""
        with self._acknowledging:
            held = self._unacknowledged.get(message.mid)
            if not message.dup or held is None or held.came._replace(until=came.until) != came:
                return False
            held.client = client
            is_done = held.is_done
        if is_done:
            self._acknowledge(held)
        return True

    def _acknowledge(self, held: _Unacknowledged) -> None:
        """Acknowledge a message by the connection that it came by last; if that has ended, when it comes again."""
        with self._acknowledging:
            held.is_done = held.client.ended.is_set()
            if not held.is_done and self._unacknowledged.get(held.mid) is held:
                del self._unacknowledged[held.mid]
        if not held.is_done:
            held.client.ack(held.mid, 1)

    def _on_unreadable(self, packet: bytes, mid: int, qos: int, error: Exception) -> None:
        """Refuse a message that cannot even be read, and have it come no more."""
        client = self._client
        done = None if qos == 0 or client is None else lambda: client.ack(mid, qos)
        self._handing_over.refuse(GatewayMessage((), packet, done=done), f"it cannot be read: {error}")

    def _fetch_what_is_left(self, client: Any) -> None:
        """Connect again, with a smaller Receive Maximum, so that messages that found no room come again."""
        mean = max(self._sizes // max(self._came, 1), 1)
        self._receive_now = max(min(self._receive_most, self._most_bytes // mean // 2), 1)
        fields = {"gateway": self.options.session, "messages": self._left_now, "receive_maximum": self._receive_now}
        _LOG.warning("messages had no room in max_waiting_bytes; they come again", extra={"fields": fields})
        client.disconnect()

    def _answer(self, client: Any, topic: str, answer: bytes, correlation: bytes | None) -> None:
        if not self._may_answer_to(topic):
            return
        properties = _new_properties(PacketTypes.PUBLISH)
        if correlation is not None:
            properties.CorrelationData = correlation
        client.publish(topic, answer, self._qos, properties=properties)

    def why_unsendable(self, outgoing: KeyNotification) -> str | None:
        """Why the broker would not take it, as far as its limits are known."""
        topic = len(outgoing.topic.encode())
        if topic > _LONGEST:
            return f"its topic has {topic:,} bytes, more than {_LONGEST:,}"
        if outgoing.id is not None and len(outgoing.id) > _LONGEST:
            return f"its id has {len(outgoing.id):,} bytes, more than {_LONGEST:,}"
        size = _HEAD + topic + len(_properties(outgoing).pack()) + len(outgoing.payload)
        if size > self._most_packet:
            return f"it has about {size:,} bytes, and the broker takes {self._most_packet:,}"
        return None

    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
        """Send these, and wait until the broker has them, or at most once, until they are on their way."""
        client = self._client
        if client is None or not self._connected.is_set():
            raise Unsent("there is no connection")
        self._refused.clear()
        refused: list[tuple[KeyNotification, str]] = []
        under_way: deque[tuple[KeyNotification, Any]] = deque()
        for each in outgoing:
            if len(under_way) >= self._send_most:
                refused += self._wait_for(client, *under_way.popleft())
            try:
                sent = client.publish(each.topic, each.payload, self._qos, properties=_properties(each))
            except Exception as error:  # an error of this notification alone
                refused.append((each, f"{type(error).__name__}: {error}"))
                continue
            if sent.rc != mqtt.MQTT_ERR_SUCCESS:
                raise Unsent(mqtt.error_string(sent.rc), is_suspect=bool(under_way))
            under_way.append((each, sent))
        while under_way:
            refused += self._wait_for(client, *under_way.popleft())
        self._has_gone_on = True
        return refused

    def _wait_for(self, client: _Client, each: KeyNotification, sent: Any) -> list[tuple[KeyNotification, str]]:
        """Wait until a notification is acknowledged, or on its way; that one, with the reason, if it is refused."""
        until = time.monotonic() + _ACKNOWLEDGE_S
        while not sent.is_published():
            if client.ended.is_set():
                raise Unsent("the connection was lost", is_suspect=True)
            if time.monotonic() > until:
                client.disconnect()
                raise Unsent(f"the broker has not taken a notification within {_ACKNOWLEDGE_S:.0f} s")
            sent.wait_for_publish(_LOOK_S)
        reason = self._refused.pop(sent.mid, None)
        if reason is None:
            return []
        if reason.value == _QUOTA_EXCEEDED:
            raise Unsent(f"the broker takes no more now: {reason}")
        return [(each, f"the broker refuses it: {reason}")]

    def _on_publish(self, _client: Any, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self._refused[mid] = reason


def _new_properties(packet: int) -> Any:
    return Properties(packet)  # type: ignore[no-untyped-call]


def _properties(each: KeyNotification) -> Any:
    properties = _new_properties(PacketTypes.PUBLISH)
    if each.id is not None:
        properties.CorrelationData = each.id
    if each.content_type is not None:
        properties.ContentType = each.content_type
    if each.seconds_left is not None:
        # In whole seconds, one at least
        properties.MessageExpiryInterval = min(max(math.ceil(each.seconds_left), 1), 2**32 - 1)
    if each.redelivered:
        properties.UserProperty = [("redelivered", "true")]
    return properties
