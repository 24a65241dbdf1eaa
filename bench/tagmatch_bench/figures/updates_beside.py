"""Changes beside other work: sets that threads add one by one, and queries that are served meanwhile."""

from __future__ import annotations

import math
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, cast, get_args

from tagmatch.model.options import Durability
from tagmatch_bench.harness.adding import add_steadily, repeatedly
from tagmatch_bench.harness.load import callers_rate, poisson_times, serve_calls
from tagmatch_bench.harness.results import Target
from tagmatch_bench.harness.timing import Samples, without_garbage_collection
from tagmatch_bench.systems.on_disk import SYSTEMS_ON_DISK, TAGMATCH

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Panel, Result
    from tagmatch_bench.harness.stored import Stored
    from tagmatch_bench.systems.tagmatch import TagmatchOnDisk

#: How many times as long as a measured call sets are added, and queries are served
_LENGTH = 10

_ADDING_THREADS = (1, 8)
#: A second, of all threads: twice the target. More come in bulk, by `add_sets`
_MOST_ADDS = 20_000
#: Seconds from one call to the next of what makes sets visible
_EVERY = 0.5

_ADDS = Target(10_000)
_UNSEEN = Target(1, at_most=True)

#: Sets that are added in a change while queries are served, and as many removed; changes are so many a second at most
_CHANGED, _MOST_CHANGES = 10, 100
_P99 = Target(2, at_most=True)
_QUIET, _CHANGING = "quiet", "while sets change"


def rows_beside(bench: Bench) -> int:
    """Count the rows that are added here, at most."""
    served = bench.options.rounds * (2 + math.ceil(_MOST_CHANGES * _seconds(bench)))
    return len(get_args(Durability)) * len(_ADDING_THREADS) * _rows_added(bench) + _CHANGED * served


def _seconds(bench: Bench) -> float:
    return _LENGTH * bench.options.seconds


def _rows_added(bench: Bench) -> int:
    return math.ceil(_MOST_ADDS * _seconds(bench))


def adds_one_by_one(bench: Bench, result: Result, stored: dict[str, Stored]) -> None:
    """Have threads add sets one by one, while another one makes them visible where an addition does not."""
    panel = result.panel("sets added one by one", "threads", "sets/s")
    for name, each in stored.items():
        if name != TAGMATCH:
            _add(bench, result, panel, name, each)
            continue
        for durability in get_args(Durability):
            each.close()
            each.open(partial(SYSTEMS_ON_DISK[TAGMATCH], threads=bench.options.threads, durability=durability))
            _add(bench, result, panel, f"{name}, durability {durability}", each)
        each.close()
        each.open()


def _add(bench: Bench, result: Result, panel: Panel, name: str, stored: Stored) -> None:
    at_once = stored.system.visible_at_once
    for threads in _ADDING_THREADS:
        in_words = f"{threads} thread" + ("s" if threads > 1 else "")
        with bench.doing(f"updates: sets one by one, {name}, {in_words}"):
            rows = stored.next_rows(_rows_added(bench))
            added = add_steadily(
                [stored.system.adder() for _ in range(threads)],
                list(zip(rows["tags"].to_pylist(), rows["key"].to_pylist(), strict=True)),
                seconds=_seconds(bench),
                rate=_MOST_ADDS,
                tend=_nothing if at_once else stored.system.tend,
                every=_EVERY,
            )
            stored.system.tend()
        stored.count(added.rows)
        panel.add(name, float(threads), added.rate)
        result.add(
            f"{name}: added one by one by {in_words}", added.rate, "sets/s", _ADDS if stored.name == TAGMATCH else None
        )
        if not at_once:
            result.add(f"{name}: longest until visible, {in_words}", added.unseen, "s", _UNSEEN)


def _nothing() -> None:
    """What is to be done from time to time beside additions that are visible at once."""


def while_serving(bench: Bench, result: Result, ours: Stored, queries: pa.ListArray) -> None:
    """Ask queries at half of capacity, in turn while nothing changes and while another thread changes sets."""
    asked: list[list[str]] = queries[: bench.options.queries].to_pylist()
    match = cast("TagmatchOnDisk", ours.system).match
    rounds, seconds = bench.options.rounds, _seconds(bench)
    with bench.doing("updates: capacity of one caller"):
        capacity = Samples(tuple(callers_rate(match, asked, 1, bench.options.seconds) for _ in range(rounds)))
    result.add("one caller of match", capacity, "queries/s")
    latencies: dict[str, list[dict[str, float]]] = {_QUIET: [], _CHANGING: []}
    changes = 0
    for number in range(rounds):
        due = poisson_times(capacity.median / 2, seconds, bench.options.seed + number)
        with bench.doing(f"updates: serving, {_QUIET}"):
            latencies[_QUIET].append(serve_calls(match, cycle(asked), due).milliseconds())
        with (
            bench.doing(f"updates: serving, {_CHANGING}"),
            without_garbage_collection(),
            repeatedly(lambda: ours.change(_CHANGED, _CHANGED), 1 / _MOST_CHANGES) as calls,
        ):
            latencies[_CHANGING].append(serve_calls(match, cycle(asked), due).milliseconds())
        changes += len(calls)
    panel = result.panel("latency of match at half of capacity", "quantile", "ms")
    p99 = {}
    for name, found in latencies.items():
        for quantile in found[0]:
            samples = Samples(tuple(each[quantile] for each in found))
            panel.add(name, quantile, samples)
            if quantile == "p99":
                p99[name] = samples
                result.add(f"p99 at half of capacity, {name}", samples, "ms")
    result.add("p99 while sets change, of that when quiet", p99[_CHANGING].ratios(p99[_QUIET]), "times", _P99)
    result.add(
        f"changes meanwhile, {_CHANGED} sets added and {_CHANGED} removed", changes / rounds / seconds, "a second"
    )
