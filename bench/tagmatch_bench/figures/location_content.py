"""Contents and areas: CLCB's workload at any size and alerts near cities, CLCB's default scenario, and its Table 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import F64Array
from tagmatch_bench.figures import published
from tagmatch_bench.figures.content_scenarios import DATA, read
from tagmatch_bench.figures.published import DEFAULT, MICROS, against
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.circles import CircleScenario
from tagmatch_bench.harness.content import Measured, Scenario, timed
from tagmatch_bench.harness.located import (
    ALL,
    CALLED,
    CLCB,
    CLCB_CPU,
    MATCHING,
    MATCHING_GPU,
    WHOLE,
    LocatedScenario,
    areas_as_constraints,
    measure,
    others_built,
    positions_as_attributes,
    tags_as_attributes,
    tags_as_constraints,
)
from tagmatch_bench.harness.results import Panel, Result, Target
from tagmatch_bench.harness.timing import Samples, seconds_of
from tagmatch_bench.systems.catalogue import ALERTS, CONTENT
from tagmatch_bench.systems.matcher import CallSize, UnavailableError
from tagmatch_bench.systems.tagmatch_content import (
    LocatedMatching,
    LocatedOneByOne,
    TagmatchContent,
    TagmatchLocated,
    TagmatchMatching,
)
from tagmatch_bench.workloads.location import SCENARIOS, ContentKind, LocationWorkload, near_me

#: Distributions by name, as scenarios of the workload
DISTRIBUTIONS = {"uniform": "clcb", "Zipf": "zipf"}


def workload(filters: int, seed: int, scenario: str = "clcb", **changes: Any) -> LocationWorkload:
    """CLCB's workload with about this number of filters, at least one subscriber's, and other changes of options."""
    options = replace(SCENARIOS[scenario], seed=seed, **changes)
    return LocationWorkload(replace(options, subscribers=max(1, filters // options.filters_each)))


def circles(name: str, filters: int, messages: int, seed: int, distribution: str, coverage: float) -> CircleScenario:
    """Areas alone."""
    made = workload(filters, seed, DISTRIBUTIONS[distribution], coverage=coverage, filters_each=1)
    return CircleScenario.of(name, made, messages, seed)


def located(
    name: str, filters: int, messages: int, seed: int, content: ContentKind = "constraints", **changes: Any
) -> LocatedScenario:
    """Contents and areas; tags are constraints for other systems."""
    made = workload(filters, seed, **changes)
    stored = made.subscriptions(0, made.filters, content=content).combine_chunks()
    sent = made.messages(0, messages, content=content).combine_chunks()
    if content == "constraints":
        return LocatedScenario(name, stored, sent)
    sent = sent.select(["tags", "location"])
    return LocatedScenario(name, stored, sent, tags_as_constraints(stored), tags_as_attributes(sent))


def clients(subscriptions: pa.Table) -> pa.Table:
    """The same subscriptions of clients, `Near` of whom messages must be, as `TagMatch` takes them."""
    radius = subscriptions["area"].combine_chunks().field("radius")
    kind = pa.repeat(pa.scalar("near"), len(radius))
    near = pa.StructArray.from_arrays([kind, radius], ["kind", "metres"])
    return subscriptions.set_column(subscriptions.column_names.index("area"), "area", near)


def alerts(filters: int, messages: int, seed: int, cities: Path | None) -> LocatedScenario:
    """Alerts "near me", and messages about cities."""
    made = near_me(read(cities or DATA / "cities.parquet"), filters, messages, seed)
    return LocatedScenario("cities", made.subscriptions, made.messages.combine_chunks())


#: Constraints of filters in addition to a place
CONTENTS: tuple[ContentKind, ...] = ("constraints", "tags")
assert set(CONTENTS) < set(get_args(ContentKind))

#: Times as fast as CLCB, from this number of filters on
_AGAINST_CLCB, _FROM = Target(2000), 2_500_000
#: Times as fast as on the CPU, from as many filters on
_ON_A_GPU = Target(10)
#: What CLCB has as published: one message after the other
_ONE_BY_ONE = (CALLED, CLCB_CPU, CLCB)
#: What Table 2 compares CLCB with; and moves of a call there
SEQUENTIAL = ("SFF", "BE-Tree")
_MOVED = 100_000


def built_located(bench: Bench, scenario: LocatedScenario) -> closing[TagmatchLocated]:
    """An index of a scenario's subscriptions."""
    with bench.doing(f"location: building tagmatch, {scenario.name}"):
        return closing(TagmatchLocated(scenario.subscriptions))


