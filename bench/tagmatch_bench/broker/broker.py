"""The broker: input connections manager, input queue, engine, output queue, output connections manager."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tagmatch import TagMatch
from tagmatch.model.arrays import F64Array, I64Array, Lists, U32Array, offsets_of
from tagmatch.pipeline.run.stage import Stage, StoppedError
from tagmatch_bench.broker.client import Client, Received, Sent
from tagmatch_bench.broker.wire import (
    DELIVERY,
    INTERFACE,
    Events,
    Names,
    decoded,
    deliveries,
    encoded,
    joined,
    received,
)
from tagmatch_bench.systems.content_matcher import ContentMatcher, Messages
from tagmatch_bench.systems.matcher import list_array, lists_in, wrong_and_missing


class InputQueue:
    """Events that wait. Any number of threads may offer some and take some."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._parts: list[Events] = []
        self._waiting = self.offered = self.dropped = self.taken = 0

    def is_done(self, count: int) -> bool:
        """Whether no event waits, and that number of them was taken."""
        with self._lock:
            return self._waiting == 0 and self.taken == count

    def offer(self, events: Events) -> None:
        """Queue the first events, as many as there is room for, and drop the others."""
        count = len(events.numbers)
        with self._lock:
            taken = min(count, self._most - self._waiting)
            self.offered += count
            self.dropped += count - taken
            if taken:
                self._parts.append(events.part(0, taken))
                self._waiting += taken

    def take(self) -> Events | None:
        """All waiting events in the order in which they came; `None` without any."""
        with self._lock:
            parts, self._parts, self._waiting = self._parts, [], 0
            self.taken += sum(len(part.numbers) for part in parts)
        return joined(parts) if parts else None


class ContentEngine:
    """A compared system, which gets all events that wait in one call, as it takes them: attributes by number."""

    def __init__(self, matcher: ContentMatcher) -> None:
        self.names: Sequence[str] = matcher.names
        self._matcher = matcher

    def interfaces(self, events: Events) -> Lists:
        """Of each event the interfaces, each once."""
        messages = Messages(events.offsets, events.attributes, events.values)
        return lists_in(self._matcher.match_many(messages, unique=True))


class TagmatchEngine:
    """An index of tagmatch, asked as its users ask it: for few events one by one, for more with a table of them."""

    def __init__(self, index: TagMatch, names: Sequence[str], *, tables_from: int = 50) -> None:
        self.names: Sequence[str] = list(names)
        self._names = pa.array(self.names)
        self._index = index
        self._tables_from = tables_from

    def interfaces(self, events: Events) -> Lists:
        """Of each event the interfaces, each once."""
        return self._in_a_table(events) if len(events.numbers) >= self._tables_from else self._one_by_one(events)

    def _one_by_one(self, events: Events) -> Lists:
        names, values = [self.names[each] for each in events.attributes.tolist()], events.values.tolist()
        ask = self._index.match_unique
        found = [
            ask((), dict(zip(names[begin:end], values[begin:end], strict=True)))
            for begin, end in pairwise(events.offsets.tolist())
        ]
        counts = np.fromiter(map(len, found), np.int64, len(found))
        return Lists(offsets_of(counts), np.fromiter(chain.from_iterable(found), np.uint64, int(counts.sum())))

    def _in_a_table(self, events: Events) -> Lists:
        offsets, names = pa.array(events.offsets.astype(np.int32)), self._names.take(pa.array(events.attributes))
        maps = pa.MapArray.from_arrays(offsets, names, pa.array(events.values))
        return lists_in(self._index.match_many(pa.record_batch({"attributes": maps}), unique=True))


# Bytes that are read at once
_READ = 1 << 18


class Engine(Protocol):
    """What matches: finds the interfaces of events."""

    names: Sequence[str]

    def interfaces(self, events: Events) -> Lists:
        """Of each event the interfaces, each once; the event's attributes are numbered as `names`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a broker has done."""

    # events that have come; those for which the input queue had no room; and those that were matched and delivered
    offered: int
    dropped: int
    processed: int
    seconds: float  # from the first event to the last delivery


