"""The command `tagmatch-bench serve`: what it measures, counts and compares, not how fast anything is."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tagmatch.workloads.commands.bench import app

pytestmark = pytest.mark.slow


def test_command(tmp_path):
    options = ["--allow-changes", "--sets", "2000", "--queries", "3000", "--rounds", "2", "--seconds", "0.05"]
    done = CliRunner().invoke(app, ["serve", *options, "--threads", "2", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.exception
    found = json.loads((tmp_path / "serve.json").read_text())
    lines = {line["what"]: line for line in found["lines"]}
    assert lines["overload: sent"]["value"] > 0
    required = [line for line in found["lines"] if line["target"] and "not" in line["what"]]
    assert required
    assert all(line["value"] == 0 for line in required)
    assert lines["errors"]["value"] == lines["still in flight at the end"]["value"] == 0
    (answers,) = found["answers"]
    assert (answers["wrong"], answers["missing"]) == (0, 0)
    assert answers["queries"] == 3000
    assert answers["keys"] > 0
    assert [panel["title"] for panel in found["panels"]] == [
        "messages a second in batches of 1,024",
        "latency at 50,000 messages a second",
    ]
    transport = json.loads((tmp_path / "transport.json").read_text())
    assert {row["system"] for row in transport["panels"][0]["values"]} == {
        "tagmatch serve",
        "Redis streams",
        "nats-server",
        "mosquitto",
    }
    assert [line["value"] for line in transport["lines"] if line["what"] == "messages lost"] == [0]
    assert not transport["unavailable"]
