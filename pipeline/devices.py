"""Which devices match: those that were asked for, or those that can."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import TypeAlias

import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.errors import DeviceError, DeviceMemoryError, DeviceWarning
from tagmatch.model.layouts import implementations_of, rules_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Segment, Snapshot, TagsetTable
from tagmatch.pipeline.combine import Failover, RoundRobin, Union
from tagmatch.pipeline.cpu.matcher import CpuMatcher
from tagmatch.pipeline.cuda.support import devices
from tagmatch.pipeline.matcher import Matcher


def matcher_for(snapshot: Snapshot, options: MatchOptions) -> Matcher:
    """What answers queries from a snapshot.

    Raises
    ------
    DeviceError
        A CUDA device was asked for, and there is none. One with too little memory is a `DeviceWarning`.
    """
    matchers = [_of_segment(segment, options) for segment in snapshot.segments]
    return matchers[0] if len(matchers) == 1 else Union(matchers)


def _of_segment(segment: Segment, options: MatchOptions) -> Matcher:
    if options.device == "cpu":
        return CpuMatcher(segment, options)

    def on_cpu(reason: str) -> Matcher:
        return CpuMatcher(segment, options, notes=(reason,))

    try:
        matcher = _on_cuda(segment, options, _chosen(options))
    except DeviceMemoryError as error:
        warnings.warn(f"{error}; the CPU matches", DeviceWarning, stacklevel=3)
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


#: Gets a segment, options, and the number of a device
MakeMatcher: TypeAlias = Callable[[Segment, MatchOptions, int], Matcher]


def _on_cuda(segment: Segment, options: MatchOptions, chosen: Sequence[int]) -> Matcher:
    # Importing this needs CUDA
    from tagmatch.pipeline.cuda.matcher import CudaMatcher

    placement = options.cuda.placement
    published = implementations_of(segment.options).published if options.cuda.kernels == "published" else None
    make: MakeMatcher = CudaMatcher if published is None else resolve_name(published)
    if len(chosen) == 1:
        return make(segment, options, chosen[0])
    if placement == "split":
        return split(segment, options, chosen, make)
    try:
        return replicated(segment, options, chosen, make)
    except DeviceMemoryError as error:
        if placement == "replicate":
            raise
        reason = f"{error}; each device has some of the sets"
        warnings.warn(reason, DeviceWarning, stacklevel=4)
    return split(segment, options, chosen, make, notes=(reason,))


def replicated(segment: Segment, options: MatchOptions, devices: Sequence[int], make: MakeMatcher) -> RoundRobin:
    """Devices with the same tables, which take packets in turn (§3.3)."""
    return RoundRobin([make(segment, options, device) for device in devices])


def split(
    segment: Segment,
    options: MatchOptions,
    devices: Sequence[int],
    make: MakeMatcher,
    *,
    notes: tuple[str, ...] = (),
) -> Union:
    """Devices with about as many sets each; every packet goes to all of them (§3.3)."""
    rows = even_ranges(len(segment), len(devices)) or [(0, 0)]
    parts = zip(rows, devices, strict=False)
    return Union([make(rows_of(segment, *part), options, device) for part, device in parts], notes)


def rows_of(segment: Segment, first: int, last: int) -> Segment:
    """The segment with only the sets of some rows; its tables share the memory of the whole."""
    signatures, partitions = segment.tagsets.signatures, segment.partitions
    edges = np.clip(partitions.first_rows, first, last) - first
    return replace(
        segment,
        tagsets=TagsetTable(
            None if signatures is None else signatures[first:last], _some(segment.tagsets.ranks, first, last)
        ),
        keys=replace(segment.keys, keys=_some(segment.keys.keys, first, last)),
        partitions=rules_of(segment.options).of_rows(partitions, edges),
    )


def _some(lists: Lists, first: int, last: int) -> Lists:
    offsets = lists.offsets[first : last + 1]
    return Lists(offsets - offsets[0], lists.values[offsets[0] : offsets[-1]])
