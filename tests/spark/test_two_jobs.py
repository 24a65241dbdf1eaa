"""A job does not begin on an index on which another one works, and leaves that one's files alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.index_files import contents_of, make_index

from tagmatch import IndexLockedError, TagMatch
from tagmatch.model.storage.repository import Repository
from tagmatch.spark import optimize, partition

CALLS: dict[str, Callable[[Any, Any, Path], object]] = {
    "overwrite": lambda _, sets, index: partition(sets, index),
    "append": lambda _, sets, index: partition(sets, index, mode="append"),
    "optimize": lambda spark, _, index: optimize(spark, index),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_other_job_is_named(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr("tagmatch.changing.Changing._begin_merging", lambda *_: None)
    index = make_index(tmp_path / "index", [(["a"], 1), (["d"], 4)])
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    with TagMatch(index, device="cpu") as tm:  # a second segment, for `optimize`
        tm.add_set(["b"], 2)
        tm.consolidate()
    sets = spark.createDataFrame([(["c"], 3)], "tags array<string>, key long")
    other = rf"another job works on the index {index}: process {os.getpid()} on \S+, .*; wait until it ends, or end it"
    with Repository.at(index).scratch() as files:
        files.write("half", b"done")
        before = contents_of(index)
        with pytest.raises(IndexLockedError, match=other) as raised:
            CALLS[call](spark, sets, index)
        assert "\n" not in str(raised.value)
        assert contents_of(index) == before
        assert files.read("half") == b"done"
    CALLS[call](spark, sets, index)
    with TagMatch.open(index, device="cpu") as tm:
        wanted = {"overwrite": [3], "append": [1, 2, 3], "optimize": [1, 2]}
        assert sorted(tm.match(["a", "b", "c"])) == wanted[call]
