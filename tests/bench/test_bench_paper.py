"""The experiments of the paper at a tiny scale; and every system compared there, against one oracle and a scan."""

import io
import json
import math
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.bench import app
from support.strategies import BOUNDARY_KEYS
from support.tables import answers, right_answers, table_of, tag_rows
from typer.testing import CliRunner

from tagmatch.model.options import Layout
from tagmatch.workloads.twitter import Twitter, TwitterOptions
from tagmatch_bench.figures.figure import FIGURES
from tagmatch_bench.harness import reference
from tagmatch_bench.harness.bench import Bench, BenchOptions
from tagmatch_bench.harness.data import extend, make_workload
from tagmatch_bench.harness.results import Result
from tagmatch_bench.systems.catalogue import PYTHON_DICT, RAREST, SYSTEMS, Build
from tagmatch_bench.systems.hash_tables import RarestTagDict, SubsetEnumeration
from tagmatch_bench.systems.matcher import CallSize
from tagmatch_bench.systems.signatures import SignatureMatcher, SignatureScan
from tagmatch_bench.systems.tagmatch import Kernels
from tagmatch_bench.systems.trees import IcnTree, PrefixTree

FEW = ("--threads", "2", "--queries", "20", "--rounds", "1", "--seconds", "0.001", "--allow-changes", "--output")


