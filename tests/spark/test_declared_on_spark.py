"""Spark's joins with an index whose attributes are declared."""

from pathlib import Path
from typing import Any

import pytest

from tagmatch import InvalidValueError, TagMatch
from tagmatch.spark import partition, subset_join


def test_messages_are_as_declared(spark: Any, tmp_path: Path) -> None:
    index = str(tmp_path / "index")
    with TagMatch(index, device="cpu", threads=1, attributes={"price": "decimal(10, 2)"}, strict=True) as tm:
        tm.add_set([], 1, where='price < "0.2"')
        tm.consolidate()
    queries = spark.createDataFrame([([], "0.1"), ([], "0.30")], "tags array<string>, price string")
    for strategy in ("auto", "ship"):
        joined = subset_join(queries, index, attributes="price", strategy=strategy, output="lists").collect()
        assert sorted(row["keys"] for row in joined) == [[], [1]]
    with pytest.raises(InvalidValueError, match="has declared attributes; use 'ship'"):
        subset_join(queries, index, attributes="price", strategy="shuffle")
    sets = spark.createDataFrame([(["a"], 2)], "tags array<string>, key long")
    with pytest.raises(InvalidValueError, match=r"has declared attributes, which partition\(\) does not know"):
        partition(sets, index, mode="append")
