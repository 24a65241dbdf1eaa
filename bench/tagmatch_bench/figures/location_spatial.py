"""Areas alone, compared with libraries and databases; and CLCB's Figures 3 to 7, with content too."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from tagmatch_bench.figures import published
from tagmatch_bench.figures.location_content import DISTRIBUTIONS, built_located, circles, located
from tagmatch_bench.figures.published import DEFAULT, MICROS, MICROS_A_MOVE, against
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.circles import MOST_FOUND, CircleScenario, time_messages, time_moves
from tagmatch_bench.harness.content import add_answers
from tagmatch_bench.harness.located import CLCB, CLCB_CPU, MATCHING, WHOLE, LocatedScenario, measure, others_built
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples, by_name, in_turns, seconds_of
from tagmatch_bench.systems.catalogue import CIRCLES, CIRCLES_GPU, GRID, LOCATED_GPU, OWN_CIRCLES, OWN_CIRCLES_GPU
from tagmatch_bench.systems.tagmatch_content import LocatedMatching

AREAS, CLIENTS, END_TO_END = "tagmatch, areas", "tagmatch, clients", "tagmatch, end to end"
CLIENTS_END_TO_END = "tagmatch, clients, end to end"
R_TREE, BOOST = "R*-tree", "R*-tree as Boost has it"

COVERAGES = (1e-5, 1e-4, 1e-3)
#: Share of the square that a circle covers in the comparison with a grid: of a million, a place is in 1 to 100
_BESIDE_GRID = (1e-6, 1e-5, 1e-4)
#: The coverage whose memory and build are shown
_DEFAULT_COVERAGE = 1e-4
#: All systems: CLCB without content, too
ALL = {**OWN_CIRCLES, **OWN_CIRCLES_GPU, **CIRCLES, **CIRCLES_GPU}
#: Our structures on a device, and what each is compared with
ON_GPU = dict(zip(OWN_CIRCLES_GPU, (AREAS, CLIENTS), strict=True))

#: Times as fast as a grid in C++, and as libspatialindex's R*-tree
_AGAINST_GRID = Target(1)
_MESSAGES, _MOVES = Target(50), Target(500)
_BYTES = Target(80, at_most=True)
#: Times as fast as the same on the CPU
_ON_A_GPU = Target(10)
#: Areas from which on targets hold
LARGE = 100_000


def spatial(
    bench: Bench,
    result: Result,
    sizes: Sequence[int],
    names: Sequence[str] = tuple(ALL),
    distributions: Iterable[str] | None = None,
    coverages: Iterable[float] | None = None,
) -> None:
    """Measure areas of one group: each distribution, number and coverage, all by default."""
    if R_TREE in names:
        result.unavailable[BOOST] = (
            "no package of a registry has it; the targets against it, 10 times (uniform) and 7 times (Zipf) as fast, "
            "stay unmeasured"
        )
    size_panel = result.panel("areas: memory", "areas", "B an area")
    build_panel = result.panel("areas: build", "areas", "µs an area")
    for distribution in distributions or DISTRIBUTIONS:
        for coverage in coverages or COVERAGES:
            what = f"areas, {distribution}, {100 * coverage:g} % each"
            messages = result.panel(f"{what}: messages", "areas", MICROS, "lines")
            moves = result.panel(f"{what}: moves", "areas", MICROS_A_MOVE, "lines")
            for size in sizes:
                options = bench.options
                with bench.doing(f"location: generating {size:,} {what}"):
                    scenario = circles(f"{size:,} {what}", size, options.queries, options.seed, distribution, coverage)
                with ExitStack() as stack:
                    systems, taken = built_circles(bench, result, scenario, stack, names)
                    found = time_messages(bench, result, scenario, systems)
                    if coverage == _DEFAULT_COVERAGE:
                        place = f"{size:,}, {distribution}"
                        for name, system in systems.items():
                            build_panel.add(name, place, 1e6 * taken[name] / size)
                            if (used := system.nbytes()) is not None:
                                size_panel.add(name, place, used / size)
                    _memory(result, scenario, systems)
                    kernels = _kernels(bench, scenario, systems)
                    moved = time_moves(bench, result, scenario, systems)
                for panel, micros in ((messages, found), (moves, moved)):
                    for name, samples in micros.items():
                        panel.add(_shown(name, systems[name]), float(size), samples)
                for name, samples in kernels.items():
                    messages.add(f"{name}, kernel only", float(size), samples)
                _compare(result, scenario, found, moved)
                _compare_on_gpu(result, scenario, found)


def beside_grid(bench: Bench, result: Result, sizes: Sequence[int], more: Sequence[str] = ()) -> None:
    """Compare circles anywhere with a grid, and with more systems."""
    spatial(bench, result, sizes, (AREAS, END_TO_END, GRID, *more), ("uniform",), _BESIDE_GRID)


def built_circles(
    bench: Bench, result: Result, scenario: CircleScenario, stack: ExitStack, names: Sequence[str] = tuple(ALL)
) -> tuple[dict[str, Any], dict[str, float]]:
    """Build systems, and say how many seconds each took; what cannot run here is noted in the result."""
    taken: dict[str, float] = {}

    def build(name: str) -> Any:
        made: list[Any] = []
        taken[name] = seconds_of(lambda: made.append(ALL[name](scenario.circles, 1)))
        return made[0]

    built = bench.build(result, {name: partial(build, name) for name in names}, stack, scenario.name)
    return built, taken


def _shown(name: str, system: Any) -> str:
    """What has points only is asked the other way round."""
    return name if hasattr(system, "stab") else f"{name} (dual)"


def _memory(result: Result, scenario: CircleScenario, systems: Mapping[str, Any]) -> None:
    count = len(scenario.circles)
    for name in OWN_CIRCLES:
        if name in systems:
            target = _BYTES if name in (AREAS, CLIENTS) and count >= LARGE else None
            result.add(f"{scenario.name}: memory, {name}", systems[name].nbytes() / count, "B an area", target)


def _kernels(bench: Bench, scenario: CircleScenario, systems: Mapping[str, Any]) -> dict[str, Samples]:
    """Microseconds a message of our kernels alone on a device."""
    count = max(min(len(scenario.x), int(MOST_FOUND * scenario.sample / max(len(scenario.right.ids), 1))), 1)
    x, y = scenario.x[:count], scenario.y[:count]
    works = {name: partial(systems[name].kernel_seconds, x, y) for name in ON_GPU if name in systems}
    with bench.doing(f"location: kernels, {scenario.name}"):
        found = in_turns(works, bench.options.rounds)
    return {name: seconds.times(1e6 / count) for name, seconds in found.items()}


def _compare_on_gpu(result: Result, scenario: CircleScenario, found: Mapping[str, Samples]) -> None:
    """Add how many times as fast as the CPU a device is."""
    for name, own in ON_GPU.items():
        if {name, own} <= found.keys():
            limit = _ON_A_GPU if len(scenario.circles) >= LARGE else None
            result.add(
                f"{scenario.name}: messages, {against(name, own)}", found[own].ratios(found[name]), "times", limit
            )


def _compare(
    result: Result, scenario: CircleScenario, found: Mapping[str, Samples], moved: Mapping[str, Samples]
) -> None:
    """Add how many times as fast as the R*-tree ours are, and as a grid."""
    large = len(scenario.circles) >= LARGE
    with_target = {"messages": (AREAS, CLIENTS), "moves": (CLIENTS,)}
    for what, micros, target in (("messages", found, _MESSAGES), ("moves", moved, _MOVES)):
        for name in OWN_CIRCLES:
            if {name, R_TREE} <= micros.keys():
                ratio = micros[R_TREE].ratios(micros[name])
                limit = target if large and name in with_target[what] else None
                result.add(f"{scenario.name}: {what}, {against(name, R_TREE)}", ratio, "times", limit)
    for name in (AREAS, CLIENTS, END_TO_END):
        if {name, GRID} <= found.keys():
            ratio, limit = found[GRID].ratios(found[name]), _AGAINST_GRID if large else None
            result.add(f"{scenario.name}: messages, {against(name, GRID)}", ratio, "times", limit)


#: Filters of a subscription
_EACH = 10
#: Places of each line, as shares of the last one
_SHARES = (0.01, 0.1, 1.0)
_BESIDE_R_TREE = (WHOLE, MATCHING, CLCB_CPU, CLCB)
_SUBSCRIPTIONS = "subscriptions"
#: Parts of our time for a message, and messages that they are measured on
_PARTS = ("contents", "areas", "keys")
_PARTS_OF = 4096


def _sizes(filters: int) -> list[int]:
    """Filters at each place of a line, whole subscriptions."""
    return sorted({max(1, round(share * filters / _EACH)) * _EACH for share in _SHARES})


def messages(bench: Bench, result: Result, number: int, filters: int, coverages: Iterable[float]) -> None:
    """Measure Figure 3, of areas anywhere, or Figure 4, which gather: messages, by coverage and subscriptions."""
    distribution = {3: "uniform", 4: "Zipf"}[number]
    options = bench.options
    speed_ups = result.panel(
        f"CLCB Figure {number}: speed-ups over an R*-tree", "% that an area covers", "times", "lines"
    )
    speed_ups.published += published.CLCB_TIMES[number]
    for percent in coverages:
        title = f"CLCB Figure {number}, {distribution}, {percent:g} %"
        panel = result.panel(title, _SUBSCRIPTIONS, published.MILLIS, "lines")
        for size in _sizes(filters):
            name = f"{title}, {size // _EACH:,} subscriptions"
            with bench.doing(f"location: generating {name}"):
                alone = circles(name, size, options.queries, options.seed, distribution, percent / 100)
                both = located(
                    f"{name}, with content",
                    size,
                    options.queries,
                    options.seed,
                    scenario=DISTRIBUTIONS[distribution],
                    coverage=percent / 100,
                )
            with ExitStack() as stack:
                systems, _ = built_circles(bench, result, alone, stack, (R_TREE, AREAS))
                micros = time_messages(bench, result, alone, systems)
            with built_located(bench, both) as whole:
                micros |= measure(bench, result, both, whole, _BESIDE_R_TREE).micros
            panel.add_all({each: samples.times(1e-3) for each, samples in micros.items()}, size / _EACH)
            if size == max(_sizes(filters)) and R_TREE in micros:
                for each in micros.keys() - {R_TREE}:
                    speed_ups.add(against(each, R_TREE), percent, micros[R_TREE].over(micros[each]))


def moves(bench: Bench, result: Result, filters: int) -> None:
    """Measure Figure 5: moves, by subscriptions, of areas anywhere and of those that gather."""
    options = bench.options
    names = (CLIENTS, CLIENTS_END_TO_END, CLCB_CPU, R_TREE, CLCB)
    for part, distribution in zip("ab", DISTRIBUTIONS, strict=True):
        panel = result.panel(f"CLCB Figure 5 ({part}), {distribution}", _SUBSCRIPTIONS, MICROS_A_MOVE, "lines")
        if part == "a":
            panel.published += published.CLCB_FIGURE5
        for size in _sizes(filters):
            name = f"CLCB Figure 5 ({part}), {size // _EACH:,} subscriptions"
            with bench.doing(f"location: generating {name}"):
                scenario = circles(name, size, 1000, options.seed, distribution, 1e-4)
            with ExitStack() as stack:
                systems, _ = built_circles(bench, result, scenario, stack, names)
                micros = time_moves(bench, result, scenario, systems)
            panel.add_all(micros, size / _EACH)
            if size == max(_sizes(filters)) and R_TREE in micros:
                for each in micros.keys() - {R_TREE}:
                    result.add(f"{name}: {against(each, R_TREE)}", micros[R_TREE].ratios(micros[each]), "times")


def parts(bench: Bench, result: Result, filters: int) -> None:
    """Measure Figure 6: the parts of a message's time, for CLCB on a CUDA device and for ours."""
    options = bench.options
    for part, scenario_name in (("a", "clcb"), ("b", "every")):
        title = f"CLCB Figure 6 ({part})"
        if part == "b":
            title += ", content selects all"
        count = min(options.queries, _PARTS_OF)
        with bench.doing(f"location: generating {title}"):
            scenario = located(title, filters, count, options.seed, scenario=scenario_name)
        panel = result.panel(title, "part", published.MILLIS)
        with built_located(bench, scenario) as whole, bench.doing(f"location: parts of the time, {title}"):
            rounds = _own_parts(bench, result, scenario, LocatedMatching(whole))
        for system, taken in ((MATCHING, rounds), (CLCB, _parts_on_device(bench, result, scenario))):
            for name, seconds in by_name(taken).items():
                panel.add(system, name, seconds.times(1e3))
    figure6 = {row.what: row for row in published.CLCB_FIGURE6_AT_MOST}
    result.add("CLCB Figure 6 (a): paper, each copy, at most", figure6["copies"].value, published.MILLIS)
    most = figure6["copy back, content selects all"].value
    result.add("CLCB Figure 6 (b): paper, copy of results, at most", most, published.MILLIS)


