"""Latency of queries that are submitted one by one: by the timeout of batches (Figure 6), and by the load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from tagmatch.model.options import Layout, MatchOptions
from tagmatch_bench.figures import published
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.gathered import gathering
from tagmatch_bench.harness.load import WINDOW, closed_loop_rate, poisson_times, serve
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples, by_name
from tagmatch_bench.systems.catalogue import (
    CPU_ONLY,
    ON_BOTH,
    ON_CPU,
    OURS,
    RAREST,
    SYSTEMS,
    TAGMATCH_GPU,
    TAGMATCH_HYBRID,
)

#: Seconds that a query may wait for others; `None`: no limit
TIMEOUTS = (0.0, 0.001, 0.01, 0.1, None)
_PAPER_TIMEOUTS = (0.0, 0.001, 0.01, 0.1, 0.2, 0.3, None)
_DEFAULT_TIMEOUT = MatchOptions().flush_timeout

#: Percent of capacity; far below it, no timeout has an effect
_LOADS = (10, 25, 50, 75, 90, 100, 120)
_FIG6_LOADS = (50, 80, 95)
_HALF = 50
#: Milliseconds
_P99_AT_HALF_LOAD: dict[Layout, Target] = {"rarest": Target(20, goal=2, at_most=True)}
_MEASURES = {
    "answered": "queries/s", "median": "ms", "p99": "ms", "p99.9": "ms", "maximum": "ms", "rejected": "queries"
}  # fmt: skip

_CAPACITY = f"""Capacity is what one Python thread gets answered that submits as fast as it can and has up to
    {WINDOW:,} queries outstanding. It is far below that of `match_many`: the caller is Python in the same process
    and shares the interpreter lock with the stages, so that its own greatest speed is part of capacity."""
_ARRIVALS = """Queries arrive at random (Poisson), whether or not earlier ones are done, and a query's latency runs from
    when it was due, however late it was submitted, until its future was done."""

#: How many times as long as another experiment's call a round of Figure 6 is
_LENGTH = 5
_WARM_UP_SECONDS = 0.1


def fig6(bench: Bench) -> Result:
    """Latency against the timeout of a batch."""
    result = bench.result(
        "fig6",
        "Figure 6: latency of single queries",
        f"""`submit` of `match-unique` on the full database ({bench.in_words(bench.sets())} here), at several
        shares of capacity. {ON_BOTH} {_ARRIVALS} {_CAPACITY} A query waits until its batches are full, `flush_timeout`
        has passed or a thread has nothing else to do; `rarest` has no batches to wait for. A device gets the batches
        that are worth it, as always; the CPU matches the others. The hybrid takes calls: each has the queries that have
        come within the timeout, so that it always has one, and its capacity is that without waiting.""",
        loads=_FIG6_LOADS,
    )
    for name in bench.wanted((RAREST, CPU_ONLY, TAGMATCH_GPU, TAGMATCH_HYBRID)):
        system = _System(bench, result, name, unique=True)
        capacity = system.capacity()
        if capacity is None:  # no device
            continue
        panels = {}
        for load in _FIG6_LOADS:
            offered = f"{load} % of capacity, {load / 100 * capacity:,.0f} queries/s offered"
            panels[load] = result.panel(f"{name}, {offered}", "timeout", "ms")
            if name != RAREST:
                panels[load].published = published.FIG6
        rejected = 0
        for timeout in (each for each in _PAPER_TIMEOUTS if not (each is None and system.takes_calls)):
            label = _in_words(timeout)
            with system.submitting(flush_timeout=timeout) as submit:
                assert submit is not None
                for load, panel in panels.items():
                    with bench.doing(f"fig6: {name}, {label}, {load} % of capacity"):
                        found = system.serve(submit, load / 100 * capacity, _LENGTH * bench.options.seconds)
                    rejected += found.rejected
                    panel.add_all(found.milliseconds, label)
        result.add(f"{name}: rejected", rejected, "queries")
    return result


def latency(bench: Bench, layouts: Sequence[Layout], timeouts: Sequence[float | None]) -> Result:
    """Throughput and latency against the offered load, for some values of `flush_timeout`."""
    result = bench.result(
        "latency",
        "Latency against load",
        f"""`submit` of `match` on {bench.in_words(bench.sets())}. {ON_CPU} {_ARRIVALS} {_CAPACITY} It is measured with
        the default `flush_timeout`, {_in_words(_DEFAULT_TIMEOUT)}. Near capacity and above, queries pile up, so that
        latency grows with the seconds measured. Values are medians of {bench.options.rounds} rounds, which differ a
        lot in their longest latencies. Queries that are refused as `Overloaded` are counted as rejected, in all rounds
        together, and have no latency.""",
        loads=_LOADS,
        flush_timeouts=timeouts,
    )
    panels = {
        (each, measure): result.panel(
            f"{each}: {measure}", "offered load, % of capacity", unit, "lines", log=unit == "ms", log_x=False
        )
        for measure, unit in _MEASURES.items()
        for each in layouts
    }
    for each in layouts:
        system = _System(bench, result, OURS[each], unique=False)
        capacity = system.capacity()
        assert capacity is not None
        result.add(f"{each}: capacity", capacity, "queries/s")
        for timeout in timeouts:
            label = f"flush_timeout {_in_words(timeout)}"
            with system.submitting(flush_timeout=timeout) as submit:
                assert submit is not None
                for load in _LOADS:
                    with bench.doing(f"latency: {each}, {label}, {load} % of capacity"):
                        found = system.serve(submit, load / 100 * capacity, bench.options.seconds)
                    panels[each, "answered"].add(label, float(load), found.throughput)
                    for quantile, samples in found.milliseconds.items():
                        panels[each, quantile].add(label, float(load), samples)
                    panels[each, "rejected"].add(label, float(load), found.rejected)
                    if load == _HALF and timeout == _DEFAULT_TIMEOUT:
                        _add_p99(result, each, found.milliseconds["p99"])
    return result


def _add_p99(result: Result, layout: Layout, p99: Samples) -> None:
    what = f"{layout}: p99 at {_HALF} % of capacity, default flush_timeout"
    result.add(f"{what}, median of {len(p99.values)} rounds", p99, "ms", _P99_AT_HALF_LOAD.get(layout))
    result.add(f"{what}, worst round", max(p99.values), "ms")


def _in_words(timeout: float | None) -> str:
    return "never" if timeout is None else f"{1000 * timeout:g} ms"


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Results of rounds at one load: samples of the throughput and of each quantile, and all rejected queries."""

    throughput: Samples
    milliseconds: dict[str, Samples]
    rejected: int


