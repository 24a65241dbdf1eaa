"""The numbers that the paper prints, in tables or in words, on two Xeon E5-2670 v3 and two TITAN X (§4.1).

Its full database has 212 million sets. Columns are named as those of the experiments here. Where a figure's values are
not printed, only drawn, they are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch_bench.harness.results import Row

if TYPE_CHECKING:
    from collections.abc import Mapping

TAGMATCH = "TagMatch, two GPUs"
PREFIX_TREE = "prefix tree"
ICN = "ICN matcher"
MONGODB = "MongoDB"

#: Share of the full database that each column of Table 1 stands for; it prints 20M, 40M and 212M
TABLE1_SHARES = {"10 %": 0.1, "20 %": 0.2, "100 %": 1.0}


def _rows(system: str, unit: str, values: Mapping[str, float] | Mapping[float, float]) -> list[Row]:
    return [Row(system, value, unit, x=x) for x, value in values.items()]


def _thousands(system: str, *columns: float) -> list[Row]:
    """Rows of a table whose columns are the first of `TABLE1_SHARES`."""
    return _rows(system, "queries/s", dict(zip(TABLE1_SHARES, (1000 * value for value in columns), strict=False)))


TABLE1 = [
    *_thousands("GPU-only, plain", 0.40, 0.20, 0.04),
    *_thousands("GPU-only, plain with batching", 11.50, 6.30, 1.20),
    *_thousands("CPU-only, fast prefix tree", 21.10, 14.00, 4.30),
    *_thousands("CPU-only, state-of-the-art ICN", 27.60, 17.40),
    *_thousands("CPU-only, TagMatch", 3.90, 3.40, 0.68),
    *_thousands("TagMatch", 268.80, 144.40, 35.30),
]
TABLE3_MATCH = [
    *_thousands(TAGMATCH, 268.8, 144.4),
    *_thousands(PREFIX_TREE, 21.1, 14.0),
    *_thousands(ICN, 27.6, 17.4),
]
TABLE3_MATCH_UNIQUE = [
    *_thousands(TAGMATCH, 249.3, 133.0),
    *_thousands(PREFIX_TREE, 21.0, 13.8),
    *_thousands(ICN, 27.5, 16.8),
]
#: §4.3.2: "over 130K", "more than 140K", "less than 14K", "more than 30", "more than 35", "about 4400"
FIG4_MATCH = [
    *_rows(TAGMATCH, "queries/s", {"20 %": 140_000, "100 %": 35_000}),
    *_rows(PREFIX_TREE, "queries/s", {"20 %": 14_000, "100 %": 4_400}),
]
FIG4_MATCH_UNIQUE = [
    *_rows(TAGMATCH, "queries/s", {"20 %": 130_000, "100 %": 30_000}),
    *_rows(PREFIX_TREE, "queries/s", {"20 %": 14_000, "100 %": 4_400}),
]
#: §4.3.3: speed-ups against 4 threads
FIG5_SPEED_UP = _rows(TAGMATCH, "times", {4.0: 1.0, 8.0: 1.8, 16.0: 3.3})
#: §4.3.4, milliseconds: without a timeout the median is under 400 and 99 % under 2,000; with 100 ms the maximum is
#: nearly 4,000
FIG6 = [
    *_rows("median", "ms", {"never": 400}),
    *_rows("p99", "ms", {"never": 2000}),
    *_rows("maximum", "ms", {"100 ms": 4000}),
]
#: §4.3.6, seconds over millions of sets: 50 s for 200 million, 2 s for 5 million, MongoDB 33 s for 5 million
FIG8 = [*_rows(TAGMATCH, "s", {5.0: 2.0, 200.0: 50.0}), *_rows(MONGODB, "s", {5.0: 33.0})]
#: §4.4: more than two seconds a query with one million sets, more than ten with five million
FIG10_SIZES = _rows(MONGODB, "queries/s", {"1": 0.5, "5": 0.1})
#: §4.4: "more than 32,000 queries per second even in the most challenging scenario"
FIG10_TAGMATCH = _rows(TAGMATCH, "queries/s", {"10": 32_000})
#: §4.4: 3 times with 24 instances
FIG11_SPEED_UP = _rows(MONGODB, "times", {1.0: 1.0, 24.0: 3.0})

#: Of another paper: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE
#: TPDS 25(1), 2014, Table 2: its default scenario, on six cores of an AMD Phenom II, and CCM on an Nvidia GTX 460
PCM_TABLE2 = [
    Row(system, micros, "µs a message", x=1e6)
    for system, micros in {"CCM": 20.5, "OCM": 9.1, "SFF": 1353.0, "BETree": 326.0, "BETree 1.3": 31.0}.items()
]
#: Its Figure 10, a whole broker, is only drawn; §4.2 says that CCM "reaches and overcomes a maximum throughput of 100k
#: events/s", and that OCM "hardly reaches 60k events/s"
PCM_FIG10 = [
    Row(system, rate, "events/s", x="at any rate") for system, rate in {"OCM": 60_000.0, "CCM": 100_000.0}.items()
]
