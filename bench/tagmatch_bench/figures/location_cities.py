"""Alerts near cities of the world: tags, constraints and areas on the sphere, beside what a Python user would write."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagmatch_bench.figures.location_content import built
from tagmatch_bench.figures.location_scenarios import alerts
from tagmatch_bench.figures.published_content import MICROS, against
from tagmatch_bench.harness.located import CALLED, MATCHING, WHOLE, timed
from tagmatch_bench.systems.catalogue import ALERTS
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.tagmatch_located import LocatedMatching, LocatedOneByOne

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result


def cities(bench: Bench, result: Result, filters: int, path: Path | None) -> None:
    """Measure alerts "near me" on real places."""
    options = bench.options
    try:
        with bench.doing(f"location: generating {filters:,} alerts"):
            scenario = alerts(filters, options.queries, options.seed, path)
    except UnavailableError as error:
        result.unavailable["cities"] = str(error)
        return
    with built(bench, scenario) as whole, ExitStack() as stack:
        systems: dict[str, Any] = {
            WHOLE: whole,
            MATCHING: LocatedMatching(whole),
            CALLED: LocatedOneByOne(whole),
        }
        for name, system in ALERTS.items():
            if name in options.skip:
                result.unavailable[name] = "skipped"
                continue
            with bench.doing(f"location: building {name}, {scenario.name}"):
                try:
                    systems[name] = system.build(scenario.subscriptions, 1)
                except UnavailableError as error:
                    result.unavailable[name] = str(error)
                    continue
            stack.callback(systems[name].close)
        found = timed(bench, result, scenario, systems)
        used = whole.matcher.nbytes / filters
    panel = result.panel(f"alerts near cities, {filters:,} of them", "", MICROS)
    for name, micros in found.micros.items():
        panel.add(name, "cities", micros)
    result.add("cities: keys of an answer", found.keys_per_message, "keys")
    result.add("cities: memory", used, "B a filter")
    for name in ALERTS:
        if name in found.micros:
            for own in (WHOLE, MATCHING, CALLED):
                ratio = found.micros[name].ratios(found.micros[own])
                result.add(f"cities: {against(own, name)}", ratio, "times")
