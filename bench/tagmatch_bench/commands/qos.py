"""The command `tagmatch-bench qos`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tagmatch_bench.commands.measuring import AllowChanges, Output, Seed, measure_all


class Part(StrEnum):
    """What `tagmatch-bench qos` simulates."""

    TABLE1 = "table1"
    TABLE2 = "table2"
    FIGURE6 = "figure6"
    FIGURE7 = "figure7"
    FIGURE8 = "figure8"
    FIGURE9 = "figure9"
    FIGURE10 = "figure10"
    FIGURE11 = "figure11"
    FIGURE12 = "figure12"


def qos(
    messages: Annotated[
        int, typer.Option(min=20, max=1_000_000, help="Messages of both channels in each simulation, about.")
    ] = 20_000,
    seeds: Annotated[int, typer.Option(min=2, max=1000, help="Simulations of everything, each with a seed.")] = 10,
    part: Annotated[list[Part] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)] = None,
    seed: Seed = 1,
    output: Output = Path("bench-results/qos"),
    allow_changes: AllowChanges = False,
) -> None:
    """Messages with deadlines in a simulator: Table 1 and Figures 6 to 12 of "Pub/Sub on Stream", beside EDF."""
    from tagmatch_bench.figures.qos import QosSizes
    from tagmatch_bench.figures.qos import qos as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    sizes = QosSizes(messages, seeds, tuple(part or Part))
    measure_all([partial(experiment, sizes=sizes)], BenchOptions(seed=seed), output, allow_changes=allow_changes)
