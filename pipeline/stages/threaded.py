"""The threaded executor: queries that are submitted one by one go through stages with threads of their own (§3).

The intake gathers queries into packets. In a layout that matches partition by partition the ways of a packet's queries
part in the partition queues, and they go on when all their batches are matched. What comes out of the last stage goes
to the futures of those that have asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tagmatch.model.errors import ClosedError
from tagmatch.model.options import MatchOptions
from tagmatch.pipeline.stages.batcher import Batcher
from tagmatch.pipeline.stages.counts import Counts
from tagmatch.pipeline.stages.intake import Intake
from tagmatch.pipeline.stages.limits import Limits
from tagmatch.pipeline.stages.order import FOLLOWING, STAGES, StageName
from tagmatch.pipeline.stages.packets import Caller, Submitted
from tagmatch.pipeline.stages.partition_queues import Taken
from tagmatch.pipeline.stages.queues import Fifo, QueuePolicy
from tagmatch.pipeline.stages.stage import Stage, StoppedError

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Work = Submitted | Taken
Following = Iterable[tuple[Stage[Any], Work]]


class Threaded:
    """The stages, what stands before them, and the limits of what is in them.

    Parameters
    ----------
    options : MatchOptions
    counts : Counts
        Counts what comes out.
    queue : callable
        Makes the queue of each stage, which says in what order its work is done.

    Attributes
    ----------
    intake : Intake
        Where queries enter.
    limits : Limits
        Of the queries that have entered.
    """

    def __init__(self, options: MatchOptions, counts: Counts, queue: QueuePolicy = Fifo) -> None:
        pipeline = options.pipeline
        self._options = options
        self._counts = counts
        self._queue = queue
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
            queue=self._queue,
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

    def timed(self, name: StageName, do: Callable[[Argument], Result], argument: Argument, /) -> Result:
        """Do something in the calling thread that counts as a stage's service, as what its threads do."""
        return self._stages[name].timed(do, argument)

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
