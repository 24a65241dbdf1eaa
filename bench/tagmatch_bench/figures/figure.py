"""The paper's tables and figures by name. A new one needs a function that measures it, and an entry here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result


@dataclass(frozen=True, slots=True)
class Figure:
    """A table or figure, which is a command of `tagmatch-bench`; imported when it is measured."""

    summary: str  # of the command
    where: str  # module in this folder and function, `"module:function"`; the function takes a `Bench`

    def __call__(self, bench: Bench) -> Result:
        """Measure it."""
        measure = resolve_name(f"{__package__}.{self.where}")
        return cast("Result", measure(bench))


#: Parts of experiments, in their order
_OF_STREAM = ("table1", "table2", *(f"figure{number}" for number in range(6, 13)))
PARTS: Mapping[str, tuple[str, ...]] = {
    "content": ("pcm", "figures", "dense", "real", "mixed", "areas"),
    "pcm": ("table2", "improvements", "figure6", "figure7", "figure8", "figure9", "much", "throughput"),
    "ccm": ("table2", "improvements", *(f"figure{number}" for number in range(5, 12))),
    "first": ("tags", "conditions", "areas", "warmup"),
    "location": (
        *("spatial", "content", "table2", "figure3", "figure4", "figure5", "figure6", "figure7", "improvements"),
        *("live", "exact", "cities"),
    ),
    "paper-scale": ("generate", "build", "table1", "fig2", "fig7"),
    "peers": (
        *("100", "10000", "selective", "large", "aol", "orkut", "netflix", "machines", "mushroom", "kosarak"),
        "areas",
    ),
    "qos": _OF_STREAM,
    "qos-real": (*_OF_STREAM, "threads", "pipeline", "dds"),
    "records": ("calls", "data", "best", "counts", "at_least", "only"),
    "spark": ("partition", "join", "skew", "plan"),
}

FIGURES: Mapping[str, Figure] = {
    "table1": Figure("Table 1: all systems, three sizes of the database.", "throughput:table1"),
    "table3": Figure("Table 3: the trees and tagmatch, match and match-unique.", "throughput:table3"),
    "fig2": Figure("Figure 2: throughput against the size of queries.", "throughput:fig2"),
    "fig3": Figure("Figure 3: keys a second against the size of queries.", "throughput:fig3"),
    "fig4": Figure("Figure 4: throughput against the size of the database.", "throughput:fig4"),
    "fig5": Figure("Figure 5: throughput against the number of threads.", "throughput:fig5"),
    "fig6": Figure("Figure 6: latency against the timeout of batches.", "latency:fig6"),
    "fig7": Figure("Figure 7: throughput against the size of partitions.", "throughput:fig7"),
    "fig8": Figure("Figure 8: time of partitioning.", "costs:fig8"),
    "fig9": Figure("Figure 9: memory.", "costs:fig9"),
    "fig10": Figure("Figure 10: databases, by sizes of database, sets and queries.", "costs:fig10"),
    "fig11": Figure("Figure 11: a database in shards.", "costs:fig11"),
    "keys": Figure("Keys a second against the keys of a set.", "throughput:keys"),
    "layouts": Figure("The layouts rarest and balanced: throughput, build time, memory.", "throughput:layouts"),
    "capacity": Figure(
        "What a subscription takes: memory, disk, build and match, by what it has.", "capacity:capacity"
    ),
}
