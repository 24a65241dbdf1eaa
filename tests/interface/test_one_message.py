"""One message that is asked alone, against plain Python: every kind of value, by both ways to sets, in segments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.constrained import FILTERS, MESSAGES, expected_keys, expression_of
from support.paths import all_in

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.pipeline.filters.index import Path


@pytest.mark.parametrize("path", get_args(Path))
@given(
    filters=st.lists(FILTERS, min_size=1, max_size=20),
    messages=st.lists(MESSAGES, min_size=1, max_size=5),
    gone=st.sets(st.integers(0, 19)),
)
def test_segments_and_deletions(path: Path, filters: list[Any], messages: list[Any], gone: set[int]) -> None:
    with all_in(path), TagMatch(device="cpu", threads=1) as tm:
        stored = [(tags, expression_of(parts)) for tags, parts in filters]
        for key, (tags, where) in enumerate(stored):
            tm.add_set(tags, key, where=where)
            if key % 7 == 3:
                tm.consolidate()
        tm.consolidate()
        for key in gone & set(range(len(filters))):
            tm.remove_set(stored[key][0], key, where=stored[key][1])
        for removed in (set(), gone):
            for tags, values in messages:
                for given_, seen in ((values, values), (OrderedDict(values), values), (None, {})):
                    wanted = [key for key in expected_keys(filters, tags, seen) if key not in removed]
                    assert sorted(tm.match(tags, given_)) == wanted
                    assert tm.match_unique(tags, given_) == set(wanted)
            tm.consolidate()


def test_integers_of_any_size() -> None:
    values = [0, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**60, -(2**60), 2**62, 2**63 - 1, -(2**63), 1 - 2**63]
    with TagMatch(device="cpu", threads=1) as tm:
        for key, value in enumerate(values):
            tm.add_set([], key, where=f"p = {value}")
        tm.consolidate()
        assert [tm.match([], {"p": value}) for value in values] == [[key] for key in range(len(values))]
        assert tm.match_unique([], {"p": values * 10}) == set(range(len(values)))
        for bad in (2**63, -(2**63) - 1, 2**90, "\ud800", {"": 1}):
            with pytest.raises(InvalidValueError):
                tm.match([], bad if isinstance(bad, dict) else {"p": bad})
        for wrong in (b"text", [[1]], object()):
            with pytest.raises(InvalidTypeError):
                tm.match([], {"p": wrong})


def test_messages_that_come_by_many_nodes_or_to_many_candidates() -> None:
    """Beside some that do not; also with more values than a message has as a rule."""
    filters = [{"p": -i} for i in range(400)] + [{f"a{i}": 0, f"b{j}": j} for i in range(20) for j in range(20)]
    few = {"a3": 1, "b4": 5, "b6": 6, "unknown": 1}
    many = {**{f"a{i}": 1 for i in range(20)}, **{f"b{j}": 10 for j in range(20)}}
    messages = [few, {"p": 1}, many, {"p": -200}, few | {"p": -398}, many | {"p": 1}]
    with all_in("trie"), TagMatch(device="cpu", threads=1) as tm:
        for key, asked in enumerate(filters):
            tm.add_set([], key, where=" and ".join(f"{name} > {bound}" for name, bound in asked.items()))
        tm.consolidate()
        for message in messages:
            wanted = [
                key
                for key, asked in enumerate(filters)
                if all(name in message and message[name] > bound for name, bound in asked.items())
            ]
            assert wanted
            assert sorted(tm.match([], message)) == wanted
            assert tm.match_unique([], message) == set(wanted)
