"""The compared systems by name, and how to build them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tagmatch.workloads.systems.tagmatch import Tagmatch

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.options import Layout
    from tagmatch.workloads.systems.matcher import Matcher

#: Builds a matcher of a table with columns `tags` and `key` and a number of threads
Build: TypeAlias = "Callable[[pa.Table, int], Matcher[Any]]"

RAREST = "tagmatch, rarest"
BALANCED = "tagmatch, balanced"
PUBLISHED = "tagmatch, balanced, published kernels"
CPU_ONLY = "CPU-only TagMatch (balanced, exact=False)"
PREFIX_TREE = "prefix tree"
ICN = "ICN tree"
GPU_SCAN = "GPU scan, one by one"
GPU_BATCH_SCAN = "GPU scan, batched"
RAREST_TAG_DICT = "Python dict of rarest tags"
SUBSETS = "hash table of subsets"


#: Our own two layouts
LAYOUTS: Mapping[Layout, str] = {"rarest": RAREST, "balanced": BALANCED}

_OPTIONS: Mapping[str, dict[str, Any]] = {
    RAREST: {"layout": "rarest", "device": "cpu"},
    BALANCED: {"layout": "balanced", "device": "cpu"},
    CPU_ONLY: {"layout": "balanced", "exact": False, "device": "cpu"},
}
#: What is to be said of these where a reader may think of a GPU
ON_CPU = '`tagmatch` and *CPU-only TagMatch* match on the CPU (`device="cpu"`).'


def tagmatch(name: str, **more: Any) -> Callable[[pa.Table, int], Tagmatch]:
    """Return how to build one of our own systems; `more` are further options of `TagMatch`."""

    def build(sets: pa.Table, threads: int) -> Tagmatch:
        return Tagmatch(sets, threads=threads, **(_OPTIONS[name] | more))

    return build


def _prefix_tree(sets: pa.Table, threads: int) -> Matcher[Any]:
    from tagmatch.workloads.systems.prefix_tree import PrefixTree

    return PrefixTree(sets, threads=threads)


def _icn(sets: pa.Table, threads: int) -> Matcher[Any]:
    from tagmatch.workloads.systems.icn_tree import IcnTree

    return IcnTree(sets, threads=threads)


def _gpu_scan(sets: pa.Table, threads: int) -> Matcher[Any]:
    from tagmatch.workloads.systems.gpu_scan import GpuScan

    return GpuScan(sets, threads=threads)


def _gpu_batch_scan(sets: pa.Table, threads: int) -> Matcher[Any]:
    from tagmatch.workloads.systems.gpu_scan import GpuBatchScan

    return GpuBatchScan(sets, threads=threads)


def _rarest_tag_dict(sets: pa.Table, _: int) -> Matcher[Any]:
    from tagmatch.workloads.systems.python import RarestTagDict

    return RarestTagDict(sets)


def _subsets(sets: pa.Table, threads: int) -> Matcher[Any]:
    from tagmatch.workloads.systems.subset_enumeration import SubsetEnumeration

    return SubsetEnumeration(sets, threads=threads)


SYSTEMS: Mapping[str, Build] = {
    **{name: tagmatch(name) for name in _OPTIONS},
    PREFIX_TREE: _prefix_tree,
    ICN: _icn,
    GPU_SCAN: _gpu_scan,
    GPU_BATCH_SCAN: _gpu_batch_scan,
    RAREST_TAG_DICT: _rarest_tag_dict,
    SUBSETS: _subsets,
}


def some(names: Iterable[str]) -> dict[str, Build]:
    """Return how to build these systems."""
    return {name: SYSTEMS[name] for name in names}
