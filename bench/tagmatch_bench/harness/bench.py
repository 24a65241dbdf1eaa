"""What all experiments need: data at the asked scale, systems built from it, their throughput, and the results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import pyarrow as pa
from rich.console import Console

from tagmatch import DeviceError
from tagmatch.cli.shared import status
from tagmatch.files.formats import write_whole
from tagmatch.pipeline.cuda import devices
from tagmatch_bench.harness.data import KEYS_PER_SET, Workload, make_workload
from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.report import draw, facts_by_panel, markdown, write_json
from tagmatch_bench.harness.results import Result
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.matcher import CallSize, Matcher, UnavailableError, call_size_of, count_keys, kept

System = TypeVar("System", bound=Matcher[Any])
Built = TypeVar("Built")

#: Gives the right answers to queries, each key once if asked so
Right: TypeAlias = Callable[[pa.ListArray, bool], list[list[int]]]

#: Distinct sets of the full database at scale 1; the paper's has 212 million (§4.2.1)
FULL_SETS = 1_000_000

_QUERIES = 200_000

# Those of a call that gives each of a CUDA device's 8 threads 3 full packets
_QUERIES_OF_DEVICES = 24 << 18

# Keys of the answers of one call, at most, of a system that gets many queries so that its batches are full: 2 GiB
_MOST_KEYS = 1 << 28

# Answers compared: of all queries that were timed, but not fewer than this
_FEWEST_CHECKED = 25


# Queries whose keys are counted, from which it is known how many a call may have
_COUNTED = 1000

# Default size of the largest database that is partitioned: at most, a core, and bytes of memory a set
_PARTITIONED, _PARTITIONED_BY_CORE, _PARTITIONED_BYTES = 16_000_000, 1_000_000, 4096


def usual_partitioned(threads: int) -> int:
    """Return how many sets Figure 8 goes up to by default, so that it takes minutes and fits memory."""
    by_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _PARTITIONED_BYTES
    return min(_PARTITIONED, _PARTITIONED_BY_CORE * threads, by_memory)


def usual_queries_in_batches() -> int:
    """Return how many queries a call to CUDA devices has at most by default: enough for full packets."""
    try:
        devices()
    except DeviceError:
        return _QUERIES
    return _QUERIES_OF_DEVICES


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Parameters of all experiments."""

    scale: float = 1.0  # size of the full database in millions of distinct sets
    threads: int = 1  # threads of every system
    queries: int = _QUERIES  # most queries of one measured call
    rounds: int = 3  # measurements that a median is taken of
    seconds: float = 0.2  # what one measured call takes, about
    seed: int = 1  # of the workload
    keys_per_set: float = KEYS_PER_SET  # keys that a set has in the mean
    mongodb: tuple[str, ...] = ()  # URIs of running MongoDB servers; several are shards
    skip: tuple[str, ...] = ()  # systems that are left out
    # distinct sets of the largest database that is partitioned (Figure 8); default: the full database
    partitioned: int | None = None
    checked: int = 1000  # most answers compared of a system at one place
    # most queries of a call to a system that is slower with few, as CUDA devices are; default: `queries`
    queries_in_batches: int | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Throughput of a system: queries a second, and keys that one query's answer has in the mean."""

    queries: Samples
    keys_per_query: float

    @property
    def keys(self) -> Samples:
        """Keys a second."""
        return Samples(tuple(rate * self.keys_per_query for rate in self.queries.values))


