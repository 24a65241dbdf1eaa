"""The command `tagmatch-bench host`: that it runs what matchers on a device run, without one; not how fast that is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tagmatch import TagMatch
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import Layout, MatchOptions
from tagmatch.workloads.bench.figures.host import PACKETS
from tagmatch.workloads.bench.harness.idle_driver import idle_driver
from tagmatch.workloads.commands.bench import app

pytestmark = pytest.mark.slow


def test_command(tmp_path: Path) -> None:
    options = ["--sets", "300", "--threads", "2", "--rounds", "2", "--seconds", "0.001", "--allow-changes"]
    done = CliRunner().invoke(app, ["host", *options, "--output", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((tmp_path / "host.json").read_text())
    times = {
        panel["title"]: {(value["system"], value["x"]): value["value"] for value in panel["values"]}
        for panel in found["panels"]
    }
    places = {(name, size) for name in ("rarest", "balanced") for size in PACKETS}
    assert times["a packet"].keys() == times["a query"].keys() == places
    for (layout, size), a_packet in times["a packet"].items():
        assert a_packet > 0
        assert times["a query"][layout, size] * size == pytest.approx(a_packet)
    assert all(len(value["samples"]) == 2 for panel in found["panels"] for value in panel["values"])
    assert (tmp_path / "host.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("layout", ["rarest", "balanced"])
def test_driver_that_does_nothing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's own code sends all queries to the device, where nothing is found; then all is as before."""
    from tagmatch.pipeline.cuda import memory, preprocess
    from tagmatch.pipeline.cuda.matcher import CudaMatcher

    before = memory.cuda, preprocess._look_up
    sent: dict[str, bytes] = {}
    upload = memory.Workspace.upload

    def uploaded(workspace: memory.Workspace, name: str, values: np.ndarray) -> object:
        sent[name] = values.tobytes()
        return upload(workspace, name, values)

    monkeypatch.setattr(memory.Workspace, "upload", uploaded)
    with TagMatch(layout=layout, device="cpu") as tm, idle_driver():
        tm.add_sets([["a"], ["b", "c"]], [1, 2])
        tm.consolidate()
        matcher = CudaMatcher(tm.snapshot.segments[0], MatchOptions())
        (queries,) = tag_lists([["a"], ["bc", "é"], []], "queries")
        answers = matcher.preprocess(queries, 0, 3).subset_match().key_lookup()
    assert answers.offsets.tolist() == [0, 0, 0, 0]
    assert sent["data"] == "abcé".encode()
    assert (memory.cuda, preprocess._look_up) == before
