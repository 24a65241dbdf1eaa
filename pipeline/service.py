"""The online pipeline (§3, Figure 1): stages with threads of their own and bounded queues between them.

A packet, some queries in columns, goes through the stages in the order of the paper: preprocess, batch, subset match,
key lookup, merge. Queries that are submitted are gathered into packets by the intake; in a layout that matches
partition by partition their ways part in the partition queues, and they go on when all their batches are matched. What
comes out of `merge` goes to their futures. A call that waits for many queries is cut into packets, each of which one
thread takes through all stages.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.columns import one_row, rows_of_tags
from tagmatch.model.errors import ClosedError
from tagmatch.model.options import PipelineOptions
from tagmatch.model.parallel import run
from tagmatch.pipeline.backend import Backend
from tagmatch.pipeline.batcher import Batcher
from tagmatch.pipeline.intake import Intake
from tagmatch.pipeline.key_lookup import merge_unique
from tagmatch.pipeline.limits import Limits
from tagmatch.pipeline.packets import Caller, Packet, Submitted, packet_ranges
from tagmatch.pipeline.partition_queues import Taken
from tagmatch.pipeline.stage import Stage, StoppedError, at_work

# Seconds without an answer after which a caller does not count on another that helps, but wakes a thread
_PATIENCE_S = 0.01

Following = Iterable[tuple[Stage[Any], Submitted | Taken]]


class Pipeline:
    """Answers queries from the backends that they come with.

    Threads start with the first query. `close` ends them.
    """

    def __init__(self, threads: int, flush_timeout: float | None, options: PipelineOptions) -> None:
        self._threads = threads
        self._flush_timeout = flush_timeout
        self._options = options
        self._set_up()

    def _set_up(self) -> None:
        options = self._options
        self._limits = Limits(options.max_queries, options.max_result_bytes)
        self._intake = Intake(
            options.packet_queries, announce=lambda: self._preprocess.nudge(), dropped=self._limits.leave
        )
        self._preprocess: Stage[Submitted] = self._stage(
            "preprocess", options.preprocess_threads, self._do_preprocess, otherwise=self._intake.take
        )
        matching = options.subset_match_threads or self._threads
        self._batcher = Batcher(
            self._flush_timeout,
            matching,
            options.hand_over_queries,
            announce=lambda: self._subset_match.nudge(),
            due=lambda taken: self._subset_match.put(taken),
            held=self._limits.hold,
            lost=self._lose,
        )
        self._subset_match: Stage[Submitted | Taken] = self._stage(
            "subset_match", matching, self._do_subset_match, otherwise=self._batcher.take
        )
        self._key_lookup: Stage[Submitted] = self._stage("key_lookup", options.key_lookup_threads, self._do_key_lookup)
        self._merge: Stage[Submitted] = self._stage("merge", options.merge_threads, self._do_merge)
        self._stages: tuple[Stage[Any], ...] = (self._preprocess, self._subset_match, self._key_lookup, self._merge)
        self._starting = threading.Lock()
        self._helping = threading.Lock()
        self._started = self._closed = False
        self._counting = threading.Lock()
        self._queries = self._matches = self._verified = self._rejected = 0

    def _stage(self, name: str, threads: int | None, do: Any, **options: Any) -> Stage[Any]:
        threads = threads or self._threads
        bound = self._options.queued_packets or 2 * threads
        hand_over = self._options.hand_over_queries
        return Stage(name, do, self._fail, threads=threads, bound=bound, hand_over=hand_over, **options)

    # -- callers -----------------------------------------------------------------------------------------------------

    def submit(self, backend: Backend, tags: list[str], *, unique: bool, timeout: float | None) -> Future[Any]:
        """Ask one query; waits at most `timeout` seconds for its turn to enter."""
        self._start()
        caller = Caller(Future(), unique)
        try:
            if self._enter(caller, backend, tags, timeout) and not self._preprocess.nudge():
                self._limits.leave(self._intake.cancel())
        except BaseException:
            self._leave_behind(caller)
            raise
        return caller.future

    def match(self, backend: Backend, tags: list[str], *, unique: bool) -> Any:
        """`submit` and wait; meanwhile the calling thread does the work for which another would have to be woken.

        The main thread, which Ctrl-C may interrupt at any moment, has no part in the work for others.
        """
        if at_work() or threading.current_thread() is threading.main_thread():
            (answers,) = self.match_many(backend, [one_row(tags)], unique=unique)
            keys = backend.snapshot.keys.listed(answers.values)
            return set(keys) if unique else keys
        self._start()
        caller = Caller(Future(), unique)
        future = caller.future
        try:
            self._enter(caller, backend, tags, None)
        except BaseException:
            self._leave_behind(caller)
            raise
        # One at a time helps, so that the queries of the others gather. A caller that finds another at it leaves its
        # query to that one, which sees to it that somebody takes what is left.
        while self._intake and not future.done() and self._helping.acquire(blocking=False):
            try:
                self._preprocess.help()
            finally:
                self._helping.release()
        if self._intake and not self._helping.locked():
            self._preprocess.nudge()
        try:
            return future.result(_PATIENCE_S)
        except TimeoutError:
            self._preprocess.nudge()
        return future.result()

    def _enter(self, caller: Caller, backend: Backend, tags: list[str], timeout: float | None) -> bool:
        """Hand a query to the intake; returns whether its taking must be seen to."""
        if at_work():
            self._limits.admit_at_once(caller)
        else:
            self._limits.admit(caller, timeout=timeout)
        return self._intake.add(backend, tags, caller)

    def _leave_behind(self, caller: Caller) -> None:
        """After an error it is not known how far a query came. Others, which count on its being seen to, go on."""
        self._limits.leave([caller])
        if self._intake:
            self._preprocess.nudge()

    def match_many(self, backend: Backend, chunks: Sequence[TagLists], *, unique: bool) -> list[Lists]:
        """Ask many queries; their answers, in order, in parts.

        Each packet stays with one thread through all stages: at 16 threads, handing packets on from stage to stage
        costs a third of the throughput. They are not counted as on their way, as their caller waits for them anyway;
        nor are they queued by partition, being as large as many batches.
        """

        def work(part: tuple[TagLists, int, int]) -> Lists:
            tags, first, last = part
            wanted = np.full(last - first, unique)
            packet = Packet(backend=backend, unique=wanted, tags=tags, first=first, last=last)
            self._preprocess.timed(preprocess, packet)
            self._subset_match.timed(subset_match, packet)
            self._key_lookup.timed(key_lookup, packet)
            self._merge.timed(merge, packet)
            self._count(
                queries=len(packet),
                matches=len(packet.lists.values),
                verified=packet.verified,
                rejected=packet.rejected,
            )
            answers: Lists = packet.lists
            return answers

        size = backend.packet_size
        threads = min(self._threads, size.at_once or self._threads)
        ranges = [(chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk, size, threads)]
        return run(work, ranges, threads)

    def close(self, *, drain: bool = True) -> None:
        """Admit nothing more; answer what is on its way or, without `drain`, cancel it. Ends all threads.

        In a callback of a future, whose thread is one of those to end, the closing goes on in the background.
        """
        with self._starting:
            self._closed = True
        self._limits.close()
        if at_work():
            threading.Thread(target=self._end, args=[drain], name="tagmatch-close", daemon=True).start()
        else:
            self._end(drain)

    def _end(self, drain: bool) -> None:
        if drain:
            self._limits.wait_until_empty()
        else:
            self._limits.give_up()
        for stage in self._stages:
            stage.stop()
        self._limits.leave(self._intake.cancel())
        self._batcher.stop()
        for stage in self._stages:
            stage.join()
        with self._helping:  # the thread of a caller may be at giving answers to others
            pass
        self._lose(self._batcher.abandon(), ClosedError())
        _running.discard(self)

    def abandon(self) -> None:
        """Close without draining, in a thread of its own: the garbage collector may call this from any thread."""
        threads = (thread for stage in self._stages for thread in stage.threads)
        if not self._closed and any(thread.ident is not None for thread in threads):
            threading.Thread(target=self.close, kwargs={"drain": False}, name="tagmatch-abandon", daemon=True).start()

    def stats(self) -> dict[str, Any]:
        """Return counts, what is in flight, and `stages` by name."""
        preprocess, *others = ((stage.name, stage.stats()) for stage in self._stages)
        return {
            "queries": self._queries,
            "matches": self._matches,
            "verified": self._verified,
            "rejected": self._rejected,
            "queries_in_flight": self._limits.queries,
            "result_bytes_in_flight": self._limits.result_bytes,
            "stages": dict([preprocess, ("batch", self._batcher.stats()), *others]),
        }

    # -- stages ------------------------------------------------------------------------------------------------------

    def _do_preprocess(self, packet: Submitted) -> Following:
        packet.tags = rows_of_tags(packet.rows)
        preprocess(packet)
        if packet.backend.by_partition is None:
            return [(self._subset_match, packet)]
        leaving, nowhere = self._batcher.add(packet)
        return [*((self._subset_match, taken) for taken in leaving), *self._to_key_lookup(nowhere)]

    def _do_subset_match(self, work: Submitted | Taken) -> Following:
        self._limits.wait_for_room()
        if isinstance(work, Submitted):
            subset_match(work)
            self._count(verified=work.verified, rejected=work.rejected)
            return self._to_key_lookup(work)
        found = work.queues.match.match(work.batches)
        self._count(verified=len(found.sets), rejected=found.rejected)
        return self._to_key_lookup(self._batcher.finish(work, found))

    def _to_key_lookup(self, packet: Submitted) -> Following:
        return [(self._key_lookup, packet)] if len(packet) else ()

    def _do_key_lookup(self, packet: Submitted) -> Following:
        key_lookup(packet)
        packet.result_bytes = packet.lists.values.nbytes
        self._limits.charge(packet.result_bytes)
        return [(self._merge, packet)]

    def _do_merge(self, packet: Submitted) -> Following:
        merge(packet)
        answers = packet.answers()
        self._release(packet)
        self._limits.leave(packet.callers)
        waiting = [not caller.future.done() for caller in packet.callers]  # those whose batches all went well
        self._count(queries=sum(waiting), matches=len(packet.lists.values))
        for caller, answer in zip(packet.callers, answers, strict=True):
            caller.answer(answer)
        return ()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _count(self, *, queries: int = 0, matches: int = 0, verified: int = 0, rejected: int = 0) -> None:
        with self._counting:
            self._queries += queries
            self._matches += matches
            self._verified += verified
            self._rejected += rejected

    def _start(self) -> None:
        if not self._started:
            with self._starting:
                if not (self._started or self._closed):
                    for stage in self._stages:
                        stage.start()
                    self._started = True
                    _running.add(self)

    def _fail(self, work: Submitted | Taken, error: BaseException) -> None:
        if isinstance(error, StoppedError):
            error = ClosedError()
        if isinstance(work, Taken):
            # Noted before the batches count as finished: the thread that finishes a query's last batch must know that
            # one failed
            for caller in self._batcher.callers(work):
                caller.fail(error)
            work = self._batcher.finish(work, None)
        self._release(work)
        self._lose(work.callers, error)

    def _lose(self, callers: list[Caller], error: BaseException) -> None:
        self._limits.leave(callers)
        for caller in callers:
            caller.fail(error)

    def _release(self, packet: Submitted) -> None:
        """Count the bytes of a packet's results out, once."""
        result_bytes, packet.result_bytes = packet.result_bytes, 0
        self._limits.release(result_bytes)


def preprocess(packet: Packet) -> None:
    """Tags become ranks (§3.2)."""
    packet.queries = packet.backend.ranks(packet.tags, packet.first, packet.last)


def subset_match(packet: Packet) -> None:
    """Ranks become set ids (§3.3)."""
    matches = packet.backend.subset_match(packet.queries)
    packet.lists = matches.lists
    packet.verified, packet.rejected = matches.found, matches.rejected


def key_lookup(packet: Packet) -> None:
    """Set ids become keys (§3.4)."""
    packet.lists = packet.backend.look_up_keys(packet.lists)


def merge(packet: Packet) -> None:
    """Each query gets its keys, each once if that was asked (§3.4)."""
    if packet.unique.any():
        packet.lists = merge_unique(packet.lists, packet.unique)


_running: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _set_up_anew() -> None:
    """A forked child has none of its parent's threads, and locks may be held by them: all begins anew."""
    for pipeline in list(_running):
        _running.discard(pipeline)
        pipeline._set_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_set_up_anew)


@atexit.register
def _close_all() -> None:
    """End what was never closed, as threads within kernels do not survive the end of the interpreter."""
    for pipeline in list(_running):
        pipeline.close(drain=False)
