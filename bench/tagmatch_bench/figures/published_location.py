"""The numbers that the paper on areas, CLCB, prints, in its tables or in words.

CLCB: G. Cugola, A. Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs", Middleware 2012. It was
measured on six cores of an AMD Phenom II at 2.8 GHz and an Nvidia GTX 460, in the default scenario with 250,000
subscriptions of 10 filters each. Its R-Tree is the R*-tree of libspatialindex 1.7, and finds areas only, where CLCB
evaluates constraints, too. Systems are named as those of the catalogue here.

Of Figures 3 to 7, lines are drawn, whose values are not printed but where the text names one: most speed-ups at a
million subscriptions, the last place of each line. All others are left out: all times of Figures 3 and 4, of which the
text has but that R-Tree takes "more than 10ms with 700k subscriptions or more" in Figure 4 (a); the speed-ups of Figure
3 at 0.01 % and 0.1 %; in Figure 5, R-Tree's times below a million subscriptions, and all of (b), which is "only
marginally" different; in Figure 6, all times of kernels; and the line of Figure 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch_bench.figures.published_content import DEFAULT, against, rows_by_place, times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tagmatch_bench.harness.results import Row

MILLIS, MICROS = "ms a message", "µs a move"
_CLCB, _R_TREE = "CLCB", "R*-tree"

#: Rows of Table 2
WITHOUT_LOCATION, WITH_LOCATION = "without location", "with location"
#: Of Figures 3 and 4, the share that an area covers, in percent
COVERAGES = (0.001, 0.01, 0.1, 1.0)
#: Subscriptions at the end of the lines of Figures 3 to 6, each of 10 filters
MOST_SUBSCRIPTIONS = 1e6

#: Table 2. With location, CLCB's time is §5's, Limitation of content-based matching algorithms; without, there is none
TABLE2 = rows_by_place(
    MILLIS,
    {
        "SFF": {WITHOUT_LOCATION: 13.78, WITH_LOCATION: 118.69},
        "BE-Tree": {WITHOUT_LOCATION: 1.48, WITH_LOCATION: 84.09},
        _CLCB: {WITH_LOCATION: 0.306},
    },
)
#: The same section
TABLE2_TIMES = times(_CLCB, {"SFF": {WITH_LOCATION: 389.0}, "BE-Tree": {WITH_LOCATION: 275.0}})
#: How many times as long a message takes with areas as constraints
TABLE2_SLOWER = rows_by_place("times", {"SFF": {WITH_LOCATION: 8.6}, "BE-Tree": {WITH_LOCATION: 56.8}})
#: Table 2, Update Time, of one area. BE-Tree's is "n.a."; CLCB's is that of Figure 5
TABLE2_UPDATE = rows_by_place("ms a move", {"SFF": {DEFAULT: 10_151.0}, _CLCB: {DEFAULT: 0.00265}})

#: Speed-ups of CLCB over R-Tree at a million subscriptions by figure and by the share of the square that an area
#: covers: Figure 3 with a uniform distribution, Figure 4 with Zipf's law
TIMES: Mapping[int, list[Row]] = {
    3: times(_CLCB, {_R_TREE: {0.001: 2.47, 1.0: 251.7}}),
    4: times(_CLCB, {_R_TREE: dict(zip(COVERAGES, (11.7, 16.3, 132.8, 544.0), strict=True))}),
}
#: §5: from "about 400 subscriptions" on CLCB is faster in Figure 3
FIGURE3_CROSSOVER = rows_by_place("subscriptions", {against(_CLCB, _R_TREE): {DEFAULT: 400.0}})

#: Figure 5 (a), by subscriptions: R-Tree "about 5.26ms", CLCB a constant time
FIGURE5 = rows_by_place(MICROS, {_CLCB: {MOST_SUBSCRIPTIONS: 2.65}, _R_TREE: {MOST_SUBSCRIPTIONS: 5260.0}})
FIGURE5_TIMES = times(_CLCB, {_R_TREE: {MOST_SUBSCRIPTIONS: 1985.0}})

#: Figure 6, bounds: in (a) each of both copies takes "less than 0.1ms", in (b), where content selects every message,
#: the copy of results "below 0.6ms even in the larger scenario with 1 million of subscriptions"
FIGURE6_AT_MOST = rows_by_place(
    MILLIS,
    {"copies": {DEFAULT: 0.1}, "copy back, content selects all": {MOST_SUBSCRIPTIONS: 0.6}},
)

#: Figure 7: a card of 1 GB "could support more than 1.3 millions subscriptions (13 millions of filters)"
FIGURE7_AT_LEAST = rows_by_place("subscriptions in 1 GB", {_CLCB: {DEFAULT: 1.3e6}})

#: §4.3: what counters that are cleared once in four messages save, "an average improvement in processing time of about
#: 20%", and false positives of Bloom filters of 32 bits "with up to 6 constraints per filter"
COUNTERS_SAVE = rows_by_place("%", {_CLCB: {DEFAULT: 20.0}})
FALSE_POSITIVES = rows_by_place("%", {_CLCB: {6.0: 10.0}})
