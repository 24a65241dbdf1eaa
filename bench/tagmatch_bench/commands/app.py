"""The command line `tagmatch-bench`: a table of commands, each an experiment with options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from inspect import Parameter
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import typer
from rich.console import Console

from tagmatch import TagMatchError
from tagmatch.cli.shared import command_line, run
from tagmatch.model.options import Layout, MatchOptions, available_threads
from tagmatch_bench.commands import options as opt
from tagmatch_bench.figures.figure import FIGURES, PARTS

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import BenchOptions, Experiment

app = command_line("Measure tagmatch against its baselines and its targets.")
_command = partial(opt.command, app)


def _measure(where: Iterable[str], sizes: str | None, fixed: Mapping[str, Any], **given: Any) -> None:
    """Run experiments with the options of `BenchOptions` among those given; others are those of `sizes`, or theirs."""
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions

    output, allow_changes = given.pop("output"), given.pop("allow_changes")
    bench = dict(fixed) | {each.name: given.pop(each.name) for each in fields(BenchOptions) if each.name in given}
    if "sets" in given:
        bench["scale"] = given.pop("sets") / FULL_SETS
    if "threads" in bench:
        bench["threads"] = bench["threads"] or available_threads()
    for name in {"skip", "mongodb"} & bench.keys():
        bench[name] = tuple(bench[name] or ())
    others = {name: tuple(each) if isinstance(each, list) else each for name, each in given.items() if each is not None}
    if sizes is not None:
        others = {"sizes": _of_figures(sizes)(**others)}
    experiments = [partial(_of_figures(each), **others) for each in where]
    measure_all(experiments, BenchOptions(**bench), output, allow_changes=allow_changes)


def _of_figures(name: str) -> Any:
    return resolve_name(f"tagmatch_bench.figures.{name}")


def require_committed() -> None:
    """Refuse to record a result that could not be measured again."""
    from tagmatch_bench.harness.results import changed_files, commit

    if changed := changed_files():
        raise TagMatchError(
            f"results would name commit {commit()}, but these files differ from it: {', '.join(changed)}; commit them, "
            "or record results that name them with --allow-changes"
        )


def measure_all(experiments: Sequence[Experiment], options: BenchOptions, output: Path, *, allow_changes: bool) -> None:
    """Run experiments and print what they find; refuses to measure for minutes what cannot be drawn or written then."""
    from tagmatch_bench.harness.bench import run as run_experiments
    from tagmatch_bench.harness.report import markdown

    if find_spec("matplotlib") is None:
        raise TagMatchError("plots need matplotlib; install it with: pip install ./bench")
    if not allow_changes:
        require_committed()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TagMatchError(f"{output}: the folder cannot be made: {error.strerror or error}") from None
    faults = []
    for result in run_experiments(experiments, options, output, Console(stderr=True)):
        typer.echo(markdown(result, images=f"{output}/"))
        faults += result.faults()
    if faults:
        raise TagMatchError("; ".join(faults))


class _Paper(NamedTuple):
    """An experiment of the folder `figures`: its functions, the class of its sizes, options, and fixed ones."""

    summary: str
    where: str
    sizes: str | None
    options: tuple[Parameter, ...]
    fixed: Mapping[str, Any] = {}


def _names(*where: str) -> Callable[[], Iterable[str]]:
    """What gives the names of these modules' members, which are imported then."""
    return lambda: chain.from_iterable(resolve_name(f"tagmatch_bench.{each}") for each in where)


#: What is compared with areas; both are sooner without: all but OCM
_AREAS = (
    *(f"systems.catalogue:{each}" for each in ("OWN_CIRCLES", "OWN_CIRCLES_GPU", "CIRCLES", "CIRCLES_GPU", "ALERTS")),
    "figures.location_content:SEQUENTIAL",
)
_PEERS = ("systems.catalogue:PEERS", "systems.catalogue:SYSTEMS", "systems.catalogue:CIRCLES")
_FILTERS: dict[str, Any] = {"min": 1, "max": opt.MOST_FILTERS}
_ONE_BY_ONE = (
    opt.whole("constraints", 1_000_000, "Of the default scenario, about; figures have up to ten times.", 400),
    opt.option("queries", int, 1_000, "Events that come one by one.", "--events", min=1, max=1_000_000),
)