class Broker:
    """Reads events from a connection, matches them, and writes there which interfaces each goes to."""

    def __init__(self, engine: Engine, *, queue: int = 100) -> None:
        self._engine, self._names = engine, Names.of(engine.names)
        self._input = InputQueue(queue)
        self._matching = Stage("match", self._match, self._fail, threads=1, bound=1, otherwise=self._input.take)
        self._writing = Stage("deliver", self._write, self._fail, threads=1, bound=sys.maxsize)
        self._changed = threading.Condition()
        self._processed = 0
        self._error: BaseException | None = None

    def serve(self, connection: socket.socket) -> Traffic:
        """Serve a connection until nothing more comes; returns when all that has come is delivered or dropped."""
        self._connection = connection
        self._matching.start()
        self._writing.start()
        try:
            begun = self._read()
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or self._input.is_done(self._processed))
            if self._error is not None:
                raise self._error
            seconds = time.perf_counter() - begun
        finally:
            for stage in (self._matching, self._writing):
                stage.stop()
                stage.join()
        return Traffic(self._input.offered, self._input.dropped, self._processed, seconds)

    def _read(self) -> float:
        """Queue events for the engine as they come; returns when the first came."""
        data, begun = np.empty(2 * _READ, np.uint8), 0.0
        left = 0
        while self._error is None:
            if len(data) - left < _READ:  # a part of a long event
                data = np.concatenate([data[:left], np.empty(len(data), np.uint8)])
            count = self._connection.recv_into(data.data[left:])
            if not count:
                break
            begun = begun or time.perf_counter()
            events, stop = decoded(data[: left + count], self._names)
            if len(events.numbers):
                self._input.offer(events)
                self._matching.nudge()
            left += count - stop
            data[:left] = data[stop : stop + left].copy()
        return begun or time.perf_counter()

    def _match(self, events: Events) -> Iterable[tuple[Stage[Any], tuple[Events, Lists]]]:
        return [(self._writing, (events, self._engine.interfaces(events)))]

    def _write(self, matched: tuple[Events, Lists]) -> Iterable[tuple[Stage[Any], Any]]:
        events, interfaces = matched
        self._connection.sendall(deliveries(events.numbers, interfaces).data)
        with self._changed:
            self._processed += len(events.numbers)
            self._changed.notify()
        return ()

    def _fail(self, _: object, error: BaseException) -> None:
        with self._changed:
            if not isinstance(error, StoppedError):
                self._error = self._error or error
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RD)  # nothing more is read
            self._changed.notify()


# Events of the largest call before anything is measured
_WARM = 1000


@dataclass(frozen=True, slots=True)
class Brokered:
    """Outcome of the events that a client has sent."""

    sent: Sent
    traffic: Traffic
    # events that were neither delivered nor dropped, or delivered more than once: 0 if sent = processed + dropped, and
    # each that was processed came to the client once, in the order in which they were sent
    unaccounted: int
    # keys that were delivered, those of them that were not expected, and those that events which were delivered lack
    keys: int
    wrong: int
    missing: int
    delays: F64Array  # of each delivery, seconds from when its event was due to be sent until its last byte came

    @property
    def offered_rate(self) -> float:
        """Events a second that the client has sent."""
        return self.sent.events / self.sent.seconds

    @property
    def processing_rate(self) -> float:
        """Events a second that were matched and delivered."""
        return self.traffic.processed / self.traffic.seconds

    @property
    def key_rate(self) -> float:
        """Keys a second that were delivered."""
        return self.keys / self.traffic.seconds

    @property
    def dropped(self) -> float:
        """Share of the events that were dropped."""
        return self.traffic.dropped / self.sent.events

    def delay(self, share: float) -> float:
        """Seconds within which this share of the deliveries came; if none did, all that the broker had."""
        return float(np.quantile(self.delays, share)) if len(self.delays) else self.traffic.seconds


def brokered(
    engine: Engine, client: Client, rate: float, seconds: float, expected: Lists, *, queue: int = 100
) -> Brokered:
    """Let a client send events at a rate, which a broker matches and delivers."""
    for count in (1, min(queue, _WARM)):  # kernels are loaded before anything comes
        some, _ = decoded(encoded(client.events, 0, count, Names.of(client.names)), Names.of(engine.names))
        deliveries(some.numbers, engine.interfaces(some))
    with client.begin(rate, seconds) as connection:
        traffic = Broker(engine, queue=queue).serve(connection)
    sent, data = client.end()
    numbers, keys = received(data.data)
    # Events repeat in turn
    right = list_array(expected).take(pa.array(numbers % len(expected)))
    disordered = np.count_nonzero(np.diff(numbers.astype(np.int64)) <= 0)
    unaccounted = (
        int(disordered)
        + abs(sent.events - traffic.offered)
        + abs(traffic.offered - traffic.dropped - traffic.processed)
        + abs(traffic.processed - len(numbers))
    )
    delays = _delays(numbers, keys.offsets, data, sent, rate)
    return Brokered(sent, traffic, int(unaccounted), len(keys.values), *wrong_and_missing(keys, right), delays)


def _delays(numbers: U32Array, offsets: I64Array, data: Received, sent: Sent, rate: float) -> F64Array:
    """Seconds from when each event was due until all of its delivery had come."""
    ends = DELIVERY * np.arange(1, len(numbers) + 1) + INTERFACE * offsets[1:]
    came = data.times[np.searchsorted(data.ends, ends)]
    delays: F64Array = came - (sent.begun + (numbers + 1.0) / rate)
    return delays
