"""Messages and requests of any content through gateways: each is matched, or a dead letter, and none stops others.

Messages take their way from a broker, from their bytes on; some notifications are refused, or end the connection.
"""

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.driver import Case, Length, Program
from faults.mutations import mutated
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.gateway_sides import letters_in
from support.notified import is_accounted_for

from tagmatch import TagMatch
from tagmatch.broker.config import MqttOptions, NatsOptions
from tagmatch.broker.gateway import KeyNotification, Unsent
from tagmatch.broker.hub import Hub, Tallies
from tagmatch.broker.incoming import Requests
from tagmatch.broker.mqtt import MqttGateway
from tagmatch.broker.nats import NatsGateway
from tagmatch.broker.sessions import Sessions

_HANGS_S = 90
# Messages of a gateway
_ROUND = 500
#: A payload that has this ends each connection, and one that has that is refused
_FATAL, _REFUSED = b"fatal", b"refused"
#: How reasons begin: errors of messages, of notifications, and of what paho reads
_FORESEEN = ("Invalid", "NullError", "it ", "its ", "the broker refuses it", "the connection ended")
_WANTED = ("matched", "unmatched", "refused", "sent", "unsendable")
_KEYS = ["", "ana", "a/b.c", "line\nbreak", "\uffff", "#", "é" * 300, "k" * 70_000]