_PAPERS: Mapping[str, _Paper] = {
    "cpu": _Paper(
        "Build and match on the CPU, and two baselines written in Python and NumPy.",
        "cpu:cpu",
        None,
        (
            opt.sets(1_000_000), opt.queries(), opt.option("growth", bool, True, "Also build 8 times as many sets."),
            opt.rounds(7), opt.seconds(1.0), opt.THREADS, opt.SEED, opt.keys(),
        ),
    ),
    "content": _Paper(
        "Constraints on attributes, with OCM, SFF and BE-Tree: PCM's scenarios, dense, real, with tags; and areas.",
        "content:content",
        "content:ContentSizes",
        (
            opt.again(
                "constraints", int, "10,000, 100,000, 1,000,000", "Constraints of PCM's default scenario, about",
                min=40, max=opt.MOST_FILTERS,
            ),
            opt.whole("figures", 1_000_000, "Of that scenario where PCM's Figures 6 to 9 begin; to ten times.", 400),
            opt.again("filters", int, "100,000, 1,000,000", "Dense filters, of 10 constraints", **_FILTERS),
            opt.whole("real", 100_000, "Filters on cities, and on Debian packages."),
            opt.whole("mixed", 1_000_000, "Constraints of filters with tags, about.", 40),
            opt.again("areas", int, "100,000, 1,000,000", "Areas alone", **_FILTERS),
            opt.cities("name, country, timezone, population, lat and lon"),
            opt.messages(8192), opt.part(PARTS["content"]), opt.rounds(), opt.seconds(), opt.SEED,
        ),
        {"keys_per_set": 1},
    ),
    "pcm": _Paper(
        "PCM's figures: latency of constraints on attributes, event by event, and throughput, with OCM and CCM.",
        "pcm:pcm",
        None,
        (
            *_ONE_BY_ONE,
            opt.again(
                "calls", int, "1, 16, 256, 4,096, 65,536", "Events of a call, for throughput", "--call",
                min=1, max=1_000_000,
            ),
            opt.part(PARTS["pcm"]), opt.skip(_names("harness.content:ALL")), opt.rounds(), opt.seconds(),
            opt.THREADS, opt.SEED,
        ),
    ),
    "ccm": _Paper(
        "CCM's figures of 2011: latency of constraints on numbers and strings, event by event, deployment and size.",
        "pcm:ccm",
        None,
        (
            *_ONE_BY_ONE, opt.part(PARTS["ccm"]), opt.skip(_names("harness.content:ALL")), opt.rounds(), opt.seconds(),
            opt.THREADS, opt.SEED,
        ),
    ),
    "broker": _Paper(
        "A whole broker between sockets, as PCM's Figure 10: events processed, dropped and delayed by offered rate.",
        "broker:broker",
        "broker:BrokerOptions",
        (
            opt.option(
                "scenario", str, "pcm", "PCM's default scenario, or 20 attributes and 10 intervals a filter.",
                **opt.one_of(("pcm", "dense")),
            ),
            opt.whole("constraints", 1_000_000, "Constraints of all filters, about.", 40),
            opt.again(
                "rates", float, "seven, 1,000 to 100,000", "Events a second that the client offers", "--rate",
                min=1, max=10_000_000,
            ),
            opt.seconds(1.5, "How long a rate is offered."), opt.rounds(),
            opt.whole("queue", 100, "Events that wait for the engine at most; others are dropped.", 1, 10_000_000),
            opt.whole("events", 1000, "Different events, which repeat in turn.", 1, 1_000_000),
            opt.THREADS, opt.skip(_names("figures.broker:ENGINES"), "engine"), opt.SEED,
        ),
        {"keys_per_set": 1},
    ),
    "location": _Paper(
        "Areas and moving clients, with CLCB, R*-tree, PostGIS and others: alone, with content, live, and on cities.",
        "location:location",
        "location:LocationSizes",
        (
            opt.again("filters", int, "100,000, 1,000,000", "Areas alone", **_FILTERS),
            opt.again(
                "located", int, "250,000, 2,500,000", "Filters with content and area, ten a subscription",
                min=10, max=opt.MOST_FILTERS,
            ),
            opt.whole(
                "figures", 2_500_000, "Filters of Table 2, and at the end of each line of Figures 3 to 7.", 10
            ),
            opt.again(
                "coverages", float, "0.001, 0.01, 0.1, 1", "Percent that an area of Figures 3 and 4 covers",
                "--coverage", min=0.0001, max=100,
            ),
            opt.whole("live", 2_500_000, "Clients that move while messages are matched."),
            opt.whole("pairs", 10_000_000, "Areas and positions that are compared with distances.", 1, 2_000_000_000),
            opt.whole("alerts", 100_000, "Alerts near cities."),
            opt.cities("country, timezone, population, lat and lon"),
            opt.messages(65_536), opt.part(PARTS["location"]), opt.skip(_names(*_AREAS)), opt.rounds(),
            opt.seconds(), opt.SEED,
        ),
        {"keys_per_set": 1},
    ),
    "peers": _Paper(
        "On one core, compared with a good C++ programmer's work, TT-Join, LIMIT+, a dict, and a grid of circles.",
        "peers:peers",
        None,
        (
            opt.option("scale", float, 1.0, "How large data are, of 100 sets to 8 million.", min=0.0001, max=10),
            opt.queries(20_000), opt.part(PARTS["peers"]), opt.skip(_names(*_PEERS)), opt.rounds(5),
            opt.seconds(0.5), opt.SEED,
        ),
    ),
    "records": _Paper(
        "Subscriptions as records: get, put, data, the best keys, counts, k of n, and only some keys.",
        "records:records",
        None,
        (
            opt.sets(100_000), opt.queries(5_000), opt.part(PARTS["records"]), opt.rounds(9), opt.THREADS, opt.SEED,
        ),
        {"keys_per_set": 1},
    ),
    "qos": _Paper(
        'Messages with deadlines in a simulator: Table 1 and Figures 6 to 12 of "Pub/Sub on Stream", and EDF.',
        "qos:qos",
        None,
        (
            opt.whole("messages", 20_000, "Messages of both channels in each simulation, about.", 20, 1_000_000),
            opt.whole("seeds", 10, "Simulations of everything, each with a seed.", 2, 1000),
            opt.part(PARTS["qos"]), opt.SEED,
        ),
    ),
    "qos-real": _Paper(
        "Messages with deadlines and real matching: figures of `qos`, threads, the pipeline, and CycloneDDS.",
        "qos_real:qos_real",
        "qos_real:sizes_of",
        (
            opt.whole("messages", 1_500, "Messages of both channels in a run, about.", 20, 1_000_000),
            opt.whole("seeds", 3, "Runs of everything but the pipeline.", 2, 1000),
            opt.whole("subscriptions1", 6_000, "Subscriptions of the channel.", 1, 10_000_000),
            opt.whole("subscriptions2", 600_000, "Subscriptions of the channel.", 1, 10_000_000),
            opt.whole("calls", 1_000, "Calls in a run of the pipeline, about.", 20, 100_000),
            opt.whole("pipeline_seeds", 10, "Runs of the pipeline.", 2, 1000),
            opt.option("pipeline_sets", int, 100_000, "Sets that the pipeline stores.", "--sets", min=100, max=2**24),
            opt.whole(
                "pipeline_threads", 1, "Threads of the pipeline, which get as many times the messages of one.", 1, 256
            ),
            opt.whole(
                "pipeline_processes", 1, "Processes, each with such an index and such messages.", 1, 256
            ),
            opt.option(
                "pipeline_seconds", float, 0.002, "What a call of the pipeline's first channel takes, about.",
                min=0.0001, max=1,
            ),
            opt.again(
                "loads", float, "1.0, 1.5", "How many times Table 2's rates the pipeline's threads get", "--load",
                min=0.01, max=100,
            ),
            opt.part(PARTS["qos-real"]), opt.SEED,
        ),
        {"queries": 200_000},  # of the pipeline, which are asked again and again
    ),
    "threads": _Paper(
        "Throughput against threads and callers, and compared with the kernels alone.",
        "threads:threads",
        None,
        (opt.sets(1_000_000), opt.queries(), opt.rounds(5), opt.seconds(0.5), opt.THREADS, opt.SEED, opt.keys()),
    ),
    "first": _Paper(
        "First answers, with an empty cache of kernels, and `tagmatch warmup`.",
        "first:first",
        None,
        (opt.part(PARTS["first"]), opt.rounds(3)),
    ),
    "host": _Paper(
        "What packets for CUDA devices cost the host; needs no device.",
        "host:host",
        None,
        (opt.sets(100_000), opt.rounds(5), opt.seconds(0.5), opt.THREADS, opt.SEED, opt.keys()),
        {"queries": 1 << 17},  # of its largest packet
    ),
    "updates": _Paper(
        "Changes, compared with DuckDB and LanceDB, and their effect on queries; on the disk of TMPDIR.",
        "updates:updates",
        None,
        (
            opt.sets(1_000_000),
            opt.whole("consolidates", 1000, "Small changes, of ten sets each.", 1, 1_000_000),
            opt.queries(), opt.rounds(5),
            opt.seconds(0.3, "About what one measured call takes; additions and loads go on ten times as long."),
            opt.THREADS, opt.SEED, opt.keys(1.0),
        ),
    ),
    "follow": _Paper(
        "How long after a commit those who follow an index, or a copy of it, answer from it.",
        "following:following",
        None,
        (opt.sets(1_000_000), opt.rounds(2), opt.THREADS, opt.SEED, opt.keys(1.0)),
        {"queries": 1},
    ),
    "serve": _Paper(
        "An index as a service over Flight and HTTP: batches, single messages, latency, overload, transport, Kafka.",
        "serve:serve_figure over_http:over_http_figure transport:transport_figure over_kafka:over_kafka_figure",
        None,
        (
            opt.sets(1_000_000, min=8, max=100_000_000), opt.queries(65_536, "Different messages.", 10_000_000),
            opt.rounds(5), opt.seconds(1.0), opt.THREADS, opt.SEED, opt.keys(1.0, "Keys that a set has in the mean."),
        ),
    ),
}  # fmt: skip


