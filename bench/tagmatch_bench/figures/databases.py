"""Databases beside tagmatch: sizes, tags a set and tags a query (Figure 10), and sharding (Figure 11)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch_bench.figures import published
from tagmatch_bench.harness.data import extend
from tagmatch_bench.systems.catalogue import (
    BALANCED,
    DATABASES,
    MONGODB,
    ON_CPU,
    POSTGRESQL_GIN,
    POSTGRESQL_SCAN,
    RAREST,
    Build,
    some,
)
from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.sharded import Sharded

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Panel, Result
    from tagmatch_bench.systems.matcher import Matcher
    from tagmatch_bench.systems.postgres_server import PostgresServer

#: Share of the full database, at scale 1, that stands for the paper's one million sets
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
    from tagmatch_bench.systems.postgres_server import PostgresServer

    return PostgresServer()


def _on_server(name: str) -> Build:
    return lambda sets, threads: DATABASES[name](sets, threads, server=_server())


def _databases(bench: Bench) -> dict[str, Build]:
    return {
        **some((RAREST, BALANCED)),
        **DATABASES,
        POSTGRESQL_GIN: _on_server(POSTGRESQL_GIN),
        POSTGRESQL_SCAN: _on_server(POSTGRESQL_SCAN),
        MONGODB: lambda sets, threads: DATABASES[MONGODB](sets, threads, uris=_first(bench.options.mongodb, 1)),
    }


@dataclass(frozen=True, slots=True)
class _Case:
    """A column of a panel: what is stored and what is asked."""

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
