"""The command line `tagmatch-bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tagmatch.commands import command_line, run
from tagmatch.errors import TagMatchError
from tagmatch.options import MAX_THREADS, available_threads

app = command_line("Measure tagmatch beside its baselines and against its targets.")

# The sets of the growth measurement, 8 times as many, must fit the tagset table
_MAX_SETS = 2**28


def _json_file(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before hours of measuring, not after."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


_Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", dir_okay=False, writable=True, callback=_json_file, help="Write JSON too."),
]


@app.callback()
def _common() -> None:
    """Measure tagmatch beside its baselines and against its targets."""


@app.command()
def cpu(
    sets: Annotated[int, typer.Option(min=1, max=_MAX_SETS, help="Distinct stored sets.")] = 1_000_000,
    queries: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Queries.")] = 200_000,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads to use.  [default: all processors]")
    ] = None,
    growth: Annotated[bool, typer.Option(help="Also build 8 times as many sets.")] = True,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the workload.")] = 1,
    json: _Json = None,
) -> None:
    """Build and match on the CPU, beside two baselines written in Python and NumPy."""
    from workloads.bench.cpu import CpuOptions, measure

    options = CpuOptions(sets, queries, threads or available_threads(), growth, seed)
    report = measure(options, Console(stderr=True))
    if json is not None:
        report.write_json(json)
    report.print(Console())
    if failures := report.failures():
        raise TagMatchError("; ".join(failures))


def bench() -> None:
    """Entry point of the command `tagmatch-bench`."""
    run(app)
