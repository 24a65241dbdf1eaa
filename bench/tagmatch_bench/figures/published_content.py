"""The numbers that two papers on constraints on attributes print, in tables or in words.

PCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE TPDS 25(1),
2014. CCM: the same authors, "High Performance Content-Based Matching Using GPUs", DEBS 2011. Both measured on six cores
of an AMD Phenom II and an Nvidia GTX 460, with a million constraints in the default scenario. Systems are named as
those of the catalogue here; CCM as it was in 2011 is "CCM, 2011". Where a figure's values are not printed, only drawn,
they are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch_bench.harness.results import Row

if TYPE_CHECKING:
    from collections.abc import Mapping

MICROS = "µs a message"

#: Places of panels that are no numbers
DEFAULT, ZIPF = "default", "Zipf"


def against(system: str, other: str) -> str:
    """Name how many times as fast as another one a system is."""
    return f"{system} against {other}"


def rows_by_place(unit: str, systems: Mapping[str, Mapping[str, float] | Mapping[float, float]]) -> list[Row]:
    """Rows of the values of systems, each at some places."""
    return [Row(system, value, unit, x=x) for system, values in systems.items() for x, value in values.items()]


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
