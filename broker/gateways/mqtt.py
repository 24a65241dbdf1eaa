"""A gateway to a broker of MQTT 5: tags as user properties, notifications by key.

A message with QoS 1 is acknowledged when its notifications are in their outboxes, a notification of such a gateway when
the broker has acknowledged it.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from tagmatch.broker.gateways.gateway import Gateway, Outgoing, Unsent, as_level
from tagmatch.broker.gateways.incoming import Incoming
from tagmatch.broker.gateways.options import MqttOptions
from tagmatch.broker.hub import Hub
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
#: What a topic cannot have within a level
_SEPARATORS = "/+#\0"
#: The broker has at most so many unacknowledged messages under way to a client
_MOST_RECEIVED = 65_535
# Between looks whether the gateway is to stop
_LOOK_S = 0.1


class MqttGateway(Gateway):
    """A gateway to MQTT 5; see `Gateway`.

    Examples
    --------
    >>> gateway = MqttGateway(tm, hub, sessions, MqttOptions(messages="in/#", notifications="out"))  # doctest: +SKIP
    >>> gateway.start()  # doctest: +SKIP
    """

    options: MqttOptions

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: MqttOptions) -> None:
        super().__init__(index, hub, sessions, options)
        self._qos = 1 if options.guarantee == "at_least_once" else 0
        self._number = 0  # of the connection
        self._ending = False
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            protocol=mqtt.MQTTv5,
            manual_ack=True,
        )
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message, client.on_publish = self._on_message, self._on_publish
        # paho doubles the delay each time, which need not be an integer
        client.reconnect_delay_set(options.retry_first, options.retry_most)  # type: ignore[arg-type]
        client.max_inflight_messages_set(options.batch_messages)
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        if options.tls:
            client.tls_set_context(ssl.create_default_context(cafile=options.tls_ca))
        self._client = client

    # -- the connection ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        properties = _new_properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self.options.session_expiry
        properties.ReceiveMaximum = min(self.options.max_waiting, _MOST_RECEIVED)
        self._client.connect_async(
            self.options.host,
            self.options.port,
            self.options.keepalive,
            clean_start=False,
            properties=properties,
        )
        self._client.loop_start()

    def _on_connect(self, client: Any, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            _LOG.error("MQTT: the broker refuses the connection: %s", reason)
            return
        options = SubscribeOptions(qos=self._qos)
        topics = [(topic, options) for topic in (self.options.messages, self.options.control) if topic]
        if topics:
            client.subscribe(topics)
        else:
            self._is_connected(True)

    def _on_subscribe(self, _client: Any, _data: Any, _mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        for reason in reasons:
            if reason.is_failure:
                _LOG.error("MQTT: the broker refuses a subscription: %s", reason)
        self._is_connected(True)

    def _on_disconnect(self, *_: Any) -> None:
        self._number += 1
        self._is_connected(False)

    def _end_receiving(self) -> None:
        # It stays subscribed: what it does not acknowledge any more, the broker keeps for when it is back
        self._ending = True

    def _end(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        if self._ending:
            return
        acknowledge = self._acknowledgement(message)
        properties = message.properties
        if self.options.control and mqtt.topic_matches_sub(self.options.control, message.topic):
            answer = self.requests.answer(message.payload)
            if (topic := getattr(properties, "ResponseTopic", None)) is not None:
                self._answer(topic, answer, getattr(properties, "CorrelationData", None))
            if acknowledge is not None:
                acknowledge()
            return
        seconds = getattr(properties, "MessageExpiryInterval", None)
        came = Incoming(
            getattr(properties, "UserProperty", ()),
            message.payload,
            getattr(properties, "CorrelationData", None),
            None if seconds is None else self._sessions.now() + int(seconds * 1e6),
            acknowledge,
        )
        # Of those with QoS 1 no more come than may wait
        self.receive(came, may_drop=acknowledge is None)

    def _acknowledgement(self, message: Any) -> Callable[[], None] | None:
        """What acknowledges a message, to the connection that it came by only."""
        if message.qos == 0:
            return None
        number, mid, qos = self._number, message.mid, message.qos

        def acknowledge() -> None:
            if self._number == number:
                self._client.ack(mid, qos)

        return acknowledge

    def _answer(self, topic: str, answer: bytes, correlation: bytes | None) -> None:
        properties = _new_properties(PacketTypes.PUBLISH)
        if correlation is not None:
            properties.CorrelationData = correlation
        try:
            self._client.publish(topic, answer, self._qos, properties=properties)
        except ValueError as error:  # a topic with wildcards
            _LOG.warning("MQTT: a request has no topic for its answer: %s", error)

    # -- notifications -----------------------------------------------------------------------------------------------

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        under_way = []
        for each in outgoing:
            topic = f"{self.options.notifications}/{as_level(each.key, _SEPARATORS)}"
            try:
                sent = self._client.publish(topic, each.payload, self._qos, properties=_properties(each))
            except ValueError as error:
                self._cannot_send(error)
                continue
            if sent.rc != mqtt.MQTT_ERR_SUCCESS:
                raise Unsent(mqtt.error_string(sent.rc))
            under_way.append(sent)
        if self._qos:
            # paho sends them again by itself when a connection comes back
            for sent in under_way:
                while not sent.is_published():
                    if self._stopping.is_set() and not self._connected.is_set():
                        raise Unsent("the gateway ends before the broker has acknowledged them")
                    sent.wait_for_publish(_LOOK_S)

    def _on_publish(self, _client: Any, _data: Any, _mid: int, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self._cannot_send(reason)


def _new_properties(packet: int) -> Any:
    return Properties(packet)  # type: ignore[no-untyped-call]


def _properties(each: Outgoing) -> Any:
    properties = _new_properties(PacketTypes.PUBLISH)
    if each.id is not None:
        properties.CorrelationData = each.id
    if each.seconds_left is not None:
        # In whole seconds, of which none is less than the shortest that there is
        properties.MessageExpiryInterval = min(max(math.ceil(each.seconds_left), 1), 2**32 - 1)
    if each.redelivered:
        properties.UserProperty = [("redelivered", "true")]
    return properties
