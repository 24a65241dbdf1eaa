"""`tagmatch-bench pcm` and `ccm`: the tables and the figures of PCM's evaluation (§4) and of CCM's (§5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from tagmatch_bench.figures import content_scenarios as scenarios
from tagmatch_bench.figures import published
from tagmatch_bench.figures.content_scenarios import Figure
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.figures.improvement import CCM_COUNTERS, CCM_SHARED_MEMORY, Improvement
from tagmatch_bench.figures.published import DEFAULT, MICROS, against
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import GPU, OURS, OURS_ON_GPU, Measured, Scenario, add_answers, latency, timed
from tagmatch_bench.harness.results import Result, Row, Target
from tagmatch_bench.harness.timing import Samples, alternate, by_name
from tagmatch_bench.systems.catalogue import CONTENT, CONTENT_GPU, CONTENT_ONE_BY_ONE, CONTENT_SHARED, ENCODED, System
from tagmatch_bench.systems.matcher import Matcher
from tagmatch_bench.systems.tagmatch_content import TagmatchContent

#: Our faster path for encoded events
BEST_PATH = "tagmatch, best path, encoded"

#: Ours is ahead of each published system
AHEAD = Target(1)

#: What is said of every such benchmark
DEVICES = """SFF, BE-Tree and *OCM* run on one thread of the CPU; *OCM, sharing tables* has {threads} threads share each
    event's tables, as published; both *CCM* and *tagmatch, GPU* run on a CUDA device, all others on the CPU. They are
    written anew after their papers, and get events encoded, all in one call that has them one after the other, and so
    do *tagmatch, trie, encoded* and *tagmatch, lines, encoded*: on one thread, with all filters in one of the two paths
    between which *tagmatch* chooses for each; *best path* is the one that is sooner. *OCM, a call each* is called for
    every event, as *tagmatch* is, which gets a Python `dict` (`match_unique`). Each key comes once. All answers are
    compared with brute force and with OCM."""
#: And of numbers besides them
PUBLISHED = """*paper* are the numbers that it prints, most of them speed-ups, of a million constraints on hardware of
    {year}: six cores of an AMD Phenom II, an Nvidia GTX 460. The paper's values are means over ten seeds; here they are
    medians of calls on one seed."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a table or figure is shown, and what of it is published."""

    title: str
    axis: str
    style: Literal["bars", "lines"] = "bars"
    log_x: bool = False
    micros: Sequence[Row] = ()  # published: microseconds an event, and speed-ups
    times: Sequence[Row] = ()

    @classmethod
    def of(cls, figure: Figure, times: Mapping[int, Sequence[Row]]) -> Shown:
        """A figure with lines, and its published speed-ups."""
        title = f"{figure.paper} Figure {figure.number}"
        return cls(title, figure.axis, "lines", figure.log_x, times=times[figure.number])


def compared(
    bench: Bench,
    result: Result,
    shown: Shown,
    scenarios: Iterable[tuple[str | float, Scenario]],
    pairs: Sequence[tuple[str, str]],
) -> dict[str | float, Measured]:
    """Measure the latency of all systems in scenarios, and add the shown values to the result.

    That is a panel of microseconds an event, one of speed-ups, and a line for each system that ours is compared with;
    it has a target if the system is a published one. Another line compares these with ours on encoded events.
    """
    panel = result.panel(shown.title, shown.axis, MICROS, shown.style, log_x=shown.log_x)
    panel.published += shown.micros
    speed_ups = result.panel(f"{shown.title}: speed-ups", shown.axis, "times", shown.style, log_x=shown.log_x)
    speed_ups.published += shown.times
    measured = {}
    for place, scenario in scenarios:
        found = measured[place] = latency(bench, result, scenario)
        panel.add_all(found.micros, place)
        for system, other in pairs:
            if {system, other} <= found.micros.keys():
                speed_ups.add(against(system, other), place, found.micros[other].ratios(found.micros[system]))
        _compare_ours(result, scenario, found)
    return measured


