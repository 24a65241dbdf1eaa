"""The numbers that the paper prints, in tables or in words, on two Xeon E5-2670 v3 and two TITAN X (§4.1).

Its full database has 212 million sets. Columns are named as those of the experiments here. Where a figure's values are
not printed, only drawn, they are left out.
"""

from __future__ import annotations

from tagmatch.workloads.bench.paper.results import Value

TAGMATCH = "TagMatch, two GPUs"
PREFIX_TREE = "prefix tree"
ICN = "ICN matcher"
MONGODB = "MongoDB"

#: Share of the full database that each column of Table 1 stands for; it prints 20M, 40M and 212M
TABLE1_SHARES = {"10 %": 0.1, "20 %": 0.2, "100 %": 1.0}


def _row(system: str, columns: tuple[str, ...], thousands: tuple[float | None, ...]) -> list[Value]:
    pairs = zip(columns, thousands, strict=True)
    return [Value(system, column, 1000 * value) for column, value in pairs if value is not None]


_SHARES = tuple(TABLE1_SHARES)
TABLE1 = [
    *_row("GPU-only, plain", _SHARES, (0.40, 0.20, 0.04)),
    *_row("GPU-only, plain with batching", _SHARES, (11.50, 6.30, 1.20)),
    *_row("CPU-only, fast prefix tree", _SHARES, (21.10, 14.00, 4.30)),
    *_row("CPU-only, state-of-the-art ICN", _SHARES, (27.60, 17.40, None)),
    *_row("CPU-only, TagMatch", _SHARES, (3.90, 3.40, 0.68)),
    *_row("TagMatch", _SHARES, (268.80, 144.40, 35.30)),
]
TABLE3_MATCH = [
    *_row(TAGMATCH, _SHARES[:2], (268.8, 144.4)),
    *_row(PREFIX_TREE, _SHARES[:2], (21.1, 14.0)),
    *_row(ICN, _SHARES[:2], (27.6, 17.4)),
]
TABLE3_MATCH_UNIQUE = [
    *_row(TAGMATCH, _SHARES[:2], (249.3, 133.0)),
    *_row(PREFIX_TREE, _SHARES[:2], (21.0, 13.8)),
    *_row(ICN, _SHARES[:2], (27.5, 16.8)),
]
#: §4.3.2: "over 130K", "more than 140K", "less than 14K", "more than 30", "more than 35", "about 4400"
FIG4_MATCH = [
    *_row(TAGMATCH, ("20 %", "100 %"), (140, 35)),
    *_row(PREFIX_TREE, ("20 %", "100 %"), (14, 4.4)),
]
FIG4_MATCH_UNIQUE = [
    *_row(TAGMATCH, ("20 %", "100 %"), (130, 30)),
    *_row(PREFIX_TREE, ("20 %", "100 %"), (14, 4.4)),
]
#: §4.3.3: speed-ups against 4 threads
FIG5_SPEED_UP = [Value(TAGMATCH, 4.0, 1.0), Value(TAGMATCH, 8.0, 1.8), Value(TAGMATCH, 16.0, 3.3)]
#: §4.3.4, milliseconds: without a timeout the median is under 400 and 99 % under 2,000; with 100 ms the maximum is
#: nearly 4,000
FIG6 = [Value("median", "never", 400), Value("p99", "never", 2000), Value("maximum", "100 ms", 4000)]
#: §4.3.6, seconds over millions of sets: 50 s for 200 million, 2 s for 5 million, MongoDB 33 s for 5 million
FIG8 = [Value(TAGMATCH, 5.0, 2.0), Value(TAGMATCH, 200.0, 50.0), Value(MONGODB, 5.0, 33.0)]
#: §4.4: more than two seconds a query with one million sets, more than ten with five million
FIG10_SIZES = [Value(MONGODB, "1", 0.5), Value(MONGODB, "5", 0.1)]
#: §4.4: "more than 32,000 queries per second even in the most challenging scenario"
FIG10_TAGMATCH = Value(TAGMATCH, "10", 32_000)
#: §4.4: 3 times with 24 instances
FIG11_SPEED_UP = [Value(MONGODB, 1.0, 1.0), Value(MONGODB, 24.0, 3.0)]
