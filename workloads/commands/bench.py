"""The command line `tagmatch-bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
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


_Threads = Annotated[
    int | None, typer.Option(min=1, max=MAX_THREADS, help="Threads to use.  [default: all processors]")
]
_Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the workload.")]
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
    threads: _Threads = None,
    growth: Annotated[bool, typer.Option(help="Also build 8 times as many sets.")] = True,
    seed: _Seed = 1,
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


_Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FOLDER", file_okay=False, writable=True, help="Where results are written."),
]
_Scale = Annotated[float, typer.Option(min=0.0005, max=_MAX_SETS / 1e6, help="Millions of distinct sets.")]
_Seconds = Annotated[float, typer.Option(min=0.001, max=3600, help="About what one measured call takes.")]
_MongoDB = Annotated[
    list[str] | None,
    typer.Option("--mongodb", metavar="URI", help="A running MongoDB server; several are shards.", show_default=False),
]


def _skippable(names: list[str] | None) -> list[str] | None:
    from workloads.bench.paper.catalogue import RAREST, SYSTEMS

    for name in names or ():
        if name not in SYSTEMS or name == RAREST:
            raise typer.BadParameter(
                f"{name!r} is none of {', '.join(repr(each) for each in SYSTEMS if each != RAREST)}"
            )
    return names


_Skip = Annotated[
    list[str] | None,
    typer.Option(metavar="SYSTEM", callback=_skippable, help="Leave out a system of Table 1.", show_default=False),
]


def _experiment(names: Sequence[str], summary: str) -> Callable[..., None]:
    """Make the subcommand that runs some experiments."""

    def command(
        scale: _Scale = 1.0,
        threads: _Threads = None,
        queries: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Most queries of a call.")] = 200_000,
        rounds: Annotated[int, typer.Option(min=1, max=1000, help="Measurements; their median counts.")] = 3,
        seconds: _Seconds = 0.2,
        seed: _Seed = 1,
        mongodb: _MongoDB = None,
        skip: _Skip = None,
        output: _Output = Path("bench-results/paper"),
    ) -> None:
        from workloads.bench.paper.bench import PaperOptions
        from workloads.bench.paper.experiments import run as run_experiments

        _check_plots()
        options = PaperOptions(
            scale,
            threads or available_threads(),
            queries,
            rounds,
            seconds,
            seed,
            tuple(mongodb or ()),
            tuple(skip or ()),
        )
        faults = []
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TagMatchError(f"{output}: the folder cannot be made: {error.strerror or error}") from None
        for result in run_experiments(names, options, output, Console(stderr=True)):
            typer.echo(result.markdown(images=f"{output}/"))
            faults += result.faults()
        if faults:
            raise TagMatchError("; ".join(faults))

    command.__doc__ = summary
    return command


def _check_plots() -> None:
    """Refuse to measure for minutes what cannot be drawn then."""
    if find_spec("matplotlib") is None:
        raise TagMatchError("plots need matplotlib; install it with: pip install 'tagmatch[bench]'")


_EXPERIMENTS = {
    "table1": "Table 1: all systems, three sizes of the database.",
    "table3": "Table 3: the trees and tagmatch, match and match-unique.",
    "fig2": "Figure 2: throughput against the size of queries.",
    "fig3": "Figure 3: keys a second against the size of queries.",
    "fig4": "Figure 4: throughput against the size of the database.",
    "fig5": "Figure 5: throughput against the number of threads.",
    "fig6": "Figure 6: latency against the timeout of batches.",
    "fig7": "Figure 7: throughput against the size of partitions.",
    "fig8": "Figure 8: time of partitioning.",
    "fig9": "Figure 9: memory.",
    "fig10": "Figure 10: databases, by sizes of database, sets and queries.",
    "fig11": "Figure 11: a database in shards.",
    "layouts": "The layouts rarest and balanced: throughput, build time, memory.",
}
for _name, _summary in _EXPERIMENTS.items():
    app.command(_name)(_experiment([_name], _summary))
app.command("paper")(_experiment(list(_EXPERIMENTS), "All tables and figures of the paper, and the layouts."))


def main() -> None:
    """Entry point of the command `tagmatch-bench`."""
    run(app)
