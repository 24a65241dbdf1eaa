"""What goes through the stages: queries in columns, what the stages make of them, and the callers that wait."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tagmatch.model.arrays import BoolArray, Lists, TagLists, U64Array
from tagmatch.model.columns import rows_of_tags
from tagmatch.pipeline.cpu.key_lookup import merge_unique
from tagmatch.pipeline.matcher import Matched, Matcher, Preprocessed
from tagmatch.pipeline.stages.answers import Answers
from tagmatch.pipeline.stages.awaited import Awaited
from tagmatch.pipeline.stages.order import StageName
from tagmatch.pipeline.stages.stage import working

#: Integers or strings
Keys = list[Any] | set[Any]

_log = logging.getLogger(__name__)


class _Condition(threading.Condition):
    """Entered by C code alone.

    The usual one is entered by Python code, which Ctrl-C may interrupt when the lock is taken already. Who gives an
    answer to a future that somebody waits for would then wait for that lock for ever.
    """

    @property
    def __enter__(self) -> Any:
        return self._lock.__enter__  # type: ignore[attr-defined]


class Answer(Future[Any]):
    """The future of a query; waiting for it can be interrupted at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self._condition.__class__ = _Condition  # to make another one takes longer than all else here

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As of any future; a callback that is called here is at work as it would be in a stage's thread."""
        with working():
            super().add_done_callback(fn)


class Caller(NamedTuple):
    """What a query that was submitted gives its answer to, and whether that is a set of keys."""

    future: Future[Any] | Awaited
    unique: bool

    def answer(self, keys: Keys) -> None:
        """Give the keys, where there is no error yet."""
        self._end(self.future.set_result, keys)

    def fail(self, error: BaseException) -> None:
        """Give the error, where there is no answer yet."""
        self._end(self.future.set_exception, error)

    def _end(self, give: Callable[[Any], None], outcome: Any) -> None:
        try:
            give(outcome)
        except InvalidStateError:
            pass  # two batches of one query may fail at once
        except BaseException:
            # Futures let through what is no `Exception`; other queries must not suffer from it
            _log.exception("exception calling callback for %r", self.future)


@dataclass(slots=True, eq=False, kw_only=True)
class Packet(ABC):
    """A micro-batch of queries; its methods are the stages.

    Attributes
    ----------
    matcher : Matcher
        What answers.
    unique : bool array
        Of each query: whether its keys are wanted once each.
    queries : Preprocessed
        From the preprocess stage on.
    matched : Matched
        From the subset match on.
    keys : Lists of uint32 or uint64
        From the key lookup on: those of each query.
    """

    matcher: Matcher
    unique: BoolArray
    queries: Preprocessed = field(init=False)
    matched: Matched = field(init=False)
    keys: Lists = field(init=False)

    def __len__(self) -> int:
        return len(self.unique)

    @abstractmethod
    def tags(self) -> tuple[TagLists, int, int]:
        """Rows of tags, and from which to which of them are the packet's queries."""

    def space(self, count: int) -> U64Array | None:  # noqa: ARG002 - as `Space`
        """Memory for all keys of the packet, where there is some already."""
        return None

    def perform(self, stage: StageName) -> None:
        """Go through one stage."""
        getattr(self, stage)()

    def preprocess(self) -> None:
        """Tags become what the matcher understands (§3.2)."""
        self.queries = self.matcher.preprocess(*self.tags())

    def subset_match(self) -> None:
        """Find the sets that each query contains (§3.3)."""
        self.matched = self.queries.subset_match()

    def key_lookup(self) -> None:
        """Sets become keys (§3.4)."""
        self.keys = self.matched.key_lookup(self.space)

    def merge(self) -> None:
        """Each query gets its keys, each once if that was asked (§3.4)."""
        if self.unique.any():
            self.keys = merge_unique(self.keys, self.unique)


@dataclass(slots=True, eq=False, kw_only=True)
class Asked(Packet):
    """Some of the queries of a call that asks many: `first` to `last` of `rows`.

    Attributes
    ----------
    number : int
        Which of the call's packets it is.
    answers : Answers
        Where the keys go.
    """

    rows: TagLists
    first: int
    last: int
    number: int
    answers: Answers

    def tags(self) -> tuple[TagLists, int, int]:
        """As `Packet` says."""
        return self.rows, self.first, self.last

    def space(self, count: int) -> U64Array | None:
        """As `Packet` says; keys that are to be made unique are not yet those of the answers."""
        return None if self.unique.any() else self.answers.space(self.number, count)

    def merge(self) -> None:
        """As `Packet` says; the keys then come to the others."""
        Packet.merge(self)
        self.answers.put(self.number, self.keys)


@dataclass(slots=True, eq=False, kw_only=True)
class Submitted(Packet):
    """Queries that were submitted one by one.

    Attributes
    ----------
    callers : list of Caller
        The caller of each.
    rows : list of list of str
        The queries.
    result_bytes : int
        With how many bytes of results the packet is counted as on its way.
    """

    callers: list[Caller]
    rows: list[list[str]] = field(default_factory=list)
    result_bytes: int = 0

    def tags(self) -> tuple[TagLists, int, int]:
        """As `Packet` says."""
        return rows_of_tags(self.rows), 0, len(self.rows)

    def answers(self) -> list[Keys]:
        """List each query's keys, or give them as a set where they are unique."""
        ends, values = self.keys.offsets.tolist(), self.matcher.keys.listed(self.keys.values)
        parts = [values[first:last] for first, last in pairwise(ends)]
        return [set(keys) if caller.unique else keys for caller, keys in zip(self.callers, parts, strict=True)]
