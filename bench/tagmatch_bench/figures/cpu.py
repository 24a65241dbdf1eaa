"""`tagmatch-bench cpu`: both layouts on the CPU, beside a pure-Python dict and a NumPy scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

import pyarrow as pa
from rich.console import Console

from tagmatch import TagMatch
from tagmatch.cli.shared import status
from tagmatch.model.layouts import LAYOUTS
from tagmatch.model.options import Layout
from tagmatch_bench.harness.data import KEYS_PER_SET, Workload, make_workload
from tagmatch_bench.harness.processes import peak_of_build
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import alternate, rates
from tagmatch_bench.systems.hash_tables import RarestTagDict
from tagmatch_bench.systems.matcher import Answers, Matcher, count_keys, wrong_and_missing
from tagmatch_bench.systems.signatures import SignatureScan
from tagmatch_bench.systems.tagmatch import DictionaryEncoded, Tagmatch, build_index

_DICT = "RarestTagDict"
_SCAN = "SignatureScan"
_LAYOUTS: tuple[Layout, ...] = get_args(Layout)
_INDEXES: tuple[tuple[Layout, bool], ...] = tuple(
    (name, exact) for name, rules in LAYOUTS.items() for exact in (True, False) if exact or not rules.compares_tags
)
_GROWTH = 8
_MATCH_ROUNDS = 7
_BUILD_ROUNDS = 3
_SECONDS_A_CALL = 1.0
_CHECKED_QUERIES = 1000
_WARM_UP_SETS = 1000

_AGAINST_DICT = Target(8, goal=30)
_AGAINST_SCAN = Target(20)
_BASELINES: dict[Layout, tuple[str, Target]] = {"rarest": (_DICT, _AGAINST_DICT)}
_BUILD_SECONDS = Target(6, at_most=True)
_PEAK_BYTES = Target(400, at_most=True)
_INDEX_BYTES = Target(80, goal=40, at_most=True)
_GROWTH_RATIO = Target(10, goal=8.5, at_most=True)
_NONE = Target(0, at_most=True, required=True)


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """Parameters of the benchmark; see the command's help."""

    sets: int = 1_000_000
    queries: int = 200_000
    threads: int = 1
    growth: bool = True
    seed: int = 1
    keys_per_set: float = KEYS_PER_SET


@dataclass(frozen=True, slots=True)
class _System:
    """A system that answers queries; `ask(n)` gives its answers to the first `n`."""

    exact: bool
    ask: Callable[[int], Answers]


def measure(options: CpuOptions, console: Console) -> Result:
    """Run the benchmark; tells on `console`, if it is a terminal, what it is doing."""
    result = Result("cpu", asdict(options))
    doing = partial(status, console=console)

    with doing("generating the workload"):
        workload = _workload(options, options.sets, options.queries)
    with doing("compiling"):
        _warm_up(workload, options.threads)
    with doing("building"):
        for layout, seconds in alternate(_builds(workload.sets, options.threads), _BUILD_ROUNDS).items():
            result.add(layout, seconds, "s", _BUILD_SECONDS, section="build: add_sets, consolidate")
    with doing("building in processes of their own"):
        for name in _LAYOUTS:
            peak = peak_of_build(workload.sets, name, options.threads) / len(workload.sets)
            result.add(name, peak, "B a pair of set and key", _PEAK_BYTES, section="peak memory of build and input")
    if options.growth:
        with doing(f"building {_GROWTH} times as many sets"):
            _measure_growth(result, workload.sets, options)
    with doing("building the baselines"):
        systems = _systems(result, workload, options)
    with doing("matching"):
        _measure_matching(result, systems, options)
    with doing("checking answers"):
        _check_answers(result, systems, options)
    return result


def _workload(options: CpuOptions, sets: int, queries: int) -> Workload:
    return make_workload(sets, queries, options.seed, options.threads, keys_per_set=options.keys_per_set)


def _warm_up(workload: Workload, threads: int) -> None:
    few = workload.sets.slice(0, _WARM_UP_SETS)
    for layout, exact in _INDEXES:
        with build_index(few, layout=layout, exact=exact, threads=threads, device="cpu") as tm:
            tm.match_many(workload.queries.slice(0, _WARM_UP_SETS))


