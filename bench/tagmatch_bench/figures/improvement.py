"""What the papers' own improvements bring: a system with one of them, and the same system without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tagmatch_bench.figures.published import DEFAULT
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import Compared, timed
from tagmatch_bench.harness.results import Result
from tagmatch_bench.systems.catalogue import CONTENT_ONE_BY_ONE, LOCATED_GPU, System


@dataclass(frozen=True, slots=True)
class Improvement:
    """An improvement of a paper: both systems take one message after the other on a CUDA device."""

    name: str
    improved: System
    without: System

    def measure(self, bench: Bench, result: Result, scenario: Compared, stored: pa.Table) -> None:
        """Add how many times as fast the system is with it; all answers are compared."""
        builds: dict[str, Any] = {self.name: self.improved, f"without {self.name}": self.without}
        with bench.built(builds, stored, result) as systems:
            if systems.keys() < builds.keys():
                return
            improved, without = timed(bench, result, scenario, systems).micros.values()
        panel = result.panel("improvements of the paper", "scenario", "times as fast")
        panel.add(self.name, DEFAULT, without.ratios(improved))


#: PCM, §3.3, Reducing memory accesses: "about 30 percent"
CCM_COUNTERS = Improvement(
    "CCM's counters of 4 bits",
    CONTENT_ONE_BY_ONE["CCM"],
    System("ccm:Ccm", {"at_once": 1, "counter_bits": 32}, needs="gpu"),
)
#: CCM, §4.2: "2-3%"
CCM_SHARED_MEMORY = Improvement(
    "CCM's Input in shared memory",
    CONTENT_ONE_BY_ONE["CCM, 2011"],
    System("ccm:Ccm2011", {"in_shared_memory": False}, needs="gpu"),
)
#: CLCB, §4.3, Reducing memory accesses: "about 20%"
CLCB_COUNTERS = Improvement(
    "CLCB's counters of 8 bits",
    LOCATED_GPU["CLCB"],
    System("clcb_cuda:ClcbCuda", {"counter_bits": 32}, needs="gpu"),
)
