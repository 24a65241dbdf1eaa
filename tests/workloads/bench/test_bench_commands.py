"""Commands of `tagmatch-bench`: each runs once, small; what it measures, counts and compares, not how fast that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.bench import Found, app, at, measured
from support.servers import needs
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures import ccm, location, pcm, qos_figures, qos_real
from tagmatch.workloads.bench.figures.host import PACKETS
from tagmatch.workloads.commands import bench_ccm, bench_location, bench_pcm, bench_qos, bench_qos_real

pytestmark = pytest.mark.nightly

BAD = {
    "broker": "--constraints 1, --rate 0, --queue 0, --scenario figures, --skip BE-Tree",
    "ccm": "--constraints 1, --events 0, --part figure4, --skip Siena",
    "content": "--constraints 1, --filters 0, --part tags, --cities no",
    "cpu": "--sets 0, --queries 0, --threads 0, --seed -1, --sets many, --json no/cpu.json, --unknown x",
    "latency": "--sets 0, --seconds 0, --flush-timeout -1, --flush-timeout nan, --flush-timeout soon, --layout round",
    "location": "--filters 0, --located 1, --part tags, --cities no, --skip OCM",
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


@pytest.mark.parametrize(
    ("command", "figure"),
    [
        (bench_ccm.Part, ccm.PARTS),
        (bench_location.Part, location.PARTS),
        (bench_pcm.Part, pcm.PARTS),
        (bench_qos.Part, qos_figures.PARTS),
        (bench_qos_real.RealPart, qos_real.REAL_PARTS),
    ],
)
def test_parts_are_those_of_the_command(command: Any, figure: tuple[str, ...]) -> None:
    assert tuple(command) == figure


def test_cpu(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    options = ["--sets", "300", "--queries", "50", "--threads", "2", "--allow-changes", "--json", str(file)]
    done = CliRunner().invoke(app, ["cpu", *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert "queries/s" in done.stdout
    found = json.loads(file.read_text())
    parameters = {"sets": 300, "queries": 50, "threads": 2, "growth": True, "seed": 1, "keys_per_set": 5}
    assert found["parameters"] == parameters
    assert found["machine"]["usable_cores"] >= 1
    assert {"date", "commit", "machine", "versions"} <= found.keys()
    lines = [line for section in found["sections"].values() for line in section]
    assert all(line["value"] == 0 for line in lines if line["target"] and line["target"]["required"])
    rates = {line["what"]: line["value"] for line in found["sections"]["match_many"]}
    encoded = {"rarest, dictionary-encoded", "balanced, dictionary-encoded"}
    assert rates.keys() == {"rarest", "balanced", "balanced, exact=False", "RarestTagDict", "SignatureScan", *encoded}
    assert {line["what"] for line in found["sections"]["against plain strings"]} == encoded
    assert all(rate > 0 for rate in rates.values())


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
    assert found.places("match_many beside its kernels").keys() == {"match_many", "kernels alone"}
    assert (len(found.limits), len(found.lines)) == (6, 13)
    assert {row["system"] for row in found.answers} >= {"kernels alone, rarest", "kernels alone, balanced"}


def test_latency(tmp_path: Path) -> None:
    options = ("--sets", 300, "--seconds", 0.01, "--rounds", 2, "--flush-timeout", 0.1, "--flush-timeout", "never")
    found = measured("latency", tmp_path, *options)
    measures = ("answered", "median", "p99", "p99.9", "maximum", "rejected")
    assert found.panels.keys() == {f"{each}: {what}" for what in measures for each in ("rarest", "balanced")}
    for title in found.panels:
        places = at(("flush_timeout 100 ms", "flush_timeout never"), {10, 25, 50, 75, 90, 100, 120})
        assert found.places(title) == places
        assert "rejected" in title or all(value > 0 for value in found.values(title).values())
    what = "p99 at 50 % of capacity, default flush_timeout"
    assert found.limits == {f"rarest: {what}, median of 2 rounds": 20}
    median, worst = (found.value(f"balanced: {what}, {each}") for each in ("median of 2 rounds", "worst round"))
    assert 0 < median <= worst
    assert "flush_timeout never" in (tmp_path / "latency.md").read_text()
    options = ("--sets", 50, "--seconds", 0.001, "--flush-timeout", 0, "--layout", "balanced")
    assert not any("rarest" in title for title in measured("latency", tmp_path, *options).panels)


def test_serve(tmp_path: Path) -> None:
    for program in ("redis-server", "nats-server", "mosquitto"):
        needs(program, program)
    options = ("--sets", 2000, "--queries", 3000, "--rounds", 2, "--seconds", 0.05, "--threads", 2)
    found = measured("serve", tmp_path, *options)
    assert found.value("overload: sent") > 0
    counted = [what for what in found.limits if "not" in what]
    assert counted
    assert all(found.value(what) == 0 for what in (*counted, "errors", "still in flight at the end"))
    (answers,) = found.answers
    assert (answers["queries"], answers["keys"] > 0) == (3000, True)
    panels = {"messages a second in batches of 1,024", "latency at 50,000 messages a second"}
    assert found.panels.keys() == panels
    transport = Found(tmp_path, "transport")
    systems = transport.places(next(iter(transport.panels))).keys()
    assert systems == {"tagmatch serve", "Redis streams", "nats-server", "mosquitto"}
    assert transport.value("messages lost") == 0
    assert not transport.unavailable
