"""What an index costs: time of partitioning (Figure 8) and memory (Figure 9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tagmatch.model.errors import DeviceError
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, signatures_of
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.pipeline.cuda.support import devices
from tagmatch_bench.figures import published
from tagmatch_bench.harness.report import percent
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.systems.catalogue import BALANCED, ICN, OURS, OURS_ON_GPU, PREFIX_TREE, RAREST, some
from tagmatch_bench.systems.signatures import signature_table
from tagmatch_bench.systems.tagmatch import Tagmatch, build_index, open_index

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tagmatch.model.arrays import U64Array
    from tagmatch.model.tables import Segment
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

_ALGORITHM_1 = "Algorithm 1 alone"
_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
_MEGABYTE = 1e6

#: Shares of the largest database of Figure 8
_SHARES_OF_LARGEST = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
#: Seconds after which nothing is built once more, only to be timed again
_MOST_SECONDS = 5.0


def fig8(bench: Bench) -> Result:
    """Time of partitioning against the size of the database."""
    largest = bench.options.partitioned or bench.sets()
    result = bench.result(
        "fig8",
        "Figure 8: time of partitioning",
        f"""*Algorithm 1 alone* takes signatures and gives the partition table and the order of the tagset table; a
        build is `add_sets` and `consolidate`, from Arrow strings to a whole index, on the CPU; those named *GPU* go on
        until CUDA devices have its tables. `MAX_P` is {LayoutOptions().max_partition_size:,}. What takes more than
        {_MOST_SECONDS:g} seconds is measured once. The largest database has {bench.in_words(largest)} here; the paper
        measured up to 212 million sets.""",
        max_partition_size=LayoutOptions().max_partition_size,
        largest=largest,
    )
    panel = result.panel("partitioning", "million sets", "s", "lines", published=published.FIG8)
    threads = bench.options.threads
    rounds = partial(alternate, rounds=bench.options.rounds, most_seconds=_MOST_SECONDS)
    layouts = [layout for layout, name in OURS.items() if name in bench.wanted(OURS.values())]
    on_gpu = [each for each in _on_gpu(bench, result) if each in layouts]
    for number, share in enumerate(_SHARES_OF_LARGEST if layouts else ()):
        workload = bench.workload(max(1, round(share * largest)))
        millions, built = workload.distinct / 1e6, dict[Layout, Snapshot]()
        works: dict[str, Callable[[], object]] = {
            OURS[each]: partial(_build, built, each, workload.sets, threads) for each in layouts
        }
        works |= {OURS_ON_GPU[each]: partial(_to_devices, built, each, threads) for each in on_gpu}
        with bench.doing(f"fig8: partitioning {workload.distinct:,} sets"):
            for work in works.values() if number == 0 else ():
                work()  # compiles
            taken = rounds(works)
            words = _signatures(built[layouts[0]].only, threads)
            taken |= rounds({_ALGORITHM_1: partial(_partition, words, threads)})
        panel.add(_ALGORITHM_1, millions, taken[_ALGORITHM_1])
        for each in layouts:
            build = taken[OURS[each]]
            panel.add(f"{OURS[each]}, whole build", millions, build)
            if each in on_gpu:
                both = zip(build.values, taken[OURS_ON_GPU[each]].values, strict=True)
                panel.add(f"{OURS_ON_GPU[each]}, whole build", millions, Samples(tuple(map(sum, both))))
    return result


def _on_gpu(bench: Bench, result: Result) -> list[Layout]:
    """Return the layouts that are to be measured on CUDA devices; says in the result why there are none."""
    wanted = [layout for layout, name in OURS_ON_GPU.items() if name in bench.wanted(OURS_ON_GPU.values())]
    try:
        devices()
    except DeviceError as error:
        result.unavailable |= {OURS_ON_GPU[each]: str(error) for each in wanted}
        return []
    return wanted


def _build(built: dict[Layout, Snapshot], layout: Layout, sets: pa.Table, threads: int) -> None:
    """Build an index on the CPU."""
    with build_index(sets, layout=layout, threads=threads, device="cpu") as index:
        built[layout] = index.snapshot


def _to_devices(built: dict[Layout, Snapshot], layout: Layout, threads: int) -> None:
    """Give CUDA devices the tables of the index that was built last."""
    open_index(lambda _: built[layout], layout=layout, threads=threads, device="cuda").close()


def _signatures(segment: Segment, threads: int) -> U64Array:
    return signatures_of(segment.tagsets.ranks, segment.vocabulary.hashes, threads=threads)


def _partition(signatures: U64Array, threads: int) -> Any:
    return balanced_partitions(signatures.copy(), 0, LayoutOptions().max_partition_size, threads=threads)


def fig9(bench: Bench) -> Result:
    """Memory against the size of the database."""
    result = bench.result(
        "fig9",
        "Figure 9: memory",
        f"""The paper tells host memory, almost all of it the key table, from GPU memory, almost all of it the tagset
        table; here it is the key table, and all that is kept beside it to match: on the CPU and, for those named *GPU*,
        on CUDA devices too, beside what the CPU needs for small calls. `tagmatch` keeps the tags to be
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
