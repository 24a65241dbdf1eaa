"""The join with a DataFrame of interests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from oracle import Oracle

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch
from tagmatch.spark import subset_join


@pytest.mark.parametrize(("kind", "key"), [("long", int), ("string", str)], ids=["integers", "strings"])
@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_interests(spark: Any, tmp_path: Path, rng: random.Random, strategy: Any, kind: str, key: Any) -> None:
    tags = [f"t{i}" for i in range(15)]
    interests = [(rng.sample(tags, rng.randint(0, 3)), key(rng.randrange(20))) for _ in range(200)]
    tweets = [(number, rng.sample([*tags, "new"], rng.randint(0, 8))) for number in range(30)]
    oracle = Oracle()
    oracle.add_sets(*zip(*interests, strict=True))
    oracle.consolidate()
    stored = spark.createDataFrame(interests, f"tags array<string>, key {kind}")
    queries = spark.createDataFrame(tweets, "id long, tags array<string>")
    for folder in (None, tmp_path / "index"):
        found = subset_join(queries, stored, strategy=strategy, folder=folder).select("id", "key").collect()
        expected = [(number, one) for number, query in tweets for one in oracle.match(query)]
        assert sorted(map(tuple, found)) == sorted(expected)
    with TagMatch.open(tmp_path / "index") as tm:
        assert len(tm) == len(oracle)


def test_what_will_not_do(spark: Any, tmp_path: Path) -> None:
    queries = spark.createDataFrame([], "tags array<string>")
    with pytest.raises(InvalidTypeError, match="no column 'key'; there are 'tags'"):
        subset_join(queries, queries)
    with pytest.raises(InvalidValueError, match="folder is where the index of interests is made"):
        subset_join(queries, tmp_path, folder=tmp_path)
