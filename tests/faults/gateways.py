"""Gateways of a served index through all that befalls them: each message that was given to the broker is notified, or
is a dead letter.

In each round, for each kind, messages come all the time while brokers and services are killed and stopped, the clock
jumps, messages are poison on their way in or out, and many large ones come at once.

A broker of MQTT that is stopped keeps its messages. One that is killed loses them, and NATS keeps none: before these
events, all messages have arrived. Kafka is not here: the cluster that librdkafka plays cannot be stopped and started.
"""

import contextlib
import functools
import itertools
import random
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from faults.driver import Case, Length, Program
from faults.failing import compiled, preloading
from faults.fuzz_gateways import NAMES, VALUES, raw_headers
from support.command import started
from support.gateway_sides import SIDES, letters_in
from support.waiting import wait_until

from tagmatch import TagMatch

_EVENTS = [
    "broker stopped", "broker killed", "service killed", "service stopped", "poison in", "poison out", "burst",
    "clock jump", "oddities",
]  # fmt: skip
_SHORT = {
    kind: ["poison in", "poison out", "burst", "clock jump", "oddities", "broker stopped", f"{killed} killed"]
    for kind, killed in (("mqtt", "service"), ("nats", "broker"))
}
#: Messages between events, messages in a burst, and bytes of each of these
_SOME, _MANY, _LARGE = 40, 120, 20_000
_WAIT_S = 120
_POISON_IN = [
    ("attribute:x", "[" * 2_000),
    ("lon", "1"),
    ("tags", '"a"'),
    ("channel", "none"),
    ("attribute:x", "[[1]]"),
]
#: Too long for a topic or a subject
_LONG = "k" * 70_000
#: A payload
ODD = b"odd"


