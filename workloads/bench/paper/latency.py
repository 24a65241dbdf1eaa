"""Latency of single queries that arrive one by one and are matched in batches (Figure 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from workloads.bench.paper import published
from workloads.bench.paper.catalogue import CPU_ONLY, RAREST, SYSTEMS
from workloads.bench.timing import rates
from workloads.pacing import arrival_times

if TYPE_CHECKING:
    from tagmatch.arrays import F64Array
    from workloads.bench.paper.bench import Bench
    from workloads.bench.paper.results import Result
    from workloads.systems.matcher import Matcher

#: Seconds after which the oldest query of a batch has waited enough, by how they are named
TIMEOUTS = {"0 ms": 0.0, "1 ms": 0.001, "10 ms": 0.01, "100 ms": 0.1, "200 ms": 0.2, "300 ms": 0.3, "never": np.inf}
QUANTILES = {"median": 0.5, "p99": 0.99, "p99.9": 0.999, "maximum": 1.0}

#: A batch of so many queries leaves at once
_FULL = 8192
_LOAD = 0.5
#: So many times as long as a measured call
_LENGTH = 10


def fig6(bench: Bench) -> Result:
    """Latency against the timeout of a batch."""
    result = bench.result(
        "fig6",
        "Figure 6: latency of single queries",
        f"""`match-unique` on the full database ({bench.sets():,} distinct sets here). Queries arrive at random
        (Poisson) at half of the rate that large batches reach, whether or not earlier ones are done; a batch leaves
        when its oldest query has waited for the timeout, or with {_FULL:,} queries. A query's latency runs from when
        it was due to when its batch was answered.""",
        load=_LOAD,
        batch=_FULL,
    )
    workload = bench.workload(bench.sets())
    with bench.built({name: SYSTEMS[name] for name in (RAREST, CPU_ONLY)}, workload.sets, result) as matchers:
        for name, matcher in matchers.items():
            capacity = _capacity(bench, matcher, workload.queries)
            offered = _LOAD * capacity
            panel = result.panel(f"{name}, {offered:,.0f} queries/s offered", "timeout", "ms")
            if name == CPU_ONLY:
                panel.published = published.FIG6
            count = max(1, round(_LENGTH * bench.options.seconds * offered))
            queries = pa.concat_arrays([workload.queries] * -(-count // len(workload.queries)))
            due = _due_times(offered, count, bench.options.seed)
            for label, timeout in TIMEOUTS.items():
                with bench.doing(f"fig6: {name}, {label}"):
                    latency = serve(_asking(matcher, queries), due, timeout, _FULL)
                for quantile, share in QUANTILES.items():
                    panel.add(quantile, label, 1000 * float(np.quantile(latency, share)))
    return result


def serve(ask: Callable[[int, int], object], due: F64Array, timeout: float, full: int) -> F64Array:
    """Answer queries in batches as they become due; nothing is skipped when the answers come late.

    Parameters
    ----------
    ask
        Answers queries `first` to `last`.
    due : float64 array
        When each query arrives, in seconds from the start, ascending.
    timeout : float
        A batch leaves when its oldest query has waited for so many seconds,
    full : int
        or when it holds so many queries. What is left at the end leaves when the last has arrived.

    Returns
    -------
    float64 array
        Seconds from when each query was due until it was answered.
    """
    latency = np.empty(len(due))
    start = time.perf_counter()
    done = 0
    while done < len(due):
        leaves_at = min(due[min(done + full, len(due)) - 1], due[done] + timeout)
        wait = leaves_at - (time.perf_counter() - start)
        if wait > 0:
            time.sleep(wait)
        arrived = int(np.searchsorted(due, time.perf_counter() - start, side="right"))
        last = min(max(arrived, done + 1), done + full)
        ask(done, last)
        latency[done:last] = (time.perf_counter() - start) - due[done:last]
        done = last
    return latency


def _asking(matcher: Matcher[Any], queries: pa.ListArray) -> Callable[[int, int], object]:
    return lambda first, last: matcher.match_many(matcher.prepare(queries[first:last]), unique=True)


def _capacity(bench: Bench, matcher: Matcher[Any], queries: pa.ListArray) -> float:
    """Measure queries a second in batches that are full."""

    def ask(count: int) -> None:
        for first in range(0, count, _FULL):
            matcher.match_many(matcher.prepare(queries[first : min(count, first + _FULL)]), unique=True)

    options = bench.options
    return rates({"": ask}, len(queries), rounds=options.rounds, seconds=options.seconds)[""].median


def _due_times(rate: float, count: int, seed: int) -> F64Array:
    blocks, found = [], 0
    for block in arrival_times(rate, burstiness=1.0, seed=seed):
        blocks.append(block)
        found += len(block)
        if found >= count:
            break
    return np.concatenate(blocks)[:count]
