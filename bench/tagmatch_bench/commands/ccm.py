"""The command `tagmatch-bench ccm`."""

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
    """What `tagmatch-bench ccm` measures."""

    TABLE2 = "table2"
    FIGURE5 = "figure5"
    FIGURE6 = "figure6"
    FIGURE7 = "figure7"
    FIGURE8 = "figure8"
    FIGURE9 = "figure9"
    FIGURE10 = "figure10"
    FIGURE11 = "figure11"


def ccm(
    constraints: Constraints = 1_000_000,
    events: Events = 1_000,
    part: Annotated[list[Part] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)] = None,
    skip: SkipContent = None,
    rounds: Rounds = 3,
    seconds: Seconds = 0.2,
    threads: Threads = None,
    seed: Seed = 1,
    output: Output = Path("bench-results/ccm"),
    allow_changes: AllowChanges = False,
) -> None:
    """CCM's figures of 2011: latency of constraints on numbers and strings, event by event, deployment and size."""
    from tagmatch_bench.figures.ccm import CcmSizes
    from tagmatch_bench.figures.ccm import ccm as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    sizes = CcmSizes(constraints, tuple(part or Part))
    options = BenchOptions(
        threads=threads or available_threads(),
        queries=events,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        skip=tuple(skip or ()),
    )
    measure_all([partial(experiment, sizes=sizes)], options, output, allow_changes=allow_changes)
