"""Each invariant, broken on its own, is found and named."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import get_args

import numpy as np
import pytest
from support.collisions import colliding_tags

from tagmatch import InvariantError, TagMatch
from tagmatch.model.arrays import Lists, Strings
from tagmatch.model.check import check_segment
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.tables import NEVER


def expiring(**changes):
    """A segment of which two keys expire, with a table of keys or a time that is not right."""
    with TagMatch(device="cpu") as tm:
        later = [None, timedelta(days=1), None, timedelta(days=2)]
        tm.add_sets([["a"], ["b"], ["b"], ["c"]], [1, 2, 3, 4], expires=later)
        tm.consolidate()
        tm.check()
        segment = tm.snapshot.only
    keys = replace(segment.keys, expires=changes.get("expires", lambda times: times)(segment.keys.expires))
    return replace(segment, keys=keys, earliest=changes.get("earliest", segment.earliest))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expires": lambda times: times[:-1]}, "times at which keys expire: are 3, of 4 keys"),
        ({"expires": lambda times: np.full_like(times, NEVER)}, "are there, though no key expires"),
    ],
)
def test_times_of_keys(changes, words):
    with pytest.raises(InvariantError, match=words):
        check_segment(expiring(**changes))


def test_a_time_before_the_earliest_is_noticed_unless_the_set_is_deleted():
    late = expiring(earliest=NEVER)
    rows = np.unique(np.searchsorted(late.keys.keys.offsets, np.flatnonzero(late.keys.expires < NEVER), "right") - 1)
    assert len(rows) == 2
    with pytest.raises(InvariantError, match=f"times at which keys expire, row {rows[0]}: is before the earliest"):
        check_segment(late)
    check_segment(late.without(rows.astype(np.uint32)))


def segment_of(layout):
    with TagMatch(layout=layout, max_partition_size=2) as tm:
        sets = [[], ["a"], ["a", "b"], ["b", "c"], ["c"], ["a", "b", "c"], ["d", "a"], ["d", "b"]]
        tm.add_sets([*sets, ["a"]], range(9))
        tm.consolidate()
        tm.check()
        return tm.snapshot.only


def changed(array, place, value):
    copy = array.copy()
    copy[place] = value
    return copy


def swapped(array, i, j):
    copy = array.copy()
    copy[[i, j]] = copy[[j, i]]
    return copy


def vocabulary(segment, **changes):
    return replace(segment, vocabulary=replace(segment.vocabulary, **changes))


def ranks(segment, values):
    lists = Lists(segment.tagsets.ranks.offsets, values)
    return replace(segment, tagsets=replace(segment.tagsets, ranks=lists))


def keys(segment, offsets, values):
    return replace(segment, keys=replace(segment.keys, keys=Lists(offsets, values)))


BROKEN = {
    "hash is not XXH64": lambda s: vocabulary(s, hashes=changed(s.vocabulary.hashes, 1, 5)),
    "frequency is not": lambda s: vocabulary(s, frequencies=changed(s.vocabulary.frequencies, 3, 9)),
    "hash is not": lambda s: vocabulary(
        s, tags=Strings(s.vocabulary.tags.offsets, swapped(s.vocabulary.tags.data, 0, 1))
    ),
    "outside the vocabulary": lambda s: ranks(s, changed(s.tagsets.ranks.values, -1, 77)),
    "keys do not ascend": lambda s: keys(s, s.keys.keys.offsets, np.full_like(s.keys.keys.values, 3)),
    "set without a key": lambda s: keys(s, changed(s.keys.keys.offsets, 1, 0), s.keys.keys.values),
    "fit into 32 bits": lambda s: keys(s, s.keys.keys.offsets, s.keys.keys.values.astype(np.uint64)),
    "key table: has 7 rows for 8": lambda s: keys(
        s, s.keys.keys.offsets[:-1], s.keys.keys.values[: s.keys.keys.offsets[-2]]
    ),
}

BROKEN_BALANCED = {
    "signature is not": lambda s: replace(
        s, tagsets=replace(s.tagsets, signatures=changed(s.tagsets.signatures, (2, 1), 12345))
    ),
    "has no signatures": lambda s: replace(s, tagsets=replace(s.tagsets, signatures=None)),
    "more than 1": lambda s: replace(s, options=LayoutOptions("balanced", 1)),
    "mask is empty": lambda s: replace(s, partitions=replace(s.partitions, masks=changed(s.partitions.masks, 0, 0))),
    "lacks a bit": lambda s: replace(
        s, partitions=replace(s.partitions, masks=changed(s.partitions.masks, 0, 2**64 - 1))
    ),
    "partition without sets": lambda s: replace(
        s, partitions=replace(s.partitions, first_rows=changed(s.partitions.first_rows, 1, s.partitions.first_rows[0]))
    ),
    "do not span": lambda s: replace(
        s, partitions=replace(s.partitions, first_rows=changed(s.partitions.first_rows, 0, 0))
    ),
    "is of layout balanced": lambda s: replace(s, options=LayoutOptions("rarest")),
}

BROKEN_RAREST = {
    "cluster of its rarest tag": lambda s: replace(
        s, partitions=replace(s.partitions, first_rows=changed(s.partitions.first_rows, 1, s.partitions.first_rows[2]))
    ),
    "do not span": lambda s: replace(
        s, partitions=replace(s.partitions, first_rows=changed(s.partitions.first_rows, -1, 3))
    ),
    "is of layout rarest": lambda s: replace(s, options=LayoutOptions("balanced")),
}

CASES = [
    *((each, *case) for each in get_args(Layout) for case in BROKEN.items()),
    *(("balanced", *case) for case in BROKEN_BALANCED.items()),
    *(("rarest", *case) for case in BROKEN_RAREST.items()),
]


@pytest.mark.parametrize(("layout", "words", "break_it"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_a_broken_invariant_is_named(layout, words, break_it):
    with pytest.raises(InvariantError, match=words):
        check_segment(break_it(segment_of(layout)))


@pytest.mark.parametrize(("order", "words"), [([1, 0], "order of frequency, hash and bytes"), ([1, 1], "another row")])
def test_tags_with_one_hash(order, words):
    with TagMatch() as tm:
        tm.add_sets([[tag] for tag in colliding_tags(2)], [1, 2])
        tm.consolidate()
        segment = tm.snapshot.only
    tags = segment.vocabulary.tags
    data = tags.data.reshape(2, -1)[order].reshape(-1)
    with pytest.raises(InvariantError, match=words):
        check_segment(vocabulary(segment, tags=Strings(tags.offsets, data)))


def test_rows_in_another_order_are_noticed():
    segment = segment_of("rarest")
    offsets, values = segment.tagsets.ranks.offsets, segment.tagsets.ranks.values
    rows = [values[a:b] for a, b in itertools.pairwise(offsets)]
    pairs = [i for i in range(2, len(rows)) if rows[i][0] == rows[i - 1][0] and len(rows[i]) == len(rows[i - 1])]
    assert pairs, "the example must have two rows of one length in a cluster"
    i = pairs[0]
    rows[i - 1], rows[i] = rows[i], rows[i - 1]
    broken = replace(segment, tagsets=replace(segment.tagsets, ranks=Lists(offsets, np.concatenate(rows))))
    with pytest.raises(InvariantError, match=f"row {i}: is not after"):
        check_segment(broken)
