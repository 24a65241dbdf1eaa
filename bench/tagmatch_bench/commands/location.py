"""The command `tagmatch-bench location`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tagmatch_bench.commands.measuring import AllowChanges, Output, Rounds, Seconds, Seed, measure_all

_MOST = 100_000_000


class Part(StrEnum):
    """What `tagmatch-bench location` measures."""

    SPATIAL = "spatial"
    CONTENT = "content"
    TABLE2 = "table2"
    FIGURE3 = "figure3"
    FIGURE4 = "figure4"
    FIGURE5 = "figure5"
    FIGURE6 = "figure6"
    FIGURE7 = "figure7"
    LIVE = "live"
    EXACT = "exact"
    CITIES = "cities"


def _skippable(names: list[str] | None) -> list[str] | None:
    from tagmatch_bench.systems.catalogue import (
        ALERTS,
        CIRCLES,
        CIRCLES_GPU,
        CONTENT,
        OWN_CIRCLES,
        OWN_CIRCLES_GPU,
    )

    # What is compared with, and both are sooner without: all but OCM
    known = [*OWN_CIRCLES, *OWN_CIRCLES_GPU, *CIRCLES, *CIRCLES_GPU]
    known += [*(name for name in CONTENT if name != "OCM"), *ALERTS]
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(map(repr, known))}")
    return names


def location(
    filters: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=_MOST, help="Areas alone; again for each.  [default: 100,000, 1,000,000]", show_default=False
        ),
    ] = None,
    located: Annotated[
        list[int] | None,
        typer.Option(
            min=10,
            max=_MOST,
            help="Filters with content and area, ten a subscription; again for each.  [default: 250,000, 2,500,000]",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        int, typer.Option(min=10, max=_MOST, help="Filters of Table 2, and at the end of each line of Figures 3 to 7.")
    ] = 2_500_000,
    live: Annotated[int, typer.Option(min=1, max=_MOST, help="Clients that move while messages are matched.")] = (
        2_500_000
    ),
    pairs: Annotated[
        int, typer.Option(min=1, max=2_000_000_000, help="Areas and positions that are compared with distances.")
    ] = 10_000_000,
    alerts: Annotated[int, typer.Option(min=1, max=_MOST, help="Alerts near cities.")] = 100_000,
    cities: Annotated[
        Path | None,
        typer.Option(
            metavar="PARQUET",
            exists=True,
            dir_okay=False,
            help="Cities with country, timezone, population, lat and lon.  [default: the 10,000 largest]",
            show_default=False,
        ),
    ] = None,
    messages: Annotated[int, typer.Option(min=1, max=10_000_000, help="Most messages of a call.")] = 65_536,
    part: Annotated[list[Part] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="SYSTEM", callback=_skippable, help="Leave out a system.", show_default=False),
    ] = None,
    rounds: Rounds = 3,
    seconds: Seconds = 0.2,
    seed: Seed = 1,
    output: Output = Path("bench-results/location"),
    allow_changes: AllowChanges = False,
) -> None:
    """Areas and moving clients, beside CLCB, R*-tree, PostGIS and others: alone, with content, live, and on cities."""
    from tagmatch_bench.figures.location import LocationSizes
    from tagmatch_bench.figures.location import location as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    sizes = LocationSizes(
        tuple(sorted(filters or LocationSizes().filters)),
        tuple(sorted(located or LocationSizes().located)),
        figures,
        live,
        pairs,
        alerts,
        cities,
        tuple(part or Part),
    )
    options = BenchOptions(
        queries=messages, rounds=rounds, seconds=seconds, seed=seed, keys_per_set=1, skip=tuple(skip or ())
    )
    measure_all([partial(experiment, sizes=sizes)], options, output, allow_changes=allow_changes)
