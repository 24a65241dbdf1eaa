"""The numbers that the papers print, in tables or in words; values that are drawn only are left out.

Columns and systems are named as those of the experiments here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tagmatch_bench.harness.results import Row

TAGMATCH = "TagMatch, two GPUs"
PREFIX_TREE = "prefix tree"
ICN = "ICN matcher"
MONGODB = "MongoDB"

#: Share of the full database in each column of Table 1, which prints 20M, 40M and 212M
TABLE1_SHARES = {"10 %": 0.1, "20 %": 0.2, "100 %": 1.0}


def rows_by_place(unit: str, systems: Mapping[str, Mapping[str, float] | Mapping[float, float]]) -> list[Row]:
    """Rows of the values of systems, each at some places."""
    return [Row(system, value, unit, x=x) for system, values in systems.items() for x, value in values.items()]


def _thousands(systems: Mapping[str, tuple[float, ...]]) -> list[Row]:
    """Rows of a table whose columns are the first of `TABLE1_SHARES`."""
    columns = {system: [1000 * value for value in values] for system, values in systems.items()}
    return rows_by_place(
        "queries/s", {system: dict(zip(TABLE1_SHARES, each, strict=False)) for system, each in columns.items()}
    )


TABLE1 = _thousands({
    "GPU-only, plain": (0.40, 0.20, 0.04),
    "GPU-only, plain with batching": (11.50, 6.30, 1.20),
    "CPU-only, fast prefix tree": (21.10, 14.00, 4.30),
    "CPU-only, state-of-the-art ICN": (27.60, 17.40),
    "CPU-only, TagMatch": (3.90, 3.40, 0.68),
    "TagMatch": (268.80, 144.40, 35.30),
})  # fmt: skip
TABLE3_MATCH = _thousands({TAGMATCH: (268.8, 144.4), PREFIX_TREE: (21.1, 14.0), ICN: (27.6, 17.4)})
TABLE3_MATCH_UNIQUE = _thousands({TAGMATCH: (249.3, 133.0), PREFIX_TREE: (21.0, 13.8), ICN: (27.5, 16.8)})
#: §4.3.2: "over 130K", "more than 140K", "less than 14K", "more than 30", "more than 35", "about 4400"
_FIG4_PREFIX_TREE = {PREFIX_TREE: {"20 %": 14_000, "100 %": 4_400}}
FIG4_MATCH = rows_by_place("queries/s", {TAGMATCH: {"20 %": 140_000, "100 %": 35_000}} | _FIG4_PREFIX_TREE)
FIG4_MATCH_UNIQUE = rows_by_place("queries/s", {TAGMATCH: {"20 %": 130_000, "100 %": 30_000}} | _FIG4_PREFIX_TREE)
#: §4.3.3: speed-ups against 4 threads
FIG5_SPEED_UP = rows_by_place("times", {TAGMATCH: {4.0: 1.0, 8.0: 1.8, 16.0: 3.3}})
#: §4.3.4, milliseconds: without a timeout the median is under 400 and 99 % under 2,000; with 100 ms the maximum is
#: nearly 4,000
FIG6 = rows_by_place("ms", {"median": {"never": 400}, "p99": {"never": 2000}, "maximum": {"100 ms": 4000}})
#: §4.3.6, seconds over millions of sets: 50 s for 200 million, 2 s for 5 million, MongoDB 33 s for 5 million
FIG8 = rows_by_place("s", {TAGMATCH: {5.0: 2.0, 200.0: 50.0}, MONGODB: {5.0: 33.0}})
#: §4.4: more than two seconds a query with one million sets, more than ten with five million
FIG10_SIZES = rows_by_place("queries/s", {MONGODB: {"1": 0.5, "5": 0.1}})
#: §4.4: "more than 32,000 queries per second even in the most challenging scenario"
FIG10_TAGMATCH = rows_by_place("queries/s", {TAGMATCH: {"10": 32_000}})
#: §4.4: 3 times with 24 instances
FIG11_SPEED_UP = rows_by_place("times", {MONGODB: {1.0: 1.0, 24.0: 3.0}})

#: Figure 10 of PCM, a whole broker, is drawn; §4.2 says that CCM "reaches and overcomes a maximum throughput of 100k
#: events/s", and that OCM "hardly reaches 60k events/s"
PCM_FIG10 = rows_by_place("events/s", {"OCM": {"at any rate": 60_000}, "CCM": {"at any rate": 100_000}})


MICROS = "µs a message"

#: Places of panels that are no numbers
DEFAULT, ZIPF = "default", "Zipf"


def against(system: str, other: str) -> str:
    """Name how many times as fast as another one a system is."""
    return f"{system} against {other}"


def times(system: str, others: Mapping[str, Mapping[str, float] | Mapping[float, float]]) -> list[Row]:
    """How many times as fast as others a system is, at each place."""
    return rows_by_place("times", {against(system, other): values for other, values in others.items()})


# -- PCM ---------------------------------------------------------------------------------------------------------------

#: Table 2
PCM_TABLE2 = rows_by_place(
    MICROS,
    {
        "CCM": {DEFAULT: 20.5},
        "OCM": {DEFAULT: 9.1},
        "SFF": {DEFAULT: 1353.0},
        "BE-Tree": {DEFAULT: 326.0},
        "BE-Tree 1.3": {DEFAULT: 31.0},
    },
)
#: §4.1, Default scenario
PCM_TABLE2_TIMES = [
    *times("CCM", {"SFF": {DEFAULT: 66.0}, "BE-Tree": {DEFAULT: 15.9}}),
    *times("OCM", {"SFF": {DEFAULT: 148.7}, "BE-Tree": {DEFAULT: 35.8}}),
]
#: §4.1, by figure. Of Figure 6 the text names the greatest number of attributes, nine, and what the speed-ups begin at;
#: of Figures 8 and 9 the values at the last place. Of Figure 7 it prints none.
PCM_TIMES: Mapping[int, list[Row]] = {
    6: [
        *times("CCM", {"SFF": {1.0: 24.9, 9.0: 58.4}, "BE-Tree": {1.0: 20.7, 9.0: 8.2}}),
        *times("OCM", {"BE-Tree": {1.0: 48.8, 9.0: 3.7}, "CCM": {1.0: 2.4, 9.0: 0.46}}),
    ],
    7: [],
    8: [
        *times("CCM", {"SFF": {250e3: 697.7}, "BE-Tree": {250e3: 60.4}, "BE-Tree 1.3": {250e3: 4.16}}),
        *times("OCM", {"SFF": {250e3: 1180.7}, "BE-Tree": {250e3: 102.3}, "BE-Tree 1.3": {250e3: 7.1}}),
    ],
    9: [
        *times("CCM", {"SFF": {100.0: 658.7}, "BE-Tree": {100.0: 60.7}, "BE-Tree 1.3": {100.0: 4.1}}),
        *times("OCM", {"SFF": {100.0: 1193.3}, "BE-Tree": {100.0: 109.9}, "BE-Tree 1.3": {100.0: 7.4}}),
    ],
}
#: §4.2: what latency promises ("more than 109k", "about 48k"), and what the engine does within a system of queues and
#: connections ("hardly reaches 60k", and several events at once, "reaches and overcomes" 100k)
PCM_THROUGHPUT = rows_by_place(
    "events/s",
    {
        "OCM, by its latency": {DEFAULT: 109_000},
        "OCM, within a system": {DEFAULT: 60_000},
        "CCM, by its latency": {DEFAULT: 48_000},
        "CCM, several at once, within a system": {DEFAULT: 100_000},
    },
)

# -- CCM ---------------------------------------------------------------------------------------------------------------

_CCM = "CCM, 2011"

#: Table 2; "ordered" by type, operator and value is §5, Distribution of Names
CCM_TABLE2 = rows_by_place(
    MICROS,
    {
        _CCM: {DEFAULT: 144.0, ZIPF: 2060.0},
        f"{_CCM}, ordered": {ZIPF: 1920.0},
        "SFF": {DEFAULT: 1035.0, ZIPF: 14_680.0},
    },
)
CCM_TABLE2_TIMES = times(_CCM, {"SFF": {DEFAULT: 7.19}})
CCM_TABLE2_BUILD = rows_by_place("ms", {_CCM: {DEFAULT: 527.5}, "SFF": {DEFAULT: 992.28}})
CCM_TABLE2_SIZE = rows_by_place("MB", {_CCM: {DEFAULT: 33.9}, "SFF": {DEFAULT: 42.4}})
#: Microseconds; what copying back takes is not printed, but with "about 8 %" the share of all copies
CCM_FIGURE5 = rows_by_place(
    MICROS, {"Memset": {"copy in": 75.0, "kernel": 125.0}, "Kernel": {"copy in": 9.0, "kernel": 130.0}}
)
CCM_FIGURE5_COPIES = rows_by_place("%", {"copies": {"Kernel": 8.0}})
#: By figure, "ten times", "overcomes 10x", "overcomes 13x", "from 7x to more than 13x", "2x"; Figure 11 prints none
CCM_TIMES: Mapping[int, list[Row]] = {
    6: times(_CCM, {"SFF": {9.0: 10.0}}),
    7: times(_CCM, {"SFF": {9.0: 10.0}}),
    8: times(_CCM, {"SFF": {250e3: 13.0}}),
    9: times(_CCM, {"SFF": {10.0: 7.0, 100.0: 13.0}}),
    10: times(_CCM, {"SFF": {1000.0: 2.0}}),
    11: [],
}
#: Figure 11's text: "about 1 % of interfaces are selected when all constraints are on strings, and about 7 %" of none
CCM_FIGURE11_SELECTED = rows_by_place("%", {"interfaces selected": {0.0: 1.0, 100.0: 7.0}})


# -- CLCB: G. Cugola, A. Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs", Middleware 2012 ---------

# On six cores of an AMD Phenom II and an Nvidia GTX 460, with 250,000 subscriptions of 10 filters each by default
MILLIS, MICROS_A_MOVE = "ms a message", "µs a move"
_CLCB, _R_TREE = "CLCB", "R*-tree"

#: Rows of Table 2
WITHOUT_LOCATION, WITH_LOCATION = "without location", "with location"
#: Of Figures 3 and 4, the share that an area covers, in percent
COVERAGES = (0.001, 0.01, 0.1, 1.0)
#: Subscriptions at the end of the lines of Figures 3 to 6, each of 10 filters
MOST_SUBSCRIPTIONS = 1e6

#: Table 2. With location, CLCB's time is of §5, Limitation of content-based matching algorithms; without, it has none
CLCB_TABLE2 = rows_by_place(
    MILLIS,
    {
        "SFF": {WITHOUT_LOCATION: 13.78, WITH_LOCATION: 118.69},
        "BE-Tree": {WITHOUT_LOCATION: 1.48, WITH_LOCATION: 84.09},
        _CLCB: {WITH_LOCATION: 0.306},
    },
)
#: The same section
CLCB_TABLE2_TIMES = times(_CLCB, {"SFF": {WITH_LOCATION: 389.0}, "BE-Tree": {WITH_LOCATION: 275.0}})
#: How many times as long a message takes with areas as constraints
CLCB_TABLE2_SLOWER = rows_by_place("times", {"SFF": {WITH_LOCATION: 8.6}, "BE-Tree": {WITH_LOCATION: 56.8}})
#: Table 2, Update Time, of one area. BE-Tree's is "n.a."; CLCB's is that of Figure 5
CLCB_TABLE2_UPDATE = rows_by_place("ms a move", {"SFF": {DEFAULT: 10_151.0}, _CLCB: {DEFAULT: 0.00265}})

#: Speed-ups of CLCB over R-Tree at a million subscriptions by figure and by the share of the square that an area
#: covers: Figure 3 with a uniform distribution, Figure 4 with Zipf's law
CLCB_TIMES: Mapping[int, list[Row]] = {
    3: times(_CLCB, {_R_TREE: {0.001: 2.47, 1.0: 251.7}}),
    4: times(_CLCB, {_R_TREE: dict(zip(COVERAGES, (11.7, 16.3, 132.8, 544.0), strict=True))}),
}

#: Figure 5 (a), by subscriptions: R-Tree "about 5.26ms", CLCB a constant time
CLCB_FIGURE5 = rows_by_place(MICROS_A_MOVE, {_CLCB: {MOST_SUBSCRIPTIONS: 2.65}, _R_TREE: {MOST_SUBSCRIPTIONS: 5260.0}})

#: Figure 6, bounds: in (a) each of both copies takes "less than 0.1ms", in (b), where content selects every message,
#: the copy of results "below 0.6ms even in the larger scenario with 1 million of subscriptions"
CLCB_FIGURE6_AT_MOST = rows_by_place(
    MILLIS,
    {"copies": {DEFAULT: 0.1}, "copy back, content selects all": {MOST_SUBSCRIPTIONS: 0.6}},
)

#: Figure 7: a card of 1 GB "could support more than 1.3 millions subscriptions (13 millions of filters)"
CLCB_FIGURE7_AT_LEAST = rows_by_place("subscriptions in 1 GB", {_CLCB: {DEFAULT: 1.3e6}})

# -- "Pub/Sub on Stream": Z. Wang et al., DEBS 2012, on an Intel Xeon E5507 with eight cores ---------------------------

#: Table 1: milliseconds of a message, and the share of the H phase in percent, by subscriptions
QOS_TABLE1: Mapping[int, tuple[float, float]] = {6_000: (0.034, 65.0), 60_000: (0.15, 14.0), 600_000: (0.81, 3.0)}

#: Figure 10, §6.4: the QoS-ignorant system "cannot reduce the failure rate under 5% with 7 cores"
QOS_FIGURE10 = rows_by_place("% fail", {"QoS-ignorant, all, at least": {7.0: 5.0}})

#: Figure 12, §6.5: "more than 10x throughput" than the QoS-ignorant system; the paper does not say with how many cores
QOS_FIGURE12_AT_LEAST = 10.0