_QUERIES_OF_DEVICES = opt.option(
    "queries", int | None, None,
    "Most queries of a call.  [default: 200,000; on CUDA devices enough for full packets]",
    min=1, max=2**31 - 1, show_default=False,
)  # fmt: skip


def _experiment(name: str | None) -> tuple[Iterable[Parameter], Callable[..., None]]:
    """Options, and what runs the experiment of this name and others given; without one, those given, or all."""

    def measure(*, figures: list[str] | None, scale: float | None, sets: int | None, **given: Any) -> None:
        from tagmatch_bench.harness.bench import FULL_SETS, usual_partitioned, usual_queries_in_batches

        if scale is not None and sets is not None:
            raise typer.BadParameter("it says the same as --sets; give one of them", param_hint="--scale")
        size = sets / FULL_SETS if sets is not None else scale
        queries, threads = given.pop("queries"), given.pop("threads") or available_threads()
        fixed = {
            "scale": size or 1.0,
            "threads": threads,
            "queries": queries or 200_000,
            "partitioned": usual_partitioned(threads) if size is None else None,
            "queries_in_batches": queries or usual_queries_in_batches(),
        }
        names = (figures or FIGURES) if name is None else [name, *(figures or ())]
        _measure([FIGURES[each].where for each in dict.fromkeys(names)], None, fixed, **given)

    what = f"{'Only these' if name is None else 'More of them'}; what they have in common is made once."
    in_sets = "Millions of distinct sets.  [default: 1; in Figure 8 up to 16, by cores and memory]"
    uris: dict[str, Any] = {"metavar": "URI", "show_default": False}
    return (
        opt.named("figures", lambda: FIGURES, what, positional=True, metavar="FIGURE"),
        opt.option("scale", float | None, None, in_sets, min=0.0005, max=opt.MOST_SETS / 1e6, show_default=False),
        opt.option("sets", int | None, None, "The same, in sets.", min=500, max=opt.MOST_SETS, show_default=False),
        opt.THREADS, _QUERIES_OF_DEVICES, opt.rounds(), opt.seconds(), opt.SEED, opt.keys(),
        opt.option("mongodb", list[str] | None, None, "A running MongoDB server; several are shards.", **uris),
        opt.skip(_names("systems.catalogue:SYSTEMS")), opt.output("paper"),
    ), measure  # fmt: skip


