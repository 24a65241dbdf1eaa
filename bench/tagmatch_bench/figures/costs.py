"""Costs of an index: partitioning time (Figure 8), memory (Figure 9), and databases for comparison (Figures 10, 11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import DeviceError
from tagmatch.model.arrays import U64Array
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, signatures_of
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.pipeline.cuda import devices
from tagmatch_bench.figures import published
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.data import extend
from tagmatch_bench.harness.report import percent
from tagmatch_bench.harness.results import Panel, Result
from tagmatch_bench.harness.timing import Samples, alternate
from tagmatch_bench.systems.catalogue import (
    BALANCED,
    DATABASES,
    ICN,
    MONGODB,
    ON_CPU,
    OURS,
    OURS_ON_GPU,
    POSTGRESQL_GIN,
    POSTGRESQL_INTS,
    POSTGRESQL_RAREST,
    POSTGRESQL_SCAN,
    PREFIX_TREE,
    RAREST,
    Build,
    some,
)
from tagmatch_bench.systems.databases import Sharded
from tagmatch_bench.systems.matcher import Matcher, UnavailableError
from tagmatch_bench.systems.servers import PostgresServer
from tagmatch_bench.systems.signatures import signature_table
from tagmatch_bench.systems.tagmatch import Tagmatch, build_index, open_index

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
            segment, most = built[layouts[0]].only, LayoutOptions().max_partition_size
            words = signatures_of(segment.tagsets.ranks, segment.vocabulary.hashes, threads=threads)
            taken |= rounds({_ALGORITHM_1: partial(_partition, words, most, threads)})
        panel.add(_ALGORITHM_1, millions, taken[_ALGORITHM_1])
        for each in layouts:
            build = taken[OURS[each]]
            panel.add(f"{OURS[each]}, whole build", millions, build)
            if each in on_gpu:
                both = zip(build.values, taken[OURS_ON_GPU[each]].values, strict=True)
                panel.add(f"{OURS_ON_GPU[each]}, whole build", millions, Samples(tuple(map(sum, both))))
    return result


def _on_gpu(bench: Bench, result: Result) -> list[Layout]:
    """Return the layouts to measure on CUDA devices; if there are no devices, the result says so."""
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


def _partition(signatures: U64Array, most: int, threads: int) -> Any:
    return balanced_partitions(signatures.copy(), 0, most, threads=threads)


def fig9(bench: Bench) -> Result:
    """Memory against the size of the database."""
    result = bench.result(
        "fig9",
        "Figure 9: memory",
        f"""The paper tells host memory, almost all of it the key table, from GPU memory, almost all of it the tagset
        table; here it is the key table, and all other memory for matching: on the CPU and, for those named *GPU*,
        on CUDA devices too, and the CPU's memory for small calls. `tagmatch` keeps the tags to be
        exact, the trees and the paper's tagset table (24 bytes a signature) do not. The full database has
        {bench.in_words(bench.sets())} here.""",
    )
    keys = result.panel("key table", "database", "MB", log=False)
    rest = result.panel("all except the key table", "database", "MB", log=False)
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


#: Share of the full database, at scale 1, used for the paper's one million sets
_MILLION = 0.1
_VOCABULARY = 1 << 20
_MOST_QUERIES = 20_000


def fixed_size_sets(count: int, tags_per_set: int, seed: int) -> pa.Table:
    """Return distinct sets of `tags` tags, which follow Zipf's law over 1,048,576 tags; the key is the row number."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((0, tags_per_set), np.int64)
    while len(rows) < count:
        logarithms = rng.random((count + count // 4 + 8, tags_per_set)) * np.log(_VOCABULARY)
        drawn = np.sort(np.exp(logarithms).astype(np.int64))
        without_repeats = drawn[np.all(drawn[:, 1:] != drawn[:, :-1], axis=1)]
        rows = np.unique(np.concatenate([rows, without_repeats]), axis=0)
    rows = rng.permutation(rows)[:count]
    names = pc.binary_join_element_wise("t", pa.array(rows.ravel()).cast(pa.string()), "")
    offsets = pa.array(np.arange(0, count * tags_per_set + 1, tags_per_set, dtype=np.int32))
    tags = pa.ListArray.from_arrays(offsets, names)
    return pa.table({"tags": tags, "key": pa.array(np.arange(count, dtype=np.uint64))})


@cache
def _server() -> PostgresServer:
    """Return the PostgreSQL server of all experiments, which ends with the process."""
    return PostgresServer()


def _on_server(name: str) -> Build:
    return lambda sets, threads: DATABASES[name](sets, threads, server=_server())


_ON_POSTGRESQL = (POSTGRESQL_GIN, POSTGRESQL_SCAN, POSTGRESQL_RAREST, POSTGRESQL_INTS)


def _databases(bench: Bench) -> dict[str, Build]:
    return {
        **some((RAREST, BALANCED)),
        **DATABASES,
        **{name: _on_server(name) for name in _ON_POSTGRESQL},
        MONGODB: lambda sets, threads: DATABASES[MONGODB](sets, threads, uris=_first(bench.options.mongodb, 1)),
    }


@dataclass(frozen=True, slots=True)
class _Case:
    """A column of a panel: its stored sets and its queries."""

    panel: Panel
    column: str
    sets: int
    tags_per_set: int
    tags_per_query: int


def fig10(bench: Bench) -> Result:
    """Databases, by sizes of the database, of sets and of queries."""
    million = bench.sets(_MILLION)
    result = bench.result(
        "fig10",
        "Figure 10: comparison with databases",
        f"""`match` on sets of equal size whose tags follow Zipf's law; queries are a stored set and more tags. One
        million sets of the paper are {million:,} here, each with one key. {ON_CPU} The databases run on this machine,
        started by the benchmark; all are exact.""",
    )
    by_size = result.panel("sets of 3 tags, queries of 6", "million sets in the paper", "queries/s")
    by_set = result.panel(f"{million:,} sets, queries of 6 tags", "tags a set", "queries/s")
    by_query = result.panel(f"{million:,} sets of 2 tags", "tags a query", "queries/s")
    by_size.published = published.FIG10_SIZES
    by_query.published = published.FIG10_TAGMATCH
    cases = [
        *(_Case(by_size, str(millions), millions * million, 3, 6) for millions in (1, 3, 5)),
        *(_Case(by_set, str(tags), million, tags, 6) for tags in (2, 3, 4, 5)),
        *(_Case(by_query, str(tags), million, 2, tags) for tags in (4, 6, 8, 10)),
    ]
    stored = sorted({(case.sets, case.tags_per_set) for case in cases})
    for count, tags_per_set in stored:
        sets = fixed_size_sets(count, tags_per_set, bench.options.seed)
        with bench.built(_databases(bench), sets, result) as matchers:
            for case in cases:
                if (case.sets, case.tags_per_set) == (count, tags_per_set):
                    _measure(bench, result, case, sets, matchers)
    return result


def _queries(bench: Bench) -> int:
    return min(bench.options.queries, _MOST_QUERIES)


def _measure(bench: Bench, result: Result, case: _Case, sets: pa.Table, matchers: dict[str, Matcher[Any]]) -> None:
    extra = case.tags_per_query - case.tags_per_set
    queries = extend(sets, _queries(bench), extra, extra, bench.options.seed)
    where = f"{case.panel.title}, {case.panel.x_label} {case.column}"
    for name, rate in bench.throughput(result, where, matchers, sets, queries).items():
        case.panel.add(name, case.column, rate.queries)


def _sharded(bench: Bench, shards: int) -> dict[str, Build]:
    shard = _on_server(POSTGRESQL_SCAN)
    return {
        POSTGRESQL_SCAN: lambda sets, _: Sharded(lambda share: shard(share, 1), sets, shards),
        MONGODB: lambda sets, threads: DATABASES[MONGODB](sets, threads, uris=_first(bench.options.mongodb, shards)),
    }


def _first(uris: tuple[str, ...], servers: int) -> tuple[str, ...]:
    if len(uris) < servers:
        raise UnavailableError(f"needs running servers, {servers} of them; give --mongodb URI for each")
    return uris[:servers]


def fig11(bench: Bench) -> Result:
    """A database in shards."""
    count = 3 * bench.sets(_MILLION)
    result = bench.result(
        "fig11",
        "Figure 11: a database in shards",
        f"""{count:,} sets of 3 tags with one key each, queries of 6 tags; the rows are dealt out, and every query goes
        to all shards at once. A shard of PostgreSQL is a table and a server process. The paper shards MongoDB over
        processes on 24 cores.""",
    )
    panel = result.panel("match", "shards", "queries/s", "lines")
    speed_up = result.panel("speed-up", "shards", "times one shard", "lines", log=False)
    speed_up.published = published.FIG11_SPEED_UP
    sets = fixed_size_sets(count, 3, bench.options.seed)
    queries = extend(sets, _queries(bench), 3, 3, bench.options.seed)
    for shards in (1, 2, 4, 8):
        with bench.built(_sharded(bench, shards), sets, result) as matchers:
            for name, rate in bench.throughput(result, f"{shards} shards", matchers, sets, queries).items():
                panel.add(name, float(shards), rate.queries)
    speed_up.add_ratios(panel, 1.0)
    return result
