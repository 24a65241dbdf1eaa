"""Commands of `tagmatch-bench`: each runs once, small; what it measures and compares, writes down, and asks when."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pytest
from support.bench import Found, app, at, measured, run
from support.servers import needs
from typer.testing import CliRunner

from tagmatch import Overloaded, TagMatchError
from tagmatch.model.options import Durability
from tagmatch.workloads.twitter import TwitterOptions
from tagmatch_bench.figures.host import PACKETS
from tagmatch_bench.harness import timing
from tagmatch_bench.harness.data import distinct_sets, make_workload
from tagmatch_bench.harness.load import serve, serve_tasks
from tagmatch_bench.harness.processes import forget_peak, resident
from tagmatch_bench.harness.report import draw, markdown
from tagmatch_bench.harness.results import Answers, Result, Row, Target
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.catalogue import PYTHON_DICT
from tagmatch_bench.systems.matcher import CallSize
from tagmatch_bench.systems.on_disk import DuckDBFile
from tagmatch_bench.systems.tagmatch import TagmatchOnDisk

BAD = {
    "broker": "--constraints 1, --rate 0, --queue 0, --scenario figures, --skip BE-Tree",
    "ccm": "--constraints 1, --events 0, --part figure4, --skip Siena",
    "content": "--constraints 1, --filters 0, --part tags, --cities no",
    "cpu": "--sets 0, --queries 0, --threads 0, --seed -1, --sets many, --unknown x",
    "latency": "--sets 0, --seconds 0, --flush-timeout -1, --flush-timeout nan, --flush-timeout soon, --layout round",
    "location": "--filters 0, --coverage 0, --located 1, --part tags, --cities no, --skip OCM",
    "pcm": "--constraints 1, --events 0, --part figure4, --skip Siena",
    "table1": "--scale 0, --scale 1e9, --queries 0, --rounds 0, --threads 0, --seconds -1",
    "updates": "--sets 0, --consolidates 0, --seconds 0, --keys 0",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in BAD[command].split(", "):
        done = CliRunner().invoke(app, [command, *wrong.split()])
        assert done.exit_code == 2, wrong
        assert wrong.split()[0] in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_cpu(tmp_path: Path) -> None:
    options = ("--sets", 300, "--queries", 50, "--threads", 2, "--rounds", 1, "--seconds", 0.001)
    found = measured("cpu", tmp_path, *options)
    both = ("tagmatch, rarest", "tagmatch, balanced")
    encoded = {f"{each}, dictionary-encoded" for each in both}
    systems = {*both, *encoded, "CPU-only TagMatch (balanced, exact=False)", PYTHON_DICT, "NumPy scan of signatures"}
    assert found.places("match_many") == at(systems, {"300"})
    assert all(rate > 0 for rate in found.values("match_many").values())
    assert {row["system"] for row in found.answers} == systems
    costs = (
        "build",
        "peak of a build",
        "index",
        "index, beyond the keys",
        "build of 8 times as many sets",
        "growth",
    )
    assert all(found.value(f"{each}: {what}") > 0 for each in both for what in costs)
    assert {f"{each}: resident after a build" for each in both} <= found.lines.keys()
    assert {what for what in found.lines if "against plain" in what} == {f"{e}: against plain strings" for e in encoded}
    assert not any("growth" in what for what in measured("cpu", tmp_path, *options, "--no-growth").lines)


def test_records(tmp_path: Path) -> None:
    found = measured("records", tmp_path, "--sets", 300, "--queries", 50, "--threads", 2, "--rounds", 1)
    assert {row["system"] for row in found.answers} == {"tagmatch"}
    assert len(found.answers) == 15
    ratios = [what for what in found.lines if "rate of an index of only these" in what]
    assert len(ratios) == 9
    assert all(
        found.value(what) > 0 for what in (*ratios, "get", "put: rate of add_set", "match_counts: rate of match_many")
    )
    alone = measured("records", tmp_path, "--sets", 300, "--rounds", 1, "--part", "counts")
    assert [what for what in alone.lines if "rate of" in what] == [
        f"{call}{where}: rate of {other}"
        for where in ("", ", a key a set", ", a key a set, balanced")
        for call, other in (("match_counts", "match_many"), ("match_exists_many", "match_counts"))
    ]


def test_first(tmp_path: Path) -> None:
    found = measured("first", tmp_path, "--rounds", 1, *(f"--part={part}" for part in ("tags", "conditions", "areas")))
    assert all(0.1 < found.value(f"first answer: {part}") < 20 for part in ("tags", "conditions", "areas"))


def test_host(tmp_path: Path) -> None:
    options = ("--sets", 300, "--threads", 2, "--rounds", 2, "--seconds", 0.001)
    found = measured("host", tmp_path, *options)
    a_packet, a_query = found.values("a packet"), found.values("a query")
    assert a_packet.keys() == a_query.keys() == {(name, size) for name in ("rarest", "balanced") for size in PACKETS}
    assert all(a_query[layout, size] * size == pytest.approx(value) for (layout, size), value in a_packet.items())
    assert all(len(samples) == 2 for samples in found.values("a packet", "samples").values())


def test_threads(tmp_path: Path) -> None:
    options = ("--sets", 300, "--queries", 60, "--threads", 2, "--rounds", 1, "--seconds", 0.001)
    found = measured("threads", tmp_path, *options)
    both, callers = ("tagmatch, rarest", "tagmatch, balanced"), {1, 2, 10, 50}
    for title in ("match", "match-unique", "speed-up of match"):
        assert found.places(title) == at(both, {1, 2})
    for title in ("match, called again and again", "match by many callers"):
        assert found.places(title) == at((*both, "Python dict of rarest tags"), callers)
    assert found.places("match_many and its kernels").keys() == {"match_many", "kernels alone"}
    assert (len(found.limits), len(found.lines)) == (14, 21)
    assert {row["system"] for row in found.answers} >= {"kernels alone, rarest", "kernels alone, balanced"}


def test_latency(tmp_path: Path) -> None:
    options = ("--sets", 300, "--seconds", 0.01, "--rounds", 2, "--flush-timeout", 0.1, "--flush-timeout", "never")
    found = measured("latency", tmp_path, *options)
    measures = ("answered", "median", "p99", "p99.9", "maximum", "rejected")
    places = at(("flush_timeout 100 ms", "flush_timeout never"), {10, 25, 50, 75, 90, 100, 120})
    titles = [f"{each}: {what}" for what in measures for each in ("rarest", "balanced")]
    assert {title: found.places(title) for title in found.panels} == dict.fromkeys(titles, places)
    assert all(value > 0 for each in titles if "rejected" not in each for value in found.values(each).values())
    what = "p99 at 50 % of capacity, default flush_timeout"
    assert found.limits == {f"rarest: {what}, median of 2 rounds": 20}
    median, worst = (found.value(f"balanced: {what}, {each}") for each in ("median of 2 rounds", "worst round"))
    assert 0 < median <= worst
    options = ("--sets", 50, "--seconds", 0.001, "--flush-timeout", 0, "--layout", "balanced")
    assert not any("rarest" in title for title in measured("latency", tmp_path, *options).panels)


def test_follow(tmp_path: Path) -> None:
    found = measured("follow", tmp_path, "--sets", 500, "--rounds", 1)
    places = at(("its folder", "a copy in a folder", "a copy in S3"), {"median", "longest"})
    assert found.places("from a commit to its answers") == places
    assert len(found.limits) == 3


def test_serve(tmp_path: Path) -> None:
    for program in ("redis-server", "nats-server", "mosquitto"):
        needs(program, program)
    options = ("--sets", 2000, "--queries", 3000, "--rounds", 2, "--seconds", 0.05, "--threads", 2)
    found = measured("serve", tmp_path, *options)
    assert found.value("overload: sent") > 0
    counted = [what for what in found.limits if "not" in what]
    assert {found.value(what) for what in (*counted, "errors", "still in flight at the end")} == {0}
    assert (found.answers[0]["queries"], found.answers[0]["keys"] > 0) == (3000, True)
    assert found.panels.keys() == {"messages a second in batches of 1,024", "latency at 50,000 messages a second"}
    over_http = Found(tmp_path, "serve-http")
    assert over_http.places("messages a second, many in one call").keys() == {
        "over Flight", "Arrow over HTTP", "JSON Lines over HTTP",
    }  # fmt: skip
    assert over_http.value("single messages over HTTP") > 0
    transport = Found(tmp_path, "transport")
    systems = transport.places(next(iter(transport.panels))).keys()
    assert systems == {"tagmatch serve", "Redis streams", "nats-server", "mosquitto"}
    assert transport.value("messages lost") == 0
    assert Found(tmp_path, "serve-kafka").value("json, exactly once") > 0


TINY = ["layouts", "--scale", "0.0005", "--queries", "30", "--rounds", "1", "--seconds", "0.001", "--output"]


@pytest.mark.parametrize(("keys_per_set", "low", "high"), [(1, 1, 1), (1.5, 1.3, 1.7), (5, 4, 5.5)])
def test_sets_and_keys_of_a_workload(keys_per_set: float, low: float, high: float) -> None:
    workload = make_workload(10_000, 100, seed=3, threads=2, keys_per_set=keys_per_set)
    stored = [frozenset(tags) for tags in workload.sets["tags"].to_pylist()]
    pairs = set(zip(stored, workload.sets["key"].to_pylist(), strict=True))
    assert len(set(stored)) == workload.distinct == 10_000
    assert len(pairs) == len(stored), "no pair twice"
    assert low <= len(pairs) / 10_000 == workload.keys_per_set <= high
    assert Counter(map(frozenset, workload.sample["tags"].to_pylist())) == Counter(set(stored))
    for query in workload.queries.to_pylist():
        assert any(tags <= set(query) for tags in stored)


def test_sets_that_their_publishers_have_no_tweets_for() -> None:
    """A hundred publishers have a few thousand different tweets in all languages: there have to be more of them."""
    sets = distinct_sets(TwitterOptions(seed=3, publishers=100), 30_000, threads=2)["tags"].to_pylist()
    assert len(set(map(frozenset, sets))) == len(sets) == 30_000


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, from which the code that is measured is taken to come."""
    folder = tmp_path / "checkout"
    (folder / "tagmatch").mkdir(parents=True)
    (folder / "tagmatch" / "code.py").write_text("fast = True\n")
    (folder / "README.md").write_text("slow\n")
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message", "Code"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    monkeypatch.setattr("tagmatch_bench.harness.results._CHECKOUT", folder / "tagmatch")
    return folder


