"""What the harness says of a broker: rates and delays, and deliveries that are wrong or lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.workloads.bench.harness.brokered import brokered
from tagmatch.workloads.broker import broker
from tagmatch.workloads.broker.remote import Client
from tagmatch.workloads.broker.wire import Events

COUNT = 20


def lists_of(rows: list[list[int]]) -> Lists:
    values = np.array([key for row in rows for key in row], np.uint64)
    return Lists(offsets_of(np.array(list(map(len, rows)), np.int64)), values)


class Backwards:
    """The interfaces of an event are its value and those below it, from there down to 0."""

    names = ("p",)

    def __init__(self, pause: float = 0.0, less: int = -1, more: int = -1) -> None:
        self._pause, self._less, self._more = pause, less, more

    def interfaces(self, events: Events) -> Lists:
        time.sleep(self._pause)
        return lists_of(
            [
                [*[99] * (value == self._more), *range(value - (value == self._less), -1, -1)]
                for value in events.values.tolist()
            ]
        )


EXPECTED = lists_of([[*range(value + 1)] for value in range(COUNT)])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    values = np.arange(COUNT)
    events = Events(values.astype(np.uint32), np.arange(COUNT + 1), np.ones(COUNT, np.uint32), values)
    with Client(events, ["unknown", "p"]) as started:
        yield started


def test_a_broker_that_keeps_up(client: Client) -> None:
    done = brokered(Backwards(), client, 500, 0.4, EXPECTED)
    assert done.sent.events == done.traffic.offered == done.traffic.processed == 200
    assert done.unaccounted == done.wrong == done.missing == 0
    assert done.keys == 200 // COUNT * sum(range(COUNT + 1))
    assert done.offered_rate == pytest.approx(500, rel=0.5)
    assert len(done.delays) == 200
    assert done.delays.min() > 0


def test_a_broker_that_cannot_keep_up(client: Client) -> None:
    done = brokered(Backwards(pause=0.05), client, 20_000, 0.4, EXPECTED)
    assert done.traffic.dropped > 0
    assert done.traffic.processed + done.traffic.dropped == 8_000
    assert done.unaccounted == done.wrong == done.missing == 0
    assert done.dropped == done.traffic.dropped / 8_000
    assert done.processing_rate < done.offered_rate
    assert len(done.delays) == done.traffic.processed
    assert np.median(done.delays) > 0.04, "an event waits for those before it"


def test_a_longer_queue_drops_less(client: Client) -> None:
    assert brokered(Backwards(pause=0.05), client, 20_000, 0.2, EXPECTED, queue=10_000).traffic.dropped == 0


@pytest.mark.parametrize(("change", "wrong", "missing"), [({"less": 7}, 0, 1), ({"more": 7}, 1, 0)])
def test_wrong_deliveries_are_counted(client: Client, change: dict[str, int], wrong: int, missing: int) -> None:
    done = brokered(Backwards(**change), client, 500, 0.4, EXPECTED)
    assert done.traffic.dropped == done.unaccounted == 0
    assert (done.wrong, done.missing) == (200 // COUNT * wrong, 200 // COUNT * missing)


@pytest.mark.parametrize(("numbers", "count"), [([0], 1), ([0, 0], 1), ([1, 0], 1), ([0, 1, 1], 2)])
def test_events_that_are_lost_or_come_twice_are_counted(
    client: Client, monkeypatch: pytest.MonkeyPatch, numbers: list[int], count: int
) -> None:
    """Of the two that a client sends, one does not come, comes twice, or before the other."""
    right = broker.deliveries
    sent: list[int] = []

    def written(given: Any, _: Lists) -> Any:
        sent.extend(given.tolist())
        if len(sent) < 2:
            return right(given[:0], lists_of([]))
        return right(np.array(numbers, np.uint32), lists_of([[*range(each + 1)] for each in numbers]))

    monkeypatch.setattr(broker, "deliveries", written)
    done = brokered(Backwards(), client, 20, 0.1, EXPECTED)
    assert done.traffic.processed == 2
    assert done.wrong == done.missing == 0
    assert done.unaccounted == count


def test_a_client_that_fails_says_so(client: Client) -> None:
    with Client(client.events, client.names) as other, other.begin(100, 0.01):
        other._process.kill()
        with pytest.raises(RuntimeError, match="the client has ended with status -9"):
            other.end()
