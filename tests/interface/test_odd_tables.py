"""Tables of subscriptions and of messages in any shape that Arrow has, and those that are none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tagmatch import TagMatch
from tagmatch.model.errors import NullError

CHEAP = {"attr": "price", "op": "<", "value": 10}
NO_TAGS = {"list": pa.list_(pa.string()), "large list": pa.large_list(pa.large_string()), "null": pa.null(),
           "fixed size": pa.list_(pa.string(), 1), "view": pa.list_view(pa.string()),
           "dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string()))}  # fmt: skip


def subscriptions(tags: pa.Array) -> pa.Table:
    """Of which the first two have constraints."""
    constraints = pa.array([None, [CHEAP], None, None][: len(tags)])
    keys, where = [1, 2, 3, 4][: len(tags)], ["price < 10", None, None, None][: len(tags)]
    where_column = pa.array(where, pa.string())
    return pa.table({"key": keys, "tags": tags, "where": where_column, "constraints": constraints})


@pytest.mark.parametrize("kind", NO_TAGS.values(), ids=NO_TAGS)
@pytest.mark.parametrize("shape", ["whole", "chunks", "slice", "batch"])
def test_null_tags_beside_constraints_are_none(kind: pa.DataType, shape: str) -> None:
    some = not pa.types.is_null(kind)
    tags = [None, None, ["a"]] if some else [None, None]
    column = pa.array(tags, kind)
    table: Any = subscriptions(column)
    if shape == "chunks":
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    elif shape == "slice":
        table = pa.concat_tables([table, table]).combine_chunks().slice(len(table))
    elif shape == "batch":
        (table,) = table.to_batches()
    tm = TagMatch()
    tm.add_subscriptions(table)
    tm.consolidate()
    expected = [1, 2, 3] if some else [1, 2]
    assert sorted(tm.match(["a"], {"price": 9.5})) == expected
    assert sorted(tm.match(["a"], {"price": 10})) == expected[2:]
    tm.remove_subscriptions(table)
    tm.consolidate()
    assert len(tm) == 0


def test_null_tags_alone_are_an_error() -> None:
    """The message names the row, not that of null tags beside constraints."""
    tags = pa.array([None, ["a"], ["b"], None], pa.list_(pa.string()))
    tm = TagMatch()
    for table in (
        subscriptions(tags),
        pa.concat_tables([subscriptions(tags).slice(0, 2), subscriptions(tags).slice(2)]),
    ):
        with pytest.raises(NullError, match="row 3 is null where a set of tags must be"):
            tm.add_subscriptions(table)
    assert tm.stats()["staged"] == 0
