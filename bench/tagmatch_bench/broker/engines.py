"""Matchers of constraints on attributes as engines of a broker."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch_bench.systems.content_matcher import Messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tagmatch import TagMatch
    from tagmatch_bench.broker.wire import Events
    from tagmatch_bench.systems.content_matcher import ContentMatcher


class ContentEngine:
    """A compared system, which gets all events that wait in one call, as it takes them: attributes by number.

    Parameters
    ----------
    matcher : ContentMatcher
        Its constraints are on integers.
    """

    def __init__(self, matcher: ContentMatcher) -> None:
        self.names: Sequence[str] = matcher.names
        self._matcher = matcher

    def interfaces(self, events: Events) -> Lists:
        """Of each event the interfaces, each once."""
        messages = Messages(events.offsets, events.attributes, events.values)
        return _lists(self._matcher.match_many(messages, unique=True))


class TagmatchEngine:
    """An index of tagmatch, asked as its users ask it: for few events one by one, for more with a table of them.

    Parameters
    ----------
    index : TagMatch
    names : sequence of str
        Of the attributes that events may have.
    tables_from : int
        Events from which on they are asked for in a table with a column of maps, which takes no longer then than
        single calls.
    """

    def __init__(self, index: TagMatch, names: Sequence[str], *, tables_from: int = 50) -> None:
        self.names: Sequence[str] = list(names)
        self._names = pa.array(self.names)
        self._index = index
        self._tables_from = tables_from

    def interfaces(self, events: Events) -> Lists:
        """Of each event the interfaces, each once."""
        return self._in_a_table(events) if len(events.numbers) >= self._tables_from else self._one_by_one(events)

    def _one_by_one(self, events: Events) -> Lists:
        names, values = [self.names[each] for each in events.attributes.tolist()], events.values.tolist()
        ask = self._index.match_unique
        found = [
            ask((), dict(zip(names[begin:end], values[begin:end], strict=True)))
            for begin, end in pairwise(events.offsets.tolist())
        ]
        counts = np.fromiter(map(len, found), np.int64, len(found))
        return Lists(offsets_of(counts), np.fromiter(chain.from_iterable(found), np.uint64, int(counts.sum())))

    def _in_a_table(self, events: Events) -> Lists:
        offsets, names = pa.array(events.offsets.astype(np.int32)), self._names.take(pa.array(events.attributes))
        maps = pa.MapArray.from_arrays(offsets, names, pa.array(events.values))
        return _lists(self._index.match_many(pa.record_batch({"attributes": maps}), unique=True))


def _lists(answers: pa.ListArray) -> Lists:
    return Lists(answers.offsets.to_numpy().astype(np.int64), answers.values.to_numpy())
