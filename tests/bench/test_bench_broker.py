"""The command `tagmatch-bench broker`, and its broker: every event is delivered or dropped, and counted."""

import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench import Found, at, is_told, measured, run, spoil
from support.places import lists_of

from tagmatch.model.arrays import Lists
from tagmatch.model.errors import TagMatchError
from tagmatch_bench.broker import broker
from tagmatch_bench.broker.broker import Broker, InputQueue, Traffic
from tagmatch_bench.broker.client import source_and_sink
from tagmatch_bench.broker.wire import Events, Names, WireError, decoded, deliveries, encoded, received
from tagmatch_bench.figures.broker import ENGINES
from tagmatch_bench.systems.ocm import Ocm
from tagmatch_bench.systems.sff import Sff
from tagmatch_bench.workloads.content import SCENARIOS

ON_A_DEVICE = {"CCM", "tagmatch, GPU"}
SMALL = ("--constraints", 3000, "--rounds", 2, "--threads", 2, "--events", 300, "--seconds", 0.05)
LOST = "events neither delivered once nor dropped"


@pytest.fixture(autouse=True)
def _easily_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few names and wide intervals, so that few filters have keys."""
    monkeypatch.setitem(SCENARIOS, "pcm", replace(SCENARIOS["pcm"], names=8))
    monkeypatch.setitem(SCENARIOS, "dense", replace(SCENARIOS["dense"], width=0.9))


@pytest.mark.parametrize("scenario", ["dense", "pcm"])
def test_command(tmp_path: Path, scenario: str) -> None:
    found = measured("broker", tmp_path, *SMALL, "--scenario", scenario, "--rate", 4000, "--rate", 300)
    assert found.unavailable.keys() <= ON_A_DEVICE
    engines = set(ENGINES) - found.unavailable.keys()
    processed, dropped, *delays, keys, sent, most = found.panels
    assert [processed, dropped, keys] == ["events processed a second", "events dropped", "keys delivered a second"]
    assert delays == ["delay, median", "delay, p99"]
    for title in (processed, dropped, *delays, keys, sent):
        assert found.places(title) == at(engines, {300, 4000})
        assert title in (dropped, keys) or min(found.values(title).values()) > 0
    published = {system: value for (system, _), value in found.published(most).items()}
    assert published == ({"OCM": 60_000, "CCM": 100_000} if scenario == "pcm" else {})
    assert {what.partition(":")[0] for what in found.limits} == engines
    assert all(found.value(what) == 0 and found.lines[what]["met"] for what in found.limits)
    rates = [f"{rate} events/s, against OCM" for rate in ("300", "4,000")]
    compared = {("OCM", "against brute force"), *product(engines, rates)}
    assert {(row["system"], row["where"]) for row in found.answers} == compared
    assert all(row["keys"] > row["queries"] / 10 for row in found.answers)


@pytest.mark.parametrize(("engine", "system", "more"), [("OCM", Ocm, True), ("SFF", Sff, False)])
def test_a_wrong_engine_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, system: Any, more: bool
) -> None:
    """OCM against brute force, others against OCM."""
    spoil(monkeypatch, system, more=more)
    is_told(run("broker", tmp_path, *SMALL, "--rate", 2000), tmp_path, "broker", engine, more=more)
    found = Found(tmp_path, "broker")
    assert all(found.lines[what]["met"] for what in found.limits), "no event is lost"


@pytest.mark.parametrize("lost", ["the first", "the last in the queue"])
def test_an_event_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The first comes with others that wait; the last of several neither waits nor counts as dropped."""
    right, offer = broker.deliveries, InputQueue.offer

    def offered(self: InputQueue, events: Events) -> None:
        lost = int(any(events.numbers[-1:] > 0))
        offer(self, events.part(0, len(events.numbers) - lost))
        self.offered += lost

    def delivered(numbers: Any, keys: Any) -> Any:
        return right(numbers, keys)[: None if numbers[0] else 0]

    owner = (broker, "deliveries", delivered) if lost == "the first" else (InputQueue, "offer", offered)
    monkeypatch.setattr(*owner)
    done = run("broker", tmp_path, *SMALL, "--rate", 500, "--skip", "OCM", "--skip", "SFF")
    assert isinstance(done.exception, TagMatchError)
    assert f"tagmatch: {LOST}" in str(done.exception)
    found = Found(tmp_path, "broker")
    assert (found.unavailable["OCM"], found.unavailable["SFF"]) == ("skipped", "skipped")
    assert len(found.limits) == len(ENGINES) - len(found.unavailable)
    assert all(found.value(what) >= 2 for what in found.limits), "one or more in each round"


