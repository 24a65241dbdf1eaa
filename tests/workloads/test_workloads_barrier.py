"""Threads that wait for one another in a kernel."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tagmatch.model.kernels.jit import kernel
from tagmatch.workloads.systems import barrier
from tagmatch.workloads.systems.barrier import Meeting, exchange, wait


@kernel
def _sums_of_rounds(state, numbers, part, parts, sums):  # type: ignore[no-untyped-def]
    """In each round write a number, and then add up those of all threads; returns how many rounds there were."""
    due = 0
    for turn in range(len(sums)):
        numbers[part] = turn * parts + part
        due += parts
        if not wait(state, due):
            return turn
        sums[turn] = numbers.sum()
        due += parts
        if not wait(state, due):
            return turn
    return len(sums)


@kernel
def _take(state, taken, parts, won):  # type: ignore[no-untyped-def]
    """Take all places that no other thread has."""
    wait(state, parts)
    for place in range(len(taken)):
        won[place] = exchange(taken, place, np.uint8(1)) == 0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_see_what_all_have_written(threads: int) -> None:
    meeting, numbers = Meeting(threads), np.zeros(threads, np.int64)
    sums = np.zeros((threads, 300), np.int64)
    meeting.run(lambda part: _sums_of_rounds(meeting.state, numbers, part, threads, sums[part]))
    firsts = np.arange(300) * threads
    assert (sums == firsts * threads + sum(range(threads))).all()


def test_one_of_them_takes_each_place() -> None:
    meeting, taken, won = Meeting(3), np.zeros(100_000, np.uint8), np.zeros((3, 100_000), np.bool_)
    meeting.run(lambda part: _take(meeting.state, taken, 3, won[part]))
    assert (won.sum(axis=0) == 1).all()


def test_one_that_fails_is_not_waited_for() -> None:
    meeting, numbers = Meeting(3), np.zeros(3, np.int64)
    rounds = {}

    def work(part: int) -> None:
        if part == 1:
            raise MemoryError("of this thread")
        rounds[part] = _sums_of_rounds(meeting.state, numbers, part, 3, np.zeros(9, np.int64))

    with pytest.raises(MemoryError, match="of this thread"):
        meeting.run(work)
    assert rounds == {0: 0, 2: 0}


def test_too_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = barrier.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise MemoryError("no room")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(barrier, "start", start_one)
    done: list[Any] = []
    with pytest.raises(MemoryError, match="no room"):
        Meeting(2).run(done.append)
    started[0].join(10)
    assert not started[0].is_alive()
    assert done == []
