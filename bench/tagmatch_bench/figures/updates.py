"""Changes of systems on disk: small and large ones, with other work, their cost for queries, and opening."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import cast, get_args

import numpy as np
import pyarrow as pa

from tagmatch.model.options import Durability
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.load import add_steadily, callers_rate, poisson_times, repeatedly, serve_calls
from tagmatch_bench.harness.results import Panel, Result, Target
from tagmatch_bench.harness.stored import Comparison, Stored, changed_files, state_of, sync_seconds, wait_until_quiet
from tagmatch_bench.harness.timing import Samples, by_name, in_turns, seconds_of, without_garbage_collection
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.on_disk import SYSTEMS_ON_DISK, TAGMATCH
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

#: Sets added by a change while queries are served, and as many removed; and the most changes a second
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
    """Add sets one by one in threads, while another thread makes them visible if an addition does not."""
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
                tend=(lambda: None) if at_once else stored.system.tend,
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
        for quantile, samples in by_name(found).items():
            panel.add(name, quantile, samples)
            if quantile == "p99":
                p99[name] = samples
                result.add(f"p99 at half of capacity, {name}", samples, "ms")
    result.add("p99 while sets change, of that when quiet", p99[_CHANGING].ratios(p99[_QUIET]), "times", _P99)
    result.add(
        f"changes during that, {_CHANGED} sets added and {_CHANGED} removed", changes / rounds / seconds, "a second"
    )


_TEN = 10
_TEN_ROUNDS = 10
_ONE_PERCENT = 0.01
_PERCENT_ROUNDS = 3
#: Of these rounds, and of many small changes; where these take longer, fewer are made
_MOST_SECONDS_OF_TEN, _MOST_SECONDS = 15.0, 45.0
_WARM_UP_ROWS = 1000

#: Queries whose answers are compared: of all systems, and of those that scan nothing
_CHECKED, _MORE_CHECKED = 3, 200

#: Milliseconds, and percent
_TEN_SETS = Target(50, at_most=True)
_OF_A_BUILD = Target(15, at_most=True)
_AFTER_MANY = Target(70)
_AFTER_MERGES = Target(95)
_FILES_FOR_NOTHING = Target(0, at_most=True, required=True)
_TO_OPEN = Target(1000, at_most=True)
_ALL_FOUND = Target(0, at_most=True, required=True)

_SMALL, _AT_ONCE = "after small changes", "consolidated at once"


def updates(bench: Bench, *, consolidates: int = 1000) -> Result:
    """Measure changes, and queries during and after them."""
    spare = _spare_rows(bench, consolidates)
    sets = bench.workload(bench.sets() + spare)
    # Keys by which rows can be named
    rows = pa.table({"tags": sets.sets["tags"], "key": np.arange(len(sets.sets), dtype=np.uint64)})
    loaded = len(rows) - spare
    result = bench.result(
        "updates",
        "Changes",
        f"""{loaded:,} sets, each with its own key; then {_TEN} more, one percent exchanged, sets one by one, and
        what that does to queries. All systems keep them on disk, take the same ones in the same order, and show a
        change at once, `tagmatch` when it is consolidated. `tagmatch` has layout `rarest`, on the CPU. DuckDB has a
        table in a file, and a commit syncs its log. LanceDB syncs nothing: a crash of the machine may lose what it took
        last. Targets are for 5 million sets ({_TEN} sets more), 4 million (one percent) and 10 million (opening).""",
        consolidates=consolidates,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tagmatch-bench-")))
        result.add("a sync of 4 KiB that are appended to a file", sync_seconds(folder).times(1000), "ms")
        stored = _made(bench, result, stack, folder, rows)
        ours = stored[TAGMATCH]
        compare = Comparison(result, sets.queries, bench.options.threads)
        _load(bench, result, stored, loaded)
        _ten_sets(bench, result, stored, compare)
        _one_percent(bench, result, stored, folder)
        compare("one percent changed", stored.values(), _CHECKED, _CHECKED)
        adds_one_by_one(bench, result, stored)
        compare("sets added one by one", stored.values(), _CHECKED, _CHECKED)
        _move_on(stored.values())
        _many_small(bench, result, ours, consolidates, sets.queries, folder)
        _nothing_staged(bench, result, ours)
        while_serving(bench, result, ours, sets.queries)
        compare("after serving", [ours], _MORE_CHECKED, _MORE_CHECKED)
        _opening(bench, result, stored, compare, sets.queries[:1])
    return result


def _spare_rows(bench: Bench, consolidates: int) -> int:
    """Count the rows that are added to those that are loaded, at most."""
    ten, small = _TEN * _TEN_ROUNDS, _TEN * consolidates
    percent = _PERCENT_ROUNDS * _half_of_one_percent(bench)
    return ten + percent + small + rows_beside(bench)


def _half_of_one_percent(bench: Bench) -> int:
    return max(1, round(_ONE_PERCENT * bench.sets() / 2))


def _made(bench: Bench, result: Result, stack: ExitStack, folder: Path, rows: pa.Table) -> dict[str, Stored]:
    """Make all systems that can run here, each after another one of its kind, which warms up."""
    stored = {}
    for name, system in SYSTEMS_ON_DISK.items():
        open_at = partial(system, threads=bench.options.threads)
        with bench.doing(f"updates: warming up {name}"):
            try:
                _warm_up(
                    Stored(name, folder / f"{name}, warming up", open_at, rows), min(_WARM_UP_ROWS, len(rows) // 2)
                )
            except UnavailableError as error:
                result.unavailable[name] = str(error)
                continue
        stored[name] = Stored(name, folder / name, open_at, rows)
        stack.callback(stored[name].close)
    return stored


def _warm_up(stored: Stored, rows: int) -> None:
    """Do all that is measured later, with few rows."""
    stored.change(rows)
    stored.change(_TEN, _TEN)
    stored.system.adder()(["warm", "up"], 0)
    stored.system.tend()
    stored.sees_newest()
    stored.close()
    stored.open()
    stored.sees_newest()
    stored.close()


def _move_on(stored: Collection[Stored]) -> None:
    """Bring all systems to the contents of the one that took the most changes."""
    first, last = max(each.place for each in stored)
    for each in stored:
        each.move_to(first, last)


def _load(bench: Bench, result: Result, stored: dict[str, Stored], rows: int) -> None:
    panel = result.panel("all sets at once", "sets", "s")
    for name, each in stored.items():
        with bench.doing(f"updates: loading {rows:,} rows, {name}"):
            panel.add(name, f"{rows:,}", each.change(rows))


def _ten_sets(bench: Bench, result: Result, stored: dict[str, Stored], compare: Comparison) -> None:
    """Add ten sets, again and again; each time one of them is looked for at once."""
    seconds: dict[str, list[float]] = {name: [] for name in stored}
    lost = dict.fromkeys(stored, 0)
    with bench.doing(f"updates: {_TEN} sets"):
        start = perf_counter()
        while len(seconds[TAGMATCH]) < _TEN_ROUNDS and perf_counter() - start < _MOST_SECONDS_OF_TEN:
            for name, each in stored.items():
                seconds[name].append(each.change(_TEN))
                lost[name] += not each.sees_newest()
    panel = result.panel(f"{_TEN} sets, until they are visible", "sets", "ms")
    for name in stored:
        taken = Samples(tuple(seconds[name])).times(1000)
        panel.add(name, f"{_TEN}", taken)
        result.add(f"{name}: {_TEN} sets until visible", taken, "ms", _TEN_SETS if name == TAGMATCH else None)
        result.add(f"{name}: sets that were not found then, of {len(taken.values)}", lost[name], "sets", _ALL_FOUND)
    compare(f"{_TEN} sets", stored.values(), _CHECKED, _CHECKED)


def _one_percent(bench: Bench, result: Result, stored: dict[str, Stored], folder: Path) -> None:
    """Remove rows and add as many, one percent together, and compare with full builds of the same rows."""
    half, build = _half_of_one_percent(bench), f"{TAGMATCH}: a full build"
    works: dict[str, Callable[[], float]] = {name: partial(each.change, half, half) for name, each in stored.items()}
    works[build] = partial(_full_build, stored[TAGMATCH], folder / "full")
    with bench.doing("updates: one percent, and full builds"):
        seconds = in_turns(works, _PERCENT_ROUNDS)
    full = seconds.pop(build)
    result.panel("one percent changed", "rows", "s").add_all(seconds, f"{half:,} removed, {half:,} added")
    result.add(build, full, "s")
    share = seconds[TAGMATCH].ratios(full).times(100)
    result.add(f"{TAGMATCH}: one percent changed, of a full build", share, "%", _OF_A_BUILD)


def _full_build(ours: Stored, path: Path) -> float:
    """Build the stored rows again elsewhere, and remove that; returns the seconds that the build took."""
    made: list[Stored] = []
    seconds = seconds_of(lambda: made.append(ours.elsewhere(path)))
    made[0].close()
    shutil.rmtree(path)
    return seconds


def _many_small(
    bench: Bench, result: Result, ours: Stored, consolidates: int, queries: pa.ListArray, folder: Path
) -> None:
    """Make many small changes; then queries, at once, when all is quiet, and with the same sets consolidated once."""
    with bench.doing("updates: all sets at once, for comparison"):
        at_once = ours.elsewhere(folder / "at once", more=_TEN * consolidates)
    with bench.doing(f"updates: {consolidates:,} small changes"):
        taken = _small_changes(ours, consolidates)
    small = Samples(taken).times(1000)
    result.add(f"small changes, {_TEN} sets each, of {consolidates:,}", len(taken), "changes")
    result.add("a small change, median", small.median, "ms")
    result.add("a small change, the longest", max(small.values), "ms")
    panel = result.panel("match_many", "when", "queries/s")
    systems, sets = {_SMALL: ours.system, _AT_ONCE: at_once.system}, ours.contents
    for when, target in {"at once": _AFTER_MANY, "when merges have ended": _AFTER_MERGES}.items():
        if target is _AFTER_MERGES:
            with bench.doing("updates: merges"):
                is_merged = cast("TagmatchOnDisk", ours.system).is_merged
                result.add("until merges have ended", wait_until_quiet(ours.path, done=is_merged), "s")
        rates = bench.throughput(result, f"small changes, {when}", systems, sets, queries)
        panel.add_all({name: rate.queries for name, rate in rates.items()}, when)
        share = rates[_SMALL].queries.ratios(rates[_AT_ONCE].queries).times(100)
        result.add(f"match_many after small changes, {when}, of that consolidated at once", share, "%", target)
    at_once.close()


def _small_changes(ours: Stored, count: int) -> tuple[float, ...]:
    """Make changes until their time is over, and the rest of them as one; returns the seconds of each but that."""
    taken: list[float] = []
    start = perf_counter()
    while len(taken) < count and perf_counter() - start < _MOST_SECONDS:
        taken.append(ours.change(_TEN))
    if rest := count - len(taken):
        ours.change(_TEN * rest)
    return tuple(taken)


def _nothing_staged(bench: Bench, result: Result, ours: Stored) -> None:
    """Count the files that change when there is nothing to be consolidated."""
    before = state_of(ours.path)
    taken = Samples(tuple(seconds_of(ours.system.tend) for _ in range(bench.options.rounds)))
    files = changed_files(before, state_of(ours.path))
    result.add("nothing staged: files that a consolidation changes", files, "files", _FILES_FOR_NOTHING)
    result.add("nothing staged: a consolidation", taken.times(1000), "ms")


def _opening(bench: Bench, result: Result, stored: dict[str, Stored], compare: Comparison, query: pa.ListArray) -> None:
    """Open each system, with its files in the page cache, and ask it one query."""

    def open_and_ask(each: Stored) -> None:
        each.open()
        each.system.match_many(each.system.prepare(query))

    def reopened(each: Stored) -> float:
        each.close()
        return seconds_of(partial(open_and_ask, each))

    with bench.doing("updates: opening"):
        _move_on(stored.values())
        seconds = in_turns({name: partial(reopened, each) for name, each in stored.items()}, bench.options.rounds)
    panel = result.panel("opening, until one query is answered", "rows", "ms")
    for name, each in stored.items():
        taken = seconds[name].times(1000)
        panel.add(name, f"{len(each.contents):,}", taken)
        result.add(f"{name}: opened, and one query answered", taken, "ms", _TO_OPEN if name == TAGMATCH else None)
    compare("opened", stored.values(), 1, 0)
