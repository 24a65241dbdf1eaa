"""A short form of what `make torture` does to gateways."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from faults.gateways import Round
from faults.preloads import compiled
from faults.rounds import Report


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mqtt", "nats"])
def test_gateways_lose_nothing_whatever_befalls_them(kind: str, tmp_path: Path, seed: int) -> None:
    events = ["poison in", "poison out", "burst", "clock jump", "broker stopped"]
    events += ["service killed"] if kind == "mqtt" else ["broker killed"]
    report = Report()
    library = compiled("clock_jump.c", tmp_path)
    with contextlib.closing(Round(kind, random.Random(seed), tmp_path, library, report)) as one:
        one.run(events)
    assert not report.problems, report.problems
    counts = report.outcomes
    assert counts[f"{kind}: published"] == counts[f"{kind}: notified"] + counts[f"{kind}: dead letters"]
    assert counts[f"{kind}: dead letters"] == 4
