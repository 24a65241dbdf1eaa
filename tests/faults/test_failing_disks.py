"""Calls that cannot write: they raise, change nothing, and work when there is a disk again."""

from __future__ import annotations

import pytest
from faults.calls import CALLS
from faults.sweep import sweeps

#: Of what each call does to the disk, so many of the first steps fail, and as many of those beyond them
BOUND = 3
ENGINE = ("rarest", 1)
SAVED = [name for name, call in CALLS.items() if call.saved]


@pytest.fixture(scope="module")
def reports(library, seed):
    with sweeps(library, seed, [ENGINE], "--fault", "disk", "--bound", str(BOUND)) as found:
        yield found


@pytest.mark.timeout(900)  # the first waits for the sweep
@pytest.mark.parametrize("call", SAVED)
def test_a_call_that_cannot_write_changes_nothing(reports, call):
    report = reports[ENGINE].result()[call]
    assert not report["problems"], "\n".join(report["problems"])
    assert report["trials"]
    assert report["failed"] or not report["events"], "it always worked"
    print(f"{report['trials']} trials; the call takes {report['events']} steps that can fail")
