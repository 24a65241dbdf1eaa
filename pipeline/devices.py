"""Which devices match: those that were asked for, or those that can."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from tagmatch.model.errors import DeviceError, DeviceMemoryError, DeviceWarning
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Snapshot
from tagmatch.pipeline.backend import Backend
from tagmatch.pipeline.cpu import CpuBackend
from tagmatch.pipeline.cuda.support import devices
from tagmatch.pipeline.failover import Failover


def backend_for(snapshot: Snapshot, options: MatchOptions) -> Backend:
    """Where the queries of a snapshot are to be answered.

    Raises
    ------
    DeviceError
        A CUDA device was asked for, and there is none. One with too little memory is a `DeviceWarning`.
    """
    if options.device == "cpu":
        return CpuBackend(snapshot, options)

    def on_cpu(reason: str) -> Backend:
        return CpuBackend(snapshot, options, notes=(reason,))

    try:
        backend = _on_cuda(snapshot, options, _chosen(options))
    except DeviceMemoryError as error:
        warnings.warn(f"{error}; the CPU matches", DeviceWarning, stacklevel=2)
        return on_cpu(str(error))
    except DeviceError as error:
        if options.device == "cuda":
            raise
        return on_cpu(str(error))
    return Failover(backend, on_cpu)


def _chosen(options: MatchOptions) -> Sequence[int]:
    found = devices()
    chosen = range(found) if options.cuda.devices is None else options.cuda.devices
    for number in chosen:
        if number >= found:
            raise DeviceError(f"there is no CUDA device {number}; there are {found}, numbered from 0")
    return chosen


def _on_cuda(snapshot: Snapshot, options: MatchOptions, chosen: Sequence[int]) -> Backend:
    # Importing these needs CUDA
    from tagmatch.pipeline.cuda.backend import CudaBackend
    from tagmatch.pipeline.cuda.by_partition import PUBLISHED
    from tagmatch.pipeline.cuda.several import Replicated, Split

    placement = options.cuda.placement
    published = PUBLISHED if options.cuda.kernels == "published" else {}
    make = published.get(snapshot.options.layout, CudaBackend)
    if len(chosen) == 1:
        return make(snapshot, options, chosen[0])
    if placement == "split":
        return Split(snapshot, options, chosen, make)
    try:
        return Replicated(snapshot, options, chosen, make)
    except DeviceMemoryError as error:
        if placement == "replicate":
            raise
        reason = f"{error}; each device has some of the sets"
        warnings.warn(reason, DeviceWarning, stacklevel=3)
    return Split(snapshot, options, chosen, make, notes=(reason,))