NAMES = [
    "tag", "tags", "lon", "lat", "channel", "attribute:price", "attribute-city", "attribute:", "attribute:\x01", "id",
    "expires-in", "redelivered", "Tag", "attribut:x", "", "x" * 300, "attribute:tags", "attribute:id",
]  # fmt: skip
VALUES = [
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

    def _run_connection(self: Any) -> None:
        self._is_connected(True)
        self._ended.wait()

    def _end_receiving(self) -> None: ...

    def _end(self) -> None: ...

    def send(self, outgoing: Sequence[KeyNotification]) -> list[tuple[KeyNotification, str]]:
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
    def feed(self, packet: bytes) -> None:
        """Take the bytes of a message with QoS 1."""
        client: Any = self._client
        client._in_packet = {"command": 0x32, "packet": bytearray(packet)}
        client._handle_publish()


class _Nats(_Breaking, NatsGateway):
    def feed(self, headers: bytes, payload: bytes, subject: str) -> None:
        message = type("Message", (), {"headers": headers, "data": payload, "subject": subject})
        with contextlib.suppress(StopIteration):
            self._on_message(message).send(None)

    def why_unsendable(self, outgoing: KeyNotification) -> str | None:
        self._client = type("Client", (), {"max_payload": 1_000})
        return super().why_unsendable(outgoing)


class Fuzz:
    """One kind of gateway, with an index that it matches by, and a file of dead letters."""

    def __init__(self, kind: str, form: Any, rnd: random.Random, folder: Path) -> None:
        self.kind, self.form, self.rnd, self.dead = kind, form, rnd, folder / "dead.jsonl"
        self.index, self.sessions = _filled(), Sessions("string")
        self.hub = Hub(self.index, self.sessions)
        own: dict[str, Any] = {"dead_letters": str(self.dead), "form": form, "notifications": "out"}
        own["retry_first"] = 0.01
        parts = self.index, self.hub, self.sessions
        if kind == "mqtt":
            self.gateway: Any = _Mqtt(*parts, MqttOptions(messages="in/#", control="control", **own))
            self.gateway._client = self.gateway._new_client()
            self.gateway._client.ack = lambda *_: self.acknowledged.append(None)
        else:
            self.gateway = _Nats(*parts, NatsOptions(messages="in.>", **own))
        self.gateway.rnd, self.gateway.sent = self.rnd, defaultdict(set)
        self.acknowledged, self.fed, self.sound = list[None](), 0, dict[bytes, set[str]]()
        self.gateway.start()

    def feed(self) -> None:
        """Let one message come, sound or not."""
        rnd, number = self.rnd, b"%d " % self.fed
        self.fed += 1
        if rnd.random() < 0.3:
            self._feed_sound(number)
            return
        properties = [(rnd.choice(NAMES), rnd.choice(VALUES)) for _ in range(rnd.choice((0, 1, 1, 2, 3, 8)))]
        payload = rnd.choice(_PAYLOADS) if rnd.random() < 0.8 else number
        if rnd.random() < 0.3:
            payload = mutated(rnd, payload)
        self._give(properties, payload, spoil=rnd.random() < 0.4)

    def _feed_sound(self, number: bytes) -> None:
        rnd, naming = self.rnd, self.gateway.options.naming
        tags, price = rnd.sample(["a", "b", "c", "é"], rnd.randint(0, 3)), rnd.choice([None, -1, 0, 7.5, "x"])
        attributes = {} if price is None else {"price": price}
        end = rnd.choices([b"", _FATAL, _REFUSED], [0.99, 0.002, 0.008])[0]
        properties = [
            ("tags", json.dumps(tags)),
            *((f"attribute-{name}", str(each)) for name, each in attributes.items()),
        ]
        payload = number + end
        if self.form == "json":
            properties = []
            payload = json.dumps({"tags": tags, "attributes": attributes, "location": None}).encode()
            payload += b" " * self.fed  # each is another one
        if not end:
            keys = self.index.match_unique(tags, attributes)
            self.sound[payload] = {f"out{naming.separator}{naming.level(key)}" for key in keys if len(key) < 4_000}
        self._give(properties, payload, spoil=False)

    def _give(self, properties: list[tuple[str, str]], payload: bytes, *, spoil: bool) -> None:
        if self.kind == "nats":
            lines = "".join(f"{name}: {value}\r\n" for name, value in properties)
            headers = f"NATS/1.0\r\n{lines}\r\n".encode()
            self.gateway.feed(mutated(self.rnd, headers) if spoil else headers, payload, "in.x")
            return
        own = Properties(PacketTypes.PUBLISH)
        if properties:
            own.UserProperty = properties
        if self.rnd.random() < 0.2:
            own.CorrelationData = self.rnd.randbytes(self.rnd.choice((0, 3, 30)))
        packet = b"\0\x04in/x" + self.rnd.randbytes(2) + own.pack() + payload
        self.gateway.feed(mutated(self.rnd, packet) if spoil else packet)

    def check(self) -> dict[str, int]:
        """Wait until every message has an outcome, check that none is missing, and stop it; returns its counts."""
        until, gateway = time.monotonic() + _HANGS_S, self.gateway
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
        assert len(self.acknowledged) == (self.fed if self.kind == "mqtt" else 0), "acknowledgements are missing"
        given = {(each["way"], b64decode(each["payload"])) for each in letters}
        for payload, topics in self.sound.items():
            sent = gateway.sent.get(payload, set())
            assert sent == topics or ("out", payload) in given, f"{payload!r} went to {sent}, not to {topics}"
        assert gateway._sending._thread.is_alive(), "a thread has ended"
        for each in (gateway.stop, self.hub.close, self.index.close):
            each()
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
        return fuzz.check()


def _requested(count: int, _: Path, rnd: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    with TagMatch(key_type="string", threads=1, device="cpu") as index:
        requests = Requests(index, Tallies(), write=True, interval=5.0)
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


def raw_headers(port: int, rnd: random.Random, count: int) -> None:
    """Publish messages with headers of NATS with mistakes, as the server passes them on."""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        for _ in range(count):
            lines = f"{rnd.choice(NAMES)}: {rnd.choice(VALUES)}\r\n".encode()
            block = b"NATS/1.0\r\n" + mutated(rnd, lines) + b"\r\n\r\n"
            raw.sendall(b"HPUB in.x %d %d\r\n%sodd\r\n" % (len(block), len(block) + 3, block))
        raw.sendall(b"PING\r\n")
        while b"PONG" not in raw.recv(1 << 16):
            pass


def _cases(rounds: int, _: Path, __: random.Random) -> Iterator[Case]:
    for first in range(0, rounds, _ROUND):
        count = min(_ROUND, rounds - first)
        for kind, form in itertools.product(("mqtt", "nats"), ("properties", "json")):
            yield Case(f"{kind} {form}", str(first), functools.partial(_fed, kind, form, count))
        yield Case("requests", str(first), functools.partial(_requested, count // 2))


PROGRAM = Program(_cases, Length(250, 2_500), wanted=_WANTED, hangs_s=180)
