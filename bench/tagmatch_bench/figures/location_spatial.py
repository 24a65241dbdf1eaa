"""Areas alone, beside libraries and databases: messages, moves, memory and build."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from tagmatch_bench.figures.location_scenarios import DISTRIBUTIONS, circles
from tagmatch_bench.figures.published_content import MICROS, against
from tagmatch_bench.harness.circles import MOST_FOUND, time_messages, time_moves
from tagmatch_bench.harness.results import Target
from tagmatch_bench.harness.timing import Samples, seconds_of
from tagmatch_bench.systems.catalogue import CIRCLES, CIRCLES_GPU, OWN_CIRCLES, OWN_CIRCLES_GPU
from tagmatch_bench.systems.circles import Stabs
from tagmatch_bench.systems.matcher import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.circles import CircleScenario
    from tagmatch_bench.harness.results import Result

AREAS, CLIENTS = "tagmatch, areas", "tagmatch, clients"
END_TO_END, CLIENTS_END_TO_END = "tagmatch, end to end", "tagmatch, clients, end to end"
R_TREE, BOOST = "R*-tree", "R*-tree as Boost has it"
MICROS_A_MOVE = "µs a move"

COVERAGES = (1e-5, 1e-4, 1e-3)
#: The coverage of which memory and build are shown
_DEFAULT_COVERAGE = 1e-4
#: All systems: CLCB without content, too
ALL = {**OWN_CIRCLES, **OWN_CIRCLES_GPU, **CIRCLES, **CIRCLES_GPU}
#: Our structures on a device, and what each is compared with
ON_GPU = dict(zip(OWN_CIRCLES_GPU, (AREAS, CLIENTS), strict=True))

#: Times as fast as libspatialindex's R*-tree
_MESSAGES, _MOVES = Target(50), Target(500)
_BYTES = Target(80, at_most=True)
#: Times as fast as the same on the CPU
_ON_A_GPU = Target(10)
#: Areas from which on targets hold
LARGE = 100_000


def spatial(bench: Bench, result: Result, sizes: Sequence[int]) -> None:
    """Measure areas of one group: each distribution, number and coverage."""
    if BOOST not in result.unavailable:
        result.unavailable[BOOST] = (
            "no package of a registry has it; the targets against it, 10 times (uniform) and 7 times (Zipf) as fast, "
            "stay unmeasured"
        )
    size_panel = result.panel("areas: memory", "areas", "B an area")
    build_panel = result.panel("areas: build", "areas", "µs an area")
    for distribution in DISTRIBUTIONS:
        for coverage in COVERAGES:
            what = f"areas, {distribution}, {100 * coverage:g} % each"
            messages = result.panel(f"{what}: messages", "areas", MICROS, "lines")
            moves = result.panel(f"{what}: moves", "areas", MICROS_A_MOVE, "lines")
            for size in sizes:
                options = bench.options
                with bench.doing(f"location: generating {size:,} {what}"):
                    scenario = circles(f"{size:,} {what}", size, options.queries, options.seed, distribution, coverage)
                with ExitStack() as stack:
                    systems, taken = {}, {}
                    for name, system, seconds in built(bench, result, scenario, stack):
                        systems[name], taken[name] = system, seconds
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


def built(
    bench: Bench, result: Result, scenario: CircleScenario, stack: ExitStack, names: Sequence[str] = tuple(ALL)
) -> Iterator[tuple[str, Any, float]]:
    """Build systems, and say how many seconds each took; what cannot run here is noted in the result."""
    for name in names:
        if name in bench.options.skip:
            result.unavailable[name] = "skipped"
            continue
        made: list[Any] = []
        build = partial(ALL[name].build, scenario.circles, 1)
        with bench.doing(f"location: building {name}, {scenario.name}"):
            try:
                seconds = seconds_of(partial(_append, made, build))
            except UnavailableError as error:
                result.unavailable[name] = str(error)
                continue
        stack.callback(made[0].close)
        yield name, made[0], seconds


def _append(made: list[Any], build: Callable[[], Any]) -> None:
    made.append(build())


def _shown(name: str, system: Any) -> str:
    """What has points only is asked the other way round."""
    return name if isinstance(system, Stabs) else f"{name} (dual)"


def _memory(result: Result, scenario: CircleScenario, systems: Mapping[str, Any]) -> None:
    count = len(scenario.circles)
    for name in OWN_CIRCLES:
        if name in systems:
            target = _BYTES if name in (AREAS, CLIENTS) and count >= LARGE else None
            result.add(f"{scenario.name}: memory, {name}", systems[name].nbytes() / count, "B an area", target)


def _kernels(bench: Bench, scenario: CircleScenario, systems: Mapping[str, Any]) -> dict[str, Samples]:
    """Microseconds a message of the kernels alone, of ours on a device."""
    count = max(min(len(scenario.x), int(MOST_FOUND * scenario.sample / max(len(scenario.right.ids), 1))), 1)
    x, y = scenario.x[:count], scenario.y[:count]
    with bench.doing(f"location: kernels, {scenario.name}"):
        return {
            name: Samples(
                tuple(1e6 * systems[name].kernel_seconds(x, y) / count for _ in range(bench.options.rounds)), count
            )
            for name in ON_GPU
            if name in systems
        }


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
    """Add how many times as fast as the R*-tree ours are."""
    large = len(scenario.circles) >= LARGE
    with_target = {"messages": (AREAS, CLIENTS), "moves": (CLIENTS,)}
    for what, micros, target in (("messages", found, _MESSAGES), ("moves", moved, _MOVES)):
        for name in OWN_CIRCLES:
            if {name, R_TREE} <= micros.keys():
                ratio = micros[R_TREE].ratios(micros[name])
                limit = target if large and name in with_target[what] else None
                result.add(f"{scenario.name}: {what}, {against(name, R_TREE)}", ratio, "times", limit)
