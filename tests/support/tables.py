"""Small tables of stored sets and arrays of queries, as the compared systems take them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from oracle import Oracle

from tagmatch_bench.systems.matcher import answers_to_pylist


def tag_rows(rows: Sequence[Sequence[str]]) -> pa.ListArray:
    return pa.array(rows, pa.list_(pa.string()))


def table_of(rows: Sequence[tuple[Sequence[str], int]]) -> pa.Table:
    tags, keys = [tags for tags, _ in rows], [key for _, key in rows]
    return pa.table({"tags": tag_rows(tags), "key": pa.array(keys, pa.uint64())})


def right_answers(sets: pa.Table, queries: pa.ListArray) -> list[Counter[int]]:
    """The oracle's keys of each query, by how often they are due."""
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    return [Counter(oracle.match(query)) for query in queries.to_pylist()]


def answers(matcher: Any, prepared: Any, **options: bool) -> list[Counter[int]]:
    """What a compared system answers, in the same form."""
    return list(map(Counter, answers_to_pylist(matcher.match_many(prepared, **options))))
