"""Messages and requests of any content through gateways: each is matched, or a dead letter, and none stops others.

Messages take their way from a broker, from their bytes on; some notifications are refused, or end the connection.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import random
import socket
import threading
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.driver import Case, Length, Program
from faults.mutations import mutated
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.gateway_sides import SIDES, letters_in, running_on
from support.notified import is_accounted_for

from tagmatch import TagMatch
from tagmatch.broker.gateways.mqtt import MqttGateway
from tagmatch.broker.gateways.nats import NatsGateway
from tagmatch.broker.gateways.options import MqttOptions, NatsOptions
from tagmatch.broker.gateways.requests import Requests
from tagmatch.broker.gateways.sending import Outgoing, Unsent
from tagmatch.broker.hub import Hub
from tagmatch.broker.sessions import Sessions

_HANGS_S = 90
# Messages of a gateway
_ROUND = 500
#: A payload that has this ends each connection, and one that has that is refused
_FATAL, _REFUSED = b"fatal", b"refused"
#: How reasons begin: errors of messages, of notifications, and of what paho reads
_FORESEEN = (
    "Invalid",
    "NullError",
    "it ",
    "its ",
    "the broker refuses it",
    "the connection ended",
    "it cannot be read",
)
_WANTED = ("matched", "unmatched", "refused", "sent", "unsendable")
_KEYS = ["", "ana", "a/b.c", "line\nbreak", "\uffff", "#", "é" * 300, "k" * 70_000]

_NAMES = [
    "tag", "tags", "lon", "lat", "channel", "attribute:price", "attribute-city", "attribute:", "attribute:\x01", "id",
    "expires-in", "redelivered", "Tag", "attribut:x", "", "x" * 300, "attribute:tags", "attribute:id",
]  # fmt: skip
_VALUES = [
    "a", "b", "c", "", "é", "\x00", "\ufeff", "\uffff", "5", "-7.5", "1e400", "NaN", "true", "null",
    '["a", "b"]', '["Rome", 7]', "[[1]]", "[" * 70, "[" * 2_000, "9" * 5_000, '{"a": 1}', '"\\ud800"', "[null]", "{}",
    "[]", "9.19", "45.46", "91", "a\r\nb",
]  # fmt: skip
_PAYLOADS = [
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 3_000, b'{"tags": ["a", "b"]}', b'{"tags": "a"}',
    b'{"tags": ["a"], "attributes": {"price": 5, "city": ["Rome", 7]}, "location": [9.19, 45.46]}',
    b'{"location": [1e400, 1]}', b'{"location": {"lon": 1, "lat": 1}}', b'{"attributes": {"x": 1e400, "y": true}}',
    b'{"attributes": {"a": {"b": 1}}}', b'{"a": 1, "a": 2}', b'{"tags": ["\\ud800"]}', b'{"price": 1}', b"\0" * 30,
]  # fmt: skip
_REQUESTS = [
    {"action": "subscribe", "key": "ana", "tags": ["a"]},
    {"action": "subscribe", "key": "bob", "tags": ["a", "b"], "where": 'price < 9 and city = "Rome"'},
    {"action": "unsubscribe", "key": "ana", "tags": ["a"]},
    {"action": "subscribe", "key": "x", "tags": [], "where": "within circle(9, 45, 1000)"},
    {"action": ["subscribe"], "key": {}, "tags": {"a": 1}, "where": ["x"]},
    {"action": {}, "key": 10**400, "tags": None},
]  # fmt: skip


def _filled() -> TagMatch[Any]:
    index: TagMatch[Any] = TagMatch(key_type="string", threads=1, device="cpu")
    where = [None, None, "price > 0", 'city = "Rome"', "within circle(9.19, 45.46, 20000)", None, None, None]
    tags = [["a"], ["b"], [], ["a"], [], ["a", "b"], ["é"], ["c"]]
    index.add_sets(tags, _KEYS, where=where)
    index.consolidate()
    return index


class _Breaking:
    """What both kinds have here: the other side refuses some notifications, and ends the connection by others."""

    rnd: random.Random
    sent: dict[bytes, set[str]]
    _ended: threading.Event
    _is_connected: Callable[[bool], None]

    def _run_connection(self) -> None:
        self._is_connected(True)
        self._ended.wait()

    def _end_receiving(self) -> None: ...

    def _end(self) -> None: ...

    def send(self, outgoing: Sequence[Outgoing]) -> list[tuple[Outgoing, str]]:
        refused = []
        for each in outgoing:
            if _FATAL in each.payload:
                raise Unsent("the connection was lost", is_suspect=True)
            if self.rnd.random() < 0.0002:
                raise Unsent("nothing came back in time")
            if _REFUSED in each.payload:
                refused.append((each, "the broker refuses it"))
            else:
                self.sent[each.payload].add(each.topic)
        return refused


class _Mqtt(_Breaking, MqttGateway):
    def feed(self, packet: bytes) -> int:
        """Take the bytes of a message with QoS 1; how many acknowledgements must come."""
        client: Any = self._client
        client._in_packet = {"command": 0x32, "packet": bytearray(packet)}
        client._handle_publish()
        return 1


class _Nats(_Breaking, NatsGateway):
    def start(self) -> None:
        super(NatsGateway, self).start()

    def feed(self, headers: bytes, payload: bytes, subject: str) -> None:
        message = type("Message", (), {"headers": headers, "data": payload, "subject": subject})
        with contextlib.suppress(StopIteration):
            self._on_message(message).send(None)

    def why_unsendable(self, outgoing: Outgoing) -> str | None:
        self._client = type("Client", (), {"max_payload": 1_000})
        return super().why_unsendable(outgoing)


class Fuzz:
    """One kind of gateway, with an index that it matches by, and files of dead letters."""

    def __init__(self, kind: str, form: Any, rnd: random.Random, folder: Path) -> None:
        self.kind, self.form, self.rnd = kind, form, rnd
        self.dead = folder / f"{kind}-{form}.jsonl"
        self.index, self.sessions = _filled(), Sessions("string")
        self.hub = Hub(self.index, self.sessions)
        own: dict[str, Any] = {"dead_letters": str(self.dead), "form": form, "retry_first": 0.01}
        if kind == "mqtt":
            options = MqttOptions(messages="in/#", notifications="out", control="control", **own)
            self.gateway: Any = _Mqtt(self.index, self.hub, self.sessions, options)
            self.gateway._client = self.gateway._new_client()
            self.gateway._client.ack = self._count_acknowledgement
        else:
            self.gateway = _Nats(
                self.index, self.hub, self.sessions, NatsOptions(messages="in.>", notifications="out", **own)
            )
        self.gateway.rnd, self.gateway.sent = self.rnd, defaultdict(set)
        self._lock, self.acknowledged, self.fed, self.expected_acknowledgements = threading.Lock(), 0, 0, 0
        self.sound: dict[bytes, set[str]] = {}
        self.gateway.start()

    def _count_acknowledgement(self, _mid: int, _qos: int) -> None:
        with self._lock:
            self.acknowledged += 1

    # -- messages ---------------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """Let one message come, sound or not."""
        rnd, number = self.rnd, b"%d " % self.fed
        self.fed += 1
        if rnd.random() < 0.3:
            self._feed_sound(number)
            return
        properties = [(rnd.choice(_NAMES), rnd.choice(_VALUES)) for _ in range(rnd.choice((0, 1, 1, 2, 3, 8)))]
        payload = rnd.choice(_PAYLOADS) if rnd.random() < 0.8 else number
        if rnd.random() < 0.3:
            payload = mutated(rnd, payload)
        self._give(properties, payload, spoil=rnd.random() < 0.4)

    def _feed_sound(self, number: bytes) -> None:
        rnd = self.rnd
        tags, price = rnd.sample(["a", "b", "c", "é"], rnd.randint(0, 3)), rnd.choice([None, -1, 0, 7.5, "x"])
        attributes = {} if price is None else {"price": price}
        end = rnd.choices([b"", _FATAL, _REFUSED], [0.99, 0.002, 0.008])[0]
        if self.form == "json":
            payload = json.dumps({"tags": tags, "attributes": attributes, "location": None}).encode() + b" " * 9
            payload += b" " * (self.fed % 7) if not end else b""
            properties: list[tuple[str, str]] = []
            self._give(properties, payload, spoil=False)
            return
        properties = [("tags", json.dumps(tags))]
        properties += [] if price is None else [("attribute-price", str(price))]
        payload = number + end
        if not end:
            level = self.gateway.options.naming.level
            separator = self.gateway.options.naming.separator
            keys = self.index.match_unique(tags, attributes)
            self.sound[payload] = {f"out{separator}{level(key)}" for key in keys if len(key) < 4_000}
        self._give(properties, payload, spoil=False)

    def _give(self, properties: list[tuple[str, str]], payload: bytes, *, spoil: bool) -> None:
        if self.kind == "mqtt":
            own = Properties(PacketTypes.PUBLISH)
            if properties:
                own.UserProperty = properties
            if self.rnd.random() < 0.2:
                own.CorrelationData = self.rnd.randbytes(self.rnd.choice((0, 3, 30)))
            topic = b"in/x"
            packet = len(topic).to_bytes(2) + topic + self.rnd.randbytes(2) + own.pack() + payload
            self.expected_acknowledgements += self.gateway.feed(mutated(self.rnd, packet) if spoil else packet)
        else:
            lines = "".join(f"{name}: {value}\r\n" for name, value in properties)
            headers = f"NATS/1.0\r\n{lines}\r\n".encode()
            self.gateway.feed(mutated(self.rnd, headers) if spoil else headers, payload, "in.x")

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Wait until every message has an outcome, and check that none is missing."""
        until = time.monotonic() + _HANGS_S
        gateway = self.gateway
        while gateway.stats()["waiting"] or gateway._handing_over.held or self.sessions.stats()["waiting"]:
            assert time.monotonic() < until, f"hangs: {gateway.stats()}, {self.sessions.stats()}"
            time.sleep(0.002)
        counts, letters = gateway.stats(), letters_in(self.dead)
        assert is_accounted_for(counts), counts
        assert counts["received"] + counts["requests"] == self.fed, f"{self.fed} came, and counts are {counts}"
        unforeseen = [each["reason"] for each in letters if not each["reason"].startswith(_FORESEEN)]
        assert not unforeseen, f"unforeseen: {unforeseen[0]}"
        given_up = sum(counts[name] for name in ("refused", "failed", "dropped", "unsendable"))
        assert len(letters) == counts["dead_letters"] == given_up, f"{len(letters)} letters, and counts are {counts}"
        assert not counts["dead_letters_unwritten"], counts
        expected = self.expected_acknowledgements
        assert self.acknowledged == expected, f"{self.acknowledged} of {expected} were acknowledged"
        given = {(each["way"], b64decode(each["payload"])) for each in letters}
        for payload, topics in self.sound.items():
            sent = gateway.sent.get(payload, set())
            assert sent == topics or ("out", payload) in given, f"{payload!r} went to {sent}, not to {topics}"
        for thread in (gateway._handing_over, gateway._sending._thread):
            assert thread.is_alive(), "a thread has ended"

    def end(self) -> dict[str, int]:
        """Stop it; returns its counts."""
        counts = self.gateway.stats()
        self.gateway.stop()
        self.hub.close()
        self.index.close()
        return {name: counts[name] for name in (*_WANTED, "unsent", "dead_letters")}


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """See that no thread ends by an error, and write nothing to logs."""
    ended: list[str] = []
    threading.excepthook = lambda error: ended.append(f"{error.thread}: {error.exc_value!r}")
    logging.getLogger("tagmatch").setLevel(logging.CRITICAL)
    yield
    assert not ended, f"threads have ended: {ended}"


