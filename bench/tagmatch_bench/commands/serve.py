"""The command `tagmatch-bench serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagmatch.cli.shared import Threads
from tagmatch.model.options import available_threads
from tagmatch_bench.commands.measuring import AllowChanges, Output, Rounds, Seconds, Seed, measure_all


def serve(
    sets: Annotated[int, typer.Option(min=8, max=100_000_000, help="Distinct stored sets.")] = 1_000_000,
    queries: Annotated[int, typer.Option(min=1, max=10_000_000, help="Different messages.")] = 65_536,
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: Annotated[float, typer.Option(min=1, max=1000, help="Keys that a set has in the mean.")] = 1.0,
    output: Output = Path("bench-results/serve"),
    allow_changes: AllowChanges = False,
) -> None:
    """An index as a service over Arrow Flight: batches, single messages, latency, ten times too much, and transport."""
    from tagmatch_bench.figures.serve import serve_figure
    from tagmatch_bench.figures.transport import transport_figure
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions

    options = BenchOptions(
        sets / FULL_SETS, threads or available_threads(), queries, rounds, seconds, seed, keys_per_set
    )
    measure_all([serve_figure, transport_figure], options, output, allow_changes=allow_changes)
