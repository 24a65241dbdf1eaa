"""The compared systems by name. A new one needs its class in a file of this folder, and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import pyarrow as pa

from tagmatch.model.options import Layout

if TYPE_CHECKING:
    from tagmatch_bench.systems.matcher import Matcher
    from tagmatch_bench.systems.tagmatch import Tagmatch

#: Builds a matcher of a table with columns `tags` and `key` and a number of threads
Build: TypeAlias = "Callable[[pa.Table, int], Matcher[Any]]"


@dataclass(frozen=True, slots=True)
class System:
    """A compared system, imported when it is built, as some need optional packages."""

    where: str  # module in this folder and class, `"module:Class"`; the class takes the stored sets and `threads`
    options: Mapping[str, Any] = field(default_factory=dict)  # more arguments of the class
    # what not every machine has: `"gpu"`, or `"server"`, for which the class takes one more argument
    needs: Literal["gpu", "server"] | None = None

    def __call__(self, stored: Any, threads: int, **more: Any) -> Any:
        """Build the system, with further options: a `Matcher`, if it stores sets."""
        build = resolve_name(f"{__package__}.{self.where}")
        return build(stored, threads=threads, **(dict(self.options) | more))


#: Our own system of each layout
OURS: Mapping[Layout, str] = {name: f"tagmatch, {name}" for name in get_args(Layout)}
RAREST, BALANCED = OURS["rarest"], OURS["balanced"]
CPU_ONLY = "CPU-only TagMatch (balanced, exact=False)"
#: The same on CUDA devices
OURS_ON_GPU: Mapping[Layout, str] = {layout: f"{name}, GPU" for layout, name in OURS.items()}
RAREST_GPU, BALANCED_GPU = OURS_ON_GPU["rarest"], OURS_ON_GPU["balanced"]
#: The paper's designs: the one of its §3, and the one of its §4.5
TAGMATCH_HYBRID, TAGMATCH_GPU = "TagMatch, hybrid (§3)", "TagMatch, GPU only (§4.5)"
#: A remark on our own systems, in case a reader thinks of a GPU
ON_CPU = '`tagmatch` and *CPU-only TagMatch* match on the CPU (`device="cpu"`).'
ON_BOTH = f"{ON_CPU[:-1]}, those named *GPU* and *hybrid* on CUDA devices."

PREFIX_TREE = "prefix tree"
ICN = "ICN tree"
PYTHON_DICT = "Python dict of rarest tags"
GPU_BATCH_SCAN = "GPU scan, batched"
POSTGRESQL_GIN, POSTGRESQL_SCAN = "PostgreSQL, GIN", "PostgreSQL, scan"
POSTGRESQL_RAREST, POSTGRESQL_INTS = "PostgreSQL, rarest tag", "PostgreSQL, intarray"
MONGODB = "MongoDB"

#: Those of Table 1
SYSTEMS: Mapping[str, System] = {
    **{name: System("tagmatch:Tagmatch", {"layout": layout, "device": "cpu"}) for layout, name in OURS.items()},
    CPU_ONLY: System("tagmatch:Tagmatch", {"layout": "balanced", "exact": False, "device": "cpu"}),
    **{name: System("tagmatch:TagmatchOnGpu", {"layout": layout}, needs="gpu") for layout, name in OURS_ON_GPU.items()},
    TAGMATCH_GPU: System("tagmatch:TagmatchOnGpu", {"layout": "balanced", "exact": False}, needs="gpu"),
    TAGMATCH_HYBRID: System("hybrid:Hybrid", needs="gpu"),
    PREFIX_TREE: System("trees:PrefixTree"),
    ICN: System("trees:IcnTree"),
    "GPU scan, one by one": System("gpu_scan:GpuScan", needs="gpu"),
    GPU_BATCH_SCAN: System("gpu_scan:GpuBatchScan", needs="gpu"),
    PYTHON_DICT: System("hash_tables:RarestTagDict"),
    "hash table of subsets": System("hash_tables:SubsetEnumeration"),
}

CPP, CPP_BLOCKS = "C++, hash map", "C++, hash map in blocks"
TT_JOIN, LIMIT, GRID = "TT-Join", "LIMIT+", "C++, grid"
#: Those in C++, on one thread, of `tagmatch-bench peers`
PEERS: Mapping[str, System] = {
    CPP: System("native:CppRarest"),
    CPP_BLOCKS: System("native:CppRarest", {"in_blocks": True}),
    TT_JOIN: System("native:TTJoin"),
    LIMIT: System("native:LimitPlus"),
}

#: Those of Figure 10, where our own are too
DATABASES: Mapping[str, System] = {
    POSTGRESQL_GIN: System("databases:PostgresGin", needs="server"),
    POSTGRESQL_SCAN: System("databases:PostgresScan", needs="server"),
    POSTGRESQL_RAREST: System("databases:PostgresRarest", needs="server"),
    POSTGRESQL_INTS: System("databases:PostgresInts", needs="server"),
    "DuckDB list_has_all": System("on_disk:DuckDBScan"),
    "DuckDB, rarest tag": System("on_disk:DuckDBRarest"),
    "ClickHouse hasAll": System("clickhouse:ClickHouseScan"),
    "ClickHouse, rarest tag": System("clickhouse:ClickHouseRarest"),
    "LanceDB, rarest tag": System("on_disk:LanceDBRarest"),
    "Redis, rarest tag": System("by_rarest:RedisRarest", needs="server"),
    "tantivy, rarest tag": System("by_rarest:TantivyRarest"),
    "Roaring bitmaps": System("by_rarest:RoaringBitmaps"),
    MONGODB: System("databases:MongoDB", needs="server"),
}

#: Those that match constraints on attributes: they take subscriptions and messages, whose columns
#: `content_matcher.py` names, as `tagmatch_bench.workloads.content` makes them
CONTENT: Mapping[str, System] = {
    "SFF": System("sff:Sff"),
    "OCM": System("ocm:Ocm"),
    "BE-Tree": System("be_tree:BeTree"),
}
#: The same, whose messages are matched in tasks, too, if they have deadlines (`tagmatch_bench.qos`)
CONTENT_PHASES: Mapping[str, System] = {"H and C phases": System("access_predicates:AccessPredicates")}
#: The same with a message shared out to threads, as published, not messages
CONTENT_SHARED: Mapping[str, System] = {
    "OCM, sharing tables": System("ocm:Ocm", {"share": "tables"}),
}
#: The same on a CUDA device
CONTENT_GPU: Mapping[str, System] = {
    "CCM": System("ccm:Ccm", needs="gpu"),
    "CCM, 2011": System("ccm:Ccm2011", needs="gpu"),
}
#: The same, and those before, one message after the other, each with its kernel
CONTENT_ONE_BY_ONE: Mapping[str, System] = {
    **CONTENT,
    **CONTENT_SHARED,
    "CCM": System("ccm:Ccm", {"at_once": 1}, needs="gpu"),
    "CCM, 2011": CONTENT_GPU["CCM, 2011"],
}
#: Our own, all filters in one of the paths of `TagMatch`, which get messages as those do: encoded, in one call of a
#: kernel that has one after the other
ENCODED: Mapping[str, System] = {
    f"tagmatch, {path}, encoded": System("tagmatch_encoded:TagmatchEncoded", {"path": path})
    for path in ("trie", "lines")
}

#: Those that match constraints on attributes and areas, as `clcb.py` has them
LOCATED: Mapping[str, System] = {"CLCB, CPU": System("clcb:Clcb")}
#: The same on a CUDA device
LOCATED_GPU: Mapping[str, System] = {"CLCB": System("clcb_cuda:ClcbCuda", needs="gpu")}
#: Those that match tags, one constraint and areas on the sphere, as a Python user would write it
ALERTS: Mapping[str, System] = {"Shapely STRtree and Python": System("circle_trees:ShapelyFilter")}
#: Those that match areas alone: `build` takes `Circles`, and gives a `CircleSystem` (`circles.py`)
CIRCLES: Mapping[str, System] = {
    "CLCB, CPU": System("clcb:areas_alone"),
    GRID: System("native:CppGrid"),
    "R*-tree": System("circle_trees:RStarTree"),
    "Shapely STRtree": System("circle_trees:ShapelyTree"),
    "SciPy cKDTree": System("circle_trees:ScipyTree"),
    "H3 cells in a dict": System("circle_trees:H3Cells"),
    "DuckDB, bounds": System("circle_databases:DuckDBBounds"),
    "PostGIS": System("circle_databases:PostGis", needs="server"),
    "Redis GEO": System("circle_databases:RedisGeo", needs="server"),
}
#: Our own structures of areas, which get positions as those do, and whole indexes, which get Arrow tables
OWN_CIRCLES: Mapping[str, System] = {
    "tagmatch, areas": System("tagmatch_circles:FixedCircles"),
    "tagmatch, clients": System("tagmatch_circles:ClientCircles"),
    "tagmatch, end to end": System("tagmatch_circles:CirclesInIndex"),
    "tagmatch, clients, end to end": System("tagmatch_circles:ClientsInIndex"),
}
#: Of these, the structures on a CUDA device
OWN_CIRCLES_GPU: Mapping[str, System] = {
    "tagmatch, areas, GPU": System("tagmatch_circles:FixedCirclesOnGpu", needs="gpu"),
    "tagmatch, clients, GPU": System("tagmatch_circles:ClientCirclesOnGpu", needs="gpu"),
}
#: Those that match areas alone on a CUDA device
CIRCLES_GPU: Mapping[str, System] = {"CLCB": System("clcb_cuda:areas_alone", needs="gpu")}


def some(names: Iterable[str]) -> dict[str, Build]:
    """Return how to build these systems of Table 1."""
    return {name: SYSTEMS[name] for name in names}


def tagmatch(name: str, **options: Any) -> Callable[[pa.Table, int], Tagmatch]:
    """Return how to build one of our own systems with further options of `TagMatch`."""
    return cast("Callable[[pa.Table, int], Tagmatch]", partial(SYSTEMS[name], **options))
