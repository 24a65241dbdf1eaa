"""The command `tagmatch-bench spark`: what it reports, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tagmatch.model.errors import TagMatchError
from tagmatch.model.options import Layout
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.bench.harness.timing import Samples
from tagmatch.workloads.bench.spark import skew
from tagmatch.workloads.commands.bench import app

OPTIONS = ["--threads", "2", "--rounds", "1", "--allow-changes"]
JOINS = ["subset_join, ship", "subset_join, shuffle", "SQL: explode, join, count", "SQL: cross join, array_except"]
USED = (
    "time of all tasks, a set",
    "longest stage of one task",
    "shuffled, a set",
    "spilled to disk",
    "peak of the JVM, driver and executor",
    "peak of a Python worker",
    "the driver's Python grew by",
)


def bench(folder: Path, *options: str) -> Any:
    done = CliRunner().invoke(app, ["spark", *OPTIONS, *options, "--output", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return done


def limits(found: Any) -> dict[str, float | None]:
    return {line["what"]: line["target"] and line["target"]["limit"] for line in found["lines"]}


@pytest.mark.nightly
@pytest.mark.usefixtures("session")
def test_partition(tmp_path: Path) -> None:
    bench(tmp_path, "--part", "partition", "--sets", "600", "--sets", "300")
    found = json.loads((tmp_path / "spark-partition.json").read_text())
    times, ratios = found["panels"]
    layouts, sizes = ("rarest", "balanced"), (0.0003, 0.0006)
    for panel, names in (
        (times, [f"{where}, {each}" for each in layouts for where in ("Spark", "local")]),
        (ratios, layouts),
    ):
        assert [(value["x"], value["system"]) for value in panel["values"]] == [
            (x, name) for x in sizes for name in names
        ]
        assert all(value["value"] > 0 for value in panel["values"])
    rates, against = (
        "{}: a billion sets at this rate, {}",
        ["300 sets, Spark against local", "600 sets, Spark against local"],
    )
    assert limits(found).keys() == {
        *(f"600 sets, {each}: {what}" for each in layouts for what in USED),
        *(rates.format(each, what) for each in layouts for what in ("time of all tasks", "shuffled", "index")),
        *(f"{each}: {what}" for each in layouts for what in (*against, "600 sets against 300, on Spark")),
    }
    used = {line["what"]: line["value"] for line in found["lines"]}
    for each in layouts:
        seconds, shuffled, spilled, _, peak, worker = (
            used[f"600 sets, {each}: {what}"] for what in (USED[0], *USED[2:4], USED[1], *USED[4:6])
        )
        assert seconds > 0 == spilled
        # Not less than what a set's tags need
        assert 10 < shuffled < 10_000
        # Bytes of a set are gigabytes of a billion
        assert used[rates.format(each, "shuffled")] == pytest.approx(shuffled)
        assert used[rates.format(each, "time of all tasks")] * 3600 == pytest.approx(seconds * 1_000)
        assert used[rates.format(each, "index")] > 20
        assert peak > 100
        assert 20 < worker < 2_000
    assert (tmp_path / "spark-partition.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "spark-join.json").exists()


@pytest.mark.nightly
def test_what_is_used_is_that_of_the_run(session: SparkSession) -> None:
    from tagmatch.workloads.bench.spark.usage import usage_of

    def count(rows: int) -> Any:
        frame = session.range(rows).repartition(3).coalesce(1)
        return lambda: frame.write.format("noop").mode("overwrite").save()

    first, second = usage_of(session, count(1_000)), usage_of(session, count(100_000))
    assert (first.stages, second.stages) == (2, 2)
    # Numbers of eight bytes
    assert 1_000 < first.shuffled < 50_000 < second.shuffled < 5_000_000
    assert 0 < first.longest_alone <= first.task_seconds
    nothing = usage_of(session, lambda: None)
    assert (nothing.stages, nothing.task_seconds, nothing.longest_alone, nothing.shuffled) == (0, 0, 0, 0)
    block = usage_of(session, lambda: bytearray(200 << 20).count(1))
    assert block.python >= 190 << 20


@pytest.mark.nightly
@pytest.mark.usefixtures("session")
def test_join(tmp_path: Path) -> None:
    done = bench(tmp_path, "--part", "join", "--join-sets", "300", "--queries", "40")
    found = json.loads((tmp_path / "spark-join.json").read_text())
    (panel,) = found["panels"]
    assert [value["system"] for value in panel["values"]] == JOINS
    assert all(value["value"] > 0 for value in panel["values"])
    assert limits(found) == {
        "keys of an answer": None,
        "subset_join, ship: 40 queries": 50_000,
        "subset_join, shuffle: 40 queries": None,
        "SQL: explode, join, count: 40 queries": None,
        "SQL: cross join, array_except: 16 queries": None,
        "subset_join, shuffle against SQL: explode, join, count": 20,
    }
    assert [row["system"] for row in found["answers"]] == JOINS
    assert {(row["queries"], row["wrong"], row["missing"]) for row in found["answers"]} == {(40, 0, 0)}
    assert len({row["keys"] for row in found["answers"]}) == 1
    assert found["answers"][0]["keys"] >= 40  # each query extends a stored set
    operators = {"subset_join, ship": "MapInArrow", JOINS[2]: "HashAggregate", JOINS[3]: "NestedLoopJoin"}
    assert list(found["plans"]) == JOINS
    assert all(operator in found["plans"][name] for name, operator in operators.items())
    assert "Plan of *subset_join, ship*" in done.stdout
    assert (tmp_path / "spark-join.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
@pytest.mark.usefixtures("session")
def test_skew(tmp_path: Path) -> None:
    bench(tmp_path, "--part", "skew", "--join-sets", "400", "--queries", "60")
    found = json.loads((tmp_path / "spark-skew.json").read_text())
    times, rates = found["panels"]
    names = [*skew.INPUTS]
    assert {(value["x"], value["system"]) for value in times["values"]} == {
        (name, f"{where}, {each}") for name in names for where in ("Spark", "local") for each in get_args(Layout)
    }
    assert {(value["x"], value["system"]) for value in rates["values"]} == {
        (name, system) for name in names for system in JOINS[:2]
    }
    assert [(answers["wrong"], answers["missing"]) for answers in found["answers"]] == [(0, 0)] * 2 * len(names)


def test_inputs_with_skew() -> None:
    workload = make_workload(300, 50, 1, 1)
    shared, everywhere, long = (change(workload) for change in list(skew.INPUTS.values())[1:])
    for changed, share in ((shared, 0.9), (everywhere, 0.01)):
        (tag,) = set(changed.queries[0].as_py()) - set(workload.queries[0].as_py())
        having = [tag in tags for tags in changed.sets["tags"].to_pylist()]
        assert sum(having) == pytest.approx(share * len(having), abs=1)
        assert [[each for each in tags if each != tag] for tags in changed.sets["tags"].to_pylist()] == workload.sets[
            "tags"
        ].to_pylist()
        assert all(tag in tags for tags in changed.queries.to_pylist())
    assert len(long.sets) == len(workload.sets) + 1
    assert len(set(long.sets["tags"][-1].as_py())) == 10_000
    assert set(long.sets["tags"][-1].as_py()) <= set(long.queries[0].as_py())


@pytest.mark.nightly
@pytest.mark.usefixtures("session")
def test_indexes_that_differ_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tagmatch.workloads.bench.spark import partitioning

    def other_size(*args: Any, **options: Any) -> Any:
        return make(*args, max_partition_size=7, **options)

    make = partitioning.partition_on_spark
    monkeypatch.setattr(partitioning, "partition_on_spark", other_size)
    with pytest.raises(TagMatchError, match="300 sets, layout rarest: Spark and local made different indexes"):
        bench(tmp_path, "--part", "partition", "--sets", "300")


def test_targets_of_partitioning() -> None:
    from tagmatch.workloads.bench.spark.partitioning import comparisons

    on_spark = {size * 1_000_000: Samples((10.0 * size,)) for size in (1, 4, 8)}
    local = {size: Samples((seconds.median / 4,)) for size, seconds in on_spark.items()}
    assert [(row.what, row.value, str(row.target or "")) for row in comparisons("rarest", on_spark, local)] == [
        ("rarest: 1,000,000 sets, Spark against local", 4, ""),
        ("rarest: 4,000,000 sets, Spark against local", 4, "≤ 2.5"),
        ("rarest: 8,000,000 sets, Spark against local", 4, "≤ 2.5"),
        ("rarest: 8,000,000 sets against 4,000,000, on Spark", 2, "≤ 2.3"),
    ]
