"""The steps of `tagmatch-bench paper-scale`, with few sets; and the files that they go on from."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bench import app
from support.tables import right_answers
from typer.testing import CliRunner, Result

from tagmatch import TagMatch, TagMatchError
from tagmatch.model.options import Layout
from tagmatch.workloads.twitter import TwitterOptions
from tagmatch_bench.figures import paper_scale
from tagmatch_bench.harness import shards
from tagmatch_bench.harness.data import distinct_sets, extend
from tagmatch_bench.harness.shards import DrawnKeys, Oracle, Shards
from tagmatch_bench.systems.catalogue import OURS
from tagmatch_bench.systems.tagmatch import open_index

SETS = 3_000
#: The steps that need sets and indexes
MEASURED = ("--part", "table1", "--part", "fig2", "--part", "fig7")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_SETS", 700)
    monkeypatch.setattr(shards, "_USERS", 20)


def run(folder: Path, *more: str) -> Result:
    few = [
        "--threads",
        "2",
        "--queries",
        "40",
        "--rounds",
        "1",
        "--seconds",
        "0.001",
        "--share",
        "20",
        "--share",
        "100",
    ]
    places = ["--folder", str(folder), "--output", str(folder / "out"), "--allow-changes"]
    return CliRunner().invoke(app, ["paper-scale", "--sets", f"{SETS}", *few, *places, *more])


def found(folder: Path) -> dict[str, dict[tuple[str, str | float], float]]:
    """The values of each panel of the joined result, by system and place; all answers are right."""
    facts: dict[str, Any] = json.loads((folder / "out" / "paper-scale.json").read_text())
    assert sum(row["keys"] for row in facts["answers"]) > 0 or not facts["answers"]
    assert {(row["wrong"], row["missing"], row["exact"]) for row in facts["answers"]} <= {(0, 0, True)}
    return {
        panel["title"]: {(each["system"], each["x"]): each["value"] for each in panel["values"]}
        for panel in facts["panels"]
    }


def test_steps_that_go_on_from_one_another(tmp_path: Path) -> None:
    done = run(tmp_path, "--part", "generate", "--part", "build", "--layout", "rarest")
    assert done.exit_code == 0, done.stderr
    assert "build rarest, 100 %: " in done.stderr
    assert {x for _, x in found(tmp_path)["build"]} == {0.0006, 0.003}
    done = run(tmp_path, "--part", "build", *MEASURED)
    assert done.exit_code == 0, done.stderr
    assert "build rarest" not in done.stderr, "it is there"
    panels = found(tmp_path)
    assert set(panels["match"]) == {(name, share) for name in OURS.values() for share in ("20 %", "100 %")}
    assert len(panels["match-unique, input"]) == len(panels["match-unique, output"]) == 20
    assert {x for _, x in panels["match by MAX_P"]} == {2.0, 6.0, 60.0, 600.0}
    keys = panels["memory"]["tagmatch, rarest: keys", "100 %"]
    done = run(tmp_path, "--keys", "50", "--part", "table1")
    assert done.exit_code == 0, done.stderr
    again = found(tmp_path)
    assert again.items() >= panels.items(), "the joined result keeps the values of earlier steps"
    assert again["memory, 50 keys a set"]["tagmatch, rarest: keys", "100 %"] > 10 * keys


@pytest.mark.parametrize("lost", [[0], [3], [4], [1, 4], [*range(5)]])
def test_sets_that_were_written_stay(tmp_path: Path, lost: list[int]) -> None:
    """All are the first distinct sets of the workload; those of files that are missing are generated again."""
    made = Shards(tmp_path, SETS, 3, 2)
    made.write()
    paths = sorted(tmp_path.glob("*.parquet"))
    assert [len(pq.read_table(path)) for path in paths] == [700] * 4 + [200]
    whole = pa.concat_tables(made.tables(SETS))
    assert whole.to_pylist() == distinct_sets(TwitterOptions(seed=3), SETS).to_pylist()
    assert pa.concat_tables(made.tables(1_500)) == whole[:1_500]
    times = {path: path.stat().st_mtime_ns for path in paths}
    for number in lost:
        paths[number].unlink()
    with pytest.raises(TagMatchError, match=f"{len(lost)} files of sets are missing; run --part generate"):
        made.sample(SETS)
    made.write()
    assert pa.concat_tables(made.tables(SETS)) == whole
    kept = [path for number, path in enumerate(paths) if number not in lost]
    assert {path: path.stat().st_mtime_ns for path in kept} == {path: times[path] for path in kept}
    with pytest.raises(TagMatchError, match="files of another workload"):
        Shards(tmp_path, SETS, 4, 2).write()


@pytest.mark.parametrize("layout", OURS)
def test_many_keys_of_a_set(tmp_path: Path, layout: Layout) -> None:
    """An index whose keys were exchanged is one to which sets with these keys were added."""
    made = Shards(tmp_path, SETS, 1, 2)
    made.write()
    sets = pa.concat_tables(made.tables(SETS)).combine_chunks()
    drawn = DrawnKeys(SETS, 20.0, 1, 2)
    keys = drawn.of_rows(sets["tags"])
    lengths = keys.lengths()
    assert 15 < lengths.mean() < 25
    different = {tuple(keys.values[a:b]) for a, b in pairwise(keys.offsets)}
    assert len(different) > 0.9 * SETS, "a few have the same single key"
    rows = sets["tags"].take(pa.array(np.repeat(np.arange(SETS), lengths)))
    table = pa.table({"tags": rows, "key": pa.array(keys.values.astype(np.uint64))})
    queries = extend(sets, 60, 2, 4, 1)
    with TagMatch(layout=layout, device="cpu") as one, TagMatch(layout=layout, device="cpu") as many:
        one.add_sets(sets["tags"], sets["key"])
        many.add_sets(table["tags"], table["key"])
        one.consolidate()
        assert many.consolidate().added == len(table), "each set has different keys"
        exchanged = paper_scale.with_keys(one.snapshot, drawn)
        for mine, due in zip(exchanged.segments, many.snapshot.segments, strict=True):
            assert (mine.keys.keys.values == due.keys.keys.values).all()
            assert (mine.keys.keys.offsets == due.keys.keys.offsets).all()
        with open_index(lambda _: exchanged, layout=layout, device="cpu") as index:
            answers = index.match_many(queries).to_pylist()
    due = right_answers(table, queries)
    assert list(map(Counter, answers)) == due
    possible = made.possible(SETS, queries.flatten().unique())
    assert len(possible) < SETS
    oracle = Oracle(possible, queries, drawn, 2)
    assert list(map(Counter, oracle(queries, False))) == due
    assert oracle(queries[:9], True) == [sorted(each) for each in due[:9]]


def test_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing begins then, and the message names the step and the size."""
    monkeypatch.setattr(paper_scale, "_FIXED_BYTES", 10**15)
    done = run(tmp_path, "--part", "generate")
    assert done.exit_code != 0
    assert "generate needs 1000000.0 GB of memory, and there are" in str(done.exception)
    assert not (tmp_path / "sets").exists()
    monkeypatch.setattr(paper_scale, "_FIXED_BYTES", 0)
    monkeypatch.setattr(paper_scale, "_GENERATED", paper_scale._GENERATED._replace(disk=10**15))
    assert "GB of disk, and there are" in str(run(tmp_path, "--part", "generate").exception)


@pytest.mark.parametrize("part", ["build", "table1"])
def test_steps_without_those_before(tmp_path: Path, part: str) -> None:
    done = run(tmp_path, "--part", part)
    assert done.exit_code != 0
    assert "missing; run --part generate first" in str(done.exception)