def content(bench: Bench, result: Result, sizes: Sequence[int]) -> None:
    """Measure CLCB's default scenario, with constraints and with tags: latency as published, and throughput."""
    for kind in CONTENTS:
        latency = result.panel(f"CLCB's default scenario, {kind}: one by one", "filters", MICROS, "lines")
        throughput = result.panel(f"CLCB's default scenario, {kind}: throughput", "filters", "messages/s", "lines")
        for size in sizes:
            options = bench.options
            with bench.doing(f"location: generating {size:,} filters with {kind}"):
                scenario = located(f"{size:,} filters with {kind}", size, options.queries, options.seed, kind)
            with built_located(bench, scenario) as whole:
                found = measure(bench, result, scenario, whole, (*ALL, MATCHING_GPU))
                used = whole.matcher.about().nbytes / size
                result.add(f"{scenario.name}: memory", used, "B a filter")
                result.add(f"{scenario.name}: memory, with the stored rows", whole.nbytes() / size, "B a filter")
            for name, micros in found.micros.items():
                if name in _ONE_BY_ONE:
                    latency.add(name, float(size), micros)
                if name != CALLED:
                    throughput.add(name, float(size), micros.per(1e6))
            _against_clcb(result, scenario, found, size)
            if MATCHING_GPU in found.micros:
                ratio = found.micros[MATCHING].ratios(found.micros[MATCHING_GPU])
                limit = _ON_A_GPU if size >= _FROM else None
                result.add(f"{scenario.name}: {against(MATCHING_GPU, MATCHING)}", ratio, "times", limit)


def _against_clcb(result: Result, scenario: LocatedScenario, found: Measured, size: int) -> None:
    """Add how many times as fast as CLCB ours is: with messages encoded, as CLCB's are, and from Arrow."""
    target = _AGAINST_CLCB if size >= _FROM else None
    for other in (CLCB_CPU, CLCB):
        for own in (MATCHING, WHOLE, CALLED):
            if {own, other} <= found.micros.keys():
                ratio = found.micros[other].ratios(found.micros[own])
                limit = target if own != CALLED and other == CLCB_CPU else None
                result.add(f"{scenario.name}: {against(own, other)}", ratio, "times", limit)


def table2(bench: Bench, result: Result, filters: int) -> None:
    """Measure CLCB's Table 2: matchers of constraints without areas, with areas as constraints, and CLCB."""
    options = bench.options
    with bench.doing(f"location: generating {filters:,} filters"):
        scenario = located("CLCB Table 2", filters, options.queries, options.seed)
    panel = result.panel("CLCB Table 2", "areas", published.MILLIS)
    panel.published += published.CLCB_TABLE2
    speed_ups = result.panel("CLCB Table 2: speed-ups", "areas", "times")
    speed_ups.published += published.CLCB_TABLE2_TIMES
    slower = result.panel("CLCB Table 2: times as long with areas", "areas", "times")
    slower.published += published.CLCB_TABLE2_SLOWER

    without = Scenario(
        "CLCB Table 2, without areas",
        scenario.subscriptions.select(["key", "constraints"]),
        scenario.messages.drop_columns(["tags", "location"]),
    )
    squares = Scenario(
        "CLCB Table 2, areas as constraints",
        areas_as_constraints(scenario.subscriptions),
        positions_as_attributes(scenario.messages),
    )
    found = {
        published.WITHOUT_LOCATION: _as_constraints(bench, result, without, own=True),
        published.WITH_LOCATION: _as_constraints(bench, result, squares, own=False),
    }
    with built_located(bench, scenario) as whole:
        located_found = measure(bench, result, scenario, whole)
    found[published.WITH_LOCATION] |= located_found.micros
    for place, micros in found.items():
        panel.add_all({name: samples.times(1e-3) for name, samples in micros.items()}, place)
    with_areas, before = found[published.WITH_LOCATION], found[published.WITHOUT_LOCATION]
    for name in (CLCB, CLCB_CPU, MATCHING, WHOLE):
        for other in SEQUENTIAL:
            if {name, other} <= with_areas.keys():
                speed_ups.add(against(name, other), published.WITH_LOCATION, with_areas[other].over(with_areas[name]))
    for name in before.keys() & with_areas.keys():
        slower.add(name, published.WITH_LOCATION, with_areas[name].over(before[name]))
    _update(bench, result, scenario)


