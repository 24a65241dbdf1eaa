"""Both layouts on the CPU, a Python dict and a NumPy scan: builds, their growth and memory, and `match_many`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.processes import memory_of_build
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import alternate
from tagmatch_bench.systems.catalogue import BALANCED, CPU_ONLY, ON_CPU, OURS, PYTHON_DICT, RAREST, Build, System, some
from tagmatch_bench.systems.tagmatch import DictionaryEncoded, build_index

_SCAN = "NumPy scan of signatures"
_ENCODED = ", dictionary-encoded"
_GROWTH = 8
_BUILD_ROUNDS = 3

#: What each is compared with, and how many times as fast it should be
_BASELINES = {RAREST: (PYTHON_DICT, Target(8, goal=30)), BALANCED: (_SCAN, Target(20)), CPU_ONLY: (_SCAN, Target(20))}
_BUILD_SECONDS = Target(6, at_most=True)
_PEAK_BYTES = Target(400, at_most=True)
_RESIDENT = Target(1.1, at_most=True)
_INDEX_BYTES = Target(80, goal=40, at_most=True)
_GROWTH_RATIO = Target(10, goal=8.5, at_most=True)


def cpu(bench: Bench, *, growth: bool = True) -> Result:
    """Build and match on the CPU."""
    result = bench.result(
        "cpu",
        "Both layouts on the CPU",
        f"""{bench.in_words(bench.sets())}. {ON_CPU} A *build* is `add_sets` and `consolidate` from Arrow columns; its
        *peak* is that of a new process, with its input, *resident* what it has when the input is gone, and *growth* how
        many times as long one of {_GROWTH}
        times as many sets takes. The dict is Python's, on one core, and the scan NumPy's, of all signatures.""",
        growth=growth,
    )
    workload = bench.workload(bench.sets())
    sets, queries = workload.sets, workload.queries
    sizes = {1: sets} | ({_GROWTH: bench.workload(_GROWTH * bench.sets()).sets} if growth else {})
    for layout, name in OURS.items():
        build = partial(build_index, layout=layout, threads=bench.options.threads, device="cpu")
        build(sets[:1000]).close()  # compiles
        with bench.doing(f"cpu: building, {name}"):
            seconds = alternate({str(size): partial(build, some) for size, some in sizes.items()}, _BUILD_ROUNDS)
        result.add(f"{name}: build", seconds["1"], "s", _BUILD_SECONDS)
        if more := seconds.get(str(_GROWTH)):
            result.add(f"{name}: build of {_GROWTH} times as many sets", more, "s")
            result.add(f"{name}: growth", more.over(seconds["1"]), "times", _GROWTH_RATIO)
    with bench.doing("cpu: building in new processes"):
        for layout, name in OURS.items():
            memory = memory_of_build(sets, layout, bench.options.threads)
            result.add(f"{name}: peak of a build", memory.peak / len(sets), "B a pair of set and key", _PEAK_BYTES)
            kept = memory.kept / len(sets)
            result.add(f"{name}: resident after a build", kept, "B a pair of set and key")
            result.add(f"{name}: resident, of what `stats()` says", memory.kept / memory.indexed, "times", _RESIDENT)
    scan = System("signatures:SignatureScan")
    systems: dict[str, Build] = some([RAREST, BALANCED, CPU_ONLY, PYTHON_DICT]) | {_SCAN: scan}
    with bench.built(systems, sets, result) as matchers:
        own: dict[str, Any] = {name: matchers[name] for name in OURS.values()}
        for name, matcher in own.items():
            stats = matcher.index.stats()
            result.add(f"{name}: index", stats["index_bytes"] / stats["sets"], "B a set")
            beyond = (stats["index_bytes"] - stats["key_bytes"]) / stats["sets"]
            result.add(f"{name}: index, beyond the keys", beyond, "B a set", _INDEX_BYTES)
        encoded: dict[str, Any] = {name + _ENCODED: DictionaryEncoded(matcher) for name, matcher in own.items()}
        found = bench.throughput(result, "match_many", matchers | encoded, sets, queries)
    rates = {name: rate.queries for name, rate in found.items()}
    result.panel("match_many", "distinct sets", "queries/s").add_all(rates, f"{bench.sets():,}")
    for name, (baseline, target) in _BASELINES.items():
        result.add(f"{name}: against {baseline}", rates[name].over(rates[baseline]), "times", target)
    for name in encoded:
        result.add(f"{name}: against plain strings", rates[name].over(rates[name.removesuffix(_ENCODED)]), "times")
    return result