def _latency(*, layouts: list[Layout] | None, timeouts: list[str] | None, **given: Any) -> None:
    from tagmatch_bench.figures.latency import TIMEOUTS

    layouts = [each for each in get_args(Layout) if not layouts or each in layouts]
    found = [_timeout(text) for text in timeouts] if timeouts else TIMEOUTS
    _measure(["latency:latency"], None, {}, layouts=layouts, timeouts=found, **given)


def _timeout(text: str) -> float | None:
    try:
        return None if text == "never" else MatchOptions(flush_timeout=float(text)).flush_timeout
    except ValueError:
        words = f"{text} is neither seconds, zero or more, nor `never`"
        raise typer.BadParameter(words, param_hint="--flush-timeout") from None


def _gpu(*, queries: int | None, **given: Any) -> None:
    from tagmatch.pipeline.cuda import devices
    from tagmatch_bench.harness.bench import usual_queries_in_batches

    devices()  # before numba.cuda is imported
    _measure(["gpu:gpu"], None, {"queries": queries or usual_queries_in_batches()}, **given)


def _paper_scale(
    *,
    queries: int | None,
    layouts: list[Layout] | None,
    shares: list[int] | None,
    parts: list[str] | None,
    **given: Any,
) -> None:
    from tagmatch_bench.harness.bench import usual_queries_in_batches

    fixed = {"queries": queries or 200_000, "queries_in_batches": queries or usual_queries_in_batches(), "checked": 200}
    parts = parts and [each for each in PARTS["paper-scale"] if each in parts]  # each needs those before
    sizes = {"layouts": layouts, "shares": shares, "parts": parts}
    _measure(["paper_scale:paper_scale"], "paper_scale:ScaleSizes", fixed, **sizes, **given)


