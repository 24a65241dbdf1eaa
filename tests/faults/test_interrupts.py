"""Calls that Ctrl-C ends: each has made its change wholly or not at all, and all that follow are answered."""

from __future__ import annotations

import pytest
from faults.calls import CALLS
from faults.sweep import sweeps

#: Calls are interrupted at the first so many places, and at as many of those that come after them
BOUND = 4

ENGINES = [("rarest", 1), ("balanced", 4)]


@pytest.fixture(scope="module")
def reports(library, seed):
    with sweeps(library, seed, ENGINES, "--fault", "interruption", "--bound", str(BOUND)) as found:
        yield found


@pytest.mark.timeout(900)  # the first waits for the sweeps of both engines
@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("call", [call for call in CALLS if call != "amatch"])
def test_a_call_that_is_interrupted_changes_all_or_nothing(reports, engine, call):
    report = reports[engine].result()[call]
    assert not report["problems"], "\n".join(report["problems"])
    assert report["failed"], "it was never interrupted"
    print(f"{report['trials']} trials; the call can be interrupted at {report['events']} places")