def new_bench(**options: Any) -> Bench:
    few: dict[str, Any] = {"scale": 0.0005, "threads": 2, "queries": 60, "rounds": 1, "seconds": 0.001}
    return Bench(BenchOptions(**few | options), Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All experiments, run once by the command."""
    folder = tmp_path_factory.mktemp("paper") / "results"
    done = CliRunner().invoke(app, ["paper", "--scale", "0.0005", *FEW, str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", FIGURES)
def test_experiment(written: tuple[Path, str], name: str) -> None:
    folder, printed = written
    found = json.loads((folder / f"{name}.json").read_text())
    assert (found["name"], found["parameters"]["scale"]) == (name, 0.0005)
    assert {"date", "commit", "machine", "versions"} <= found["circumstances"].keys()
    assert found["panels"]
    for panel in found["panels"]:
        assert all(math.isfinite(value["value"]) and value["value"] > 0 for value in panel["values"])
        systems, places = ({value[what] for value in panel["values"]} for what in ("system", "x"))
        assert len(panel["values"]) == len(systems) * len(places) > 0, "every system is measured everywhere"
    answers = found["answers"]
    assert all(row["missing"] == 0 and (row["wrong"] == 0 or not row["exact"]) for row in answers)
    systems = {value["system"] for value in found["panels"][0]["values"]}
    if name in (
        "table1",
        "table3",
        "fig2",
        "fig3",
        "fig4",
        "fig5",
        "fig7",
        "fig10",
        "fig11",
        "keys",
        "layouts",
        "capacity",
    ):
        assert sum(row["keys"] for row in answers) > 0
        assert {row["system"] for row in answers} >= systems
    if name == "table1":
        assert systems ^ found["unavailable"].keys() == SYSTEMS.keys()
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert found["title"] in (folder / f"{name}.md").read_text()
    assert found["title"] in printed


def test_several_figures_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have in common is made once; systems that are skipped are nowhere."""
    generated: list[int] = []

    def generate(sets: int, *arguments: Any, **options: Any) -> Any:
        generated.append(sets)
        return make_workload(sets, *arguments, **options)

    monkeypatch.setattr("tagmatch_bench.harness.bench.make_workload", generate)
    for command in (["fig2"], ["paper"]):
        generated.clear()
        few = ["fig2", "fig3", "fig9", "fig3", "--sets", "600", "--skip", "prefix tree", *FEW]
        options = [*command, *few, str(tmp_path)]
        assert CliRunner().invoke(app, options, catch_exceptions=False).exit_code == 0
        assert {path.name for path in tmp_path.glob("*.json")} == {"fig2.json", "fig3.json", "fig9.json"}
        assert generated == [600, 120, 240, 360, 480]
        panels = json.loads((tmp_path / "fig2.json").read_text())["panels"]
        systems = {value["system"] for panel in panels for value in panel["values"]}
        assert systems
        assert "prefix tree" not in systems
        for wrong, named in ((["fig33"], "fig33"), (["--sets", "500", "--scale", "0.0005"], "--sets")):
            done = CliRunner().invoke(app, [*command, *wrong])
            assert done.exit_code == 2
            assert named in done.stderr


class Wrong(RarestTagDict):
    """Forgets the first key of every answer, or gives a wrong one, if it gets as many queries as a whole batch."""

    forgets = False
    call_size: CallSize | None = None

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        found = super().match_many(queries, unique=unique)
        if self.call_size and len(queries) < self.call_size.whole:
            return found
        return [keys[1:] if self.forgets else [2**64 - 1, *keys] for keys in found]


def compared(name: str, system: Any, **options: Any) -> Result:
    """What is written down of a system that answers queries."""
    bench = new_bench(**options)
    workload = bench.workload(300)
    result = bench.result("fig2", "title", "about")
    with bench.built({name: lambda sets, _: system(sets)}, workload.sets, result) as matchers:
        bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    return result


@pytest.mark.parametrize("name", [RAREST, PYTHON_DICT, "other"])
@pytest.mark.parametrize(("forgets", "fault"), [(True, "missed 60"), (False, "gave 60 wrong")])
def test_wrong_answers_are_found(monkeypatch: pytest.MonkeyPatch, name: str, forgets: bool, fault: str) -> None:
    """From any system, and from no other one."""
    monkeypatch.setattr(Wrong, "forgets", forgets)
    # Each call asks for at least one query; all are asked here so that the counts are known
    (found,) = compared(name, Wrong, seconds=60.0).faults()
    assert f"fig2, here: {name}" in found
    assert fault in found


def test_answers_of_whole_batches_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And few of slow systems; only those that take batches get many queries."""
    monkeypatch.setattr(Wrong, "call_size", CallSize(whole=50))
    options = {"queries": 20, "queries_in_batches": 60, "seconds": 60.0}
    for system, counts in ((Wrong, (60, 60)), (RarestTagDict, (20, 0))):
        assert [(row.queries, row.wrong) for row in compared("other", system, **options).answers] == [counts]
    for name, system, counts in (("other", Wrong, (30, 30)), (PYTHON_DICT, RarestTagDict, (25, 0))):
        answers = compared(name, system, checked=30, seconds=1e-9).answers
        assert [(row.queries, row.wrong) for row in answers] == [counts]


def brute_force(sets: pa.Table, threads: int) -> Any:
    """What the benchmarks compare answers with, in the manner of a matcher."""
    right = partial(reference.right_answers, sets, threads=threads)
    return SimpleNamespace(exact=True, prepare=lambda x: x, match_many=right, nbytes=lambda: None, close=lambda: None)


def by_name(system: Any, **options: Any) -> Build:
    return lambda sets, threads: system(sets, threads=threads, **options)


BUILDS: dict[str, Build] = {
    # those that need a GPU: see tests/pipeline/cuda
    **{name: system for name, system in SYSTEMS.items() if not system.needs},
    "brute force": brute_force,
    "NumPy scan": by_name(SignatureScan),
    **{f"kernels of {each}": by_name(Kernels, layout=each) for each in get_args(Layout)},
    **{f"{tree.__name__}, leaves of {n}": by_name(tree, leaf_rows=n) for tree in (PrefixTree, IcnTree) for n in (1, 3)},
}

TAGS = st.sampled_from([*"abcdefgh", "", "é", "e\u0301"]) | st.text("abé", max_size=2)
KEYS = st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)
ROWS = st.lists(st.tuples(st.lists(TAGS, max_size=5), KEYS), max_size=25)
QUERIES = st.lists(st.lists(TAGS | st.text("xyz", min_size=1, max_size=2), max_size=12), max_size=6)


@pytest.fixture(params=BUILDS, scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


def check(build: Build, sets: pa.Table, queries: pa.ListArray, threads: int = 1) -> int:
    """Exact systems give the oracle's answers; the others more, as signatures match; returns how many there are."""
    right, scan = right_answers(sets, queries), SignatureScan(sets)
    by_signature = answers(scan, scan.prepare(queries))
    assert all(due <= keys for due, keys in zip(right, by_signature, strict=True))
    matcher = build(sets, threads)
    try:
        prepared = matcher.prepare(queries)
        due = right if matcher.exact else by_signature
        if not matcher.exact and not isinstance(matcher, SignatureMatcher):  # which knows unknown tags
            due = answers(matcher, prepared)
            assert all(low <= keys <= high for low, keys, high in zip(right, due, by_signature, strict=True))
        assert answers(matcher, prepared) == due
        for part in (slice(1, None), slice(0, 2), slice(0, 0)):
            assert answers(matcher, prepared[part]) == due[part]
        assert answers(matcher, prepared, unique=True) == [Counter(keys.keys()) for keys in due]
        taken = matcher.nbytes()
        assert taken is None or taken >= 0
    finally:
        matcher.close()
    return sum(map(len, due))


@given(rows=ROWS, asked=QUERIES, threads=st.sampled_from([1, 3]))
def test_small_tables(build: Build, rows: list[tuple[list[str], int]], asked: list[list[str]], threads: int) -> None:
    check(build, table_of(rows), tag_rows(asked), threads)


def test_twitter_like_sets(build: Build) -> None:
    """Also in slices and chunks; and of tables without rows, and no queries. Inexact systems give wrong keys, too."""
    sets = Twitter(TwitterOptions(hashtags=200)).sets(0, 100).slice(0, 3000)
    queries = extend(sets, 100, 2, 4, seed=1)
    assert check(build, sets, queries, threads=2) > 100
    check(build, pa.concat_tables([sets.slice(7, 200), sets.slice(300, 300)]), queries.slice(11, 60))
    check(build, table_of([]), tag_rows([["a"], []]))
    check(build, table_of([(["a"], 1)]), tag_rows([]))


@pytest.mark.parametrize("tree", [PrefixTree, IcnTree])
def test_equal_signatures(tree: Any) -> None:
    """Sets of more and more tags until all bits are one: from there on all signatures are equal."""
    tags = [f"tag{i}" for i in range(300)]
    sets = table_of([(tags[:size], key) for size in range(0, 301, 10) for key in (size, size, 7)])
    check(by_name(tree, leaf_rows=1), sets, tag_rows([tags, tags[:150], tags[100:], []]))


def test_all_subsets_of_a_set() -> None:
    """Every subset is stored, so that every look-up finds one and the results outgrow their first array."""
    tags = list("abcdefghijkl")
    sets = table_of([([tag for i, tag in enumerate(tags) if key >> i & 1], key) for key in range(2**12)])
    check(by_name(SubsetEnumeration), sets, tag_rows([tags, tags[3:], [], ["z", "l"]]))


def test_queries_with_too_many_subsets_are_refused() -> None:
    """Unknown tags cost nothing."""
    sets = table_of([([f"t{i}", f"t{i + 1}"], i) for i in range(40)])
    tags = [f"t{i}" for i in range(41)]
    queries = tag_rows([["t1", "t2"], [*tags, *tags, *map(str, range(10_000))]])
    # None, one or two of 41 tags
    check(by_name(SubsetEnumeration, max_subsets=862), sets, queries)
    message = r"query 1 has 41 known tags and so more than 861 \(max_subsets\) subsets of up to 2 tags"
    with pytest.raises(ValueError, match=message):
        SubsetEnumeration(sets, max_subsets=861).prepare(queries)
    tags = [f"t{number}" for number in range(20_000)]
    with pytest.raises(ValueError, match="query 0 has 20000 known tags and so more than 4,194,304"):
        SubsetEnumeration(table_of([(tags, 1)])).prepare(tag_rows([tags]))