def _as_constraints(bench: Bench, result: Result, scenario: Scenario, *, own: bool) -> dict[str, Samples]:
    """Time matchers of constraints; ours too, if filters have no areas."""
    with ExitStack() as stack:
        builds: dict[str, Callable[[], Any]] = {
            name: partial(CONTENT[name], scenario.subscriptions, 1) for name in SEQUENTIAL
        }
        systems = bench.build(result, builds, stack, scenario.name)
        if own:
            systems[WHOLE] = stack.enter_context(closing(TagmatchContent(scenario.subscriptions)))
            systems[MATCHING] = TagmatchMatching(systems[WHOLE])
        return dict(timed(bench, result, scenario, systems).micros)


def _update(bench: Bench, result: Result, scenario: LocatedScenario) -> None:
    """Add the time of moving one area: SFF is built again, as in the paper; with ours, a client's filters move."""
    panel: Panel = result.panel("CLCB Table 2: update", "scenario", "ms a move")
    panel.published += published.CLCB_TABLE2_UPDATE
    with ExitStack() as stack:
        works = _update_systems(bench, result, scenario, stack)
        sizes = {name: work.size for name, work in works.items()}
        found = bench.rates("location: moving, CLCB Table 2", works, _MOVED, sizes)
    panel.add_all({name: moves.per(1e3) for name, moves in found.items()}, DEFAULT)
    if "SFF" not in bench.options.skip:
        with bench.doing("location: building SFF anew"):
            stored = areas_as_constraints(scenario.subscriptions)
            panel.add("SFF", DEFAULT, 1e3 * seconds_of(lambda: CONTENT["SFF"](stored, 1).close()))


def _update_systems(bench: Bench, result: Result, scenario: LocatedScenario, stack: ExitStack) -> dict[str, _Moves]:
    random = np.random.default_rng(bench.options.seed)
    works: dict[str, _Moves] = {}
    rows = random.permutation(len(scenario.subscriptions)).astype(np.uint32)
    # A little more than twice as many, so that no client moves to its own place
    x, y = random.random((2, 2 * _MOVED + 7919))
    for name, matcher in bench.build(result, others_built(scenario), stack, scenario.name).items():
        works[name] = _Moves(matcher.move, rows, x, y)
    keys = np.unique(scenario.subscriptions["key"].to_numpy())
    near = TagmatchContent(clients(scenario.subscriptions), plane=True)
    stack.callback(near.close)
    near.index.move(keys, *random.random((2, len(keys))))
    works["tagmatch, clients, end to end"] = _Moves(near.index.move, random.permutation(keys), x, y)
    return works


class _Moves:
    """Moves of those that come next, to places that come next; `move` gets keys or rows, x and y."""

    def __init__(self, move: Callable[..., object], whom: Any, x: F64Array, y: F64Array) -> None:
        self._move, self._whom, self._x, self._y = move, whom, x, y
        self._at = 0
        self.size = CallSize(most=len(whom))

    def __call__(self, count: int) -> None:
        """Move `count` clients, each once."""
        first, to = self._at % max(len(self._whom) - count, 1), self._at % (len(self._x) - count)
        self._at += count
        self._move(self._whom[first : first + count], self._x[to : to + count], self._y[to : to + count])


def cities(bench: Bench, result: Result, filters: int, path: Path | None) -> None:
    """Measure alerts "near me" on real places."""
    options = bench.options
    try:
        with bench.doing(f"location: generating {filters:,} alerts"):
            scenario = alerts(filters, options.queries, options.seed, path)
    except UnavailableError as error:
        result.unavailable["cities"] = str(error)
        return
    with built_located(bench, scenario) as whole, ExitStack() as stack:
        own: dict[str, Any] = {WHOLE: whole, MATCHING: LocatedMatching(whole), CALLED: LocatedOneByOne(whole)}
        builds = {name: partial(system, scenario.subscriptions, 1) for name, system in ALERTS.items()}
        found = timed(bench, result, scenario, own | bench.build(result, builds, stack, scenario.name))
        used = whole.matcher.about().nbytes / filters
    panel = result.panel(f"alerts near cities, {filters:,} of them", "", MICROS)
    panel.add_all(found.micros, "cities")
    result.add("cities: keys of an answer", found.keys_per_message, "keys")
    result.add("cities: memory", used, "B a filter")
    for name in ALERTS:
        if name in found.micros:
            for ours in own:
                ratio = found.micros[name].ratios(found.micros[ours])
                result.add(f"cities: {against(ours, name)}", ratio, "times")
