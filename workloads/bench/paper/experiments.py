"""All experiments by name, and running some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tagmatch.files.whole import write_whole
from tagmatch.workloads.bench.paper import costs, databases, latency, throughput
from tagmatch.workloads.bench.paper.bench import Bench, PaperOptions
from tagmatch.workloads.bench.paper.plots import draw

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tagmatch.workloads.bench.paper.results import Result

Experiment: TypeAlias = "Callable[[Bench], Result]"

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.__name__: experiment
    for experiment in (
        throughput.table1,
        throughput.table3,
        throughput.fig2,
        throughput.fig3,
        throughput.fig4,
        throughput.fig5,
        latency.fig6,
        throughput.fig7,
        costs.fig8,
        costs.fig9,
        databases.fig10,
        databases.fig11,
        throughput.layouts,
    )
}


def run(experiments: Iterable[Experiment], options: PaperOptions, folder: Path, console: Console) -> list[Result]:
    """Run experiments in turn; each writes NAME.json, NAME.md and NAME.png to the folder when it is done."""
    bench = Bench(options, console)
    results = []
    for experiment in experiments:
        result = experiment(bench)
        result.write(folder)
        with write_whole(folder / f"{result.name}.png") as part:
            draw(result, part)
        results.append(result)
    return results
