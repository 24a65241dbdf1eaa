"""Answers of thousands of keys, on all threads: `pytest tests/benchmarks/test_large_answers.py --benchmark-only`."""

from pathlib import Path
from typing import get_args

import pyarrow.parquet as pq
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.agreement import index_of

from tagmatch.model.options import Layout

_DATA = Path(__file__).parents[2] / "examples" / "data" / "debian_tags.parquet"


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
def test_debian_packages(benchmark: BenchmarkFixture, layout: Layout, unique: bool) -> None:
    """What `make demo` asks: 3,512 keys a query; `--benchmark-json` has the nanoseconds a key."""
    packages = pq.read_table(_DATA)
    with index_of(packages["tags"], packages["key"], layout=layout, max_partition_size=1_000, device="cpu") as tm:
        answers = benchmark(tm.match_many, packages["tags"], unique=unique)
    keys = len(answers.values)
    assert keys > 3_000 * len(packages)
    if benchmark.stats is not None:
        benchmark.extra_info["ns a key"] = 1e9 * benchmark.stats.stats.median / keys