@pytest.mark.parametrize("name", ["code.py", "added.py", "../at_the_top.toml", "../.git/HEAD"])
def test_results_of_unknown_code_are_refused(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of changed files, and where git does not work."""
    (checkout / "tagmatch" / name).write_text("fast = False\n")
    has_git = ".git" not in name
    for command in (TINY, *([] if has_git else [["host", "--output"], TINY])):
        result = CliRunner().invoke(app, [*command, str(tmp_path / "results")])
        assert isinstance(result.exception, TagMatchError)
        file = os.path.normpath(f"tagmatch/{name}")
        told = f"these files differ from it: {file}; commit them" if has_git else "results would name no commit"
        assert told in str(result.exception)
        assert has_git or "--allow-changes" in str(result.exception)
        assert not (tmp_path / "results").exists() or not any((tmp_path / "results").iterdir())
        if command[0] == "host":
            monkeypatch.setenv("PATH", str(tmp_path))
    CliRunner().invoke(app, [*TINY, str(tmp_path), "--allow-changes"], catch_exceptions=False)
    found = json.loads((tmp_path / "layouts.json").read_text())["circumstances"]
    assert (found["commit"] is None) == (not has_git)


@pytest.mark.parametrize("changed", [False, True])
def test_results_name_their_commit(checkout: Path, tmp_path: Path, changed: bool) -> None:
    """Words may change, and other results."""
    (checkout / "README.md").write_text("fast\n")
    (checkout / "bench" / "results").mkdir(parents=True)
    (checkout / "bench" / "results" / "another.json").write_text("{}")
    if changed:
        (checkout / "tagmatch" / "code.py").write_text("fast = False\n")
    options = ["--allow-changes"] if changed else []
    result = CliRunner().invoke(app, [*TINY, str(tmp_path), *options], catch_exceptions=False)
    assert ("**Not reproducible**: measured at" in result.stdout) == changed
    assert ("with changes to tagmatch/code.py." in (tmp_path / "layouts.md").read_text()) == changed
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, check=True, capture_output=True, text=True)
    found = json.loads((tmp_path / "layouts.json").read_text())["circumstances"]
    assert found["commit"].startswith(head.stdout.strip())
    assert found["changed_files"] == (["tagmatch/code.py"] if changed else [])


@pytest.mark.parametrize("style", ["bars", "lines"])
def test_a_zero_is_drawn_on_a_logarithmic_axis(tmp_path: Path, style: Literal["bars", "lines"]) -> None:
    result = Result("name", {}, "Title", "About.")
    panel = result.panel("messages a second", "load", "messages/s", style)
    for load, rate in ((1.0, 5.0), (2.0, 0.0)):
        panel.add("a system", load, rate)
    draw(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_markdown() -> None:
    result = Result("fig2", {}, "Figure 2", "What it shows.")
    panel = result.panel("match", "tags", "queries/s", published=[Row("theirs", 1234.5, "queries/s", x="2")])
    panel.add("ours", "1", Samples((1.0, 3.0, 2.0)))
    panel.add("ours", "2", 0.01234)
    result.answers = [Answers("1", "ours", True, 5, 10, 0, 0), Answers("1", "scan", False, 5, 40, 30, 0)]
    result.add("speed", 5.5, "times", Target(8, goal=30))
    text = markdown(result, images="plots/")
    for line in (
        "![Figure 2](plots/fig2.png)", "| tags | 1 | 2 |", "| ours | 2.00 | 0.0123 |", "| paper: theirs |  | 1,234 |",
        "Exact systems gave 10 keys to 5 queries: 0 wrong, 0 missing.",
        "| speed | 5.50 times | ≥ 8, goal ≥ 30 | not met |",
        "Of the 40 keys of scan, 30 (75%) were wrong; 0 were missing.",
    ):  # fmt: skip
        assert line in text
    assert not result.faults()


def test_latency_counts_from_when_a_query_was_due() -> None:
    """Each takes a second, in the generator's thread, so that the second and third are submitted late."""
    clock = SimpleNamespace(time=1000.0)

    def sleep(seconds: float) -> None:
        clock.time += seconds

    def submit(_: list[str]) -> Future[Any]:
        sleep(1.0)
        future: Future[Any] = Future()
        future.set_result([])
        return future

    due = np.array([0.5, 0.75, 1.0, 10.0])
    served = serve(submit, [["a"]] * 4, due, now=lambda: clock.time, sleep=sleep)
    assert served.latency.tolist() == [1.0, 1.75, 2.5, 1.0]
    assert (served.seconds, served.throughput, served.rejected) == (11.0, 4 / 11, 0)


def test_tasks_ask_when_queries_are_due() -> None:
    """The second does not wait; the third is refused, and the fourth is late, as the loop is busy."""
    asked: list[str] = []

    async def ask(query: list[str]) -> None:
        asked.append(query[0])
        if query[0] == "slow":
            await asyncio.sleep(0.3)
        elif query[0] == "refused":
            raise Overloaded
        elif query[0] == "busy":
            time.sleep(0.2)

    due = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    served = serve_tasks(ask, cycle([["slow"], ["quick"], ["refused"], ["busy"], ["late"]]), due)
    assert asked == ["slow", "quick", "refused", "busy", "late"]
    assert (served.rejected, len(served.latency)) == (1, 4)
    slow, _, busy, late = served.latency
    assert slow >= 0.29 <= served.seconds
    assert min(busy, late) >= 0.19


@pytest.mark.parametrize(
    ("items", "size", "expected"),
    [
        (1000, CallSize(), 20),
        (1000, CallSize(whole=8), 16),
        (30, CallSize(whole=40), 30),
        (1000, CallSize(whole=30, full=100), 90),
        (1000, CallSize(full=500, most=150), 150),
        # As with a device, for which calls of less than 50 items are too small: one of a thousand is, to begin with
        (1_000_000, CallSize(whole=10, full=5000), 5000),
    ],
)
def test_calls_have_whole_batches(items: int, size: CallSize, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which an item takes a millisecond, with 20 ms a call and up to ten times as long for full ones."""
    asked: list[int] = []

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        return asked[-1] / (100_000 if items == 1_000_000 and asked[-1] >= 50 else 1000)

    monkeypatch.setattr(timing, "seconds_of", seconds_of)
    found = rates({"x": asked.append}, items, rounds=3, seconds=0.02, sizes={"x": size})
    assert (found["x"].items, asked[-3:], len(found["x"].values)) == (expected, [expected] * 3, 3)
    assert found["x"].median == pytest.approx(100_000 if items == 1_000_000 else 1000)


def test_a_peak_is_forgotten() -> None:
    peak = np.ones(50_000_000).sum()
    assert peak
    before = resident("VmHWM")
    forget_peak()
    assert resident("VmRSS") <= resident("VmHWM") < before - 300_000_000


def test_a_process_that_has_ended_has_no_memory() -> None:
    with (
        subprocess.Popen([sys.executable, "-S", "-c", ""]) as child,
        pytest.raises(ProcessLookupError, match="has ended"),
    ):
        list(iter(partial(resident, "VmHWM", child.pid), None))
    with pytest.raises(FileNotFoundError):
        resident("VmHWM", child.pid)


OURS, RIVALS = "tagmatch", ("DuckDB", "LanceDB")
DURABLY = [f"{OURS}, durability {each}" for each in get_args(Durability)]
UPDATES = ("--sets", 400, "--consolidates", 5, "--queries", 60, "--rounds", 2, "--seconds", 0.005, "--threads", 2)


def test_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation._REST_S", 0.1)
    asked: list[str | None] = []
    make = TagmatchOnDisk.__init__

    def record(index: TagmatchOnDisk, path: Path, *, durability: str | None = None, **options: Any) -> None:
        asked.append(durability)
        make(index, path, durability=durability, **options)

    monkeypatch.setattr(TagmatchOnDisk, "__init__", record)
    found = measured("updates", tmp_path, *UPDATES, "--keys", 3)
    assert list(filter(None, asked)) == ["fsync", "os", "none"]
    assert asked[-1] is None
    required = {f"{name}: sets that were not found then, of 10" for name in (OURS, *RIVALS)}
    required.add("nothing staged: files that a consolidation changes")
    assert {what for what, line in found.lines.items() if line["target"] and line["target"]["required"]} >= required
    assert all(found.value(what) == 0 for what in required)
    assert len(found.limits) == len(required) + 6 + 2 * 2 * len(DURABLY)
    assert found.value("small changes, 10 sets each, of 5") == 5
    on_disk = ("all sets at once", "10 sets, until they are visible", "one percent changed")
    opening = "opening, until one query is answered"
    assert {title: found.places(title).keys() for title in found.panels} == {
        **at((*on_disk, opening), {OURS, *RIVALS}),
        "sets added one by one": {*DURABLY, *RIVALS},
        "match_many": {"after small changes", "consolidated at once"},
        "latency of match at half of capacity": {"quiet", "while sets change"},
    }
    assert len({place for places in found.places(opening).values() for place in places}) == 1  # all hold as many rows
    assert all(value > 0 for title in found.panels for value in found.values(title).values())
    wheres = {"10 sets", "one percent changed", "sets added one by one", "after serving", "opened"}
    wheres |= {"small changes, at once", "small changes, when merges have ended"}
    assert {row["where"] for row in found.answers} == wheres
    assert all(row["exact"] and (row["keys"] > 0 or row["where"] == "opened") for row in found.answers)


@pytest.mark.parametrize("wrong", ["late", "lost", "for nothing"])
def test_what_a_system_does_wrong_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Rows come with the change after theirs, or never; or a consolidation of nothing writes a file."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation._REST_S", 0.1)
    change, tend, held = DuckDBFile.change, TagmatchOnDisk.tend, dict[DuckDBFile, pa.Table]()

    def change_otherwise(system: DuckDBFile, added: pa.Table, removed: pa.Table | None = None) -> None:
        change(system, held.get(system, added[:0]) if wrong == "late" else added[: len(added) - 2], removed)
        held[system] = added

    def write(system: TagmatchOnDisk) -> None:
        tend(system)
        Path(system.index.stats()["path"], "more").write_text(str(time.perf_counter_ns()))

    if wrong == "for nothing":
        monkeypatch.setattr(TagmatchOnDisk, "tend", write)
    else:
        monkeypatch.setattr(DuckDBFile, "change", change_otherwise)
    done = run("updates", tmp_path, *UPDATES)
    assert done.exit_code == 1
    told = {"late": "DuckDB: sets that were not found then, of 10 10 sets", "lost": "DuckDB gave"}
    expected = told.get(wrong, "files that a consolidation changes 1 files")
    assert expected in str(done.exception or "") + done.output
