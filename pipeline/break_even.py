"""Of how many queries a packet has to be that a device answers it sooner than the CPU does."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import tag_lists
from tagmatch.model.kernels.reserved import constraints_among
from tagmatch.model.tables import Segment
from tagmatch.pipeline.areas.finder import Finder
from tagmatch.pipeline.areas.index import AreaIndex
from tagmatch.pipeline.areas.shapes import Places
from tagmatch.pipeline.filters.likely_messages import likely_message
from tagmatch.pipeline.matcher import Matcher

# What is tried at most; a packet of more queries goes to the device
_MOST_QUERIES = 1 << 12
_ROUNDS = 2
# Different messages among them, where sets have constraints: what is made of these is no work of columns
_MESSAGES = 1 << 8


def break_even(device: Matcher, cpu: Matcher, segment: Segment) -> int:
    """Measure with stored sets as queries, or messages that they ask for: the first power of two for the device."""
    has_constraints = len(segment) > 0 and constraints_among(segment.vocabulary.tags).any()
    queries = _messages(segment) if has_constraints else _stored_sets(segment)

    def ask(matcher: Matcher, count: int) -> None:
        matcher.preprocess(queries, 0, count).subset_match().key_lookup()

    return _first_for(lambda count: ask(device, count), lambda count: ask(cpu, count), len(queries))


def break_even_of_areas(device: Finder, cpu: Finder, index: AreaIndex) -> int:
    """As `break_even`, of areas: with messages in stored areas, or near clients, that have the contents of these."""
    fixed = len(index.fixed_rows) > 0
    assert fixed or index.followers is not None
    some = index.fixed.some if index.followers is None or fixed else index.followers.cells.some
    places, contents = some(_MOST_QUERIES)

    def ask(finder: Finder, count: int) -> None:
        asked = Places(places.lon[:count], places.lat[:count]), Lists(np.arange(count + 1), contents[:count])
        if fixed:
            finder.holding(*asked)
        if index.followers is not None:
            finder.near(*asked)

    return _first_for(lambda count: ask(device, count), lambda count: ask(cpu, count), len(places))


def _first_for(device: Callable[[int], None], cpu: Callable[[int], None], most: int) -> int:
    """The first power of two for which a device is sooner."""
    count = 1
    while count < most and _seconds(cpu, count) < _seconds(device, count):
        count *= 2
    return count


def _stored_sets(segment: Segment) -> TagLists:
    """Stored sets from all over the table, each as often as it takes to be enough."""
    rows = np.linspace(0, max(0, len(segment) - 1), _MOST_QUERIES).astype(np.uint64)
    return segment.sets(rows if len(segment) else rows[:0])


def _messages(segment: Segment) -> TagLists:
    """Messages for sets from all over the table."""
    some = segment.sets(np.linspace(0, len(segment) - 1, _MESSAGES).astype(np.uint64))
    tags = from_strings(some.tags).to_pylist()
    messages = [likely_message(tags[begin:end]) for begin, end in pairwise(some.offsets.tolist())]
    [queries] = tag_lists(messages * (_MOST_QUERIES // _MESSAGES), "messages")
    return queries


def _seconds(ask: Callable[[int], None], count: int) -> float:
    """What a packet takes at best, through all stages."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        ask(count)
        best = min(best, time.perf_counter() - begin)
    return best
