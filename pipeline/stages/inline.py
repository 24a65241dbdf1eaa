"""The inline executor: a call that waits for many queries is cut into packets, each of which stays with one thread.

At 16 threads, handing packets on from stage to stage costs a third of the throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tagmatch.model.arrays import Lists, TagLists, offsets_of
from tagmatch.model.parallel import even_ranges, run
from tagmatch.pipeline.matcher import Matcher, PacketSize
from tagmatch.pipeline.stages.answers import Answers
from tagmatch.pipeline.stages.order import STAGES
from tagmatch.pipeline.stages.packets import Asked, Packet

#: A call with many queries is cut so that each thread gets some packets
PACKETS_PER_THREAD = 4


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
) -> Lists:
    """Keys, uint64, of each of many queries, in order.

    Parameters
    ----------
    through : callable
        Takes a packet through all stages; called by several threads at once.
    """

    def work(number: int) -> None:
        rows, first, last = parts[number]
        wanted = np.full(last - first, unique)
        through(
            Asked(matcher=matcher, unique=wanted, rows=rows, first=first, last=last, number=number, answers=answers)
        )

    size = matcher.packet_size
    at_once = min(threads, size.at_once or threads)
    parts = [(chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk, size, at_once)]
    answers = Answers([last - first for _, first, last in parts], matcher.memory)
    run(work, range(len(parts)), at_once)
    return answers.lists(threads)


def packet_ranges(chunk: TagLists, size: PacketSize, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, each of which is to be a packet: as many queries in each, but where they have many tags."""
    offsets = chunk.offsets
    wanted = min(PACKETS_PER_THREAD * threads, -(-len(chunk) // size.fewest))
    tags = int(offsets[-1]) - int(offsets[0])
    even = np.array(even_ranges(len(chunk), max(wanted, -(-len(chunk) // size.queries), -(-tags // size.tags))))
    if not len(even):
        return []
    begins, ends = offsets[even[:, 0]].astype(np.int64), offsets[even[:, 1]].astype(np.int64)
    # Where a range has too many tags, it is cut behind each so many of its own
    cuts = np.maximum(-(-(ends - begins) // size.tags), 1) - 1
    marks = np.repeat(begins - size.tags * offsets_of(cuts)[:-1], cuts) + size.tags * np.arange(1, cuts.sum() + 1)
    by_tags = np.searchsorted(offsets, marks.astype(offsets.dtype), side="right") - 1
    edges = np.unique(np.concatenate([even[:, 0], by_tags, [len(chunk)]])).tolist()
    return list(pairwise(edges))
