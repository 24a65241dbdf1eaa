"""Answers have a bounded number of keys in memory at a time, however many keys a set has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.spark_functions import called

from tagmatch import TagMatch
from tagmatch.engine import LocalEngine
from tagmatch.model.errors import ResultTooLargeError
from tagmatch.pipeline import tags as key_lookup
from tagmatch.spark import answers, functions, match_udf, subset_join
from tagmatch.spark.answers import Answers

KEYS, QUERIES, MOST = 80_000, 24, 200_000


@pytest.fixture
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """One set has 80,000 keys, another one of these; in two segments."""
    path, kind = tmp_path / "index", request.param
    names: list[Any] = list(map(str, range(KEYS))) if kind == "string" else list(range(KEYS))
    with TagMatch(path, key_type=kind, device="cpu") as tm:
        for tags, keys in ((["a"], names), (["b"], names[:1])):
            tm.add_sets([tags] * len(keys), keys)
            tm.consolidate()
    return path


@pytest.fixture
def is_bounded(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Whether each answer of an engine had few keys; of Spark's workers, which this process does not see, unknown."""
    found, match_many = list[int](), LocalEngine.match_many

    def counted(self: LocalEngine, *args: Any, **options: Any) -> Any:
        answers = match_many(self, *args, **options)
        found.append(len(getattr(answers, "values", ())))
        return answers

    monkeypatch.setattr(answers, "MOST_KEYS", MOST)
    monkeypatch.setattr(LocalEngine, "match_many", counted)
    is_seen = request.node.callspec.params["spark"] == "tasks"
    return lambda: not is_seen or 0 < max(found) <= MOST + KEYS + 1


def asked(spark: Any, count: int = QUERIES) -> Any:
    rows = [(number, ["a", "b"] if number % 2 else ["b"]) for number in range(count)]
    return spark.createDataFrame(rows, "id long, tags array<string>").coalesce(1)


@pytest.mark.parametrize("index", ["integer", "string"], indirect=True)
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("strategy", ["ship", "shuffle"])
def test_joins(spark: Any, index: Path, is_bounded: Callable[[], bool], strategy: Any, unique: bool) -> None:
    lists = subset_join(asked(spark), index, strategy=strategy, output="lists", unique=unique)
    counts = {row.id: len(row["keys"]) for row in lists.collect()}
    assert counts == {number: KEYS + (not unique) if number % 2 else 1 for number in range(QUERIES)}
    assert is_bounded()


@pytest.mark.parametrize("columns", [None, ["n"]])
def test_keys_of_a_query_come_from_a_bucket_in_short_arrays(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str] | None
) -> None:
    """Also of queries among some without a match; Spark makes a row of each key."""
    path, lengths, joined_to = tmp_path / "index", list[int](), Answers.joined_to
    of_sets = [["a"]] * 50 + [["b"]] * 7
    with TagMatch(path, data={"n": "int64"}, device="cpu") as tm:
        tm.put_many(pa.table({"key": range(57), "tags": of_sets, "n": range(57)}))
        tm.consolidate()

    def seen(self: Answers, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in joined_to(self, *args):
            lengths.extend(pc.list_value_length(batch.columns[-1]).to_pylist())
            yield batch

    monkeypatch.setattr(answers, "_BATCH_KEYS", 10)
    monkeypatch.setattr(Answers, "joined_to", seen)
    tags = [["x"], ["b"], ["x"], ["a", "b"], ["a"], ["x"]]
    frame = spark.createDataFrame([*enumerate(tags)], "id long, tags array<string>").coalesce(1)
    rows = subset_join(frame, path, strategy="shuffle", columns=columns).collect()
    wanted = [(n, key) for n, own in enumerate(tags) for key, stored in enumerate(of_sets) if {*stored} <= {*own}]
    assert sorted((row.id, row.key) for row in rows) == wanted
    assert columns is None or all(row.key == row.n for row in rows)
    assert all(1 <= length <= 10 for length in lengths)  # which tasks of Spark do not show


@pytest.mark.parametrize("index", ["integer"], indirect=True)
def test_functions(spark: Any, index: Path, is_bounded: Callable[[], bool]) -> None:
    """Though rows that come at once have several times the keys that are looked up at once."""
    assert MOST + KEYS < (KEYS + 1) * QUERIES // 2
    found = called("column", asked(spark), index)
    counts = {number: len(keys) for number, keys in found.items()}
    assert counts == {number: KEYS + 1 if number % 2 else 1 for number in range(QUERIES)}
    assert is_bounded()


@pytest.mark.parametrize("index", ["integer", "string"], indirect=True)
def test_a_function_says_that_rows_have_too_many_keys(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has looked all of them up; numbers and whether there are any never are too many."""
    monkeypatch.setattr(answers, "MOST_KEYS", MOST)
    monkeypatch.setattr(functions, "MOST_BYTES", 1 << 22)
    tags = pa.array([["a", "b"]] * QUERIES, pa.list_(pa.string()))
    few = match_udf(index).func(tags[:3])  # integers of 8 bytes; strings of 5, and of 4 for their ends
    assert pc.list_value_length(few).to_pylist() == [KEYS + 1] * 3
    told = f"the keys of {QUERIES} rows, which come at once, have more than 4 MiB; use subset_join, or a smaller s"
    looked_up, ask = list[int](), Answers.ask
    monkeypatch.setattr(Answers, "ask", lambda self, *args: looked_up.append(len(args[1])) or ask(self, *args))
    with pytest.raises(ResultTooLargeError, match=told):
        match_udf(index).func(tags)
    assert sum(looked_up[1:]) < QUERIES // 2  # of the first call, which is too large to be answered, none
    assert match_udf(index, output="counts").func(tags).to_pylist() == [KEYS + 1] * QUERIES


def test_no_more_keys_are_looked_up_than_are_asked_for() -> None:
    with TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([["a"]] * 100, range(100))
        tm.consolidate()
        with key_lookup.at_most_keys(200):
            assert len(tm.match_many([["a"]] * 2).values) == 200
            with pytest.raises(ResultTooLargeError, match="300 keys, more than 200"):
                tm.match_many([["a"]] * 3)
        assert len(tm.match_many([["a"]] * 3).values) == 300
