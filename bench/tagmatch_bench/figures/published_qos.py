"""The numbers that "Pub/Sub on Stream" prints, in its tables or in words.

Z. Wang et al., DEBS 2012. It was measured on an Intel Xeon E5507 with eight cores at 2.27 GHz, one of which made the
messages. Systems are named as in the simulator.

Of Figures 6 to 12, lines are drawn, whose values are not printed but where the text names one. So no failure rate of
Figures 6 to 9 and 11 can stand beside ours; of Figure 10 there is one, of Figure 12 a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch_bench.figures.published_content import rows_by_place

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Table 1: milliseconds of a message, and the share of the H phase in percent, by subscriptions
TABLE1: Mapping[int, tuple[float, float]] = {6_000: (0.034, 65.0), 60_000: (0.15, 14.0), 600_000: (0.81, 3.0)}

#: Figure 10, §6.4: the QoS-ignorant system "cannot reduce the failure rate under 5% with 7 cores"
FIGURE10 = rows_by_place("% fail", {"QoS-ignorant, all, at least": {7.0: 5.0}})

#: Figure 12, §6.5: "more than 10x throughput" than the QoS-ignorant system; of which number of cores, it does not say
FIGURE12_AT_LEAST = 10.0
