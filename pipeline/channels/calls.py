"""A call with many queries of a channel, in packets that wait each for its turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.pipeline.matcher import Matcher
from tagmatch.pipeline.stages.answers import Answers
from tagmatch.pipeline.stages.inline import packet_ranges
from tagmatch.pipeline.stages.packets import Asked

#: Some queries of a call: those from one row of a chunk to another
Part = tuple[TagLists, int, int]


class Round:
    """Packets of a call that wait at the same time, and the thread that waits for them."""

    def __init__(self, matcher: Matcher, parts: Sequence[Part], *, unique: bool) -> None:
        self._answers = Answers([last - first for _, first, last in parts], matcher.memory)
        self.packets = [
            Asked(
                matcher=matcher,
                unique=np.full(last - first, unique),
                rows=rows,
                first=first,
                last=last,
                number=number,
                answers=self._answers,
            )
            for number, (rows, first, last) in enumerate(parts)
        ]
        self.error: BaseException | None = None
        #: How it ended, if it did not end well
        self.outcome: str | None = None
        self._left = len(self.packets)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        return self._ended.is_set()

    def done(self) -> None:
        """Note that a packet has its answers."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self._ended.set()

    def end(self, outcome: str, error: BaseException) -> None:
        """Have the call fail; the first error counts."""
        with self._lock:
            if not self._ended.is_set():
                self.outcome, self.error = outcome, error
                self._ended.set()

    def wait(self) -> None:
        """Wait for the end; raise the error if there is one."""
        self._ended.wait()
        if self.error is not None:
            raise self.error

    def leave(self) -> None:
        """Wait no longer."""
        self._ended.set()

    def lists(self, threads: int) -> Lists:
        """Keys of each query."""
        return self._answers.lists(threads)


class Cuts:
    """Cuts what is left of a call's queries into packets, again and again, as what these may have becomes known."""

    def __init__(self, chunks: Sequence[TagLists]) -> None:
        self._chunks = list(chunks)
        self._begun = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def parts(self, matcher: Matcher, packet: int, threads: int, most: int | None) -> list[Part]:
        """Cut off packets of at most so many queries, `most` of them; all that is left, if that is `None`."""
        found: list[Part] = []
        size = replace(matcher.packet_size, queries=packet, fewest=min(matcher.packet_size.fewest, packet))
        while self._chunks and (most is None or len(found) < most):
            chunk = self._chunks[0]
            for first, last in self._ranges(chunk, size, threads, None if most is None else packet):
                if most is not None and len(found) == most:
                    return found
                found.append((chunk, first, last))
                self._begun = last
            self._chunks.pop(0)
            self._begun = 0
        return found

    def _ranges(self, chunk: TagLists, size: object, threads: int, step: int | None) -> Iterator[tuple[int, int]]:
        if step is not None:
            for first in range(self._begun, len(chunk), step):
                yield first, min(first + step, len(chunk))
        else:
            left = replace(chunk, offsets=chunk.offsets[self._begun :], attributes=None, locations=None)
            begun = self._begun
            for first, last in packet_ranges(left, size, threads):  # type: ignore[arg-type]
                yield begun + first, begun + last
