"""`tagmatch-bench location`: areas, positions and clients that move, beside CLCB, libraries and databases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tagmatch_bench.figures.location_content import cities, content, table2
from tagmatch_bench.figures.location_live import exact, live
from tagmatch_bench.figures.location_spatial import memory, messages, moves, parts, spatial

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result


PARTS = (
    "spatial",
    "content",
    "table2",
    "figure3",
    "figure4",
    "figure5",
    "figure6",
    "figure7",
    "live",
    "exact",
    "cities",
)


@dataclass(frozen=True, slots=True)
class LocationSizes:
    """How large everything is, and what is wanted; see the command's help."""

    filters: tuple[int, ...] = (100_000, 1_000_000)
    located: tuple[int, ...] = (250_000, 2_500_000)
    figures: int = 2_500_000
    live: int = 2_500_000
    pairs: int = 10_000_000
    alerts: int = 100_000
    cities: Path | None = None
    parts: tuple[str, ...] = PARTS


def location(bench: Bench, sizes: LocationSizes) -> Result:
    """Measure all parts that are wanted."""
    result = bench.result(
        "location",
        "Areas and positions",
        """All run on the CPU and on one thread, but for *CLCB* and what is named *GPU*, which is on a CUDA device.
        Systems take turns, in calls with as many messages, or moves, as take about as long; all are asked for many
        at once, and those that Python asks for each message, or that a call is made for each, say so: *a call each*,
        *H3 cells in a dict*, and R\\*-tree's and Redis's moves. *tagmatch, areas* and *tagmatch, clients* are the
        two structures, of areas that stay and of clients that move, which get positions in arrays, as libraries do;
        *kernel only* is without copies to a device and back. *End to end* is `match_many` on an Arrow table with a
        column `location`, to Arrow keys, and `move` with NumPy arrays. *Contents and areas* begins with messages
        whose attributes are codes and whose tags are ranks, as CLCB's are; it has a packet of messages go through
        each step together, where CLCB has one message after the other, in one kernel: CLCB's latency is the inverse
        of its throughput, and what one message takes here is in *a call each*, with Python's part of it. CLCB:
        Cugola, Margara, Middleware 2012; *paper* are the numbers that it prints, of 2012: six cores of an AMD Phenom
        II and an Nvidia GTX 460. Its R-Tree, libspatialindex's, finds areas only, here as there.""",
        filters=sizes.filters,
        located=sizes.located,
        figures=sizes.figures,
        live=sizes.live,
        pairs=sizes.pairs,
        alerts=sizes.alerts,
        cities=str(sizes.cities) if sizes.cities else None,
        parts=sizes.parts,
    )
    works = {
        "spatial": partial(spatial, bench, result, sizes.filters),
        "content": partial(content, bench, result, sizes.located),
        "table2": partial(table2, bench, result, sizes.figures),
        "figure3": partial(messages, bench, result, 3, sizes.figures),
        "figure4": partial(messages, bench, result, 4, sizes.figures),
        "figure5": partial(moves, bench, result, sizes.figures),
        "figure6": partial(parts, bench, result, sizes.figures),
        "figure7": partial(memory, bench, result, sizes.figures),
        "live": partial(live, bench, result, sizes.live),
        "exact": partial(exact, bench, result, sizes.pairs),
        "cities": partial(cities, bench, result, sizes.alerts, sizes.cities),
    }
    for part in PARTS:
        if part in sizes.parts:
            works[part]()
    return result
