"""Of how many queries a packet has to be that a device answers it sooner than the CPU does."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np

from tagmatch.model.arrays import TagLists
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import tag_lists
from tagmatch.model.kernels.reserved import constraints_among
from tagmatch.model.tables import Segment
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
    count = 1
    while count < len(queries) and _seconds(cpu, queries, count) < _seconds(device, queries, count):
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


def _seconds(matcher: Matcher, queries: TagLists, count: int) -> float:
    """What a packet takes at best, through all stages."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        matcher.preprocess(queries, 0, count).subset_match().key_lookup()
        best = min(best, time.perf_counter() - begin)
    return best
