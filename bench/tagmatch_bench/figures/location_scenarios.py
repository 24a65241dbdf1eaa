"""What `tagmatch-bench location` measures on: CLCB's workload, at any size, and alerts near cities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.workloads.location import SCENARIOS, Location
from tagmatch.workloads.location.real import near_me
from tagmatch_bench.harness.as_constraints import tags_as_attributes, tags_as_constraints
from tagmatch_bench.harness.circles import CircleScenario
from tagmatch_bench.harness.located import LocatedScenario
from tagmatch_bench.systems.matcher import UnavailableError

if TYPE_CHECKING:
    from tagmatch.workloads.location.generate import ContentKind

#: Distributions by name, as scenarios of the workload
DISTRIBUTIONS = {"uniform": "clcb", "Zipf": "zipf"}

#: Of the checkout; an installed package has no examples
_CITIES = Path(__file__).resolve().parents[3] / "examples" / "data" / "cities.parquet"


def workload(filters: int, seed: int, scenario: str = "clcb", **changes: Any) -> Location:
    """CLCB's workload with about this number of filters, at least one subscriber's, and other changes of options."""
    options = replace(SCENARIOS[scenario], seed=seed, **changes)
    return Location(replace(options, subscribers=max(1, filters // options.filters_each)))


def circles(name: str, filters: int, messages: int, seed: int, distribution: str, coverage: float) -> CircleScenario:
    """Areas alone."""
    made = workload(filters, seed, DISTRIBUTIONS[distribution], coverage=coverage, filters_each=1)
    return CircleScenario.of(name, made, messages, seed)


def located(
    name: str, filters: int, messages: int, seed: int, content: ContentKind = "constraints", **changes: Any
) -> LocatedScenario:
    """Contents and areas; tags are constraints for other systems."""
    made = workload(filters, seed, **changes)
    stored = made.subscriptions(0, made.filters, content=content).combine_chunks()
    sent = made.messages(0, messages, content=content).combine_chunks()
    if content == "constraints":
        return LocatedScenario(name, stored, sent)
    sent = sent.select(["tags", "location"])
    return LocatedScenario(name, stored, sent, tags_as_constraints(stored), tags_as_attributes(sent))


def clients(subscriptions: pa.Table) -> pa.Table:
    """The same subscriptions of clients, `Near` of whom messages must be, as `TagMatch` takes them."""
    radius = subscriptions["area"].combine_chunks().field("radius")
    kind = pa.repeat(pa.scalar("near"), len(radius))
    near = pa.StructArray.from_arrays([kind, radius], ["kind", "metres"])
    return subscriptions.set_column(subscriptions.column_names.index("area"), "area", near)


def alerts(filters: int, messages: int, seed: int, cities: Path | None) -> LocatedScenario:
    """Alerts "near me", and messages about cities.

    Raises
    ------
    UnavailableError
        The data is not there.
    """
    path = cities or _CITIES
    if not path.is_file():
        raise UnavailableError(f"there is no {path}")
    made = near_me(pq.read_table(path), filters, messages, seed)
    return LocatedScenario("cities", made.subscriptions, made.messages.combine_chunks())
