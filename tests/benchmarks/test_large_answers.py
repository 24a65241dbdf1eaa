"""Answers of thousands of keys, on all threads: `pytest tests/benchmarks/test_large_answers.py --benchmark-only`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tagmatch import TagMatch
from tagmatch.model.options import Layout

_DATA = Path(__file__).parents[2] / "examples" / "data" / "debian_tags.parquet"


@pytest.fixture(scope="module")
def packages() -> pa.Table:
    return pq.read_table(_DATA)


@pytest.fixture(scope="module", params=get_args(Layout))
def index(request: pytest.FixtureRequest, packages: pa.Table) -> Iterator[TagMatch]:
    layout: Layout = request.param
    with TagMatch(layout=layout, max_partition_size=1_000, device="cpu") as tm:
        tm.add_sets(packages["tags"], packages["key"])
        tm.consolidate()
        yield tm


@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
def test_debian_packages(benchmark: BenchmarkFixture, index: TagMatch, packages: pa.Table, unique: bool) -> None:
    """What `make demo` asks: 3,512 keys a query; `--benchmark-json` has the nanoseconds a key."""
    answers = benchmark(index.match_many, packages["tags"], unique=unique)
    keys = len(answers.values)
    assert keys > 3_000 * len(packages)
    if benchmark.stats is not None:
        benchmark.extra_info["ns a key"] = 1e9 * benchmark.stats.stats.median / keys
