"""`tagmatch-bench ccm`: the table and the figures of CCM's evaluation (§5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tagmatch_bench.figures import content_scenarios as scenarios
from tagmatch_bench.figures import published
from tagmatch_bench.figures.pcm import DEVICES, PUBLISHED, Shown, beside
from tagmatch_bench.figures.published import DEFAULT, MICROS
from tagmatch_bench.harness.content import OURS, add_answers
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.systems.catalogue import CONTENT_ONE_BY_ONE, ENCODED, System
from tagmatch_bench.systems.tagmatch_content import TagmatchContent

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tagmatch_bench.figures.content_scenarios import Figure
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.content import Measured, Scenario
    from tagmatch_bench.harness.results import Result
    from tagmatch_bench.systems.matcher import Matcher


PARTS = ("table2", "figure5", "figure6", "figure7", "figure8", "figure9", "figure10", "figure11")

_CCM = "CCM, 2011"
#: The system, and what §5 compares it with; and others that are ahead of that
_PAIRS = [(system, "SFF") for system in (_CCM, "CCM", "OCM", OURS, *ENCODED)]

#: How Figure 5's versions clear counters and marks (§4.3)
_VERSIONS = {name: System("ccm:Ccm2011", {"reset": name.lower()}, needs="gpu") for name in ("Memset", "Kernel")}
_COPIES = ("copy in", "copy back")

#: After these many seconds no more builds are begun
_BUILD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CcmSizes:
    """How large the scenarios are, and what is wanted."""

    constraints: int = 1_000_000
    parts: tuple[str, ...] = PARTS


def ccm(bench: Bench, sizes: CcmSizes) -> Result:
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
        subscriptions, *size* what they take on host and device; of *tagmatch* with the stored rows, but for what gets
        events encoded. *Ordered* by type, operator and value, as the paper tried, is not measured here. In Figure 5
        each part is waited for. In Figure 7 SFF is ahead with one or two constraints a filter in the paper, in Figure 8
        with less than 1,000 filters; the speed-up of Figure 10 is highest with 30 names, that of Figure 11 grows
        linearly. *Ten names* and *dense* are not of the paper: they match much.""",
        constraints=sizes.constraints,
        parts=sizes.parts,
    )
    works = {
        "table2": partial(_table2, bench, result, sizes.constraints),
        "figure5": partial(_figure5, bench, result, sizes.constraints),
        **{
            f"figure{figure.number}": partial(_figure, bench, result, figure, sizes.constraints)
            for figure in scenarios.ccm_figures(sizes.constraints)
        },
    }
    for part in PARTS:
        if part in sizes.parts:
            works[part]()
    return result


def _table2(bench: Bench, result: Result, constraints: int) -> None:
    places = scenarios.ccm_table2(constraints, bench.options.queries, bench.options.seed)
    shown = Shown("CCM Table 2", "scenario", micros=published.CCM_TABLE2, times=published.CCM_TABLE2_TIMES)
    beside(bench, result, shown, places.items(), _PAIRS)
    _deployment(bench, result, places[DEFAULT])


def _deployment(bench: Bench, result: Result, scenario: Scenario) -> None:
    """Add what building takes, and bytes."""
    builds: dict[str, Callable[[pa.Table, int], Matcher[Any]]] = {**CONTENT_ONE_BY_ONE, OURS: _tagmatch, **ENCODED}
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
    for name, seconds in taken.items():
        panel.add(name, DEFAULT, seconds.times(1e3))


def _tagmatch(subscriptions: pa.Table, threads: int) -> TagmatchContent:
    return TagmatchContent(subscriptions, threads=threads)


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
            for part in rounds[0]:
                parts.add(name, part, Samples(tuple(1e6 * each[part] for each in rounds)))
            shares = (100 * sum(each[copy] for copy in _COPIES) / sum(each.values()) for each in rounds)
            copies.add("copies", name, Samples(tuple(shares)))


def _parts(bench: Bench, result: Result, scenario: Scenario, name: str, system: Matcher[Any]) -> list[dict[str, float]]:
    """Seconds an event of each part, round by round; the answers before are compared, and warm the kernel up."""
    events: Any = system.prepare(scenario.messages)
    given = system.match_many(events[: scenario.sample], unique=True)
    add_answers(result, f"{scenario.name}, Figure 5", name, given, scenario.right)
    timer: Any = system
    return [timer.seconds_of_parts(events) for _ in range(bench.options.rounds)]


def _figure(bench: Bench, result: Result, figure: Figure, constraints: int) -> None:
    places = figure.scenarios(constraints, bench.options.queries, bench.options.seed)
    measured = beside(bench, result, Shown.of(figure, published.CCM_TIMES), places, _PAIRS)
    if figure.number == 11:
        _selected(result, figure, measured)


def _selected(result: Result, figure: Figure, measured: dict[str | float, Measured]) -> None:
    """Add the share of interfaces that events go to, which the paper prints of strings alone and of numbers alone."""
    title = "CCM Figure 11: interfaces selected"
    panel = result.panel(title, figure.axis, "%", "lines", log=False, log_x=False)
    panel.published += published.CCM_FIGURE11_SELECTED
    for place, found in measured.items():
        panel.add("interfaces selected", place, 100 * found.keys_per_message / scenarios.INTERFACES)
