"""What the harness says of a broker: rates, and deliveries that are wrong or lost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.workloads.bench.harness.brokered import brokered
from tagmatch.workloads.broker.wire import Events

COUNT = 20


def lists_of(rows: list[list[int]]) -> Lists:
    values = np.array([key for row in rows for key in row], np.uint64)
    return Lists(offsets_of(np.array(list(map(len, rows)), np.int64)), values)


class Backwards:
    """The interfaces of an event are its value and those below it, from there down to 0."""

    names = ("p",)

    def __init__(self, pause: float = 0.0, wrong: int = -1) -> None:
        self._pause, self._wrong = pause, wrong

    def interfaces(self, events: Events) -> Lists:
        time.sleep(self._pause)
        return lists_of([[*range(value - (value == self._wrong), -1, -1)] for value in events.values.tolist()])


def events() -> Events:
    values = np.arange(COUNT)
    return Events(values.astype(np.uint32), np.arange(COUNT + 1), np.zeros(COUNT, np.uint32), values)


EXPECTED = lists_of([[*range(value + 1)] for value in range(COUNT)])


def test_a_broker_that_keeps_up() -> None:
    done = brokered(Backwards(), events(), 500, 0.4, EXPECTED)
    assert done.sent.events == done.traffic.offered == 200
    assert done.wrong == 0
    assert done.offered_rate == pytest.approx(500, rel=0.5)


def test_a_broker_that_cannot_keep_up() -> None:
    done = brokered(Backwards(pause=0.05), events(), 20_000, 0.4, EXPECTED)
    assert done.traffic.dropped > 0
    assert done.traffic.processed + done.traffic.dropped == 8_000
    assert done.wrong == 0
    assert done.processing_rate < done.offered_rate


def test_wrong_deliveries_are_counted() -> None:
    done = brokered(Backwards(wrong=7), events(), 500, 0.4, EXPECTED)
    assert done.traffic.dropped == 0
    assert done.wrong == 200 // COUNT