def _builds(sets: pa.Table, threads: int) -> dict[str, Callable[[], TagMatch]]:
    return {name: partial(build_index, sets, layout=name, threads=threads, device="cpu") for name in _LAYOUTS}


def _measure_growth(result: Result, sets: pa.Table, options: CpuOptions) -> None:
    more = _workload(options, _GROWTH * options.sets, 1).sets
    few_builds, more_builds = _builds(sets, options.threads), _builds(more, options.threads)
    for name in _LAYOUTS:
        seconds = alternate({"few": few_builds[name], "more": more_builds[name]}, _BUILD_ROUNDS)
        section = f"build of {_GROWTH} times as many sets"
        result.add(name, seconds["more"], "s", section=section)
        result.add(f"{name}, growth", seconds["more"].over(seconds["few"]), "times", _GROWTH_RATIO, section=section)


def _systems(result: Result, workload: Workload, options: CpuOptions) -> dict[str, _System]:
    """Build all systems; what the indexes take in memory is reported."""
    matchers: dict[str, Matcher[Any]] = {}
    for layout, exact in _INDEXES:
        matcher = Tagmatch(workload.sets, layout=layout, exact=exact, threads=options.threads, device="cpu")
        matchers[_index_name(layout, exact)] = matcher
        if exact:
            stats = matcher.index.stats()
            result.add(layout, stats["index_bytes"] / stats["sets"], "B a set", section="memory of index")
            beyond_keys = (stats["index_bytes"] - stats["key_bytes"]) / stats["sets"]
            result.add(f"{layout}, beyond the keys", beyond_keys, "B a set", _INDEX_BYTES, section="memory of index")
    matchers |= {_encoded_name(name): DictionaryEncoded(matchers[name]) for name in _LAYOUTS}
    matchers |= {_DICT: RarestTagDict(workload.sets), _SCAN: SignatureScan(workload.sets, threads=options.threads)}
    return {name: _system(matcher, workload.queries) for name, matcher in matchers.items()}


def _system(matcher: Matcher[Any], queries: pa.ListArray) -> _System:
    prepared = matcher.prepare(queries)
    return _System(matcher.exact, lambda count: matcher.match_many(prepared[:count]))


def _index_name(layout: Layout, exact: bool) -> str:
    return layout if exact else f"{layout}, exact=False"


def _encoded_name(layout: Layout) -> str:
    return f"{layout}, dictionary-encoded"


def _measure_matching(result: Result, systems: dict[str, _System], options: CpuOptions) -> None:
    works = {name: system.ask for name, system in systems.items()}
    measured = rates(works, options.queries, rounds=_MATCH_ROUNDS, seconds=_SECONDS_A_CALL)
    for name, rate in measured.items():
        result.add(name, rate, "queries/s", section="match_many")
    for layout, exact in _INDEXES:
        baseline, target = _BASELINES.get(layout, (_SCAN, _AGAINST_SCAN))
        name = _index_name(layout, exact)
        result.add(name, measured[name].over(measured[baseline]), "times", target, section=f"against {baseline}")
    for plain, encoded in ((each, _encoded_name(each)) for each in _LAYOUTS):
        result.add(encoded, measured[encoded].over(measured[plain]), "times", section="against plain strings")


def _check_answers(result: Result, systems: dict[str, _System], options: CpuOptions) -> None:
    count = min(options.queries, _CHECKED_QUERIES)
    right = systems[_DICT].ask(count)
    section = f"keys of the first {count:,} queries"
    result.add(_DICT, count_keys(right), "keys", section=section)
    for name, system in systems.items():
        if name != _DICT:
            wrong, missing = wrong_and_missing(system.ask(count), right)
            result.add(f"{name}, wrong", wrong, "keys", _NONE if system.exact else None, section=section)
            result.add(f"{name}, missing", missing, "keys", _NONE, section=section)
    counts = {name: count_keys(system.ask(options.queries)) for name, system in systems.items() if system.exact}
    section = f"keys of all {options.queries:,} queries"
    result.add(_DICT, counts[_DICT], "keys", section=section)
    for name, found in counts.items():
        if name != _DICT:
            result.add(f"{name}, more or fewer", abs(found - counts[_DICT]), "keys", _NONE, section=section)
