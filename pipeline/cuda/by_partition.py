"""The paper's division of work (§3): the device matches batches with partitions, the CPU does all before and after."""

from __future__ import annotations

from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Segment
from tagmatch.pipeline.cpu.matcher import CpuStages
from tagmatch.pipeline.cuda.published import PublishedSubsetMatch
from tagmatch.pipeline.cuda.published_kernels import MOST_QUERIES
from tagmatch.pipeline.matcher import PacketSize


class PublishedMatcher(CpuStages):
    """Matches the `balanced` layout on one device as published. Any number of threads may share it.

    Raises
    ------
    DeviceError
        From all that matches, when the device has failed; `DeviceMemoryError` when it is out of memory.
    """

    #: Launching batches takes the interpreter's time, which threads would have to share
    packet_size = PacketSize(queries=1 << 15, tags=1 << 18, fewest=512, at_once=1)
    notes: tuple[str, ...] = ()

    def __init__(self, segment: Segment, options: MatchOptions, device: int = 0) -> None:
        self.devices: tuple[str, ...] = (f"cuda:{device}",)
        match = PublishedSubsetMatch(
            segment,
            exact=options.exact,
            batch_size=min(options.batch_size, MOST_QUERIES),
            streams=options.cuda.streams,
            device=device,
        )
        super().__init__(segment, match, match)
