"""What an index costs: time of partitioning (Figure 8) and memory (Figure 9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.options import LayoutOptions
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.workloads.bench.figures import published
from tagmatch.workloads.bench.harness.report import percent
from tagmatch.workloads.bench.harness.timing import alternate
from tagmatch.workloads.systems.catalogue import BALANCED, ICN, OURS_ON_GPU, PREFIX_TREE, RAREST, SYSTEMS, some
from tagmatch.workloads.systems.signatures import signature_table
from tagmatch.workloads.systems.tagmatch import Tagmatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import U64Array
    from tagmatch.workloads.bench.harness.bench import Bench
    from tagmatch.workloads.bench.harness.results import Result

_ALGORITHM_1 = "Algorithm 1 alone"
_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
_MEGABYTE = 1e6


def fig8(bench: Bench) -> Result:
    """Time of partitioning against the size of the database."""
    result = bench.result(
        "fig8",
        "Figure 8: time of partitioning",
        f"""*Algorithm 1 alone* takes signatures and gives the partition table and the order of the tagset table; a
        build is `add_sets` and `consolidate`, from Arrow strings to a whole index, on the CPU. `MAX_P` is
        {LayoutOptions().max_partition_size:,}. The full database has {bench.in_words(bench.sets())} here; the paper
        measured up to 212 million sets.""",
        max_partition_size=LayoutOptions().max_partition_size,
    )
    panel = result.panel("partitioning", "million sets", "s", "lines", published=published.FIG8)
    threads = bench.options.threads
    for share in _SHARES:
        workload = bench.workload(bench.sets(share))
        sets = workload.sets
        words = signature_table(sets, threads=threads).signatures
        works: dict[str, Callable[[], object]] = {
            _ALGORITHM_1: partial(_partition, words, threads),
        }
        for name in bench.wanted((BALANCED, RAREST)):
            works[f"{name}, whole build"] = partial(SYSTEMS[name], sets, threads)
        with bench.doing(f"fig8: partitioning {workload.distinct:,} sets"):
            for work in works.values():
                work()
            for name, seconds in alternate(works, bench.options.rounds).items():
                panel.add(name, workload.distinct / 1e6, seconds)
    return result


def _partition(signatures: U64Array, threads: int) -> Any:
    return balanced_partitions(signatures.copy(), 0, LayoutOptions().max_partition_size, threads=threads)


def fig9(bench: Bench) -> Result:
    """Memory against the size of the database."""
    result = bench.result(
        "fig9",
        "Figure 9: memory",
        f"""The paper tells host memory, almost all of it the key table, from GPU memory, almost all of it the tagset
        table; here it is the key table, and all that is kept beside it to match, on the device too where a GPU
        matches (`tagmatch` then has what the CPU needs for small calls as well). `tagmatch` keeps the tags to be
        exact, the trees and the paper's tagset table (24 bytes a signature) do not. The full database has
        {bench.in_words(bench.sets())} here.""",
    )
    keys = result.panel("key table", "database", "MB", log=False)
    rest = result.panel("all beside the key table", "database", "MB", log=False)
    for share in _SHARES:
        sets, column = bench.workload(bench.sets(share)).sets, percent(share)
        table = signature_table(sets, threads=bench.options.threads)
        with bench.built(some((RAREST, BALANCED, *OURS_ON_GPU.values(), PREFIX_TREE, ICN)), sets, result) as matchers:
            for name, matcher in matchers.items():
                key_bytes = matcher.index.stats()["key_bytes"] if isinstance(matcher, Tagmatch) else table.keys.nbytes
                keys.add(name, column, key_bytes / _MEGABYTE)
                rest.add(name, column, ((matcher.nbytes() or 0) - key_bytes) / _MEGABYTE)
        signature_bytes = len(table) * SIGNATURE_WORDS * np.dtype(np.uint64).itemsize
        rest.add("signatures alone (the paper's tagset table)", column, signature_bytes / _MEGABYTE)
    return result
