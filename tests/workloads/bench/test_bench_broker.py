"""The broker of PCM's Figure 5 over real sockets: what comes is delivered or dropped, and all is counted."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.workloads.bench.harness.brokered import brokered
from tagmatch.workloads.broker.broker import Broker
from tagmatch.workloads.broker.client import source_and_sink
from tagmatch.workloads.broker.remote import Client
from tagmatch.workloads.broker.wire import Events, Names, WireError, decoded, deliveries, encoded, received

pytestmark = pytest.mark.nightly

PLAIN = list[dict[str, int]]

VALUES = st.integers(-(2**63), 2**63 - 1)
NAMES = ["p", "price", "città", "", "x" * 300]
EVENTS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=1, max_size=20)


def lists_of(rows: Sequence[Sequence[int]]) -> Lists:
    values = np.array([key for row in rows for key in row], np.uint64)
    return Lists(offsets_of(np.array(list(map(len, rows)), np.int64)), values)


def events_of(plain: PLAIN, names: Sequence[str], first: int = 0) -> Events:
    pairs = [(names.index(name), value) for event in plain for name, value in event.items()]
    return Events(
        np.arange(first, first + len(plain), dtype=np.uint32),
        offsets_of(np.array(list(map(len, plain)), np.int64)),
        np.array([name for name, _ in pairs], np.uint32),
        np.array([value for _, value in pairs], np.int64),
    )


def plain_of(events: Events, names: Sequence[str]) -> dict[int, dict[str, int]]:
    bounds = zip(events.offsets[:-1], events.offsets[1:], strict=True)
    return {
        int(number): {names[events.attributes[i]]: int(events.values[i]) for i in range(first, last)}
        for number, (first, last) in zip(events.numbers, bounds, strict=True)
    }


def random_events(rng: random.Random, count: int, low: int = -99) -> PLAIN:
    return [{name: rng.randrange(low, 99) for name in rng.sample(NAMES, rng.randrange(5))} for _ in range(count)]


def as_bytes(number: int, event: dict[str, int]) -> bytes:
    """As the module says, in plain Python."""
    rest = struct.pack("<IH", number, len(event))
    for name, value in event.items():
        rest += struct.pack("<H", len(name.encode())) + name.encode() + struct.pack("<q", value)
    return struct.pack("<I", len(rest)) + rest


class Sums:
    """An engine whose interfaces are an event's number of attributes, and the sum of their values, if it is above 0."""

    names = NAMES

    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause

    def interfaces(self, events: Events) -> Lists:
        time.sleep(self._pause)
        return lists_of([self.of(event) for event in plain_of(events, NAMES).values()])

    @staticmethod
    def of(event: dict[str, int]) -> list[int]:
        total = sum(event.values())
        return [len(event), *([total] if 0 < total < 2**64 else [])]


@contextmanager
def served(broker: Broker) -> Iterator[tuple[socket.socket, list[Any]]]:
    """One end of a connection that a broker serves, and what becomes of that."""
    outcome: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    outcome.append(broker.serve(connection))
                except Exception as error:
                    outcome.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection(listener.getsockname()) as client:
            yield client, outcome
        thread.join(60)
        assert not thread.is_alive()


@given(plain=EVENTS, first=st.integers(0, 2**32 - 100), cut=st.integers(0, 400), known=st.sets(st.sampled_from(NAMES)))
def test_events_are_read_as_they_were_written(plain: PLAIN, first: int, cut: int, known: set[str]) -> None:
    names, some = Names.of(NAMES), sorted(known)
    data = encoded(events_of(plain, NAMES), first, len(plain), names)
    numbered = [(first + i, plain[(first + i) % len(plain)]) for i in range(len(plain))]
    assert bytes(data) == b"".join(as_bytes(*event) for event in numbered)
    whole = len(data) - min(cut, len(data))
    events, stop = decoded(data[:whole], Names.of(some))
    sizes = [len(as_bytes(*event)) for event in numbered]
    count = sum(sum(sizes[: i + 1]) <= whole for i in range(len(sizes)))
    assert stop == sum(sizes[:count])
    expected = {number: {name: event[name] for name in event if name in known} for number, event in numbered[:count]}
    assert plain_of(events, some) == expected


@given(lists=st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=5), max_size=9), cut=st.integers(1, 30))
def test_deliveries_are_read_as_they_were_written(lists: list[list[int]], cut: int) -> None:
    numbers, interfaces = np.arange(7, 7 + len(lists), dtype=np.uint32), lists_of(lists)
    data = deliveries(numbers, interfaces)
    expected = [struct.pack(f"<II{len(keys)}Q", 4 + 8 * len(keys), i, *keys) for i, keys in enumerate(lists, 7)]
    assert bytes(data) == b"".join(expected)
    found, keys = received(data)
    assert found.tolist() == numbers.tolist()
    assert np.array_equal(keys.offsets, interfaces.offsets)
    assert np.array_equal(keys.values, interfaces.values)
    ends = {sum(map(len, expected[:i])) for i in range(len(expected) + 1)}
    if len(data) - cut >= 0 and len(data) - cut not in ends:
        with pytest.raises(WireError, match="is no delivery"):
            received(data[: len(data) - cut])