def _own_parts(
    bench: Bench, result: Result, scenario: LocatedScenario, system: LocatedMatching
) -> list[dict[str, float]]:
    """Seconds a message of each part, round by round; answers are compared before, which warms up."""
    count = len(scenario.messages)
    packets = system.prepare(scenario.messages)[:count]
    given = system.match_many(packets, unique=True)
    add_answers(result, scenario, MATCHING, system, "against brute force", given, scenario.right)
    rounds = []
    for _ in range(bench.options.rounds):
        taken = dict.fromkeys(_PARTS, 0.0)
        for packet in packets:
            times = [time.perf_counter()]
            groups = system.groups(packet)
            times.append(time.perf_counter())
            areas = system.areas(packet, groups)
            times.append(time.perf_counter())
            system.keys(areas, True)
            times.append(time.perf_counter())
            for part, before, after in zip(_PARTS, times, times[1:], strict=False):
                taken[part] += (after - before) / count
        rounds.append(taken)
    return rounds


def _parts_on_device(bench: Bench, result: Result, scenario: LocatedScenario) -> list[dict[str, float]]:
    stored, sent = scenario.for_others
    with ExitStack() as stack:
        builds = {CLCB: partial(LOCATED_GPU[CLCB], stored, 1)}
        for system in bench.build(result, builds, stack, scenario.name).values():
            asked = system.prepare(sent)
            given = system.match_many(asked[: scenario.sample], unique=True)
            add_answers(result, scenario, CLCB, system, "against brute force", given, scenario.right)
            return [system.seconds_of_parts(asked[:1000]) for _ in range(bench.options.rounds)]
    return []


