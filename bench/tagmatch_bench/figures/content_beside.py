"""What the figures of PCM and of CCM have in common: latency of all systems, and speed-ups, beside those published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tagmatch_bench.figures.published_content import MICROS, against
from tagmatch_bench.harness.content_latency import OURS, OURS_ON_GPU, latency
from tagmatch_bench.harness.results import Target
from tagmatch_bench.systems.catalogue import CONTENT_ONE_BY_ONE, ENCODED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tagmatch_bench.figures.content_scenarios import Figure
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.content import Measured, Scenario
    from tagmatch_bench.harness.results import Result, Row

#: The path of ours by which encoded events are matched sooner
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
#: And of numbers beside them
PUBLISHED = """*paper* are the numbers that it prints, most of them speed-ups, of a million constraints on hardware of
    {year}: six cores of an AMD Phenom II, an Nvidia GTX 460. The paper's values are means over ten seeds; here they are
    medians of calls on one seed."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a table or figure is shown, and what of it is published.

    Attributes
    ----------
    title, axis : str
    style : "bars" or "lines"
    log_x : bool
    micros, times : sequence of Row
        Published: microseconds an event, and speed-ups.
    """

    title: str
    axis: str
    style: Literal["bars", "lines"] = "bars"
    log_x: bool = False
    micros: Sequence[Row] = ()
    times: Sequence[Row] = ()

    @classmethod
    def of(cls, figure: Figure, times: Mapping[int, Sequence[Row]]) -> Shown:
        """A figure with lines, beside the speed-ups that are published of it."""
        title = f"{figure.paper} Figure {figure.number}"
        return cls(title, figure.axis, "lines", figure.log_x, times=times[figure.number])


def beside(
    bench: Bench,
    result: Result,
    shown: Shown,
    scenarios: Iterable[tuple[str | float, Scenario]],
    pairs: Sequence[tuple[str, str]],
) -> dict[str | float, Measured]:
    """Measure the latency of all systems in scenarios, and add what is shown to the result.

    That is a panel of microseconds an event, one of speed-ups, and a line for each system that ours is compared with;
    it has a target if the system is a published one. Another line compares these with ours on encoded events.

    Parameters
    ----------
    bench : Bench
    result : Result
    shown : Shown
    scenarios : iterable of (str or float, Scenario)
        Each with its place on the axis.
    pairs : sequence of (str, str)
        Systems, and what the paper compares them with.

    Returns
    -------
    dict
        By place, what was found.
    """
    panel = result.panel(shown.title, shown.axis, MICROS, shown.style, log_x=shown.log_x)
    panel.published += shown.micros
    speed_ups = result.panel(f"{shown.title}: speed-ups", shown.axis, "times", shown.style, log_x=shown.log_x)
    speed_ups.published += shown.times
    measured = {}
    for place, scenario in scenarios:
        found = measured[place] = latency(bench, result, scenario)
        for system, micros in found.micros.items():
            panel.add(system, place, micros)
        for system, other in pairs:
            if {system, other} <= found.micros.keys():
                speed_ups.add(against(system, other), place, found.micros[other].ratios(found.micros[system]))
        _compare(result, scenario, found)
    return measured


def _compare(result: Result, scenario: Scenario, found: Measured) -> None:
    """Add how many times as fast as each other system ours is, and as each published one where both get the same."""
    micros = found.micros
    others = [name for name in micros if name not in (OURS, *ENCODED, OURS_ON_GPU)]
    published = [name for name in others if name in CONTENT_ONE_BY_ONE]
    if OURS in micros:
        for other in others:
            target = AHEAD if other in published else None
            result.add(f"{scenario.name}: {against(OURS, other)}", micros[other].ratios(micros[OURS]), "times", target)
    if paths := [micros[path] for path in ENCODED if path in micros]:
        best = min(paths, key=lambda samples: samples.median)
        for other in published:
            result.add(f"{scenario.name}: {against(BEST_PATH, other)}", micros[other].ratios(best), "times", AHEAD)
