"""The online pipeline (§3, Figure 1): stages with threads of their own and bounded queues between them.

A packet, some queries in columns, goes through the stages in the order of the paper: preprocess, subset match, key
lookup and merge. Queries that are submitted are gathered into packets by the intake, and what comes out of `merge`
goes to their futures. A call that waits for its queries is cut into packets, each of which one thread takes through
all stages.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from pipeline.cpu import packet_ranges
from pipeline.intake import Intake
from pipeline.key_lookup import look_up_keys, merge_unique
from pipeline.limits import Limits
from pipeline.packets import Backend, Packet, Submitted
from pipeline.stage import Stage, StoppedError
from tagmatch.arrays import Lists, TagLists
from tagmatch.columns import rows_of_tags
from tagmatch.errors import ClosedError
from tagmatch.options import PipelineOptions
from tagmatch.parallel import run


class Pipeline:
    """Answers queries from the backends that they come with.

    Threads start with the first query. `close` ends them.
    """

    def __init__(self, threads: int, options: PipelineOptions) -> None:
        self._threads = threads
        self._options = options
        self._set_up()

    def _set_up(self) -> None:
        self._limits = Limits(self._options.max_queries, self._options.max_result_bytes)
        self._intake = Intake(self._announce, self._limits.leave)
        self._preprocess: Stage[None] = self._stage("preprocess", self._do_preprocess)
        self._subset_match: Stage[Submitted] = self._stage("subset_match", self._do_subset_match)
        self._key_lookup: Stage[Submitted] = self._stage("key_lookup", self._do_key_lookup)
        self._merge: Stage[Submitted] = self._stage("merge", self._do_merge)
        self._stages = (self._preprocess, self._subset_match, self._key_lookup, self._merge)
        self._starting = threading.Lock()
        self._started = self._closed = False
        self._counting = threading.Lock()
        self.queries = 0
        self.matches = 0

    def _stage(self, name: str, do: Any) -> Stage[Any]:
        return Stage(name, do, self._fail, threads=self._threads, bound=2 * self._threads)

    # -- callers -----------------------------------------------------------------------------------------------------

    def submit(self, backend: Backend, tags: list[str], *, unique: bool, timeout: float | None) -> Future[Any]:
        """Ask one query; waits at most `timeout` seconds for its turn to enter."""
        self._start()
        self._limits.admit(timeout=timeout)
        future: Future[Any] = Future()
        self._intake.add(backend, tags, future, unique=unique)
        return future

    def match_many(self, backend: Backend, chunks: Sequence[TagLists], *, unique: bool) -> list[Lists]:
        """Ask many queries; their answers, in order, in parts.

        Each packet stays with one thread through all stages: at 16 threads, handing packets on from stage to stage
        costs a third of the throughput. They are not counted as on their way, as their caller waits for them anyway.
        """

        def work(part: tuple[TagLists, int, int]) -> Lists:
            tags, first, last = part
            packet = Packet(backend=backend, unique=unique, tags=tags, first=first, last=last)
            for do in (preprocess, subset_match, key_lookup, merge):
                do(packet)
            self._count(packet)
            return packet.lists

        ranges = [(chunk, *ends) for chunk in chunks for ends in packet_ranges(chunk, self._threads)]
        return run(work, ranges, self._threads)

    def close(self, *, drain: bool = True) -> None:
        """Admit nothing more; answer what is on its way or, without `drain`, cancel it. Ends all threads."""
        with self._starting:
            self._closed = True
        self._limits.close(drain=drain)
        for stage in self._stages:
            for packet in stage.stop():
                self._fail(packet, ClosedError())
        self._limits.leave(self._intake.cancel())
        for stage in self._stages:
            stage.join()
        _running.discard(self)

    def abandon(self) -> None:
        """Close without draining, in a thread of its own: the garbage collector may call this from any thread."""
        if self._started and not self._closed:
            threading.Thread(target=self.close, kwargs={"drain": False}, name="tagmatch-abandon", daemon=True).start()

    def stats(self) -> dict[str, Any]:
        """Return counts, what is in flight, and `stages` by name."""
        return {
            "queries": self.queries,
            "matches": self.matches,
            "queries_in_flight": self._limits.queries,
            "result_bytes_in_flight": self._limits.result_bytes,
            "stages": {stage.name: stage.stats() for stage in self._stages},
        }

    # -- stages ------------------------------------------------------------------------------------------------------

    def _do_preprocess(self, _: None) -> None:
        while (packet := self._intake.take()) is not None:
            try:
                packet.tags = rows_of_tags(packet.rows)
                preprocess(packet)
                self._subset_match.put(packet)
            except BaseException as error:
                self._fail(packet, error)

    def _do_subset_match(self, packet: Submitted) -> None:
        self._limits.wait_for_room()
        subset_match(packet)
        self._key_lookup.put(packet)

    def _do_key_lookup(self, packet: Submitted) -> None:
        key_lookup(packet)
        packet.result_bytes = packet.lists.values.nbytes
        self._limits.charge(packet.result_bytes)
        self._merge.put(packet)

    def _do_merge(self, packet: Submitted) -> None:
        merge(packet)
        self._leave(packet)
        self._count(packet)
        packet.deliver()

    def _count(self, packet: Packet) -> None:
        with self._counting:
            self.queries += len(packet)
            self.matches += len(packet.lists.values)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            with self._starting:
                if not (self._started or self._closed):
                    for stage in self._stages:
                        stage.start()
                    self._started = True
                    _running.add(self)

    def _announce(self) -> None:
        try:
            self._preprocess.put(None)
        except StoppedError:
            self._limits.leave(self._intake.cancel())

    def _fail(self, packet: Submitted | None, error: BaseException) -> None:
        if packet is not None:
            self._leave(packet)
            packet.fail(ClosedError() if isinstance(error, StoppedError) else error)

    def _leave(self, packet: Submitted) -> None:
        if packet.in_flight:
            packet.in_flight = False
            self._limits.leave(len(packet), packet.result_bytes)


def preprocess(packet: Packet) -> None:
    """Tags become ranks (§3.2)."""
    packet.queries = packet.backend.ranks(packet.tags, packet.first, packet.last)


def subset_match(packet: Packet) -> None:
    """Ranks become set ids (§3.3)."""
    packet.lists = packet.backend.subset_match(packet.queries)


def key_lookup(packet: Packet) -> None:
    """Set ids become keys (§3.4)."""
    packet.lists = look_up_keys(packet.lists, packet.backend.snapshot.keys)


def merge(packet: Packet) -> None:
    """Each query gets its keys, each once if that was asked (§3.4)."""
    if packet.unique:
        packet.lists = merge_unique(packet.lists)


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
