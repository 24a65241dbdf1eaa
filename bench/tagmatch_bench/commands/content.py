"""The command `tagmatch-bench content`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tagmatch_bench.commands.measuring import AllowChanges, Output, Rounds, Seconds, Seed, measure_all

_MOST = 100_000_000


class Part(StrEnum):
    """What `tagmatch-bench content` measures."""

    PCM = "pcm"
    FIGURES = "figures"
    DENSE = "dense"
    REAL = "real"
    MIXED = "mixed"


def content(
    constraints: Annotated[
        list[int] | None,
        typer.Option(
            min=40,
            max=_MOST,
            help="Constraints of PCM's default scenario, about; again for each.  [default: 10,000, 100,000, 1,000,000]",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        int, typer.Option(min=400, max=_MOST, help="Of that scenario where PCM's Figures 6 to 9 begin; to ten times.")
    ] = 1_000_000,
    filters: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=_MOST,
            help="Dense filters, of 10 constraints; again for each.  [default: 100,000, 1,000,000]",
            show_default=False,
        ),
    ] = None,
    real: Annotated[int, typer.Option(min=1, max=_MOST, help="Filters on cities, and on Debian packages.")] = 100_000,
    mixed: Annotated[int, typer.Option(min=40, max=_MOST, help="Constraints of filters with tags, about.")] = 1_000_000,
    cities: Annotated[
        Path | None,
        typer.Option(
            metavar="PARQUET",
            exists=True,
            dir_okay=False,
            help="Cities with name, country, timezone, population, lat and lon.  [default: the 10,000 largest]",
            show_default=False,
        ),
    ] = None,
    messages: Annotated[int, typer.Option(min=1, max=10_000_000, help="Most messages of a call.")] = 8192,
    part: Annotated[list[Part] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)] = None,
    rounds: Rounds = 3,
    seconds: Seconds = 0.2,
    seed: Seed = 1,
    output: Output = Path("bench-results/content"),
    allow_changes: AllowChanges = False,
) -> None:
    """Constraints on attributes, beside OCM, SFF and BE-Tree: PCM's scenarios, dense ones, real data, and tags too."""
    from tagmatch_bench.figures.content import ContentSizes
    from tagmatch_bench.figures.content import content as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    sizes = ContentSizes(
        tuple(constraints or ContentSizes().constraints),
        figures,
        tuple(filters or ContentSizes().filters),
        real,
        mixed,
        cities,
        tuple(part or Part),
    )
    options = BenchOptions(queries=messages, rounds=rounds, seconds=seconds, seed=seed, keys_per_set=1)
    measure_all([partial(experiment, sizes=sizes)], options, output, allow_changes=allow_changes)
