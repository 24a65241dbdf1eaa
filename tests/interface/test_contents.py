"""What is stored, given back: iteration, `in` and `to_arrow`; and what changes say that they did."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import index_of, loaded

from tagmatch import InvalidValueError, NotStoredError, ResultTooLargeError, TagMatch, contents

SCHEMA = pa.schema([("tags", pa.list_(pa.string())), ("key", pa.uint64())])
PAIRS = [(["a", "b"], 2), (["b", "a"], 1), ([], 2**64 - 1), (["c"], 3), (["", "\0"], 0)]

Pairs = list[tuple[frozenset[str], int]]


@pytest.fixture(params=[None, 1, 3], ids=["batches", "single rows", "small batches"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are as small as large indexes have them cut."""
    if request.param:
        for name in ("_BATCH_ROWS", "_SETS_AT_ONCE", "_BATCH_TAGS", "_BATCH_KEYS"):
            monkeypatch.setattr(contents, name, request.param)
        monkeypatch.setattr(contents, "_BATCH_BYTES", 40)


def pairs_of(table: pa.Table) -> Pairs:
    found = [(frozenset(row["tags"]), row["key"]) for row in table.to_pylist()]
    assert [len(tags) for tags, _ in found] == table["tags"].combine_chunks().value_lengths().to_pylist()
    return found


def pairs_in(database: TagMatch | Oracle) -> Pairs:
    return [(tags, key) for tags, keys in database for key in keys]


@pytest.mark.usefixtures("limit")
@strategies.fewer(2)
@given(pairs=st.lists(st.tuples(strategies.tag_sets, strategies.keys)), layout=strategies.layouts)
def test_what_is_stored_comes_back(layout, pairs):
    """Each pair once, in one order, which is that of the tagset table."""
    tm = TagMatch(layout=layout, max_partition_size=7, threads=1)
    oracle = Oracle()
    for database in (tm, oracle):
        database.add_sets([tags for tags, _ in pairs], [key for _, key in pairs])
        database.consolidate()
    stored, table = list(tm), tm.to_arrow()
    assert dict(stored) == dict(oracle)
    assert len(stored) == len(oracle)
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert pairs_of(table) == pairs_in(tm)
    assert tm.explain(tag for tags, _ in pairs for tag in tags) == stored
    again = TagMatch(layout=layout, max_partition_size=7, threads=1)
    again.add_sets(table["tags"], table["key"])
    again.consolidate()
    assert again.to_arrow() == table


def test_iteration_is_over_what_was_stored_as_it_began(layout):
    tm, oracle = loaded([*PAIRS, *(([f"tag{i}"], i) for i in range(20_000))], layout=layout)
    begun, not_yet_begun = iter(tm), iter(tm)
    found = [next(begun)]
    tm.remove_sets([tags for tags, _ in PAIRS], [key for _, key in PAIRS])
    tm.consolidate()
    assert dict([*found, *begun]) == dict(not_yet_begun) == dict(oracle)
    begun = iter(tm)
    tm.close()
    assert len(list(begun)) == 20_000


def test_membership(layout):
    tm, _ = loaded(PAIRS, layout=layout)
    for tags in (["a", "b"], {"b", "a"}, ["a", "b", "a"], (tag for tag in "ab"), [], ["c"], ["\0", ""]):
        assert tags in tm
    for tags in (["a"], ["a", "b", "c"], ["unknown"], ["a", "c"], [""]):
        assert tags not in tm


def test_membership_compares_tags_where_matching_does_not():
    """With `exact=False`, a set that has other tags matches, as its signature has the same bits."""
    tags = [f"tag{i}" for i in range(2_000)]
    stored, other = tags[:1_000], tags[1_000:]
    tm, _ = loaded([(stored, 1), ([*other, "more"], 2)], layout="balanced", exact=False)
    assert (frozenset(stored), (1,)) in tm.explain(other)
    assert other not in tm
    assert stored in tm


@pytest.mark.parametrize("keys", [1, 5_000])
def test_batches_are_small(keys):
    """Also where rows are many times as large as what is stored: one set with many keys and long tags."""
    tm, _ = loaded([(["x" * 20_000, "y" * 20_000], key) for key in range(keys)] + [(["z"], 2)])
    sizes = [chunk.nbytes for chunk in tm.to_arrow()["tags"].chunks]
    assert sum(sizes) > keys * 40_000
    assert max(sizes) < 1 << 25
    assert len(sizes) < 2 + sum(sizes) / (1 << 22)


def test_tags_that_one_array_cannot_hold(monkeypatch):
    """Those of one set alone; an array of 2 GiB stands aside."""

    class TooLarge:
        def cast(self, _: pa.DataType) -> None:
            raise pa.ArrowInvalid("input array too large")

    tm, _ = loaded([(["a"], 1)])
    monkeypatch.setattr(contents, "_tags", lambda *_: TooLarge())
    with pytest.raises(ResultTooLargeError, match=r"stored set 0 has tags of 2\*\*31 bytes or more"):
        tm.to_arrow()


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_missing_may_be_an_error(tmp_path, durability):
    """What is staged counts, in order, whoever has staged it; and nothing is staged."""
    with index_of([["a"], ["a", "b"]], [1, 2], path=tmp_path, device="cpu", durability="os") as tm:
        tm.add_set(["c"], 3, where="x < 1")
    with TagMatch(tmp_path, device="cpu", durability=durability) as tm:
        for tags, key, where in [(["b"], 2, None), (["c"], 3, None), (["c"], 3, "x < 2"), (["d"], 4, "x = 1")]:
            with pytest.raises(NotStoredError, match=f"key {key} is not stored with the set .*{tags[0]}"):
                tm.remove_set(tags, key, where=where, missing="error")
        with pytest.raises(NotStoredError, match=r"key 1 is not stored with the set \['a', 'z'\], nor are 1 more"):
            tm.remove_sets([["a"], ["a", "z"], ["a"]], [1, 1, 1], missing="error")
        assert tm.stats()["staged"] == 1
        assert tm.remove_set(["c"], 3, where="x < 1", missing="error") == 1
        with pytest.raises(NotStoredError, match=r"key 3 is not stored with the set \['c'\] where x < 1:"):
            tm.remove_set(["c"], 3, where="x < 1", missing="error")
        table = pa.table({"tags": [["b", "a"], ["a"]], "key": [2, 1]})
        assert tm.remove_subscriptions(table, missing="error") == 2
        assert tm.consolidate() == (1, 0, 3, 0)
        with pytest.raises(InvalidValueError, match="missing must be"):
            tm.remove_set(["a"], 1, missing="err")