@pytest.mark.parametrize(
    "wrong",
    [
        struct.pack("<I", 5) + b"12345",
        struct.pack("<IIH", 6, 1, 1),
        struct.pack("<IIHH", 8, 1, 1, 500),
        struct.pack("<IIHH", 17, 1, 1, 2) + b"p" + bytes(8),
        struct.pack("<IIHH", 18, 1, 1, 1) + b"p" + bytes(9),
    ],
    ids=["short", "no attribute", "a name beyond the end", "a value beyond the end", "too long"],
)
def test_what_is_no_event_ends_the_connection(wrong: bytes) -> None:
    right = as_bytes(0, {"p": 1})
    with served(Broker(Sums())) as (client, outcome):
        client.sendall(right + wrong)
        client.shutdown(socket.SHUT_WR)
        while client.recv(100):
            pass
    (error,) = outcome
    assert isinstance(error, WireError)
    assert f"what begins with byte {len(right)}, after 1 events, is no event" in str(error)


@pytest.mark.parametrize("queue", [1, 100, 100_000])
def test_each_event_is_delivered_once_or_dropped(rng: random.Random, queue: int) -> None:
    """While the engine does something else, more come than 100."""
    plain = random_events(rng, 50, low=-9)
    with served(Broker(Sums(pause=0.02), queue=queue)) as (client, outcome):
        sent, found = source_and_sink(client, events_of(plain, NAMES), Names.of(NAMES), rate=20_000, seconds=0.3)
    (traffic,) = outcome
    assert sent.events == traffic.offered == traffic.processed + traffic.dropped == 6_000
    numbers, interfaces = received(found.data)
    assert found.ends[-1] == len(found.data)
    assert (np.diff(found.times) >= 0).all()
    assert found.times[0] >= sent.begun
    assert len(numbers) == traffic.processed
    assert (np.diff(numbers.astype(np.int64)) > 0).all()
    assert (traffic.dropped > 0) == (queue < 100_000)
    for number, first, last in zip(numbers, interfaces.offsets[:-1], interfaces.offsets[1:], strict=True):
        assert interfaces.values[first:last].tolist() == Sums.of(plain[number % len(plain)])


# -- what the harness says of it -------------------------------------------------------------------------------------

COUNT = 20
EXPECTED = lists_of([[*range(value + 1)] for value in range(COUNT)])


class Backwards:
    """The interfaces of an event are its value and those below it, from there down to 0."""

    names = ("p",)

    def __init__(self, pause: float = 0.0, less: int = -1, more: int = -1) -> None:
        self._pause, self._less, self._more = pause, less, more

    def interfaces(self, events: Events) -> Lists:
        time.sleep(self._pause)
        values = events.values.tolist()
        return lists_of([[*[99] * (x == self._more), *range(x - (x == self._less), -1, -1)] for x in values])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    values = np.arange(COUNT)
    events = Events(values.astype(np.uint32), np.arange(COUNT + 1), np.ones(COUNT, np.uint32), values)
    with Client(events, ["unknown", "p"]) as started:
        yield started


@pytest.mark.parametrize(("change", "wrong", "missing"), [({}, 0, 0), ({"less": 7}, 0, 1), ({"more": 7}, 1, 0)])
def test_a_broker_that_keeps_up(client: Client, change: dict[str, int], wrong: int, missing: int) -> None:
    done = brokered(Backwards(**change), client, 500, 0.4, EXPECTED)
    assert done.sent.events == done.traffic.offered == done.traffic.processed == 200
    assert done.traffic.dropped == done.unaccounted == 0
    assert (done.wrong, done.missing) == (200 // COUNT * wrong, 200 // COUNT * missing)
    assert done.keys == 200 // COUNT * (sum(range(COUNT + 1)) + wrong - missing)
    assert len(done.delays) == 200
    assert done.delays.min() > 0


@pytest.mark.parametrize("queue", [100, 10_000])
def test_a_broker_that_cannot_keep_up(client: Client, queue: int) -> None:
    """A longer queue drops less."""
    done = brokered(Backwards(pause=0.05), client, 20_000, 0.4, EXPECTED, queue=queue)
    assert (done.traffic.dropped > 0) == (queue == 100)
    assert done.traffic.processed + done.traffic.dropped == 8_000
    assert done.unaccounted == done.wrong == done.missing == 0
    assert done.dropped == done.traffic.dropped / 8_000
    assert len(done.delays) == done.traffic.processed
    assert np.median(done.delays) > 0.04, "an event waits for those before it"


def test_what_fails_says_so(client: Client) -> None:
    """An engine ends the connection, though the client has not ended; a client that is killed is told."""

    class Broken(Sums):
        def interfaces(self, events: Events) -> Lists:
            raise RuntimeError(f"no answer to {len(events.numbers)}")

    with served(Broker(Broken())) as (connected, outcome):
        connected.sendall(as_bytes(0, {"p": 1}))
        assert connected.recv(1) == b""
    assert str(outcome[0]) == "no answer to 1"
    with Client(client.events, client.names) as other, other.begin(100, 0.01):
        other._process.kill()
        with pytest.raises(RuntimeError, match="the client has ended with status -9"):
            other.end()
