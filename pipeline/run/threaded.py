"""The executors without channels: stages with threads of their own, and packets that stay with one thread (§3).

Queries that are submitted one by one are gathered into packets by the intake. In a layout that matches partition by
partition the ways of a packet's queries part in the partition queues, and they go on when all their batches are
matched. A call that waits for many queries is cut into packets, each of which stays with one thread: at 16 threads,
handing packets on from stage to stage costs a third of the throughput.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tagmatch.model.arrays import IntArray, Lists, TagLists, offsets_of
from tagmatch.model.errors import ClosedError, Overloaded
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges, even_work, run, run_rows
from tagmatch.pipeline.run.batches import Batcher, Taken
from tagmatch.pipeline.run.counts import Counts
from tagmatch.pipeline.run.packets import Answers, Caller, CallPacket, Services, Submitted
from tagmatch.pipeline.run.stage import FOLLOWING, STAGES, Stage, StageName, StoppedError
from tagmatch.pipeline.segment import Matcher, PacketSize
from tagmatch.pipeline.tags import merge_all


class Intake:
    """Gathers queries while no thread is free to take them, so that batches grow with the load."""

    def __init__(
        self, packet_queries: int, *, announce: Callable[[], object], dropped: Callable[[list[Caller]], None]
    ) -> None:
        self._packet_queries = packet_queries
        self._announce = announce
        self._dropped = dropped
        self._lock = threading.Lock()
        self._groups: dict[Matcher, list[tuple[list[str], Caller]]] = {}

    def __bool__(self) -> bool:
        """Return whether there is something to take."""
        return bool(self._groups)

    def extend(self, matcher: Matcher, queries: list[tuple[list[str], Caller]]) -> bool:
        """Append queries to which `matcher` has the answers; returns whether their taking must be seen to.

        If not, there are others whose taking has been seen to.
        """
        with self._lock:
            waiting = self._groups.setdefault(matcher, [])
            waiting += queries
            return len(waiting) == len(queries)

    def take(self) -> Submitted | None:
        """Return some of what has been gathered, without what was cancelled; `None` if there is nothing."""
        while True:
            with self._lock:
                if not self._groups:
                    return None
                matcher, waiting = next(iter(self._groups.items()))
                gathered, rest = waiting[: self._packet_queries], waiting[self._packet_queries :]
                if rest:
                    self._groups[matcher] = rest
                else:
                    del self._groups[matcher]
                more = bool(self._groups)
            try:
                packet = self._packet(matcher, gathered)
            except BaseException as error:
                for _, caller in gathered:
                    caller.fail(error)
                self._dropped([caller for _, caller in gathered])
                raise
            if packet is not None:
                if more:
                    self._announce()
                return packet

    def _packet(self, matcher: Matcher, gathered: list[tuple[list[str], Caller]]) -> Submitted | None:
        taken = [pair for pair in gathered if pair[1].future.set_running_or_notify_cancel()]
        if len(taken) < len(gathered):
            self._dropped([caller for _, caller in gathered if caller.future.cancelled()])
        if not taken:
            return None
        rows, callers = map(list, zip(*taken, strict=True))
        unique = np.array([caller.unique for caller in callers])
        return Submitted(matcher=matcher, unique=unique, rows=rows, callers=callers)

    def cancel(self) -> list[Caller]:
        """Cancel all that nobody has taken; returns the callers that wait for it."""
        with self._lock:
            waiting = [caller for group in self._groups.values() for _, caller in group]
            self._groups.clear()
        for caller in waiting:
            caller.future.cancel()
            # Without this, callers that wait for several futures would not learn of it
            caller.future.set_running_or_notify_cancel()
        return waiting


class Limits:
    """Counts queries and bytes of results in flight, and has callers wait that would add one too many."""

    def __init__(self, queries: int, result_bytes: int) -> None:
        self._most_queries, self._most_bytes = queries, result_bytes
        # Entered as it is: a condition's own `__enter__` is Python, which Ctrl-C may interrupt with the lock taken
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = self._given_up = False
        # Not a count, so that queries that are let out twice, after an error, count once
        self._inside: set[Caller] = set()
        self.result_bytes = 0
        self._partial_bytes = 0

    @property
    def queries(self) -> int:
        """Queries in flight."""
        return len(self._inside)

    def admit(self, caller: Caller, *, timeout: float | None = None) -> None:
        """Let a query in; waits for room, at most `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._closed and (too_much := self._too_much()):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise _overloaded(too_much)
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            if self._closed:
                raise ClosedError
            self._inside.add(caller)

    def admit_some(self, callers: Sequence[Caller]) -> list[Overloaded]:
        """Let queries in, the first ones first, while there is room; returns an error for each of the others."""
        with self._lock:
            if self._closed:
                raise ClosedError
            for at, caller in enumerate(callers):
                if too_much := self._too_much():
                    return [_overloaded(too_much) for _ in callers[at:]]
                self._inside.add(caller)
        return []

    def admit_at_once(self, caller: Caller) -> None:
        """Let a query in, though there may be too many."""
        with self._lock:
            if self._closed:
                raise ClosedError
            self._inside.add(caller)

    def leave(self, callers: Iterable[Caller]) -> None:
        """Let queries out; those that are out already stay out."""
        with self._lock:
            self._inside.difference_update(callers)
            self._changed.notify_all()

    def release(self, result_bytes: int) -> None:
        """Count bytes that were charged out."""
        with self._lock:
            self.result_bytes -= result_bytes
            self._changed.notify_all()

    def charge(self, result_bytes: int) -> None:
        """Count bytes of results in."""
        with self._lock:
            self.result_bytes += result_bytes

    def wait_for_room(self) -> None:
        """Wait while there are too many bytes of results."""
        with self._lock:
            while self.result_bytes >= self._most_bytes and not self._closed:
                self._changed.wait()

    def hold(self, partial_bytes: int) -> None:
        """Say how many bytes of partial results there are."""
        with self._lock:
            less = partial_bytes < self._partial_bytes
            self._partial_bytes = partial_bytes
            if less:
                self._changed.notify_all()

    def _too_much(self) -> str | None:
        queries = len(self._inside)
        if queries >= self._most_queries:
            return f"{queries} queries are being answered, as many as max_queries"
        # Where nothing is in flight there is nothing to wait for
        if queries and (made := self.result_bytes + self._partial_bytes) >= self._most_bytes:
            return f"answers of {made} bytes are being made, as many as max_result_bytes"
        return None

    def close(self) -> None:
        """Admit nothing more."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        """Wait until all queries are out, or somebody would not have others wait for them."""
        with self._lock:
            while self.queries and not self._given_up:
                self._changed.wait()

    def give_up(self) -> None:
        """Have nobody wait for the queries that are not out."""
        with self._lock:
            self._given_up = True
            self._changed.notify_all()


def _overloaded(too_much: str) -> Overloaded:
    return Overloaded(f"{too_much} allows; try again later, or use `submit`, which waits")


Work = Submitted | Taken
Following = Iterable[tuple[Stage[Any], Work]]


class Threaded:
    """The stages, what stands before them, and the limits of what is in them."""

    def __init__(self, options: MatchOptions, counts: Counts) -> None:
        pipeline = options.pipeline
        self._options = options
        self._counts = counts
        self.limits = Limits(pipeline.max_queries, pipeline.max_result_bytes)
        self.intake = Intake(pipeline.packet_queries, announce=lambda: self.first.nudge(), dropped=self.limits.leave)
        self._batcher = Batcher(
            options.flush_timeout,
            self._threads("subset_match"),
            pipeline.hand_over_queries,
            announce=lambda: self._stages["subset_match"].nudge(),
            due=lambda taken: self._stages["subset_match"].put(taken),
            held=self.limits.hold,
            lost=self.lose,
        )
        self._stages: dict[StageName, Stage[Any]] = {
            "preprocess": self._stage("preprocess", self._preprocess, otherwise=self.intake.take),
            "subset_match": self._stage("subset_match", self._subset_match, otherwise=self._batcher.take),
            "key_lookup": self._stage("key_lookup", self._key_lookup),
            "merge": self._stage("merge", self._merge),
        }
        # What other threads do for a stage counts as well
        self.services: Services = {name: stage.service for name, stage in self._stages.items()}

    def _threads(self, name: StageName) -> int:
        return getattr(self._options.pipeline, f"{name}_threads") or self._options.threads

    def _stage(self, name: StageName, do: Callable[[Any], Following], **options: Any) -> Stage[Any]:
        pipeline, threads = self._options.pipeline, self._threads(name)
        return Stage(
            name,
            do,
            self._fail,
            threads=threads,
            bound=pipeline.queued_packets or 2 * threads,
            hand_over=pipeline.hand_over_queries,
            **options,
        )

    # -- from outside ------------------------------------------------------------------------------------------------

    @property
    def first(self) -> Stage[Any]:
        """The stage that takes what the intake has gathered."""
        return self._stages[STAGES[0]]

    def start(self) -> None:
        """Start all threads."""
        for stage in self._stages.values():
            stage.start()

    @property
    def started(self) -> bool:
        """Whether a thread was started."""
        return any(thread.ident is not None for stage in self._stages.values() for thread in stage.threads)

    def stop(self) -> None:
        """Let no stage begin anything more; what nobody has begun fails, or is cancelled where it was not taken."""
        for stage in self._stages.values():
            stage.stop()
        self.limits.leave(self.intake.cancel())
        self._batcher.stop()

    def join(self) -> None:
        """Wait until all threads have ended."""
        for stage in self._stages.values():
            stage.join()

    def abandon(self) -> None:
        """Have what waits in the partition queues fail."""
        self.lose(self._batcher.abandon(), ClosedError())

    def lose(self, callers: list[Caller], error: BaseException) -> None:
        """Let queries out, with an error."""
        self.limits.leave(callers)
        for caller in callers:
            caller.fail(error)

    def stats(self) -> dict[str, Any]:
        """Return what is in flight, and the stages by name."""
        first, *others = ((name, stage.stats()) for name, stage in self._stages.items())
        return {
            "queries_in_flight": self.limits.queries,
            "result_bytes_in_flight": self.limits.result_bytes,
            "stages": dict([first, ("batch", self._batcher.stats()), *others]),
        }

    # -- stages ------------------------------------------------------------------------------------------------------

    def _preprocess(self, packet: Submitted) -> Following:
        by_partition = packet.matcher.by_partition
        if by_partition is None:
            packet.preprocess()
            return self._after("preprocess", packet)
        leaving, nowhere = self._batcher.add(packet, by_partition.preprocess(*packet.tags()))
        batches = [following for taken in leaving for following in self._after("preprocess", taken)]
        return [*batches, *self._after("subset_match", nowhere)]

    def _subset_match(self, work: Work) -> Following:
        self.limits.wait_for_room()
        if isinstance(work, Submitted):
            work.subset_match()
            self._counts.add(verified=work.matched.found, rejected=work.matched.rejected)
            return self._after("subset_match", work)
        found = work.queues.match.match(work.batches)
        self._counts.add(verified=len(found.sets), rejected=found.rejected)
        return self._after("subset_match", self._batcher.finish(work, found))

    def _key_lookup(self, packet: Submitted) -> Following:
        packet.key_lookup()
        packet.result_bytes = packet.keys.values.nbytes
        self.limits.charge(packet.result_bytes)
        return self._after("key_lookup", packet)

    def _merge(self, packet: Submitted) -> Following:
        packet.merge()
        answers = packet.answers()
        self._release(packet)
        self.limits.leave(packet.callers)
        waiting = [not caller.future.done() for caller in packet.callers]  # those whose batches all went well
        self._counts.add(queries=sum(waiting), matches=len(packet.keys.values))
        for caller, answer in zip(packet.callers, answers, strict=True):
            caller.answer(answer)
        return ()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _after(self, name: StageName, work: Work) -> Following:
        """The stage that follows, with the work for it, where there is some."""
        return [(self._stages[FOLLOWING[name]], work)] if len(work) else ()

    def _fail(self, work: Work, error: BaseException) -> None:
        if isinstance(error, StoppedError):
            error = ClosedError()
        if isinstance(work, Taken):
            # Noted before the batches count as finished: the thread that finishes a query's last batch must know that
            # one failed
            self.lose(self._batcher.callers(work), error)
            work = self._batcher.finish(work, None)
        self._release(work)
        self.lose(work.callers, error)

    def _release(self, packet: Submitted) -> None:
        """Count the bytes of a packet's results out, once."""
        result_bytes, packet.result_bytes = packet.result_bytes, 0
        self.limits.release(result_bytes)


#: A call with many queries is cut so that each thread gets some packets
PACKETS_PER_THREAD = 4


def match_inline(
    matcher: Matcher,
    chunks: Sequence[TagLists],
    *,
    unique: bool,
    threads: int,
    counts: Counts,
    services: Services,
) -> Lists:
    """Keys, uint64, of each of many queries, in order."""

    def work(number: int) -> None:
        rows, first, last = parts[number]
        wanted = np.full(last - first, unique and not merged_later)
        packet = CallPacket(
            matcher=matcher, unique=wanted, rows=rows, first=first, last=last, number=number, answers=answers
        )
        packet.go_through(services, counts)

    def merge(first: int, last: int) -> Lists:
        begin, end = found.offsets[first], found.offsets[last]
        piece = Lists(found.offsets[first : last + 1] - begin, found.values[begin:end])
        begun = time.perf_counter()
        merged = merge_all(piece)
        services["merge"].add(time.perf_counter() - begun)
        return merged

    size = matcher.packet_size
    at_once = min(threads, size.at_once or threads)
    # Few threads keep a device busy, and would merge alone
    merged_later = unique and at_once < threads
    parts = [(chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk.offsets, size, at_once)]
    answers = Answers([last - first for _, first, last in parts], matcher.memory)
    run(work, range(len(parts)), at_once)
    found = answers.lists(threads)
    if merged_later:
        pieces = run_rows(merge, even_work(found.offsets, PACKETS_PER_THREAD * threads), threads)
        found = join_lists(pieces, np.dtype(np.uint64), threads)
    counts.add(matches=len(found.values))
    return found


def packet_ranges(offsets: IntArray, size: PacketSize, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, whose tags these offsets cut, for packets: as many in each, unless they have many tags."""
    count = len(offsets) - 1
    wanted = min(PACKETS_PER_THREAD * threads, -(-count // size.fewest))
    tags = int(offsets[-1]) - int(offsets[0])
    if wanted == 1 and count <= size.queries and tags <= size.tags:
        return [(0, count)]
    even = np.array(even_ranges(count, max(wanted, -(-count // size.queries), -(-tags // size.tags))))
    if not len(even):
        return []
    begins, ends = offsets[even[:, 0]].astype(np.int64), offsets[even[:, 1]].astype(np.int64)
    # Where a range has too many tags, it is cut behind each so many of its own
    cuts = np.maximum(-(-(ends - begins) // size.tags), 1) - 1
    marks = np.repeat(begins - size.tags * offsets_of(cuts)[:-1], cuts) + size.tags * np.arange(1, cuts.sum() + 1)
    by_tags = np.searchsorted(offsets, marks.astype(offsets.dtype), side="right") - 1
    edges = np.unique(np.concatenate([even[:, 0], by_tags, [count]])).tolist()
    return list(pairwise(edges))
