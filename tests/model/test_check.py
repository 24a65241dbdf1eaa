"""Each invariant, broken on its own, is found and named."""

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import get_args

import numpy as np
import pytest
from support.agreement import index_of
from support.hashes import colliding_tags

from tagmatch import InvariantError
from tagmatch.model.arrays import Lists
from tagmatch.model.layouts import check_segment
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.tables import NEVER


def expiring():
    later = [None, timedelta(days=1), None, timedelta(days=2)]
    with index_of([["a"], ["b"], ["b"], ["c"]], [1, 2, 3, 4], expires=later, device="cpu") as tm:
        tm.check()
        return tm.snapshot.only


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda times: times[:-1], "times at which keys expire: has 3 times instead of 4"),
        (lambda times: np.full_like(times, NEVER), "are there, though no key expires"),
    ],
)
def test_times_of_keys(change, words):
    with pytest.raises(InvariantError, match=words):
        check_segment(broken(expiring(), "keys.expires", change))


def test_a_time_before_the_earliest_is_noticed_unless_the_set_is_deleted():
    late = replace(expiring(), earliest=NEVER)
    rows = np.unique(np.searchsorted(late.keys.keys.offsets, np.flatnonzero(late.keys.expires < NEVER), "right") - 1)
    assert len(rows) == 2
    with pytest.raises(InvariantError, match=f"times at which keys expire, row {rows[0]}: is before the earliest"):
        check_segment(late)
    check_segment(late.without(rows.astype(np.uint32)))


def segment_of(layout):
    sets = [[], ["a"], ["a", "b"], ["b", "c"], ["c"], ["a", "b", "c"], ["d", "a"], ["d", "b"], ["a"]]
    with index_of(sets, range(9), layout=layout, max_partition_size=2) as tm:
        tm.check()
        segment = tm.snapshot.only
    # As indexes that are opened have them
    known = replace(segment.vocabulary, kept_hashes=segment.vocabulary.hashes, frequencies=segment.frequencies)
    return replace(segment, vocabulary=known)


def at(place, value):
    """Has an array with another value there; `value` may be made from the array."""

    def change(array):
        copy = array.copy()
        copy[place] = value(array) if callable(value) else value
        return copy

    return change


def broken(whole, path, change):
    name, _, rest = path.partition(".")
    part = getattr(whole, name)
    return replace(whole, **{name: broken(part, rest, change) if rest else change(part)})


BOTH = get_args(Layout)
BALANCED, RAREST = ("balanced",), ("rarest",)
BROKEN = [
    (BOTH, "hash is not XXH64", "vocabulary.kept_hashes", at(1, 5)),
    (BOTH, "frequency is not", "vocabulary.frequencies", at(3, 9)),
    (BOTH, "hash is not", "vocabulary.tags.data", at([0, 1], lambda data: data[[1, 0]])),
    (BOTH, "has the number 77", "tagsets.ranks.values", at(-1, 77)),
    (BOTH, "keys do not ascend", "keys.keys.values", lambda keys: np.full_like(keys, 3)),
    (BOTH, "set without a key", "keys.keys.offsets", at(1, 0)),
    (BOTH, "fit into 32 bits", "keys.keys.values", lambda keys: keys.astype(np.uint64)),
    (BOTH, "key table: has 7 rows", "keys.keys", lambda of: Lists(of.offsets[:-1], of.values[: of.offsets[-2]])),
    (BALANCED, "signature is not", "tagsets.signatures", at((2, 1), 12345)),
    (BALANCED, "has no signatures", "tagsets.signatures", lambda _: None),
    (BALANCED, "more than 1", "options", lambda _: LayoutOptions("balanced", 1)),
    (BALANCED, "mask is empty", "partitions.masks", at(0, 0)),
    (BALANCED, "lacks a bit", "partitions.masks", at(0, 2**64 - 1)),
    (BALANCED, "partition without sets", "partitions.first_rows", at(1, lambda rows: rows[0])),
    (BALANCED, "does not span", "partitions.first_rows", at(0, 0)),
    (BALANCED, "is of layout balanced", "options", lambda _: LayoutOptions("rarest")),
    (RAREST, "cluster of its rarest tag", "partitions.first_rows", at(1, lambda rows: rows[2])),
    (RAREST, "offsets descend", "partitions.first_rows", at(-1, 3)),
    (RAREST, "is of layout rarest", "options", lambda _: LayoutOptions("balanced")),
]
CASES = [(each, *case) for layouts, *case in BROKEN for each in layouts]


@pytest.mark.parametrize(("layout", "words", "path", "change"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_a_broken_invariant_is_named(layout, words, path, change):
    with pytest.raises(InvariantError, match=words):
        check_segment(broken(segment_of(layout), path, change))


@pytest.mark.parametrize(("order", "words"), [([1, 0], "order of frequency, hash and bytes"), ([1, 1], "another row")])
def test_tags_with_one_hash(order, words):
    with index_of([[tag] for tag in colliding_tags(2)], [1, 2]) as tm:
        segment = tm.snapshot.only
    with pytest.raises(InvariantError, match=words):
        check_segment(broken(segment, "vocabulary.tags.data", lambda data: data.reshape(2, -1)[order].reshape(-1)))


def test_rows_in_another_order_are_noticed():
    segment = segment_of("rarest")
    offsets, values = segment.tagsets.ranks.offsets, segment.tagsets.ranks.values
    rows = [values[a:b] for a, b in itertools.pairwise(offsets)]
    pairs = [i for i in range(2, len(rows)) if rows[i][0] == rows[i - 1][0] and len(rows[i]) == len(rows[i - 1])]
    assert pairs, "the example must have two rows of one length in a cluster"
    i = pairs[0]
    rows[i - 1], rows[i] = rows[i], rows[i - 1]
    with pytest.raises(InvariantError, match=f"row {i}: is not after"):
        check_segment(broken(segment, "tagsets.ranks.values", lambda _: np.concatenate(rows)))