PLAIN = list[dict[str, int]]

VALUES = st.integers(-(2**63), 2**63 - 1)
NAMES = ["p", "price", "città", "", "x" * 300]
EVENTS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=1, max_size=20)


def events_of(plain: PLAIN) -> Events:
    return Events.of(pa.table({name: pa.array([event.get(name) for event in plain], pa.int64()) for name in NAMES}))


def plain_of(events: Events, names: Sequence[str]) -> dict[int, dict[str, int]]:
    bounds = zip(events.offsets[:-1], events.offsets[1:], strict=True)
    return {
        int(number): {names[events.attributes[i]]: int(events.values[i]) for i in range(first, last)}
        for number, (first, last) in zip(events.numbers, bounds, strict=True)
    }


def as_bytes(number: int, event: dict[str, int]) -> bytes:
    """As the module says, in plain Python."""
    rest = struct.pack("<IH", number, len(event))
    for name in filter(event.__contains__, NAMES):
        rest += struct.pack("<H", len(name.encode())) + name.encode() + struct.pack("<q", event[name])
    return struct.pack("<I", len(rest)) + rest


class Sums:
    """An engine whose interfaces are an event's number of attributes, and the sum of their values, if it is above 0."""

    names = NAMES

    def interfaces(self, events: Events) -> Lists:
        time.sleep(0.02)
        return lists_of([self.of(event) for event in plain_of(events, NAMES).values()], np.uint64)

    @staticmethod
    def of(event: dict[str, int]) -> list[int]:
        total = sum(event.values())
        return [len(event), *([total] if 0 < total < 2**64 else [])]


@given(plain=EVENTS, first=st.integers(0, 2**32 - 100), cut=st.integers(0, 400), known=st.sets(st.sampled_from(NAMES)))
def test_events_are_read_as_they_were_written(plain: PLAIN, first: int, cut: int, known: set[str]) -> None:
    names, some = Names.of(NAMES), sorted(known)
    data = encoded(events_of(plain), first, len(plain), names)
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
    numbers, interfaces = np.arange(7, 7 + len(lists), dtype=np.uint32), lists_of(lists, np.uint64)
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


def served(broker: Broker, ask: Callable[[socket.socket], Any]) -> tuple[Any, Traffic]:
    """A client's deliveries from a broker, and the broker's counts."""
    ours, its = socket.socketpair()

    def serve() -> Traffic:
        with its:
            return broker.serve(its)

    with ThreadPoolExecutor(1) as threads, ours:
        serving = threads.submit(serve)
        return ask(ours), serving.result(60)


@pytest.mark.parametrize("queue", [1, 100, 100_000])
def test_each_event_is_delivered_once_or_dropped(rng: random.Random, queue: int) -> None:
    """While the engine does something else, more come than 100."""
    plain = [{name: rng.randrange(-9, 99) for name in rng.sample(NAMES, rng.randrange(5))} for _ in range(50)]
    source = partial(source_and_sink, events=events_of(plain), names=Names.of(NAMES), rate=20_000, seconds=0.3)
    (sent, found), traffic = served(Broker(Sums(), queue=queue), source)
    assert sent.events == traffic.offered == traffic.processed + traffic.dropped == 6_000
    numbers, interfaces = received(found.data)
    assert found.ends[-1] == len(found.data)
    assert (np.diff(found.times, prepend=sent.begun) >= 0).all()
    assert len(numbers) == traffic.processed
    assert (np.diff(numbers.astype(np.int64)) > 0).all()
    assert (traffic.dropped > 0) == (queue < 100_000)
    for number, first, last in zip(numbers, interfaces.offsets[:-1], interfaces.offsets[1:], strict=True):
        assert interfaces.values[first:last].tolist() == Sums.of(plain[number % len(plain)])
