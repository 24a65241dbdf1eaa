"""The inline executor: a call that waits for many queries is cut into packets, each of which stays with one thread.

At 16 threads, handing packets on from stage to stage costs a third of the throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.parallel import run
from tagmatch.pipeline.matcher import Matcher, PacketSize
from tagmatch.pipeline.stages.order import STAGES
from tagmatch.pipeline.stages.packets import Asked, Packet

# A call with many queries is cut so that each thread gets some packets
_PACKETS_PER_THREAD = 4


def through_all_stages(packet: Packet) -> None:
    """Take a packet through all stages."""
    for stage in STAGES:
        packet.perform(stage)


def match_inline(
    matcher: Matcher,
    chunks: Sequence[TagLists],
    *,
    unique: bool,
    threads: int,
    through: Callable[[Packet], object] = through_all_stages,
) -> list[Lists]:
    """Keys, uint32 or uint64, of many queries, in order, in parts.

    Parameters
    ----------
    through : callable
        Takes a packet through all stages; called by several threads at once.
    """

    def work(part: tuple[TagLists, int, int]) -> Lists:
        rows, first, last = part
        packet = Asked(matcher=matcher, unique=np.full(last - first, unique), rows=rows, first=first, last=last)
        through(packet)
        return packet.keys

    size = matcher.packet_size
    threads = min(threads, size.at_once or threads)
    parts = [(chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk, size, threads)]
    return run(work, parts, threads)


def packet_ranges(chunk: TagLists, size: PacketSize, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, each of which is to be a packet."""
    offsets = chunk.offsets
    marks = np.arange(int(offsets[0]) + size.tags, int(offsets[-1]), size.tags).astype(offsets.dtype)
    by_tags = np.searchsorted(offsets, marks, side="right") - 1
    step = min(size.queries, max(size.fewest, len(chunk) // (_PACKETS_PER_THREAD * threads)))
    by_queries = np.arange(0, len(chunk), step)
    edges = np.unique(np.concatenate([by_tags, by_queries, [len(chunk)]])).tolist()
    return list(pairwise(edges))