def memory(bench: Bench, result: Result, filters: int) -> None:
    """Measure Figure 7: memory, by subscriptions."""
    panel = result.panel("CLCB Figure 7: memory", _SUBSCRIPTIONS, "MB", "lines")
    in_a_gigabyte = result.panel("CLCB Figure 7: subscriptions in 1 GB", "scenario", _SUBSCRIPTIONS)
    in_a_gigabyte.published += published.CLCB_FIGURE7_AT_LEAST
    for size in _sizes(filters):
        with bench.doing(f"location: generating {size // _EACH:,} subscriptions"):
            scenario = located(f"CLCB Figure 7, {size:,} filters", size, 1, bench.options.seed)
        used: dict[str, int] = {}
        with built_located(bench, scenario) as whole:
            used |= {MATCHING: whole.matcher.about().nbytes, f"{WHOLE}, with the stored rows": whole.nbytes()}
        with ExitStack() as stack:
            for name, other in bench.build(result, others_built(scenario), stack, scenario.name).items():
                used[name] = other.device_nbytes() if name in LOCATED_GPU else other.nbytes()
        for name, count in used.items():
            panel.add(name, size / _EACH, count / 1e6)
            if size == max(_sizes(filters)):
                in_a_gigabyte.add(name, DEFAULT, 1e9 / (count / (size / _EACH)))