def _spark(
    *, sizes: list[int] | None, parts: list[str] | None, plan: float | None, threads: int | None, **given: Any
) -> None:
    from tagmatch_bench.spark import local_spark

    cores = threads or available_threads()
    session = local_spark(cores)  # before pyspark is imported
    from tagmatch_bench.harness.bench import FULL_SETS, BenchOptions
    from tagmatch_bench.spark.join import join, skew
    from tagmatch_bench.spark.partitioning import SIZES, partition
    from tagmatch_bench.spark.plan import plan as planned

    experiments = {
        "partition": partial(partition, spark=session, sizes=sizes or SIZES),
        "join": partial(join, spark=session),
        "skew": partial(skew, spark=session),
        "plan": partial(planned, spark=session, sets=plan or 1e10),
    }
    parts = parts or [name for name in experiments if (name == "plan") == (plan is not None)]
    output, allow_changes, scale = given.pop("output"), given.pop("allow_changes"), given.pop("join_sets") / FULL_SETS
    wanted = [experiment for name, experiment in experiments.items() if name in parts]
    measure_all(wanted, BenchOptions(scale, cores, **given), output, allow_changes=allow_changes)


for _name, _figure in FIGURES.items():
    _command(_name, _figure.summary, *_experiment(_name))
_command("paper", "All tables and figures of the paper, and the layouts, or some of them.", *_experiment(None))
for _name, _paper in _PAPERS.items():
    _run = partial(_measure, _paper.where.split(), _paper.sizes, _paper.fixed)
    _command(_name, _paper.summary, (*_paper.options, opt.output(_name)), _run)
