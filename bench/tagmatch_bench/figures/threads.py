"""What more threads bring, of `match_many` and of callers; what the pipeline costs; and single messages at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

from tagmatch import TagMatch
from tagmatch_bench.figures.throughput import by_threads
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.load import callers_rate, gather_rate, poisson_times, serve_tasks
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples, alternate, by_name, in_turns
from tagmatch_bench.systems.catalogue import BALANCED, ON_CPU, OURS, PYTHON_DICT, RAREST, Build, System, some, tagmatch
from tagmatch_bench.systems.tagmatch_content import LocatedOneByOne, TagmatchContent, TagmatchLocated, TagmatchOneByOne
from tagmatch_bench.workloads.content import SCENARIOS as CONTENT
from tagmatch_bench.workloads.content import Content
from tagmatch_bench.workloads.location import SCENARIOS as LOCATED
from tagmatch_bench.workloads.location import LocationWorkload

Asked = tuple[tuple[Any, ...], dict[str, Any]]


# Keys of a small answer, at most: as many as `submit` gives at once
_SMALL = 4096
#: Percent
_DONE = Target(100)
_AGAINST_MATCH = Target(2, at_most=True)


def at_once(bench: Bench, result: Result) -> None:
    """How long `submit` and `amatch` take for a message, and how many futures are done when `submit` returns."""
    for what, index, messages in _indexes(bench):
        with index, bench.doing(f"threads: single messages, {what}"):
            small = [(given, named) for given, named in messages if len(index.match(*given, **named)) <= _SMALL]
            futures = [index.submit(*given, **named).done() for given, named in small]
            seconds = _seconds(bench, index, small)
        done = Samples((100 * sum(futures) / max(1, len(futures)),))
        result.add(
            f"{what}: futures that are done when submit returns, of {len(small):,} small answers", done, "%", _DONE
        )
        for way in ("submit", "amatch"):
            ratio = seconds[way].ratios(seconds["match"])
            result.add(f"{what}: {way} against match", ratio, "times as long", _AGAINST_MATCH)


def _indexes(bench: Bench) -> Iterator[tuple[str, TagMatch, list[Asked]]]:
    """Subscriptions of the workloads of PCM and CLCB, as many as there are sets, and messages."""
    count, queries = bench.sets(), bench.queries
    content, location = Content(CONTENT["pcm"]), LocationWorkload(LOCATED["clcb"])
    whole = TagmatchContent(content.subscriptions(0, min(count, content.filters)), threads=bench.options.threads)
    attributes = TagmatchOneByOne(whole).prepare(content.messages(0, queries))
    yield "conditions", whole.index, [(((), each), {}) for each in attributes]
    located = TagmatchLocated(location.subscriptions(0, min(count, location.filters)), threads=bench.options.threads)
    rows = LocatedOneByOne(located).prepare(location.messages(0, queries))
    yield "areas and conditions", located.index, [((tags, each), {"location": place}) for tags, each, place in rows]


def _seconds(bench: Bench, index: TagMatch, messages: list[Asked]) -> dict[str, Samples]:
    """Seconds that all messages take, one after the other, by each way to ask, in turn."""

    def match() -> None:
        for given, named in messages:
            index.match(*given, **named)

    def submit() -> None:
        for given, named in messages:
            index.submit(*given, **named).result()

    async def await_each() -> None:
        for given, named in messages:
            await index.amatch(*given, **named)

    ways = {"match": match, "submit": submit, "amatch": lambda: asyncio.run(await_each())}
    return alternate(ways, bench.options.rounds)


_CALLERS = (1, 2, 10, 50)
_IN_WORDS = f"{', '.join(map(str, _CALLERS[:-1]))} and {_CALLERS[-1]}"
_MANY_CALLERS = Target(0.9)
_GATHERED = 1000
#: Queries a second, of small answers
_BY_TASKS = Target(60_000)
#: Milliseconds
_P99_AT_HALF_LOAD = Target(2, at_most=True)
_ONE_CALLER = Target(2)
_AGAINST_KERNELS = Target(0.9)
#: Times the throughput of one thread, by threads
_MORE_THREADS = {2: Target(1.9), 16: Target(12)}


def threads(bench: Bench) -> Result:
    """Throughput against the number of threads, and of callers."""
    result = bench.result(
        "threads",
        "Throughput against threads and callers",
        f"""{bench.in_words(bench.sets())}. {ON_CPU} First `match_many` with 1, 2, 4 ... threads, as Figure 5 of the
        paper. Then, with {bench.options.threads}, the cost of the pipeline: `match_many` against the kernels that it
        calls, called by plain threads on packets of the same size. Then callers: {_IN_WORDS} Python threads, each of
        which calls `match` again and again and waits for the answer; they share the interpreter lock. So do those that
        ask a Python dict from each set's rarest tag to the sets. Last, one event loop gathers `amatch` of {_GATHERED:,}
        queries at a time, and then is asked at random times (Poisson), half as often, by a task for each query; latency
        runs from when a query was due. Targets are for small answers (`--keys 1`). Then single messages of the
        workloads of PCM and CLCB, whose answers are small: `submit` and `amatch`, against `match`, by one caller.""",
    )
    by_threads(bench, result, (RAREST, BALANCED), _MORE_THREADS)
    _beside_kernels(bench, result)
    _by_callers(bench, result)
    _by_tasks(bench, result)
    at_once(bench, result)
    return result


def _beside_kernels(bench: Bench, result: Result) -> None:
    workload = bench.workload(bench.sets())
    kernels = {each: f"kernels alone, {each}" for each in OURS}
    systems: dict[str, Build] = {name: tagmatch(name) for name in OURS.values()}
    systems |= {name: System("tagmatch:Kernels", {"layout": layout}) for layout, name in kernels.items()}
    with bench.built(systems, workload.sets, result) as matchers:
        rates = bench.throughput(result, "against kernels", matchers, workload.sets, workload.queries)
    panel = result.panel("match_many and its kernels", "layout", "queries/s")
    for layout, name in OURS.items():
        ours, alone = rates[name].queries, rates[kernels[layout]].queries
        panel.add("match_many", layout, ours)
        panel.add("kernels alone", layout, alone)
        result.add(f"{layout}: match_many against its kernels", ours.over(alone), "times", _AGAINST_KERNELS)


def _by_callers(bench: Bench, result: Result) -> None:
    workload, options = bench.workload(bench.sets()), bench.options
    queries = workload.queries.to_pylist()
    panel = result.panel("match, called again and again", "callers", "queries/s", "lines")
    systems: dict[str, Build] = {name: tagmatch(name) for name in OURS.values()} | some([PYTHON_DICT])
    one_caller: dict[str, Samples] = {}
    with bench.built(systems, workload.sets, result) as matchers:
        each: Any
        for name, each in matchers.items():
            match, seconds = each.match, options.seconds
            works = {str(callers): partial(callers_rate, match, queries, callers, seconds) for callers in _CALLERS}
            with bench.doing(f"threads: callers of {name}"):
                rates = in_turns(works, options.rounds)
            for callers, rate in rates.items():
                panel.add(name, float(callers), rate)
            one_caller[name] = rates["1"]
    for name in OURS.values():
        if name in one_caller and PYTHON_DICT in one_caller:
            ratio = one_caller[name].over(one_caller[PYTHON_DICT])
            result.add(
                f"{name}: one caller of match against a dict", ratio, "times", _ONE_CALLER if name == RAREST else None
            )
    ratios = result.panel("match by many callers", "callers", "times one caller", "lines", log=False)
    ratios.add_ratios(panel, 1)
    for row in ratios.rows:
        if row.x == _CALLERS[-1]:
            what = f"{row.what}: {row.x:g} callers of match against one"
            result.add(what, row.value, "times", _MANY_CALLERS if row.what == RAREST else None)


def _by_tasks(bench: Bench, result: Result) -> None:
    workload, options = bench.workload(bench.sets()), bench.options
    queries = workload.queries.to_pylist()
    systems: dict[str, Build] = {name: tagmatch(name) for name in OURS.values()}
    with bench.built(systems, workload.sets, result) as matchers:
        each: Any
        for name, each in matchers.items():
            with bench.doing(f"threads: tasks that ask {name}"):
                ask, seconds, rounds = each.index.amatch, options.seconds, range(options.rounds)
                gather_rate(ask, queries, _GATHERED, 0)  # starts threads
                rates = Samples(tuple(gather_rate(ask, queries, _GATHERED, seconds) for _ in rounds))
                dues = [poisson_times(rates.median / 2, seconds, options.seed + number) for number in rounds]
                half = by_name([serve_tasks(ask, cycle(queries), due).milliseconds() for due in dues])
            what = f"{name}: amatch, {_GATHERED:,} at a time"
            result.add(what, rates, "queries/s", _BY_TASKS if name == RAREST else None)
            for quantile, target in {"median": None, "p99": _P99_AT_HALF_LOAD}.items():
                what = f"{name}: amatch at half of that load, {quantile}"
                result.add(what, half[quantile], "ms", target if name == RAREST else None)
