"""What measures under load: no query gets lost, and clocks start when queries are due."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tagmatch import Overloaded
from tagmatch.workloads.bench.harness import timing
from tagmatch.workloads.bench.harness.load import serve, serve_tasks
from tagmatch.workloads.bench.harness.resident import forget_peak, resident
from tagmatch.workloads.bench.harness.timing import rates
from tagmatch.workloads.systems.matcher import CallSize


def test_latency_counts_from_when_a_query_was_due() -> None:
    """Each takes a second, in the generator's thread, so that the second and third are submitted late."""
    clock = SimpleNamespace(time=1000.0)

    def sleep(seconds: float) -> None:
        clock.time += seconds

    def submit(_: list[str]) -> Future[Any]:
        sleep(1.0)
        future: Future[Any] = Future()
        future.set_result([])
        return future

    due = np.array([0.5, 0.75, 1.0, 10.0])
    served = serve(submit, [["a"]] * 4, due, now=lambda: clock.time, sleep=sleep)
    assert served.latency.tolist() == [1.0, 1.75, 2.5, 1.0]
    assert (served.seconds, served.throughput, served.rejected) == (11.0, 4 / 11, 0)


def test_tasks_ask_when_queries_are_due() -> None:
    """The second waits for nobody; the third is refused, and the fourth is late, as the loop is busy."""
    asked: list[str] = []

    async def ask(query: list[str]) -> None:
        asked.append(query[0])
        if query[0] == "slow":
            await asyncio.sleep(0.3)
        elif query[0] == "refused":
            raise Overloaded
        elif query[0] == "busy":
            time.sleep(0.2)

    due = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    served = serve_tasks(ask, cycle([["slow"], ["quick"], ["refused"], ["busy"], ["late"]]), due)
    assert asked == ["slow", "quick", "refused", "busy", "late"]
    assert (served.rejected, len(served.latency)) == (1, 4)
    slow, _, busy, late = served.latency
    assert slow >= 0.29 <= served.seconds
    assert min(busy, late) >= 0.19


@pytest.mark.parametrize(
    ("items", "size", "expected"),
    [
        (1000, CallSize(), 20),
        (1000, CallSize(whole=8), 16),
        (30, CallSize(whole=40), 30),
        (1000, CallSize(whole=30, full=100), 90),
        (1000, CallSize(full=500, most=150), 150),
        # As with a device, for which calls of less than 50 items are too small: one of a thousand is, to begin with
        (1_000_000, CallSize(whole=10, full=5000), 5000),
    ],
)
def test_calls_have_whole_batches(items: int, size: CallSize, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which an item takes a millisecond, with 20 ms a call and up to ten times as long for full ones."""
    asked: list[int] = []

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        return asked[-1] / (100_000 if items == 1_000_000 and asked[-1] >= 50 else 1000)

    monkeypatch.setattr(timing, "seconds_of", seconds_of)
    found = rates({"x": asked.append}, items, rounds=3, seconds=0.02, sizes={"x": size})
    assert (found["x"].items, asked[-3:], len(found["x"].values)) == (expected, [expected] * 3, 3)
    assert found["x"].median == pytest.approx(100_000 if items == 1_000_000 else 1000)


def test_a_peak_is_forgotten() -> None:
    peak = np.ones(50_000_000).sum()
    assert peak
    before = resident("VmHWM")
    forget_peak()
    assert resident("VmRSS") <= resident("VmHWM") < before - 300_000_000


def test_a_process_that_has_ended_has_no_memory() -> None:
    with (
        subprocess.Popen([sys.executable, "-S", "-c", ""]) as child,
        pytest.raises(ProcessLookupError, match="has ended"),
    ):
        list(iter(partial(resident, "VmHWM", child.pid), None))
    with pytest.raises(FileNotFoundError):
        resident("VmHWM", child.pid)
