"""The inline executor: a call that waits for many queries is cut into packets, each of which stays with one thread.

At 16 threads, handing packets on from stage to stage costs a third of the throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from tagmatch.model.arrays import Lists, TagLists, offsets_of
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.parallel import even_ranges, even_work, run, run_rows
from tagmatch.pipeline.cpu.key_lookup import merge_all
from tagmatch.pipeline.matcher import Matcher, PacketSize
from tagmatch.pipeline.stages.answers import Answers
from tagmatch.pipeline.stages.counts import Counts
from tagmatch.pipeline.stages.order import STAGES, StageName
from tagmatch.pipeline.stages.packets import Asked

Argument = TypeVar("Argument")
Result = TypeVar("Result")

#: A call with many queries is cut so that each thread gets some packets
PACKETS_PER_THREAD = 4


class Timed(Protocol):
    """Does what counts as a stage's service."""

    def __call__(self, stage: StageName, do: Callable[[Argument], Result], argument: Argument, /) -> Result:
        """Return what `do` makes of its argument."""


def untimed(_: StageName, do: Callable[[Argument], Result], argument: Argument, /) -> Result:
    """Return what `do` makes of its argument."""
    return do(argument)


def match_inline(
    matcher: Matcher,
    chunks: Sequence[TagLists],
    *,
    unique: bool,
    threads: int,
    counts: Counts,
    timed: Timed = untimed,
) -> Lists:
    """Keys, uint64, of each of many queries, in order.

    Parameters
    ----------
    counts : Counts
        Counts what comes out.
    timed : callable
        Does what each stage does; called by several threads at once.
    """

    def work(number: int) -> None:
        rows, first, last = parts[number]
        wanted = np.full(last - first, unique and not merged_later)
        packet = Asked(
            matcher=matcher, unique=wanted, rows=rows, first=first, last=last, number=number, answers=answers
        )
        for stage in STAGES:
            timed(stage, packet.perform, stage)
        counts.add(queries=len(packet), verified=packet.matched.found, rejected=packet.matched.rejected)

    def merge(first: int, last: int) -> Lists:
        begin, end = found.offsets[first], found.offsets[last]
        piece = Lists(found.offsets[first : last + 1] - begin, found.values[begin:end])
        return timed("merge", merge_all, piece)

    size = matcher.packet_size
    at_once = min(threads, size.at_once or threads)
    # Few threads keep a device busy, and would merge alone
    merged_later = unique and at_once < threads
    parts = [(chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk, size, at_once)]
    answers = Answers([last - first for _, first, last in parts], matcher.memory)
    run(work, range(len(parts)), at_once)
    found = answers.lists(threads)
    if merged_later:
        pieces = run_rows(merge, even_work(found.offsets, PACKETS_PER_THREAD * threads), threads)
        found = join_lists(pieces, np.dtype(np.uint64), threads)
    counts.add(matches=len(found.values))
    return found


def packet_ranges(chunk: TagLists, size: PacketSize, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, each of which is to be a packet: as many queries in each, but where they have many tags."""
    offsets = chunk.offsets
    wanted = min(PACKETS_PER_THREAD * threads, -(-len(chunk) // size.fewest))
    tags = int(offsets[-1]) - int(offsets[0])
    if wanted == 1 and len(chunk) <= size.queries and tags <= size.tags:
        return [(0, len(chunk))]
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