def _compare_ours(result: Result, scenario: Scenario, found: Measured) -> None:
    """Add how many times as fast as each other system ours is, and as each published one where both get the same."""
    micros = found.micros
    others = [name for name in micros if name not in (OURS, *ENCODED, OURS_ON_GPU)]
    known = [name for name in others if name in CONTENT_ONE_BY_ONE]
    if OURS in micros:
        for other in others:
            target = AHEAD if other in known else None
            result.add(f"{scenario.name}: {against(OURS, other)}", micros[other].ratios(micros[OURS]), "times", target)
    if paths := [micros[path] for path in ENCODED if path in micros]:
        best = min(paths, key=lambda samples: samples.median)
        for other in known:
            result.add(f"{scenario.name}: {against(BEST_PATH, other)}", micros[other].ratios(best), "times", AHEAD)


_SEQUENTIAL = ("SFF", "BE-Tree")
#: Systems, and what §4.1 compares them with (its OCM shares tables, on six cores); and ours
_PAIRS = [
    *((system, other) for system in ("CCM", "OCM", "OCM, sharing tables") for other in _SEQUENTIAL),
    ("OCM", "CCM"),
    ("OCM, sharing tables", "CCM"),
    *((own, other) for own in (OURS, *ENCODED) for other in _SEQUENTIAL),
]


def pcm(
    bench: Bench,
    *,
    constraints: int = 1_000_000,
    calls: tuple[int, ...] = (1, 16, 256, 4_096, 65_536),
    parts: tuple[str, ...] = PARTS["pcm"],
) -> Result:
    """Measure all parts that are wanted."""
    options = bench.options
    result = bench.result(
        "pcm",
        "PCM: latency and throughput of matching",
        f"""Microseconds an event, of {options.queries:,} events that come one by one (§4.1). PCM: Margara, Cugola, IEEE
        TPDS 2014; its OCM is PCM on a CPU, its CCM on a GPU. {DEVICES.format(threads=options.threads)}
        {PUBLISHED.format(year=2012)} *BE-Tree* is what the paper calls BETree; its version 1.3 was never published. Of
        Figure 7 the paper prints no numbers: SFF is ahead of PCM with one or two constraints a filter only, and in
        Figure 8 with less than 1,000 filters. *Much*: {scenarios.FEW_NAMES} names of attributes, so that most events go
        to all interfaces, and filters of {scenarios.OF_A_DENSE_FILTER} intervals on 20 attributes that all events have.
        *Throughput* (§4.2) is of calls with up to {max(calls):,} events, which SFF, BE-Tree and OCM, too, share out to
        {options.threads} threads, and CCM takes one or several at a time; *CPU or GPU* (§4.3) of `match_many`, by the
        events of a call, where `device="auto"` takes the side that was sooner when the index was opened.""",
        constraints=constraints,
        calls=calls,
        parts=parts,
    )
    works = {
        "table2": partial(_table2, bench, result, constraints),
        "improvements": partial(_improved, bench, result, CCM_COUNTERS, scenarios.pcm, constraints),
        **{
            f"figure{figure.number}": partial(_figure, bench, result, figure, constraints)
            for figure in scenarios.pcm_figures(constraints)
        },
        "much": partial(_much, bench, result, constraints),
        "throughput": partial(throughput, bench, result, constraints, calls),
    }
    bench.do(works, parts)
    return result


def _table2(bench: Bench, result: Result, constraints: int) -> None:
    shown = Shown("PCM Table 2", "scenario", micros=published.PCM_TABLE2, times=published.PCM_TABLE2_TIMES)
    scenario = scenarios.pcm(constraints, bench.options.queries, bench.options.seed)
    compared(bench, result, shown, [(DEFAULT, scenario)], _PAIRS)


