"""What measures under load: no query gets lost, and clocks start when queries are due."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch import ClosedError, Overloaded, TagMatch
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import Layout, MatchOptions
from tagmatch.workloads.bench.harness import timing
from tagmatch.workloads.bench.harness.idle_driver import idle_driver
from tagmatch.workloads.bench.harness.load import (
    callers_rate,
    serve,
    serve_in_order,
    serve_tasks,
)
from tagmatch.workloads.bench.harness.resident import forget_peak, resident
from tagmatch.workloads.bench.harness.timing import alternate, rates
from tagmatch.workloads.systems.matcher import CallSize

pytestmark = pytest.mark.nightly


class Clock:
    """Time passes when somebody sleeps or works."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def ended(error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result([])
    else:
        future.set_exception(error)
    return future


def test_latency_counts_from_when_a_query_was_due() -> None:
    """Each takes a second, in the generator's thread, so that the second and third are submitted late."""
    clock = Clock()

    def submit(_: list[str]) -> Future[Any]:
        clock.sleep(1.0)
        return ended()

    due = np.array([0.5, 0.75, 1.0, 10.0])
    served = serve(submit, [["a"]] * 4, due, now=clock.now, sleep=clock.sleep)
    assert served.latency.tolist() == [1.0, 1.75, 2.5, 1.0]
    assert (served.seconds, served.throughput, served.rejected) == (11.0, 4 / 11, 0)


@given(
    gaps=st.lists(st.floats(0, 0.0005), min_size=1, max_size=60),
    refused=st.sets(st.integers(1, 59)),
    threads=st.integers(1, 3),
    ordered=st.booleans(),
)
def test_every_query_is_answered_or_rejected(gaps: list[float], refused: set[int], threads: int, ordered: bool) -> None:
    due = np.cumsum(gaps)
    asked: list[tuple[float, list[str]]] = []
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:

        def submit(query: list[str]) -> Future[Any]:
            asked.append((time.perf_counter() - began, query))
            if int(query[0]) in refused:
                raise Overloaded("full")
            return pool.submit(list, query)

        queries = [[str(number)] for number in range(60)]
        served = (serve_in_order if ordered else serve)(submit, queries, due)
    assert [query for _, query in asked] == queries[: len(due)]
    assert all(at >= when for (at, _), when in zip(asked, due, strict=True))
    assert served.rejected == len(refused & set(range(len(due))))
    assert len(served.latency) + served.rejected == len(due)
    assert np.all(served.latency >= 0)


@pytest.mark.parametrize("way", [serve, serve_in_order])
def test_failed_queries_are_told(way: Callable[..., object]) -> None:
    def closed(_: list[str]) -> Future[Any]:
        raise ClosedError

    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        way(lambda _: ended(ZeroDivisionError("in the kernel")), [["a"]], np.zeros(1))
    with pytest.raises(ClosedError):
        way(closed, [["a"]], np.zeros(1))


# -- callers and tasks -----------------------------------------------------------------------------------------------


def test_each_caller_goes_on_from_its_own_place() -> None:
    asked: dict[int, list[int]] = {}
    queries = [[str(number)] for number in range(70)]

    def ask(query: list[str]) -> None:
        asked.setdefault(threading.get_ident(), []).append(int(query[0]))

    assert callers_rate(ask, queries, 7, 0.001) > 0
    assert sorted(numbers[0] for numbers in asked.values()) == list(range(1, 70, 10))
    for numbers in asked.values():
        assert numbers == [(numbers[0] + i) % 70 for i in range(len(numbers))]


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
    assert slow >= 0.29
    assert min(busy, late) >= 0.19
    assert served.seconds >= 0.3


# -- rounds ----------------------------------------------------------------------------------------------------------


def test_alternation() -> None:
    calls: list[str] = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 3
    for most, rounds in ((0, 1), (600, 3)):
        assert len(alternate({"a": lambda: None}, rounds=3, most_seconds=most)["a"].values) == rounds


@pytest.mark.parametrize(
    ("items", "size", "expected"),
    [
        (1000, CallSize(), 20),
        (1000, CallSize(whole=8), 16),
        (1000, CallSize(whole=40), 40),
        (30, CallSize(whole=40), 30),
        (1000, CallSize(full=100), 100),
        (1000, CallSize(whole=30, full=100), 90),
        (1000, CallSize(full=500), 200),
        (1000, CallSize(full=500, most=150), 150),
        (100, CallSize(most=150), 20),
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
    assert found["x"].items == expected
    assert asked[-3:] == [expected] * 3
    assert found["x"].median == pytest.approx(100_000 if items == 1_000_000 else 1000)
    assert len(found["x"].values) == 3
    assert found["x"].over(found["x"]) == 1


# -- memory, and no device -------------------------------------------------------------------------------------------


def test_a_peak_is_forgotten() -> None:
    peak = np.ones(50_000_000).sum()
    assert peak
    before = resident("VmHWM")
    forget_peak()
    assert resident("VmRSS") <= resident("VmHWM") < before - 300_000_000


@pytest.mark.parametrize("_", range(20))  # it is seen while it ends, or after that
def test_a_process_that_has_ended_has_no_memory(_: int) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()  # to its end, so that the child ends without being waited for
        with pytest.raises(ProcessLookupError, match=f"process {child.pid} has ended"):
            list(iter(partial(resident, "VmHWM", child.pid), None))
    with pytest.raises(FileNotFoundError):
        resident("VmHWM", child.pid)


@pytest.mark.parametrize("layout", ["rarest", "balanced"])
def test_driver_that_does_nothing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's own code sends all queries to the device, where nothing is found; then all is as before."""
    from tagmatch.pipeline.cuda import memory, preprocess
    from tagmatch.pipeline.cuda.matcher import CudaMatcher

    before = memory.cuda, preprocess._look_up
    sent: dict[str, bytes] = {}
    upload = memory.Workspace.upload

    def uploaded(workspace: memory.Workspace, name: str, values: np.ndarray) -> object:
        sent[name] = values.tobytes()
        return upload(workspace, name, values)

    monkeypatch.setattr(memory.Workspace, "upload", uploaded)
    with TagMatch(layout=layout, device="cpu") as tm, idle_driver():
        tm.add_sets([["a"], ["b", "c"]], [1, 2])
        tm.consolidate()
        matcher = CudaMatcher(tm.snapshot.segments[0], MatchOptions())
        (queries,) = tag_lists([["a"], ["bc", "é"], []], "queries")
        answers = matcher.preprocess(queries, 0, 3).subset_match().key_lookup()
    assert answers.offsets.tolist() == [0, 0, 0, 0]
    assert sent["data"] == "abcé".encode()
    assert (memory.cuda, preprocess._look_up) == before
