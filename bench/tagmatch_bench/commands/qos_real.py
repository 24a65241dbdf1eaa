"""The command `tagmatch-bench qos-real`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tagmatch_bench.commands.measuring import AllowChanges, Output, Seed, measure_all


class RealPart(StrEnum):
    """What `tagmatch-bench qos-real` runs."""

    TABLE1 = "table1"
    TABLE2 = "table2"
    FIGURE6 = "figure6"
    FIGURE7 = "figure7"
    FIGURE8 = "figure8"
    FIGURE9 = "figure9"
    FIGURE10 = "figure10"
    FIGURE11 = "figure11"
    FIGURE12 = "figure12"
    THREADS = "threads"
    PIPELINE = "pipeline"
    DDS = "dds"


#: Of the pipeline, which are asked again and again
_QUERIES = 50_000
_Subscriptions = Annotated[int, typer.Option(min=1, max=10_000_000, help="Subscriptions of the channel.")]


def qos_real(
    messages: Annotated[int, typer.Option(min=20, max=1_000_000, help="Messages of both channels in a run, about.")] = (
        1_500
    ),
    seeds: Annotated[int, typer.Option(min=2, max=1000, help="Runs of everything but the pipeline.")] = 3,
    subscriptions1: _Subscriptions = 6_000,
    subscriptions2: _Subscriptions = 600_000,
    calls: Annotated[int, typer.Option(min=20, max=100_000, help="Calls in a run of the pipeline, about.")] = 1_000,
    pipeline_seeds: Annotated[int, typer.Option(min=2, max=1000, help="Runs of the pipeline.")] = 10,
    sets: Annotated[int, typer.Option(min=100, max=2**24, help="Sets that the pipeline stores.")] = 100_000,
    pipeline_threads: Annotated[
        int, typer.Option(min=1, max=256, help="Threads of the pipeline, which get as many times the messages of one.")
    ] = 1,
    load: Annotated[
        list[float],
        typer.Option(
            min=0.01, max=100, help="How many times Table 2's rates the pipeline's threads get, again for each."
        ),
    ] = [1.0, 1.5],  # noqa: B006 - Typer copies it
    part: Annotated[
        list[RealPart] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)
    ] = None,
    seed: Seed = 1,
    output: Output = Path("bench-results/qos-real"),
    allow_changes: AllowChanges = False,
) -> None:
    """Messages with deadlines and real matching: figures of `qos`, threads, the pipeline, and CycloneDDS."""
    from tagmatch_bench.figures.qos_real import PipelineSizes, RealSizes
    from tagmatch_bench.figures.qos_real import qos_real as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    sizes = RealSizes(
        messages,
        seeds,
        (subscriptions1, subscriptions2),
        tuple(part or RealPart),
        PipelineSizes(sets, calls=calls, seeds=pipeline_seeds, loads=tuple(load), threads=pipeline_threads),
    )
    options = BenchOptions(seed=seed, queries=_QUERIES)
    measure_all([partial(experiment, sizes=sizes)], options, output, allow_changes=allow_changes)
