"""The load generator and `tagmatch-bench latency`: that no query gets lost and when clocks start; not how fast."""

from __future__ import annotations

import json
import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tagmatch import ClosedError, Overloaded, PipelineOptions, TagMatch
from tagmatch.workloads.bench.harness.load import closed_loop_rate, poisson_times, serve, serve_in_order
from tagmatch.workloads.commands.bench import app

pytestmark = pytest.mark.slow


class Clock:
    """Time passes when somebody sleeps or works."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def answered() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result([])
    return future


def test_latency_counts_from_when_a_query_was_due() -> None:
    """Each takes a second, in the generator's thread, so that the second and third are submitted late."""
    clock = Clock()

    def submit(_: list[str]) -> Future[Any]:
        clock.sleep(1.0)
        return answered()

    due = np.array([0.5, 0.75, 1.0, 10.0])
    served = serve(submit, [["a"]] * 4, due, now=clock.now, sleep=clock.sleep)
    assert served.latency.tolist() == [1.0, 1.75, 2.5, 1.0]
    assert served.seconds == 11.0
    assert served.throughput == 4 / 11
    assert served.rejected == 0


@given(
    gaps=st.lists(st.floats(0, 0.0005), min_size=1, max_size=60),
    refused=st.sets(st.integers(1, 59)),
    threads=st.integers(1, 3),
)
def test_every_query_is_answered_or_rejected(gaps: list[float], refused: set[int], threads: int) -> None:
    due = np.cumsum(gaps)
    asked: list[list[str]] = []

    with ThreadPoolExecutor(threads) as pool:

        def submit(query: list[str]) -> Future[Any]:
            asked.append(query)
            if int(query[0]) in refused:
                raise Overloaded("full")
            return pool.submit(list, query)

        queries = [[str(number)] for number in range(60)]
        served = serve(submit, queries, due)
    assert asked == queries[: len(due)]
    assert served.rejected == len(refused & set(range(len(due))))
    assert len(served.latency) + served.rejected == len(due)
    assert np.all(served.latency >= 0)


def test_answers_may_come_long_after_the_last_query_and_in_any_order() -> None:
    waiting: list[Future[Any]] = []

    def answer_all() -> None:
        for future in reversed(waiting):
            future.set_result([])

    def submit(_: list[str]) -> Future[Any]:
        waiting.append(Future())
        if len(waiting) == 100:
            threading.Thread(target=answer_all).start()
        return waiting[-1]

    served = serve(submit, cycle([["a"], ["b"]]), np.zeros(100))
    assert len(served.latency) == 100
    assert served.milliseconds().keys() == {"median", "p99", "p99.9", "maximum"}
    assert np.all(np.diff(served.latency[:-1]) <= 0)  # the last may be answered before it is waited for
    assert math.isclose(served.milliseconds()["maximum"], 1000 * served.latency.max())


