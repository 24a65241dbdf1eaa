"""One thread matches while another one moves clients, on one index: how often each, alone and together."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch_bench.figures.location_scenarios import clients, workload
from tagmatch_bench.harness.located import LocatedScenario, add_answers
from tagmatch_bench.harness.results import Target
from tagmatch_bench.harness.timing import Samples, without_garbage_collection
from tagmatch_bench.systems.tagmatch_content import TagmatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import F64Array, U64Array
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

#: Different contents of all filters
CONTENTS = 2_000
#: Moves and messages of a call, and how many calls have others
_MOVES, _MESSAGES, _CALLS = 100_000, 8_192, 8
#: How many times as long as other measured calls
_LONGER = 10
_MOVES_A_SECOND, _MESSAGES_A_SECOND = Target(1.5e6), Target(0.4e6)
#: Filters from which on targets hold
_LARGE = 2_500_000
MOVES, MESSAGES = "moves", "messages"
ALONE, TOGETHER = "alone", "together"


@dataclass(frozen=True, slots=True)
class _Moves:
    """Moves of a call."""

    keys: U64Array
    x: F64Array
    y: F64Array


def live(bench: Bench, result: Result, filters: int) -> None:
    """Measure moves and messages a second, each alone and both at once."""
    options = bench.options
    with bench.doing(f"location: generating {filters:,} clients"):
        made = workload(filters, options.seed, filters_each=1)
        stored = _few_contents(made.subscriptions(0, made.filters, threads=1).combine_chunks())
        sent = made.messages(0, _CALLS * _MESSAGES).combine_chunks()
        x, y = (stored["area"].combine_chunks().field(name).to_numpy().copy() for name in ("x", "y"))
        moves = _moves(filters, options.seed)
    with bench.doing(f"location: building tagmatch, {filters:,} clients"):
        whole = TagmatchContent(clients(stored), plane=True)
        whole.index.move(stored["key"].to_numpy(), x, y)
    calls = [sent[first : first + _MESSAGES] for first in range(0, len(sent), _MESSAGES)]
    try:
        _compare(result, "before moves", stored, sent, whole, x, y)
        works = {
            MOVES: lambda number: _move(whole, moves[number % len(moves)]),
            MESSAGES: lambda number: _match(whole, calls[number % len(calls)]),
        }
        with bench.doing(f"location: moving and matching, {filters:,} clients"):
            found, done = _measure(works, options.rounds, _LONGER * options.seconds)
        for number in range(done[MOVES]):
            some = moves[number % len(moves)]
            x[some.keys.astype(np.int64)], y[some.keys.astype(np.int64)] = some.x, some.y
        _compare(result, "after moves", stored, sent, whole, x, y)
    finally:
        whole.close()
    panel = result.panel("moves and messages at once", "", "a second")
    for (what, how), samples in found.items():
        panel.add(what, how, samples)
    large = filters >= _LARGE
    for what, target in ((MOVES, _MOVES_A_SECOND), (MESSAGES, _MESSAGES_A_SECOND)):
        together = found[what, TOGETHER]
        result.add(f"live, {filters:,} clients: {what} together", together, "a second", target if large else None)
        result.add(f"live, {filters:,} clients: {what} alone", found[what, ALONE], "a second")
        result.add(
            f"live, {filters:,} clients: {what}, together beside alone", together.over(found[what, ALONE]), "times"
        )


def _few_contents(stored: pa.Table) -> pa.Table:
    """The same areas with the contents of the first subscriptions only; a client for each."""
    which = pa.array(np.arange(len(stored)) % min(CONTENTS, len(stored)))
    contents = stored["constraints"].combine_chunks().take(which)
    return stored.set_column(stored.column_names.index("constraints"), "constraints", contents)


def _moves(filters: int, seed: int) -> list[_Moves]:
    """Calls of random clients that go anywhere."""
    random = np.random.default_rng(seed)
    count = min(_MOVES, filters)
    return [
        _Moves(random.permutation(filters)[:count].astype(np.uint64), random.random(count), random.random(count))
        for _ in range(_CALLS)
    ]


def _move(whole: TagmatchContent, some: _Moves) -> int:
    whole.index.move(some.keys, some.x, some.y)
    return len(some.keys)


def _match(whole: TagmatchContent, messages: pa.Table) -> int:
    whole.match_many(messages)
    return len(messages)


def _measure(
    works: dict[str, Callable[[int], int]], rounds: int, seconds: float
) -> tuple[dict[tuple[str, str], Samples], dict[str, int]]:
    """Things a second of each work, alone and together, round by round; and how many calls of each there were."""
    done = dict.fromkeys(works, 0)
    taken: dict[tuple[str, str], list[float]] = {(name, how): [] for name in works for how in (ALONE, TOGETHER)}
    for name, work in works.items():  # warm up
        work(done[name])
        done[name] += 1
    with without_garbage_collection():
        for _ in range(rounds):
            for name in works:
                for each, rate in _run({name: works[name]}, done, seconds).items():
                    taken[each, ALONE].append(rate)
            for each, rate in _run(works, done, seconds).items():
                taken[each, TOGETHER].append(rate)
    return {key: Samples(tuple(values)) for key, values in taken.items()}, done


def _run(works: dict[str, Callable[[int], int]], done: dict[str, int], seconds: float) -> dict[str, float]:
    """Have a thread for each work call it until time is over; things a second, while all of them worked."""
    begin = threading.Barrier(len(works))
    found: dict[str, float] = {}
    errors: list[BaseException] = []

    def call(name: str) -> None:
        try:
            begin.wait()
            start, count = time.perf_counter(), 0
            while (now := time.perf_counter()) - start < seconds:
                count += works[name](done[name])
                done[name] += 1
            found[name] = count / (max(now, time.perf_counter()) - start)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(name,)) for name in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def _compare(
    result: Result, when: str, stored: pa.Table, sent: pa.Table, whole: TagmatchContent, x: Any, y: Any
) -> None:
    """Compare answers with brute force, of clients that are where they are now."""
    radius = stored["area"].combine_chunks().field("radius")
    area = pa.StructArray.from_arrays([pa.array(x), pa.array(y), radius], ["x", "y", "radius"])
    there = stored.set_column(stored.column_names.index("area"), "area", area)
    scenario = LocatedScenario(f"live, {when}", there, sent)
    given = whole.match_many(sent[: scenario.sample], unique=True)
    add_answers(result, f"{scenario.name}, beside brute force", "tagmatch", given, scenario.right)
