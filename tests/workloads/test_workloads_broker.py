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
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.workloads.broker.broker import Broker
from tagmatch.workloads.broker.client import source_and_sink
from tagmatch.workloads.broker.input_queue import InputQueue
from tagmatch.workloads.broker.wire import Events, Names, WireError, decoded, deliveries, encoded, joined, received

PLAIN = list[dict[str, int]]

VALUES = st.integers(-(2**63), 2**63 - 1)
NAMES = ["p", "price", "città", "", "x" * 300]
EVENTS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=1, max_size=20)


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
        found = [self.of(event) for event in plain_of(events, NAMES).values()]
        return Lists(
            offsets_of(np.array(list(map(len, found)), np.int64)),
            np.array([key for keys in found for key in keys], np.uint64),
        )

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
    numbers = np.arange(7, 7 + len(lists), dtype=np.uint32)
    interfaces = Lists(
        offsets_of(np.array(list(map(len, lists)), np.int64)),
        np.array([key for keys in lists for key in keys], np.uint64),
    )
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


def test_messages_as_events(rng: random.Random) -> None:
    plain = [{name: rng.randrange(-99, 99) for name in rng.sample(NAMES, rng.randrange(5))} for _ in range(20)]
    table = pa.table({name: pa.array([event.get(name) for event in plain], pa.int64()) for name in NAMES})
    assert plain_of(Events.of(table.slice(3)), NAMES) == dict(enumerate(plain[3:]))


def test_queue_drops_what_comes_when_it_is_full(rng: random.Random) -> None:
    queue, waiting, expected, count = InputQueue(10), list[int](), list[int](), 0
    for _ in range(300):
        if rng.random() < 0.3:
            events = queue.take()
            assert (events.numbers.tolist() if events is not None else []) == waiting
            waiting = []
        else:
            size = rng.randrange(8)
            plain = [{NAMES[rng.randrange(5)]: rng.randrange(100)} for _ in range(size)]
            queue.offer(events_of(plain, NAMES, count))
            expected = [*range(count, count + size)][: 10 - len(waiting)]
            waiting += expected
            count += size
    assert queue.is_done(queue.taken) == (not waiting)
    queue.take()
    assert queue.is_done(queue.taken)
    assert not queue.is_done(queue.taken - 1)
    assert queue.offered == count
    assert queue.taken == queue.offered - queue.dropped < count


def test_events_of_several_parts_are_joined(rng: random.Random) -> None:
    plain = [{name: rng.randrange(9) for name in rng.sample(NAMES, rng.randrange(5))} for _ in range(30)]
    events = events_of(plain, NAMES)
    parts = [events.part(first, last) for first, last in ((0, 7), (7, 7), (7, 30))]
    assert plain_of(joined(parts), NAMES) == dict(enumerate(plain))


@pytest.mark.parametrize("queue", [1, 100, 100_000])
def test_each_event_is_delivered_once_or_dropped(rng: random.Random, queue: int) -> None:
    """While the engine does something else, more come than 100."""
    plain = [{name: rng.randrange(-9, 9) for name in rng.sample(NAMES, rng.randrange(5))} for _ in range(50)]
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


def test_an_engine_that_fails_ends_the_connection() -> None:
    """Though the client has not ended."""

    class Broken(Sums):
        def interfaces(self, events: Events) -> Lists:
            raise RuntimeError(f"no answer to {len(events.numbers)}")

    with served(Broker(Broken())) as (client, outcome):
        client.sendall(as_bytes(0, {"p": 1}))
        assert client.recv(1) == b""
    assert str(outcome[0]) == "no answer to 1"