def test_failed_queries_are_told() -> None:
    def fails(_: list[str]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(ZeroDivisionError("in the kernel"))
        return future

    def closed(_: list[str]) -> Future[Any]:
        raise ClosedError

    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        serve(fails, [["a"]], np.zeros(1))
    with pytest.raises(ClosedError):
        serve(closed, [["a"]], np.zeros(1))


@pytest.mark.parametrize("max_queries", [1, 100_000])
def test_an_index_serves(layout: str, max_queries: int) -> None:
    due = poisson_times(1e6, 0.002, seed=1)
    with TagMatch(layout=layout, pipeline=PipelineOptions(max_queries=max_queries)) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
        served = serve(partial(tm.submit, block=False), cycle([["a", "b"], ["c"]]), due)
    assert len(served.latency) + served.rejected == len(due) == 2000
    assert served.rejected == 0 or max_queries == 1
    assert np.all(served.latency > 0)


def test_closed_loop_has_a_window() -> None:
    asked = finished = most = 0

    def answer() -> None:
        nonlocal finished
        finished += 1

    with ThreadPoolExecutor(1) as pool:

        def submit(_: list[str]) -> Future[Any]:
            nonlocal asked, most
            asked += 1
            most = max(most, asked - finished)
            return pool.submit(answer)

        assert closed_loop_rate(submit, [["a"], ["b"]], 0.005, window=5) > 0
        assert asked == finished
    assert 1 <= most <= 5


def test_poisson_times() -> None:
    due = poisson_times(50_000, 2.0, seed=3)
    assert len(due) == 100_000  # more than one block of `arrival_times`
    assert np.all(np.diff(due) >= 0)
    assert due[-1] == pytest.approx(2.0, rel=0.05)
    assert len(poisson_times(1.0, 0.001, seed=1)) == 1


def test_command(tmp_path: Path) -> None:
    options = ["--allow-changes", "--sets", "300", "--seconds", "0.01", "--rounds", "2"]
    options += ["--flush-timeout", "0.1", "--flush-timeout", "never"]
    folder = tmp_path / "results"
    done = CliRunner().invoke(app, ["latency", *options, "--output", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((folder / "latency.json").read_text())
    measures = ["answered", "median", "p99", "p99.9", "maximum", "rejected"]
    assert [panel["title"] for panel in found["panels"]] == [
        f"{each}: {measure}" for measure in measures for each in ("rarest", "balanced")
    ]
    for panel in found["panels"]:
        assert {value["system"] for value in panel["values"]} == {"flush_timeout 100 ms", "flush_timeout never"}
        assert {value["x"] for value in panel["values"]} == {10, 25, 50, 75, 90, 100, 120}
        assert len(panel["values"]) == 14
        for value in panel["values"]:
            assert panel["unit"] == "queries" or (value["value"] > 0 and len(value["samples"]) == 2)
    targets = {line["what"]: line["target"] for line in found["lines"]}
    (target,) = (target for target in targets.values() if target)
    assert target == targets["rarest: p99 at 50 % of capacity, default flush_timeout, median of 2 rounds"]
    values = {line["what"].split(", ")[-1]: line["value"] for line in found["lines"] if "balanced: p99" in line["what"]}
    assert 0 < values["median of 2 rounds"] <= values["worst round"]
    assert (target["limit"], target["goal"], target["at_most"]) == (20, 2, True)
    assert "≤ 20, goal ≤ 2" in done.stdout
    assert (folder / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert "flush_timeout never" in (folder / "latency.md").read_text()


def test_layout_can_be_chosen(tmp_path: Path) -> None:
    options = ["--allow-changes", "--sets", "50", "--seconds", "0.001", "--flush-timeout", "0", "--layout", "balanced"]
    done = CliRunner().invoke(app, ["latency", *options, "--output", str(tmp_path)], catch_exceptions=False)
    assert "balanced: p99" in done.stdout
    assert "rarest: p99" not in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["--sets", "0"],
        ["--seconds", "0"],
        ["--threads", "0"],
        ["--flush-timeout", "-1"],
        ["--flush-timeout", "nan"],
        ["--flush-timeout", "soon"],
        ["--layout", "round"],
    ],
)
def test_bad_parameters(wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["latency", *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.stderr


def test_in_order_each_is_submitted_when_it_is_due_and_counted_once() -> None:
    """Of ten, every third is refused; answers come from another thread, a little later."""
    asked: list[tuple[float, str]] = []
    due = np.arange(10) * 0.002
    with ThreadPoolExecutor(1) as pool:

        def submit(query: list[str]) -> Future[Any]:
            asked.append((time.perf_counter(), query[0]))
            if len(asked) % 3 == 0:
                raise Overloaded("full")
            return pool.submit(time.sleep, 0.001)

        began = time.perf_counter()
        found = serve_in_order(submit, cycle([["a"], ["b"]]), due)
    assert [query for _, query in asked] == ["a", "b"] * 5
    assert all(at - began >= when for (at, _), when in zip(asked, due, strict=True))
    assert (len(found.latency), found.rejected) == (7, 3)
    assert (found.latency >= 0.001).all()
    failed: Future[Any] = Future()
    failed.set_exception(ClosedError())
    with pytest.raises(ClosedError):
        serve_in_order(lambda _: failed, [["a"]], np.zeros(1))
