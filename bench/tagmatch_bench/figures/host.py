"""What a packet for a CUDA device costs the host, with a CUDA driver that does nothing."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import tagmatch.pipeline.cuda
from tagmatch.model.arrays import TagLists
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import Layout, MatchOptions
from tagmatch.pipeline.segment import Matcher
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Result
from tagmatch_bench.systems.catalogue import OURS
from tagmatch_bench.systems.tagmatch import build_index

_MEMORY = 1 << 40


@contextmanager
def idle_driver() -> Iterator[None]:
    """Let matchers on CUDA devices allocate, copy and launch nothing inside this context; no device is needed."""
    found = pkgutil.iter_modules(tagmatch.pipeline.cuda.__path__, "tagmatch.pipeline.cuda.")
    modules = [tagmatch.pipeline.cuda, *(import_module(each.name) for each in found)]
    with ExitStack() as patched:
        patched.enter_context(patch("numba.cuda.gpus", [nullcontext()]))
        for module in modules:
            if replaced := _replaced(module):
                patched.enter_context(patch.multiple(module, **replaced))
        yield


def _replaced(module: ModuleType) -> dict[str, Any]:
    """What a module of `pipeline.cuda` has of Numba, and what it gets instead."""
    members = vars(module)
    replaced = {name: _KERNEL for name, member in members.items() if hasattr(member, "forall")}
    always = {"cuda": _DRIVER, "Stream": lambda: _STREAM, "_context": lambda _: None}
    return replaced | {name: member for name, member in always.items() if name in members}


class _Kernel:
    """Is configured and launched, and does nothing."""

    def __getitem__(self, configuration: object) -> _Kernel:
        return self

    def __call__(self, *arguments: object) -> None: ...


def _nothing(*_: object) -> None:
    """Copies nothing, and waits for nothing."""


class _DeviceArray(np.ndarray[Any, Any]):
    """Pages that are never touched, and so take no memory."""

    def copy_to_host(self) -> npt.NDArray[Any]:
        return np.zeros(self.shape, self.dtype)


class _Driver:
    """What the host code takes from `numba.cuda`."""

    def device_array(self, shape: int, dtype: npt.DTypeLike) -> _DeviceArray:
        return np.empty(shape, dtype).view(_DeviceArray)

    def pinned_array(self, shape: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.zeros(shape, dtype)

    def to_device(self, array: npt.NDArray[Any]) -> _DeviceArray:
        return array.view(_DeviceArray)

    def current_context(self) -> Any:
        return SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=_MEMORY, total=_MEMORY))


_KERNEL, _DRIVER = _Kernel(), _Driver()
_STREAM = SimpleNamespace(
    copy=np.copyto, keep=np.copyto, upload=_nothing, download=_nothing, flush=_nothing, synchronize=_nothing
)


#: Queries of a packet
PACKETS = (1, 64, 4096, 1 << 17)

_MOST_PACKETS = 1 << 16


def host(bench: Bench) -> Result:
    """Time of the host for packets of several sizes, with a CUDA driver that does nothing."""
    sets = bench.sets()
    result = bench.result(
        "host",
        "Host time of packets for CUDA devices",
        f"""{bench.in_words(sets)}. One thread takes packets, one after the other, through all stages of a matcher on a
        CUDA device. Its driver does nothing: kernels, copies and allocations take no time, and there are no answers,
        so that only the Python code and the copies within host memory of each packet are measured. With a
        device, Numba's launch of each kernel and the copies of answers are added.""",
        packets=PACKETS,
    )
    a_packet = result.panel("a packet", "queries of a packet", "µs", "lines")
    a_query = result.panel("a query", "queries of a packet", "µs", "lines")
    workload = bench.workload(sets)
    (queries,) = tag_lists(workload.queries, "queries")
    with ExitStack() as built:
        segments = {
            name: built.enter_context(
                build_index(workload.sets, layout=name, threads=bench.options.threads, device="cpu")
            ).snapshot.segments[0]
            for name in OURS
        }
        built.enter_context(idle_driver())
        from tagmatch.pipeline.cuda.matcher import CudaMatcher

        works: dict[tuple[Layout, int], Callable[[int], None]] = {}
        for layout, segment in segments.items():
            matcher = CudaMatcher(segment, MatchOptions(threads=bench.options.threads))
            works |= {(layout, size): partial(_match, matcher, queries, size) for size in PACKETS}
        named = {f"{layout}, {size}": work for (layout, size), work in works.items()}
        found = bench.rates("host: matching", named, _MOST_PACKETS)
    for layout, size in works:
        micros = found[f"{layout}, {size}"].per(1e6)
        a_packet.add(layout, float(size), micros)
        a_query.add(layout, float(size), micros.times(1 / size))
    return result


def _match(matcher: Matcher, queries: TagLists, size: int, packets: int) -> None:
    for _ in range(packets):
        matcher.preprocess(queries, 0, size).subset_match().key_lookup()
