"""The command line `tagmatch-bench`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tagmatch.cli.run import run
from tagmatch.cli.shared import Threads, choices, command_line, one_of
from tagmatch.model.errors import TagMatchError
from tagmatch.model.options import Layout, MatchOptions, available_threads
from tagmatch_bench.commands.broker import broker
from tagmatch_bench.commands.ccm import ccm
from tagmatch_bench.commands.content import content
from tagmatch_bench.commands.location import location
from tagmatch_bench.commands.measuring import (
    AllowChanges,
    Output,
    Rounds,
    Seconds,
    Seed,
    measure_all,
    require_committed,
)
from tagmatch_bench.commands.pcm import pcm
from tagmatch_bench.commands.qos import qos
from tagmatch_bench.commands.qos_real import qos_real
from tagmatch_bench.commands.serve import serve
from tagmatch_bench.figures.figure import FIGURES

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Experiment

app = command_line("Measure tagmatch beside its baselines and against its targets.")

# The sets of the growth measurement, 8 times as many, must fit the tagset table
_MAX_SETS = 2**28


def _json_file(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before hours of measuring, not after."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


_Sets = Annotated[int, typer.Option(min=1, max=_MAX_SETS, help="Distinct stored sets.")]
_Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", dir_okay=False, writable=True, callback=_json_file, help="Write JSON too."),
]


@app.command()
def cpu(
    sets: _Sets = 1_000_000,
    queries: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Queries.")] = 200_000,
    threads: Threads = None,
    growth: Annotated[bool, typer.Option(help="Also build 8 times as many sets.")] = True,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 5.0,
    json: _Json = None,
    allow_changes: AllowChanges = False,
) -> None:
    """Build and match on the CPU, beside two baselines written in Python and NumPy."""
    from tagmatch_bench.figures.cpu import CpuOptions, measure
    from tagmatch_bench.harness.report import facts_by_section, print_table, write_json

    if json is not None and not allow_changes:
        require_committed()
    options = CpuOptions(sets, queries, threads or available_threads(), growth, seed, keys_per_set)
    result = measure(options, Console(stderr=True))
    if json is not None:
        write_json(facts_by_section(result), json)
    print_table(result, Console())
    if faults := result.faults():
        raise TagMatchError("; ".join(faults))


_Scale = Annotated[
    float | None,
    typer.Option(
        min=0.0005,
        max=_MAX_SETS / 1e6,
        help="Millions of distinct sets.  [default: 1; in Figure 8 up to 16, by cores and memory]",
        show_default=False,
    ),
]
_FullSets = Annotated[
    int | None, typer.Option("--sets", min=500, max=_MAX_SETS, help="The same, in sets.", show_default=False)
]
_Queries = Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Most queries of a call.")]
_QueriesOfDevices = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=2**31 - 1,
        help="Most queries of a call.  [default: 200,000; on CUDA devices so many that packets are full]",
        show_default=False,
    ),
]
_KeysPerSet = Annotated[
    float, typer.Option("--keys", min=1, max=1000, help="Keys that a set has in the mean; with 1, each has one.")
]
_MongoDB = Annotated[
    list[str] | None,
    typer.Option("--mongodb", metavar="URI", help="A running MongoDB server; several are shards.", show_default=False),
]


def _skippable(names: list[str] | None) -> list[str] | None:
    from tagmatch_bench.systems.catalogue import SYSTEMS

    for name in names or ():
        if name not in SYSTEMS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(map(repr, SYSTEMS))}")
    return names


_Skip = Annotated[
    list[str] | None,
    typer.Option(metavar="SYSTEM", callback=_skippable, help="Leave out a system.", show_default=False),
]


def _known(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if name not in FIGURES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(FIGURES)}")
    return names


def _figures_argument(description: str) -> Any:
    return Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIGURE",
            callback=_known,
            help=f"{description}; what they have in common is made once.",
            show_default=False,
        ),
    ]


def _experiment(name: str | None, summary: str) -> Callable[..., None]:
    """Make the subcommand that runs the experiment of this name and others given; without one, those given, or all."""

    def command(
        figures: list[str] | None = None,
        scale: _Scale = None,
        sets: _FullSets = None,
        threads: Threads = None,
        queries: _QueriesOfDevices = None,
        rounds: Rounds = 3,
        seconds: Seconds = 0.2,
        seed: Seed = 1,
        keys_per_set: _KeysPerSet = 5.0,
        mongodb: _MongoDB = None,
        skip: _Skip = None,
        output: Output = Path("bench-results/paper"),
        allow_changes: AllowChanges = False,
    ) -> None:
        from tagmatch_bench.harness.bench import (
            FULL_SETS,
            BenchOptions,
            usual_partitioned,
            usual_queries_in_batches,
        )

        if scale is not None and sets is not None:
            raise typer.BadParameter("it says the same as --sets; give one of them", param_hint="--scale")
        size = sets / FULL_SETS if sets is not None else scale
        threads = threads or available_threads()
        options = BenchOptions(
            size or 1.0,
            threads,
            queries or 200_000,
            rounds,
            seconds,
            seed,
            keys_per_set,
            tuple(mongodb or ()),
            tuple(skip or ()),
            usual_partitioned(threads) if size is None else None,
            queries or usual_queries_in_batches(),
        )
        given = figures or []
        names = (given or FIGURES) if name is None else [name, *given]
        measure_all([FIGURES[each] for each in dict.fromkeys(names)], options, output, allow_changes=allow_changes)

    command.__doc__ = summary
    command.__annotations__["figures"] = _figures_argument("Only these" if name is None else "More of them")
    return command


for _name, _figure in FIGURES.items():
    app.command(_name)(_experiment(_name, _figure.summary))
app.command("paper")(_experiment(None, "All tables and figures of the paper, and the layouts, or some of them."))
app.command("content")(content)
app.command("pcm")(pcm)
app.command("ccm")(ccm)
app.command("broker")(broker)
app.command("location")(location)
app.command("serve")(serve)
app.command("qos")(qos)
app.command("qos-real")(qos_real)


@app.command()
def latency(
    sets: _Sets = 1_000_000,
    seconds: Annotated[float, typer.Option(min=0.001, max=3600, help="How long a load is offered.")] = 2.0,
    rounds: Rounds = 3,
    flush_timeout: Annotated[
        list[str] | None,
        typer.Option(metavar="SECONDS", help="A `flush_timeout`, or `never`; again for each.  [default: five values]"),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            parser=one_of(Layout),
            metavar=choices(Layout),
            help="Again for each.  [default: both]",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 5.0,
    output: Output = Path("bench-results/latency"),
    allow_changes: AllowChanges = False,
) -> None:
    """Latency and throughput of `submit` against the offered load, for some values of `flush_timeout`."""
    from tagmatch_bench.figures.latency import TIMEOUTS
    from tagmatch_bench.figures.latency import latency as experiment
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions
    from tagmatch_bench.systems.catalogue import OURS

    layouts = [each for each in OURS if not layout or each in layout]
    timeouts = [_timeout(text) for text in flush_timeout] if flush_timeout else TIMEOUTS
    options = BenchOptions(
        sets / FULL_SETS,
        threads or available_threads(),
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        keys_per_set=keys_per_set,
    )
    measure_all([partial(experiment, layouts=layouts, timeouts=timeouts)], options, output, allow_changes=allow_changes)


def _timeout(text: str) -> float | None:
    try:
        return None if text == "never" else MatchOptions(flush_timeout=float(text)).flush_timeout
    except ValueError:
        raise typer.BadParameter(
            f"{text} is neither seconds, zero or more, nor `never`", param_hint="--flush-timeout"
        ) from None


@app.command()
def threads(
    sets: _Sets = 1_000_000,
    queries: _Queries = 200_000,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 5.0,
    output: Output = Path("bench-results/threads"),
    allow_changes: AllowChanges = False,
) -> None:
    """Throughput against threads and callers, and beside the kernels alone."""
    from tagmatch_bench.figures.threads import threads as experiment
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions

    options = BenchOptions(
        sets / FULL_SETS, threads or available_threads(), queries, rounds, seconds, seed, keys_per_set
    )
    measure_all([experiment], options, output, allow_changes=allow_changes)


@app.command()
def gpu(
    sets: _Sets = 16_000_000,
    queries: _QueriesOfDevices = None,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 5.0,
    skip: _Skip = None,
    output: Output = Path("bench-results/gpu"),
    allow_changes: AllowChanges = False,
) -> None:
    """Throughput of both layouts on CUDA, beside the plain batched scan."""
    from tagmatch.pipeline.cuda.support import devices

    devices()  # before numba.cuda is imported
    from tagmatch_bench.figures.gpu import gpu as experiment
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions, usual_queries_in_batches

    options = BenchOptions(
        sets / FULL_SETS,
        threads or available_threads(),
        queries or usual_queries_in_batches(),
        rounds,
        seconds,
        seed,
        keys_per_set,
        skip=tuple(skip or ()),
    )
    measure_all([experiment], options, output, allow_changes=allow_changes)


@app.command()
def host(
    sets: _Sets = 100_000,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 5.0,
    output: Output = Path("bench-results/host"),
    allow_changes: AllowChanges = False,
) -> None:
    """What packets for CUDA devices cost the host; needs no device."""
    from tagmatch_bench.figures.host import PACKETS
    from tagmatch_bench.figures.host import host as experiment
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions

    options = BenchOptions(
        sets / FULL_SETS, threads or available_threads(), max(PACKETS), rounds, seconds, seed, keys_per_set
    )
    measure_all([experiment], options, output, allow_changes=allow_changes)


@app.command()
def updates(
    sets: _Sets = 1_000_000,
    consolidates: Annotated[int, typer.Option(min=1, max=1_000_000, help="Small changes, of ten sets each.")] = 1000,
    queries: _Queries = 200_000,
    rounds: Rounds = 5,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.001, max=3600, help="About what one measured call takes; additions and loads go on ten times as long."
        ),
    ] = 0.3,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 1.0,
    output: Output = Path("bench-results/updates"),
    allow_changes: AllowChanges = False,
) -> None:
    """How changes are taken, beside DuckDB and LanceDB, and what they do to queries; on the disk of TMPDIR."""
    from tagmatch_bench.figures.updates import updates as experiment
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions

    options = BenchOptions(
        sets / FULL_SETS, threads or available_threads(), queries, rounds, seconds, seed, keys_per_set
    )
    measure_all([partial(experiment, consolidates=consolidates)], options, output, allow_changes=allow_changes)


class SparkBenchmark(StrEnum):
    """What `tagmatch-bench spark` measures."""

    PARTITION = "partition"
    JOIN = "join"
    SKEW = "skew"


@app.command()
def spark(
    sets: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=_MAX_SETS,
            help="Distinct sets to partition; again for each.  [default: 1, 4 and 8 million]",
            show_default=False,
        ),
    ] = None,
    join_sets: Annotated[
        int, typer.Option(min=1, max=_MAX_SETS, help="Distinct stored sets of join and skew.")
    ] = 1_000_000,
    queries: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Queries of join and skew.")] = 20_000,
    part: Annotated[
        list[SparkBenchmark] | None, typer.Option(help="Again for each.  [default: all]", show_default=False)
    ] = None,
    rounds: Rounds = 3,
    threads: Threads = None,
    seed: Seed = 1,
    keys_per_set: _KeysPerSet = 5.0,
    output: Output = Path("bench-results/spark"),
    allow_changes: AllowChanges = False,
) -> None:
    """Partitioning and joins on Spark, in local mode, beside the local partitioner and plain SQL."""
    from tagmatch_bench.spark.session import local_spark

    cores = threads or available_threads()
    session = local_spark(cores)  # before pyspark is imported
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions
    from tagmatch_bench.spark.join import join, skew
    from tagmatch_bench.spark.partitioning import SIZES, partition

    parts: dict[str, Experiment] = {
        SparkBenchmark.PARTITION: partial(partition, spark=session, sizes=sets or SIZES),
        SparkBenchmark.JOIN: partial(join, spark=session),
        SparkBenchmark.SKEW: partial(skew, spark=session),
    }
    options = BenchOptions(join_sets / FULL_SETS, cores, queries, rounds, seed=seed, keys_per_set=keys_per_set)
    measure_all(
        [parts[each] for each in SparkBenchmark if not part or each in part],
        options,
        output,
        allow_changes=allow_changes,
    )


def main() -> None:
    """Entry point of the command `tagmatch-bench`."""
    run(app)
