"""The command `tagmatch-bench broker`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tagmatch.cli.shared import Threads
from tagmatch.model.options import available_threads
from tagmatch_bench.commands.measuring import AllowChanges, Output, Rounds, Seed, measure_all

_MOST = 100_000_000


class Setting(StrEnum):
    """What subscriptions and events `tagmatch-bench broker` makes."""

    PCM = "pcm"
    DENSE = "dense"


def _skippable(names: list[str] | None) -> list[str] | None:
    from tagmatch_bench.figures.broker import ENGINES

    for name in names or ():
        if name not in ENGINES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(map(repr, ENGINES))}")
    return names


def broker(
    scenario: Annotated[
        Setting, typer.Option(help="PCM's default scenario, or 20 attributes and 10 intervals a filter.")
    ] = Setting.PCM,
    constraints: Annotated[int, typer.Option(min=40, max=_MOST, help="Constraints of all filters, about.")] = 1_000_000,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            min=1,
            max=10_000_000,
            help="Events a second that the client offers; again for each.  [default: seven, 1,000 to 100,000]",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.001, max=3600, help="How long a rate is offered.")] = 1.5,
    rounds: Rounds = 3,
    queue: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Events that wait for the engine at most; others are dropped.")
    ] = 100,
    events: Annotated[int, typer.Option(min=1, max=1_000_000, help="Different events, which repeat in turn.")] = 1000,
    threads: Threads = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="ENGINE", callback=_skippable, help="Leave out an engine.", show_default=False),
    ] = None,
    seed: Seed = 1,
    output: Output = Path("bench-results/broker"),
    allow_changes: AllowChanges = False,
) -> None:
    """A whole broker between sockets, as PCM's Figure 10: events processed, dropped and delayed by offered rate."""
    from tagmatch_bench.figures.broker import BrokerOptions
    from tagmatch_bench.figures.broker import broker as experiment
    from tagmatch_bench.harness.bench import BenchOptions

    offered = BrokerOptions(
        scenario.value, constraints, tuple(sorted(set(rate or BrokerOptions().rates))), queue, events
    )
    options = BenchOptions(
        threads=threads or available_threads(),
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        keys_per_set=1,
        skip=tuple(skip or ()),
    )
    measure_all([partial(experiment, options=offered)], options, output, allow_changes=allow_changes)
