"""What waits to be matched: messages of channels, and packets of calls with many."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

from tagmatch.model.options import Channel
from tagmatch.pipeline.matcher import Matcher
from tagmatch.pipeline.run.counts import ChannelCounts, CostModel

#: Of the time that the tightest channel has to spare, a task may take this share: threads do not wake in no time
_SHARE = 0.5
# Tasks of a channel that all are learned from; of later ones that are expected to be brief, it is one in so many
_LEARN_ALL, _LEARN_ONE_IN, _BRIEF_S = 64, 8, 0.0005


@dataclass(slots=True, eq=False)
class Class:
    """A channel, with what is known of its messages."""

    channel: Channel
    cost: CostModel = field(default_factory=CostModel)  # What its tasks take
    counts: ChannelCounts = field(default_factory=ChannelCounts)  # What became of its messages
    tasks: int = 0  # Tasks that were done
    due: float = field(init=False)  # The channel's, which computes them
    expires: float = field(init=False)

    def __post_init__(self) -> None:
        self.due, self.expires = self.channel.due, self.channel.expires

    def learn(self, count: int, seconds: float) -> float | None:
        """Learn from a task of so many messages, one thread at a time; returns by how much it was off, if it did.

        Of brief tasks, to learn from each would take as long as the tasks themselves.
        """
        expected = self.cost.once + self.cost.each * count
        self.tasks += 1
        if self.tasks > _LEARN_ALL and expected < _BRIEF_S and self.tasks % _LEARN_ONE_IN:
            return None
        self.cost.learn(count, seconds)
        return abs(expected - seconds)


class Call(Protocol):
    """Those that an entry is for, who may not want it any more."""

    @property
    def over(self) -> bool:
        """Whether nobody waits for the answer any more."""


@dataclass(slots=True, eq=False)
class Entry:
    """A message, or a packet of a call with many, that waits. Times are seconds of one clock."""

    of: Class
    since: float  # When it was handed in, and when its answer is late
    due: float
    count: int  # Its messages
    work: Any  # What is to be done
    # Of a message that may share a task with others of the same matcher; `None`: it is a task of its own
    matcher: Matcher | None = None
    call: Call | None = None  # The call whose packet it is
    rest: int = 0  # Messages of its call in packets that were handed in with it, from this one on
    number: int = field(default_factory=itertools.count().__next__)  # Entries are numbered as they come

    @property
    def over(self) -> bool:
        """Whether it need not be matched any more."""
        return self.call is not None and self.call.over

    @property
    def expires(self) -> float:
        """When nobody wants the answer any more, late or not."""
        return self.since + self.of.expires

    @property
    def lifespan(self) -> float:
        """As `expires`, where the channel says so itself: being late is no reason."""
        return inf if self.of.channel.expiry is None else self.expires


class Turn(NamedTuple):
    """What a thread is to do next: entries to match together, which may be none, and some that are dropped."""

    entries: list[Entry]
    dropped: list[Entry]


def longest_task(classes: Sequence[Class]) -> float:
    """Seconds that a task of any channel may take, so that what comes meanwhile is in time.

    A part of the least time that a channel has to spare beyond what one of its messages takes.
    """
    return _SHARE * min((each.due - each.cost.seconds(1) for each in classes), default=inf)


def packet_of(of: Class, classes: Sequence[Class], limit: int) -> int:
    """Messages that a packet of a channel's calls may have, so that it takes no longer than `longest_task`.

    Where to begin a task takes longer than that, smaller packets would only take longer in all: what a packet begins
    with takes at most half of its time.
    """
    return of.cost.most(max(longest_task(classes), 2 * of.cost.seconds(0)), limit)
