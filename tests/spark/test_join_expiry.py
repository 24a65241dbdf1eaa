"""Joins with an index of which some keys have expired."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tagmatch import TagMatch
from tagmatch.spark import partition, subset_join


@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
@pytest.mark.parametrize(("key_type", "key"), [("integer", int), ("string", str)])
def test_keys_that_have_expired_are_no_answers(
    spark: Any, tmp_path: Path, strategy: Any, key_type: Any, key: Any
) -> None:
    """Though the files still have them."""
    index, at = tmp_path / "index", datetime.now(UTC) + timedelta(seconds=3)
    with TagMatch(index, key_type=key_type, device="cpu", durability="none") as tm:
        sets = [["a"], ["a"], ["b"], [], []]
        tm.add_sets(sets, list(map(key, range(5))), expires=[at, None, at, at, at + timedelta(days=1)])
        tm.consolidate()
    time.sleep(max((at - datetime.now(UTC)).total_seconds(), 0) + 0.01)
    queries = spark.createDataFrame([(1, ["a", "b"]), (2, ["b"])], "id long, tags array<string>")
    found = subset_join(queries, str(index), strategy=strategy).select("id", "key").collect()
    assert sorted(map(tuple, found)) == [(1, key(1)), (1, key(4)), (2, key(4))]


def test_a_job_makes_an_index_of_keys_that_never_expire(spark: Any, tmp_path: Path) -> None:
    """Whatever was there before."""
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_set(["a"], 1, expires=timedelta(hours=1))
        tm.consolidate()
    partition(spark.createDataFrame([(["a"], 1)], "tags array<string>, key long"), str(tmp_path / "index"))
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        assert tm.to_arrow().to_pylist() == [{"tags": ["a"], "key": 1}]