def _fed(kind: str, form: str, count: int, folder: Path, rnd: random.Random) -> Mapping[str, int]:
    with _watched():
        fuzz = Fuzz(kind, form, rnd, folder)
        for _ in range(count):
            fuzz.feed()
        fuzz.check()
        return fuzz.end()


def _requested(count: int, _: Path, rnd: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    with TagMatch(key_type="string", threads=1, device="cpu") as index:
        requests = Requests(index, True, 5.0)
        for _number in range(count):
            text = json.dumps(rnd.choice(_REQUESTS)).encode()
            kind = rnd.random()
            if kind < 0.6:
                text = mutated(rnd, text)
            elif kind < 0.8:
                text = rnd.choice(_PAYLOADS)
            answer = json.loads(requests.answer(text))
            is_right = answer["ok"] is True or (answer["ok"] is False and isinstance(answer["error"], str))
            assert is_right, f"request {text!r}: {answer}"
            assert "the request has failed" not in answer.get("error", ""), f"request {text!r}: {answer}"
            counts["requests carried out" if answer["ok"] else "requests refused"] += 1
        index.consolidate()
    return counts


def _through_a_broker(kind: str, count: int, folder: Path, rnd: random.Random) -> dict[str, int]:
    """Let messages come through a real broker; each is counted, and each sound one is notified."""
    side, wanted = SIDES[kind], count
    with (
        _watched(),
        side.start(folder) as broker,
        _filled() as index,
        side.client(broker.port) as client,
        running_on(side, index, broker.port) as (gateway, _),
    ):
        for number in range(count):
            name, value = rnd.choice(_NAMES), rnd.choice(_VALUES)
            if name and value.isprintable() and "\0" not in name + value and name.isprintable():
                client.publish(b"odd", (name, value))
                wanted += 1
            client.publish(b"%d" % number, ("tag", "a"))
        if kind == "nats":
            _raw(broker.port, rnd, count)
            wanted += count
        until = time.monotonic() + _HANGS_S
        while gateway.stats()["received"] < wanted or gateway.stats()["waiting"] or len(_numbers(client)) < count:
            assert time.monotonic() < until, f"{wanted} were published, {gateway.stats()}"
            time.sleep(0.01)
        counts = gateway.stats()
        assert is_accounted_for(counts), counts
        assert not counts["failed"], counts
        assert counts["connections"] == 1, counts
    return {f"{kind} through a broker": wanted}


def _numbers(client: Any) -> set[bytes]:
    return {payload for _, payload in client.notified if payload != b"odd"}


def _raw(port: int, rnd: random.Random, count: int) -> None:
    """Headers of NATS with mistakes, as the server passes them on."""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        for _ in range(count):
            lines = f"{rnd.choice(_NAMES)}: {rnd.choice(_VALUES)}\r\n".encode()
            block = b"NATS/1.0\r\n" + mutated(rnd, lines) + b"\r\n\r\n"
            raw.sendall(b"HPUB in.x %d %d\r\n%sodd\r\n" % (len(block), len(block) + 3, block))
        raw.sendall(b"PING\r\n")
        while b"PONG" not in raw.recv(1 << 16):
            pass


def _cases(rounds: int, _: Path, __: random.Random) -> Iterator[Case]:
    """Let messages come, in equal parts of each kind; some hundreds go through real brokers."""
    for first in range(0, rounds, _ROUND):
        count = min(_ROUND, rounds - first)
        for kind, form in itertools.product(SIDES, ("properties", "json")):
            yield Case(f"{kind} {form}", str(first), functools.partial(_fed, kind, form, count))
        yield Case("requests", str(first), functools.partial(_requested, count // 2))
    for kind in SIDES:
        yield Case("broker", kind, functools.partial(_through_a_broker, kind, min(10 + rounds // 50, 1_000)))


PROGRAM = Program(_cases, Length(250, 2_500, 25_000), wanted=_WANTED, hangs_s=180)