_command(
    "latency",
    "Latency and throughput of `submit` against the offered load, for some values of `flush_timeout`.",
    (
        opt.sets(1_000_000), opt.seconds(2.0, "How long a load is offered."), opt.rounds(),
        opt.again("timeouts", str, "five values", "A `flush_timeout`, or `never`", "--flush-timeout",
                metavar="SECONDS", callback=None),
        opt.one_or_more("layouts", get_args(Layout), "both", "--layout"),
        opt.THREADS, opt.SEED, opt.keys(), opt.output("latency"),
    ),
    _latency,
)  # fmt: skip
_command(
    "gpu",
    "Throughput of both layouts on CUDA, compared with the plain batched scan.",
    (
        opt.sets(16_000_000), _QUERIES_OF_DEVICES, opt.rounds(5), opt.seconds(0.5), opt.THREADS, opt.SEED, opt.keys(),
        opt.skip(_names("systems.catalogue:SYSTEMS")), opt.output("gpu"),
    ),
    _gpu,
)  # fmt: skip
_command(
    "paper-scale",
    "The paper's 212 million sets, in steps that go on from the files of those before; says first what they take.",
    (
        opt.sets(212_000_000), opt.part(PARTS["paper-scale"]),
        opt.option("folder", Path, Path("paper-scale"), "Where sets and indexes stay between steps.", file_okay=False),
        opt.one_or_more("layouts", get_args(Layout), "both", "--layout"),
        opt.again("shares", int, "10, 20, 100", "Percent of the sets", "--share", min=1, max=100),
        _QUERIES_OF_DEVICES, opt.rounds(), opt.seconds(), opt.THREADS, opt.SEED, opt.keys(1.0),
        opt.skip(_names("systems.catalogue:SYSTEMS")), opt.output("paper-scale"),
    ),
    _paper_scale,
)  # fmt: skip
_command(
    "spark",
    "Partitioning and joins on Spark, in local mode, compared with the local partitioner and plain SQL.",
    (
        opt.again("sizes", int, "1, 4 and 8 million", "Distinct sets to partition", "--sets", min=1, max=opt.MOST_SETS),
        opt.whole("join_sets", 1_000_000, "Distinct stored sets of join and skew.", 1, opt.MOST_SETS),
        opt.queries(20_000, "Queries of join and skew."),
        opt.option("plan", float | None, None, "Plan a job of this number of sets, such as 1e10, by measured costs.",
                   min=1, max=1e15),
        opt.part(PARTS["spark"]), opt.rounds(), opt.THREADS, opt.SEED, opt.keys(), opt.output("spark"),
    ),
    _spark,
)  # fmt: skip


def _record(*, only: str | None) -> None:
    from tagmatch_bench.record import measure

    measure(only or "", partial(typer.echo, err=True))
    _pages()


def _pages() -> None:
    from tagmatch_bench.record import fill_pages

    for page in fill_pages():
        typer.echo(f"{page} has new numbers")


_command(
    "record",
    "Measure the results of `bench/record.toml` again, and fill in the pages of the documentation.",
    (
        opt.option(
            "only", str | None, None, "Results whose names begin so, such as two-cores/peers.", show_default=False
        ),
    ),
    _record,
)
_command("pages", "Fill in the tables and numbers of the documentation from the recorded results.", (), _pages)


def main() -> None:
    """Entry point of the command `tagmatch-bench`."""
    run(app)