class Bench:
    """Makes data, builds systems and measures them; tells on `console`, if it is a terminal, what it is doing."""

    def __init__(self, options: BenchOptions, console: Console) -> None:
        self.options = options
        self._console = console
        self.workload = lru_cache(maxsize=8)(self._workload)

    def doing(self, what: str) -> contextlib.AbstractContextManager[object]:
        """Show the current work."""
        return status(what, self._console)

    def result(self, name: str, title: str, about: str, **parameters: Any) -> Result:
        """Begin a result; the options are among its parameters."""
        given = {what: str(value) if isinstance(value, Path) else value for what, value in parameters.items()}
        return Result(name, asdict(self.options) | given, title, " ".join(about.split()))

    def do(self, works: Mapping[str, Callable[[], object]], wanted: Iterable[str], what: str = "") -> None:
        """Do the wanted works, in their own order; `what` describes them."""
        chosen = set(wanted)
        for part, work in works.items():
            if part in chosen:
                with self.doing(f"{what} {part}") if what else contextlib.nullcontext():
                    work()

    def in_words(self, sets: int) -> str:
        """Say of how many sets and keys a workload is."""
        workload = self.workload(sets)
        return f"{workload.distinct:,} distinct sets with {workload.keys_per_set:.3g} keys each in the mean"

    def sets(self, share: float = 1.0) -> int:
        """Return the number of distinct sets in a share of the full database."""
        return max(1, round(share * self.options.scale * FULL_SETS))

    def _workload(self, sets: int, keys_per_set: float | None = None) -> Workload:
        options = self.options
        keys = options.keys_per_set if keys_per_set is None else keys_per_set
        with self.doing(f"generating {sets:,} sets"):
            return make_workload(sets, self.queries, options.seed, options.threads, keys_per_set=keys)

    @property
    def queries(self) -> int:
        """Queries that a workload needs."""
        return max(self.options.queries, self.options.queries_in_batches or 0)

    def wanted(self, systems: Iterable[str]) -> list[str]:
        """Leave out the skipped systems."""
        return [name for name in systems if name not in self.options.skip]

    @contextlib.contextmanager
    def built(
        self, systems: Mapping[str, Callable[[Any, int], System]], sets: Any, result: Result
    ) -> Iterator[dict[str, System]]:
        """Build systems, closed at the end; those that cannot run here are noted in the result."""
        with contextlib.ExitStack() as stack:
            builds = {name: partial(build, sets, self.options.threads) for name, build in systems.items()}
            yield self.build(result, builds, stack, f"{len(sets):,} sets")

    def build(
        self, result: Result, builds: Mapping[str, Callable[[], Built]], stack: contextlib.ExitStack | None, where: str
    ) -> dict[str, Built]:
        """Build systems, closed with a stack; those to be skipped, or that cannot run here, are noted in the result."""
        built: dict[str, Built] = {}
        for name, build in builds.items():
            if name in self.options.skip:
                result.unavailable[name] = "skipped"
                continue
            with self.doing(f"{result.name}: building {name}, {where}"):
                try:
                    built[name] = build()
                except UnavailableError as error:
                    result.unavailable[name] = str(error)
                    continue
            if stack is not None:
                stack.callback(cast("Any", built[name]).close)
        return built

    def rates(
        self, what: str, works: Mapping[str, Callable[[int], object]], items: int, sizes: Mapping[str, CallSize] = {}
    ) -> dict[str, Samples]:
        """Items a second of each work, in turns, in calls with up to `items` items."""
        with self.doing(what):
            return rates(works, items, rounds=self.options.rounds, seconds=self.options.seconds, sizes=sizes)

    def throughput(
        self,
        result: Result,
        where: str,
        matchers: Mapping[str, Matcher[Any]],
        sets: pa.Table | Right,
        queries: pa.ListArray,
        *,
        unique: bool = False,
    ) -> dict[str, Rate]:
        """Measure all matchers in turn on the same queries, and compare their answers with those of brute force.

        `sets` are the stored ones, or what gives the right answers.
        """
        options = self.options
        most = {
            name: min(len(queries), options.queries if call_size_of(matcher) is None else self.queries)
            for name, matcher in matchers.items()
        }
        prepared = {name: matcher.prepare(queries[: most[name]]) for name, matcher in matchers.items()}

        def ask(name: str, count: int) -> Any:
            return matchers[name].match_many(prepared[name][:count], unique=unique)

        works = {name: partial(ask, name) for name in matchers}
        sizes = {name: replace(_call_size(each, works[name]), most=most[name]) for name, each in matchers.items()}
        measured = self.rates(f"{result.name}: matching, {where}", works, len(queries), sizes)
        with self.doing(f"{result.name}: checking, {where}"):
            checked = {
                name: min(max(samples.items, _FEWEST_CHECKED), options.checked, most[name])
                for name, samples in measured.items()
            }
            right = self._right(sets, queries, unique) if checked else []
            found = {}
            for name, count in checked.items():
                # Whole batches here as well, as fewer queries may be matched in another way
                asked = min(most[name], max(count, sizes[name].whole))
                answers = ask(name, asked)[:count]
                result.compare(where, name, answers, right[:count], exact=matchers[name].exact)
                found[name] = Rate(measured[name], result.answers[-1].keys / count)
        return found

    def _right(self, sets: pa.Table | Right, queries: pa.ListArray, unique: bool) -> list[list[int]]:
        most = self.options.checked
        if callable(sets):
            return sets(queries[:most], unique)
        return _right_answers(sets, queries, unique, threads=self.options.threads, most=most)


@kept
def _right_answers(sets: pa.Table, queries: pa.ListArray, unique: bool, *, threads: int, most: int) -> list[list[int]]:
    """Return the right answers to as many of the queries as may be compared."""
    return right_answers(sets, queries[:most], unique=unique, threads=threads)


def _call_size(matcher: Matcher[Any], ask: Callable[[int], Any]) -> CallSize:
    """Return how many queries a call should have: enough for full batches, if their answers are not too large."""
    size = call_size_of(matcher)
    if size is None:
        return CallSize()
    answers = ask(_COUNTED)
    most = max(1, _MOST_KEYS * len(answers) // max(1, count_keys(answers)))
    return CallSize(min(size.whole, most), min(size.full, most))


#: Measures what a table or figure shows
Experiment: TypeAlias = "Callable[[Bench], Result]"


def run(experiments: Iterable[Experiment], options: BenchOptions, folder: Path, console: Console) -> list[Result]:
    """Run experiments in turn; each writes NAME.json, NAME.md and NAME.png to the folder when it is done."""
    bench = Bench(options, console)
    results = []
    for experiment in experiments:
        result = experiment(bench)
        write_json(facts_by_panel(result), folder / f"{result.name}.json")
        with write_whole(folder / f"{result.name}.md") as part:
            part.write_text(markdown(result))
        with write_whole(folder / f"{result.name}.png") as part:
            draw(result, part)
        results.append(result)
    return results
