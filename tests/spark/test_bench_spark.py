"""The command `tagmatch-bench spark`: what it reports, not how fast anything is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from support.bench import Found, at
from typer.testing import CliRunner

from tagmatch.model.errors import TagMatchError
from tagmatch.model.options import Layout
from tagmatch_bench.commands.app import app
from tagmatch_bench.spark import join, partitioning, plan

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("session")]

OPTIONS = ["--threads", "2", "--rounds", "1", "--allow-changes"]
JOINS = [
    "subset_join, ship", "subset_join, shuffle", "SQL: rarest tag, join, array_except", "SQL: explode, join, count",
    "SQL: cross join, array_except",
]  # fmt: skip


def bench(folder: Path, *options: str) -> Any:
    done = CliRunner().invoke(app, ["spark", *OPTIONS, *options, "--output", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return done


def test_partition(tmp_path: Path) -> None:
    bench(tmp_path, "--part", "partition", "--sets", "600", "--sets", "300")
    found = Found(tmp_path, "spark-partition")
    layouts, sizes = ("rarest", "balanced"), (0.0003, 0.0006)
    both = [f"{where}, {each}" for each in layouts for where in ("Spark", "local")]
    assert list(map(found.places, found.panels)) == [at(both, sizes), at(layouts, sizes)]
    assert all(value > 0 for title in found.panels for value in found.values(title).values())
    for each in layouts:
        used, rate = f"600 sets, {each}: ", f"{each}: a billion sets at this rate, "
        shuffled, seconds = found.value(f"{used}shuffled, a set"), found.value(f"{used}time of all tasks, a set")
        # Not less than what a set's tags need; bytes of a set are gigabytes of a billion
        assert 10 < shuffled < 10_000
        assert shuffled == pytest.approx(found.value(f"{rate}shuffled"))
        assert found.value(f"{rate}time of all tasks") * 3600 == pytest.approx(seconds * 1_000)
        assert seconds > 0
        assert found.value(f"{used}spilled to disk") == 0
        assert 20 < found.value(f"{used}peak of a Python worker") < 2_000
    assert not (tmp_path / "spark-join.json").exists()


def test_join(tmp_path: Path) -> None:
    done = bench(tmp_path, "--part", "join", "--join-sets", "300", "--queries", "40")
    found = Found(tmp_path, "spark-join")
    (title,) = found.panels
    assert list(found.places(title)) == [*JOINS, "match_many", "reading the queries"]
    assert found.limits == {
        "subset_join, ship: 40 queries": 50_000,
        "subset_join, ship against SQL: rarest tag, join, array_except": 3,
        "subset_join, shuffle against SQL: rarest tag, join, array_except": 3,
        "subset_join, ship against match_many": 0.5,
        "subset_join, shuffle against match_many": 0.5,
    }
    assert all(found.value(f"{name} against {JOINS[2]}") > 0 for name in JOINS[:2])
    assert [row["system"] for row in found.answers] == JOINS
    assert {(row["queries"], row["wrong"], row["missing"]) for row in found.answers} == {(40, 0, 0)}
    assert len({row["keys"] for row in found.answers}) == 1
    assert found.answers[0]["keys"] >= 40  # each query extends a stored set
    plans = json.loads((tmp_path / "spark-join.json").read_text())["plans"]
    operators = {"subset_join, ship": "ArrowEvalPython", JOINS[3]: "HashAggregate", JOINS[4]: "NestedLoopJoin"}
    assert list(plans) == JOINS
    assert all(operator in plans[name] for name, operator in operators.items())
    assert "Plan of *subset_join, ship*" in done.stdout


def test_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MEASURED", 3000), ("TINY", 6), ("TINY_SETS", 300)):
        monkeypatch.setattr(plan, name, value)
    bench(tmp_path, "--plan", "1e10")
    found = Found(tmp_path, "spark-plan")
    assert found.value("1e+10 sets: indexes") == 3
    assert found.value("1e+10 sets: tasks of each index") > 9 * 3179
    assert found.value("measured: tasks of the job with 6 partitions") >= 9 * 6
    assert 100 < found.value("1e+10 sets: shuffled") < 10_000
    hours, starting = (found.value(f"1e+10 sets: {what}") for what in ("time of all tasks", "of this, starting tasks"))
    assert 0 < starting <= hours
    assert not (tmp_path / "spark-partition.json").exists()


def test_skew(tmp_path: Path) -> None:
    bench(tmp_path, "--part", "skew", "--join-sets", "400", "--queries", "60")
    found = Found(tmp_path, "spark-skew")
    both = [f"{where}, {each}" for where in ("Spark", "local") for each in get_args(Layout)]
    assert list(map(found.places, found.panels)) == [at(both, join.INPUTS), at(JOINS[:2], join.INPUTS)]
    assert [(row["wrong"], row["missing"]) for row in found.answers] == [(0, 0)] * 2 * len(join.INPUTS)


def test_indexes_that_differ_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    otherwise = partial(partitioning.partition_on_spark, max_partition_size=7)
    monkeypatch.setattr(partitioning, "partition_on_spark", otherwise)
    with pytest.raises(TagMatchError, match="300 sets, layout rarest: Spark and local made different indexes"):
        bench(tmp_path, "--part", "partition", "--sets", "300")
