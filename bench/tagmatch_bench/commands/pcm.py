"""The command `tagmatch-bench pcm`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tagmatch.cli.shared import Threads
from tagmatch.model.options import available_threads
from tagmatch_bench.commands.content_measuring import Constraints, Events, SkipContent
from tagmatch_bench.commands.measuring import AllowChanges, Output, Rounds, Seconds, Seed, measure_all


class Part(StrEnum):
    """What `tagmatch-bench pcm` measures."""

    TABLE2 = "table2"
    FIGURE6 = "figure6"
    FIGURE7 = "figure7"
    FIGURE8 = "figure8"
    FIGURE9 = "figure9"
    MUCH = "much"
    THROUGHPUT = "throughput"


def pcm(
    constraints: Constraints = 1_000_000,
    events: Events = 1_000,
    call: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Events of a call, for throughput; again for each.  [default: 1, 16, 256, 4,096, 65,536]",
            show_default=False,
        ),
    ] = None,
    part: Annotated[list[Part] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)] = None,
    skip: SkipContent = None,
    rounds: Rounds = 3,
    seconds: Seconds = 0.2,
    threads: Threads = None,
    seed: Seed = 1,
    output: Output = Path("bench-results/pcm"),
    allow_changes: AllowChanges = False,
) -> None:
    """PCM's figures: latency of constraints on attributes, event by event, and throughput, beside OCM and CCM."""
    from tagmatch_bench.figures.pcm import PcmSizes
    from tagmatch_bench.figures.pcm import pcm as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    sizes = PcmSizes(constraints, tuple(sorted(call or PcmSizes().calls)), tuple(part or Part))
    options = BenchOptions(
        threads=threads or available_threads(),
        queries=events,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        skip=tuple(skip or ()),
    )
    measure_all([partial(experiment, sizes=sizes)], options, output, allow_changes=allow_changes)
