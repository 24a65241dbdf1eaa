"""Which devices match: those that were asked for, or those that can."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.errors import DeviceError, DeviceMemoryError, DeviceWarning
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Snapshot, TagsetTable
from tagmatch.pipeline.combine import Failover, RoundRobin, Union
from tagmatch.pipeline.cpu.matcher import CpuMatcher
from tagmatch.pipeline.cuda.support import devices
from tagmatch.pipeline.matcher import Matcher


def matcher_for(snapshot: Snapshot, options: MatchOptions) -> Matcher:
    """Where the queries of a snapshot are to be answered.

    Raises
    ------
    DeviceError
        A CUDA device was asked for, and there is none. One with too little memory is a `DeviceWarning`.
    """
    if options.device == "cpu":
        return CpuMatcher(snapshot, options)

    def on_cpu(reason: str) -> Matcher:
        return CpuMatcher(snapshot, options, notes=(reason,))

    try:
        matcher = _on_cuda(snapshot, options, _chosen(options))
    except DeviceMemoryError as error:
        warnings.warn(f"{error}; the CPU matches", DeviceWarning, stacklevel=2)
        return on_cpu(str(error))
    except DeviceError as error:
        if options.device == "cuda":
            raise
        return on_cpu(str(error))
    return Failover(matcher, on_cpu)


def _chosen(options: MatchOptions) -> Sequence[int]:
    found = devices()
    chosen = range(found) if options.cuda.devices is None else options.cuda.devices
    for number in chosen:
        if number >= found:
            raise DeviceError(f"there is no CUDA device {number}; there are {found}, numbered from 0")
    return chosen


#: Gets a snapshot, options, and the number of a device
MakeMatcher: TypeAlias = Callable[[Snapshot, MatchOptions, int], Matcher]


def _on_cuda(snapshot: Snapshot, options: MatchOptions, chosen: Sequence[int]) -> Matcher:
    # Importing these needs CUDA
    from tagmatch.pipeline.cuda.by_partition import PUBLISHED
    from tagmatch.pipeline.cuda.matcher import CudaMatcher

    placement = options.cuda.placement
    published = PUBLISHED if options.cuda.kernels == "published" else {}
    make = published.get(snapshot.options.layout, CudaMatcher)
    if len(chosen) == 1:
        return make(snapshot, options, chosen[0])
    if placement == "split":
        return split(snapshot, options, chosen, make)
    try:
        return replicated(snapshot, options, chosen, make)
    except DeviceMemoryError as error:
        if placement == "replicate":
            raise
        reason = f"{error}; each device has some of the sets"
        warnings.warn(reason, DeviceWarning, stacklevel=3)
    return split(snapshot, options, chosen, make, notes=(reason,))


def replicated(snapshot: Snapshot, options: MatchOptions, devices: Sequence[int], make: MakeMatcher) -> RoundRobin:
    """Devices with the same tables, which take packets in turn (§3.3)."""
    return RoundRobin(snapshot, [make(snapshot, options, device) for device in devices])


def split(
    snapshot: Snapshot,
    options: MatchOptions,
    devices: Sequence[int],
    make: MakeMatcher,
    *,
    notes: tuple[str, ...] = (),
) -> Union:
    """Devices with about as many sets each; every packet goes to all of them (§3.3)."""
    rows = even_ranges(len(snapshot), len(devices)) or [(0, 0)]
    parts = zip(rows, devices, strict=False)
    return Union(snapshot, [make(rows_of(snapshot, *part), options, device) for part, device in parts], notes)


def rows_of(snapshot: Snapshot, first: int, last: int) -> Snapshot:
    """The snapshot with only the sets of some rows; its tables share the memory of the whole."""
    signatures, partitions = snapshot.tagsets.signatures, snapshot.partitions
    edges = np.clip(partitions.first_rows, first, last) - first
    return replace(
        snapshot,
        tagsets=TagsetTable(
            None if signatures is None else signatures[first:last], _some(snapshot.tagsets.ranks, first, last)
        ),
        keys=replace(snapshot.keys, keys=_some(snapshot.keys.keys, first, last)),
        partitions=rules_of(snapshot.options).of_rows(partitions, edges),
    )


def _some(lists: Lists, first: int, last: int) -> Lists:
    offsets = lists.offsets[first : last + 1]
    return Lists(offsets - offsets[0], lists.values[offsets[0] : offsets[-1]])
