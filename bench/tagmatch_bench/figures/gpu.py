"""What CUDA devices do: end to end, the subset match alone, what the copies are of what one can copy, and one query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numba.cuda
import numpy as np
import pyarrow as pa

from tagmatch import CudaOptions
from tagmatch.model.arrays import U64Array
from tagmatch.model.columns import tag_lists
from tagmatch.model.parallel import even_ranges, run
from tagmatch.pipeline.run.packets import packet_ranges
from tagmatch_bench.harness.bench import Bench, Rate
from tagmatch_bench.harness.load import callers_rate
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import alternate, in_turns, seconds_of
from tagmatch_bench.systems.catalogue import (
    BALANCED,
    GPU_BATCH_SCAN,
    OURS,
    OURS_ON_GPU,
    RAREST,
    Build,
    some,
    tagmatch,
)
from tagmatch_bench.systems.gpu_scan import GpuBatchScan
from tagmatch_bench.systems.matcher import CallSize, count_keys
from tagmatch_bench.systems.tagmatch import DictionaryEncoded, Tagmatch

cuda: Any = numba.cuda

#: What is asked with queries whose tags are in a dictionary
_ENCODED = ", dictionary-encoded"
#: Queries a second, by the number of sets from which on they hold
_TARGETS = {
    RAREST: {16e6: Target(40e6, goal=120e6), 128e6: Target(30e6, goal=50e6)},
    RAREST + _ENCODED: {16e6: Target(60e6, goal=150e6)},
    BALANCED: {16e6: Target(1.5e6, goal=4e6), 128e6: Target(350e3, goal=400e3)},
}
#: Queries of a call that a device is not filled by, and how many of them a second, with 16 million sets
_SMALL_CALL = 262_144
_SMALL_CALLS = Target(60e6)
#: Of the throughput of `match_many`, that with `unique=True`
_UNIQUE = Target(0.7)
#: Of the throughput of one device, that which two have
_TWICE = Target(1.9)
#: Time of one `match` with a device, as a multiple of its time on the CPU
_ONE_MATCH = Target(1.2, at_most=True)

_COPIED_BYTES = 1 << 28
_COUNTED_QUERIES = 100_000
_SINGLE_QUERIES = 20_000


def gpu(bench: Bench) -> Result:
    """Throughput of both layouts on CUDA, compared with the batched scan."""
    sets, devices = bench.sets(), len(cuda.gpus)
    result = bench.result(
        "gpu",
        "CUDA",
        f"""{bench.in_words(sets)}. *End to end* is `match_many`, from Arrow strings in host memory to Arrow keys in
        host memory, on one device unless said; *dictionary-encoded* are the same queries with their tags in an Arrow
        dictionary. *Subset match* begins with the queries' ranks and ends with the pairs of queries and sets, both in
        device memory, packet after packet on one stream. The batched scan tests every signature, and begins with the
        queries' signatures; it has as many threads and streams, and looks keys up on the host. Bytes are those of the
        queries' tags and of the answers, with their offsets, and are compared with what the device copies from and to
        pinned memory at best, and with what all threads copy to it. *One match* is one caller of `match`, again and
        again, of an index on the device and of one on the CPU, in turns.""",
    )
    on_one: dict[str, Build] = {
        OURS[layout]: tagmatch(name, cuda=CudaOptions(devices=(0,))) for layout, name in OURS_ON_GPU.items()
    }
    on_all: dict[str, Build] = {}
    if devices > 1:
        on_all = {_on_all(OURS[layout], devices): tagmatch(name) for layout, name in OURS_ON_GPU.items()}
    systems = on_one | on_all | some([GPU_BATCH_SCAN])
    workload = bench.workload(sets)
    with bench.built(systems, workload.sets, result) as matchers:
        encoded: dict[str, Any] = {
            name + _ENCODED: DictionaryEncoded(matchers[name]) for name in on_one if name in matchers
        }
        found = bench.throughput(result, "end to end", matchers | encoded, workload.sets, workload.queries)
        _end_to_end(result, sets, devices, found)
        one_device: dict[str, Any] = {name: each for name, each in matchers.items() if name not in on_all}
        _subset_match(bench, result, one_device, workload.queries)
        if RAREST in found:
            _other_calls(bench, result, one_device[RAREST], workload.queries)
            _bytes(bench, result, one_device[RAREST], workload.queries, found[RAREST].queries.median)
        on_cpu: dict[str, Build] = {f"{name}, CPU": tagmatch(name) for name in OURS.values() if name in matchers}
        with bench.built(on_cpu, workload.sets, result) as others:
            _one_match(bench, result, matchers, others, workload.queries)
    return result


def _on_all(name: str, devices: int) -> str:
    return f"{name}, {devices} devices"


def _end_to_end(result: Result, sets: int, devices: int, found: dict[str, Rate]) -> None:
    panel = result.panel("end to end", "distinct sets", "queries/s")
    for name, rate in found.items():
        panel.add(name, f"{sets:,}", rate.queries)
        holding = [target for least, target in _TARGETS.get(name, {}).items() if sets >= least]
        what = f"{name}: end to end"
        result.add(what, rate.queries.median, "queries/s", holding[-1] if holding else None)
        if name != GPU_BATCH_SCAN and GPU_BATCH_SCAN in found:
            ratio = rate.queries.over(found[GPU_BATCH_SCAN].queries)
            result.add(f"{name}: against the batched scan", ratio, "times")
        if name.endswith(_ENCODED):
            ratio = rate.queries.over(found[name.removesuffix(_ENCODED)].queries)
            result.add(f"{name}: against plain strings", ratio, "times")
        several = found.get(_on_all(name, devices))
        if several is not None:
            target = _TWICE if devices == 2 else None
            ratio = several.queries.over(rate.queries)
            result.add(f"{name}: {devices} devices against one", ratio, "times", target)


def _other_calls(bench: Bench, result: Result, matcher: Tagmatch, queries: pa.ListArray) -> None:
    """Calls of few queries, and calls that want each key once, in turns with those that do not."""
    full, few = matcher.call_size.full, min(_SMALL_CALL, len(queries))

    def ask(count: int, *, unique: bool = False) -> object:
        return matcher.match_many(queries[:count], unique=unique)

    calls = f"calls of {few:,}"
    works: dict[str, Callable[[int], object]] = {"match": ask, "unique": partial(ask, unique=True), calls: ask}
    sizes = dict.fromkeys(works, CallSize(few, full, len(queries))) | {calls: CallSize(few, few, few)}
    found = bench.rates("gpu: unique, and small calls", works, len(queries), sizes)
    panel = result.panel(f"{RAREST}, in other calls", "distinct sets", "queries/s")
    panel.add_all(found, f"{bench.sets():,}")
    small = _SMALL_CALLS if few == _SMALL_CALL and bench.sets() >= 16_000_000 else None
    result.add(f"{RAREST}: end to end, {calls}", found[calls].median, "queries/s", small)
    ratio = found["unique"].over(found["match"])
    result.add(f"{RAREST}: unique against match", ratio, "times", _UNIQUE)


def _subset_match(bench: Bench, result: Result, matchers: dict[str, Any], queries: pa.ListArray) -> None:
    panel = result.panel("subset match alone", "distinct sets", "queries/s")
    works: dict[str, Callable[[], float]] = {
        name: partial(_match_rate, each, queries) for name, each in matchers.items()
    }
    if GPU_BATCH_SCAN in works:
        scan: GpuBatchScan = matchers[GPU_BATCH_SCAN]
        works[GPU_BATCH_SCAN] = partial(_scan_rate, scan, scan.prepare(queries[: scan.call_size.full]))
    with bench.doing("gpu: subset match alone"):
        found = in_turns(works, bench.options.rounds)
    for name, rate in found.items():
        panel.add(name, f"{bench.sets():,}", rate)
        if name != GPU_BATCH_SCAN and GPU_BATCH_SCAN in found:
            ratio = rate.over(found[GPU_BATCH_SCAN])
            result.add(f"{name}: subset match alone, against the batched scan", ratio, "times")


def _one_match(
    bench: Bench, result: Result, on_device: Mapping[str, Any], on_cpu: Mapping[str, Any], queries: pa.ListArray
) -> None:
    """Time one query at a time, which never pays for a device."""
    asked = queries[:_SINGLE_QUERIES].to_pylist()
    panel = result.panel("one match, called again and again", "distinct sets", "microseconds a query")
    for name in OURS.values():
        cpu = f"{name}, CPU"
        if cpu not in on_cpu:
            continue
        matchers = {name: on_device[name], cpu: on_cpu[cpu]}
        with bench.doing(f"gpu: one match of {name}"):
            for matcher in matchers.values():
                matcher.match(asked[0])  # loads the kernel
            works = {
                each: partial(callers_rate, matcher.match, asked, 1, bench.options.seconds)
                for each, matcher in matchers.items()
            }
            found = {each: rates.per(1e6) for each, rates in in_turns(works, bench.options.rounds).items()}
        panel.add_all(found, f"{bench.sets():,}")
        result.add(f"{name}: one match, against the CPU", found[name].over(found[cpu]), "times as long", _ONE_MATCH)


def _match_rate(matcher: Tagmatch, queries: pa.ListArray) -> float:
    """Queries a second of the subset match, packet after packet, on one stream."""
    index = matcher.index._engine.changing.answering.matcher
    seconds = 0.0
    for chunk in tag_lists(queries, "queries"):
        for first, last in packet_ranges(chunk.offsets, index.packet_size, threads=1):
            preprocessed = index.preprocess(chunk, first, last)
            workspace = getattr(getattr(preprocessed, "stage", None), "workspace", None)
            if workspace is not None:  # else the subset match would send the queries
                workspace.stream.synchronize()
            seconds += seconds_of(preprocessed.subset_match)
    return len(queries) / seconds


def _scan_rate(scan: GpuBatchScan, queries: U64Array) -> float:
    """Queries a second of the scan, packet after packet, on one stream."""
    seconds = 0.0
    for first, last in scan.packet_ranges(len(queries)):
        with scan.packet(queries[first:last]) as packet:
            packet.workspace.stream.synchronize()
            seconds += seconds_of(packet.subset_match)
    return len(queries) / seconds


def _bytes(bench: Bench, result: Result, matcher: Tagmatch, queries: pa.ListArray, rate: float) -> None:
    """Compare the bytes that queries and answers have with what the device can copy."""
    (chunk,) = tag_lists(queries.slice(0, min(len(queries), _COUNTED_QUERIES)), "queries")
    count, tags = len(chunk), int(chunk.offsets[-1] - chunk.offsets[0])
    places = chunk.tags.offsets[chunk.offsets[0]], chunk.tags.offsets[chunk.offsets[-1]]
    keys = count_keys(matcher.match_many(queries.slice(0, count)))
    to_device = (4 * count + 4 * tags + int(places[1] - places[0])) / count
    from_device = 8 + 8 * keys / count
    with bench.doing("gpu: copying"):
        found = _copy_rates(bench.options.rounds, bench.options.threads)
    for what, moved in (("to the device", to_device), ("from the device", from_device), ("on the host", to_device)):
        best = found[what]
        greatest = f"greatest rate of copies {what}"
        result.add(f"copied {what}", moved, "bytes a query")
        result.add(greatest, best / 1e9, "GB/s")
        result.add(f"{RAREST}: end to end, of the {greatest}", rate * moved / best, "times")


def _copy_rates(rounds: int, threads: int) -> dict[str, float]:
    """Bytes a second that can be copied from pinned memory to the device, and back, and to pinned memory by threads."""
    pinned, device = cuda.pinned_array(_COPIED_BYTES, np.uint8), cuda.device_array(_COPIED_BYTES, np.uint8)
    host = np.ones(_COPIED_BYTES, np.uint8)

    def copy(part: tuple[int, int]) -> None:
        pinned[slice(*part)] = host[slice(*part)]

    works: dict[str, Callable[[], object]] = {
        "on the host": lambda: run(copy, even_ranges(_COPIED_BYTES, threads), threads),
        "to the device": lambda: device.copy_to_device(pinned),
        "from the device": lambda: device.copy_to_host(pinned),
    }
    taken = alternate({name: partial(_until_done, work) for name, work in works.items()}, rounds)
    return {name: _COPIED_BYTES / each.median for name, each in taken.items()}


def _until_done(work: Callable[[], object]) -> None:
    work()
    cuda.synchronize()