class Round:
    """One life of a broker, a service and a client."""

    def __init__(self, kind: str, rnd: random.Random, folder: Path, library: Path) -> None:
        self.side, self.rnd, self.folder, self.counts = SIDES[kind], rnd, folder, Counter[str]()
        self.keeps = kind == "mqtt"
        self.jump, self.dead, self.log = folder / "jump", folder / "dead.jsonl", folder / "log"
        self.environment = {**preloading(library), "CLOCK_JUMP_FILE": str(self.jump)}
        self.expected: set[bytes] = set()
        self.poison: set[bytes] = set()
        self.count = 0
        with TagMatch(folder / "index", key_type="string", threads=1, device="cpu") as index:
            index.add_sets([["a"], ["long"]], ["ana", _LONG])
            index.consolidate()
        self.broker, separator = self.side.start(folder), self.side.separator
        bound = "max_waiting_bytes = 400_000\n" if self.keeps else ""  # other messages stay with MQTT's broker
        (folder / "service.toml").write_text(
            f"[server]\nport = 0\n[metrics]\nport = 0\n[[{self.side.name}]]\nport = {self.broker.port}\n"
            f'messages = "in{separator}{self.side.every}"\nnotifications = "out"\ndead_letters = "dead.jsonl"\n'
            f"retry_first = 0.05\nretry_most = 0.5\n{bound}"
        )
        self.service: Any = None

    # -- the service -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        with self.log.open("ab") as log:
            self.service = started(
                "serve", self.folder / "index", "--config", self.folder / "service.toml", "--port", 0,
                environment=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        self._connects()

    def _connects(self, seen: int = -1) -> None:
        """Wait until the service has connected once more than it has by now, or had been seen to."""
        seen = self._connected() if seen < 0 else seen
        wait_until(lambda: self._connected() > seen, _WAIT_S)

    def _connected(self) -> int:
        return self.log.read_bytes().count(b'"message": "connected"')

    # -- events ------------------------------------------------------------------------------------------------------

    def happen(self, event: str, client: Any) -> None:
        match event.split():
            case ["broker", how]:
                self._end_broker(client, is_killed=how == "killed")
            case ["service", how]:
                self._end_service(client, is_killed=how == "killed")
            case ["clock", "jump"]:
                self.jump.write_text(str(self.rnd.choice((-86_400, -3_600, 3_600, 86_400, 10**7))))
            case ["poison", "in"]:
                for properties in self.rnd.sample(_POISON_IN, 3):
                    self._poison(client, ("tag", "a"), properties)
            case ["poison", "out"]:
                self._poison(client, ("tag", "long"))
            case ["burst"]:
                self.publish(client, _MANY, b" " * _LARGE)
            case ["oddities"]:  # the outcome of these is not known, but others come through
                for name, value in ((self.rnd.choice(NAMES), self.rnd.choice(VALUES)) for _ in range(_SOME)):
                    if name and (name + value).isprintable():
                        client.publish(ODD, (name, value))
                if not self.keeps:
                    raw_headers(self.broker.port, self.rnd, _SOME)
        self.counts[f"{self.side.name}: {event}"] += 1

    def _end_broker(self, client: Any, *, is_killed: bool) -> None:
        """One that has forgotten who is subscribed has none of the messages, either."""
        forgets = is_killed or not self.keeps
        if forgets:
            self.arrive(client)
        seen, ready = self._connected(), client.when_back()
        (self.broker.kill if is_killed else self.broker.stop)()
        time.sleep(self.rnd.random() / 5)
        self.broker.start()
        if forgets:
            self._connects(seen)
            ready()

    def _end_service(self, client: Any, *, is_killed: bool) -> None:
        if not self.keeps:
            self.arrive(client)
        (self.service.kill if is_killed else self.service.terminate)()
        self.service.wait(_WAIT_S)
        if self.keeps and is_killed:
            self.publish(client, _SOME)
        self.serve()

    def _poison(self, client: Any, *properties: tuple[str, str]) -> None:
        payload = b"poison %d" % self._next()
        client.publish(payload, *properties)
        self.poison.add(payload)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.count += 1
        return self.count

    def publish(self, client: Any, count: int, more: bytes = b"") -> None:
        for _ in range(count):
            payload = b"%d" % self._next() + more
            client.publish(payload, ("tag", "a"), expires=600)
            self.expected.add(payload)

    def arrive(self, client: Any) -> None:
        """Wait until everything that was published has been notified, or is a dead letter."""
        client.wait_for_acknowledgements(_WAIT_S)
        wait_until(lambda: {payload for _, payload in client.notified} >= self.expected, _WAIT_S)
        wait_until(lambda: self._dead() >= self.poison, _WAIT_S)

    def _dead(self) -> set[bytes]:
        return {b64decode(each["payload"]) for each in letters_in(self.dead)} - {ODD}

    def run(self, events: Sequence[str] = _EVENTS) -> None:
        """Let each of these happen once, in any order, and count."""
        with self.side.client(self.broker.port) as client:
            self.serve()
            for event in self.rnd.sample(events, len(events)):
                self.publish(client, _SOME)
                self.happen(event, client)
            self.publish(client, _SOME)
            self.arrive(client)
            came = [payload for topic, payload in client.notified if topic == f"out{self.side.separator}ana"]
            came = [payload for payload in came if payload != ODD]
        name = self.side.name
        self.counts[f"{name}: notified"] += len(self.expected)
        self.counts[f"{name}: notified again"] += len(came) - len({*came})
        self.counts[f"{name}: dead letters"] += len(self.poison)
        assert {*came} == self.expected, "the notifications are not those of the publications"
        assert self._dead() == self.poison, "the dead letters are not the poison messages"
        assert b"traceback" not in self.log.read_bytes().lower(), "an error in the log"

    def close(self) -> None:
        if self.service is not None and self.service.poll() is None:
            self.service.kill()
            self.service.wait()
        self.broker.kill()


def _round(kind: str, events: Sequence[str], library: Path, folder: Path, rnd: random.Random) -> Counter[str]:
    with contextlib.closing(Round(kind, rnd, folder, library)) as one:
        try:
            one.run(events)
        except AssertionError as error:
            raise AssertionError(f"{error!r}; {one.log.read_bytes()[-1500:].decode(errors='replace')}") from error
        return one.counts


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """So many rounds of each kind; a single one is short, and of one kind."""
    library = compiled("clock_jump.c", folder)
    kinds = [*_SHORT] if rounds > 1 else [rng.choice([*_SHORT])]
    for number, kind in itertools.product(range(rounds), kinds):
        events = _EVENTS if rounds > 1 else _SHORT[kind]
        yield Case(kind, str(number), functools.partial(_round, kind, events, library))


PROGRAM = Program(_cases, Length(1, 2), hangs_s=600, in_a_process=1)
