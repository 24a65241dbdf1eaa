"""Runs experiments, and writes what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from tagmatch.files.streams import write_whole
from tagmatch_bench.harness.bench import Bench, BenchOptions
from tagmatch_bench.harness.plots import draw
from tagmatch_bench.harness.report import facts_by_panel, markdown, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tagmatch_bench.harness.results import Result

#: Measures what a table or figure shows
Experiment: TypeAlias = "Callable[[Bench], Result]"


def run(experiments: Iterable[Experiment], options: BenchOptions, folder: Path, console: Console) -> list[Result]:
    """Run experiments in turn; each writes NAME.json, NAME.md and NAME.png to the folder when it is done."""
    bench = Bench(options, console)
    results = []
    for experiment in experiments:
        result = experiment(bench)
        write_json(facts_by_panel(result), folder / f"{result.name}.json")
        with write_whole(folder / f"{result.name}.md") as part:
            part.write_text(markdown(result))
        with write_whole(folder / f"{result.name}.png") as part:
            draw(result, part)
        results.append(result)
    return results