def _improved(
    bench: Bench,
    result: Result,
    improvement: Improvement,
    default: Callable[[int, int, int], Scenario],
    constraints: int,
) -> None:
    """Measure an improvement in the paper's default scenario."""
    scenario = default(constraints, bench.options.queries, bench.options.seed)
    improvement.measure(bench, result, scenario, scenario.subscriptions)


def _figure(bench: Bench, result: Result, figure: Figure, constraints: int) -> None:
    places = figure.scenarios(constraints, bench.options.queries, bench.options.seed)
    of_pcm = figure.paper == "PCM"
    shown = Shown.of(figure, published.PCM_TIMES if of_pcm else published.CCM_TIMES)
    measured = compared(bench, result, shown, places, _PAIRS if of_pcm else _CCM_PAIRS)
    if not of_pcm and figure.number == 11:
        _selected(result, figure, measured)


def _much(bench: Bench, result: Result, constraints: int) -> None:
    places = scenarios.much("PCM", constraints, bench.options.queries, bench.options.seed)
    measured = compared(bench, result, Shown("scenarios that match much", "scenario"), places.items(), _PAIRS)
    for place, found in measured.items():
        result.add(f"{places[place].name}: keys of an answer", found.keys_per_message, "keys")


ONE_THREAD, ALL_THREADS = "tagmatch, one thread", "tagmatch, all threads"
#: Those published: all threads share out events, or one event's tables; the device has 64 events at once, or one
PUBLISHED_SYSTEMS = {
    **CONTENT,
    **CONTENT_SHARED,
    "CCM, one at a time": CONTENT_ONE_BY_ONE["CCM"],
    "CCM, several at once": CONTENT_GPU["CCM"],
}
_SIDES = ("cpu", "cuda", "auto")

#: Different calls of one size, at most
_MOST_CALLS = 1_000


def throughput(bench: Bench, result: Result, constraints: int, calls: Sequence[int]) -> None:
    """Measure events a second, and calls of as many events as said, in the default scenario."""
    with bench.doing(f"pcm: generating {max(calls):,} events"):
        scenario = scenarios.pcm(constraints, max(calls), bench.options.seed)
    with bench.doing(f"pcm: building tagmatch, {scenario.name}"):
        built = closing(TagmatchContent(scenario.stored))
    with built as whole:
        _many_at_once(bench, result, scenario, whole)
        _cpu_or_gpu(bench, result, scenario, whole, calls)


def _many_at_once(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent) -> None:
    threads = bench.options.threads
    ours: dict[str, Callable[[pa.Table, int], Matcher[Any]]] = {
        ONE_THREAD: lambda *_: whole.again(threads=1, device="cpu"),
        ALL_THREADS: lambda *_: whole.again(threads=threads, device="cpu"),
        GPU: lambda *_: whole.again(threads=threads, device="cuda"),
    }
    systems_by_name: dict[str, Callable[[pa.Table, int], Matcher[Any]]] = {**PUBLISHED_SYSTEMS, **ours}
    with bench.built(systems_by_name, scenario.subscriptions, result) as systems:
        found = timed(bench, result, scenario, systems)
    panel = result.panel("PCM §4.2: throughput", "scenario", "events/s")
    panel.published += published.PCM_THROUGHPUT
    panel.add_all({name: micros.per(1e6) for name, micros in found.micros.items()}, DEFAULT)
    for own in (ALL_THREADS, GPU):
        for other in PUBLISHED_SYSTEMS:
            if {own, other} <= found.micros.keys():
                ratio = found.micros[other].ratios(found.micros[own])
                result.add(f"{scenario.name}, throughput: {against(own, other)}", ratio, "times", AHEAD)


