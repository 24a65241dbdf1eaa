"""Spark's joins with an index whose attributes are declared."""

from pathlib import Path
from typing import Any

import pytest
from support.spark_functions import called

from tagmatch import InvalidValueError, TagMatch
from tagmatch.spark import partition, register, subset_join


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


def test_texts_and_shapes(spark: Any, tmp_path: Path) -> None:
    """A phrase, a pattern, a polygon with a hole, and a message with several places, one of them in a corridor."""
    wheres = [
        'title phrase "red bike"', 'city like "Mil%"', 'not title phrase "red bike" and city like "_ome"',
        "within polygon((9 45, 10 45, 10 46, 9 45), (9.4 45.1, 9.6 45.1, 9.6 45.2, 9.4 45.1))",
        "within 500 m of linestring(9 45, 10 45)", "not within polygon((9 45, 10 45, 10 46, 9 45))",
    ]  # fmt: skip
    declared: dict[str, Any] = {"attributes": {"title": "string"}, "analyzers": {"title": "casefold(words())"}}
    with TagMatch(tmp_path / "index", device="cpu", threads=1, **declared) as tm:
        tm.add_sets([[]] * len(wheres), range(len(wheres)), where=wheres)
        tm.consolidate()
    places = [[(9.8, 45.5)], [(9.58, 45.15), (20.0, 50.0)], [(0.0, 0.0), (9.5, 45.004), (9.58, 45.15)], [], None]
    titles, cities = ["A Red BIKE!", "bike, red", None, "red red bike", "x"], ["Milan", "Rome", "Rome", None, "Oslo"]
    rows = [(n, [], titles[n], cities[n], places[n]) for n in range(5)]
    kinds = "n int, tags array<string>, title string, city string, here array<struct<lon: double, lat: double>>"
    frame = spark.createDataFrame(rows, kinds)
    wanted = {0: [0, 1, 3], 1: [2], 2: [2, 3, 4], 3: [0, 5], 4: [5]}
    lists = subset_join(frame, tmp_path / "index", attributes=["title", "city"], location="here", output="lists")
    assert {row.n: sorted(row["keys"]) for row in lists.collect()} == wanted
    register(spark)
    for way in ("sql", "column"):
        assert called(way, frame, tmp_path / "index", attributes=("title", "city"), location="here") == wanted
    with TagMatch(tmp_path / "plain", device="cpu", threads=1) as tm:
        tm.add_sets([[]] * 4, [1, *range(3, 6)], where=[wheres[1], *wheres[3:]])
        tm.consolidate()
    shuffled = subset_join(
        frame, tmp_path / "plain", attributes="city", location="here", output="lists", strategy="shuffle"
    )
    plain = {n: [key for key in keys if key not in (0, 2)] for n, keys in wanted.items()}
    assert {row.n: sorted(row["keys"]) for row in shuffled.collect()} == plain
