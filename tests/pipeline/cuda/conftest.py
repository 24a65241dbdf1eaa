"""Options of a CUDA engine and, for Numba's simulator, what makes it work and end in time."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import shutil
from typing import Any, get_args
from zlib import crc32

import numba.cuda
import pytest
from hypothesis import settings
from support.simulator import AT_NIGHT, EXAMPLES, SIMULATED, set_up

import tagmatch.pipeline.cuda
import tagmatch.pipeline.devices
from tagmatch.model.options import Layout
from tagmatch_bench.systems.catalogue import CONTENT_GPU, LOCATED_GPU

ENGINES = {
    f"{layout}-size{size}": {"layout": layout, "device": "cuda", "threads": 2, "max_partition_size": size}
    for layout, size in itertools.product(get_args(Layout), (2,) if SIMULATED else (1, 7, 200_000))
}

if SIMULATED:
    settings.register_profile("simulator", EXAMPLES)
    settings.load_profile("simulator")

#: Tests of so much that the simulator would take hours
_LARGE = ("large_workload", "exact_ones", "thousands_of_tags", "300_tags", "one_tag_in_all", "many_keys", "all_subsets")
_LARGE += ("chain_of_sets", "options_change", "layouts_agree", "order_of_the_queries", "a_million_sets")
#: Those that it runs only if there is time, as it takes long
_LONG = ("any_changes_any_queries", "thousands_of_areas[3", "cells_that_are_made_anew", "generated_areas[every")


def _has_turn(item: Any) -> bool:
    """Whether the simulator runs a test also if there is little time: of those that differ only in layout, one."""
    if any(name in item.name for name in _LONG):
        return False
    options = item.callspec.params if hasattr(item, "callspec") else {}
    its = options.get("layout") or options.get("engine", {}).get("layout")
    layouts = get_args(Layout)
    return its not in layouts or its == layouts[crc32(item.nodeid.replace(its, "").encode()) % len(layouts)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and mark as slow what differs from another test only in its layout."""
    unfit = _LARGE if SIMULATED else ()
    if not numba.cuda.is_available() or len(numba.cuda.gpus) < 2:
        unfit += ("two_devices",)
    if SIMULATED or not shutil.which("compute-sanitizer"):
        unfit += ("compute_sanitizer",)
    items[:] = [
        item for item in items if not (item.get_closest_marker("gpu") and any(name in item.name for name in unfit))
    ]
    for item in items:
        if item.get_closest_marker("gpu") and not _has_turn(item):
            item.add_marker("slow")
        if item.get_closest_marker("gpu") and AT_NIGHT:
            item.add_marker("nightly")  # and may take long


@pytest.fixture(scope="session", params=ENGINES.values(), ids=ENGINES)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of `TagMatch` that must not change any answer."""
    return request.param


@pytest.fixture(autouse=True)
def nothing_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device gets packets of any size, but where a test says of how many queries they must be."""
    for name in ("break_even", "break_even_of_areas"):
        monkeypatch.setattr(tagmatch.pipeline.devices, name, lambda *_: 0)


@pytest.fixture(scope="session", autouse=SIMULATED)
def simulator() -> None:
    """Kernels run as Python, in few threads: a partition has two rows at most."""
    names = [module.name for module in pkgutil.iter_modules(tagmatch.pipeline.cuda.__path__, "tagmatch.pipeline.cuda.")]
    systems = (*CONTENT_GPU.values(), *LOCATED_GPU.values())
    names += [f"tagmatch_bench.systems.{system.where.partition(':')[0]}" for system in systems]
    set_up(map(importlib.import_module, names))