class _System:
    """One of our own systems, or one that takes calls, and the queries that are submitted to it."""

    def __init__(self, bench: Bench, result: Result, name: str, *, unique: bool) -> None:
        self._bench, self._result, self._name, self._unique = bench, result, name, unique
        self.takes_calls = name == TAGMATCH_HYBRID
        workload = bench.workload(bench.sets())
        self._sets = workload.sets
        self.queries: list[list[str]] = workload.queries[: bench.options.queries].to_pylist()

    @contextmanager
    def submitting(self, flush_timeout: float | None) -> Iterator[Callable[[list[str]], Future[Any]] | None]:
        """Build the system, warmed up; gives its `submit`, which does not wait, or `None` if it cannot run here."""
        options: dict[str, Any] = {} if self.takes_calls else {"flush_timeout": flush_timeout}
        systems = {self._name: partial(SYSTEMS[self._name], **options)}
        with self._bench.built(systems, self._sets, self._result) as matchers, ExitStack() as stack:
            if self._name not in matchers:
                yield None
                return
            matcher = matchers[self._name]
            if self.takes_calls:
                assert flush_timeout is not None
                submit = stack.enter_context(gathering(matcher, flush_timeout, unique=self._unique))
            else:
                submit = partial(matcher.index.submit, unique=self._unique, block=False)
            closed_loop_rate(submit, self.queries, _WARM_UP_SECONDS)
            yield submit

    def serve(self, submit: Callable[[list[str]], Future[Any]], rate: float, seconds: float) -> _Rounds:
        """Offer queries at a rate for some seconds; in each round they arrive at other times."""
        options = self._bench.options
        rounds = [
            serve(submit, cycle(self.queries), poisson_times(rate, seconds, options.seed + number))
            for number in range(options.rounds)
        ]
        return _Rounds(
            Samples(tuple(served.throughput for served in rounds)),
            by_name([served.milliseconds() for served in rounds]),
            sum(served.rejected for served in rounds),
        )

    def capacity(self) -> float | None:
        """Measure the queries a second that one thread can have answered, by default; `None` without a device."""
        options, timeout = self._bench.options, 0.0 if self.takes_calls else _DEFAULT_TIMEOUT
        with self.submitting(timeout) as submit, self._bench.doing(f"{self._result.name}: {self._name}, capacity"):
            if submit is None:
                return None
            rates = [closed_loop_rate(submit, self.queries, options.seconds) for _ in range(options.rounds)]
        return Samples(tuple(rates)).median