def _cpu_or_gpu(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent, calls: Sequence[int]) -> None:
    """Add what an event takes in calls of as many as said, on each device and where ours chooses."""
    title = "PCM §4.3: CPU or GPU, by the events of a call"
    panel = result.panel(title, "events a call", MICROS, "lines")
    with ExitStack() as stack:
        builds = {_name(each): partial(whole.again, threads=bench.options.threads, device=each) for each in _SIDES}
        systems = bench.build(result, builds, stack, scenario.name)
        for size in calls:
            micros = _micros(bench, result, scenario, systems, size)
            panel.add_all(micros, float(size))
            cpu, cuda, auto = (micros.get(_name(device)) for device in _SIDES)
            if cpu and cuda and auto:
                sooner = min(cpu, cuda, key=lambda samples: samples.median)
                what = f"{scenario.name}, calls of {size:,}: {against(_name('auto'), 'the sooner device')}"
                result.add(what, sooner.ratios(auto), "times")


def _name(device: str) -> str:
    return f'tagmatch, device="{device}"'


def _micros(
    bench: Bench, result: Result, scenario: Scenario, systems: dict[str, TagmatchContent], size: int
) -> dict[str, Samples]:
    """Microseconds an event of each system, in calls of one size, whose answers are compared with brute force."""
    events = len(scenario.asked) // size * size
    asked = [scenario.asked[first : first + size] for first in islice(range(0, events, size), _MOST_CALLS)]
    works = {name: partial(_ask, system, asked) for name, system in systems.items()}
    found = bench.rates(f"pcm: calls of {size:,} events", works, len(asked))
    compared = -(-scenario.sample // size)
    for name, work in works.items():
        given = pa.concat_arrays(work(compared))[: scenario.sample]
        add_answers(result, scenario, name, systems[name], f"calls of {size:,}", given, scenario.right)
    return {name: each.per(1e6 / size) for name, each in found.items()}


def _ask(system: TagmatchContent, asked: Sequence[pa.Table], calls: int) -> list[pa.ListArray]:
    return [system.match_many(each, unique=True) for each in asked[:calls]]


_CCM = "CCM, 2011"
#: The system, and what §5 compares it with; and others that are ahead of that
_CCM_PAIRS = [(system, "SFF") for system in (_CCM, "CCM", "OCM", OURS, *ENCODED)]

#: How Figure 5's versions clear counters and marks (§4.3)
_VERSIONS = {name: System("ccm:Ccm2011", {"reset": name.lower()}, needs="gpu") for name in ("Memset", "Kernel")}
_OURS = {OURS: System("tagmatch_content:TagmatchContent")}
_COPIES = ("copy in", "copy back")

#: After these many seconds no more builds are begun
_BUILD_SECONDS = 5.0


def ccm(bench: Bench, *, constraints: int = 1_000_000, parts: tuple[str, ...] = PARTS["ccm"]) -> Result:
    """Measure all parts that are wanted."""
    options = bench.options
    result = bench.result(
        "ccm",
        "CCM: latency of matching",
        f"""Microseconds an event, of {options.queries:,} events that come one by one (§5). *CCM, 2011*: Margara,
        Cugola, DEBS 2011, for GPUs; *CCM* is what the same authors made of it in 2014. Half of the names have
        strings, with =, !=, prefix and contains. {DEVICES.format(threads=options.threads)}
        {PUBLISHED.format(year=2011)} A speed-up
        "overcomes" the printed one in most figures. *Deployment* is building the structures of an Arrow table of
        subscriptions, *size* their memory on host and device; with *tagmatch*'s stored rows, without the part that gets
        events encoded. *Ordered* by type, operator and value, as the paper tried, is not measured here. In Figure 5
        each part is waited for. In Figure 7 SFF is ahead with one or two constraints a filter in the paper, in Figure 8
        with less than 1,000 filters; the speed-up of Figure 10 is highest with 30 names, that of Figure 11 grows
        linearly. *Ten names* and *dense* are not of the paper: they match much.""",
        constraints=constraints,
        parts=parts,
    )
    works = {
        "table2": partial(_ccm_table2, bench, result, constraints),
        "improvements": partial(_improved, bench, result, CCM_SHARED_MEMORY, scenarios.ccm_default, constraints),
        "figure5": partial(_figure5, bench, result, constraints),
        **{
            f"figure{figure.number}": partial(_figure, bench, result, figure, constraints)
            for figure in scenarios.ccm_figures(constraints)
        },
    }
    bench.do(works, parts)
    return result


def _ccm_table2(bench: Bench, result: Result, constraints: int) -> None:
    places = scenarios.ccm_table2(constraints, bench.options.queries, bench.options.seed)
    shown = Shown("CCM Table 2", "scenario", micros=published.CCM_TABLE2, times=published.CCM_TABLE2_TIMES)
    compared(bench, result, shown, places.items(), _CCM_PAIRS)
    _deployment(bench, result, places[DEFAULT])


def _deployment(bench: Bench, result: Result, scenario: Scenario) -> None:
    """Add what building takes, and bytes."""
    builds: dict[str, Callable[[pa.Table, int], Matcher[Any]]] = {**CONTENT_ONE_BY_ONE, **_OURS, **ENCODED}
    size = result.panel("CCM Table 2: size", "scenario", "MB")
    size.published += published.CCM_TABLE2_SIZE
    with bench.built(builds, scenario.subscriptions, result) as systems:
        for name, system in systems.items():
            size.add(name, DEFAULT, (system.nbytes() or 0) / 1e6)
        there = list(systems)

    def build(name: str) -> None:
        builds[name](scenario.subscriptions, bench.options.threads).close()

    with bench.doing(f"ccm: building, {scenario.name}"):
        works = {name: partial(build, name) for name in there}
        taken = alternate(works, bench.options.rounds, most_seconds=_BUILD_SECONDS)
    panel = result.panel("CCM Table 2: deployment", "scenario", "ms")
    panel.published += published.CCM_TABLE2_BUILD
    panel.add_all({name: seconds.times(1e3) for name, seconds in taken.items()}, DEFAULT)


def _figure5(bench: Bench, result: Result, constraints: int) -> None:
    """Add how long each part of an event's way through CCM takes, in both versions."""
    scenario = scenarios.ccm_default(constraints, bench.options.queries, bench.options.seed)
    with bench.built(_VERSIONS, scenario.subscriptions, result) as systems:
        if not systems:
            return
        parts = result.panel("CCM Figure 5: parts of the time", "part", MICROS)
        parts.published += published.CCM_FIGURE5
        copies = result.panel("CCM Figure 5: share of copies", "version", "%", log=False)
        copies.published += published.CCM_FIGURE5_COPIES
        for name, system in systems.items():
            with bench.doing(f"ccm: parts of the time, {name}"):
                rounds = _parts(bench, result, scenario, name, system)
            for part, seconds in by_name(rounds).items():
                parts.add(name, part, seconds.times(1e6))
            shares = (100 * sum(each[copy] for copy in _COPIES) / sum(each.values()) for each in rounds)
            copies.add("copies", name, Samples(tuple(shares)))


def _parts(bench: Bench, result: Result, scenario: Scenario, name: str, system: Matcher[Any]) -> list[dict[str, float]]:
    """Seconds an event of each part, round by round; the answers before are compared, and warm the kernel up."""
    events: Any = system.prepare(scenario.messages)
    given = system.match_many(events[: scenario.sample], unique=True)
    add_answers(result, scenario, name, system, "Figure 5", given, scenario.right)
    timer: Any = system
    return [timer.seconds_of_parts(events) for _ in range(bench.options.rounds)]


def _selected(result: Result, figure: Figure, measured: dict[str | float, Measured]) -> None:
    """Add the share of interfaces that events go to, which the paper prints of strings alone and of numbers alone."""
    title = "CCM Figure 11: interfaces selected"
    panel = result.panel(title, figure.axis, "%", "lines", log=False, log_x=False)
    panel.published += published.CCM_FIGURE11_SELECTED
    for place, found in measured.items():
        panel.add("interfaces selected", place, 100 * found.keys_per_message / scenarios.INTERFACES)
